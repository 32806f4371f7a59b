//! Ingest and reads in process: the engine without files to walk and without a program to start.
//!
//! Each thread has a stream of its own and writes pieces of 4 MiB. Unique data is random bytes that differ in each KiB
//! from all before; duplicates are the same bytes again after the store was opened again. Shares are those of the
//! store's own profile (M0.22): wall time of the threads in each component, so waiting counts.

use crate::process::own_cpu_s;
use crate::random::Random;
use crate::report::{Aim, Report, median};
use crate::{Options, floors};
use anyhow::{Context, Result};
use onefold_chunking::{Kind, Sizes, chunker};
use onefold_engine::{Descriptor, Engine, Hints, Mode, Piece, Settings};
use onefold_fingerprint::Algorithm;
use onefold_ground::{Ground, LocalGround};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const PIECE_BYTES: usize = 4 << 20;
/// What differs from all data before lies this close together: every chunk is new.
const MARK_EVERY_BYTES: usize = 1024;
const THREADS: u64 = 2;
/// The chunk index and the log may take this share of the time of duplicates.
const INDEX_AND_LOG_PERCENT: f64 = 15.0;

/// Random bytes whose every KiB says which piece it is.
struct Source {
    noise: Vec<u8>,
}

impl Source {
    fn new() -> Source {
        let mut noise = vec![0; PIECE_BYTES];
        Random::new(3).fill(&mut noise);
        Source { noise }
    }

    fn piece(&self, number: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.noise);
        for (place, block) in out.chunks_mut(MARK_EVERY_BYTES).enumerate() {
            let mark = (number << 24 | place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            block[..8].copy_from_slice(&mark.to_le_bytes());
        }
    }
}

/// Unique and duplicate data, uncompressed and lz4, in memory and on disk; reads of what is cached.
pub fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let pieces = (options.size / PIECE_BYTES as u64).max(THREADS);
    let bytes = pieces * PIECE_BYTES as u64;
    report.group(format!("In process, {THREADS} threads, random data ({:.2} GB)", bytes as f64 / 1e9));
    let bound = chunk_and_hash(pieces)?;
    report.add("cut + fingerprint only", bound, "GB/s");
    for compression in ["none", "lz4"] {
        for (place, parent) in [("memory", &options.memory), ("disk", &options.disk)] {
            let directory = tempfile::tempdir_in(parent)?;
            let floor = floors::sequential_write(directory.path(), bytes)?;
            let floor = (format!("writing the same bytes raw, {place}"), floor);
            create(directory.path(), compression)?;
            let engine = open(directory.path())?;
            let (unique, _) = ingest(&engine, pieces)?;
            let aim = (compression == "none" && place == "disk").then_some(Aim::Above(0.8 * floor.1));
            report.add_beside(format!("{compression}, {place}: unique"), unique, "GB/s", aim, Some((&floor.0, floor.1)));
            shares(report, &format!("{compression}, {place}: unique"), &engine, None);
            engine.close()?;
            drop(engine);
            if place == "disk" {
                continue;
            }
            let mut rates = Vec::new();
            for run in 0..options.runs {
                let engine = open(directory.path())?;
                let (rate, spelled) = ingest(&engine, pieces)?;
                rates.push(rate);
                if run + 1 == options.runs {
                    let rate = median(std::mem::take(&mut rates));
                    report.add_beside(
                        format!("{compression}, {place}: duplicates"),
                        rate,
                        "GB/s",
                        None,
                        Some(("cut + fingerprint only", bound)),
                    );
                    shares(report, &format!("{compression}, {place}: duplicates"), &engine, Some(INDEX_AND_LOG_PERCENT));
                    // What is still in the auxiliary index has no filter: only entries in pages count.
                    engine.maintain(true)?;
                    let index = engine.index().expect("the store has a chunk index").statistics();
                    let per_entry = index.filter_bytes as f64 / index.entries.max(1) as f64;
                    report.add_beside("index: memory per chunk beside caches", per_entry, "B", Some(Aim::Below(1.3)), None);
                    reads(report, &engine, &format!("{compression}, {place}"), &spelled)?;
                }
                engine.close()?;
            }
        }
    }
    parity(options, report, pieces)
}

/// What parity costs: processor time of the same unique data without it and with it, until all sealed containers have
/// theirs; store in memory, nothing compressed.
fn parity(options: &Options, report: &mut Report, pieces: u64) -> Result<()> {
    const GROUP: usize = 16;
    let gigabytes = (pieces * PIECE_BYTES as u64) as f64 / 1e9;
    let mut costs = [Vec::new(), Vec::new()];
    // By turns, so that what else the machine does meets both.
    for _ in 0..options.runs {
        for (parity_group, costs) in [0, GROUP].into_iter().zip(&mut costs) {
            let directory = tempfile::tempdir_in(&options.memory)?;
            create(directory.path(), "none")?;
            let before = own_cpu_s()?;
            let engine = open_with(directory.path(), Settings { parity_group, ..Settings::default() })?;
            ingest(&engine, pieces)?;
            engine.make_parity(true, &|| true)?;
            engine.close()?;
            costs.push((own_cpu_s()? - before) / gigabytes);
        }
    }
    let [without, with] = costs.map(median);
    report.add("none, memory: unique, without parity: CPU", without, "s/GB");
    report.add_beside(format!("none, memory: unique, with parity of {GROUP}: CPU"), with, "s/GB", None, Some(("without parity", without)));
    Ok(())
}

fn create(directory: &Path, compression: &str) -> Result<()> {
    let place = directory.join("store");
    std::fs::create_dir(&place)?;
    let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(&place)?);
    let descriptor = Descriptor { compression: compression.parse()?, ..Descriptor::new()? };
    Ok(Engine::create(&ground, &descriptor)?)
}

fn open(directory: &Path) -> Result<Arc<Engine>> {
    open_with(directory, Settings::default())
}

fn open_with(directory: &Path, settings: Settings) -> Result<Arc<Engine>> {
    let ground = LocalGround::open(directory.join("store"))?;
    Ok(Engine::open(Arc::new(ground), settings, Mode::ReadWrite, "bench")?)
}

/// Writes all pieces and makes them durable: GB/s, and what spells the last piece of each thread.
fn ingest(engine: &Arc<Engine>, pieces: u64) -> Result<(f64, Vec<Vec<Piece>>)> {
    let source = Source::new();
    let start = Instant::now();
    let spelled = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let source = &source;
                scope.spawn(move || -> Result<Vec<Piece>> {
                    let mut stream = engine.stream();
                    let mut buffer = vec![0; PIECE_BYTES];
                    let mut spelled = Vec::new();
                    for number in (thread..pieces).step_by(THREADS as usize) {
                        source.piece(number, &mut buffer);
                        // The newest few pieces are kept, to be read again.
                        if number < 4 * THREADS {
                            stream.write(&buffer, true, Hints::default(), &mut spelled)?;
                        } else {
                            stream.write(&buffer, true, Hints::default(), &mut Vec::new())?;
                        }
                    }
                    Ok(spelled)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a panic in a thread is a bug, not a result")).collect::<Result<Vec<_>>>()
    })?;
    engine.flush()?;
    let bytes = pieces * PIECE_BYTES as u64;
    Ok((bytes as f64 / start.elapsed().as_secs_f64() / 1e9, spelled))
}

/// The bound of duplicates: the same pieces cut and hashed by the same number of threads, nothing else.
fn chunk_and_hash(pieces: u64) -> Result<f64> {
    let source = Source::new();
    let chunker = chunker(Kind::default(), Sizes::default())?;
    floors::rate(pieces * PIECE_BYTES as u64, || {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (source, chunker) = (&source, &chunker);
                scope.spawn(move || {
                    let mut buffer = vec![0; PIECE_BYTES];
                    let (mut cuts, mut names) = (Vec::new(), Vec::new());
                    for number in (thread..pieces).step_by(THREADS as usize) {
                        source.piece(number, &mut buffer);
                        cuts.clear();
                        chunker.cut(&buffer, true, &mut cuts);
                        let mut start = 0;
                        let chunks: Vec<_> = cuts.iter().map(|cut| &buffer[std::mem::replace(&mut start, *cut)..*cut]).collect();
                        names.clear();
                        Algorithm::Blake3.fingerprint_many(&chunks, &mut names);
                    }
                });
            }
        });
        Ok(())
    })
}

/// The parts of the time by component, largest first.
fn shares(report: &mut Report, what: &str, engine: &Engine, index_and_log_percent: Option<f64>) {
    let mut usage: Vec<_> = engine.profile().report().into_iter().map(|(name, usage)| (name, usage.time_ns as f64)).collect();
    let sum: f64 = usage.iter().map(|(_, time)| time).sum();
    usage.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (name, time) in usage.iter().filter(|(_, time)| time / sum >= 0.005) {
        report.add(format!("{what}: share of {name}"), 100.0 * time / sum, "%");
    }
    if let Some(limit) = index_and_log_percent {
        let of_index = ["filter_container_cache", "filter_chunk_index", "chunk_index", "object_index", "log"];
        let time: f64 = usage.iter().filter(|(name, _)| of_index.contains(name)).map(|(_, time)| time).sum();
        report.add_beside(format!("{what}: share of all indexes and the log"), 100.0 * time / sum, "%", Some(Aim::Below(limit)), None);
    }
}

/// Reads a few pieces again and again, by as many threads: from the page cache and the frame cache, fingerprints
/// verified.
fn reads(report: &mut Report, engine: &Arc<Engine>, what: &str, spelled: &[Vec<Piece>]) -> Result<()> {
    const ROUNDS: usize = 16;
    let bytes: u64 = spelled.iter().flatten().map(Piece::length).sum();
    let rate = floors::rate(ROUNDS as u64 * bytes, || {
        std::thread::scope(|scope| {
            let threads: Vec<_> = spelled
                .iter()
                .map(|pieces| {
                    scope.spawn(move || -> Result<()> {
                        let length = pieces.iter().map(Piece::length).sum::<u64>();
                        let mut out = vec![0; usize::try_from(length).context("a run longer than memory")?];
                        for _ in 0..ROUNDS {
                            engine.read(pieces, 0, &mut out, true)?;
                        }
                        Ok(())
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a panic in a thread is a bug, not a result"))
        })
    })?;
    report.add_beside(format!("{what}: reading hot, verified"), rate, "GB/s", Some(Aim::Above(3.0)), None);
    Ok(())
}
