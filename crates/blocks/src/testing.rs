//! Stores for tests, on a simulated disk. For the tests of this crate and of the owners of spaces.

use crate::entry::{entries_end, entry_key};
use crate::layers::Layers;
use crate::mapping::{decode_mapping, mapping_key, mappings_end};
use crate::{Space, Spaces, SpacesOptions};
use onefold_engine::{Descriptor, Engine, EngineError, Mode, Settings};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{CrashPolicy, Ground, SimulatedGround};
use onefold_storage::Compression;
use std::collections::HashMap;
use std::sync::Arc;

/// A store that a test opens and crashes.
#[derive(Debug)]
pub struct TestStore {
    /// The disk.
    pub ground: SimulatedGround,
    engine: Option<Arc<Engine>>,
}

impl Default for TestStore {
    fn default() -> TestStore {
        TestStore::new()
    }
}

impl TestStore {
    /// An empty store.
    pub fn new() -> TestStore {
        let ground = SimulatedGround::new(1);
        let descriptor = Descriptor {
            container_bytes: 1 << 20,
            compression: Compression::None,
            index_partitions: 2,
            object_partitions: 2,
            ..Descriptor::new().unwrap()
        };
        let shared: Arc<dyn Ground> = Arc::new(ground.clone());
        Engine::create(&shared, &descriptor).unwrap();
        TestStore { ground, engine: None }
    }

    /// The engine, opened when first asked for.
    pub fn engine(&mut self) -> Result<Arc<Engine>, EngineError> {
        if self.engine.is_none() {
            let settings =
                Settings { log_segment_bytes: 1 << 20, log_limit_bytes: 16 << 20, workers: 1, background: false, ..Settings::default() };
            self.engine = Some(Engine::open(Arc::new(self.ground.clone()), settings, Mode::ReadWrite, "test")?);
        }
        Ok(self.engine.clone().unwrap())
    }

    /// Opens the spaces of the store.
    pub fn spaces(&mut self, options: SpacesOptions) -> Spaces {
        Spaces::open(self.engine().unwrap(), options).unwrap()
    }

    /// A crash; what was flushed before is there when the store is used again.
    pub fn crash(&mut self, policy: CrashPolicy) {
        self.engine = None;
        self.ground = self.ground.restart(policy);
    }

    /// A crash after which nothing is there but what was flushed.
    pub fn reopen(&mut self) {
        self.crash(CrashPolicy::DropAll);
    }

    /// Bytes of different chunks that were flushed.
    pub fn unique_bytes(&mut self) -> u64 {
        self.engine().unwrap().statistics().unwrap().unique_bytes
    }

    fn counts(&mut self) -> HashMap<Fingerprint, i64> {
        let engine = self.engine().unwrap();
        let mut counts = HashMap::new();
        for partition in 0..engine.descriptor().index_partitions {
            let mut add = |fingerprint: &Fingerprint, entry: onefold_index::IndexEntry| {
                counts.insert(*fingerprint, i64::from(entry.count));
                Ok(())
            };
            engine.index().unwrap().for_each(partition, &mut add).unwrap();
        }
        counts.retain(|_, count| *count != 0);
        counts
    }

    /// Sum of all usage counts.
    pub fn references(&mut self) -> i64 {
        self.counts().values().sum()
    }

    /// The usage counts must be the references of the mappings of the layers of these spaces and nothing else, and
    /// each layer must have as many mappings and entries as its record says.
    pub fn check_counts(&mut self, spaces: &[&Space]) {
        let engine = self.engine().unwrap();
        let layers = Layers::open(&engine, &mut Vec::new()).unwrap();
        let mut wanted: Vec<u32> = spaces.iter().map(|space| space.gate.read().record.layer).collect();
        let mut seen = HashMap::new();
        while let Some(node) = wanted.pop().and_then(|number| layers.get(number)) {
            wanted.push(node.layer.parent);
            wanted.retain(|number| *number != 0);
            seen.insert(node.number, node);
        }
        let mut expected = HashMap::new();
        for node in seen.values() {
            let mut mappings = 0;
            for map in [Some(node.layer.map), node.layer.merging.map(|other| other.map)].into_iter().flatten() {
                for (_, value) in engine.range(node.partition, &mapping_key(map, 0), &mappings_end(map), usize::MAX).unwrap() {
                    let pieces = decode_mapping(&value, engine.digest_bytes(), node.layer.block_bytes).unwrap();
                    pieces.iter().filter_map(onefold_engine::Piece::fingerprint).for_each(|chunk| *expected.entry(chunk).or_default() += 1);
                    mappings += 1;
                }
                mappings += engine.range(node.partition, &entry_key(map, &[]), &entries_end(map), usize::MAX).unwrap().len() as u64;
            }
            assert_eq!(mappings, node.layer.mappings, "layer {}", node.number);
            for space in spaces {
                let known = space.shared.layers.get(node.number).map(|known| {
                    let mappings = *known.mappings.lock();
                    crate::Layer { mappings, ..known.layer.clone() }
                });
                assert_eq!(known.as_ref(), Some(&node.layer), "layer {} in memory", node.number);
            }
        }
        assert!(self.counts() == expected, "usage counts differ from the references");
    }
}

/// Bytes that a seed determines.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length.div_ceil(8))
        .flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        })
        .take(length)
        .collect()
}
