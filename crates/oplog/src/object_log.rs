//! A log in objects of a bucket: one for each batch, put only if its name is free (decision 0068).
//!
//! # Why nothing acknowledged is lost, and why there is one writer
//! 1. *A number is taken once.* A batch is acknowledged when its object is in the bucket. No object is ever replaced.
//! 2. *Batches are a chain.* Each object has the number after the one before it, and that one's checksum. So whoever
//!    knows the last one knows that all before it are the same for everybody.
//! 3. *An opening for writing puts a fence*: a batch with a higher epoch than all before it, at the first free number.
//!    Whoever owned the log before finds that number taken by something that it did not put. It has acknowledged
//!    nothing from there on, and never will ([`LogError::Fenced`]).
//!    An opening that looked long before it puts its fence may put it where a batch was and is deleted. So it asks
//!    afterwards whether the log was trimmed meanwhile, and if so begins again: batches are deleted behind a manifest.
//! 4. *A put whose answer is lost is put again*, with the same bytes. They have the random nonce of the opening in
//!    them, so [`Put::Done`] means that this opening's batch is there. If nobody knows after some time, the log is
//!    closed. A put that arrives later still either finds its number free, and is a batch like any other that was never
//!    acknowledged, or taken by the fence of the next opening.
//! 5. *A batch goes only when its effects are kept.* A trim puts the effects of the batches as a run of the history,
//!    then a manifest that names it, then deletes. A manifest is put only if its number is free, on top of one of the
//!    same or an earlier epoch. So a former owner either comes first, which is as good as any trim, because all that it
//!    summarizes comes before the fence of its successor. Or it finds the manifest of a later epoch, and stops for
//!    good.
//! 6. *No number that stops a former owner is ever free again.* Its next batch would have the number of its successor's
//!    fence, and its next manifest that of its successor's first one. Fences and manifests stay for ever; they are
//!    small. All other batches may go: whoever could put one of their numbers again is stopped by a fence before it.
//!
//! Lists are hints. The end of the log, and the newest manifest, are found by asking for the next number.
//!
//! The directory keeps copies of the batches and of the manifest, unsynced. They save requests, and tell whether the
//! views in the same directory belong to this log: the last copy must equal its object.

mod batch;
mod closing;
mod history;
mod holdings;
mod keyed_effects;
mod manifest;
#[cfg(test)]
mod tests;

pub use history::Meaning;
pub use holdings::{Holding, Holdings};
pub use keyed_effects::KeyedEffects;

use crate::log::{Log, LogOptions, POSITIONS_END, Visit, damaged, is_lost};
use crate::{ALIGNMENT_BYTES, BATCH_MAX_BYTES, Batch, LogError, Position, Record, Result};
use batch::{Link, Role};
use history::{Piece, Run, Writing, piece_bytes};
use manifest::{Manifest, Runs, Useless};
use onefold_ground::{Bucket, Ground, Put, checksum, fill_random, list_after, read_file};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// No object of a batch is longer.
const OBJECT_LIMIT_BYTES: u64 = BATCH_MAX_BYTES + (1 << 20);
/// Batches that are fetched at the same time.
const BATCHES_AT_ONCE: usize = 16;
/// How often an opening begins again because the log was trimmed meanwhile.
const LOOKS: usize = 8;
/// How often it tries to put a fence while others put batches.
const FENCES: usize = 64;
/// Batches that make a log long: each is a request for a machine without copies.
const LONG_BATCHES: usize = 64;
/// Segments, as a log in a directory has, that make a log long: a trim is some ten requests, whatever it trims.
const LONG_SEGMENTS: u64 = 4;
/// Objects that one request deletes.
const DELETED_AT_ONCE: usize = 1000;
/// Bytes of batches whose effects are in memory at a time.
const SUMMARY_BYTES: u64 = 16 << 20;
/// Two runs are merged unless the older one has this many times the bytes of the newer one.
const RUN_RATIO: u64 = 4;
/// The copy of the manifest.
const MANIFEST_COPY: &str = "manifest";

/// Where a log in a bucket is, and its copies.
#[derive(Clone, Debug)]
pub struct LogPlace {
    /// The bucket.
    pub bucket: Arc<dyn Bucket>,
    /// The store that the log belongs to.
    pub store: [u8; 16],
    /// Where the directory with copies is.
    pub ground: Arc<dyn Ground>,
    /// The directory with copies.
    pub directory: String,
    /// Whether copies of what is read are kept.
    pub keeps_copies: bool,
    /// Names the directory: no other one that is used with this store has the same.
    pub owner: [u8; 8],
    /// Whoever opens it is one of several nodes. Nobody else opens a [shared](ObjectLog::share) log.
    pub is_of_node: bool,
}

/// An open log in a bucket.
#[derive(Debug)]
pub struct ObjectLog {
    place: LogPlace,
    options: LogOptions,
    meaning: Arc<dyn Meaning>,
    piece_bytes: usize,
    /// What of it counts.
    holdings: Mutex<Arc<Holdings>>,
    /// Positions at which restating began, once for each. No run goes across one.
    cuts: Mutex<Vec<Position>>,
    /// Pieces of the history that this opening has put.
    pieces: AtomicU64,
    /// Held while the manifest changes.
    changing: Mutex<()>,
    /// Held while a batch is put. That orders the batches.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    manifest: Manifest,
    /// What the manifest names; `None`: it was not read yet.
    runs: Option<Runs>,
    /// The batches from the manifest's first on.
    batches: VecDeque<Entry>,
    end: Position,
    /// The epoch of this owner; when reading, that of the last batch.
    epoch: u64,
    /// The checksum of the last object.
    last: u64,
    /// Up to here, the copies in the directory were equal to the log, or its views were made from it.
    copied_to: Position,
    /// Random, of this opening. `None`: it only reads.
    nonce: Option<[u8; 16]>,
    is_poisoned: bool,
    /// The last batch of this opening was put.
    has_ended: bool,
    /// The owner before this one had ended its work.
    was_ended: bool,
    /// Another opening has taken the log over.
    is_fenced: bool,
    /// Whether pieces that no manifest names were looked for.
    has_swept: bool,
    full_at_bytes: u64,
}

impl LogPlace {
    /// Keeps a copy of the manifest of a log that was just created. So the first opening here need not look for it.
    pub fn keep_first_manifest(&self) {
        self.keep_manifest(&first_manifest());
    }

    fn keep_manifest(&self, manifest: &Manifest) {
        self.keep(&format!("{}/{MANIFEST_COPY}", self.directory), &manifest.encode(&self.store));
    }

    fn keep(&self, path: &str, bytes: &[u8]) {
        if !self.keeps_copies {
            return;
        }
        let write = || -> onefold_ground::Result<()> {
            match self.ground.remove(path) {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
            // A killed process must not leave a part under the name of a whole one.
            let temporary = format!("{path}.new");
            match self.ground.remove(&temporary) {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
            self.ground.create(&temporary)?.write_at(0, bytes)?;
            self.ground.rename(&temporary, path)
        };
        if let Err(error) = write() {
            // Without it the next opening asks the bucket. A part of one would be taken for damage.
            tracing::warn!(%error, "a copy of a part of the log could not be kept");
            let _ = self.ground.remove(path);
        }
    }
}

/// Returns the manifest of an empty log.
fn first_manifest() -> Manifest {
    Manifest { first: 1, ..Manifest::default() }
}

/// A batch of the log.
#[derive(Clone, Copy, Debug)]
struct Entry {
    number: u64,
    start: Position,
    end: Position,
    /// The checksum of its object.
    checksum: u64,
    role: Role,
    /// The owner that put it.
    owner: [u8; 8],
}

/// What an opening for writing does behind an owner that has not ended its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It looks again.
    LookAgain,
    /// It takes the log over.
    Over,
}

/// Why a look at the log has to begin again.
enum Looked {
    Found(Box<State>),
    /// It was trimmed meanwhile.
    Moved,
}

impl ObjectLog {
    /// Creates an empty log at position 0. Errors: the bucket has one.
    pub fn create(bucket: &dyn Bucket, store: [u8; 16]) -> Result<()> {
        match bucket.put_new(&manifest::name(0), &first_manifest().encode(&store))? {
            Put::Done => Ok(()),
            Put::Taken => Err(LogError::Exists { path: bucket.describe("") }),
        }
    }

    /// Says for ever that this is the log of one of several nodes, unless it says so already: from here on, only an
    /// opening [of a node](LogPlace::is_of_node) opens it. Whoever has looked at it before is refused when it asks for
    /// the next manifest, as every opening does at its end.
    pub fn share(&self) -> Result<()> {
        let _one_at_a_time = self.changing.lock();
        loop {
            let (manifest, runs, epoch) = {
                let state = self.writable()?;
                (state.manifest, state.runs.clone(), state.epoch)
            };
            if manifest.is_shared {
                return Ok(());
            }
            let next = Manifest { number: manifest.number + 1, epoch, is_shared: true, ..manifest };
            match self.place.bucket.put_new(&manifest::name(next.number), &next.encode(&self.place.store))? {
                Put::Done => self.adopt(next, runs),
                Put::Taken => drop(self.follow(&next)?),
            }
        }
    }

    /// Opens the log for reading, and finds its end. Errors: batches are missing, or the copies are of another log.
    pub fn open(place: LogPlace, options: LogOptions, meaning: Arc<dyn Meaning>) -> Result<ObjectLog> {
        let mut log = ObjectLog::unread(place, options, meaning);
        *log.state.get_mut() = log.find(false)?;
        Ok(log)
    }

    /// Does the first half of an opening for writing. The log can be read, but may go on behind what this knows.
    pub fn look_for_taking(place: LogPlace, options: LogOptions, meaning: Arc<dyn Meaning>) -> Result<ObjectLog> {
        let mut log = ObjectLog::unread(place, options, meaning);
        *log.state.get_mut() = log.find(true)?;
        Ok(log)
    }

    /// Ends an opening for reading that began like one for writing: finds the end.
    pub fn for_reading(mut self) -> Result<ObjectLog> {
        // A writer may use this directory.
        self.place.keeps_copies = false;
        let mut state = std::mem::replace(self.state.get_mut(), empty_state());
        let looked = match self.read_on(&mut state) {
            // There may be fences where nobody looks.
            Err(LogError::Damaged { .. }) => Looked::Moved,
            read => read.and_then(|()| self.unless_trimmed(state, &BTreeSet::new()))?,
        };
        *self.state.get_mut() = match looked {
            Looked::Found(state) => self.found(*state)?,
            Looked::Moved => self.find(false)?,
        };
        Ok(self)
    }

    /// Notes that the views in the place were made from the history of this log.
    pub fn note_made_views(&mut self) {
        let state = self.state.get_mut();
        state.copied_to = state.copied_to.max(state.manifest.start);
    }

    /// Does the second half of an opening for writing: puts a fence with `records`, and with an epoch of at least
    /// `epoch` and higher than all before it. From here on, whoever owned the log before can write nothing more.
    ///
    /// If another owner has not ended its work, asks `wait` again and again, with the end of the log. Its errors end
    /// the opening.
    pub fn taken<E: From<LogError>>(
        mut self,
        epoch: u64,
        records: &[Record],
        wait: &mut dyn FnMut(Position) -> std::result::Result<Wait, E>,
    ) -> std::result::Result<ObjectLog, E> {
        self.fence(epoch, records, wait)?;
        Ok(self)
    }

    /// Says what of this log counts from now on: all of it, unless somebody says otherwise. A trim and a merge of runs
    /// drop the rest. Before the log gets something of keys that it did not hold, it must be told.
    pub fn hold(&self, holdings: Holdings) {
        *self.holdings.lock() = Arc::new(holdings);
    }

    /// Returns the end of the log. Until [`uncut`](ObjectLog::uncut) no run goes across it, so that a holding can begin
    /// here later.
    pub fn cut(&self) -> Position {
        let state = self.state.lock();
        self.cuts.lock().push(state.end);
        state.end
    }

    /// Cuts the log at an earlier end: a holding has ended there.
    pub fn cut_at(&self, position: Position) {
        self.cuts.lock().push(position);
    }

    /// Ends a cut: the holding begins there by now, or never will; or nobody asks for the one that has ended there.
    pub fn uncut(&self, position: Position) {
        let mut cuts = self.cuts.lock();
        if let Some(at) = cuts.iter().position(|cut| *cut == position) {
            cuts.swap_remove(at);
        }
    }

    fn unread(place: LogPlace, options: LogOptions, meaning: Arc<dyn Meaning>) -> ObjectLog {
        ObjectLog {
            place,
            options,
            meaning,
            piece_bytes: piece_bytes(),
            holdings: Mutex::new(Arc::new(Holdings::all())),
            cuts: Mutex::default(),
            pieces: AtomicU64::new(0),
            changing: Mutex::new(()),
            state: Mutex::new(empty_state()),
        }
    }

    fn fence<E: From<LogError>>(
        &mut self,
        epoch: u64,
        records: &[Record],
        wait: &mut dyn FnMut(Position) -> std::result::Result<Wait, E>,
    ) -> std::result::Result<(), E> {
        let nonce = self.new_nonce()?;
        let mut fences = 0;
        let mut is_over = false;
        while fences < FENCES {
            if !is_over && !self.is_free() {
                // The end of the log may be further on than its copies, and its batches may be trimmed.
                self.go_on_reading()?;
                let (end, manifest) = (self.state.get_mut().end, self.state.get_mut().manifest);
                if !self.is_free() && self.is_outdated(&manifest)? {
                    *self.state.get_mut() = self.find_from_manifest(true)?;
                    continue;
                }
                if !self.is_free() {
                    is_over = wait(end)? == Wait::Over;
                    continue;
                }
            }
            fences += 1;
            if self.put_fence(Role::Fence, epoch, nonce, records)? {
                return Ok(());
            }
            // Somebody else may have come first.
            is_over = false;
        }
        Err(LogError::Fenced { path: self.place.bucket.describe("log") }.into())
    }

    /// Returns whether nobody else can be at work: the last owner has ended, or was in this place. Call it only with
    /// the lock of the place.
    fn is_free(&mut self) -> bool {
        let state = self.state.get_mut();
        match state.batches.back() {
            Some(last) => matches!(last.role, Role::Last | Role::Closed) || last.owner == self.place.owner,
            None => state.manifest.number == 0,
        }
    }

    /// Reads what comes behind the last known batch. If the log was trimmed meanwhile, finds it again: there may be
    /// fences where nobody looks, which do not follow each other.
    fn go_on_reading(&mut self) -> Result<()> {
        let mut state = std::mem::replace(self.state.get_mut(), empty_state());
        let manifest = state.manifest;
        *self.state.get_mut() = match self.read_on(&mut state) {
            Err(LogError::Damaged { .. }) if self.is_outdated(&manifest)? => self.find_from_manifest(true)?,
            read => read.map(|()| state)?,
        };
        Ok(())
    }

    fn new_nonce(&self) -> Result<[u8; 16]> {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&self.place.owner);
        fill_random(&mut nonce[8..]).map_err(|source| {
            let path = self.place.bucket.describe("log");
            LogError::Ground(onefold_ground::GroundError::Io { operation: "get random numbers for", path, source })
        })?;
        Ok(nonce)
    }

    /// Puts a fence behind the last batch. False: the log goes on there, or was trimmed. Then this knows more of it.
    fn put_fence(&mut self, role: Role, epoch: u64, nonce: [u8; 16], records: &[Record]) -> Result<bool> {
        if self.is_closed() {
            let manifest = self.state.get_mut().manifest;
            if self.is_outdated(&manifest)? {
                // It may stand where a batch was deleted.
                *self.state.get_mut() = self.find_from_manifest(true)?;
                return Ok(false);
            }
            return Err(LogError::Closed { path: self.place.bucket.describe("log") });
        }
        let state = self.state.get_mut();
        // The batches that had the highest one may be gone.
        let epoch = epoch.max(state.epoch.max(state.manifest.epoch) + 1);
        let number = next_number(state);
        let link = Link { store: self.place.store, number, follows: state.last, nonce, role };
        let (bytes, length_bytes) = batch::encode(&link, records, state.end, epoch);
        let put = self.place.bucket.put_new(&batch::name(number), &bytes)?;
        let manifest = state.manifest;
        // If the log was trimmed since this opening looked, its number may have been free because a batch was deleted:
        // then the fence stands where nobody looks. Batches are deleted behind a manifest only.
        if self.is_outdated(&manifest)? {
            *self.state.get_mut() = self.find_from_manifest(true)?;
            return Ok(false);
        }
        if put == Put::Taken {
            self.go_on_reading()?;
            return Ok(false);
        }
        let state = self.state.get_mut();
        let was_ended = state.batches.back().map_or(state.manifest.number == 0, |last| last.role == Role::Last);
        let end = Position(state.end.0 + length_bytes);
        enter(state, Entry::new(&link, state.end, end, &bytes), epoch);
        (state.nonce, state.was_ended) = (Some(nonce), was_ended);
        self.drop_copies(&self.copies().unwrap_or_default(), manifest.first);
        self.keep_copy(number, &bytes);
        Ok(true)
    }

    /// Returns what was read of the log with this manifest. If there is a newer one, what is missing was not lost.
    fn unless_replaced<T>(&self, manifest: &Manifest, read: Result<T>, what: &str) -> Result<T> {
        match read {
            Err(LogError::Damaged { .. }) if self.is_outdated(manifest)? => {
                Err(LogError::Trimmed { path: self.place.bucket.describe(what) })
            }
            read => read,
        }
    }

    /// Makes pieces of another size, for tests.
    #[cfg(test)]
    fn with_piece_bytes(mut self, bytes: usize) -> ObjectLog {
        self.piece_bytes = bytes;
        self
    }

    // Finding the log.

    /// `for_taking`: a fence follows. It is put behind the copies, and so asks what comes there.
    fn find(&self, for_taking: bool) -> Result<State> {
        match self.look_behind_copies(for_taking)? {
            Looked::Found(state) => self.found(*state),
            Looked::Moved => self.find_from_manifest(for_taking),
        }
    }

    fn find_from_manifest(&self, for_taking: bool) -> Result<State> {
        for _ in 0..LOOKS {
            if let Looked::Found(state) = self.look(for_taking)? {
                return self.found(*state);
            }
        }
        Err(damaged(self.place.bucket.describe("log"), "batches of the log are missing"))
    }

    /// Ends a look. Errors: the log is not for this opening.
    fn found(&self, mut state: State) -> Result<State> {
        if state.manifest.is_shared && !self.place.is_of_node {
            return Err(LogError::Shared { path: self.place.bucket.describe("") });
        }
        state.full_at_bytes = self.options.full_at_bytes(used_bytes(&state));
        Ok(state)
    }

    /// Looks at the log from the last copy on. If the log has it, it has all copies before it, too.
    fn look_behind_copies(&self, for_taking: bool) -> Result<Looked> {
        let Some(manifest) = self.manifest_copy() else { return Ok(Looked::Moved) };
        let (mut state, copies) = self.chain_copies(manifest)?;
        let number = next_number(&state);
        let (is_this_log, next) = std::thread::scope(|scope| {
            let next = (!for_taking).then(|| scope.spawn(|| self.fetch(number)));
            let is_this_log = self.has_end_of(&state);
            (is_this_log, next.map(|next| next.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))))
        });
        if !is_this_log? {
            // The other look finds out why.
            return Ok(Looked::Moved);
        }
        state.copied_to = state.end;
        let Some(next) = next else { return Ok(Looked::Found(Box::new(state))) };
        let read = match next? {
            Some(bytes) => self.take_in(&mut state, number, &bytes).and_then(|()| self.read_on(&mut state)),
            None => Ok(()),
        };
        match read {
            // There may be fences where nobody looks.
            Err(LogError::Damaged { .. }) => Ok(Looked::Moved),
            read => read.and_then(|()| self.unless_trimmed(state, &copies)),
        }
    }

    /// Looks at the log from its newest manifest on.
    fn look(&self, for_taking: bool) -> Result<Looked> {
        let (manifest, is_known) = self.newest_manifest()?;
        let (mut state, copies) = self.chain_copies(manifest)?;
        let last_copy = state.batches.back().map(|entry| entry.number);
        // What the copies have is the log only if their end is.
        if let Some(last) = last_copy
            && !self.has_end_of(&state)?
        {
            let what = format!("batch {last}, which was acknowledged here");
            return if self.is_outdated(&manifest)? { Ok(Looked::Moved) } else { Err(self.other_log(&what)) };
        }
        state.copied_to = if last_copy.is_some() || is_known { state.end } else { Position(0) };
        let read = self.read_listed(&mut state, last_copy).and_then(|is_whole| {
            // A fence follows, and asks what is behind.
            if is_whole && !for_taking {
                self.read_on(&mut state)?;
            }
            Ok(is_whole)
        });
        match read {
            Ok(false) => Ok(Looked::Moved),
            Ok(true) if for_taking => Ok(Looked::Found(Box::new(state))),
            Ok(true) => self.unless_trimmed(state, &copies),
            // There may be fences where nobody looks.
            Err(LogError::Damaged { .. }) if self.is_outdated(&manifest)? => Ok(Looked::Moved),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the bucket has the last of these batches, or the manifest if there are none.
    fn has_end_of(&self, state: &State) -> Result<bool> {
        let found = match state.batches.back() {
            Some(last) => self.fetch(last.number).map(|found| found.is_some_and(|bytes| checksum(&bytes) == last.checksum)),
            None => self.read_manifest(state.manifest.number).map(|found| found == Some(state.manifest)),
        };
        match found {
            Err(LogError::Damaged { .. }) => Ok(false),
            found => found,
        }
    }

    /// Ends a look that found no batch behind its last one. That is the end of the log, unless a batch there was
    /// deleted. Batches are deleted behind a manifest, so this asks for one *afterwards*.
    fn unless_trimmed(&self, state: State, copies: &BTreeSet<u64>) -> Result<Looked> {
        if self.is_outdated(&state.manifest)? {
            return Ok(Looked::Moved);
        }
        if self.place.keeps_copies {
            self.drop_copies(copies, state.manifest.first);
        }
        Ok(Looked::Found(Box::new(state)))
    }

    /// Adds the copies of the batches from this manifest on, up to the first one that is missing or damaged. Also
    /// returns the numbers of all copies.
    fn chain_copies(&self, manifest: Manifest) -> Result<(State, BTreeSet<u64>)> {
        let mut state = State { manifest, end: manifest.start, last: manifest.follows, ..empty_state() };
        let copies = self.copies()?;
        for number in manifest.first.. {
            let Some(bytes) = copies.get(&number).and_then(|number| self.copy(*number)) else { break };
            if let Err(why) = self.chain(&mut state, number, &bytes) {
                // It is fetched again. A killed process, or one that writes beside a reader, may have left it.
                tracing::debug!(path = %self.place.ground.describe(&self.copy_path(number)), %why, "a copy of a batch is of no use");
                break;
            }
        }
        Ok((state, copies))
    }

    fn other_log(&self, what: &str) -> LogError {
        // The local directory, not the bucket.
        let copies = self.place.ground.describe(&self.place.directory);
        let state = std::path::Path::new(&copies).parent().map_or_else(|| copies.clone(), |state| state.display().to_string());
        damaged(
            self.place.bucket.describe("log"),
            format!(
                "{what} is not there, or is another one: the log has lost its end, or the bucket was restored from an older version. If \
                that was on purpose, remove the directory {state} on this machine, and open the store again"
            ),
        )
    }

    /// Returns the newest manifest, and whether the directory has a copy of it or of an earlier one of this log.
    fn newest_manifest(&self) -> Result<(Manifest, bool)> {
        if let Some(known) = self.manifest_copy() {
            return match self.read_manifest(known.number)? {
                Some(found) if found == known => Ok((self.newest_after(known)?, true)),
                _ => Err(self.other_log(&format!("manifest {}", known.number))),
            };
        }
        match self.read_manifest(0)? {
            Some(first) => Ok((self.newest_after(first)?, false)),
            // It is of no use but to find the others.
            None => {
                let mut last = None;
                list_after(&*self.place.bucket, "manifests/", String::new(), &mut |name, _| {
                    last = last.max(manifest::number(name));
                    true
                })?;
                match last.map_or(Ok(None), |number| self.read_manifest(number))? {
                    Some(found) => Ok((self.newest_after(found)?, false)),
                    None => Err(damaged(self.place.bucket.describe(&manifest::name(0)), "the first manifest of the log is missing")),
                }
            }
        }
    }

    /// Returns the newest manifest. This one is in the bucket. There are no holes, so steps may double.
    fn newest_after(&self, mut manifest: Manifest) -> Result<Manifest> {
        let mut step = 1;
        loop {
            match self.read_manifest(manifest.number.saturating_add(step))? {
                Some(next) => {
                    manifest = next;
                    step *= 2;
                }
                None if step > 1 => step /= 2,
                None => break,
            }
        }
        self.place.keep_manifest(&manifest);
        Ok(manifest)
    }

    fn manifest_copy(&self) -> Option<Manifest> {
        let copy = read_file(&*self.place.ground, &format!("{}/{MANIFEST_COPY}", self.place.directory), manifest::LIMIT_BYTES).ok()?;
        Manifest::decode_copy(&copy, &self.place.store).ok()
    }

    fn read_manifest(&self, number: u64) -> Result<Option<Manifest>> {
        let name = manifest::name(number);
        match self.place.bucket.get(&name, manifest::LIMIT_BYTES) {
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) if is_lost(&error) => Err(damaged(self.place.bucket.describe(&name), error)),
            bytes => match Manifest::decode(&bytes?, &self.place.store, number) {
                Ok(manifest) => Ok(Some(manifest)),
                Err(why) => Err(damaged(self.place.bucket.describe(&name), why)),
            },
        }
    }

    fn is_outdated(&self, manifest: &Manifest) -> Result<bool> {
        Ok(self.read_manifest(manifest.number + 1)?.is_some())
    }

    /// Reads the batches that a list shows, several at a time. False: the log was trimmed meanwhile. With a copy there
    /// is no need to list: the end is near.
    fn read_listed(&self, state: &mut State, last_copy: Option<u64>) -> Result<bool> {
        if last_copy.is_some() {
            return Ok(true);
        }
        let mut last = None;
        let before = batch::name(state.manifest.first.saturating_sub(1));
        list_after(&*self.place.bucket, "log/", before, &mut |name, _| {
            last = last.max(batch::number(name));
            true
        })?;
        let numbers: Vec<u64> = (next_number(state)..=last.unwrap_or(0)).collect();
        let mut missing = None;
        let fetch = |log: &ObjectLog, number: &u64| log.fetch(*number);
        self.each_ahead(BATCHES_AT_ONCE, &numbers, fetch, &mut |at, found| match found {
            Some(bytes) => {
                self.take_in(state, numbers[at], &bytes)?;
                Ok(true)
            }
            None => {
                missing = Some(numbers[at]);
                Ok(false)
            }
        })?;
        let Some(missing) = missing else { return Ok(true) };
        if self.is_outdated(&state.manifest)? {
            return Ok(false);
        }
        let why = "the batch is missing, but later ones are there";
        Err(damaged(self.place.bucket.describe(&batch::name(missing)), why))
    }

    /// Reads batch after batch until there is none.
    fn read_on(&self, state: &mut State) -> Result<()> {
        loop {
            let number = next_number(state);
            match self.fetch(number)? {
                Some(bytes) => self.take_in(state, number, &bytes)?,
                None => return Ok(()),
            }
        }
    }

    fn fetch(&self, number: u64) -> Result<Option<Vec<u8>>> {
        let name = batch::name(number);
        match self.place.bucket.get(&name, OBJECT_LIMIT_BYTES) {
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) if is_lost(&error) => Err(damaged(self.place.bucket.describe(&name), error)),
            bytes => Ok(Some(bytes?)),
        }
    }

    /// Adds the next batch, and keeps a copy of it.
    fn take_in(&self, state: &mut State, number: u64, bytes: &[u8]) -> Result<()> {
        self.chain(state, number, bytes).map_err(|why| damaged(self.place.bucket.describe(&batch::name(number)), why))?;
        self.keep_copy(number, bytes);
        Ok(())
    }

    /// Adds the next batch if it follows the last one. The error is for people.
    fn chain(&self, state: &mut State, number: u64, bytes: &[u8]) -> std::result::Result<(), String> {
        let (link, batch) = batch::decode(bytes, &self.place.store, number)?;
        if link.follows != state.last {
            return Err("it does not follow the batch before it".to_owned());
        }
        if batch.position < state.end || batch.position.0 >= POSITIONS_END {
            return Err(format!("it starts at {}, and the batch before it ends at {}", batch.position.0, state.end.0));
        }
        if batch.epoch < state.epoch {
            return Err(format!("it has owner epoch {}, the batch before it has {}", batch.epoch, state.epoch));
        }
        let end = Position(batch.position.0 + batch.length_bytes);
        enter(state, Entry::new(&link, batch.position, end, bytes), batch.epoch);
        Ok(())
    }

    /// Fetches items, several at a time, and passes them on in order until `take` returns false.
    fn each_ahead<I: Sync, T: Send>(
        &self,
        at_once: usize,
        items: &[I],
        fetch: impl Fn(&ObjectLog, &I) -> Result<T> + Sync,
        take: &mut dyn FnMut(usize, T) -> Result<bool>,
    ) -> Result<()> {
        let fetch = &fetch;
        for (turn, items) in items.chunks(at_once).enumerate() {
            let fetched: Vec<Result<T>> = match items {
                [item] => vec![fetch(self, item)],
                _ => std::thread::scope(|scope| {
                    let threads: Vec<_> = items.iter().map(|item| scope.spawn(move || fetch(self, item))).collect();
                    let join = |thread: std::thread::ScopedJoinHandle<'_, Result<T>>| match thread.join() {
                        Ok(fetched) => fetched,
                        Err(panic) => std::panic::resume_unwind(panic),
                    };
                    threads.into_iter().map(join).collect()
                }),
            };
            for (at, item) in fetched.into_iter().enumerate() {
                if !take(turn * at_once + at, item?)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    // Copies in the directory: advice, all of it.

    fn copy_path(&self, number: u64) -> String {
        format!("{}/{number:016x}", self.place.directory)
    }

    /// Returns the numbers of the batches with copies.
    fn copies(&self) -> Result<BTreeSet<u64>> {
        let entries = match self.place.ground.list(&self.place.directory) {
            Err(error) if error.is_not_found() => Vec::new(),
            entries => entries?,
        };
        let number = |name: &str| if name.len() == 16 { u64::from_str_radix(name, 16).ok() } else { None };
        Ok(entries.iter().filter_map(|entry| number(&entry.name)).collect())
    }

    fn copy(&self, number: u64) -> Option<Vec<u8>> {
        read_file(&*self.place.ground, &self.copy_path(number), OBJECT_LIMIT_BYTES).ok()
    }

    fn keep_copy(&self, number: u64, bytes: &[u8]) {
        self.place.keep(&self.copy_path(number), bytes);
    }

    fn drop_copies(&self, copies: &BTreeSet<u64>, first: u64) {
        for number in copies.range(..first) {
            let _ = self.place.ground.remove(&self.copy_path(*number));
        }
    }

    /// Reads a batch that is in the log.
    fn read(&self, entry: &Entry) -> Result<Batch> {
        let parse = |bytes: &[u8]| {
            if checksum(bytes) != entry.checksum {
                return Err("it is not the batch that was there before".to_owned());
            }
            batch::decode(bytes, &self.place.store, entry.number).map(|(_, batch)| batch)
        };
        if let Some(batch) = self.copy(entry.number).and_then(|bytes| parse(&bytes).ok()) {
            return Ok(batch);
        }
        let refused = |why: String| damaged(self.place.bucket.describe(&batch::name(entry.number)), why);
        let bytes = self.fetch(entry.number)?.ok_or_else(|| refused("the batch is missing".to_owned()))?;
        parse(&bytes).map_err(refused)
    }

    // Writing.

    fn writable(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        match state.nonce {
            None => Err(LogError::ReadOnly),
            Some(_) if state.is_fenced => Err(LogError::Fenced { path: self.place.bucket.describe("log") }),
            Some(_) if state.is_poisoned => Err(LogError::Poisoned),
            Some(_) if state.has_ended => Err(LogError::ReadOnly),
            Some(_) => Ok(state),
        }
    }

    fn commit_as(&self, is_beyond_limit: bool, role: Role, records: &[Record]) -> Result<(Position, Position)> {
        let mut state = self.writable()?;
        if records.is_empty() && role == Role::Ordinary {
            return Ok((state.end, state.end));
        }
        let bound = records.iter().map(Record::length_bound_bytes).sum::<u64>();
        if bound > BATCH_MAX_BYTES {
            return Err(LogError::TooLarge { length_bytes: bound, limit_bytes: BATCH_MAX_BYTES });
        }
        let used_bytes = used_bytes(&state);
        // One batch of any size goes into an empty log.
        let can_be_trimmed = used_bytes > self.options.limit_bytes && state.batches.len() > 1;
        if !is_beyond_limit && can_be_trimmed && used_bytes + bound > state.full_at_bytes {
            return Err(LogError::Full { used_bytes, limit_bytes: state.full_at_bytes });
        }
        let start = state.end;
        self.put_batch(&mut state, records, start, role)?;
        Ok((start, state.end))
    }

    /// Puts a batch at `start`, the end of the log or later.
    fn put_batch(&self, state: &mut State, records: &[Record], start: Position, role: Role) -> Result<()> {
        let Some(nonce) = state.nonce else { return Err(LogError::ReadOnly) };
        let number = next_number(state);
        let link = Link { store: self.place.store, number, follows: state.last, nonce, role };
        let (bytes, length_bytes) = batch::encode(&link, records, start, state.epoch);
        // Large ones are not copied for the request.
        match self.place.bucket.put_new_in_pieces(&batch::name(number), std::slice::from_ref(&bytes)) {
            Ok(Put::Done) => {}
            Ok(Put::Taken) => {
                state.is_fenced = true;
                return Err(LogError::Fenced { path: self.place.bucket.describe("log") });
            }
            Err(error) => {
                state.is_poisoned = true;
                return Err(LogError::NotSynced(error));
            }
        }
        let end = Position(start.0 + length_bytes);
        let epoch = state.epoch;
        enter(state, Entry::new(&link, start, end, &bytes), epoch);
        self.keep_copy(number, &bytes);
        Ok(())
    }

    // The history.

    /// Puts an object of the history, whose name only this opening uses.
    fn put_object(&self, bytes: &[u8], effects: u64) -> Result<Piece> {
        let (epoch, count) = (self.state.lock().epoch, self.pieces.fetch_add(1, Ordering::Relaxed));
        let piece = Piece { epoch, count, length_bytes: bytes.len() as u64, effects, checksum: checksum(bytes) };
        match self.place.bucket.put_new(&piece.name(), bytes)? {
            Put::Done => Ok(piece),
            Put::Taken => Err(damaged(self.place.bucket.describe(&piece.name()), "another content has the name of a new object")),
        }
    }

    /// Reads an object of the history.
    fn read_object(&self, piece: &Piece) -> Result<Vec<u8>> {
        let name = piece.name();
        let refused = |why: String| damaged(self.place.bucket.describe(&name), why);
        let bytes = match self.place.bucket.get(&name, piece.length_bytes) {
            Err(error) if is_lost(&error) => return Err(refused(error.to_string())),
            bytes => bytes?,
        };
        match bytes.len() as u64 == piece.length_bytes && checksum(&bytes) == piece.checksum {
            true => Ok(bytes),
            false => Err(refused("it is not what the manifest says".to_owned())),
        }
    }

    /// Puts the effects of some batches as runs.
    fn summarize(&self, batches: &[Entry], from: Position, is_oldest: bool, holdings: &Holdings) -> Result<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::new();
        let cuts = self.cuts.lock().clone();
        let mut rest = batches;
        let mut start = from;
        while let Some(first) = rest.first() {
            let cut = cuts.iter().filter(|cut| **cut > first.start).min();
            let is_before = |entry: &Entry| cut.is_none_or(|cut| entry.start < *cut);
            let fits = |entry: &&Entry| entry.end.0 - first.start.0 <= SUMMARY_BYTES && is_before(entry);
            let (part, behind) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            rest = behind;
            let end = part.last().map_or(start, |entry| entry.end);
            let mut effects = KeyedEffects::default();
            self.each_ahead(BATCHES_AT_ONCE, part, |log, entry: &Entry| log.read(entry), &mut |at, batch: Batch| {
                let before = effects.len();
                let added = self.meaning.effects(&batch.records, &mut effects);
                effects.retain_from(before, holdings, part[at].end);
                added.map_err(|why| damaged(self.place.bucket.describe("log"), why))?;
                Ok(true)
            })?;
            let mut writing = Writing::new(self, start, end, is_oldest && runs.is_empty());
            writing.add_unsorted(effects, holdings)?;
            runs.push(writing.finish()?);
            start = end;
        }
        Ok(runs)
    }

    /// Returns the runs that the newest manifest names.
    fn runs(&self) -> Result<Runs> {
        let (manifest, known) = {
            let state = self.state.lock();
            (state.manifest, state.runs.clone())
        };
        if let Some(known) = known {
            return Ok(known);
        }
        let Some(object) = manifest.runs else { return Ok(Runs::default()) };
        let name = object.name();
        let refused = |why: String| damaged(self.place.bucket.describe(&name), why);
        let bytes = self.read_object(&object)?;
        let runs = Runs::decode(&bytes, &self.place.store, manifest.start).map_err(refused)?;
        let mut state = self.state.lock();
        if state.manifest.number == manifest.number {
            state.runs = Some(runs.clone());
        }
        Ok(runs)
    }

    /// Puts the next manifest, which names these runs, and deletes what that makes useless. Does nothing if an earlier
    /// owner came first.
    fn change_manifest(&self, next: Manifest, mut runs: Runs) -> Result<()> {
        let epoch = self.writable()?.epoch;
        runs.useless.pieces.extend(next.runs);
        let object = self.put_object(&runs.encode(&self.place.store), runs.runs.len() as u64)?;
        let next = Manifest { number: next.number + 1, epoch, runs: Some(object), ..next };
        if self.place.bucket.put_new(&manifest::name(next.number), &next.encode(&self.place.store))? == Put::Done {
            self.adopt(next, Some(runs.clone()));
            return self.sweep(&next, &runs);
        }
        self.follow(&next).map(drop)
    }

    /// Looks for manifests of others after this one. Returns whether there are some. They are of an earlier owner;
    /// errors: of a later one.
    fn follow(&self, manifest: &Manifest) -> Result<bool> {
        let number = manifest.number.saturating_sub(1);
        let newest = self.newest_after(Manifest { number, ..*manifest })?;
        let epoch = self.writable()?.epoch;
        if newest.epoch > epoch {
            // Its batches are unknown here: the next number is no longer ours.
            self.state.lock().is_fenced = true;
            return Err(LogError::Fenced { path: self.place.bucket.describe("log") });
        }
        let is_new = newest.number > self.state.lock().manifest.number;
        if is_new {
            self.adopt(newest, None);
        }
        Ok(is_new)
    }

    /// Returns the error of a change of the history, unless the history is another one by now: then what is missing may
    /// have been deleted rightly.
    fn unless_followed(&self, changed: Result<bool>) -> Result<bool> {
        match changed {
            Err(error @ LogError::Damaged { .. }) => {
                let manifest = self.writable()?.manifest;
                let next = Manifest { number: manifest.number + 1, ..manifest };
                if self.follow(&next)? { Ok(true) } else { Err(error) }
            }
            changed => changed,
        }
    }

    /// Goes on from a manifest that is in the bucket.
    fn adopt(&self, manifest: Manifest, runs: Option<Runs>) {
        let mut state = self.state.lock();
        while state.batches.front().is_some_and(|entry| entry.number < manifest.first) {
            if let Some(entry) = state.batches.pop_front()
                && self.place.keeps_copies
            {
                let _ = self.place.ground.remove(&self.copy_path(entry.number));
            }
        }
        (state.manifest, state.runs) = (manifest, runs);
        if used_bytes(&state) <= self.options.limit_bytes {
            state.full_at_bytes = self.options.full_at_bytes(0);
        }
        drop(state);
        self.place.keep_manifest(&manifest);
    }

    /// Deletes what the newest manifest, which this opening has put, makes useless.
    fn sweep(&self, manifest: &Manifest, runs: &Runs) -> Result<()> {
        let Useless { batches, pieces } = &runs.useless;
        let mut names: Vec<String> = batches.iter().map(|number| batch::name(*number)).collect();
        names.extend(pieces.iter().map(Piece::name));
        let is_first = !std::mem::replace(&mut self.state.lock().has_swept, true);
        if is_first {
            names.extend(self.leftovers(manifest, runs)?);
        }
        names.chunks(DELETED_AT_ONCE).try_for_each(|names| self.place.bucket.delete(names))?;
        let mut state = self.state.lock();
        if state.manifest.number == manifest.number
            && let Some(runs) = &mut state.runs
        {
            runs.useless = Useless::default();
        }
        Ok(())
    }

    /// Returns the names of pieces that no manifest got to name, of this owner or an earlier one.
    fn leftovers(&self, manifest: &Manifest, runs: &Runs) -> Result<Vec<String>> {
        let pieces = runs.runs.iter().flat_map(Run::pieces).chain(&manifest.runs);
        let named: HashSet<String> = pieces.map(Piece::name).collect();
        let mut names = Vec::new();
        list_after(&*self.place.bucket, "history/", String::new(), &mut |name, _| {
            let is_ours = history::epoch(name).is_some_and(|of| of <= manifest.epoch);
            if is_ours && !named.contains(name) {
                names.push(name.to_owned());
            }
            true
        })?;
        Ok(names)
    }

    fn long_bytes(&self) -> u64 {
        self.options.segment_bytes.saturating_mul(LONG_SEGMENTS)
    }

    /// Puts the effects of the batches that end at or before `upto`, and drops them. False: it is not worth it.
    fn trim_to(&self, upto: Position) -> Result<bool> {
        let (manifest, batches) = {
            let state = self.writable()?;
            let batches: Vec<Entry> = state.batches.iter().take_while(|entry| entry.end <= upto).copied().collect();
            (state.manifest, batches)
        };
        let Some(last) = batches.last() else { return Ok(false) };
        let is_worth_it = batches.len() * 2 >= LONG_BATCHES || last.end.0 - manifest.start.0 >= self.long_bytes();
        if !is_worth_it && !self.is_over_limit() {
            return Ok(false);
        }
        let mut runs = self.runs()?;
        let holdings = self.holdings.lock().clone();
        let new = self.summarize(&batches, manifest.start, runs.runs.is_empty(), &holdings)?;
        runs.runs.extend(new);
        runs.useless.batches.extend(batches.iter().filter(|entry| entry.role.is_dropped()).map(|entry| entry.number));
        let next = Manifest { first: last.number + 1, start: last.end, follows: last.checksum, ..manifest };
        self.change_manifest(next, runs)?;
        Ok(true)
    }

    /// Merges two runs. False: none need it.
    fn merge_runs(&self) -> Result<bool> {
        let manifest = self.writable()?.manifest;
        let mut runs = self.runs()?;
        let sizes: Vec<u64> = runs.runs.iter().map(Run::bytes).collect();
        let cuts = self.cuts.lock().clone();
        let is_due = |at: &usize| {
            let is_small = sizes[at - 1] < sizes[*at].saturating_mul(RUN_RATIO) || sizes[at - 1] == 0;
            is_small && !cuts.contains(&runs.runs[*at].from)
        };
        // From the newest: a small run is merged before it is merged with a large one.
        let Some(at) = (1..sizes.len()).rev().find(is_due) else { return Ok(false) };
        let holdings = self.holdings.lock().clone();
        let merged = self.merge(&runs.runs[at - 1], &runs.runs[at], at == 1, &holdings)?;
        let old: Vec<Piece> = runs.runs.splice(at - 1..=at, [merged]).flat_map(|run| run.parts).map(|part| part.piece).collect();
        runs.useless.pieces.extend(old);
        self.change_manifest(manifest, runs)?;
        Ok(true)
    }
}

impl Log for ObjectLog {
    fn in_bucket(&self) -> Option<&ObjectLog> {
        Some(self)
    }

    fn start(&self) -> Position {
        self.state.lock().manifest.start
    }

    fn end(&self) -> Position {
        self.state.lock().end
    }

    fn applied_at_most(&self) -> Position {
        self.state.lock().copied_to
    }

    fn epoch(&self) -> u64 {
        let state = self.state.lock();
        if state.nonce.is_some() { state.epoch } else { state.epoch.max(state.manifest.epoch) }
    }

    fn used_bytes(&self) -> u64 {
        used_bytes(&self.state.lock())
    }

    fn is_over_limit(&self) -> bool {
        self.used_bytes() > self.options.limit_bytes
    }

    fn parts(&self) -> usize {
        self.state.lock().batches.len()
    }

    fn is_long(&self) -> bool {
        let state = self.state.lock();
        state.batches.len() > LONG_BATCHES || used_bytes(&state) > self.long_bytes()
    }

    fn replay(&self, from: Position, visit: &mut Visit<'_>) -> Result<()> {
        let (batches, start, end) = {
            let state = self.state.lock();
            (state.batches.clone(), state.manifest.start, state.end)
        };
        if from < start {
            return Err(LogError::BeforeStart { from, start });
        }
        if from > end {
            return Err(LogError::PastEnd { from, end });
        }
        let batches: Vec<Entry> = batches.into_iter().filter(|entry| entry.end > from).collect();
        // A gap before the first may lie around `from`: then a jump does.
        if batches.first().is_some_and(|entry| entry.start < from) {
            return Err(LogError::NotABoundary { from });
        }
        self.each_ahead(BATCHES_AT_ONCE, &batches, |log, entry: &Entry| log.read(entry), &mut |at, batch: Batch| {
            let Entry { start, end, .. } = batches[at];
            Ok(visit(start, end, &batch.records).is_continue())
        })
    }

    fn has_history(&self) -> bool {
        true
    }

    fn replay_history(&self, visit: &mut Visit<'_>) -> Result<()> {
        let (manifest, holdings) = (self.state.lock().manifest, self.holdings.lock().clone());
        let read = self.runs().and_then(|runs| self.visit_history(&runs.runs, &holdings, visit));
        self.unless_replaced(&manifest, read, "history")
    }

    fn commit(&self, records: &[Record]) -> Result<(Position, Position)> {
        self.commit_as(false, Role::Ordinary, records)
    }

    fn commit_beyond_limit(&self, records: &[Record]) -> Result<(Position, Position)> {
        self.commit_as(true, Role::Ordinary, records)
    }

    fn commit_last(&self, records: &[Record]) -> Result<(Position, Position)> {
        let committed = self.commit_as(true, Role::Last, records)?;
        self.state.lock().has_ended = true;
        Ok(committed)
    }

    fn was_ended(&self) -> bool {
        self.state.lock().was_ended
    }

    fn jump_to(&self, position: Position) -> Result<()> {
        if !position.0.is_multiple_of(ALIGNMENT_BYTES) || position.0 >= POSITIONS_END {
            return Err(LogError::NotABoundary { from: position });
        }
        let mut state = self.writable()?;
        if position <= state.end {
            return Ok(());
        }
        // A batch without records ends there.
        self.put_batch(&mut state, &[], Position(position.0 - ALIGNMENT_BYTES), Role::Ordinary)
    }

    fn has_parts_before(&self, upto: Position) -> bool {
        self.state.lock().batches.front().is_some_and(|entry| entry.end <= upto)
    }

    fn trim(&self, upto: Position) -> Result<()> {
        let _one_at_a_time = self.changing.lock();
        self.unless_followed(self.trim_to(upto)).map(drop)
    }

    fn verify(&self) -> Vec<String> {
        let (manifest, batches) = {
            let state = self.state.lock();
            (state.manifest, state.batches.clone())
        };
        let mut wrong = Vec::new();
        for number in [0, manifest.number] {
            match self.read_manifest(number) {
                Ok(Some(found)) if number == 0 || found == manifest => {}
                Ok(_) => wrong.push(format!("{} is missing or another one", self.place.bucket.describe(&manifest::name(number)))),
                Err(error) => wrong.push(error.to_string()),
            }
        }
        for entry in &batches {
            let name = batch::name(entry.number);
            match self.fetch(entry.number) {
                Ok(Some(bytes)) if checksum(&bytes) == entry.checksum => {}
                Ok(_) => wrong.push(format!("{} is missing or another one", self.place.bucket.describe(&name))),
                Err(error) => wrong.push(error.to_string()),
            }
        }
        match self.runs() {
            Ok(runs) => {
                let pieces = runs.runs.iter().flat_map(Run::pieces).chain(&manifest.runs);
                wrong.extend(pieces.filter_map(|piece| self.read_object(piece).err()).map(|error| error.to_string()));
            }
            Err(error) => wrong.push(error.to_string()),
        }
        // It may have been trimmed meanwhile: then nothing of that says anything.
        if self.is_outdated(&manifest).unwrap_or(false) { Vec::new() } else { wrong }
    }

    fn tidy(&self) -> Result<bool> {
        let _one_at_a_time = self.changing.lock();
        self.unless_followed(self.merge_runs())
    }

    fn release_room(&self) {}
}

impl Entry {
    fn new(link: &Link, start: Position, end: Position, bytes: &[u8]) -> Entry {
        let mut owner = [0; 8];
        owner.copy_from_slice(&link.nonce[..8]);
        Entry { number: link.number, start, end, checksum: checksum(bytes), role: link.role, owner }
    }
}

fn next_number(state: &State) -> u64 {
    state.batches.back().map_or(state.manifest.first, |last| last.number + 1)
}

fn used_bytes(state: &State) -> u64 {
    state.batches.iter().map(|entry| entry.end.0 - entry.start.0).sum()
}

fn enter(state: &mut State, entry: Entry, epoch: u64) {
    (state.end, state.last, state.epoch) = (entry.end, entry.checksum, epoch);
    state.batches.push_back(entry);
}

fn empty_state() -> State {
    State {
        manifest: Manifest::default(),
        runs: None,
        batches: VecDeque::new(),
        end: Position(0),
        epoch: 0,
        last: 0,
        copied_to: Position(0),
        nonce: None,
        is_poisoned: false,
        has_ended: false,
        was_ended: false,
        is_fenced: false,
        has_swept: false,
        full_at_bytes: 0,
    }
}
