//! The work that a store hands to its threads.

use crate::open::{FrameJob, OpenContainer};
use std::sync::Arc;

/// One frame to compress and write.
pub(crate) struct Job {
    pub(crate) container: Arc<OpenContainer>,
    pub(crate) number: u32,
    pub(crate) raw: Arc<Vec<u8>>,
    pub(crate) is_sequential: bool,
}

impl Job {
    pub(crate) fn new(container: &Arc<OpenContainer>, number: u32, frame: FrameJob) -> Job {
        Job { container: container.clone(), number, raw: frame.raw, is_sequential: frame.is_sequential }
    }
}
