//! Repair, as in `repair`, of stores without a chunk index: each copy of a chunk counts for itself, and what is needed
//! is marked (M3.4 to M3.7).

use onefold_engine::StoreProfile;

const PROFILE: StoreProfile = StoreProfile::Sampled;

include!("../repair/suite.rs");
