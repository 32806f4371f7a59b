//! `onefold partition`: where the partitions of a store with levels are (M2.10).

use crate::cli::{PartitionList, PartitionMove};
use crate::failure::{Exit, Failure, Result};
use crate::output::Table;
use crate::session::{Session, StoreCommand, store_command};
use crate::units::{number, printable, size};
use onefold_engine::Engine;
use onefold_storage::PartitionFigures;
use onefold_upkeep::Monitor;
use serde_json::{Value, json};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Makes the directory absolute: a daemon is somewhere else.
pub(super) fn with_absolute_directory(options: &mut PartitionMove) -> Result<()> {
    if let Some(directory) = &mut options.to {
        *directory = std::path::absolute(&*directory).map_err(|error| Failure::of_file("use", directory, error))?;
    }
    Ok(())
}

fn figures(engine: &Engine) -> Result<Vec<PartitionFigures>> {
    Ok(engine.movable()?.partitions().map_err(onefold_engine::EngineError::from)?)
}

impl StoreCommand for PartitionList {
    store_command!("partition list", reads, asks);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let figures = figures(&session.store.engine)?;
        let mut output = session.output();
        if self.format.json {
            output.json(&figures.iter().map(to_json).collect::<Value>())?;
        } else {
            let mut table = Table::new(&[">partition", ">tables", ">data", ">stored", ">free there", ">to move", "directory"]);
            for one in &figures {
                table.row(vec![
                    one.number.to_string(),
                    number(one.tables),
                    size(one.raw_bytes),
                    size(one.stored_bytes),
                    size(one.free_bytes),
                    if one.tables_elsewhere == 0 { String::new() } else { size(one.bytes_elsewhere) },
                    printable(one.directory.as_bytes()),
                ]);
            }
            table.print(&mut output)?;
        }
        output.finish()?;
        Ok(Exit::Done)
    }
}

fn to_json(one: &PartitionFigures) -> Value {
    json!({
        "number": one.number,
        "directory": one.directory,
        "tables": one.tables,
        "raw_bytes": one.raw_bytes,
        "stored_bytes": one.stored_bytes,
        "streams": one.streams,
        "free_bytes": one.free_bytes,
        "tables_elsewhere": one.tables_elsewhere,
        "bytes_elsewhere": one.bytes_elsewhere,
    })
}

impl StoreCommand for PartitionMove {
    store_command!("partition move", waits, writes, ends_early, heavy);

    /// It makes directories outside of the store.
    fn is_for_owner(&self) -> bool {
        true
    }

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let engine = &session.store.engine;
        engine.movable()?;
        if let Some(directory) = &self.to {
            check_target(directory, &engine.ground().describe(""))?;
        }
        session.step("tables", figures(engine)?.get(usize::from(self.number)).map_or(0, |one| one.tables));
        let mut bytes = 0;
        let moved = engine.move_partition(self.number, self.to.as_deref(), &|| !session.is_cancelled(), &mut |moved| {
            bytes += moved;
            session.advance(1);
        });
        session.end_progress();
        if !moved? {
            let why = "stopped before the end; everything is found, and the same command goes on from here";
            return Err(Failure::interrupted(why));
        }
        let one = figures(engine)?.into_iter().nth(usize::from(self.number)).unwrap_or_default();
        let mut output = session.output();
        if self.format.json {
            let mut facts = to_json(&one);
            facts["moved_bytes"] = bytes.into();
            output.json(&facts)?;
        } else if !session.quiet {
            output.line(format_args!("moved {} of partition {} to {}", size(bytes), self.number, printable(one.directory.as_bytes())))?;
        }
        output.finish()?;
        Ok(Exit::Done)
    }
}

/// Refuses a directory that cannot be the place of a partition.
fn check_target(directory: &Path, store: &str) -> Result<()> {
    let shown = printable(directory.as_os_str().as_bytes());
    let refused = |why: &str, advice: &str| {
        Err(Failure { exit: Exit::CannotRun, ..Failure::failed(format!("cannot move a partition to {shown}: {why}")) }.advise(advice))
    };
    let Ok(real) = directory.canonicalize().and_then(|real| real.read_dir().map(|_| real)) else {
        return refused("there is no directory that can be read", "mount its disk, or create it for the user that has the store open");
    };
    match Path::new(store).canonicalize() {
        Ok(store) if real.starts_with(&store) => refused("it is in the store", "`--home` moves the partition back into the store"),
        _ => Ok(()),
    }
}
