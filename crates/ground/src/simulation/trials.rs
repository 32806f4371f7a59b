//! Trials that every writer must pass, for tests: one process is killed, fails, or cannot read; another follows; a
//! power cut ends it.
//!
//! A [`Subject`] knows how to open its part, what work to do and what must be there. The trials choose the moments. If
//! something is missing or wrong, a trial prints the moment and panics.

use super::file::EIO;
use super::{CrashPolicy, SimulatedGround};
use std::io::ErrorKind;

/// Too many open files.
const EMFILE: i32 = 24;
/// Out of memory.
const ENOMEM: i32 = 12;
/// Two transient errors, and one that looks as if the device lost data.
const CODES: [i32; 3] = [EMFILE, EIO, ENOMEM];

/// A part under test.
pub trait Subject {
    /// The open part.
    type Part;
    /// What must be there: everything acknowledged. It also holds what else may be there.
    type Known: Clone;

    /// Creates the part on a new disk. Returns the disk and what is known of it.
    fn create(&self, seed: u64) -> (SimulatedGround, Self::Known);
    /// Opens the part.
    fn open(&self, ground: &SimulatedGround, known: &mut Self::Known) -> Result<Self::Part, String>;
    /// Turns doubtful state into known state once a process has seen it. Errors: only a crash.
    fn learn(&self, _part: &mut Self::Part, _known: &mut Self::Known) -> Result<(), String> {
        Ok(())
    }
    /// Does everything that the part can do, until the first error. Acknowledged work becomes known. May run again,
    /// also in the next process.
    fn work(&self, part: &mut Self::Part, known: &mut Self::Known) -> Result<(), String>;
    /// Panics unless everything known is there and nothing is wrong. Learns what was in doubt. No operation fails
    /// meanwhile.
    fn compare(&self, ground: &SimulatedGround, part: &mut Self::Part, known: &mut Self::Known);
}

/// Prints the moment of a trial on a panic.
struct Moment(String);

impl Drop for Moment {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("trial: {}", self.0);
        }
    }
}

/// Returns at most `most` of `total` moments, spread over all of them.
fn moments(total: u64, most: u64) -> impl Iterator<Item = u64> {
    let taken = total.min(most);
    (0..taken).map(move |index| index * total / taken)
}

/// Returns what a power cut leaves: the least, or some of it.
fn power_cut(ground: &SimulatedGround, seed: u64) -> SimulatedGround {
    ground.restart(if seed.is_multiple_of(2) { CrashPolicy::DropAll } else { CrashPolicy::Random { seed } })
}

/// Opens and compares, without faults.
fn check<S: Subject>(subject: &S, ground: &SimulatedGround, known: &mut S::Known) {
    ground.calm();
    let mut part = subject.open(ground, known).unwrap_or_else(|error| panic!("it cannot be opened: {error}"));
    subject.compare(ground, &mut part, known);
}

/// Runs a process that may hit a crash or a failing operation: it opens and works.
fn live<S: Subject>(subject: &S, ground: &SimulatedGround, known: &mut S::Known, goes_on: bool) {
    let Ok(mut part) = subject.open(ground, known) else { return };
    if let Err(why) = subject.learn(&mut part, known) {
        assert!(ground.is_crashed(), "{why}");
        return;
    }
    if subject.work(&mut part, known).is_err() && goes_on {
        let _ = subject.work(&mut part, known);
    }
}

/// Runs the process after a killed one, in one of three ways: it only looks, it works, or it dies at some moment. Then
/// the power is cut, and everything must be there. With `hears`, the system may report the lost writeback of the first
/// process to the next one. Then one opening fails.
fn next_process_and_power_cut<S: Subject>(subject: &S, killed: &SimulatedGround, known: &mut S::Known, seed: u64, hears: bool) {
    let next = killed.restart(CrashPolicy::KeepAll);
    match seed % 3 {
        0 => {
            if hears {
                drop(subject.open(&next, known));
            }
            check(subject, &next, known);
        }
        1 => live(subject, &next, known, false),
        _ => {
            next.crash_after_operations(seed / 3 % 23);
            live(subject, &next, known, false);
        }
    }
    check(subject, &power_cut(&next, seed), known);
}

/// Counts the operations of a process on a new disk.
fn operations<S: Subject>(subject: &S) -> u64 {
    let (ground, mut known) = subject.create(0);
    let before = ground.operations();
    let mut part = subject.open(&ground, &mut known).expect("nothing fails");
    subject.learn(&mut part, &mut known).expect("nothing fails");
    subject.work(&mut part, &mut known).expect("nothing fails");
    ground.operations() - before
}

/// Kills a process, opens its disk in another one, then cuts the power. Tries at most `most` moments of the first
/// process, each three times. Returns how many moments there are.
pub fn kills_then_power_cuts<S: Subject>(subject: &S, most: u64) -> u64 {
    let operations = operations(subject);
    for operation in moments(operations, most) {
        for turn in 0..3 {
            let _moment = Moment(format!("killed at operation {operation}, turn {turn}"));
            let (ground, mut known) = subject.create(operation);
            ground.crash_after_operations(operation);
            live(subject, &ground, &mut known, false);
            next_process_and_power_cut(subject, &ground, &mut known, 3 * operation + turn, false);
        }
    }
    operations
}

/// Fails an operation or a writeback. The process goes on or stops; another one opens its disk; then the power is cut.
/// Tries at most `most` moments, each in three ways. Returns how many moments there are.
pub fn failures_then_power_cuts<S: Subject>(subject: &S, most: u64) -> u64 {
    let operations = operations(subject);
    for operation in moments(operations, most) {
        for turn in 0..3 {
            let _moment = Moment(format!("operation {operation} fails, turn {turn}"));
            let seed = 3 * operation + turn;
            let (ground, mut known) = subject.create(seed);
            match turn {
                0 => ground.fail_operation(operation, ErrorKind::StorageFull),
                1 => ground.fail_operation(operation, ErrorKind::Other),
                _ => ground.fail_writeback(operation),
            }
            live(subject, &ground, &mut known, operation.is_multiple_of(2));
            next_process_and_power_cut(subject, &ground, &mut known, operation + turn, turn == 2);
        }
    }
    operations
}

/// Fails a query while a process opens the part that a killed process or a power cut left. Either the opening fails, or
/// everything is there, unless the error looks like damage. The next opening must find everything. Tries at most
/// `most_disks` disks with at most `most` queries each. Returns how many queries failed.
pub fn failed_queries_of_openings<S: Subject>(subject: &S, most_disks: u64, most: u64) -> u64 {
    let operations = operations(subject);
    let mut failed = 0;
    for operation in moments(operations + 1, most_disks) {
        let (ground, mut known) = subject.create(operation);
        ground.crash_after_operations(operation);
        live(subject, &ground, &mut known, false);
        let left = if operation.is_multiple_of(2) { ground.restart(CrashPolicy::KeepAll) } else { power_cut(&ground, operation / 2) };
        let queries = {
            let _moment = Moment(format!("after {operation} operations, without a failure"));
            let (whole, mut known) = (left.snapshot(CrashPolicy::KeepAll), known.clone());
            drop(subject.open(&whole, &mut known).unwrap_or_else(|error| panic!("it cannot be opened: {error}")));
            whole.queries()
        };
        for query in moments(queries, most) {
            let _moment = Moment(format!("after {operation} operations, query {query} of {queries} fails while opening"));
            let (ground, mut known) = (left.snapshot(CrashPolicy::KeepAll), known.clone());
            let code = CODES[((operation + query) % 3) as usize];
            ground.fail_query(query, code);
            // A process may go on without data that seems lost. But it must not make the loss real.
            if let Ok(mut part) = subject.open(&ground, &mut known)
                && code != EIO
            {
                ground.calm();
                subject.compare(&ground, &mut part, &mut known);
            }
            failed += 1;
            let next = ground.restart(CrashPolicy::KeepAll);
            check(subject, &next, &mut known);
            check(subject, &power_cut(&next, query), &mut known);
        }
    }
    failed
}

/// Fails a query while the part works. The next process finds everything, also after a power cut. So does the same
/// process, if the part goes on after errors (`goes_on`). Tries at most `most` moments and returns how many there are.
pub fn failed_queries_of_work<S: Subject>(subject: &S, goes_on: bool, most: u64) -> u64 {
    let (ground, mut known) = subject.create(0);
    let mut part = subject.open(&ground, &mut known).expect("nothing fails");
    subject.learn(&mut part, &mut known).expect("nothing fails");
    let before = ground.queries();
    subject.work(&mut part, &mut known).expect("nothing fails");
    drop(part);
    let queries = ground.queries() - before;
    for query in moments(queries, most) {
        let _moment = Moment(format!("query {query} fails while it works"));
        let (ground, mut known) = subject.create(query);
        let mut part = subject.open(&ground, &mut known).expect("nothing fails");
        subject.learn(&mut part, &mut known).expect("nothing fails");
        ground.fail_query(query, CODES[(query % 3) as usize]);
        let _ = subject.work(&mut part, &mut known);
        ground.calm();
        if goes_on {
            subject.compare(&ground, &mut part, &mut known);
        }
        drop(part);
        next_process_and_power_cut(subject, &ground, &mut known, query, false);
    }
    queries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Ground, read_file, replace_file};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Mistakes of the small part below.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Mistake {
        None,
        /// Acknowledges without a sync.
        NoSync,
        /// Trusts what a killed process left behind and does not make it durable.
        Believes,
        /// Takes any error for absence and starts from scratch.
        AnyErrorIsAbsence,
        /// Goes on after a failed sync, as if the next sync repaired it.
        SyncsAgain,
    }

    /// A number in a file. The first opening creates the file.
    struct Number(Mistake);

    #[derive(Clone)]
    struct Known {
        least: u8,
        most: u8,
    }

    struct Part {
        ground: SimulatedGround,
        number: u8,
    }

    impl Subject for Number {
        type Part = Part;
        type Known = Known;

        fn create(&self, seed: u64) -> (SimulatedGround, Known) {
            (SimulatedGround::new(seed), Known { least: 0, most: 0 })
        }

        fn open(&self, ground: &SimulatedGround, _: &mut Known) -> Result<Part, String> {
            let number = match read_file(ground, "number", 1) {
                Ok(bytes) => bytes[0],
                Err(error) if error.is_not_found() || self.0 == Mistake::AnyErrorIsAbsence => {
                    replace_file(ground, "number", &[0]).map_err(|error| error.to_string())?;
                    0
                }
                Err(error) => return Err(error.to_string()),
            };
            if self.0 != Mistake::Believes {
                let made_durable = ground.open("number", Access::ReadWrite).and_then(|file| {
                    file.write_at(0, &[number])?;
                    file.sync()?;
                    ground.sync_directory("")
                });
                made_durable.map_err(|error| error.to_string())?;
            }
            Ok(Part { ground: ground.clone(), number })
        }

        fn learn(&self, part: &mut Part, known: &mut Known) -> Result<(), String> {
            known.least = known.least.max(part.number);
            Ok(())
        }

        fn work(&self, part: &mut Part, known: &mut Known) -> Result<(), String> {
            for _ in 0..5 {
                let next = part.number + 1;
                known.most = known.most.max(next);
                let file = part.ground.open("number", Access::ReadWrite).map_err(|error| error.to_string())?;
                file.write_at(0, &[next]).map_err(|error| error.to_string())?;
                if self.0 != Mistake::NoSync {
                    let synced = file.sync();
                    let synced = if self.0 == Mistake::SyncsAgain { synced.or_else(|_| file.sync()) } else { synced };
                    synced.map_err(|error| error.to_string())?;
                }
                part.number = next;
                known.least = next;
            }
            Ok(())
        }

        fn compare(&self, _: &SimulatedGround, part: &mut Part, known: &mut Known) {
            known.least = known.least.max(part.number);
            assert!((known.least..=known.most).contains(&part.number), "{} is none of {}..={}", part.number, known.least, known.most);
        }
    }

    #[test]
    fn a_sound_part_stands_the_trials_and_each_mistake_is_found() {
        let stands = |mistake, trial: &dyn Fn(&Number)| catch_unwind(AssertUnwindSafe(|| trial(&Number(mistake)))).is_ok();
        let kills = |subject: &Number| assert!(kills_then_power_cuts(subject, 100) > 10);
        let failures = |subject: &Number| assert!(failures_then_power_cuts(subject, 100) > 10);
        let openings = |subject: &Number| assert!(failed_queries_of_openings(subject, 8, 100) > 20);
        let work = |subject: &Number| assert!(failed_queries_of_work(subject, true, 100) >= 5);
        let trials: [&dyn Fn(&Number); 4] = [&kills, &failures, &openings, &work];
        assert!(trials.iter().all(|trial| stands(Mistake::None, trial)));
        assert!(!stands(Mistake::NoSync, &kills));
        assert!(!stands(Mistake::Believes, &kills));
        assert!(!stands(Mistake::AnyErrorIsAbsence, &openings));
        assert!(!stands(Mistake::SyncsAgain, &failures));
    }
}
