//! A store whose lock file is removed or replaced while it is open: the writer stops before it and a second writer
//! write the same files.

mod common;

use common::{bytes, descriptor, files, open, read, refer, settings, store, write};
use onefold_engine::{Engine, EngineError, Mode};
use onefold_ground::lock::Held;
use onefold_ground::{CrashPolicy, Ground, Holder, LockError, LockGuard, Result, SimulatedGround};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const CHAIN: &str = common::DEFAULT_CHAIN;

#[test]
fn a_writer_whose_lock_file_was_removed_stops_before_it_writes_anything() {
    let ground = store(&descriptor());
    let (one, two, three) = (bytes(1, 20_000), bytes(2, 20_000), bytes(3, 20_000));
    let first = open(&ground, settings(CHAIN));
    let kept = write(&mut first.stream(), &one, 4096);
    refer(&first, 1, &kept, 1);
    write(&mut first.stream(), &two, 4096);
    let before = files(&ground, "log");
    ground.lose_lock("lock");

    let error = first.flush().unwrap_err();
    assert!(matches!(&error, EngineError::Stopped { why } if why.contains("lock file") && why.contains("removed")), "{error}");
    for stopped in [first.flush(), first.maintain(true), first.close()] {
        assert!(matches!(stopped, Err(EngineError::Stopped { .. })), "it goes on: {stopped:?}");
    }
    assert_eq!(files(&ground, "log"), before);
    assert_eq!(read(&first, &kept).unwrap(), one, "reading goes on");

    let second = open(&ground, settings(CHAIN));
    let added = write(&mut second.stream(), &three, 4096);
    refer(&second, 3, &added, 1);
    drop(first);
    assert!(
        matches!(common::try_open(&ground, settings(CHAIN), Mode::ReadWrite), Err(EngineError::Lock(_))),
        "the lock of the second is its own"
    );
    drop(second);
    let third = open(&ground.restart(CrashPolicy::DropAll), settings(CHAIN));
    assert_eq!((read(&third, &kept).unwrap(), read(&third, &added).unwrap()), (one, three));
}

#[test]
fn a_batch_that_a_second_writer_may_not_have_seen_is_not_acknowledged() {
    let ground = store(&descriptor());
    let looks = Arc::new(AtomicI64::new(i64::MAX));
    let leaky = Arc::new(Leaky { inner: ground.clone(), looks: looks.clone() });
    let engine = Engine::open(leaky, settings(CHAIN), Mode::ReadWrite, "test").unwrap();
    let pieces = write(&mut engine.stream(), &bytes(1, 20_000), 4096);
    // The commit checks the lock before it takes anything, before it writes the batch, and when the batch is durable:
    // then the lock is gone.
    looks.store(2, Ordering::SeqCst);
    let before = files(&ground, "log");
    let error = engine.flush().unwrap_err();
    assert!(matches!(&error, EngineError::Stopped { why } if why.contains("lock file")), "{error}");
    assert_ne!(files(&ground, "log"), before, "the batch was written");
    drop((engine, pieces));
}

#[test]
fn whoever_waited_for_readers_looks_again_before_changing_what_a_second_writer_may_use() {
    let ground = store(&descriptor());
    let looks = Arc::new(AtomicI64::new(i64::MAX));
    let leaky = Arc::new(Leaky { inner: ground.clone(), looks: looks.clone() });
    let engine = Engine::open(leaky, settings(CHAIN), Mode::ReadWrite, "test").unwrap();
    let kept = write(&mut engine.stream(), &bytes(1, 20_000), 4096);
    refer(&engine, 1, &kept, 1);
    engine.flush().unwrap();
    let parts = |ground: &SimulatedGround| ["index", "objects", "log"].map(|directory| files(ground, directory));
    let before = parts(&ground);
    // One check when it begins. The lock is lost while it waits for the lock of the views.
    looks.store(1, Ordering::SeqCst);
    let error = engine.maintain(true).unwrap_err();
    assert!(matches!(&error, EngineError::Stopped { why } if why.contains("lock file")), "{error}");
    assert!(parts(&ground) == before);
}

/// A simulated disk whose lock is held for as many checks as `looks` says.
#[derive(Debug)]
struct Leaky {
    inner: SimulatedGround,
    looks: Arc<AtomicI64>,
}

struct LeakyLock(#[allow(dead_code, reason = "held for its drop")] LockGuard, Arc<AtomicI64>);

impl Held for LeakyLock {
    fn is_held(&self) -> Result<bool> {
        Ok(self.1.fetch_sub(1, Ordering::SeqCst) > 0)
    }
}

impl onefold_ground::DelegatingGround for Leaky {
    fn below(&self) -> &dyn Ground {
        &self.inner
    }
    fn lock(&self, path: &str, exclusive: bool, holder: &Holder) -> std::result::Result<LockGuard, LockError> {
        let inner = self.inner.lock(path, exclusive, holder)?;
        Ok(LockGuard::new(LeakyLock(inner, self.looks.clone())))
    }
}
