//! SANITIZE: erases the whole medium, in the background (SBC-3 sections 4.11 and 5.24).
//!
//! *Block erase* zeroes everything and frees the space. *Overwrite* does the same first, then fills the disk with the
//! pattern. The disk below is thin and may only write to new places, so the effect of earlier passes would never be
//! visible. So only the last pass runs, which writes the pattern as given. At the end, nothing of the disk leads to its
//! old data any more, durably. Data that a snapshot or another disk shares with it stays.
//!
//! Invariants:
//! * A sanitize that was answered with an error does not begin, not even after a restart. A sanitize that has begun
//!   ends only when its end is stored. Until then no host can write data that the next start would erase.
//! * It begins when no command is using the medium, and no such command begins until it ends.
//! * Neither the end of the task or the session nor a reset stops it. The order is stored before any of it is executed,
//!   so it goes on after a restart ([`LogicalUnit::with_sanitize`](super::LogicalUnit::with_sanitize)).

use super::sense::{Code, Key, Sense, Specific};
use super::{Disk, DiskError, Geometry, NotKept, u16_at};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes erased between two checks for a stop.
const ERASE_BYTES: u64 = 64 << 20;
/// Bytes filled at a time.
const FILL_BYTES: u64 = 4 << 20;
/// How often a waiter for the end checks whether its answer is still wanted.
const LOOK: Duration = Duration::from_millis(50);
/// How long to wait before retrying to store the end: at first, and at most.
const RETRY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(20)];

/// A sanitize that has begun: everything needed to continue it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sanitize {
    /// The content of each logical block afterwards: a pattern of 512 or 4096 bytes, repeated. Empty for zeros without
    /// space.
    pub pattern: Vec<u8>,
    /// Whether the unit may be used again after a failure without another sanitize (AUSE).
    pub allows_exit: bool,
    /// Whether it failed. Then it does not continue by itself.
    pub has_failed: bool,
}

/// Stores a sanitize over restarts. Called before the answer, with the sanitize to continue, or with `None` when it is
/// done.
pub type KeepSanitize = Box<dyn Fn(Option<&Sanitize>) -> Result<(), NotKept> + Send + Sync>;

/// A unit's knowledge of its sanitize.
pub(super) struct Sanitizer {
    shared: Arc<Shared>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    disk: Arc<dyn Disk>,
    keep: KeepSanitize,
    state: Mutex<Option<Sanitize>>,
    ended: Condvar,
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
    must_stop: AtomicBool,
}

impl Sanitizer {
    pub(super) fn new(disk: Arc<dyn Disk>, unfinished: Option<Sanitize>, keep: KeepSanitize) -> Sanitizer {
        let shared = Shared {
            disk,
            keep,
            state: Mutex::new(unfinished),
            ended: Condvar::new(),
            done_bytes: AtomicU64::new(0),
            total_bytes: AtomicU64::new(1),
            must_stop: AtomicBool::new(false),
        };
        Sanitizer { shared: Arc::new(shared), worker: Mutex::new(None) }
    }

    /// Checks whether a command is allowed now. Errors: the sense data to return.
    pub(super) fn check(&self) -> Result<(), Sense> {
        match &*self.shared.state.lock() {
            None => Ok(()),
            Some(sanitize) if sanitize.has_failed => Err(Sense::new(Key::MediumError, Code::SANITIZE_COMMAND_FAILED)),
            Some(_) => {
                let (done, total) =
                    (self.shared.done_bytes.load(Ordering::Relaxed), self.shared.total_bytes.load(Ordering::Relaxed).max(1));
                let progress = (u128::from(done) * 65_536 / u128::from(total)).min(65_535) as u16;
                let sense = Sense::new(Key::NotReady, Code::NOT_READY_SANITIZE_IN_PROGRESS);
                Err(Sense { specific: Some(Specific::Progress(progress)), ..sense })
            }
        }
    }

    /// Returns whether the last sanitize failed.
    pub(super) fn has_failed(&self) -> bool {
        self.shared.state.lock().as_ref().is_some_and(|sanitize| sanitize.has_failed)
    }

    /// Checks a SANITIZE command for an erasure, in the state that the last one left.
    pub(super) fn parse(&self, cdb: &[u8], list: &[u8], geometry: &Geometry) -> Result<Sanitize, Sense> {
        let is_overwrite = cdb[1] & 0x1f == 0x01;
        let allows_exit = cdb[1] & 0x20 != 0;
        let pattern = if is_overwrite { overwrite_pattern(list, u16_at(cdb, 7), geometry)? } else { Vec::new() };
        if !is_overwrite && u16_at(cdb, 7) != 0 {
            return Err(Sense::invalid_field(7, None));
        }
        // After a failure that cannot be exited, the next sanitize must be one that cannot be exited either.
        if allows_exit && self.shared.state.lock().as_ref().is_some_and(|last| last.has_failed && !last.allows_exit) {
            return Err(Sense::invalid_field(1, Some(5)));
        }
        Ok(Sanitize { pattern, allows_exit, has_failed: false })
    }

    /// EXIT FAILURE MODE.
    pub(super) fn leave_failure(&self, cdb: &[u8]) -> Result<(), Sense> {
        if u16_at(cdb, 7) != 0 {
            return Err(Sense::invalid_field(7, None));
        }
        let _worker = self.lock_unstopped()?;
        let mut state = self.shared.state.lock();
        match &*state {
            None => Ok(()),
            Some(last) if last.has_failed && last.allows_exit => {
                (self.shared.keep)(None).map_err(|_| not_kept())?;
                *state = None;
                Ok(())
            }
            Some(_) => Err(Sense::invalid_field(1, Some(4))),
        }
    }

    /// Begins. The caller makes sure that no command uses the medium and no sanitize is under way.
    pub(super) fn begin(&self, sanitize: Sanitize) -> Result<(), Sense> {
        let worker = self.lock_unstopped()?;
        match (self.shared.keep)(Some(&sanitize)) {
            Err(NotKept::Unchanged) => return Err(not_kept()),
            // It may begin after a restart, whatever is answered now. So nobody may use the medium before.
            Ok(()) | Err(NotKept::Uncertain) => {}
        }
        *self.shared.state.lock() = Some(sanitize);
        self.go_on_with(worker);
        Ok(())
    }

    /// Prevents a concurrent [`stop`](Self::stop). After a stop nothing stored may change, because another unit may
    /// have read it already.
    fn lock_unstopped(&self) -> Result<MutexGuard<'_, Option<JoinHandle<()>>>, Sense> {
        let worker = self.worker.lock();
        if self.has_stopped() { Err(Sense::new(Key::NotReady, Code::NOT_READY)) } else { Ok(worker) }
    }

    /// Does the remaining work, on a thread of its own.
    pub(super) fn go_on(&self) {
        self.go_on_with(self.worker.lock());
    }

    fn go_on_with(&self, mut worker: MutexGuard<'_, Option<JoinHandle<()>>>) {
        let Some(sanitize) = self.shared.state.lock().clone().filter(|sanitize| !sanitize.has_failed) else { return };
        self.shared.done_bytes.store(0, Ordering::Relaxed);
        let shared = self.shared.clone();
        let work = move || shared.run(&sanitize);
        match std::thread::Builder::new().name("sanitize".into()).spawn(work) {
            Ok(handle) => *worker = Some(handle),
            Err(error) => self.shared.end(Err(DiskError::Io(format!("cannot start a thread: {error}")))),
        }
    }

    /// Waits until it has ended, or until `is_over` says that nobody waits for that any more.
    pub(super) fn wait(&self, is_over: &dyn Fn() -> bool) -> Result<(), Sense> {
        let mut state = self.shared.state.lock();
        while state.as_ref().is_some_and(|sanitize| !sanitize.has_failed) && !is_over() && !self.shared.must_stop.load(Ordering::Relaxed) {
            self.shared.ended.wait_for(&mut state, LOOK);
        }
        drop(state);
        self.check()
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.shared.must_stop.load(Ordering::Relaxed)
    }

    /// Stops it in this process. The stored state says that it must continue. On return nothing is being erased any
    /// more, and nothing begins.
    pub(super) fn stop(&self) {
        self.shared.must_stop.store(true, Ordering::Relaxed);
        let mut worker = self.worker.lock();
        if let Some(worker) = worker.take() {
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn run(&self, sanitize: &Sanitize) {
        match self.erase(&sanitize.pattern) {
            Ok(false) => {}
            Ok(true) => self.end(Ok(())),
            Err(error) => self.end(Err(error)),
        }
    }

    /// Returns whether everything is done. It is not if it had to stop.
    fn erase(&self, pattern: &[u8]) -> Result<bool, DiskError> {
        let size = self.disk.size();
        let is_zeros = pattern.iter().all(|byte| *byte == 0);
        self.total_bytes.store(if is_zeros { size } else { 2 * size }, Ordering::Relaxed);
        let zero = |offset, length| self.disk.zero(offset, length);
        if !self.for_each(size, ERASE_BYTES, &zero)? {
            return Ok(false);
        }
        // The old data is gone for good before anything else is written.
        self.disk.flush()?;
        if !is_zeros {
            let filling = pattern.repeat(FILL_BYTES as usize / pattern.len());
            let fill = |offset, length: u64| self.disk.write(offset, &filling[..length as usize], false);
            if !self.for_each(size, filling.len() as u64, &fill)? {
                return Ok(false);
            }
            self.disk.flush()?;
        }
        Ok(true)
    }

    fn for_each(&self, size: u64, step: u64, work: &dyn Fn(u64, u64) -> Result<(), DiskError>) -> Result<bool, DiskError> {
        let mut offset = 0;
        while offset < size {
            if self.must_stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let length = step.min(size - offset);
            work(offset, length)?;
            self.done_bytes.fetch_add(length, Ordering::Relaxed);
            offset += length;
        }
        Ok(true)
    }

    fn end(&self, result: Result<(), DiskError>) {
        let after = match result {
            Ok(()) => {
                if !self.keep_end() {
                    return;
                }
                None
            }
            Err(error) => {
                tracing::error!(%error, "a SANITIZE failed");
                let failed = self.state.lock().clone().map(|sanitize| Sanitize { has_failed: true, ..sanitize });
                if (self.keep)(failed.as_ref()).is_err() {
                    // The unit stays unusable until another sanitize, or until the failure is exited. After a restart
                    // this sanitize continues.
                    tracing::error!("the failure of a SANITIZE could not be stored");
                }
                failed
            }
        };
        *self.state.lock() = after;
        self.ended.notify_all();
    }

    /// Stores that it is done, with as many retries as necessary. Until then the next start would erase everything
    /// again, and the unit is not ready. Returns whether it is stored. It is not if it had to stop.
    fn keep_end(&self) -> bool {
        let mut pause = RETRY[0];
        while (self.keep)(None).is_err() {
            tracing::error!("the end of a SANITIZE cannot be stored yet; until then, its unit is not ready");
            let until = Instant::now() + pause;
            while Instant::now() < until {
                if self.must_stop.load(Ordering::Relaxed) {
                    return false;
                }
                std::thread::sleep(LOOK);
            }
            pause = (pause * 2).min(RETRY[1]);
        }
        true
    }
}

impl Drop for Sanitizer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn not_kept() -> Sense {
    Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE)
}

/// Returns the pattern of an OVERWRITE for a whole logical block (SBC-3 table 95).
fn overwrite_pattern(list: &[u8], announced: u16, geometry: &Geometry) -> Result<Vec<u8>, Sense> {
    let logical = geometry.logical as usize;
    let length = usize::from(announced);
    if !(5..=logical + 4).contains(&length) {
        return Err(Sense::invalid_field(7, None));
    }
    let Some(list) = list.get(..length) else {
        return Err(Sense::new(Key::IllegalRequest, Code::PARAMETER_LIST_LENGTH_ERROR));
    };
    let count = list[0] & 0x1f;
    if count == 0 || list[0] & 0x60 != 0 {
        // The meaning of the TEST bits is up to vendors.
        return Err(Sense::invalid_parameter(0));
    }
    if list[1] != 0 {
        return Err(Sense::invalid_parameter(1));
    }
    let pattern = &list[4..];
    if usize::from(u16_at(list, 2)) != pattern.len() {
        return Err(Sense::invalid_parameter(2));
    }
    // Whatever the count and the inversion, the last pass writes the pattern as it is.
    Ok(pattern.iter().copied().cycle().take(logical).collect())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{MAPPED_BYTES, MemoryDisk, options, send, sense_of, unit};
    use super::super::{LogicalUnit, Status};
    use super::*;

    const SIZE: u64 = 4 * MAPPED_BYTES;
    const IN_PROGRESS: (u8, u8, u8) = (2, 0x04, 0x1b);
    const FAILED: (u8, u8, u8) = (3, 0x31, 0x03);
    const INVALID_FIELD: (u8, u8, u8) = (5, 0x24, 0x00);
    const READY: [u8; 6] = [0; 6];
    const REQUEST_SENSE: [u8; 6] = [0x03, 0, 0, 0, 252, 0];

    fn cdb(action: u8, length: u16) -> [u8; 10] {
        let [high, low] = length.to_be_bytes();
        [0x48, action, 0, 0, 0, 0, 0, high, low, 0]
    }

    fn written(disk: &Arc<MemoryDisk>) -> LogicalUnit {
        disk.write(0, &[b'a'; SIZE as usize], false).unwrap();
        unit(disk)
    }

    #[test]
    fn a_block_erase_leaves_nothing_and_is_durable() {
        let disk = MemoryDisk::new(SIZE);
        let unit = written(&disk);
        assert_eq!(send(&unit, &cdb(0x02, 0), &[]).status, Status::Good);
        assert_eq!((disk.mapped_blocks(), disk.flushes.load(Ordering::Relaxed)), (0, 1));
        assert_eq!(send(&unit, &READY, &[]).status, Status::Good);
        assert_eq!(sense_of(&send(&unit, &cdb(0x02, 8), &[])), INVALID_FIELD);
        assert_eq!(send(&unit, &cdb(0x1f, 0), &[]).status, Status::Good, "there is no failure to leave");
    }

    #[test]
    fn an_overwrite_leaves_the_pattern_in_each_logical_block() {
        let disk = MemoryDisk::new(SIZE);
        let unit = written(&disk);
        let list = [0x83, 0, 0, 3, 1, 2, 3];
        assert_eq!(send(&unit, &cdb(0x01, 7), &list).status, Status::Good);
        let expected: Vec<u8> = [1, 2, 3].into_iter().cycle().take(512).collect();
        assert!(disk.content().chunks(512).all(|block| block == expected));
        for (length, list) in [(4, &list[..4]), (7, &[0x80, 0, 0, 3, 1, 2, 3]), (7, &[1, 0, 0, 2, 1, 2, 3]), (7, &[1, 9, 0, 3, 1, 2, 3])] {
            assert_eq!(sense_of(&send(&unit, &cdb(0x01, length), list)).0, 5, "{list:?}");
        }
        assert_eq!(sense_of(&send(&unit, &cdb(0x01, 517), &[1; 517])), INVALID_FIELD);
        assert_eq!(sense_of(&send(&unit, &cdb(0x01, 7), &list[..6])), (5, 0x1a, 0));
        assert_eq!(sense_of(&send(&unit, &cdb(0x03, 0), &[])), INVALID_FIELD, "nothing is encrypted whose key could be thrown away");
    }

    #[test]
    fn while_it_goes_on_only_questions_are_answered() {
        let disk = MemoryDisk::new(SIZE);
        let unit = written(&disk);
        let gate = disk.gate.lock();
        assert_eq!(send(&unit, &cdb(0x82, 0), &[]).status, Status::Good, "it goes on in the background");
        let reply = send(&unit, &READY, &[]);
        assert_eq!(sense_of(&reply), IN_PROGRESS);
        assert_eq!(reply.sense[15], 0x80, "progress is said");
        assert_eq!(sense_of(&send(&unit, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[])), IN_PROGRESS);
        assert_eq!(sense_of(&send(&unit, &cdb(0x02, 0), &[])), IN_PROGRESS);
        assert_eq!(send(&unit, &[0x12, 0, 0, 0, 96, 0], &[]).status, Status::Good);
        assert_eq!(send(&unit, &REQUEST_SENSE, &[]).data[..3], [0x70, 0, 2]);
        unit.reset();
        assert_eq!(sense_of(&send(&unit, &READY, &[])), IN_PROGRESS, "a reset does not end it");
        drop(gate);
        unit.sanitizer.wait(&|| false).unwrap();
        assert_eq!((send(&unit, &READY, &[]).status, disk.mapped_blocks()), (Status::Good, 0));
    }

    #[test]
    fn a_failure_is_left_as_it_was_agreed() {
        let disk = MemoryDisk::new(SIZE);
        let unit = written(&disk);
        *disk.fails.lock() = Some(DiskError::NoSpace);
        assert_eq!(sense_of(&send(&unit, &cdb(0x02, 0), &[])), FAILED);
        assert_eq!(sense_of(&send(&unit, &READY, &[])), FAILED);
        assert_eq!(sense_of(&send(&unit, &cdb(0x1f, 0), &[])), INVALID_FIELD, "not allowed when it began");
        assert_eq!(sense_of(&send(&unit, &cdb(0x22, 0), &[])), INVALID_FIELD, "nor can that be allowed now");
        *disk.fails.lock() = None;
        assert_eq!(send(&unit, &cdb(0x02, 0), &[]).status, Status::Good);
        *disk.fails.lock() = Some(DiskError::NoSpace);
        assert_eq!(sense_of(&send(&unit, &cdb(0x22, 0), &[])), FAILED);
        *disk.fails.lock() = None;
        assert_eq!(send(&unit, &cdb(0x1f, 0), &[]).status, Status::Good);
        assert_eq!(send(&unit, &READY, &[]).status, Status::Good);
    }

    #[test]
    fn what_was_kept_goes_on_after_a_restart() {
        let disk = MemoryDisk::new(SIZE);
        let kept: Arc<Mutex<Option<Sanitize>>> = Arc::default();
        let keep = || -> KeepSanitize {
            let kept = kept.clone();
            Box::new(move |sanitize| {
                *kept.lock() = sanitize.cloned();
                Ok(())
            })
        };
        let start = || LogicalUnit::new(disk.clone(), options(), Box::new(|_| Ok(()))).with_sanitize(kept.lock().clone(), keep());
        disk.write(0, &[b'a'; SIZE as usize], false).unwrap();
        let gate = disk.gate.lock();
        let unit = start();
        assert_eq!(send(&unit, &cdb(0x81, 5), &[1, 0, 0, 1, 7]).status, Status::Good);
        let stopping = std::thread::spawn(move || {
            unit.stop();
            drop(unit);
        });
        // It stops before the next step, or has ended already: either way the rest is done after the restart, or is not
        // needed.
        drop(gate);
        stopping.join().unwrap();
        let unit = start();
        unit.sanitizer.wait(&|| false).unwrap();
        assert!(disk.content().iter().all(|byte| *byte == 7));
        assert_eq!(*kept.lock(), None);
    }

    #[test]
    fn a_unit_that_was_stopped_begins_nothing_and_changes_nothing_that_is_kept() {
        let disk = MemoryDisk::new(SIZE);
        let kept = Arc::new(AtomicU64::new(0));
        let of_unit = kept.clone();
        let keep = move |_: Option<&Sanitize>| {
            of_unit.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        let failed = Sanitize { pattern: Vec::new(), allows_exit: true, has_failed: true };
        let unit = written(&disk).with_sanitize(Some(failed), Box::new(keep));
        unit.stop();
        for action in [0x02, 0x82, 0x1f] {
            assert_eq!(sense_of(&send(&unit, &cdb(action, 0), &[])), (2, 0x04, 0), "another unit may have read what is kept");
        }
        assert_eq!((kept.load(Ordering::SeqCst), disk.mapped_blocks()), (0, 4));
    }

    #[test]
    fn one_that_waits_for_a_disk_that_can_be_written_to_keeps_its_unit_from_being_read() {
        let disk = MemoryDisk::new(SIZE);
        let unfinished = Sanitize { pattern: Vec::new(), allows_exit: false, has_failed: false };
        let unit = written(&disk).with_waiting_sanitize(Some(unfinished));
        assert_eq!(sense_of(&send(&unit, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[])), IN_PROGRESS);
        assert_eq!(disk.mapped_blocks(), 4, "nothing is erased yet");
    }

    #[test]
    fn what_cannot_be_kept_does_not_begin() {
        let disk = MemoryDisk::new(SIZE);
        let unit = written(&disk).with_sanitize(None, Box::new(|_| Err(NotKept::Unchanged)));
        assert_eq!(sense_of(&send(&unit, &cdb(0x02, 0), &[])), (4, 0x44, 0));
        assert_eq!((send(&unit, &READY, &[]).status, disk.mapped_blocks()), (Status::Good, 4));
    }

    #[test]
    fn what_may_be_kept_begins() {
        let disk = MemoryDisk::new(SIZE);
        let keep = |sanitize: Option<&Sanitize>| if sanitize.is_some() { Err(NotKept::Uncertain) } else { Ok(()) };
        let unit = written(&disk).with_sanitize(None, Box::new(keep));
        assert_eq!(send(&unit, &cdb(0x02, 0), &[]).status, Status::Good);
        assert_eq!((send(&unit, &READY, &[]).status, disk.mapped_blocks()), (Status::Good, 0));
    }

    #[test]
    fn the_unit_is_not_ready_before_the_end_is_kept() {
        let disk = MemoryDisk::new(SIZE);
        let (is_full, tried) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let keep = {
            let (is_full, tried) = (is_full.clone(), tried.clone());
            move |sanitize: Option<&Sanitize>| {
                if sanitize.is_some() {
                    return Ok(());
                }
                tried.fetch_add(1, Ordering::SeqCst);
                if is_full.load(Ordering::SeqCst) { Err(NotKept::Unchanged) } else { Ok(()) }
            }
        };
        let unit = written(&disk).with_sanitize(None, Box::new(keep));
        assert_eq!(send(&unit, &cdb(0x82, 0), &[]).status, Status::Good);
        while tried.load(Ordering::SeqCst) < 2 {
            assert_eq!(sense_of(&send(&unit, &READY, &[])), IN_PROGRESS);
            std::thread::yield_now();
        }
        is_full.store(false, Ordering::SeqCst);
        unit.sanitizer.wait(&|| false).unwrap();
        assert_eq!((send(&unit, &READY, &[]).status, disk.mapped_blocks()), (Status::Good, 0));
    }
}
