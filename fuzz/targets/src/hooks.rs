//! Snapshots of hooks: any bytes are refused, or become hooks that can be found, moved, removed and saved. Fuzzers
//! cannot guess a checksum, so the target adds them to what it is given, and also reads it as it is.

use onefold_fingerprint::Fingerprint;
use onefold_ground::{Access, File, Ground, SimulatedGround, checksum};
use onefold_index::sampled::{Hooks, MAX_FOUND, decode_header};
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"1FLDHKS1";
const BLOCK_BYTES: usize = 64 << 10;
const MEMORY_BYTES: usize = 16 * 64;
const SERIAL: u64 = 7;

fn read(hooks: &Hooks, file: Arc<dyn File>, partitions: usize) -> Result<(), String> {
    let mut reading = hooks.read_snapshot(file, partitions)?;
    while reading.step()? {}
    Ok(())
}

/// Reads the bytes as a header, and as the rate and the buckets of a snapshot.
pub fn run(data: &[u8]) {
    let _ = decode_header(data);
    let Some((rate, buckets)) = data.split_first() else { return };
    let buckets = &buckets[..buckets.len().min(MEMORY_BYTES)];
    let mut content = MAGIC.to_vec();
    content.extend_from_slice(&SERIAL.to_le_bytes());
    content.extend_from_slice(&(MEMORY_BYTES as u64 / 64).to_le_bytes());
    content.extend_from_slice(&u32::from(*rate).to_le_bytes());
    content.extend_from_slice(&1u32.to_le_bytes());
    content.extend_from_slice(&99u32.to_le_bytes());
    content.extend_from_slice(&checksum(&content).to_le_bytes());
    content.resize(BLOCK_BYTES, 0);
    let mut block = buckets.to_vec();
    block.resize(BLOCK_BYTES - 64, 0);
    block.extend_from_slice(&0u64.to_le_bytes());
    block.extend_from_slice(&SERIAL.to_le_bytes());
    block.resize(BLOCK_BYTES - 8, 0);
    let sum = checksum(&block);
    block.extend_from_slice(&sum.to_le_bytes());
    content.extend_from_slice(&block);

    let ground = SimulatedGround::new(1);
    let file = ground.create("hooks").expect("a new file");
    file.write_at(0, &content).expect("memory");
    let hooks = Hooks::new(MEMORY_BYTES);
    read(&hooks, file, 1).expect("the checksums are right");
    let before = hooks.statistics();
    assert!(before.forced <= before.hooks && before.hooks <= MEMORY_BYTES as u64 / 64 * 10);
    // What was read can be used: fingerprints made of the same bytes.
    let names: Vec<Fingerprint> = data.chunks(32).map(|bytes| Fingerprint::from_digest(&[bytes, &[0; 32]].concat()[..32])).collect();
    let is_there = hooks.add(5, &names);
    let mut found = Vec::new();
    hooks.find(&names, &mut found);
    let is_found = found.iter().any(|found| found.container == 5);
    assert!(!is_there || is_found || found.len() >= MAX_FOUND, "a container that was added has a hook");
    let again = ground.create("again").expect("a new file");
    assert!(hooks.save(&*again, SERIAL + 1, &[6], &|| true).expect("memory"));
    let copy = Hooks::new(MEMORY_BYTES);
    read(&copy, ground.open("again", Access::Read).expect("it is there"), 1).expect("it was just written");
    let mut of_copy = Vec::new();
    copy.find(&names, &mut of_copy);
    assert_eq!((copy.statistics().rate_log2, copy.statistics().forced), (hooks.statistics().rate_log2, hooks.statistics().forced));
    assert_eq!(of_copy, found);
    hooks.remove(5, &names);
    let mut left = Vec::new();
    hooks.find(&names, &mut left);
    assert!(left.iter().all(|found| found.container != 5), "what leads to a removed container goes");
}
