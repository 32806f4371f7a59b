//! What hooks hold, and an estimate of the duplicates that they miss.
//!
//! # The estimate
//! Every duplicate whose fingerprint is in the sample is found. Whether a fingerprint is in the sample is chance. So
//! each duplicate that was found in a sample of one in T stands for T duplicates, and what was found less than that
//! was missed. The sum over all times is right however T changed.

use crate::{Change, EngineError, Result};
use onefold_ground::wire::{Reader, put_varint};
use onefold_index::ObjectIndex;
use onefold_index::sampled::HooksStatistics;

/// The key of the figures.
pub(crate) const KEY: &[u8] = b"h";
const VERSION: u8 = 1;

/// Chunks of data that writers looked for and that are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Those that were found.
    pub(crate) known: u64,
    /// Those that there probably were.
    pub(crate) expected: u64,
}

impl Tally {
    /// Adds chunks that were found, and how many of them are in the sample. `rate_log2`: one of 2 to this power is.
    /// `None`: there is no sample, and nothing can be said.
    pub(crate) fn add(&mut self, known: u64, sampled: u64, rate_log2: Option<u32>) {
        self.known += known;
        self.expected += rate_log2.map_or(known, |rate| sampled << rate);
    }

    /// Returns how many duplicates were missed, probably.
    pub(crate) fn missed(&self) -> u64 {
        self.expected.saturating_sub(self.known)
    }
}

/// What the store keeps of its hooks for those who open it without them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) hooks: HooksStatistics,
    pub(crate) tally: Tally,
}

impl Figures {
    pub(crate) fn change(&self, objects: &ObjectIndex) -> Change {
        (objects.own_partition(), KEY.to_vec(), Some(self.encode()))
    }

    fn encode(&self) -> Vec<u8> {
        let Figures { hooks, tally } = self;
        let mut out = vec![VERSION];
        let rate = hooks.rate_log2.map_or(0, |rate| u64::from(rate) + 1);
        for value in [hooks.hooks, hooks.forced, rate, hooks.memory_bytes, tally.known, tally.expected] {
            put_varint(&mut out, value);
        }
        out
    }

    /// Returns the figures that an object has. They mean nothing to the data: what cannot be read counts as nothing.
    pub(crate) fn read(value: Option<Vec<u8>>) -> Figures {
        let read = value.map_or(Ok(Figures::default()), |value| Figures::decode(&value));
        read.unwrap_or_else(|error| {
            tracing::warn!(%error, "the figures of the hooks begin again");
            Figures::default()
        })
    }

    fn decode(value: &[u8]) -> Result<Figures> {
        let read = || {
            let mut reader = Reader::new(value);
            let _version = reader.u8()?;
            let (hooks, forced) = (reader.varint()?, reader.varint()?);
            let rate_log2 = (reader.varint_to("rate of hooks", 32)? as u32).checked_sub(1);
            let memory_bytes = reader.varint()?;
            let tally = Tally { known: reader.varint()?, expected: reader.varint()? };
            reader.end().map(|()| Figures { hooks: HooksStatistics { hooks, forced, rate_log2, memory_bytes }, tally })
        };
        read().map_err(|source| EngineError::Wire { what: "figures of the hooks".into(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_as_written_and_garbage_is_refused() {
        for rate_log2 in [None, Some(0), Some(12)] {
            let hooks = HooksStatistics { hooks: 1 << 40, forced: 3, rate_log2, memory_bytes: 256 << 20 };
            let tally = Tally { known: 300, expected: 4000 };
            let figures = Figures { hooks, tally };
            let value = figures.encode();
            assert_eq!(Figures::decode(&value).unwrap(), figures);
            for length in 0..value.len() {
                assert!(Figures::decode(&value[..length]).is_err());
            }
        }
    }

    #[test]
    fn m3_4_what_is_missed_follows_from_what_the_sample_found() {
        let mut tally = Tally::default();
        // Everything is in the sample.
        tally.add(700, 700, Some(0));
        assert_eq!(tally.missed(), 0);
        // Half of it: catalogs led to most of the others.
        tally.add(180, 100, Some(1));
        assert_eq!(tally.missed(), 20);
        // An eighth.
        tally.add(300, 50, Some(3));
        assert_eq!(tally.missed(), 120);
        // Nothing is known of what is missed then.
        tally.add(1000, 0, None);
        assert_eq!(tally.missed(), 120);
    }
}
