//! `onefold prune`.

use crate::advice::KEPT_FOR_LOST;
use crate::cli::Prune;
use crate::failure::{Exit, Failure, Result};
use crate::session::{Session, StoreCommand, store_command};
use crate::units::{counted, size};
use onefold_engine::Mode;
use onefold_remote::accounts::Event;
use onefold_upkeep::{Monitor, PruneOptions, PruneReport, PruneRequests, prune};
use serde_json::json;

impl StoreCommand for Prune {
    store_command!("prune", far, waits, ends_early, heavy);

    fn mode(&self) -> Mode {
        if self.dry_run { Mode::ReadOnly } else { Mode::ReadWrite }
    }

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        run(self, session)
    }
}

/// Frees unneeded space. It names chunks that it could not judge, and then has exit code 1.
fn run(options: &Prune, session: &Session<'_>) -> Result<Exit> {
    if !options.dry_run {
        drop(session.store.engine.permit_deletion("prune")?);
        // Data of forgotten backups of filesystems is unneeded only when their snapshots are gone.
        onefold_fs_backup::tidy(session.volumes()?.spaces())?;
        // The data of deleted volumes is unneeded only when their mappings are gone.
        session.volumes()?.resume_deletions(&|| !session.is_cancelled())?;
    }
    let prune_options = PruneOptions { max_unused: options.max_unused.0, max_fill: options.max_fill.0, dry_run: options.dry_run };
    let pruned = prune(&session.store.engine, prune_options, session, &|| true);
    session.end_progress();
    if !options.dry_run {
        // An end by an error may have freed space too.
        let details = match &pruned {
            Ok(report) => json!({"removed_chunks": report.chunks, "freed_bytes": report.freed_bytes}),
            Err(error) => json!({"error": error.to_string()}),
        };
        session.audit(Event::Prune, None, details);
    }
    let report = pruned?;
    if !options.dry_run {
        // Merging took parity away from the neighbours of merged containers. If making parity fails, the freed space
        // stays free.
        if let Err(error) = session.store.engine.make_parity(true, &|| !session.is_cancelled()) {
            session.note(format_args!("parity could not be written; the next prune, scrub or serve retries: {error}"));
        }
    }
    if session.is_cancelled() {
        return Err(Failure::interrupted("stopped before the end; freed space stays free, and the next prune continues"));
    }
    let mut output = session.output();
    if options.format.json {
        let mut result = json!({
            "dry_run": options.dry_run,
            "complete": report.is_complete,
            "removed_chunks": report.chunks,
            "removed_bytes": report.chunk_bytes,
            "containers_before": report.containers_before,
            "containers_after": report.containers_after,
            "freed_bytes": report.freed_bytes,
            "unused_bytes": report.unused_bytes,
            "raw_bytes": report.raw_bytes,
            "kept_for": report.kept_for,
            "problems": report.problems,
        });
        if let Some(requests) = report.requests {
            result["requests"] = json!({
                "puts": requests.puts,
                "gets": requests.gets,
                "lists": requests.lists,
                "deletions": requests.deletions,
                "read_bytes": requests.read_bytes,
                "written_bytes": requests.written_bytes,
            });
        }
        output.json(&result)?;
    } else {
        for problem in &report.problems {
            output.line(problem)?;
        }
        if !session.quiet {
            let may_merge = session.store.engine.descriptor().profile.has_containers();
            print(&mut output, &report, options.dry_run, may_merge)?;
            if report.kept_for.is_some() && session.store.engine.why_nothing_is_removed()?.is_some() {
                output.line(format_args!("{:<12} {KEPT_FOR_LOST}", "hint"))?;
            }
        }
    }
    output.finish()?;
    Ok(if report.problems.is_empty() { Exit::Done } else { Exit::Failed })
}

fn print(output: &mut crate::output::Output<'_>, report: &PruneReport, dry_run: bool, may_merge: bool) -> Result<()> {
    let (removed, merged, freed) =
        if dry_run { ("would remove", "would merge", "would free about") } else { ("removed", "merged", "freed") };
    let chunks = counted(report.chunks, "chunk", "chunks");
    output.line(format_args!("{removed:<12} {chunks} that nothing needs, {} before compression", size(report.chunk_bytes)))?;
    if may_merge {
        let containers = counted(report.containers_before, "container", "containers");
        output.line(format_args!("{merged:<12} {containers} into {}", report.containers_after))?;
    }
    output.line(format_args!("{freed:<12} {}", size(report.freed_bytes)))?;
    if let Some(PruneRequests { puts, gets, lists, deletions, read_bytes, written_bytes }) = report.requests {
        let [puts, gets] = [counted(puts, "put", "puts"), counted(gets, "get", "gets")];
        let [lists, deletions] = [counted(lists, "list", "lists"), counted(deletions, "deletion", "deletions")];
        let (read, written) = (size(read_bytes), size(written_bytes));
        output.line(format_args!("{:<12} about {puts} ({written}), {gets} ({read}), {lists}, {deletions}", "requests"))?;
    }
    if let Some(kept) = &report.kept_for {
        output.line(format_args!("{:<12} {kept}; the next prune removes what is then unneeded", "kept"))?;
    }
    let share = match report.raw_bytes {
        0 => String::new(),
        raw => format!(" ({:.1} %)", 100.0 * report.unused_bytes as f64 / raw as f64),
    };
    output.line(format_args!("{:<12} {} of {} are unused{share}", "left", size(report.unused_bytes), size(report.raw_bytes)))?;
    Ok(())
}
