//! The operations log (M0.17): the write-ahead log of an owner. Its format is section 4 of `docs/format.md`.
//!
//! A [`Log`] is a sequence of *batches* of [`Record`]s in files called *segments*. A batch is on disk when [`Log::commit`] returns,
//! and it is replayed whole or not at all.
//!
//! # Why what was acknowledged is found again, and nothing else is taken for it
//! 1. *One batch is in doubt at most.* Batches are written one after the other, each synced before the next is begun. So when a batch
//!    is written, all before it are durable, and after a crash only the last one can be torn. When a sync fails nobody knows what
//!    reached the disk, so the log takes nothing more ([`LogError::Poisoned`]). Batches are aligned to 4 KiB, so that neither the page cache
//!    nor a drive writes a part of an acknowledged batch again when it writes the next one.
//! 2. *A segment proves what is before it.* A segment gets its name only after every batch before its start was synced, and after its
//!    own header was. So a named segment always has a valid header, which says where the batches before it end, and a chain of batches
//!    that does not lead exactly from one segment's start to there is damage, not a torn tail. Bytes behind that place mean nothing. The
//!    segment's own start is the same place, or behind it where the log [jumps](Log::jump_to): a gap without a header that declares it is a
//!    lost segment.
//! 3. *Where remains may lie, nothing is written.* Behind the end there may be a torn batch, whose payload can hold anything, even
//!    the image of a batch, or the content of a recycled segment. A log that is opened for writing goes on in its last
//!    segment only if all the rest of it is zeros. Otherwise, and after a write that failed, the next batch opens a new segment whose
//!    start is the end of the log; by 2 the remains are then out of the log for good. If the last segment has no batch at
//!    all, the new one replaces it by rename, in one step, and says the same of the place before it.
//! 4. *Old content of a recycled segment is not a batch of the new one*: a batch names its own position, recycled segments held
//!    lower positions, and positions are never used again for another durable batch.
//! 5. *Epochs never fall along the log*, so even where 3 or 4 were circumvented (a segment put back by hand), what an earlier owner
//!    wrote behind the end of a later one is stale, neither a batch nor a proof of damage.
//! 6. *What is replayed stays.* A batch that is complete but was never synced is accepted; opening for writing syncs it before anything is
//!    built on it, and writes it again if a read past the page cache does not find it on the device. (After a failed sync Linux takes the page
//!    for clean.) An acknowledged batch is found there, so it is not written again.
//!
//! This crate must never know what a record means: of batches that are decoded it has the type that [`View`]s take, no more.

mod batch;
mod error;
mod log;
mod log_salvage;
mod ownership;
mod record;
mod segment;
mod view;

pub use batch::{ALIGNMENT_BYTES, BATCH_MAX_BYTES, Batch, BatchError, parse_batch};
pub use error::{LogError, Result};
pub use log::{Log, LogOptions, Opening, Visit};
pub use log_salvage::{Remnants, first_segment, guess_records, replace_log, salvage_batches};
pub use ownership::{Owned, Ownership};
pub use record::{Partition, PartitionClass, Position, Record};
pub use view::{Change, Effects, Pressure, View};
