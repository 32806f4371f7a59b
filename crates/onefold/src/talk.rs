//! How much a command says beside its results.

/// How much is said beside results.
#[derive(Clone, Copy, Debug)]
pub struct Talk {
    /// Nothing.
    pub quiet: bool,
    /// The log takes standard error, so no progress bar.
    pub verbose: bool,
}
