//! `check` of layers: what shares a lost chunk is named, and what does not fit together is found (M0.21).

use onefold_engine::{Descriptor, Engine, Mode, Settings, Transaction};
use onefold_ground::{Ground, SimulatedGround};
use onefold_upkeep::{CheckOptions, NoMonitor, ProblemKind, check};
use onefold_volume::{Layer, Volumes, VolumesOptions};
use std::sync::Arc;

const BLOCK_BYTES: usize = 64 << 10;

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let bytes = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    });
    bytes.take(length).collect()
}

struct Scene {
    ground: SimulatedGround,
    engine: Arc<Engine>,
}

impl Scene {
    /// A volume with two snapshots and a clone. Block 0 is the same in all, block 1 was written again before the second
    /// snapshot.
    fn new() -> Scene {
        let ground = SimulatedGround::new(1);
        let shared: Arc<dyn Ground> = Arc::new(ground.clone());
        let descriptor = Descriptor { compression: onefold_storage::Compression::None, ..Descriptor::new().unwrap() };
        Engine::create(&shared, &descriptor).unwrap();
        let engine = Engine::open(shared, Settings { background: false, ..Settings::default() }, Mode::ReadWrite, "test").unwrap();
        let volumes = Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
        let disk = volumes.create("disk", 4 * BLOCK_BYTES as u64, BLOCK_BYTES as u32, None).unwrap();
        disk.write(0, &noise(1, 2 * BLOCK_BYTES)).unwrap();
        volumes.snapshot("disk", "monday").unwrap();
        disk.write(BLOCK_BYTES as u64, &noise(2, BLOCK_BYTES)).unwrap();
        volumes.snapshot("disk", "tuesday").unwrap();
        volumes.make_clone("tuesday", "copy", false).unwrap().write(0, &noise(3, BLOCK_BYTES)).unwrap();
        volumes.flush().unwrap();
        Scene { ground, engine }
    }

    fn problems(&self) -> Vec<(ProblemKind, String)> {
        let options = CheckOptions { read_data: true, ..CheckOptions::default() };
        let report = check(&self.engine, options, &NoMonitor).unwrap();
        report.problems.into_iter().map(|problem| (problem.kind, problem.what)).collect()
    }

    fn layers(&self) -> Vec<(u32, Layer)> {
        let mut layers = Vec::new();
        let read = &mut |key: &[u8], value: &[u8]| {
            let number = u32::from_be_bytes(key[1..].try_into().unwrap());
            layers.push((number, Layer::decode(number, value).unwrap()));
        };
        self.engine.for_each_object(b'l', read).unwrap();
        layers
    }

    fn set_layer(&self, number: u32, layer: Option<&Layer>) {
        let key = [b"l".as_slice(), &number.to_be_bytes()].concat();
        let change = (0, key, layer.map(Layer::encode));
        self.engine.submit(Transaction { changes: vec![change], references: vec![] }).unwrap();
        self.engine.flush().unwrap();
    }

    fn finds(&self, expected: &[&str]) {
        let problems = self.problems();
        for text in expected {
            assert!(problems.iter().any(|(kind, what)| *kind == ProblemKind::Object && what.contains(text)), "{text}: {problems:?}");
        }
    }
}

#[test]
fn m0_21_shared_layers_are_clean() {
    assert_eq!(Scene::new().problems(), []);
}

#[test]
fn m0_21_everybody_who_shares_a_lost_block_is_named() {
    let scene = Scene::new();
    // The bytes of block 1 as it was on Monday.
    scene.engine.maintain(true).unwrap();
    let wanted = &noise(1, 2 * BLOCK_BYTES)[BLOCK_BYTES + 30_000..][..16];
    let mut is_damaged = false;
    for directory in scene.ground.list("containers/0000").unwrap() {
        for file in scene.ground.list(&format!("containers/0000/{}", directory.name)).unwrap() {
            let path = format!("containers/0000/{}/{}", directory.name, file.name);
            let open = scene.ground.open(&path, onefold_ground::Access::Read).unwrap();
            let mut bytes = vec![0; open.len().unwrap() as usize];
            open.read_at(0, &mut bytes).unwrap();
            if let Some(at) = bytes.windows(16).position(|window| window == wanted) {
                scene.ground.corrupt(&path, at as u64, 1).unwrap();
                is_damaged = true;
            }
        }
    }
    assert!(is_damaged);
    let problems = scene.problems();
    let names = |name: &str| problems.iter().any(|(kind, what)| *kind == ProblemKind::Affected && what.contains(name));
    assert!(names("snapshot \"monday\": bytes 6"), "{problems:?}");
    assert!(!names("\"tuesday\": bytes 9"), "{problems:?}");
    // The frame may have lost the end of block 0 too, which all but the clone share; the clone has its own.
    assert!(!names("\"copy\""), "{problems:?}");
}

#[test]
fn m0_21_layers_that_do_not_fit_together_are_found() {
    let scene = Scene::new();
    let layers = scene.layers();
    let (child, layer) = layers.iter().find(|(_, layer)| layer.parent != 0).unwrap();
    let (parent, below) = layers.iter().find(|(number, _)| *number == layer.parent).unwrap();

    scene.set_layer(*parent, None);
    scene.finds(&["which does not exist", "belongs to map", "\"monday\"", "below \"disk\""]);
    scene.set_layer(*parent, Some(&Layer { is_dropped: true, ..below.clone() }));
    scene.finds(&["which is being dropped"]);
    scene.set_layer(*parent, Some(&Layer { block_bytes: 128 << 10, ..below.clone() }));
    scene.finds(&["which has blocks of 131072 bytes"]);
    scene.set_layer(*parent, Some(&Layer { mappings: 7, ..below.clone() }));
    scene.finds(&["its record says 7"]);
    scene.set_layer(*parent, Some(&Layer { map: layer.map, ..below.clone() }));
    scene.finds(&["both have map"]);
    scene.set_layer(*parent, Some(below));
    scene.set_layer(*child + 100, Some(&Layer { map: *child + 100, mappings: 0, ..layer.clone() }));
    scene.finds(&["is used by no volume"]);
    scene.set_layer(*child + 100, None);
    assert_eq!(scene.problems(), []);
    let (top, _) = layers.iter().rfind(|(_, layer)| layer.mappings == 0).unwrap();
    scene.set_layer(*top + 100, Some(&Layer { parent: *top, map: *top + 100, mappings: 0, ..layer.clone() }));
    scene.finds(&["writes to layer", "which other volumes also use"]);
    scene.set_layer(*parent, Some(&Layer { parent: *parent, ..below.clone() }));
    scene.finds(&["which is not older"]);
}
