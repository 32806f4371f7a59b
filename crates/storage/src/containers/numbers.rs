//! Numbers of containers in a store whose files become durable only as a whole (decision 0068).
//!
//! A put that an owner gave up may still arrive, however late: when the owner is long dead, and others own the store.
//! So a number that one owner gave out must never be given out by another one, whether or not a container came of it.
//!
//! # Why no two owners use one number
//! The log says up to which number of a partition all are used. Whatever names a container uses all numbers up to it.
//! NumbersUsed says it outright. NumbersReserved uses [`NUMBERS_AHEAD`] more.
//! 1. The fence of an opening for writing has a NumbersReserved. The opening gives out only numbers above all that are
//!    used then, with its own fence.
//! 2. It gives out no number that is more than [`NUMBERS_AHEAD`] above these, or above those that its own durable
//!    batches name.
//! 3. The log is not trimmed past the batch of the last NumbersUsed that covers all numbers used before it.
//!
//! Say that B opened the store after A. Every batch that A knew to be durable comes before B's fence, with A's own
//! fence. B has read it, or a later NumbersUsed that covers it (3). A gave out at most [`NUMBERS_AHEAD`] numbers above
//! what these batches use (2). B's fence uses as many more, and B gives out only higher ones (1).
//!
//! # Which files may be leftovers
//! NumbersUsed also says up to which number everything is *settled*: a container there is in the log, or its file is
//! gone. So an opening need not look at the files up to there. A put that arrives later still leaves a file that nobody
//! refers to.

use crate::address::decode_container;
use crate::containers::records;
use crate::{ContainerId, Result, StorageError};
use onefold_ground::wire::{Reader, put_varint};
use onefold_oplog::{PartitionClass, Position, Record};
use std::collections::{BTreeMap, BTreeSet};

/// Kind of a record: numbers of containers are used.
pub const NUMBERS_USED: u8 = 15;
/// Kind of a record: the next numbers of containers are used.
pub const NUMBERS_RESERVED: u8 = 16;

/// How many numbers an owner may give out ahead of the log: many times what it needs between two batches.
pub(crate) const NUMBERS_AHEAD: u32 = 1024;

/// What NumbersUsed says of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    /// All numbers up to this one are used.
    pub(crate) last: ContainerId,
    /// Up to this number, all containers are in the log or gone.
    pub(crate) settled: u32,
}

impl Used {
    /// Makes the record.
    pub(crate) fn encode(self) -> Record {
        let mut payload = self.last.bits().to_le_bytes().to_vec();
        put_varint(&mut payload, u64::from(self.settled));
        records::record(NUMBERS_USED, self.last, payload)
    }
}

/// Makes the record with which an opening for writing begins in a partition of a store with whole files. It belongs
/// into the batch that makes the opening the owner.
pub fn numbers_reserved(partition: u16) -> Record {
    records::record(NUMBERS_RESERVED, ContainerId::new(partition, 0), Vec::new())
}

/// Reads the partition of the record.
pub(crate) fn decode_reserved(record: &Record) -> Result<u16> {
    let is_sound = record.partition.class == PartitionClass::Container && record.payload.is_empty();
    is_sound
        .then_some(record.partition.number)
        .ok_or_else(|| StorageError::Record { kind: record.kind, why: "it is no reservation".into() })
}

/// Reads the record.
pub(crate) fn decode_numbers(record: &Record) -> Result<Used> {
    let refused = |why: String| StorageError::Record { kind: record.kind, why };
    let mut reader = Reader::new(&record.payload);
    let read = decode_container(&mut reader).and_then(|last| {
        let settled = reader.varint_to("settled containers", u64::from(last.number()))? as u32;
        reader.end().map(|()| Used { last, settled })
    });
    let used = read.map_err(|error| refused(error.to_string()))?;
    if (record.partition.class, record.partition.number) != (PartitionClass::Container, used.last.partition()) {
        return Err(refused(format!("container {} is in another partition", used.last)));
    }
    Ok(used)
}

/// Which numbers this opening may give out, and which of them are settled.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// By partition: all numbers up to this one were used when this opening began.
    used: BTreeMap<u16, u32>,
    /// By partition: the highest number that is known to be named in the log.
    named: BTreeMap<u16, u32>,
    /// Numbers whose containers are neither in the log nor gone.
    unsettled: BTreeSet<ContainerId>,
    /// By partition: up to which number the log says that all containers are settled, as far as this opening said it.
    settled_in_log: BTreeMap<u16, u32>,
    /// The log from here on says which numbers are used.
    since: Position,
    /// Whether the next batch must say it.
    is_due: bool,
}

impl Numbers {
    /// Begins in an opening that found `unsealed` containers in a log that starts at `log_start`, and that all numbers
    /// up to these are `used`.
    pub(crate) fn new(log_start: Position, unsealed: impl Iterator<Item = ContainerId>, used: BTreeMap<u16, u32>) -> Numbers {
        let settled_in_log = BTreeMap::new();
        Numbers { named: used.clone(), used, unsettled: unsealed.collect(), settled_in_log, since: log_start, is_due: false }
    }

    /// Returns whether this opening gave out a number, or may give it out.
    pub(crate) fn is_own(&self, container: ContainerId) -> bool {
        self.used.get(&container.partition()).is_some_and(|used| container.number() > *used)
    }

    /// Gives out a number. Errors: the log has to name more numbers first.
    pub(crate) fn give_out(&mut self, container: ContainerId) -> Result<()> {
        let partition = container.partition();
        let named = self.named.get(&partition).ok_or(StorageError::CommitFirst { partition })?;
        if container.number() > named.saturating_add(NUMBERS_AHEAD) {
            return Err(StorageError::CommitFirst { partition });
        }
        self.unsettled.insert(container);
        Ok(())
    }

    /// Notes that a durable batch names a container.
    pub(crate) fn named(&mut self, container: ContainerId) {
        if let Some(named) = self.named.get_mut(&container.partition()) {
            *named = (*named).max(container.number());
        }
    }

    /// Notes that a container is in the log, sealed, or that its file is gone.
    pub(crate) fn settled(&mut self, container: ContainerId) {
        self.unsettled.remove(&container);
    }

    /// Returns whether no other container is neither in the log nor gone.
    pub(crate) fn has_settled_all_but(&self, unsealed: impl Fn(ContainerId) -> bool) -> bool {
        self.unsettled.iter().all(|container| unsealed(*container))
    }

    /// Returns what NumbersUsed says of a partition in which `last` was given out last.
    pub(crate) fn used(&self, last: ContainerId) -> Used {
        let first = ContainerId::new(last.partition(), 0);
        let unsettled = self.unsettled.range(first..=last).next();
        Used { last, settled: unsettled.map_or(last.number(), |container| container.number() - 1) }
    }

    /// Returns whether the next batch must say which numbers are used.
    pub(crate) fn is_due(&self, mut last: impl Iterator<Item = ContainerId>) -> bool {
        let is_ahead =
            |last: ContainerId| last.number().saturating_sub(self.named.get(&last.partition()).copied().unwrap_or(0)) >= NUMBERS_AHEAD / 2;
        self.is_due || last.any(is_ahead)
    }

    /// Notes that the batch at `start` says which numbers are used.
    pub(crate) fn logged(&mut self, used: &[Used], start: Position) {
        let last: BTreeMap<u16, u32> = used.iter().map(|used| (used.last.partition(), used.last.number())).collect();
        // If batches overtook each other, an earlier one may name more. And a partition may have come meanwhile.
        if !used.is_empty() && self.named.iter().all(|(partition, named)| last.get(partition).is_some_and(|last| last >= named)) {
            self.since = self.since.max(start);
            self.is_due = false;
        }
        for used in used {
            let (partition, last) = (used.last.partition(), used.last.number());
            // Of a partition that has gone meanwhile nothing is noted.
            if let Some(named) = self.named.get_mut(&partition) {
                *named = (*named).max(last);
                let settled = self.settled_in_log.entry(partition).or_default();
                *settled = (*settled).max(used.settled);
            }
        }
    }

    /// Returns whether the log says that everything up to the last number of a partition is settled. If not, the next
    /// batch says up to where it is.
    pub(crate) fn has_settled(&mut self, last: ContainerId) -> bool {
        let is_settled = self.used(last).settled == last.number();
        let is_said = self.settled_in_log.get(&last.partition()).copied().unwrap_or(0) == last.number();
        self.is_due |= !is_said;
        is_settled && is_said
    }

    /// Forgets a partition.
    pub(crate) fn remove(&mut self, partition: u16) {
        self.used.remove(&partition);
        self.named.remove(&partition);
        self.settled_in_log.remove(&partition);
        self.unsettled.retain(|container| container.partition() != partition);
    }

    /// Adds a partition of which the log says, from `since` on, that everything up to this number is settled.
    pub(crate) fn add(&mut self, last: ContainerId, since: Position) {
        let (partition, last) = (last.partition(), last.number());
        for numbers in [&mut self.used, &mut self.named, &mut self.settled_in_log] {
            numbers.insert(partition, last);
        }
        // A batch that was prepared before may be the one that says it of all others.
        self.since = self.since.min(since);
    }

    /// Returns from where on the log says which numbers are used.
    pub(crate) fn since(&self) -> Position {
        self.since
    }

    /// Makes the next batch say which numbers are used, if the log before `position` is needed for it.
    pub(crate) fn renew_before(&mut self, position: Position) {
        self.is_due |= self.since < position;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> ContainerId {
        ContainerId::new(3, number)
    }

    fn used(last: u32, settled: u32) -> Used {
        Used { last: id(last), settled }
    }

    #[test]
    fn the_record_is_read_as_written_and_nonsense_is_refused() {
        let used = Used { last: id(70_000), settled: 69_999 };
        assert_eq!(decode_numbers(&used.encode()).unwrap(), used);
        assert!(decode_numbers(&Used { settled: 70_001, ..used }.encode()).is_err(), "settled beyond the last");
        let mut longer = used.encode();
        longer.payload.push(0);
        assert!(decode_numbers(&longer).is_err());
        let mut elsewhere = used.encode();
        elsewhere.partition.number = 4;
        assert!(decode_numbers(&elsewhere).is_err());
        for length in 0..longer.payload.len() - 1 {
            assert!(decode_numbers(&Record { payload: longer.payload[..length].to_vec(), ..longer.clone() }).is_err());
        }
    }

    #[test]
    fn a_reservation_is_read_as_written() {
        let record = numbers_reserved(7);
        assert_eq!(decode_reserved(&record).unwrap(), 7);
        assert!(decode_reserved(&Record { payload: vec![0], ..record }).is_err());
    }

    #[test]
    fn no_number_is_given_out_far_ahead_of_the_log() {
        let mut numbers = Numbers::new(Position(5), std::iter::empty(), BTreeMap::from([(3, 2000)]));
        assert!(matches!(numbers.give_out(ContainerId::new(2, 1)), Err(StorageError::CommitFirst { partition: 2 })));
        assert!(!numbers.is_due([id(2000)].into_iter()));
        numbers.give_out(id(2001)).unwrap();
        numbers.give_out(id(2000 + NUMBERS_AHEAD)).unwrap();
        assert!(numbers.give_out(id(2001 + NUMBERS_AHEAD)).is_err());
        assert!(numbers.is_due([id(2001 + NUMBERS_AHEAD)].into_iter()));
        numbers.named(id(2001));
        numbers.give_out(id(2001 + NUMBERS_AHEAD)).unwrap();
    }

    #[test]
    fn everything_is_settled_up_to_the_first_container_that_is_not() {
        let mut numbers = Numbers::new(Position(5), [id(7), ContainerId::new(2, 1)].into_iter(), BTreeMap::from([(3, 8)]));
        assert_eq!(numbers.used(id(9)).settled, 6);
        numbers.settled(id(7));
        assert_eq!(numbers.used(id(9)).settled, 9);
        numbers.logged(&[used(9, 9)], Position(10));
        numbers.give_out(id(10)).unwrap();
        assert_eq!(numbers.used(id(12)), Used { last: id(12), settled: 9 });
    }

    #[test]
    fn the_log_is_kept_from_the_batch_that_covers_all_that_was_named() {
        let mut numbers = Numbers::new(Position(5), std::iter::empty(), BTreeMap::from([(3, 8)]));
        numbers.logged(&[used(20, 0)], Position(10));
        numbers.named(id(25));
        // This batch was prepared before.
        numbers.logged(&[used(24, 0)], Position(20));
        assert_eq!(numbers.since(), Position(10));
        numbers.renew_before(Position(10));
        assert!(!numbers.is_due(std::iter::empty()));
        numbers.renew_before(Position(11));
        assert!(numbers.is_due(std::iter::empty()));
        numbers.logged(&[used(25, 0)], Position(30));
        assert_eq!((numbers.since(), numbers.is_due(std::iter::empty())), (Position(30), false));
    }

    #[test]
    fn a_partition_has_settled_when_a_batch_has_said_so_of_its_last_number() {
        let mut numbers = Numbers::new(Position(5), [id(7)].into_iter(), BTreeMap::from([(3, 8)]));
        assert!(!numbers.has_settled(id(8)) && numbers.is_due(std::iter::empty()));
        numbers.logged(&[used(8, 6)], Position(10));
        numbers.settled(id(7));
        assert!(!numbers.has_settled(id(8)), "the log does not say it yet");
        numbers.logged(&[used(8, 8)], Position(20));
        assert!(numbers.has_settled(id(8)));
        numbers.remove(3);
        numbers.logged(&[used(9, 9)], Position(30));
        assert!(numbers.named.is_empty() && numbers.settled_in_log.is_empty());
    }

    #[test]
    fn the_log_is_kept_for_a_partition_that_comes_until_a_batch_speaks_of_all() {
        let mut numbers = Numbers::new(Position(5), std::iter::empty(), BTreeMap::from([(3, 8)]));
        numbers.logged(&[used(8, 8)], Position(40));
        numbers.add(ContainerId::new(4, 100), Position(30));
        assert_eq!(numbers.since(), Position(30));
        // It was prepared before the partition came.
        numbers.logged(&[used(9, 9)], Position(50));
        assert_eq!(numbers.since(), Position(30));
        assert!(numbers.has_settled(ContainerId::new(4, 100)) && !numbers.is_own(ContainerId::new(4, 100)));
        numbers.logged(&[used(9, 9), Used { last: ContainerId::new(4, 100), settled: 100 }], Position(60));
        assert_eq!(numbers.since(), Position(60));
    }
}
