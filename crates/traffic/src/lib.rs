//! Data to measure deduplication with: streams that follow from a seed, and of which it is known what in them is a duplicate of what.
//!
//! The main set is the workload of the papers that onefold comes from ([`Set::Generations`]): backups of a file server as a sequence of *runs*,
//! unique (U), internally redundant (I) or temporally redundant (T), with run lengths and transitions taken from traces of real backups.
//! The sets of the other papers are beside it. `docs/traffic.md` describes all of them, and the choices that are ours.
//!
//! - Everything follows from ([`Workload::seed`], [`Workload::client`], [`Workload::generation`], [`Workload::size_bytes`], [`Workload::set`]):
//!   on every machine the same bytes. Clients share nothing.
//! - No earlier generation is stored, nor a list of its runs. A byte is a function of its origin (seed, client, the generation that was first to have it,
//!   place), and generation n reads generation n-1, itself made while it is read, from its beginning to its end. A stream takes some 500 bytes for
//!   each generation up to its own, whatever the size: nothing for each GB.
//! - The bytes are pseudo-random: incompressible, and without duplicates beside those that the set asks for.
//! - **The run lengths of generation 1 are reconstructed**: their lists were never published, and the estimate that stands for them has the
//!   published mean, median and maximum ([`Workload::is_reconstructed`]).
//!
//! ```
//! use onefold_traffic::{Set, Workload, Model};
//! use std::io::Read;
//!
//! let workload = Workload { set: Set::Generations(Model::default()), seed: 7, client: 0, generation: 2, size_bytes: 1 << 20 };
//! let mut stream = workload.stream()?;
//! let mut begin = [0; 4096];
//! stream.read_exact(&mut begin).expect("a stream does not fail before its end");
//! assert_eq!(workload.describe()?.length_bytes, 1 << 20);
//! # Ok::<(), onefold_traffic::TrafficError>(())
//! ```
//!
//! This crate knows no store, no chunks and no files.

mod description;
mod lengths;
mod model;
mod noise;
mod pool;
mod script;
mod sets;
#[cfg(test)]
mod statistics;
mod stream;
mod workload;

pub use description::{Description, LengthQuantiles, StateDescription};
pub use model::{Model, Placement, State, Trace, Variant};
pub use stream::{Fingerprints, Run, Runs, Stream};
pub use workload::{FINGERPRINT_BYTES, GENERATIONS_MAX, Set, TrafficError, Workload};
