//! Entries against maps in memory: random changes, snapshots, clones, rollbacks and deletions, with merging of layers
//! at any time between. Some blocks are written too, as they lie in the same maps.

use super::*;
use crate::disks::{BLOCK, create_filesystem, options, read};
use crate::entry::{entries_end, entry_key, is_tombstone, key_in_map};
use crate::testing::{TestStore, bytes};
use onefold_ground::CrashPolicy;
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

const OWNER: Owner = Owner::Filesystems;
const BLOCK_BYTES: usize = BLOCK as usize;
/// The furthest end of a range: no key is longer.
const LAST: [u8; MAX_ENTRY_KEY_BYTES + 1] = [0xff; MAX_ENTRY_KEY_BYTES + 1];

type Key = Vec<u8>;
type Change = (Key, Option<Vec<u8>>);

/// What a filesystem has: its entries, and the seeds of its blocks.
#[derive(Clone, Debug, Default, PartialEq)]
struct Known {
    entries: BTreeMap<Key, Vec<u8>>,
    blocks: BTreeMap<u64, u64>,
}

#[derive(Clone, Debug)]
enum Step {
    Submit {
        space: usize,
        changes: Vec<Change>,
    },
    Clear {
        space: usize,
    },
    Write {
        space: usize,
        block: u64,
        seed: u64,
    },
    /// Changes above a snapshot, which is then taken in, perhaps in part.
    Merge {
        space: usize,
        changes: Vec<Change>,
        steps: usize,
    },
    Snapshot {
        space: usize,
    },
    Clone {
        space: usize,
        is_read_only: bool,
    },
    Rollback {
        space: usize,
        snapshot: usize,
    },
    Rename {
        space: usize,
    },
    Delete {
        space: usize,
    },
    Clean {
        steps: usize,
    },
    List {
        space: usize,
        from: Key,
        to: Key,
        limit: usize,
    },
    Reopen,
}

fn key() -> impl Strategy<Value = Key> {
    let byte = || prop_oneof![4 => 0x61u8..0x65, 1 => Just(0), 1 => Just(0xff)];
    prop_oneof![12 => proptest::collection::vec(byte(), 0..3), 1 => Just(vec![0xff; MAX_ENTRY_KEY_BYTES])]
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let value = prop_oneof![3 => proptest::collection::vec(any::<u8>(), 1..5).prop_map(Some), 3 => Just(None)];
    proptest::collection::vec((key(), value), 0..9)
}

fn step() -> impl Strategy<Value = Step> {
    let space = || 0usize..8;
    prop_oneof![
        10 => (space(), changes()).prop_map(|(space, changes)| Step::Submit { space, changes }),
        1 => space().prop_map(|space| Step::Clear { space }),
        2 => (space(), 0u64..4, 1u64..5).prop_map(|(space, block, seed)| Step::Write { space, block: block << 28, seed }),
        5 => (space(), changes(), 0usize..6).prop_map(|(space, changes, steps)| Step::Merge { space, changes, steps }),
        4 => space().prop_map(|space| Step::Snapshot { space }),
        3 => (space(), proptest::bool::weighted(0.2)).prop_map(|(space, is_read_only)| Step::Clone { space, is_read_only }),
        2 => (space(), space()).prop_map(|(space, snapshot)| Step::Rollback { space, snapshot }),
        1 => space().prop_map(|space| Step::Rename { space }),
        3 => space().prop_map(|space| Step::Delete { space }),
        6 => (0usize..6).prop_map(|steps| Step::Clean { steps }),
        4 => (space(), key(), key(), 0usize..7).prop_map(|(space, from, to, limit)| Step::List { space, from, to, limit }),
        1 => Just(Step::Reopen),
    ]
}

/// A store with what must be in it.
struct Scene {
    store: TestStore,
    spaces: Option<Arc<Spaces>>,
    model: BTreeMap<String, Known>,
    next: usize,
}

/// Returns the entries of a range, page by page.
fn list(space: &Space, from: &[u8], to: &[u8], limit: usize) -> BTreeMap<Key, Vec<u8>> {
    let (mut all, mut next) = (BTreeMap::new(), Some(from.to_vec()));
    while let Some(at) = next {
        let (page, further) = space.entries(&at, to, limit).unwrap();
        assert!(page.len() <= limit && page.is_sorted());
        assert!(page.iter().all(|(key, _)| *at <= key[..] && further.as_ref().is_none_or(|further| key < further)));
        assert!(further.as_ref().is_none_or(|further| (at < *further) || limit == 0) && further.as_deref() < Some(to));
        all.extend(page);
        next = further.filter(|_| limit > 0);
    }
    all
}

impl Scene {
    fn new() -> Scene {
        let mut store = TestStore::new();
        let spaces = Arc::new(store.spaces(options()));
        create_filesystem(&spaces, "f0").unwrap();
        Scene { store, spaces: Some(spaces), model: BTreeMap::from([("f0".into(), Known::default())]), next: 1 }
    }

    fn spaces(&self) -> &Spaces {
        self.spaces.as_ref().unwrap()
    }

    fn name(&self, at: usize) -> Option<String> {
        self.model.keys().nth(at % self.model.len().max(1)).cloned()
    }

    fn new_name(&mut self) -> String {
        self.next += 1;
        format!("f{}", self.next)
    }

    fn reopen(&mut self) {
        self.spaces().flush().unwrap();
        self.spaces = None;
        self.store.reopen();
        self.spaces = Some(Arc::new(self.store.spaces(options())));
    }

    fn clean(&self, steps: usize) -> bool {
        let left = Cell::new(steps);
        let go_on = || {
            left.set(left.get().saturating_sub(1));
            left.get() > 0
        };
        self.spaces().resume_deletions(&go_on).unwrap()
    }

    fn step(&mut self, step: Step) {
        let Some(name) = self.name(match step {
            Step::Submit { space, .. } | Step::Write { space, .. } | Step::Snapshot { space } | Step::Rename { space } => space,
            Step::Clone { space, .. } | Step::Rollback { space, .. } | Step::Delete { space } | Step::List { space, .. } => space,
            Step::Clear { space } | Step::Merge { space, .. } => space,
            Step::Clean { .. } | Step::Reopen => 0,
        }) else {
            let name = self.new_name();
            create_filesystem(self.spaces(), &name).unwrap();
            self.model.insert(name, Known::default());
            return;
        };
        let space = self.spaces().get(OWNER, &name).unwrap();
        let is_read_only = space.is_read_only();
        let known = self.model[&name].clone();
        let refused = |result: Result<()>| assert!(matches!(result, Err(SpaceError::ReadOnly { .. })));
        match step {
            Step::Submit { changes, .. } => self.submit(&name, changes),
            Step::Clear { .. } => self.submit(&name, known.entries.into_keys().map(|key| (key, None)).collect()),
            Step::Write { block, seed, .. } => {
                let result = space.write(At::new(block, 0), &bytes(seed, BLOCK_BYTES));
                if is_read_only {
                    return refused(result);
                }
                result.unwrap();
                self.model.get_mut(&name).unwrap().blocks.insert(block, seed);
            }
            Step::Merge { changes, steps, .. } if !is_read_only => {
                self.spaces().snapshot(OWNER, &name, "below").unwrap();
                self.submit(&name, changes);
                self.spaces().delete(OWNER, "below", self.spaces().engine().permit_deletion("delete").unwrap()).unwrap();
                self.clean(steps);
            }
            Step::Merge { .. } => {}
            Step::Snapshot { .. } => {
                let new = self.new_name();
                let result = self.spaces().snapshot(OWNER, &name, &new);
                if is_read_only {
                    return refused(result.map(drop));
                }
                assert_eq!(result.unwrap().kind(), SpaceKind::FilesystemSnapshot);
                self.model.insert(new, known);
            }
            Step::Clone { is_read_only, .. } => {
                let new = self.new_name();
                let clone = self.spaces().make_clone(OWNER, &name, &new, is_read_only).unwrap();
                assert_eq!(clone.kind(), SpaceKind::FilesystemClone);
                self.model.insert(new, known);
            }
            Step::Rollback { snapshot, .. } => {
                let snapshot = self.name(snapshot).unwrap();
                let to_read_only = self.spaces().get(OWNER, &snapshot).unwrap().is_read_only();
                match self.spaces().rollback(OWNER, &name, &snapshot, self.spaces().engine().permit_deletion("roll back").unwrap()) {
                    Ok(()) => {
                        assert!(!is_read_only && to_read_only);
                        self.model.insert(name, self.model[&snapshot].clone());
                    }
                    Err(SpaceError::ReadOnly { .. }) => assert!(is_read_only),
                    Err(SpaceError::NoSnapshot { .. }) => assert!(!to_read_only),
                    Err(SpaceError::Unrelated { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Rename { .. } => {
                let new = self.new_name();
                self.spaces().rename(OWNER, &name, &new).unwrap();
                self.model.remove(&name);
                self.model.insert(new, known);
            }
            Step::Delete { .. } => {
                self.spaces().delete(OWNER, &name, self.spaces().engine().permit_deletion("delete").unwrap()).unwrap();
                self.model.remove(&name);
                assert!(matches!(space.entry(b"a"), Err(SpaceError::Deleted { .. })));
            }
            Step::Clean { steps } => drop(self.clean(steps)),
            Step::List { from, to, limit, .. } => {
                let expected = if from < to && limit > 0 { known.entries.range(from.clone()..to.clone()).collect() } else { Vec::new() };
                assert!(list(&space, &from, &to, limit).iter().eq(expected), "{from:?} to {to:?}");
            }
            Step::Reopen => self.reopen(),
        }
    }

    fn submit(&mut self, name: &str, changes: Vec<Change>) {
        let space = self.spaces().get(OWNER, name).unwrap();
        let result = space.submit_entries(changes.clone());
        if space.is_read_only() {
            return assert!(matches!(result, Err(SpaceError::ReadOnly { .. })));
        }
        result.unwrap();
        let entries = &mut self.model.get_mut(name).unwrap().entries;
        for (key, value) in changes {
            match value {
                Some(value) => drop(entries.insert(key, value)),
                None => drop(entries.remove(&key)),
            }
        }
    }

    fn verify(&self) {
        let names: Vec<_> = self.spaces().list().into_iter().map(|info| info.record.name).collect();
        assert_eq!(names, self.model.keys().cloned().collect::<Vec<_>>());
        let keys: Vec<&Key> = self.model.values().flat_map(|known| known.entries.keys()).collect();
        for (name, known) in &self.model {
            let space = self.spaces().get(OWNER, name).unwrap();
            check(&space, known, &keys, name);
        }
    }

    /// After cleaning, the layers are those that the spaces need, the counts are right, and every tombstone hides an
    /// entry.
    fn verify_clean(&mut self) {
        self.spaces().flush().unwrap();
        assert!(self.spaces().resume_deletions(&|| true).unwrap());
        self.verify();
        self.verify_tombstones();
        let users = self.spaces().users();
        for node in self.spaces().shared.layers.all() {
            let users = &users[&node.number];
            assert!(users.spaces > 0 || users.children.len() > 1, "layer {} is superfluous", node.number);
        }
        let all: Vec<_> = self.model.keys().map(|name| self.spaces().get(OWNER, name).unwrap()).collect();
        let all: Vec<_> = all.iter().map(|space| &**space).collect();
        self.store.check_counts(&all);
    }

    fn verify_tombstones(&self) {
        let layers = &self.spaces().shared.layers;
        // Before two maps are one, the upper one hides the lower.
        for node in layers.all().iter().filter(|node| !node.layer.is_dropped && node.layer.merging.is_none()) {
            let stored = layers.engine().range(node.partition, &entry_key(node.layer.map, &[]), &entries_end(node.layer.map), usize::MAX);
            let tombstones: Vec<Key> = stored.unwrap().into_iter().filter(|(_, value)| is_tombstone(value)).map(|(key, _)| key).collect();
            let hidden: Vec<&[u8]> = tombstones.iter().map(|key| key_in_map(key).unwrap()).collect();
            assert!(layers.entries_below(node, &hidden).unwrap().into_iter().all(|is_below| is_below), "layer {}", node.number);
        }
    }
}

/// A space shows exactly this.
fn check(space: &Space, known: &Known, keys: &[&Key], name: &str) {
    assert_eq!(list(space, &[], &LAST, 3), known.entries, "{name}");
    for key in keys {
        assert_eq!(space.entry(key).unwrap().as_ref(), known.entries.get(*key), "{key:?} of {name}");
    }
    for block in (0..4).map(|block| block << 28) {
        let expected = known.blocks.get(&block).map_or(vec![0; BLOCK_BYTES], |seed| bytes(*seed, BLOCK_BYTES));
        let mut found = vec![1; BLOCK_BYTES];
        space.read(At::new(block, 0), &mut found).unwrap();
        assert!(found == expected, "block {block} of {name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn entries_are_those_of_a_map_through_snapshots_clones_and_merges(steps in proptest::collection::vec(step(), 1..60)) {
        let mut scene = Scene::new();
        for step in steps {
            scene.step(step);
        }
        scene.verify();
        scene.verify_tombstones();
        scene.reopen();
        scene.verify();
        scene.verify_clean();
        while let Some(name) = scene.name(0) {
            scene.step(Step::Delete { space: 0 });
            prop_assert!(!scene.model.contains_key(&name));
        }
        scene.verify_clean();
        let left: Vec<_> = (0..2u16).flat_map(|of| scene.spaces().engine().range(of, b"E", b"F", 9).unwrap()).collect();
        prop_assert_eq!(left, []);
        prop_assert!(scene.spaces().shared.layers.all().is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn entries_of_frozen_spaces_stay_whatever_is_done_to_them(
        before in proptest::collection::vec(step(), 1..25),
        after in proptest::collection::vec(step(), 1..25),
    ) {
        let mut scene = Scene::new();
        before.into_iter().for_each(|step| scene.step(step));
        let (then, spaces) = (scene.model.clone(), scene.spaces.clone().unwrap());
        let frozen = spaces.frozen(&|_| true).unwrap();
        for step in after.into_iter().filter(|step| !matches!(step, Step::Reopen)) {
            scene.step(step);
        }
        scene.spaces().flush().unwrap();
        prop_assert!(scene.clean(usize::MAX));
        for info in frozen.list() {
            let known = &then[&info.record.name];
            check(frozen.get(info.number).unwrap(), known, &known.entries.keys().collect::<Vec<_>>(), &info.record.name);
        }
        drop(frozen);
        scene.verify_clean();
    }
}

#[test]
fn a_crash_at_any_moment_loses_no_entry() {
    let entries = |seed: u8, keys: std::ops::Range<u8>| -> Vec<Change> {
        keys.map(|key| (vec![key], (!(key + seed).is_multiple_of(5)).then(|| vec![seed, key]))).collect()
    };
    let mut crashed = 0;
    for seed in 0..150u64 {
        let mut scene = Scene::new();
        scene.submit("f0", entries(1, 0..30));
        scene.spaces().flush().unwrap();
        let mut states = vec![scene.model["f0"].clone()];
        scene.store.ground.crash_after_operations(seed % 50);
        let spaces = scene.spaces.take().unwrap();
        let space = spaces.get(OWNER, "f0").unwrap();
        let mut run = || -> Result<()> {
            spaces.snapshot(OWNER, "f0", "then")?;
            for (seed, keys) in [(2, 10..40), (3, 0..12)] {
                let mut next = states.last().unwrap().clone();
                for (key, value) in entries(seed, keys.clone()) {
                    next.entries.remove(&key);
                    next.entries.extend(value.map(|value| (key, value)));
                }
                states.push(next);
                space.submit_entries(entries(seed, keys))?;
                space.flush()?;
                // Only the last one can be there in part of the attempts.
                states.drain(..states.len() - 1);
            }
            spaces.delete(OWNER, "then", spaces.engine().permit_deletion("delete")?)?;
            // Every step is durable, so that a crash meets each of them.
            spaces.resume_deletions(&|| spaces.engine().flush().is_ok()).map(drop)
        };
        crashed += usize::from(run().is_err());
        drop((space, spaces));
        scene.store.crash(CrashPolicy::Random { seed });
        let spaces = scene.store.spaces(options());
        assert_eq!(spaces.damaged(), [] as [String; 0]);
        let space = spaces.get(OWNER, "f0").unwrap();
        let found = list(&space, &[], &LAST, 7);
        assert!(states.iter().any(|state| state.entries == found), "seed {seed}");
        assert!(spaces.resume_deletions(&|| true).unwrap());
        assert_eq!(list(&space, &[], &LAST, 7), found);
        assert_eq!(read(&space, 0, 100), [0; 100]);
    }
    assert!(crashed > 20, "{crashed}");
}
