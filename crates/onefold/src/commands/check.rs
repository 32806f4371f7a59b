//! `onefold check`.

use crate::cli::Check;
use crate::console::Console;
use crate::failure::{Exit, Failure, Result};
use crate::output::Output;
use crate::session::{Session, StoreCommand, store_command};
use crate::store::{OPENING_ADVICE, SETTINGS_FILE, ground, read_settings};
use crate::units::{counted, local_time, printable, size, utc_time};
use crate::waiting::Waiting;
use onefold_engine::{EngineError, Mode};
use onefold_ground::Exposure;
use onefold_remote::services::server::forget_all;
use onefold_upkeep::{
    CheckOptions, CheckReport, Losses, Monitor, Problem, ProblemKind, RepairOptions, RepairReport, check, rebuild_chunk_index,
};
use serde_json::{Value, json};

impl StoreCommand for Check {
    store_command!("check", far, waits, ends_early, heavy);

    fn mode(&self) -> Mode {
        Mode::ReadOnly
    }

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        run(self, session)
    }

    fn without_store(&self, error: &EngineError, console: &dyn Console, quiet: bool) -> Option<Result<Exit>> {
        error.is_damage().then(|| show(self, &CheckReport::of_opening(error), None, console, quiet))
    }
}

/// Verifies the store. Damage is a result with exit code 1. If the check cannot run, the code is 2.
fn run(options: &Check, session: &Session<'_>) -> Result<Exit> {
    let check_options = CheckOptions { read_data: options.read_data, ..CheckOptions::default() };
    let checked = check(&session.store.engine, check_options, session);
    session.end_progress();
    let report = checked.map_err(|error| Failure { exit: Exit::CannotRun, ..Failure::from(error) })?;
    if session.is_cancelled() {
        return Err(Failure::interrupted("the check was stopped before its end; nothing was changed"));
    }
    let exposure = session.store.engine.ground().exposure()?;
    show(options, &report, exposure.as_ref(), session.console(), session.quiet)
}

/// Names users other than the owner who can read the store. That damages no byte, so the exit code stays.
fn exposed(exposure: &Exposure) -> String {
    let Exposure { to_everybody, is_shared, path, mode } = exposure;
    let who = if *to_everybody { "every user of this machine" } else { "the group of its files" };
    let close = if *is_shared { "chmod -R o= STORE" } else { "chmod -R go= STORE" };
    format!("{who} can open files of the store, or make its owner wait: {path} has mode {mode:o}; `{close}` prevents that")
}

fn show(options: &Check, report: &CheckReport, exposure: Option<&Exposure>, console: &dyn Console, quiet: bool) -> Result<Exit> {
    let mut output = Output::to(console.out());
    if options.format.json {
        let mut json = to_json(report);
        json["exposed_to"] = json!(exposure.map(|found| if found.to_everybody { "everybody" } else { "group" }));
        output.json(&json)?;
    } else {
        if let Some(exposure) = exposure {
            output.line(exposed(exposure))?;
        }
        for problem in &report.problems {
            output.line(&problem.what)?;
        }
        if !quiet {
            let data = if options.read_data { format!(", {} of data read", size(report.read_bytes)) } else { String::new() };
            if report.problems.iter().any(|problem| problem.kind == ProblemKind::Opening) {
                console.note(&format!("nothing else could be checked: {OPENING_ADVICE}"));
            }
            if report.repaired > 0 {
                let were = counted(report.repaired, "container was", "containers were");
                console.note(&format!("{were} damaged or lost and rebuilt from parity"));
            }
            let containers = match report.containers {
                0 if report.chunks > 0 => String::new(),
                containers => format!("{}, ", counted(containers, "container", "containers")),
            };
            console.note(&format!(
                "{containers}{}, {}{data}: {}",
                counted(report.chunks, "chunk", "chunks"),
                counted(report.references, "reference", "references"),
                if report.is_clean() { "clean".to_owned() } else { counted(report.problem_count, "problem", "problems") }
            ));
        }
    }
    output.finish()?;
    Ok(if report.is_clean() { Exit::Done } else { Exit::Failed })
}

/// Rebuilds the chunk index. The check that follows finds and lists everything that could not be read for it.
pub fn rebuild(options: &Check, console: &dyn Console, quiet: bool) -> Result<()> {
    let directory = &options.store.directory;
    let ground = ground(directory)?;
    let settings = read_settings(&directory.join(SETTINGS_FILE), true)?;
    let rebuilt = Waiting::new(options.store.wait, console, quiet)
        .open(|| rebuild_chunk_index(ground.clone(), settings.engine.clone(), "check --rebuild-index", &Watch(console)));
    console.end_progress();
    let problems = rebuilt.map_err(|error| Failure { exit: Exit::CannotRun, ..Failure::from(error) })?;
    if !quiet {
        console
            .note(&format!("the chunk index is rebuilt; {} could not be read for it", counted(problems.len() as u64, "thing", "things")));
    }
    Ok(())
}

/// Repairs the store. Nobody else may have it open meanwhile. Exit code 0: nothing is lost; 1: something is.
pub fn repair(options: &Check, console: &dyn Console, quiet: bool) -> Result<Exit> {
    let directory = &options.store.directory;
    let ground = ground(directory)?;
    let settings = read_settings(&directory.join(SETTINGS_FILE), true)?;
    let memory_bytes = CheckOptions::default().memory_bytes;
    let repair_options = RepairOptions { dry_run: options.dry_run, may_lose: options.force, memory_bytes };
    let repaired = Waiting::new(options.store.wait, console, quiet)
        .open(|| onefold_upkeep::repair(ground.clone(), settings.engine.clone(), repair_options, "check --repair", &Watch(console)));
    console.end_progress();
    let report = repaired.map_err(|error| Failure { exit: Exit::CannotRun, ..Failure::from(error) })?;
    if !options.dry_run {
        // What clients supplied for unfinished backups may be among what is lost. They send it again.
        forget_all(ground.as_ref())?;
    }
    if console.is_cancelled() {
        return Err(Failure::interrupted("the repair was stopped before its end; what it did stays valid, and the next repair continues"));
    }
    if let Some(losses) = &report.refused {
        return refuse(options, losses, console);
    }
    let mut output = Output::to(console.out());
    if options.format.json {
        let mut json = to_json(&report.check);
        json["dry_run"] = json!(options.dry_run);
        json["actions"] = json!(report.actions);
        json["newly_quarantined_chunks"] = json!(report.quarantined_chunks);
        json["restored_chunks"] = json!(report.restored_chunks);
        output.json(&json)?;
    } else {
        report.actions.iter().try_for_each(|action| output.line(action))?;
        report.check.problems.iter().try_for_each(|problem| output.line(&problem.what))?;
        if !quiet {
            console.note(&summary(options, &report));
        }
    }
    output.finish()?;
    let is_whole = report.check.is_clean() && (!options.dry_run || report.actions.is_empty());
    Ok(if is_whole { Exit::Done } else { Exit::Failed })
}

/// Refuses a repair that would lose something for good. Says what, and changes nothing.
fn refuse(options: &Check, losses: &Losses, console: &dyn Console) -> Result<Exit> {
    let mut output = Output::to(console.out());
    if options.format.json {
        let backups = losses
            .backups
            .iter()
            .map(|backup| json!({"id": backup.id.to_string(), "name": backup.name, "time": utc_time(backup.started_ns)}));
        output.json(&json!({
            "refused": true,
            "losses": losses.sentences,
            "lost_backups": backups.collect::<Value>(),
            "lost_volumes": losses.volumes,
            "lost_filesystems": losses.filesystems,
            "lost_blocks": losses.blocks,
            "lost_entries": losses.entries,
        }))?;
    } else {
        losses.sentences.iter().try_for_each(|sentence| output.line(sentence))?;
        for backup in &losses.backups {
            output.line(format_args!(
                "backup {} of {}, made {}, would be lost",
                backup.id.short(),
                printable(backup.name.as_bytes()),
                local_time(backup.started_ns)
            ))?;
        }
        for volume in &losses.volumes {
            output.line(format_args!("changes to volume {}, or its creation, would be lost", printable(volume.as_bytes())))?;
        }
        for filesystem in &losses.filesystems {
            output.line(format_args!("changes to filesystem {}, or its creation, would be lost", printable(filesystem.as_bytes())))?;
        }
        if losses.entries > 0 {
            output.line(format_args!("changes to {} of filesystems would be lost", counted(losses.entries, "entry", "entries")))?;
        }
        if losses.blocks > 0 {
            output.line(format_args!("{} of volumes would have older content", counted(losses.blocks, "block", "blocks")))?;
        }
    }
    output.finish()?;
    console.note(
        "nothing was changed. Restore the damaged files from a copy of the store if you have one; sound backups can be restored without \
            a repair. `check --repair --force` repairs the store, gives up what is listed, and sets aside the files it changes",
    );
    Ok(Exit::Failed)
}

fn summary(options: &Check, report: &RepairReport) -> String {
    let check = &report.check;
    let lost = counted(check.quarantined_chunks, "lost chunk is", "lost chunks are");
    match (options.dry_run, check.is_clean()) {
        (true, _) if report.actions.is_empty() && check.is_clean() => "clean: nothing to repair".into(),
        (true, _) => "nothing was changed".into(),
        (false, true) if report.actions.is_empty() => "clean: nothing had to be repaired".into(),
        (false, true) => "nothing is lost".into(),
        (false, false) if check.problems.iter().all(|problem| is_about_lost(problem.kind)) => {
            format!("{lost} in quarantine. Back up or write the listed files and volumes again, or forget and delete them")
        }
        (false, false) => format!("{lost} in quarantine, and some damage could not be repaired"),
    }
}

fn is_about_lost(kind: ProblemKind) -> bool {
    matches!(kind, ProblemKind::Quarantined | ProblemKind::Affected)
}

fn to_json(report: &CheckReport) -> Value {
    let problem = |problem: &Problem| json!({"kind": problem.kind.name(), "what": problem.what});
    json!({
        "clean": report.is_clean(),
        "containers": report.containers,
        "chunks": report.chunks,
        "index_entries": report.index_entries,
        "references": report.references,
        "read_bytes": report.read_bytes,
        "quarantined_chunks": report.quarantined_chunks,
        "repaired_containers": report.repaired,
        "problem_count": report.problem_count,
        "problems": report.problems.iter().map(problem).collect::<Value>(),
    })
}

/// Shows a console how far work is.
struct Watch<'a>(&'a dyn Console);

impl Monitor for Watch<'_> {
    fn step(&self, what: &str, total: u64) {
        self.0.step(what, total);
    }

    fn advance(&self, units: u64) {
        self.0.advance(units);
    }

    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}
