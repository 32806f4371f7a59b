//! A Bloom filter (M0.9) that is safe after a crash: it says NON-EXISTING only when it is known to hold every stored
//! chunk.
//!
//! The bits are in memory only. After opening, the filter is *incomplete* and says WEAK-MAYBE to everything, while a
//! thread adds all entries of the chunk index. The update pass adds chunks that are stored meanwhile. Everything
//! durable at the opening is in the index (pages or replayed log), and everything later passes the update pass: then
//! nothing is missing, and the filter is *complete*. False positives: (1-(1-1/m)^(kn))^k for m bits, n chunks, k
//! hashes.

use super::{Filter, Lookup, Request, Verdict};
use crate::Result;
use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Component;
use onefold_storage::Address;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static COMPONENT: Component = Component::new("filter_bloom");

/// Bits set and tested per chunk; 5 is near the optimum for 7 to 8 bits per chunk.
const HASHES: u64 = 5;

/// Says NON-EXISTING to most chunks that were never stored, and WEAK-MAYBE otherwise.
#[derive(Debug)]
pub struct BloomFilter {
    words: Box<[AtomicU64]>,
    complete: AtomicBool,
}

impl BloomFilter {
    /// Returns an incomplete filter of about `bytes` bytes (rounded up to a power of two).
    pub fn new(bytes: usize) -> BloomFilter {
        let words = (bytes / 8).next_power_of_two().max(8);
        BloomFilter { words: (0..words).map(|_| AtomicU64::new(0)).collect(), complete: AtomicBool::new(false) }
    }

    /// Adds a chunk.
    pub fn insert(&self, fingerprint: &Fingerprint) {
        for bit in self.bits(fingerprint) {
            self.words[(bit / 64) as usize].fetch_or(1 << (bit % 64), Ordering::Relaxed);
        }
    }

    /// Declares the filter complete, as every stored chunk was added. From now on misses are certain.
    pub fn set_complete(&self) {
        self.complete.store(true, Ordering::Release);
    }

    /// Returns whether the filter holds everything.
    pub fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    /// Returns its memory, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.words.len() * 8
    }

    /// Returns whether a chunk may be stored that the filter denied earlier. Ask with the chunk's claim held. Then the
    /// answer stays true, because every writer adds a chunk here before its claim ends.
    pub(crate) fn is_doubted(&self, fingerprint: &Fingerprint) -> bool {
        !self.is_complete() || self.contains(fingerprint)
    }

    fn contains(&self, fingerprint: &Fingerprint) -> bool {
        self.bits(fingerprint).all(|bit| self.words[(bit / 64) as usize].load(Ordering::Relaxed) >> (bit % 64) & 1 == 1)
    }

    /// Double hashing with two independent parts of the fingerprint.
    fn bits(&self, fingerprint: &Fingerprint) -> impl Iterator<Item = u64> {
        let mask = self.words.len() as u64 * 64 - 1;
        let (start, step) = (fingerprint.hash_bits(), fingerprint.prefix() | 1);
        (0..HASHES).map(move |round| start.wrapping_add(step.wrapping_mul(round)) & mask)
    }
}

impl Filter for BloomFilter {
    fn name(&self) -> &'static str {
        "bloom"
    }

    fn max(&self) -> Verdict {
        Verdict::WeakMaybe
    }

    fn component(&self) -> &'static Component {
        &COMPONENT
    }

    fn check(&self, _request: &Request<'_>, lookups: &mut [Lookup<'_>], active: &[usize]) -> Result<()> {
        if self.is_complete() {
            for at in active {
                if !self.contains(&lookups[*at].fingerprint) {
                    lookups[*at].verdict = Verdict::NonExisting;
                }
            }
        }
        Ok(())
    }

    fn update(&self, stored: &[(Fingerprint, Address)]) {
        for (fingerprint, _) in stored {
            self.insert(fingerprint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_fingerprint::Algorithm;

    #[test]
    fn m0_9_no_stored_chunk_is_ever_denied_and_few_others_pass() {
        let filter = BloomFilter::new(1 << 15);
        let names: Vec<_> = (0..60_000u32).map(|number| Algorithm::Blake3.fingerprint(&number.to_le_bytes())).collect();
        let (stored, others) = names.split_at(30_000);
        let mut lookups: Vec<_> = names.iter().map(|name| Lookup::new(*name, b"")).collect();
        let active: Vec<_> = (0..names.len()).collect();
        filter.check(&Request::default(), &mut lookups, &active).unwrap();
        assert!(lookups.iter().all(|lookup| lookup.verdict == Verdict::WeakMaybe), "an incomplete filter denies nothing");
        for name in stored {
            filter.insert(name);
        }
        filter.set_complete();
        filter.check(&Request::default(), &mut lookups, &active).unwrap();
        assert!(lookups[..stored.len()].iter().all(|lookup| lookup.verdict == Verdict::WeakMaybe));
        let passed = lookups[stored.len()..].iter().filter(|lookup| lookup.verdict == Verdict::WeakMaybe).count();
        let (bits, count) = ((1u32 << 18) as f64, stored.len() as f64);
        let expected = (1.0 - (1.0 - 1.0 / bits).powf(HASHES as f64 * count)).powf(HASHES as f64);
        let measured = passed as f64 / others.len() as f64;
        assert!((measured - expected).abs() < 0.3 * expected, "measured {measured}, formula {expected}");
    }
}
