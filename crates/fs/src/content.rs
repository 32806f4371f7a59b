//! The content of files.
//!
//! # What lies behind the end of a file
//! Anything: blocks of a longer file that was cut are freed later, and after a crash they may be there still. So before
//! the end of a file moves up, everything from the old end to the first new byte is zeroed. Reads end at the end.
//!
//! # Order
//! A length counts as stored only after the content up to it was written out ([`crate::commit`]).

use crate::error::{FsError, Result};
use crate::filesystem::{FILE_BITS, Filesystem, now_ns};
use crate::inode::{APPEND_ONLY, IMMUTABLE, Inode, Kind};
use onefold_blocks::{At, Extent};

/// Extents looked at in one step.
const EXTENTS: usize = 64;

/// What becomes of a range of a file (fallocate(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// It is part of the file. Its content stays.
    Extend,
    /// Its content stays, and so does the length of the file.
    Keep,
    /// It becomes a hole. The length stays.
    Punch,
    /// It becomes zeros. `keeps_size`: the length stays.
    Zero {
        /// The length stays.
        keeps_size: bool,
    },
}

/// Returns the length of a file. Errors: it is of another kind.
fn length_of(inode: &Inode) -> Result<u64> {
    match inode.kind {
        Kind::File => Ok(inode.size),
        Kind::Directory { .. } => Err(FsError::IsADirectory),
        _ => Err(FsError::Invalid),
    }
}

impl Filesystem {
    fn at(&self, number: u64, offset: u64) -> At {
        At::new(number << FILE_BITS, offset)
    }

    /// Returns the most bytes that a file can have.
    pub fn max_file_bytes(&self) -> u64 {
        (u64::from(self.space.block_size()) << FILE_BITS).min(i64::MAX as u64)
    }

    pub(crate) fn size(&self, number: u64) -> Result<u64> {
        length_of(&self.state.lock().tree.inode(number)?.inode)
    }

    /// Returns the length of a file that is to change. Errors: a flag of `chattr` forbids that.
    fn size_to_change(&self, number: u64, forbidding: u32) -> Result<u64> {
        self.check_writable()?;
        let mut state = self.state.lock();
        let inode = &state.tree.inode(number)?.inode;
        inode.check_flags(forbidding)?;
        length_of(inode)
    }

    /// Reads from a file. Returns fewer bytes than asked for at its end.
    pub fn read(&self, number: u64, offset: u64, length: usize) -> Result<Vec<u8>> {
        let lock = self.file(number);
        let _file = lock.read();
        let length = self.size(number)?.saturating_sub(offset).min(length as u64) as usize;
        let mut out = vec![0; length];
        if length > 0 {
            self.space.read(self.at(number, offset), &mut out)?;
        }
        Ok(out)
    }

    /// Writes to a file. `appends`: to its end. Returns where its end is then.
    pub fn write(&self, number: u64, offset: u64, data: &[u8], appends: bool) -> Result<u64> {
        self.make_room()?;
        let lock = self.file(number);
        let _file = lock.write();
        let size = self.size_to_change(number, IMMUTABLE)?;
        let offset = if appends { size } else { offset };
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= self.max_file_bytes()).ok_or(FsError::TooLarge)?;
        if data.is_empty() {
            return Ok(size);
        }
        self.grow(size, end)?;
        let written = self.zero_gap(number, size, offset).and_then(|()| Ok(self.space.write(self.at(number, offset), data)?));
        self.written(number, size, end, written.is_ok(), offset > size)?;
        written.map(|()| size.max(end))
    }

    /// Keeps room for a file that grows.
    fn grow(&self, size: u64, end: u64) -> Result<()> {
        if end > size { self.state.lock().reserve(end - size) } else { Ok(()) }
    }

    /// Zeroes what lies between the end of a file and what is written behind it.
    fn zero_gap(&self, number: u64, size: u64, offset: u64) -> Result<()> {
        if offset > size {
            self.space.write_zeroes(self.at(number, size), offset - size)?;
        }
        Ok(())
    }

    /// Notes what was written to a file, and gives up the room that was kept for it. `has_holes`: a part of it may be a
    /// hole.
    fn written(&self, number: u64, size: u64, end: u64, is_done: bool, has_holes: bool) -> Result<()> {
        let now_ns = now_ns();
        self.state.lock().release(end.saturating_sub(size));
        if !is_done {
            return Ok(());
        }
        let mut state = self.change()?;
        state.charge(size, size.max(end));
        state.tree.change(number, |inode| {
            inode.size = inode.size.max(end);
            inode.has_holes |= has_holes;
            (inode.mtime_ns, inode.ctime_ns) = (now_ns, now_ns);
        })
    }

    /// Gives a file a length.
    pub fn truncate(&self, number: u64, size: u64) -> Result<Inode> {
        self.make_room()?;
        if size > self.max_file_bytes() {
            return Err(FsError::TooLarge);
        }
        let lock = self.file(number);
        let _file = lock.write();
        let before = self.size_to_change(number, IMMUTABLE | APPEND_ONLY)?;
        if size > before {
            self.grow(before, size)?;
            let zeroed = self.zero_gap(number, before, size);
            self.state.lock().release(size - before);
            zeroed?;
        }
        let now_ns = now_ns();
        let mut state = self.change()?;
        state.charge(before, size);
        if size < before {
            let end = state.cut.entry(number).or_default();
            *end = (*end).max(before);
        }
        if size < before {
            state.tree.cut(number, size)?;
        }
        state.tree.change(number, |inode| {
            inode.size = size;
            inode.has_holes = size > 0 && (inode.has_holes || size > before);
            (inode.mtime_ns, inode.ctime_ns) = (now_ns, now_ns);
        })?;
        Ok(state.tree.inode(number)?.inode.clone())
    }

    /// Changes what a range of a file is.
    pub fn allocate(&self, number: u64, offset: u64, length: u64, how: Allocate) -> Result<()> {
        self.make_room()?;
        let end = offset.checked_add(length).filter(|_| length > 0).ok_or(FsError::Invalid)?;
        if end > self.max_file_bytes() {
            return Err(FsError::TooLarge);
        }
        let lock = self.file(number);
        let _file = lock.write();
        // More may be added to the end of what is only added to.
        let forbidding = if matches!(how, Allocate::Extend | Allocate::Keep) { IMMUTABLE } else { IMMUTABLE | APPEND_ONLY };
        let size = self.size_to_change(number, forbidding)?;
        let grows = matches!(how, Allocate::Extend | Allocate::Zero { keeps_size: false }) && end > size;
        let kept = end.min(size).saturating_sub(offset);
        if grows {
            self.grow(size, end)?;
        }
        let changed = match how {
            Allocate::Extend | Allocate::Keep => Ok(()),
            // A discard may leave the edges on a full disk. A hole reads as zeros, or it was not made.
            Allocate::Punch | Allocate::Zero { .. } if kept > 0 => {
                self.space.write_zeroes(self.at(number, offset), kept).map_err(FsError::from)
            }
            Allocate::Punch | Allocate::Zero { .. } => Ok(()),
        };
        let changed = changed.and_then(|()| if grows { self.zero_gap(number, size, end) } else { Ok(()) });
        if grows {
            self.written(number, size, end, changed.is_ok(), true)?;
            return changed;
        }
        changed?;
        let now_ns = now_ns();
        let mut state = self.change()?;
        state.tree.change(number, |inode| {
            inode.has_holes |= matches!(how, Allocate::Punch | Allocate::Zero { .. });
            (inode.mtime_ns, inode.ctime_ns) = (now_ns, now_ns);
        })
    }

    /// Returns where the next data or the next hole begins, from `offset` on. The end of a file is a hole. `None`:
    /// there is none, or `offset` is behind the end.
    pub fn seek(&self, number: u64, offset: u64, seeks_hole: bool) -> Result<Option<u64>> {
        let lock = self.file(number);
        let _file = lock.read();
        let size = self.size(number)?;
        let mut at = offset;
        while at < size {
            let extents = self.space.extents(self.at(number, at), size - at, EXTENTS)?;
            if extents.is_empty() {
                break;
            }
            for Extent { length, is_hole } in extents {
                if is_hole == seeks_hole {
                    return Ok(Some(at));
                }
                at += length;
            }
        }
        Ok((seeks_hole && offset < size).then_some(size))
    }

    /// Returns how many bytes of a file are stored, holes left out.
    pub fn stored_bytes(&self, number: u64) -> Result<u64> {
        if let inode = &self.state.lock().tree.inode(number)?.inode
            && !inode.has_holes
        {
            return Ok(inode.size);
        }
        let lock = self.file(number);
        let _file = lock.read();
        let size = self.size(number)?;
        let (mut at, mut stored) = (0, 0);
        while at < size {
            let extents = self.space.extents(self.at(number, at), size - at, EXTENTS)?;
            if extents.is_empty() {
                break;
            }
            for Extent { length, is_hole } in extents {
                stored += if is_hole { 0 } else { length };
                at += length;
            }
        }
        Ok(stored)
    }

    /// Copies a range of a file into another one, or into another place of the same, without reading it. Returns how
    /// much: less at the end of the source. Errors: the ranges overlap.
    pub fn copy(&self, (from, from_offset): (u64, u64), (to, to_offset): (u64, u64), length: u64) -> Result<u64> {
        self.make_room()?;
        let locks = [self.file(from), self.file(to)];
        // In the order of their numbers, and one file once.
        let (_read, _write) = match from.cmp(&to) {
            std::cmp::Ordering::Less => {
                let read = locks[0].read();
                (Some(read), locks[1].write())
            }
            std::cmp::Ordering::Equal => (None, locks[1].write()),
            std::cmp::Ordering::Greater => {
                let write = locks[1].write();
                (Some(locks[0].read()), write)
            }
        };
        let length = self.size(from)?.saturating_sub(from_offset).min(length);
        if from == to && from_offset.abs_diff(to_offset) < length {
            return Err(FsError::Invalid);
        }
        let size = self.size_to_change(to, IMMUTABLE)?;
        let end = to_offset.checked_add(length).filter(|end| *end <= self.max_file_bytes()).ok_or(FsError::TooLarge)?;
        if length == 0 {
            return Ok(0);
        }
        self.grow(size, end)?;
        let copied = self
            .zero_gap(to, size, to_offset)
            .and_then(|()| Ok(self.space.copy_from(self.at(to, to_offset), &self.space, self.at(from, from_offset), length)?));
        let has_holes = to_offset > size || self.state.lock().tree.inode(from)?.inode.has_holes;
        self.written(to, size, end, copied.is_ok(), has_holes)?;
        copied.map(|()| length)
    }
}
