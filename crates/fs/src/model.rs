//! Random operations on a filesystem and on a model in memory, with crashes: they agree on every name, attribute and
//! byte.

use crate::testing::{FileStep, History, TreeModel};
use crate::{Create, Filesystem, FsOptions, Kind, ROOT, Rename, SetXattr};
use onefold_blocks::testing::TestStore;
use onefold_blocks::{MIN_BLOCK_BYTES, NewSpace, Owner, SpaceKind, Spaces, SpacesOptions};
use onefold_ground::CrashPolicy;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug)]
enum Step {
    Files(FileStep),
    Sync,
    SyncFile(u8),
    Crash(bool),
    Reopen,
}

fn file_step() -> impl Strategy<Value = FileStep> {
    // Around the edges of blocks, which have 64 KiB here.
    let place = || prop_oneof![0u32..200, 65_400u32..65_700, 131_000u32..131_200, 0u32..200_000];
    prop_oneof![
        5 => (any::<u8>(), 0u8..6, 0u8..4).prop_map(|(a, b, c)| FileStep::Create(a, b, c)),
        2 => (any::<u8>(), any::<u8>(), 0u8..6).prop_map(|(a, b, c)| FileStep::Link(a, b, c)),
        2 => any::<u8>().prop_map(FileStep::Remove),
        3 => (any::<u8>(), any::<u8>(), 0u8..6, 0u8..3).prop_map(|(a, b, c, d)| FileStep::Rename(a, b, c, d)),
        6 => (any::<u8>(), place(), 0u32..9000, 0u64..256).prop_map(|(a, b, c, d)| FileStep::Write(a, b, c, d)),
        3 => (any::<u8>(), place()).prop_map(|(a, b)| FileStep::Truncate(a, b)),
        2 => (any::<u8>(), place(), 1u32..140_000, 0u8..5).prop_map(|(a, b, c, d)| FileStep::Allocate(a, b, c, d)),
        2 => (any::<u8>(), place(), any::<u8>(), place(), 0u32..140_000).prop_map(|(a, b, c, d, e)| FileStep::Copy(a, b, c, d, e)),
        1 => (any::<u8>(), 0u16..0o7777).prop_map(|(a, b)| FileStep::Mode(a, b)),
        1 => (any::<u8>(), proptest::option::of(any::<u8>())).prop_map(|(a, b)| FileStep::Xattr(a, b)),
        1 => any::<u8>().prop_map(FileStep::Open),
        1 => any::<u8>().prop_map(FileStep::Close),
        1 => proptest::option::weighted(0.3, 0u32..400_000).prop_map(FileStep::Quota),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        29 => file_step().prop_map(Step::Files),
        2 => Just(Step::Sync),
        2 => any::<u8>().prop_map(Step::SyncFile),
        1 => any::<bool>().prop_map(Step::Crash),
        1 => Just(Step::Reopen),
    ]
}

fn options() -> FsOptions {
    FsOptions { commit_interval: Duration::from_secs(3600), ..FsOptions::default() }
}

/// A filesystem with its store.
struct Real {
    store: TestStore,
    spaces: Option<Arc<Spaces>>,
    filesystem: Option<Arc<Filesystem>>,
}

impl Real {
    fn new() -> Real {
        let mut real = Real { store: TestStore::new(), spaces: None, filesystem: None };
        let spaces = real.store.spaces(SpacesOptions::default());
        let space = spaces
            .create(NewSpace { name: "home", kind: SpaceKind::Filesystem, end_bytes: None, block_bytes: MIN_BLOCK_BYTES, chain: None })
            .unwrap();
        Filesystem::format(&space, None, (0, 0)).unwrap();
        space.flush().unwrap();
        drop((space, spaces));
        real.open();
        real
    }

    fn open(&mut self) {
        let spaces = Arc::new(self.store.spaces(SpacesOptions::default()));
        let space = spaces.get(Owner::Filesystems, "home").unwrap();
        self.filesystem = Some(Filesystem::open(space, options()).unwrap());
        self.spaces = Some(spaces);
    }

    fn fs(&self) -> &Arc<Filesystem> {
        self.filesystem.as_ref().unwrap()
    }

    fn crash(&mut self, policy: CrashPolicy) {
        (self.filesystem, self.spaces) = (None, None);
        self.store.crash(policy);
        self.open();
    }

    /// Everything that can be seen.
    fn seen(&self, open: &BTreeSet<u64>) -> Result<TreeModel, TestCaseError> {
        TreeModel::of(self.fs(), open).map_err(TestCaseError::fail)
    }
}

fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut real = Real::new();
    let mut history = History::new(TreeModel::new(None));
    for step in steps {
        match &step {
            Step::Files(step) => history.take(step, real.fs()).unwrap(),
            Step::Sync => {
                real.fs().sync().unwrap();
                history.synced();
            }
            Step::SyncFile(which) => {
                let Some(number) = history.latest().regular(*which) else { continue };
                real.fs().sync_file(number).unwrap();
                history.file_synced(number);
            }
            Step::Crash(keeps) => {
                real.crash(if *keeps { CrashPolicy::KeepAll } else { CrashPolicy::DropAll });
                let left = history.crashed(real.seen(&BTreeSet::new())?).map_err(TestCaseError::fail)?;
                // Otherwise the disk kept what nobody flushed: any whole number of commits may be there.
                prop_assert!(*keeps || !left.is_newer);
                real.fs().sync().unwrap();
            }
            Step::Reopen => {
                real.fs().close().unwrap();
                real.crash(CrashPolicy::DropAll);
                history.closed();
                history.synced();
            }
        }
        let latest = history.latest();
        prop_assert_eq!(&real.seen(&latest.open)?, &**latest, "after {:?}", step);
    }
    real.fs().close().unwrap();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 2000, ..ProptestConfig::default() })]
    #[test]
    fn a_filesystem_is_what_the_model_is_whatever_is_done_and_whenever_it_crashes(steps in proptest::collection::vec(step(), 1..60)) {
        run(steps)?;
    }
}

#[test]
fn a_file_that_took_the_place_of_another_is_whole_whenever_others_commit() {
    let mut real = Real::new();
    let new = Create { mode: 0o644, umask: 0, uid: 0, gid: 0 };
    let (other, _) = real.fs().create(ROOT, b"other", Kind::File, new).unwrap();
    // A rename to a fresh name gives no guarantee.
    let (first, _) = real.fs().create(ROOT, b"place", Kind::File, new).unwrap();
    real.fs().write(first, 0, &[0; 2800], false).unwrap();
    real.fs().sync().unwrap();
    for round in 0u32..150 {
        let fs = real.fs().clone();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    fs.sync_file(other).unwrap();
                }
            });
            for turn in 0..8u32 {
                let (number, _) = fs.create(ROOT, b"next", Kind::File, new).unwrap();
                fs.write(number, 0, &(round * 8 + turn).to_le_bytes().repeat(700), false).unwrap();
                fs.rename((ROOT, b"next"), (ROOT, b"place"), Rename::Replace).unwrap();
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        drop(fs);
        real.crash(CrashPolicy::DropAll);
        // It may be an older one, but never one without its content.
        if let Ok((number, _)) = real.fs().lookup(ROOT, b"place") {
            let found = real.fs().read(number, 0, 9000).unwrap();
            assert_eq!(found.len(), 2800, "round {round}");
            assert!(found.chunks(4).all(|part| part == &found[..4]), "round {round}");
        }
        let _ = real.fs().unlink(ROOT, b"next");
    }
}

#[test]
fn inodes_in_memory_stay_within_their_limit_whatever_they_have() {
    let mut store = TestStore::new();
    let spaces = store.spaces(SpacesOptions::default());
    let new = NewSpace { name: "f", kind: SpaceKind::Filesystem, end_bytes: None, block_bytes: MIN_BLOCK_BYTES, chain: None };
    let space = spaces.create(new).unwrap();
    Filesystem::format(&space, None, (0, 0)).unwrap();
    let limit_bytes = 256 << 10;
    let fs = Filesystem::open(space, FsOptions { inode_cache_bytes: limit_bytes, ..options() }).unwrap();
    let new = Create { mode: 0o755, umask: 0, uid: 0, gid: 0 };
    let value = |number: u64| vec![number as u8; if number.is_multiple_of(7) { 20_000 } else { 100 }];
    let numbers: Vec<u64> = (0..400u64)
        .map(|name| {
            let number = fs.create(ROOT, name.to_string().as_bytes(), Kind::File, new).unwrap().0;
            fs.set_xattr(number, b"user.x", Some(&value(number)), SetXattr::Any).unwrap();
            number
        })
        .collect();
    assert!(fs.state.lock().tree.cached_bytes() > limit_bytes, "what is not stored stays");
    fs.sync().unwrap();
    for number in numbers.iter().chain(numbers.iter().rev()) {
        assert_eq!(fs.inode(*number).unwrap().xattr(b"user.x"), Some(&value(*number)[..]));
    }
    assert!(fs.state.lock().tree.cached_bytes() <= limit_bytes);
    fs.unlink(ROOT, b"3").unwrap();
    assert!(fs.state.lock().tree.cached_bytes() <= limit_bytes);
}
