//! Test data for measuring deduplication: streams generated from a seed, for which it is known what duplicates what.
//!
//! The main set is the workload of the papers that onefold comes from ([`Set::Generations`]). It models backups of a
//! file server as a sequence of *runs*: unique (U), internally redundant (I) or temporally redundant (T). Run lengths
//! and transitions come from traces of real backups. There are also the sets of the other papers. `docs/traffic.md`
//! describes all sets and the choices that are ours.
//!
//! - Everything follows from ([`Workload::seed`], [`Workload::client`], [`Workload::generation`],
//!   [`Workload::size_bytes`], [`Workload::set`]), with the same bytes on every machine. Clients share nothing.
//! - No earlier generation is stored, nor a list of its runs. A byte is a function of its origin: seed, client, the
//!   first generation that had it, and place. Generation n reads generation n-1 from beginning to end, which is itself
//!   generated while it is read. A stream takes some 500 bytes of memory for each generation up to its own, whatever
//!   the size.
//! - The bytes are pseudo-random: they do not compress, and have no duplicates other than those that the set asks for.
//! - **The run lengths of generation 1 are reconstructed.** The lists were never published. The estimate used instead
//!   has the published mean, median and maximum ([`Workload::is_reconstructed`]).
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
//! [`write`] is the only module that knows files: it writes a stream to one, to a block device or to a pipe.
//!
//! This crate must never know stores or chunks. It prints nothing.

mod description;
mod lengths;
mod model;
mod noise;
mod op;
mod pool;
mod script;
mod sets;
mod state;
#[cfg(test)]
mod statistics;
mod stream;
mod workload;
pub mod write;

pub use description::{Description, LengthQuantiles, StateDescription};
pub use model::{Model, Variant};
pub use sets::FINGERPRINT_BYTES;
pub use state::{Placement, State, Trace};
pub use stream::{Fingerprints, Run, Runs, Stream};
pub use workload::{GENERATIONS_MAX, Set, TrafficError, Workload};
