//! Space kept for reclamation: a file without content that shrinks when the device is full.
//!
//! Deleting also writes: records of the log, pages of indexes, forwards. So without a reserve nobody could empty a
//! device that is full to its last block. A [`ReservedGround`] keeps a file of its own, the *reserve*. When a write
//! finds the device full, the ground releases a part of the reserve and retries the write. It repeats this until the
//! write succeeds or the reserve is empty.
//!
//! Invariants:
//! * [`File::allocate`] never touches the reserve. New data asks for space this way, so new data finds the device full
//!   first.
//! * Once a part is released, [`Reserve::is_in_use`] says so until the reserve is complete again. Meanwhile its owner
//!   accepts no new data.
//! * The ground retries only repeatable writes. It retries neither a failed sync nor the creation of a directory, which
//!   syncs: nobody knows what they have done. A failed creation still releases a part, so that its caller finds space
//!   on a retry.
//! * The content of the file means nothing, and losing it harms nothing.

use crate::{Access, File, Ground, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of parts in which the reserve is released.
const PARTS: u64 = 8;
/// Smallest part, bytes.
const PART_MIN_BYTES: u64 = 256 << 10;
/// Limit of a reserve: one byte in so many of the device.
const SHARE: u64 = 50;

/// The reserve of a ground.
#[derive(Debug)]
pub struct Reserve {
    ground: Arc<dyn Ground>,
    path: String,
    state: Mutex<State>,
    /// The state when its lock was last released, for readers that must not wait.
    held_bytes: AtomicU64,
    is_in_use: AtomicBool,
    /// How many parts were released. It changes under the lock of the state, but writes read it without.
    given_up: AtomicU64,
}

#[derive(Debug)]
struct State {
    held_bytes: u64,
    wanted_bytes: u64,
    /// Whether all of the file is known to be allocated. A copied file may be a hole.
    is_checked: bool,
    /// Whether the last attempt to get the file failed, for another reason than a full device.
    has_failed: bool,
}

impl State {
    fn is_in_use(&self) -> bool {
        self.held_bytes < self.wanted_bytes
    }
}

impl Reserve {
    /// Opens the reserve as it was left. [`Reserve::keep`] sets its size.
    pub fn open(ground: &Arc<dyn Ground>, path: &str) -> Reserve {
        let held_bytes = ground.open(path, Access::Read).and_then(|file| file.len()).unwrap_or(0);
        Reserve {
            ground: ground.clone(),
            path: path.to_owned(),
            state: Mutex::new(State { held_bytes, wanted_bytes: 0, is_checked: held_bytes == 0, has_failed: false }),
            held_bytes: AtomicU64::new(held_bytes),
            is_in_use: AtomicBool::new(false),
            given_up: AtomicU64::new(0),
        }
    }

    /// Returns the bytes in reserve now.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Acquire)
    }

    /// Returns whether a part was released or could not be allocated. Then reclamation takes priority: the rest of the
    /// device is reserved for it.
    pub fn is_in_use(&self) -> bool {
        self.is_in_use.load(Ordering::Acquire)
    }

    /// Grows the reserve to `wanted_bytes`, but at most a fiftieth of the device. A larger one shrinks. It takes space
    /// only if as much again stays free, so that it is not released at once. Returns whether the reserve is complete
    /// now.
    ///
    /// Errors: the file cannot be had, though the device is not full. Reports that once. Until it can be had, the
    /// reserve wants no more than it holds.
    pub fn keep(&self, wanted_bytes: u64) -> Result<bool> {
        let space = self.ground.space()?;
        let mut state = self.state.lock();
        state.wanted_bytes = wanted_bytes.min(space.total_bytes / SHARE);
        let kept = self.adjust(&mut state, space.free_bytes);
        // Writers do not see the states in between.
        self.publish(&state);
        kept.map(|()| !state.is_in_use())
    }

    fn adjust(&self, state: &mut State, free_bytes: u64) -> Result<()> {
        if state.held_bytes > state.wanted_bytes {
            self.shrink(state, state.wanted_bytes)?;
        }
        if let Err(error) = self.take_missing(state, free_bytes) {
            if error.is_full() {
                // The attempt may have taken all the free space, and others need it.
                let held_bytes = if state.is_checked { state.held_bytes } else { 0 };
                self.shrink(state, held_bytes)?;
                self.given_up.fetch_add(1, Ordering::Release);
            } else {
                state.wanted_bytes = state.held_bytes;
                if !std::mem::replace(&mut state.has_failed, true) {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Allocates only the missing part. A file system may want free space even for the part that the file already has.
    fn take_missing(&self, state: &mut State, free_bytes: u64) -> Result<()> {
        if !state.is_checked {
            if self.file()?.allocated_bytes()? < state.held_bytes {
                // Not every file system can allocate a hole, so rebuild the file.
                self.shrink(state, 0)?;
            }
            state.is_checked = true;
            state.has_failed = false;
        }
        let missing_bytes = state.wanted_bytes - state.held_bytes;
        if missing_bytes > 0 && free_bytes / 2 >= missing_bytes {
            self.file()?.allocate(state.held_bytes, missing_bytes)?;
            state.held_bytes = state.wanted_bytes;
            state.has_failed = false;
        }
        Ok(())
    }

    /// Runs a write, and releases parts of the reserve as long as the device is full.
    fn run<T>(&self, write: impl Fn() -> Result<T>) -> Result<T> {
        loop {
            let given_up = self.given_up.load(Ordering::Acquire);
            match write() {
                Err(error) if error.is_full() && self.give_up(given_up) => {}
                result => return result,
            }
        }
    }

    /// Releases a part, unless another thread did so since `seen`. Returns whether there is space that was not there
    /// before.
    fn give_up(&self, seen: u64) -> bool {
        let mut state = self.state.lock();
        if self.given_up.load(Ordering::Acquire) != seen {
            return true;
        }
        if state.held_bytes == 0 {
            return false;
        }
        let is_first = !state.is_in_use();
        let part = (state.wanted_bytes / PARTS).max(PART_MIN_BYTES);
        let left = state.held_bytes.saturating_sub(part);
        if let Err(error) = self.shrink(&mut state, left) {
            tracing::error!(%error, "the disk is full, and the reserve cannot be released");
            return false;
        }
        self.publish(&state);
        self.given_up.fetch_add(1, Ordering::Release);
        if is_first {
            tracing::warn!("the disk is full: the reserve is in use, and no new data is stored until the reserve is complete again");
        }
        true
    }

    fn shrink(&self, state: &mut State, to_bytes: u64) -> Result<()> {
        let shrunk = if to_bytes == 0 { self.ground.remove(&self.path) } else { self.file()?.set_len(to_bytes) };
        match shrunk {
            Err(error) if error.is_not_found() => state.held_bytes = 0,
            // A copy-on-write file system may need space to shorten a file, but not to remove it.
            Err(error) if error.is_full() && to_bytes > 0 => {
                self.ground.remove(&self.path)?;
                state.held_bytes = 0;
            }
            shrunk => {
                shrunk?;
                state.held_bytes = to_bytes;
            }
        }
        Ok(())
    }

    /// Shows the state to readers that do not take the lock.
    fn publish(&self, state: &State) {
        self.held_bytes.store(state.held_bytes, Ordering::Release);
        self.is_in_use.store(state.is_in_use(), Ordering::Release);
    }

    fn file(&self) -> Result<Arc<dyn File>> {
        match self.ground.open(&self.path, Access::ReadWrite) {
            Err(error) if error.is_not_found() => self.ground.create(&self.path),
            opened => opened,
        }
    }
}

/// A ground whose writes may use a reserve.
#[derive(Debug)]
pub struct ReservedGround {
    ground: Arc<dyn Ground>,
    reserve: Arc<Reserve>,
}

impl ReservedGround {
    /// Lets writes to a ground use the reserve.
    pub fn new(ground: Arc<dyn Ground>, reserve: Arc<Reserve>) -> ReservedGround {
        ReservedGround { ground, reserve }
    }

    /// Returns whether a file is on the device of the reserve. One behind a linked directory is not.
    fn is_here(&self, path: &str) -> bool {
        let linked = self.ground.linked_directory(crate::parent(path));
        linked.is_ok_and(|linked| linked.is_none())
    }

    fn file(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(ReservedFile { file, ground: self.ground.clone(), reserve: self.reserve.clone() })
    }
}

impl crate::DelegatingGround for ReservedGround {
    fn below(&self) -> &dyn Ground {
        &*self.ground
    }

    fn create(&self, path: &str) -> Result<Arc<dyn File>> {
        if !self.is_here(path) {
            return self.ground.create(path);
        }
        Ok(self.file(self.reserve.run(|| self.ground.create(path))?))
    }

    fn create_directory(&self, directory: &str) -> Result<()> {
        let given_up = self.reserve.given_up.load(Ordering::Acquire);
        let created = self.ground.create_directory(directory);
        if created.as_ref().is_err_and(|error| error.is_full()) {
            self.reserve.give_up(given_up);
        }
        created
    }

    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn File>> {
        let file = self.ground.open(path, access)?;
        Ok(if access == Access::ReadWrite && self.is_here(path) { self.file(file) } else { file })
    }

    fn remove(&self, path: &str) -> Result<()> {
        if self.is_here(path) { self.reserve.run(|| self.ground.remove(path)) } else { self.ground.remove(path) }
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        if self.is_here(from) { self.reserve.run(|| self.ground.rename(from, to)) } else { self.ground.rename(from, to) }
    }
}

#[derive(Debug)]
struct ReservedFile {
    file: Arc<dyn File>,
    ground: Arc<dyn Ground>,
    reserve: Arc<Reserve>,
}

impl crate::DelegatingFile for ReservedFile {
    fn below(&self) -> &dyn File {
        &*self.file
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.reserve.run(|| self.file.write_at(offset, data))
    }

    fn set_len(&self, length: u64) -> Result<()> {
        self.reserve.run(|| self.file.set_len(length))
    }

    fn allocate_from_reserve(&self, offset: u64, length: u64) -> Result<()> {
        let length_before = self.file.len()?;
        let allocate = || match self.file.allocate(offset, length) {
            Err(error) if error.is_full() => {
                // The attempt may have taken the free space.
                self.file.set_len(length_before)?;
                Err(error)
            }
            result => result,
        };
        let full = match allocate() {
            Err(error) if error.is_full() => error,
            result => return result,
        };
        // Release parts only if they can help: the request may be much larger than the reserve.
        if self.ground.space()?.free_bytes.saturating_add(self.reserve.held_bytes()) < length {
            return Err(full);
        }
        self.reserve.run(allocate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimulatedGround;
    use std::sync::OnceLock;

    const MIB: u64 = 1 << 20;

    fn disk(capacity_bytes: u64) -> (Arc<SimulatedGround>, Arc<dyn Ground>) {
        let disk = Arc::new(SimulatedGround::new(1));
        disk.set_capacity(capacity_bytes);
        (disk.clone(), disk)
    }

    fn write(ground: &dyn Ground, path: &str, length: u64) -> Result<()> {
        ground.create(path)?.write_at(0, &vec![1; length as usize])
    }

    #[test]
    fn a_write_on_a_full_disk_uses_the_reserve_and_new_room_makes_it_whole() {
        let (_, disk) = disk(400 * MIB);
        let reserve = Arc::new(Reserve::open(&disk, "reserve"));
        assert!(reserve.keep(100 * MIB).unwrap());
        assert_eq!((reserve.held_bytes(), reserve.is_in_use()), (8 * MIB, false), "a fiftieth");
        let ground = ReservedGround::new(disk.clone(), reserve.clone());

        let others = disk.create("others").unwrap();
        others.allocate(0, disk.space().unwrap().free_bytes).unwrap();
        assert!(ground.create("data").unwrap().allocate(0, 4096).is_err_and(|error| error.is_full()), "new data");
        assert!(!reserve.is_in_use());
        write(&ground, "log", MIB - 4096).unwrap();
        assert!(reserve.is_in_use());
        assert_eq!(reserve.held_bytes(), 7 * MIB, "no more than is needed");
        write(&ground, "pages", 7 * MIB).unwrap();
        assert_eq!(reserve.held_bytes(), 0);
        assert!(write(&ground, "more", MIB).unwrap_err().is_full(), "nothing is left");

        assert!(!reserve.keep(100 * MIB).unwrap() && reserve.is_in_use(), "no room");
        others.set_len(8 * MIB).unwrap();
        assert!(reserve.keep(100 * MIB).unwrap() && !reserve.is_in_use());
        assert_eq!(Reserve::open(&disk, "reserve").held_bytes(), 8 * MIB);
    }

    /// A device with less space than it reports: under a quota, or with others filling it at the same time.
    #[derive(Debug)]
    struct Quota(Arc<dyn Ground>);

    impl crate::DelegatingGround for Quota {
        fn below(&self) -> &dyn Ground {
            &*self.0
        }
        fn space(&self) -> Result<crate::Space> {
            Ok(crate::Space { free_bytes: 1 << 40, total_bytes: 1 << 40 })
        }
    }

    #[test]
    fn a_reserve_that_finds_less_room_than_was_said_takes_none() {
        let (device, disk) = disk(16 * MIB);
        let quota: Arc<dyn Ground> = Arc::new(Quota(disk.clone()));
        let reserve = Arc::new(Reserve::open(&quota, "reserve"));
        assert!(reserve.keep(4 * MIB).unwrap());
        for (wanted_bytes, held_bytes) in [(100 * MIB, 4 * MIB), (2 * MIB, 2 * MIB), (100 * MIB, 2 * MIB)] {
            assert_eq!(reserve.keep(wanted_bytes).unwrap(), wanted_bytes == held_bytes);
            assert_eq!((reserve.held_bytes(), device.used_bytes()), (held_bytes, held_bytes));
        }
        let ground = ReservedGround::new(quota, reserve.clone());
        write(&ground, "log", 15 * MIB).unwrap();
        assert!(reserve.is_in_use());
        reserve.keep(100 * MIB).unwrap();
        write(&ground, "pages", MIB).unwrap();
    }

    #[test]
    fn a_reserve_that_is_a_hole_gets_its_room_or_is_none() {
        let (device, disk) = disk(16 * MIB);
        disk.create("reserve").unwrap().set_len(64 << 10).unwrap();
        let others = disk.create("others").unwrap();
        others.allocate(0, 16 * MIB).unwrap();
        let reserve = Arc::new(Reserve::open(&disk, "reserve"));
        assert!(!reserve.keep(64 << 10).unwrap());
        assert_eq!((reserve.held_bytes(), reserve.is_in_use()), (0, true));
        others.set_len(MIB).unwrap();
        disk.create("reserve").unwrap().set_len(64 << 10).unwrap();
        let reserve = Arc::new(Reserve::open(&disk, "reserve"));
        assert!(reserve.keep(64 << 10).unwrap());
        assert_eq!((reserve.held_bytes(), device.used_bytes()), (64 << 10, MIB + (64 << 10)));
    }

    /// A file system without `fallocate`: it writes only past the end of a file.
    #[derive(Debug)]
    struct NoAllocate(Arc<dyn Ground>);

    impl crate::DelegatingGround for NoAllocate {
        fn below(&self) -> &dyn Ground {
            &*self.0
        }
        fn create(&self, path: &str) -> Result<Arc<dyn File>> {
            Ok(Arc::new(Written(self.0.create(path)?)))
        }
        fn open(&self, path: &str, access: Access) -> Result<Arc<dyn File>> {
            Ok(Arc::new(Written(self.0.open(path, access)?)))
        }
    }

    #[derive(Debug)]
    struct Written(Arc<dyn File>);

    impl crate::DelegatingFile for Written {
        fn below(&self) -> &dyn File {
            &*self.0
        }
        fn allocate(&self, offset: u64, length: u64) -> Result<()> {
            let start = self.0.len()?.max(offset);
            self.0.write_at(start, &vec![0; (offset + length).saturating_sub(start) as usize])
        }
    }

    #[test]
    fn a_reserve_that_is_a_hole_gets_its_room_where_nothing_can_be_allocated() {
        let (device, disk) = disk(16 * MIB);
        disk.create("reserve").unwrap().set_len(64 << 10).unwrap();
        let disk: Arc<dyn Ground> = Arc::new(NoAllocate(disk));
        let reserve = Reserve::open(&disk, "reserve");
        assert!(reserve.keep(64 << 10).unwrap());
        assert_eq!((reserve.held_bytes(), device.used_bytes()), (64 << 10, 64 << 10));
    }

    #[test]
    fn a_reserve_that_could_be_had_meanwhile_says_again_when_it_cannot() {
        let (device, disk) = disk(400 * MIB);
        disk.create("reserve").unwrap().allocate(0, 64 << 10).unwrap();
        let reserve = Reserve::open(&disk, "reserve");
        device.fail_query(1, 13);
        reserve.keep(64 << 10).unwrap_err();
        assert!(reserve.keep(64 << 10).unwrap());
        device.fail_query(1, 13);
        reserve.keep(128 << 10).expect_err("it is said again");
    }

    /// A file system that wants free space for the whole range it allocates, including the part that the file already
    /// has, as XFS does. It checks that nobody sees the reserve in use while it allocates.
    #[derive(Debug)]
    struct WholeRanges {
        disk: Arc<dyn Ground>,
        reserve: Arc<OnceLock<Arc<Reserve>>>,
    }

    impl crate::DelegatingGround for WholeRanges {
        fn below(&self) -> &dyn Ground {
            &*self.disk
        }
        fn create(&self, path: &str) -> Result<Arc<dyn File>> {
            Ok(Arc::new(WholeRange { file: self.disk.create(path)?, disk: self.disk.clone(), reserve: self.reserve.clone() }))
        }
        fn open(&self, path: &str, access: Access) -> Result<Arc<dyn File>> {
            Ok(Arc::new(WholeRange { file: self.disk.open(path, access)?, disk: self.disk.clone(), reserve: self.reserve.clone() }))
        }
    }

    #[derive(Debug)]
    struct WholeRange {
        file: Arc<dyn File>,
        disk: Arc<dyn Ground>,
        reserve: Arc<OnceLock<Arc<Reserve>>>,
    }

    impl crate::DelegatingFile for WholeRange {
        fn below(&self) -> &dyn File {
            &*self.file
        }
        fn allocate(&self, offset: u64, length: u64) -> Result<()> {
            assert!(self.reserve.get().is_none_or(|reserve| !reserve.is_in_use()), "a writer would be told that the disk is full");
            let free_bytes = self.disk.space()?.free_bytes;
            self.file.allocate(offset, if free_bytes < length { free_bytes + self.file.len()? + 1 } else { length })
        }
    }

    #[test]
    fn a_whole_reserve_asks_for_no_room_and_one_that_grows_asks_for_what_is_missing() {
        let (device, disk) = disk(400 * MIB);
        let reserve = Arc::new(OnceLock::new());
        let ground: Arc<dyn Ground> = Arc::new(WholeRanges { disk: disk.clone(), reserve: reserve.clone() });
        let _ = reserve.set(Arc::new(Reserve::open(&ground, "reserve")));
        let reserve = reserve.get().unwrap();
        assert!(reserve.keep(4 * MIB).unwrap());
        // Others leave space for the missing part, but not for the whole file.
        let others = disk.create("others").unwrap();
        others.allocate(0, disk.space().unwrap().free_bytes - 5 * MIB).unwrap();
        assert!(reserve.keep(6 * MIB).unwrap());
        assert_eq!(reserve.held_bytes(), 6 * MIB);
        others.allocate(0, others.len().unwrap() + disk.space().unwrap().free_bytes).unwrap();
        let reserve = Reserve::open(&ground, "reserve");
        assert!(reserve.keep(6 * MIB).unwrap());
        assert_eq!((reserve.held_bytes(), device.used_bytes()), (6 * MIB, 400 * MIB));
    }

    #[test]
    fn a_reserve_that_cannot_be_had_keeps_no_data_out() {
        let (_, disk) = disk(400 * MIB);
        disk.create_directory("reserve").unwrap();
        let reserve = Reserve::open(&disk, "reserve");
        assert!(!reserve.keep(4 * MIB).unwrap_err().is_full());
        assert!(reserve.keep(4 * MIB).unwrap(), "it is said once");
        assert!(!reserve.is_in_use());
    }

    #[test]
    fn the_sync_of_a_new_directory_is_not_made_again_but_its_caller_has_room_then() {
        let (device, disk) = disk(400 * MIB);
        let reserve = Arc::new(Reserve::open(&disk, "reserve"));
        reserve.keep(4 * MIB).unwrap();
        device.fail_operation(1, std::io::ErrorKind::StorageFull);
        let ground = ReservedGround::new(disk, reserve.clone());
        assert!(ground.create_directory("directory").is_err_and(|error| error.is_full()));
        assert!(reserve.is_in_use());
        ground.create_directory("directory").unwrap();
    }

    #[test]
    fn a_growth_uses_what_is_free_and_the_reserve_together_and_takes_nothing_when_it_fails() {
        let (device, disk) = disk(400 * MIB);
        let reserve = Arc::new(Reserve::open(&disk, "reserve"));
        reserve.keep(4 * MIB).unwrap();
        let ground = ReservedGround::new(disk.clone(), reserve.clone());
        disk.create("others").unwrap().allocate(0, disk.space().unwrap().free_bytes - 3 * MIB).unwrap();
        let file = ground.create("pages").unwrap();
        file.write_at(0, &[1; 4096]).unwrap();
        let used_bytes = device.used_bytes();
        assert!(file.allocate_from_reserve(4096, 8 * MIB).unwrap_err().is_full());
        assert_eq!((device.used_bytes(), reserve.held_bytes()), (used_bytes, 4 * MIB));
        file.allocate_from_reserve(4096, 6 * MIB).unwrap();
        assert!(reserve.is_in_use());
    }

    #[test]
    fn what_is_larger_than_the_reserve_does_not_use_it_up_in_vain() {
        let (_, disk) = disk(400 * MIB);
        let reserve = Arc::new(Reserve::open(&disk, "reserve"));
        reserve.keep(4 * MIB).unwrap();
        let ground = ReservedGround::new(disk.clone(), reserve.clone());
        disk.create("others").unwrap().allocate(0, disk.space().unwrap().free_bytes).unwrap();
        assert!(ground.create("pages").unwrap().allocate_from_reserve(0, 5 * MIB).unwrap_err().is_full());
        assert_eq!(reserve.held_bytes(), 4 * MIB);
        ground.create("others pages").unwrap().allocate_from_reserve(0, 2 * MIB).unwrap();
        assert!(reserve.is_in_use());
    }
}
