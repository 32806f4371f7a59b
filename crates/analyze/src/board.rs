//! Hands every batch to every lane: data is read once and cut many times.
//!
//! Workers take what is there to do, a lane and the next batch of it. A lane is worked on by one thread at a time and
//! gets the batches in their order, so the figures are the same in every run, whatever the number of threads.

use crate::lane::Lane;
use crate::read::Batch;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Batches that may wait for a lane.
const WAITING: usize = 4;

/// The lanes and what waits for them.
pub struct Board {
    state: Mutex<State>,
    /// There may be something to do, or nothing any more.
    work: Condvar,
    /// A batch was taken.
    room: Condvar,
}

struct State {
    places: Vec<Place>,
    is_ended: bool,
}

struct Place {
    /// Absent while somebody works on it.
    lane: Option<Lane>,
    waiting: VecDeque<Arc<Batch>>,
}

impl Board {
    /// A board of these lanes.
    pub fn new(lanes: Vec<Lane>) -> Board {
        let places = lanes.into_iter().map(|lane| Place { lane: Some(lane), waiting: VecDeque::new() }).collect();
        Board { state: Mutex::new(State { places, is_ended: false }), work: Condvar::new(), room: Condvar::new() }
    }

    /// Adds a batch; waits while a lane is far behind.
    pub fn push(&self, batch: Batch) {
        let batch = Arc::new(batch);
        let is_behind = |state: &mut State| state.places.iter().any(|place| place.waiting.len() >= WAITING);
        let mut state = self.room.wait_while(self.state(), is_behind).unwrap_or_else(PoisonError::into_inner);
        state.places.iter_mut().for_each(|place| place.waiting.push_back(batch.clone()));
        drop(state);
        self.work.notify_all();
    }

    /// No more batches come.
    pub fn end(&self) {
        self.state().is_ended = true;
        self.work.notify_all();
    }

    /// Works until all is done. When `should_stop`, what waits is thrown away.
    pub fn work(&self, should_stop: impl Fn() -> bool) {
        let mut state = self.state();
        loop {
            // The lane that is furthest behind holds up all others.
            let ready = (0..state.places.len()).filter(|number| state.places[*number].lane.is_some());
            let number = ready.max_by_key(|number| state.places[*number].waiting.len());
            let taken = number.and_then(|number| {
                let place = &mut state.places[number];
                let batch = place.waiting.pop_front()?;
                Some((number, place.lane.take()?, batch))
            });
            let Some((number, mut lane, batch)) = taken else {
                if state.is_ended && state.places.iter().all(|place| place.waiting.is_empty()) {
                    return;
                }
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            self.room.notify_all();
            if !should_stop() {
                lane.take(&batch);
            }
            drop(batch);
            state = self.state();
            state.places[number].lane = Some(lane);
            self.work.notify_all();
        }
    }

    /// The lanes, when all workers have ended.
    pub fn into_lanes(self) -> Vec<Lane> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        state.places.into_iter().filter_map(|place| place.lane).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is half done while it is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
