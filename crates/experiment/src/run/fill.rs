//! Filling a store before its first generation: as if it had been used for years, without the data (M3.8, E3.2).

use super::clients::LOOK_INTERVAL;
use super::named::{Named, Naming, mark, remove_unneeded};
use super::store::{Opened, Repetition};
use super::{Result, measure};
use crate::results::Filled;
use crate::spec::FillSpec;
use onefold_engine::Engine;
use onefold_ground::Ground;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

impl Repetition<'_> {
    /// Stores the backups, and drops the store as if it had been killed. Opens it again, marks what is needed, looks at
    /// all of it once, so that later searches follow what changes, and closes it.
    pub(super) fn fill(&self, fill: FillSpec, ground: &Arc<dyn Ground>, directory: &Path) -> Result<Filled> {
        let naming = Naming::of(self.variant);
        let chunks = self.scaled.fill_chunks;
        let part = |group: u64| chunks * group / fill.groups;
        let named = |group: u64| Named { name: format!("fill-{group}"), chunks: part(group)..part(group + 1) };
        let all: Vec<Named> = (0..fill.groups).map(named).collect();
        let stops = || self.watcher.is_cancelled();
        measure::forget_peak_memory();

        let Opened { engine, .. } = self.open_engine(ground)?;
        self.watcher.step(&format!("{}: fills the store", self.title), naming.bytes(chunks));
        let mut begun = Instant::now();
        let mut steps = Vec::new();
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        let metadata_bytes = naming.store_all(&engine, &all, threads, self.watcher)?;
        steps.push(("fill".to_owned(), begun.elapsed().as_secs_f64()));
        kill(engine);

        self.watcher.step(&format!("{}: marks what is needed", self.title), 0);
        let Opened { engine, open_s, hooks_s } = self.open_engine(ground)?;
        steps.extend([("open after a kill".to_owned(), open_s), ("its hooks".to_owned(), hooks_s)]);
        let mut step = |what: &str, work: &dyn Fn() -> Result<()>| -> Result<()> {
            begun = Instant::now();
            work()?;
            steps.push((what.to_owned(), begun.elapsed().as_secs_f64()));
            Ok(())
        };
        step("mark", &|| mark(&engine, &stops))?;
        step("look at all containers", &|| remove_unneeded(&engine, &stops).map(drop))?;
        step("settle", &|| self.settle(&engine).map(drop))?;
        let hooks = engine.hooks().unwrap_or_default();
        step("close", &|| Ok(engine.close()?))?;
        drop(engine);

        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.path().is_dir());
        Ok(Filled {
            chunks,
            logical_bytes: naming.bytes(chunks),
            metadata_bytes,
            hooks: hooks.hooks,
            sampled_rate: hooks.rate_log2.map_or(0, |rate| 1 << rate),
            directories: directories
                .map(|entry| (entry.file_name().to_string_lossy().into_owned(), measure::taken(&entry.path())))
                .collect(),
            peak_memory_bytes: measure::peak_memory_bytes(),
            steps,
        })
    }
}

/// Drops the store without closing it, as when its process is killed.
fn kill(mut engine: Arc<Engine>) {
    // Threads of the store hold it while they work.
    while let Err(held) = Arc::try_unwrap(engine).map(drop) {
        engine = held;
        std::thread::sleep(LOOK_INTERVAL);
    }
}
