//! Repair, as in `repair`, of stores whose chunk index has no counts: what is needed is marked (M3.7).

use onefold_engine::StoreProfile;

const PROFILE: StoreProfile = StoreProfile::Marked;

include!("../repair/suite.rs");
