//! Restoring over file systems that are mounted in the target: what they lose, and what a power cut leaves of them.

mod common;

use common::{is_root, noise, place};
use onefold_client::{BackupOptions, Counter, Monitor, Overwrite, Problem, RestoreOptions, Tally};
use parking_lot::Mutex;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted file system. Unmounted when dropped.
struct Mounted(PathBuf);

impl Mounted {
    /// Creates the mount point and mounts there. Returns `None`, with a message, if that is not possible.
    fn mount(arguments: &[&str], place: &Path) -> Option<Mounted> {
        fs::create_dir_all(place).unwrap();
        let is_done = is_root() && run("mount", arguments, place);
        if !is_done {
            println!("skipped: cannot mount here");
        }
        is_done.then(|| Mounted(place.to_owned()))
    }

    /// Mounts a new ext4 in a file.
    fn ext4(image: &Path, place: &Path) -> Option<Mounted> {
        fs::File::create(image).unwrap().set_len(64 << 20).unwrap();
        if !run("mkfs.ext4", &["-q"], image) {
            println!("skipped: mkfs.ext4 is not installed");
            return None;
        }
        Mounted::mount(&["-o", "loop", image.to_str().unwrap()], place)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        run("umount", &[], &self.0);
    }
}

fn run(program: &str, arguments: &[&str], place: &Path) -> bool {
    Command::new(program).args(arguments).arg(place).status().is_ok_and(|status| status.success())
}

#[test]
fn a_file_system_that_was_not_mounted_when_it_was_backed_up_loses_nothing() {
    let place = place();
    fs::create_dir_all(place.source().join("d/disk")).unwrap();
    place.write("d/file", "file");
    let (backup, _) = place.backup();
    let Some(_mounted) = Mounted::mount(&["-t", "tmpfs", "tmpfs"], &place.target().join("d/disk")) else { return };
    for name in ["d/more", "d/disk/file", "d/disk/deep/file"] {
        let path = place.target().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"in the target").unwrap();
    }
    for dry_run in [true, false] {
        let options = RestoreOptions { delete: true, overwrite: Overwrite::IfChanged, dry_run, ..RestoreOptions::default() };
        let (outcome, tally) = place.restore_with(&backup.backup, options);
        assert_eq!((outcome.deleted, outcome.errors, outcome.warnings), (1, 0, 1), "{:?}", tally.problems());
        assert!(tally.problems().iter().any(|problem| problem.path.ends_with(b"d/disk") && problem.reason.contains("mounted")));
    }
    assert!(place.target().join("d/disk/deep/file").exists() && place.target().join("d/disk/file").exists());
    assert!(!place.target().join("d/more").exists());
}

#[test]
fn a_file_system_that_was_left_out_loses_nothing_where_it_is_not_mounted() {
    let place = place();
    place.write("d/file", "file");
    let Some(mounted) = Mounted::mount(&["-t", "tmpfs", "tmpfs"], &place.source().join("d/disk")) else { return };
    place.write("d/disk/file", "left out");
    let options = BackupOptions { one_file_system: true, ..place.options() };
    let backup = onefold_client::backup(&*place.repository(), &options, &Tally::default()).unwrap().backup;
    drop(mounted);
    // The other file system was restored to the same disk.
    for name in ["d/more", "d/disk/file"] {
        let path = place.target().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"in the target").unwrap();
    }
    let (outcome, tally) = place.restore_with(&backup, RestoreOptions { delete: true, ..RestoreOptions::default() });
    assert_eq!((outcome.deleted, outcome.errors), (1, 0), "{:?}", tally.problems());
    assert!(place.target().join("d/disk/file").exists() && !place.target().join("d/more").exists());
}

#[test]
fn what_is_bound_into_the_target_loses_nothing() {
    let place = place();
    place.write("d/bound/file", "file");
    place.write("d/file", "file");
    let (backup, _) = place.backup();
    // On the same device: in a directory that the backup has, and in one that it does not have.
    let outside = place.directory.path().join("outside");
    fs::create_dir_all(outside.join("deep")).unwrap();
    fs::write(outside.join("deep/other"), b"outside of the target").unwrap();
    let bind = |name: &str| Mounted::mount(&["--bind", outside.to_str().unwrap()], &place.target().join(name));
    let Some(_bound) = bind("d/bound") else { return };
    let Some(_more) = bind("d/more/bound") else { return };
    fs::write(place.target().join("d/more/file"), b"not in the backup").unwrap();
    for dry_run in [true, false] {
        let options = RestoreOptions { delete: true, overwrite: Overwrite::IfChanged, dry_run, ..RestoreOptions::default() };
        let (outcome, tally) = place.restore_with(&backup.backup, options);
        assert_eq!((outcome.deleted, outcome.errors, outcome.warnings), (1, 1, 1), "{:?}", tally.problems());
        for name in ["d/bound", "d/more/bound"] {
            assert!(tally.problems().iter().any(|problem| problem.path.ends_with(name.as_bytes()) && problem.reason.contains("mounted")));
        }
    }
    assert!(outside.join("deep/other").exists() && !place.target().join("d/more/file").exists());
}

#[test]
fn what_may_be_a_store_and_cannot_be_read_is_not_deleted() {
    let place = place();
    place.write("d/file", "file");
    fs::create_dir_all(place.source().join("d/none")).unwrap();
    let (backup, _) = place.backup();
    let bind = |name: &str| {
        let descriptor = place.target().join(name).join("descriptor");
        fs::create_dir_all(descriptor.parent().unwrap()).unwrap();
        fs::write(&descriptor, b"hidden").unwrap();
        fs::write(place.target().join(name).join("log"), b"not in the backup").unwrap();
        // Its beginning cannot be read: no page is mapped there.
        let arguments = ["--bind", "/proc/self/mem"];
        let is_done = is_root() && run("mount", &arguments, &descriptor);
        is_done.then_some(Mounted(descriptor))
    };
    let (Some(_more), Some(_none)) = (bind("d/more"), bind("d/none")) else { return println!("skipped: cannot mount here") };
    for dry_run in [true, false] {
        let options = RestoreOptions { delete: true, dry_run, ..RestoreOptions::default() };
        let (outcome, tally) = place.restore_with(&backup.backup, options);
        assert_eq!((outcome.deleted, outcome.errors), (0, 2), "{:?}", tally.problems());
        assert!(tally.problems().iter().all(|problem| problem.reason.contains("cannot tell whether it is a store")));
    }
    assert!(place.target().join("d/more/log").exists() && place.target().join("d/none/log").exists());
}

#[test]
fn every_file_system_that_was_written_to_is_synced() {
    let place = place();
    let content = noise(7, 100_000);
    place.write("disk/deep/file", &content);
    let (backup, _) = place.backup();
    let image = place.directory.path().join("image");
    let Some(_mounted) = Mounted::ext4(&image, &place.target().join("disk")) else { return };
    let (outcome, tally) = place.restore(&backup.backup);
    assert_eq!((outcome.files, outcome.errors), (1, 0), "{:?}", tally.problems());
    let bytes = fs::read(image).unwrap();
    assert!(bytes.chunks(1024).any(|block| content.starts_with(block)), "the content is on the disk");
}

/// Each time a file gets its name, copies the image of the file system as a power cut would leave it.
struct PowerCuts {
    image: PathBuf,
    other_file: fs::File,
    /// Ends in bytes, after a hole at 200,000.
    holes: PathBuf,
    images: Mutex<Vec<PathBuf>>,
}

impl Monitor for PowerCuts {
    fn count(&self, counter: Counter, _increment: u64) {
        if counter == Counter::Files {
            // The system may write the end of a file first.
            if let Ok(file) = fs::File::open(&self.holes) {
                rustix::fs::fadvise(&file, 400_000, None, rustix::fs::Advice::DontNeed).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            // Any sync makes names and sizes durable. It does not cover bytes that the system has not placed yet.
            self.other_file.sync_all().unwrap();
            let mut images = self.images.lock();
            let image = self.image.with_extension(images.len().to_string());
            fs::copy(&self.image, &image).unwrap();
            images.push(image);
        }
    }

    fn problem(&self, problem: &Problem) {
        panic!("{problem:?}");
    }
}

#[test]
fn after_a_power_cut_no_file_has_its_name_and_size_without_its_bytes() {
    let place = place();
    place.write("large", noise(8, 9_000_000));
    place.write("small", [noise(9, 200_000), vec![0; 300_000]].concat());
    place.write("holes", [noise(10, 200_000), vec![0; 300_000], noise(11, 100_000)].concat());
    let (backup, _) = place.backup();
    let image = place.directory.path().join("image");
    let Some(mounted) = Mounted::ext4(&image, &place.target()) else { return };
    let other_file = fs::File::create(place.target().join("other")).unwrap();
    let cuts = PowerCuts { image, other_file, holes: place.target().join("holes"), images: Mutex::default() };
    let strip_components = place.root().split(|byte| *byte == b'/').count();
    let options = RestoreOptions { target: place.target(), strip_components, ..RestoreOptions::default() };
    onefold_client::restore(&*place.repository(), &backup.backup, &options, &cuts).unwrap();
    drop((cuts.other_file, mounted));
    let images = cuts.images.into_inner();
    assert_eq!(images.len(), 3);
    for image in images {
        let after = place.directory.path().join("after");
        let Some(_mounted) = Mounted::mount(&["-o", "loop", image.to_str().unwrap()], &after) else { return };
        for name in ["large", "small", "holes"] {
            let (expected, found) = (fs::read(place.source().join(name)).unwrap(), fs::read(after.join(name)).unwrap_or_default());
            assert!(found.len() != expected.len() || found == expected, "{name} lacks bytes");
        }
    }
}
