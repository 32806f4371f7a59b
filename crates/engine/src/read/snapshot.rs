//! Reading as of a moment, beside a process that writes (`docs/decisions/0035-readers-beside-a-writer.md`).
//!
//! An engine that is open in [`Mode::Snapshot`](crate::Mode::Snapshot) is in one of two states:
//! * *Looking.* It shares the lock of the views ([`crate::read::views`]), so it may ask for any object and read any
//!   chunk. Writers may have to wait for it. So this phase must be short and must not wait for anybody: nothing is
//!   printed meanwhile.
//! * *Holding*, from [`Engine::hold`] on. It reads the chunks that the held objects refer to. Its lease names these
//!   objects, and keeps what they refer to from being removed, even if the objects themselves are removed. It can look
//!   up no further objects.
//!
//! # Why no chunk is removed that somebody holds
//! A removal looks at the leases after it has flushed (step 3 in `removal.rs`). For that it takes the lock of the views
//! alone. So every reader has either said what it holds, or comes later.
//! * A reader that comes later sees everything that was committed before the look. If a candidate is still on the watch
//!   list when it is removed, no object referred to it since the flush: every change of its count since would have
//!   taken it off the list. So nothing that this reader can find refers to it.
//! * A reader holds objects that all still exist, unchanged. They refer to no chunk whose count is 0.
//! * A reader holds an object that is gone or changed. Then nothing is removed while the reader lives.
//!
//! A lease is a file that its reader has locked. The lock ends with the process, however it ends. Whoever finds a lease
//! without a lock removes it.
//!
//! # How chunks are found while containers move
//! Recipes have addresses. A sealed container never changes; when it is merged away, a forward is in its place before
//! its file goes. Frames of a container that was open at the moment keep their places when it grows and when it is
//! sealed. Bytes that were only in the log are in this process's memory.
//!
//! So if a file is missing, the reader looks for it again on the disk. The chunk index is only advice from here on: its
//! pages may be newer, torn or moved. The chunk's name verifies what the index says.

use crate::lifecycle::descriptor::random_digits;
use crate::lifecycle::presence::{self, Presence};
use crate::read::views::{lock_views, lock_views_within};
use crate::{Engine, EngineError, Result};
use onefold_ground::{Access, Ground, GroundError, Holder, LockError, LockGuard, checksum, read_file};
use parking_lot::Mutex;
use std::fmt::Write;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// The directory of the leases.
pub(crate) const LEASES: &str = "leases";
/// Most bytes of a lease: more than 200,000 objects.
const LEASE_MAX_BYTES: u64 = 16 << 20;
/// The last line of a lease that says what is held.
const END: &str = "end";

/// A held object: object-index partition and key.
pub type Place = (u16, Vec<u8>);

const LOOKING: u8 = 1;
const HOLDING: u8 = 2;

/// Readers in other processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readers {
    /// Whether there is one.
    pub(crate) are_there: bool,
    /// The one that reads something which is gone from the store, or does not say what it reads. While there is one, no
    /// chunk is removed.
    pub(crate) kept_for: Option<String>,
}

/// What a snapshot opening blocks.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// [`LOOKING`] or [`HOLDING`]; 0 in another mode. Read without the lock.
    state: AtomicU8,
    held: Mutex<Locks>,
}

#[derive(Debug, Default)]
struct Locks {
    views: Option<LockGuard>,
    lease: Option<Lease>,
    /// For other machines, if the store is in a bucket.
    presence: Option<Presence>,
}

/// A lease of this process.
#[derive(Debug)]
struct Lease {
    ground: Arc<dyn Ground>,
    path: String,
    holder: Holder,
    // After the file in the order of dropping: see `Drop`.
    _lock: LockGuard,
}

impl Lease {
    /// Creates a lease that says nothing yet. The caller shares the lock of the views, so nobody looks at leases
    /// meanwhile.
    fn take(ground: &Arc<dyn Ground>, holder: &Holder) -> Result<Lease> {
        let path = format!("{LEASES}/{}", random_digits()?);
        // A lease need not survive a crash, so nothing is synced for it.
        match ground.create(&path) {
            Err(error) if error.is_not_found() => {
                ground.create_directory(LEASES)?;
                ground.create(&path)?;
            }
            created => drop(created?),
        }
        let lock = match ground.lock(&path, true, holder) {
            Ok(lock) => lock,
            Err(error) => {
                let _ = ground.remove(&path);
                return Err(error.into());
            }
        };
        Ok(Lease { ground: ground.clone(), path, holder: holder.clone(), _lock: lock })
    }

    /// Returns the text of a lease on these objects.
    fn text(&self, objects: &[(Place, u64)]) -> Result<String> {
        let mut text = String::from_utf8_lossy(&self.holder.line()).into_owned();
        for ((partition, key), sum) in objects {
            let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
            let _ = writeln!(text, "{partition} {key} {sum:016x}");
        }
        text.push_str(END);
        text.push('\n');
        if text.len() as u64 > LEASE_MAX_BYTES {
            let why = "a command can read at most about 200,000 at once".to_owned();
            return Err(EngineError::Invalid { what: format!("{} objects", objects.len()), why });
        }
        Ok(text)
    }

    fn say(&self, text: &str) -> Result<()> {
        let file = self.ground.open(&self.path, Access::ReadWrite)?;
        file.set_len(0)?;
        Ok(file.write_at(0, text.as_bytes())?)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The next writer that looks removes a leftover lease without a lock.
        let _ = self.ground.remove(&self.path);
    }
}

/// Begins to look. `None`: this process cannot write here, so it cannot have a lease, or somebody changes the views for
/// longer than `limit`. Then the store's lock says whether anything can be read.
pub(crate) fn begin(ground: &Arc<dyn Ground>, holder: &Holder, limit: Duration) -> Result<Option<Reading>> {
    let no_right = |error: &GroundError| {
        // This includes a full disk: the store must stay readable there.
        let kind = error.kind();
        matches!(kind, ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::NotFound) || error.is_full()
    };
    let views = match lock_views_within(&**ground, false, holder, limit) {
        Ok(views) => views,
        Err(LockError::Held { .. }) => return Ok(None),
        Err(LockError::Ground(error)) if no_right(&error) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let lease = match Lease::take(ground, holder) {
        Ok(lease) => lease,
        Err(EngineError::Ground(error) | EngineError::Lock(LockError::Ground(error))) if no_right(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let presence = ground.bucket().map(|bucket| presence::become_reader(&bucket, &**ground, holder)).transpose()?;
    let held = Locks { views: Some(views), lease: Some(lease), presence };
    Ok(Some(Reading { state: AtomicU8::new(LOOKING), held: Mutex::new(held) }))
}

/// A lease of a living process.
#[derive(Debug)]
pub(crate) struct LiveLease {
    path: String,
    holder: Option<Holder>,
    /// The objects that it relies on. `None`: it does not say.
    objects: Option<Vec<(Place, u64)>>,
}

impl LiveLease {
    fn parse(path: String, holder: Option<Holder>, text: &[u8]) -> LiveLease {
        let parsed = || {
            let text = std::str::from_utf8(text).ok()?;
            let mut lines = text.lines();
            let holder = Holder::parse(lines.next()?.as_bytes())?;
            let mut objects = Vec::new();
            loop {
                let line = lines.next()?;
                if line == END {
                    return Some((holder, objects));
                }
                let mut words = line.split(' ');
                let (partition, key, sum) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
                let key = key.as_bytes().chunks(2).map(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
                objects.push(((partition, key.collect::<Option<Vec<u8>>>()?), u64::from_str_radix(sum, 16).ok()?));
            }
        };
        match parsed() {
            Some((holder, objects)) => LiveLease { path, holder: Some(holder), objects: Some(objects) },
            None => LiveLease { path, holder, objects: None },
        }
    }

    fn whose(&self) -> String {
        self.holder.as_ref().map_or_else(|| format!("a process that has {} open", self.path), Holder::to_string)
    }
}

/// Returns the leases of living processes, and removes all others. The caller holds the lock of the views alone.
pub(crate) fn live_leases(ground: &dyn Ground, holder: &Holder) -> Result<Vec<LiveLease>> {
    let entries = match ground.list(LEASES) {
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut live = Vec::new();
    for entry in entries.into_iter().filter(|entry| !entry.is_directory) {
        let path = format!("{LEASES}/{}", entry.name);
        match ground.lock(&path, true, holder) {
            Ok(_mine) => match ground.remove(&path) {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            },
            Err(LockError::Held { holder, .. }) => match read_file(ground, &path, LEASE_MAX_BYTES) {
                Ok(text) => live.push(LiveLease::parse(path, holder, &text)),
                // Its reader has just ended.
                Err(error) if error.is_not_found() => {}
                Err(_) => live.push(LiveLease { path, holder, objects: None }),
            },
            Err(LockError::Ground(error)) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(live)
}

/// Errors: a process reads the store as of a moment. The caller holds the lock of the views alone.
pub(crate) fn nobody_reads(ground: &dyn Ground, holder: &Holder) -> Result<()> {
    match live_leases(ground, holder)?.into_iter().next() {
        None => Ok(()),
        Some(lease) => Err(LockError::Held { path: ground.describe(&lease.path), holder: lease.holder }.into()),
    }
}

impl Reading {
    fn is(&self, state: u8) -> bool {
        self.state.load(Ordering::Acquire) == state
    }
}

impl Engine {
    /// Restricts this engine to what these objects refer to. That is not removed from now on, even if the objects are,
    /// as long as this engine is open. Writers do not have to wait for this engine any more, however long it reads.
    ///
    /// Call it as soon as it is known what is read, and before anything is printed. Only [`Mode::Snapshot`] needs it.
    /// In other modes it does nothing, as there the store's lock or an [`InFlight`](crate::InFlight) guard protects the
    /// chunks.
    pub fn hold(&self, objects: &[Place]) -> Result<()> {
        let mut held = self.reading.held.lock();
        if !self.reading.is(LOOKING) {
            return self.check_looking();
        }
        let mut said = Vec::with_capacity(objects.len());
        for (partition, key) in objects {
            let value = self
                .objects
                .get(*partition, key)?
                .ok_or_else(|| EngineError::Inconsistent { why: "an object that was just read is not there".into() })?;
            said.push(((*partition, key.clone()), checksum(&value)));
        }
        if let Some(lease) = &held.lease {
            let text = lease.text(&said)?;
            match lease.say(&text) {
                // An empty lease keeps everything from being removed: that is enough.
                Err(error) if error.is_full() => {}
                said => said?,
            }
            if let Some(presence) = &held.presence {
                presence.say(text.into_bytes());
            }
        }
        self.reading.state.store(HOLDING, Ordering::Release);
        held.views = None;
        Ok(())
    }

    /// Returns whether writers may have to wait for this engine, because [`Engine::hold`] was not called yet. If so,
    /// wait for nothing and print nothing.
    pub fn is_looking(&self) -> bool {
        self.reading.is(LOOKING)
    }

    /// Returns an error if objects can no longer be looked up.
    pub(crate) fn check_looking(&self) -> Result<()> {
        if self.reading.is(HOLDING) { Err(EngineError::Held) } else { self.check_may_answer() }
    }

    /// Looks for readers in other processes. `Err(())` inside: `go_on` said no.
    pub(crate) fn readers(&self, go_on: &dyn Fn() -> bool) -> Result<std::result::Result<Readers, ()>> {
        let mut readers = Readers::default();
        let elsewhere = self.ground.bucket().map(|bucket| presence::readers(&*bucket, &*self.ground)).transpose()?;
        let _views = match lock_views(&*self.ground, true, &self.holder, go_on) {
            Err(LockError::Held { .. }) => return Ok(Err(())),
            views => views?,
        };
        let elsewhere = elsewhere.into_iter().flatten().map(|seen| LiveLease::parse(seen.name.clone(), seen.holder(), seen.text()));
        for lease in live_leases(&*self.ground, &self.holder)?.into_iter().chain(elsewhere) {
            readers.are_there = true;
            let Some(objects) = &lease.objects else {
                let why = format!("unused chunks are kept for {}, which has not listed yet what it reads", lease.whose());
                return Ok(Ok(Readers { kept_for: Some(why), ..readers }));
            };
            for ((partition, key), sum) in objects {
                let is_there = matches!(self.objects.get(*partition, key), Ok(Some(value)) if checksum(&value) == *sum);
                if !is_there {
                    let why = format!("unused chunks are kept for {}, which is reading something that was deleted since", lease.whose());
                    return Ok(Ok(Readers { kept_for: Some(why), ..readers }));
                }
            }
        }
        Ok(Ok(readers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_ground::SimulatedGround;

    fn ground() -> Arc<dyn Ground> {
        Arc::new(SimulatedGround::new(1))
    }

    #[test]
    fn a_lease_is_read_as_written_and_one_that_is_cut_says_nothing() {
        let ground = ground();
        let holder = Holder::this_process("dump");
        let lease = Lease::take(&ground, &holder).unwrap();
        assert!(live_leases(&*ground, &holder).unwrap()[0].objects.is_none(), "it has said nothing yet");
        let objects = vec![((3, vec![0, 255, 7]), u64::MAX), ((0, vec![b'b']), 1)];
        lease.say(&lease.text(&objects).unwrap()).unwrap();
        let live = live_leases(&*ground, &holder).unwrap();
        assert_eq!((live.len(), live[0].objects.as_ref(), live[0].holder.as_ref()), (1, Some(&objects), Some(&holder)));
        let text = read_file(&*ground, &lease.path, 1 << 20).unwrap();
        for length in 0..text.len() - 1 {
            assert!(LiveLease::parse("x".into(), None, &text[..length]).objects.is_none(), "{length}");
        }
    }

    #[test]
    fn a_lease_goes_with_its_reader_and_one_without_a_reader_is_removed() {
        let ground = ground();
        let holder = Holder::this_process("ls");
        drop(Lease::take(&ground, &holder).unwrap());
        assert!(ground.list(LEASES).unwrap().is_empty());
        ground.create("leases/killed").unwrap();
        let lease = Lease::take(&ground, &holder).unwrap();
        assert!(nobody_reads(&*ground, &holder).is_err());
        drop(lease);
        nobody_reads(&*ground, &holder).unwrap();
        assert!(ground.list(LEASES).unwrap().is_empty(), "that of a process that was killed is gone");
    }
}
