//! The filters of a store, and the chains made of them.

use crate::lost::quarantine::Quarantine;
use crate::write::chain::{
    BlockIndexFilter, BloomFilter, ByteCompareFilter, Chain, ContainerCacheFilter, FilterStatistics, Stage, ZeroChunkFilter,
};
use crate::{EngineError, Result, Settings};
use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Profile;
use onefold_storage::{Address, ChunkStore, Origin};
use std::sync::Arc;

/// Every filter of a store, and the chains for data and metadata.
#[derive(Debug)]
pub(crate) struct Filters {
    /// All filters. The chains are selections of it.
    all: Chain,
    data: Chain,
    metadata: Chain,
    bloom: Option<Arc<BloomFilter>>,
    /// Whether the chunk store has catalogs. Without them, chains are used without their filter.
    has_catalogs: bool,
}

/// The filter that needs catalogs of containers.
const CATALOGS: &str = "container-cache";

impl Filters {
    /// Returns the filters, with the chain for data that the settings name.
    pub(crate) fn new(
        storage: &Arc<dyn ChunkStore>,
        catalogs: Option<&Arc<ContainerCacheFilter>>,
        quarantine: &Arc<Quarantine>,
        settings: &Settings,
        profile: &Arc<Profile>,
        has_places_for_both: bool,
    ) -> Result<Filters> {
        let bloom = settings.chain.iter().any(|name| name == "bloom").then(|| Arc::new(BloomFilter::new(settings.bloom_bytes)));
        let all = Chain::new(all_filters(storage, catalogs, quarantine, &bloom, settings, has_places_for_both), profile.clone());
        let has_catalogs = catalogs.is_some();
        let names: Vec<String> = settings.chain.iter().filter(|name| has_catalogs || *name != CATALOGS).cloned().collect();
        let data = checked_chain(&all, &names)?;
        // A metadata chunk that is stored twice would count its references twice. So metadata always asks the index,
        // whatever the chain for data is.
        let metadata = if has_catalogs { all.select(&[CATALOGS, "chunk-index"])? } else { all.select(&["chunk-index"])? };
        Ok(Filters { all, data, metadata, bloom, has_catalogs })
    }

    /// Returns the chain for data.
    pub(crate) fn data(&self) -> &Chain {
        &self.data
    }

    /// Returns the chain for metadata chunks.
    pub(crate) fn metadata(&self) -> &Chain {
        &self.metadata
    }

    /// Returns the Bloom filter, if the settings give this opening one.
    pub(crate) fn bloom(&self) -> Option<&Arc<BloomFilter>> {
        self.bloom.as_ref()
    }

    /// Returns a chain from names separated by commas; see [`crate::Engine::chain`].
    pub(crate) fn select(&self, names: &str) -> Result<Chain> {
        let mut names: Vec<String> = names.split(',').map(|name| name.trim().to_string()).collect();
        names.retain(|name| (name != "bloom" || self.bloom.is_some()) && (name != CATALOGS || self.has_catalogs));
        checked_chain(&self.all, &names)
    }

    /// Tells all filters that new chunks are stored: see [`Filter::update`].
    pub(crate) fn update(&self, stored: &[(Fingerprint, Address)]) {
        self.all.update(stored);
    }

    /// Tells all filters that chunks are not stored any more: see [`Filter::removed`].
    pub(crate) fn removed(&self, names: &[Fingerprint]) {
        self.all.removed(names);
    }

    /// Tells all filters that another node removes chunks of these origins: see [`Filter::doubt`].
    pub(crate) fn doubt(&self, origins: &[Origin]) {
        self.all.doubt(origins);
    }

    /// Returns a guard to hold from before the commit of a merge until the containers are where the log says: see
    /// [`Filter::merging`].
    pub(crate) fn merging(&self) -> Merging<'_> {
        self.all.merging(true);
        Merging(&self.all)
    }

    /// Returns the verdicts of every filter so far.
    pub(crate) fn statistics(&self) -> Vec<FilterStatistics> {
        self.all.statistics()
    }
}

/// Ends what [`Filters::merging`] began.
pub(crate) struct Merging<'a>(&'a Chain);

impl Drop for Merging<'_> {
    fn drop(&mut self) {
        self.0.merging(false);
    }
}

/// Returns all filters of a store, each once.
fn all_filters(
    storage: &Arc<dyn ChunkStore>,
    catalogs: Option<&Arc<ContainerCacheFilter>>,
    quarantine: &Arc<Quarantine>,
    bloom: &Option<Arc<BloomFilter>>,
    settings: &Settings,
    has_places_for_both: bool,
) -> Vec<Stage> {
    let mut filters = vec![Stage::filter(ZeroChunkFilter), Stage::filter(BlockIndexFilter::new(quarantine.clone()))];
    filters.extend(catalogs.map(|catalogs| Stage::Filter(catalogs.clone())));
    filters.push(Stage::ChunkIndex);
    // Comparing needs the bytes, and places for two chunks of one name.
    if !settings.discards_data && has_places_for_both {
        filters.push(Stage::filter(ByteCompareFilter::new(storage.clone())));
    }
    if let Some(bloom) = bloom {
        filters.push(Stage::Filter(bloom.clone()));
    }
    filters
}

/// Returns a chain for data. It must ask the chunk index, or chunks would be stored again and again.
fn checked_chain(filters: &Chain, names: &[String]) -> Result<Chain> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let invalid = |why: String| EngineError::Invalid { what: format!("filter chain `{}`", names.join(",")), why };
    if !names.contains(&"chunk-index") {
        return Err(invalid("it must contain `chunk-index`: without it chunks would be stored again and again".into()));
    }
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            return Err(invalid(format!("it names `{name}` twice")));
        }
    }
    filters.select(&names)
}
