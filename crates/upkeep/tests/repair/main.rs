//! Repair: whatever is damaged, afterwards the store opens, `check` finds nothing but what is in quarantine and who
//! needs it, everything that can be read is right, and what is written again is there again. The same after a crash at
//! any sync of a repair, and on a full disk.

use onefold_engine::StoreProfile;

const PROFILE: StoreProfile = StoreProfile::Exact;

include!("suite.rs");
