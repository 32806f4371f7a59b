//! Small files that are stored under another name (M3.3, `docs/decisions/0057-file-fingerprints.md`): moved, copied, or
//! back again. Only for stores without a chunk index, whose hooks miss a file of few chunks that comes without its
//! neighbours.
//!
//! # Invariants
//! * A recipe is taken only if a backup has it that is kept while this one runs, or this backup itself; if it spells
//!   the chunks that were cut, one by one; and if none of them is lost. What was noted is advice otherwise.
//! * Nobody waits long: looking names up takes at most a share of the time, and what is noted may be dropped.

use crate::{BackupId, Catalog, FileName, NamedFile, Result};
use onefold_engine::{Address, InFlight, Recipe, Spelled};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Files that are noted together: some 40 KB.
const NOTED_TOGETHER: usize = 256;
/// Looking names up takes at most this share of the time that a backup takes,
const TIME_SHARE: u32 = 16;
/// after this much. It matters where the object index is larger than memory and its disk is slow.
const TIME_AT_FIRST: Duration = Duration::from_secs(10);

/// The file that was found for a run.
pub(crate) type Asked = (FileName, Option<Recipe>);

/// The files that a backup can take by their names, and those that it notes for later ones.
#[derive(Debug)]
pub(crate) struct NamedFiles {
    catalog: Catalog,
    /// The backup that is being made.
    id: BackupId,
    /// The backups that are kept meanwhile.
    kept: HashSet<BackupId>,
    /// Files of this backup that are not noted yet.
    new: Mutex<HashMap<FileName, Recipe>>,
    begun: Instant,
    asking_ns: AtomicU64,
}

impl NamedFiles {
    /// `None`: the store needs no help, or its chunks shall be compared with what is written. The backup `id` is not
    /// committed yet; hold the guard until it is.
    pub(crate) fn new(catalog: &Catalog, id: BackupId, guard: &InFlight) -> Result<Option<NamedFiles>> {
        let engine = catalog.engine();
        if !engine.recalls() || engine.settings().chain.iter().any(|filter| filter == "byte-compare") {
            return Ok(None);
        }
        let kept = catalog.backups_with_named_files(guard)?;
        let (new, begun, asking_ns) = (Mutex::default(), Instant::now(), AtomicU64::new(0));
        Ok(Some(NamedFiles { catalog: catalog.clone(), id, kept, new, begun, asking_ns }))
    }

    /// Appends name and recipe of each file. Returns which are known, and appends where the chunks of others may be.
    pub(crate) fn ask(&self, files: &[Spelled], recall: &mut Vec<Address>, asked: &mut Vec<Asked>) -> Vec<bool> {
        let begun = Instant::now();
        let is_slow = Duration::from_nanos(self.asking_ns.load(Ordering::Relaxed)) > TIME_AT_FIRST + self.begun.elapsed() / TIME_SHARE;
        let names = FileName::of(self.catalog.engine().descriptor().fingerprint, files);
        let noted = if is_slow { vec![None; names.len()] } else { self.catalog.named_files(&names) };
        let mut known = Vec::with_capacity(files.len());
        for ((name, file), noted) in names.into_iter().zip(files).zip(noted) {
            let new = self.new.lock().get(&name).map(|recipe| NamedFile { backup: self.id, recipe: recipe.clone() });
            let recipe = new.or(noted).and_then(|found| {
                let is_kept = found.backup == self.id || self.kept.contains(&found.backup);
                self.catalog.take(found, is_kept, file, recall)
            });
            known.push(recipe.is_some());
            asked.push((name, recipe));
        }
        self.asking_ns.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        known
    }

    /// Notes a file of this backup.
    pub(crate) fn note(&self, name: FileName, recipe: &Recipe) {
        let mut new = self.new.lock();
        new.insert(name, recipe.clone());
        if new.len() >= NOTED_TOGETHER {
            let together = std::mem::take(&mut *new);
            drop(new);
            self.submit(&together);
        }
    }

    /// Submits all that was noted. Call before the backup is committed.
    pub(crate) fn finish(&self) {
        let together = std::mem::take(&mut *self.new.lock());
        self.submit(&together);
    }

    fn submit(&self, files: &HashMap<FileName, Recipe>) {
        let engine = self.catalog.engine();
        let change = |(name, recipe): (&FileName, &Recipe)| NamedFile { backup: self.id, recipe: recipe.clone() }.change(engine, name);
        engine.submit_advice(files.iter().map(change).collect());
    }
}
