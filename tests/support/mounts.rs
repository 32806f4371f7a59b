//! Mounted file systems, network disks as files, and loop devices that are given back however a test ends.

use crate::{Running, client};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A mounted file system. Unmounted when dropped.
#[derive(Debug)]
pub struct Mounted {
    place: PathBuf,
    is_mounted: bool,
}

impl Mounted {
    /// Calls `mount` with these arguments and the place, which is made; says why when it cannot.
    pub fn mount(arguments: &[&str], place: &Path) -> Result<Mounted, String> {
        std::fs::create_dir_all(place).unwrap();
        let run = client("mount", arguments.iter().map(Path::new).chain([place]));
        if run.code == 0 { Ok(Mounted { place: place.to_owned(), is_mounted: true }) } else { Err(run.text()) }
    }

    /// Where it is mounted.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Unmounts, and retries while somebody still has it open. It works above a dead device too.
    pub fn unmount(&mut self) {
        let until = Instant::now() + Duration::from_secs(10);
        while self.is_mounted {
            let lazy = if Instant::now() > until { &["-l"][..] } else { &[] };
            let run = client("umount", lazy.iter().map(Path::new).chain([self.place.as_path()]));
            self.is_mounted = run.code != 0 && lazy.is_empty();
            if self.is_mounted {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.unmount();
    }
}

/// A small real file system in memory, to be filled.
#[derive(Debug)]
pub struct Tmpfs {
    mounted: Mounted,
    _directory: tempfile::TempDir,
}

impl Tmpfs {
    /// Mounts one of `size` as `mount` writes it (`64m`); nothing, said why, where that is not possible.
    pub fn new(size: &str) -> Option<Tmpfs> {
        if !crate::is_root() {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        match Mounted::mount(&["-t", "tmpfs", "-o", &format!("size={size}"), "onefold-test"], &directory.path().join("small")) {
            Ok(mounted) => Some(Tmpfs { mounted, _directory: directory }),
            Err(why) => {
                println!("skipped: cannot mount a tmpfs: {why}");
                None
            }
        }
    }

    /// Where it is.
    pub fn place(&self) -> &Path {
        self.mounted.place()
    }

    /// Makes it larger.
    pub fn grow(&self, size: &str) {
        let options = format!("remount,size={size}");
        client("mount", [Path::new("-o"), Path::new(&options), self.place()]).succeeds();
    }
}

/// A loop device on a file. Given back when dropped.
#[derive(Debug)]
pub struct LoopDevice {
    /// `/dev/loopN`.
    pub path: String,
}

impl LoopDevice {
    /// Takes a free one. They are shared by the whole machine, so another may be quicker: tried a few times.
    pub fn attach(file: &Path) -> Result<LoopDevice, String> {
        let mut why = String::new();
        for _ in 0..5 {
            let run = client("losetup", [Path::new("--find"), Path::new("--show"), file]);
            if run.code == 0 {
                return Ok(LoopDevice { path: String::from_utf8_lossy(&run.out).trim().to_owned() });
            }
            why = run.text();
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(why)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        client("losetup", ["--detach", &self.path]);
    }
}

/// A network disk as a file, by nbdfuse. Unmounted, and its process ended, when dropped.
#[derive(Debug)]
pub struct NbdFuse {
    process: Running,
    directory: PathBuf,
}

impl NbdFuse {
    /// Mounts the disk at `uri` in a directory, which is made; says why when it cannot.
    pub fn mount(uri: &str, directory: &Path) -> Result<NbdFuse, String> {
        if !Path::new("/dev/fuse").exists() {
            return Err("there is no /dev/fuse".to_owned());
        }
        std::fs::create_dir_all(directory).unwrap();
        let process = Running::start(Command::new("nbdfuse").arg(directory.join("disk")).arg(uri));
        let mut fuse = NbdFuse { process, directory: directory.to_owned() };
        let until = Instant::now() + Duration::from_secs(20);
        while !fuse.file().exists() {
            if fuse.process.has_ended() {
                return Err("nbdfuse ended without mounting".to_owned());
            }
            assert!(Instant::now() < until, "nbdfuse neither mounts nor ends");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(fuse)
    }

    /// The disk.
    pub fn file(&self) -> PathBuf {
        self.directory.join("disk")
    }
}

impl Drop for NbdFuse {
    fn drop(&mut self) {
        client("umount", [Path::new("--lazy"), &self.directory]);
        self.process.kill();
    }
}

/// A directory that a process of the program serves, in the foreground. Unmounted, and the process ended, when dropped.
#[derive(Debug)]
pub struct Served {
    /// The process.
    pub process: Running,
    place: PathBuf,
}

impl Served {
    /// Starts a command that mounts at a place, which is made; returns how it ended when it does not mount.
    pub fn start(command: &mut Command, place: &Path) -> Result<Served, crate::Run> {
        // A mount whose process has died is there and does not look so.
        let _ = std::fs::create_dir_all(place);
        let process = Running::start(command);
        let mut served = Served { process, place: place.to_owned() };
        let until = Instant::now() + Duration::from_secs(30);
        while !served.is_mounted() {
            if served.process.has_ended() {
                let process = std::mem::replace(&mut served.process, Running::start(&mut Command::new("true")));
                return Err(process.finish());
            }
            assert!(Instant::now() < until, "it neither mounts nor ends");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(served)
    }

    /// Waits until the process has ended.
    #[track_caller]
    pub fn ends(&mut self) {
        let until = Instant::now() + Duration::from_secs(30);
        while !self.process.has_ended() {
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether something is mounted there.
    pub fn is_mounted(&self) -> bool {
        is_mount(&self.place)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.is_mounted() {
            client("umount", [Path::new("-l"), self.place.as_path()]);
        }
    }
}

/// A directory where a daemon mounts. What a killed one left there is unmounted when this is dropped.
#[derive(Debug)]
pub struct MountPlace(PathBuf);

impl MountPlace {
    /// Watches over this directory.
    pub fn new(place: &Path) -> MountPlace {
        MountPlace(place.to_owned())
    }
}

impl Drop for MountPlace {
    fn drop(&mut self) {
        if is_mount(&self.0) {
            client("umount", [Path::new("-l"), self.0.as_path()]);
        }
    }
}

/// Whether something is mounted there, alive or dead.
fn is_mount(place: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == place.to_str())
}

/// Whether directories can be mounted with FUSE here; says when not.
pub fn has_fuse() -> bool {
    let has_fuse = Path::new("/dev/fuse").exists();
    if !has_fuse {
        println!("skipped: there is no /dev/fuse");
    }
    has_fuse && crate::is_root()
}
