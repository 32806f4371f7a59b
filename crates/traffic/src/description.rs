//! What a stream consists of, computed without generating its bytes.

use crate::state::State;
use crate::stream::Run;
use crate::workload::{TrafficError, Workload};
use onefold_ground::histogram::Histogram;
use std::collections::HashMap;

/// What a stream consists of. `new`, `within` and `earlier` bytes add up to its length.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// Length of the stream in bytes.
    pub length_bytes: u64,
    /// The states that occur in the stream.
    pub states: Vec<StateDescription>,
    /// Bytes that appear neither in an earlier generation of the same client nor earlier in this generation. Ideal
    /// deduplication that knows all earlier generations stores this many bytes.
    pub new_bytes: u64,
    /// Bytes that repeat bytes from earlier in this generation.
    pub within_bytes: u64,
    /// Bytes from the previous generation.
    pub earlier_bytes: u64,
    /// Bytes of the previous generation that are not in this one.
    pub left_out_bytes: u64,
}

/// The runs of a state.
#[derive(Clone, Debug, PartialEq)]
pub struct StateDescription {
    /// The state.
    pub state: State,
    /// Number of runs.
    pub runs: u64,
    /// Their total length in bytes.
    pub bytes: u64,
    /// Their lengths.
    pub lengths: LengthQuantiles,
}

/// Lengths of runs in bytes. Quantiles are at most 1 % too low. Minimum, mean and maximum are exact.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct LengthQuantiles {
    pub minimum: u64,
    pub p25: u64,
    pub median: u64,
    pub p75: u64,
    pub p90: u64,
    pub p99: u64,
    pub maximum: u64,
    pub mean: f64,
}

impl LengthQuantiles {
    fn of(lengths: &Histogram) -> LengthQuantiles {
        LengthQuantiles {
            minimum: lengths.minimum(),
            p25: lengths.quantile(0.25),
            median: lengths.quantile(0.5),
            p75: lengths.quantile(0.75),
            p90: lengths.quantile(0.9),
            p99: lengths.quantile(0.99),
            maximum: lengths.maximum(),
            mean: lengths.mean(),
        }
    }
}

impl Workload {
    /// Returns what the stream consists of. Errors: as for [`Workload::stream`].
    pub fn describe(&self) -> Result<Description, TrafficError> {
        self.validate()?;
        Ok(Description::new(self))
    }
}

impl Description {
    fn new(workload: &Workload) -> Description {
        let mut histograms = State::ALL.map(|state| (state, Histogram::new()));
        let mut pool = workload.pool(workload.generation);
        // How much of each buffer has appeared so far. Buffers are always read from the beginning.
        let mut seen: HashMap<u64, u64> = HashMap::new();
        let mut new_bytes = 0;
        for Run { state, length, .. } in crate::stream::Runs::new(workload.script(workload.generation)) {
            if let Some((_, histogram)) = histograms.iter_mut().find(|(of, _)| *of == state) {
                histogram.add(length);
            }
            match state {
                State::Unique => new_bytes += length,
                State::Temporal => {}
                State::Internal => {
                    pool.begin_run();
                    let mut left = length;
                    while left > 0 {
                        let piece = pool.next(left);
                        left -= piece.length;
                        let end = piece.offset + piece.length;
                        let known = seen.entry(piece.buffer).or_default();
                        new_bytes += end.saturating_sub(*known);
                        *known = end.max(*known);
                    }
                }
            }
        }
        let bytes =
            |wanted: State| histograms.iter().filter(|(state, _)| *state == wanted).map(|(_, histogram)| histogram.sum()).sum::<u64>();
        let length_bytes = State::ALL.into_iter().map(bytes).sum();
        let earlier_bytes = bytes(State::Temporal);
        let before_bytes = match workload.generation {
            generation if generation > 1 && workload.set.copies() => workload.length_of(generation - 1),
            _ => 0,
        };
        let states = histograms.iter().filter(|(_, histogram)| histogram.count() > 0).map(|(state, histogram)| StateDescription {
            state: *state,
            runs: histogram.count(),
            bytes: histogram.sum(),
            lengths: LengthQuantiles::of(histogram),
        });
        Description {
            length_bytes,
            states: states.collect(),
            new_bytes,
            within_bytes: length_bytes - earlier_bytes - new_bytes,
            earlier_bytes,
            left_out_bytes: before_bytes - earlier_bytes,
        }
    }

    /// Returns the share of the stream in this state, from 0 to 1.
    pub fn share(&self, state: State) -> f64 {
        let bytes: u64 = self.states.iter().filter(|one| one.state == state).map(|one| one.bytes).sum();
        bytes as f64 / self.length_bytes as f64
    }
}
