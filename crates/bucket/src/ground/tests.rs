use super::*;
use crate::faults::FaultyBucket;
use crate::{Failure, MemoryBucket, Patience};
use onefold_ground::{LocalGround, Requests, SimulatedGround, read_file};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;

struct Bench {
    bucket: MemoryBucket,
    local: SimulatedGround,
    ground: BucketGround,
}

impl Bench {
    fn new() -> Bench {
        Bench::keeping(KEPT_BYTES)
    }

    fn keeping(kept_bytes: u64) -> Bench {
        let (bucket, local) = (MemoryBucket::new(), SimulatedGround::new(1));
        let ground = BucketGround::with_kept_bytes(Arc::new(local.clone()), Arc::new(bucket.clone()), kept_bytes);
        Bench { bucket, local, ground }
    }

    fn ground(&self) -> &dyn Ground {
        &self.ground
    }

    fn write(&self, path: &str, content: &[u8]) -> Arc<dyn File> {
        let file = self.ground().create(path).unwrap();
        file.write_at(0, content).unwrap();
        file
    }

    fn read(&self, path: &str) -> Vec<u8> {
        read_file(self.ground(), path, u64::MAX).unwrap()
    }

    fn scratch_files(&self) -> usize {
        let local: &dyn Ground = &self.local;
        if local.exists(SCRATCH).unwrap() { local.list(SCRATCH).unwrap().len() } else { 0 }
    }

    /// Returns what the work requested of the bucket.
    fn requests_of(&self, work: impl FnOnce()) -> Requests {
        let before = self.bucket.requests();
        work();
        let after = self.bucket.requests();
        Requests {
            puts: after.puts - before.puts,
            gets: after.gets - before.gets,
            heads: after.heads - before.heads,
            lists: after.lists - before.lists,
            deletes: after.deletes - before.deletes,
            sent_bytes: after.sent_bytes - before.sent_bytes,
            received_bytes: after.received_bytes - before.received_bytes,
            retries: after.retries - before.retries,
        }
    }
}

fn names(ground: &dyn Ground, directory: &str) -> Vec<String> {
    ground.list(directory).unwrap().into_iter().map(|entry| entry.name).collect()
}

#[test]
fn a_file_is_put_by_its_first_sync_and_then_refuses_changes() {
    let bench = Bench::new();
    let file = bench.write("containers/0000/1", b"hello");
    file.allocate(0, 100).unwrap();
    file.set_len(5).unwrap();
    assert_eq!((bench.bucket.names().len(), bench.scratch_files()), (0, 1));
    let requests = bench.requests_of(|| {
        file.sync().unwrap();
        file.sync().unwrap();
    });
    assert_eq!(requests, Requests { puts: 1, sent_bytes: 5, ..Requests::default() });
    assert_eq!(bench.bucket.content("containers/0000/1").unwrap(), b"hello");
    let refused = [
        file.write_at(0, b"x"),
        file.set_len(0),
        file.allocate(0, 9),
        file.allocate_from_reserve(0, 9),
        file.punch_hole(0, 4096),
        file.pretend_write(0, 1),
    ];
    for error in refused.map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("memory:///containers/0000/1"), "{error}");
    }
    let requests = bench.requests_of(|| assert_eq!(bench.read("containers/0000/1"), b"hello"));
    assert_eq!(requests, Requests::default());
}

#[test]
fn a_failed_put_leaves_the_file_open_and_the_next_sync_puts_it() {
    let bench = Bench::new();
    let file = bench.write("marks/1", b"one");
    bench.bucket.fail_at(0, Failure::Before);
    bench.bucket.fail_at(1, Failure::After);
    assert!(file.sync().is_err());
    file.write_at(3, b"!").unwrap();
    assert!(file.sync().is_err());
    file.sync().unwrap();
    assert_eq!(bench.bucket.content("marks/1").unwrap(), b"one!");
    assert!(file.write_at(0, b"x").is_err());
}

#[test]
fn a_removed_file_is_deleted_if_a_put_may_have_come_through() {
    let bench = Bench::new();
    let file = bench.write("marks/1", b"one");
    bench.bucket.fail_at(0, Failure::After);
    assert!(file.sync().is_err());
    bench.ground().remove("marks/1").unwrap();
    assert!(bench.bucket.names().is_empty() && !bench.ground().exists("marks/1").unwrap());
    // It has no name any more.
    file.sync().unwrap();
    assert!(bench.bucket.names().is_empty());
    let never_put = bench.write("marks/2", b"two");
    let requests = bench.requests_of(|| bench.ground().remove("marks/2").unwrap());
    assert_eq!(requests, Requests::default());
    // Nameless files are read and written as before.
    never_put.write_at(0, b"T").unwrap();
    let mut buffer = [0; 3];
    never_put.read_at(0, &mut buffer).unwrap();
    assert_eq!((&buffer, bench.scratch_files()), (b"Two", 2));
    drop((file, never_put));
    assert_eq!(bench.scratch_files(), 0);
}

#[test]
fn a_foreign_object_is_an_error_and_stays() {
    let bench = Bench::new();
    let file = bench.write("containers/1", b"mine");
    bench.bucket.insert("containers/1", b"theirs");
    let error = file.sync().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(error.to_string().contains("another owner"), "{error}");
    // From now on the path leads to it, and the file to nothing.
    assert_eq!(bench.read("containers/1"), b"theirs");
    assert_eq!(file.sync().unwrap_err().kind(), ErrorKind::AlreadyExists);
    // Of the same content, nobody can tell who put it.
    bench.bucket.insert("containers/2", b"same");
    bench.write("containers/2", b"same").sync().unwrap();
}

#[test]
fn a_temporary_file_is_put_by_its_rename() {
    let bench = Bench::new();
    bench.bucket.insert("containers/1.forward", b"old");
    for (temporary, name, content) in [("1.forward.new", "1.forward", b"new"), ("2.repair", "2", b"two")] {
        let (temporary, name) = (format!("containers/{temporary}"), format!("containers/{name}"));
        let file = bench.write(&temporary, content);
        file.sync().unwrap();
        file.write_at(0, content).unwrap();
        assert!(bench.bucket.content(&temporary).is_none());
        bench.ground().rename(&temporary, &name).unwrap();
        assert_eq!(bench.bucket.content(&name).unwrap(), content);
        assert!(!bench.ground().exists(&temporary).unwrap() && file.write_at(0, b"x").is_err());
        assert!(bench.ground().open(&temporary, Access::Read).unwrap_err().is_not_found());
        let requests = bench.requests_of(|| assert_eq!(bench.read(&name), content));
        assert_eq!(requests, Requests::default());
    }
    assert_eq!(bench.bucket.names(), ["containers/1.forward", "containers/2"]);
}

#[test]
fn a_rename_whose_put_fails_changes_nothing() {
    for (failing, failure) in [(0, Failure::Before), (1, Failure::Before), (2, Failure::Before)] {
        let bench = Bench::new();
        bench.write("marks/a", b"old").sync().unwrap();
        bench.write("marks/a.new", b"new");
        let first = bench.bucket.steps();
        bench.bucket.fail_at(first + failing, failure);
        assert!(bench.ground().rename("marks/a.new", "marks/a").is_err());
        assert_eq!((bench.read("marks/a"), bench.read("marks/a.new")), (b"old".to_vec(), b"new".to_vec()));
        bench.ground().rename("marks/a.new", "marks/a").unwrap();
        assert_eq!((bench.read("marks/a"), names(bench.ground(), "marks")), (b"new".to_vec(), vec!["a".to_owned()]));
    }
}

#[test]
fn files_are_renamed_from_the_bucket_to_the_directory_and_back() {
    let bench = Bench::new();
    bench.ground().create_directory("aside").unwrap();
    bench.bucket.insert("containers/1", b"remote");
    bench.write("containers/2", b"scratch");
    for name in ["1", "2"] {
        bench.ground().rename(&format!("containers/{name}"), &format!("aside/{name}")).unwrap();
    }
    assert!(bench.bucket.names().is_empty() && names(bench.ground(), "containers").is_empty());
    assert_eq!((bench.read("aside/1"), bench.read("aside/2")), (b"remote".to_vec(), b"scratch".to_vec()));
    bench.ground().rename("aside/1", "marks/1").unwrap();
    assert_eq!((bench.read("marks/1"), names(bench.ground(), "aside")), (b"remote".to_vec(), vec!["2".to_owned()]));
    bench.ground().rename("marks/1", "marks/3").unwrap();
    assert_eq!(bench.bucket.names(), ["marks/3"]);
    assert!(bench.ground().rename("marks/1", "marks/4").unwrap_err().is_not_found());
}

#[test]
fn opening_a_remote_file_takes_one_request_and_brings_its_end() {
    let bench = Bench::new();
    let content: Vec<u8> = (0..600_000_u32).map(|at| at as u8 ^ (at >> 8) as u8).collect();
    bench.bucket.insert("containers/1", &content);
    let file = bench.ground().open("containers/1", Access::ReadWrite).unwrap();
    assert_eq!((file.len().unwrap(), file.allocated_bytes().unwrap()), (600_000, 600_000));
    let tail = 600_000 - objects::TAIL_BYTES as u64;
    let mut buffer = vec![0; objects::TAIL_BYTES];
    assert!(file.try_read_at(tail, &mut buffer).unwrap());
    file.read_at(tail, &mut buffer).unwrap();
    assert_eq!(buffer, content[tail as usize..]);
    assert_eq!(bench.bucket.requests().gets, 1);
    assert!(!file.try_read_at(tail - 1, &mut buffer).unwrap());
    for (offset, length) in [(tail - 10, 20), (0, 600_000), (0, 5), (7, 0), (u64::MAX, 0), (599_999, 1)] {
        let mut buffer = vec![0; length];
        file.read_at(offset, &mut buffer).unwrap();
        assert!(length == 0 || buffer == content[offset as usize..][..length]);
    }
    // The last bytes are not fetched again.
    assert_eq!(bench.bucket.requests().received_bytes, 600_000 + 10);
    for (offset, length) in [(599_999, 2), (600_000, 1), (u64::MAX, 1)] {
        assert_eq!(file.read_at(offset, &mut vec![0; length]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(file.try_read_at(offset, &mut vec![0; length]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
    let refused = [file.write_at(0, b"x"), file.set_len(0), file.allocate(0, 1), file.punch_hole(0, 4096), file.pretend_write(0, 1)];
    assert!(refused.into_iter().all(|result| result.unwrap_err().kind() == ErrorKind::PermissionDenied));
    file.sync().unwrap();
    assert!(bench.ground().open("containers/2", Access::Read).unwrap_err().is_not_found());
}

#[test]
fn a_scrub_reads_what_the_bucket_has() {
    let bench = Bench::new();
    let file = bench.write("containers/1", b"good");
    let read = |file: Arc<dyn File>| {
        let mut buffer = [0; 4];
        file.read_at(0, &mut buffer).map(|()| buffer)
    };
    assert_eq!(&read(bench.ground().open_past_cache("containers/1").unwrap()).unwrap(), b"good");
    file.sync().unwrap();
    assert!(bench.bucket.corrupt("containers/1", |content| content[0] = b'f'));
    assert_eq!(&read(bench.ground().open_past_cache("containers/1").unwrap()).unwrap(), b"food");
    assert_eq!(bench.read("containers/1"), b"good");
}

#[test]
fn the_cache_drops_its_oldest_files_and_open_ones_stay_readable() {
    let bench = Bench::keeping(10);
    let oldest = bench.write("marks/1", b"1111");
    oldest.sync().unwrap();
    for name in ["marks/2", "marks/3"] {
        bench.write(name, b"4444").sync().unwrap();
    }
    assert_eq!(bench.scratch_files(), 3);
    let mut buffer = [0; 4];
    assert!(oldest.try_read_at(0, &mut buffer).unwrap());
    drop(oldest);
    assert_eq!(bench.scratch_files(), 2);
    let requests = bench.requests_of(|| ["marks/1", "marks/2", "marks/3"].iter().for_each(|name| drop(bench.read(name))));
    assert_eq!(requests.gets, 1);
    bench.write("marks/large", &[0; 11]).sync().unwrap();
    assert_eq!(bench.scratch_files(), 0);
    // A removed file makes room.
    for name in ["marks/4", "marks/5"] {
        bench.write(name, b"44444").sync().unwrap();
    }
    bench.ground().remove("marks/4").unwrap();
    bench.write("marks/6", b"55555").sync().unwrap();
    assert_eq!(bench.scratch_files(), 2);
}

#[test]
fn the_cache_has_few_files_however_small() {
    let bench = Bench::new();
    for number in 0..KEPT_FILES + 5 {
        bench.write(&format!("marks/{number}"), b"").sync().unwrap();
    }
    assert_eq!(bench.scratch_files(), KEPT_FILES);
}

#[test]
fn lists_have_files_and_directories_with_few_requests() {
    let bench = Bench::new();
    bench.bucket.set_page(3);
    for folder in ["0", "0.x", "00", "1"] {
        for number in 0..20 {
            bench.bucket.insert(&format!("containers/0000/{folder}/{number}"), b"");
        }
    }
    bench.bucket.insert("containers/0000/owner", b"");
    bench.bucket.insert("containers/00001", b"");
    bench.write("containers/0000/2/x.new", b"");
    bench.write("containers/0000/a", b"");
    let requests = bench.requests_of(|| {
        let entries = bench.ground().list("containers/0000").unwrap();
        let expected = [("0", true), ("0.x", true), ("00", true), ("1", true), ("2", true), ("a", false), ("owner", false)];
        assert_eq!(entries, expected.map(|(name, is_directory)| DirectoryEntry { name: name.to_owned(), is_directory }));
    });
    assert!(requests.lists <= 5, "{requests:?}");
    assert_eq!(names(bench.ground(), "containers"), ["0000", "00001"]);
    assert_eq!(names(bench.ground(), "containers/0000/1").len(), 20);
    assert!(names(bench.ground(), "containers/none").is_empty());
    // A name at the very end of a directory is not skipped over for ever.
    bench.bucket.insert(&format!("marks/a/{}{}", char::MAX, char::MAX), b"");
    bench.bucket.insert("marks/a/1", b"");
    bench.bucket.insert("marks/b", b"");
    bench.bucket.set_page(1);
    assert_eq!(names(bench.ground(), "marks"), ["a", "b"]);
}

#[test]
fn a_directory_exists_if_something_is_in_it() {
    let bench = Bench::new();
    bench.ground().create_directory("containers/0000/parity").unwrap();
    bench.ground().sync_directory("containers/0000").unwrap();
    for absent in ["containers", "containers/0000", "containers/0000/1"] {
        assert!(!bench.ground().exists(absent).unwrap());
    }
    bench.bucket.insert("containers/0000/10", b"");
    bench.write("marks/x/y.new", b"");
    for there in ["containers", "containers/0000", "containers/0000/10", "marks", "marks/x", "marks/x/y.new"] {
        assert!(bench.ground().exists(there).unwrap(), "{there}");
    }
    assert!(!bench.ground().exists("containers/0000/1").unwrap() && !bench.ground().exists("marks/x/y").unwrap());
}

#[test]
fn other_files_are_local_and_scratch_files_are_not_seen() {
    let bench = Bench::new();
    let ground = bench.ground();
    assert!(names(ground, "").is_empty());
    ground.create_directory("log").unwrap();
    bench.write("log/1", b"x").sync().unwrap();
    let scratch = bench.write("containers/1", b"x");
    assert_eq!(names(ground, ""), ["log"]);
    assert_eq!((ground.describe("log/1"), ground.describe("marks/1")), ("log/1".to_owned(), "memory:///marks/1".to_owned()));
    assert_eq!(ground.space_in("containers").unwrap().free_bytes, SPACE_BYTES);
    assert_eq!(ground.space_in("log").unwrap(), ground.space().unwrap());
    assert!(!ground.device_holds("containers/1", 0, b"x").unwrap());
    assert!(ground.link_directory("containers/0000", Path::new("/elsewhere")).is_err());
    assert_eq!(ground.linked_directory("containers/0000").unwrap(), None);
    assert_eq!(ground.bucket().unwrap().describe("a"), "memory:///a");
    assert_eq!(bench.bucket.steps(), 0);
    drop(scratch);
}

#[test]
fn leftover_scratch_files_are_wiped_and_their_names_skipped() {
    let bench = Bench::new();
    bench.ground.wipe_scratch().unwrap();
    let local: &dyn Ground = &bench.local;
    local.create_directory(SCRATCH).unwrap();
    for number in [1, 2, 7] {
        local.create(&format!("{SCRATCH}/{number}")).unwrap();
    }
    let file = bench.write("marks/1", b"x");
    assert_eq!(bench.scratch_files(), 4);
    drop(file);
    bench.ground().remove("marks/1").unwrap();
    bench.ground.wipe_scratch().unwrap();
    assert_eq!(bench.scratch_files(), 0);
}

#[test]
fn two_syncs_at_once_put_once() {
    let bench = Bench::new();
    let file = bench.write("containers/1", &[7; 100_000]);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| file.sync().unwrap());
        }
    });
    assert_eq!(bench.bucket.requests().puts, 1);
}

#[test]
fn what_is_put_is_what_was_written_before_the_seal() {
    let bench = Bench::new();
    let file = bench.write("containers/1", &[0; 4096]);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..4096).take_while(|at| file.write_at(*at, b"x").is_ok()).count());
        scope.spawn(|| file.sync().unwrap());
    });
    assert_eq!(bench.read("containers/1"), bench.bucket.content("containers/1").unwrap());
}

#[test]
fn lost_answers_do_not_look_like_other_owners() {
    let faulty = FaultyBucket::new();
    let patience = Patience { first_pause: Duration::from_micros(50), ..Patience::default() };
    let local = Arc::new(SimulatedGround::new(1));
    let ground = BucketGround::with_kept_bytes(local, Arc::new(faulty.bucket(patience).unwrap()), 0);
    let ground: &dyn Ground = &ground;
    faulty.randomize(11, 30);
    faulty.set_late_after(Some(2));
    for number in 0..50_u8 {
        let path = format!("containers/{number}");
        let file = ground.create(&path).unwrap();
        file.write_at(0, &[number; 100]).unwrap();
        file.sync().unwrap();
        replace_file(ground, "containers/owner", &[number]).unwrap();
        assert_eq!(read_file(ground, &path, 100).unwrap(), [number; 100]);
        assert_eq!(read_file(ground, "containers/owner", 1).unwrap(), [number]);
    }
    assert_eq!(ground.list("containers").unwrap().len(), 51);
}

#[test]
fn a_local_directory_works_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let local: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).unwrap());
    let bucket = MemoryBucket::new();
    let ground = BucketGround::new(local, Arc::new(bucket.clone()));
    let ground: &dyn Ground = &ground;
    replace_file(ground, "marks/a", b"one").unwrap();
    replace_file(ground, "marks/a", b"two").unwrap();
    assert_eq!(bucket.content("marks/a").unwrap(), b"two");
    assert_eq!(ground.create("marks/a").unwrap_err().kind(), ErrorKind::AlreadyExists);
    let file = ground.open("marks/a", Access::ReadWrite).unwrap();
    assert_eq!(file.allocated_bytes().unwrap(), 3);
    file.read_ahead(0, 3);
    file.drop_cached(0, 3);
}

#[derive(Clone, Debug)]
enum Step {
    Create(usize),
    Write(usize, u16, Vec<u8>),
    SetLen(usize, u16),
    Sync(usize),
    Read(usize, u16, u16),
    Rename(usize, usize),
    Remove(usize),
    List(usize),
    Exists(usize),
    Restart,
}

const PATHS: [&str; 9] = [
    "containers/a/1",
    "containers/a/2",
    "containers/a0",
    "containers/b/c/1",
    "containers/a/1.new",
    "marks/x",
    "marks/x.repair",
    "log/y",
    "log/z",
];
const DIRECTORIES: [&str; 6] = ["containers", "containers/a", "containers/b", "containers/b/c", "marks", "log"];

fn step() -> impl Strategy<Value = Step> {
    let path = 0..PATHS.len();
    let bytes = proptest::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        4 => path.clone().prop_map(Step::Create),
        4 => (path.clone(), 0..300_u16, bytes).prop_map(|(path, offset, bytes)| Step::Write(path, offset, bytes)),
        1 => (path.clone(), 0..300_u16).prop_map(|(path, length)| Step::SetLen(path, length)),
        3 => path.clone().prop_map(Step::Sync),
        4 => (path.clone(), 0..300_u16, 1..100_u16).prop_map(|(path, offset, length)| Step::Read(path, offset, length)),
        3 => (path.clone(), path.clone()).prop_map(|(from, to)| Step::Rename(from, to)),
        2 => path.clone().prop_map(Step::Remove),
        2 => (0..DIRECTORIES.len()).prop_map(Step::List),
        2 => path.prop_map(Step::Exists),
        1 => Just(Step::Restart),
    ]
}

/// Compares results by value, or by kind of error.
fn same<T: PartialEq + std::fmt::Debug>(left: Result<T>, right: Result<T>) {
    assert_eq!(left.map_err(|error| error.kind()), right.map_err(|error| error.kind()));
}

fn on<T>(ground: &dyn Ground, path: &str, work: impl FnOnce(&dyn File) -> Result<T>) -> Result<T> {
    work(&*ground.open(path, Access::ReadWrite)?)
}

/// Does the same with a bucket ground and a plain one. What the plain one must do besides is what the head of the
/// module says.
fn compare(steps: Vec<Step>, kept_bytes: u64, page: usize) {
    let (bucket, local, plain) = (MemoryBucket::new(), SimulatedGround::new(1), SimulatedGround::new(2));
    bucket.set_page(page);
    let plain: &dyn Ground = &plain;
    let open = || BucketGround::with_kept_bytes(Arc::new(local.clone()), Arc::new(bucket.clone()), kept_bytes);
    let mut ground = open();
    for directory in DIRECTORIES {
        plain.create_directory(directory).unwrap();
        Ground::create_directory(&ground, directory).unwrap();
    }
    let mut sealed: BTreeSet<&str> = BTreeSet::new();
    for step in steps {
        let tested: &dyn Ground = &ground;
        match step {
            // The ground does not ask the bucket whether an object is there.
            Step::Create(path) if !plain.exists(PATHS[path]).unwrap() => {
                same(tested.create(PATHS[path]).map(drop), plain.create(PATHS[path]).map(drop));
            }
            Step::Create(_) => {}
            Step::Write(path, ..) | Step::SetLen(path, _) if sealed.contains(PATHS[path]) => {
                let error = on(tested, PATHS[path], |file| file.write_at(0, b"x")).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            }
            Step::Write(path, offset, bytes) => {
                let write = |file: &dyn File| file.write_at(offset.into(), &bytes);
                same(on(tested, PATHS[path], write), on(plain, PATHS[path], write));
            }
            Step::SetLen(path, length) => {
                let cut = |file: &dyn File| file.set_len(length.into());
                same(on(tested, PATHS[path], cut), on(plain, PATHS[path], cut));
            }
            Step::Sync(path) => {
                let path = PATHS[path];
                same(on(tested, path, |file| file.sync()), on(plain, path, |file| file.sync()));
                if is_in_bucket(path) && !is_temporary(path) && plain.exists(path).unwrap() {
                    sealed.insert(path);
                }
            }
            Step::Read(path, offset, length) => {
                let read = |file: &dyn File| {
                    let mut buffer = vec![0; length.into()];
                    file.read_at(offset.into(), &mut buffer)?;
                    Ok((buffer, file.len()?))
                };
                same(on(tested, PATHS[path], read), on(plain, PATHS[path], read));
            }
            Step::Rename(from, to) => {
                let (from, to) = (PATHS[from], PATHS[to]);
                if from == to {
                    continue;
                }
                let is_there = plain.exists(from).unwrap();
                same(tested.rename(from, to), plain.rename(from, to));
                if is_there {
                    sealed.remove(from);
                    sealed.remove(to);
                    if is_in_bucket(to) {
                        sealed.insert(to);
                    }
                }
            }
            Step::Remove(path) => {
                same(tested.remove(PATHS[path]), plain.remove(PATHS[path]));
                sealed.remove(PATHS[path]);
            }
            Step::List(directory) => {
                let directory = DIRECTORIES[directory];
                let mut expected = plain.list(directory).unwrap();
                // Directories without anything are not there.
                expected.retain(|entry| {
                    let path = format!("{directory}/{}/", entry.name);
                    !entry.is_directory || PATHS.iter().any(|there| there.starts_with(&path) && plain.exists(there).unwrap())
                });
                assert_eq!(tested.list(directory).unwrap(), expected);
                assert!(expected.is_empty() || tested.exists(directory).unwrap());
            }
            Step::Exists(path) => same(tested.exists(PATHS[path]), plain.exists(PATHS[path])),
            Step::Restart => {
                for path in PATHS {
                    if is_in_bucket(path) && !sealed.contains(path) && plain.exists(path).unwrap() {
                        plain.remove(path).unwrap();
                    }
                }
                ground = open();
                ground.wipe_scratch().unwrap();
            }
        }
    }
    let there: Vec<&str> = sealed.into_iter().collect();
    assert_eq!(bucket.names(), there);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_bucket_ground_is_like_a_plain_one(
        steps in proptest::collection::vec(step(), 1..60),
        kept_bytes in prop_oneof![Just(0), 0..500_u64, Just(KEPT_BYTES)],
        page in 1..5_usize,
    ) {
        compare(steps, kept_bytes, page);
    }
}
