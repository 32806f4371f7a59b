//! What rehearsed repairs would have written (`rehearsing.rs`).

use crate::ContainerId;
use onefold_ground::File;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// The container files that repairs would have written. Off until a rehearsal is requested.
#[derive(Debug, Default)]
pub(crate) struct Rehearsal {
    files: OnceLock<Mutex<HashMap<ContainerId, Arc<dyn File>>>>,
}

impl Rehearsal {
    /// Returns whether repairs are only rehearsed.
    pub(crate) fn is_on(&self) -> bool {
        self.files.get().is_some()
    }

    /// From now on repairs are only rehearsed.
    pub(crate) fn begin(&self) {
        self.files.get_or_init(Mutex::default);
    }

    /// Returns the containers whose files a rehearsed repair would have written.
    pub(crate) fn containers(&self) -> Vec<ContainerId> {
        self.files.get().map_or(Vec::new(), |files| files.lock().keys().copied().collect())
    }

    /// Returns a container's file as a rehearsed repair would have left it, if there was one.
    pub(crate) fn file(&self, container: ContainerId) -> Option<Arc<dyn File>> {
        self.files.get()?.lock().get(&container).cloned()
    }

    /// If repairs are rehearsed, makes `file` the container's file from now on. Returns whether they are.
    pub(crate) fn keep(&self, container: ContainerId, file: &Arc<dyn File>) -> bool {
        let Some(files) = self.files.get() else { return false };
        files.lock().insert(container, file.clone());
        true
    }
}
