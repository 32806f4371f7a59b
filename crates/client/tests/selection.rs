//! Restoring parts of a backup over existing files: names, attributes, deletions, counts.

mod common;

use common::{Place, assert_same, every_kind, is_root, look, noise, place, without_root};
use onefold_catalog::Backup;
use onefold_client::{BackupOptions, ClientError, Counter, Monitor, Overwrite, Plan, Problem, RestoreOptions, RestoreOutcome, Tally};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// `d/{one.txt,two.log,deep/three.txt}`, `e/one.txt`, `f*.txt`.
fn tree() -> (Place, Backup) {
    let place = place();
    for name in ["d/one.txt", "d/two.log", "d/deep/three.txt", "e/one.txt", "f*.txt"] {
        place.write(name, name);
    }
    let (backup, _) = place.backup();
    (place, backup.backup)
}

fn place_file(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, b"in the target").unwrap();
}

fn names(place: &Place) -> Vec<String> {
    look(&place.target()).into_keys().map(|name| String::from_utf8(name).unwrap()).filter(|name| !name.is_empty()).collect()
}

fn paths(paths: &[&str]) -> RestoreOptions {
    RestoreOptions { paths: paths.iter().map(|path| path.as_bytes().to_vec()).collect(), ..RestoreOptions::default() }
}

fn texts(patterns: &[&str]) -> Vec<String> {
    patterns.iter().map(|pattern| (*pattern).to_owned()).collect()
}

#[test]
fn a_path_may_be_a_pattern_and_makes_no_directory_in_vain() {
    let cases: [(&[&str], &[&str]); 5] = [
        (&["*/one.txt"], &["d", "d/one.txt", "e", "e/one.txt"]),
        (&["**/three*"], &["d", "d/deep", "d/deep/three.txt"]),
        (&["d*"], &["d", "d/deep", "d/deep/three.txt", "d/one.txt", "d/two.log"]),
        // A path that the backup has is no pattern.
        (&["f*.txt"], &["f*.txt"]),
        (&["e", "d/*.log"], &["d", "d/two.log", "e", "e/one.txt"]),
    ];
    for (asked, expected) in cases {
        let (place, backup) = tree();
        let (outcome, tally) = place.restore_with(&backup, paths(asked));
        assert_eq!((outcome.errors, tally.problems()), (0, vec![]), "{asked:?}");
        assert_eq!(names(&place), expected, "{asked:?}");
    }
    let (place, backup) = tree();
    let (outcome, tally) = place.restore_with(&backup, paths(&["e/*", "x*"]));
    assert_eq!((outcome.files, outcome.errors), (1, 1));
    assert!(tally.problems()[0].path.ends_with(b"/x*") && tally.problems()[0].reason.contains("nothing"), "{:?}", tally.problems());
}

#[test]
fn patterns_include_and_exclude() {
    let (place, backup) = tree();
    let options = RestoreOptions { include: texts(&["*.txt"]), exclude: texts(&["deep"]), ..RestoreOptions::default() };
    place.restore_with(&backup, options);
    assert_eq!(names(&place), ["d", "d/one.txt", "e", "e/one.txt", "f*.txt"]);
    let (place, backup) = tree();
    place.restore_with(&backup, RestoreOptions { include: texts(&["deep"]), ..paths(&["d"]) });
    assert_eq!(names(&place), ["d", "d/deep", "d/deep/three.txt"]);
}

#[test]
fn components_are_stripped_and_what_has_no_more_is_left_out() {
    let (place, backup) = tree();
    let depth = place.root().split(|byte| *byte == b'/').count() + 1;
    let tally = Tally::default();
    let options = RestoreOptions { target: place.target(), strip_components: depth, ..RestoreOptions::default() };
    let outcome = onefold_client::restore(&*place.repository(), &backup, &options, &tally).unwrap();
    // Two files get the same name: nothing was in the way of the second one, it is left out.
    assert_eq!(names(&place), ["deep", "deep/three.txt", "one.txt", "two.log"]);
    assert_eq!((outcome.files, outcome.warnings, outcome.errors), (3, 1, 1), "{:?}", tally.problems());
}

#[test]
fn parents_of_what_is_restored_get_their_recorded_mode_and_times() {
    let (place, _) = tree();
    let directory = place.source().join("d");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o751)).unwrap();
    fs::File::open(&directory).unwrap().set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 5)).unwrap();
    let (backup, _) = place.backup();
    place.restore_with(&backup.backup, paths(&["d/deep/three.txt"]));
    let found = place.target().join("d").metadata().unwrap();
    assert_eq!((found.mode() & 0o7777, found.mtime(), found.mtime_nsec()), (0o751, 1_000_000_000, 5));
    // An existing directory keeps its owner's attributes.
    fs::set_permissions(place.target().join("d"), fs::Permissions::from_mode(0o700)).unwrap();
    place.restore_with(&backup.backup, paths(&["d/one.txt"]));
    assert_eq!(place.target().join("d").metadata().unwrap().mode() & 0o7777, 0o700);
}

#[test]
fn set_id_bits_are_left_out_where_the_owner_is_not_restored() {
    if !is_root() {
        return eprintln!("skipped: only root can make files of others");
    }
    let place = place();
    for (name, owner, mode) in [("theirs", 1234, 0o6755), ("mine", 65_534, 0o6755), ("plain", 1234, 0o644)] {
        let path = place.write(name, name);
        std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let (backup, _) = place.backup();
    fs::set_permissions(place.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(place.target()).unwrap();
    std::os::unix::fs::chown(place.target(), Some(65_534), Some(65_534)).unwrap();
    let (outcome, tally) = without_root(|| place.restore(&backup.backup));
    assert_eq!(outcome.errors, 0, "{:?}", tally.problems());
    let mode = |name: &str| place.target().join(name).metadata().unwrap().mode() & 0o7777;
    assert_eq!((mode("theirs"), mode("plain")), (0o755, 0o644));
    assert!(tally.problems().iter().any(|problem| problem.reason.contains("set-user-id")), "{:?}", tally.problems());
    // The group of the process stayed root's, so `mine` is not completely his either.
    assert_eq!(mode("mine") & 0o6000, if place.target().join("mine").metadata().unwrap().gid() == 65_534 { 0o6000 } else { 0 });
    // Root restores owners, and the bits with them.
    fs::remove_dir_all(place.target()).unwrap();
    place.restore(&backup.backup);
    assert_same(&place.source(), &place.target());
}

#[test]
fn a_restore_that_is_repeated_says_what_is_equal_already_and_no_error() {
    let place = place();
    every_kind(&place.source());
    let (backup, _) = place.backup();
    let (first, _) = place.restore(&backup.backup);
    for overwrite in [Overwrite::Never, Overwrite::IfChanged] {
        let (again, tally) = place.restore_with(&backup.backup, RestoreOptions { overwrite, ..RestoreOptions::default() });
        assert_eq!((again.errors, tally.problems()), (0, vec![]), "{overwrite:?}");
        assert_eq!((again.files, again.others, again.in_the_way, again.written_bytes), (0, 0, 0, 0), "{overwrite:?}");
        assert_eq!(again.kept_files, first.files + first.others, "{overwrite:?}");
        assert_same(&place.source(), &place.target());
    }
    // A missing file is restored, a different one is in the way.
    fs::remove_file(place.target().join("z/third name")).unwrap();
    fs::remove_file(place.target().join("link")).unwrap();
    fs::write(place.target().join("empty"), b"mine").unwrap();
    let (again, tally) = place.restore(&backup.backup);
    assert_eq!((again.files, again.others, again.in_the_way, again.errors), (1, 1, 1, 1), "{:?}", tally.problems());
    assert_eq!(again.kept_files, first.files + first.others - 3);
}

/// Records the plans of a dry run.
#[derive(Default)]
struct Plans(Mutex<BTreeSet<String>>, Tally);

impl Monitor for Plans {
    fn count(&self, counter: Counter, increment: u64) {
        self.1.count(counter, increment);
    }
    fn planned(&self, plan: Plan, path: &[u8]) {
        let name = String::from_utf8_lossy(path).rsplit_once("source/").unwrap().1.to_owned();
        assert!(self.0.lock().insert(format!("{plan:?} {name}")), "{name} twice");
    }
    fn problem(&self, problem: &Problem) {
        self.1.problem(problem);
    }
}

fn with(place: &Place, backup: &Backup, options: RestoreOptions, monitor: &dyn Monitor) -> onefold_client::Result<RestoreOutcome> {
    let strip_components = place.root().split(|byte| *byte == b'/').count();
    let options = RestoreOptions { target: place.target(), strip_components, ..options };
    onefold_client::restore(&*place.repository(), backup, &options, monitor)
}

/// Makes a target with all of the tree but `e`, and names of its own.
fn restored_with_more() -> (Place, Backup) {
    let (place, backup) = tree();
    place.restore(&backup);
    fs::remove_dir_all(place.target().join("e")).unwrap();
    fs::write(place.target().join("d/two.log"), b"changed").unwrap();
    for name in ["new", "d/new", "d/more/x/y", "d/keep/x"] {
        let path = place.target().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"new").unwrap();
    }
    (place, backup)
}

#[test]
fn deleting_leaves_what_the_backup_has_and_what_is_excluded() {
    let (place, backup) = restored_with_more();
    let options = RestoreOptions { delete: true, overwrite: Overwrite::IfChanged, exclude: texts(&["keep"]), ..RestoreOptions::default() };
    let dry = Plans::default();
    let before = look(&place.target());
    let planned = with(&place, &backup, RestoreOptions { dry_run: true, ..options.clone() }, &dry).unwrap();
    assert!(before == look(&place.target()), "a dry run changes nothing");
    let expected =
        ["Create e/one.txt", "Delete d/more", "Delete d/more/x", "Delete d/more/x/y", "Delete d/new", "Delete new", "Replace d/two.log"];
    assert_eq!(dry.0.into_inner().into_iter().collect::<Vec<_>>(), expected);
    let done = with(&place, &backup, options, &Tally::default()).unwrap();
    let counts = |outcome: RestoreOutcome| (outcome.files, outcome.kept_files, outcome.deleted, outcome.directories, outcome.errors);
    assert_eq!(counts(planned), (2, 3, 5, 3, 0));
    assert_eq!(counts(done), counts(planned), "it does what the dry run said");
    fs::remove_dir_all(place.target().join("d/keep")).unwrap();
    assert_eq!(names(&place).len(), 8);
}

#[test]
fn a_dry_run_into_nothing_makes_nothing() {
    let (place, backup) = tree();
    let outcome = with(&place, &backup, RestoreOptions { dry_run: true, ..RestoreOptions::default() }, &Tally::default()).unwrap();
    assert_eq!((outcome.files, outcome.directories, outcome.errors), (5, 3, 0));
    assert!(!place.target().exists());
}

#[test]
fn only_directories_that_were_backed_up_lose_names() {
    let (place, backup) = tree();
    // Restored with all its directories: those above the source were not backed up.
    let options = RestoreOptions { target: place.target(), delete: true, ..RestoreOptions::default() };
    let source = place.target().join(String::from_utf8(place.root()).unwrap());
    fs::create_dir_all(&source).unwrap();
    fs::write(source.join("goes"), b"x").unwrap();
    fs::write(source.parent().unwrap().join("stays"), b"x").unwrap();
    fs::write(place.target().join("stays"), b"x").unwrap();
    let outcome = onefold_client::restore(&*place.repository(), &backup, &options, &Tally::default()).unwrap();
    assert_eq!((outcome.deleted, outcome.errors), (1, 0));
    assert!(!source.join("goes").exists() && source.parent().unwrap().join("stays").exists() && place.target().join("stays").exists());
}

#[test]
fn what_the_backup_left_out_and_partial_backups_delete_nothing() {
    let (place, _) = tree();
    let mut options = place.options();
    options.excludes = texts(&["*.log"]);
    let backup = onefold_client::backup(&*place.repository(), &options, &Tally::default()).unwrap().backup;
    fs::create_dir_all(place.target().join("d")).unwrap();
    fs::write(place.target().join("d/two.log"), b"left out").unwrap();
    let delete = || RestoreOptions { delete: true, ..RestoreOptions::default() };
    assert_eq!(with(&place, &backup, delete(), &Tally::default()).unwrap().deleted, 0);
    assert!(place.target().join("d/two.log").exists());
    let mut partial = backup.clone();
    partial.statistics.errors = 1;
    let refused = with(&place, &partial, delete(), &Tally::default());
    assert!(matches!(&refused, Err(ClientError::Refused { why }) if why.contains("partial")), "{refused:?}");
    // Two directories that become one would delete each other's names.
    let strip_components = place.root().split(|byte| *byte == b'/').count() + 1;
    let refused = RestoreOptions { target: place.target(), strip_components, ..delete() };
    let refused = onefold_client::restore(&*place.repository(), &backup, &refused, &Tally::default());
    assert!(matches!(&refused, Err(ClientError::Refused { why }) if why.contains("both")), "{refused:?}");
}

#[test]
fn a_backup_that_does_not_say_what_it_left_out_deletes_nothing() {
    let (place, _) = tree();
    let refused = |backup: &Backup, expected: &str| {
        fs::create_dir_all(place.target().join("d")).unwrap();
        fs::write(place.target().join("d/more"), b"not in the backup").unwrap();
        let refused = with(&place, backup, RestoreOptions { delete: true, ..RestoreOptions::default() }, &Tally::default());
        assert!(matches!(&refused, Err(ClientError::Refused { why }) if why.contains(expected) && why.contains("--delete")), "{refused:?}");
        assert!(place.target().join("d/more").exists());
    };
    // From a list of files: their directory had others.
    let listed = ["d/one.txt", "e/one.txt"].map(|name| place.source().join(name)).to_vec();
    let options = BackupOptions { paths: Vec::new(), listed_paths: listed, ..place.options() };
    refused(&onefold_client::backup(&*place.repository(), &options, &Tally::default()).unwrap().backup, "--files-from");
    let options = BackupOptions { exclude_if_present: vec![b"not \xff UTF-8".to_vec()], ..place.options() };
    let backup = onefold_client::backup(&*place.repository(), &options, &Tally::default()).unwrap().backup;
    refused(&backup, "not UTF-8");
    let options = backup.options.replace('\u{fffd}', "");
    let with_options = |options: String| Backup { options, ..backup.clone() };
    refused(&with_options("{".into()), "cannot be read");
    for key in ["excludes", "listed", "exclude_caches", "exclude_if_present", "one_file_system"] {
        refused(&with_options(options.replace(&format!("{key}\""), "other\"")), key);
    }
    let tally = Tally::default();
    let delete = RestoreOptions { delete: true, ..RestoreOptions::default() };
    assert_eq!(with(&place, &with_options(options), delete, &tally).unwrap().deleted, 1, "{:?}", tally.problems());
}

#[test]
fn directories_of_which_only_the_marker_was_backed_up_lose_nothing() {
    let place = place();
    for name in ["cache/CACHEDIR.TAG", "hidden/CACHEDIR.TAG"] {
        place.write(name, "Signature: 8a477f597d28d172789f06886806bc55");
    }
    for name in ["marked/.nobackup", "marked/content", "cache/content", "hidden/content", "plain/content"] {
        place.write(name, name);
    }
    let options = BackupOptions {
        exclude_caches: true,
        exclude_if_present: vec![b".nobackup".to_vec()],
        excludes: texts(&["hidden/CACHEDIR.TAG"]),
        ..place.options()
    };
    let backup = onefold_client::backup(&*place.repository(), &options, &Tally::default()).unwrap().backup;
    let left_out = ["marked/content", "cache/content", "hidden/content"];
    for name in left_out.into_iter().chain(["plain/more", "plain/deep/more"]) {
        let path = place.target().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"in the target").unwrap();
    }
    let outcome = with(&place, &backup, RestoreOptions { delete: true, ..RestoreOptions::default() }, &Tally::default()).unwrap();
    assert_eq!((outcome.deleted, outcome.errors), (3, 0));
    assert!(left_out.iter().all(|name| fs::read(place.target().join(name)).unwrap() == b"in the target"));
}

#[test]
fn nothing_is_restored_into_the_store_and_the_store_is_not_deleted() {
    let place = place();
    place.write("store/descriptor", "evil");
    place.write("file", "good");
    let (backup, _) = place.backup();
    let store_directory = Some(place.store());
    let options = |target| RestoreOptions {
        target,
        store_directory: store_directory.clone(),
        overwrite: Overwrite::Always,
        delete: true,
        strip_components: place.root().split(|byte| *byte == b'/').count(),
        ..RestoreOptions::default()
    };
    for target in [place.store(), place.store().join("log"), place.store().join("new/deeper")] {
        let refused = onefold_client::restore(&*place.repository(), &backup.backup, &options(target), &Tally::default());
        assert!(matches!(&refused, Err(ClientError::Refused { why }) if why.contains("store")), "{refused:?}");
    }
    // Into a directory above it: the rest is restored, the store is neither entered nor deleted.
    let before = look(&place.store());
    let tally = Tally::default();
    let target = place.directory.path().to_owned();
    let outcome = onefold_client::restore(&*place.repository(), &backup.backup, &options(target.clone()), &tally).unwrap();
    assert!(outcome.errors >= 1 && tally.problems().iter().any(|problem| problem.path.ends_with(b"store")), "{:?}", tally.problems());
    assert_eq!(fs::read(target.join("file")).unwrap(), b"good");
    assert!(before.keys().eq(look(&place.store()).keys()), "the store has the files it had");
    assert!(!place.store().join("descriptor").exists() || before.contains_key(&b"descriptor"[..]));
}

#[test]
fn no_store_is_deleted_whichever_is_read() {
    let (place, _) = tree();
    fs::create_dir_all(place.source().join("stores")).unwrap();
    fs::create_dir_all(place.source().join("was none")).unwrap();
    // Left out of its own backup without a note in the record. The copy that is read knows only about itself.
    let backup = place.backup().0.backup;
    place.restore(&backup);
    for store in ["stores/first", "was none"] {
        let store = place.target().join(store);
        fs::create_dir_all(store.join("log")).unwrap();
        fs::copy(place.store().join("descriptor"), store.join("descriptor")).unwrap();
    }
    let copy_only = place.target().join("stores/with a copy only");
    fs::create_dir(&copy_only).unwrap();
    fs::copy(place.store().join("descriptor"), copy_only.join("descriptor.copy")).unwrap();
    place_file(&place.target().join("stores/none/descriptor"));
    let mode = |mode| fs::set_permissions(&copy_only, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o500);
    let before = look(&place.target()).len();
    for dry_run in [true, false] {
        let options = RestoreOptions { delete: true, dry_run, ..RestoreOptions::default() };
        let (outcome, tally) = place.restore_with(&backup, RestoreOptions { store_directory: Some(place.store()), ..options });
        assert_eq!((outcome.deleted, outcome.errors), (2, 3), "{:?}", tally.problems());
        assert!(tally.problems().iter().all(|problem| problem.reason.contains("store")), "{:?}", tally.problems());
    }
    assert_eq!(look(&place.target()).len(), before - 2);
    assert_eq!(fs::metadata(&copy_only).unwrap().permissions().mode() & 0o777, 0o500, "it keeps its mode");
    mode(0o700);
    // A store in the backup is restored like everything else.
    let (place, _) = tree();
    fs::create_dir(place.source().join("store")).unwrap();
    fs::copy(place.store().join("descriptor"), place.source().join("store/descriptor")).unwrap();
    let backup = place.backup().0.backup;
    place.restore(&backup);
    place_file(&place.target().join("store/log/more"));
    let (outcome, tally) = place.restore_with(&backup, RestoreOptions { delete: true, ..RestoreOptions::default() });
    assert_eq!((outcome.deleted, outcome.errors), (2, 0), "{:?}", tally.problems());
}

#[test]
fn what_there_is_to_do_is_known_while_it_is_done() {
    let place = place();
    every_kind(&place.source());
    place.write("more", noise(9, 3 << 20));
    let (backup, _) = place.backup();
    let (outcome, tally) = place.restore(&backup.backup);
    assert_eq!(outcome.errors, 0);
    let logical = backup.backup.statistics.logical_bytes;
    assert_eq!([tally.get(Counter::FoundBytes), tally.get(Counter::LogicalBytes)], [logical; 2]);
    // For a part, a walk that runs ahead finds out. It may be overtaken, but never counts unwanted names.
    fs::remove_dir_all(place.target()).unwrap();
    let (_, tally) = place.restore_with(&backup.backup, paths(&["more"]));
    assert_eq!(tally.get(Counter::LogicalBytes), 3 << 20);
    assert!([0, 3 << 20].contains(&tally.get(Counter::FoundBytes)));
}
