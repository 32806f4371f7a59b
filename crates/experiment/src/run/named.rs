//! Backups whose chunks have names but no data. They fill a store as if it had been used for years (M3.8, E3.2), and
//! add and delete references (E3.3).
//!
//! The name of a chunk follows from its number and the seed, so the same chunks can be named again later.

use super::{Result, RunError, Watcher};
use crate::spec::VariantSpec;
use onefold_catalog::{Attributes, Backup, BackupId, Catalog, Content, DirectoryWriter, Entry, Statistics};
use onefold_engine::{Engine, RecipeWriter, random_name};
use onefold_fingerprint::Fingerprint;
use onefold_upkeep::{NoMonitor, StoreRoots, remove_unused};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Chunks named at a time: streams look ahead within them.
const BATCH_CHUNKS: u64 = 16 << 10;
/// The numbers of each client's chunks begin so far from those of the one before; the store is filled with lower ones.
const NUMBERS_OF_CLIENT: u64 = 1 << 44;

/// A backup to store.
pub(super) struct Named {
    pub(super) name: String,
    /// The numbers of its chunks.
    pub(super) chunks: Range<u64>,
}

/// What the backups of an experiment have in common.
pub(super) struct Naming {
    seed: u64,
    chunk_bytes: u32,
    chunks_each_file: u64,
}

impl Naming {
    pub(super) fn of(variant: &VariantSpec) -> Naming {
        Naming {
            seed: variant.workload.seed,
            chunk_bytes: variant.store.chunk_sizes.target as u32,
            chunks_each_file: variant.fill.map_or(1 << 16, |fill| fill.chunks_each_file),
        }
    }

    /// Returns the bytes of so many chunks.
    pub(super) fn bytes(&self, chunks: u64) -> u64 {
        chunks * u64::from(self.chunk_bytes)
    }

    /// Returns the backup of a client whose generation has `size_bytes`.
    pub(super) fn of_client(&self, what: &str, client: u32, size_bytes: u64) -> Named {
        let first = (u64::from(client) + 1) * NUMBERS_OF_CLIENT;
        let chunks = (size_bytes / u64::from(self.chunk_bytes)).max(1);
        Named { name: format!("{what}-{client}"), chunks: first..first + chunks }
    }

    /// Returns the name of a chunk: SplitMix64.
    fn fingerprint(&self, number: u64, digest_bytes: usize) -> Fingerprint {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mix = |state: u64| {
            let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            state ^ (state >> 31)
        };
        let start = mix(self.seed.wrapping_add(STEP));
        let mut digest = [0; 32];
        for (part, at) in digest.chunks_exact_mut(8).zip(0u64..) {
            let state = start.wrapping_add((4 * number + at).wrapping_mul(STEP));
            part.copy_from_slice(&mix(state).to_le_bytes());
        }
        Fingerprint::from_digest(&digest[..digest_bytes])
    }

    /// Stores a backup, which is durable on return. Returns the bytes of its recipes and directories. `advance` hears
    /// of each batch of chunks, and ends it with an error.
    fn store(&self, engine: &Arc<Engine>, of: &Named, advance: &dyn Fn(u64) -> Result<()>) -> Result<u64> {
        let digest_bytes = engine.digest_bytes();
        // Metadata has a stream of its own: a frame that has some keeps all of its bytes.
        let (mut data, mut metadata) = (engine.stream(), engine.stream());
        let mut directory = DirectoryWriter::new(engine);
        let (mut names, mut pieces) = (Vec::new(), Vec::new());
        for (number, file) in parts(&of.chunks, self.chunks_each_file).enumerate() {
            let mut recipe = RecipeWriter::new(engine);
            for batch in parts(&file, BATCH_CHUNKS) {
                let count = batch.end - batch.start;
                names.clear();
                names.extend(batch.map(|number| (self.fingerprint(number, digest_bytes), self.chunk_bytes)));
                data.write_named(&names, &mut pieces)?;
                pieces.drain(..).try_for_each(|piece| recipe.push(&mut metadata, piece))?;
                advance(self.bytes(count))?;
            }
            let (size_bytes, recipe) = (self.bytes(file.end - file.start), recipe.finish(&mut metadata)?);
            let attributes = Attributes { mode: 0o644, links: 1, ..Attributes::default() };
            let name = format!("{number:08}").into_bytes();
            directory.push(&mut metadata, &Entry { name, attributes, content: Content::File { size_bytes, recipe } })?;
        }
        let root = directory.finish(&mut metadata)?;
        let mut backup = Backup {
            id: BackupId::from_bytes(random_name()?),
            sequence: 0,
            seen_ns: 0,
            name: of.name.clone(),
            host: "bench".to_owned(),
            user: "bench".to_owned(),
            started_ns: 0,
            finished_ns: 0,
            tags: Vec::new(),
            paths: vec![b"/".to_vec()],
            options: "{}".to_owned(),
            root,
            statistics: Statistics { logical_bytes: self.bytes(of.chunks.end - of.chunks.start), ..Statistics::default() },
        };
        Catalog::new(engine.clone()).commit_backup(&mut backup)?;
        Ok(metadata.added_bytes())
    }

    /// Stores backups, `at_once` at a time. Returns the bytes of their metadata.
    pub(super) fn store_all(&self, engine: &Arc<Engine>, all: &[Named], at_once: usize, watcher: &dyn Watcher) -> Result<u64> {
        let (next, metadata_bytes, stops) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let advance = |bytes| {
            watcher.advance(bytes);
            if stops.load(Ordering::Relaxed) || watcher.is_cancelled() { Err(RunError::Cancelled) } else { Ok(()) }
        };
        let work = || {
            while let Some(of) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                let stored = self.store(engine, of, &advance);
                stops.fetch_or(stored.is_err(), Ordering::Relaxed);
                metadata_bytes.fetch_add(stored?, Ordering::Relaxed);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..at_once.min(all.len())).map(|_| scope.spawn(work)).collect();
            let joined = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            let ended: Vec<Result<()>> = joined.collect();
            // Of several errors, the one that stopped the others.
            let first = |is_wanted: fn(&RunError) -> bool| ended.iter().position(|end| end.as_ref().is_err_and(is_wanted));
            let failed = first(|error| !matches!(error, RunError::Cancelled)).or_else(|| first(|_| true));
            failed.map_or(Ok(()), |at| ended.into_iter().nth(at).unwrap_or(Ok(())))
        })?;
        Ok(metadata_bytes.into_inner())
    }
}

/// Returns a range in parts.
fn parts(range: &Range<u64>, length: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let Range { start, end } = range.clone();
    (start..end).step_by(length as usize).map(move |start| start..end.min(start + length))
}

/// Deletes the backups whose names begin so. Returns the bytes of their files.
pub(super) fn delete(engine: &Arc<Engine>, beginning: &str) -> Result<u64> {
    let catalog = Catalog::new(engine.clone());
    let mut backups = catalog.list()?;
    backups.retain(|backup| backup.name.starts_with(beginning));
    catalog.remove_backups(&backups)?;
    Ok(backups.iter().map(|backup| backup.statistics.logical_bytes).sum())
}

/// Finds out what is needed: afterwards all groups have their marks.
pub(super) fn mark(engine: &Arc<Engine>, stops: &dyn Fn() -> bool) -> Result<()> {
    let mut damaged = Vec::new();
    let survey = engine.survey(&mut StoreRoots::new(engine.digest_bytes()), &|| !stops(), &mut damaged)?;
    ended(survey.held.or_else(|| damaged.pop()), stops)
}

/// Finds out what is needed, and removes all other chunks. Returns how many.
pub(super) fn remove_unneeded(engine: &Arc<Engine>, stops: &dyn Fn() -> bool) -> Result<u64> {
    let mut report = remove_unused(engine, &NoMonitor, &|| !stops())?;
    ended(report.damaged.pop(), stops)?;
    Ok(report.chunks)
}

fn ended(trouble: Option<String>, stops: &dyn Fn() -> bool) -> Result<()> {
    match trouble {
        _ if stops() => Err(RunError::Cancelled),
        Some(why) => Err(RunError::Unremoved { why }),
        None => Ok(()),
    }
}
