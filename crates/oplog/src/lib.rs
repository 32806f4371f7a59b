//! The operations log (M0.17): the write-ahead log of an owner. Section 4 of `docs/format.md` describes its format.
//!
//! A [`Log`] is a sequence of *batches* of [`Record`]s in files called *segments*. A batch is durable when
//! [`Log::commit`] returns. Replay returns it whole or not at all.
//!
//! # Why replay finds every acknowledged batch, and nothing else
//! 1. *At most one batch is in doubt.* The log writes batches one after the other and syncs each before it starts the
//!    next. So when it writes a batch, all earlier ones are durable, and a crash can tear only the last one.
//!    - After a failed sync ([`LogError::NotSynced`]) nobody knows what reached the disk, so the log accepts no more
//!      batches ([`LogError::Poisoned`]).
//!    - Batches are aligned to 4 KiB. So writing the next batch rewrites no part of an acknowledged one, neither in the
//!      page cache nor in a drive.
//! 2. *A segment proves what is before it.* The log syncs every batch before a segment's start, and the segment's own
//!    header. Only then does the segment get its name. So a named segment always has a valid header, which says where
//!    the batches before it end.
//!    - If the chain of batches from one segment's start does not lead exactly to that place, that is damage, not a
//!      torn tail. Bytes past that place mean nothing.
//!    - The segment itself starts at the same place, or later if the log [jumps](Log::jump_to). A gap that no header
//!      declares is a lost segment.
//! 3. *The log never writes over possible remains.* Past the end there may be a torn batch or the content of a recycled
//!    segment. The payload of a torn batch can hold anything, even the image of a batch.
//!    - A log opened for writing continues its last segment only if the rest of it is zeros. Otherwise, and after a
//!      failed write, the next batch opens a new segment that starts at the end of the log. By 2 that puts the remains
//!      out of the log for good.
//!    - If the last segment has no batch at all, the new one replaces it by rename, in one step. It declares the same
//!      end of the batches before it.
//! 4. *Old content of a recycled segment is not a batch of the new one.* A batch names its own position. Recycled
//!    segments held lower positions. The log never reuses a position for another durable batch.
//! 5. *Epochs never fall along the log.* This holds even where 3 or 4 were circumvented, for example by putting a
//!    segment back by hand. If an earlier owner wrote something past the end of a later one, that is stale. It is
//!    neither a batch nor a proof of damage.
//! 6. *Replayed batches stay.* Replay accepts a complete batch that was never synced. Opening for writing syncs it
//!    before anything builds on it.
//!    - It then reads past the page cache, and rewrites the batch if the device does not have it. (After a failed sync
//!      Linux takes the page for clean.) The device has every acknowledged batch, so none of those is rewritten.
//!
//! This crate must never know what a record means. Of decoded batches it has only the type that [`View`]s take.

mod batch;
mod error;
mod log;
mod log_salvage;
mod object_log;
mod ownership;
mod record;
mod segment;
mod segment_log;
mod view;

pub use batch::{ALIGNMENT_BYTES, BATCH_MAX_BYTES, Batch, BatchError, parse_batch};
pub use error::{LogError, Result};
pub use log::{Log, LogOptions, Opening, Visit};
pub use log_salvage::{Remnants, first_segment, guess_records, replace_log, salvage_batches};
pub use object_log::{Holding, Holdings, KeyedEffects, LogPlace, Meaning, ObjectLog, Wait};
pub use ownership::{Owned, Ownership, PartitionSet, Partitions, ReservedPartition};
pub use record::{Partition, PartitionClass, Position, Record};
pub use segment_log::SegmentLog;
pub use view::{Change, Effects, Pressure, View};
