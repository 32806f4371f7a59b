//! `onefold dump`.

use super::catalog_path;
use super::chosen::chosen;
use crate::cli::Dump;
use crate::failure::{Exit, Failure, Result};
use crate::session::{Session, StoreCommand};
use onefold_catalog::Catalog;
use onefold_client::ClientError;
use onefold_engine::Mode;
use std::path::Path;

impl StoreCommand for Dump {
    fn name(&self) -> &'static str {
        "dump"
    }

    fn directory(&self) -> &Path {
        &self.store.directory
    }

    fn mode(&self) -> Mode {
        Mode::Snapshot
    }

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        run(self, session)
    }
}

/// Writes one file of a backup to standard output.
fn run(options: &Dump, session: &Session<'_>) -> Result<Exit> {
    let catalog = Catalog::new(session.store.engine.clone());
    // A backup that is forgotten meanwhile is read to its end: nothing of it is removed before.
    let _in_flight = session.store.engine.in_flight();
    let backup = chosen(&catalog, &options.backup, &|text| session.advise(text))?;
    catalog.hold(&[&backup])?;
    let mut output = session.output();
    onefold_client::dump(&catalog, &backup, &catalog_path(&options.path), output.writer()).map_err(|error| match error {
        ClientError::Io { source, .. } => Failure::output(&source),
        error => Failure::from(error),
    })?;
    output.finish()?;
    Ok(Exit::Done)
}
