//! A model of a stream that believes a cache, beside a removal of the same chunk: all interleavings of their steps,
//! with the real watch list, guards and reservations.

use crate::write::in_flight::{Guards, InFlight, Remover, Watch};
use crate::write::reservation::{Reservation, Reservations};
use onefold_fingerprint::Fingerprint;
use onefold_storage::Address;
use std::sync::Arc;

const STORED: u64 = 1;
const STORED_AGAIN: u64 = 2;

/// What both share. The chunk is stored, nothing refers to it, and a cache knows it.
struct World {
    chunk: Fingerprint,
    guards: Arc<Guards>,
    watch: Watch,
    reservations: Reservations,
    index: Option<u64>,
    cache: Option<u64>,
    count: u64,
}

/// Progress of the stream. A step returns false if it has to wait for the removal.
#[derive(Default)]
struct Stream {
    next: usize,
    guard: Option<InFlight>,
    is_doomed: bool,
    found: Option<u64>,
}

impl Stream {
    const STEPS: usize = 7;

    fn step(&mut self, world: &mut World) -> bool {
        let chunk = world.chunk;
        match self.next {
            0 => self.guard = Some(world.guards.enter()),
            1 => self.is_doomed = !world.watch.touch([&chunk]).is_empty(),
            2 if !self.is_doomed => self.found = world.cache,
            3 if self.found.is_none() => match world.reservations.reserve(&chunk) {
                Reservation::Owned => {}
                Reservation::Taken => return false,
                Reservation::Placed(_) => unreachable!("nobody else stores it"),
            },
            4 if self.found.is_none() => {
                self.found = world.index;
                if self.found.is_none() {
                    // Stored and durable at once: a commit ends the claim when the index has the chunk.
                    world.reservations.place(&chunk, Address::from_bits(STORED_AGAIN));
                    (self.found, world.index) = (Some(STORED_AGAIN), Some(STORED_AGAIN));
                    world.reservations.committed(&chunk);
                }
                world.reservations.release(&chunk);
            }
            5 => {
                world.watch.touch([&chunk]);
                world.count += 1;
            }
            6 => self.guard = None,
            _ => {}
        }
        self.next += 1;
        true
    }
}

#[derive(Default)]
struct Removal {
    next: usize,
    moment: u64,
    is_ours: bool,
    is_doomed: bool,
    is_removed: bool,
}

impl Removal {
    const STEPS: usize = 9;

    fn step(&mut self, world: &mut World) -> bool {
        let chunk = world.chunk;
        match self.next {
            0 => world.watch.begin(Remover::Here, [chunk]),
            1 => self.moment = world.guards.now(),
            2 if !world.guards.all_gone_before(self.moment) => return false,
            3 => self.is_ours = world.reservations.reserve(&chunk) == Reservation::Owned,
            4 => self.is_doomed = self.is_ours && world.watch.doom(Remover::Here, &chunk),
            5 if self.is_doomed && world.count == 0 => (world.index, self.is_removed) = (None, true),
            6 if self.is_removed => world.cache = None,
            7 => world.watch.end(Remover::Here),
            8 if self.is_ours => world.reservations.release(&chunk),
            _ => {}
        }
        self.next += 1;
        true
    }
}

/// Runs one interleaving: the bits of `order` say whose step is next. If one has to wait, the other steps. Returns
/// whether the chunk was removed, and whether the cache answered.
fn run(order: u32) -> (bool, bool) {
    let mut world = World {
        chunk: Fingerprint::from_digest(&[1; 32]),
        guards: Arc::default(),
        watch: Watch::default(),
        reservations: Reservations::default(),
        index: Some(STORED),
        cache: Some(STORED),
        count: 0,
    };
    let (mut stream, mut removal) = (Stream::default(), Removal::default());
    let mut bits = (0..32).map(|bit| order >> bit & 1 == 1).chain(std::iter::repeat(false));
    while stream.next < Stream::STEPS || removal.next < Removal::STEPS {
        let streams_turn = bits.next().expect("it repeats");
        let has_moved = [streams_turn, !streams_turn].into_iter().any(|is_stream| match is_stream {
            true => stream.next < Stream::STEPS && stream.step(&mut world),
            false => removal.next < Removal::STEPS && removal.step(&mut world),
        });
        assert!(has_moved, "{order:b}: each waits for the other");
    }
    assert!(
        stream.found.is_some() && stream.found == world.index,
        "{order:b}: the stream refers to {:?}, stored is {:?}",
        stream.found,
        world.index
    );
    assert_eq!(world.reservations.count(), 0, "{order:b}");
    (removal.is_removed, stream.found == Some(STORED))
}

#[test]
fn a_4_in_no_interleaving_does_a_stream_refer_to_a_chunk_that_a_removal_took_away() {
    let runs: Vec<_> = (0..1 << (Stream::STEPS + Removal::STEPS)).map(run).collect();
    for outcome in [(true, false), (false, true)] {
        assert!(runs.contains(&outcome), "{outcome:?} was never met");
    }
    assert!(!runs.contains(&(true, true)));
}
