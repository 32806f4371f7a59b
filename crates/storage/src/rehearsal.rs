//! Repairs that are tried and not made, for dry runs: what a repair would write is what this opening of the store, which is for reading only, sees
//! from then on. Nothing of it is written anywhere, and it takes little memory: a container that parity gives back is read through parity ([`crate::stand_in`]).

use crate::store::{ContainerStore, Shared};
use crate::{ContainerId, Result, file};
use onefold_ground::{Access, File};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The container files that repairs would have written.
#[derive(Debug, Default)]
pub(crate) struct Rehearsal {
    files: Mutex<HashMap<ContainerId, Arc<dyn File>>>,
}

impl ContainerStore {
    /// From now on repairs change what this opening sees, and nothing else. Only in a store that is open for reading: in another one they are made.
    pub fn rehearse(&self) {
        if self.shared.access == Access::Read {
            self.shared.rehearsal.get_or_init(Rehearsal::default);
        }
    }
}

impl Shared {
    /// Whether repairs can be made, or are rehearsed.
    pub(crate) fn check_repairable(&self) -> Result<()> {
        if self.rehearsal.get().is_some() { Ok(()) } else { self.check_writable() }
    }

    /// A container's file as a rehearsed repair would have left it, if there was one.
    pub(crate) fn rehearsed(&self, container: ContainerId) -> Option<Arc<dyn File>> {
        self.rehearsal.get()?.files.lock().get(&container).cloned()
    }

    /// The containers of which a rehearsed repair would have written the file.
    pub(crate) fn all_rehearsed(&self) -> Vec<ContainerId> {
        self.rehearsal.get().map_or(Vec::new(), |rehearsal| rehearsal.files.lock().keys().copied().collect())
    }

    /// If repairs are rehearsed, `file` is the container's file from now on; whether they are.
    pub(crate) fn rehearse_file(&self, container: ContainerId, file: &Arc<dyn File>) -> bool {
        let Some(rehearsal) = self.rehearsal.get() else { return false };
        rehearsal.files.lock().insert(container, file.clone());
        self.retire([container].iter());
        true
    }

    /// If repairs are rehearsed, `containers` are answered for by `target` from now on; whether they are.
    pub(crate) fn rehearse_forwards(&self, containers: &[ContainerId], target: ContainerId) -> bool {
        if self.rehearsal.get().is_none() {
            return false;
        }
        self.forwards.set_logged(containers.iter().map(|container| (*container, Some(target))));
        self.retire(containers.iter());
        true
    }

    /// A container's file, past all caches.
    pub(crate) fn open_past_cache(&self, container: ContainerId) -> onefold_ground::Result<Arc<dyn File>> {
        match self.rehearsed(container) {
            Some(file) => Ok(file),
            None => self.ground.open_past_cache(&file::path(&self.directory, container)),
        }
    }
}
