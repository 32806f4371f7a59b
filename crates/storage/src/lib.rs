//! Where the bytes of chunks are.
//!
//! * [`containers`]: files that are filled frame by frame, for profiles `exact` and `sampled`.
//! * [`arena`]: a file of blocks of equal size, for profile `cacheless`.
//! * [`levels`]: levels of sorted tables, for a profile to come.
//!
//! This crate must never know who refers to a chunk, or how often.

mod address;
pub mod arena;
mod chunk;
mod chunk_store;
pub mod components;
pub mod containers;
mod error;
pub mod levels;
mod prepared;
mod records;

pub use address::{Address, ContainerId, Origin};
pub use arena::{
    ArenaFigures, ArenaOptions, ArenaParts, ArenaStore, ArenaWriter, BLOCKS_STORED, Block, BlockTable, BlockVisitor, FileHoles, Holes,
    MAX_BLOCK_BYTES, MAX_BLOCKS, NoHoles, PossibleName, UNIT_BLOCKS, WithoutChunk, address_of_block, block_of_address, decode_note,
    encode_note,
};
pub use chunk::{ChunkKind, MAX_CHUNK_BYTES, NewChunk, Slice};
pub use chunk_store::{ChunkStore, ChunkView, ChunkWriter, Usage};
pub use containers::{
    Answering, CONTAINER_CHECKPOINT, CONTAINER_SEALED, CONTAINERS_MERGED, CachePolicy, Catalog, ChunkRead, ChunkVisitor, Closed, Codec,
    CommittedSlots, CompressedFrame, Compression, Compressor, ContainerRecord, ContainerReport, ContainerSet, ContainerStore, FOOTER_BYTES,
    FORWARD_BYTES, FRAME_COMMITTED, FRAME_DATA, FRAME_STORED, FileFigures, Footer, Forward, Frame, FrameError, FrameVisitor, GroupId,
    HEADER_BYTES, Header, Homes, KnownChunks, LeftPartition, MAX_FRAME_BYTES, MAX_FRAMES, MAX_GROUP_MEMBERS, MAX_SLOTS, Merge,
    MergeStatistics, NUMBERS_RESERVED, NUMBERS_USED, OpenChunks, ParityStatistics, Repair, RepairedAndLost, ScrubThreads, Scrubbed,
    ScrubbedParity, Slot, Statistics, StorageOptions, UnknownCompression, Unreadable, VoidNumbers, Writer, decompress_frame,
    numbers_reserved,
};
pub use error::{Result, StorageError};
pub use levels::{
    CHUNKS_DROPPED, CHUNKS_HELD, Copied, LevelFigures, LevelsOptions, LevelsStore, LevelsWork, LostTable, Merged, PartitionFigures,
    TABLE_WRITTEN,
};
pub use prepared::{Prepared, Scope};
pub use records::stored_chunks;
