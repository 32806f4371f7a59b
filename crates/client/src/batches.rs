//! Batches on their way from the walk of a restore to its writers.
//!
//! A writer takes the first batch of which everything is here. So it writes while earlier ones wait for the containers
//! of a store in a bucket.

use onefold_catalog::Chunks;
use onefold_engine::Piece;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::Duration;

/// When a writer looks again whether something has come: nobody tells it.
const LOOKS_AGAIN: Duration = Duration::from_millis(10);

/// What is made of pieces of data.
pub(crate) trait Pieces {
    /// Returns the pieces, in parts.
    fn pieces(&self) -> impl Iterator<Item = &[Piece]>;
}

/// The batches. The walk ends them by dropping its [`Adding`].
pub(crate) struct Batches<'a, B> {
    chunks: &'a dyn Chunks,
    /// Whether nobody will read what is on its way.
    should_stop: &'a (dyn Fn() -> bool + Sync),
    most: usize,
    state: Mutex<State<B>>,
    changed: Condvar,
}

struct State<B> {
    waiting: VecDeque<Waiting<B>>,
    is_closed: bool,
}

struct Waiting<B> {
    batch: B,
    /// How many of its pieces are here, as far as somebody looked.
    here: usize,
}

impl<'a, B: Pieces> Batches<'a, B> {
    /// `most`: how many may wait.
    pub(crate) fn new(chunks: &'a dyn Chunks, should_stop: &'a (dyn Fn() -> bool + Sync), most: usize) -> Batches<'a, B> {
        let state = State { waiting: VecDeque::new(), is_closed: false };
        Batches { chunks, should_stop, most, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Takes the next batch. Waits for one. `None`: there will be no more.
    pub(crate) fn take(&self) -> Option<B> {
        let mut state = self.state.lock();
        loop {
            if let Some(first) = state.waiting.iter_mut().position(|waiting| (self.should_stop)() || waiting.is_here(self.chunks)) {
                let taken = state.waiting.remove(first);
                drop(state);
                self.changed.notify_all();
                return taken.map(|waiting| waiting.batch);
            }
            match state.waiting.is_empty() {
                true if state.is_closed => return None,
                true => self.changed.wait(&mut state),
                false => drop(self.changed.wait_for(&mut state, LOOKS_AGAIN)),
            }
        }
    }
}

impl<B: Pieces> Waiting<B> {
    fn is_here(&mut self, chunks: &dyn Chunks) -> bool {
        let mut before = 0;
        for pieces in self.batch.pieces() {
            let known = self.here.saturating_sub(before).min(pieces.len());
            self.here += chunks.here(&pieces[known..]);
            before += pieces.len();
            if self.here < before {
                return false;
            }
        }
        true
    }
}

/// Ends the batches when it is dropped. The walk has it; and the writers, in case one panics.
pub(crate) struct Adding<'a, B>(&'a Batches<'a, B>);

impl<'a, B> Adding<'a, B> {
    pub(crate) fn new(batches: &'a Batches<'a, B>) -> Adding<'a, B> {
        Adding(batches)
    }

    /// Adds a batch. Waits while there are many. Drops it if they have ended.
    pub(crate) fn add(&self, batch: B) {
        let mut state = self.0.state.lock();
        while state.waiting.len() >= self.0.most && !state.is_closed {
            self.0.changed.wait(&mut state);
        }
        if !state.is_closed {
            state.waiting.push_back(Waiting { batch, here: 0 });
        }
        drop(state);
        self.0.changed.notify_all();
    }
}

impl<B> Drop for Adding<'_, B> {
    fn drop(&mut self) {
        self.0.state.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_catalog::{Listed, Of, Result};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Pieces of at least this length are on their way.
    #[derive(Debug, Default)]
    struct Coming(AtomicU64);

    impl Chunks for Coming {
        fn recipe_chunk(&self, _: &Piece, _: u8, _: Of) -> Result<Vec<Piece>> {
            unreachable!("nobody asks")
        }

        fn directory_chunk(&self, _: &Piece) -> Result<Listed> {
            unreachable!("nobody asks")
        }

        fn data(&self, _: &[Piece], _: &mut [u8]) -> Result<()> {
            unreachable!("nobody asks")
        }

        fn here(&self, pieces: &[Piece]) -> usize {
            let from = self.0.load(Ordering::Relaxed);
            pieces.iter().take_while(|piece| piece.length() < from).count()
        }
    }

    type Parts = Vec<Vec<Piece>>;

    impl Pieces for Parts {
        fn pieces(&self) -> impl Iterator<Item = &[Piece]> {
            self.iter().map(|part| &part[..])
        }
    }

    fn batch(parts: &[&[u64]]) -> Parts {
        let piece = |length: &u64| Piece::Zeros { length: *length };
        parts.iter().map(|part| part.iter().map(piece).collect()).collect()
    }

    #[test]
    fn what_is_here_overtakes_what_is_on_its_way() {
        let chunks = Coming::default();
        let batches = Batches::new(&chunks, &|| false, 4);
        let adding = Adding::new(&batches);
        let (first, second, third) = (batch(&[&[1, 2], &[], &[9]]), batch(&[&[3], &[4, 5]]), batch(&[&[1], &[8]]));
        [&first, &second, &third].into_iter().for_each(|batch| adding.add(batch.clone()));
        chunks.0.store(6, Ordering::Relaxed);
        assert_eq!(batches.take(), Some(second));
        drop(adding);
        std::thread::scope(|scope| {
            let taking = scope.spawn(|| [batches.take(), batches.take(), batches.take()]);
            chunks.0.store(9, Ordering::Relaxed);
            while !batches.state.lock().waiting.iter().all(|waiting| waiting.batch == first) {}
            chunks.0.store(10, Ordering::Relaxed);
            assert_eq!(taking.join().unwrap(), [Some(third), Some(first.clone()), None]);
        });
    }

    #[test]
    fn a_walk_waits_while_there_are_many_and_not_for_writers_that_are_gone() {
        let chunks = Coming(AtomicU64::new(1000));
        let batches = Batches::new(&chunks, &|| false, 1);
        std::thread::scope(|scope| {
            let walk = scope.spawn(|| {
                let adding = Adding::new(&batches);
                (0..100).for_each(|number| adding.add(batch(&[&[number]])));
            });
            // In order, and one at a time.
            (0..40).for_each(|number| assert_eq!(batches.take(), Some(batch(&[&[number]]))));
            assert!(!walk.is_finished());
            drop(Adding::new(&batches));
        });
        while batches.take().is_some() {}
    }
}
