//! A model of the values: failures at every step, and two writers in turns.

use super::*;

/// Numbers from a seed (SplitMix64).
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

#[test]
fn whatever_fails_at_any_step_nothing_acknowledged_is_lost() {
    let (bucket, here) = (made(), directory());
    let (mut known, mut doubtful) = (Values::new(), Vec::new());
    for seed in 0..3 {
        work(&bucket, &here, seed, &mut known, &mut doubtful).unwrap();
    }
    let first = bucket.fork();
    work(&first, &here.snapshot(onefold_ground::CrashPolicy::DropAll), 9, &mut known.clone(), &mut Vec::new()).unwrap();
    let steps = first.steps();
    assert!(steps > 60, "{steps}");
    for step in 1..=steps {
        for failure in [Failure::Before, Failure::After, Failure::Dead, Failure::DeadAfter] {
            let (bucket, here) = (bucket.fork(), here.snapshot(onefold_ground::CrashPolicy::DropAll));
            let (mut known, mut doubtful) = (known.clone(), Vec::new());
            bucket.fail_at(step, failure);
            let worked = work(&bucket, &here, 9, &mut known, &mut doubtful);
            bucket.calm();
            let mut with_doubtful = known.clone();
            apply(&mut with_doubtful, &doubtful);
            // Another machine, which may see old lists, or this one, which has copies.
            if step % 3 == 0 {
                bucket.hide_from_lists(2);
            }
            let there = if step % 2 == 0 { directory() } else { here };
            let log = take(&bucket, &there).unwrap_or_else(|error| panic!("step {step}, {failure:?}: {error}; {worked:?}"));
            let found = values(&log);
            assert!(found == known || found == with_doubtful, "step {step}, {failure:?}: {worked:?}");
            let mut known = found;
            drop(log);
            work(&bucket, &there, 5, &mut known, &mut doubtful).unwrap();
            assert_eq!(elsewhere(&bucket), known, "step {step}, {failure:?}");
        }
    }
}

#[test]
fn two_writers_in_turns_lose_nothing_that_either_was_told() {
    for seed in 0..200u64 {
        let (bucket, places) = (made(), [directory(), directory()]);
        let mut random = Dice(seed);
        let mut logs: [Option<ObjectLog>; 2] = [None, None];
        // Openings that have looked, and put their fences much later.
        let mut looked: [Option<ObjectLog>; 2] = [None, None];
        let mut known = Values::new();
        for step in 0..120u8 {
            let who = random.below(2) as usize;
            match (random.below(12), &mut logs[who]) {
                (0, log) => *log = Some(take(&bucket, &places[who]).unwrap()),
                // A third machine, or this one.
                (4, log) if random.below(3) == 0 => {
                    let place = if random.below(2) == 0 {
                        directory()
                    } else {
                        *log = None;
                        places[who].snapshot(onefold_ground::CrashPolicy::KeepAll)
                    };
                    looked[who] = Some(look_for_taking(&bucket, &place).unwrap());
                }
                (5, log) if random.below(3) == 0 && looked[who].is_some() => {
                    let mut late = looked[who].take().unwrap();
                    late.fence(1, &[], &mut never_wait).unwrap();
                    *log = Some(late);
                }
                (_, None) => {}
                (1 | 2, Some(log)) => match log.trim(log.end()) {
                    Ok(()) | Err(LogError::Poisoned | LogError::Fenced { .. }) => {}
                    Err(error) => panic!("seed {seed}, step {step}: {error}"),
                },
                (3, Some(log)) => drop(log.tidy()),
                (_, Some(log)) => {
                    for more in 0..4 {
                        let records = [set(step.wrapping_add(more) % 40, step % 9)];
                        if log.commit(&records).is_ok() {
                            apply(&mut known, &records);
                        }
                    }
                }
            }
            if step % 10 == 0 {
                bucket.hide_from_lists(random.below(4) as usize);
            }
        }
        bucket.calm();
        assert_eq!(elsewhere(&bucket), known, "seed {seed}");
    }
}
