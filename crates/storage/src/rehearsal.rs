//! Repairs that are tried and not made, for dry runs: what a repair would write is what this opening of the store, which is for reading only, sees
//! from then on. Nothing of it is written anywhere, and it takes little memory: a container that parity gives back is read through parity ([`crate::stand_in`]).

use crate::store::{ContainerStore, Shared};
use crate::{ContainerId, Result, file};
use onefold_ground::File;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// The container files that repairs would have written. Off until somebody asks for a rehearsal.
#[derive(Debug, Default)]
pub(crate) struct Rehearsal {
    files: OnceLock<Mutex<HashMap<ContainerId, Arc<dyn File>>>>,
}

impl Rehearsal {
    /// Returns whether repairs are only tried.
    pub(crate) fn is_on(&self) -> bool {
        self.files.get().is_some()
    }
}

impl ContainerStore {
    /// From now on repairs change what this opening sees, and nothing else. Only in a store that is open for reading: in another one they are made.
    pub fn rehearse(&self) {
        if self.shared.mode.is_for_reading() {
            self.shared.rehearsal.files.get_or_init(Mutex::default);
        }
    }
}

impl Shared {
    /// Whether repairs can be made, or are rehearsed.
    pub(crate) fn check_repairable(&self) -> Result<()> {
        if self.rehearsal.is_on() { Ok(()) } else { self.check_writable() }
    }

    /// A container's file as a rehearsed repair would have left it, if there was one.
    pub(crate) fn rehearsed(&self, container: ContainerId) -> Option<Arc<dyn File>> {
        self.rehearsal.files.get()?.lock().get(&container).cloned()
    }

    /// The containers of which a rehearsed repair would have written the file.
    pub(crate) fn all_rehearsed(&self) -> Vec<ContainerId> {
        self.rehearsal.files.get().map_or(Vec::new(), |files| files.lock().keys().copied().collect())
    }

    /// If repairs are rehearsed, `file` is the container's file from now on; whether they are.
    pub(crate) fn rehearse_file(&self, container: ContainerId, file: &Arc<dyn File>) -> bool {
        let Some(files) = self.rehearsal.files.get() else { return false };
        files.lock().insert(container, file.clone());
        self.retire([container].iter());
        true
    }

    /// If repairs are rehearsed, `containers` are answered for by `target` from now on; whether they are.
    pub(crate) fn rehearse_forwards(&self, containers: &[ContainerId], target: ContainerId) -> bool {
        if !self.rehearsal.is_on() {
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
