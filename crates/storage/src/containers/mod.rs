//! Containers (M0.12): where chunks are kept.
//!
//! A [`ContainerStore`] has one directory of container files per partition.
//! * [`Writer`]s fill containers frame by frame.
//! * Worker threads compress the frames and write them.
//! * [`ContainerStore::prepare`] makes them durable and says what the operations log must hold of them.
//! * [`ContainerStore::load`] reads chunks back, wherever they are: in an open frame, on the way to disk, or in a
//!   sealed file.
//!
//! # The way of a chunk
//! 1. [`Writer::append`] copies it into the *open frame* of the writer's container and gives it its address.
//! 2. A frame of at least `frame_bytes` is *handed over*: compressed, and written at the container's next offset.
//!    A frame that [came compressed](Writer::append_frame) is handed over as it is.
//! 3. [`ContainerStore::prepare`] syncs the files and returns log records:
//!    - FrameCommitted for full frames,
//!    - FrameData, with the bytes, for open frames, so that a flush needs no container write at all,
//!    - ContainerSealed for containers that got their catalog and footer.
//! 4. When the log has them durably, the caller calls [`ContainerStore::committed`]. Only then may anything refer to
//!    the chunk.
//!
//! Containers with few needed chunks left are [merged](ContainerStore::merge): their chunks move, their addresses stay.
//!
//! After a crash the log's records, [replayed](ContainerStore::replay), describe every unsealed container. Writing goes
//! on in it, so small flushes and short runs do not make small containers.
//!
//! In a store with [whole files](StorageOptions::whole_files), which is one in a bucket, a file becomes durable only
//! when it is sealed (`puts.rs`). The log has the bytes of the frames of other containers, and after a restart those
//! are sealed as they are (`whole.rs`). Which numbers they may have is said in `numbers.rs`.
//!
//! # Invariants
//! * For each container, the log knows a prefix of its frames, and a prefix of the chunks of the frame behind it.
//! * A record names only bytes that are synced, or carries them itself.
//! * A failed write loses nothing: the frame stays in memory and is written again. A failed sync ends writing for this
//!   opening of the store, because it is no longer known what is on disk.
//! * An address that was given out leads to its chunk as long as anybody needs the chunk, in whatever container it is
//!   by then.
//! * Locks are taken in this order: making parity, holding files in place, what merges hold, settling, the flow, the
//!   list of unsealed containers, the state of one container. Forwards, groups, caches and placement are taken last,
//!   alone. Each part owns its lock, and its head says more.
//!
//! This crate must never know who refers to a chunk, or how often.

mod adopting;
mod ahead;
mod answering;
mod cache;
mod caches;
mod catalog;
mod catalog_cache;
mod checkpoint;
mod compressed_frame;
pub(crate) mod compression;
mod container_salvage;
mod container_set;
mod counters;
mod eviction;
mod file;
mod flow;
mod forward;
mod forwards;
mod frame_cache;
mod group_files;
mod group_id;
mod groups;
mod homes;
mod job;
mod known;
pub(crate) mod log_end;
mod merge;
mod merging;
mod mode;
mod numbers;
mod open;
mod opening;
mod owner;
mod parity;
mod placement;
mod prepare;
mod present;
mod protect;
mod protection;
mod puts;
mod reader;
mod records;
mod recovery;
mod rehearsal;
mod rehearsing;
mod repair;
mod replace;
mod replay;
mod scrub;
mod sealed;
mod short_reads;
mod stand_in;
mod statistics;
mod store;
mod unsealed;
mod verify;
mod view;
mod void;
mod whole;
mod workers;
mod writer;

pub use adopting::LeftPartition;
pub use answering::Answering;
pub use catalog::{Catalog, Frame, MAX_FRAME_BYTES, MAX_FRAMES, MAX_SLOTS, Slot};
pub use compressed_frame::{CompressedFrame, FrameError, decompress_frame};
pub use compression::{Codec, Compression, Compressor, UnknownCompression};
pub use container_salvage::{Closed, Unreadable};
pub use container_set::ContainerSet;
pub use eviction::CachePolicy;
pub use file::{FOOTER_BYTES, Footer, HEADER_BYTES, Header};
pub use forward::{FORWARD_BYTES, Forward};
pub use group_id::GroupId;
pub use groups::ParityStatistics;
pub use homes::Homes;
pub use known::KnownChunks;
pub use merge::{Merge, MergeStatistics};
pub(crate) use numbers::Used;
pub use numbers::{NUMBERS_RESERVED, NUMBERS_USED, numbers_reserved};
pub use parity::MAX_MEMBERS as MAX_GROUP_MEMBERS;
pub use placement::CommittedSlots;
pub(crate) use placement::Moments;
pub(crate) use prepare::Change;
pub(crate) use records::stored_chunks;
pub use records::{
    CONTAINER_CHECKPOINT, CONTAINER_SEALED, CONTAINERS_MERGED, ContainerRecord, FRAME_COMMITTED, FRAME_DATA, FRAME_STORED, OpenChunks,
};
pub use repair::{Repair, RepairedAndLost, ScrubbedParity};
pub use scrub::{ScrubThreads, Scrubbed};
pub use statistics::{FileFigures, Statistics};
pub use store::{ContainerStore, StorageOptions};
pub use verify::{ChunkRead, ChunkVisitor, ContainerReport, FrameVisitor};
pub use void::VoidNumbers;
pub use writer::Writer;
