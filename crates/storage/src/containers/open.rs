//! A container that is not sealed: its frames in the file, on their way, and still in memory.
//!
//! Invariants of [`State`]:
//! * Frames are `catalog.frames`, then `pending`, then `open`, numbered in this order without holes. Slots likewise.
//! * Frames below `synced_frames` are synced, or a prepare has seen to them in another way. `logged` never passes what
//!   is synced or carried by the log itself.
//! * `end_bytes` is behind every frame that has a place in the file.

use crate::containers::catalog::{MAX_FRAMES, MAX_SLOTS};
use crate::containers::records::OpenChunks;
use crate::{
    Address, Catalog, ChunkKind, Codec, CompressedFrame, ContainerId, FOOTER_BYTES, Footer, Frame, HEADER_BYTES, NewChunk, Slice, Slot,
};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{File, checksum};
use onefold_oplog::Position;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Highest size of a file, bytes. Without it, frames that compress far worse than estimated could pass 4 GiB.
const FILE_LIMIT_BYTES: u64 = 2 << 30;
/// Bytes that a frame adds to the catalog, without its slots.
const FRAME_ENTRY_BYTES: u64 = 32;
/// The unit in which the page cache and drives write.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// The round of frames that an earlier opening wrote.
const EARLIER: u64 = u64::MAX;

/// An unsealed container.
#[derive(Debug)]
pub(crate) struct OpenContainer {
    pub(crate) id: ContainerId,
    pub(crate) path: String,
    pub(crate) state: Mutex<State>,
}

/// How much of a container the log has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// Frames logged by FrameCommitted.
    pub(crate) frames: usize,
    /// Slots logged by FrameCommitted or FrameData.
    pub(crate) slots: usize,
}

/// How far sealing has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Seal {
    None,
    Written,
    Synced,
}

#[derive(Debug)]
pub(crate) struct State {
    /// Open for writing. `None` after a restart, until a writer comes.
    pub(crate) file: Option<Arc<dyn File>>,
    /// Whether the file's name is synced in its directory.
    pub(crate) name_synced: bool,
    /// The frames in the file.
    pub(crate) catalog: Arc<Catalog>,
    /// Frames handed over. The first one is not in the file yet.
    pub(crate) pending: VecDeque<Pending>,
    /// Raw bytes of pending frames that have no place in the file yet.
    unplaced_raw_bytes: u64,
    /// The frame that takes chunks.
    pub(crate) open: OpenFrame,
    /// Where the next frame goes.
    end_bytes: u64,
    /// Number of commits that have looked at this container. Frames handed over before a commit become durable together
    /// with it.
    round: u64,
    /// The round of the frames in the last page of the file; `None`: the file has only the header.
    last_round: Option<u64>,
    /// Takes no more chunks, and is to be sealed.
    pub(crate) full: bool,
    pub(crate) seal: Seal,
    pub(crate) synced_frames: usize,
    pub(crate) logged: Cursor,
    /// Start of the oldest log batch that describes this container.
    pub(crate) oldest: Option<Position>,
    /// Where the log ended when the file was created. Set only if this opening created the file. In a store with whole
    /// files: when it was sealed.
    pub(crate) created: Option<Position>,
    /// Its checkpoints on their way to the log.
    pub(crate) checkpoints: u32,
    /// During replay: why the log's records so far do not describe it.
    pub(crate) broken: Option<String>,
    /// Whether a thread is putting it (`puts.rs`).
    pub(crate) is_putting: bool,
    /// Whether a put found its name taken.
    pub(crate) is_taken: bool,
    /// Whether it has the content that somebody else put. All chunks that it should have are logged (`whole.rs`).
    pub(crate) is_adopted: bool,
}

/// A frame handed over.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) slots: Vec<Slot>,
    pub(crate) raw: Arc<Vec<u8>>,
    /// What the flow counts for it.
    in_flight_bytes: usize,
    /// The commit that will make it durable.
    round: u64,
    pub(crate) progress: Progress,
}

#[derive(Debug)]
pub(crate) enum Progress {
    /// With the workers.
    Queued,
    /// In the file, but the frames before it are not.
    Written(Frame),
    /// Has its place in the file, but writing failed.
    Failed(Frame, Vec<u8>),
}

/// A closed frame to write.
pub(crate) struct FrameJob {
    pub(crate) raw: Arc<Vec<u8>>,
    pub(crate) form: Form,
}

/// How a closed frame gets its stored bytes and its place in the file.
pub(crate) enum Form {
    /// The workers compress and place it.
    Raw { is_sequential: bool },
    /// It came compressed, and has its place.
    Compressed { codec: Codec, stored: Vec<u8>, offset_bytes: u64 },
}

/// A frame that takes chunks.
#[derive(Debug, Default)]
pub(crate) struct OpenFrame {
    pub(crate) slots: Vec<Slot>,
    pub(crate) raw: Vec<u8>,
    /// Whether a sequential writer fills it.
    pub(crate) is_sequential: bool,
}

/// Bounds for filling a container.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) container_bytes: u64,
    pub(crate) frame_bytes: usize,
    /// From this size on, an open frame that another kind of writer left becomes a frame of its own.
    pub(crate) least_frame_bytes: usize,
    /// Whether these are the frames of a sequential writer.
    pub(crate) is_sequential: bool,
    pub(crate) digest_bytes: usize,
    /// Expected stored bytes of 1024 raw bytes.
    pub(crate) stored_per_1024: u64,
}

impl Limits {
    /// Returns how many bytes so many raw ones are expected to become.
    fn stored_bytes(&self, raw_bytes: usize) -> u64 {
        raw_bytes as u64 * self.stored_per_1024 / 1024
    }
}

/// Why no more chunks were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// All chunks were taken, and the frame takes more.
    Taken,
    /// The open frame must be handed over.
    FrameFull,
    /// The container must be sealed.
    ContainerFull,
}

/// Whether a frame that came compressed can be the next one of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// At once: no frame is open.
    Now,
    /// Behind the open frame, which is large enough for a frame of its own.
    BehindOpen,
    /// Only joined with the open frame, which is too small for a frame of its own.
    WithOpen,
    /// The container must be sealed first.
    ContainerFull,
    /// Not even in an empty container.
    Never,
}

/// Where a chunk was found.
pub(crate) enum Found {
    /// In memory.
    Memory(Slice),
    /// In a frame of the file.
    Stored(Frame, Range<usize>),
}

impl OpenContainer {
    pub(crate) fn new(id: ContainerId, path: String) -> OpenContainer {
        let state = State {
            file: None,
            name_synced: false,
            catalog: Arc::new(Catalog::new(id)),
            pending: VecDeque::new(),
            unplaced_raw_bytes: 0,
            open: OpenFrame::default(),
            end_bytes: HEADER_BYTES as u64,
            round: 0,
            last_round: None,
            full: false,
            seal: Seal::None,
            synced_frames: 0,
            logged: Cursor::default(),
            oldest: None,
            created: None,
            checkpoints: 0,
            broken: None,
            is_putting: false,
            is_taken: false,
            is_adopted: false,
        };
        OpenContainer { id, path, state: Mutex::new(state) }
    }
}

impl State {
    /// Returns the number of the open frame: how many frames were handed over.
    pub(crate) fn open_number(&self) -> usize {
        self.catalog.frames.len() + self.pending.len()
    }

    /// Returns the first slot of the open frame.
    pub(crate) fn open_first_slot(&self) -> usize {
        self.catalog.slots.len() + self.pending.iter().map(|pending| pending.slots.len()).sum::<usize>()
    }

    /// Returns the slots of all chunks, wherever the chunks are.
    pub(crate) fn slots(&self) -> Vec<Slot> {
        let pending = self.pending.iter().flat_map(|pending| &pending.slots);
        self.catalog.slots.iter().chain(pending).chain(&self.open.slots).copied().collect()
    }

    /// Returns the chunks that are in no frame of the catalog yet, with the bytes that they are parts of. They are in
    /// the order of their slots.
    pub(crate) fn in_memory(&self) -> Vec<(Vec<Slot>, Arc<Vec<u8>>)> {
        let pending = self.pending.iter().map(|pending| (pending.slots.clone(), pending.raw.clone()));
        pending.chain(std::iter::once((self.open.slots.clone(), Arc::new(self.open.raw.clone())))).collect()
    }

    /// Returns where the file's frames end.
    pub(crate) fn end_bytes(&self) -> u64 {
        self.end_bytes
    }

    /// Returns where the last page with frames ends. The file is never cut before it: a file system that cuts within a
    /// page writes that page again.
    pub(crate) fn page_end_bytes(&self) -> u64 {
        self.end_bytes.next_multiple_of(PAGE_BYTES)
    }

    /// Returns whether nothing is added any more, and everything is in the file.
    pub(crate) fn is_complete(&self) -> bool {
        self.full && self.pending.is_empty() && self.open.slots.is_empty()
    }

    /// Returns whether a batch with the first `frames` frames seals the container.
    pub(crate) fn seals_with(&self, frames: usize) -> bool {
        let is_sealed = self.full && self.checkpoints == 0 && self.seal == Seal::Synced && self.catalog.frames.len() == frames;
        self.is_adopted || is_sealed
    }

    /// Returns at most how many bytes of frames and chunks a batch has to carry so that the log has everything.
    pub(crate) fn unlogged_bytes(&self) -> u64 {
        let written: u64 = self.catalog.frames.iter().skip(self.logged.frames).map(|frame| u64::from(frame.stored_bytes)).sum();
        let pending: u64 = self.pending.iter().map(|pending| pending.raw.len() as u64).sum();
        let known = self.logged.slots.saturating_sub(self.open_first_slot());
        let open: u64 = self.open.slots.iter().skip(known).map(|slot| u64::from(slot.length_bytes)).sum();
        written + pending + open
    }

    /// Takes chunks from the front of `chunks` while they fit, and appends their slots to `out`. A container that was
    /// closed takes none.
    pub(crate) fn accept(&mut self, chunks: &[NewChunk<'_>], limits: &Limits, out: &mut Vec<u16>) -> Stopped {
        if self.full {
            return Stopped::ContainerFull;
        }
        let number = self.open_number();
        let first_slot = self.open_first_slot();
        for chunk in chunks {
            let is_other_kind = self.open.is_sequential != limits.is_sequential;
            if self.open.raw.len() >= limits.frame_bytes || is_other_kind && self.open.raw.len() >= limits.least_frame_bytes {
                return Stopped::FrameFull;
            }
            let slot = first_slot + self.open.slots.len();
            let stored_bytes = limits.stored_bytes(chunk.data.len());
            if slot >= MAX_SLOTS || number >= MAX_FRAMES || (slot > 0 && !self.has_room(chunk.data.len(), stored_bytes, slot, limits)) {
                return Stopped::ContainerFull;
            }
            // Too little for a frame of its own: it goes with its neighbours.
            self.open.is_sequential = limits.is_sequential;
            if self.open.slots.is_empty() {
                self.open.raw.reserve(limits.frame_bytes + limits.frame_bytes / 2);
            }
            self.open.slots.push(Slot {
                fingerprint: chunk.fingerprint,
                kind: chunk.kind,
                frame: number as u16,
                offset_bytes: self.open.raw.len() as u32,
                length_bytes: chunk.data.len() as u32,
            });
            self.open.raw.extend_from_slice(chunk.data);
            out.push(slot as u16);
        }
        if self.open.raw.len() >= limits.frame_bytes { Stopped::FrameFull } else { Stopped::Taken }
    }

    /// Returns whether the file is expected to stay within its bound with some chunks more, of which the last gets slot
    /// `last`. Data that is not compressed yet is estimated.
    fn has_room(&self, raw_bytes: usize, stored_bytes: u64, last: usize, limits: &Limits) -> bool {
        let unplaced = self.unplaced_raw_bytes as usize + self.open.raw.len();
        let frames = self.open_number() as u64 + 1;
        let catalog = frames * FRAME_ENTRY_BYTES + (last as u64 + 1) * (limits.digest_bytes as u64 + 4) + 2 * FOOTER_BYTES as u64;
        let expected = self.end_bytes + limits.stored_bytes(unplaced) + stored_bytes + catalog;
        expected <= limits.container_bytes && self.end_bytes + (unplaced + raw_bytes) as u64 + catalog <= FILE_LIMIT_BYTES
    }

    /// Returns whether a frame of so many chunks that came compressed can be the next one.
    pub(crate) fn fit(&self, chunks: usize, frame: &CompressedFrame<'_>, limits: &Limits) -> Fit {
        if self.full {
            return Fit::ContainerFull;
        }
        let first = self.open_first_slot() + self.open.slots.len();
        let last = first + chunks.saturating_sub(1);
        // The open frame may come before it.
        let is_countable = last < MAX_SLOTS && self.open_number() + 1 < MAX_FRAMES;
        if !is_countable || !self.has_room(frame.raw.len(), frame.stored.len() as u64, last, limits) {
            return if first == 0 { Fit::Never } else { Fit::ContainerFull };
        }
        match &self.open {
            open if open.slots.is_empty() => Fit::Now,
            open if open.raw.len() >= limits.frame_bytes / 4 => Fit::BehindOpen,
            _ => Fit::WithOpen,
        }
    }

    /// Closes the open frame. Returns its number and the workers' job; `None`: it has no chunks.
    pub(crate) fn hand_over(&mut self) -> Option<(u32, FrameJob)> {
        if self.open.slots.is_empty() {
            return None;
        }
        let OpenFrame { slots, raw, is_sequential } = std::mem::take(&mut self.open);
        let (in_flight_bytes, raw) = (raw.len(), Arc::new(raw));
        let number = self.enqueue(slots, raw.clone(), in_flight_bytes);
        Some((number, FrameJob { raw, form: Form::Raw { is_sequential } }))
    }

    /// Appends a frame that came compressed, and gives it its place: its length is known. Call only if it
    /// [fits](Fit::Now). Returns its number and the workers' job, and appends its slots to `out`.
    pub(crate) fn hand_over_compressed(
        &mut self,
        chunks: &[NewChunk<'_>],
        frame: &CompressedFrame<'_>,
        out: &mut Vec<u16>,
    ) -> (u32, FrameJob) {
        debug_assert!(self.open.slots.is_empty());
        let (number, first_slot) = (self.open_number() as u16, self.open_first_slot());
        let mut offset_bytes = 0;
        let slots = chunks.iter().map(|chunk| {
            let length_bytes = chunk.data.len() as u32;
            offset_bytes += length_bytes;
            Slot {
                fingerprint: chunk.fingerprint,
                kind: chunk.kind,
                frame: number,
                offset_bytes: offset_bytes - length_bytes,
                length_bytes,
            }
        });
        out.extend((first_slot..first_slot + chunks.len()).map(|slot| slot as u16));
        let number = self.enqueue(slots.collect(), frame.raw.clone(), frame.in_flight_bytes());
        let offset_bytes = self.place(number, frame.raw.len(), frame.stored.len());
        let form = Form::Compressed { codec: frame.codec, stored: frame.stored.to_vec(), offset_bytes };
        (number, FrameJob { raw: frame.raw.clone(), form })
    }

    /// Appends a closed frame to those on their way. Returns its number.
    fn enqueue(&mut self, slots: Vec<Slot>, raw: Arc<Vec<u8>>, in_flight_bytes: usize) -> u32 {
        let number = self.open_number() as u32;
        self.unplaced_raw_bytes += raw.len() as u64;
        self.pending.push_back(Pending { slots, raw, in_flight_bytes, round: self.round, progress: Progress::Queued });
        number
    }

    /// Call when a commit looks at this container. Frames handed over from now on belong to a later commit.
    pub(crate) fn end_round(&mut self) {
        self.round += 1;
    }

    /// Call before writing bytes that become durable with the frames of `round`. They begin a page if the last page has
    /// frames of another round: a page that holds acknowledged bytes is never written again.
    fn begin_in(&mut self, round: u64) {
        if self.last_round.is_some_and(|last| last != round) {
            self.end_bytes = self.end_bytes.next_multiple_of(PAGE_BYTES);
        }
        self.last_round = Some(round);
    }

    /// Gives a compressed frame its place in the file.
    pub(crate) fn place(&mut self, number: u32, raw_bytes: usize, stored_bytes: usize) -> u64 {
        // A frame of empty chunks writes nothing, and the file may end there.
        if stored_bytes > 0 {
            self.begin_in(self.pending_frame(number).round);
        }
        let offset = self.end_bytes;
        self.end_bytes += stored_bytes as u64;
        self.unplaced_raw_bytes -= raw_bytes as u64;
        offset
    }

    fn pending_frame(&self, number: u32) -> &Pending {
        let at = (number as usize).checked_sub(self.catalog.frames.len());
        at.and_then(|at| self.pending.get(at)).expect("a frame is pending until it is settled")
    }

    /// Returns whether a pending frame has chunks that are not user data.
    pub(crate) fn has_metadata(&self, number: u32) -> bool {
        let pending = self.pending_frame(number);
        pending.slots.iter().any(|slot| slot.kind != ChunkKind::Data)
    }

    /// Notes the progress of a pending frame. Returns the bytes that are no longer in flight.
    pub(crate) fn settle_frame(&mut self, number: u32, progress: Progress) -> usize {
        let at = (number as usize).checked_sub(self.catalog.frames.len());
        if let Some(pending) = at.and_then(|at| self.pending.get_mut(at)) {
            pending.progress = progress;
        }
        let mut released = 0;
        while matches!(self.pending.front(), Some(Pending { progress: Progress::Written(_), .. })) {
            let Some(Pending { slots, in_flight_bytes, progress: Progress::Written(mut frame), .. }) = self.pending.pop_front() else {
                break;
            };
            frame.first_slot = self.catalog.slots.len() as u32;
            frame.slots = slots.len() as u32;
            Arc::make_mut(&mut self.catalog).push(frame, &slots);
            released += in_flight_bytes;
        }
        released
    }

    /// Retries the frames whose writing failed. Returns the bytes that are no longer in flight.
    pub(crate) fn write_failed_again(&mut self) -> onefold_ground::Result<usize> {
        let Some(file) = self.file.clone() else { return Ok(0) };
        let first = self.catalog.frames.len();
        let mut written = Vec::new();
        for (at, pending) in self.pending.iter().enumerate() {
            if let Progress::Failed(frame, stored) = &pending.progress {
                file.write_at(u64::from(frame.offset_bytes), stored)?;
                written.push(((first + at) as u32, frame.clone()));
            }
        }
        Ok(written.into_iter().map(|(number, frame)| self.settle_frame(number, Progress::Written(frame))).sum())
    }

    /// Writes catalog and footer behind the frames and cuts the file there. May be repeated.
    pub(crate) fn write_footer(&mut self, digest_bytes: usize) -> onefold_ground::Result<()> {
        let Some(file) = self.file.clone() else { return Ok(()) };
        // The commit that this belongs to has already looked at the container.
        self.begin_in(self.round.saturating_sub(1));
        let bytes = catalog_and_footer(&self.catalog, self.end_bytes, self.created, digest_bytes);
        file.write_at(self.end_bytes, &bytes)?;
        file.set_len(self.end_bytes + bytes.len() as u64)?;
        self.seal = Seal::Written;
        Ok(())
    }

    /// Finds a chunk; `Err` says what does not fit.
    pub(crate) fn find(&self, slot: u16, fingerprint: &Fingerprint) -> std::result::Result<Found, String> {
        let mut at = usize::from(slot);
        if at < self.catalog.slots.len() {
            let (frame, range) = self.catalog.find(Address::new(self.catalog.container, slot), fingerprint)?;
            return Ok(Found::Stored(frame.clone(), range));
        }
        at -= self.catalog.slots.len();
        for pending in &self.pending {
            if let Some(found) = pending.slots.get(at) {
                let range = checked_range(found, fingerprint)?;
                return Ok(Found::Memory(Slice::new(pending.raw.clone(), range)));
            }
            at -= pending.slots.len();
        }
        let found = self.open.slots.get(at).ok_or("the slot does not exist")?;
        let range = checked_range(found, fingerprint)?;
        Ok(Found::Memory(Slice::from_vec(self.open.raw[range].to_vec())))
    }

    /// Replays FrameCommitted.
    pub(crate) fn replay_frame(&mut self, frame: Frame, slots: Vec<Slot>) -> std::result::Result<(), String> {
        let number = frame.number as usize;
        if let Some(known) = self.catalog.frames.get(number) {
            let same = *known == frame && self.catalog.slots_of(known) == slots;
            return if same { Ok(()) } else { Err(format!("frame {number} has two different records")) };
        }
        let follows = number == self.catalog.frames.len() && frame.first_slot as usize == self.catalog.slots.len();
        if !follows || !slots.starts_with(&self.open.slots) {
            return Err(format!("frame {number} does not follow the known frames"));
        }
        self.end_bytes = self.end_bytes.max(frame.end_bytes());
        self.last_round = Some(EARLIER);
        Arc::make_mut(&mut self.catalog).push(frame, &slots);
        self.open = OpenFrame::default();
        self.all_logged();
        Ok(())
    }

    /// Replays FrameData.
    pub(crate) fn replay_data(&mut self, chunks: &OpenChunks) -> std::result::Result<(), String> {
        let same_names = |known: &[Slot], new: &[Slot]| {
            known.iter().zip(new).all(|(known, new)| (known.fingerprint, known.length_bytes) == (new.fingerprint, new.length_bytes))
        };
        let contradiction = || format!("frame {} does not follow the known frames", chunks.frame);
        let first = chunks.first_slot as usize;
        if (chunks.frame as usize) < self.catalog.frames.len() {
            let known = self.catalog.slots.get(first..first + chunks.slots.len()).ok_or_else(contradiction)?;
            return if same_names(known, &chunks.slots) { Ok(()) } else { Err(contradiction()) };
        }
        let skip = first.checked_sub(self.catalog.slots.len()).filter(|skip| *skip <= self.open.slots.len()).ok_or_else(contradiction)?;
        let known = &self.open.slots[skip..];
        if chunks.frame as usize != self.catalog.frames.len() || !same_names(known, &chunks.slots) {
            return Err(contradiction());
        }
        let new = known.len().min(chunks.slots.len());
        for slot in &chunks.slots[new..] {
            // Offsets in the record count from its first chunk.
            let start = slot.offset_bytes as usize;
            let bytes = chunks.raw.get(start..start + slot.length_bytes as usize).ok_or_else(contradiction)?;
            if self.open.raw.len() + bytes.len() > crate::MAX_FRAME_BYTES {
                return Err(format!("frame {} is too long", chunks.frame));
            }
            let offset_bytes = self.open.raw.len() as u32;
            self.open.slots.push(Slot { offset_bytes, ..*slot });
            self.open.raw.extend_from_slice(bytes);
        }
        self.all_logged();
        Ok(())
    }

    /// Replays ContainerCheckpoint. It replaces what is known, unless more is known already.
    pub(crate) fn replay_checkpoint(&mut self, catalog: Catalog, open: &OpenChunks, start: Position) -> std::result::Result<(), String> {
        let covered = Cursor { frames: catalog.frames.len(), slots: catalog.slots.len() + open.slots.len() };
        if self.broken.is_none() && self.oldest.is_some() && !self.logged.is_within(covered) {
            return Ok(());
        }
        self.broken = None;
        self.end_bytes = catalog.end_bytes();
        self.last_round = (!catalog.frames.is_empty()).then_some(EARLIER);
        self.catalog = Arc::new(catalog);
        self.open = OpenFrame::default();
        self.oldest = Some(start);
        self.replay_data(open)
    }

    fn all_logged(&mut self) {
        self.synced_frames = self.catalog.frames.len();
        self.logged = Cursor { frames: self.synced_frames, slots: self.catalog.slots.len() + self.open.slots.len() };
    }
}

/// Returns the bytes that a sealed container has behind its frames, which end at `end_bytes`.
pub(crate) fn catalog_and_footer(catalog: &Catalog, end_bytes: u64, created: Option<Position>, digest_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    catalog.encode(digest_bytes, &mut bytes);
    let footer = Footer {
        catalog_offset_bytes: end_bytes as u32,
        catalog_bytes: bytes.len() as u32,
        frames: catalog.frames.len() as u32,
        slots: catalog.slots.len() as u32,
        catalog_checksum: checksum(&bytes),
        created: created.map_or(0, |created| created.0),
    };
    bytes.resize((Footer::place(end_bytes + bytes.len() as u64) - end_bytes) as usize, 0);
    bytes.extend_from_slice(&footer.encode());
    bytes
}

impl Cursor {
    /// Returns whether `other` has passed everything that this cursor has passed.
    pub(crate) fn is_within(self, other: Cursor) -> bool {
        self.frames <= other.frames && self.slots <= other.slots
    }

    pub(crate) fn max(self, other: Cursor) -> Cursor {
        Cursor { frames: self.frames.max(other.frames), slots: self.slots.max(other.slots) }
    }
}

impl Catalog {
    /// Returns the frame of the chunk with an address, and the chunk's place in the raw frame. `Err` says what does not
    /// fit.
    pub(crate) fn find(&self, address: Address, fingerprint: &Fingerprint) -> std::result::Result<(&Frame, Range<usize>), String> {
        let found = self.position(address).and_then(|slot| self.slots.get(slot)).ok_or("the slot does not exist")?;
        let range = checked_range(found, fingerprint)?;
        let frame = self.frames.get(usize::from(found.frame)).ok_or("its frame is not in the catalog")?;
        Ok((frame, range))
    }
}

fn checked_range(slot: &Slot, fingerprint: &Fingerprint) -> std::result::Result<Range<usize>, String> {
    if slot.fingerprint != *fingerprint {
        return Err(format!("it has chunk {} instead of chunk {fingerprint}", slot.fingerprint));
    }
    let start = slot.offset_bytes as usize;
    Ok(start..start + slot.length_bytes as usize)
}
