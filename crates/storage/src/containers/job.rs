//! The work that a store hands to its threads.

use crate::containers::open::{Form, FrameJob, OpenContainer};
use std::sync::Arc;

/// One frame to write.
pub(crate) struct Job {
    pub(crate) container: Arc<OpenContainer>,
    pub(crate) number: u32,
    pub(crate) raw: Arc<Vec<u8>>,
    pub(crate) form: Form,
}

impl Job {
    pub(crate) fn new(container: &Arc<OpenContainer>, number: u32, frame: FrameJob) -> Job {
        Job { container: container.clone(), number, raw: frame.raw, form: frame.form }
    }
}
