//! How much a command says beside its results.

/// How much to say beside results.
#[derive(Clone, Copy, Debug)]
pub struct Talk {
    /// Nothing.
    pub quiet: bool,
    /// The log uses standard error, so there is no progress bar.
    pub verbose: bool,
}
