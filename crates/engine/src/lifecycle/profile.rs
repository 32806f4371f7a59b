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
}

impl StoreProfile {
    /// All profiles, the default first.
    pub const ALL: [StoreProfile; 2] = [StoreProfile::Exact, StoreProfile::Marked];

    /// Returns its name in commands and in the descriptor.
    pub fn name(self) -> &'static str {
        match self {
            StoreProfile::Exact => "exact",
            StoreProfile::Marked => "marked",
        }
    }

    /// Returns whether the chunk index counts references. Otherwise all its counts are 0.
    pub fn counts(self) -> bool {
        match self {
            StoreProfile::Exact => true,
            StoreProfile::Marked => false,
        }
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
