//! iSCSI targets as the store remembers them: which volumes they show under which LUNs, who may connect, and how. It
//! also keeps the state of logical units that survives a restart: persistent reservations and erasures under way
//! (`docs/format.md` sections 7.9 to 7.11).
//!
//! This crate holds objects of the object index and the rules between them. It must never know how targets are served,
//! nor what is in a volume: it knows a volume by its number, which no other volume ever has.

mod access;
mod durable;
mod error;
mod keys;
mod names;
mod record;
mod registry;
mod reservations;
mod sanitize;

pub use access::{Network, matches_pattern};
pub use error::{Result, TargetError};
pub use names::{DEFAULT_AUTHORITY, whole_name};
pub use record::{Account, DEFAULT_TARGET, Digest, FILE_TARGET, MAX_LUN, Target, Unit};
pub use registry::{Known, change, damaged, forget_others, known};
pub use reservations::{KeptReservation, KeptReservations, Port, keep_reservations, kept_reservations};
pub use sanitize::{KeptSanitize, keep_sanitize, kept_sanitize};
