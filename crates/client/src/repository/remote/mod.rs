//! A store behind a connection (`docs/protocol.md` section 5).
//!
//! ```text
//! walk -> assembler -> RemoteTree ------steps----------------> server
//!     \-> readers -> RemoteContents --offers----------------->
//!                         \-pump <------wanted----------------
//!                              \--------supplies------------->
//! ```
//! Nobody waits for an answer as long as there is something to read, cut or send: offered chunks wait in memory, up to
//! a limit, until the server says whether it wants them.

mod cache;
mod chunks;
mod contents;
mod making;
#[cfg(test)]
mod tests;
mod tree;

use super::{BATCHES_AHEAD, Comparable, Compared, Reading, Repository};
use crate::options::Parent;
use crate::{ClientError, Result};
use chunks::RemoteChunks;
use making::RemoteCompared;
use onefold_catalog::{Backup, Chunks};
use onefold_remote::services::messages::{Against, BackupAnswer, Begin, Listed, Open, Records, services};
use onefold_remote::transport::{Channel, ClientSession};
use std::path::PathBuf;
use std::sync::Arc;

/// A store behind a connection.
#[derive(Clone, Debug)]
pub struct Remote {
    session: Arc<ClientSession>,
    /// Where trees of backups are cached. `None`: nowhere.
    cache: Option<PathBuf>,
    /// Whether data that is read should be compressed on its way.
    compresses: bool,
}

impl Remote {
    /// Returns the store behind a session. `cache`: a directory for the trees of backups, which belong to this store
    /// and account.
    pub fn new(session: Arc<ClientSession>, cache: Option<PathBuf>, compresses: bool) -> Remote {
        Remote { session, cache, compresses }
    }

    /// Returns the session.
    pub fn session(&self) -> &Arc<ClientSession> {
        &self.session
    }

    /// Opens the backup that a user means for reading ([`onefold_catalog::Catalog::look_up`]).
    pub fn find(&self, asked: &str) -> Result<Reading> {
        self.open(&Open::Meant(asked.to_owned()))
    }

    /// Returns the records of all backups that the account may read, without roots and options, and whether some are
    /// missing because their records are damaged.
    pub fn list(&self) -> Result<(Vec<Backup>, bool)> {
        let channel = self.session.open(services::LIST, Vec::new())?;
        channel.finish();
        let (mut backups, mut is_missing) = (Vec::new(), false);
        while let Some(message) = channel.receive()? {
            match Listed::decode(message.kind, &message.payload)? {
                Listed::Records(Records(records)) => backups.extend(records),
                Listed::Missing => is_missing = true,
            }
        }
        Ok((backups, is_missing))
    }

    fn open(&self, open: &Open) -> Result<Reading> {
        let (chunks, backup, newer_partial) = RemoteChunks::open(&self.session, open, self.compresses)?;
        let readers = chunks.readers();
        Ok(Reading { chunks: Arc::new(chunks), readers, batches_ahead: BATCHES_AHEAD, backup, newer_partial, _guard: None })
    }
}

impl Repository for Remote {
    fn compare(&self, wanted: &Comparable<'_>) -> Result<Box<dyn Compared + '_>> {
        let against = match wanted.parent {
            Parent::Newest => Against::Newest,
            Parent::This(id) => Against::This(*id),
            Parent::None => Against::Nothing,
        };
        let begin = Begin { name: wanted.name.to_owned(), host: wanted.host.to_owned(), paths: wanted.paths.to_vec(), against };
        let channel = self.session.open(services::BACKUP, begin.encode())?;
        match answer(&channel)? {
            BackupAnswer::Began(began) => Ok(Box::new(RemoteCompared::new(self, begin, channel, *began)?)),
            other => Err(ClientError::Protocol(format!("a backup begins with {other:?}"))),
        }
    }

    fn read(&self, backup: &Backup) -> Result<Reading> {
        self.open(&Open::Backup(backup.id))
    }
}

/// Receives an answer on the channel of a backup.
fn answer(channel: &Channel) -> Result<BackupAnswer> {
    match channel.receive()? {
        Some(message) => Ok(BackupAnswer::decode(message.kind, &message.payload)?),
        None => Err(ClientError::Protocol("the server ended the backup".to_owned())),
    }
}
