//! Readers of other processes beside the one that writes: they come, read and go between any two changes that the
//! writer makes on the disk (`docs/decisions/0035-readers-beside-a-writer.md`).
//!
//! Each backup says what it has (its options are a checksum of its tree), so a reader knows by itself whether it reads
//! the right bytes.

use crate::model::{Model, sum_in, sum_of};
use crate::steps::step;
use crate::verify::read_tree;
use crate::world::{Case, Fault, Profile, Random, World, must, policy};
use onefold_catalog::{Backup, BackupId, Catalog};
use onefold_engine::{Engine, Mode, Settings};
use onefold_ground::{Access, CrashPolicy, File, Ground, Holder, Result, SimulatedGround};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};

/// A disk on which others look around before each change.
#[derive(Clone)]
struct Watched {
    inner: SimulatedGround,
    crowd: Arc<Mutex<Crowd>>,
    writer: std::thread::ThreadId,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

impl Watched {
    fn look(&self) {
        // Not in a thread that the writer waits for, while it has the views to itself.
        if std::thread::current().id() == self.writer
            && let Ok(mut crowd) = self.crowd.try_lock()
        {
            crowd.look(&self.inner);
        }
    }

    fn watched(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(WatchedFile { inner: file, ground: self.clone() })
    }
}

impl onefold_ground::DelegatingGround for Watched {
    fn below(&self) -> &dyn Ground {
        &self.inner
    }
    fn create(&self, path: &str) -> Result<Arc<dyn File>> {
        self.look();
        self.inner.create(path).map(|file| self.watched(file))
    }
    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn File>> {
        let file = self.inner.open(path, access)?;
        Ok(if access == Access::Read { file } else { self.watched(file) })
    }
    fn remove(&self, path: &str) -> Result<()> {
        self.look();
        self.inner.remove(path)
    }
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.look();
        self.inner.rename(from, to)
    }
    fn sync_directory(&self, directory: &str) -> Result<()> {
        self.look();
        self.inner.sync_directory(directory)
    }
}

#[derive(Debug)]
struct WatchedFile {
    inner: Arc<dyn File>,
    ground: Watched,
}

impl onefold_ground::DelegatingFile for WatchedFile {
    fn below(&self) -> &dyn File {
        &*self.inner
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.ground.look();
        // A reader may find any part of what is being written.
        if data.len() > 600 {
            let (one, other) = data.split_at(data.len() / 2);
            self.inner.write_at(offset, one)?;
            self.ground.look();
            return self.inner.write_at(offset + one.len() as u64, other);
        }
        self.inner.write_at(offset, data)
    }
    fn set_len(&self, length: u64) -> Result<()> {
        self.ground.look();
        self.inner.set_len(length)
    }
    fn sync(&self) -> Result<()> {
        self.ground.look();
        self.inner.sync()
    }
}

/// A reader that holds a backup.
struct Reader {
    engine: Arc<Engine>,
    backup: Backup,
    /// When it came: its number.
    number: u64,
}

/// All readers, and what they have seen.
struct Crowd {
    random: Random,
    settings: Settings,
    case: Case,
    /// One look in so many does something.
    rarely: u64,
    readers: Vec<Reader>,
    came: u64,
    reads: u64,
    /// What readers that came since the last step have seen: which backups.
    listed: Vec<BTreeSet<[u8; 16]>>,
}

impl Crowd {
    fn look(&mut self, ground: &SimulatedGround) {
        if ground.is_crashed() || !self.random.one_in(self.rarely) {
            return;
        }
        if self.readers.len() < 4 && self.random.one_in(2) {
            self.enter(ground);
        } else if !self.readers.is_empty() {
            let at = self.random.below(self.readers.len() as u64) as usize;
            self.read(at, ground);
            if self.random.one_in(3) {
                self.readers.swap_remove(at);
            }
        }
    }

    fn enter(&mut self, ground: &SimulatedGround) {
        // While the writer has the views to itself a reader would wait, here for ever.
        if ground.lock("views", false, &Holder::this_process("look")).is_err() {
            return;
        }
        let shared: Arc<dyn Ground> = Arc::new(ground.clone());
        let opened = Engine::open(shared, self.settings.clone(), Mode::Snapshot, "reader");
        let list = |engine: &Arc<Engine>| Catalog::new(engine.clone()).list();
        let found = opened.map_err(|error| error.to_string()).and_then(|engine| match list(&engine) {
            Ok(list) => Ok((engine, list)),
            Err(error) => Err(error.to_string()),
        });
        if ground.is_crashed() {
            return;
        }
        let (engine, list) = found.unwrap_or_else(|error| panic!("{}, reader {}: {error}", self.case, self.came));
        let catalog = Catalog::new(engine.clone());
        self.listed.push(list.iter().map(|backup| *backup.id.as_bytes()).collect());
        self.came += 1;
        if !list.is_empty() {
            let backup = list[self.random.below(list.len() as u64) as usize].clone();
            match catalog.hold(&[&backup]) {
                Err(_) if ground.is_crashed() => return,
                held => held.unwrap(),
            }
            assert!(catalog.list().is_err(), "a reader that holds something asks for nothing else");
            self.readers.push(Reader { engine, backup, number: self.came });
            if self.random.one_in(4) {
                self.read(self.readers.len() - 1, ground);
            }
        }
    }

    fn read(&mut self, at: usize, ground: &SimulatedGround) {
        let Reader { engine, backup, number } = &self.readers[at];
        let read = read_tree(engine, backup);
        if ground.is_crashed() {
            return;
        }
        let tree = read.unwrap_or_else(|error| panic!("{}, reader {number}, {}: {error}", self.case, backup.id));
        assert_eq!(sum_of(&tree), sum_in(backup), "{}, reader {number}: backup {} has other bytes", self.case, backup.id);
        self.reads += 1;
    }

    /// The readers that came since the last step saw each backup that was there before and after it, and none that was
    /// there neither before nor after.
    fn judge(&mut self, before: &Model, after: &Model) {
        let certain = |model: &Model| -> BTreeSet<[u8; 16]> {
            model.backups.iter().filter(|(_, backup)| backup.visible == [true]).map(|(id, _)| *id).collect()
        };
        let possible = |model: &Model| -> BTreeSet<[u8; 16]> {
            model.backups.iter().filter(|(_, backup)| backup.visible.contains(&true)).map(|(id, _)| *id).collect()
        };
        let must: BTreeSet<_> = certain(before).intersection(&certain(after)).copied().collect();
        let may: BTreeSet<_> = possible(before).union(&possible(after)).copied().collect();
        // One that was made or cancelled by an error in this very step.
        let known: BTreeSet<_> = after.backups.keys().chain(before.backups.keys()).copied().collect();
        for seen in self.listed.drain(..) {
            let missed: Vec<_> = must.difference(&seen).map(|id| BackupId::from_bytes(*id)).collect();
            assert!(missed.is_empty(), "{}: a reader did not see {missed:?}", self.case);
            let strange: Vec<_> = seen.difference(&may).filter(|id| !known.contains(*id)).map(|id| BackupId::from_bytes(*id)).collect();
            assert!(strange.is_empty(), "{}: a reader saw {strange:?}", self.case);
        }
    }
}

fn open(case: Case, ground: &SimulatedGround, crowd: &Arc<Mutex<Crowd>>) -> std::result::Result<World, Fault> {
    let watched = Watched { inner: ground.clone(), crowd: crowd.clone(), writer: std::thread::current().id() };
    case.open_on(Arc::new(watched), ground, settings_of(case), Mode::ReadWrite, |liveness, _| liveness)
}

/// Parity is tried elsewhere: there containers are taken away, which readers may find out.
fn settings_of(case: Case) -> Settings {
    Settings { parity_group: 0, ..case.settings() }
}

/// A run: steps, now and then the death of the writer while the readers live on, at last a crash of the machine or
/// none.
fn run(case: Case, rarely: u64) -> (u64, u64) {
    let seed = case.seed;
    let mut random = Random(seed);
    let mut model = Model::new("m");
    let ground = case.create();
    let crowd = Arc::new(Mutex::new(Crowd {
        random: Random(seed ^ 0x5eed),
        settings: settings_of(case),
        case,
        rarely,
        readers: Vec::new(),
        came: 0,
        reads: 0,
        listed: Vec::new(),
    }));
    let crashes = random.one_in(3);
    if crashes {
        ground.crash_after_operations(400 + random.below(2000));
    }
    'lives: for life in 0..3 {
        let mut world = match open(case, &ground, &crowd) {
            Ok(world) => world,
            Err(error) => {
                assert!(ground.is_crashed(), "{case}, life {life}: {error}");
                break;
            }
        };
        if life > 0 {
            match model.verify(&world, false) {
                Err(_) if ground.is_crashed() => break,
                verified => must(verified, case, "after the death of the writer"),
            }
            crowd.lock().unwrap().listed.clear();
        }
        for _ in 0..30 {
            let before = model.clone();
            drop(step(&mut world, &mut model, &mut random));
            if ground.is_crashed() {
                break 'lives;
            }
            crowd.lock().unwrap().judge(&before, &model);
        }
    }
    let (came, reads) = {
        let mut crowd = crowd.lock().unwrap();
        if !ground.is_crashed() {
            for at in 0..crowd.readers.len() {
                crowd.read(at, &ground);
            }
        }
        crowd.readers.clear();
        (crowd.came, crowd.reads)
    };
    let policy = if crashes { policy(seed) } else { CrashPolicy::KeepAll };
    case.reopen(&ground.restart(policy), &mut model, "after all");
    (came, reads)
}

/// Lets readers come, read and go while a writer works, dies and comes again.
pub fn see_their_moment(profile: &'static Profile, usual_seeds: u64) {
    let (mut came, mut reads) = (0, 0);
    let seeds = profile.each_case(usual_seeds, |case| {
        let (more, read) = run(case, [4, 12, 40][case.seed as usize % 3]);
        (came, reads) = (came + more, reads + read);
    });
    let runs = seeds.count();
    println!("{came} readers, {reads} reads in {runs} runs");
    let are_many = came > 5 * runs && reads > 10 * runs;
    assert!(are_many || !seeds.are_enough(), "{came} readers and {reads} reads in {runs} runs show little");
}
