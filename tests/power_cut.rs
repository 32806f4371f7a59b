//! Power cuts under a store on the kernel's ext4, XFS and btrfs. The file system lies on a device that records every
//! write and flush; commands and a daemon work on it, and what they acknowledged is noted with the moment of the
//! recording. Then the power is cut at many moments: what was not flushed is lost, torn or reordered, the file system
//! replays its journal, and the store must hold everything that was acknowledged, whole, and of what was under way all
//! or nothing.
//!
//! `ONEFOLD_POWER_CUTS` says how many cuts each file system gets, `ONEFOLD_POWER_CUT_SEED` with which numbers they are
//! chosen.

use onefold_tests::{
    Client, Flushes, LoopDevice, Mounted, NbdFuse, PowerCuts, Random, RecordingDevice, Run, Scene, Survivors, Tmpfs, client, differences,
    installed, is_root, noise, setting,
};
use std::fs;
use std::path::{Path, PathBuf};

const BLOCK: usize = 4096;
const BLOCKS: usize = 1024;
/// The most blocks of a write.
const RUN: u64 = 16;
const NEVER: usize = usize::MAX;

/// Everything small, so that in a short time the log wraps, the indexes are swept and containers are sealed and merged.
const SETTINGS: &str = "[log]\nsegment = \"1MiB\"\nlimit = \"2MiB\"\ncommit = \"1MiB\"\ncommit_interval_ms = 50\n\
                        [memory]\nvolume_dirty = \"1MiB\"\nauxiliary_index = \"1MiB\"\nobject_index_pending = \"1MiB\"\n";

/// A file system under test.
struct FileSystem {
    name: &'static str,
    make: &'static [&'static str],
    size: u64,
    /// What it needs to be written whole. XFS and btrfs write their own blocks of 4 KiB in place and take their headers
    /// for what they say.
    unit_bytes: u64,
    cuts: usize,
}

const EXT4: FileSystem = FileSystem {
    name: "ext4",
    make: &["mkfs.ext4", "-q", "-F", "-b", "4096", "-J", "size=4", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"],
    size: 128 << 20,
    unit_bytes: 512,
    cuts: 16,
};
const XFS: FileSystem = FileSystem { name: "xfs", make: &["mkfs.xfs", "-q", "-f", "-K"], size: 320 << 20, unit_bytes: 4096, cuts: 10 };
const BTRFS: FileSystem =
    FileSystem { name: "btrfs", make: &["mkfs.btrfs", "-q", "-f", "-K"], size: 256 << 20, unit_bytes: 4096, cuts: 10 };

/// Something that has a beginning and an end in the recording.
#[derive(Clone, Copy, Debug)]
struct Span {
    started: usize,
    /// When it was acknowledged as durable; [`NEVER`] if it was not.
    acknowledged: usize,
}

impl Span {
    const NOT_YET: Span = Span { started: NEVER, acknowledged: NEVER };

    /// Whether it must have happened if the power is cut at `moment`.
    fn must(&self, moment: usize) -> bool {
        self.acknowledged <= moment
    }

    /// Whether it may have.
    fn may(&self, moment: usize) -> bool {
        self.started < moment
    }
}

#[derive(Debug)]
struct Backup {
    name: String,
    tree: PathBuf,
    made: Span,
    forgotten: Span,
}

#[derive(Debug)]
struct VolumeWrite {
    first: usize,
    blocks: usize,
    version: u64,
    span: Span,
    /// The daemon was killed before a flush: no later one covers it.
    is_abandoned: bool,
}

/// What was done and acknowledged, in the moments of the recording.
#[derive(Debug, Default)]
struct History {
    backups: Vec<Backup>,
    writes: Vec<VolumeWrite>,
    /// The moments at which something was acknowledged.
    acknowledged: Vec<usize>,
}

/// The content of a block: zeros, something that many blocks have, or something that no other has.
fn content(block: usize, version: u64) -> Vec<u8> {
    match version % 8 {
        0 | 1 => vec![0; BLOCK],
        2 => noise(version % 50, BLOCK),
        _ => noise(version * BLOCKS as u64 + block as u64, BLOCK),
    }
}

/// A store at work on a device.
struct Work<'a> {
    device: &'a RecordingDevice,
    scene: &'a Scene,
    random: Random,
    history: History,
}

impl Work<'_> {
    fn span<T>(&mut self, action: impl FnOnce() -> T) -> (T, Span) {
        let started = self.device.moment();
        let result = action();
        let acknowledged = self.device.moment();
        self.history.acknowledged.push(acknowledged);
        (result, Span { started, acknowledged })
    }

    /// Backs a new tree up: some files of the tree before, some new ones.
    fn backup(&mut self, number: u64) {
        let (name, scene) = (format!("tree{number}"), self.scene);
        let tree = scene.path(&name);
        fs::create_dir_all(tree.join("directory")).unwrap();
        for file in 0..24u64 {
            let seed = if file % 3 == 0 { file } else { number * 1000 + file };
            fs::write(tree.join(format!("directory/{file}")), noise(seed, 3000 << (file % 7))).unwrap();
        }
        let (run, made) = self.span(|| scene.run(["backup", "--name", &name, &name]));
        run.succeeds();
        self.history.backups.push(Backup { name, tree, made, forgotten: Span::NOT_YET });
    }

    fn forget(&mut self, number: usize) {
        let (scene, id) = (self.scene, format!("latest:{}", self.history.backups[number].name));
        let (run, forgotten) = self.span(|| scene.run(["forget", &id, "--yes"]));
        run.succeeds();
        self.history.backups[number].forgotten = forgotten;
    }

    fn prune(&mut self) {
        let scene = self.scene;
        self.span(|| scene.run(["prune", "--max-unused", "0"])).0.succeeds();
    }

    /// Writes to the volume and flushes now and then; the last flush was before the last writes.
    fn write(&mut self, client: &mut Client, writes: usize) {
        for number in 0..writes {
            let blocks = 1 + self.random.below(RUN) as usize;
            let first = self.random.below((BLOCKS - blocks) as u64) as usize;
            let version = self.history.writes.len() as u64 + 8;
            let span = Span { started: self.device.moment(), acknowledged: NEVER };
            let (offset, length) = ((first * BLOCK) as u64, blocks * BLOCK);
            let bytes: Vec<u8> = (first..first + blocks).flat_map(|block| content(block, version)).collect();
            let is_durable = version % 8 == 7;
            match version % 8 {
                0 => client.trim(offset, length),
                1 => client.write_zeroes(offset, length),
                7 => client.write_durable(offset, &bytes),
                _ => client.write(offset, &bytes),
            }
            .unwrap();
            let acknowledged = if is_durable { self.device.moment() } else { NEVER };
            let write = VolumeWrite { first, blocks, version, span: Span { acknowledged, ..span }, is_abandoned: false };
            self.history.writes.push(write);
            if number % 9 == 4 {
                self.span(|| client.flush()).0.unwrap();
                let now = self.device.moment();
                let covered = self.history.writes.iter_mut().filter(|write| !write.is_abandoned && write.span.acknowledged == NEVER);
                covered.for_each(|write| write.span.acknowledged = now);
            }
        }
    }

    /// Everything that the issue names: backups, a daemon with a volume, a kill, forgetting and pruning, beside the
    /// daemon and without it.
    fn run(&mut self) {
        self.backup(0);
        let daemon = self.scene.serve();
        let mut client = daemon.connect("disk");
        self.write(&mut client, 40);
        daemon.kill();
        self.history.writes.iter_mut().for_each(|write| write.is_abandoned = write.span.acknowledged == NEVER);
        self.backup(1);
        self.forget(0);
        self.prune();
        self.backup(2);
        let daemon = self.scene.serve();
        let mut client = daemon.connect("disk");
        self.write(&mut client, 30);
        self.forget(1);
        self.prune();
        self.write(&mut client, 30);
        daemon.stop();
        self.backup(3);
    }
}

/// Why an image is not what it should be.
#[derive(Debug)]
enum Loss {
    /// The file system itself is lost.
    NotMounted(String),
    Lost(String),
}

/// Whether a command did what it was asked for.
fn done(run: Run) -> Result<Run, Loss> {
    let text = run.text();
    if run.code == 0 && !text.contains("panicked") {
        Ok(run)
    } else {
        Err(Loss::Lost(format!("{} ended with {}: {text}", run.name, run.code)))
    }
}

impl History {
    /// Compares the store on the image with what is known of the moment of the power cut.
    fn verify(&self, file_system: &FileSystem, image: &Path, moment: usize) -> Result<(), Loss> {
        let directory = tempfile::tempdir().unwrap();
        let device = LoopDevice::attach(image).map_err(Loss::NotMounted)?;
        let mounted = mount(file_system, &device, &directory.path().join("mounted")).map_err(Loss::NotMounted)?;
        let scene = Scene::of_store(&mounted.place().join("store"));
        done(scene.run(["check", "--read-data"]))?;
        self.verify_backups(&scene, moment)?;
        self.verify_volume(&scene, moment)?;
        // It goes on from there.
        fs::create_dir(scene.path("more")).unwrap();
        fs::write(scene.path("more/file"), noise(moment as u64, 300_000)).unwrap();
        done(scene.run(["backup", "--name", "more", "more"]))?;
        done(scene.run(["check"])).map(drop)
    }

    fn verify_backups(&self, scene: &Scene, moment: usize) -> Result<(), Loss> {
        let listed = done(scene.run(["backups", "--json"]))?.json();
        let names: Vec<&str> = listed.as_array().unwrap().iter().map(|backup| backup["name"].as_str().unwrap()).collect();
        if names.len() > self.backups.len() {
            return Err(Loss::Lost(format!("more backups than were made: {names:?}")));
        }
        for backup in &self.backups {
            let name = &backup.name;
            let is_there = names.contains(&name.as_str());
            if !is_there && backup.made.must(moment) && !backup.forgotten.may(moment) {
                return Err(Loss::Lost(format!("backup {name} is lost")));
            }
            if is_there && (!backup.made.may(moment) || backup.forgotten.must(moment)) {
                return Err(Loss::Lost(format!("backup {name} is there, and should not be: {backup:?}")));
            }
            if is_there {
                done(scene.run(["restore", &format!("latest:{name}"), "--target", "back"]))?;
                let restored = scene.path("back").join(backup.tree.canonicalize().unwrap().strip_prefix("/").unwrap());
                let differences = differences(&backup.tree, &restored);
                if !differences.is_empty() {
                    return Err(Loss::Lost(format!("backup {name} differs: {differences:?}")));
                }
            }
        }
        Ok(())
    }

    fn verify_volume(&self, scene: &Scene, moment: usize) -> Result<(), Loss> {
        done(scene.run(["volume", "export", "disk", "exported"]))?;
        let exported = fs::read(scene.path("exported")).unwrap();
        let mut possible: Vec<Vec<u64>> = vec![vec![0]; BLOCKS];
        for write in self.writes.iter().filter(|write| write.span.may(moment)) {
            for versions in &mut possible[write.first..write.first + write.blocks] {
                if write.span.must(moment) {
                    versions.clear();
                }
                versions.push(write.version);
            }
        }
        for (block, (found, versions)) in exported.chunks_exact(BLOCK).zip(&possible).enumerate() {
            if !versions.iter().any(|version| content(block, *version) == found) {
                let is_zero = found.iter().all(|byte| *byte == 0);
                return Err(Loss::Lost(format!("block {block} of the volume holds none of {versions:?}; zeros: {is_zero}")));
            }
        }
        Ok(())
    }
}

fn mount(file_system: &FileSystem, device: &LoopDevice, place: &Path) -> Result<Mounted, String> {
    if file_system.name == "btrfs" {
        // Another image of the same file system, seen before, would be in the way.
        client("btrfs", ["device", "scan", "--forget"]);
    }
    Mounted::mount(&["-t", file_system.name, &device.path], place)
}

/// What the recording of a store at work was.
struct Recording {
    device: RecordingDevice,
    history: History,
    /// When the store was made, and when the work was done.
    moments: std::ops::Range<usize>,
    /// Its trees are what backups are compared with.
    _scene: Scene,
}

/// Lets a store work on a device; nothing, and says why, where that is not possible here.
fn record(file_system: &FileSystem, flushes: Flushes, seed: u64) -> Option<Recording> {
    if !is_root() || !installed(&["nbdfuse", "losetup", file_system.make[0]]) {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let device = RecordingDevice::start(file_system.size, &directory.path().join("device.sock"));
    let stack =
        NbdFuse::mount(&device.uri(), &directory.path().join("fuse")).and_then(|fuse| Ok((LoopDevice::attach(&fuse.file())?, fuse)));
    let mounted = stack.and_then(|(loop_device, fuse)| {
        client(file_system.make[0], file_system.make[1..].iter().copied().chain([loop_device.path.as_str()])).succeeds();
        Ok((mount(file_system, &loop_device, &directory.path().join("mounted"))?, loop_device, fuse))
    });
    // The mounted file system goes first, and nbdfuse last.
    let (mounted, _loop_device, _fuse) = match mounted {
        Ok(mounted) => mounted,
        Err(why) => {
            println!("skipped: no {} on a loop device on FUSE here: {why}", file_system.name);
            return None;
        }
    };
    let before = device.flushes();
    fs::File::create_new(mounted.place().join("synced")).unwrap().sync_all().unwrap();
    assert!(device.flushes() > before, "fsync reaches the device as a flush");

    let scene = Scene::with_store_in(mounted.place(), &["--container-size", "1MiB"], SETTINGS);
    scene.volume("disk", &format!("{}KiB", BLOCKS * BLOCK / 1024));
    let ready = device.moment();
    device.treat_flushes(flushes);
    let mut work = Work { device: &device, scene: &scene, random: Random::new(seed), history: History::default() };
    work.run();
    let history = work.history;
    let moments = ready..device.moment();
    println!("{}: {} entries, {} flushes", file_system.name, moments.len(), device.flushes());
    drop(mounted);
    Some(Recording { device, history, moments, _scene: scene })
}

/// Cuts the power, and returns what was found on each image.
fn cut(file_system: &FileSystem, flushes: Flushes, survivors: Option<Survivors>, cuts: usize) -> Option<Vec<Result<(), Loss>>> {
    let seed = setting("ONEFOLD_POWER_CUT_SEED", 1);
    let Recording { device, history, moments, _scene } = record(file_system, flushes, seed)?;
    let memory = Tmpfs::new("1g")?;
    let mut random = Random::new(seed);
    let mut power = PowerCuts::of(&device, file_system.unit_bytes);
    // A third of them just when something was acknowledged, the others where much was under way.
    let mut at: Vec<usize> = (0..cuts)
        .map(|number| match number % 3 {
            0 => history.acknowledged[random.below(history.acknowledged.len() as u64) as usize],
            _ => {
                let anywhere = (0..6).map(|_| moments.start + random.below(moments.len() as u64 + 1) as usize);
                anywhere.max_by_key(|moment| power.volatile(*moment)).expect("there are some")
            }
        })
        .collect();
    at.sort_unstable();
    let image = memory.place().join("image");
    let mut found = Vec::new();
    for moment in at {
        let survivors = survivors.unwrap_or_else(|| Survivors::choose(&mut random));
        let volatile = power.volatile(moment);
        power.write(moment, survivors, &mut random, &image).unwrap();
        let result = history.verify(file_system, &image, moment);
        if let Err(Loss::NotMounted(why) | Loss::Lost(why)) = &result {
            println!("{} cut at {moment}, of {volatile} volatile writes {survivors:?}: {why}", file_system.name);
            if let Some(place) = std::env::var_os("ONEFOLD_POWER_CUT_KEEP") {
                fs::copy(&image, Path::new(&place).join(format!("{}-{moment}", file_system.name))).unwrap();
            }
        }
        fs::remove_file(&image).unwrap();
        found.push(result);
    }
    Some(found)
}

fn survives_power_cuts(file_system: &FileSystem) {
    let cuts = setting("ONEFOLD_POWER_CUTS", file_system.cuts as u64) as usize;
    let Some(found) = cut(file_system, Flushes::Obeyed, None, cuts) else { return };
    let lost = found.iter().filter(|result| result.is_err()).count();
    assert_eq!(lost, 0, "of {} power cuts on {} so many lost something", found.len(), file_system.name);
}

#[test]
fn a_store_on_ext4_survives_power_cuts() {
    survives_power_cuts(&EXT4);
}

#[test]
fn a_store_on_xfs_survives_power_cuts() {
    survives_power_cuts(&XFS);
}

#[test]
fn a_store_on_btrfs_survives_power_cuts() {
    survives_power_cuts(&BTRFS);
}

/// What the other tests rely on: where a flush makes nothing durable, they find what is lost.
#[test]
fn loss_is_found_where_the_device_ignores_flushes() {
    let Some(found) = cut(&EXT4, Flushes::Ignored, Some(Survivors::First), 6) else { return };
    let lost = found.iter().filter(|result| matches!(result, Err(Loss::Lost(_)))).count();
    assert!(lost >= 3, "{found:?}");
}
