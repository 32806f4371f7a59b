//! A map with a bound in bytes that evicts the least recently used entries.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Evicts the least recently used entry first. Does not keep an entry that costs more than the limit.
#[derive(Debug)]
pub(crate) struct Lru<K, V> {
    entries: HashMap<K, Entry<V>>,
    /// Keys by the time of their last use.
    order: BTreeMap<u64, K>,
    clock: u64,
    used_bytes: usize,
    limit_bytes: usize,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    cost_bytes: usize,
    used_at: u64,
}

impl<K: Hash + Eq + Copy, V: Clone> Lru<K, V> {
    pub(crate) fn new(limit_bytes: usize) -> Lru<K, V> {
        Lru { entries: HashMap::new(), order: BTreeMap::new(), clock: 0, used_bytes: 0, limit_bytes }
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.get_mut(key)?;
        self.clock += 1;
        self.order.remove(&entry.used_at);
        self.order.insert(self.clock, *key);
        entry.used_at = self.clock;
        Some(entry.value.clone())
    }

    pub(crate) fn insert(&mut self, key: K, value: V, cost_bytes: usize) {
        self.remove(&key);
        if cost_bytes > self.limit_bytes {
            return;
        }
        while self.used_bytes + cost_bytes > self.limit_bytes {
            let Some((_, oldest)) = self.order.first_key_value() else { break };
            let oldest = *oldest;
            self.remove(&oldest);
        }
        self.clock += 1;
        self.order.insert(self.clock, key);
        self.entries.insert(key, Entry { value, cost_bytes, used_at: self.clock });
        self.used_bytes += cost_bytes;
    }

    pub(crate) fn remove(&mut self, key: &K) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.used_at);
            self.used_bytes -= entry.cost_bytes;
        }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.keys()
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes_first_and_the_bound_holds() {
        let mut cache = Lru::new(10);
        for key in 0..5 {
            cache.insert(key, key * 10, 2);
        }
        assert_eq!(cache.get(&0), Some(0));
        cache.insert(5, 50, 3);
        assert_eq!((cache.get(&0), cache.get(&1), cache.get(&2), cache.get(&3)), (Some(0), None, None, Some(30)));
        assert_eq!(cache.used_bytes(), 9);
        cache.insert(6, 60, 11);
        assert_eq!((cache.get(&6), cache.used_bytes()), (None, 9));
        cache.insert(0, 1, 1);
        assert_eq!((cache.get(&0), cache.used_bytes()), (Some(1), 8));
    }
}
