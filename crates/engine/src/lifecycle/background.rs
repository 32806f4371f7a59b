//! Background threads: periodic commits, sweeps, persisting, trimming the log; and back-pressure when they fall behind.

use super::copied;
use crate::lifecycle::layout::LOCK;
use crate::{Engine, EngineError, Mode, Result};
use onefold_ground::LockGuard;
use onefold_ground::profile::Component;
use onefold_oplog::{Position, Pressure, View};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Wakes a thread.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    /// How often it was raised.
    raised: Mutex<u64>,
    changed: Condvar,
}

impl Signal {
    fn raise(&self) {
        *self.raised.lock() += 1;
        self.changed.notify_all();
    }

    /// Waits until it is raised more often than this thread has `seen`, or for `limit`.
    fn wait(&self, limit: Duration, seen: &mut u64) {
        let mut raised = self.raised.lock();
        if *raised == *seen {
            self.changed.wait_for(&mut raised, limit);
        }
        *seen = *raised;
    }
}

/// The background threads, and the state that they share with writers.
#[derive(Debug, Default)]
pub(crate) struct Background {
    threads: Mutex<Option<Vec<JoinHandle<()>>>>,
    signal: Arc<Signal>,
    /// Wakes the thread that makes parity.
    parity_signal: Arc<Signal>,
    /// Wakes the threads that compact levels.
    compaction_signal: Arc<Signal>,
    /// Held for each piece of work with which views catch up with the log, and while it is trimmed.
    maintaining: Mutex<()>,
    /// Held while tables of levels are shrunk.
    pub(crate) shrinking: Mutex<()>,
    is_closed: AtomicBool,
    /// The last try to write the second copies of objects failed.
    copy_fails: AtomicBool,
    /// Bytes of new data since the threads were woken.
    new_bytes: AtomicU64,
    /// Another node waits for what is not durable yet.
    is_hurried: AtomicBool,
}

impl Background {
    /// Waits until the maintenance has ended that is under way.
    pub(crate) fn await_maintenance(&self) {
        drop(self.maintaining.lock());
    }

    /// Returns whether the store is being closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Wakes the thread that commits.
    pub(crate) fn wake(&self) {
        self.signal.raise();
    }

    /// Has everything committed soon.
    pub(crate) fn hurry(&self) {
        self.is_hurried.store(true, Ordering::Release);
        self.signal.raise();
    }

    /// Tells the threads to end, and waits until they have.
    fn stop(&self) {
        let threads = self.threads.lock().take();
        self.is_closed.store(true, Ordering::Release);
        self.signal.raise();
        self.parity_signal.raise();
        self.compaction_signal.raise();
        for thread in threads.into_iter().flatten() {
            // A thread that panicked has said so. The store is closed all the same.
            let _ = thread.join();
        }
    }
}

/// A store in a bucket waits for this many times [`crate::Settings::commit_bytes`]: each commit is a request.
const BUCKET_COMMITS_AT: u64 = 16;
/// Unsynced bytes, in the same units, from which a writer commits itself. In a bucket, this is [`BUCKET_COMMITS_AT`].
const WRITER_COMMITS_AT: u64 = 4;
/// Share of the log's limit from which the consumers must catch up.
const TRIM_AT_PERCENT: u64 = 50;

/// Parity that could not be made (a full disk) is retried after this time.
const PARITY_AFTER_ERROR: Duration = Duration::from_secs(60);
/// How long a call of a writer rests while compaction has fallen far behind, for each table too many.
const WRITER_RESTS: Duration = Duration::from_millis(5);
const WRITER_RESTS_AT_MOST: Duration = Duration::from_secs(1);
/// A compaction that failed (a full disk, damage) is retried after this time.
const COMPACTION_AFTER_ERROR: Duration = Duration::from_secs(60);

/// Starts the threads. They hold the engine only while they work, so that dropping the last handle ends them.
pub(crate) fn start(engine: &Arc<Engine>, was_left_open: bool) -> Result<()> {
    if !engine.settings.background {
        if was_left_open {
            engine.free_again();
        }
        engine.fill_hooks()?;
        return engine.fill_bloom();
    }
    let interval = Duration::from_millis(engine.settings.commit_interval_ms.max(1));
    let mut threads =
        vec![spawn("onefold-maintain", engine, engine.background.signal.clone(), interval, interval, Engine::background_round)?];
    if engine.settings.parity_group > 0 {
        // Commits do not wait for parity.
        let pause = interval.max(PARITY_AFTER_ERROR);
        threads.push(spawn("onefold-parity", engine, engine.background.parity_signal.clone(), interval, pause, Engine::parity_round)?);
    }
    if engine.levels.is_some() {
        for _ in 0..engine.compaction_threads() {
            let signal = engine.background.compaction_signal.clone();
            threads.push(spawn("onefold-compact", engine, signal, interval, COMPACTION_AFTER_ERROR, Engine::compaction_round)?);
        }
    }
    if was_left_open && engine.arena.is_some() {
        threads.push(spawn_once("onefold-holes", engine, Engine::free_again)?);
    }
    if engine.filters.bloom().is_some() {
        threads.push(spawn_once("onefold-bloom", engine, |engine| {
            if let Err(error) = engine.fill_bloom() {
                tracing::warn!(%error, "the Bloom filter stays incomplete and filters nothing");
            }
        })?);
    }
    if engine.lookup.sampled().is_some() {
        threads.push(spawn_once("onefold-hooks", engine, |engine| {
            if let Err(error) = engine.fill_hooks() {
                tracing::warn!(%error, "the hooks of earlier containers are not all here; some duplicates are stored again");
            }
        })?);
    }
    *engine.background.threads.lock() = Some(threads);
    Ok(())
}

fn cannot_spawn(source: std::io::Error) -> EngineError {
    EngineError::Invalid { what: "background thread".into(), why: source.to_string() }
}

/// Starts a thread that does one thing.
fn spawn_once(name: &str, engine: &Arc<Engine>, work: fn(&Engine)) -> Result<JoinHandle<()>> {
    let weak = Arc::downgrade(engine);
    let run = move || weak.upgrade().iter().for_each(|engine| work(engine));
    std::thread::Builder::new().name(name.into()).spawn(run).map_err(cannot_spawn)
}

fn spawn(
    name: &str,
    engine: &Arc<Engine>,
    signal: Arc<Signal>,
    interval: Duration,
    pause_after_error: Duration,
    round: fn(&Engine) -> Result<()>,
) -> Result<JoinHandle<()>> {
    let weak: Weak<Engine> = Arc::downgrade(engine);
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            let (mut failing, mut seen) = (false, 0);
            let mut not_before = Instant::now();
            loop {
                let pause = not_before.saturating_duration_since(Instant::now());
                signal.wait(if failing { pause } else { interval }, &mut seen);
                let Some(engine) = weak.upgrade() else { return };
                if engine.background.is_closed() {
                    return;
                }
                if failing && Instant::now() < not_before {
                    continue;
                }
                match round(&engine) {
                    Ok(()) => failing = false,
                    Err(error) => {
                        not_before = Instant::now() + pause_after_error;
                        // Logged once, not every round. A caller that flushes or writes gets the error too.
                        if !std::mem::replace(&mut failing, true) {
                            tracing::warn!(%error, "background work failed; will retry");
                        }
                    }
                }
            }
        })
        .map_err(cannot_spawn)
}

impl Engine {
    /// Does one round of the background thread.
    fn background_round(&self) -> Result<()> {
        let has_noted = self.note_activity(false)? || self.note_clock()?;
        if self.background.is_hurried.swap(false, Ordering::AcqRel) || self.has_queued() {
            self.flush()?;
        } else if self.storage.unsynced_bytes() > 0 {
            self.commit_full_frames()?;
        }
        if has_noted {
            self.has_noted();
        }
        if self.has_to_deliver()
            && let Err(error) = self.deliver()
        {
            tracing::warn!(%error, "not everything could be delivered to other nodes; will retry");
        }
        self.save_hooks(&|| !self.background.is_closed());
        self.maintain(false)?;
        while !self.background.is_closed() && self.log.tidy()? {}
        Ok(())
    }

    /// Lets each view do the work that it asks for. With `all`, or when the log is long, makes all views catch up and
    /// trims the log. If one view fails, the others still make progress. Errors: the first one.
    pub fn maintain(&self, all: bool) -> Result<()> {
        self.writable()?;
        let mut done = Ok(());
        for (component, view) in self.views() {
            done = done.and(self.step_while(component, view, Pressure::Behind));
        }
        self.check_lock()?;
        let mut done = done.and(self.catch_up(all || self.is_reserve_in_use()));
        if all && !self.settings.background {
            self.save_hooks(&|| true);
            done = done.and_then(|()| match self.compact_due() {
                // It waits for space, and nobody has to wait for it.
                Err(error) if error.is_full() => Ok(()),
                compacted => compacted,
            });
        }
        // Finished merges and a shorter log have freed space.
        let _guard = self.background.maintaining.lock();
        self.keep_reserve();
        done
    }

    /// Steps a view while its pressure is at least `least`. Holds nothing between two steps, so readers and writers get
    /// in.
    fn step_while(&self, component: &'static Component, view: &dyn View<EngineError>, least: Pressure) -> Result<()> {
        while view.pressure() >= least {
            let _held = self.hold_views()?;
            // Others may have done it meanwhile.
            if view.pressure() < least || !self.profile.time(component, 0, || view.step())? {
                break;
            }
        }
        Ok(())
    }

    /// Makes the views catch up, then trims the log.
    fn catch_up(&self, all: bool) -> Result<()> {
        let mut done = Ok(());
        if all || self.log.used_bytes() * 100 >= self.settings.log_limit_bytes * TRIM_AT_PERCENT {
            for (component, view) in self.views() {
                done = done.and(self.catch_up_view(component, view));
            }
            let _held = self.hold_views()?;
            done = done.and(self.trim());
        }
        done
    }

    /// Makes a view catch up. Between two pieces, writers that wait for a step and readers of other processes get in.
    fn catch_up_view(&self, component: &'static Component, view: &dyn View<EngineError>) -> Result<()> {
        let (held, failed, waited) = (Cell::new(None), Cell::new(None), Cell::new(Duration::ZERO));
        let go_on = || {
            let start = Instant::now();
            if let Some((views, guard)) = held.take() {
                drop(views);
                MutexGuard::unlock_fair(guard);
            }
            let again = self.hold_views();
            waited.set(waited.get() + start.elapsed());
            let goes_on = again.is_ok();
            match again {
                Ok(again) => held.set(Some(again)),
                Err(error) => failed.set(Some(error)),
            }
            goes_on
        };
        let start = Instant::now();
        let caught_up = view.catch_up(&go_on);
        self.profile.add(component, start.elapsed().saturating_sub(waited.get()).as_nanos() as u64, 0);
        failed.into_inner().map_or(caught_up, Err)
    }

    /// Keeps others from maintaining, and readers of other processes from the views. They are dropped in this order, so
    /// that whoever gets the mutex next finds the lock of the file free.
    pub(crate) fn hold_views(&self) -> Result<(LockGuard, MutexGuard<'_, ()>)> {
        let guard = self.background.maintaining.lock();
        Ok((self.change_views()?, guard))
    }

    /// Frees the part of the log that all views have applied. Open containers that still need older parts rewrite
    /// themselves at its head.
    fn trim(&self) -> Result<()> {
        if self.is_untrimmed() {
            return Ok(());
        }
        let indexed = self.indexes().map(|(_, view)| view.position()).fold(self.log.end(), Position::min);
        let indexed = self.outbox.oldest().map_or(indexed, |undelivered| indexed.min(undelivered));
        let indexed = self.kept_for_others().map_or(indexed, |kept| indexed.min(kept));
        // First free what needs no writing: the log may be full.
        self.trim_to(indexed)?;
        if self.views().any(|(_, view)| view.position() < indexed) {
            self.checkpoint_before(indexed)?;
        }
        self.trim_to(indexed)
    }

    /// Trims the log up to `target`. First the second copies of objects catch up: they and the log together define
    /// these objects.
    ///
    /// If they cannot (a full disk), the segments stay while the log is below its limit. Beyond the limit the log is
    /// trimmed all the same, because otherwise nobody could write. A copy is needed only if the object index gets
    /// damaged before the next copy.
    fn trim_to(&self, target: Position) -> Result<()> {
        let upto = self.storage.trim_point(target);
        // One that failed is behind the log, whatever is trimmed now.
        // A log in a bucket keeps the effects of what it trims.
        if self.log.has_history() {
            let start = self.log.start();
            self.log.trim(upto)?;
            if self.log.start() != start {
                self.keep_descriptor();
            }
            return Ok(());
        }
        if self.log.has_parts_before(upto) || self.background.copy_fails.load(Ordering::Relaxed) {
            let copied = self.objects.copy_objects();
            let failed_before = self.background.copy_fails.swap(copied.is_err(), Ordering::Relaxed);
            if let Err(error) = copied {
                if !failed_before {
                    tracing::warn!(%error, "the second copy of objects could not be written; will retry");
                }
                if !self.log.is_over_limit() {
                    return Ok(());
                }
            }
        }
        Ok(self.log.trim(upto)?)
    }

    /// Counts `bytes` of new data from a writer, and starts a commit before too much data waits for its sync.
    pub(crate) fn written(&self, bytes: u64) {
        let waiting = self.background.new_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if waiting >= self.commit_bytes() / 2 && self.settings.background {
            self.background.new_bytes.store(0, Ordering::Relaxed);
            self.background.signal.raise();
        }
    }

    /// Returns how much a crash may take of what nobody has flushed.
    fn commit_bytes(&self) -> u64 {
        let in_bucket = if self.log.has_history() { BUCKET_COMMITS_AT } else { 1 };
        self.settings.commit_bytes.saturating_mul(in_bucket)
    }

    /// Lets a writer in, or makes it do overdue work (back-pressure), or returns why nothing can be written.
    pub(crate) fn admit(&self) -> Result<()> {
        self.writable()?;
        let times = if self.log.has_history() { BUCKET_COMMITS_AT } else { WRITER_COMMITS_AT };
        if self.storage.unsynced_bytes() >= self.settings.commit_bytes.saturating_mul(times) {
            self.commit_full_frames()?;
        }
        // Step by step, and only as long as the pressure is full: others write meanwhile.
        for (component, view) in self.indexes() {
            self.step_while(component, view, Pressure::Full)?;
        }
        match self.levels.as_ref().map_or(Pressure::Idle, |levels| levels.backlog()) {
            Pressure::Idle => {}
            Pressure::Behind => self.background.compaction_signal.raise(),
            // A compaction may take long: no writer does one, if others can.
            Pressure::Full if self.settings.background => {
                self.background.compaction_signal.raise();
                let excess = self.levels.as_ref().map_or(0, |levels| levels.excess()) as u32;
                std::thread::sleep((WRITER_RESTS * (1 + excess)).min(WRITER_RESTS_AT_MOST));
            }
            Pressure::Full => match self.compact(&|| true) {
                // Deleting, which is a write too, may be what gives it space.
                Err(error) if error.is_full() => {}
                compacted => drop(compacted?),
            },
        }
        if self.log.is_over_limit() {
            self.maintain(true)?;
            if self.log.is_over_limit() {
                // Transactions staged behind the log may hold it. One more commit lets them through.
                self.flush()?;
                self.maintain(true)?;
            }
        }
        Ok(())
    }

    /// Returns an error if this opening cannot write at all.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.mode != Mode::ReadWrite {
            return Err(EngineError::ReadOnly);
        }
        self.commits.why_stopped().map_or(Ok(()), |why| Err(EngineError::Stopped { why: why.to_owned() }))
    }

    /// Checks that this process may still write. If the lock file is not the one that it locked, another process may
    /// have opened the store.
    pub(crate) fn check_lock(&self) -> Result<()> {
        self.writable()?;
        if self.lock.as_ref().map_or(Ok(true), LockGuard::is_held)? {
            return Ok(());
        }
        let path = self.ground.describe(LOCK);
        let why = format!("its lock file {path} was removed or replaced while it was open, so another process may be writing to it");
        self.commits.stop(why);
        self.writable()
    }

    /// Writes a snapshot of the hooks, if one is due. Without one, the next opening reads more catalogs.
    fn save_hooks(&self, go_on: &dyn Fn() -> bool) {
        if let Some(sampled) = self.lookup.sampled()
            && let Err(error) = sampled.save(go_on)
        {
            tracing::warn!(%error, "the hooks could not be saved; the next opening makes them from catalogs");
        }
    }

    /// Frees what removals left that a crash cut short.
    fn free_again(&self) {
        if let Err(error) = self.storage.free_again(&|| !self.background.is_closed()) {
            tracing::warn!(%error, "free blocks keep their space; the next opening after a crash tries again");
        }
    }

    /// Reads the hooks of earlier openings.
    fn fill_hooks(&self) -> Result<()> {
        self.lookup.sampled().map_or(Ok(()), |sampled| sampled.fill(&|| !self.background.is_closed()))
    }

    /// Adds all entries of the chunk index to the Bloom filter, then trusts it.
    fn fill_bloom(&self) -> Result<()> {
        let (Some(bloom), Some(index)) = (self.filters.bloom(), self.lookup.index()) else { return Ok(()) };
        for partition in index.partitions() {
            index.for_each(partition, &mut |fingerprint, _| {
                bloom.insert(fingerprint);
                Ok(())
            })?;
            if self.background.is_closed() {
                return Ok(());
            }
        }
        bloom.set_complete();
        Ok(())
    }

    /// Ends work in the background. Call it before the engine is dropped without a close: a compaction that is under
    /// way would go on beside what comes next.
    pub fn end_background(&self) {
        self.background.stop();
    }

    /// Makes everything durable, stops the threads, and leaves a store that opens quickly. Dropping the engine without
    /// a close is like a crash.
    pub fn close(&self) -> Result<()> {
        self.background.stop();
        if self.mode != Mode::ReadWrite {
            return Ok(());
        }
        self.note_activity(true)?;
        // In a bucket each flush is a request, and one is enough.
        if !self.log.has_history() || self.settings.parity_group > 0 || self.log.is_long() {
            self.flush()?;
            if let Err(error) = self.last_parity() {
                tracing::warn!(%error, "parity could not be written; the next opening retries");
            }
            if self.log.is_long() {
                self.maintain(true)?;
            }
        }
        if self.log.has_history() {
            self.end_in_log()?;
        }
        if let Err(error) = self.deliver() {
            tracing::warn!(%error, "other nodes wait for chunks of this one until it is opened again");
        }
        self.save_hooks(&|| true);
        let _views = self.change_views()?;
        self.storage.leave();
        self.log.release_room();
        if let Some(index) = self.lookup.index() {
            index.close()?;
        }
        copied::take_back(&*self.ground)
    }
}

impl Drop for Engine {
    /// Tells writers on other machines that this one has ended, also without a close. Otherwise they would watch for a
    /// while whether it is still there. Tells the next opening here that the state is damaged.
    fn drop(&mut self) {
        self.note_damaged_state();
        // An opening that failed has not noted yet what it found, and leaves that to the next one.
        let has_begun = self.has_begun.load(Ordering::Acquire);
        if has_begun && self.settings.background && self.log.has_history() && !std::thread::panicking() {
            // After a close, or when the store was lost, there is nothing to tell.
            let _ = self.end_in_log();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Descriptor, Hints, Settings, Transaction};
    use onefold_ground::{Ground, SimulatedGround};
    use std::time::Instant;

    #[test]
    fn an_idle_store_notes_its_clock_and_nothing_else() {
        let ground: Arc<dyn Ground> = Arc::new(SimulatedGround::new(1));
        Engine::create(&ground, &Descriptor::new().unwrap()).unwrap();
        let settings = Settings { background: false, ..Settings::default() };
        let engine = Engine::open(ground, settings, Mode::ReadWrite, "test").unwrap();
        // Sets the last notes back by `minutes`, and returns whether a round then writes.
        let writes_after = |minutes: u64| {
            let then = Instant::now() - Duration::from_secs(minutes * 60);
            *engine.clock.noted.lock() = then;
            engine.earlier.lock().written = then;
            let before = engine.log.end();
            engine.background_round().unwrap();
            engine.log.end() != before
        };
        let write = || engine.submit(Transaction { changes: vec![(0, b"zx".to_vec(), Some(vec![1]))], references: Vec::new() }).unwrap();
        assert_eq!([2, 61, 2, 2, 61, 2].map(writes_after), [false, true, false, false, true, false]);
        write();
        engine.flush().unwrap();
        assert_eq!([2, 2, 61, 2].map(writes_after), [true, false, true, false]);
        // A commit that a round makes itself is no reason for a second note either.
        write();
        assert_eq!([2, 2].map(writes_after), [true, false]);
        let before = engine.log.end();
        engine.close().unwrap();
        assert!(engine.log.end() > before, "a clean close notes the clock");
    }

    #[test]
    fn others_get_in_between_two_pieces_of_catching_up() {
        let disk = SimulatedGround::new(1);
        let ground: Arc<dyn Ground> = Arc::new(disk.clone());
        Engine::create(&ground, &Descriptor { index_partitions: 4, ..Descriptor::new().unwrap() }).unwrap();
        let settings = Settings { workers: 1, background: false, ..Settings::default() };
        let engine = Engine::open(ground, settings, Mode::ReadWrite, "test").unwrap();
        let mut stream = engine.stream();
        (0..64).for_each(|byte| drop(stream.write_runs(&[&[byte; 1000]], Hints::default()).unwrap()));
        drop(stream);
        engine.flush().unwrap();
        // The first write to the index brings somebody who waits for his turn, and sees what is left then.
        let other = Arc::new(Mutex::new(None));
        let (of_engine, of_other) = (engine.clone(), other.clone());
        disk.during_writes(move |path| {
            if path.starts_with("index/") && of_other.lock().is_none() {
                let engine = of_engine.clone();
                let look = move || {
                    let _turn = engine.background.maintaining.lock();
                    engine.index().unwrap().statistics().auxiliary_entries
                };
                *of_other.lock() = Some(std::thread::spawn(look));
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        engine.maintain(true).unwrap();
        disk.during_writes(|_| {});
        let left = other.lock().take().expect("pages were written").join().unwrap();
        assert!(left > 0, "it came in when all was done");
        assert_eq!(engine.index().unwrap().statistics().auxiliary_entries, 0);
    }

    #[test]
    fn objects_are_persisted_though_a_partition_of_the_chunk_index_cannot_be_swept() {
        let disk = SimulatedGround::new(1);
        let ground: Arc<dyn Ground> = Arc::new(disk.clone());
        Engine::create(&ground, &Descriptor { index_partitions: 1, ..Descriptor::new().unwrap() }).unwrap();
        let settings = Settings { auxiliary_index_bytes: 1 << 10, workers: 1, background: false, ..Settings::default() };
        let engine = Engine::open(ground, settings, Mode::ReadWrite, "test").unwrap();
        engine.stream().write_runs(&[&[7; 1000]], Hints::default()).unwrap();
        engine.submit(Transaction { changes: vec![(0, b"zz".to_vec(), Some(vec![1]))], references: Vec::new() }).unwrap();
        engine.flush().unwrap();
        assert!(engine.index().unwrap().pressure() >= Pressure::Behind);
        let pages = disk.list("index/0000").unwrap().into_iter().find(|entry| entry.name.starts_with("pages-")).unwrap().name;
        disk.make_unreadable(&format!("index/0000/{pages}")).unwrap();
        engine.maintain(true).unwrap_err();
        assert!(engine.objects.position() > engine.index().unwrap().position());
    }

    #[test]
    fn the_log_is_kept_for_the_view_that_is_furthest_behind() {
        let disk = SimulatedGround::new(1);
        let ground: Arc<dyn Ground> = Arc::new(disk.clone());
        Engine::create(&ground, &Descriptor { index_partitions: 1, ..Descriptor::new().unwrap() }).unwrap();
        let settings = Settings { log_segment_bytes: 16 << 10, workers: 1, background: false, ..Settings::default() };
        let engine = Engine::open(ground, settings, Mode::ReadWrite, "test").unwrap();
        for turn in 0..20 {
            engine.stream().write_runs(&[&[turn; 5000]], Hints::default()).unwrap();
            engine.submit(Transaction { changes: vec![(0, vec![b'z', turn], Some(vec![turn; 3000]))], references: Vec::new() }).unwrap();
            engine.flush().unwrap();
        }
        let pages = disk.list("index/0000").unwrap().into_iter().find(|entry| entry.name.starts_with("pages-")).unwrap().name;
        disk.make_unreadable(&format!("index/0000/{pages}")).unwrap();
        assert!(engine.log.parts() > 3);
        engine.maintain(true).unwrap_err();
        assert!(engine.objects.position() > engine.index().unwrap().position());
        assert!(engine.log.start() <= engine.index().unwrap().position(), "what the chunk index lacks is in the log alone");
    }
}
