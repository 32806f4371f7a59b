//! Writing on in a damaged store must not make the damage greater: nothing is given out that is in use, and nothing
//! goes that is needed.

use crate::actions::Action;
use crate::scene::{BLOCK_BYTES, Look, Scene, VOLUME, VOLUME_BYTES, look, noise, open, settle};
use onefold_engine::{Engine, Mode};
use onefold_ground::CrashPolicy;
use onefold_upkeep::{NoMonitor, PruneOptions, prune};
use onefold_volume::{Volumes, VolumesOptions};
use std::sync::Arc;

const NEW: &str = "new";

/// Damages a copy and writes on in it, if it opens. Each step may be refused. What could be read before can be read
/// afterwards, and so can what was acknowledged.
pub fn write_on(scene: &Scene, path: &str, action: Action) {
    let what = format!("{path} {action:?}, written on");
    let ground = scene.copy();
    action.apply(&ground, path);
    settle(&ground);
    let newest = scene.states.last().unwrap();
    let before = look(&ground.snapshot(CrashPolicy::KeepAll), Mode::ReadOnly, newest);
    let Ok(engine) = open(&ground, Mode::ReadWrite) else { return };
    let (overwritten, data) = (noise(98, BLOCK_BYTES as usize), noise(99, VOLUME_BYTES as usize / 2));
    let is_overwritten = write(&engine, VOLUME, &overwritten);
    let volumes = || Volumes::open(engine.clone(), VolumesOptions::default());
    let is_made = volumes().and_then(|volumes| volumes.create(NEW, VOLUME_BYTES, BLOCK_BYTES, None)).is_ok();
    let is_new = is_made && write(&engine, NEW, &data);
    // Whether it reclaims, sweeps and grows depends on the damage.
    let _ = prune(&engine, PruneOptions { max_unused: 0.0, ..PruneOptions::default() }, &NoMonitor, &|| true);
    let _ = engine.maintain(true);
    drop(engine);
    let ground = ground.restart(CrashPolicy::DropAll);
    settle(&ground);
    let after = look(&ground, Mode::ReadWrite, newest);
    assert!(after.refused.is_none(), "{what}: {:?}", after.refused);
    for ((offset, before), (_, after)) in before.volume.iter().zip(&after.volume) {
        let is_old = |bytes: &Vec<u8>| newest.volume[*offset..].starts_with(bytes);
        let is_right = match overwritten.get(*offset..).filter(|new| !new.is_empty()) {
            Some(new) if is_overwritten => after.as_ref().is_some_and(|bytes| new.starts_with(bytes)),
            Some(new) => after.as_ref().is_none_or(|bytes| new.starts_with(bytes) || is_old(bytes)),
            None => after.as_ref().is_none_or(is_old) && (before.is_none() || after.is_some()),
        };
        assert!(is_right, "{what}: the volume at {offset} is not what it was; {:?}", after.as_ref().map(is_old));
    }
    let files = |found: &Look| found.backups.clone().unwrap_or_default();
    let now = files(&after);
    for (id, tree) in files(&before) {
        for (path, bytes) in tree.into_iter().filter(|(_, bytes)| bytes.is_some()) {
            assert!(now.get(&id).and_then(|tree| tree.get(&path)) == Some(&bytes), "{what}: a file of backup {id} is not what it was");
        }
    }
    if is_new {
        let engine = open(&ground, Mode::ReadOnly).unwrap();
        let volume = Volumes::open(engine, VolumesOptions::default()).unwrap().get(NEW).unwrap();
        let mut bytes = vec![0; data.len()];
        volume.read(0, &mut bytes).unwrap_or_else(|error| panic!("{what}: new data: {error}"));
        assert!(bytes == data, "{what}: new data");
    }
}

/// Writes to the beginning of a volume. Returns whether it is durable.
fn write(engine: &Arc<Engine>, volume: &str, data: &[u8]) -> bool {
    let Ok(volumes) = Volumes::open(engine.clone(), VolumesOptions::default()) else { return false };
    volumes.get(volume).and_then(|volume| volume.write(0, data).and_then(|()| volume.flush())).is_ok()
}
