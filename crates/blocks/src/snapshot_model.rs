//! Snapshots, clones, copies, roll back and deletion against vectors of bytes (M0.7, M0.21), with merging of layers at
//! any time between.

use super::*;
use crate::disks::{BLOCK, create, delete, options, read, resize, roll_back};
use crate::testing::TestStore;
use crate::testing::bytes;
use onefold_ground::CrashPolicy;
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const BLOCK_BYTES: usize = BLOCK as usize;
const SIZE: usize = 5 * BLOCK_BYTES + 3000;

#[derive(Clone, Debug)]
enum Step {
    Write { space: usize, at: usize, length: usize, seed: u64 },
    Zero { space: usize, at: usize, length: usize },
    Copy { space: usize, at: usize, source: usize, from: usize, length: usize },
    Resize { space: usize, size: usize },
    Snapshot { space: usize },
    Clone { space: usize, is_read_only: bool },
    Rollback { space: usize, snapshot: usize },
    Delete { space: usize },
    Clean { steps: usize },
    Diff { first: usize, second: usize },
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let space = || 0usize..8;
    let range = || {
        prop_oneof![
            (0usize..6, 0usize..3).prop_map(|(first, count)| (first * BLOCK_BYTES, count * BLOCK_BYTES)),
            (0..SIZE, 0usize..9000),
            (1usize..6, 0usize..600, 0usize..1200).prop_map(|(edge, before, length)| (edge * BLOCK_BYTES - before, length)),
        ]
    };
    prop_oneof![
        8 => (space(), range(), 0u64..5).prop_map(|(space, (at, length), seed)| Step::Write { space, at, length, seed }),
        4 => (space(), range()).prop_map(|(space, (at, length))| Step::Zero { space, at, length }),
        5 => (space(), range(), space(), range()).prop_map(|(space, (at, _), source, (from, length))| {
            Step::Copy { space, at, source, from, length }
        }),
        2 => (space(), 1..SIZE + BLOCK_BYTES).prop_map(|(space, size)| Step::Resize { space, size }),
        4 => space().prop_map(|space| Step::Snapshot { space }),
        3 => (space(), proptest::bool::weighted(0.2)).prop_map(|(space, is_read_only)| Step::Clone { space, is_read_only }),
        2 => (space(), space()).prop_map(|(space, snapshot)| Step::Rollback { space, snapshot }),
        3 => space().prop_map(|space| Step::Delete { space }),
        4 => (0usize..6).prop_map(|steps| Step::Clean { steps }),
        2 => (space(), space()).prop_map(|(first, second)| Step::Diff { first, second }),
        1 => Just(Step::Reopen),
    ]
}

/// A store with what must be in it.
struct Scene {
    store: TestStore,
    spaces: Option<Arc<Spaces>>,
    /// Name -> bytes.
    model: BTreeMap<String, Vec<u8>>,
    next: usize,
}

impl Scene {
    fn new() -> Scene {
        let mut store = TestStore::new();
        let spaces = Arc::new(store.spaces(options()));
        create(&spaces, "v0", SIZE as u64, BLOCK).unwrap();
        Scene { store, spaces: Some(spaces), model: BTreeMap::from([("v0".into(), vec![0; SIZE])]), next: 1 }
    }

    fn spaces(&self) -> &Spaces {
        self.spaces.as_ref().unwrap()
    }

    fn name(&self, at: usize) -> Option<String> {
        self.model.keys().nth(at % self.model.len().max(1)).cloned()
    }

    fn new_name(&mut self) -> String {
        self.next += 1;
        format!("v{}", self.next)
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
            Step::Write { space, .. } | Step::Zero { space, .. } | Step::Resize { space, .. } | Step::Snapshot { space } => space,
            Step::Copy { space, .. } | Step::Clone { space, .. } | Step::Rollback { space, .. } | Step::Delete { space } => space,
            Step::Diff { first, .. } => first,
            Step::Clean { .. } | Step::Reopen => 0,
        }) else {
            let name = self.new_name();
            create(self.spaces(), &name, SIZE as u64, BLOCK).unwrap();
            self.model.insert(name, vec![0; SIZE]);
            return;
        };
        let space = self.spaces().get(Owner::Volumes, &name).unwrap();
        let is_read_only = space.is_read_only();
        let known = self.model[&name].clone();
        let clip = |at: usize, length: usize| (at.min(known.len()), length.min(known.len() - at.min(known.len())));
        let refused = |result: Result<()>| assert!(matches!(result, Err(SpaceError::ReadOnly { .. })));
        match step {
            Step::Write { at, length, seed, .. } => {
                let (at, length) = clip(at, length);
                let data = bytes(seed, length);
                let result = space.write(At::byte(at as u64), &data);
                if is_read_only {
                    return refused(result);
                }
                result.unwrap();
                self.model.get_mut(&name).unwrap()[at..at + length].copy_from_slice(&data);
            }
            Step::Zero { at, length, .. } => {
                let (at, length) = clip(at, length);
                let result = space.write_zeroes(At::byte(at as u64), length as u64);
                if is_read_only {
                    return refused(result);
                }
                result.unwrap();
                self.model.get_mut(&name).unwrap()[at..at + length].fill(0);
            }
            Step::Copy { at, source, from, length, .. } => {
                let source = self.name(source).unwrap();
                let bytes = self.model[&source].clone();
                let from = from.min(bytes.len());
                let (at, length) = clip(at, length.min(bytes.len() - from));
                let result = space.copy_from(
                    At::byte(at as u64),
                    &self.spaces().get(Owner::Volumes, &source).unwrap(),
                    At::byte(from as u64),
                    length as u64,
                );
                if is_read_only {
                    return refused(result);
                }
                result.unwrap();
                self.model.get_mut(&name).unwrap()[at..at + length].copy_from_slice(&bytes[from..from + length]);
            }
            Step::Resize { size, .. } => {
                let result = resize(&space, size as u64);
                if is_read_only {
                    return refused(result);
                }
                result.unwrap();
                self.model.get_mut(&name).unwrap().resize(size, 0);
            }
            Step::Snapshot { .. } => {
                let new = self.new_name();
                let result = self.spaces().snapshot(Owner::Volumes, &name, &new);
                if is_read_only {
                    return refused(result.map(drop));
                }
                result.unwrap();
                self.model.insert(new, known);
            }
            Step::Clone { is_read_only, .. } => {
                let new = self.new_name();
                self.spaces().make_clone(Owner::Volumes, &name, &new, is_read_only).unwrap();
                self.model.insert(new, known);
            }
            Step::Rollback { snapshot, .. } => {
                let snapshot = self.name(snapshot).unwrap();
                let to_read_only = self.spaces().get(Owner::Volumes, &snapshot).unwrap().is_read_only();
                match roll_back(self.spaces(), &name, &snapshot) {
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
            Step::Delete { .. } => {
                delete(self.spaces(), &name).unwrap();
                self.model.remove(&name);
            }
            Step::Clean { steps } => drop(self.clean(steps)),
            Step::Diff { second, .. } => self.check_diff(&name, &self.name(second).unwrap()),
            Step::Reopen => self.reopen(),
        }
    }

    /// Every byte that differs is in a range, and what one of two snapshots of the same layers did not touch is in
    /// none.
    fn check_diff(&self, first: &str, second: &str) {
        let (one, two) = (&self.model[first], &self.model[second]);
        let common = one.len().min(two.len());
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut visit = |range| {
            ranges.push(range);
            true
        };
        let [left, right] = [first, second].map(|name| self.spaces().get(Owner::Volumes, name).unwrap());
        assert!(self.spaces().diff(&left, &right, At::byte(0), common as u64, &mut visit).unwrap());
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "{ranges:?}");
        let mut equal = vec![true; common];
        ranges.iter().for_each(|range| equal[range.start as usize..range.end as usize].fill(false));
        for (at, equal) in equal.into_iter().enumerate() {
            assert!(!equal || one.get(at) == two.get(at), "byte {at} differs between {first} and {second}, {ranges:?} says not");
        }
        if first == second {
            assert_eq!(ranges, []);
        }
    }

    fn verify(&mut self) {
        let names: Vec<_> = self.spaces().list().into_iter().map(|info| info.record.name).collect();
        assert_eq!(names, self.model.keys().cloned().collect::<Vec<_>>());
        for (name, known) in &self.model {
            let space = self.spaces().get(Owner::Volumes, name).unwrap();
            assert_eq!(space.end_bytes().unwrap(), known.len() as u64);
            assert!(read(&space, 0, known.len()) == *known, "{name}");
            check_holes(&space, known);
        }
    }

    /// After cleaning, the layers are those that the spaces need, the counts are right and no chain is longer than
    /// there are spaces.
    fn verify_clean(&mut self) {
        self.spaces().flush().unwrap();
        assert!(self.spaces().resume_deletions(&|| true).unwrap());
        self.verify();
        let layers = self.spaces().shared.layers.all();
        let users = self.spaces().users();
        for node in &layers {
            let users = &users[&node.number];
            assert!(users.spaces > 0 || users.children.len() > 1, "layer {} is superfluous", node.number);
        }
        assert!(layers.len() <= 2 * self.model.len());
        let all: Vec<_> = self.model.keys().map(|name| self.spaces().get(Owner::Volumes, name).unwrap()).collect();
        let all: Vec<_> = all.iter().map(|space| &**space).collect();
        self.store.check_counts(&all);
    }
}

fn check_holes(space: &Space, known: &[u8]) {
    let mut at = 0;
    for extent in space.extents(At::byte(0), known.len() as u64, usize::MAX).unwrap() {
        let end = at + extent.length as usize;
        assert!(!extent.is_hole || known[at..end].iter().all(|byte| *byte == 0));
        at = end;
    }
    assert_eq!(at, known.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn m0_21_snapshots_and_clones_are_disks_of_their_own(steps in proptest::collection::vec(step(), 1..40)) {
        let mut scene = Scene::new();
        for step in steps {
            scene.step(step);
        }
        scene.verify();
        scene.reopen();
        scene.verify();
        scene.verify_clean();
        while let Some(name) = scene.name(0) {
            scene.step(Step::Delete { space: 0 });
            prop_assert!(!scene.model.contains_key(&name));
        }
        scene.verify_clean();
        prop_assert_eq!(scene.store.references(), 0);
        prop_assert!(scene.spaces().shared.layers.all().is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn m0_21_frozen_spaces_stay_what_they_were_whatever_is_done_to_them(
        before in proptest::collection::vec(step(), 1..20),
        after in proptest::collection::vec(step(), 1..30),
        crashes: bool,
    ) {
        let mut scene = Scene::new();
        before.into_iter().for_each(|step| scene.step(step));
        let (then, spaces) = (scene.model.clone(), scene.spaces.clone().unwrap());
        let frozen = spaces.frozen(&|_| true).unwrap();
        let check = |steps: usize| {
            assert_eq!(frozen.list().map(|info| info.record.name.clone()).collect::<std::collections::BTreeSet<_>>(), then.keys().cloned().collect());
            for info in frozen.list() {
                let (content, known) = (frozen.get(info.number).unwrap(), &then[&info.record.name]);
                assert_eq!((content.end_bytes(), info.record.end_bytes), (Some(known.len() as u64), Some(known.len() as u64)));
                assert!(read(content, 0, known.len()) == *known, "{} after {steps} steps", info.record.name);
                check_holes(content, known);
            }
        };
        for (done, step) in after.into_iter().filter(|step| !matches!(step, Step::Reopen)).enumerate() {
            scene.step(step);
            check(done + 1);
        }
        scene.spaces().flush().unwrap();
        prop_assert!(scene.clean(usize::MAX));
        check(usize::MAX);
        // Nobody sees it, and what it held is given back when it goes, or after a crash.
        scene.verify();
        if crashes {
            scene.reopen();
        }
        drop(frozen);
        scene.verify_clean();
    }
}

#[test]
fn m0_21_a_crash_at_any_moment_of_the_life_of_layers_loses_no_byte() {
    for seed in 0..180u64 {
        let mut scene = Scene::new();
        scene.step(Step::Write { space: 0, at: 0, length: SIZE, seed });
        scene.spaces().flush().unwrap();
        let durable = scene.model["v0"].clone();
        scene.store.ground.crash_after_operations(seed % 45);
        let spaces = scene.spaces.take().unwrap();
        // Each step that returned is durable; the one that met the crash happened or did not.
        let mut done = 0;
        let write_durable = |name: &str, at: u64, data: &[u8]| -> Result<()> {
            let space = spaces.get(Owner::Volumes, name)?;
            space.write(At::byte(at), data)?;
            space.flush()
        };
        let mut run = || -> Result<()> {
            spaces.snapshot(Owner::Volumes, "v0", "a")?;
            done = 1;
            write_durable("v0", BLOCK_BYTES as u64 + 5, &bytes(99, 2 * BLOCK_BYTES))?;
            done = 2;
            spaces.make_clone(Owner::Volumes, "a", "c", false)?;
            done = 3;
            write_durable("c", 0, &bytes(77, BLOCK_BYTES))?;
            done = 4;
            spaces.snapshot(Owner::Volumes, "v0", "b")?;
            done = 5;
            delete(&spaces, "a")?;
            done = 6;
            spaces.resume_deletions(&|| true)?;
            done = 7;
            roll_back(&spaces, "v0", "b")?;
            done = 8;
            delete(&spaces, "b")?;
            done = 9;
            spaces.resume_deletions(&|| true)?;
            delete(&spaces, "c")?;
            done = 10;
            spaces.resume_deletions(&|| true)?;
            Ok(())
        };
        let _ = run();
        drop(spaces);
        scene.store.crash([CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Random { seed }][seed as usize % 3]);
        let spaces = scene.store.spaces(options());
        let has = |name: &str| spaces.get(Owner::Volumes, name).is_ok();
        let bytes_of = |name: &str| read(&spaces.get(Owner::Volumes, name).unwrap(), 0, SIZE);
        let mut written = durable.clone();
        written[BLOCK_BYTES + 5..3 * BLOCK_BYTES + 5].copy_from_slice(&bytes(99, 2 * BLOCK_BYTES));
        let what = format!("seed {seed}, {done} steps done");
        if done >= 2 {
            assert!(bytes_of("v0") == written, "{what}");
        }
        assert!(has("a") || !(1..5).contains(&done), "{what}");
        assert!(!has("a") || done < 6, "{what}");
        assert!(has("c") || !(3..10).contains(&done) || done == 9, "{what}");
        assert!(has("b") || !(5..8).contains(&done), "{what}");
        if has("a") {
            assert!(bytes_of("a") == durable, "{what}");
        }
        if has("b") {
            assert!(bytes_of("b") == written, "{what}");
        }
        if has("c") && done >= 4 {
            assert!(bytes_of("c")[..BLOCK_BYTES] == bytes(77, BLOCK_BYTES), "{what}");
            assert!(bytes_of("c")[BLOCK_BYTES..] == durable[BLOCK_BYTES..], "{what}");
        }
        assert!(spaces.resume_deletions(&|| true).unwrap());
        let all = spaces.all();
        let all: Vec<_> = all.iter().map(|space| &**space).collect();
        scene.store.check_counts(&all);
    }
}
