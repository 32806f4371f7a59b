//! The cost of a second backup, and backups of a tree that changes meanwhile.

mod common;

use common::{assert_same, every_kind, noise, place};
use onefold_catalog::{Difference, diff};
use onefold_client::{BackupOptions, ClientError, Counter, Monitor, Problem, Severity, Tally};
use rustix::fs::{FileType, XattrFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

#[test]
fn an_unchanged_tree_is_neither_read_nor_encoded_again() {
    let place = place();
    every_kind(&place.source());
    let (first, _) = place.backup();
    let (second, tally) = place.backup();
    let statistics = &second.backup.statistics;
    assert_eq!(second.parent, Some(first.backup.id));
    assert_eq!((statistics.new_files, statistics.changed_files, statistics.unmodified_files), (0, 0, statistics.files));
    assert_eq!(tally.get(Counter::DataBytes), 0);
    // The directories above the source are shared: their times may have changed.
    let above = place.source().components().count() as u64 - 2;
    assert!(tally.get(Counter::AddedBytes) <= above * 200, "{} bytes added", tally.get(Counter::AddedBytes));
    assert!(tally.get(Counter::UnmodifiedDirectories) >= tally.get(Counter::Directories) - above);
    let recipe = |backup| place.catalog.directory(backup, &place.root()).unwrap();
    assert_eq!(recipe(&first.backup), recipe(&second.backup));
    place.restore(&second.backup);
    assert_same(&place.source(), &place.target());
}

#[test]
fn only_what_changed_is_read() {
    let place = place();
    for number in 0..500 {
        place.write(&format!("{}/{number}", number / 50), noise(number, 2000));
    }
    let (first, _) = place.backup();
    assert_eq!(first.backup.statistics.new_files, 500);
    place.write("3/170", noise(1000, 3000));
    place.write("3/new", noise(1001, 4000));
    fs::remove_file(place.source().join("7/360")).unwrap();
    let (second, tally) = place.backup();
    let statistics = &second.backup.statistics;
    assert_eq!((statistics.new_files, statistics.changed_files, statistics.unmodified_files), (1, 1, 498));
    assert_eq!(tally.get(Counter::DataBytes), 7000);
    place.restore(&second.backup);
    assert_same(&place.source(), &place.target());

    let mut differences = Vec::new();
    diff(&place.catalog, &first.backup, &second.backup, &mut |difference| {
        let (sign, path) = match difference {
            Difference::Added { path, .. } => ('+', path),
            Difference::Removed { path, .. } => ('-', path),
            Difference::Changed { path, change, .. } if change.content => ('M', path),
            Difference::Changed { .. } => return true,
        };
        differences.push(format!("{sign}{}", String::from_utf8_lossy(&path[place.root().len()..])));
        true
    })
    .unwrap();
    assert_eq!(differences, ["M/3/170", "+/3/new", "-/7/360"]);
}

#[test]
fn force_read_reads_everything_and_stores_nothing_twice() {
    let place = place();
    place.write("a", noise(1, 3 << 20));
    place.write("b", noise(2, 1000));
    place.backup();
    let tally = Tally::default();
    let options = BackupOptions { force_read: true, ..place.options() };
    onefold_client::backup(&*place.repository(), &options, &tally).unwrap();
    assert_eq!(tally.get(Counter::DataBytes), (3 << 20) + 1000);
    // Directories above the tree are in the backup too, and other tests change their common one.
    assert!(tally.get(Counter::AddedBytes) < 1000, "nothing is stored twice");
}

#[test]
fn a_change_of_attributes_alone_is_seen() {
    let place = place();
    let path = place.write("a", b"x");
    place.backup();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    let (second, _) = place.backup();
    assert_eq!(second.backup.statistics.changed_files, 1);
    place.restore(&second.backup);
    assert_same(&place.source(), &place.target());
}

#[test]
fn a_write_right_after_a_backup_is_seen_even_if_size_and_mtime_stay() {
    let place = place();
    for round in 0..20u8 {
        let path = place.write("a", [round; 10]);
        let (backup, _) = place.backup();
        fs::write(&path, [round + 100; 10]).unwrap();
        let (next, _) = place.backup();
        assert_eq!(next.backup.statistics.unmodified_files, 0, "round {round}");
        drop(backup);
    }
}

/// Acts the first time that a path with this ending is worked on, or once some of its data has been read.
struct Disturb<F: Fn(&Tally) + Send + Sync> {
    tally: Tally,
    ending: &'static [u8],
    on_data: bool,
    done: AtomicBool,
    act: F,
}

impl<F: Fn(&Tally) + Send + Sync> Disturb<F> {
    fn new(ending: &'static str, on_data: bool, act: F) -> Self {
        Disturb { tally: Tally::default(), ending: ending.as_bytes(), on_data, done: AtomicBool::new(false), act }
    }

    fn act(&self) {
        if !self.done.swap(true, Ordering::SeqCst) {
            (self.act)(&self.tally);
        }
    }
}

impl<F: Fn(&Tally) + Send + Sync> Monitor for Disturb<F> {
    fn count(&self, counter: Counter, increment: u64) {
        self.tally.count(counter, increment);
        if self.on_data && counter == Counter::DataBytes {
            self.act();
        }
    }

    fn current(&self, path: &[u8]) {
        if !self.on_data && path.ends_with(self.ending) {
            self.act();
        }
    }

    fn problem(&self, problem: &Problem) {
        self.tally.problem(problem);
    }

    fn cancelled(&self) -> bool {
        self.tally.cancelled()
    }
}

#[test]
fn files_that_vanish_are_warned_of_and_left_out() {
    let place = place();
    let path = place.write("b", b"x");
    place.write("a", b"y");
    let monitor = Disturb::new("/b", false, |_| fs::remove_file(&path).unwrap());
    let outcome = place.backup_with(&monitor);
    assert_eq!((outcome.errors, outcome.warnings), (0, 1));
    assert_eq!(monitor.tally.problems()[0].severity, Severity::Warning);
    place.restore(&outcome.backup);
    assert_same(&place.source(), &place.target());
}

#[test]
fn files_that_become_something_else_are_missing_from_the_backup() {
    let into: [fn(&Path); 3] = [
        |path| std::os::unix::fs::symlink("a", path).unwrap(),
        |path| fs::create_dir(path).unwrap(),
        |path| rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap(),
    ];
    for become_other in into {
        let place = place();
        let path = place.write("b", b"x");
        place.write("a", b"y");
        let monitor = Disturb::new("/b", false, |_| {
            fs::remove_file(&path).unwrap();
            become_other(&path);
        });
        let outcome = place.backup_with(&monitor);
        assert_eq!((outcome.errors, outcome.warnings), (1, 0), "{:?}", monitor.tally.problems());
        assert!(outcome.backup.is_partial(), "or a restore with `delete` would delete what is there now");
    }
}

#[test]
fn files_that_grow_or_shrink_while_they_are_read_are_warned_of() {
    for grow in [true, false] {
        let place = place();
        let path = place.write("large", noise(1, 12 << 20));
        let monitor = Disturb::new("", true, |_| {
            let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
            if grow { file.write_all(&[1; 1000]).unwrap() } else { file.set_len(5 << 20).unwrap() }
        });
        let outcome = place.backup_with(&monitor);
        assert_eq!((outcome.errors, outcome.warnings), (0, 1), "{:?}", monitor.tally.problems());
        let (restored, _) = place.restore(&outcome.backup);
        assert!(restored.is_complete());
        let length = fs::metadata(place.target().join("large")).unwrap().size();
        assert_eq!(length, if grow { 12 << 20 } else { 5 << 20 });
        let (second, _) = place.backup();
        assert_eq!(second.backup.statistics.changed_files, 1);
    }
}

#[test]
fn a_backup_that_is_stopped_leaves_no_backup_and_makes_the_next_one_cheap() {
    let place = place();
    for number in 0..20 {
        place.write(&number.to_string(), noise(number, 2 << 20));
    }
    let monitor = Disturb::new("/15", false, Tally::cancel);
    let stopped = onefold_client::backup(&*place.repository(), &place.options(), &monitor);
    assert!(matches!(stopped, Err(ClientError::Cancelled)));
    assert_eq!(place.catalog.list().unwrap(), []);
    let mut stored = monitor.tally.get(Counter::AddedBytes);
    assert!(stored > 0 || common::IS_REMOTE);
    if common::IS_REMOTE {
        // What was on its way is dropped.
        place.catalog.engine().flush().unwrap();
        stored = stored.min(place.catalog.engine().stored_bytes());
    }
    let (outcome, tally) = place.backup();
    assert!(outcome.is_complete());
    assert!(tally.get(Counter::AddedBytes) <= (40 << 20) - stored + (1 << 20), "{stored} bytes were there already");
    place.restore(&outcome.backup);
    assert_same(&place.source(), &place.target());
}

#[test]
fn a_backup_ends_when_a_reader_stops_while_the_queues_are_full() {
    let place = place();
    place.write("0/one", b"read, but not stored");
    place.write("0/two", b"never read");
    // More than the queue of events holds.
    fs::create_dir(place.source().join("links")).unwrap();
    for number in 0..10_000 {
        std::os::unix::fs::symlink("x", place.source().join(format!("links/{number}"))).unwrap();
    }
    let (ended, end) = mpsc::channel();
    let (repository, options) = (place.repository(), place.options());
    std::thread::spawn(move || {
        let monitor = Disturb::new("0/one", false, Tally::cancel);
        ended.send(onefold_client::backup(&*repository, &options, &monitor)).unwrap();
    });
    let made = end.recv_timeout(Duration::from_secs(60)).expect("the backup does not end");
    assert!(matches!(made, Err(ClientError::Cancelled)));
}

/// Runs as a user without privileges. Threads started by it have none either.
fn without_rights(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if common::is_root() {
                let (user, group) = (rustix::fs::Uid::from_raw(65534), rustix::fs::Gid::from_raw(65534));
                rustix::thread::set_thread_groups(&[]).unwrap();
                rustix::thread::set_thread_res_gid(group, group, group).unwrap();
                rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            }
            work();
        });
        thread.join().unwrap();
    });
}

#[test]
fn what_may_not_be_read_is_listed_and_the_rest_is_backed_up() {
    without_rights(|| {
        let place = place();
        every_kind(&place.source());
        let closed = place.write("closed/inside", b"x").parent().unwrap().to_path_buf();
        let secret = place.write("secret", b"x");
        fs::hard_link(&secret, place.source().join("secret too")).unwrap();
        for path in [&closed, &secret] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
        }
        let (outcome, tally) = place.backup();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(!outcome.is_complete());
        let mut listed: Vec<_> = tally.problems().iter().map(|problem| String::from_utf8_lossy(&problem.path).into_owned()).collect();
        listed.sort();
        let expected: Vec<_> =
            ["closed", "secret", "secret too"].iter().map(|name| place.source().join(name).display().to_string()).collect();
        assert_eq!(listed, expected);
        let (restored, tally) = place.restore(&outcome.backup);
        assert_eq!((restored.errors, tally.problems()), (0, vec![]));
        fs::remove_dir_all(&closed).unwrap();
        fs::remove_file(&secret).unwrap();
        fs::remove_file(place.source().join("secret too")).unwrap();
        let mut expected = common::look(&place.source());
        let mut found = common::look(&place.target());
        // The removal has changed the time of the root.
        expected.remove(&b""[..]);
        found.remove(&b""[..]);
        assert!(expected == found);
    });
}

#[test]
fn excludes_the_store_and_other_file_systems_are_left_out() {
    let place = place();
    place.write("keep", b"1");
    place.write("a/target/x.o", b"2");
    place.write("a/x.o", b"3");
    place.write("a/keep.o", b"4");
    let store = place.source().join("store inside");
    fs::create_dir(&store).unwrap();
    fs::write(store.join("descriptor"), b"x").unwrap();
    let options = BackupOptions {
        excludes: ["*.o", "!keep.o", "a/target"].map(String::from).to_vec(),
        store_directory: Some(store),
        one_file_system: true,
        ..place.options()
    };
    let outcome = onefold_client::backup(&*place.repository(), &options, &Tally::default()).unwrap();
    place.restore(&outcome.backup);
    let names: Vec<_> = common::look(&place.target()).into_keys().collect();
    assert_eq!(names, [&b""[..], b"a", b"a/keep.o", b"keep"]);

    let options = BackupOptions { name: "proc".into(), paths: vec![PathBuf::from("/")], one_file_system: true, ..BackupOptions::default() };
    let options = BackupOptions { excludes: vec!["/[!p]*".into(), "/p[!r]*".into()], ..options };
    let made = onefold_client::backup(&*place.repository(), &options, &Tally::default());
    assert!(matches!(made, Err(ClientError::NothingToBackUp { .. })), "/proc is another file system, all else is excluded");
}

#[test]
fn nothing_to_back_up_is_an_error_and_a_missing_path_makes_it_partial() {
    let place = place();
    let missing = place.directory.path().join("missing");
    let options = BackupOptions { paths: vec![], ..place.options() };
    assert!(matches!(onefold_client::backup(&*place.repository(), &options, &Tally::default()), Err(ClientError::NothingToBackUp { .. })));
    let options = BackupOptions { paths: vec![place.source(), missing], ..place.options() };
    assert!(matches!(onefold_client::backup(&*place.repository(), &options, &Tally::default()), Err(ClientError::NothingToBackUp { .. })));
    place.write("file", b"x");
    let outcome = onefold_client::backup(&*place.repository(), &options, &Tally::default()).unwrap();
    assert_eq!(outcome.errors, 1);
}

#[test]
fn a_directory_that_lost_a_name_is_not_taken_over_whole() {
    let place = place();
    for number in 0..10 {
        place.write(&number.to_string(), b"x");
    }
    place.backup();
    let options = BackupOptions { excludes: vec!["9".into()], ..place.options() };
    let outcome = onefold_client::backup(&*place.repository(), &options, &Tally::default()).unwrap();
    assert_eq!(outcome.backup.statistics.files, 9);
    place.restore(&outcome.backup);
    assert!(!place.target().join("9").exists());
}

/// A mount point for mounting on demand whose automounter is gone: the first attempt to open it fails.
struct DeadAutomount(PathBuf);

impl DeadAutomount {
    fn new(place: PathBuf) -> Option<DeadAutomount> {
        fs::create_dir_all(&place).unwrap();
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        // The automounter's own processes see the directory below.
        let mut automounter = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let options = format!("fd={},pgrp={},minproto=5,maxproto=5,direct", writer.as_raw_fd(), automounter.id());
        let options = CString::new(options).unwrap();
        let mounted = rustix::mount::mount(c"none", &place, c"autofs", MountFlags::empty(), options.as_c_str());
        automounter.kill().unwrap();
        automounter.wait().unwrap();
        match mounted {
            Ok(()) => Some(DeadAutomount(place)),
            Err(error) => {
                eprintln!("SKIPPED: nothing can be mounted on demand here: {error}");
                None
            }
        }
    }
}

impl Drop for DeadAutomount {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn a_directory_that_cannot_be_mounted_is_an_error() {
    let place = place();
    place.write("file", b"x");
    let (file, nas) = (place.source().join("file"), place.source().join("nas"));
    for paths in [vec![file.clone(), nas.clone()], vec![file, nas.join("below")], vec![place.source()]] {
        let Some(_dead) = DeadAutomount::new(nas.clone()) else { return };
        let tally = Tally::default();
        let options = BackupOptions { paths, ..place.options() };
        let outcome = onefold_client::backup(&*place.repository(), &options, &tally).unwrap();
        let problems = tally.problems();
        assert_eq!((outcome.errors, problems.len()), (1, 1), "{:?}: {problems:?}", options.paths);
        assert_eq!(problems[0].path, nas.as_os_str().as_bytes());
    }
}

#[test]
fn extended_attributes_that_cannot_be_stored_make_every_backup_partial() {
    let place = place();
    // This file system takes any number of them.
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else { return eprintln!("SKIPPED: there is no /dev/shm") };
    let [too_many, too_long] = ["too many", "too long"].map(|name| memory.path().join(name));
    fs::create_dir(&too_many).unwrap();
    fs::write(&too_long, b"x").unwrap();
    let set = |path: &PathBuf, name: &str, value: &[u8]| rustix::fs::setxattr(path, name, value, XattrFlags::empty());
    let all_set = (0..300).try_for_each(|number| set(&too_many, &format!("user.{number:0240}"), b"x"));
    let all_set = all_set.and_then(|()| (0..20).try_for_each(|number| set(&too_long, &format!("user.{number}"), &noise(number, 60_000))));
    if let Err(error) = all_set {
        return eprintln!("SKIPPED: /dev/shm takes no extended attributes: {error}");
    }
    for round in 0..3 {
        let tally = Tally::default();
        let options = BackupOptions { paths: vec![memory.path().to_owned()], ..place.options() };
        let outcome = onefold_client::backup(&*place.repository(), &options, &tally).unwrap();
        let mut problems = tally.problems();
        problems.sort_by(|a, b| a.path.cmp(&b.path));
        let paths: Vec<_> = problems.iter().map(|problem| problem.path.as_slice()).collect();
        assert_eq!(paths, [too_long.as_os_str().as_bytes(), too_many.as_os_str().as_bytes()], "round {round}: {problems:?}");
        assert_eq!((outcome.errors, outcome.warnings), (2, 0), "round {round}: {problems:?}");
    }
}

#[test]
fn the_bytes_of_a_named_device_are_among_those_to_read() {
    let place = place();
    let image = place.write("image", noise(1, 3 << 20));
    let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
    let device = made.map_or(String::new(), |made| String::from_utf8(made.stdout).unwrap());
    let device = PathBuf::from(device.trim());
    if device.as_os_str().is_empty() {
        return eprintln!("SKIPPED: no loop devices here");
    }
    let tally = Tally::default();
    let options = BackupOptions { paths: vec![device.clone()], read_special: true, ..place.options() };
    let outcome = onefold_client::backup(&*place.repository(), &options, &tally);
    Command::new("losetup").arg("-d").arg(&device).status().unwrap();
    assert!(outcome.unwrap().is_complete());
    assert_eq!([Counter::FoundBytes, Counter::DoneBytes].map(|counter| tally.get(counter)), [3 << 20; 2]);
}
