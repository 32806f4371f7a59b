//! A step of a generation over the previous one.

/// A step, with a length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Data that appeared nowhere before.
    Unique(u64),
    /// Data from the pool of repeated data. Begins a run.
    Internal(u64),
    /// The next data of the previous generation.
    Copy(u64),
    /// Skips the next data of the previous generation.
    Skip(u64),
}
