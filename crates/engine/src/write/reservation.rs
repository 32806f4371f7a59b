//! Reservations: duplicates in flight are duplicates (design rule 3), and the volatile tier of the chunk index.
//! `local_claims.rs` puts them in front of the chunk index.
//!
//! A fingerprint is here from the moment a stream claims it until the log record that makes its chunk known is durable
//! and applied to the chunk index. So a reader that looks here first and into the chunk index afterwards never misses a
//! chunk: an entry leaves only after the index has it.
//!
//! ```text
//!            reserve                    place                       committed
//!  absent ------------> Reserved ------------------> Placed ------------------------> absent (the index knows it)
//!            <------------  |    chunk was known, or
//!               release     +--- its stream failed
//! ```
//! Streams cannot wait for each other in a circle: a stream waits only when it holds no reservation itself
//! ([`Reservations::wait`] is called after all its own chunks are placed or released).

use onefold_fingerprint::Fingerprint;
use onefold_storage::Address;
use parking_lot::{Condvar, Mutex};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Instant;

/// Fingerprints are uniform already: the hash is eight of their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Not the first eight: these choose partition and shard.
        if let Some(part) = bytes.get(8..16) {
            self.0 = u64::from_le_bytes(part.try_into().expect("eight bytes"));
        }
    }

    fn write_usize(&mut self, _length: usize) {}
}

/// A set of fingerprints, or of what has one.
pub type FingerprintSet<T = Fingerprint> = HashSet<T, BuildHasherDefault<FingerprintHasher>>;

/// A map keyed by fingerprint.
pub type FingerprintMap<V> = HashMap<Fingerprint, V, BuildHasherDefault<FingerprintHasher>>;

#[derive(Debug)]
enum State {
    /// A stream is looking the chunk up or storing it. A commit can make the chunk durable before its stream reaches
    /// [`Reservations::place`]. Then it is `committed`, and its references must be here already.
    Reserved { references: Box<[Fingerprint]>, committed: bool },
    /// Stored at an address, not durable yet. A metadata chunk has its references here.
    Placed { address: Address, references: Box<[Fingerprint]> },
}

/// The answer to a request for a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// The caller holds it now and must [place](Reservations::place) or [release](Reservations::release) it.
    Owned,
    /// Another stream holds it.
    Taken,
    /// It is stored.
    Placed(Address),
}

const SHARDS: usize = 64;

#[derive(Debug, Default)]
struct Shard {
    states: Mutex<FingerprintMap<State>>,
    changed: Condvar,
}

/// All reservations of a store.
#[derive(Debug)]
pub struct Reservations {
    shards: Box<[Shard]>,
}

impl Default for Reservations {
    fn default() -> Reservations {
        Reservations { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }
}

impl Reservations {
    fn shard(&self, fingerprint: &Fingerprint) -> &Shard {
        &self.shards[fingerprint.prefix() as usize % SHARDS]
    }

    /// Requests a fingerprint.
    pub fn reserve(&self, fingerprint: &Fingerprint) -> Reservation {
        match self.shard(fingerprint).states.lock().entry(*fingerprint) {
            Entry::Vacant(place) => {
                place.insert(State::Reserved { references: Box::default(), committed: false });
                Reservation::Owned
            }
            Entry::Occupied(found) => match found.get() {
                State::Reserved { .. } => Reservation::Taken,
                State::Placed { address, .. } => Reservation::Placed(*address),
            },
        }
    }

    /// Announces that the holder is about to store a metadata chunk that refers to `references`.
    pub fn announce(&self, fingerprint: &Fingerprint, references: &[Fingerprint]) {
        self.shard(fingerprint).states.lock().insert(*fingerprint, State::Reserved { references: references.into(), committed: false });
    }

    /// Records that the holder has stored the chunk.
    pub fn place(&self, fingerprint: &Fingerprint, address: Address) {
        let shard = self.shard(fingerprint);
        let mut states = shard.states.lock();
        match states.remove(fingerprint) {
            // The index has it already.
            Some(State::Reserved { committed: true, .. }) => {}
            Some(State::Reserved { references, .. } | State::Placed { references, .. }) => {
                states.insert(*fingerprint, State::Placed { address, references });
            }
            None => {}
        }
        shard.changed.notify_all();
    }

    /// Returns whether somebody holds a reservation that has no chunk yet.
    pub fn is_reserved(&self, fingerprint: &Fingerprint) -> bool {
        matches!(self.shard(fingerprint).states.lock().get(fingerprint), Some(State::Reserved { .. }))
    }

    /// Returns the chunks that are here and that `is_wanted`.
    pub fn names(&self, is_wanted: impl Fn(&Fingerprint) -> bool) -> Vec<Fingerprint> {
        let mut names = Vec::new();
        for shard in &self.shards {
            names.extend(shard.states.lock().keys().filter(|name| is_wanted(name)));
        }
        names
    }

    /// Releases a reservation: the chunk was known, or storing it failed. Does nothing to a placed chunk.
    pub fn release(&self, fingerprint: &Fingerprint) {
        let shard = self.shard(fingerprint);
        let mut states = shard.states.lock();
        if let Some(State::Reserved { .. }) = states.get(fingerprint) {
            states.remove(fingerprint);
            shard.changed.notify_all();
        }
    }

    /// Waits until no other stream holds the reservation, or until `until`. Returns the address. `None`: the
    /// fingerprint may be free again.
    pub fn wait(&self, fingerprint: &Fingerprint, until: Instant) -> Option<Address> {
        let shard = self.shard(fingerprint);
        let mut states = shard.states.lock();
        loop {
            match states.get(fingerprint) {
                None => return None,
                Some(State::Placed { address, .. }) => return Some(*address),
                Some(State::Reserved { .. }) => {
                    if shard.changed.wait_until(&mut states, until).timed_out() {
                        return None;
                    }
                }
            }
        }
    }

    /// Returns where a stored chunk is that may not be in the index yet.
    pub fn address(&self, fingerprint: &Fingerprint) -> Option<Address> {
        match self.shard(fingerprint).states.lock().get(fingerprint) {
            Some(State::Placed { address, .. }) => Some(*address),
            _ => None,
        }
    }

    /// Appends what a stored metadata chunk refers to.
    pub fn references(&self, fingerprint: &Fingerprint, out: &mut Vec<Fingerprint>) {
        if let Some(State::Placed { references, .. } | State::Reserved { references, .. }) =
            self.shard(fingerprint).states.lock().get(fingerprint)
        {
            out.extend_from_slice(references);
        }
    }

    /// Records that the chunk index has the chunk now.
    pub fn committed(&self, fingerprint: &Fingerprint) {
        let mut states = self.shard(fingerprint).states.lock();
        match states.get_mut(fingerprint) {
            Some(State::Reserved { committed, .. }) => *committed = true,
            Some(State::Placed { .. }) => {
                states.remove(fingerprint);
            }
            None => {}
        }
    }

    /// Keeps everybody from the reservations of the fingerprint's shard.
    #[cfg(test)]
    pub(crate) fn hold(&self, fingerprint: &Fingerprint) -> impl Sized + '_ {
        self.shard(fingerprint).states.lock()
    }

    /// Returns the number of reserved and placed fingerprints.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.states.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_storage::ContainerId;
    use std::sync::Arc;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn fingerprint(number: u8) -> Fingerprint {
        Fingerprint::from_digest(&[number; 32])
    }

    fn address(slot: u16) -> Address {
        Address::new(ContainerId::new(0, 1), slot)
    }

    #[test]
    fn the_second_stream_waits_for_the_address_of_the_first() {
        let reservations = Arc::new(Reservations::default());
        assert_eq!(reservations.reserve(&fingerprint(1)), Reservation::Owned);
        assert_eq!(reservations.reserve(&fingerprint(1)), Reservation::Taken);
        let second = std::thread::spawn({
            let reservations = reservations.clone();
            move || reservations.wait(&fingerprint(1), soon())
        });
        reservations.place(&fingerprint(1), address(7));
        assert_eq!(second.join().unwrap(), Some(address(7)));
        assert_eq!(reservations.reserve(&fingerprint(1)), Reservation::Placed(address(7)));
    }

    #[test]
    fn a_dropped_reservation_frees_those_who_wait() {
        let reservations = Arc::new(Reservations::default());
        assert_eq!(reservations.reserve(&fingerprint(2)), Reservation::Owned);
        let second = std::thread::spawn({
            let reservations = reservations.clone();
            move || (reservations.wait(&fingerprint(2), soon()), reservations.reserve(&fingerprint(2)))
        });
        reservations.release(&fingerprint(2));
        assert_eq!(second.join().unwrap(), (None, Reservation::Owned));
    }

    #[test]
    fn releasing_does_not_forget_a_placed_chunk() {
        let reservations = Reservations::default();
        reservations.reserve(&fingerprint(3));
        reservations.announce(&fingerprint(3), &[fingerprint(9)]);
        reservations.place(&fingerprint(3), address(1));
        reservations.release(&fingerprint(3));
        assert_eq!(reservations.address(&fingerprint(3)), Some(address(1)));
        let mut found = Vec::new();
        reservations.references(&fingerprint(3), &mut found);
        assert_eq!(found, [fingerprint(9)]);
        reservations.committed(&fingerprint(3));
        assert_eq!(reservations.count(), 0);
    }

    #[test]
    fn a_commit_that_overtakes_the_stream_finds_the_references_and_leaves_nothing_behind() {
        let reservations = Reservations::default();
        reservations.reserve(&fingerprint(4));
        reservations.announce(&fingerprint(4), &[fingerprint(8)]);
        let mut found = Vec::new();
        reservations.references(&fingerprint(4), &mut found);
        assert_eq!(found, [fingerprint(8)]);
        reservations.committed(&fingerprint(4));
        assert_eq!(reservations.reserve(&fingerprint(4)), Reservation::Taken, "others wait until the holder has its address");
        reservations.place(&fingerprint(4), address(1));
        assert_eq!(reservations.count(), 0);
    }
}
