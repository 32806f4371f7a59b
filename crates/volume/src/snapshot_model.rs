//! Snapshots, clones, copies, roll back and deletion against vectors of bytes (M0.7, M0.21), with merging of layers at
//! any time between.

use super::*;
use crate::testing::TestStore;
use crate::tests::{BLOCK, bytes, options, read};
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
    Write { volume: usize, at: usize, length: usize, seed: u64 },
    Zero { volume: usize, at: usize, length: usize },
    Copy { volume: usize, at: usize, source: usize, from: usize, length: usize },
    Resize { volume: usize, size: usize },
    Snapshot { volume: usize },
    Clone { volume: usize, is_read_only: bool },
    Rollback { volume: usize, snapshot: usize },
    Delete { volume: usize },
    Clean { steps: usize },
    Diff { first: usize, second: usize },
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let volume = || 0usize..8;
    let range = || {
        prop_oneof![
            (0usize..6, 0usize..3).prop_map(|(first, count)| (first * BLOCK_BYTES, count * BLOCK_BYTES)),
            (0..SIZE, 0usize..9000),
            (1usize..6, 0usize..600, 0usize..1200).prop_map(|(edge, before, length)| (edge * BLOCK_BYTES - before, length)),
        ]
    };
    prop_oneof![
        8 => (volume(), range(), 0u64..5).prop_map(|(volume, (at, length), seed)| Step::Write { volume, at, length, seed }),
        4 => (volume(), range()).prop_map(|(volume, (at, length))| Step::Zero { volume, at, length }),
        5 => (volume(), range(), volume(), range()).prop_map(|(volume, (at, _), source, (from, length))| {
            Step::Copy { volume, at, source, from, length }
        }),
        2 => (volume(), 1..SIZE + BLOCK_BYTES).prop_map(|(volume, size)| Step::Resize { volume, size }),
        4 => volume().prop_map(|volume| Step::Snapshot { volume }),
        3 => (volume(), proptest::bool::weighted(0.2)).prop_map(|(volume, is_read_only)| Step::Clone { volume, is_read_only }),
        2 => (volume(), volume()).prop_map(|(volume, snapshot)| Step::Rollback { volume, snapshot }),
        3 => volume().prop_map(|volume| Step::Delete { volume }),
        4 => (0usize..6).prop_map(|steps| Step::Clean { steps }),
        2 => (volume(), volume()).prop_map(|(first, second)| Step::Diff { first, second }),
        1 => Just(Step::Reopen),
    ]
}

/// A store with what must be in it.
struct Scene {
    store: TestStore,
    volumes: Option<Arc<Volumes>>,
    /// Name -> bytes.
    model: BTreeMap<String, Vec<u8>>,
    next: usize,
}

impl Scene {
    fn new() -> Scene {
        let mut store = TestStore::new();
        let volumes = Arc::new(store.volumes(options()));
        volumes.create("v0", SIZE as u64, BLOCK, None).unwrap();
        Scene { store, volumes: Some(volumes), model: BTreeMap::from([("v0".into(), vec![0; SIZE])]), next: 1 }
    }

    fn volumes(&self) -> &Volumes {
        self.volumes.as_ref().unwrap()
    }

    fn name(&self, at: usize) -> Option<String> {
        self.model.keys().nth(at % self.model.len().max(1)).cloned()
    }

    fn new_name(&mut self) -> String {
        self.next += 1;
        format!("v{}", self.next)
    }

    fn reopen(&mut self) {
        self.volumes().flush().unwrap();
        self.volumes = None;
        self.store.reopen();
        self.volumes = Some(Arc::new(self.store.volumes(options())));
    }

    fn clean(&self, steps: usize) -> bool {
        let left = Cell::new(steps);
        let go_on = || {
            left.set(left.get().saturating_sub(1));
            left.get() > 0
        };
        self.volumes().resume_deletions(&go_on).unwrap()
    }

    fn step(&mut self, step: Step) {
        let Some(name) = self.name(match step {
            Step::Write { volume, .. } | Step::Zero { volume, .. } | Step::Resize { volume, .. } | Step::Snapshot { volume } => volume,
            Step::Copy { volume, .. } | Step::Clone { volume, .. } | Step::Rollback { volume, .. } | Step::Delete { volume } => volume,
            Step::Diff { first, .. } => first,
            Step::Clean { .. } | Step::Reopen => 0,
        }) else {
            let name = self.new_name();
            self.volumes().create(&name, SIZE as u64, BLOCK, None).unwrap();
            self.model.insert(name, vec![0; SIZE]);
            return;
        };
        let volume = self.volumes().get(&name).unwrap();
        let is_read_only = volume.is_read_only();
        let known = self.model[&name].clone();
        let clip = |at: usize, length: usize| (at.min(known.len()), length.min(known.len() - at.min(known.len())));
        let refused = |result: Result<()>| assert!(matches!(result, Err(VolumeError::ReadOnly { .. })));
        match step {
            Step::Write { at, length, seed, .. } => {
                let (at, length) = clip(at, length);
                let data = bytes(seed, length);
                let result = volume.write(at as u64, &data);
                if is_read_only {
                    return refused(result);
                }
                result.unwrap();
                self.model.get_mut(&name).unwrap()[at..at + length].copy_from_slice(&data);
            }
            Step::Zero { at, length, .. } => {
                let (at, length) = clip(at, length);
                let result = volume.write_zeroes(at as u64, length as u64);
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
                let result = volume.copy_from(at as u64, &self.volumes().get(&source).unwrap(), from as u64, length as u64);
                if is_read_only {
                    return refused(result);
                }
                result.unwrap();
                self.model.get_mut(&name).unwrap()[at..at + length].copy_from_slice(&bytes[from..from + length]);
            }
            Step::Resize { size, .. } => {
                let result = volume.resize(size as u64);
                if is_read_only {
                    return refused(result);
                }
                result.unwrap();
                self.model.get_mut(&name).unwrap().resize(size, 0);
            }
            Step::Snapshot { .. } => {
                let new = self.new_name();
                let result = self.volumes().snapshot(&name, &new);
                if is_read_only {
                    return refused(result.map(drop));
                }
                result.unwrap();
                self.model.insert(new, known);
            }
            Step::Clone { is_read_only, .. } => {
                let new = self.new_name();
                self.volumes().make_clone(&name, &new, is_read_only).unwrap();
                self.model.insert(new, known);
            }
            Step::Rollback { snapshot, .. } => {
                let snapshot = self.name(snapshot).unwrap();
                let to_read_only = self.volumes().get(&snapshot).unwrap().is_read_only();
                match self.volumes().rollback(&name, &snapshot) {
                    Ok(()) => {
                        assert!(!is_read_only && to_read_only);
                        self.model.insert(name, self.model[&snapshot].clone());
                    }
                    Err(VolumeError::ReadOnly { .. }) => assert!(is_read_only),
                    Err(VolumeError::NoSnapshot { .. }) => assert!(!to_read_only),
                    Err(VolumeError::Unrelated { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Delete { .. } => {
                self.volumes().delete(&name).unwrap();
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
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let [one, other] = [first, second].map(|name| self.volumes().get(name).unwrap());
        self.volumes()
            .diff(&one, &other, &mut |range| {
                ranges.push(range);
                true
            })
            .unwrap();
        assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{ranges:?}");
        let (one, two) = (&self.model[first], &self.model[second]);
        let mut equal = vec![true; one.len().max(two.len())];
        ranges.iter().for_each(|range| equal[range.start as usize..range.end as usize].fill(false));
        for (at, equal) in equal.into_iter().enumerate() {
            assert!(!equal || one.get(at) == two.get(at), "byte {at} differs between {first} and {second}, {ranges:?} says not");
        }
        if first == second {
            assert_eq!(ranges, []);
        }
    }

    fn verify(&mut self) {
        let names: Vec<_> = self.volumes().list().into_iter().map(|info| info.name).collect();
        assert_eq!(names, self.model.keys().cloned().collect::<Vec<_>>());
        for (name, known) in &self.model {
            let volume = self.volumes().get(name).unwrap();
            assert_eq!(volume.size(), known.len() as u64);
            assert!(read(&volume, 0, known.len()) == *known, "{name}");
            check_holes(&volume, known);
        }
    }

    /// After cleaning, the layers are those that the volumes need, the counts are right and no chain is longer than
    /// there are volumes.
    fn verify_clean(&mut self) {
        self.volumes().flush().unwrap();
        assert!(self.volumes().resume_deletions(&|| true).unwrap());
        self.verify();
        let layers = self.volumes().shared.layers.all();
        let users = self.volumes().users();
        for node in &layers {
            let users = &users[&node.number];
            assert!(users.volumes > 0 || users.children.len() > 1, "layer {} is superfluous", node.number);
        }
        assert!(layers.len() <= 2 * self.model.len());
        let all: Vec<_> = self.model.keys().map(|name| (name.clone(), self.volumes().get(name).unwrap())).collect();
        let all: Vec<_> = all.iter().map(|(name, volume)| (name.as_str(), volume)).collect();
        self.store.check_counts(&all);
    }
}

fn check_holes(volume: &Volume, known: &[u8]) {
    let mut at = 0;
    for extent in volume.status(0, known.len() as u64, usize::MAX).unwrap() {
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
            scene.step(Step::Delete { volume: 0 });
            prop_assert!(!scene.model.contains_key(&name));
        }
        scene.verify_clean();
        prop_assert_eq!(scene.store.references(), 0);
        prop_assert!(scene.volumes().shared.layers.all().is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn m0_21_frozen_volumes_stay_what_they_were_whatever_is_done_to_them(
        before in proptest::collection::vec(step(), 1..20),
        after in proptest::collection::vec(step(), 1..30),
        crashes: bool,
    ) {
        let mut scene = Scene::new();
        before.into_iter().for_each(|step| scene.step(step));
        let (then, volumes) = (scene.model.clone(), scene.volumes.clone().unwrap());
        let frozen = volumes.frozen(&|_| true).unwrap();
        let check = |steps: usize| {
            assert_eq!(frozen.list().map(|info| info.name.clone()).collect::<std::collections::BTreeSet<_>>(), then.keys().cloned().collect());
            for info in frozen.list() {
                let (content, known) = (frozen.get(info.number).unwrap(), &then[&info.name]);
                assert_eq!((content.size(), info.size), (known.len() as u64, known.len() as u64));
                assert!(read(content, 0, known.len()) == *known, "{} after {steps} steps", info.name);
                check_holes(content, known);
            }
        };
        for (done, step) in after.into_iter().filter(|step| !matches!(step, Step::Reopen)).enumerate() {
            scene.step(step);
            check(done + 1);
        }
        scene.volumes().flush().unwrap();
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
        scene.step(Step::Write { volume: 0, at: 0, length: SIZE, seed });
        scene.volumes().flush().unwrap();
        let durable = scene.model["v0"].clone();
        scene.store.ground.crash_after_operations(seed % 45);
        let volumes = scene.volumes.take().unwrap();
        // Each step that returned is durable; the one that met the crash happened or did not.
        let mut done = 0;
        let mut run = || -> Result<()> {
            volumes.snapshot("v0", "a")?;
            done = 1;
            volumes.get("v0")?.write_durable(BLOCK_BYTES as u64 + 5, &bytes(99, 2 * BLOCK_BYTES))?;
            done = 2;
            volumes.make_clone("a", "c", false)?;
            done = 3;
            volumes.get("c")?.write_durable(0, &bytes(77, BLOCK_BYTES))?;
            done = 4;
            volumes.snapshot("v0", "b")?;
            done = 5;
            volumes.delete("a")?;
            done = 6;
            volumes.resume_deletions(&|| true)?;
            done = 7;
            volumes.rollback("v0", "b")?;
            done = 8;
            volumes.delete("b")?;
            done = 9;
            volumes.resume_deletions(&|| true)?;
            volumes.delete("c")?;
            done = 10;
            volumes.resume_deletions(&|| true)?;
            Ok(())
        };
        let _ = run();
        drop(volumes);
        scene.store.crash([CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Random { seed }][seed as usize % 3]);
        let volumes = scene.store.volumes(options());
        let has = |name: &str| volumes.get(name).is_ok();
        let bytes_of = |name: &str| read(&volumes.get(name).unwrap(), 0, SIZE);
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
        assert!(volumes.resume_deletions(&|| true).unwrap());
        let all: Vec<_> = volumes.list().into_iter().map(|info| (info.name.clone(), volumes.get(&info.name).unwrap())).collect();
        let all: Vec<_> = all.iter().map(|(name, volume)| (name.as_str(), volume)).collect();
        scene.store.check_counts(&all);
    }
}
