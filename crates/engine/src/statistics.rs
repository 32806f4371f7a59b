//! What a store holds, and what it costs.

use crate::lifecycle::layout::{ARENA, CONTAINERS, LEVELS};
use crate::lifecycle::reserve::RESERVE;
use crate::liveness::dead::{self, DeadSlots};
use crate::lookup::figures::{self, Figures};
use crate::{Activity, Engine, EngineError, Mode, Moment, Result};
use onefold_ground::wire::{Reader, WireError, put_varint};
use onefold_ground::{Access, Ground, Space};
use onefold_index::ObjectIndex;
use onefold_index::sampled::HooksStatistics;
use onefold_storage::FileFigures;
use std::sync::atomic::Ordering;

/// Figures of the engine. Sizes are bytes.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Statistics {
    /// Chunks that are stored.
    pub chunks: u64,
    /// Containers, open ones included.
    pub containers: u64,
    /// Bytes of all stored chunks before compression.
    pub unique_bytes: u64,
    /// Bytes of their frames after compression.
    pub stored_bytes: u64,
    /// Bytes, before compression, of unneeded chunks that are still in containers.
    pub dead_bytes: u64,
    /// Unneeded chunks that are not removed yet, as far as a few pages of the chunk index show.
    pub candidates: u64,
    /// Whether `candidates` counts all of them.
    pub candidates_are_all: bool,
    /// Chunks in quarantine that are needed: lost until they are written again.
    pub quarantined_chunks: u64,
    /// Their bytes before compression, as far as they are known.
    pub quarantined_bytes: u64,
    /// Groups of containers with a parity file.
    pub parity_groups: u64,
    /// Containers in them.
    pub parity_containers: u64,
    /// Containers that were rebuilt from parity since the store was made.
    pub repaired_containers: u64,
    /// Space reserved for freeing space on a full disk.
    pub reserve_bytes: u64,
    /// Whether the disk is so full that the reserve is in use, and no new data is taken. `None`: the store is open for
    /// reading.
    pub reserve_in_use: Option<bool>,
    /// Disk space of all the store's files, except the reserve. For a store that keeps no data: what they would take.
    pub disk_bytes: u64,
    /// Operations log, from its first needed byte to its last.
    pub log_bytes: u64,
    /// Memory of the chunk index: auxiliary index and filters.
    pub index_memory_bytes: u64,
    /// The part of it that the filters take.
    pub index_filter_bytes: u64,
    /// Limit of the filters' memory.
    pub index_filter_limit_bytes: u64,
    /// The expected share of chunks that are not stored but that the filters let pass. Each costs a read of a page.
    /// Filters of pages that are not known yet let all pass.
    pub index_filter_false_maybes: f64,
    /// Memory of the cached pages of the chunk index.
    pub index_cache_bytes: u64,
    /// Limit of that memory.
    pub index_cache_limit_bytes: u64,
    /// Pages that lookups found in the cache, since the store was opened.
    pub index_cache_hits: u64,
    /// Pages that lookups had to read, since the store was opened.
    pub index_cache_misses: u64,
    /// Entries of the chunk index: in its pages, and in the auxiliary index. An entry that is being changed is in both.
    pub index_entries: u64,
    /// Hooks of a sampled index. A store that is open for reading shows what was noted last.
    pub sampled_hooks: u64,
    /// One of so many fingerprints is in the sample; 0: there is no sample, or containers alone have hooks.
    pub sampled_rate: u64,
    /// Memory of the hooks when it is full.
    pub sampled_index_bytes: u64,
    /// Bytes, before compression, of chunks that were probably stored although they were stored already.
    pub missed_duplicates_estimate: u64,
    /// Time and bytes by component (M0.22) and verdicts of the filters, over all openings.
    pub activity: Activity,
}

/// Most reads, of at most half a MiB of the chunk index each, for the search of unneeded chunks.
const CANDIDATE_RUNS: usize = 64;

impl Engine {
    /// Returns the bytes of all stored chunks before compression, as of the last flush, plus those of open frames.
    pub fn unique_bytes(&self) -> u64 {
        let open = self.storage.open_bytes();
        self.totals.lock().raw_bytes + open
    }

    /// Returns the bytes of all stored chunks after compression, as of the last flush, plus the raw bytes of open
    /// frames.
    pub fn stored_bytes(&self) -> u64 {
        let open = self.storage.open_bytes();
        self.totals.lock().stored_bytes + open
    }

    /// Returns the number of stored chunks, as of the last flush.
    pub fn chunks(&self) -> u64 {
        self.totals.lock().chunks
    }

    /// Returns the figures of the hooks. `None`: there are none, or those of earlier openings are not all here yet.
    pub fn hooks(&self) -> Option<HooksStatistics> {
        self.lookup.sampled().filter(|sampled| sampled.is_filled()).map(|sampled| sampled.figures().hooks)
    }

    /// Returns how many bytes, before compression, are probably stored although they were stored already.
    pub fn missed_duplicates_estimate(&self) -> u64 {
        let figures = self.hook_figures().unwrap_or_default();
        bytes_of(figures.tally.missed(), *self.totals.lock())
    }

    /// Notes that no chunk is stored twice just now: the estimate of what look-ups missed begins again.
    pub fn note_no_duplicates(&self) {
        if let Some(sampled) = self.lookup.sampled() {
            sampled.forget_tally();
        }
    }

    /// Returns the capacity that the store was planned for, if it stores more: fewer duplicates are found than planned.
    pub fn exceeded_capacity(&self) -> Option<u64> {
        self.descriptor.capacity_bytes.filter(|capacity_bytes| self.stored_bytes() > *capacity_bytes)
    }

    /// Returns the bytes, before compression, of unneeded chunks that are still in containers.
    pub fn dead_bytes(&self) -> u64 {
        self.totals.lock().dead_bytes
    }

    /// Returns the bytes read and written since the store was opened, without maintenance.
    pub fn served_bytes(&self) -> u64 {
        self.served_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn served(&self, bytes: usize) {
        self.served_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the space on the device that has the store's chunks.
    pub fn space(&self) -> Result<Space> {
        if let Some(arena) = &self.arena
            && let Some(total_bytes) = arena.device_bytes()?
        {
            let used_bytes = self.totals.lock().chunks.saturating_mul(self.storage.longest_chunk_bytes() as u64);
            return Ok(Space { free_bytes: total_bytes.saturating_sub(used_bytes), total_bytes });
        }
        Ok(self.ground.space()?)
    }

    /// Returns the figures of the hooks: those of now, or, if this opening has none, those that were noted last.
    fn hook_figures(&self) -> Result<Figures> {
        match self.lookup.sampled() {
            Some(sampled) if self.mode == Mode::ReadWrite => Ok(sampled.figures()),
            Some(_) => Ok(Figures::read(self.objects.get(self.objects.own_partition(), figures::KEY)?)),
            None => Ok(Figures::default()),
        }
    }

    /// Returns the current figures.
    pub fn statistics(&self) -> Result<Statistics> {
        let open_bytes = self.storage.open_bytes();
        // Without counts, only a survey tells.
        let counts = self.descriptor.profile.counts();
        let index = self.lookup.index();
        let unused = index.filter(|_| counts).map_or(Ok((0, false)), |index| index.count_unused(CANDIDATE_RUNS));
        let (candidates, candidates_are_all) = unused?;
        let parity = self.containers.as_ref().map_or(Ok(Default::default()), |containers| containers.parity_statistics())?;
        let totals = *self.totals.lock();
        let usage = self.storage.usage(totals.files)?;
        let index = index.map(|index| index.statistics()).unwrap_or_default();
        let is_sampled = self.lookup.sampled().is_some();
        let Figures { hooks, tally } = self.hook_figures()?;
        let reserve_bytes = self.ground.open(RESERVE, Access::Read).and_then(|file| file.len()).unwrap_or(0);
        let (quarantined_chunks, quarantined_bytes) = self.needed_quarantined()?;
        Ok(Statistics {
            quarantined_chunks,
            quarantined_bytes,
            chunks: totals.chunks,
            containers: if self.containers.is_some() { usage.units } else { 0 },
            unique_bytes: totals.raw_bytes + open_bytes,
            stored_bytes: totals.stored_bytes + open_bytes,
            dead_bytes: totals.dead_bytes,
            candidates,
            candidates_are_all,
            parity_groups: parity.groups,
            parity_containers: parity.containers,
            repaired_containers: self.repaired_containers(),
            reserve_bytes,
            reserve_in_use: (self.mode == Mode::ReadWrite).then(|| self.is_reserve_in_use()),
            disk_bytes: usage.disk_bytes + other_bytes(&*self.ground)?.saturating_sub(reserve_bytes),
            log_bytes: self.log.used_bytes(),
            index_memory_bytes: index.auxiliary_bytes + index.filter_bytes,
            index_filter_bytes: index.filter_bytes,
            index_filter_limit_bytes: index.filter_limit_bytes,
            index_filter_false_maybes: f64::from(index.filter_false_maybes_ppm) / 1e6,
            index_cache_bytes: index.page_cache_bytes,
            index_cache_limit_bytes: index.page_cache_limit_bytes,
            index_cache_hits: index.page_cache_hits,
            index_cache_misses: index.page_cache_misses,
            index_entries: index.entries + index.auxiliary_entries,
            sampled_hooks: hooks.hooks,
            sampled_rate: hooks.rate_log2.filter(|_| is_sampled).map_or(0, |rate| 1 << rate),
            sampled_index_bytes: hooks.memory_bytes,
            missed_duplicates_estimate: bytes_of(tally.missed(), totals),
            activity: self.activity(),
        })
    }
}

/// Returns the bytes of so many chunks of the mean length.
fn bytes_of(chunks: u64, totals: Totals) -> u64 {
    (u128::from(chunks) * u128::from(totals.raw_bytes)).checked_div(u128::from(totals.chunks)).unwrap_or_default() as u64
}

/// Sums over all chunks and frames ever committed. They are an object of the object index (key `t`), changed in the
/// batch that commits the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) raw_bytes: u64,
    pub(crate) stored_bytes: u64,
    pub(crate) chunks: u64,
    /// Raw bytes of removed chunks that are still in containers.
    pub(crate) dead_bytes: u64,
    /// The files of sealed containers. `None`: nobody counted them yet; an opening for writing does.
    pub(crate) files: Option<FileFigures>,
}

/// The key of the totals.
pub(crate) const TOTALS_KEY: &[u8] = b"t";

impl Totals {
    /// Returns the change of their object.
    pub(crate) fn change(&self, objects: &ObjectIndex) -> crate::Change {
        (objects.own_partition(), TOTALS_KEY.to_vec(), Some(self.encode()))
    }

    /// Returns the totals without chunks of so many bytes before compression. What these take after it is estimated:
    /// they compress like the others.
    pub(crate) fn without(self, raw_bytes: u64) -> Totals {
        let left = self.raw_bytes.saturating_sub(raw_bytes);
        let stored = u128::from(self.stored_bytes) * u128::from(left) / u128::from(self.raw_bytes.max(1));
        Totals { raw_bytes: left, stored_bytes: stored as u64, ..self }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![if self.files.is_some() { 2 } else { 1 }];
        put_varint(&mut out, self.raw_bytes);
        put_varint(&mut out, self.stored_bytes);
        put_varint(&mut out, self.chunks);
        put_varint(&mut out, self.dead_bytes);
        if let Some(files) = &self.files {
            put_varint(&mut out, files.containers);
            put_varint(&mut out, files.container_bytes);
            put_varint(&mut out, files.forwards);
        }
        out
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Totals> {
        let read = || {
            let mut reader = Reader::new(value);
            let version = reader.u8()?;
            if !(1..=2).contains(&version) {
                return Err(WireError::OutOfRange { what: "version of totals", value: version.into(), offset_bytes: 0 });
            }
            let mut totals = Totals {
                raw_bytes: reader.varint()?,
                stored_bytes: reader.varint()?,
                chunks: reader.varint()?,
                dead_bytes: reader.varint()?,
                files: None,
            };
            if version == 2 {
                let (containers, container_bytes, forwards) = (reader.varint()?, reader.varint()?, reader.varint()?);
                totals.files = Some(FileFigures { containers, container_bytes, forwards });
            }
            reader.end().map(|()| totals)
        };
        read().map_err(|source| EngineError::Wire { what: "totals in the object index".into(), source })
    }
}

impl Moment<'_> {
    /// Returns a sentence if the figures of dead chunks do not match the containers. `None`: they match, or some of it
    /// cannot be read, which is reported elsewhere.
    pub fn wrong_totals(&self) -> Result<Option<String>> {
        const PAGE: usize = 256;
        let Some(totals) = self.get(self.own_partition(), TOTALS_KEY)?.map_or(Some(Totals::default()), |value| Totals::decode(&value).ok())
        else {
            return Ok(None);
        };
        let (mut dead_bytes, mut from) = (0, vec![dead::PREFIX]);
        loop {
            let page = self.range(self.own_partition(), &from, &[dead::PREFIX + 1], PAGE)?;
            for (_, value) in &page {
                let Ok(dead) = DeadSlots::decode(value) else { return Ok(None) };
                dead_bytes += dead.bytes;
            }
            match page.last() {
                Some((last, _)) if page.len() == PAGE => from = [last, &[0][..]].concat(),
                _ => break,
            }
        }
        let of = totals.dead_bytes;
        Ok((of != dead_bytes)
            .then(|| format!("the store's statistics count {of} bytes of unused chunks, its containers have {dead_bytes}")))
    }
}

impl Engine {
    /// Returns a sentence if the figures of container files do not match the files. `None`: they match, or they changed
    /// meanwhile. Looks at all files, so it is for tests.
    pub fn wrong_files(&self) -> Result<Option<String>> {
        // No merge is half done, and no commit.
        let _no_merge = self.reclaiming.alone();
        let counted = || {
            let _no_commit = self.commits.alone();
            self.totals.lock().files
        };
        let before = counted();
        let Some(found) = self.count_files()? else { return Ok(None) };
        Ok(before
            .filter(|before| *before != found && counted() == Some(*before))
            .map(|before| format!("{before:?} counted, {found:?} there")))
    }

    /// Counts the files of containers, if there are containers.
    pub(crate) fn count_files(&self) -> Result<Option<FileFigures>> {
        Ok(self.containers.as_ref().map(|containers| containers.count_files()).transpose()?)
    }
}

/// Returns the sum of the lengths of all files outside of the directory of the chunk store. There are few of them.
fn other_bytes(ground: &dyn Ground) -> Result<u64> {
    let mut sum = 0;
    for entry in ground.list("")? {
        sum += match entry.is_directory {
            true if [CONTAINERS, ARENA, LEVELS].contains(&&*entry.name) => 0,
            true => file_bytes(ground, &entry.name)?,
            false => length(ground, &entry.name),
        };
    }
    Ok(sum)
}

/// Returns the length of a file. It may go meanwhile: a segment of the log, an older generation of pages.
fn length(ground: &dyn Ground, path: &str) -> u64 {
    ground.open(path, Access::Read).and_then(|file| file.len()).unwrap_or(0)
}

/// Returns the sum of the lengths of all files below a directory.
fn file_bytes(ground: &dyn Ground, directory: &str) -> Result<u64> {
    let mut sum = 0;
    for entry in ground.list(directory)? {
        let path = format!("{directory}/{}", entry.name);
        sum += if entry.is_directory { file_bytes(ground, &path)? } else { length(ground, &path) };
    }
    Ok(sum)
}
