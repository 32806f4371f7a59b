//! `onefold backup --fs`: backs up a filesystem of the same store (decision 0064).

use super::{Outcome, Told, print, to_json};
use crate::cli::BackupFs;
use crate::clocks::doubt_of_backup;
use crate::commands::fs::chosen;
use crate::failure::{Exit, Result};
use crate::progress::said;
use crate::session::{Session, StoreCommand, store_command};
use onefold_client::{BackupOutcome, Problem, Severity};
use onefold_fs_backup::{Monitor, Options, backup};
use onefold_upkeep::Monitor as _;
use std::cell::RefCell;

/// Most problems that the result names.
const PROBLEMS: usize = 1000;

impl StoreCommand for BackupFs {
    store_command!("backup", waits, writes, ends_early);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let filesystems = session.filesystems()?;
        let watch = Watch { session, problems: RefCell::default() };
        if let Some(doubt) = doubt_of_backup(&session.catalog()) {
            watch.add(Problem::new(b"/", doubt, Severity::Warning), &|problem| format!("warning: {}", problem.reason));
        }
        let filesystem = filesystems.open(&chosen(filesystems, &self.fs)?.name)?;
        session.step("files", 0);
        let options = Options { name: self.name.clone(), host: self.host.clone(), user: self.user.clone(), tags: self.tags.clone() };
        let made = backup(filesystems.spaces(), &filesystem, &options, &watch);
        session.end_progress();
        let made = made?;
        let errors = made.backup.statistics.errors;
        let warnings = watch.problems.borrow().iter().filter(|problem| problem.severity == Severity::Warning).count() as u64;
        let outcome = Outcome::Made(Box::new(BackupOutcome { backup: made.backup, parent: made.parent, errors, warnings }));
        let problems = watch.problems.into_inner();
        let told = Told { name: &self.name, tags: self.tags.clone(), problems: &problems };
        let mut output = session.output();
        if self.format.json {
            output.json(&to_json(&told, &outcome))?;
        } else if !session.quiet {
            print(&mut output, &told, &outcome)?;
        }
        output.finish()?;
        Ok(if errors == 0 { Exit::Done } else { Exit::Partial })
    }
}

/// Keeps the problems, and shows them as they come.
struct Watch<'a, 's> {
    session: &'a Session<'s>,
    problems: RefCell<Vec<Problem>>,
}

impl Watch<'_, '_> {
    fn add(&self, problem: Problem, text: &dyn Fn(&Problem) -> String) {
        self.session.note(text(&problem));
        let mut problems = self.problems.borrow_mut();
        if problems.len() < PROBLEMS {
            problems.push(problem);
        }
    }
}

impl Monitor for Watch<'_, '_> {
    fn problem(&self, path: &[u8], reason: &str) {
        self.add(Problem::new(&[b"/", path].concat(), reason, Severity::Error), &said);
    }

    fn visited(&self) {
        self.session.advance(1);
    }

    fn is_cancelled(&self) -> bool {
        self.session.is_cancelled()
    }
}
