//! Volumes in the stores of tests.

use crate::{Volume, Volumes, VolumesOptions};
use onefold_blocks::Space;
use onefold_blocks::testing::TestStore;
use std::sync::Arc;

pub(crate) trait VolumeStore {
    fn volumes(&mut self, options: VolumesOptions) -> Volumes;

    /// See [`TestStore::check_counts`].
    fn check_volumes<'v>(&mut self, volumes: impl IntoIterator<Item = &'v Arc<Volume>>);
}

impl VolumeStore for TestStore {
    fn volumes(&mut self, options: VolumesOptions) -> Volumes {
        Volumes::of(Arc::new(self.spaces(options)))
    }

    fn check_volumes<'v>(&mut self, volumes: impl IntoIterator<Item = &'v Arc<Volume>>) {
        let spaces: Vec<&Space> = volumes.into_iter().map(|volume| &*volume.blocks).collect();
        self.check_counts(&spaces);
    }
}
