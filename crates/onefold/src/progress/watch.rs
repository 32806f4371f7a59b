//! The [`Monitor`] of backups, restores and analyses.

use super::{Course, bar, is_shown};
use crate::interrupt::Interrupt;
use crate::output::{note, put_name};
use crate::talk::Talk;
use crate::units::{counted, number, printable};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use onefold_client::{Counter, Monitor, Plan, Problem, Severity};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most problems whose text is kept for the result; all are printed and counted.
const KEPT_PROBLEMS: usize = 10_000;
/// Most kinds of problems that a summary distinguishes.
const KINDS: usize = 8;
/// How often it writes a line: for people, and for programs.
const LINE_EVERY: Duration = Duration::from_secs(10);
const EVENT_EVERY: Duration = Duration::from_secs(1);

/// How to show progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Not at all.
    Nothing,
    /// A bar on the terminal.
    Bar,
    /// A line every ten seconds.
    Lines,
    /// A line of JSON every second.
    Events,
}

impl Shown {
    /// Returns a bar if somebody watches. Otherwise what `--progress` asks for, as JSON beside a JSON result.
    pub fn of(talk: Talk, is_wanted: bool, is_json: bool) -> Shown {
        match (is_wanted, is_json) {
            (true, true) => Shown::Events,
            _ if is_shown(talk) => Shown::Bar,
            (true, false) if !talk.quiet => Shown::Lines,
            _ => Shown::Nothing,
        }
    }
}

/// The monitor of a backup or a restore.
#[derive(Debug)]
pub struct Watch {
    bar: ProgressBar,
    shown: Shown,
    interrupt: Interrupt,
    course: Arc<Course>,
    teller: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
    problems: Mutex<Vec<Problem>>,
    /// Lists on standard output what a dry run would do.
    lists_plan: bool,
}

impl Watch {
    /// Shows progress, and stops the work when a signal comes.
    pub fn new(talk: Talk, interrupt: Interrupt, shown: Shown) -> Watch {
        let course = Arc::new(Course::default());
        let bar = if shown == Shown::Bar { course_bar(talk, &course) } else { ProgressBar::hidden() };
        let teller = match shown {
            Shown::Lines => Some(tell_every(LINE_EVERY, course.clone(), |course| course.standing().line())),
            Shown::Events => Some(tell_every(EVENT_EVERY, course.clone(), |course| course.standing().to_json().to_string())),
            Shown::Nothing | Shown::Bar => None,
        };
        Watch { bar, shown, interrupt, course, teller: Mutex::new(teller), problems: Mutex::default(), lists_plan: false }
    }

    /// Lists on standard output what a dry run would do.
    pub fn listing_plan(mut self) -> Watch {
        self.lists_plan = true;
        self
    }

    /// Returns whether somebody watches, so that counting the work first is worthwhile.
    pub fn is_seen(&self) -> bool {
        self.shown != Shown::Nothing
    }

    /// Removes the bar.
    pub fn finish(&self) {
        let teller = self.teller.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((over, thread)) = teller {
            drop(over);
            // It writes the last line.
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }

    /// Prints a warning about the whole operation rather than a path.
    pub fn warn(&self, reason: &str) {
        self.bar.suspend(|| note(format_args!("warning: {reason}")));
        self.problems().push(Problem::new(WHOLE, reason, Severity::Warning));
    }

    /// Returns the problems as JSON.
    pub fn problems_json(&self) -> Value {
        problems_json(&self.problems())
    }

    /// Returns a [`summary`] of the problems.
    pub fn summary(&self, severity: Severity) -> Vec<String> {
        summary(&self.problems(), severity)
    }

    /// Returns the problems so far.
    pub fn problems(&self) -> MutexGuard<'_, Vec<Problem>> {
        // The list is complete whenever its lock is free, even after a panic.
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The path of a problem that concerns none.
const WHOLE: &[u8] = b"/";

/// Returns a reason without its numbers.
fn kind(reason: &str) -> String {
    let mut kind = reason.replace(|letter: char| letter.is_ascii_digit(), "0");
    while kind.contains("00") {
        kind = kind.replace("00", "0");
    }
    kind
}

/// Returns a bar over files and bytes, with the time left.
fn course_bar(talk: Talk, course: &Arc<Course>) -> ProgressBar {
    let bar = bar(talk, 1);
    let course = course.clone();
    let line = move |_: &ProgressState, out: &mut dyn std::fmt::Write| {
        // If the terminal is gone, there is nobody to tell.
        let _ = out.write_str(&course.standing().line());
    };
    let style = ProgressStyle::with_template("{elapsed_precise} [{bar:16}] {line}  {wide_msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).with_key("line", line).progress_chars("=> "));
    bar
}

/// Writes a line on standard error now and then, and a last one at the end.
fn tell_every(pause: Duration, course: Arc<Course>, line: fn(&Course) -> String) -> (Sender<()>, JoinHandle<()>) {
    let (over, is_over) = channel();
    let tell = move || {
        while is_over.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            note(line(&course));
        }
        note(line(&course));
    };
    (over, std::thread::spawn(tell))
}

fn severity(problem: &Problem) -> &'static str {
    match problem.severity {
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

/// Returns problems as JSON.
pub fn problems_json(problems: &[Problem]) -> Value {
    let object = |problem: &Problem| {
        let mut object = Map::new();
        put_name(&mut object, "path", &problem.path);
        object.insert("reason".to_owned(), problem.reason.as_str().into());
        object.insert("severity".to_owned(), severity(problem).into());
        if !problem.lost.is_empty() {
            let range = |lost: &std::ops::Range<u64>| json!({ "offset": lost.start, "length": lost.end - lost.start });
            object.insert("lost".to_owned(), problem.lost.iter().map(range).collect());
        }
        Value::Object(object)
    };
    problems.iter().map(object).collect()
}

/// Returns how often each kind of problem occurred, with the first path of each: for the end of a long list that
/// nobody reads.
pub fn summary(problems: &[Problem], severity: Severity) -> Vec<String> {
    // Problems without a path were shown before the work began.
    let problems = problems.iter().filter(|problem| problem.path != WHOLE);
    let mut kinds: BTreeMap<String, (u64, &Problem)> = BTreeMap::new();
    for problem in problems.filter(|problem| problem.severity == severity) {
        kinds.entry(kind(&problem.reason)).or_insert((0, problem)).0 += 1;
    }
    let mut kinds: Vec<(u64, &Problem)> = kinds.into_values().collect();
    kinds.sort_by_key(|(number, problem)| (std::cmp::Reverse(*number), &problem.path));
    let rest: u64 = kinds.iter().skip(KINDS).map(|(number, _)| number).sum();
    let line = |(number, problem): &(u64, &Problem)| match number {
        1 => format!("{}: {}", printable(&problem.path), problem.reason),
        _ => format!(
            "{}: {}, and {}",
            printable(&problem.path),
            problem.reason,
            counted(
                number - 1,
                "more of the same kind",
                "more of the \
            same kind"
            )
        ),
    };
    let mut lines: Vec<String> = kinds.iter().take(KINDS).map(line).collect();
    if rest > 0 {
        lines.push(format!("{} of other kinds", number(rest)));
    }
    lines
}

/// Formats a problem on one line. A restore's paths start at the root of the backup, so they are shown as `ls` shows
/// them.
pub fn said(problem: &Problem) -> String {
    let slash = if problem.path.starts_with(b"/") { "" } else { "/" };
    format!("{}: {slash}{}: {}", severity(problem), printable(&problem.path), problem.reason)
}

impl Monitor for Watch {
    fn count(&self, counter: Counter, increment: u64) {
        self.course.count(counter, increment);
        // A backup counts the bytes that it is done with, a restore those in their place.
        if matches!(counter, Counter::DoneBytes | Counter::LogicalBytes) && !self.bar.is_hidden() {
            let (done, all) = self.course.standing().share();
            self.bar.set_length(all);
            self.bar.set_position(done);
        }
    }

    fn wants_totals(&self) -> bool {
        self.is_seen()
    }

    fn has_totals(&self) {
        self.course.set_totals();
    }

    fn current(&self, path: &[u8]) {
        if self.bar.is_hidden() {
            return;
        }
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        self.bar.set_message(printable(name).chars().take(40).collect::<String>());
    }

    fn planned(&self, plan: Plan, path: &[u8]) {
        if self.lists_plan {
            let verb = match plan {
                Plan::Create => "new    ",
                Plan::Replace => "replace",
                Plan::Delete => "delete ",
            };
            // The reader who closes standard output has seen enough. Then writing the summary fails and says so.
            let _ = self.bar.suspend(|| writeln!(std::io::stdout(), "{verb}  /{}", printable(path)));
        }
    }

    fn problem(&self, problem: &Problem) {
        self.bar.suspend(|| note(said(problem)));
        let mut problem = problem.clone();
        if !problem.path.starts_with(b"/") {
            problem.path.insert(0, b'/');
        }
        let mut problems = self.problems();
        if problems.len() < KEPT_PROBLEMS {
            problems.push(problem);
        }
    }

    fn cancelled(&self) -> bool {
        self.interrupt.came()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_15_problems_of_one_kind_are_summed_up() {
        let talk = Talk { quiet: true, verbose: false };
        let watch = Watch::new(talk, Interrupt::default(), Shown::Nothing);
        let problem = |path: &str, reason: &str| Problem::new(path.as_bytes(), reason, Severity::Warning);
        watch.problems().extend([
            problem("/a", "changed from 5 to 17 bytes while it was read"),
            problem("/b", "vanished before it was read"),
            problem("/c", "changed from 1234 to 0 bytes while it was read"),
        ]);
        assert_eq!(
            watch.summary(Severity::Warning),
            ["/a: changed from 5 to 17 bytes while it was read, and 1 more of the same kind", "/b: vanished before it was read"]
        );
        assert_eq!(watch.summary(Severity::Error), [""; 0]);
    }
}
