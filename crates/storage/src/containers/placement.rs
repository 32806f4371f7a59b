//! Decides which container a writer gets next, and counts the numbers of containers.
//!
//! This opening never gives out a number twice, even if its container never came to be. A later opening may give it out
//! again if no file, folder or record names it. In a store with whole files no opening ever does (`numbers.rs`). Each
//! method takes the lock last and alone.

use crate::containers::numbers::{Numbers, Used};
use crate::{Address, ChunkKind, ContainerId, Origin, Prepared, Result, StorageError};
use onefold_oplog::{Ownership, Position};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::{Arc, Weak};

/// Numbers of containers, and the open containers that wait for a writer.
#[derive(Debug)]
pub(crate) struct Placement {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    opened: BTreeMap<u16, Opened>,
    /// Numbers that were given out and whose containers are not open yet. There may be a file, but nobody has written
    /// to it.
    creating: BTreeSet<ContainerId>,
    /// It is the turn of the first opened partition from here on.
    turn: u16,
    /// In a store with whole files that is open for writing: what the log must know of numbers.
    numbers: Option<Numbers>,
}

/// An opened partition.
#[derive(Debug)]
struct Opened {
    /// The number of the next new container.
    next_number: u32,
    /// Open containers without a writer.
    idle: VecDeque<ContainerId>,
    /// It goes to another owner: it gets no new container.
    is_leaving: bool,
}

/// What a writer fills next.
pub(crate) enum Next {
    /// This open container, which no other writer has.
    Open(ContainerId),
    /// A new container of this partition.
    New(u16),
}

/// The slots that were durable, together with the log, at one moment between two batches.
#[derive(Clone, Debug)]
pub struct CommittedSlots {
    /// By partition: numbers from here on were given out later.
    next_numbers: BTreeMap<u16, u32>,
    /// By unsealed container: its number of durable slots.
    open: BTreeMap<ContainerId, usize>,
    /// In a store without containers: the metadata chunks that came later.
    later: Option<Arc<Later>>,
}

/// Metadata chunks that a chunk store committed after a moment. Data chunks are not there: there may be very many, and
/// an index tells of them.
#[derive(Debug, Default)]
pub(crate) struct Later(Mutex<HashSet<Address>>);

impl Later {
    /// Adds chunks.
    pub(crate) fn extend(&self, chunks: impl Iterator<Item = Address>) {
        self.0.lock().extend(chunks);
    }
}

/// Who wants to know which metadata chunks are committed from now on, in a store whose chunks have no numbers by which
/// a moment could be told.
#[derive(Debug, Default)]
pub(crate) struct Moments(Mutex<Vec<Weak<Later>>>);

impl Moments {
    /// Returns which chunks are durable now: all but the metadata chunks that are committed later. They are noted as
    /// long as somebody has the result. Of data chunks an index tells as of the moment.
    pub(crate) fn begin(&self) -> CommittedSlots {
        let later = Arc::new(Later::default());
        let mut moments = self.0.lock();
        moments.retain(|moment| moment.strong_count() > 0);
        moments.push(Arc::downgrade(&later));
        CommittedSlots::all_but(later)
    }

    /// Notes what is committed.
    pub(crate) fn committed(&self, prepared: &Prepared) {
        for moment in self.0.lock().iter().filter_map(Weak::upgrade) {
            moment.extend(prepared.chunks.iter().filter(|(_, _, kind)| *kind != ChunkKind::Data).map(|(_, address, _)| *address));
        }
    }
}

impl Placement {
    /// Begins with no number given out and no container waiting.
    pub(crate) fn new(ownership: &Ownership) -> Placement {
        let opened = ownership.numbers().map(|number| (number as u16, Opened::new(1))).collect();
        Placement { state: Mutex::new(State { opened, creating: BTreeSet::new(), turn: 0, numbers: None }) }
    }

    /// Continues after replay: sets the next number of each partition, and leaves open containers to the next writers.
    pub(crate) fn resume(&self, next_number: impl Fn(u16) -> u32, open: impl Iterator<Item = ContainerId>) {
        let mut state = self.state.lock();
        for (partition, opened) in &mut state.opened {
            opened.next_number = next_number(*partition);
        }
        open.for_each(|container| state.add_idle(container));
    }

    /// Continues after replay in a store with whole files. Containers of earlier openings get no writer. They are
    /// `unsealed`. The log starts at `log_start`.
    pub(crate) fn resume_whole(&self, next_number: impl Fn(u16) -> u32, unsealed: impl Iterator<Item = ContainerId>, log_start: Position) {
        self.resume(next_number, std::iter::empty());
        let mut state = self.state.lock();
        let used = state.last_given_out().map(|last| (last.partition(), last.number())).collect();
        state.numbers = Some(Numbers::new(log_start, unsealed, used));
    }

    /// Chooses a container for a writer: one that waits, or else a new one. Partitions take turns. Errors: all of them
    /// went to other owners.
    pub(crate) fn next(&self) -> Result<Next> {
        let mut state = self.state.lock();
        let State { opened, turn, .. } = &mut *state;
        let in_turn = opened.range(*turn..).chain(opened.range(..*turn));
        let in_turn: Vec<u16> = in_turn.filter(|(_, opened)| !opened.is_leaving).map(|(partition, _)| *partition).collect();
        let first = *in_turn.first().ok_or(StorageError::NoPartition)?;
        *turn = first.wrapping_add(1);
        let idle = in_turn.iter().find_map(|partition| opened.get_mut(partition)?.idle.pop_front());
        Ok(idle.map_or(Next::New(first), Next::Open))
    }

    /// Leaves an open container to the next writer.
    pub(crate) fn leave(&self, container: ContainerId) {
        self.state.lock().add_idle(container);
    }

    /// Returns whether a partition takes new containers.
    pub(crate) fn takes(&self, partition: u16) -> bool {
        self.state.lock().opened.get(&partition).is_some_and(|opened| !opened.is_leaving)
    }

    /// Gives out nothing in a partition any more: neither numbers nor containers. Returns false if it is not opened.
    pub(crate) fn begin_leaving(&self, partition: u16) -> bool {
        let mut state = self.state.lock();
        let Some(opened) = state.opened.get_mut(&partition) else { return false };
        opened.is_leaving = true;
        opened.idle.clear();
        true
    }

    /// Returns how a partition ends that is being left. `None`: a container of it is being made, or the log does not
    /// say yet that all its containers are settled. Then the next batch will say it, as far as it is so.
    pub(crate) fn ended(&self, partition: u16) -> Option<(u32, Position)> {
        let mut state = self.state.lock();
        let last = state.opened.get(&partition).filter(|opened| opened.is_leaving)?.last();
        let is_made = !state.creating.iter().any(|container| container.partition() == partition);
        let numbers = state.numbers.as_mut()?;
        (is_made && numbers.has_settled(ContainerId::new(partition, last))).then(|| (last, numbers.since()))
    }

    /// Removes a partition.
    pub(crate) fn remove(&self, partition: u16) {
        let mut state = self.state.lock();
        state.opened.remove(&partition);
        state.numbers.iter_mut().for_each(|numbers| numbers.remove(partition));
    }

    /// Adds a partition of which the log says, from `since` on, that all containers up to number `last` are settled.
    pub(crate) fn add(&self, partition: u16, last: u32, since: Position) {
        let mut state = self.state.lock();
        state.opened.insert(partition, Opened::new(last.saturating_add(1)));
        state.numbers.iter_mut().for_each(|numbers| numbers.add(ContainerId::new(partition, last), since));
    }

    /// Gives out the next number of a partition.
    pub(crate) fn give_out(&self, partition: u16) -> Result<ContainerId> {
        self.state.lock().give_out(partition)
    }

    /// Takes the numbers of a partition up to this one as given out.
    pub(crate) fn skip_to(&self, container: ContainerId) {
        if let Some(opened) = self.state.lock().opened.get_mut(&container.partition()) {
            opened.next_number = opened.next_number.max(container.number().saturating_add(1));
        }
    }

    /// Gives out a number for a container that will be opened. Until [`end_creation`](Self::end_creation) it counts as
    /// a container without slots.
    pub(crate) fn begin_creation(&self, partition: u16) -> Result<ContainerId> {
        let mut state = self.state.lock();
        let id = state.give_out(partition)?;
        state.creating.insert(id);
        Ok(id)
    }

    /// Notes that a durable batch names a container.
    pub(crate) fn named(&self, container: ContainerId) {
        self.state.lock().numbers.iter_mut().for_each(|numbers| numbers.named(container));
    }

    /// Notes that containers are in the log, sealed, or that their files are gone.
    pub(crate) fn settled<'a>(&self, containers: impl Iterator<Item = &'a ContainerId>) {
        if let Some(numbers) = &mut self.state.lock().numbers {
            containers.for_each(|container| numbers.settled(*container));
        }
    }

    /// Returns whether this opening gave out a number, or may give it out, in a store with whole files.
    pub(crate) fn is_own(&self, container: ContainerId) -> bool {
        self.state.lock().numbers.as_ref().is_some_and(|numbers| numbers.is_own(container))
    }

    /// Returns whether every container that was given a number is named in the log or gone, or is among `unsealed`.
    pub(crate) fn has_settled_all_but(&self, unsealed: impl Fn(ContainerId) -> bool) -> bool {
        let state = self.state.lock();
        state.creating.is_empty() && state.numbers.as_ref().is_none_or(|numbers| numbers.has_settled_all_but(unsealed))
    }

    /// Returns what the next batch must say of the numbers of each partition, or may say if it `has_records` anyway.
    pub(crate) fn used_numbers(&self, has_records: bool) -> Vec<Used> {
        let state = self.state.lock();
        let Some(numbers) = &state.numbers else { return Vec::new() };
        if !has_records && !numbers.is_due(state.last_given_out()) {
            return Vec::new();
        }
        state.last_given_out().map(|last| numbers.used(last)).collect()
    }

    /// Notes that the batch at `start` has said it of these.
    pub(crate) fn logged_numbers(&self, used: &[Used], start: Position) {
        self.state.lock().numbers.iter_mut().for_each(|numbers| numbers.logged(used, start));
    }

    /// Returns from where on the log is needed for the numbers; `None`: it is not.
    pub(crate) fn numbers_since(&self) -> Option<Position> {
        self.state.lock().numbers.as_ref().map(Numbers::since)
    }

    /// Makes the next batch say which numbers are used, if the log before `position` is needed for it.
    pub(crate) fn renew_numbers(&self, position: Position) {
        self.state.lock().numbers.iter_mut().for_each(|numbers| numbers.renew_before(position));
    }

    /// Call when the container is among the open ones, or when its creation failed.
    pub(crate) fn end_creation(&self, container: ContainerId) {
        self.state.lock().creating.remove(&container);
    }

    /// Returns the last number given out in a partition, 0 if none was. `None`: it is not opened.
    pub(crate) fn last_number(&self, partition: u16) -> Option<u32> {
        self.state.lock().opened.get(&partition).map(Opened::last)
    }

    /// Returns how many numbers were given out in the opened partitions since the store was created.
    pub(crate) fn given_out_count(&self) -> u64 {
        self.state.lock().opened.values().map(|opened| u64::from(opened.last())).sum()
    }

    /// Returns the numbers given out, and the containers among them that are not open yet.
    pub(crate) fn given_out(&self) -> CommittedSlots {
        let state = self.state.lock();
        let next_numbers = state.opened.iter().map(|(partition, opened)| (*partition, opened.next_number)).collect();
        CommittedSlots { next_numbers, open: state.creating.iter().map(|id| (*id, 0)).collect(), later: None }
    }
}

impl Opened {
    fn new(next_number: u32) -> Opened {
        Opened { next_number, idle: VecDeque::new(), is_leaving: false }
    }

    /// Returns the last number given out.
    fn last(&self) -> u32 {
        self.next_number.saturating_sub(1)
    }
}

impl State {
    fn add_idle(&mut self, container: ContainerId) {
        if let Some(opened) = self.opened.get_mut(&container.partition()).filter(|opened| !opened.is_leaving) {
            opened.idle.push_back(container);
        }
    }

    fn give_out(&mut self, partition: u16) -> Result<ContainerId> {
        let opened = self.opened.get_mut(&partition).filter(|opened| !opened.is_leaving);
        let opened = opened.ok_or(StorageError::NotOpened { partition })?;
        let number = opened.next_number;
        let after = number.checked_add(1).ok_or(StorageError::NumbersUsedUp { partition })?;
        let container = ContainerId::new(partition, number);
        if let Some(numbers) = &mut self.numbers {
            numbers.give_out(container)?;
        }
        opened.next_number = after;
        Ok(container)
    }

    /// Returns the last number given out in each partition.
    fn last_given_out(&self) -> impl Iterator<Item = ContainerId> {
        self.opened.iter().map(|(partition, opened)| ContainerId::new(*partition, opened.last()))
    }
}

impl CommittedSlots {
    /// Says of all chunks that they were durable, but of those metadata chunks.
    pub(crate) fn all_but(later: Arc<Later>) -> CommittedSlots {
        CommittedSlots { next_numbers: BTreeMap::new(), open: BTreeMap::new(), later: Some(later) }
    }

    /// Adds how many slots unsealed containers had.
    pub(crate) fn extend(&mut self, open: impl Iterator<Item = (ContainerId, usize)>) {
        self.open.extend(open);
    }

    /// Returns how many slots of a container were durable, counted from the first; `usize::MAX`: all of them.
    pub fn of(&self, container: ContainerId) -> usize {
        if self.is_later(container) { 0 } else { self.open.get(&container).copied().unwrap_or(usize::MAX) }
    }

    /// Returns for each partition the number from which on containers are newer.
    pub fn ends(&self) -> impl Iterator<Item = (u16, u32)> + '_ {
        self.next_numbers.iter().map(|(partition, end)| (*partition, *end))
    }

    /// Returns the origins that may have got more chunks since.
    pub fn growing(&self) -> impl Iterator<Item = Origin> + '_ {
        self.open.keys().map(|container| Origin::from(*container))
    }

    /// Returns whether an origin may have got more chunks since.
    pub fn is_growing(&self, origin: Origin) -> bool {
        self.is_not_made(origin.container())
    }

    /// Returns whether the chunk at an address was durable.
    pub fn includes(&self, address: Address) -> bool {
        match &self.later {
            Some(later) => !later.0.lock().contains(&address),
            None => usize::from(address.slot()) < self.of(address.container()),
        }
    }

    /// Returns whether the number was given out later.
    pub(crate) fn is_later(&self, container: ContainerId) -> bool {
        self.later.is_none() && self.next_numbers.get(&container.partition()).is_none_or(|next| container.number() >= *next)
    }

    /// Returns whether the container had no file with chunks yet: it was being made, or its number was given out later.
    pub(crate) fn is_not_made(&self, container: ContainerId) -> bool {
        self.is_later(container) || self.open.contains_key(&container)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_oplog::Owned;

    fn placement() -> Placement {
        let owned = [2, 5].map(|number| Owned { number, epoch: 1 }).to_vec();
        Placement::new(&Ownership::of(9, owned).unwrap())
    }

    fn next(placement: &Placement) -> std::result::Result<ContainerId, u16> {
        match placement.next().unwrap() {
            Next::Open(id) => Ok(id),
            Next::New(partition) => Err(partition),
        }
    }

    #[test]
    fn partitions_take_turns_and_waiting_containers_come_before_new_ones() {
        let placement = placement();
        assert_eq!([(); 3].map(|()| next(&placement)), [Err(2), Err(5), Err(2)]);
        let (first, second, elsewhere) = (ContainerId::new(2, 1), ContainerId::new(2, 2), ContainerId::new(3, 1));
        [first, second, elsewhere].into_iter().for_each(|id| placement.leave(id));
        // The turn is that of partition 5, which has none.
        assert_eq!([(); 3].map(|()| next(&placement)), [Ok(first), Ok(second), Err(5)]);
    }

    #[test]
    fn a_number_is_given_out_once_and_counts_without_slots_until_its_container_is_open() {
        let placement = placement();
        let slot = |id| Address::new(id, 0);
        placement.resume(|partition| u32::from(partition) * 10, std::iter::empty());
        assert_eq!(placement.last_number(2), Some(19));
        let made = placement.give_out(2).unwrap();
        let making = placement.begin_creation(2).unwrap();
        let before = placement.given_out();
        placement.end_creation(making);
        let (later, after) = (placement.give_out(2).unwrap(), placement.given_out());
        assert_eq!([made, making, later].map(|id| id.number()), [20, 21, 22]);
        assert_eq!([made, making, later].map(|id| before.includes(slot(id))), [true, false, false]);
        assert_eq!([made, making, later].map(|id| before.is_not_made(id)), [false, true, true]);
        assert_eq!([made, making, later].map(|id| after.includes(slot(id))), [true; 3]);
        assert_eq!(placement.given_out_count(), 22 + 49);
        assert!(matches!(placement.give_out(3), Err(StorageError::NotOpened { partition: 3 })));
    }

    #[test]
    fn the_slots_that_an_open_container_had_are_included_and_no_more() {
        let placement = placement();
        let id = placement.give_out(5).unwrap();
        let mut committed = placement.given_out();
        committed.extend([(id, 3)].into_iter());
        assert_eq!([2, 3].map(|slot| committed.includes(Address::new(id, slot))), [true, false]);
    }
}
