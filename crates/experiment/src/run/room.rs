//! Checks before a run whether there is space for the stores of an experiment. They exist one at a time.

use super::{Plan, Program, Result, RunError, Size, measure};
use crate::spec::{Face, Scaled, Spec, VariantSpec, Work};
use onefold_engine::StoreProfile;
use onefold_traffic::Set;
use std::path::{Path, PathBuf};

/// Index, recipe and catalog of a chunk (measured: 177), and the index once more during a sweep.
const METADATA_BYTES_PER_CHUNK: u64 = 256;
/// Log bytes of a chunk until it is replayed (measured: 92).
const LOG_BYTES_PER_CHUNK: u64 = 128;
/// What a chunk without data takes besides its name, which its catalog and its recipe have: address, lengths, marks,
/// and the recipe's own chunks (measured: 28).
const FILL_BYTES_PER_CHUNK: u64 = 32;
/// The least that any store takes: empty indexes, containers that are not full.
const LEAST_BYTES: u64 = 64 << 20;

/// Returns the first directory with space for all experiments, each with its named variants (none named: all). If none
/// has, returns the last one, in which the run will report what it lacks.
pub(super) fn choose_directory(candidates: &[PathBuf], specs: &[(Spec, Vec<String>)], size: Size, program: &dyn Program) -> PathBuf {
    let fits = |directory: &PathBuf, spec: &Spec, variants: &Vec<String>| {
        let plan = Plan { size, repetitions: None, variants: variants.clone(), directory: directory.clone() };
        super::check(spec, &plan, program).is_ok()
    };
    let has_room = |directory: &PathBuf| directory.is_dir() && specs.iter().all(|(spec, variants)| fits(directory, spec, variants));
    let chosen = candidates.iter().find(|directory| has_room(directory)).or(candidates.last());
    chosen.cloned().unwrap_or_else(std::env::temp_dir)
}

/// Errors: too little space for a variant.
pub(super) fn check(spec: &Spec, variants: &[(&VariantSpec, Scaled)], directory: &Path) -> Result<()> {
    let room = rustix::fs::statvfs(directory);
    let room = room.map_err(|error| RunError::Io { operation: "use", path: directory.to_owned(), source: error.into() })?;
    let room_bytes = room.f_bavail.saturating_mul(room.f_frsize);
    // On tmpfs, files take memory that the store itself needs too.
    let is_memory = measure::file_system(directory) == "tmpfs";
    let available_bytes = if is_memory { measure::available_memory_bytes() } else { None };
    for (variant, scaled) in variants {
        let needed_bytes = needed_bytes(variant, scaled);
        let free_bytes = available_bytes.map_or(room_bytes, |bytes| room_bytes.min(bytes.saturating_sub(memory_bytes(scaled))));
        if needed_bytes > free_bytes {
            return Err(RunError::NoRoom { id: spec.about.id.clone(), directory: directory.to_owned(), needed_bytes, free_bytes });
        }
    }
    Ok(())
}

/// Returns the most memory that the store takes beside its files.
fn memory_bytes(scaled: &Scaled) -> u64 {
    let (engine, volumes) = (&scaled.settings.engine, &scaled.settings.volumes);
    let bounds = [
        engine.auxiliary_index_bytes,
        engine.chunk_index_cache_bytes,
        engine.chunk_index_filter_bytes,
        engine.levels_filter_bytes,
        engine.frame_cache_bytes,
        engine.catalog_cache_bytes,
        engine.in_flight_bytes,
        engine.object_index_cache_bytes,
        engine.object_index_pending_bytes,
        volumes.dirty_bytes,
        volumes.mapping_cache_bytes,
    ];
    bounds.into_iter().fold(0, |sum, bytes| sum.saturating_add(bytes as u64))
}

/// Returns the most disk space that the store of a variant takes.
fn needed_bytes(variant: &VariantSpec, scaled: &Scaled) -> u64 {
    let (mut data, mut written) = (0u64, 0u64);
    let works = (1..=variant.workload.generations).zip(&variant.workload.work);
    for (generation, _) in works.filter(|(_, work)| **work != Work::Read) {
        for client in 0..variant.workload.clients {
            let stream = variant.stream_of(client, generation, scaled.size_bytes);
            let length = stream.length_bytes();
            written = written.saturating_add(length);
            // The disk's own keeps each copy.
            let keeps_copies = matches!(variant.run.face, Face::Disk | Face::Passthrough);
            let is_copy = generation > 1 && (stream.set.copies() || variant.workload.repeat) && !keeps_copies;
            // About 2 % of a later generation is new, and more is stored again at the ends of its runs. Small
            // generations differ a lot from that.
            data = data.saturating_add(match stream.set {
                Set::DuplicateBlocks if !keeps_copies => length / 64,
                Set::Versions if is_copy => stream.describe().map_or(length, |of| of.new_bytes + of.new_bytes / 16),
                _ if is_copy => length / 4,
                _ => length,
            });
        }
    }
    let by_name = scaled.fill_chunks.saturating_mul(2 * variant.store.fingerprint.digest_bytes() as u64 + FILL_BYTES_PER_CHUNK);
    let chunks = written / variant.store.chunk_sizes.target.max(1) as u64;
    let engine = &scaled.settings.engine;
    // Writers wait at twice the limit.
    let log = engine.log_limit_bytes.saturating_mul(2).min(chunks.saturating_add(scaled.fill_chunks).saturating_mul(LOG_BYTES_PER_CHUNK));
    let log = log.saturating_add(engine.log_segment_bytes.saturating_mul(2));
    let data = if variant.store.discard_data { 0 } else { data };
    // A compaction has the old tables and the new ones.
    let data = if variant.store.profile == StoreProfile::Leveled { data.saturating_mul(2) } else { data };
    let metadata = chunks.saturating_mul(METADATA_BYTES_PER_CHUNK);
    LEAST_BYTES.saturating_add(data).saturating_add(by_name).saturating_add(metadata).saturating_add(log)
}
