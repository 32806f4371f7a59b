//! Whether the interesting things happened: a harness that never sweeps proves nothing about sweeps.

use crate::model::Model;
use crate::sight::Sight;
use crate::world::{Case, World};
use onefold_blocks::Owner;
use onefold_engine::Descriptor;
use onefold_fs::testing::has_removed_files;
use onefold_ground::{Access, Ground, SimulatedGround};
use onefold_oplog::{Log, LogOptions, Opening, SegmentLog};
use onefold_storage::{ChunkKind, ContainerId, ContainerRecord, HEADER_BYTES};
use onefold_volume::Layer;
use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Returns the path of a container's file.
pub(crate) fn file_of(container: ContainerId) -> String {
    format!("containers/{:04x}/{:05x}/{:08x}", container.partition(), container.number() >> 12, container.number())
}

/// How often each was met.
#[derive(Debug, Default)]
pub struct Witness {
    met: BTreeMap<Sight, u64>,
    /// Open containers that the opening found.
    open_before: u64,
}

impl Witness {
    fn meet(&mut self, sight: Sight, times: u64) {
        *self.met.entry(sight).or_default() += times;
    }

    /// Looks at a store that was just opened.
    pub fn begin(&mut self, world: &World) {
        self.open_before = world.engine.containers().map_or(0, |containers| containers.statistics().open_containers);
        let count = &mut |_: &[u8], value: &[u8]| {
            let layer = Layer::decode(u32::MAX, value).expect("it was read when the volumes were opened");
            self.meet(Sight::LayerUnderWay, u64::from(layer.is_dropped || layer.merging.is_some()));
        };
        world.engine.for_each_object(b'l', count).expect("it was read when the volumes were opened");
        for info in world.filesystems.list() {
            let space = world.filesystems.spaces().get(Owner::Filesystems, &info.name);
            let is_left = !info.is_read_only && space.is_ok_and(|space| has_removed_files(&space));
            self.meet(Sight::RemovedFile, u64::from(is_left));
        }
    }

    /// Takes over what a model met in its filesystems.
    pub fn learn(&mut self, model: &mut Model) {
        for sight in model.met.drain(..) {
            self.meet(sight, 1);
        }
    }

    /// Looks at a store after its run.
    pub fn end(&mut self, world: &World) {
        let index = world.engine.index().map(|index| index.statistics()).unwrap_or_default();
        self.meet(Sight::Sweep, index.sweeps);
        self.meet(Sight::Growth, index.growths);
        let storage = world.engine.containers().map(|containers| containers.statistics()).unwrap_or_default();
        self.meet(Sight::Seal, storage.sealed_containers);
        self.meet(Sight::Supplied, storage.came_frames);
        let levels = world.engine.levels().map(|levels| levels.levels()).unwrap_or_default();
        self.meet(Sight::Table, levels.first().map_or(0, |level| level.tables));
        self.meet(Sight::Compaction, levels.iter().skip(1).map(|level| level.tables).sum());
        let partitions = world.engine.levels().and_then(|levels| levels.partitions().ok()).unwrap_or_default();
        self.meet(Sight::HalfMoved, partitions.iter().map(|partition| partition.tables_elsewhere).sum());
        let _ = world.engine.for_each_dead(&mut |_, _| self.meet(Sight::Dead, 1));
        self.meet(Sight::Redirect, world.engine.range(0, b"o", b"p", 1).map_or(0, |found| found.len() as u64));
        self.meet(Sight::Forward, world.engine.storage().forwards().map_or(0, |forwards| forwards.len() as u64));
        self.meet(Sight::Continued, u64::from(self.open_before > 0 && storage.frames > 0));
    }

    /// Looks at what a crash left.
    pub fn look(&mut self, ground: &SimulatedGround, case: Case) {
        let shared: Arc<dyn Ground> = Arc::new(ground.clone());
        let Ok(store) = Descriptor::read(&*shared) else { return };
        let settings = case.settings();
        let options = LogOptions { segment_bytes: settings.log_segment_bytes, limit_bytes: settings.log_limit_bytes };
        let Ok(log) = SegmentLog::open(shared.clone(), "log", store.store, options, Opening::ReadOnly) else { return };
        self.meet(Sight::Segment, log.segments() as u64 - 1);
        self.meet(Sight::Trim, u64::from(log.start().0 > 0));
        let mut ends: BTreeMap<ContainerId, Option<u64>> = BTreeMap::new();
        let _ = log.replay(log.start(), &mut |_, _, records| {
            for record in records {
                let Ok(record) = ContainerRecord::decode(record, store.fingerprint.digest_bytes()) else { continue };
                let end = match &record {
                    ContainerRecord::FrameCommitted { frame, .. } => Some(frame.end_bytes()),
                    ContainerRecord::ContainerCheckpoint { catalog, .. } => {
                        self.meet(Sight::Checkpoint, 1);
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
            let path = file_of(container);
            if let (Some(end), Ok(file)) = (end, ground.open(&path, Access::Read)) {
                let length = file.len().unwrap_or(0);
                let mut rest = vec![0; length.saturating_sub(end) as usize];
                if file.read_at(length - rest.len() as u64, &mut rest).is_ok() {
                    self.meet(Sight::TornFrame, u64::from(rest.iter().any(|byte| *byte != 0)));
                }
            }
        }
    }

    /// Panics unless all this was met at least three times.
    pub fn must_have_met(&self, sights: &[Sight]) {
        let times = |sight| self.met.get(sight).copied().unwrap_or(0);
        let rare: Vec<_> = sights.iter().filter(|sight| times(sight) < 3).collect();
        assert!(rare.is_empty(), "{rare:?} were met less than three times: {:?}", self.met);
    }
}

/// Checks that no chunk is stored a second time while it is stored, if the profile promises that. Call only when
/// nothing crashed or failed.
pub fn nothing_twice(world: &World) -> Result<(), String> {
    if !world.engine.descriptor().profile.is_exact() {
        return Ok(());
    }
    let storage = world.engine.storage();
    let mut seen = HashSet::new();
    for container in storage.units().map_err(|error| error.to_string())?.iter() {
        let dead = world.engine.dead_slots(container).map_err(|error| error.to_string())?;
        let slots = storage.chunks_of(container).map_err(|error| error.to_string())?;
        for (_, (_, slot)) in slots.into_iter().enumerate().filter(|(number, _)| !dead.contains(*number)) {
            if !seen.insert((slot.fingerprint, slot.kind != ChunkKind::Data)) {
                return Err(format!("chunk {} is stored twice", slot.fingerprint));
            }
        }
    }
    Ok(())
}
