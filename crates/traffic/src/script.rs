//! A generation as a sequence of steps over the previous one, from beginning to end.

use crate::model::ModelScript;
use crate::op::Op;
use crate::sets::{ImageScript, PlainScript, VersionScript};

/// The steps of a generation. They never ask the previous generation for more than it has.
#[derive(Debug)]
pub(crate) enum Script {
    Model(ModelScript),
    Plain(PlainScript),
    Versions(VersionScript),
    Images(ImageScript),
}

impl Script {
    /// Returns the next step, which may have length 0. Returns `None` at the end.
    pub(crate) fn next(&mut self) -> Option<Op> {
        match self {
            Script::Model(script) => script.next(),
            Script::Plain(script) => script.next(),
            Script::Versions(script) => script.next(),
            Script::Images(script) => script.next(),
        }
    }
}
