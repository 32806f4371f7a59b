//! What a node notes of a partition in the partition of its own notes, and what of that goes to the next owner.
//!
//! | of | key | content |
//! |---|---|---|
//! | any partition | `A`, class, number | since where this node's log counts for it: it is adopted |
//! | the chunk index | `C`, partition, sender | the cursor: up to where the owner has the sender's log (`owner.rs`) |
//! | the chunk index | `R`, partition, position, part | dead copies that owners of containers are to hear of (`removing.rs`) |
//! | containers | `d`, container | dead slots |
//! | containers | `V`, container | void numbers |
//!
//! An adopter copies them in the batch that says that it has adopted the partition. So the newest log of a lineage that
//! says so has all of them, and an earlier one must not be asked: it may have what was deleted since.

use crate::cluster::other_logs::{HeldPartition, LogPart, OtherLogs};
use crate::cluster::owner::{CURSOR_PREFIX, cursor_change, cursor_key, decode_cursor};
use crate::cluster::removing::TELL_PREFIX;
use crate::commit::records::Decoded;
use crate::lifecycle::void;
use crate::liveness::dead;
use crate::{Change, Engine, EngineError, Result};
use onefold_ground::wire::{Reader, WireError};
use onefold_oplog::{Log, Partition, PartitionClass, Position};
use onefold_storage::ContainerId;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::ControlFlow;

const PREFIX: u8 = b'A';
const VERSION: u8 = 1;

/// The notes of a node: by key.
type Notes = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(partition: Partition) -> Vec<u8> {
    let class = match partition.class {
        PartitionClass::ChunkIndex => b'c',
        PartitionClass::ObjectIndex => b'o',
        PartitionClass::Container => b'f',
    };
    [&[PREFIX, class], &partition.number.to_be_bytes()[..]].concat()
}

fn decode(value: &[u8]) -> Result<Position> {
    let mut reader = Reader::new(value);
    let read = reader.u8().and_then(|version| match version {
        VERSION => reader.u64(),
        _ => Err(WireError::OutOfRange { what: "version of an adoption", value: version.into(), offset_bytes: 0 }),
    });
    let read = read.and_then(|position| reader.end().map(|()| Position(position)));
    read.map_err(|source| EngineError::Wire { what: "a partition that was adopted".into(), source })
}

/// Returns whether a note is of a partition, apart from that of its adoption.
fn is_of(partition: Partition, key: &[u8]) -> bool {
    let number_at =
        |range: std::ops::Range<usize>| key.get(range).map(|bytes| bytes.iter().fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte)));
    match (partition.class, key.first()) {
        (PartitionClass::ChunkIndex, Some(&(CURSOR_PREFIX | TELL_PREFIX))) => number_at(1..5) == Some(partition.number.into()),
        (PartitionClass::Container, Some(&(dead::PREFIX | void::PREFIX))) => {
            number_at(1..9).is_some_and(|bits| ContainerId::from_bits(bits).partition() == partition.number)
        }
        _ => false,
    }
}

/// Notes of logs, as they are needed.
pub(crate) struct OtherNotes(BTreeMap<u32, Notes>);

impl OtherNotes {
    pub(crate) fn new() -> OtherNotes {
        OtherNotes(BTreeMap::new())
    }

    fn get(&mut self, engine: &Engine, logs: &mut OtherLogs<'_>, node: u32) -> Result<&Notes> {
        match self.0.entry(node) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => Ok(place.insert(engine.notes_of(logs, node)?)),
        }
    }
}

impl Engine {
    /// Reads the notes of another node in its log.
    fn notes_of(&self, logs: &mut OtherLogs<'_>, node: u32) -> Result<Notes> {
        let partition = Partition { class: PartitionClass::ObjectIndex, number: self.objects.own_partition() };
        let holdings = self.holdings([HeldPartition { partition, since: Position(0), upto: None, is_first: true }].into_iter())?;
        let mut notes = Notes::new();
        let log = logs.get(node)?;
        let mut failed = None;
        log.replay_holdings(&holdings, log.end(), &mut |records| match Decoded::read(records, self.digest_bytes()) {
            Ok(decoded) => {
                for (_, key, value) in decoded.effects(Position(0), records).changes {
                    match value {
                        Some(value) => notes.insert(key.clone(), value.clone()),
                        None => notes.remove(key),
                    };
                }
                ControlFlow::Continue(())
            }
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(notes), Err)
    }

    /// Returns the changes that make the notes of a partition this node's, with the note that it is adopted. `None`: it
    /// was adopted before, since the same position.
    pub(crate) fn notes_to_adopt(
        &self,
        partition: Partition,
        lineage: &[LogPart],
        logs: &mut OtherLogs<'_>,
        notes: &mut OtherNotes,
    ) -> Result<Option<Vec<Change>>> {
        let own = self.objects.own_partition();
        let Some((now, before)) = lineage.split_last() else { return Ok(None) };
        let adopted = self.objects.get(own, &key(partition))?.map(|value| decode(&value)).transpose()?;
        if adopted == Some(now.since) || before.is_empty() {
            return Ok(None);
        }
        let mut changes: Vec<Change> = Vec::new();
        for (at, part) in before.iter().enumerate().rev() {
            let of_node = match part.node == now.node {
                // An earlier time of this node.
                true => self.own_notes(partition)?,
                false => notes.get(self, logs, part.node)?.clone(),
            };
            let since = of_node.get(&key(partition)).map(|value| decode(value)).transpose()?;
            if at == 0 || since == Some(part.since) {
                let is_ours = |(key, _): &(&Vec<u8>, &Vec<u8>)| is_of(partition, key);
                changes.extend(of_node.iter().filter(is_ours).map(|(key, value)| (own, key.clone(), Some(value.clone()))));
                break;
            }
        }
        // What this node has noted at an earlier time, and the others have not, is over.
        for old in self.own_notes(partition)?.into_keys().filter(|old| is_of(partition, old)) {
            if !changes.iter().any(|(_, key, _)| *key == old) {
                changes.push((own, old, None));
            }
        }
        if partition.class == PartitionClass::ChunkIndex {
            self.end_cursors(partition.number.into(), before, &mut changes)?;
        }
        changes.push((own, key(partition), Some([&[VERSION], &now.since.0.to_le_bytes()[..]].concat())));
        Ok(Some(changes))
    }

    /// What a former owner has logged of the partition counts in its own log, as far as the lineage says.
    fn end_cursors(&self, partition: u32, before: &[LogPart], changes: &mut Vec<Change>) -> Result<()> {
        for part in before {
            let Some(upto) = part.upto else { continue };
            let key = cursor_key(partition, part.node);
            let at = changes.iter().position(|(_, of, value)| *of == key && value.is_some());
            let found = at.map(|at| decode_cursor(changes[at].2.as_deref().unwrap_or_default())).transpose()?;
            if found.is_none_or(|found| found < upto) {
                changes.retain(|(_, of, _)| *of != key);
                changes.push(cursor_change(self.objects.own_partition(), partition, part.node, upto));
            }
        }
        Ok(())
    }

    fn own_notes(&self, partition: Partition) -> Result<Notes> {
        let own = self.objects.own_partition();
        let mut notes = Notes::new();
        for prefix in [CURSOR_PREFIX, TELL_PREFIX, dead::PREFIX, void::PREFIX, PREFIX] {
            let mut from = vec![prefix];
            loop {
                let page = self.objects.range(own, &from, &[prefix + 1], PAGE)?;
                let is_last = page.len() < PAGE;
                from = page.last().map_or_else(Vec::new, |(last, _)| [&last[..], &[0]].concat());
                notes.extend(page.into_iter().filter(|(of, _)| is_of(partition, of) || *of == key(partition)));
                if is_last {
                    break;
                }
            }
        }
        Ok(notes)
    }
}

/// Notes read at a time.
const PAGE: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_known_by_their_keys() {
        let of = |class, number| Partition { class, number };
        let cursor = cursor_key(3, 7);
        assert!(is_of(of(PartitionClass::ChunkIndex, 3), &cursor) && !is_of(of(PartitionClass::ChunkIndex, 7), &cursor));
        assert!(!is_of(of(PartitionClass::Container, 3), &cursor) && !is_of(of(PartitionClass::ChunkIndex, 3), &cursor[..4]));
        let dead = dead::key(ContainerId::new(5, 70_000));
        assert!(is_of(of(PartitionClass::Container, 5), &dead) && !is_of(of(PartitionClass::Container, 4), &dead));
        assert!(
            !is_of(of(PartitionClass::ObjectIndex, 5), &dead)
                && !is_of(of(PartitionClass::Container, 5), &key(of(PartitionClass::Container, 5)))
        );
    }

    #[test]
    fn an_adoption_is_read_as_written_and_garbage_is_refused() {
        let value = [&[VERSION][..], &8192u64.to_le_bytes()].concat();
        assert_eq!(decode(&value).unwrap(), Position(8192));
        assert!((0..value.len()).all(|length| decode(&value[..length]).is_err()));
        assert!(decode(&[&value[..], &[0]].concat()).is_err() && decode(&[&[9][..], &value[1..]].concat()).is_err());
    }
}
