//! The arena (M1): a file of blocks of equal size, for profile `cacheless`.
//!
//! A chunk of at most `block_bytes` takes one block, and its address is the number of the block. What a block holds is
//! not kept here: the [`BlockTable`] has it, beside the fingerprints. So storing a chunk writes its bytes and nothing
//! else, and there is no catalog to cache.
//!
//! # The way of a chunk
//! 1. [`ArenaWriter`] gives it the next free block (`space.rs`). Its bytes wait in memory until the run of blocks is
//!    full, and are written by one call (`pending.rs`). The chunk is *pending*, and can be loaded.
//! 2. [`prepare`](crate::ChunkStore::prepare) writes what waits, syncs the file, and returns [`BLOCKS_STORED`] records.
//! 3. The caller logs them, applies them to the block table, and calls [`committed`](crate::ChunkStore::committed): the
//!    chunk is not pending any more.
//! 4. When nobody needs the chunk, the caller [retires](ArenaStore::retire) its block, logs and applies the removal,
//!    and [frees](ArenaStore::free) the block when nobody is left who found the chunk (`free.rs`).
//!
//! # Invariants
//! * Nothing is written in place: a block is written only while it is pending. A pending block is in no record of the
//!   log that counts, and not in the table.
//! * A block is in at most one of these states: used (the table has it), pending, retired, reserved, free. A retired
//!   one may be used as well. Only a free block is given out.
//! * A record names only chunks whose bytes are synced.
//! * Records name a prefix of the chunks in the order in which they were appended. So a metadata chunk is never durable
//!   without the chunks that were appended before it.
//! * A failed write loses nothing: the bytes stay in memory and are written again. Until then no more data is taken.
//! * A failed sync ends writing for this opening, because it is no longer known what is on disk.
//! * Every byte that is returned was hashed after it was read.
//! * A block is a multiple of 4 KiB, and the file ends with a block. So writing a block writes no page or sector with
//!   bytes of another one.
//!
//! # Dangerous interleavings
//! * *A window is opened, a chunk is committed.* The commit takes the block from the pending chunks and the table gets
//!   it. If the table is asked first and the pending chunks then, the block is in neither, and is given out although it
//!   is used. So the pending ones are asked first, and the caller applies a batch to the table before it calls
//!   `committed`. Readers keep to the same order.
//! * *A window is opened, a chunk is removed.* The table lost the chunk, and a reader found it before. If its block
//!   were given out now, the reader would see other bytes. (It would find out by the fingerprint, and report damage.)
//!   So blocks are retired before the table loses them.
//! * *A hole is made, the block is given out.* If the block were given out first, the hole could take the bytes of its
//!   new chunk. So blocks are retired until their hole is made.
//! * *Two writers append.* A block is taken and becomes pending under one lock.
//! * *A chunk is appended while another thread prepares.* The prepare takes the chunks with smaller serial numbers than
//!   at its beginning. A buffer that has such chunks may have later ones too; they are written, and not named.
//! * *A buffer is loaded while it is written.* Its bytes stay in memory until the write has succeeded.
//! * *Two threads prepare, one commits, the block is freed and given out, then the other commits.* The second commit
//!   would take the new chunk for logged. So a commit names the serial numbers of its chunks. (Its records would still
//!   bring the old chunk back into the table, so the caller must not free a block while a [`Prepared`] names it.)
//! * *A crash comes before the records are in the log.* The table does not have the blocks, so they are free. Their
//!   bytes mean nothing, and their room comes back with the next chunk or by [`ArenaStore::give_back`].
//! * *A crash comes behind the records.* The bytes were synced before. A sync makes the length of the file durable too.
//!   So a file that ends before a block of the table was cut by something else: that block is damaged, and not given
//!   out when the file grows over it again.
//! * *A crash comes between a removal and the hole.* The table does not have the block. It is free, with its room.
//! * *A crash comes before the removal is durable.* The log does not have it, so the replayed table has the chunk. No
//!   hole was made and nothing was written there, as both come behind [`ArenaStore::free`].
//!
//! Locks are taken in this order: settling, space, pending. The block table is asked under `space`, never under
//! `pending`. Nothing is read under any of them, and nothing is written but new lengths (`space`) and holes of
//! [`ArenaStore::give_back`] (`space`).
//!
//! [`Prepared`]: crate::Prepared

mod block;
mod content;
mod device;
mod free;
mod header;
mod holes;
mod options;
mod pending;
mod prepare;
mod reader;
mod records;
mod space;
mod store;
mod verify;
mod view;
mod window;
mod writer;

pub use block::{
    Block, BlockTable, MAX_BLOCK_BYTES, MAX_BLOCKS, UNIT_BLOCKS, address_of_block, block_of_address, decode_note, encode_note,
};
pub use content::{PossibleName, WithoutChunk};
pub use holes::{FileHoles, Holes, NoHoles};
pub use options::ArenaOptions;
pub use records::BLOCKS_STORED;
pub(crate) use records::stored_blocks;
pub use store::{ArenaFigures, ArenaParts, ArenaStore};
pub use verify::BlockVisitor;
pub use writer::ArenaWriter;
