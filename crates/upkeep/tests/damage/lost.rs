//! A store after its object index was lost: backups are all there, volumes are known, and what they had is an error
//! until it is written again.

use crate::scene::{BLOCK_BYTES, Scene, VOLUME, VOLUME_BYTES, look, noise, open, settings};
use onefold_engine::{Mode, SalvageOptions};
use onefold_ground::{CrashPolicy, Ground};
use onefold_upkeep::{CheckOptions, NoMonitor, ProblemKind, check, salvage};
use onefold_volume::{Volumes, VolumesOptions};
use std::sync::Arc;

#[test]
fn without_the_object_index_backups_come_back_and_blocks_of_volumes_are_errors_until_they_are_written_again() {
    // Its log was trimmed: it does not say everything by itself.
    let scene = Scene::merged();
    let ground = scene.copy();
    ground.remove("objects/0000.redb").unwrap();
    assert!(open(&ground, Mode::ReadWrite).is_err() && open(&ground, Mode::ReadOnly).is_err());
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    salvage(&shared, &settings(), SalvageOptions { dry_run: false, may_lose: true }, "test", &NoMonitor).unwrap();
    let newest = scene.states.last().unwrap();
    let found = look(&ground, Mode::ReadWrite, newest);
    assert!(found.agrees(newest), "{:?}", found.refused);
    assert!(found.backups.as_ref().unwrap().values().flatten().all(|(_, bytes)| bytes.is_some()));
    let lost = found.volume.iter().filter(|(_, bytes)| bytes.is_none()).count();
    assert!(lost > 0 && lost < found.volume.len(), "{lost}: what was written last is in the log");
    assert!(found.has(ProblemKind::Object));
    found.assert_named("object index deleted");

    let engine = open(&ground, Mode::ReadWrite).unwrap();
    let volumes = Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
    let volume = volumes.get(VOLUME).unwrap();
    let block = u64::from(BLOCK_BYTES);
    // A new volume has lost nothing, and what is given up behind an end is zeros when the volume grows again.
    let new = volumes.create("new", VOLUME_BYTES, BLOCK_BYTES, None).unwrap();
    let mut bytes = vec![9; VOLUME_BYTES as usize];
    new.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    let snapshot = volumes.snapshot(VOLUME, "moment").unwrap();
    let clone = volumes.make_clone("moment", "clone", false).unwrap();
    for copy in [&snapshot, &clone] {
        for (offset, expected) in &found.volume {
            let mut bytes = vec![9; 16 << 10];
            assert!(copy.read(*offset as u64, &mut bytes).ok().map(|()| bytes) == *expected, "{offset}");
        }
    }
    clone.write_zeroes(0, VOLUME_BYTES).unwrap();
    clone.flush().unwrap();
    clone.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    drop((new, snapshot, clone));
    ["new", "clone", "moment"].iter().for_each(|name| volumes.delete(name).unwrap());
    assert!(volumes.resume_deletions(&|| true).unwrap());
    volume.resize(5 * block + 512).unwrap();
    volume.resize(VOLUME_BYTES).unwrap();
    let mut behind = vec![9; (VOLUME_BYTES - 6 * block) as usize];
    volume.read(6 * block, &mut behind).unwrap();
    assert!(behind.iter().all(|byte| *byte == 0));
    let (lost, _) = *found.volume.iter().find(|(_, bytes)| bytes.is_none()).map(|(offset, _)| (offset, ())).as_ref().unwrap();
    let lost = *lost as u64 / block * block;
    // A part of a block cannot be stored without the rest.
    assert!(volume.write(lost + 512, &[1; 512]).is_err());
    let data = noise(77, block as usize);
    volume.write(lost, &data).unwrap();
    volume.write(lost + 512, &[1; 512]).unwrap();
    for other in (0..VOLUME_BYTES).step_by(block as usize).filter(|other| *other != lost) {
        volume.write_zeroes(other, block).unwrap();
    }
    volume.flush().unwrap();
    engine.maintain(true).unwrap();
    let mut expected = vec![0; VOLUME_BYTES as usize];
    expected[lost as usize..][..data.len()].copy_from_slice(&data);
    expected[lost as usize + 512..][..512].fill(1);
    let read = |volume: &onefold_volume::Volume| {
        let mut bytes = vec![9; VOLUME_BYTES as usize];
        volume.read(0, &mut bytes).unwrap();
        bytes
    };
    assert!(read(&volume) == expected);
    drop((volume, volumes, engine));
    let ground = ground.restart(CrashPolicy::DropAll);
    let engine = open(&ground, Mode::ReadWrite).unwrap();
    let volumes = Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
    assert!(read(&volumes.get(VOLUME).unwrap()) == expected);
    // A volume that is deleted takes what it lost with it.
    volumes.delete(VOLUME).unwrap();
    assert!(volumes.resume_deletions(&|| true).unwrap());
    engine.flush().unwrap();
    let report = check(&engine, CheckOptions::default(), &NoMonitor).unwrap();
    let kinds: Vec<_> = report.problems.iter().map(|problem| (problem.kind, &problem.what)).collect();
    assert!(kinds.is_empty(), "{kinds:?}");
}
