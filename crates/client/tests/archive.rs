//! Directories as tar archives: GNU tar and bsdtar extract exactly what was backed up.

mod common;

use common::{assert_same, every_kind, is_root, look, noise, place};
use onefold_client::{Damaged, Tally};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

/// Extracts an archive with a program. Returns false if the program is not installed.
fn extract(program: &str, options: &[&str], archive: &Path, target: &Path) -> bool {
    fs::create_dir_all(target).unwrap();
    let command = Command::new(program).args(options).arg("-xpf").arg(archive).arg("-C").arg(target).env("LC_ALL", "C.UTF-8").output();
    let Ok(done) = command else {
        eprintln!("skipped: there is no {program}");
        return false;
    };
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program}: {said}");
    true
}

fn archive(place: &common::Place, backup: &onefold_catalog::Backup, path: &[u8]) -> (Vec<u8>, Tally) {
    let (mut out, tally) = (Vec::new(), Tally::default());
    onefold_client::archive(&*place.repository(), backup, path, Damaged::Fail, &tally, &mut out).unwrap();
    (out, tally)
}

/// Makes a tree without sockets, which no archive can have; with names, numbers and holes that no old header can hold.
fn tree(root: &Path) {
    every_kind(root);
    fs::remove_file(root.join("socket")).unwrap();
    let deep = root.join(["a directory with a long name"; 12].join("/"));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("x".repeat(200)), b"deep").unwrap();
    symlink("t".repeat(300), deep.join("long target")).unwrap();
    fs::hard_link(deep.join("x".repeat(200)), deep.join("second")).unwrap();
    if is_root() {
        fs::write(root.join("large owner"), b"x").unwrap();
        std::os::unix::fs::chown(root.join("large owner"), Some(3_000_000), Some(4_000_000_000)).unwrap();
    }
    fs::set_permissions(root.join("large"), fs::Permissions::from_mode(0o640)).unwrap();
}

/// Removes times before 1970: libarchive drops the sign of their nanoseconds.
fn make_young(root: &Path) {
    for (name, look) in look(root).iter().rev().filter(|(_, look)| look.mtime.0 < 0) {
        let path = root.join(std::ffi::OsStr::from_bytes(name));
        let time = Timespec { tv_sec: look.mtime.0 + 4_000_000_000, tv_nsec: 5 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

#[test]
fn gnu_tar_and_bsdtar_extract_what_was_backed_up() {
    if !is_root() {
        return eprintln!("skipped: only root can extract devices and owners");
    }
    let place = place();
    tree(&place.source());
    let gnu = ("tar", &["--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner"][..]);
    let bsd = ("bsdtar", &["--numeric-owner", "--acls", "--xattrs"][..]);
    for (program, options) in [gnu, bsd] {
        if program == "bsdtar" {
            make_young(&place.source());
        }
        let (backup, _) = place.backup();
        let (bytes, tally) = archive(&place, &backup.backup, &place.root());
        assert_eq!(tally.problems(), []);
        assert!(bytes.len() < 20 << 20, "holes take no room: {}", bytes.len());
        let file = place.directory.path().join("archive.tar");
        fs::write(&file, bytes).unwrap();
        let target = place.directory.path().join(program);
        if extract(program, options, &file, &target) {
            assert_same(&place.source(), &target.join("source"));
            let blocks = fs::metadata(target.join("source/sparse")).unwrap().blocks();
            assert!(blocks * 512 <= 1 << 20, "{program} makes holes again: {blocks} blocks");
            let inode = |name: &str| fs::metadata(target.join("source").join(name)).unwrap().ino();
            assert_eq!(inode("a/first name"), inode("z/third name"), "{program}");
        }
    }
}

#[test]
fn a_part_of_a_tree_and_single_files_are_archives_of_their_own() {
    let place = place();
    every_kind(&place.source());
    let (backup, _) = place.backup();
    let names = |path: &str| {
        let (bytes, tally) = archive(&place, &backup.backup, &[&place.root()[..], b"/", path.as_bytes()].concat());
        assert_eq!(tally.problems(), []);
        let file = place.directory.path().join("part.tar");
        fs::write(&file, bytes).unwrap();
        let target = place.directory.path().join(format!("part {}", path.replace('/', "_")));
        assert!(extract("tar", &["--no-same-owner"], &file, &target));
        let names: Vec<String> =
            look(&target).into_keys().map(|name| String::from_utf8(name).unwrap()).filter(|name| !name.is_empty()).collect();
        (target, names)
    };
    // Its first name is not in it: the second becomes the first.
    let (target, found) = names("a/deep");
    assert_eq!(found, ["deep", "deep/er", "deep/er/medium", "deep/second name"]);
    assert_eq!(fs::read(target.join("deep/second name")).unwrap(), b"one file, three names");
    assert_eq!(fs::read(target.join("deep/er/medium")).unwrap(), noise(1, 300_000));
    assert_eq!(names("large").1, ["large"]);
    // Files that an archive cannot have are reported.
    let (_, tally) = archive(&place, &backup.backup, &place.root());
    assert!(tally.problems().iter().all(|problem| problem.path.ends_with(b"/socket")), "{:?}", tally.problems());
    assert_eq!(tally.problems().len(), 1);
}
