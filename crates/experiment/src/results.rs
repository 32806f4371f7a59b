//! The measurements: the file that `onefold bench run` writes and `onefold bench report` reads. Times are seconds and
//! sizes bytes unless the name says otherwise.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::{Add, Sub};

/// The version of the file: the only one that is written or read.
pub const VERSION: u32 = 1;

/// The run of one experiment, with all its variants and repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`VERSION`].
    pub version: u32,
    /// The description of the experiment, from its declaration.
    pub about: About,
    /// The machine of the run.
    pub machine: Machine,
    /// Version of onefold, as in `onefold --version`.
    pub onefold: String,
    /// When it began, seconds since 1970.
    pub began_unix_s: u64,
    /// Duration of the whole run.
    pub took_s: f64,
    /// Bytes of one generation, over all clients.
    pub size_bytes: u64,
    /// The size that the declaration gives: the paper's, where ours can have it.
    pub full_size_bytes: u64,
    /// The variants, in the order of the declaration.
    pub variants: Vec<Variant>,
}

/// The description of an experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// Its id in the list of experiments, such as `E0.1`.
    pub id: String,
    /// Its title: one line.
    pub title: String,
    /// Its purpose and method: paragraphs of plain text.
    pub text: String,
    /// The paper that it repeats.
    pub paper: String,
    /// The paper's figures.
    pub figures: Vec<PaperFigure>,
    /// Expected orders of results.
    pub expectations: Vec<Expectation>,
    /// Why results differ from the paper's, if they do: paragraphs of plain text.
    pub differs: String,
}

/// A quantity to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Throughput in the steady state, MB/s.
    Throughput,
    /// Bytes stored as new, as a percentage of the bytes written.
    NewPercent,
    /// Duplicate bytes that were not stored again, as a percentage of those that there were.
    FoundPercent,
    /// Seconds of background work after the last write.
    SettleTime,
    /// Page reads of the chunk index per second in the steady state, per device.
    IndexReads,
    /// Percentage of the time of the data path in the named component or group of components.
    Share,
    /// Latency of requests in the steady state that one of a hundred exceeds, milliseconds.
    LatencyP99,
    /// Latency of write requests in the steady state that one of a thousand exceeds, milliseconds.
    #[serde(rename = "latency-p99.9")]
    LatencyP999,
    /// Seconds until the store took writes, when it was opened before the generation.
    OpenTime,
    /// Throughput with the background work in it, MB/s: bytes written, by the time until all that they caused is done.
    Sustained,
    /// All that was written up to the end of this generation, by what the store takes on disk without its log and its
    /// reserve.
    Ratio,
    /// Bytes written in this generation, by those stored as new.
    VersionRatio,
    /// Bytes written to containers or levels since the store was made, by the bytes stored as new.
    WriteAmplification,
    /// What the store takes on disk without its log and its reserve, by the bytes of its chunks before compression.
    SpaceAmplification,
    /// Pages of keys and frames that were read from levels in this generation, by the chunks that were asked for.
    ReadsPerGet,
}

/// One figure of a paper.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperFigure {
    /// Our variant to compare it with. Another name means a system that the paper compares itself with.
    pub variant: String,
    /// The generation, from 1.
    pub generation: u32,
    /// Its quantity.
    pub quantity: Quantity,
    /// The figure.
    pub value: f64,
    /// Half of its 95 % confidence interval, if the paper gives it.
    pub plus_minus: Option<f64>,
}

/// One side of an expectation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Side {
    /// The result of the variant with this name.
    Variant(String),
    /// A figure: the other side has a bound.
    Figure(f64),
}

/// An expected order: the first side is at least `factor` times the second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// The quantity to compare.
    pub quantity: Quantity,
    /// The component, for [`Quantity::Share`].
    pub component: Option<String>,
    /// The generation of both, or of the side that has more, from 1.
    pub generation: u32,
    /// The side that has more.
    pub more: Side,
    /// The side that has less.
    pub less: Side,
    /// The component of the variant that has less, if it differs from `component`.
    #[serde(default)]
    pub less_component: Option<String>,
    /// The generation of the side that has less, if it differs from `generation`.
    #[serde(default)]
    pub less_generation: Option<u32>,
    /// The smallest ratio; 1 if absent.
    pub factor: Option<f64>,
    /// Whether the order is from the paper: then the report says `as in the paper`.
    pub of_paper: bool,
    /// Whether even the smallest run shows it: the smoke test asserts it.
    pub quick: bool,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name, from the system.
    pub processor: String,
    /// The number of processors.
    pub processors: usize,
    /// Its memory, bytes.
    pub memory_bytes: u64,
    /// The kernel.
    pub system: String,
    /// The file system of the store.
    pub file_system: String,
}

/// The results of one variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// The way to the store: `in-process`, `nbd` or `iscsi`.
    pub face: String,
    /// Number of concurrent clients.
    pub clients: u32,
    /// The parts of the store on modelled devices: a line for each part. Empty: nothing was modelled.
    pub modelled: BTreeMap<String, String>,
    /// Whether the bytes of chunks were discarded.
    pub discards_data: bool,
    /// All settings, as lines of TOML: the declaration with the changes of this variant.
    pub settings: String,
    /// For each repetition, the measurements of each generation, in order.
    pub repetitions: Vec<Vec<Measured>>,
    /// How the store was filled before the first generation, for each repetition. Empty: it began empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fills: Vec<Filled>,
    /// Why it ended early. Earlier measurements remain valid.
    pub failure: Option<String>,
}

/// A step of some work, and the seconds that it took.
pub type Step = (String, f64);

/// A store that was filled with names instead of data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Filled {
    /// Its chunks, without those of metadata.
    pub chunks: u64,
    /// Their bytes, which are not there.
    pub logical_bytes: u64,
    /// Bytes of recipes and directories.
    pub metadata_bytes: u64,
    /// Hooks in memory.
    pub hooks: u64,
    /// One of so many fingerprints has a hook; 0: there is no sample.
    pub sampled_rate: u64,
    /// What the store's directories take on disk.
    pub directories: BTreeMap<String, Taken>,
    /// Peak resident memory.
    pub peak_memory_bytes: u64,
    /// Its steps, in order.
    pub steps: Vec<Step>,
}

/// What files take on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Number of files.
    pub files: u64,
    /// Their disk space, bytes.
    pub bytes: u64,
}

/// The measurements of one generation in one repetition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The generation, from 1.
    pub generation: u32,
    /// Bytes written by all clients.
    pub written_bytes: u64,
    /// Time from the first write to the end of the last flush.
    pub wall_s: f64,
    /// Bytes written in the steady state: from the moment when all clients write until the first one ends.
    pub steady_bytes: u64,
    /// Duration of the steady state.
    pub steady_s: f64,
    /// Background work after the last flush, until the log is replayed.
    pub settle_s: f64,
    /// Processor time of all threads, from the first write to the end of the last flush. It includes the generation of
    /// the data.
    pub cpu_s: f64,
    /// Processor time of the data generation alone.
    pub source_cpu_s: f64,
    /// Peak resident memory.
    pub peak_memory_bytes: u64,
    /// Bytes that an ideal deduplication would store.
    pub present_new_bytes: u64,
    /// Bytes that were stored as new.
    pub stored_new_bytes: u64,
    /// Growth of the store's files on disk, without its reserve.
    pub disk_bytes: u64,
    /// Wall time by component of the data path, seconds summed over threads.
    pub components_s: BTreeMap<String, f64>,
    /// Reads and writes by part of the store: `chunk-index`, `block-index`, `containers`, `log`. They include
    /// background work after the last flush.
    pub parts: BTreeMap<String, PartTraffic>,
    /// Reads and writes by part, in the steady state only.
    pub steady_parts: BTreeMap<String, PartTraffic>,
    /// Latency of requests in the steady state, milliseconds.
    pub latency_ms: Latency,
    /// MB/s of all clients, per time span of `span_s` from the first write on.
    pub course_mb_s: Vec<f64>,
    /// Length of a span in `course_mb_s`.
    pub span_s: f64,
    /// Time until the store took writes, when it was opened before. 0: it was open already, or new.
    #[serde(default)]
    pub open_s: f64,
    /// Time after that until all its hooks were in memory.
    #[serde(default)]
    pub hooks_s: f64,
    /// Searches for unneeded chunks that ended beside the clients.
    #[serde(default)]
    pub searches: u64,
    /// Chunks that these removed.
    #[serde(default)]
    pub removed_chunks: u64,
    /// One of so many fingerprints had a hook at the end; 0: there is no sample.
    #[serde(default)]
    pub sampled_rate: u64,
    /// The steps of references added or deleted. Empty: data was written.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// All that was done since the store was made, at the end of this generation.
    #[serde(default)]
    pub total: Total,
    /// How levels stood then. `None`: the store has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub levels: Option<Levels>,
}

/// All that was done to a store since it was made, with the background work that it caused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Total {
    /// Bytes that clients wrote.
    pub written_bytes: u64,
    /// Bytes that were stored as new.
    pub stored_new_bytes: u64,
    /// Bytes read from containers or levels.
    pub chunks_read_bytes: u64,
    /// Bytes written to containers or levels.
    pub chunks_written_bytes: u64,
    /// What the store takes on disk, without its log and its reserve.
    pub disk_bytes: u64,
    /// The bytes of its chunks before compression.
    pub kept_bytes: u64,
}

/// How the levels of a store stand, all partitions together (LevelStore, M2.9).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Levels {
    /// By how much a level is larger than the one before.
    pub ratio: u32,
    /// From the youngest to the oldest.
    pub levels: Vec<Level>,
    /// What the live chunks took when their memtables became tables, with their keys; removed ones are estimated. 0: it
    /// was not measured.
    #[serde(default)]
    pub live_bytes: u64,
    /// What was done in this generation. Closing and opening the store before it, and what that causes, are in it.
    #[serde(default)]
    pub work: LevelsWork,
    /// The same since the store was made.
    #[serde(default)]
    pub total_work: LevelsWork,
}

impl Levels {
    /// Returns the write amplification: bytes of tables that memtables and compactions became since the store was
    /// made, by those of memtables alone. `None`: it was not measured.
    pub fn write_amplification(&self) -> Option<f64> {
        let LevelsWork { flushed_bytes, merge_written_bytes, .. } = self.total_work;
        quotient(flushed_bytes + merge_written_bytes, flushed_bytes)
    }

    /// Returns the space amplification: bytes of the tables on disk, by what live chunks took when their memtables
    /// became tables. `None`: it was not measured.
    pub fn space_amplification(&self) -> Option<f64> {
        quotient(self.levels.iter().map(|level| level.stored_bytes).sum(), self.live_bytes)
    }
}

/// What was done to levels. Bytes are those of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelsWork {
    /// Bytes of the tables that memtables became.
    pub flushed_bytes: u64,
    /// Bytes that compactions read.
    pub merge_read_bytes: u64,
    /// Bytes of the tables that compactions wrote.
    pub merge_written_bytes: u64,
    /// Chunks that were asked for.
    pub gets: u64,
    /// Pages of keys that were read for them.
    pub page_reads: u64,
    /// Frames that were read for them.
    pub frame_reads: u64,
}

impl LevelsWork {
    /// Returns how much was read for each chunk that was asked for, in pages of keys and frames. `None`: none was.
    pub fn reads_per_get(&self) -> Option<f64> {
        quotient(self.page_reads + self.frame_reads, self.gets)
    }

    fn with(self, other: LevelsWork, both: fn(u64, u64) -> u64) -> LevelsWork {
        LevelsWork {
            flushed_bytes: both(self.flushed_bytes, other.flushed_bytes),
            merge_read_bytes: both(self.merge_read_bytes, other.merge_read_bytes),
            merge_written_bytes: both(self.merge_written_bytes, other.merge_written_bytes),
            gets: both(self.gets, other.gets),
            page_reads: both(self.page_reads, other.page_reads),
            frame_reads: both(self.frame_reads, other.frame_reads),
        }
    }
}

impl Add for LevelsWork {
    type Output = LevelsWork;

    fn add(self, other: LevelsWork) -> LevelsWork {
        self.with(other, u64::saturating_add)
    }
}

impl Sub for LevelsWork {
    type Output = LevelsWork;

    fn sub(self, other: LevelsWork) -> LevelsWork {
        self.with(other, u64::saturating_sub)
    }
}

/// One level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// Its tables.
    pub tables: u64,
    /// Chunks in them.
    pub chunks: u64,
    /// Marks of removed chunks in them.
    pub tombstones: u64,
    /// Bytes of the chunks before compression.
    pub raw_bytes: u64,
    /// Bytes of the files.
    pub stored_bytes: u64,
    /// Bytes before compression from which it is compacted.
    pub capacity_bytes: u64,
}

/// Reads and writes of one part of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartTraffic {
    /// Reads.
    pub reads: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of the writes.
    pub written_bytes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Waiting time caused by modelled devices, summed over threads.
    pub waited_s: f64,
    /// Number of devices that hold the part.
    pub devices: u32,
}

/// Percentiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Latency {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub greatest: f64,
}

impl Measured {
    /// Returns the throughput in the steady state, MB/s; without a steady state, over the whole run.
    pub fn throughput_mb_s(&self) -> f64 {
        let (bytes, seconds) = if self.steady_s > 0.0 { (self.steady_bytes, self.steady_s) } else { (self.written_bytes, self.wall_s) };
        bytes as f64 / 1e6 / seconds.max(1e-9)
    }

    /// Returns the figure of a quantity. `component` is only for [`Quantity::Share`]. `None`: it was not measured.
    pub fn figure(&self, quantity: Quantity, component: Option<&str>) -> Option<f64> {
        match quantity {
            Quantity::Throughput => Some(self.throughput_mb_s()),
            Quantity::NewPercent => (self.written_bytes > 0).then(|| 100.0 * self.stored_new_bytes as f64 / self.written_bytes as f64),
            Quantity::FoundPercent => {
                let there = self.written_bytes.saturating_sub(self.present_new_bytes);
                let found = self.written_bytes.saturating_sub(self.stored_new_bytes);
                (there > 0).then(|| 100.0 * found as f64 / there as f64)
            }
            Quantity::SettleTime => Some(self.settle_s),
            Quantity::LatencyP99 => (self.latency_ms.greatest > 0.0).then_some(self.latency_ms.p99),
            Quantity::LatencyP999 => (self.latency_ms.greatest > 0.0).then_some(self.latency_ms.p999),
            Quantity::OpenTime => (self.open_s > 0.0).then_some(self.open_s),
            Quantity::IndexReads => {
                let part = self.steady_parts.get("chunk-index")?;
                (self.steady_s > 0.0).then(|| part.reads as f64 / self.steady_s / f64::from(part.devices.max(1)))
            }
            Quantity::Share => {
                let sum: f64 = self.components_s.values().sum();
                let wanted = component?;
                let of: f64 =
                    self.components_s.iter().filter(|(name, _)| group(name) == wanted || *name == wanted).map(|(_, time)| time).sum();
                (sum > 0.0).then(|| 100.0 * of / sum)
            }
            Quantity::Sustained => (self.wall_s > 0.0).then(|| self.written_bytes as f64 / 1e6 / (self.wall_s + self.settle_s)),
            Quantity::Ratio => quotient(self.total.written_bytes, self.total.disk_bytes),
            Quantity::VersionRatio => quotient(self.written_bytes, self.stored_new_bytes),
            Quantity::WriteAmplification => quotient(self.total.chunks_written_bytes, self.total.stored_new_bytes),
            Quantity::SpaceAmplification => quotient(self.total.disk_bytes, self.total.kept_bytes),
            Quantity::ReadsPerGet => self.levels.as_ref()?.work.reads_per_get(),
        }
    }
}

/// Returns a quotient. `None`: the divisor was not measured.
fn quotient(of: u64, by: u64) -> Option<f64> {
    (by > 0).then(|| of as f64 / by as f64)
}

/// Returns the component of the paper's figure 4.4 to which one of ours belongs.
pub fn group(component: &str) -> &'static str {
    match component {
        "source" => "source",
        "chunking" | "prediction" => "chunking",
        "fingerprint" => "fingerprint",
        "filter_chunk_index" | "chunk_index" => "chunk-index",
        "filter_block_index" | "object_index" => "block-index",
        "storage_write" | "storage_read" | "compress" | "decompress" | "filter_container_cache" | "filter_byte_compare" => "storage",
        "log" => "log",
        "lock" | "reservation" => "lock",
        _ => "other",
    }
}

/// The groups that [`group`] returns, in the order of the data path.
pub const GROUPS: [&str; 9] = ["source", "chunking", "fingerprint", "chunk-index", "block-index", "storage", "log", "lock", "other"];

impl Variant {
    /// Returns the figure of each repetition that has one.
    pub fn figures(&self, generation: u32, quantity: Quantity, component: Option<&str>) -> Vec<f64> {
        let of = |repetition: &Vec<Measured>| repetition.iter().find(|measured| measured.generation == generation).cloned();
        self.repetitions.iter().filter_map(of).filter_map(|measured| measured.figure(quantity, component)).collect()
    }
}

impl Results {
    /// Returns the variant with a name.
    pub fn variant(&self, name: &str) -> Option<&Variant> {
        self.variants.iter().find(|variant| variant.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_steady_state() {
        let latency_ms = Latency { p99: 7.0, p999: 9.0, greatest: 10.0, ..Latency::default() };
        let measured = Measured { latency_ms, ..Measured::default() };
        assert_eq!([Quantity::LatencyP99, Quantity::LatencyP999].map(|quantity| measured.figure(quantity, None)), [Some(7.0), Some(9.0)]);
        assert_eq!(Measured::default().figure(Quantity::LatencyP99, None), None);
        let part = PartTraffic { reads: 900, devices: 3, ..PartTraffic::default() };
        let measured = Measured {
            written_bytes: 400_000_000,
            wall_s: 10.0,
            steady_bytes: 300_000_000,
            steady_s: 2.0,
            stored_new_bytes: 100_000_000,
            components_s: [("filter_chunk_index".into(), 3.0), ("log".into(), 1.0)].into(),
            steady_parts: [("chunk-index".into(), part)].into(),
            ..Measured::default()
        };
        assert_eq!(measured.throughput_mb_s(), 150.0);
        assert_eq!(measured.figure(Quantity::NewPercent, None), Some(25.0));
        assert_eq!(measured.figure(Quantity::IndexReads, None), Some(150.0));
        assert_eq!(measured.figure(Quantity::Share, Some("chunk-index")), Some(75.0));
        assert_eq!(Measured { wall_s: 4.0, written_bytes: 8_000_000, ..Measured::default() }.throughput_mb_s(), 2.0);
    }

    #[test]
    fn m2_9_amplifications_follow_from_the_work_of_levels() {
        let level = |stored_bytes| Level { stored_bytes, ..Level::default() };
        let total_work = LevelsWork { flushed_bytes: 100, merge_written_bytes: 650, merge_read_bytes: 700, ..LevelsWork::default() };
        let work = LevelsWork { gets: 200, page_reads: 10, frame_reads: 40, ..LevelsWork::default() };
        let levels = Levels { levels: vec![level(30), level(90)], live_bytes: 100, work, total_work, ..Levels::default() };
        assert_eq!((levels.write_amplification(), levels.space_amplification()), (Some(7.5), Some(1.2)));
        let measured = Measured { levels: Some(levels), ..Measured::default() };
        assert_eq!(measured.figure(Quantity::ReadsPerGet, None), Some(0.25));
        assert_eq!((total_work + work) - total_work, work);
    }

    #[test]
    fn levels_of_files_without_their_work_are_read() {
        let levels: Levels = serde_json::from_str(r#"{"ratio": 10, "levels": []}"#).expect("what is missing has a default");
        assert_eq!((levels.write_amplification(), levels.space_amplification(), levels.work.reads_per_get()), (None, None, None));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let measured = Measured { generation: 1, wall_s: 0.1 + 0.2, ..Measured::default() };
        let text = serde_json::to_string(&measured).expect("it has no keys but texts");
        assert_eq!(serde_json::from_str::<Measured>(&text).expect("it was just written"), measured);
    }
}
