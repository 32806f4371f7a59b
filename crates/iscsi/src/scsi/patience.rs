//! How long a command waits.

/// How a command waits, and for whom.
pub trait Patience: Send + Sync {
    /// From now on the command only waits, perhaps for hours. Its working resources can be given to others.
    fn begin_to_wait(&self);

    /// Returns whether nobody waits for its answer any more.
    fn is_over(&self) -> bool;
}
