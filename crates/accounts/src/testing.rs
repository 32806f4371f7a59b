//! What several tests need.

use super::record::{Account, Limits};
use super::secret::Recipe;
use super::{Certificates, Namespace, Permissions};
use onefold_engine::{Descriptor, Engine, Mode, Settings};
use onefold_ground::{Ground, LocalGround};
use std::sync::Arc;

pub(crate) fn account(name: &str) -> Account {
    Account {
        name: name.to_owned(),
        created_ns: 5,
        rotated_ns: 7,
        generation: 1,
        is_locked: false,
        certificates: Certificates::default(),
        permissions: Permissions::own(Namespace::new(name).unwrap()),
        limits: Limits::default(),
        recipe: Recipe { cost: super::secret::COST, salt: [3; 16] },
        hash: [9; 32],
        former: None,
    }
}

pub(crate) fn open(directory: &tempfile::TempDir) -> Arc<Engine> {
    let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).unwrap());
    Engine::open(ground, Settings::default(), Mode::ReadWrite, "test").unwrap()
}

pub(crate) fn store() -> (tempfile::TempDir, Arc<Engine>) {
    let directory = tempfile::tempdir().unwrap();
    let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).unwrap());
    Engine::create(&ground, &Descriptor::new().unwrap()).unwrap();
    let engine = open(&directory);
    (directory, engine)
}
