//! The filter chain (M0.4, M0.5): the ordered tests that decide whether a chunk is already stored.
//!
//! Each filter gives each chunk one of four verdicts. A filter runs for a chunk while nothing is known of it
//! (WEAK-MAYBE), or if it is STRONG-MAYBE and the filter can say EXISTING. EXISTING and NON-EXISTING stop the chain for
//! that chunk. At the end, EXISTING and STRONG-MAYBE mean *known*, and the chunk has an address; everything else means
//! *new*.
//!
//! The chain has two parts. Filters before `chunk-index` are [asked](Chain::ask) without a claim. Chunks that they do
//! not know are [claimed](Chain::claim), which looks them up in the chunk index. The filters after it then
//! [confirm](Chain::confirm) what either part found. After new chunks are stored, [`Chain::update`] runs the update
//! pass; if storing fails, [`Chain::abort`] reverts what filters noted.

mod block_index;
mod bloom;
mod byte_compare;
mod container_cache;
mod zero;

pub use block_index::BlockIndexFilter;
pub use bloom::BloomFilter;
pub use byte_compare::ByteCompareFilter;
pub use container_cache::ContainerCacheFilter;
pub(crate) use container_cache::{CatalogState, Find};
pub use zero::{ZeroChunkFilter, is_zero};

use crate::components::FILTER_CHUNK_INDEX;
use crate::write::claims::{Claim, Claims, Search, Wanted};
use crate::{EngineError, Piece, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::{Component, Profile};
use onefold_storage::{Address, Origin};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// What a filter says of a chunk, from least to most certain that it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Certainly not stored: stop.
    NonExisting,
    /// Nothing is known: all later filters run.
    WeakMaybe,
    /// Stored unless fingerprints collide: only filters that can say EXISTING run.
    StrongMaybe,
    /// Certainly stored: stop.
    Existing,
}

/// A chunk on its way through the chain.
#[derive(Clone, Debug)]
pub struct Lookup<'a> {
    /// Its name.
    pub fingerprint: Fingerprint,
    /// Its bytes.
    pub data: &'a [u8],
    /// Verdict so far.
    pub verdict: Verdict,
    /// Where it is, once a filter has found it. A known chunk without an address needs none (zeros).
    pub address: Option<Address>,
    /// The address of a stored copy that was checked and cannot be read, or has other bytes.
    pub bad: Option<Address>,
}

impl<'a> Lookup<'a> {
    /// Returns a lookup of which nothing is known.
    pub fn new(fingerprint: Fingerprint, data: &'a [u8]) -> Lookup<'a> {
        Lookup { fingerprint, data, verdict: Verdict::WeakMaybe, address: None, bad: None }
    }

    /// Returns whether the chain found it stored.
    pub fn is_known(&self) -> bool {
        self.verdict >= Verdict::StrongMaybe
    }

    pub(crate) fn found(&mut self, verdict: Verdict, address: Address) {
        self.verdict = verdict;
        self.address = Some(address);
    }
}

/// What the writer of a request knows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// The current pieces of the block that is being overwritten.
    pub overwritten: &'a [Piece],
}

/// One test of the chain. It sets `verdict` (and `address`) of the lookups that `active` lists.
pub trait Filter: Send + Sync + Debug {
    /// Returns the name in settings and statistics.
    fn name(&self) -> &'static str;
    /// Returns the most certain verdict that it can give.
    fn max(&self) -> Verdict;
    /// Returns the component that its time is charged to in the profile.
    fn component(&self) -> &'static Component;
    /// Tests lookups. A verdict of STRONG-MAYBE or EXISTING comes with an address.
    fn check(&self, request: &Request<'_>, lookups: &mut [Lookup<'_>], active: &[usize]) -> Result<()>;
    /// The update pass: these chunks were new and are stored now.
    fn update(&self, stored: &[(Fingerprint, Address)]) {
        let _ = stored;
    }
    /// Reverts notes on these chunks: they were tested, but the request failed before they were stored.
    fn abort(&self, failed: &[Fingerprint]) {
        let _ = failed;
    }
    /// Forgets these chunks: they are not stored any more. Nobody asks for them meanwhile, because a removal has doomed
    /// them (`claims.rs`), or they are lost.
    fn removed(&self, chunks: &[Fingerprint]) {
        let _ = chunks;
    }
    /// Believes nothing that is known of chunks of these origins from now on: another node removes some of them, and
    /// what it removes is not noted here yet.
    fn doubt(&self, origins: &[Origin]) {
        let _ = origins;
    }
    /// Announces that a merge is about to be committed, or (false) that its containers are where the log says. In
    /// between, the dead slots of its victims are forgotten while their catalogs are still read. So the two together
    /// must not decide what is stored.
    fn merging(&self, is_under_way: bool) {
        let _ = is_under_way;
    }
    /// Runs after the chain, with the addresses at which filters found chunks (post-processing of the container cache,
    /// M0.10).
    fn post_process(&self, found: &[Address]) -> Result<()> {
        let _ = found;
        Ok(())
    }
}

/// How often a filter gave which verdict.
#[derive(Debug, Default)]
struct Counters([AtomicU64; 4]);

/// Verdicts of one filter so far.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FilterStatistics {
    /// Its name.
    pub filter: &'static str,
    /// NON-EXISTING.
    pub non_existing: u64,
    /// WEAK-MAYBE.
    pub weak_maybe: u64,
    /// STRONG-MAYBE.
    pub strong_maybe: u64,
    /// EXISTING.
    pub existing: u64,
}

/// The name of the test that claims chunks, and looks them up in the chunk index (M0.6).
pub(crate) const CHUNK_INDEX: &str = "chunk-index";

/// A test of a chain.
#[derive(Clone, Debug)]
pub enum Stage {
    /// A filter.
    Filter(Arc<dyn Filter>),
    /// Claims the chunks that earlier filters could not answer. It says STRONG-MAYBE to chunks that the store's index
    /// finds and NON-EXISTING to all others.
    ChunkIndex,
}

impl Stage {
    /// Returns a stage of this filter.
    pub fn filter(filter: impl Filter + 'static) -> Stage {
        Stage::Filter(Arc::new(filter))
    }

    fn name(&self) -> &'static str {
        match self {
            Stage::Filter(filter) => filter.name(),
            Stage::ChunkIndex => CHUNK_INDEX,
        }
    }
}

/// An ordered list of tests.
#[derive(Clone, Debug)]
pub struct Chain {
    stages: Vec<(Stage, Arc<Counters>)>,
    profile: Arc<Profile>,
}

impl Chain {
    /// Returns a chain of `stages`, in order.
    pub fn new(stages: Vec<Stage>, profile: Arc<Profile>) -> Chain {
        Chain { stages: stages.into_iter().map(|stage| (stage, Arc::default())).collect(), profile }
    }

    /// Returns a chain of some of this chain's filters (by name, in a new order), which shares their state and
    /// counters.
    pub fn select(&self, names: &[&str]) -> Result<Chain> {
        let stages = names.iter().map(|name| {
            self.stages.iter().find(|(stage, _)| stage.name() == *name).cloned().ok_or_else(|| EngineError::Invalid {
                what: format!("filter `{name}`"),
                why: format!("this store has {}", self.names().join(", ")),
            })
        });
        Ok(Chain { stages: stages.collect::<Result<_>>()?, profile: self.profile.clone() })
    }

    /// Returns the names of the filters.
    pub fn names(&self) -> Vec<&'static str> {
        self.stages.iter().map(|(stage, _)| stage.name()).collect()
    }

    /// Returns whether chunks of zeros are recognised before anything else looks at a chunk.
    pub fn zero_first(&self) -> bool {
        self.stages.first().is_some_and(|(stage, _)| stage.name() == "zero-chunk")
    }

    /// Returns whether it has the filter of this name.
    pub fn has(&self, name: &str) -> bool {
        self.stages.iter().any(|(stage, _)| stage.name() == name)
    }

    /// Returns the place of the chunk index; in a chain without it, the end.
    fn chunk_index_at(&self) -> usize {
        self.stages.iter().position(|(stage, _)| matches!(stage, Stage::ChunkIndex)).unwrap_or(self.stages.len())
    }

    fn filters(&self) -> impl Iterator<Item = &Arc<dyn Filter>> {
        self.stages.iter().filter_map(|(stage, _)| if let Stage::Filter(filter) = stage { Some(filter) } else { None })
    }

    /// Asks the filters before the chunk index. No claim is needed, but the chunks must have been touched, and must not
    /// be doomed (`claims.rs`). A verdict of NON-EXISTING holds only until somebody else stores the chunk.
    pub fn ask(&self, request: &Request<'_>, lookups: &mut [Lookup<'_>]) -> Result<()> {
        self.run(&self.stages[..self.chunk_index_at()], request, lookups)
    }

    /// Claims chunks of `bytes` bytes in total, and counts the answers of the chunk index. Appends one answer for each
    /// of `wanted`. Returns for how many reads it waited for a device.
    pub(crate) fn claim(&self, claims: &dyn Claims, wanted: &[Wanted], bytes: u64, out: &mut Vec<Claim>) -> Result<usize> {
        let begin = out.len();
        let waited = self.profile.time(&FILTER_CHUNK_INDEX, bytes, || claims.claim(wanted, out))?;
        if let Some((_, counters)) = self.stages.get(self.chunk_index_at()) {
            let asked = wanted.iter().zip(&out[begin..]).filter(|(wanted, _)| wanted.search != Search::Denied);
            let (mut known, mut new) = (0, 0);
            asked.for_each(|(_, claim)| match claim {
                Claim::Known(_) => known += 1,
                Claim::Mine => new += 1,
                Claim::Placed(_) | Claim::Theirs => {}
            });
            counters.0[Verdict::StrongMaybe as usize].fetch_add(known, Ordering::Relaxed);
            counters.0[Verdict::NonExisting as usize].fetch_add(new, Ordering::Relaxed);
        }
        Ok(waited)
    }

    /// Asks the filters after the chunk index, and tells all filters where chunks were found.
    pub fn confirm(&self, request: &Request<'_>, lookups: &mut [Lookup<'_>]) -> Result<()> {
        self.run(self.stages.get(self.chunk_index_at() + 1..).unwrap_or_default(), request, lookups)?;
        let found: Vec<Address> = lookups.iter().filter(|lookup| lookup.is_known()).filter_map(|lookup| lookup.address).collect();
        if !found.is_empty() {
            for filter in self.filters() {
                filter.post_process(&found)?;
            }
        }
        Ok(())
    }

    fn run(&self, stages: &[(Stage, Arc<Counters>)], request: &Request<'_>, lookups: &mut [Lookup<'_>]) -> Result<()> {
        let mut active = Vec::with_capacity(lookups.len());
        for (stage, counters) in stages {
            let Stage::Filter(filter) = stage else { continue };
            active.clear();
            active.extend((0..lookups.len()).filter(|at| match lookups[*at].verdict {
                Verdict::WeakMaybe => true,
                Verdict::StrongMaybe => filter.max() == Verdict::Existing,
                Verdict::Existing | Verdict::NonExisting => false,
            }));
            if active.is_empty() {
                continue;
            }
            let bytes = active.iter().map(|at| lookups[*at].data.len() as u64).sum();
            let start = Instant::now();
            let result = filter.check(request, lookups, &active);
            self.profile.add(filter.component(), start.elapsed().as_nanos() as u64, bytes);
            result?;
            for at in &active {
                counters.0[lookups[*at].verdict as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Runs the update pass.
    pub fn update(&self, stored: &[(Fingerprint, Address)]) {
        for filter in self.filters() {
            filter.update(stored);
        }
    }

    /// Runs the abort path.
    pub fn abort(&self, failed: &[Fingerprint]) {
        for filter in self.filters() {
            filter.abort(failed);
        }
    }

    /// See [`Filter::merging`].
    pub fn merging(&self, is_under_way: bool) {
        for filter in self.filters() {
            filter.merging(is_under_way);
        }
    }

    /// Makes all filters forget chunks that are not stored any more.
    pub fn removed(&self, chunks: &[Fingerprint]) {
        for filter in self.filters() {
            filter.removed(chunks);
        }
    }

    /// Makes all filters doubt what they know of chunks of these origins.
    pub fn doubt(&self, origins: &[Origin]) {
        for filter in self.filters() {
            filter.doubt(origins);
        }
    }

    /// Returns the verdicts by filter.
    pub fn statistics(&self) -> Vec<FilterStatistics> {
        let count = |counters: &Counters, verdict: Verdict| counters.0[verdict as usize].load(Ordering::Relaxed);
        self.stages
            .iter()
            .map(|(stage, counters)| FilterStatistics {
                filter: stage.name(),
                non_existing: count(counters, Verdict::NonExisting),
                weak_maybe: count(counters, Verdict::WeakMaybe),
                strong_maybe: count(counters, Verdict::StrongMaybe),
                existing: count(counters, Verdict::Existing),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
