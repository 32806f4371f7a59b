//! Threads that make tables of full memtables, so that who fills one goes on with the next.

use crate::levels::store::LevelsStore;
use parking_lot::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};

/// Calls that wait for a thread. More are not needed: a thread writes all that its partition has.
const CALLS: usize = 64;

/// The threads. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Flushers(SyncSender<usize>);

impl Flushers {
    /// Starts threads for a store that is being made.
    pub(crate) fn start(threads: usize, store: &Weak<LevelsStore>) -> Option<Flushers> {
        if threads == 0 {
            return None;
        }
        let (sender, receiver) = sync_channel(CALLS);
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..threads {
            let (store, receiver) = (store.clone(), receiver.clone());
            let thread = std::thread::Builder::new().name("onefold-flush".to_owned());
            if let Err(error) = thread.spawn(move || work(&store, &receiver)) {
                tracing::warn!(%error, "there are fewer threads than wanted that write tables");
            }
        }
        Some(Flushers(sender))
    }

    /// Has a partition's full memtables written.
    pub(crate) fn wake(&self, partition: usize) {
        // If there are so many calls, one of them is for this partition, or its appender writes.
        let _ = self.0.try_send(partition);
    }
}

fn work(store: &Weak<LevelsStore>, receiver: &Mutex<Receiver<usize>>) {
    loop {
        // Others wait for the lock instead.
        let Ok(partition) = receiver.lock().recv() else { return };
        let Some(store) = store.upgrade() else { return };
        store.write_sealed(partition);
    }
}
