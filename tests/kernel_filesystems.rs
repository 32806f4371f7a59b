//! The kernel's ext4 and xfs on a volume (nbdfuse and a loop device): what was fsynced is there after the daemon was
//! killed.

use onefold_tests::{Client, Daemon, LoopDevice, Mounted, NbdFuse, Scene, assert_same_tree, client, installed, is_root, noise};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// A file system on the volume. Taken apart from the top when dropped.
struct Stack {
    mounted: Option<Mounted>,
    device: LoopDevice,
    _fuse: NbdFuse,
}

impl Stack {
    /// All but the mount.
    fn attach(scene: &Scene, daemon: &Daemon) -> Result<Stack, String> {
        let fuse = NbdFuse::mount(&daemon.uri("disk"), &scene.path("fuse"))?;
        let device = LoopDevice::attach(&fuse.file())?;
        Ok(Stack { mounted: None, device, _fuse: fuse })
    }

    fn mount(&mut self, kind: &str, place: &Path) -> Result<(), String> {
        self.mounted = Some(Mounted::mount(&["-t", kind, &self.device.path], place)?);
        Ok(())
    }
}

/// Files of many sizes, a file that was written in pieces, and one with a hole; every one fsynced, and the directories
/// too.
fn fill(root: &Path) {
    for directory in 0..6 {
        let directory = root.join(format!("directory {directory}"));
        fs::create_dir(&directory).unwrap();
        for number in 0..25u32 {
            let mut file = File::create_new(directory.join(format!("file {number}"))).unwrap();
            let bytes = noise(number.into(), 3 << (number % 19));
            bytes.chunks(10_000).for_each(|piece| file.write_all(piece).unwrap());
            file.sync_all().unwrap();
        }
        let sparse = File::create_new(directory.join("sparse")).unwrap();
        sparse.set_len(5_000_000).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"in the middle", 2_500_000).unwrap();
        sparse.sync_all().unwrap();
        std::os::unix::fs::symlink("file 3", directory.join("link")).unwrap();
        fs::hard_link(directory.join("file 4"), directory.join("again")).unwrap();
        File::open(&directory).unwrap().sync_all().unwrap();
    }
    File::open(root).unwrap().sync_all().unwrap();
}

/// Copies with all attributes, to have something to compare with.
fn copy(from: &Path, to: &Path) {
    client("cp", [Path::new("--archive"), &from.join("filled"), to]).succeeds();
}

fn survives_a_kill(kind: &str, make: &[&str], verify: &[&str]) {
    if !installed(&["nbdfuse", "losetup", make[0], verify[0]]) || !is_root() {
        return;
    }
    let scene = Scene::new(&[], "");
    scene.volume("disk", "512MiB");
    let place = scene.path("mounted");

    let daemon = scene.serve();
    let made = Stack::attach(&scene, &daemon).and_then(|mut stack| {
        client(make[0], make[1..].iter().copied().chain([stack.device.path.as_str()])).succeeds();
        stack.mount(kind, &place)?;
        Ok(stack)
    });
    let stack = match made {
        Ok(stack) => stack,
        Err(why) => return println!("skipped: no {kind} on a loop device on FUSE here: {why}"),
    };
    fs::create_dir(place.join("filled")).unwrap();
    fill(&place.join("filled"));
    File::open(&place).unwrap().sync_all().unwrap();
    copy(&place, &scene.path("expected"));
    // Something is under way when the daemon dies; whether it arrives does not matter.
    fs::write(place.join("not synced"), noise(9, 8 << 20)).unwrap();
    daemon.kill();
    drop(stack);

    let daemon = scene.serve();
    let mut stack = Stack::attach(&scene, &daemon).unwrap();
    stack.mount(kind, &place).unwrap();
    assert_same_tree(&scene.path("expected"), &place.join("filled"));
    fs::write(place.join("after"), noise(10, 3 << 20)).unwrap();
    fs::remove_dir_all(place.join("filled/directory 0")).unwrap();
    fs::remove_dir_all(scene.path("expected/directory 0")).unwrap();
    client("fstrim", [&place]).succeeds();
    copy(&place, &scene.path("expected again"));
    if let Some(mut mounted) = stack.mounted.take() {
        mounted.unmount();
    }
    client(verify[0], verify[1..].iter().copied().chain([stack.device.path.as_str()])).succeeds();
    drop(stack);
    daemon.stop();

    let daemon = scene.serve();
    let mut stack = Stack::attach(&scene, &daemon).unwrap();
    stack.mount(kind, &place).unwrap();
    assert_same_tree(&scene.path("expected again"), &place.join("filled"));
    assert!(fs::read(place.join("after")).unwrap() == noise(10, 3 << 20));
    drop(stack);
    let mut connection: Client = daemon.connect("disk");
    assert!(connection.read(0, 4096).is_ok());
    daemon.stop();
    scene.check();
}

#[test]
fn ext4_on_a_volume_survives_a_kill_of_the_daemon() {
    survives_a_kill("ext4", &["mkfs.ext4", "-q", "-F"], &["e2fsck", "-f", "-n"]);
}

#[test]
fn xfs_on_a_volume_survives_a_kill_of_the_daemon() {
    survives_a_kill("xfs", &["mkfs.xfs", "-q", "-f"], &["xfs_repair", "-n"]);
}
