//! The daemon is killed with SIGKILL again and again under programs that work in a mounted filesystem. Whatever they
//! were told is durable must be there when it is mounted again, and names must be as they were at one moment.
//!
//! `ONEFOLD_FILESYSTEM_KILLS` says how many times each test kills it. `kill_daemon.rs` does the same under writes in
//! place.

use onefold_tests::{MountPlace, Random, Running, Scene, has_fuse, installed, noise, setting};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Everything small, so that in a short load the log wraps, buffers are written out and the indexes are swept.
const SMALL: &str = "[log]\nsegment = \"1MiB\"\nlimit = \"2MiB\"\ncommit = \"1MiB\"\ncommit_interval_ms = 20\n\
                     [memory]\nauxiliary_index = \"1MiB\"\nobject_index_pending = \"1MiB\"\n[mount]\ncommit_interval_ms = 50\n";
/// What the stores are, as options of `init`.
const EXACT: [&str; 2] = ["--container-size", "1MiB"];
const CACHELESS: [&str; 2] = ["--profile", "cacheless"];
/// How many times the daemon is killed, if nobody says otherwise: on a store of blocks, under one load, less often.
const KILLS: u64 = 10;
const CACHELESS_KILLS: u64 = 4;
const SERVE: [&str; 6] = ["--nbd", "none", "--nbd-socket", "nbd.sock", "--fs", "files=files"];

/// What is done in the filesystem in each round.
trait Load {
    /// Checks what the rounds before left.
    fn verify(&mut self);

    /// Works until the filesystem is gone. Calls `kill` once, when the work has begun.
    fn work(&mut self, round: u64, kill: &mut dyn FnMut());
}

/// Kills the daemon under a load, at random moments. Now and then it is killed once more while it starts.
fn kills<L: Load>(new: impl FnOnce(&Path) -> L) {
    kills_of(&EXACT, KILLS, new);
}

/// Does the same on a store made with these options.
fn kills_of<L: Load>(store: &[&str], default_kills: u64, new: impl FnOnce(&Path) -> L) {
    let scene = Scene::new(store, "");
    scene.run(["fs", "create", "files"]).succeeds();
    let root = scene.path("files");
    fs::create_dir(&root).unwrap();
    let _place = MountPlace::new(&root);
    let mut load = new(&root);
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos().into();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    for round in 0..setting("ONEFOLD_FILESYSTEM_KILLS", default_kills) {
        scene.set(if round % 4 == 3 { "" } else { SMALL });
        let mut daemon = Some(scene.serve_with(&SERVE));
        load.verify();
        load.work(round, &mut || {
            std::thread::sleep(Duration::from_millis(20 + random.below(600)));
            daemon.take().expect("it is killed once").kill();
        });
        if round % 3 == 0 {
            let mut start = Running::start(&mut scene.command(["serve", "-q"].iter().chain(&SERVE)));
            std::thread::sleep(Duration::from_millis(random.below(100)));
            start.kill();
        }
        if round % 5 == 0 {
            scene.run(["check"]).succeeds();
        }
    }
    for _ in 0..2 {
        let daemon = scene.serve_with(&SERVE);
        load.verify();
        daemon.stop();
    }
    scene.check();
}

/// One directory, and what one thread did to the names in it.
struct Names {
    directory: PathBuf,
    /// Names and their versions as they were found after the last kill.
    found: BTreeMap<u64, u64>,
    /// The same as they are now.
    now: BTreeMap<u64, u64>,
    /// What was done since; nothing for a name that was removed. The last one may have failed.
    changes: Vec<(u64, Option<u64>)>,
    /// How many of the changes must be there after a kill.
    durable: usize,
    version: u64,
    synced: u64,
}

/// Names of a directory.
const NAMES: u64 = 30;

impl Names {
    fn new(directory: PathBuf) -> Names {
        let empty = BTreeMap::new();
        Names { directory, found: empty.clone(), now: empty, changes: Vec::new(), durable: 0, version: 0, synced: 0 }
    }

    /// The content of a version: its number, then noise.
    fn content(version: u64) -> Vec<u8> {
        let mut bytes = version.to_le_bytes().to_vec();
        bytes.extend(noise(version, (version * 7919 % 60_000) as usize));
        bytes
    }

    fn change(&mut self, random: &mut Random) -> io::Result<()> {
        let name = random.below(NAMES);
        let path = self.directory.join(name.to_string());
        let version = match random.below(8) {
            0 => return self.sync(&self.directory.clone()),
            1 if self.now.contains_key(&name) => None,
            _ => {
                self.version += 1;
                Some(self.version)
            }
        };
        if let Some(version) = version {
            let next = self.directory.join("next");
            File::create(&next)?.write_all(&Names::content(version))?;
            // A rename over another file stores the content by itself.
            if !self.now.contains_key(&name) || random.below(3) > 0 {
                self.sync(&next)?;
            }
            self.changes.push((name, Some(version)));
            self.now.insert(name, version);
            fs::rename(next, path)
        } else {
            self.changes.push((name, None));
            self.now.remove(&name);
            fs::remove_file(path)
        }
    }

    /// An fsync, of whatever it is, makes all earlier changes of names durable.
    fn sync(&mut self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()?;
        self.durable = self.changes.len();
        self.synced += 1;
        Ok(())
    }

    /// The names are those after some number of changes, all durable ones among them.
    fn verify(&mut self) {
        let read = |entry: io::Result<fs::DirEntry>| {
            let path = entry.unwrap().path();
            let name = path.file_name()?.to_str()?.parse().ok()?;
            let bytes = fs::read(&path).unwrap();
            let version = bytes.first_chunk().map(|first| u64::from_le_bytes(*first));
            assert!(version.is_some_and(|version| Names::content(version) == bytes), "{path:?} has {} wrong bytes", bytes.len());
            version.map(|version| (name, version))
        };
        let found: BTreeMap<u64, u64> = fs::read_dir(&self.directory).unwrap().filter_map(read).collect();
        let mut state = self.found.clone();
        let mut matches = self.durable == 0 && state == found;
        for (done, (name, version)) in (1..).zip(&self.changes) {
            match version {
                Some(version) => state.insert(*name, *version),
                None => state.remove(name),
            };
            matches |= done >= self.durable && state == found;
        }
        assert!(matches, "{found:?} is no state after {} of {:?} from {:?}", self.durable, self.changes, self.found);
        (self.changes, self.durable) = (Vec::new(), 0);
        (self.found, self.now) = (found.clone(), found);
    }
}

/// Directories, a thread for each.
impl Load for Vec<Names> {
    fn verify(&mut self) {
        for names in self {
            if names.found.is_empty() && names.changes.is_empty() {
                fs::create_dir_all(&names.directory).unwrap();
                File::open(&names.directory).unwrap().sync_all().unwrap();
            }
            names.verify();
        }
    }

    fn work(&mut self, round: u64, kill: &mut dyn FnMut()) {
        std::thread::scope(|scope| {
            for (number, names) in self.iter_mut().enumerate() {
                let mut random = Random::new(round * 100 + number as u64);
                scope.spawn(move || while names.change(&mut random).is_ok() {});
            }
            kill();
        });
        let (changed, synced) = self.iter().fold((0, 0), |(changed, synced), names| (changed + names.version, synced + names.synced));
        println!("round {round}: {changed} versions, {synced} syncs");
    }
}

#[test]
fn names_are_as_they_were_at_one_moment_after_the_last_sync_when_the_daemon_was_killed() {
    if has_fuse() {
        kills(|root| (0..3).map(|number: u64| Names::new(root.join(number.to_string()))).collect::<Vec<_>>());
    }
}

/// What fio wrote with `O_DSYNC`. It notes which of its writes were acknowledged, and verifies these and no others.
struct Fio {
    root: PathBuf,
    notes: tempfile::TempDir,
    /// How many blocks each round wrote.
    written: Vec<u64>,
}

impl Fio {
    fn new(root: &Path) -> Fio {
        Fio { root: root.to_owned(), notes: tempfile::tempdir().unwrap(), written: Vec::new() }
    }

    /// Runs it to its end. Returns its exit code, and how many requests of a kind it made.
    fn end(load: Running, kind: &str) -> (i32, u64) {
        let run = load.finish();
        let text = run.text();
        let json = text.find('{').zip(text.rfind('}')).and_then(|(from, to)| serde_json::from_str(&text[from..=to]).ok());
        let json: serde_json::Value = json.unwrap_or_else(|| panic!("{text}"));
        (run.code, json["jobs"][0][kind]["total_ios"].as_u64().unwrap())
    }

    fn command(&self, round: u64) -> Command {
        let mut command = Command::new("fio");
        command.args(["--ioengine=psync", "--rw=randwrite", "--bs=4k", "--size=32m", "--verify=crc32c", "--verify_fatal=1"]);
        // The file has its length at once: fio cannot verify one that is shorter.
        command.args(["--sync=dsync", "--fallocate=truncate", "--output-format=json"]).current_dir(self.notes.path());
        command.args([format!("--name=round{round}"), format!("--randseed={}", round + 1)]);
        command.arg(format!("--directory={}", self.root.display())).arg(format!("--aux-path={}", self.notes.path().display()));
        command
    }
}

impl Load for Fio {
    fn verify(&mut self) {
        // Of the rounds before the last one, it is enough to try one again.
        for (round, written) in (0..).zip(&self.written).skip(self.written.len().saturating_sub(2)) {
            let mut command = self.command(round);
            let load = Running::start(command.args(["--verify_only=1", "--verify_state_load=1", "--verify_state_save=0"]));
            let (code, verified) = Fio::end(load, "read");
            assert_eq!(code, 0, "round {round}: block {verified} of {written} is another one");
            // The last write may have failed.
            assert!(verified + 1 >= *written, "round {round}: {verified} of {written} blocks were verified");
        }
    }

    fn work(&mut self, round: u64, kill: &mut dyn FnMut()) {
        let mut command = self.command(round);
        let load = Running::start(command.args(["--do_verify=0", "--verify_state_save=1"]));
        let file = self.root.join(format!("round{round}.0.0"));
        wait_until("fio writes", || fs::metadata(&file).is_ok_and(|found| found.blocks() > 0));
        kill();
        let (code, written) = Fio::end(load, "write");
        assert_ne!(code, 0, "fio has lost its file");
        println!("round {round}: fio wrote {written} blocks");
        self.written.push(written);
    }
}

#[test]
fn what_fio_wrote_synchronously_verifies_after_kills_at_random_moments() {
    if has_fuse() && installed(&["fio"]) {
        kills(Fio::new);
    }
}

#[test]
fn m1_1_what_fio_wrote_synchronously_verifies_after_kills_of_a_store_of_blocks() {
    if has_fuse() && installed(&["fio"]) {
        kills_of(&CACHELESS, CACHELESS_KILLS, Fio::new);
    }
}

/// Databases of SQLite, and the programs that change them.
struct Databases {
    root: PathBuf,
    /// The program, and the numbers of the transactions that each database acknowledged.
    notes: tempfile::TempDir,
}

/// A journal of SQLite, how it syncs, and the most acknowledged transactions that a kill may take back.
///
/// With `delete`, a commit is the removal of the journal. SQLite syncs the directory after it with `extra` only. With
/// `full` the journal of the last commit may come back and undo it, on any file system.
///
/// If SQLite cannot open the directory to sync it, it acknowledges the commit all the same (`unixDelete`). So the
/// program opens it once more before it takes a commit for acknowledged: who can be reached now could be reached then.
const JOURNALS: [(&str, &str, u64); 4] = [("wal", "full", 0), ("truncate", "full", 0), ("delete", "extra", 0), ("delete", "full", 1)];

/// Each transaction adds an entry, removes an old one, and counts.
const DATABASE: &str = r#"
import os, sqlite3, sys
action, path, journal, synchronous, notes, may_lose = sys.argv[1:]
def body(number):
    return number.to_bytes(8, "little") * (1 + number * 7919 % 900)
database = sqlite3.connect(path, isolation_level=None, timeout=60)
if action == "check":
    noted = open(notes).read().split()
    noted = int(noted[-1]) if noted else 0
    assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
    if noted == 0 and not database.execute("select * from sqlite_master").fetchall():
        sys.exit()
    last, = database.execute("select last from count").fetchone()
    assert noted - int(may_lose) <= last <= noted + 1, f"{last} transactions are there, {noted} were acknowledged"
    entries = database.execute("select number, body from entries order by number").fetchall()
    assert entries == [(number, body(number)) for number in range(max(1, last - 99), last + 1)]
    with open(notes, "a") as file:
        file.write(f"{last}\n")
    print(last, noted)
else:
    notes = open(notes, "ab", buffering=0)
    assert database.execute(f"pragma journal_mode={journal}").fetchone() == (journal,)
    database.execute(f"pragma synchronous={synchronous}")
    database.executescript("""begin; create table if not exists entries (number integer primary key, body blob);
        create table if not exists count (one integer primary key, last integer);
        insert or ignore into count values (1, 0); commit""")
    last, = database.execute("select last from count").fetchone()
    while True:
        last += 1
        database.execute("begin immediate")
        database.execute("insert into entries values (?, ?)", (last, body(last)))
        database.execute("delete from entries where number = ?", (last - 100,))
        database.execute("update count set last = ?", (last,))
        database.execute("commit")
        os.close(os.open(os.path.dirname(path), os.O_DIRECTORY))
        notes.write(f"{last}\n".encode())
"#;

impl Databases {
    fn command(&self, action: &str, (journal, synchronous, may_lose): (&str, &str, u64)) -> Command {
        let name = format!("{journal}-{synchronous}");
        let notes = self.notes.path().join(&name);
        File::options().append(true).create(true).open(&notes).unwrap();
        let mut command = Command::new("python3");
        command.arg(self.notes.path().join("script.py")).arg(action).arg(self.root.join(name)).args([journal, synchronous]);
        command.arg(notes).arg(may_lose.to_string());
        command
    }

    fn noted_bytes(&self) -> u64 {
        fs::read_dir(self.notes.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
    }
}

impl Load for Databases {
    fn verify(&mut self) {
        let checks = JOURNALS.map(|journal| Running::start(&mut self.command("check", journal)));
        for (check, journal) in checks.into_iter().zip(JOURNALS) {
            println!("{journal:?}: there and acknowledged: {}", check.finish().succeeds().text().trim());
        }
    }

    fn work(&mut self, _round: u64, kill: &mut dyn FnMut()) {
        let before = self.noted_bytes();
        let loads = JOURNALS.map(|journal| Running::start(&mut self.command("work", journal)));
        wait_until("a transaction is committed", || self.noted_bytes() > before);
        kill();
        // They end by an error, or by SIGBUS in the shared memory of a WAL.
        loads.into_iter().for_each(|load| assert_ne!(load.finish().code, 0, "the database is gone"));
    }
}

#[test]
fn what_sqlite_committed_is_there_after_kills_at_random_moments() {
    if !has_fuse() || !installed(&["python3"]) {
        return;
    }
    kills(|root| {
        let databases = Databases { root: root.to_owned(), notes: tempfile::tempdir().unwrap() };
        fs::write(databases.notes.path().join("script.py"), DATABASE).unwrap();
        databases
    });
}

#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "not yet: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
