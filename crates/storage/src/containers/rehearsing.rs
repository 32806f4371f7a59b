//! Rehearses repairs for dry runs. This opening of the store, which is for reading only, then sees what a repair would
//! write. Nothing is written anywhere, and a rehearsal takes little memory: a container that parity can restore is read
//! through parity ([`crate::containers::stand_in`]).

use crate::containers::file;
use crate::containers::store::{ContainerStore, Shared};
use crate::{ContainerId, Result};
use onefold_ground::File;
use std::sync::Arc;

impl ContainerStore {
    /// From now on repairs change what this opening sees, and nothing else. Works only in a store that is open for
    /// reading; in another store repairs are real.
    pub fn rehearse(&self) {
        if self.shared.mode.is_for_reading() {
            self.shared.rehearsal.begin();
        }
    }
}

impl Shared {
    /// Checks that repairs can be made, or are rehearsed.
    pub(crate) fn check_repairable(&self) -> Result<()> {
        if self.rehearsal.is_on() { Ok(()) } else { self.check_writable() }
    }

    /// Returns a container's file as a rehearsed repair would have left it, if there was one.
    pub(crate) fn rehearsed(&self, container: ContainerId) -> Option<Arc<dyn File>> {
        self.rehearsal.file(container)
    }

    /// Returns the containers whose files a rehearsed repair would have written.
    pub(crate) fn all_rehearsed(&self) -> Vec<ContainerId> {
        self.rehearsal.containers()
    }

    /// If repairs are rehearsed, makes `file` the container's file from now on. Returns whether they are.
    pub(crate) fn rehearse_file(&self, container: ContainerId, file: &Arc<dyn File>) -> bool {
        let is_rehearsed = self.rehearsal.keep(container, file);
        if is_rehearsed {
            self.retire([container].iter());
        }
        is_rehearsed
    }

    /// If repairs are rehearsed, makes `target` answer for `containers` from now on. Returns whether they are.
    pub(crate) fn rehearse_forwards(&self, containers: &[ContainerId], target: ContainerId) -> bool {
        if !self.rehearsal.is_on() {
            return false;
        }
        self.forwards.set_logged(containers.iter().map(|container| (*container, Some(target))));
        self.retire(containers.iter());
        true
    }

    /// Opens a container's file, past all caches.
    pub(crate) fn open_past_cache(&self, container: ContainerId) -> onefold_ground::Result<Arc<dyn File>> {
        match self.rehearsed(container) {
            Some(file) => Ok(file),
            None => self.ground.open_past_cache(&file::path(&self.directory, container)),
        }
    }
}
