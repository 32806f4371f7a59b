//! Profiles: named compositions of lookup, chunk store and liveness. A store has one for life.

use std::fmt;
use std::str::FromStr;

/// The composition of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreProfile {
    /// Finds every duplicate through the chunk index, which counts references (dedupv1).
    #[default]
    Exact,
    /// The same lookup, without counts: what is needed is marked by group (M3.7). A duplicate then changes nothing in
    /// the chunk index.
    Marked,
    /// Finds every duplicate of blocks through a linked hash table on disk, with hardly any memory (ext4fs+dedup, M1).
    /// A chunk is a block of a file.
    Cacheless,
    /// Finds every duplicate through the chunk index, as `exact` does, and keeps chunks in levels of sorted tables that
    /// compact themselves (LevelStore, M2).
    Leveled,
    /// Finds duplicates through hooks in bounded memory and catalogs of containers, and marks what is needed (Symantec,
    /// M3.4 to M3.7). A chunk may be stored more than once.
    Sampled,
}

/// What keeps the chunks of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkStoreKind {
    /// Containers.
    Containers,
    /// An arena: each chunk is a block.
    Arena,
    /// Levels of sorted tables.
    Levels,
}

impl StoreProfile {
    /// All profiles, the default first.
    pub const ALL: [StoreProfile; 5] =
        [StoreProfile::Exact, StoreProfile::Marked, StoreProfile::Sampled, StoreProfile::Cacheless, StoreProfile::Leveled];

    /// Returns its name in commands and in the descriptor.
    pub fn name(self) -> &'static str {
        match self {
            StoreProfile::Exact => "exact",
            StoreProfile::Marked => "marked",
            StoreProfile::Sampled => "sampled",
            StoreProfile::Cacheless => "cacheless",
            StoreProfile::Leveled => "leveled",
        }
    }

    /// Returns whether the chunk index counts references. Otherwise all its counts are 0.
    pub fn counts(self) -> bool {
        match self {
            StoreProfile::Exact | StoreProfile::Cacheless | StoreProfile::Leveled => true,
            StoreProfile::Marked | StoreProfile::Sampled => false,
        }
    }

    /// Returns whether a chunk index knows every chunk, and which copy of it counts. Otherwise each copy counts for
    /// itself.
    pub fn is_exact(self) -> bool {
        match self {
            StoreProfile::Exact | StoreProfile::Marked | StoreProfile::Cacheless | StoreProfile::Leveled => true,
            StoreProfile::Sampled => false,
        }
    }

    /// Returns what keeps the chunks.
    pub fn chunk_store(self) -> ChunkStoreKind {
        match self {
            StoreProfile::Exact | StoreProfile::Marked | StoreProfile::Sampled => ChunkStoreKind::Containers,
            StoreProfile::Cacheless => ChunkStoreKind::Arena,
            StoreProfile::Leveled => ChunkStoreKind::Levels,
        }
    }

    /// Returns whether chunks are in containers.
    pub fn has_containers(self) -> bool {
        self.chunk_store() == ChunkStoreKind::Containers
    }

    /// Returns whether each chunk is a block of an arena.
    pub fn has_blocks(self) -> bool {
        self.chunk_store() == ChunkStoreKind::Arena
    }
}

impl fmt::Display for StoreProfile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for StoreProfile {
    type Err = String;

    fn from_str(name: &str) -> Result<StoreProfile, String> {
        StoreProfile::ALL.into_iter().find(|profile| profile.name() == name).ok_or_else(|| {
            let names = StoreProfile::ALL.map(StoreProfile::name).join(", ");
            format!("it is {name:?}; this version knows {names}")
        })
    }
}
