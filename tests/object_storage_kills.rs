//! Processes on a store in a bucket are killed with SIGKILL at random moments, and writers meet there. Whatever was
//! acknowledged is there afterwards, on every machine.

use onefold_tests::{Client, Daemon, Machine, ObjectStorage, Random, RequestError, Running, noise, plant};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const STORE: &str = "store";
/// Everything small, so that in a short time the log is trimmed, the indexes are written and containers fill up.
const SMALL: &str = "[log]\nsegment = \"1MiB\"\nlimit = \"2MiB\"\ncommit = \"1MiB\"\ncommit_interval_ms = 20\n\
                     [memory]\nvolume_dirty = \"1MiB\"\nauxiliary_index = \"1MiB\"\nobject_index_pending = \"1MiB\"\n";
/// Small containers.
const OPTIONS: &[&str] = &["--container-size", "256KiB"];

fn start_backup(machine: &Machine, source: &Path) -> Running {
    let name = source.file_name().unwrap();
    let arguments = [OsStr::new("backup"), OsStr::new("--name"), name, OsStr::new("--json"), source.as_os_str()];
    Running::start(&mut machine.command(arguments))
}

/// Restores each backup of these sources.
#[track_caller]
fn restores_all(machine: &Machine, backups: &[(String, PathBuf)]) {
    backups.iter().for_each(|(backup, source)| machine.restores(backup, source, source));
}

#[test]
fn a_killed_backup_to_a_bucket_harms_nothing() {
    const KILLS: u64 = 20;
    let Some(storage) = ObjectStorage::on_gateway() else { return };
    let home = storage.machine(STORE);
    home.init(OPTIONS, SMALL);
    let mut random = Random::new(1);
    let first = storage.path("first");
    plant(&first, 1, 2 * MIB);
    let mut known = vec![(home.back_up(&first)["id"].as_str().unwrap().to_owned(), first)];
    let mut interrupted = Vec::new();
    for round in 0..KILLS {
        let source = storage.path(&format!("round {round}"));
        plant(&source, 100 + round, 6 * MIB);
        let mut backup = start_backup(&home, &source);
        std::thread::sleep(Duration::from_millis(5 + random.below(245)));
        backup.kill();
        let run = backup.finish();
        // Sometimes somebody else looks first.
        let fresh = storage.machine(STORE);
        let machine = if round % 4 == 3 { &fresh } else { &home };
        machine.run(["check"]).succeeds();
        let backups = machine.backups();
        let is_made = backups.len() > known.len();
        assert!(backups.iter().zip(&known).all(|(now, (before, _))| now == before), "{known:?} {backups:?}");
        // It may have become visible without being able to say so.
        assert!(backups.len() <= known.len() + 1 && (is_made || run.code != 0), "{known:?} {backups:?} {run:?}");
        if is_made {
            known.push((backups.last().unwrap().clone(), source));
        } else {
            interrupted.push(source);
        }
        let one = random.below(known.len() as u64) as usize;
        restores_all(machine, &known[one..=one]);
    }
    println!("{} of {KILLS} backups were killed before they were made", interrupted.len());
    assert!(interrupted.len() >= 5, "only {} backups were killed before they were made", interrupted.len());
    for source in &interrupted[interrupted.len() - 2..] {
        known.push((home.back_up(source)["id"].as_str().unwrap().to_owned(), source.clone()));
    }
    let fresh = storage.machine(STORE);
    for machine in [&home, &fresh] {
        restores_all(machine, &known);
        machine.run(["check", "--read-data"]).succeeds();
    }
    let again = fresh.back_up(&known.last().unwrap().1)["added_bytes"].as_u64().unwrap();
    assert!(again < 100_000, "it has what was stored: {again}");
}

const BLOCK: usize = 4096;
/// Blocks of one writer.
const BLOCKS: usize = 1024;

/// What the blocks of one writer may hold after a crash: versions, oldest first. The first one is durable.
#[derive(Debug)]
struct Blocks {
    first: usize,
    possible: Vec<Vec<u64>>,
    version: u64,
    flushes: u64,
}

/// The content of a block: zeros, something that many blocks have, or something that no other has.
fn content(block: usize, version: u64) -> Vec<u8> {
    match version % 8 {
        0 => vec![0; BLOCK],
        1 => noise(version / 8 % 50, BLOCK),
        _ => noise(version << 20 | block as u64, BLOCK),
    }
}

impl Blocks {
    fn of_writer(writer: usize) -> Blocks {
        Blocks { first: writer * BLOCKS, possible: vec![vec![0]; BLOCKS], version: 0, flushes: 0 }
    }

    /// Writes, and now and then flushes, until an error comes.
    fn write(&mut self, client: &mut Client, random: &mut Random) -> RequestError {
        loop {
            let result = match random.below(30) {
                0 => client.flush().map(|()| {
                    // One request at a time: all that was written before was acknowledged.
                    self.possible.iter_mut().for_each(|versions| drop(versions.drain(..versions.len() - 1)));
                    self.flushes += 1;
                }),
                chance => self.write_some(client, random, chance == 1),
            };
            if let Err(error) = result {
                return error;
            }
        }
    }

    fn write_some(&mut self, client: &mut Client, random: &mut Random, durable: bool) -> Result<(), RequestError> {
        let start = random.below(BLOCKS as u64 - 16) as usize;
        let blocks = start..start + 1 + random.below(16) as usize;
        self.version += 1;
        let version = self.version;
        let bytes: Vec<u8> = blocks.clone().flat_map(|block| content(self.first + block, version)).collect();
        self.possible[blocks.clone()].iter_mut().for_each(|versions| versions.push(version));
        let offset = ((self.first + start) * BLOCK) as u64;
        if durable {
            client.write_durable(offset, &bytes)?;
            self.possible[blocks].iter_mut().for_each(|versions| *versions = vec![version]);
            return Ok(());
        }
        client.write(offset, &bytes)
    }

    /// Compares all blocks, and takes what is found as what is durable now.
    fn verify(&mut self, client: &mut Client) {
        let bytes = client.read((self.first * BLOCK) as u64, BLOCKS * BLOCK).unwrap();
        for (number, (found, versions)) in bytes.chunks_exact(BLOCK).zip(&mut self.possible).enumerate() {
            let block = self.first + number;
            let version = versions.iter().copied().find(|version| content(block, *version) == found);
            let is_zero = found.iter().all(|byte| *byte == 0);
            *versions = vec![version.unwrap_or_else(|| panic!("block {block} holds none of {versions:?}; zeros: {is_zero}"))];
        }
    }
}

fn disk(storage: &ObjectStorage) -> Machine {
    let home = storage.machine(STORE);
    home.init(OPTIONS, SMALL);
    home.run(["volume", "create", "disk", "--size", "16MiB"]).succeeds();
    home
}

#[test]
fn what_was_flushed_to_a_bucket_survives_kills_of_the_daemon() {
    const KILLS: u64 = 10;
    let Some(storage) = ObjectStorage::on_gateway() else { return };
    let home = disk(&storage);
    let (mut random, mut writers) = (Random::new(2), [0, 1].map(Blocks::of_writer));
    for kill in 0..KILLS {
        let daemon = home.serve();
        writers.iter_mut().for_each(|blocks| blocks.verify(&mut daemon.connect("disk")));
        let lives = Duration::from_millis(30 + random.below(500));
        std::thread::scope(|scope| {
            for blocks in &mut writers {
                let (mut client, mut random) = (daemon.connect("disk"), Random::new(random.next_u64()));
                scope.spawn(move || {
                    let error = blocks.write(&mut client, &mut random);
                    assert!(matches!(error, RequestError::Lost(_)), "{error:?}");
                });
            }
            std::thread::sleep(lives);
            daemon.kill();
        });
        if kill == KILLS / 2 {
            // The machine has died with its disk. Nobody knows that, so the next opening waits for it.
            home.lose_state();
        }
        if kill % 4 == 2 {
            storage.machine(STORE).run(["check"]).succeeds();
        }
    }
    let sum = |of: fn(&Blocks) -> u64| writers.iter().map(of).sum::<u64>();
    let (writes, flushes) = (sum(|blocks| blocks.version), sum(|blocks| blocks.flushes));
    println!("{writes} writes, {flushes} flushes");
    assert!(writes > 20 * KILLS && flushes > KILLS, "{writes} writes and {flushes} flushes prove little");
    let other = storage.machine(STORE);
    for machine in [&home, &other] {
        let daemon = machine.serve();
        writers.iter_mut().for_each(|blocks| blocks.verify(&mut daemon.connect("disk")));
        daemon.stop();
        machine.run(["check", "--read-data"]).succeeds();
    }
}

/// A daemon with something that it acknowledged, and a machine that wants to write beside it.
struct Beside {
    storage: ObjectStorage,
    home: Machine,
    other: Machine,
    daemon: Daemon,
    client: Client,
    tree: PathBuf,
    durable: Vec<u8>,
    flushed: Vec<u8>,
}

impl Beside {
    fn new() -> Option<Beside> {
        let storage = ObjectStorage::on_gateway()?;
        let (home, other) = (disk(&storage), storage.machine(STORE));
        let tree = storage.path("tree");
        plant(&tree, 5, 3 * MIB);
        let daemon = home.serve();
        let mut client = daemon.connect("disk");
        let [durable, flushed] = [6, 7].map(|seed| noise(seed, 300_000));
        client.write_durable(0, &durable).unwrap();
        client.write(MIB, &flushed).unwrap();
        client.flush().unwrap();
        Some(Beside { storage, home, other, daemon, client, tree, durable, flushed })
    }

    /// Kills the daemon. Everything that was acknowledged is there, on every machine, and these backups of the tree.
    #[track_caller]
    fn has_all(self, later: Option<&[u8]>, backups: &[String]) {
        self.daemon.kill();
        for machine in [&self.home, &self.storage.machine(STORE), &self.other] {
            assert_eq!(machine.backups(), backups);
            backups.iter().for_each(|backup| machine.restores(backup, &self.tree, &self.tree));
            machine.run(["check", "--read-data"]).succeeds();
            let daemon = machine.serve();
            let mut client = daemon.connect("disk");
            assert!(client.read(0, self.durable.len()).unwrap() == self.durable);
            assert!(client.read(MIB, self.flushed.len()).unwrap() == self.flushed);
            assert!(later.is_none_or(|later| client.read(2 * MIB, later.len()).unwrap() == later));
            drop(client);
            daemon.stop();
        }
    }
}

#[test]
fn a_second_writer_is_refused_while_the_first_one_lives() {
    let Some(mut beside) = Beside::new() else { return };
    let began = Instant::now();
    let text = beside.other.run(["backup", "--name", "tree", "--wait=1s", "tree"]).ends_with(2).text();
    assert!(text.contains("in use") && text.contains("`serve`") && text.contains(&beside.daemon.pid().to_string()), "{text}");
    assert!(began.elapsed() < Duration::from_secs(30), "it took {:?} to refuse", began.elapsed());
    let later = noise(8, 300_000);
    beside.client.write_durable(2 * MIB, &later).unwrap();
    // Readers are welcome.
    assert!(beside.other.backups().is_empty());
    beside.other.run(["check", "--read-data"]).succeeds();
    beside.has_all(Some(&later), &[]);
}

/// A daemon that could not say for long that it is there, such as one of a machine that slept.
#[test]
fn a_writer_that_was_taken_for_gone_writes_nothing_more() {
    let Some(mut beside) = Beside::new() else { return };
    let unflushed = noise(9, 300_000);
    beside.client.write(2 * MIB, &unflushed).unwrap();
    beside.daemon.pause();
    let backup = beside.other.back_up(&beside.tree)["id"].as_str().unwrap().to_owned();
    beside.daemon.resume();
    // Also one who has waited, and one who has just come.
    let refused = |client: &mut Client| {
        assert!(client.flush().is_err(), "a daemon acknowledges writes to a store that another machine has");
        assert!(client.write_durable(3 * MIB, &unflushed).is_err());
    };
    refused(&mut beside.client);
    refused(&mut beside.client);
    if let Ok(mut client) = Client::connect(beside.daemon.socket(), "disk") {
        refused(&mut client);
    }
    let log = beside.home.daemon_log();
    assert!(log.contains("another") && !log.contains("panicked"), "the daemon does not say why it refuses: {log}");
    // A command that the daemon carries out is not acknowledged either.
    let second = start_backup(&beside.home, &beside.tree).finish();
    assert!([1, 2].contains(&second.code) && !second.text().contains("panicked"), "{}", second.text());
    beside.has_all(None, &[backup]);
}

/// Then a supervisor starts it again. The daemon that had the store could never write again.
#[test]
fn a_daemon_whose_store_cannot_be_written_ends_and_the_next_one_has_all_that_was_flushed() {
    let storage = ObjectStorage::on_disk();
    let home = storage.machine(STORE);
    home.init(OPTIONS, SMALL);
    home.run(["volume", "create", "disk", "--size", "16MiB"]).succeeds();
    let daemon = home.serve();
    let mut client = daemon.connect("disk");
    let flushed = noise(1, 300_000);
    client.write(0, &flushed).unwrap();
    client.flush().unwrap();
    let [log, away] = ["log", "away"].map(|name| storage.objects(STORE).join(name));
    fs::rename(&log, &away).unwrap();
    fs::write(&log, "no directory").unwrap();
    client.write(MIB, &flushed).unwrap();
    assert!(client.flush().is_err());
    assert_eq!(daemon.wait(), Some(1));
    let said = home.daemon_log();
    assert!(said.contains("the daemon ends") && said.contains("start it again"), "{said}");
    fs::remove_file(&log).unwrap();
    fs::rename(&away, &log).unwrap();
    let daemon = home.serve();
    assert!(daemon.connect("disk").read(0, flushed.len()).unwrap() == flushed);
    daemon.stop();
}

/// A machine that is gone, and presences that say nothing.
#[test]
fn whoever_is_gone_holds_others_up_for_less_than_a_minute_and_they_say_so() {
    let Some(storage) = ObjectStorage::on_gateway() else { return };
    let tree = storage.path("tree");
    plant(&tree, 1, MIB);
    let presence = |prefix: &str, name: &str| storage.objects(prefix).join("leases").join(name);
    let homes = ["killed", "senseless", "senseless-reader"].map(|prefix| {
        let home = storage.machine(prefix);
        home.init(OPTIONS, SMALL);
        home.run(["volume", "create", "disk", "--size", "16MiB"]).succeeds();
        let backup = home.back_up(&tree);
        home.run(["forget", backup["id"].as_str().unwrap(), "--yes"]).succeeds();
        home
    });
    homes[..2].iter().for_each(|home| home.serve().kill());
    for (prefix, name) in [("senseless", "writer"), ("senseless-reader", "readers/0123456789abcdef")] {
        let presence = presence(prefix, name);
        fs::create_dir_all(presence.parent().unwrap()).unwrap();
        fs::write(presence, noise(1, 1000)).unwrap();
    }
    let began = Instant::now();
    let others = ["killed", "senseless", "senseless-reader"].map(|prefix| storage.machine(prefix));
    let prune = Running::start(&mut others[2].command(["prune", "--json"]));
    let waiting = [start_backup(&others[0], &tree), start_backup(&others[1], &tree), prune];
    for running in waiting {
        let run = running.finish_within(Duration::from_secs(100)).succeeds();
        println!("after {:?}: {}", began.elapsed(), String::from_utf8_lossy(&run.err));
        assert!(began.elapsed() < Duration::from_secs(75), "{:?}", began.elapsed());
        assert!(!run.err.is_empty(), "it waits in silence");
    }
    // The machine that was killed is back, and knows what happened.
    assert_eq!(homes[0].backups().len(), 1);
    homes[0].serve().stop();
}

#[test]
fn of_backups_at_the_same_time_each_is_whole_or_fails() {
    let Some(storage) = ObjectStorage::on_gateway() else { return };
    storage.machine(STORE).init(OPTIONS, SMALL);
    let machines = [(); 3].map(|()| storage.machine(STORE));
    let mut made = Vec::new();
    let mut random = Random::new(3);
    for round in 0..2 {
        let start = |(number, machine): (usize, &Machine)| {
            let source = storage.path(&format!("{round}-{number}"));
            plant(&source, round * 10 + number as u64, 6 * MIB);
            std::thread::sleep(Duration::from_millis(random.below(60)));
            (start_backup(machine, &source), source)
        };
        let started: Vec<_> = machines.iter().enumerate().map(start).collect();
        for (backup, source) in started {
            let run = backup.finish();
            assert!([0, 1, 2].contains(&run.code) && !run.text().contains("panicked"), "{run:?}");
            if run.code == 0 {
                made.push((run.json()["id"].as_str().unwrap().to_owned(), source));
            } else {
                let text = run.text();
                assert!(text.contains("another") || text.contains("in use"), "it does not say why: {text}");
            }
        }
    }
    assert!(!made.is_empty(), "of several writers, one gets on");
    println!("{} of 6 backups were made", made.len());
    for machine in [&machines[0], &storage.machine(STORE)] {
        let listed = machine.backups();
        assert!(made.iter().all(|(backup, _)| listed.contains(backup)), "{made:?} {listed:?}");
        restores_all(machine, &made);
        machine.run(["check", "--read-data"]).succeeds();
    }
}

/// A prune deletes objects, and a machine that begins to read meanwhile must not take that for damage.
#[test]
fn machines_that_open_the_store_beside_a_prune_see_no_damage() {
    let Some(storage) = ObjectStorage::on_gateway() else { return };
    let home = storage.machine(STORE);
    home.init(OPTIONS, SMALL);
    let kept = storage.path("kept");
    plant(&kept, 1, 3 * MIB);
    let backup = home.back_up(&kept)["id"].as_str().unwrap().to_owned();
    for round in 0..3 {
        for number in 0..3 {
            let source = storage.path(&format!("{round}-{number}"));
            plant(&source, 10 + round * 10 + number, 2 * MIB);
            let backup = home.back_up(&source);
            home.run(["forget", backup["id"].as_str().unwrap(), "--yes"]).succeeds();
        }
        let mut prune = Running::start(&mut home.command(["prune", "--max-unused", "0%"]));
        let until = Instant::now() + Duration::from_secs(60);
        while !prune.has_ended() {
            assert!(Instant::now() < until, "the prune does not end");
            let other = storage.machine(STORE);
            assert_eq!(other.backups(), [backup.as_str()]);
            other.restores(&backup, &kept, &kept);
        }
        prune.finish().succeeds();
    }
    storage.machine(STORE).run(["check", "--read-data"]).succeeds();
}
