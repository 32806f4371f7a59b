//! Engines that have a store in a bucket open together, tied by this crate. The scene is that of
//! `crates/engine/tests/cluster.rs`.

use super::harness::{Book, Line, MINUTE, listener, until};
use crate::messages::Membership;
use crate::tls::Identity;
use crate::{EngineOwner, Interconnect, Options, Refusal, Rights, Server, Setup, Statistics};
use onefold_bucket::{BucketGround, MemoryBucket};
use onefold_crash_harness::{EXACT, Random};
use onefold_engine::{
    Descriptor, Engine, EngineError, Group, Hints, Mode, Piece, Reference, Result, Settings, Share, Transaction, WriteStream,
};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Ground, SimulatedGround};
use onefold_oplog::{Owned, Ownership, Partition, PartitionClass};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PARTITIONS: u16 = 8;

/// What a node has of a fixed share: a part with epoch 1.
#[derive(Debug)]
struct Fixed {
    node: u32,
    count: u32,
}

impl Fixed {
    fn owned(&self) -> Ownership {
        let owned = (0..u32::from(PARTITIONS)).filter(|number| number % self.count == self.node).map(|number| Owned { number, epoch: 1 });
        Ownership::of(PARTITIONS.into(), owned.collect()).unwrap()
    }
}

impl Rights for Fixed {
    fn may_answer(&self, partition: Partition, epoch: u64) -> std::result::Result<(), Refusal> {
        let has = u32::from(partition.number) % self.count == self.node && epoch == 1;
        if has { Ok(()) } else { Err(Refusal::NotOwned) }
    }

    fn may_collect(&self, _from: u32, _partition: Partition, _epoch: u64) -> std::result::Result<(), Refusal> {
        Err(Refusal::NotOwned)
    }

    fn is_over(&self) -> bool {
        false
    }

    fn membership(&self, _from: u32, _message: Membership) {}
}

/// The process of a node.
struct Process {
    // Dropped in this order.
    _server: Server,
    engine: Arc<Engine>,
    interconnect: Interconnect,
    line: Line,
}

/// Where a run of data is, and the data.
type Run = (Vec<Piece>, Vec<u8>);

struct Cluster {
    bucket: MemoryBucket,
    descriptor: Descriptor,
    book: Arc<Book>,
    disks: Vec<SimulatedGround>,
    identities: Vec<(String, String)>,
    openings: Vec<u64>,
    nodes: Vec<Option<Process>>,
    background: bool,
    /// By node and key.
    runs: Mutex<BTreeMap<(u32, u64), Run>>,
}

fn ground(bucket: &MemoryBucket, disk: &SimulatedGround) -> Arc<dyn Ground> {
    Arc::new(BucketGround::with_kept_bytes(Arc::new(disk.clone()), Arc::new(bucket.clone()), 64 << 10))
}

fn write(stream: &mut WriteStream, data: &[u8]) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < data.len() {
        start += stream.write(&data[start..], true, Hints::default(), &mut pieces)?;
    }
    Ok(pieces)
}

impl Cluster {
    fn new(count: u32, background: bool) -> Cluster {
        let bucket = MemoryBucket::new();
        let disks: Vec<_> = (0..count).map(|node| SimulatedGround::new(u64::from(node) + 1)).collect();
        let descriptor = Descriptor {
            index_partitions: PARTITIONS.into(),
            object_partitions: PARTITIONS,
            container_partitions: PARTITIONS,
            ..(EXACT.descriptor)(0)
        };
        Engine::create(&ground(&bucket, &disks[0]), &descriptor).unwrap();
        let book = Arc::new(Book::default());
        for class in [PartitionClass::ChunkIndex, PartitionClass::Container] {
            let owners = (0..PARTITIONS).map(|number| (Partition { class, number }, (u32::from(number) % count, 1)));
            book.owners.write().extend(owners);
        }
        let identities: Vec<_> = (0..count).map(|node| Identity::make(node, &descriptor.store).unwrap()).collect();
        for ((certificate, key), node) in identities.iter().zip(0..) {
            book.fingerprints.write().insert(node, Identity::from_pem(certificate, key).unwrap().fingerprint());
        }
        let mut cluster = Cluster {
            bucket,
            descriptor,
            book,
            disks,
            identities,
            openings: vec![0; count as usize],
            nodes: (0..count).map(|_| None).collect(),
            background,
            runs: Mutex::default(),
        };
        (0..count).for_each(|node| cluster.open(node));
        cluster
    }

    fn open(&mut self, node: u32) {
        let at = node as usize;
        let ground = ground(&self.bucket, &self.disks[at]);
        let setup = Setup {
            store: self.descriptor.store,
            digest_bytes: self.descriptor.fingerprint.digest_bytes(),
            node,
            identity: Identity::from_pem(&self.identities[at].0, &self.identities[at].1).unwrap(),
            directory: self.book.clone(),
            options: Options { claim: MINUTE, ..Options::default() },
        };
        let interconnect = Interconnect::new(setup, PARTITIONS.into()).unwrap();
        let rights = Fixed { node, count: self.disks.len() as u32 };
        let share =
            Share { node, chunk_index: rights.owned(), objects: rights.owned(), containers: rights.owned(), others: interconnect.others() };
        // A background that commits only when somebody waits.
        let settings = Settings {
            workers: 1,
            background: self.background,
            commit_interval_ms: 60_000,
            log_segment_bytes: 8 << 10,
            share: Some(share),
            ..Settings::default()
        };
        let end = Instant::now() + MINUTE;
        let engine = loop {
            match Engine::open(ground.clone(), settings.clone(), Mode::ReadWrite, "test") {
                // Another thread is dropping the engine that was killed.
                Err(EngineError::Lock(_)) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
                opened => break opened.unwrap(),
            }
        };
        self.openings[at] += 1;
        interconnect.opened(self.openings[at]);
        let server = interconnect
            .serve(
                listener(),
                Arc::new(EngineOwner::new(engine.clone(), Arc::new(rights), Arc::new(|_, _, _| Err("it frees nothing".to_owned())))),
            )
            .unwrap();
        let line = Line::to(server.address().to_string());
        self.book.addresses.write().insert(node, line.address.to_string());
        self.nodes[at] = Some(Process { _server: server, engine, interconnect, line });
    }

    /// The process of a node dies. Without a background, an engine that is dropped commits nothing.
    fn kill(&mut self, node: u32) {
        self.book.addresses.write().remove(&node);
        let engine = Arc::downgrade(&self.node(node).engine);
        self.nodes[node as usize] = None;
        until("what is at work there ends", || engine.strong_count() == 0);
    }

    fn node(&self, node: u32) -> &Process {
        self.nodes[node as usize].as_ref().unwrap()
    }

    /// Writes a run at a node, again when another node cannot be asked. Durable on return.
    fn write(&self, node: u32, key: u64, data: &[u8]) {
        let engine = &self.node(node).engine;
        let end = Instant::now() + MINUTE;
        let pieces = loop {
            match write(&mut engine.stream(), data) {
                Err(EngineError::OtherNode { .. }) if Instant::now() < end => {}
                written => break written.unwrap(),
            }
        };
        let references = Reference::of(&pieces, Group::new(b'x', 0), 1).collect();
        // An object of a partition that the node owns.
        let change = (node as u16, key.to_be_bytes().to_vec(), Some(vec![1]));
        engine.submit(Transaction { changes: vec![change], references }).unwrap();
        self.runs.lock().insert((node, key), (pieces, data.to_vec()));
        engine.flush().unwrap();
    }

    fn deliver(&self) {
        for process in self.nodes.iter().flatten() {
            let end = Instant::now() + MINUTE;
            while let Err(error) = process.engine.deliver() {
                assert!(matches!(error, EngineError::OtherNode { .. }) && Instant::now() < end, "{error}");
            }
        }
    }

    /// Checks that each run is as it was written, that each chunk is stored once, and that its count is right.
    fn check(&self) {
        self.deliver();
        let mut expected: BTreeMap<Fingerprint, u32> = BTreeMap::new();
        for ((node, key), (pieces, data)) in &*self.runs.lock() {
            let mut out = vec![0; data.len()];
            self.node(*node).engine.read(pieces, 0, &mut out, true).unwrap_or_else(|error| panic!("node {node}, run {key}: {error}"));
            assert!(out == *data, "node {node}, run {key}");
            for reference in Reference::of(pieces, Group::new(b'x', 0), 1) {
                *expected.entry(reference.fingerprint).or_default() += reference.change as u32;
            }
        }
        let mut found = BTreeMap::new();
        for process in self.nodes.iter().flatten() {
            let index = process.engine.index().unwrap();
            for partition in index.partitions() {
                let mut note = |name: &Fingerprint, entry: onefold_index::IndexEntry| {
                    assert!(entry.address != 0 && found.insert(*name, entry.count).is_none());
                    Ok(())
                };
                index.for_each(partition, &mut note).unwrap();
            }
        }
        assert_eq!(found, expected);
        let stored: u64 = self.nodes.iter().flatten().map(|process| process.engine.chunks()).sum();
        assert_eq!(stored, expected.len() as u64);
    }

    /// Returns how many connections were made: six if none is lost.
    fn connections(&self) -> u64 {
        self.statistics().iter().map(|statistics| statistics.connections).sum()
    }

    fn statistics(&self) -> Vec<Statistics> {
        self.nodes.iter().flatten().map(|process| process.interconnect.statistics()).collect()
    }
}

#[test]
fn m4_5_three_nodes_that_write_the_same_data_at_the_same_time_store_it_once() {
    let cluster = Cluster::new(3, true);
    for round in 0..4 {
        let data = Random(1000 + round).fresh(150_000);
        std::thread::scope(|scope| {
            for node in 0..3 {
                let (cluster, data) = (&cluster, &data);
                scope.spawn(move || cluster.write(node, round, data));
            }
        });
    }
    cluster.check();
    let statistics = cluster.statistics();
    let sum = |kind: &str| statistics.iter().map(|statistics| statistics.of(kind).sent.messages).sum::<u64>();
    for kind in ["claim", "deliver", "begin", "seal"] {
        assert!(sum(kind) > 0, "{kind}");
    }
    for statistics in &statistics {
        println!("{} names in a claim; {:?}", statistics.names_per_claim(), statistics.kinds);
    }
}

#[test]
fn m4_4_whichever_node_gets_which_data_it_is_stored_once() {
    for shift in 0..3u64 {
        let cluster = Cluster::new(3, false);
        let part = |seed: u64| Random(seed).fresh(20_000);
        for key in 0..12 {
            let data: Vec<u8> = (0..4).flat_map(|at| part(key / 3 + at * 7 % 5 + at)).collect();
            cluster.write(((key * (shift + 1) + key / 7 * shift) % 3) as u32, key, &data);
        }
        cluster.check();
    }
}

#[test]
fn m4_6_connections_that_are_cut_and_answers_that_are_lost_change_nothing() {
    let cluster = Cluster::new(3, true);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (cluster, is_over) = (&cluster, &is_over);
        scope.spawn(move || {
            let mut random = Random(5);
            while !is_over.load(Ordering::SeqCst) {
                let line = &cluster.node(random.below(3) as u32).line;
                line.lose_answers(random.one_in(2));
                std::thread::sleep(Duration::from_millis(random.below(20)));
                line.cut();
                line.lose_answers(false);
                std::thread::sleep(Duration::from_millis(random.below(100)));
            }
        });
        let writers: Vec<_> = (0..3)
            .map(|node| {
                scope.spawn(move || {
                    // Until several have been made again.
                    let mut round = 0;
                    while round < 4 || cluster.connections() < 10 && round < 1000 {
                        cluster.write(node, round, &Random(2000 + round).fresh(100_000));
                        round += 1;
                    }
                })
            })
            .collect();
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        is_over.store(true, Ordering::SeqCst);
        results.into_iter().for_each(|result| result.unwrap());
    });
    cluster.check();
    assert!(cluster.connections() >= 10);
}

#[test]
fn m4_6_a_node_that_opens_again_delivers_what_it_had_logged_and_loses_its_claims() {
    let mut cluster = Cluster::new(3, false);
    for key in 0..9u64 {
        let node = (key % 3) as u32;
        let data = [Random(3000 + key / 2).fresh(30_000), Random(4000 + key).fresh(30_000)].concat();
        cluster.write(node, key, &data);
        // An owner that dies forgets the claims of others.
        for other in (0..3).filter(|other| *other != node) {
            cluster.node(other).engine.deliver().unwrap();
        }
        cluster.kill(node);
        cluster.open(node);
    }
    cluster.check();
}
