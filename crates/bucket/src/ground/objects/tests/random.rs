//! Random reads, changes and damage, in two processes that share a cache.

use super::*;
use onefold_ground::replace_file;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Read {
        ground: usize,
        number: usize,
        at: prop::sample::Index,
        length: usize,
    },
    TryRead {
        ground: usize,
        number: usize,
        at: prop::sample::Index,
    },
    ReadAhead {
        ground: usize,
        number: usize,
    },
    Reopen {
        ground: usize,
        number: usize,
    },
    /// Another process takes the place of this one.
    Restart {
        ground: usize,
    },
    /// A cached file is changed, cut, or removed.
    Damage {
        file: prop::sample::Index,
        at: prop::sample::Index,
        how: u8,
    },
    FailNext,
    DropCached {
        ground: usize,
        number: usize,
    },
    /// By the first ground. The other one is restarted.
    Replace {
        number: usize,
    },
}

/// Some fit into their ends, some have several pieces.
const LENGTHS: [usize; 5] = [0, 50_000, 700_000, 1_500_000, 13 << 20];

fn step() -> impl Strategy<Value = Step> {
    let (ground, number) = (0..2_usize, 0..LENGTHS.len());
    let index = any::<prop::sample::Index>;
    let length = prop_oneof![4 => 0..5000_usize, 3 => 0..400_000_usize, 1 => 0..2_000_000_usize];
    prop_oneof![
        12 => (ground.clone(), number.clone(), index(), length)
            .prop_map(|(ground, number, at, length)| Step::Read { ground, number, at, length }),
        2 => (ground.clone(), number.clone(), index()).prop_map(|(ground, number, at)| Step::TryRead { ground, number, at }),
        1 => (ground.clone(), number.clone()).prop_map(|(ground, number)| Step::ReadAhead { ground, number }),
        2 => (ground.clone(), number.clone()).prop_map(|(ground, number)| Step::Reopen { ground, number }),
        1 => ground.clone().prop_map(|ground| Step::Restart { ground }),
        3 => (index(), index(), any::<u8>()).prop_map(|(file, at, how)| Step::Damage { file, at, how }),
        1 => Just(Step::FailNext),
        1 => (ground, number.clone()).prop_map(|(ground, number)| Step::DropCached { ground, number }),
        1 => number.prop_map(|number| Step::Replace { number }),
    ]
}

fn damage(path: &std::path::Path, at: prop::sample::Index, how: u8) {
    use std::os::unix::fs::FileExt;
    let Ok(file) = std::fs::OpenOptions::new().read(true).write(true).open(path) else { return };
    let length = file.metadata().unwrap().len();
    if length == 0 {
        return;
    }
    let at = at.index(length as usize) as u64;
    match how {
        0..50 => file.set_len(at).unwrap(),
        50..80 => std::fs::remove_file(path).unwrap(),
        flip => {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ flip], at).unwrap();
        }
    }
}

/// Reads by two processes that share a cache give the right bytes or the error of the bucket, whatever happens to the
/// cache.
fn compare(steps: Vec<Step>, cache_bytes: u64, held_bytes: usize) {
    let bench = Bench::new(&LENGTHS);
    let mut expected: Vec<Vec<u8>> = LENGTHS.iter().enumerate().map(|(number, length)| content(number as u64, *length)).collect();
    let make = || bench.ground(cache_bytes, held_bytes);
    let mut grounds = [make(), make()];
    let mut files: [Vec<Option<Arc<dyn File>>>; 2] = [vec![None; LENGTHS.len()], vec![None; LENGTHS.len()]];
    let mut may_fail = false;
    for (count, step) in steps.into_iter().enumerate() {
        match step {
            Step::Read { ground, number, at, length } => {
                let want = &expected[number];
                if files[ground][number].is_none() {
                    match Ground::open(&grounds[ground], &name(number), Access::Read) {
                        Ok(file) => files[ground][number] = Some(file),
                        Err(error) => {
                            assert!(may_fail && error.kind() == ErrorKind::TimedOut, "{error}");
                            may_fail = false;
                            continue;
                        }
                    }
                }
                let file = files[ground][number].as_ref().unwrap();
                assert_eq!(file.len().unwrap(), want.len() as u64);
                let offset = at.index(want.len() + 1);
                match read(&**file, offset, length) {
                    Ok(bytes) => assert!(bytes == want[offset..offset + length], "{number} at {offset}, {length}"),
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => assert!(offset + length > want.len()),
                    Err(error) => {
                        assert!(may_fail && error.kind() == ErrorKind::TimedOut, "{error}");
                        may_fail = false;
                    }
                }
            }
            Step::TryRead { ground, number, at } => {
                let (Some(file), want) = (&files[ground][number], &expected[number]) else { continue };
                let offset = at.index(want.len() + 1);
                let mut buffer = vec![0; 3000.min(want.len() - offset)];
                if file.try_read_at(offset as u64, &mut buffer).unwrap() {
                    assert!(buffer == want[offset..offset + buffer.len()]);
                }
            }
            Step::ReadAhead { ground, number } => {
                // A failure must not hit a fetch that nobody hears of.
                if let (Some(file), false) = (&files[ground][number], may_fail) {
                    file.read_ahead(0, u64::MAX);
                    let want = &expected[number];
                    assert!(read(&**file, 0, want.len()).unwrap() == *want);
                    // What another process caches just after a replacement would be old.
                    while !grounds[ground].shared.objects.background.is_idle() {
                        std::thread::yield_now();
                    }
                }
            }
            Step::Reopen { ground, number } => files[ground][number] = None,
            Step::Restart { ground } => {
                files[ground].fill(None);
                grounds[ground] = make();
            }
            Step::Damage { file, at, how } => {
                let cached = bench.cached_files();
                if !cached.is_empty() {
                    damage(&cached[file.index(cached.len())], at, how);
                }
            }
            Step::FailNext => {
                bench.bucket.calm();
                bench.bucket.fail_at(bench.bucket.steps(), Failure::Before);
                may_fail = true;
            }
            Step::DropCached { ground, number } => {
                if let Some(file) = &files[ground][number] {
                    file.drop_cached(0, 1);
                }
            }
            Step::Replace { number } => {
                bench.bucket.calm();
                may_fail = false;
                expected[number] = content(1000 + count as u64, LENGTHS[(number + count) % 4]);
                replace_file(&grounds[0] as &dyn Ground, &name(number), &expected[number]).unwrap();
                files[0][number] = None;
                files[1].fill(None);
                grounds[1] = make();
            }
        }
        assert!(grounds.iter().all(|ground| ground.shared.objects.held_bytes() <= held_bytes));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn no_cache_and_no_damage_of_it_gives_wrong_bytes(
        steps in proptest::collection::vec(step(), 1..60),
        cache_bytes in prop_oneof![Just(0), Just(800_000), Just(3_000_000), Just(ON_DISK)],
        held_bytes in prop_oneof![Just(0), Just(100_000), Just(2_000_000), Just(HELD_BYTES)],
    ) {
        compare(steps, cache_bytes, held_bytes);
    }
}
