//! What a node answers to others about the partitions that it owns (M4.4 to M4.6).
//!
//! A claim of another node is a reservation like that of a stream here. So streams of all nodes meet in one place. It
//! has no address until the chunk is delivered: then this node logs it, and its index has it.

use crate::commit::records::{encode_deltas, encode_places};
use crate::write::claims::{Claim, Search, Wanted};
use crate::write::reservation::FingerprintMap;
use crate::{Change, Engine, EngineError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::{Reader, WireError};
use onefold_index::IndexEntry;
use onefold_oplog::{Effects, Position};
use onefold_storage::{Address, ContainerId, Prepared};
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// What a node has logged for a partition of another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// The owner has everything up to here of the sender's log. `None`: the sender asks what the owner has.
    pub behind: Option<Position>,
    /// This has everything from there up to here.
    pub upto: Position,
    /// New chunks with their addresses.
    pub places: Vec<(Fingerprint, u64)>,
    /// Changes of counts.
    pub deltas: Vec<(Fingerprint, i64)>,
}

/// Which node holds which claim.
#[derive(Debug, Default)]
pub(crate) struct Guests(Mutex<FingerprintMap<Guest>>);

#[derive(Clone, Copy, Debug)]
struct Guest {
    node: u32,
    /// The copy here is damaged, as the node has found: the new one takes its place.
    bad: Option<Address>,
}

impl Guests {
    /// Notes claims that a node has from an owner before.
    pub(super) fn take_in(&self, node: u32, names: &[Fingerprint]) {
        self.0.lock().extend(names.iter().map(|name| (*name, Guest { node, bad: None })));
    }

    /// Forgets all claims of these chunks. Returns them.
    pub(super) fn forget(&self, is_wanted: impl Fn(&Fingerprint) -> bool) -> Vec<Fingerprint> {
        self.0.lock().extract_if(|name, _| is_wanted(name)).map(|(name, _)| name).collect()
    }

    /// Returns the node that holds the claim of a chunk.
    pub(crate) fn holder(&self, name: &Fingerprint) -> Option<u32> {
        self.0.lock().get(name).map(|guest| guest.node)
    }
}

/// How often whoever waits for a chunk says so.
pub(crate) const HURRIES: Duration = Duration::from_millis(20);

/// First byte of the keys of cursors, in the partition of what a node notes of itself.
pub(crate) const CURSOR_PREFIX: u8 = b'C';
const VERSION: u8 = 1;

/// Returns the key of what a partition's owner has of a sender's log.
pub(crate) fn cursor_key(partition: u32, sender: u32) -> Vec<u8> {
    let mut key = vec![CURSOR_PREFIX];
    key.extend_from_slice(&partition.to_be_bytes());
    key.extend_from_slice(&sender.to_be_bytes());
    key
}

impl Engine {
    /// Answers claims of another node. Appends [`Claim::Known`] for chunks that the index has, [`Claim::Mine`] for
    /// those that the node has to store now, and [`Claim::Theirs`] for those that somebody else stores. Errors: none of
    /// them is claimed; a partition is not owned here.
    pub fn claim_for(&self, node: u32, wanted: &[Wanted], out: &mut Vec<Claim>) -> Result<()> {
        self.writable()?;
        self.check_owned(wanted.iter().map(|wanted| &wanted.fingerprint))?;
        if let Some(partition) = wanted.iter().find_map(|wanted| self.cluster.as_ref()?.coming_partition(&wanted.fingerprint)) {
            return Err(EngineError::NotOwned { partition });
        }
        self.reclaiming.watch().touch(wanted.iter().map(|wanted| &wanted.fingerprint));
        let begin = out.len();
        self.claims.claim(wanted, out)?;
        // The index says what was true before a batch of which nobody knows whether the log has it. A removal gives its
        // claims back when it has failed: so this is asked behind the claim.
        if let Some(why) = self.why_index_is_doubtful() {
            let ours = out.drain(begin..).zip(wanted).filter(|(claim, _)| *claim == Claim::Mine);
            let ours: Vec<Fingerprint> = ours.map(|(_, wanted)| wanted.fingerprint).collect();
            self.claims.release(&ours);
            return Err(EngineError::OtherNode { why });
        }
        let mut held = self.guests.0.lock();
        let holds = |held: &FingerprintMap<Guest>, name| held.get(name).is_some_and(|guest| guest.node == node);
        let mut waits_for_us = false;
        for (answer, wanted) in out[begin..].iter_mut().zip(wanted) {
            *answer = match *answer {
                Claim::Known(address) => Claim::Known(address),
                Claim::Mine => {
                    let bad = if let Search::Not(bad) = wanted.search { Some(bad) } else { None };
                    held.insert(wanted.fingerprint, Guest { node, bad });
                    Claim::Mine
                }
                // It has lost our answer.
                Claim::Theirs if holds(&held, &wanted.fingerprint) => Claim::Mine,
                Claim::Theirs => Claim::Theirs,
                // It is no one's to refer to before it is durable.
                Claim::Placed(_) => {
                    waits_for_us = true;
                    Claim::Theirs
                }
            };
        }
        drop(held);
        if waits_for_us {
            self.hurry();
        }
        Ok(())
    }

    /// Returns why the chunk index may lack a batch that the log has, if so. Only another opening knows.
    fn why_index_is_doubtful(&self) -> Option<String> {
        let why = self.has_lost_its_log().or_else(|| self.commits.why_stopped())?;
        Some(format!("the node opens its log again: {why}"))
    }

    /// Takes claims of another node back.
    pub fn release_for(&self, node: u32, names: &[Fingerprint]) {
        let mut held = self.guests.0.lock();
        let is_held = |name: &&Fingerprint| held.get(name).is_some_and(|guest| guest.node == node);
        let own: Vec<Fingerprint> = names.iter().filter(is_held).copied().collect();
        for name in &own {
            held.remove(name);
        }
        drop(held);
        self.claims.release(&own);
    }

    /// Ends all claims of a node: it has opened its log again, or is gone, and everything that it has logged is
    /// delivered.
    pub fn end_claims_of(&self, node: u32) {
        let held = self.guests.0.lock();
        let names: Vec<Fingerprint> = held.iter().filter(|(_, guest)| guest.node == node).map(|(name, _)| *name).collect();
        drop(held);
        self.release_for(node, &names);
        self.end_removals_of(node);
    }

    /// Waits until a claim that was [`Claim::Theirs`] may have another answer, or until `until`. Whoever stores the
    /// chunk is told to hurry.
    pub fn wait_for_claim(&self, name: &Fingerprint, until: Instant) {
        let mut found = Vec::new();
        self.claims.wait(std::slice::from_ref(name), until, &mut found);
        if let Some(Some(_)) = found.pop() {
            // A stream of this node has stored it, and it is not durable yet.
            self.hurry();
            std::thread::sleep(until.saturating_duration_since(Instant::now()).min(HURRIES));
        }
    }

    /// Logs what another node has logged for a partition, unless it has come before. Returns up to where this node has
    /// everything of the sender's log. Durable on return.
    ///
    /// If the index has another place of a chunk already, that one stays: the sender was so slow that its claim went to
    /// somebody else. Its copy is surplus, and joined as other copies are.
    pub fn take_delivery(&self, sender: u32, partition: u32, delivery: &Delivery) -> Result<Position> {
        self.writable()?;
        self.make_room_in_log();
        let names = || delivery.places.iter().map(|(name, _)| name).chain(delivery.deltas.iter().map(|(name, _)| name));
        self.check_owned(names())?;
        if names().any(|name| self.partition_of(name) != partition) {
            let why = format!("it has chunks of other partitions than {partition}");
            return Err(EngineError::Invalid { what: "delivery".into(), why });
        }
        if delivery.places.iter().any(|(_, address)| *address == 0) {
            return Err(EngineError::Invalid { what: "delivery".into(), why: "it has a chunk without an address".into() });
        }
        self.with_room_in_the_log(|write| {
            let _committing = self.commits.alone();
            let cursor = self.cursor(partition, sender)?;
            // If it is another position, a part of this has come before. The sender begins again behind the cursor.
            if delivery.behind != Some(cursor) || delivery.upto <= cursor {
                return Ok(cursor);
            }
            let chunks: Vec<Fingerprint> = delivery.places.iter().map(|(name, _)| *name).collect();
            let mut entries: Vec<Option<IndexEntry>> = Vec::with_capacity(chunks.len());
            self.lookup.index().map_or(Ok(0), |index| index.lookup(&chunks, &mut entries))?;
            let mut held: Vec<Option<Guest>> = Vec::with_capacity(chunks.len());
            {
                let guests = self.guests.0.lock();
                held.extend(chunks.iter().map(|name| guests.get(name).copied().filter(|guest| guest.node == sender)));
            }
            let is_new = |entry: &Option<IndexEntry>, guest: &Option<Guest>| {
                let present = entry.map_or(0, |entry| entry.address);
                present == 0 || guest.and_then(|guest| guest.bad) == Some(Address::from_bits(present))
            };
            let known = entries.iter().zip(&held);
            let places = delivery.places.iter().zip(known).filter(|(_, (entry, guest))| is_new(entry, guest));
            let places: Vec<(Fingerprint, u64)> = places.map(|(place, _)| *place).collect();
            let changes = [cursor_change(self.objects.own_partition(), partition, sender, delivery.upto)];
            let mut records = Vec::new();
            if !places.is_empty() {
                records.push(encode_places(&places, self.digest_bytes()));
            }
            if !delivery.deltas.is_empty() {
                records.push(encode_deltas(&delivery.deltas, self.digest_bytes()));
            }
            records.extend(crate::commit::records::encode_objects(&changes));
            let effects = Effects { places: &places, deltas: &delivery.deltas, changes: &changes, ..Effects::default() };
            self.log_and_apply(write, Prepared::default(), &records, effects)?;
            // Now look-ups find them.
            let ended = delivery.places.iter().zip(&held).filter(|(_, guest)| guest.is_some());
            let ended: Vec<_> = ended.map(|((name, address), _)| (*name, Address::from_bits(*address))).collect();
            let names: Vec<Fingerprint> = ended.iter().map(|(name, _)| *name).collect();
            let mut guests = self.guests.0.lock();
            for name in &names {
                guests.remove(name);
            }
            drop(guests);
            self.claims.placed(&ended);
            self.claims.durable(&names);
            Ok(delivery.upto)
        })
    }

    /// Puts the container into the bucket, if its partition is owned here. Somebody wants to read it.
    pub fn seal_container(&self, container: ContainerId) -> Result<()> {
        let Some(containers) = &self.containers else { return Ok(()) };
        if containers.close_container(container) {
            self.flush()?;
        }
        Ok(())
    }

    /// Makes durable what others wait for: soon, or, without a background, now.
    pub fn hurry(&self) {
        if self.settings.background {
            self.background.hurry();
        } else if let Err(error) = self.flush() {
            tracing::debug!(%error, "others wait for what cannot be made durable now");
        }
    }

    pub(crate) fn check_owned<'a>(&self, names: impl Iterator<Item = &'a Fingerprint>) -> Result<()> {
        for name in names {
            if let Some(partition) = self.foreign_partition(name) {
                return Err(EngineError::NotOwned { partition });
            }
        }
        Ok(())
    }

    pub(super) fn cursor(&self, partition: u32, sender: u32) -> Result<Position> {
        let value = self.objects.get(self.objects.own_partition(), &cursor_key(partition, sender))?;
        value.map_or(Ok(Position(0)), |value| decode_cursor(&value))
    }
}

/// Returns the change that says up to where a partition's owner has a sender's log. `own` is the partition of notes.
pub(crate) fn cursor_change(own: u16, partition: u32, sender: u32, upto: Position) -> Change {
    let mut value = vec![VERSION];
    value.extend_from_slice(&upto.0.to_le_bytes());
    (own, cursor_key(partition, sender), Some(value))
}

pub(crate) fn decode_cursor(value: &[u8]) -> Result<Position> {
    let mut reader = Reader::new(value);
    let read = reader.u8().and_then(|version| match version {
        VERSION => reader.u64(),
        _ => Err(WireError::OutOfRange { what: "version of a cursor", value: version.into(), offset_bytes: 0 }),
    });
    let read = read.and_then(|position| reader.end().map(|()| Position(position)));
    read.map_err(|source| EngineError::Wire { what: "what was delivered by another node".into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_written_and_garbage_is_refused() {
        let value = [&[VERSION][..], &4096u64.to_le_bytes()].concat();
        assert_eq!(decode_cursor(&value).unwrap(), Position(4096));
        assert!((0..value.len()).all(|length| decode_cursor(&value[..length]).is_err()));
        assert!(decode_cursor(&[&value[..], &[0]].concat()).is_err() && decode_cursor(&[&[2][..], &value[1..]].concat()).is_err());
    }
}
