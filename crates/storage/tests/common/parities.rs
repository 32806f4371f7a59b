//! Stores whose containers have parity.

use super::merges::*;
use super::*;
use onefold_ground::{Access, Ground, SimulatedGround, read_file};
use std::collections::BTreeSet;

pub const SIZE: usize = 4;

pub fn small() -> StorageOptions {
    // One worker writes the frames in their order. What other threads do between two of its writes differs from run to
    // run.
    StorageOptions {
        container_bytes: 100 << 10,
        frame_bytes: 8 << 10,
        workers: 1,
        compression: Compression::None,
        frame_cache_bytes: 0,
        ..options()
    }
}

pub fn start(seed: u64) -> SimulatedGround {
    let ground = SimulatedGround::new(seed);
    ContainerStore::create(&ground, DIRECTORY, 2).unwrap();
    ground
}

pub fn fill(world: &mut World, rounds: u64) -> Result<()> {
    for round in 0..rounds {
        world.write(&[7000, 19_000, 400 * round as usize, 25_000, 0, 9000, 12_000])?;
    }
    Ok(())
}

/// Lets the next containers of both partitions begin a new folder.
pub fn next_folder(world: &World) -> Result<()> {
    for partition in 0..2 {
        let known = world.model.files.iter().chain(world.model.forwards.keys()).filter(|id| id.partition() == partition);
        let last = known.map(|id| id.number()).max().unwrap_or(0);
        world.store.keep_number(ContainerId::new(partition, last | 0xfff))?;
    }
    Ok(())
}

/// Returns the members of each parity file, by path. Checks that they are all of the folder of that file, and the
/// figures.
pub fn members(ground: &SimulatedGround, world: &World) -> BTreeMap<String, Vec<ContainerId>> {
    let mut found = BTreeMap::new();
    for path in parity_files(ground) {
        let parts: Vec<&str> = path.split('/').collect();
        let [_, partition, "parity", folder, name] = parts[..] else { panic!("{path}") };
        let partition = u16::from_str_radix(partition, 16).unwrap();
        let members: Vec<_> =
            name.split('-').skip(1).map(|number| ContainerId::new(partition, u32::from_str_radix(number, 16).unwrap())).collect();
        assert!(members.iter().all(|id| format!("{:05x}", id.number() >> 12) == folder), "{path}");
        assert!((1..=SIZE).contains(&members.len()), "{path}");
        found.insert(path, members);
    }
    let all: BTreeSet<_> = found.values().flatten().collect();
    let statistics = world.store.parity_statistics().unwrap();
    assert_eq!((statistics.groups as usize, statistics.containers as usize), (found.len(), all.len()));
    assert_eq!(groups(world).len(), found.len());
    found
}

/// Makes all parity that can be made. Returns the number of groups.
pub fn protect(world: &World, all: bool) -> Result<usize> {
    let mut groups = 0;
    while let Some(members) = world.store.make_parity(SIZE, all)? {
        groups += usize::from(members > 0);
    }
    Ok(groups)
}

/// Returns all groups, asked for by three.
pub fn groups(world: &World) -> Vec<GroupId> {
    let mut found: Vec<GroupId> = Vec::new();
    loop {
        let first = found.last().map_or(GroupId::FIRST, |last| GroupId::from_bits(last.bits() + 1));
        let next = world.store.parity_groups_from(first, 3).unwrap();
        if next.is_empty() {
            assert!(found.is_sorted_by(|a, b| a < b));
            assert!(found.iter().all(|group| world.store.has_parity_file(*group).unwrap()));
            return found;
        }
        found.extend(next);
    }
}

pub fn contents(ground: &SimulatedGround, containers: &[ContainerId]) -> BTreeMap<ContainerId, Vec<u8>> {
    containers.iter().map(|id| (*id, read_file(ground, &path(*id), u64::MAX).unwrap())).collect()
}

pub fn put(ground: &SimulatedGround, id: ContainerId, bytes: &[u8]) {
    let file = ground.open(&path(id), Access::ReadWrite).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    file.write_at(0, bytes).unwrap();
    file.sync().unwrap();
}

pub fn parity_files(ground: &SimulatedGround) -> Vec<String> {
    let mut found = Vec::new();
    for partition in ["0000", "0001"] {
        let directory = format!("{DIRECTORY}/{partition}/parity");
        if !ground.exists(&directory).unwrap() {
            continue;
        }
        for entry in ground.list(&directory).unwrap() {
            let path = format!("{directory}/{}", entry.name);
            assert!(entry.is_directory, "{path} should not be there");
            found.extend(ground.list(&path).unwrap().into_iter().map(|file| format!("{path}/{}", file.name)));
        }
    }
    found
}

pub fn sealed(world: &World) -> Vec<ContainerId> {
    world.model.files.iter().copied().filter(|id| world.store.is_sealed(*id)).collect()
}

pub fn is_damaged(store: &ContainerStore, id: ContainerId) -> bool {
    store.verify_container(id, true, None).map_or(true, |report| !report.damage.is_empty())
}

/// Reopens the same store, so that nothing is in memory.
pub fn reopened(ground: &SimulatedGround, world: World) -> World {
    let model = world.model.clone();
    drop(world);
    World::open(ground, model, &small(), Access::ReadWrite).unwrap()
}

/// Returns the containers that were lost and rebuilt, and those that could not be rebuilt.
pub fn repair_lost(world: &World) -> Result<(Vec<ContainerId>, Vec<ContainerId>)> {
    let (repaired, lost) = world.store.repair_lost(&|| true)?;
    Ok((repaired, lost.into_iter().map(|(container, _)| container).collect()))
}
