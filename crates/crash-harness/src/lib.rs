//! The crash harness of whole stores: volumes, filesystems and backups on a simulated disk that crashes, tears, fills
//! up and fails. What they hold is compared with bytes in memory and judged by `check` after every opening (design rule
//! 1, M0.18).
//!
//! * A [`Profile`] says what is tried: how a store is made and opened, the liveness in it, the steps that it supports,
//!   and what its runs must meet. A new composition needs one value, and a test file that lists its [`trials`].
//! * A [`Case`] is one store of a profile. Its shape, its steps and the moments of crashes follow from the seed. The
//!   turns of threads and the store's name do not.
//! * A [`World`] is that store, open. Random [`steps`] change it; a [`Model`] knows what must be there. The model of a
//!   filesystem is that of the tests of `fs` ([`onefold_fs::testing::History`]).
//! * The [`trials`] choose the moments of crashes and failures. [`threads`], [`readers`] and [`liveness`] are trials of
//!   their own. A [`Witness`] counts whether the interesting things happened.
//! * [`buckets`] are trials of stores in object storage.
//! * [`scenes`] are stores and fixed runs for tests that crash at every operation.
//!
//! `ONEFOLD_CRASH_SEEDS=10` tries ten times as many seeds, `ONEFOLD_CRASH_SEED=17` repeats one of them.
//!
//! This crate is for tests only. It must never know what a single test is about.

pub mod buckets;
mod contract;
mod files;
mod forget;
pub mod liveness;
mod model;
mod named;
mod profile;
pub mod readers;
pub mod scenes;
mod sight;
pub mod steps;
mod supply;
pub mod threads;
pub mod trials;
mod verify;
mod witness;
mod world;

pub use model::{BLOCK_BYTES, BackupModel, FILESYSTEMS, FilesystemModel, Model, SLOTS, Tree, VolumeModel};
pub use profile::{CACHELESS, DEFAULTS, EXACT, LEVELED, MARKED, SAMPLED};
pub use sight::Sight;
pub use steps::{run, step};
pub use verify::check_clean;
pub use witness::{Witness, nothing_twice};
pub use world::{Case, Fault, Profile, Random, Step, World, must, policy};
