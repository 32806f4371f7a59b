//! Damage (design rule 6): every kind of file of a store, flipped, zeroed, cut and deleted. The store is refused with
//! an error that says which file, or it opens and everything that can be read is right; the check names what cannot.
//! Never a panic, never wrong bytes.
//!
//! What the check need not find, because nothing is lost with it: the lock's line, spare segments of the log, the saved
//! filter of the chunk index, journals of sweeps that ended, one of two slots of a header, bytes that no structure
//! covers (padding, free pages). What nobody can find: the last batches of the log, which look like a torn tail when
//! they are gone; the store is then an older state of itself, whole.

mod actions;
mod came_back;
mod common;
mod holes;
mod lost;
mod matrix;
mod merging;
mod scene;

use onefold_engine::StoreProfile;

const PROFILE: StoreProfile = StoreProfile::Exact;

include!("suite.rs");
