//! What may have changed between two spaces, found from their layers alone. What both share is never looked at, so the
//! cost follows the changes, not the size of the spaces.
//!
//! Whatever differs is in a layer that only one of them has. So nothing is missed, whoever changed it and whatever
//! times a file shows. Something that was changed and changed back is found, too.

use crate::entry::{entry_key, key_in_map};
use crate::error::Result;
use crate::layers::{Layers, Node, STEP_OBJECTS, path};
use crate::space::Space;
use crate::spaces::Spaces;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Things in their order, and where to go on. `None`: these were the last.
type Page<T> = (Vec<T>, Option<T>);

impl Spaces {
    /// Returns some of the first keys with `from <= key < to` whose entries may differ between two spaces, and the key
    /// at which to go on if there may be more. There may be more even if these are few, or none. Call only for spaces
    /// that do not change meanwhile.
    pub fn changed_keys(&self, pair: [&Space; 2], from: &[u8], to: &[u8]) -> Result<Page<Vec<u8>>> {
        let tops = pair.map(|space| space.gate.read().record.layer);
        let (keys, end) = self.shared.layers.changed_keys(tops, from, to)?;
        Ok((keys, (end.as_slice() < to).then_some(end)))
    }

    /// Does the same for blocks with `first <= block < last`.
    pub fn changed_blocks(&self, pair: [&Space; 2], first: u64, last: u64) -> Result<Page<u64>> {
        let tops = pair.map(|space| space.gate.read().record.layer);
        let (blocks, next) = self.shared.layers.candidates(tops, first, last)?;
        Ok((blocks.into_keys().collect(), (next < last).then_some(next)))
    }
}

impl Layers {
    fn changed_keys(&self, tops: [u32; 2], from: &[u8], to: &[u8]) -> Result<(Vec<Vec<u8>>, Vec<u8>)> {
        let nodes = self.nodes();
        let chain = |top| path(&nodes, top, |_| true).collect::<Result<Vec<&Arc<Node>>>>();
        let chains = [chain(tops[0])?, chain(tops[1])?];
        let numbers = chains.each_ref().map(|chain| chain.iter().map(|node| node.number).collect::<BTreeSet<u32>>());
        let (mut keys, mut end) = (BTreeSet::new(), to.to_vec());
        for (chain, other) in [(&chains[0], &numbers[1]), (&chains[1], &numbers[0])] {
            for node in chain.iter().take_while(|node| !other.contains(&node.number)) {
                for map in node.layer.maps() {
                    let (entries, complete) =
                        self.entries_in(node.partition, &entry_key(map, from), &entry_key(map, &end), STEP_OBJECTS)?;
                    end = key_in_map(&complete)?.to_vec();
                    keys.extend(entries.into_iter().map(|(key, _)| key));
                }
            }
        }
        keys.split_off(&end);
        Ok((keys.into_iter().collect(), end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disks::{BLOCK, create_filesystem, options};
    use crate::testing::{TestStore, bytes};
    use crate::{At, Owner};

    const OWNER: Owner = Owner::Filesystems;

    fn keys(spaces: &Spaces, pair: [&Space; 2]) -> Vec<u8> {
        let (mut found, mut from) = (Vec::new(), vec![0]);
        loop {
            let (keys, next) = spaces.changed_keys(pair, &from, &[0xff]).unwrap();
            found.extend(keys.into_iter().map(|key| key[0]));
            let Some(next) = next else { return found };
            assert!(next > from);
            from = next;
        }
    }

    fn blocks(spaces: &Spaces, pair: [&Space; 2]) -> Vec<u64> {
        let (mut found, mut from) = (Vec::new(), 0);
        loop {
            let (blocks, next) = spaces.changed_blocks(pair, from, u64::MAX).unwrap();
            found.extend(blocks);
            let Some(next) = next else { return found };
            from = next;
        }
    }

    #[test]
    fn what_changed_is_found_and_nothing_else_through_snapshots_merges_and_a_rollback() {
        let mut store = TestStore::new();
        let spaces = store.spaces(options());
        let space = create_filesystem(&spaces, "f").unwrap();
        let put = |keys: &[u8]| space.submit_entries(keys.iter().map(|key| (vec![*key], Some(vec![*key | 1]))).collect()).unwrap();
        let write = |block: u64, seed| space.write(At::new(block, 0), &bytes(seed, BLOCK as usize)).unwrap();
        put(&(1..100).collect::<Vec<u8>>());
        (1..40).for_each(|block| write(block, block));
        let first = spaces.snapshot(OWNER, "f", "first").unwrap();
        let second = spaces.snapshot(OWNER, "f", "second").unwrap();
        assert_eq!((keys(&spaces, [&first, &second]), blocks(&spaces, [&first, &second])), (vec![], vec![]));
        // In three layers, with steps of four objects.
        for round in 0u8..3 {
            put(&(10 * round + 10..10 * round + 17).collect::<Vec<_>>());
            space.submit_entries(vec![(vec![90 + round], None)]).unwrap();
            (0..9).for_each(|block| write(100 + 10 * u64::from(round) + block, 7));
            space.discard(At::new(u64::from(round) + 1, 0), u64::from(BLOCK)).unwrap();
            spaces.snapshot(OWNER, "f", &format!("round {round}")).unwrap();
        }
        let expected_keys: Vec<u8> = [10u8, 20, 30].into_iter().flat_map(|from| from..from + 7).chain(90..93).collect();
        let expected_blocks: Vec<u64> = (1..4).chain((100..109).chain(110..119).chain(120..129)).collect();
        let last = spaces.get(OWNER, "round 2").unwrap();
        assert_eq!((keys(&spaces, [&first, &last]), blocks(&spaces, [&first, &last])), (expected_keys.clone(), expected_blocks.clone()));
        // The layers between are taken in.
        for round in 0..2 {
            spaces.delete(OWNER, &format!("round {round}"), spaces.engine().permit_deletion("delete").unwrap()).unwrap();
        }
        assert!(spaces.resume_deletions(&|| true).unwrap());
        assert_eq!((keys(&spaces, [&last, &second]), blocks(&spaces, [&last, &second])), (expected_keys.clone(), expected_blocks.clone()));
        // What a rollback took back is found on the other side.
        spaces.rollback(OWNER, "f", "first", spaces.engine().permit_deletion("roll back").unwrap()).unwrap();
        put(&[5]);
        let back = spaces.snapshot(OWNER, "f", "back").unwrap();
        assert_eq!(keys(&spaces, [&back, &first]), [5]);
        assert_eq!(keys(&spaces, [&last, &back]), [&[5], &expected_keys[..]].concat());
        assert_eq!(blocks(&spaces, [&last, &back]), expected_blocks);
    }
}
