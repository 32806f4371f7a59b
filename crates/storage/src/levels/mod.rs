//! A chunk store of levels of sorted tables (LevelStore, `spec.md` M2.5 to M2.9), for profile `leveled`.
//!
//! New chunks collect in a [memtable](memtable) of 4 MiB. A full one is written as a [table](table) of level 0. Levels
//! grow by a ratio. When one has too much, or too many tombstones, [compaction](compaction) merges tables of it with
//! those of the next level that have keys in common with them. Space of removed chunks comes back with it.
//!
//! Each [partition](partition) has a memtable and levels of its own: it is the paper's container, and a virtual node.
//! Formats are in `docs/format.md` section 5.13.

mod cache;
mod compaction;
mod filter;
mod flushers;
mod key;
mod manifest;
mod memtable;
mod options;
mod pages;
mod partition;
mod records;
mod runs;
mod store;
mod table;
mod version;
mod work;

pub use options::LevelsOptions;
pub(crate) use partition::Change;
pub use partition::{Copied, Merged};
pub(crate) use records::named_chunks;
pub use records::{CHUNKS_DROPPED, CHUNKS_HELD, TABLE_WRITTEN};
pub use store::{LevelFigures, LevelsStore, PartitionFigures};
pub use version::LostTable;
pub use work::LevelsWork;
