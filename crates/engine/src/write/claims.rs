//! Claims: whether a chunk is stored, and if not, who stores it.
//!
//! A stream asks the caches of its filter chain first ([`Chain::ask`](crate::chain::Chain::ask)). It claims only the
//! chunks that they could not answer. A claim that is [`Mine`](Claim::Mine) keeps every other writer of that chunk
//! waiting until the chunk is placed or the claim is released.
//!
//! # Why a cache may answer before a claim is made
//! Without a claim, nothing keeps a removal (`liveness/removal.rs`) from taking the chunk away while the cache says
//! that it is stored. Two things do it instead, and a stream needs both:
//! 1. *The guard.* The stream holds an [`InFlight`](crate::InFlight) guard from before it asks until its pieces are
//!    submitted. A removal waits for every guard that is older than its own beginning. So only a younger stream can
//!    meet a removal that is past its wait, and a younger stream sees the watch list.
//! 2. *The watch.* A stream touches its chunks before it asks a cache. A removal claims a chunk and then *dooms* it
//!    ([`Watch::doom`](crate::write::in_flight::Watch::doom)). Touching and dooming exclude each other under one mutex:
//!    * The stream touches first: dooming fails, and the removal leaves the chunk. The cache's answer stays true.
//!    * The removal dooms first: touching names the chunk as doomed. The stream asks no cache for it. It claims the
//!      chunk, so it waits until the removal is over. By then the caches have forgotten the chunk, or it was not
//!      removed.
//!    * The watch has ended when the stream touches: the caches forgot the chunk before the watch ended.
//!
//! A cache may be filled beside a removal. So `container_cache.rs` drops a catalog that it began to load before the
//! removal ended, or that it loaded while a merge was committed. `NON-EXISTING` needs a claim: another stream may have
//! stored the chunk since a filter denied it. So the claim asks that filter again ([`Search::Denied`]) before it
//! believes the answer.
//!
//! # Why nobody waits in a circle
//! [`Claims::claim`] never waits. A stream calls [`Claims::wait`] only when it holds no claim. So every holder of a
//! claim is running, and its claims end.

use crate::Result;
use onefold_fingerprint::Fingerprint;
use onefold_storage::Address;
use std::fmt::Debug;
use std::time::Instant;

/// How much is known of a wanted chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// Nothing.
    Stored,
    /// A filter said, before the claim, that the chunk is not stored.
    Denied,
    /// The copy at this address does not count: it is damaged.
    Not(Address),
    /// Whether it is stored does not matter: only the claim does.
    Unasked,
}

/// A wanted chunk.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Its name.
    pub fingerprint: Fingerprint,
    /// How much is known of it.
    pub search: Search,
}

/// The answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is stored, and nobody holds a claim.
    Known(Address),
    /// A stream has just stored it. It is in no index yet.
    Placed(Address),
    /// It is not stored. The caller must [place](Claims::placed) or [release](Claims::release) it.
    Mine,
    /// Another holds the claim: [wait](Claims::wait).
    Theirs,
}

/// Answers whether a chunk is stored, and if not, who stores it.
pub(crate) trait Claims: Send + Sync + Debug {
    /// Prepares claims of these chunks: begins the reads that they will wait for, or opens the catalogs that hooks lead
    /// to. Returns for how many chunks what comes after them may still tell where they are. Advice: it takes no claim.
    fn expect(&self, names: &[Fingerprint]) -> usize;
    /// Appends one answer for each of `wanted`. Never waits for another stream. Returns for how many reads it waited
    /// for a device. Errors: none of them is claimed.
    fn claim(&self, wanted: &[Wanted], out: &mut Vec<Claim>) -> Result<usize>;
    /// Announces that the holder is about to store a metadata chunk that refers to `references`.
    fn announce(&self, name: &Fingerprint, references: &[Fingerprint]);
    /// Reports that the holder has stored these chunks.
    fn placed(&self, at: &[(Fingerprint, Address)]);
    /// Releases chunks that the holder does not store. Placed chunks stay placed.
    fn release(&self, names: &[Fingerprint]);
    /// Waits until nobody else holds these claims, or until `until`. Appends an address for each, or `None`: claim it
    /// again.
    fn wait(&self, names: &[Fingerprint], until: Instant, out: &mut Vec<Option<Address>>);
    /// Claims chunks for others, who had them from an owner before: those that are neither stored nor claimed. Returns
    /// them. Errors: none of them is claimed.
    fn take_in(&self, names: &[Fingerprint]) -> Result<Vec<Fingerprint>>;
    /// Returns the claimed and placed chunks that are wanted.
    fn held(&self, is_wanted: &dyn Fn(&Fingerprint) -> bool) -> Vec<Fingerprint>;
    /// Reports that look-ups find these chunks now.
    fn durable(&self, names: &[Fingerprint]);
    /// Returns where a placed chunk is, durable or not.
    fn address(&self, name: &Fingerprint) -> Option<Address>;
    /// Appends what a claimed or placed metadata chunk refers to, once for each reference.
    fn references(&self, name: &Fingerprint, out: &mut Vec<Fingerprint>);
    /// Keeps everybody from the claim of this chunk, and from some others.
    #[cfg(test)]
    fn hold<'a>(&'a self, name: &Fingerprint) -> Box<dyn Anything + 'a>;
    /// Returns the number of claimed and placed chunks.
    #[cfg(test)]
    fn count(&self) -> usize;
}

/// A guard of any type.
#[cfg(test)]
pub(crate) trait Anything {}
#[cfg(test)]
impl<T> Anything for T {}

/// Claims of one owner. Dropping it releases those that were not placed.
pub(crate) struct Held<'a> {
    claims: &'a dyn Claims,
    pub(crate) names: Vec<Fingerprint>,
}

impl<'a> Held<'a> {
    /// Returns an owner without claims.
    pub(crate) fn new(claims: &'a dyn Claims) -> Held<'a> {
        Held { claims, names: Vec::new() }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.claims.release(&self.names);
    }
}
