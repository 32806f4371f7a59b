//! The daemon is killed with SIGKILL at random moments under load, again and again on the same store. Whatever a client
//! was told is durable must be there afterwards; what was written since may be there or not, but nothing else may.

use onefold_tests::{
    Client, Daemon, Initiator, LoopDevice, MountPlace, Random, RequestError, Running, Scene, client, has_fuse, installed, noise,
};
use rustix::fs::FallocateFlags;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const BLOCK: usize = 4096;
const BLOCKS: usize = 4096;
/// Blocks that one writer has beside each other; all writers work in the same blocks of the volume.
const RUN: usize = 8;
const WRITERS: usize = 3;

/// Everything small, so that in a short load the log wraps, buffers are written out and the indexes are swept.
const SMALL: &str = "[log]\nsegment = \"1MiB\"\nlimit = \"2MiB\"\ncommit = \"1MiB\"\ncommit_interval_ms = 20\n\
                     [memory]\nvolume_dirty = \"1MiB\"\nauxiliary_index = \"1MiB\"\nobject_index_pending = \"1MiB\"\n";

/// What a block may hold after a crash.
#[derive(Debug)]
struct Block {
    /// Versions that were sent, oldest first; the first is the newest that is known to be durable.
    possible: Vec<u64>,
    /// The newest version that was acknowledged.
    acknowledged: u64,
}

#[derive(Debug)]
struct Model {
    blocks: Vec<Mutex<Block>>,
    version: AtomicU64,
    flushes: AtomicU64,
}

/// The content of a block: zeros, something that many blocks have, or something that no other has.
fn content(block: usize, version: u64) -> Vec<u8> {
    match version % 8 {
        0 | 1 => vec![0; BLOCK],
        2 => noise(version / 8 % 50, BLOCK),
        _ => noise(version * BLOCKS as u64 + block as u64, BLOCK),
    }
}

/// A connection to the volume, whatever it speaks.
trait Face: Send {
    fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, RequestError>;
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RequestError>;
    fn write_durable(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RequestError>;
    fn flush(&mut self) -> Result<(), RequestError>;
    fn trim(&mut self, offset: u64, length: usize) -> Result<(), RequestError>;
    fn write_zeroes(&mut self, offset: u64, length: usize) -> Result<(), RequestError>;
}

macro_rules! face {
    ($client:ty) => {
        impl Face for $client {
            fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, RequestError> {
                <$client>::read(self, offset, length)
            }
            fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RequestError> {
                <$client>::write(self, offset, bytes)
            }
            fn write_durable(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RequestError> {
                <$client>::write_durable(self, offset, bytes)
            }
            fn flush(&mut self) -> Result<(), RequestError> {
                <$client>::flush(self)
            }
            fn trim(&mut self, offset: u64, length: usize) -> Result<(), RequestError> {
                <$client>::trim(self, offset, length)
            }
            fn write_zeroes(&mut self, offset: u64, length: usize) -> Result<(), RequestError> {
                <$client>::write_zeroes(self, offset, length)
            }
        }
    };
}

face!(Client);
face!(Initiator);

/// A file in a mounted filesystem.
struct MountedFile(File);

impl Face for MountedFile {
    fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, RequestError> {
        let mut bytes = vec![0; length];
        self.0.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RequestError> {
        Ok(self.0.write_all_at(bytes, offset)?)
    }
    fn write_durable(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RequestError> {
        self.write(offset, bytes)?;
        Ok(self.0.sync_data()?)
    }
    fn flush(&mut self) -> Result<(), RequestError> {
        Ok(self.0.sync_all()?)
    }
    fn trim(&mut self, offset: u64, length: usize) -> Result<(), RequestError> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.0, punch, offset, length as u64).map_err(io::Error::from)?)
    }
    fn write_zeroes(&mut self, offset: u64, length: usize) -> Result<(), RequestError> {
        Ok(rustix::fs::fallocate(&self.0, FallocateFlags::ZERO_RANGE, offset, length as u64).map_err(io::Error::from)?)
    }
}

impl Model {
    fn new() -> Model {
        let block = || Mutex::new(Block { possible: vec![0], acknowledged: 0 });
        let blocks = std::iter::repeat_with(block).take(BLOCKS).collect();
        Model { blocks, version: AtomicU64::new(1), flushes: AtomicU64::new(0) }
    }

    fn durable(&self, block: usize, version: u64) {
        let possible = &mut self.blocks[block].lock().unwrap().possible;
        if let Some(at) = possible.iter().position(|candidate| *candidate == version) {
            possible.drain(..at);
        }
    }

    /// Writes, and now and then flushes, until the daemon is gone.
    fn write(&self, client: &mut dyn Face, writer: usize, mut random: Random) -> RequestError {
        loop {
            let result = match random.below(40) {
                0 => self.flush(client),
                chance => self.write_some(client, writer, &mut random, chance < 4),
            };
            if let Err(error) = result {
                return error;
            }
        }
    }

    fn write_some(&self, client: &mut dyn Face, writer: usize, random: &mut Random, durable: bool) -> Result<(), RequestError> {
        let runs = (BLOCKS / RUN / WRITERS) as u64;
        let first = (random.below(runs) as usize * WRITERS + writer) * RUN + random.below(RUN as u64) as usize;
        let count = 1 + random.below((RUN - first % RUN) as u64) as usize;
        let version = self.version.fetch_add(1, Ordering::Relaxed);
        let blocks = first..first + count;
        for block in blocks.clone() {
            self.blocks[block].lock().unwrap().possible.push(version);
        }
        let offset = (first * BLOCK) as u64;
        let bytes: Vec<u8> = blocks.clone().flat_map(|block| content(block, version)).collect();
        match version % 8 {
            0 => client.trim(offset, bytes.len())?,
            1 => client.write_zeroes(offset, bytes.len())?,
            _ if durable => client.write_durable(offset, &bytes)?,
            _ => client.write(offset, &bytes)?,
        }
        for block in blocks {
            self.blocks[block].lock().unwrap().acknowledged = version;
            if durable && version % 8 > 1 {
                self.durable(block, version);
            }
        }
        Ok(())
    }

    /// What any connection was acknowledged before a flush begins is durable when it ends.
    fn flush(&self, client: &mut dyn Face) -> Result<(), RequestError> {
        let before: Vec<u64> = self.blocks.iter().map(|block| block.lock().unwrap().acknowledged).collect();
        client.flush()?;
        before.into_iter().enumerate().for_each(|(block, version)| self.durable(block, version));
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Compares the whole volume, and takes what is found as what is durable now.
    fn verify(&self, client: &mut dyn Face) {
        let per_read = 256;
        for first in (0..BLOCKS).step_by(per_read) {
            let bytes = client.read((first * BLOCK) as u64, per_read * BLOCK).unwrap();
            for (block, found) in (first..).zip(bytes.chunks_exact(BLOCK)) {
                let mut state = self.blocks[block].lock().unwrap();
                let version = state.possible.iter().copied().find(|version| content(block, *version) == found);
                let version = version.unwrap_or_else(|| {
                    let is_zero = found.iter().all(|byte| *byte == 0);
                    panic!("block {block} holds none of {state:?}; zeros: {is_zero}")
                });
                *state = Block { possible: vec![version], acknowledged: version };
            }
        }
    }
}

/// A seed that is another one each time, and printed, so that the choices (not the timing) can be had again.
fn seed() -> u64 {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos().into();
    println!("seed {seed}");
    seed
}

/// Kills the daemon somewhere in its start, with whatever it has to recover.
fn kill_while_it_starts(scene: &Scene, random: &mut Random) {
    let mut start = Running::start(&mut scene.command(["serve", "-q", "--nbd", "none", "--nbd-socket", "nbd.sock"]));
    std::thread::sleep(Duration::from_millis(random.below(60)));
    start.kill();
}

/// What the stores are, as options of `init`.
const EXACT: &[&str] = &["--container-size", "1MiB"];
const CACHELESS: &[&str] = &["--profile", "cacheless"];

/// How the daemon is reached: what it is started with, and a connection to the volume.
struct Way<'a> {
    store: &'a [&'a str],
    options: &'static [&'static str],
    connect: fn(&Daemon, u32) -> Box<dyn Face>,
}

/// The daemon is killed so many times; each connection is another client.
fn kills(way: &Way<'_>, times: usize) {
    let scene = Scene::new(way.store, "");
    scene.volume("disk", "16MiB");
    scene.run(["fs", "create", "files"]).succeeds();
    let place = scene.path("files");
    fs::create_dir(&place).unwrap();
    let _place = MountPlace::new(&place);
    let (model, mut random) = (Model::new(), Random::new(seed()));
    let serve = || scene.serve_with(way.options);
    for kill in 0..times {
        scene.set(if kill % 4 == 3 { "" } else { SMALL });
        let daemon = serve();
        model.verify(&mut *(way.connect)(&daemon, 0));
        let clients: Vec<_> = (0..WRITERS).map(|writer| (way.connect)(&daemon, 1 + writer as u32)).collect();
        let errors: Vec<RequestError> = std::thread::scope(|scope| {
            let start = |(writer, mut client): (usize, Box<dyn Face>)| {
                let (model, random) = (&model, Random::new(random.next_u64()));
                scope.spawn(move || model.write(&mut *client, writer, random))
            };
            let writers: Vec<_> = clients.into_iter().enumerate().map(start).collect();
            std::thread::sleep(Duration::from_millis(20 + random.below(600)));
            daemon.kill();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        assert!(errors.iter().all(|error| matches!(error, RequestError::Lost(_))), "{errors:?}");
        if kill % 3 == 0 {
            kill_while_it_starts(&scene, &mut random);
        }
        if kill % 5 == 0 {
            scene.run(["check"]).succeeds();
        }
    }
    let (writes, flushes) = (model.version.load(Ordering::Relaxed), model.flushes.load(Ordering::Relaxed));
    println!("{writes} writes, {flushes} flushes");
    let enough = 35 * times as u64;
    assert!(writes > enough && flushes > 8, "{writes} writes and {flushes} flushes prove little");
    for _ in 0..2 {
        let daemon = serve();
        model.verify(&mut *(way.connect)(&daemon, 0));
        daemon.stop();
    }
    scene.check();
}

#[test]
fn what_was_flushed_survives_kills_at_random_moments() {
    let options = &["--nbd", "none", "--nbd-socket", "nbd.sock"];
    kills(&Way { store: EXACT, options, connect: |daemon, _| Box::new(daemon.connect("disk")) }, 14);
}

#[test]
fn m1_1_what_was_flushed_survives_kills_of_a_store_of_blocks() {
    let options = &["--nbd", "none", "--nbd-socket", "nbd.sock"];
    kills(&Way { store: CACHELESS, options, connect: |daemon, _| Box::new(daemon.connect("disk")) }, 8);
}

#[test]
fn m1_1_what_was_flushed_survives_kills_with_the_blocks_on_a_device() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    File::create(&image).unwrap().set_len(256 << 20).unwrap();
    let device = match LoopDevice::attach(&image) {
        Ok(device) => device,
        Err(why) => return println!("skipped: no loop device here: {why}"),
    };
    let options = &["--nbd", "none", "--nbd-socket", "nbd.sock"];
    let store = &[CACHELESS, &["--block-device", &device.path]].concat();
    kills(&Way { store, options, connect: |daemon, _| Box::new(daemon.connect("disk")) }, 5);
}

#[test]
fn what_was_synchronized_over_iscsi_survives_kills_at_random_moments() {
    let options = &["--nbd", "none", "--iscsi", "127.0.0.1:0"];
    kills(&Way { store: EXACT, options, connect: |daemon, number| Box::new(daemon.initiator("disk", number)) }, 8);
}

#[test]
fn what_was_synced_to_a_mounted_file_survives_kills_at_random_moments() {
    let connect = |daemon: &Daemon, _| -> Box<dyn Face> {
        let place = daemon.event["mounts"][0]["mounted"].as_str().unwrap();
        let path = Path::new(place).join("disk");
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        file.set_len((BLOCK * BLOCKS) as u64).unwrap();
        Box::new(MountedFile(file))
    };
    if has_fuse() {
        let options = &["--nbd", "none", "--nbd-socket", "nbd.sock", "--fs", "files=files"];
        kills(&Way { store: EXACT, options, connect }, 10);
    }
}

fn fio(scene: &Scene, daemon: &Daemon, options: &[&str]) -> Running {
    let mut command = std::process::Command::new("fio");
    command.args(["--name=load", "--ioengine=nbd", "--rw=randwrite", "--bs=4k", "--iodepth=8", "--verify=crc32c", "--verify_fatal=1"]);
    command.args(["--verify_state_save=0", "--size=8m"]).arg(format!("--uri={}", daemon.uri("disk")));
    command.arg(format!("--aux-path={}", scene.text(""))).args(options);
    Running::start(&mut command)
}

#[test]
fn what_fio_synced_verifies_after_kills_under_its_verifying_load() {
    kills_under_fio(&[], 6);
}

#[test]
fn m1_1_what_fio_synced_verifies_after_kills_of_a_store_of_blocks() {
    kills_under_fio(CACHELESS, 3);
}

/// Kills the daemon so many times while fio writes over NBD to a store made with these options.
fn kills_under_fio(store: &[&str], times: u64) {
    if !installed(&["fio"]) {
        return;
    }
    if !client("fio", ["--enghelp"]).text().lines().any(|line| line.trim() == "nbd") {
        println!("skipped: fio was built without its nbd engine");
        return;
    }
    let scene = Scene::new(store, SMALL);
    scene.volume("disk", "32MiB");
    let mut random = Random::new(seed());
    for kill in 0..times {
        let daemon = scene.serve();
        let randseed = format!("--randseed={}", 1 + kill);
        fio(&scene, &daemon, &[&randseed, "--do_verify=0", "--end_fsync=1"]).finish().succeeds();
        let options = ["--offset=8m", "--rw=randrw", "--verify_backlog=64", "--fsync=16", "--time_based=1", "--runtime=60"];
        let mut load = fio(&scene, &daemon, &options);
        std::thread::sleep(Duration::from_millis(100 + random.below(500)));
        assert!(!load.has_ended(), "fio ended early: {}", load.finish().text());
        daemon.kill();
        assert_ne!(load.finish().code, 0, "fio has lost its disk");
        let daemon = scene.serve();
        let verified = fio(&scene, &daemon, &[&randseed, "--verify_only=1"]).finish().succeeds().text();
        assert!(verified.contains("err= 0"), "{verified}");
        daemon.kill();
    }
    scene.check();
}
