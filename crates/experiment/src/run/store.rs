//! The store of a repetition: made, opened, written generation after generation, deleted.

use super::clients::{Client, LOOK_INTERVAL, Task, Traffic, Written, write};
use super::face::InProcess;
use super::named::{Naming, delete, mark, remove_unneeded};
use super::trees::{Durable, Trees};
use super::{FILES, Generations, Program, Result, RunError, Served, Service, Watcher, measure};
use crate::results::{Filled, Level, Levels, LevelsWork, Measured, PartTraffic, Step, Total};
use crate::spec::{CONTAINERS, Face, GRAIN_BYTES, LEVELS, LOG_DIRECTORY, Scaled, VariantSpec, Work};
use onefold_engine::{Engine, Mode, Settings, random_name};
use onefold_ground::{Access, Ground, LocalGround, ModelledGround, PartCounters};
use onefold_volume::Volumes;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How often the deletion of a store is tried while a thread still writes to it.
const DELETIONS: u32 = 100;

/// One repetition of a variant.
pub(super) struct Repetition<'a> {
    pub(super) variant: &'a VariantSpec,
    pub(super) scaled: &'a Scaled,
    /// The directory for stores.
    pub(super) directory: &'a Path,
    /// The title for people.
    pub(super) title: String,
    pub(super) program: &'a dyn Program,
    pub(super) watcher: &'a dyn Watcher,
}

/// A directory that is deleted with its content when dropped.
struct Place(PathBuf);

impl Place {
    fn make(parent: &Path) -> Result<Place> {
        let name = random_name()?.iter().take(6).fold("onefold-bench-".to_owned(), |name, byte| format!("{name}{byte:02x}"));
        let path = parent.join(name);
        fs::create_dir(&path).map_err(|source| RunError::Io { operation: "make a store in", path: parent.to_owned(), source })?;
        Ok(Place(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // After a failure a thread of the store may still be at work, until it finds its files gone.
        for _ in 0..DELETIONS {
            match fs::remove_dir_all(&self.0) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => std::thread::sleep(LOOK_INTERVAL),
                _ => return,
            }
        }
        tracing::warn!("could not delete {}: delete it yourself", self.0.display());
    }
}

/// An opened engine, and the seconds that it took.
pub(super) struct Opened {
    pub(super) engine: Arc<Engine>,
    pub(super) open_s: f64,
    /// Until all hooks of a sampled index were in memory, after that.
    pub(super) hooks_s: f64,
}

/// Ends work in the background with the store, however a run ends: it would take time from the next measurement.
struct Background(Arc<Engine>);

impl Drop for Background {
    fn drop(&mut self) {
        self.0.end_background();
    }
}

/// An open store. Dropping it is like a crash: quick, and good enough for a store that is deleted.
struct Store {
    service: Box<dyn Service>,
    volumes: Arc<Volumes>,
    engine: Arc<Engine>,
    open_s: f64,
    hooks_s: f64,
    _background: Background,
}

impl Store {
    /// Closes the store, so that it can be opened again. Returns what its levels did since it was opened.
    fn close(self) -> Result<LevelsWork> {
        drop(self.service);
        self.volumes.flush()?;
        drop(self.volumes);
        self.engine.close()?;
        Ok(levels_work(&self.engine))
    }
}

impl Repetition<'_> {
    /// Runs the repetition. On a failure, `measured` and `filled` have the earlier measurements.
    pub(super) fn run(&self, measured: &mut Generations, filled: &mut Option<Filled>) -> Result<()> {
        let place = Place::make(self.directory)?;
        let [directory, trees] = ["store", FILES].map(|name| place.0.join(name));
        for path in [&directory, &trees] {
            fs::create_dir(path).map_err(|source| RunError::Io { operation: "make", path: path.clone(), source })?;
        }
        let files: Arc<dyn Ground> = Arc::new(LocalGround::open(&directory)?);
        let trees_ground = LocalGround::open(&trees)?;
        let modelled = Arc::new(ModelledGround::new(files.clone(), self.variant.modelled_parts()));
        let ground: Arc<dyn Ground> = modelled.clone();
        Engine::create(&ground, &self.variant.store.descriptor()?)?;
        if let Some(fill) = self.variant.fill {
            *filled = Some(self.fill(fill, &ground, &directory)?);
            self.forget_cached(&[&*files, &trees_ground])?;
        }
        let mut store = self.open(&ground, &place.0)?;
        // Each opening counts from zero.
        let mut before_opening = LevelsWork::default();
        for generation in 1..=self.variant.workload.generations {
            if generation > 1 && self.variant.run.restart {
                self.step(generation, "opens the store again", 0);
                before_opening = before_opening + store.close()?;
                self.forget_cached(&[&*files, &trees_ground])?;
                store = self.open(&ground, &place.0)?;
            } else if generation > 1 {
                self.forget_cached(&[&*files, &trees_ground])?;
            }
            let mut one = self.generation(generation, &store, &modelled, &[&directory, &trees])?;
            let before = measured.last().map_or_else(Total::default, |last| last.total);
            one.total = self.total(before, &one, &store.engine, &modelled.traffic(), &directory);
            let done_before =
                measured.last().and_then(|last| last.levels.as_ref()).map_or_else(LevelsWork::default, |last| last.total_work);
            one.levels = self.levels(&store.engine, before_opening, done_before);
            measured.push(one);
            // Only the first generation after an opening tells of it.
            (store.open_s, store.hooks_s) = (0.0, 0.0);
        }
        Ok(())
    }

    fn step(&self, generation: u32, what: &str, total_bytes: u64) {
        self.watcher.step(&format!("{}, generation {generation}: {what}", self.title), total_bytes);
    }

    pub(super) fn open_engine(&self, ground: &Arc<dyn Ground>) -> Result<Opened> {
        if self.watcher.is_cancelled() {
            return Err(RunError::Cancelled);
        }
        let settings = Settings { discards_data: self.variant.store.discard_data, ..self.scaled.settings.engine.clone() };
        let begun = Instant::now();
        let engine = Engine::open(ground.clone(), settings, Mode::ReadWrite, "bench")?;
        let open_s = begun.elapsed().as_secs_f64();
        // Until then some duplicates are stored again.
        while engine.recalls() && engine.hooks().is_none() {
            if self.watcher.is_cancelled() {
                return Err(RunError::Cancelled);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Opened { engine, open_s, hooks_s: begun.elapsed().as_secs_f64() - open_s })
    }

    fn open(&self, ground: &Arc<dyn Ground>, place: &Path) -> Result<Store> {
        let Opened { engine, open_s, hooks_s } = self.open_engine(ground)?;
        let volumes = Arc::new(Volumes::open(engine.clone(), self.scaled.settings.volumes)?);
        let face = self.variant.run.face;
        self.make_volumes(&volumes)?;
        let service: Box<dyn Service> = match face {
            Face::InProcess => Box::new(InProcess { volumes: volumes.clone() }),
            Face::Disk => Box::new(Trees::new(&place.join(FILES), self.variant.run.file_bytes, Durable::Whole)),
            Face::Nbd | Face::Iscsi | Face::Filesystem | Face::Passthrough => {
                let (settings, depth, file_bytes) = (&self.scaled.settings_text, self.variant.run.depth, self.variant.run.file_bytes);
                let served = Served { engine: &engine, volumes: &volumes, settings, directory: place, depth, file_bytes };
                self.program.serve(face, &served).map_err(|why| RunError::Serve { face: face.name(), why })?
            }
        };
        Ok(Store { service, volumes, _background: Background(engine.clone()), engine, open_s, hooks_s })
    }

    /// Returns the name of a client's volume for a generation.
    fn volume(&self, client: u32, generation: u32) -> String {
        if generation == 1 || self.variant.run.clone { format!("client-{client}") } else { format!("client-{client}-g{generation}") }
    }

    /// Returns the volume that a client used last for writing when a generation begins.
    fn written_volume(&self, client: u32, generation: u32) -> String {
        let before = &self.variant.workload.work[..generation as usize];
        let last = before.iter().rposition(|work| *work == Work::Write).map_or(1, |at| at as u32 + 1);
        self.volume(client, last)
    }

    /// Makes the missing volumes of all generations. Servers see the volumes that exist when they start.
    fn make_volumes(&self, volumes: &Volumes) -> Result<()> {
        if self.variant.run.face.has_files() {
            return Ok(());
        }
        let workload = &self.variant.workload;
        let writing = (1..=workload.generations).zip(&workload.work).filter(|(_, work)| **work == Work::Write);
        for (generation, _) in writing {
            for client in 0..workload.clients {
                let name = self.volume(client, generation);
                if volumes.list().iter().any(|info| info.name == name) {
                    continue;
                }
                // A volume that is overwritten has space for the longest generation.
                let length = |generation| self.variant.stream_of(client, generation, self.scaled.size_bytes).length_bytes();
                let longest = (1..=workload.generations).map(length).max().unwrap_or(GRAIN_BYTES);
                volumes.create(&name, longest.next_multiple_of(GRAIN_BYTES), self.variant.store.block_bytes, None)?;
            }
        }
        Ok(())
    }

    /// Makes the system drop its cache of the store's files, if the variant wants that.
    fn forget_cached(&self, all: &[&dyn Ground]) -> Result<()> {
        fn forget(files: &dyn Ground, directory: &str) -> Result<()> {
            for entry in files.list(directory)? {
                let path = if directory.is_empty() { entry.name } else { format!("{directory}/{}", entry.name) };
                if entry.is_directory {
                    forget(files, &path)?;
                    continue;
                }
                // An open store may remove a file meanwhile.
                let Ok(file) = files.open(&path, Access::Read) else { continue };
                // Only bytes that are on the disk can be dropped.
                file.sync()?;
                file.drop_cached(0, file.len()?);
            }
            Ok(())
        }
        if self.variant.run.cold_caches { all.iter().try_for_each(|files| forget(*files, "")) } else { Ok(()) }
    }

    fn generation(&self, generation: u32, store: &Store, ground: &ModelledGround, directories: &[&Path]) -> Result<Measured> {
        let work = self.variant.workload.work[generation as usize - 1];
        let (mut clients, mut present_new_bytes, mut total) = (Vec::new(), 0, 0);
        for client in (0..self.variant.workload.clients).filter(|_| work.is_of_volumes()) {
            let workload = self.variant.stream_of(client, generation, self.scaled.size_bytes);
            // What is written once more is not new.
            let is_again = self.variant.workload.repeat && generation > 1;
            let length = workload.length_bytes();
            total += length;
            let task = match work {
                Work::Write => {
                    present_new_bytes += if is_again { 0 } else { workload.describe()?.new_bytes };
                    Task::Write(Box::new(workload.stream()?))
                }
                // A block of each request is changed.
                Work::Rewrite => {
                    present_new_bytes += length.div_ceil(self.variant.run.request_bytes as u64) * GRAIN_BYTES;
                    Task::Rewrite(length)
                }
                _ => Task::Read(length),
            };
            clients.push(Client { way: store.service.connect(&self.written_volume(client, generation))?, task });
        }
        let disk_bytes = || directories.iter().map(|directory| measure::store_bytes(directory)).sum::<u64>();
        let disk_before = disk_bytes();
        let unique_before = store.engine.unique_bytes();
        let components_before = components(&store.engine);
        let traffic_before = ground.traffic();
        measure::forget_peak_memory();
        let cpu_before = measure::process_cpu_s();
        let (mut beside, mut steps) = (Beside::default(), Vec::new());
        let written = if work.is_of_volumes() {
            self.step(generation, if work == Work::Read { "reads" } else { "writes" }, total);
            self.write(clients, &store.engine, &|| ground.traffic(), &mut beside)?
        } else {
            let written = self.refer(generation, work, &store.engine, &mut steps)?;
            // What is deleted is neither new nor a duplicate.
            present_new_bytes = if work == Work::AddReferences { 0 } else { written.bytes };
            written
        };
        let cpu_s = measure::process_cpu_s() - cpu_before;
        let components_after = components(&store.engine);
        self.step(generation, "waits until the background work is done", 0);
        let settle_s = self.settle(&store.engine)?;

        let Written { wall_s, bytes, steady, source_cpu_s, latency, course_mb_s, span_s } = written;
        // What the kernel has of files is written when they are flushed: that belongs to it.
        let has_files = self.variant.run.face.has_files();
        let spent = |(name, after): (&String, &f64)| (name.clone(), after - components_before.get(name).unwrap_or(&0.0));
        let (steady_bytes, steady_s, steady_parts) = steady
            .filter(|_| !has_files)
            .map_or_else(Default::default, |steady| (steady.bytes, steady.seconds, difference(&steady.at_begin, &steady.at_end)));
        Ok(Measured {
            generation,
            written_bytes: bytes,
            wall_s,
            steady_bytes,
            steady_s,
            settle_s,
            cpu_s,
            source_cpu_s,
            peak_memory_bytes: measure::peak_memory_bytes(),
            present_new_bytes,
            stored_new_bytes: store.engine.unique_bytes().saturating_sub(unique_before),
            disk_bytes: disk_bytes().saturating_sub(disk_before),
            components_s: components_after.iter().map(spent).filter(|(_, seconds)| *seconds > 0.0).collect(),
            parts: difference(&traffic_before, &ground.traffic()),
            steady_parts,
            latency_ms: latency,
            course_mb_s,
            span_s,
            open_s: store.open_s,
            hooks_s: store.hooks_s,
            searches: beside.searches,
            removed_chunks: beside.removed_chunks,
            sampled_rate: store.engine.hooks().and_then(|hooks| hooks.rate_log2).map_or(0, |rate| 1 << rate),
            steps,
            // What is over all generations is added to it.
            total: Total::default(),
            levels: None,
        })
    }

    /// Lets the clients write, and unneeded chunks be removed beside them if the variant wants that.
    fn write(
        &self,
        clients: Vec<Client>,
        engine: &Arc<Engine>,
        traffic: &(dyn Fn() -> Traffic + Sync),
        beside: &mut Beside,
    ) -> Result<Written> {
        let have_ended = AtomicBool::new(false);
        let stops = || have_ended.load(Ordering::Relaxed) || self.watcher.is_cancelled();
        let search = || -> Result<Beside> {
            let mut done = Beside::default();
            while !stops() {
                match remove_unneeded(engine, &stops) {
                    Err(RunError::Cancelled) => {}
                    removed => done = Beside { searches: done.searches + 1, removed_chunks: done.removed_chunks + removed? },
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
            Ok(done)
        };
        std::thread::scope(|scope| {
            let searching = self.variant.run.prune.then(|| scope.spawn(search));
            let written = write(clients, &self.variant.run, traffic, self.watcher);
            have_ended.store(true, Ordering::Relaxed);
            if let Some(searching) = searching {
                *beside = searching.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            written
        })
    }

    /// Adds or deletes backups by the names of their chunks, all until the store is as it has to be: what was added has
    /// marks, what was deleted is gone. `steps` gets the time of each part.
    fn refer(&self, generation: u32, work: Work, engine: &Arc<Engine>, steps: &mut Vec<Step>) -> Result<Written> {
        const DATA: &str = "data";
        const REFERENCES: &str = "references";
        let naming = Naming::of(self.variant);
        let (size_bytes, clients) = (self.scaled.size_bytes, self.variant.workload.clients);
        let stops = || self.watcher.is_cancelled();
        let begun = Instant::now();
        let mut ended = |what: &str| {
            let before: f64 = steps.iter().map(|(_, seconds)| seconds).sum();
            steps.push((what.to_owned(), begun.elapsed().as_secs_f64() - before));
        };
        let bytes = match work {
            Work::AddData | Work::AddReferences => {
                let what = if work == Work::AddData { DATA } else { REFERENCES };
                let of_client = |client| naming.of_client(what, client, size_bytes / u64::from(clients));
                let all: Vec<_> = (0..clients).map(of_client).collect();
                let bytes = all.iter().map(|of| naming.bytes(of.chunks.end - of.chunks.start)).sum();
                self.step(generation, "stores backups", bytes);
                naming.store_all(engine, &all, all.len(), self.watcher)?;
                ended("backups");
                mark(engine, &stops)?;
                ended("mark");
                bytes
            }
            _ => {
                self.step(generation, "deletes backups", 0);
                let bytes = delete(engine, if work == Work::DeleteReferences { REFERENCES } else { DATA })?;
                ended("records");
                remove_unneeded(engine, &stops)?;
                ended("mark and remove");
                self.watcher.advance(bytes);
                bytes
            }
        };
        let wall_s = begun.elapsed().as_secs_f64();
        Ok(Written { wall_s, bytes, ..Written::default() })
    }

    /// Returns all that was done to the store, at the end of a generation.
    fn total(&self, before: Total, of: &Measured, engine: &Engine, traffic: &Traffic, directory: &Path) -> Total {
        let reads = self.variant.workload.work[of.generation as usize - 1] == Work::Read;
        let of_chunks = traffic.iter().filter(|(name, _)| [CONTAINERS, LEVELS].contains(&name.as_str()));
        let (chunks_read_bytes, chunks_written_bytes) =
            of_chunks.fold((0, 0), |(read, written), (_, of)| (read + of.read_bytes, written + of.written_bytes));
        Total {
            written_bytes: before.written_bytes + if reads { 0 } else { of.written_bytes },
            stored_new_bytes: before.stored_new_bytes + of.stored_new_bytes,
            chunks_read_bytes,
            chunks_written_bytes,
            disk_bytes: measure::store_bytes(directory).saturating_sub(measure::disk_bytes(&directory.join(LOG_DIRECTORY))),
            kept_bytes: engine.unique_bytes(),
        }
    }

    /// Returns how the levels of the store stand. `before_opening` is what they did before the store was opened,
    /// `done_before` what they did up to the end of the last generation. `None`: it has none.
    fn levels(&self, engine: &Engine, before_opening: LevelsWork, done_before: LevelsWork) -> Option<Levels> {
        let level = |of: onefold_storage::LevelFigures| Level {
            tables: of.tables,
            chunks: of.chunks,
            tombstones: of.tombstones,
            raw_bytes: of.raw_bytes,
            stored_bytes: of.stored_bytes,
            capacity_bytes: of.capacity_bytes,
        };
        let levels = engine.levels()?.levels().into_iter().map(level).collect();
        let total_work = before_opening + levels_work(engine);
        Some(Levels {
            ratio: self.scaled.settings.engine.levels_ratio,
            levels,
            live_bytes: engine.stored_bytes(),
            work: total_work - done_before,
            total_work,
        })
    }

    /// Does all overdue work, until the indexes have everything in the log and no compaction is due. Returns how long
    /// that took.
    pub(super) fn settle(&self, engine: &Arc<Engine>) -> Result<f64> {
        let begun = Instant::now();
        let (done, is_done) = mpsc::channel();
        let of_thread = engine.clone();
        // This takes minutes on slow devices, and cancelling must not wait for it.
        let stops = Arc::new(AtomicBool::new(false));
        let is_stopped = stops.clone();
        let thread = std::thread::spawn(move || {
            let go_on = || !is_stopped.load(Ordering::Relaxed);
            let result = of_thread.maintain(true).and_then(|()| of_thread.compact_all(&go_on));
            drop(of_thread);
            let _ = done.send(result);
        });
        loop {
            match is_done.recv_timeout(LOOK_INTERVAL) {
                Ok(result) => break result?,
                Err(mpsc::RecvTimeoutError::Timeout) if self.watcher.is_cancelled() => {
                    stops.store(true, Ordering::Relaxed);
                    return Err(RunError::Cancelled);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
        Ok(seconds)
    }
}

/// What was done beside the clients.
#[derive(Default)]
struct Beside {
    searches: u64,
    removed_chunks: u64,
}

/// Returns what the levels of a store did since it was opened.
fn levels_work(engine: &Engine) -> LevelsWork {
    engine.levels().map_or_else(LevelsWork::default, |levels| {
        let work = levels.work();
        LevelsWork {
            flushed_bytes: work.flushed_bytes,
            merge_read_bytes: work.merge_read_bytes,
            merge_written_bytes: work.merge_written_bytes,
            gets: work.gets,
            page_reads: work.page_reads,
            frame_reads: work.frame_reads,
        }
    })
}

/// Returns the seconds by component since the store was opened.
fn components(engine: &Engine) -> BTreeMap<String, f64> {
    let seconds = |(name, usage): (&str, onefold_ground::profile::Usage)| (name.to_owned(), usage.time_ns as f64 / 1e9);
    engine.profile().report().into_iter().map(seconds).collect()
}

/// Returns the reads and writes between two moments, by part. Those of all its partitions count together.
fn difference(before: &[(String, PartCounters)], after: &[(String, PartCounters)]) -> BTreeMap<String, PartTraffic> {
    let mut parts: BTreeMap<String, PartTraffic> = BTreeMap::new();
    for ((name, after), (_, before)) in after.iter().zip(before) {
        let part = parts.entry(name.clone()).or_default();
        part.reads += after.reads - before.reads;
        part.read_bytes += after.read_bytes - before.read_bytes;
        part.writes += after.writes - before.writes;
        part.written_bytes += after.written_bytes - before.written_bytes;
        part.syncs += after.syncs - before.syncs;
        part.waited_s += (after.waited_ns - before.waited_ns) as f64 / 1e9;
        part.devices += after.devices;
    }
    parts
}
