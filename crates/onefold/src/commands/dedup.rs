//! `onefold dedup`.

use crate::cli::Dedup;
use crate::failure::{Exit, Failure, Result};
use crate::session::{Session, StoreCommand, store_command};
use crate::units::{counted, size};
use onefold_engine::Mode;
use onefold_upkeep::{DedupOptions, DedupReport, Monitor, PruneOptions, PruneReport, dedup, prune};
use serde_json::json;

impl StoreCommand for Dedup {
    store_command!("dedup", far, waits, ends_early, heavy);

    fn mode(&self) -> Mode {
        if self.dry_run { Mode::ReadOnly } else { Mode::ReadWrite }
    }

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        run(self, session)
    }
}

/// Joins chunks that are stored more than once, and frees the space. It names what it could not look at, and then has
/// exit code 1.
fn run(options: &Dedup, session: &Session<'_>) -> Result<Exit> {
    let engine = &session.store.engine;
    if !options.dry_run {
        drop(engine.permit_deletion("remove copies of chunks")?);
        session.volumes()?.resume_deletions(&|| !session.is_cancelled())?;
    }
    let memory_bytes = session.store.settings.reclamation.dedup_memory_bytes;
    let joined = dedup(engine, DedupOptions { memory_bytes, dry_run: options.dry_run }, session, &|| true);
    let freed = joined.and_then(|joined| {
        let prune_options = PruneOptions { max_unused: options.max_unused.0, ..PruneOptions::default() };
        let needs_none = options.dry_run || session.is_cancelled() || engine.descriptor().profile.is_exact();
        let freed = if needs_none { PruneReport::default() } else { prune(engine, prune_options, session, &|| true)? };
        Ok((joined, freed))
    });
    session.end_progress();
    let (joined, freed) = freed?;
    if !options.dry_run
        && let Err(error) = engine.make_parity(true, &|| !session.is_cancelled())
    {
        session.note(format_args!("parity could not be written; the next prune, scrub or serve retries: {error}"));
    }
    if session.is_cancelled() {
        return Err(Failure::interrupted("stopped before the end; what was joined stays joined, and the next prune frees its space"));
    }
    let problems: Vec<&String> = joined.problems.iter().chain(&freed.problems).collect();
    let mut output = session.output();
    if options.format.json {
        output.json(&json!({
            "dry_run": options.dry_run,
            "complete": joined.is_complete && (options.dry_run || freed.is_complete || engine.descriptor().profile.is_exact()),
            "chunks": joined.chunks,
            "duplicate_chunks": joined.duplicate_chunks,
            "duplicate_bytes": joined.duplicate_bytes,
            "removed_chunks": freed.chunks,
            "freed_bytes": freed.freed_bytes,
            "kept_for": freed.kept_for,
            "problems": problems,
        }))?;
    } else {
        for problem in &problems {
            output.line(problem)?;
        }
        if !session.quiet {
            print(&mut output, options.dry_run, engine.descriptor().profile.is_exact(), &joined, &freed)?;
        }
    }
    output.finish()?;
    Ok(if problems.is_empty() { Exit::Done } else { Exit::Failed })
}

fn print(output: &mut crate::output::Output<'_>, dry_run: bool, is_exact: bool, joined: &DedupReport, freed: &PruneReport) -> Result<()> {
    if is_exact {
        return output.line("nothing to do: this store finds every duplicate when it is written");
    }
    let join = if dry_run { "would join" } else { "joined" };
    let copies = counted(joined.duplicate_chunks, "chunk that was", "chunks that were");
    output.line(format_args!("{:<12} {}", "looked at", counted(joined.chunks, "chunk", "chunks")))?;
    output.line(format_args!("{join:<12} {copies} stored already, {} before compression", size(joined.duplicate_bytes)))?;
    if !dry_run {
        output.line(format_args!("{:<12} {}", "freed", size(freed.freed_bytes)))?;
    }
    if let Some(kept) = &freed.kept_for {
        output.line(format_args!("{:<12} {kept}; the next prune removes what is then unneeded", "kept"))?;
    }
    Ok(())
}
