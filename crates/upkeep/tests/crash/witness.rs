//! Whether the interesting things happened: a harness that never sweeps proves nothing about sweeps.

use crate::world::{World, descriptor, settings};
use onefold_ground::{Access, Ground, SimulatedGround};
use onefold_oplog::{Log, LogOptions, Opening};
use onefold_storage::{ChunkKind, ContainerId, ContainerRecord, HEADER_BYTES};
use onefold_volume::Layer;
use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// How often something was seen.
#[derive(Debug, Default)]
pub struct Witness {
    sweeps: u64,
    growths: u64,
    sealed: u64,
    /// Frames went into a container of an earlier opening.
    continued: u64,
    checkpoints: u64,
    /// Log segments after the first.
    segments: u64,
    trims: u64,
    /// Bytes in a container that no record names.
    torn_frames: u64,
    /// Containers with dead slots.
    dead: u64,
    /// Layers of volumes that a crash left while they were being dropped or taken in.
    layers_under_way: u64,
    /// Old ids of containers that were merged.
    forwards: u64,
    open_before: u64,
}

impl Witness {
    pub fn begin(&mut self, world: &World) {
        self.open_before = world.engine.storage().statistics().open_containers;
        let layers = &mut self.layers_under_way;
        let count = &mut |_: &[u8], value: &[u8]| {
            let layer = Layer::decode(u32::MAX, value).expect("it was read when the volumes were opened");
            *layers += u64::from(layer.is_dropped || layer.merging.is_some());
        };
        world.engine.for_each_object(b'l', count).expect("it was read when the volumes were opened");
    }

    pub fn end(&mut self, world: &World) {
        let index = world.engine.index().statistics();
        self.sweeps += index.sweeps;
        self.growths += index.growths;
        let storage = world.engine.storage().statistics();
        self.sealed += storage.sealed_containers;
        let _ = world.engine.for_each_dead(&mut |_, _| self.dead += 1);
        self.forwards += world.engine.storage().forwards().map_or(0, |forwards| forwards.len() as u64);
        self.continued += u64::from(self.open_before > 0 && storage.frames > 0);
    }

    /// Looks at what a crash left.
    pub fn look(&mut self, ground: &SimulatedGround, seed: u64) {
        let shared: Arc<dyn Ground> = Arc::new(ground.clone());
        let Ok(store) = onefold_engine::Descriptor::read(&*shared) else { return };
        let (shape, settings) = (descriptor(seed), settings(seed));
        let options = LogOptions { segment_bytes: settings.log_segment_bytes, limit_bytes: settings.log_limit_bytes };
        let Ok(log) = Log::open(shared.clone(), "log", store.store, options, Opening::ReadOnly) else { return };
        self.segments += log.segments() as u64 - 1;
        self.trims += u64::from(log.start().0 > 0);
        let mut ends: BTreeMap<ContainerId, Option<u64>> = BTreeMap::new();
        let _ = log.replay(log.start(), &mut |_, _, records| {
            for record in records {
                let Ok(record) = ContainerRecord::decode(record, shape.fingerprint.digest_bytes()) else { continue };
                let end = match &record {
                    ContainerRecord::FrameCommitted { frame, .. } => Some(frame.end_bytes()),
                    ContainerRecord::ContainerCheckpoint { catalog, .. } => {
                        self.checkpoints += 1;
                        Some(catalog.end_bytes())
                    }
                    ContainerRecord::FrameData { .. } => Some(HEADER_BYTES as u64),
                    ContainerRecord::ContainerSealed { .. } | ContainerRecord::ContainersMerged { .. } => None,
                };
                let known = ends.entry(record.container()).or_insert(Some(0));
                *known = known.and_then(|known| end.map(|end| known.max(end)));
            }
            ControlFlow::Continue(())
        });
        for (container, end) in ends {
            let path = format!("containers/{:04x}/{:05x}/{:08x}", container.partition(), container.number() >> 12, container.number());
            if let (Some(end), Ok(file)) = (end, ground.open(&path, Access::Read)) {
                let length = file.len().unwrap();
                let mut rest = vec![0; length.saturating_sub(end) as usize];
                file.read_at(length - rest.len() as u64, &mut rest).unwrap();
                self.torn_frames += u64::from(rest.iter().any(|byte| *byte != 0));
            }
        }
    }

    pub fn has_seen_everything(&self) {
        let seen = [
            ("sweep", self.sweeps),
            ("growth", self.growths),
            ("seal", self.sealed),
            ("continued container", self.continued),
            ("checkpoint", self.checkpoints),
            ("log segment", self.segments),
            ("trim", self.trims),
            ("torn frame", self.torn_frames),
            ("container with dead slots", self.dead),
            ("layer under way", self.layers_under_way),
            ("forward", self.forwards),
        ];
        for (what, times) in seen {
            assert!(times >= 3, "{what} was seen {times} times: {self:?}");
        }
    }
}

/// Without crash and error no chunk is stored a second time while it is stored.
pub fn nothing_twice(world: &World) -> Result<(), String> {
    let storage = world.engine.storage();
    let mut seen = HashSet::new();
    for container in storage.containers().map_err(|error| error.to_string())? {
        let dead = world.engine.dead_slots(container).map_err(|error| error.to_string())?;
        let slots = storage.slots(container).map_err(|error| error.to_string())?;
        for (_, (_, slot)) in slots.into_iter().enumerate().filter(|(number, _)| !dead.contains(*number)) {
            if !seen.insert((slot.fingerprint, slot.kind != ChunkKind::Data)) {
                return Err(format!("chunk {} is stored twice", slot.fingerprint));
            }
        }
    }
    Ok(())
}
