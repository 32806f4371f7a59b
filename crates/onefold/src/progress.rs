//! Progress of long work, on a terminal only: how much of how much, how fast, how long still, which file.
//! And the [`Monitor`] of backups, restores and analyses, which feeds it, prints problems as they come and keeps them for the result.

use crate::commands::Talk;
use crate::interrupt::Interrupt;
use crate::output::{note, put_name};
use crate::units::{number, printable};
use indicatif::{ProgressBar, ProgressStyle};
use onefold_client::{Counter, Monitor, Problem, Severity};
use serde_json::{Map, Value};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A bar over `total_bytes`; invisible when nobody looks.
pub fn bar(talk: Talk, total_bytes: u64) -> ProgressBar {
    styled(
        talk,
        total_bytes,
        "{elapsed_precise} [{bar:16}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left {wide_msg}",
    )
}

/// A bar below a line that says what it is of; of 0 bytes, as long as that is not known, the line alone.
pub fn titled_bar(talk: Talk, total_bytes: u64, title: String) -> ProgressBar {
    let template = match total_bytes {
        0 => "{elapsed_precise} {spinner} {wide_msg}",
        _ => "{wide_msg}\n{elapsed_precise} [{bar:16}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left",
    };
    let bar = styled(talk, total_bytes, template);
    bar.set_message(title);
    bar
}

/// A bar over the steps of something that is not counted in bytes; its message names the step.
pub fn steps(talk: Talk) -> ProgressBar {
    styled(talk, 0, "{elapsed_precise} {msg} [{bar:30}] {pos}/{len}, {eta} left")
}

/// Whether anybody looks at a bar.
pub fn is_shown(talk: Talk) -> bool {
    !talk.quiet && !talk.verbose && std::io::stderr().is_terminal()
}

fn styled(talk: Talk, length: u64, template: &str) -> ProgressBar {
    if !is_shown(talk) {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length);
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Most problems whose text is kept for the result; all are printed and counted.
const KEPT_PROBLEMS: usize = 10_000;

/// Watches a backup or a restore.
#[derive(Debug)]
pub struct Watch {
    bar: ProgressBar,
    interrupt: Interrupt,
    files: AtomicU64,
    problems: Mutex<Vec<Problem>>,
}

impl Watch {
    /// Shows progress as far as `talk` allows, and stops the work when a signal comes.
    pub fn new(talk: Talk, interrupt: Interrupt) -> Watch {
        Watch { bar: bar(talk, 0), interrupt, files: AtomicU64::new(0), problems: Mutex::default() }
    }

    /// Whether somebody looks at the bar: then it is worth telling how much there is to do.
    pub fn is_seen(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Tells what concerns the whole and no path.
    pub fn warn(&self, reason: &str) {
        self.bar.suspend(|| note(format_args!("warning: {reason}")));
        self.problems().push(Problem { path: b"/".to_vec(), reason: reason.to_owned(), severity: Severity::Warning });
    }

    /// The problems, for JSON.
    pub fn problems_json(&self) -> Value {
        let object = |problem: &Problem| {
            let mut object = Map::new();
            put_name(&mut object, "path", &problem.path);
            object.insert("reason".to_owned(), problem.reason.as_str().into());
            object.insert("severity".to_owned(), severity(problem).into());
            Value::Object(object)
        };
        self.problems().iter().map(object).collect()
    }

    fn problems(&self) -> MutexGuard<'_, Vec<Problem>> {
        // A list of texts is whole at any time.
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn severity(problem: &Problem) -> &'static str {
    match problem.severity {
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

impl Monitor for Watch {
    fn count(&self, counter: Counter, increment: u64) {
        match counter {
            Counter::FoundBytes => self.bar.inc_length(increment),
            Counter::LogicalBytes => self.bar.inc(increment),
            Counter::Files => {
                self.files.fetch_add(increment, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    fn current(&self, path: &[u8]) {
        if self.bar.is_hidden() {
            return;
        }
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let name: String = printable(name).chars().take(40).collect();
        self.bar.set_message(format!("{} files  {name}", number(self.files.load(Ordering::Relaxed))));
    }

    fn problem(&self, problem: &Problem) {
        let mut problem = problem.clone();
        // A restore names what is in the backup, from its root on: shown as `ls` shows it.
        if !problem.path.starts_with(b"/") {
            problem.path.insert(0, b'/');
        }
        self.bar.suspend(|| note(format_args!("{}: {}: {}", severity(&problem), printable(&problem.path), problem.reason)));
        let mut problems = self.problems();
        if problems.len() < KEPT_PROBLEMS {
            problems.push(problem);
        }
    }

    fn cancelled(&self) -> bool {
        self.interrupt.came()
    }
}
