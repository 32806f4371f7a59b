//! What a log is to its owner and to views, wherever its batches are.

use crate::{LogError, Position, Record, Result};
use onefold_ground::GroundError;
use std::fmt::Debug;
use std::ops::ControlFlow;

/// Multiple of the limit at which the log is full.
const FULL_AT: u64 = 2;
/// The limit holds at least this many segments.
const SEGMENTS_MIN: u64 = 4;
/// Upper bound of positions.
pub(crate) const POSITIONS_END: u64 = 1 << 62;

/// Sizes of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Size of a segment file. A batch that needs more gets a segment of its own size. The log uses at least 8 KiB and
    /// at most a quarter of the limit. It frees whole segments, so with larger ones it could never get below the limit.
    /// Default 64 MiB. A log in a bucket has no segments, and uses this as the size from which a trim is worth its
    /// requests.
    pub segment_bytes: u64,
    /// Soft limit of the log's size: above it, the log needs trimming ([`Log::is_over_limit`]). Default 512 MiB.
    ///
    /// At twice this size the log is full ([`LogError::Full`]). If it was longer when opened, it is full at one limit
    /// more than its length then. A full log accepts only records that allow trimming ([`Log::commit_beyond_limit`]).
    /// Below the limit it accepts a batch of any size.
    pub limit_bytes: u64,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions { segment_bytes: 64 << 20, limit_bytes: 512 << 20 }
    }
}

impl LogOptions {
    pub(crate) fn segment_bytes_within_limit(&self, header_bytes: u64) -> u64 {
        self.segment_bytes.min(self.limit_bytes / SEGMENTS_MIN).max(2 * header_bytes)
    }

    /// A log left longer under another limit must accept batches until its users allow trimming.
    pub(crate) fn full_at_bytes(&self, opened_with_bytes: u64) -> u64 {
        self.limit_bytes.saturating_mul(FULL_AT).max(opened_with_bytes.saturating_add(self.limit_bytes))
    }
}

/// How to open a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// For replay and writing, by its owner.
    ReadWrite {
        /// The owner epoch, higher than that of every earlier owner.
        epoch: u64,
    },
    /// For replay only. Nothing on disk changes; a torn tail stays.
    ReadOnly,
}

/// Called by [`Log::replay`] for each batch with its position, the position after it, and its records. `Break` ends the
/// replay.
pub type Visit<'a> = dyn FnMut(Position, Position, &[Record]) -> ControlFlow<()> + 'a;

/// An open log: in segments of a directory ([`SegmentLog`](crate::SegmentLog)), or in objects of a bucket
/// ([`ObjectLog`](crate::ObjectLog)).
pub trait Log: Send + Sync + Debug {
    /// Returns the position from which all batches are there. The first batch is here, or where the log
    /// [jumps](Log::jump_to) from here.
    fn start(&self) -> Position;

    /// Returns the position of the next batch.
    fn end(&self) -> Position;

    /// Returns up to where a view may have applied this log. One that is further on has applied another one.
    fn applied_at_most(&self) -> Position;

    /// Returns the owner epoch of this opening; when reading, the highest in the log.
    fn epoch(&self) -> u64;

    /// Returns the bytes of the batches from start to end, without the positions that the log jumped over.
    fn used_bytes(&self) -> u64;

    /// Returns whether the log is over its limit. Then whatever holds its start should move on.
    fn is_over_limit(&self) -> bool;

    /// Returns the number of parts that a trim can drop: segments, or batches.
    fn parts(&self) -> usize;

    /// Returns whether the next opening would have much to read.
    fn is_long(&self) -> bool;

    /// Passes the batches from `from` on to `visit`, in order. `from` is the start or end of a batch, or the end of the
    /// log. Skips batches committed during the replay. Do not trim the replayed part meanwhile.
    fn replay(&self, from: Position, visit: &mut Visit<'_>) -> Result<()>;

    /// Returns whether the log keeps the effects of everything before [`Log::start`].
    fn has_history(&self) -> bool;

    /// Passes batches on that have these effects, for views that have nothing yet.
    fn replay_history(&self, visit: &mut Visit<'_>) -> Result<()>;

    /// Writes the records as one batch, durable on return. Returns its position and the position after it. Without
    /// records it writes nothing.
    ///
    /// After an error the next opening may or may not find the batch. It never finds a part of it, and never finds it
    /// after a later batch that succeeded. If the log or the device was full ([`LogError::is_full`]), no opening finds
    /// it, and the caller may retry. If a sync failed ([`LogError::NotSynced`]), the log is closed until the next
    /// opening.
    fn commit(&self, records: &[Record]) -> Result<(Position, Position)>;

    /// Commits like [`Log::commit`], for records that allow trimming. Even a full log accepts them, or it would stay
    /// full for ever. The caller must trim the log afterwards.
    fn commit_beyond_limit(&self, records: &[Record]) -> Result<(Position, Position)>;

    /// Commits like [`Log::commit_beyond_limit`], and says that this opening has ended its work: it writes nothing
    /// more, and all that it made belongs to the log. Without records, too, if the next opening can make use of it.
    fn commit_last(&self, records: &[Record]) -> Result<(Position, Position)>;

    /// Returns whether the last opening before this one has ended its work.
    fn was_ended(&self) -> bool;

    /// Makes the next batch start at `position`, durable on return. Does nothing if the log already ends there or
    /// later. The positions in between hold no batch and never will. `position` must be a multiple of
    /// [`ALIGNMENT_BYTES`](crate::ALIGNMENT_BYTES) below 2^62.
    ///
    /// An adopter calls it to continue after another log. From then on its writes are later than everything written
    /// before that position, in any log.
    ///
    /// An error that does not close the log changed nothing. After one that does, the next opening finds the log at
    /// either place.
    fn jump_to(&self, position: Position) -> Result<()>;

    /// Returns whether [`Log::trim`] would drop a part.
    fn has_parts_before(&self, upto: Position) -> bool;

    /// Drops the parts that end at or before `upto`. All views must have applied everything before `upto` durably.
    fn trim(&self, upto: Position) -> Result<()>;

    /// Reads everything that the next opening on another machine would need. Returns what is wrong with it, for people.
    fn verify(&self) -> Vec<String>;

    /// Does a bounded piece of work that nobody waits for. Returns whether there was any.
    fn tidy(&self) -> Result<bool>;

    /// Returns the log if it is in a bucket. Such logs can do more.
    fn in_bucket(&self) -> Option<&crate::ObjectLog> {
        None
    }

    /// Frees the space kept for further batches, when the log closes. The next opening reserves it again. A failure
    /// only leaves that space in use.
    fn release_room(&self);
}

/// Makes the error for bytes that cannot be what the log wrote.
pub(crate) fn damaged(path: String, why: impl ToString) -> LogError {
    LogError::Damaged { path, offset_bytes: 0, why: why.to_string() }
}

/// Returns whether bytes are missing or wrong, rather than out of reach for the moment.
pub(crate) fn is_lost(error: &GroundError) -> bool {
    error.is_lasting()
}
