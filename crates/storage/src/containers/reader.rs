//! Reads chunks back, wherever they are.
//!
//! A call sorts the wanted chunks by place, looks for their frames in the cache, reads neighbouring frames in one go,
//! and decompresses each once. Other calls that want the same frame at the same time wait for it (`frame_cache.rs`).
//! Everything returned was checked: catalog, frame checksum, raw length, and that the slot has the wanted fingerprint.
//!
//! A few chunks of a plain frame are read without the rest. Then their bytes are compared with their fingerprints
//! instead of the frame's checksum (`short_reads.rs`).

use crate::components::DECOMPRESS;
use crate::containers::compression::decompress;
use crate::containers::file;
use crate::containers::frame_cache::{Needed, Share};
use crate::containers::open::{Found, OpenContainer};
use crate::containers::store::{ContainerStore, Shared};
use crate::{Address, Catalog, Codec, ContainerId, Frame, Origin, Result, Slice, Slot, StorageError};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Access, File, GroundError, checksum};
use std::borrow::Cow;
use std::io;
use std::sync::Arc;

/// Neighbouring frames are read together up to this many bytes,
const RUN_BYTES: u64 = 4 << 20;
/// and over gaps up to this many.
const GAP_BYTES: u64 = 32 << 10;

/// Where the slots of a container are looked up.
enum Source {
    Open(Arc<OpenContainer>),
    Sealed(Arc<Catalog>),
}

impl ContainerStore {
    /// Appends the bytes of the wanted chunks to `out`, in order. On an error nothing is appended.
    ///
    /// [`StorageError::Damaged`] names what cannot be read; wrong bytes are never returned. After a failed sync the
    /// error is [`StorageError::Poisoned`] instead. The system may have thrown away frames that the log has; the next
    /// opening brings them back.
    pub fn load(&self, wanted: &[(Address, Fingerprint)], out: &mut Vec<Slice>) -> Result<()> {
        self.load_as(wanted, false, out)
    }

    /// Does the same, and may read chunks of user data without the rest of their frames (`short_reads.rs`): fewer bytes
    /// for random reads. Such a chunk may be given although another one of its frame is damaged, where [`Self::load`]
    /// says so.
    pub fn load_short(&self, wanted: &[(Address, Fingerprint)], out: &mut Vec<Slice>) -> Result<()> {
        self.load_as(wanted, true, out)
    }

    fn load_as(&self, wanted: &[(Address, Fingerprint)], may_be_short: bool, out: &mut Vec<Slice>) -> Result<()> {
        let loaded = self.shared.stable(|| self.load_once(wanted, may_be_short));
        if loaded.as_ref().is_err_and(StorageError::is_damage) {
            self.shared.flow.check_poison()?;
        }
        out.extend(loaded?);
        Ok(())
    }

    fn load_once(&self, wanted: &[(Address, Fingerprint)], may_be_short: bool) -> Result<Vec<Slice>> {
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_by_key(|at| wanted[*at].0);
        let mut slices: Vec<Option<Slice>> = vec![None; wanted.len()];
        let mut needed: Vec<Needed> = Vec::new();
        for run in order.chunk_by(|a, b| wanted[*a].0.container() == wanted[*b].0.container()) {
            self.shared.locate(wanted, run, &mut slices, &mut needed)?;
        }
        self.shared.fetch(wanted, needed, may_be_short, &mut slices)?;
        let not_found = |address: &Address| self.shared.damaged(address.container(), None, Some(address.slot()), "it was not found");
        slices.into_iter().zip(wanted).map(|(slice, (address, _))| slice.ok_or_else(|| not_found(address))).collect()
    }

    /// Returns the catalog of a container, or of the one that it was merged into. If it is not sealed: the frames that
    /// are in its file so far.
    pub fn catalog(&self, container: ContainerId) -> Result<Arc<Catalog>> {
        let open = self.shared.unsealed.get(container);
        match open {
            Some(open) => Ok(open.state.lock().catalog.clone()),
            None => self.shared.stable(|| self.shared.sealed_catalog(container)),
        }
    }

    /// Returns the catalog that has the chunk at an address. `None`: its container is still being filled.
    pub fn sealed_catalog_of(&self, address: Address) -> Result<Option<Arc<Catalog>>> {
        let container = address.container();
        if !self.is_sealed(container) {
            return Ok(None);
        }
        self.catalog(container).map(Some)
    }

    /// Returns the container that has the chunk at an address, or the chunks of an origin. Also returns [all
    /// slots](Self::slots) that it has.
    pub fn slots_beside(&self, at: impl Into<Origin>) -> Result<(ContainerId, Vec<(Address, Slot)>)> {
        let container = at.into().container();
        if let Some(open) = self.shared.unsealed.get(container) {
            return Ok((container, slots_of_open(&open)));
        }
        let catalog = self.shared.stable(|| self.shared.sealed_catalog(container))?;
        Ok((catalog.container, slots_of(&catalog)))
    }

    /// Returns all chunks of a container, or of the one that it was merged into, by slot and with their addresses. They
    /// include the chunks of frames that are not in its file yet. The addresses of a merged container are the homes.
    /// For check.
    pub fn slots(&self, container: ContainerId) -> Result<Vec<(Address, Slot)>> {
        self.slots_beside(container).map(|(_, slots)| slots)
    }
}

fn slots_of_open(open: &OpenContainer) -> Vec<(Address, Slot)> {
    let slots = open.state.lock().slots();
    slots.into_iter().enumerate().map(|(number, slot)| (Address::new(open.id, number as u16), slot)).collect()
}

fn slots_of(catalog: &Catalog) -> Vec<(Address, Slot)> {
    catalog.slots.iter().enumerate().map(|(number, slot)| (catalog.address(number), *slot)).collect()
}

impl Shared {
    /// Finds chunks of one container: takes those in memory, and notes the frames of the others.
    fn locate(
        &self,
        wanted: &[(Address, Fingerprint)],
        run: &[usize],
        slices: &mut [Option<Slice>],
        needed: &mut Vec<Needed>,
    ) -> Result<()> {
        let Some(first) = run.first() else { return Ok(()) };
        let id = wanted[*first].0.container();
        let open = self.unsealed.get(id);
        let source = match open {
            Some(open) => Source::Open(open),
            None => Source::Sealed(self.sealed_catalog(id)?),
        };
        // The container whose file has the chunks.
        let container = match &source {
            Source::Open(_) => id,
            Source::Sealed(catalog) => catalog.container,
        };
        let state = match &source {
            Source::Open(open) => Some(open.state.lock()),
            Source::Sealed(_) => None,
        };
        for at in run {
            let (address, fingerprint) = &wanted[*at];
            let found = match (&source, &state) {
                (_, Some(state)) => state.find(address.slot(), fingerprint),
                (Source::Sealed(catalog), None) => {
                    catalog.find(*address, fingerprint).map(|(frame, range)| Found::Stored(frame.clone(), range))
                }
                (Source::Open(_), None) => Err("its container was closed".to_owned()),
            };
            match found.map_err(|why| self.not_found(container, *address, why))? {
                Found::Memory(slice) => slices[*at] = Some(slice),
                Found::Stored(frame, range) => match needed.last_mut() {
                    Some(last) if last.container == container && last.frame.number == frame.number => last.users.push((*at, range)),
                    _ => needed.push(Needed { container, frame, users: vec![(*at, range)] }),
                },
            }
        }
        Ok(())
    }

    /// Returns the error for a container that does not have the chunk that an address promises.
    pub(crate) fn not_found(&self, container: ContainerId, address: Address, why: String) -> StorageError {
        StorageError::NotThere { path: self.ground.describe(&file::path(&self.directory, container)), container, address, why }
    }

    /// Gets frames from the cache or from disk, and cuts the wanted chunks from them.
    fn fetch(
        &self,
        wanted: &[(Address, Fingerprint)],
        mut needed: Vec<Needed>,
        may_be_short: bool,
        slices: &mut [Option<Slice>],
    ) -> Result<()> {
        let give = |slices: &mut [Option<Slice>], needed: &Needed, frame: &Arc<Vec<u8>>| {
            for (at, range) in &needed.users {
                slices[*at] = Some(Slice::new(frame.clone(), range.clone()));
            }
        };
        let mut is_first = true;
        while !needed.is_empty() {
            let Share { mut claims, mut mine, short, waiting } =
                self.frames.share(needed, is_first, is_first && may_be_short, |needed, frame| give(slices, needed, frame));
            is_first = false;
            // Within a container by place in the file; containers stay together.
            mine.sort_by_key(|needed| (needed.container, needed.frame.offset_bytes));
            for run in mine.chunk_by(is_near) {
                self.read_run(run, |needed, frame| {
                    give(slices, needed, frame);
                    claims.publish(needed, frame);
                })?;
            }
            needed = waiting;
            // What a short read does not give is read as a whole frame.
            needed.extend(short.into_iter().filter(|needed| !self.read_short(wanted, needed, slices)));
        }
        Ok(())
    }

    /// Reads a run of frames that lie near each other, and passes them on decompressed.
    pub(crate) fn read_run(&self, run: &[Needed], mut pass: impl FnMut(&Needed, &Arc<Vec<u8>>)) -> Result<()> {
        self.read_stored_run(run, |needed, stored| {
            pass(needed, &Arc::new(self.unpack_own(needed.container, &needed.frame, stored)?));
            Ok(())
        })
    }

    /// Reads a run of frames that lie near each other, at most [`RUN_BYTES`] at a time, and passes them on as they are,
    /// unchecked.
    pub(crate) fn read_stored_run(&self, run: &[Needed], mut pass: impl FnMut(&Needed, Cow<'_, [u8]>) -> Result<()>) -> Result<()> {
        let mut rest = run;
        while let Some(first) = rest.first() {
            let start = u64::from(first.frame.offset_bytes);
            let fits = |needed: &&Needed| needed.frame.end_bytes() <= start + RUN_BYTES;
            let count = rest.iter().take_while(fits).count().max(1);
            let (part, behind) = rest.split_at(count);
            rest = behind;
            let end = part.iter().map(|needed| needed.frame.end_bytes()).max().unwrap_or(start);
            let bytes = self.read_stored(first.container, Some(first.frame.number), start, (end - start) as usize)?;
            if let [needed] = part {
                pass(needed, bytes.into())?;
                continue;
            }
            for needed in part {
                let at = (u64::from(needed.frame.offset_bytes) - start) as usize;
                pass(needed, bytes[at..at + needed.frame.stored_bytes as usize].into())?;
            }
        }
        Ok(())
    }

    /// Checks and decompresses a frame.
    pub(crate) fn unpack(&self, container: ContainerId, frame: &Frame, stored: &[u8]) -> Result<Vec<u8>> {
        self.profile.time(&DECOMPRESS, u64::from(frame.raw_bytes), || {
            self.check_stored(container, frame, stored)?;
            decompress(frame.codec, stored, frame.raw_bytes as usize)
                .map_err(|why| self.damaged(container, Some(frame.number), None, format!("it cannot be decompressed: {why}")))
        })
    }

    /// Does the same for bytes that may have no other owner. Then a frame that is stored plain is not copied.
    fn unpack_own(&self, container: ContainerId, frame: &Frame, stored: Cow<'_, [u8]>) -> Result<Vec<u8>> {
        if frame.codec != Codec::Plain || stored.len() != frame.raw_bytes as usize {
            return self.unpack(container, frame, &stored);
        }
        self.profile.time(&DECOMPRESS, u64::from(frame.raw_bytes), || self.check_stored(container, frame, &stored))?;
        Ok(stored.into_owned())
    }

    /// Checks that the stored bytes of a frame are what was written.
    pub(crate) fn check_stored(&self, container: ContainerId, frame: &Frame, stored: &[u8]) -> Result<()> {
        if checksum(stored) == frame.checksum {
            return Ok(());
        }
        let why = match self.options.discards_data {
            true => "this store keeps no data",
            false => "the checksum of the frame is wrong",
        };
        Err(self.damaged(container, Some(frame.number), None, why))
    }

    /// Reads bytes of a container file. If they are not there, that is damage.
    pub(crate) fn read_stored(&self, container: ContainerId, frame: Option<u32>, offset: u64, length: usize) -> Result<Vec<u8>> {
        let file = self.file_for_reading(container)?;
        self.read_from(&file, container, frame, offset, length).map(Cow::into_owned)
    }

    pub(crate) fn read_error(&self, container: ContainerId, frame: Option<u32>, error: GroundError) -> StorageError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged(container, frame, None, "the file is too short"),
            io::ErrorKind::NotFound => self.damaged(container, frame, None, "the file is missing"),
            _ if error.is_lasting() => self.damaged(container, frame, None, error.to_string()),
            _ => StorageError::Ground(error),
        }
    }

    pub(crate) fn file_for_reading(&self, container: ContainerId) -> Result<Arc<dyn File>> {
        self.open_file(container)?.ok_or_else(|| self.missing(container))
    }

    /// Returns the file of a container; `None`: there is none.
    pub(crate) fn open_file(&self, container: ContainerId) -> Result<Option<Arc<dyn File>>> {
        if let Some(file) = self.caches.file(container) {
            return Ok(Some(file));
        }
        let generation = self.forwards.generation();
        let opened = match self.rehearsed(container) {
            Some(file) => Ok(file),
            None => {
                self.opens(container);
                self.ground.open(&file::path(&self.directory, container), Access::Read)
            }
        };
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(self.read_error(container, None, error)),
        };
        self.caches.keep_file_if(container, file.clone(), || self.forwards.is_unmoved_since(generation));
        Ok(Some(file))
    }
}

/// Returns whether two frames, sorted by place, are read together.
pub(crate) fn is_near(a: &Needed, b: &Needed) -> bool {
    a.container == b.container && u64::from(b.frame.offset_bytes) <= a.frame.end_bytes() + GAP_BYTES
}
