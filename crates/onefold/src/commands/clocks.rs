//! What the clock of a store's machine makes a backup warn of. A backup that reaches the store through a daemon or a
//! server asks for this.

use crate::clocks::doubt_of_backup;
use crate::failure::{Exit, Result};
use crate::session::{Session, StoreCommand};
use onefold_engine::Mode;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Prints the warning, if there is one. Nobody types it.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Clocks {}

impl StoreCommand for Clocks {
    fn name(&self) -> &'static str {
        "backup"
    }

    fn directory(&self) -> &Path {
        Path::new("")
    }

    fn mode(&self) -> Mode {
        Mode::Snapshot
    }

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        if let Some(doubt) = doubt_of_backup(&session.catalog()) {
            let mut output = session.output();
            output.line(doubt)?;
            output.finish()?;
        }
        Ok(Exit::Done)
    }
}
