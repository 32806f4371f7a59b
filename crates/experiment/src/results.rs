//! What was measured: the file that `onefold bench run` writes and `onefold bench report` reads. Times are seconds and sizes bytes unless the name says otherwise.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the file that is written, and the only one that is read.
pub const VERSION: u32 = 1;

/// One experiment, run once with all its variants and repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`VERSION`].
    pub version: u32,
    /// What the experiment is, from its declaration.
    pub about: About,
    /// On what it ran.
    pub machine: Machine,
    /// Version of onefold, as `onefold --version` says.
    pub onefold: String,
    /// When it began, seconds since 1970.
    pub began_unix_s: u64,
    /// How long all of it took.
    pub took_s: f64,
    /// Bytes of one generation, all clients together.
    pub size_bytes: u64,
    /// The size that the paper used.
    pub full_size_bytes: u64,
    /// One for each variant, in the order of the declaration.
    pub variants: Vec<Variant>,
}

/// What the experiment is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// Its id in the list of experiments, as `E0.1`.
    pub id: String,
    /// A line.
    pub title: String,
    /// What it shows and how, paragraphs of plain text.
    pub text: String,
    /// The paper.
    pub paper: String,
    /// The paper's figures.
    pub figures: Vec<PaperFigure>,
    /// Which orders of results are expected.
    pub expectations: Vec<Expectation>,
    /// Why a result differs from the paper's, where it does: paragraphs of plain text.
    pub differs: String,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Throughput in the steady state, MB/s.
    Throughput,
    /// Bytes stored as new, of a hundred written.
    NewPercent,
    /// Seconds of background work after the last write.
    SettleTime,
    /// Page reads of the chunk index per second in the steady state, of each device.
    IndexReads,
    /// Percent of the time of the data path in the component or group of components named with it.
    Share,
}

/// One figure of a paper.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperFigure {
    /// The variant of ours that stands beside it; another name stands alone, as a system that the paper compares itself with.
    pub variant: String,
    /// Which generation, from 1.
    pub generation: u32,
    /// What it is a figure of.
    pub quantity: Quantity,
    /// The figure.
    pub value: f64,
    /// Half of its interval of 95 % confidence, where the paper says it.
    pub plus_minus: Option<f64>,
}

/// An order of two results: the first is at least `factor` times the second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// What is compared.
    pub quantity: Quantity,
    /// The component, for [`Quantity::Share`].
    pub component: Option<String>,
    /// The generation of both, from 1.
    pub generation: u32,
    /// The variant that has more.
    pub more: String,
    /// The variant that has less.
    pub less: String,
    /// The component of the variant that has less, where it is another one than `component`.
    #[serde(default)]
    pub less_component: Option<String>,
    /// At least so many times; without it 1.
    pub factor: Option<f64>,
    /// Whether the paper has this order: then the report says `as in the paper`.
    pub of_paper: bool,
    /// Whether the smallest run can show it, too: what the smoke test asserts.
    pub quick: bool,
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor, as the system calls it.
    pub processor: String,
    /// How many of them there are.
    pub processors: usize,
    /// Its memory.
    pub memory_bytes: u64,
    /// The kernel.
    pub system: String,
    /// The file system that the store was on.
    pub file_system: String,
}

/// One variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// How the store was reached: `in-process`, `nbd` or `iscsi`.
    pub face: String,
    /// Clients that write at the same time.
    pub clients: u32,
    /// What parts of the store were on modelled devices, by part: a line for each. Nothing modelled: empty.
    pub modelled: BTreeMap<String, String>,
    /// Whether bytes of chunks were thrown away.
    pub discards_data: bool,
    /// Everything that was set, as lines of TOML: the declaration with what this variant changes.
    pub settings: String,
    /// For each repetition, what each generation took, in order.
    pub repetitions: Vec<Vec<Measured>>,
    /// Why it ended early; what was measured before stands.
    pub failure: Option<String>,
}

/// One generation, written once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The generation, from 1.
    pub generation: u32,
    /// Bytes written by all clients.
    pub written_bytes: u64,
    /// From the first write to the end of the last flush.
    pub wall_s: f64,
    /// Bytes written in the steady state: from the moment when all clients write to the first one's end.
    pub steady_bytes: u64,
    /// How long that was.
    pub steady_s: f64,
    /// Background work after the last flush: until the log is replayed.
    pub settle_s: f64,
    /// Time of processors, all threads, from the first write to the end of the last flush; the making of the data included.
    pub cpu_s: f64,
    /// Time of processors for the making of the data alone.
    pub source_cpu_s: f64,
    /// Greatest resident memory.
    pub peak_memory_bytes: u64,
    /// Bytes that an ideal deduplication would store.
    pub present_new_bytes: u64,
    /// Bytes that were stored as new.
    pub stored_new_bytes: u64,
    /// By how much the files of the store grew on disk.
    pub disk_bytes: u64,
    /// Wall time by component of the data path, seconds summed over threads.
    pub components_s: BTreeMap<String, f64>,
    /// What was read and written, background work after the last flush included, by part of the store: `chunk-index`, `block-index`, `containers`, `log`.
    pub parts: BTreeMap<String, PartTraffic>,
    /// The same, in the steady state only.
    pub steady_parts: BTreeMap<String, PartTraffic>,
    /// Latency of requests in the steady state, milliseconds.
    pub latency_ms: Latency,
    /// MB/s of all clients, by spans of time of `span_s` from the first write on.
    pub course_mb_s: Vec<f64>,
    /// See `course_mb_s`.
    pub span_s: f64,
}

/// What was read and written of one part of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartTraffic {
    /// Reads.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Time that modelled devices made callers wait, summed over threads.
    pub waited_s: f64,
    /// Devices that it is spread over.
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
    /// Throughput in the steady state, MB/s; of a run that had none, over all of it.
    pub fn throughput_mb_s(&self) -> f64 {
        let (bytes, seconds) = if self.steady_s > 0.0 { (self.steady_bytes, self.steady_s) } else { (self.written_bytes, self.wall_s) };
        bytes as f64 / 1e6 / seconds.max(1e-9)
    }

    /// The figure of a quantity; `component` only for [`Quantity::Share`]. `None`: it was not measured.
    pub fn figure(&self, quantity: Quantity, component: Option<&str>) -> Option<f64> {
        match quantity {
            Quantity::Throughput => Some(self.throughput_mb_s()),
            Quantity::NewPercent => (self.written_bytes > 0).then(|| 100.0 * self.stored_new_bytes as f64 / self.written_bytes as f64),
            Quantity::SettleTime => Some(self.settle_s),
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
        }
    }
}

/// The component of the paper's figure 4.4 that one of ours belongs to.
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

/// The parts that [`group`] names, in the order of the data path.
pub const GROUPS: [&str; 9] = ["source", "chunking", "fingerprint", "chunk-index", "block-index", "storage", "log", "lock", "other"];

impl Variant {
    /// The figure of each repetition that has one.
    pub fn figures(&self, generation: u32, quantity: Quantity, component: Option<&str>) -> Vec<f64> {
        let of = |repetition: &Vec<Measured>| repetition.iter().find(|measured| measured.generation == generation).cloned();
        self.repetitions.iter().filter_map(of).filter_map(|measured| measured.figure(quantity, component)).collect()
    }
}

impl Results {
    /// The variant with a name.
    pub fn variant(&self, name: &str) -> Option<&Variant> {
        self.variants.iter().find(|variant| variant.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_steady_state() {
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
    fn what_is_written_is_read_again() {
        let measured = Measured { generation: 1, wall_s: 0.1 + 0.2, ..Measured::default() };
        let text = serde_json::to_string(&measured).expect("it has no keys but texts");
        assert_eq!(serde_json::from_str::<Measured>(&text).expect("it was just written"), measured);
    }
}
