//! Which entry of a cache goes next (M3.6).
//!
//! Entries are known by small numbers. Each policy keeps its entries in linked lists, so every call takes a bounded
//! time.
//!
//! * *lru*: the least recently used one.
//! * *2q* (Johnson and Shasha): a new entry waits in a short queue, where its uses do not count. The queue is a quarter
//!   of all bytes. An entry that comes back soon after it left the queue goes to the main list, in which the least
//!   recently used one goes. So catalogs of data that is read once do not displace the others.
//! * *hits* (LFU with dynamic aging): of the eight least recently used ones, the one with the least weight. The weight
//!   is the number of hits, and on top the weight that the last evicted one had when this one was used last. So old
//!   hits count less and less.

use crate::ContainerId;
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::str::FromStr;

/// How many of the least recently used entries *hits* compares.
const COMPARED: usize = 8;
/// The waiting queue of *2q* has at most one of so many bytes.
const WAITING_SHARE: usize = 4;
/// No entry.
const NONE: u32 = u32::MAX;

/// Decides which entry a cache evicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CachePolicy {
    /// The least recently used one.
    #[default]
    Lru,
    /// One that came back goes after those that were used once.
    TwoQueues,
    /// The one with the fewest hits among the least recently used ones; old hits count less.
    Hits,
}

impl CachePolicy {
    /// All policies, the default first.
    pub const ALL: [CachePolicy; 3] = [CachePolicy::Lru, CachePolicy::TwoQueues, CachePolicy::Hits];

    /// Returns its name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            CachePolicy::Lru => "lru",
            CachePolicy::TwoQueues => "2q",
            CachePolicy::Hits => "hits",
        }
    }
}

impl fmt::Display for CachePolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for CachePolicy {
    type Err = String;

    fn from_str(name: &str) -> Result<CachePolicy, String> {
        CachePolicy::ALL.into_iter().find(|policy| policy.name() == name).ok_or_else(|| format!("there is no policy {name:?}"))
    }
}

/// The order in which entries go.
#[derive(Debug)]
pub(crate) struct Order {
    policy: CachePolicy,
    links: Vec<Link>,
    /// The waiting queue of *2q*; empty with the other policies.
    waiting: List,
    main: List,
    /// The weight of the entry that was evicted last.
    evicted_weight: u64,
    entries: usize,
    /// Containers that left the waiting queue, oldest first; at most as many as there are entries.
    left: VecDeque<ContainerId>,
    /// The same containers.
    left_set: HashSet<ContainerId>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    newer: u32,
    older: u32,
    waits: bool,
    hits: u32,
    weight: u64,
    container: ContainerId,
    cost_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct List {
    newest: u32,
    oldest: u32,
    bytes: usize,
}

impl List {
    const EMPTY: List = List { newest: NONE, oldest: NONE, bytes: 0 };
}

/// Memory of the order for each entry, at most.
pub(crate) const ORDER_BYTES: usize = size_of::<Link>() + 3 * size_of::<ContainerId>();

impl Order {
    pub(crate) fn new(policy: CachePolicy) -> Order {
        Order {
            policy,
            links: Vec::new(),
            waiting: List::EMPTY,
            main: List::EMPTY,
            evicted_weight: 0,
            entries: 0,
            left: VecDeque::new(),
            left_set: HashSet::new(),
        }
    }

    /// Adds an entry for a container. `number` is not in use.
    pub(crate) fn insert(&mut self, number: u32, container: ContainerId, cost_bytes: usize) {
        let waits = self.policy == CachePolicy::TwoQueues && !self.left_set.contains(&container);
        let link = Link { newer: NONE, older: NONE, waits, hits: 0, weight: self.evicted_weight, container, cost_bytes };
        let at = number as usize;
        if at == self.links.len() {
            self.links.push(link);
        } else {
            self.links[at] = link;
        }
        self.entries += 1;
        self.push(number);
    }

    /// Notes that an entry was used so many times.
    pub(crate) fn touch(&mut self, number: u32, hits: u32) {
        let link = &mut self.links[number as usize];
        link.hits = link.hits.saturating_add(hits);
        link.weight = self.evicted_weight + u64::from(link.hits);
        if !link.waits {
            self.unlink(number);
            self.push(number);
        }
    }

    /// Removes an entry that is not evicted, but of no use any more.
    pub(crate) fn remove(&mut self, number: u32) {
        self.unlink(number);
        self.entries -= 1;
        self.forget_left();
    }

    /// Removes the entry that goes next, and returns it.
    pub(crate) fn evict(&mut self) -> Option<u32> {
        let number = match self.policy {
            CachePolicy::Lru => self.main.oldest,
            CachePolicy::TwoQueues => {
                let all_bytes = self.waiting.bytes + self.main.bytes;
                let is_long = self.waiting.bytes > all_bytes / WAITING_SHARE;
                if self.main.oldest == NONE || (is_long && self.waiting.oldest != NONE) { self.waiting.oldest } else { self.main.oldest }
            }
            CachePolicy::Hits => self.lightest(),
        };
        let link = *self.links.get(number as usize)?;
        self.unlink(number);
        self.entries -= 1;
        self.evicted_weight = link.weight;
        if link.waits && self.left_set.insert(link.container) {
            self.left.push_back(link.container);
        }
        self.forget_left();
        Some(number)
    }

    fn lightest(&self) -> u32 {
        let (mut lightest, mut at) = (self.main.oldest, self.main.oldest);
        for _ in 0..COMPARED {
            let Some(link) = self.links.get(at as usize) else { break };
            if link.weight < self.links[lightest as usize].weight {
                lightest = at;
            }
            at = link.newer;
        }
        lightest
    }

    /// Keeps at most as many containers that left as there are entries.
    fn forget_left(&mut self) {
        while self.left.len() > self.entries {
            if let Some(oldest) = self.left.pop_front() {
                self.left_set.remove(&oldest);
            }
        }
    }

    fn list(&mut self, waits: bool) -> &mut List {
        if waits { &mut self.waiting } else { &mut self.main }
    }

    fn push(&mut self, number: u32) {
        let link = self.links[number as usize];
        let list = self.list(link.waits);
        let older = std::mem::replace(&mut list.newest, number);
        list.bytes += link.cost_bytes;
        if older == NONE {
            list.oldest = number;
        } else {
            self.links[older as usize].newer = number;
        }
        let link = &mut self.links[number as usize];
        (link.newer, link.older) = (NONE, older);
    }

    fn unlink(&mut self, number: u32) {
        let Link { newer, older, waits, cost_bytes, .. } = self.links[number as usize];
        let list = self.list(waits);
        list.bytes -= cost_bytes;
        if newer == NONE {
            list.newest = older;
        }
        if older == NONE {
            list.oldest = newer;
        }
        if let Some(link) = self.links.get_mut(newer as usize) {
            link.older = older;
        }
        if let Some(link) = self.links.get_mut(older as usize) {
            link.newer = newer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The policies as they are described, on plain lists, the oldest first.
    #[derive(Default)]
    struct Model {
        waiting: Vec<Entry>,
        main: Vec<Entry>,
        left: Vec<ContainerId>,
        evicted_weight: u64,
    }

    #[derive(Clone, Copy)]
    struct Entry {
        number: u32,
        container: ContainerId,
        cost_bytes: usize,
        hits: u64,
        weight: u64,
    }

    impl Model {
        fn has(&self, number: u32) -> bool {
            self.waiting.iter().chain(&self.main).any(|entry| entry.number == number)
        }

        fn insert(&mut self, policy: CachePolicy, number: u32, container: ContainerId, cost_bytes: usize) {
            let entry = Entry { number, container, cost_bytes, hits: 0, weight: self.evicted_weight };
            let waits = policy == CachePolicy::TwoQueues && !self.left.contains(&container);
            if waits { self.waiting.push(entry) } else { self.main.push(entry) }
        }

        fn touch(&mut self, number: u32, hits: u32) {
            if let Some(at) = self.main.iter().position(|entry| entry.number == number) {
                let mut entry = self.main.remove(at);
                entry.hits += u64::from(hits);
                entry.weight = self.evicted_weight + entry.hits;
                self.main.push(entry);
            }
        }

        fn remove(&mut self, number: u32) {
            self.waiting.retain(|entry| entry.number != number);
            self.main.retain(|entry| entry.number != number);
            self.trim();
        }

        fn evict(&mut self, policy: CachePolicy) -> Option<u32> {
            let sum = |entries: &[Entry]| entries.iter().map(|entry| entry.cost_bytes).sum::<usize>();
            let (waiting, main) = (sum(&self.waiting), sum(&self.main));
            let gone = if self.main.is_empty() || waiting > (waiting + main) / 4 {
                if self.waiting.is_empty() {
                    return None;
                }
                let entry = self.waiting.remove(0);
                if !self.left.contains(&entry.container) {
                    self.left.push(entry.container);
                }
                entry
            } else {
                let mut at = 0;
                if policy == CachePolicy::Hits {
                    let compared = self.main.len().min(8);
                    at = (0..compared).min_by_key(|at| self.main[*at].weight).unwrap();
                }
                self.main.remove(at)
            };
            self.evicted_weight = gone.weight;
            self.trim();
            Some(gone.number)
        }

        fn trim(&mut self) {
            let entries = self.waiting.len() + self.main.len();
            self.left.drain(..self.left.len().saturating_sub(entries));
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Insert(u32, u32, usize),
        Touch(u32, u32),
        Remove(u32),
        Evict,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..24u32, 1..40u32, 1..100usize).prop_map(|(number, container, cost)| Step::Insert(number, container, cost)),
            4 => (0..24u32, 1..50u32).prop_map(|(number, hits)| Step::Touch(number, hits)),
            1 => (0..24u32).prop_map(Step::Remove),
            3 => Just(Step::Evict),
        ]
    }

    proptest! {
        #[test]
        fn m3_6_each_policy_evicts_what_its_description_says(policy in 0..3usize, steps in proptest::collection::vec(step(), 0..300)) {
            let policy = CachePolicy::ALL[policy];
            let (mut order, mut model) = (Order::new(policy), Model::default());
            // Numbers are given out in order, as a cache does.
            let mut known = 0;
            for step in steps {
                match step {
                    Step::Insert(number, container, cost_bytes) => {
                        let number = number.min(known);
                        if !model.has(number) {
                            known = known.max(number + 1);
                            let container = ContainerId::new(0, container);
                            order.insert(number, container, cost_bytes);
                            model.insert(policy, number, container, cost_bytes);
                        }
                    }
                    Step::Touch(number, hits) if model.has(number) => {
                        order.touch(number, hits);
                        model.touch(number, hits);
                    }
                    Step::Remove(number) if model.has(number) => {
                        order.remove(number);
                        model.remove(number);
                    }
                    Step::Touch(..) | Step::Remove(_) => {}
                    Step::Evict => prop_assert_eq!(order.evict(), model.evict(policy)),
                }
                prop_assert!(order.left.len() <= order.entries && order.left.len() == order.left_set.len());
            }
            while let Some(number) = model.evict(policy) {
                prop_assert_eq!(order.evict(), Some(number));
            }
            prop_assert_eq!(order.evict(), None);
        }
    }

    /// A cache of ten catalogs. Returns how many of five that are used again and again are still there after fifty
    /// others that are used once.
    fn kept_beside_a_scan(policy: CachePolicy) -> usize {
        let mut order = Order::new(policy);
        let mut here: Vec<Option<u32>> = Vec::new();
        let mut load = |container: u32, hits: u32| {
            let number = match here.iter().position(|known| *known == Some(container)) {
                Some(number) => number,
                None => {
                    if here.iter().flatten().count() == 10 {
                        let gone = order.evict().unwrap();
                        here[gone as usize] = None;
                    }
                    let number = here.iter().position(Option::is_none).unwrap_or(here.len());
                    here.resize(here.len().max(number + 1), None);
                    here[number] = Some(container);
                    order.insert(number as u32, ContainerId::new(0, container), 100);
                    number
                }
            };
            order.touch(number as u32, hits);
            here.iter().flatten().filter(|container| **container < 5).count()
        };
        for round in 0..3 {
            (0..5).for_each(|used_often| {
                load(used_often, 30);
            });
            (0..6).for_each(|once| {
                load(100 + 10 * round + once, 1);
            });
        }
        (0..5).for_each(|used_often| {
            load(used_often, 30);
        });
        (1000..1050).map(|once| load(once, 1)).last().unwrap()
    }

    #[test]
    fn m3_6_what_is_read_once_displaces_what_is_used_again_and_again_only_with_lru() {
        let kept = CachePolicy::ALL.map(kept_beside_a_scan);
        assert_eq!(kept[0], 0);
        assert!(kept[1] >= 4 && kept[2] >= 4, "{kept:?}");
    }

    #[test]
    fn m3_6_policies_have_names() {
        for policy in CachePolicy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert!("fifo".parse::<CachePolicy>().is_err());
    }
}
