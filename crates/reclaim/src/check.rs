//! `check`: every reference resolves, every checksum and every count holds.
//!
//! Three steps, reading only:
//! 1. pages of the chunk index: checksums and order;
//! 2. containers, one after the other: header, catalog, footer; with `read_data` every frame is read, decompressed and fingerprinted again;
//! 3. counts: in passes over ranges of fingerprints, so that memory stays within its bound, the entries of the index are compared with what
//!    the containers hold and with the sum of all references.
//!
//! If chunks are missing or damaged, a last step names every path of every backup and every range of every volume that needs one.

use crate::references::{metadata_of, of_chunk, of_objects};
use crate::{Result, affected};
use onefold_engine::{Engine, Piece};
use onefold_fingerprint::Fingerprint;
use onefold_storage::{Address, ChunkKind, ContainerId, StorageError};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What to check and how much memory it may take.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// Read, decompress and fingerprint every chunk.
    pub read_data: bool,
    /// Bound of the table of counts, bytes.
    pub memory_bytes: usize,
}

impl Default for CheckOptions {
    fn default() -> CheckOptions {
        CheckOptions { read_data: false, memory_bytes: 256 << 20 }
    }
}

/// Memory of one chunk in the table of counts.
const CHUNK_BYTES: usize = 96;
/// More problems than this are counted but not listed.
const LISTED: usize = 10_000;

/// Kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProblemKind {
    /// A page of the chunk index is damaged.
    IndexPage,
    /// A container or a chunk in it is damaged.
    Container,
    /// A chunk that is referred to is not stored.
    MissingChunk,
    /// The index names a place where the chunk is not.
    WrongAddress,
    /// A usage count is not the number of references.
    WrongCount,
    /// An object (mapping, backup, volume) cannot be read.
    Object,
    /// A path of a backup, or a range of a volume, needs a damaged or missing chunk.
    Affected,
}

impl ProblemKind {
    /// The word in JSON output.
    pub fn name(self) -> &'static str {
        match self {
            ProblemKind::IndexPage => "index_page",
            ProblemKind::Container => "container",
            ProblemKind::MissingChunk => "missing_chunk",
            ProblemKind::WrongAddress => "wrong_address",
            ProblemKind::WrongCount => "wrong_count",
            ProblemKind::Object => "object",
            ProblemKind::Affected => "affected",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its kind.
    pub kind: ProblemKind,
    /// What is wrong and where.
    pub what: String,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Containers looked at.
    pub containers: u64,
    /// Chunks in them.
    pub chunks: u64,
    /// Entries of the chunk index.
    pub index_entries: u64,
    /// References counted.
    pub references: u64,
    /// Bytes read and fingerprinted again.
    pub read_bytes: u64,
    /// Passes over the references.
    pub passes: u64,
    /// Findings; at most 10,000 are listed.
    pub problems: Vec<Problem>,
    /// All findings, listed or not.
    pub problem_count: u64,
}

impl CheckReport {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.problem_count == 0
    }

    pub(crate) fn add(&mut self, kind: ProblemKind, what: String) {
        self.problem_count += 1;
        if self.problems.len() < LISTED {
            self.problems.push(Problem { kind, what });
        }
    }
}

/// Is told how far a check is.
pub trait Monitor {
    /// A new step with `total` units begins.
    fn step(&self, what: &str, total: u64);
    /// So many units of the step are done.
    fn advance(&self, units: u64);
    /// Whether to stop early.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Nobody is told.
#[derive(Clone, Copy, Debug)]
pub struct NoMonitor;

impl Monitor for NoMonitor {
    fn step(&self, _what: &str, _total: u64) {}
    fn advance(&self, _units: u64) {}
}

/// What is known of a chunk in one pass.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// From the index.
    address: u64,
    count: u32,
    indexed: bool,
    /// A container has it at that address.
    stored: bool,
    /// A container has it somewhere.
    elsewhere: bool,
    references: u64,
}

/// Checks a store.
pub fn check(engine: &Arc<Engine>, options: CheckOptions, monitor: &dyn Monitor) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let mut lost: HashSet<Fingerprint> = HashSet::new();

    monitor.step("chunk index", 1);
    for damage in engine.index().verify()? {
        report.add(ProblemKind::IndexPage, format!("{}: page {}: {}", damage.path, damage.page, damage.why));
    }
    let pages_damaged = !report.is_clean();
    monitor.advance(1);

    let containers = engine.storage().containers()?;
    check_containers(engine, &containers, options, monitor, &mut report, &mut lost)?;
    if pages_damaged {
        // The pages of the index cannot be read as a whole: comparing counts with them would only repeat that.
        report.add(ProblemKind::IndexPage, "usage counts were not compared, because pages of the chunk index are damaged".into());
    } else {
        check_counts(engine, &containers, options, monitor, &mut report, &mut lost)?;
    }
    of_objects(engine, &mut |_| {}, &mut |what| report.add(ProblemKind::Object, what))?;
    if !lost.is_empty() {
        affected::name(engine, &lost, monitor, &mut report)?;
    }
    Ok(report)
}

/// Step 2.
fn check_containers(
    engine: &Arc<Engine>,
    containers: &[ContainerId],
    options: CheckOptions,
    monitor: &dyn Monitor,
    report: &mut CheckReport,
    lost: &mut HashSet<Fingerprint>,
) -> Result<()> {
    let algorithm = engine.descriptor().fingerprint;
    monitor.step(if options.read_data { "containers and data" } else { "containers" }, containers.len() as u64);
    for container in containers {
        if monitor.is_cancelled() {
            break;
        }
        let mut wrong = Vec::new();
        let mut read_bytes = 0;
        let found = engine.storage().verify_container(
            *container,
            options.read_data,
            Some(&mut |address, fingerprint, kind, bytes| {
                read_bytes += bytes.len() as u64;
                let name = if kind == ChunkKind::Data { algorithm.fingerprint(bytes) } else { algorithm.metadata(bytes) };
                if name != fingerprint {
                    wrong.push((address, fingerprint));
                }
            }),
        )?;
        report.containers += 1;
        report.chunks += found.chunks;
        report.read_bytes += read_bytes;
        for (address, fingerprint) in wrong {
            report.add(ProblemKind::Container, format!("chunk {fingerprint} at {address} has bytes of another fingerprint"));
            lost.insert(fingerprint);
        }
        for damage in &found.damage {
            report.add(ProblemKind::Container, damage.to_string());
            // Without a catalog nobody knows what the container held; the counts will show what is missing.
            for slot in engine.storage().slots(*container).unwrap_or_default() {
                let is_hit = match damage {
                    StorageError::Damaged { frame: Some(frame), .. } => u32::from(slot.frame) == *frame,
                    _ => true,
                };
                if is_hit {
                    lost.insert(slot.fingerprint);
                }
            }
        }
        monitor.advance(1);
    }
    Ok(())
}

/// Step 3.
fn check_counts(
    engine: &Arc<Engine>,
    containers: &[ContainerId],
    options: CheckOptions,
    monitor: &dyn Monitor,
    report: &mut CheckReport,
    lost: &mut HashSet<Fingerprint>,
) -> Result<()> {
    let partitions = engine.descriptor().index_partitions;
    let entries = engine.index().statistics().entries;
    let wanted = (entries as usize * CHUNK_BYTES).div_ceil(options.memory_bytes.max(1)).max(1) as u32;
    let passes = wanted.next_power_of_two().min(partitions);
    let each = partitions / passes;
    let shift = 64 - partitions.trailing_zeros();
    monitor.step("references", u64::from(passes) * containers.len() as u64);
    for pass in 0..passes {
        let range = pass * each..(pass + 1) * each;
        let partition = |fingerprint: &Fingerprint| if partitions == 1 { 0 } else { (fingerprint.prefix() >> shift) as u32 };
        let mut known: HashMap<Fingerprint, Known> = HashMap::new();
        for number in range.clone() {
            engine.index().for_each(number, &mut |fingerprint, entry| {
                known.insert(*fingerprint, Known { address: entry.address, count: entry.count, indexed: true, ..Known::default() });
                Ok(())
            })?;
        }
        report.index_entries += known.len() as u64;
        for container in containers {
            // Damage of the container itself was reported by step 2.
            if let Ok(slots) = engine.storage().slots(*container) {
                for (number, slot) in slots.iter().enumerate().filter(|(_, slot)| range.contains(&partition(&slot.fingerprint))) {
                    let chunk = known.entry(slot.fingerprint).or_default();
                    chunk.elsewhere = true;
                    chunk.stored |= chunk.indexed && chunk.address == Address::new(*container, number as u16).bits();
                }
                for piece in references_of_container(engine, &metadata_of(*container, &slots), report, pass == 0)? {
                    count(&mut known, &piece, |fingerprint| range.contains(&partition(fingerprint)), report);
                }
            }
            monitor.advance(1);
        }
        let mut pieces = Vec::new();
        of_objects(engine, &mut |piece| pieces.push(*piece), &mut |_| {})?;
        for piece in pieces {
            count(&mut known, &piece, |fingerprint| range.contains(&partition(fingerprint)), report);
        }
        judge(known, report, lost);
        report.passes += 1;
    }
    Ok(())
}

fn count(known: &mut HashMap<Fingerprint, Known>, piece: &Piece, is_mine: impl Fn(&Fingerprint) -> bool, report: &mut CheckReport) {
    if let Some(fingerprint) = piece.fingerprint().filter(is_mine) {
        known.entry(fingerprint).or_default().references += 1;
        report.references += 1;
    }
}

/// What the metadata chunks of a container refer to. Of several copies of one chunk only the one that the index names counts.
fn references_of_container(
    engine: &Engine,
    metadata: &[(Address, Fingerprint, ChunkKind)],
    report: &mut CheckReport,
    say: bool,
) -> Result<Vec<Piece>> {
    let names: Vec<_> = metadata.iter().map(|(_, fingerprint, _)| *fingerprint).collect();
    let mut entries = Vec::with_capacity(names.len());
    engine.index().lookup(&names, &mut entries)?;
    let mut pieces = Vec::new();
    for ((address, fingerprint, kind), entry) in metadata.iter().zip(entries) {
        if entry.is_none_or(|entry| entry.address != address.bits()) {
            continue;
        }
        let mut slices = Vec::new();
        // A chunk that cannot be read was reported with its container.
        if engine.storage().load(&[(*address, *fingerprint)], &mut slices).is_err() {
            continue;
        }
        match slices.first().and_then(|content| of_chunk(content, *kind, engine.digest_bytes())) {
            Some(found) => pieces.extend(found),
            None if say => report.add(ProblemKind::Container, format!("metadata chunk {fingerprint} at {address} cannot be understood")),
            None => {}
        }
    }
    Ok(pieces)
}

/// Compares what is known of each chunk.
fn judge(known: HashMap<Fingerprint, Known>, report: &mut CheckReport, lost: &mut HashSet<Fingerprint>) {
    for (fingerprint, chunk) in known {
        let address = Address::from_bits(chunk.address);
        if chunk.references > 0 && !chunk.elsewhere {
            report
                .add(ProblemKind::MissingChunk, format!("chunk {fingerprint} has {} references but is in no container", chunk.references));
            lost.insert(fingerprint);
        } else if chunk.indexed && chunk.address != 0 && !chunk.stored {
            report.add(ProblemKind::WrongAddress, format!("the index says that chunk {fingerprint} is at {address}, where it is not"));
        } else if !chunk.indexed && chunk.references > 0 {
            report
                .add(ProblemKind::WrongCount, format!("chunk {fingerprint} has {} references but no entry in the index", chunk.references));
        }
        if chunk.indexed && u64::from(chunk.count) != chunk.references {
            let what =
                format!("chunk {fingerprint} at {address}: the index counts {} references, there are {}", chunk.count, chunk.references);
            report.add(ProblemKind::WrongCount, what);
        }
    }
}
