//! A store that keeps no data: no command works on it.

mod support;

use onefold_engine::{Descriptor, Engine};
use onefold_ground::{Ground, LocalGround};
use std::sync::Arc;
use support::{Scene, tree};

#[test]
fn no_command_opens_a_store_that_keeps_no_data_or_changes_it() {
    let scene = Scene::new();
    std::fs::create_dir(scene.store()).unwrap();
    let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(scene.store()).unwrap());
    Engine::create(&ground, &Descriptor { discards_data: true, ..Descriptor::new().unwrap() }).unwrap();
    let before = tree(&scene.store());
    for command in [
        "backups",
        "backup --name x .",
        "stats",
        "check",
        "check --read-data",
        "check --repair",
        "check --rebuild-index",
        "prune",
        "scrub",
        "serve --nbd 127.0.0.1:0",
        "volume list",
        "volume create disk --size 1MiB",
    ] {
        scene.run(command.split(' ')).ends_with(2).says(&["keeps no data: an experiment made it", "remove the directory"]);
    }
    assert!(tree(&scene.store()) == before);
}
