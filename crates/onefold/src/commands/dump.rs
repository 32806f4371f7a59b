//! `onefold dump`.

use super::catalog_path;
use crate::cli::Dump;
use crate::failure::{Exit, Failure, Result};
use crate::store::Store;
use onefold_catalog::Catalog;
use onefold_client::ClientError;
use onefold_engine::Mode;
use std::io::Write;

/// Writes one file of a backup to standard output.
pub fn run(options: &Dump) -> Result<Exit> {
    let store = Store::open(&options.store.directory, Mode::ReadOnly, "dump")?;
    let catalog = Catalog::new(store.engine.clone());
    let backup = catalog.find(&options.backup)?;
    let mut out = std::io::stdout().lock();
    onefold_client::dump(&catalog, &backup, &catalog_path(&options.path), &mut out).map_err(|error| match error {
        ClientError::Io { source, .. } => Failure::output(&source),
        error => Failure::from(error),
    })?;
    out.flush().map_err(|error| Failure::output(&error))?;
    store.close()?;
    Ok(Exit::Done)
}
