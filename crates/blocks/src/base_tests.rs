//! Sequences of bytes at base blocks of their own, against vectors of bytes: what other owners than volumes have.

use crate::disks::{BLOCK, create_filesystem, options};
use crate::testing::{TestStore, bytes};
use crate::{At, Owner, Space, Spaces};
use proptest::prelude::*;
use std::sync::Arc;

const BLOCK_BYTES: usize = BLOCK as usize;
/// The longest sequence.
const SIZE: usize = 6 * BLOCK_BYTES + 5000;
/// The blocks of a sequence. The last base is the last one whose blocks are all below `u64::MAX`.
const STRIDE: u64 = 1 << 28;
const BASES: [u64; 4] = [0, STRIDE, 77 * STRIDE, u64::MAX - 2 * STRIDE + 1];

#[derive(Clone, Debug)]
enum Step {
    Write {
        file: usize,
        at: usize,
        length: usize,
        seed: u64,
    },
    Zero {
        file: usize,
        at: usize,
        length: usize,
    },
    Update {
        file: usize,
        at: usize,
        length: usize,
        seed: u64,
    },
    Copy {
        file: usize,
        at: usize,
        source: usize,
        from: usize,
        length: usize,
    },
    WriteOut {
        file: usize,
        at: usize,
        length: usize,
    },
    /// Everything from a byte on goes, as far as a sequence may reach.
    Truncate {
        file: usize,
        at: usize,
    },
    Snapshot,
    Clean {
        steps: usize,
    },
    Reopen,
}

fn range() -> impl Strategy<Value = (usize, usize)> {
    prop_oneof![
        (0..SIZE, 0usize..9000),
        (0usize..6, 0usize..3).prop_map(|(first, count)| (first * BLOCK_BYTES, count * BLOCK_BYTES)),
        (0..SIZE, 0..SIZE),
        (1usize..6, 0usize..600, 0usize..1200).prop_map(|(edge, before, length)| (edge * BLOCK_BYTES - before, length)),
    ]
    .prop_map(|(at, length)| (at, length.min(SIZE - at)))
}

fn step() -> impl Strategy<Value = Step> {
    let file = || 0..BASES.len();
    prop_oneof![
        6 => (file(), range(), 0u64..5).prop_map(|(file, (at, length), seed)| Step::Write { file, at, length, seed }),
        3 => (file(), range()).prop_map(|(file, (at, length))| Step::Zero { file, at, length }),
        2 => (file(), range(), 0u64..5).prop_map(|(file, (at, length), seed)| Step::Update { file, at, length, seed }),
        3 => (file(), range(), file(), range()).prop_map(|(file, (at, _), source, (from, length))| {
            Step::Copy { file, at, source, from, length: length.min(SIZE - at) }
        }),
        2 => (file(), range()).prop_map(|(file, (at, length))| Step::WriteOut { file, at, length }),
        2 => (file(), 0..SIZE).prop_map(|(file, at)| Step::Truncate { file, at }),
        1 => Just(Step::Snapshot),
        1 => (0usize..6).prop_map(|steps| Step::Clean { steps }),
        1 => Just(Step::Reopen),
    ]
}

fn read(space: &Space, file: usize) -> Vec<u8> {
    let mut out = vec![0xee; SIZE];
    space.read(At::new(BASES[file], 0), &mut out).unwrap();
    out
}

/// Extents cover the range, and holes are zeros.
fn check_extents(space: &Space, file: usize, model: &[u8]) {
    for (at, length) in [(0, SIZE), (SIZE / 3, SIZE / 2)] {
        let mut end = at;
        for extent in space.extents(At::new(BASES[file], at as u64), length as u64, usize::MAX).unwrap() {
            let start = end;
            end += extent.length as usize;
            assert!(!extent.is_hole || model[start..end].iter().all(|byte| *byte == 0));
        }
        assert_eq!(end, at + length);
    }
}

fn open(store: &mut TestStore) -> (Spaces, Arc<Space>) {
    let spaces = store.spaces(options());
    let space = spaces.get(Owner::Filesystems, "files").or_else(|_| create_filesystem(&spaces, "files")).unwrap();
    (spaces, space)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn sequences_at_base_blocks_do_not_touch_each_other(steps in proptest::collection::vec(step(), 1..30)) {
        let mut store = TestStore::new();
        let (mut spaces, mut space) = open(&mut store);
        let mut model = vec![vec![0u8; SIZE]; BASES.len()];
        let mut frozen = None;
        for step in steps {
            match step {
                Step::Write { file, at, length, seed } => {
                    let data = bytes(seed, length);
                    space.write(At::new(BASES[file], at as u64), &data).unwrap();
                    model[file][at..at + length].copy_from_slice(&data);
                }
                Step::Zero { file, at, length } => {
                    space.write_zeroes(At::new(BASES[file], at as u64), length as u64).unwrap();
                    model[file][at..at + length].fill(0);
                }
                Step::Update { file, at, length, seed } => {
                    let length = length.min(2 * BLOCK_BYTES);
                    let data = bytes(seed, length);
                    let known = &model[file][at..at + length];
                    let mut change = |range: &mut [u8]| {
                        assert!(range == known);
                        range.copy_from_slice(&data);
                        true
                    };
                    prop_assert!(space.update(At::new(BASES[file], at as u64), length, &mut change).unwrap());
                    model[file][at..at + length].copy_from_slice(&data);
                }
                Step::Copy { file, at, source, from, length } => {
                    let length = length.min(SIZE - from);
                    space.copy_from(At::new(BASES[file], at as u64), &space, At::new(BASES[source], from as u64), length as u64).unwrap();
                    let data = model[source][from..from + length].to_vec();
                    model[file][at..at + length].copy_from_slice(&data);
                }
                Step::WriteOut { file, at, length } => {
                    space.write_out_range(At::new(BASES[file], at as u64), length as u64).unwrap();
                    let first = BASES[file] + (at / BLOCK_BYTES) as u64;
                    let last = BASES[file] + (at + length).div_ceil(BLOCK_BYTES) as u64;
                    prop_assert!(space.dirty.lock().range(first, last, 1).is_empty());
                }
                Step::Truncate { file, at } => {
                    let most = STRIDE * u64::from(BLOCK);
                    space.discard(At::new(BASES[file], at as u64), most - at as u64).unwrap();
                    model[file][at..].fill(0);
                }
                Step::Snapshot => {
                    if frozen.is_none() {
                        frozen = Some((spaces.snapshot(Owner::Filesystems, "files", "then").unwrap(), model.clone()));
                    }
                }
                Step::Clean { steps } => {
                    let left = std::cell::Cell::new(steps);
                    let go_on = || left.replace(left.get().saturating_sub(1)) > 0;
                    spaces.resume_deletions(&go_on).unwrap();
                }
                Step::Reopen => {
                    let model_then = frozen.take().map(|(_, model)| model);
                    spaces.flush().unwrap();
                    drop((space, spaces));
                    store.reopen();
                    (spaces, space) = open(&mut store);
                    frozen = model_then.map(|model| (spaces.get(Owner::Filesystems, "then").unwrap(), model));
                }
            }
        }
        for file in 0..BASES.len() {
            prop_assert!(read(&space, file) == model[file], "sequence {file}");
            check_extents(&space, file, &model[file]);
            if let Some((then, model)) = &frozen {
                prop_assert!(read(then, file) == model[file], "sequence {file} of the snapshot");
                let mut equal = vec![true; SIZE];
                let mut visit = |range: std::ops::Range<u64>| {
                    equal[range.start as usize..range.end as usize].fill(false);
                    true
                };
                spaces.diff(then, &space, At::new(BASES[file], 0), SIZE as u64, &mut visit).unwrap();
                let now = read(&space, file);
                prop_assert!((0..SIZE).all(|at| !equal[at] || now[at] == model[file][at]));
            }
        }
        spaces.flush().unwrap();
        prop_assert!(spaces.resume_deletions(&|| true).unwrap());
        prop_assert!(read(&space, 3) == model[3]);
        let all = spaces.all();
        store.check_counts(&all.iter().map(|space| &**space).collect::<Vec<_>>());
    }
}
