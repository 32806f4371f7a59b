//! Round trips: every kind of file, every attribute, parts of a backup, one file.

mod common;

use common::{assert_same, every_kind, is_root, look, noise, place, without_root};
use onefold_client::{Counter, Damaged, Overwrite, RestoreOptions};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

#[test]
fn a_tree_of_every_kind_comes_back_byte_for_byte_and_attribute_for_attribute() {
    let place = place();
    every_kind(&place.source());
    let (backup, tally) = place.backup();
    assert_eq!(tally.problems(), []);
    assert!(backup.is_complete());
    let (restored, tally) = place.restore(&backup.backup);
    assert_eq!(tally.problems(), []);
    assert!(restored.is_complete());
    assert_same(&place.source(), &place.target());
    assert_eq!(restored.files, backup.backup.statistics.files);
    // The source itself and the directories above it become the target.
    assert_eq!(restored.directories, backup.backup.statistics.directories - (place.source().components().count() as u64 - 1));
}

#[test]
fn holes_come_back_as_holes_and_are_not_read() {
    let place = place();
    every_kind(&place.source());
    let (backup, tally) = place.backup();
    assert!(tally.get(Counter::DataBytes) < 15 << 20, "{} bytes read", tally.get(Counter::DataBytes));
    assert!(backup.backup.statistics.logical_bytes > 60 << 20);
    place.restore(&backup.backup);
    for (name, most_bytes) in [("sparse", 512 << 10), ("only a hole", 0), ("zeros", 0)] {
        let metadata = fs::metadata(place.target().join(name)).unwrap();
        assert!(metadata.blocks() * 512 <= most_bytes, "{name} takes {} bytes", metadata.blocks() * 512);
    }
}

#[test]
fn hard_links_across_directories_are_one_file_again_even_without_their_first_name() {
    let place = place();
    every_kind(&place.source());
    let (backup, _) = place.backup();
    place.restore(&backup.backup);
    let inode = |name: &str| fs::metadata(place.target().join(name)).unwrap().ino();
    assert_eq!(inode("a/first name"), inode("a/deep/second name"));
    assert_eq!(inode("a/first name"), inode("z/third name"));

    fs::remove_dir_all(place.target()).unwrap();
    let paths = vec![b"a/deep".to_vec(), b"z".to_vec()];
    let (outcome, tally) = place.restore_with(&backup.backup, RestoreOptions { paths, ..RestoreOptions::default() });
    assert_eq!((outcome.errors, tally.problems()), (0, vec![]));
    assert!(!place.target().join("a/first name").exists());
    assert_eq!(inode("a/deep/second name"), inode("z/third name"));
    assert_eq!(fs::read(place.target().join("z/third name")).unwrap(), b"one file, three names");
}

#[test]
fn a_large_file_is_restored_by_a_further_name_alone() {
    let place = place();
    let content = noise(1, 40 << 20);
    place.write("a", &content);
    fs::hard_link(place.source().join("a"), place.source().join("b")).unwrap();
    let (backup, _) = place.backup();
    let paths = vec![b"b".to_vec()];
    let (outcome, tally) = place.restore_with(&backup.backup, RestoreOptions { paths, ..RestoreOptions::default() });
    assert_eq!((outcome.files, outcome.errors, tally.problems()), (1, 0, vec![]));
    assert!(fs::read(place.target().join("b")).unwrap() == content);
}

#[test]
fn parts_of_a_backup_are_restored_alone() {
    let place = place();
    every_kind(&place.source());
    let (backup, _) = place.backup();
    let paths = vec![b"a/deep/er".to_vec(), b"large".to_vec()];
    place.restore_with(&backup.backup, RestoreOptions { paths, ..RestoreOptions::default() });
    let names: Vec<_> = look(&place.target()).into_keys().collect();
    assert_eq!(names, [&b""[..], b"a", b"a/deep", b"a/deep/er", b"a/deep/er/medium", b"large"]);
    let missing = RestoreOptions { paths: vec![b"nothing".to_vec()], target: place.target(), ..RestoreOptions::default() };
    assert!(onefold_client::restore(&*place.repository(), &backup.backup, &missing, &onefold_client::Tally::default()).is_err());
}

#[test]
fn dump_writes_one_file_and_refuses_what_is_none() {
    let place = place();
    every_kind(&place.source());
    let (backup, _) = place.backup();
    for name in ["large", "a/small", "empty", "zeros", "z/third name"] {
        let mut out = Vec::new();
        let path = [&place.root()[..], b"/", name.as_bytes()].concat();
        let length = dump(&place, &backup.backup, &path, &mut out).unwrap();
        assert_eq!(length, out.len() as u64);
        assert!(out == fs::read(place.source().join(name)).unwrap(), "{name}");
    }
    for name in ["a", "fifo", "no such name"] {
        let path = [&place.root()[..], b"/", name.as_bytes()].concat();
        assert!(dump(&place, &backup.backup, &path, &mut Vec::new()).is_err(), "{name}");
    }
}

fn dump(place: &common::Place, backup: &onefold_catalog::Backup, path: &[u8], out: &mut Vec<u8>) -> onefold_client::Result<u64> {
    onefold_client::dump(&*place.repository(), backup, path, Damaged::Fail, &onefold_client::Tally::default(), out)
}

#[test]
fn what_exists_is_kept_replaced_or_compared_as_asked() {
    let place = place();
    place.write("same", noise(1, 1000));
    place.write("other", noise(2, 1000));
    place.write("d/large", noise(3, 6 << 20));
    symlink("x", place.source().join("link")).unwrap();
    let (backup, _) = place.backup();
    place.restore(&backup.backup);
    let spoil = || {
        fs::write(place.target().join("other"), b"mine").unwrap();
        fs::write(place.target().join("d/large"), b"mine").unwrap();
        fs::remove_file(place.target().join("link")).unwrap();
        symlink("y", place.target().join("link")).unwrap();
    };
    spoil();
    let (outcome, tally) = place.restore(&backup.backup);
    assert_eq!((outcome.errors, outcome.in_the_way, outcome.kept_files, outcome.files), (3, 3, 1, 0), "{:?}", tally.problems());
    assert_eq!(fs::read(place.target().join("other")).unwrap(), b"mine");

    let overwrite = |overwrite| RestoreOptions { overwrite, ..RestoreOptions::default() };
    let (outcome, _) = place.restore_with(&backup.backup, overwrite(Overwrite::IfChanged));
    assert_eq!((outcome.errors, outcome.files, outcome.kept_files), (0, 2, 1));
    assert_same(&place.source(), &place.target());

    spoil();
    let (outcome, _) = place.restore_with(&backup.backup, overwrite(Overwrite::Always));
    assert_eq!((outcome.errors, outcome.files, outcome.kept_files), (0, 3, 0));
    assert_same(&place.source(), &place.target());
}

#[test]
fn root_gives_nobody_a_file_that_somebody_else_has_made_to_look_equal() {
    if !is_root() {
        return println!("skipped: only root gives files away");
    }
    let place = place();
    let program = place.write("program", b"good");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let (backup, _) = place.backup();
    for owner in [(1234, 0), (0, 1234)] {
        fs::create_dir_all(place.target()).unwrap();
        let copy = place.target().join("program");
        fs::write(&copy, b"evil").unwrap();
        fs::File::open(&copy).unwrap().set_modified(fs::metadata(&program).unwrap().modified().unwrap()).unwrap();
        std::os::unix::fs::chown(&copy, Some(owner.0), Some(owner.1)).unwrap();
        let options = |overwrite| RestoreOptions { overwrite, ..RestoreOptions::default() };
        // A file that gets no attributes may stay.
        let (outcome, _) = place.restore_with(&backup.backup, options(Overwrite::Never));
        assert_eq!((outcome.kept_files, fs::metadata(&copy).unwrap().uid()), (1, owner.0));
        let (outcome, _) = place.restore_with(&backup.backup, options(Overwrite::IfChanged));
        assert_eq!((outcome.files, outcome.kept_files, outcome.errors), (1, 0, 0));
        assert_same(&place.source(), &place.target());
    }
}

#[test]
fn a_file_that_is_replaced_by_its_own_hard_link_leaves_nothing_behind() {
    let place = place();
    place.write("first", b"x");
    fs::hard_link(place.source().join("first"), place.source().join("second")).unwrap();
    let (backup, _) = place.backup();
    for _ in 0..2 {
        let (outcome, _) =
            place.restore_with(&backup.backup, RestoreOptions { overwrite: Overwrite::IfChanged, ..RestoreOptions::default() });
        assert_eq!(outcome.errors, 0);
        assert_same(&place.source(), &place.target());
    }
}

#[test]
fn several_paths_share_the_directories_above_them() {
    let place = place();
    place.write("a/b/one", b"1");
    place.write("a/c/two", b"2");
    place.write("a/d/three", b"3");
    let mut options = place.options();
    options.paths = vec![place.source().join("a/b"), place.source().join("a/./x/../c/two"), place.source().join("a/b/one")];
    let outcome = onefold_client::backup(&*place.repository(), &options, &onefold_client::Tally::default()).unwrap();
    assert!(outcome.is_complete());
    place.restore(&outcome.backup);
    let names: Vec<_> = look(&place.target()).into_keys().collect();
    assert_eq!(names, [&b""[..], b"a", b"a/b", b"a/b/one", b"a/c", b"a/c/two"]);
}

#[test]
fn a_backup_survives_closing_and_opening_the_store() {
    let place = place();
    every_kind(&place.source());
    let (backup, _) = place.backup();
    place.catalog.engine().close().unwrap();
    let store = place.store();
    let common::Place { directory, catalog } = place;
    drop(catalog);
    let place = common::Place { directory, catalog: common::open(&store) };
    let found = place.catalog.find("latest:group").unwrap();
    assert_eq!(found, backup.backup);
    let (outcome, tally) = place.restore(&found);
    assert_eq!((outcome.errors, tally.problems()), (0, vec![]));
    assert_same(&place.source(), &place.target());
}

#[test]
fn times_far_away_come_back() {
    let place = place();
    let path = place.write("old", b"x");
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH - Duration::new(1_000_000, 1)).unwrap();
    let (backup, _) = place.backup();
    place.restore(&backup.backup);
    assert_same(&place.source(), &place.target());
}

#[test]
fn what_belongs_into_directories_that_forbid_writing_comes_there() {
    let place = place();
    place.write("a/first", b"two names");
    place.write("b/other", b"other");
    fs::hard_link(place.source().join("a/first"), place.source().join("b/second")).unwrap();
    let forbid = |path: &std::path::Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let all = ["a", "b"].map(|name| place.source().join(name));
    all.iter().for_each(|path| forbid(path, 0o555));
    let (backup, _) = place.backup();
    forbid(place.directory.path(), 0o755);
    fs::create_dir(place.target()).unwrap();
    if is_root() {
        std::os::unix::fs::chown(place.target(), Some(65_534), None).unwrap();
    }
    let restored = |overwrite| {
        let (outcome, tally) =
            without_root(|| place.restore_with(&backup.backup, RestoreOptions { overwrite, ..RestoreOptions::default() }));
        assert_eq!(outcome.errors, 0, "{:?}", tally.problems());
        for name in ["a", "b"] {
            let (expected, found) = (place.source().join(name).metadata().unwrap(), place.target().join(name).metadata().unwrap());
            assert_eq!((found.mode() & 0o7777, found.mtime_nsec()), (0o555, expected.mtime_nsec()), "{name}");
        }
        let inode = |name: &str| fs::metadata(place.target().join(name)).unwrap().ino();
        assert_eq!(inode("a/first"), inode("b/second"));
        assert_eq!(fs::read(place.target().join("b/other")).unwrap(), b"other");
    };
    restored(Overwrite::Never);
    // As after a restore that was cut short: the directories have their modes, and a file is missing.
    let target = place.target().join("b");
    forbid(&target, 0o755);
    fs::remove_file(target.join("other")).unwrap();
    forbid(&target, 0o555);
    restored(Overwrite::IfChanged);
    // So that they can be removed.
    all.into_iter().chain([place.target().join("a"), target]).for_each(|path| forbid(&path, 0o755));
}
