//! Whether there is room for the stores of an experiment, before it is run. One store is there at a time.

use super::{Plan, Program, Result, RunError, Size, measure};
use crate::spec::{Scaled, Spec, VariantSpec};
use onefold_traffic::Set;
use std::path::{Path, PathBuf};

/// Index, recipe and catalog of a chunk, the index twice while it is swept: an estimate above what was seen.
const METADATA_BYTES_PER_CHUNK: u64 = 256;
/// What any store takes: empty indexes, containers that are not full.
const LEAST_BYTES: u64 = 64 << 20;

/// The first of some directories that has room for all experiments, each with some of its variants (none named: all); else the last one, in which the run will say what
/// it lacks.
pub fn choose_directory(candidates: &[PathBuf], specs: &[(Spec, Vec<String>)], size: Size, program: &dyn Program) -> PathBuf {
    let fits = |directory: &PathBuf, spec: &Spec, variants: &Vec<String>| {
        let plan = Plan { size, repetitions: None, variants: variants.clone(), directory: directory.clone() };
        super::check(spec, &plan, program).is_ok()
    };
    let has_room = |directory: &PathBuf| directory.is_dir() && specs.iter().all(|(spec, variants)| fits(directory, spec, variants));
    let chosen = candidates.iter().find(|directory| has_room(directory)).or(candidates.last());
    chosen.cloned().unwrap_or_else(std::env::temp_dir)
}

/// Errors: too little room for the greatest variant.
pub(super) fn check(spec: &Spec, variants: &[(&VariantSpec, Scaled)], directory: &Path) -> Result<()> {
    let Some(needed_bytes) = variants.iter().map(|(variant, scaled)| needed_bytes(variant, scaled)).max() else { return Ok(()) };
    let room = rustix::fs::statvfs(directory);
    let room = room.map_err(|error| RunError::Io { operation: "use", path: directory.to_owned(), source: error.into() })?;
    let mut free_bytes = room.f_bavail.saturating_mul(room.f_frsize);
    if measure::file_system(directory) == "tmpfs" {
        // Its files are in the memory that the store itself needs, too.
        free_bytes = free_bytes.min(measure::available_memory_bytes().unwrap_or(u64::MAX));
    }
    if needed_bytes <= free_bytes {
        return Ok(());
    }
    Err(RunError::NoRoom { id: spec.about.id.clone(), directory: directory.to_owned(), needed_bytes, free_bytes })
}

/// What the store of a variant takes at most.
fn needed_bytes(variant: &VariantSpec, scaled: &Scaled) -> u64 {
    let (mut data, mut written) = (0u64, 0u64);
    for generation in 1..=variant.workload.generations {
        for client in 0..variant.workload.clients {
            let stream = variant.stream_of(client, generation, scaled.size_bytes);
            let length = stream.length_bytes();
            written = written.saturating_add(length);
            let is_copy = generation > 1 && stream.set.copies();
            // Some 2 % of a later generation are new, and at the ends of its runs more is stored again; small ones differ a lot from that.
            data = data.saturating_add(match stream.set {
                Set::DuplicateBlocks => length / 64,
                _ if is_copy => length / 4,
                _ => length,
            });
        }
    }
    let chunks = written / variant.store.chunk_sizes.target.max(1) as u64;
    let log = scaled.settings.engine.log_limit_bytes.saturating_mul(2).min(written) + 2 * scaled.settings.engine.log_segment_bytes;
    let data = if variant.store.discard_data { 0 } else { data };
    let metadata = chunks.saturating_mul(METADATA_BYTES_PER_CHUNK);
    LEAST_BYTES.saturating_add(data).saturating_add(metadata).saturating_add(log)
}
