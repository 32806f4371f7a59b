//! A backup over a connection: what it is compared with, its writers, its record.

use super::cache::{CacheWriter, CachedTree};
use super::chunks::RemoteChunks;
use super::contents::{Cutter, RemoteContents, Supplied};
use super::tree::RemoteTree;
use super::{Remote, answer};
use crate::repository::{Compared, Contents, Listing, Making, Tree};
use crate::{ClientError, Result};
use onefold_catalog::{Backup, Chunks, Content, Details, DirectoryReader, Entry};
use onefold_engine::Recipe;
use onefold_remote::services::messages::{BackupAnswer, BackupRequest, Began, Begin, Commit, Open, codes};
use onefold_remote::transport::{Channel, ChannelError};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::{Arc, OnceLock};

pub(super) struct RemoteCompared<'a> {
    remote: &'a Remote,
    begin: Begin,
    channel: Channel,
    began: Began,
    /// The tree of the earlier backup from the cache.
    cached: Option<CachedTree>,
    /// The same from the server.
    reading: OnceLock<Option<(Arc<dyn Chunks>, Backup)>>,
}

impl<'a> RemoteCompared<'a> {
    pub(super) fn new(remote: &'a Remote, begin: Begin, channel: Channel, began: Began) -> Result<RemoteCompared<'a>> {
        let cached = match (&remote.cache, &began.earlier) {
            (Some(directory), Some(earlier)) if began.is_sound => CachedTree::open(directory, &begin, earlier.id),
            _ => None,
        };
        Ok(RemoteCompared { remote, begin, channel, began, cached, reading: OnceLock::new() })
    }

    pub(super) fn send(&self, request: &BackupRequest) -> Result<()> {
        let (kind, payload) = request.encode();
        self.channel.send(kind, payload).map_err(|error| self.explain(error.into()))
    }

    pub(super) fn answer(&self) -> Result<BackupAnswer> {
        answer(&self.channel).map_err(|error| self.explain(error))
    }

    /// Adds what to do to an error of the channel.
    fn explain(&self, error: ClientError) -> ClientError {
        match (&error, &self.cached) {
            // If it stays, the next run would hear the same.
            (ClientError::Connection(ChannelError::Cancelled { code: codes::STALE, .. }), Some(cached)) if cached.remove() => {
                ClientError::Stale
            }
            _ => error,
        }
    }

    /// Opens the earlier backup at the server.
    fn reading(&self) -> Option<&(Arc<dyn Chunks>, Backup)> {
        let open = || {
            let opened = RemoteChunks::open(&self.remote.session, &Open::Earlier(self.began.number), self.remote.compresses);
            match opened {
                Ok((chunks, backup, _)) => {
                    chunks.stream(false);
                    Some((Arc::new(chunks) as Arc<dyn Chunks>, backup))
                }
                // Without it every file is read. If the connection is lost, the backup ends soon.
                Err(error) => {
                    tracing::warn!(%error, "the earlier backup cannot be read");
                    None
                }
            }
        };
        self.reading.get_or_init(open).as_ref()
    }
}

impl Compared for RemoteCompared<'_> {
    fn earlier(&self) -> Option<&Backup> {
        self.began.earlier.as_ref()
    }

    fn damage(&self) -> Option<String> {
        Some(self.began.damage.clone()).filter(|damage| !damage.is_empty())
    }

    fn root(&self) -> Option<Listing> {
        self.began.earlier.as_ref()?;
        match &self.cached {
            Some(cached) => Some(cached.root()),
            None => self.reading().map(|(chunks, backup)| Box::new(DirectoryReader::new(chunks, &backup.root)) as Listing),
        }
    }

    fn directory(&self, entry: &Entry) -> Option<Listing> {
        let Content::Directory { recipe } = &entry.content else { return None };
        match &self.cached {
            Some(cached) => Some(cached.directory()),
            None => self.reading().map(|(chunks, _)| Box::new(DirectoryReader::new(chunks, recipe)) as Listing),
        }
    }

    fn own_directory(&self) -> Option<&Path> {
        self.remote.cache.as_deref()
    }

    fn is_sound(&self, _entry: &Entry) -> bool {
        // The server does not say which chunks are lost. While some are, every file is read, and little is sent.
        self.began.is_sound
    }

    fn recalls(&self) -> bool {
        false
    }

    fn begin(&self) -> Result<Box<dyn Making + '_>> {
        self.send(&BackupRequest::Start)?;
        let cutter = Cutter::new(&self.began.method)?;
        let cache = self.remote.cache.as_ref().and_then(|directory| CacheWriter::create(directory, &self.begin));
        Ok(Box::new(RemoteMaking { compared: self, cutter, supplied: Arc::default(), cache: Mutex::new(cache) }))
    }
}

struct RemoteMaking<'a> {
    compared: &'a RemoteCompared<'a>,
    cutter: Cutter,
    supplied: Arc<Supplied>,
    cache: Mutex<Option<CacheWriter>>,
}

impl Making for RemoteMaking<'_> {
    fn started_ns(&self) -> i64 {
        self.compared.began.started_ns
    }

    fn contents(&self) -> Result<Box<dyn Contents + Send + '_>> {
        let RemoteCompared { remote, began, .. } = self.compared;
        Ok(Box::new(RemoteContents::new(&remote.session, began.number, &self.cutter, &self.supplied)))
    }

    fn tree(&self) -> Result<Box<dyn Tree + '_>> {
        Ok(Box::new(RemoteTree::new(self.compared, &self.supplied, &self.cache)))
    }

    fn commit(&self, _root: Recipe, details: Details) -> Result<Backup> {
        let Details { user, tags, options, statistics, .. } = details;
        self.compared.send(&BackupRequest::Commit(Commit { user, tags, options, statistics }))?;
        let BackupAnswer::Committed(backup) = self.compared.answer()? else {
            return Err(ClientError::Protocol("the server did not confirm the backup".to_owned()));
        };
        self.compared.channel.finish();
        if let Some(cache) = self.cache.lock().take() {
            cache.commit(backup.id);
        }
        Ok(*backup)
    }
}
