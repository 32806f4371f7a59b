//! Several nodes of one process have a store in a bucket open, each with some partitions (`docs/cluster.md`).

mod common;
mod nodes;

use nodes::*;
use onefold_bucket::MemoryBucket;
use onefold_engine::{Claim, Delivery, Engine, EngineError, Group, Mode, Piece, Reference, Search, Settings, Share, Transaction, Wanted};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Ground, SimulatedGround};
use onefold_index::ChunkIndex;
use onefold_oplog::{LogError, Ownership, PartitionClass, Position};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A store in a bucket that some nodes have open, and what is in it.
struct Cluster {
    bucket: MemoryBucket,
    wire: Arc<Wire>,
    disks: Vec<SimulatedGround>,
    nodes: Vec<Option<Arc<Engine>>>,
    background: bool,
    /// By node and key.
    runs: Mutex<BTreeMap<(u32, u64), Run>>,
}

/// A run of data that was written, and where it is.
struct Run {
    pieces: Vec<Piece>,
    data: Vec<u8>,
}

impl Cluster {
    fn new(count: u32, background: bool) -> Cluster {
        let bucket = MemoryBucket::new();
        let disks: Vec<_> = (0..count).map(|node| SimulatedGround::new(u64::from(node) + 1)).collect();
        Engine::create(&ground(&bucket, &disks[0]), &descriptor()).unwrap();
        let nodes = (0..count).map(|_| None).collect();
        let mut cluster = Cluster { bucket, wire: Wire::new(count), disks, nodes, background, runs: Mutex::default() };
        (0..count).for_each(|node| cluster.open(node));
        cluster
    }

    fn settings(&self, node: u32) -> Settings {
        let share = Share {
            node,
            chunk_index: self.wire.owned(node, PartitionClass::ChunkIndex, INDEX),
            objects: self.wire.owned(node, PartitionClass::ObjectIndex, OBJECTS.into()),
            containers: self.wire.owned(node, PartitionClass::Container, CONTAINERS.into()),
            others: Arc::new(Others { node, wire: self.wire.clone() }),
        };
        // A background that commits only when somebody waits.
        let log_segment_bytes = 8 << 10; // trimmed often
        Settings {
            workers: 1,
            background: self.background,
            commit_interval_ms: 60_000,
            log_segment_bytes,
            share: Some(share),
            ..Settings::default()
        }
    }

    fn open(&mut self, node: u32) {
        let place = ground(&self.bucket, &self.disks[node as usize]);
        let engine = Engine::open(place, self.settings(node), Mode::ReadWrite, "test").unwrap();
        self.wire.nodes.write().insert(node, Arc::downgrade(&engine));
        self.nodes[node as usize] = Some(engine);
    }

    /// The process of a node dies. Without a background, an engine that is dropped commits nothing.
    fn kill(&mut self, node: u32) {
        self.wire.nodes.write().remove(&node);
        self.nodes[node as usize] = None;
    }

    fn node(&self, node: u32) -> &Arc<Engine> {
        self.nodes[node as usize].as_ref().unwrap()
    }

    /// Writes a run at a node. Durable on return.
    fn write(&self, node: u32, key: u64, data: &[u8]) {
        let pieces = write(&mut self.node(node).stream(), data).unwrap();
        self.submit(node, key, pieces, data);
        self.node(node).flush().unwrap();
    }

    fn submit(&self, node: u32, key: u64, pieces: Vec<Piece>, data: &[u8]) {
        let references = Reference::of(&pieces, Group::new(b'x', 0), 1).collect();
        // An object of a partition that the node owns.
        let change = (node as u16, key.to_be_bytes().to_vec(), Some(vec![1]));
        self.node(node).submit(Transaction { changes: vec![change], references }).unwrap();
        self.runs.lock().insert((node, key), Run { pieces, data: data.to_vec() });
    }

    /// Checks that each run is as it was written, read at its node.
    fn check(&self) {
        for ((node, key), Run { pieces, data }) in &*self.runs.lock() {
            let mut out = vec![0; data.len()];
            self.node(*node).read(pieces, 0, &mut out, true).unwrap_or_else(|error| panic!("node {node}, run {key}: {error}"));
            assert!(out == *data, "node {node}, run {key}");
            assert_eq!(self.node(*node).get(*node as u16, &key.to_be_bytes()).unwrap(), Some(vec![1]));
        }
    }

    /// Has all nodes but one deliver what they have logged for others.
    fn deliver_all_but(&self, node: u32) {
        for (_, engine) in (0..).zip(self.nodes.iter().flatten()).filter(|(number, _)| *number != node) {
            while let Err(error) = engine.deliver() {
                assert!(matches!(error, EngineError::OtherNode { .. }), "{error}");
            }
        }
    }

    /// Returns how many chunks are stored, counting each copy.
    fn stored_chunks(&self) -> u64 {
        self.nodes.iter().flatten().map(|engine| engine.chunks()).sum()
    }

    /// Returns the counts of all chunks, as their owners have them.
    fn counts(&self) -> BTreeMap<Fingerprint, u32> {
        let mut found = BTreeMap::new();
        for engine in self.nodes.iter().flatten() {
            engine.deliver().unwrap();
        }
        for engine in self.nodes.iter().flatten() {
            count(engine, &mut found);
        }
        found
    }

    /// Returns the counts that follow from the runs.
    fn expected(&self) -> BTreeMap<Fingerprint, u32> {
        let mut expected = BTreeMap::new();
        for run in self.runs.lock().values() {
            for reference in Reference::of(&run.pieces, Group::new(b'x', 0), 1) {
                *expected.entry(reference.fingerprint).or_default() += reference.change as u32;
            }
        }
        expected
    }
}

#[test]
fn m4_4_the_same_data_through_one_node_and_through_four_in_any_distribution_is_stored_once() {
    let mut results = Vec::new();
    for count in [1, 2, 4] {
        for shift in 0..if count == 1 { 1 } else { 3u64 } {
            let cluster = Cluster::new(count, false);
            for (key, data) in (0..).zip(runs(40)) {
                let node = (key * (shift + 1) + key / 7 * shift) % u64::from(count);
                cluster.write(node as u32, key, &data);
                if key % 5 == 0 {
                    // What others have just stored is not in the bucket yet.
                    cluster.check();
                }
            }
            cluster.check();
            assert_eq!(cluster.counts(), cluster.expected(), "{count} nodes");
            results.push((cluster.stored_chunks(), cluster.expected().len() as u64));
            if count > 1 {
                assert!(cluster.wire.claims.load(Ordering::SeqCst) > 0 && cluster.wire.seals.load(Ordering::SeqCst) > 0);
            }
        }
    }
    assert!(results.iter().all(|result| *result == results[0] && result.0 == result.1), "{results:?}");
}

#[test]
fn m4_5_clients_that_write_the_same_new_data_at_the_same_time_through_different_nodes_store_it_once() {
    let cluster = Cluster::new(4, true);
    for round in 0..4 {
        let data = bytes(1000 + round, 150_000);
        std::thread::scope(|scope| {
            for node in 0..4 {
                let (cluster, data) = (&cluster, &data);
                scope.spawn(move || cluster.write(node, round, data));
            }
        });
    }
    cluster.check();
    assert_eq!(cluster.counts(), cluster.expected());
    assert_eq!(cluster.stored_chunks(), cluster.expected().len() as u64);
}

#[test]
fn m4_5_a_node_refers_to_nothing_that_another_node_may_lose() {
    let mut cluster = Cluster::new(3, false);
    let data = bytes(7, 100_000);
    // It is stored, and nobody has asked to make it durable.
    let pieces = write(&mut cluster.node(0).stream(), &data).unwrap();
    cluster.write(1, 1, &data);
    drop(pieces);
    cluster.kill(0);
    cluster.open(0);
    cluster.check();
    cluster.write(2, 2, &data);
    cluster.check();
    assert_eq!(cluster.counts(), cluster.expected());
    assert_eq!(cluster.stored_chunks(), cluster.expected().len() as u64);
}

#[test]
fn m4_5_what_an_owner_has_stored_itself_is_nobodys_before_it_is_durable() {
    let mut cluster = Cluster::new(2, false);
    // A chunk of a partition that the node which stores it owns.
    let is_own = |data: &Vec<u8>| {
        let pieces = write(&mut cluster.node(0).stream(), data).unwrap();
        let name = Reference::of(&pieces, Group::new(b'x', 0), 1).next().unwrap().fingerprint;
        cluster.wire.owner_of(ChunkIndex::partition_of(&name, INDEX)) == 0
    };
    let data = (7..).map(|seed| bytes(seed, 200)).find(is_own).unwrap();
    cluster.write(1, 1, &data);
    cluster.kill(0);
    cluster.open(0);
    cluster.check();
}

#[test]
fn m4_5_catalogs_of_other_nodes_containers_answer_nothing() {
    // Their chunks may be in the bucket before a log names them.
    for (count, is_asked) in [(1, true), (2, false)] {
        let cluster = Cluster::new(count, false);
        let data = bytes(11, 400_000);
        cluster.write(0, 0, &data);
        cluster.node(0).flush_all().unwrap();
        let last = count - 1;
        cluster.write(last, 1, &data);
        let chain = cluster.node(last).chain("container-cache,chunk-index").unwrap();
        assert_eq!(chain.statistics()[0].strong_maybe > 0, is_asked);
        assert_eq!(cluster.counts(), cluster.expected());
    }
}

#[test]
fn m4_6_counts_are_delivered_exactly_once_although_answers_are_lost_and_nodes_die() {
    let mut cluster = Cluster::new(3, false);
    cluster.wire.loses_answers.store(true, Ordering::SeqCst);
    for (key, data) in (0..).zip(runs(24)) {
        let node = (key % 3) as u32;
        // It begins with what is undelivered, and answers are lost.
        let pieces = loop {
            match write(&mut cluster.node(node).stream(), &data) {
                Err(EngineError::OtherNode { .. }) => {}
                written => break written.unwrap(),
            }
        };
        cluster.submit(node, key, pieces, &data);
        // Every second time, nobody hears of it before the node dies.
        cluster.wire.is_cut.store(key % 2 == 0, Ordering::SeqCst);
        cluster.node(node).flush().unwrap();
        cluster.wire.is_cut.store(false, Ordering::SeqCst);
        let dies = if key % 4 == 3 { (node + 1) % 3 } else { node };
        // An owner that dies forgets the claims of others.
        cluster.deliver_all_but(dies);
        match key % 4 {
            0 | 3 => {
                cluster.kill(dies);
                cluster.open(dies);
            }
            // All state on this machine is lost.
            2 => {
                cluster.kill(dies);
                cluster.disks[dies as usize] = SimulatedGround::new(key + 100);
                cluster.open(dies);
            }
            _ => cluster.nodes.iter().flatten().for_each(|engine| engine.maintain(true).unwrap()),
        }
    }
    cluster.wire.loses_answers.store(false, Ordering::SeqCst);
    cluster.check();
    assert_eq!(cluster.counts(), cluster.expected());
    assert_eq!(cluster.stored_chunks(), cluster.expected().len() as u64);
}

#[test]
fn m4_6_what_others_need_of_the_log_is_kept_until_they_have_it() {
    let mut cluster = Cluster::new(2, false);
    cluster.wire.is_cut.store(true, Ordering::SeqCst);
    // Without the other node nothing can be claimed there.
    let refused = write(&mut cluster.node(0).stream(), &bytes(1, 50_000)).unwrap_err();
    assert!(matches!(refused, EngineError::OtherNode { .. }), "{refused}");
    cluster.wire.is_cut.store(false, Ordering::SeqCst);
    let data = bytes(2, 50_000);
    let pieces = write(&mut cluster.node(0).stream(), &data).unwrap();
    cluster.submit(0, 0, pieces, &data);
    cluster.wire.is_cut.store(true, Ordering::SeqCst);
    // It is durable, and goes on without the other one.
    cluster.node(0).flush().unwrap();
    for _ in 0..3 {
        cluster.node(0).maintain(true).unwrap();
    }
    assert!(cluster.node(0).deliver().is_err());
    // What it has stored itself, it finds without the other one.
    cluster.write(0, 1, &data);
    cluster.kill(0);
    cluster.disks[0] = SimulatedGround::new(9);
    cluster.open(0);
    cluster.wire.is_cut.store(false, Ordering::SeqCst);
    // Also when it has died meanwhile: it delivers first.
    cluster.write(0, 2, &data);
    cluster.check();
    assert_eq!(cluster.stored_chunks(), cluster.expected().len() as u64);
    assert_eq!(cluster.counts(), cluster.expected());
}

#[test]
fn m4_4_a_share_that_does_not_fit_the_store_and_claims_of_others_partitions_are_refused() {
    let cluster = Cluster::new(2, false);
    let wanted = |name: &Fingerprint| [Wanted { fingerprint: *name, search: Search::Stored }];
    let name = (0..).map(|number: u8| Fingerprint::from_digest(&[number.wrapping_mul(37); 32]));
    let foreign = name.clone().find(|name| cluster.wire.owner_of(ChunkIndex::partition_of(name, INDEX)) == 1).unwrap();
    let refused = cluster.node(0).claim_for(1, &wanted(&foreign), &mut Vec::new()).unwrap_err();
    assert!(matches!(refused, EngineError::NotOwned { .. }), "{refused}");
    let delivery = Delivery { behind: Some(Position(0)), upto: Position(4096), places: vec![(foreign, 1 << 16)], deltas: Vec::new() };
    assert!(matches!(cluster.node(0).take_delivery(1, 0, &delivery), Err(EngineError::NotOwned { .. })));
    // A claim is one node's until it gives it back. A lost answer is given again.
    let own = name.clone().find(|name| cluster.wire.owner_of(ChunkIndex::partition_of(name, INDEX)) == 0).unwrap();
    let claim = |node: u32| {
        let mut out = Vec::new();
        cluster.node(0).claim_for(node, &wanted(&own), &mut out).unwrap();
        out[0]
    };
    assert_eq!([claim(1), claim(1), claim(2)], [Claim::Mine, Claim::Mine, Claim::Theirs]);
    cluster.node(0).release_for(2, &[own]);
    assert_eq!(claim(2), Claim::Theirs);
    cluster.node(0).release_for(1, &[own]);
    assert_eq!(claim(2), Claim::Mine);
    let opened = |change: &dyn Fn(&mut Settings)| {
        let mut settings = cluster.settings(1);
        change(&mut settings);
        Engine::open(ground(&cluster.bucket, &SimulatedGround::new(5)), settings, Mode::ReadWrite, "test")
            .map(drop)
            .unwrap_err()
            .to_string()
    };
    let why = opened(&|settings| settings.chain.insert(0, "bloom".to_owned()));
    assert!(why.contains("leave it out"), "{why}");
    let why = opened(&|settings| settings.share.as_mut().unwrap().objects = Ownership::all(3, 1));
    assert!(why.contains("another number of partitions"), "{why}");
    let ground: Arc<dyn Ground> = Arc::new(SimulatedGround::new(7));
    Engine::create(&ground, &descriptor()).unwrap();
    let why = Engine::open(ground, cluster.settings(1), Mode::ReadWrite, "test").map(drop).unwrap_err().to_string();
    assert!(why.contains("in a bucket"), "{why}");
}

#[test]
fn m4_8_a_node_that_does_not_hear_from_the_coordinator_answers_no_read() {
    let cluster = Cluster::new(2, false);
    cluster.write(0, 0, &bytes(3, 20_000));
    cluster.wire.is_silent.store(true, Ordering::SeqCst);
    let refused = |result: Result<(), EngineError>| matches!(result, Err(EngineError::OtherNode { .. }));
    let pieces = cluster.runs.lock()[&(0, 0)].pieces.clone();
    assert!(refused(cluster.node(0).read(&pieces, 0, &mut [0; 100], true)));
    assert!(refused(cluster.node(0).get(0, &0u64.to_be_bytes()).map(drop)) && refused(cluster.node(0).range(0, &[], &[255], 9).map(drop)));
    cluster.wire.is_silent.store(false, Ordering::SeqCst);
    cluster.check();
}

/// A store becomes one of nodes with all that it has. From then on an ordinary opening is refused, whatever it knew
/// before: it would take what other nodes write for leftovers.
#[test]
fn a_store_with_history_is_opened_by_a_node_and_then_by_no_ordinary_opening() {
    let mut cluster = Cluster::new(1, false);
    cluster.kill(0);
    // Another store, which nobody has shared.
    cluster.bucket = MemoryBucket::new();
    cluster.disks = vec![SimulatedGround::new(9)];
    let elsewhere = SimulatedGround::new(10);
    let place = |cluster: &Cluster, disk: &SimulatedGround| ground(&cluster.bucket, disk);
    let ordinary = Settings { share: None, ..cluster.settings(0) };
    let open = |cluster: &Cluster, disk: &SimulatedGround| Engine::open(place(cluster, disk), ordinary.clone(), Mode::ReadWrite, "test");
    Engine::create(&place(&cluster, &cluster.disks[0]), &descriptor()).unwrap();
    for turn in 0..3u64 {
        // Two machines, one after the other.
        let disk = if turn == 1 { elsewhere.clone() } else { cluster.disks[0].clone() };
        cluster.nodes[0] = Some(open(&cluster, &disk).unwrap());
        for (key, data) in (turn * 20..).zip(runs(20)) {
            cluster.write(0, key, &data);
        }
        cluster.check();
        cluster.node(0).close().unwrap();
        cluster.nodes[0] = None;
    }
    let (chunks, figures) = {
        let engine = open(&cluster, &cluster.disks[0]).unwrap();
        let of_store = (engine.chunks(), engine.statistics().unwrap());
        engine.close().unwrap();
        (of_store.0, of_store.1.stored_bytes)
    };
    cluster.open(0);
    assert_eq!((cluster.node(0).chunks(), cluster.node(0).statistics().unwrap().stored_bytes), (chunks, figures));
    cluster.check();
    for (key, data) in (100..).zip(runs(20)) {
        cluster.write(0, key, &data);
    }
    assert_eq!(cluster.node(0).chunks(), chunks, "nothing of it is new");
    let before = cluster.bucket.names();
    for (turn, disk) in [&elsewhere, &SimulatedGround::new(11), &cluster.disks[0].clone()].into_iter().enumerate() {
        if turn == 2 {
            cluster.kill(0);
        }
        for mode in [Mode::ReadWrite, Mode::ReadOnly, Mode::Snapshot] {
            let opened = Engine::open(place(&cluster, disk), ordinary.clone(), mode, "test");
            assert!(matches!(opened, Err(EngineError::Log(LogError::Shared { .. }))), "{mode:?}: {opened:?}");
        }
    }
    // One that knew the store has put its fence, and nothing else.
    let new = cluster.bucket.names().into_iter().filter(|name| !before.contains(name));
    assert!(new.clone().count() <= 1 && new.clone().all(|name| name.starts_with("log/")), "{:?}", new.collect::<Vec<_>>());
    cluster.open(0);
    cluster.check();
    assert_eq!(cluster.counts(), cluster.expected());
}
