//! Joining copies: where sampling missed that a chunk is stored already, one copy becomes a redirect to the other, and
//! goes. (Nothing here concerns stores with a chunk index: they have no two copies that count.)
//!
//! # Why nobody loses a chunk
//! Joining itself removes nothing. It commits *redirects* (`lookup/redirects.rs`): from then on whoever has the address
//! of the *superfluous* copy finds the other one if need be, and a mark of the address marks the other one too. The
//! superfluous copy goes as any unneeded chunk does (`removal.rs`), with one more reason to be unneeded: it has a
//! redirect whose end is alive. That holds for each step of a removal. Beyond that:
//! 1. *The other copy is right.* Both are read and compared before, byte by byte, and verified by their fingerprint.
//!    Bytes that differ and have one fingerprint are two chunks: a collision that `byte-compare` detected.
//! 2. *The other copy is there when the redirect becomes durable.* `reclaiming` is held, so nothing is removed or
//!    merged meanwhile. A write may find a copy damaged meanwhile. It marks the slot as dead under the commit lock, and
//!    under the same lock both are looked at again.
//! 3. *The other copy is not removed for lack of marks.* A survey that was made before the redirect may call it
//!    unneeded. So the batch ends that survey ([`Facts::outdates`](crate::liveness::Facts)), also one that is still
//!    marking groups. All groups are marked from nothing in the next one.
//! 4. *The other copy is lost later*: the superfluous one is not unneeded any more, if it is still there, as the end of
//!    the redirect is not alive. If it is gone, the chunk was stored once, and is lost as any other would be.
//! 5. *Readers in other processes* see the store without the redirect if they began before. So while there are readers,
//!    nothing is removed that is needed but for its redirect.
//! 6. *Redirects never lead back*: no redirect is made to a copy that has one, and none in the batch that makes it.
//!
//! A crash before the batch is durable changes nothing. After it, a removal at any time finishes the work.

use crate::liveness::dead::DeadSlots;
use crate::lost::Settled;
use crate::{Candidate, Engine, Result};
use onefold_fingerprint::Fingerprint;
use onefold_storage::{Address, ChunkKind, ContainerId, Origin, Slice, Slot};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Bytes of the frames that hold the copies which are compared at once, unless two are longer.
const COMPARED_BYTES: usize = 64 << 20;
/// Ends the survey before.
const OUTDATED: &str = "copies of chunks were joined; the next run goes on";

/// Two copies of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// The name of both.
    pub fingerprint: Fingerprint,
    /// The copy that goes.
    pub superfluous: Address,
    /// The copy that stays.
    pub kept: Address,
}

/// What joining did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Joined {
    /// Copies that are redirects now.
    pub chunks: u64,
    /// Their bytes before compression.
    pub bytes: u64,
    /// Pairs of which a copy cannot be read or is damaged, a sentence each. They stay as they are.
    pub damaged: Vec<String>,
}

/// What a container file has.
#[derive(Clone, Debug)]
pub struct Contents {
    /// The file.
    pub container: ContainerId,
    /// Its chunks by slot, with their addresses.
    pub slots: Vec<(Address, Slot)>,
    /// The slots that do not count.
    pub dead: DeadSlots,
}

/// Where a copy lies.
#[derive(Clone, Copy)]
struct Place {
    container: ContainerId,
    slot: usize,
    length_bytes: u32,
    kind: ChunkKind,
}

impl Engine {
    /// Returns the file that has the chunks of a container, its slots with their addresses, and which are dead: all of
    /// one moment, in which nothing moves. `None`: nothing is left of the container.
    pub fn contents_of(&self, container: ContainerId) -> Result<Option<Contents>> {
        let _nothing_moves = self.reclaiming.alone();
        self.contents(container)
    }

    /// Does the same for an origin. If nothing may move meanwhile, the caller holds `reclaiming`.
    pub(crate) fn contents(&self, origin: impl Into<Origin>) -> Result<Option<Contents>> {
        let origin = origin.into();
        let (container, slots) = match self.storage.chunks_beside(origin) {
            Ok(found) => found,
            Err(_) if !self.storage.has_chunks_of(origin)? => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let dead = DeadSlots::read(&self.objects, container)?;
        Ok(Some(Contents { container, slots, dead }))
    }

    /// Has the superfluous copies lead to those that are kept, as far as both are there. Durable on return. The
    /// superfluous ones are unneeded then: the next survey finds them. Cheapest for neighbours. If it is cut short, it
    /// has done this for some of them.
    pub fn join_copies(&self, pairs: &[Copies]) -> Result<Joined> {
        self.writable()?;
        drop(self.permit_deletion("remove copies of chunks")?);
        let mut joined = Joined::default();
        if self.descriptor().profile.is_exact() {
            return Ok(joined);
        }
        for batch in pairs.chunks(self.lost_in_a_batch()) {
            let places = self.places_of(batch);
            let same = self.compare(batch, &places, &mut joined.damaged);
            self.join_batch(&same, &mut joined)?;
        }
        Ok(joined)
    }

    /// Returns where the copies lie, as far as they are there.
    fn places_of(&self, pairs: &[Copies]) -> HashMap<Candidate, Place> {
        let mut origins: HashMap<_, Vec<Candidate>> = HashMap::new();
        for pair in pairs {
            for address in [pair.superfluous, pair.kept] {
                origins.entry(address.origin()).or_default().push(Candidate { address, fingerprint: pair.fingerprint });
            }
        }
        let mut places = HashMap::new();
        for (origin, copies) in origins {
            // Damage is left to `check`.
            let Ok((container, slots)) = self.storage.chunks_beside(origin) else { continue };
            let copies: HashSet<Candidate> = copies.into_iter().collect();
            for (slot, (address, of)) in slots.iter().enumerate() {
                let copy = Candidate { address: *address, fingerprint: of.fingerprint };
                if copies.contains(&copy) {
                    places.insert(copy, Place { container, slot, length_bytes: of.length_bytes, kind: of.kind });
                }
            }
        }
        places
    }

    /// Returns the pairs of which both copies can be read and are the same chunk.
    fn compare(&self, pairs: &[Copies], places: &HashMap<Candidate, Place>, damaged: &mut Vec<String>) -> Vec<Copies> {
        let load = |wanted: &[(Address, Fingerprint)]| {
            let mut slices: Vec<Slice> = Vec::with_capacity(wanted.len());
            self.storage.load(wanted, &mut slices).map(|()| slices)
        };
        let mut same = Vec::with_capacity(pairs.len());
        let are_known = |pair: &&Copies| {
            let place = |address| places.get(&Candidate { address, fingerprint: pair.fingerprint });
            match (place(pair.superfluous), place(pair.kept)) {
                (Some(one), Some(other)) => pair.superfluous != pair.kept && one.kind == other.kind,
                _ => false,
            }
        };
        let mut known: Vec<(Copies, Place)> = Vec::with_capacity(pairs.len());
        for pair in pairs.iter().filter(are_known) {
            known.push((*pair, places[&Candidate { address: pair.kept, fingerprint: pair.fingerprint }]));
        }
        // A chunk in memory keeps its frame there.
        let descriptor = self.descriptor();
        let frame_bytes = descriptor.frame_bytes.max(descriptor.sequential_frame_bytes) as usize + self.chunker.limits().max;
        for few in known.chunks((COMPARED_BYTES / (2 * frame_bytes)).max(1)) {
            let all: Vec<(Address, Fingerprint)> =
                few.iter().flat_map(|(pair, _)| [pair.superfluous, pair.kept].map(|address| (address, pair.fingerprint))).collect();
            // If some cannot be read, each pair has to say so for itself.
            let together = load(&all).ok();
            for (number, (pair, place)) in few.iter().enumerate() {
                let two = 2 * number..2 * number + 2;
                let loaded = match &together {
                    Some(slices) => Ok(slices[two].to_vec()),
                    None => load(&all[two]),
                };
                let algorithm = self.descriptor().fingerprint;
                let named = |bytes: &[u8]| match place.kind {
                    ChunkKind::Data => algorithm.fingerprint(bytes),
                    _ => algorithm.metadata(bytes),
                };
                match loaded {
                    Err(error) => damaged.push(format!("chunk {} stays stored twice: {error}", pair.fingerprint)),
                    Ok(slices) if named(&slices[1]) != pair.fingerprint => {
                        damaged.push(format!("chunk {} stays stored twice: its copy at {} is damaged", pair.fingerprint, pair.kept));
                    }
                    Ok(slices) if slices[0][..] == slices[1][..] => same.push(*pair),
                    // Another chunk, or a damaged copy of this one. In either case it stays.
                    Ok(_) => {}
                }
            }
        }
        same
    }

    fn join_batch(&self, pairs: &[Copies], joined: &mut Joined) -> Result<()> {
        let _one = self.reclaiming.alone();
        // A merge may have moved them since. From here on none does.
        let places = self.places_of(pairs);
        let mut done = Vec::new();
        self.commit_settled(&mut || {
            let mut settled = Settled::default();
            done.clear();
            let committed = self.storage.committed_slots();
            let is_there = |address, fingerprint| -> Result<bool> {
                let Some(place) = places.get(&Candidate { address, fingerprint }) else { return Ok(false) };
                let is_alive = !DeadSlots::read(&self.objects, place.container)?.contains(place.slot);
                Ok(is_alive && committed.includes(address) && self.redirects.of(address)?.is_none())
            };
            let (mut kept, mut gone) = (HashSet::new(), HashSet::new());
            for pair in pairs {
                let is_free = !kept.contains(&pair.superfluous) && !gone.contains(&pair.kept) && !gone.contains(&pair.superfluous);
                if is_free && is_there(pair.superfluous, pair.fingerprint)? && is_there(pair.kept, pair.fingerprint)? {
                    settled.redirects.set(pair.superfluous, Some(pair.kept));
                    kept.insert(pair.kept);
                    gone.insert(pair.superfluous);
                    done.push(*pair);
                }
            }
            (settled.has_moved, settled.outdates) = (!done.is_empty(), (!done.is_empty()).then_some(OUTDATED));
            Ok(settled)
        })?;
        let length = |pair: &Copies| {
            places.get(&Candidate { address: pair.superfluous, fingerprint: pair.fingerprint }).map_or(0, |place| place.length_bytes.into())
        };
        joined.chunks += done.len() as u64;
        joined.bytes += done.iter().map(length).sum::<u64>();
        // Look-ups are led to the other copy from now on.
        self.forget_copies(done.iter().map(|pair| (pair.fingerprint, pair.superfluous)));
        self.filters.removed(&done.iter().map(|pair| pair.fingerprint).collect::<Vec<_>>());
        Ok(())
    }

    /// Returns for each of these copies whether it is superfluous: it has a redirect whose end is alive. The caller
    /// holds `reclaiming`. Errors: that cannot be told.
    pub(crate) fn are_superfluous(&self, copies: &[Candidate]) -> Result<Vec<bool>> {
        let mut superfluous = vec![false; copies.len()];
        if !self.redirects.is_used() {
            return Ok(superfluous);
        }
        let mut ends: BTreeMap<Origin, Vec<(usize, Candidate)>> = BTreeMap::new();
        for (number, copy) in copies.iter().enumerate() {
            let end = self.redirects.follow(copy.address, &mut |_| {})?;
            if end != copy.address {
                ends.entry(end.origin()).or_default().push((number, Candidate { address: end, ..*copy }));
            }
        }
        // One container's chunks in memory at a time.
        for (origin, ends) in ends {
            let alive = self.alive_in(origin)?;
            ends.into_iter().for_each(|(number, end)| superfluous[number] = alive.binary_search(&end).is_ok());
        }
        Ok(superfluous)
    }
}
