//! What a generation is, told by what it does with the one before, from its beginning to its end.

use crate::model::ModelScript;
use crate::sets::{FingerprintScript, ImageScript, PlainScript};

/// A step; lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Data that was nowhere before.
    Unique(u64),
    /// Data from the pool of what is repeated within the generation; begins a run of it.
    Internal(u64),
    /// The next data of the generation before.
    Copy(u64),
    /// The next data of the generation before is left out.
    Skip(u64),
}

/// The steps of a generation. The generation before is never asked for more than it has.
#[derive(Debug)]
pub(crate) enum Script {
    Model(ModelScript),
    Plain(PlainScript),
    Fingerprints(FingerprintScript),
    Images(ImageScript),
}

impl Script {
    /// The next step, which may have no length; `None` at the end.
    pub(crate) fn next(&mut self) -> Option<Op> {
        match self {
            Script::Model(script) => script.next(),
            Script::Plain(script) => script.next(),
            Script::Fingerprints(script) => script.next(),
            Script::Images(script) => script.next(),
        }
    }
}
