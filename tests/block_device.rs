//! Stores whose blocks are on a block device of their own: a loop device. Skipped where there is none.

use onefold_tests::{LoopDevice, Mounted, Scene, client, differences, installed, noise};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MIB: usize = 1 << 20;
const DEVICE_BYTES: u64 = 128 << 20;

/// A device, and the file that its bytes are in.
struct Disk {
    device: LoopDevice,
    image: PathBuf,
    _directory: tempfile::TempDir,
}

fn disk() -> Option<Disk> {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    File::create(&image).unwrap().set_len(DEVICE_BYTES).unwrap();
    match LoopDevice::attach(&image) {
        Ok(device) => Some(Disk { device, image, _directory: directory }),
        Err(why) => {
            println!("skipped: no loop device here: {why}");
            None
        }
    }
}

impl Disk {
    fn path(&self) -> &str {
        &self.device.path
    }

    fn scene(&self) -> Scene {
        Scene::new(&["--profile", "cacheless", "--block-device", self.path()], "")
    }

    /// Writes to the device as somebody else would.
    fn write(&self, offset: u64, bytes: &[u8]) {
        let device = File::options().write(true).open(self.path()).unwrap();
        device.write_all_at(bytes, offset).unwrap();
        device.sync_all().unwrap();
    }
}

fn copy_directory(from: &Path, to: &Path) {
    client("cp", [Path::new("--archive"), from, to]).succeeds();
}

#[test]
fn m1_1_a_store_on_a_block_device_works_as_one_in_a_file_does() {
    let Some(disk) = disk() else { return };
    let scene = disk.scene();
    assert_eq!(fs::read_link(scene.store().join("arena/blocks")).unwrap(), Path::new(disk.path()));
    let source = scene.path("source");
    fs::create_dir(&source).unwrap();
    for number in 0..6 {
        fs::write(source.join(format!("file {number}")), noise(number % 4, 3 * MIB + 17)).unwrap();
    }
    let backup = |scene: &Scene| scene.run(["backup", "--name", "x", &scene.text("source")]).succeeds();
    backup(&scene);
    scene.check();
    scene.run(["scrub"]).succeeds();
    let restores = |to: &str| {
        scene.run(["restore", "latest", "--target", to]).succeeds();
        let back = scene.path(to).join(fs::canonicalize(&source).unwrap().strip_prefix("/").unwrap());
        assert_eq!(differences(&source, &back), Vec::<String>::new());
    };
    restores("back");
    let full = scene.statistic("unique_bytes");
    assert!((12 * MIB as u64..13 * MIB as u64).contains(&full), "{full}");
    // What is free goes back to the device, and so to the file below it.
    let room = || std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&disk.image).unwrap()) * 512;
    let before = room();
    scene.volume("disk", "32MiB");
    fs::write(scene.path("noise"), noise(9, 32 * MIB)).unwrap();
    scene.run(["volume", "import", "disk", &scene.text("noise")]).succeeds();
    assert!(room() > before + (31 << 20));
    scene.run(["volume", "delete", "disk", "--yes"]).succeeds();
    scene.run(["prune"]).succeeds();
    assert!(room() < before + (2 << 20), "{} and then {}", before, room());
    // The device is full at last, and then it has room again.
    scene.volume("large", "200MiB");
    fs::write(scene.path("noise"), noise(10, 160 * MIB)).unwrap();
    let full = scene.run(["volume", "import", "large", &scene.text("noise")]);
    assert!(full.code != 0 && full.text().contains("no free block left"), "{}", full.text());
    scene.run(["volume", "delete", "large", "--yes"]).succeeds();
    scene.run(["prune"]).succeeds();
    scene.check();
    restores("again");
    // The index can be lost.
    fs::remove_file(scene.store().join("index/blocks")).unwrap();
    scene.run(["check", "--repair"]).succeeds();
    scene.check();
    restores("rebuilt");
}

#[test]
fn a_device_that_somebody_uses_is_refused_and_stays_as_it_is() {
    let Some(disk) = disk() else { return };
    let directory = tempfile::tempdir().unwrap();
    let refused = |device: &str, why: &str| {
        let scene = Scene::of_store(&directory.path().join("store"));
        let run =
            scene.run(["init", &directory.path().join("store").display().to_string(), "--profile", "cacheless", "--block-device", device]);
        assert!(run.code == 2 && run.text().contains(why), "{why}: {}", run.text());
        assert!(fs::read_dir(scene.store()).map_or(true, |mut entries| entries.next().is_none()), "nothing is half made");
    };
    refused("/dev/null", "there is no block device");
    refused("/dev/nowhere", "there is no block device");
    refused(&disk.image.display().to_string(), "there is no block device");
    if installed(&["mkfs.ext4"]) {
        client("mkfs.ext4", ["-q", "-F", disk.path()]).succeeds();
        refused(disk.path(), "its first MiB is not empty");
        let place = directory.path().join("mounted");
        if let Ok(_mounted) = Mounted::mount(&[disk.path()], &place) {
            refused(disk.path(), "it is mounted");
        }
        client("fsck.ext4", ["-n", "-f", disk.path()]).succeeds();
    }
    disk.write(0, &vec![0; MIB]);
    let scene = disk.scene();
    refused(disk.path(), "it has the blocks of a store");
    // While a daemon has the store, nobody can use the device for something else.
    let daemon = scene.serve();
    refused(disk.path(), "another program uses it");
    if installed(&["mkfs.ext4"]) {
        let made = client("mkfs.ext4", ["-q", disk.path()]);
        assert!(made.code != 0 && made.text().contains("in use"), "{}", made.text());
    }
    daemon.stop();
    scene.check();
    let exact = Scene::of_store(&directory.path().join("exact"));
    let run = exact.run(["init", &directory.path().join("exact").display().to_string(), "--block-device", disk.path()]);
    assert!(run.code == 2 && run.text().contains("only profile `cacheless` has it"), "{}", run.text());
}

#[test]
fn a_copy_of_the_directory_is_refused_after_the_other_one_has_written() {
    let Some(disk) = disk() else { return };
    let scene = disk.scene();
    scene.volume("disk", "8MiB");
    let copy = scene.path("copy");
    copy_directory(scene.store(), &copy);
    scene.volume("more", "8MiB");
    let copied = Scene::of_store(&copy);
    for command in [&["stats"][..], &["volume", "create", "other", "--size", "1MiB"], &["check"]] {
        let run = copied.run(command);
        assert!(run.code == 2 && run.text().contains("has written to it since"), "{}", run.text());
    }
    scene.check();
    scene.run(["volume", "delete", "more", "--yes"]).succeeds();
}

/// A snapshot of a file system has no mark of being a copy.
#[test]
fn a_snapshot_of_the_directory_of_an_open_store_is_refused_for_writing_and_can_be_read() {
    let Some(disk) = disk() else { return };
    let scene = disk.scene();
    fs::write(scene.path("file"), noise(1, 2 * MIB)).unwrap();
    scene.run(["backup", "--name", "x", &scene.text("file")]).succeeds();
    let daemon = scene.serve();
    let snapshot = scene.path("snapshot");
    copy_directory(scene.store(), &snapshot);
    fs::remove_file(snapshot.join("open")).unwrap();
    fs::write(scene.path("file"), noise(2, 3 * MIB)).unwrap();
    scene.run(["backup", "--name", "x", &scene.text("file")]).succeeds();
    daemon.kill();
    let older = Scene::of_store(&snapshot);
    for command in [&["volume", "create", "other", "--size", "1MiB"][..], &["prune"]] {
        let run = older.run(command);
        assert!(run.code == 2 && run.text().contains("of the log; the log of this directory ends at"), "{}", run.text());
    }
    let run = older.run(["check", "--repair"]);
    assert!(run.code == 1 && run.text().contains("if another copy of this directory exists, use that one"), "{}", run.text());
    let restored = older.run(["restore", "latest", "--target", &scene.text("older")]);
    restored.succeeds();
    let back = |of: &str| scene.path(of).join(fs::canonicalize(scene.path("file")).unwrap().strip_prefix("/").unwrap());
    assert!(fs::read(back("older")).unwrap() == noise(1, 2 * MIB));
    scene.check();
    scene.run(["restore", "latest", "--target", &scene.text("newer")]).succeeds();
    assert!(fs::read(back("newer")).unwrap() == noise(2, 3 * MIB));
    // Somebody wants it all the same. From then on the other one is refused.
    older.run(["check", "--repair", "--force"]);
    older.check();
    older.volume("other", "1MiB");
    let run = scene.run(["check"]);
    assert!(run.code == 2 && run.text().contains("has written to it since"), "{}", run.text());
}

#[test]
fn a_device_that_is_gone_exchanged_or_overwritten_at_its_beginning_costs_nothing() {
    let (Some(disk), Some(other)) = (disk(), disk()) else { return };
    let scene = disk.scene();
    fs::write(scene.path("file"), noise(1, 2 * MIB)).unwrap();
    scene.run(["backup", "--name", "x", &scene.text("file")]).succeeds();
    let link = scene.store().join("arena/blocks");
    let lead_to = |target: &str| {
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(target, &link).unwrap();
    };
    lead_to("/dev/nowhere");
    let run = scene.run(["check"]);
    assert!(run.code == 2 && run.text().contains("which has the data of the store, is missing"), "{}", run.text());
    lead_to(other.path());
    for command in [&["check"][..], &["check", "--repair"], &["backup", "--name", "x", "."]] {
        let run = scene.run(command);
        assert!(run.code == 2 && run.text().contains("it is another device"), "{}", run.text());
    }
    assert!(fs::read(&other.image).unwrap().iter().all(|byte| *byte == 0), "a device of others was written to");
    // By its lasting name.
    lead_to(disk.path());
    scene.check();
    // A partition table by mistake: the second header is behind it.
    disk.write(0, &noise(5, 17 << 10));
    scene.run(["check"]).succeeds();
    scene.volume("disk", "1MiB");
    // Both headers.
    for offset in [20, MIB as u64 - 4096 + 20] {
        disk.write(offset, &[0x55]);
    }
    // Readers repair in memory, and write nothing.
    let device = || {
        let mut first = vec![0; MIB];
        File::open(disk.path()).unwrap().read_exact_at(&mut first, 0).unwrap();
        first
    };
    let before = device();
    for (command, code) in
        [(&["restore", "latest", "--target", "sound"][..], 0), (&["backups"], 0), (&["check", "--repair", "--dry-run"], 1)]
    {
        scene.run(command).ends_with(code);
        assert!(device() == before, "{command:?} wrote to the device");
    }
    let run = scene.run(["check"]);
    assert!(run.code == 1 && run.text().contains("its headers are damaged") && run.text().contains("check --repair"), "{}", run.text());
    scene.run(["check", "--repair"]).succeeds();
    scene.check();
    scene.run(["restore", "latest", "--target", "back"]).succeeds();
    let back = scene.path("back").join(fs::canonicalize(scene.path("file")).unwrap().strip_prefix("/").unwrap());
    assert!(fs::read(back).unwrap() == noise(1, 2 * MIB));
}
