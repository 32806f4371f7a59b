//! The cost of work on the chunk index: it goes by batches of pages, not page by page.

use super::tests::{LogBatch, apply, check, key, open};
use super::*;
use onefold_ground::SimulatedGround;
use std::collections::BTreeMap;

#[test]
fn m0_15_a_sweep_of_many_pages_costs_few_writes_and_syncs() {
    const CHUNKS: u64 = 20_000;
    let disk = SimulatedGround::new(1);
    let ground: Arc<dyn Ground> = Arc::new(disk.clone());
    ChunkIndex::create(&ground, "index", 1, super::tests::DIGEST_BYTES).unwrap();
    let index = open(&ground, 1, Access::ReadWrite, 1).unwrap();
    let inserts = (0..CHUNKS).map(|chunk| (key(chunk), chunk + 1)).collect();
    apply(&index, &LogBatch { end: 512, inserts, ..LogBatch::default() });
    index.sweep_all().unwrap();
    let deltas = (0..CHUNKS).map(|chunk| (key(chunk), 1)).collect();
    apply(&index, &LogBatch { end: 1024, deltas, ..LogBatch::default() });
    let before = (disk.operations(), disk.syncs(), index.statistics().sweep_page_writes);
    index.sweep_all().unwrap();
    let pages = index.statistics().sweep_page_writes - before.2;
    let (operations, syncs) = (disk.operations() - before.0, disk.syncs() - before.1);
    assert!(pages > 200 && operations <= 30 && syncs <= 14, "{operations} operations and {syncs} syncs for {pages} pages");
    let model: BTreeMap<_, _> = (0..CHUNKS).map(|chunk| (key(chunk), IndexEntry { address: chunk + 1, count: 1 })).collect();
    check(&index, &model);
}
