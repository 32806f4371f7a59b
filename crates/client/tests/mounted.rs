//! Restoring over file systems that are mounted in the target: what they lose, and what a power cut leaves of them.

mod common;

use common::{is_root, noise, place};
use onefold_client::{Overwrite, RestoreOptions};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted file system. Unmounted when dropped.
struct Mounted(PathBuf);

impl Mounted {
    /// Mounts at a place, which is made; nothing, said why, where that is not possible.
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
