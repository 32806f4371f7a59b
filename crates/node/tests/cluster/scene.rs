//! Machines with nodes of one store, over sockets of this machine. Bucket and coordinator are in memory.

use onefold_bucket::{BucketGround, MemoryBucket};
use onefold_cluster::{NodeNumber, Phase, Present};
use onefold_coordinator::{Faces, MemoryCoordinator};
use onefold_crash_harness::EXACT;
use onefold_engine::{Descriptor, Engine, EngineError, Group, Hints, Mode, Piece, Reference, Result, Settings, Transaction, WriteStream};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Ground, SimulatedGround};
use onefold_index::{ChunkIndex, IndexEntry};
use onefold_interconnect::Options;
use onefold_node::{Node, NodeSettings, Status};
use onefold_oplog::{Partition, PartitionClass};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub const SESSION_MS: u64 = 3000;
pub const INDEX: u32 = 8;
pub const OBJECTS: u16 = 4;
pub const CONTAINERS: u16 = 4;
pub const ALL: usize = INDEX as usize + (OBJECTS + CONTAINERS) as usize;
/// Nothing takes longer, also where other programs use the processors.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn object_partition(number: u16) -> Partition {
    Partition { class: PartitionClass::ObjectIndex, number }
}

/// Waits for a condition; `describe` says what is there instead.
pub fn until(what: &str, describe: impl Fn() -> String, condition: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "{what}: {}", describe());
        std::thread::sleep(Duration::from_millis(5));
    }
}

type Disks = Arc<Mutex<BTreeMap<NodeNumber, SimulatedGround>>>;

/// A machine: what stays when its node ends.
pub struct Machine {
    pub node: Option<Node>,
    directory: tempfile::TempDir,
    disks: Disks,
}

/// A run of data that was written: where it is, and the object that refers to it.
pub struct Run {
    /// That of its object, if the node that wrote it had one.
    partition: Option<u16>,
    pieces: Vec<Piece>,
    data: Vec<u8>,
}

pub struct Scene {
    pub bucket: MemoryBucket,
    pub coordinator: MemoryCoordinator,
    pub machines: Vec<Machine>,
    descriptor: Descriptor,
    runs: Mutex<BTreeMap<u64, Run>>,
    clock: Option<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(clock) = self.clock.take() {
            let _ = clock.join();
        }
    }
}

impl Scene {
    /// Makes a store, and starts nodes one after the other.
    pub fn new(count: usize) -> Scene {
        let mut scene = Scene::empty();
        for at in 0..count {
            scene.add();
            scene.shared_by(&(0..=at).collect::<Vec<_>>());
        }
        scene
    }

    /// Makes a store without nodes.
    pub fn empty() -> Scene {
        let bucket = MemoryBucket::new();
        let descriptor =
            Descriptor { index_partitions: INDEX, object_partitions: OBJECTS, container_partitions: CONTAINERS, ..(EXACT.descriptor)(0) };
        let first: Arc<dyn Ground> = Arc::new(BucketGround::new(Arc::new(SimulatedGround::new(99)), Arc::new(bucket.clone())));
        Engine::create(&first, &descriptor).unwrap();
        let descriptor = Engine::descriptor_of(&*first).unwrap();
        let coordinator = MemoryCoordinator::new(SESSION_MS);
        let is_over = Arc::new(AtomicBool::new(false));
        // Its time is that of this machine.
        let (ticking, ends) = (coordinator.clone(), is_over.clone());
        let clock = std::thread::spawn(move || {
            let (start, mut passed_ms) = (Instant::now(), 0);
            while !ends.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(20));
                let now_ms = start.elapsed().as_millis() as u64;
                ticking.pass(now_ms - passed_ms);
                passed_ms = now_ms;
            }
        });
        Scene { bucket, coordinator, machines: Vec::new(), descriptor, runs: Mutex::default(), clock: Some(clock), is_over }
    }

    /// Writes a run before there are nodes, as an ordinary command does. Returns what such a command finds.
    pub fn write_alone(&self, key: u64, data: &[u8]) -> Result<()> {
        let disk = Arc::new(SimulatedGround::new(7000 + key));
        let ground = Arc::new(BucketGround::new(disk, Arc::new(self.bucket.clone())));
        let engine = Engine::open(ground, Settings { workers: 1, ..Settings::default() }, Mode::ReadWrite, "test")?;
        self.try_write(&engine, Some(0), key, data)?;
        engine.close()
    }

    /// Adds a machine and starts its node.
    pub fn add(&mut self) {
        self.add_machine();
        self.start(self.machines.len() - 1);
    }

    /// Adds a machine without a node.
    pub fn add_machine(&mut self) {
        let directory = tempfile::tempdir().unwrap();
        self.machines.push(Machine { node: None, directory, disks: Disks::default() });
    }

    pub fn start(&mut self, at: usize) {
        self.machines[at].node = Some(Node::start(self.settings(at)).unwrap());
    }

    /// Returns how the node of a machine takes part.
    pub fn settings(&self, at: usize) -> NodeSettings {
        let machine = &self.machines[at];
        let (disks, bucket) = (machine.disks.clone(), self.bucket.clone());
        let seed = at as u64 * 1000;
        let grounds = move |node: NodeNumber| -> onefold_ground::Result<Arc<dyn Ground>> {
            let disk = disks.lock().entry(node).or_insert_with(|| SimulatedGround::new(seed + u64::from(node.0) + 1)).clone();
            Ok(Arc::new(BucketGround::with_kept_bytes(Arc::new(disk), Arc::new(bucket.clone()), 64 << 10)))
        };
        let engine = Settings { workers: 1, commit_interval_ms: 100, log_segment_bytes: 64 << 10, ..Settings::default() };
        NodeSettings {
            descriptor: self.descriptor.clone(),
            bucket: Arc::new(self.bucket.clone()),
            grounds: Arc::new(grounds),
            directory: machine.directory.path().join("node"),
            name: format!("machine {at}"),
            listen: "127.0.0.1:0".to_owned(),
            address: None,
            faces: Faces::new(),
            coordinator: Arc::new(self.coordinator.clone()),
            engine,
            interconnect: Options::default(),
            reclaim: Arc::new(|_, _, _| Err("it frees nothing".to_owned())),
        }
    }

    pub fn node(&self, at: usize) -> &Node {
        self.machines[at].node.as_ref().unwrap()
    }

    pub fn status(&self, at: usize) -> Status {
        self.node(at).status()
    }

    pub fn present(&self, at: usize) -> Present {
        let status = self.status(at);
        Present { node: status.node.unwrap(), opening: status.opening.unwrap() }
    }

    fn there(&self) -> impl Iterator<Item = (usize, Status)> + '_ {
        (0..self.machines.len()).filter(|at| self.machines[*at].node.is_some()).map(|at| (at, self.status(at)))
    }

    pub fn describe(&self) -> String {
        let served = |status: &Status| status.served.len();
        let of = |(at, status): (usize, Status)| {
            format!(
                "\nmachine {at}: {:?} {:?} {:?}, table {:?}, hears: {}, master: {}, serves {}, alive {:?}, {:?}",
                status.node,
                status.phase,
                status.opening,
                status.table,
                status.hears,
                status.is_master,
                served(&status),
                status.alive.keys().collect::<Vec<_>>(),
                status.trouble
            )
        };
        self.there().map(of).collect()
    }

    /// Waits until the node of a machine takes part with this number.
    pub fn takes_part(&self, at: usize, number: NodeNumber) {
        let is_in = || self.status(at).phase == Phase::In && self.status(at).node == Some(number);
        until("it takes part", || self.describe(), is_in);
    }

    /// Waits until these machines serve everything, each some of the index and some containers, and nothing moves.
    pub fn shared_by(&self, machines: &[usize]) {
        let has_some = |at: &usize| {
            let served = self.status(*at).served;
            let has = |class| served.iter().any(|partition| partition.class == class);
            [PartitionClass::ChunkIndex, PartitionClass::Container].into_iter().all(has)
        };
        let quiet_since = Mutex::new((None, Instant::now()));
        let is_shared = || {
            let table = self.status(machines[0]).table;
            let mut quiet_since = quiet_since.lock();
            if quiet_since.0 != table {
                *quiet_since = (table, Instant::now());
            }
            quiet_since.1.elapsed() > Duration::from_secs(1) && self.all_is_served(machines) && machines.iter().all(has_some)
        };
        until("each has some", || self.describe(), is_shared);
    }

    fn all_is_served(&self, machines: &[usize]) -> bool {
        machines.iter().map(|at| self.status(*at).served.len()).sum::<usize>() == ALL
    }

    /// Waits until these machines serve everything.
    pub fn served_by(&self, machines: &[usize]) {
        until("everything is served", || self.describe(), || self.all_is_served(machines));
    }

    /// The process of a node dies: its session goes on to its end, and nothing is written.
    pub fn kill(&mut self, at: usize) {
        self.coordinator.set_cut_off(self.present(at), true);
        let engine = self.node(at).engine().map(|engine| Arc::downgrade(&engine));
        self.machines[at].node = None;
        until("what is at work there ends", String::new, || engine.as_ref().is_none_or(|engine| engine.strong_count() == 0));
    }

    /// Writes a run at a machine. Durable on return.
    pub fn write(&self, at: usize, key: u64, data: &[u8]) {
        let end = Instant::now() + PATIENCE;
        loop {
            let is_object = |partition: &&Partition| partition.class == PartitionClass::ObjectIndex;
            let status = self.status(at);
            if let Some(engine) = self.node(at).engine() {
                // Objects stay together at one node.
                let partition = status.served.iter().find(is_object).map(|partition| partition.number);
                match self.try_write(&engine, partition, key, data) {
                    Ok(()) => return,
                    Err(error @ (EngineError::OtherNode { .. } | EngineError::NotOwned { .. })) if Instant::now() < end => {
                        println!("written again: {error}");
                    }
                    // The opening is over. What waits to be committed is gone with it.
                    Err(error) if engine.has_lost_its_log().is_some() && Instant::now() < end => println!("written again: {error}"),
                    Err(error) => panic!("machine {at}, run {key}: {error}"),
                }
            }
            assert!(Instant::now() < end, "machine {at} has no engine: {}", self.describe());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn try_write(&self, engine: &Arc<Engine>, partition: Option<u16>, key: u64, data: &[u8]) -> Result<()> {
        let pieces = write(&mut engine.stream(), data)?;
        let references = Reference::of(&pieces, Group::new(b'x', 0), 1).collect();
        let change = |partition| (partition, key.to_be_bytes().to_vec(), Some(vec![1]));
        engine.submit(Transaction { changes: partition.map(change).into_iter().collect(), references })?;
        engine.flush()?;
        self.runs.lock().insert(key, Run { partition, pieces, data: data.to_vec() });
        Ok(())
    }

    /// Checks that each run is as it was written, wherever it is read, and that its object is there.
    pub fn check_data(&self) {
        for (key, Run { partition, pieces, data }) in &*self.runs.lock() {
            for (at, status) in self.there() {
                let engine = self.node(at).engine().unwrap();
                let mut out = vec![0; data.len()];
                engine.read(pieces, 0, &mut out, true).unwrap_or_else(|error| panic!("machine {at}, run {key}: {error}"));
                assert!(out == *data, "machine {at}, run {key}");
                if let Some(partition) = partition.filter(|partition| status.served.contains(&object_partition(*partition))) {
                    assert_eq!(engine.get(partition, &key.to_be_bytes()).unwrap(), Some(vec![1]), "machine {at}, run {key}");
                }
            }
        }
    }

    /// Checks that each chunk is stored once, and that its count is what runs say. Returns how many there are.
    pub fn check_counts(&self) -> usize {
        let machines: Vec<usize> = self.there().map(|(at, _)| at).collect();
        self.check_counts_of(&machines)
    }

    /// Does the same where these machines serve everything.
    pub fn check_counts_of(&self, machines: &[usize]) -> usize {
        let end = Instant::now() + PATIENCE;
        loop {
            self.served_by(machines);
            let table = self.status(machines[0]).table;
            let counts = self.counts(machines);
            // If a partition has moved meanwhile, it was missing, or counted twice.
            if self.all_is_served(machines) && machines.iter().all(|at| self.status(*at).table == table) {
                let (found, expected) = (counts.unwrap_or_else(|why| panic!("{why}")), self.expected());
                assert_eq!(found.len(), expected.len(), "chunks");
                assert_eq!(found, expected);
                return found.len();
            }
            assert!(Instant::now() < end, "partitions go on moving: {}", self.describe());
        }
    }

    /// Returns the counts that follow from the runs.
    fn expected(&self) -> BTreeMap<Fingerprint, u32> {
        let mut expected: BTreeMap<Fingerprint, u32> = BTreeMap::new();
        for run in self.runs.lock().values() {
            for reference in Reference::of(&run.pieces, Group::new(b'x', 0), 1) {
                *expected.entry(reference.fingerprint).or_default() += reference.change as u32;
            }
        }
        expected
    }

    /// Returns the counts of all chunks, as their owners have them.
    fn counts(&self, machines: &[usize]) -> std::result::Result<BTreeMap<Fingerprint, u32>, String> {
        for at in machines {
            let deliver = || self.node(*at).engine().is_some_and(|engine| engine.deliver().is_ok());
            until("everything is delivered", || self.describe(), deliver);
        }
        let mut found: BTreeMap<Fingerprint, u32> = BTreeMap::new();
        for at in machines {
            let (status, engine) = (self.status(*at), self.node(*at).engine().ok_or("an opening is over")?);
            for partition in status.served.iter().filter(|partition| partition.class == PartitionClass::ChunkIndex) {
                let mut wrong = None;
                let mut note = |name: &Fingerprint, entry: IndexEntry| {
                    let is_its = ChunkIndex::partition_of(name, INDEX) == u32::from(partition.number);
                    if !is_its || entry.address == 0 || found.insert(*name, entry.count).is_some() {
                        wrong = Some(format!("{name:?} is twice there, or nowhere: {entry:?}"));
                    }
                    Ok(())
                };
                let index = engine.index().ok_or("it has no index")?;
                index.for_each(partition.number.into(), &mut note).map_err(|error| error.to_string())?;
                wrong.map_or(Ok(()), Err)?;
            }
        }
        Ok(found)
    }
}

fn write(stream: &mut WriteStream, data: &[u8]) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < data.len() {
        start += stream.write(&data[start..], true, Hints::default(), &mut pieces)?;
    }
    Ok(pieces)
}
