//! Backups that are open, and those that are not any more.

use super::nodes::Failed;
use onefold_catalog::{Backup, BackupId, Chunks};
use onefold_engine::Recipe;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a backup stays open that nobody reads.
const IDLE: Duration = Duration::from_secs(30);

/// Where backups come from.
pub trait Backups: Debug + Send + Sync {
    /// Returns the records of all backups. Errors: the store cannot be read now.
    fn list(&self) -> Result<Vec<Backup>, Box<dyn Error + Send + Sync>>;
    /// Nobody has had a backup open for a while: whatever that takes may go.
    fn rest(&self) {}
    /// Opens a backup. Errors: it is gone, or the store cannot be read now.
    fn open(&self, backup: &Backup) -> Result<Opened, Box<dyn Error + Send + Sync>>;
}

/// A backup that is open. Its chunks stay as long as this is there.
#[derive(Debug)]
pub struct Opened {
    /// Reads its chunks.
    pub chunks: Arc<dyn Chunks>,
    /// Its root, which means something only to these chunks.
    pub root: Recipe,
    /// Keeps the chunks.
    pub guard: Box<dyn Guard>,
}

/// Keeps something as long as it is there.
pub trait Guard: Debug + Send + Sync {}

impl<T: Debug + Send + Sync> Guard for T {}

/// An opening of a backup.
#[derive(Debug)]
pub(super) struct Opening {
    /// No two openings have the same.
    pub(super) number: u64,
    pub(super) opened: Opened,
}

/// A backup of the tree.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) backup: Backup,
    source: Arc<dyn Backups>,
    open: Mutex<Option<(Arc<Opening>, Instant)>>,
}

/// All backups of the tree that somebody has looked at.
#[derive(Debug)]
pub(super) struct AllHeld {
    source: Arc<dyn Backups>,
    held: Mutex<HashMap<BackupId, Arc<Held>>>,
}

impl Held {
    /// Returns the open backup, and opens it if it is not open. Errors: it is gone, or cannot be read now.
    pub(super) fn opening(&self) -> Result<Arc<Opening>, Failed> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let mut open = self.open.lock();
        if let Some((opening, used)) = &mut *open
            && opening.opened.chunks.broken().is_none()
        {
            *used = Instant::now();
            return Ok(opening.clone());
        }
        // A lost connection is made again.
        *open = None;
        let opened = self.source.open(&self.backup)?;
        let opening = Arc::new(Opening { number: NUMBERS.fetch_add(1, Ordering::Relaxed), opened });
        *open = Some((opening.clone(), Instant::now()));
        Ok(opening)
    }

    /// Does something with the open backup, and once more with another opening if the connection was lost meanwhile.
    pub(super) fn with_opening<T>(&self, work: &dyn Fn(&Arc<Opening>) -> Result<T, Failed>) -> Result<T, Failed> {
        let opening = self.opening()?;
        let done = work(&opening);
        if opening.opened.chunks.broken().is_some() { work(&self.opening()?) } else { done }
    }

    fn close_if_idle(&self) {
        let idle = self.open.lock().take_if(|(opening, used)| Arc::strong_count(opening) == 1 && used.elapsed() >= IDLE);
        // The end of a reading may take a while: nobody waits for it.
        drop(idle);
    }
}

impl AllHeld {
    pub(super) fn new(source: Arc<dyn Backups>) -> AllHeld {
        AllHeld { source, held: Mutex::default() }
    }

    pub(super) fn get(&self, backup: &Backup) -> Arc<Held> {
        let mut held = self.held.lock();
        let new = || Arc::new(Held { backup: backup.clone(), source: self.source.clone(), open: Mutex::default() });
        held.entry(backup.id).or_insert_with(new).clone()
    }

    /// Closes what nobody reads, and forgets what nobody knows.
    pub(super) fn tidy(&self) {
        let all: Vec<Arc<Held>> = self.held.lock().values().cloned().collect();
        all.iter().for_each(|held| held.close_if_idle());
        drop(all);
        let mut held = self.held.lock();
        held.retain(|_, held| Arc::strong_count(held) > 1 || held.open.lock().is_some());
        let is_idle = held.values().all(|held| held.open.lock().is_none());
        drop(held);
        if is_idle {
            self.source.rest();
        }
    }
}
