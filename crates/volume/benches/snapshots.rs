//! Snapshots and clones of a volume whose map is full (M0.21): what is promised to be instant, and what goes in the
//! background.
//!
//! `cargo bench -p onefold-volume --bench snapshots [-- GIB]`. The map is made without data: each block is spelled by
//! the same chunks.

use onefold_engine::{Descriptor, Engine, Mode, Settings, Transaction};
use onefold_ground::{Ground, LocalGround};
use onefold_volume::{DEFAULT_BLOCK_BYTES, Layer, Volumes, VolumesOptions};
use std::sync::Arc;
use std::time::Instant;

const BLOCK: u64 = DEFAULT_BLOCK_BYTES as u64;
/// Mappings of one transaction.
const BATCH: u64 = 4096;
/// Snapshots in the long chain.
const SNAPSHOTS: u64 = 1000;

fn open(ground: &Arc<dyn Ground>) -> (Arc<Engine>, Volumes) {
    let engine = Engine::open(ground.clone(), Settings::default(), Mode::ReadWrite, "bench").expect("a store");
    let volumes = Volumes::open(engine.clone(), VolumesOptions::default()).expect("volumes");
    (engine, volumes)
}

fn block(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(BLOCK as usize / 8).flatten().collect()
}

fn measured<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = work();
    println!("{what:<64} {:>10.3} ms", begun.elapsed().as_secs_f64() * 1e3);
    result
}

/// Gives all blocks of the only volume the mapping of its first one (`docs/format.md` sections 7 and 7.3).
fn fill(engine: &Engine, blocks: u64) {
    let mut found = None;
    let mut first = None;
    engine.for_each_object(b'l', &mut |key, value| found = Some((key.to_vec(), value.to_vec()))).expect("a layer");
    engine.for_each_object(b'm', &mut |_, value| first = Some(value.to_vec())).expect("a mapping");
    let ((key, value), first) = found.zip(first).expect("a volume with one block");
    let layer = Layer::decode(u32::from_be_bytes(key[1..].try_into().expect("a layer's key")), &value).expect("a layer");
    let mut reader = onefold_ground::wire::Reader::new(&first[1..]);
    let recipe = onefold_engine::Recipe::decode(&mut reader, engine.digest_bytes()).expect("a recipe");
    for start in (1..blocks).step_by(BATCH as usize) {
        let end = (start + BATCH).min(blocks);
        let group = onefold_engine::Group::new(b'm', u64::from(layer.map));
        let references = onefold_engine::Reference::of(&recipe.pieces, group, (end - start) as i64).collect();
        let of = |block: u64| [b"m".as_slice(), &layer.map.to_be_bytes(), &block.to_be_bytes()].concat();
        let mut changes: Vec<_> = (start..end).map(|block| (0, of(block), Some(first.clone()))).collect();
        changes.push((0, key.clone(), Some(Layer { mappings: end, ..layer.clone() }.encode())));
        engine.submit(Transaction { changes, references }).expect("a transaction");
    }
    engine.flush().expect("a flush");
}

fn main() {
    let gib: u64 = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(100);
    let blocks = (gib << 30) / BLOCK;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).expect("it exists"));
    Engine::create(&ground, &Descriptor::new().expect("a descriptor")).expect("an empty directory");
    let (engine, volumes) = open(&ground);
    let disk = volumes.create("disk", gib << 30, DEFAULT_BLOCK_BYTES, None).expect("a volume");
    disk.write(0, &block(1)).expect("written");
    disk.flush().expect("flushed");
    drop((disk, volumes));
    fill(&engine, blocks);
    engine.close().expect("closed");
    drop(engine);

    println!("a full map of {gib} GiB: {blocks} mappings; every line is durable at its end");
    let (engine, volumes) = measured("open", || open(&ground));
    let disk = volumes.get("disk").expect("a volume");
    measured("snapshot", || volumes.snapshot("disk", "s").expect("a snapshot"));
    let clone = measured("clone of the snapshot", || volumes.make_clone("s", "clone", false).expect("a clone"));
    measured("clone of the volume", || volumes.make_clone("disk", "second", false).expect("a clone"));
    for number in 0..1000 {
        clone.write(number * (blocks / 1000) * BLOCK, &block(number + 2)).expect("written");
    }
    measured("diff of a clone with 1000 new blocks, the last part flushed", || {
        volumes.diff(&volumes.get("s").expect("there"), &clone, &mut |_| true).expect("a difference");
    });
    measured("roll back", || volumes.rollback("clone", "s").expect("rolled back"));
    measured("delete three of the four volumes", || {
        ["s", "clone", "second"].iter().for_each(|name| volumes.delete(name).expect("deleted"));
    });
    disk.write(0, &block(5000)).expect("written");
    measured("in the background: drop 1000 mappings, merge layers", || volumes.resume_deletions(&|| true).expect("cleaned"));

    let empty = volumes.create("chain", 2 * SNAPSHOTS * BLOCK, DEFAULT_BLOCK_BYTES, None).expect("a volume");
    for number in 0..SNAPSHOTS {
        empty.write(number * BLOCK, &[1; 4096]).expect("written");
        volumes.snapshot("chain", &format!("s{number}")).expect("a snapshot");
    }
    drop((empty, volumes));
    engine.maintain(true).expect("persisted");
    engine.close().expect("closed");
    drop((disk, clone, engine));
    let (engine, volumes) = measured("open with a chain of 1000 snapshots", || open(&ground));
    let chain = volumes.get("chain").expect("a volume");
    let mut buffer = vec![0; 4096];
    let mut read = |block: u64| chain.read(block * BLOCK, &mut buffer).expect("read");
    (0..100).for_each(|number| read(SNAPSHOTS + number));
    measured("read 100 blocks that no layer has, for the first time", || (100..200).for_each(|number| read(SNAPSHOTS + number)));
    measured("the same again", || (100..200).for_each(|number| read(SNAPSHOTS + number)));
    measured("read 100 blocks of the newest layers", || (0..100).for_each(|number| read(SNAPSHOTS - 1 - number)));
    measured("delete all 1000 snapshots", || {
        (0..SNAPSHOTS).for_each(|number| volumes.delete(&format!("s{number}")).expect("deleted"));
    });
    measured("in the background: merge 1000 layers", || volumes.resume_deletions(&|| true).expect("cleaned"));
    drop((chain, volumes));
    engine.close().expect("closed");
}
