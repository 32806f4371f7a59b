mod random;

use super::*;
use crate::ground::BucketGround;
use crate::ground::cache::CacheOptions;
use crate::ground::object::{HEAD_BYTES, RANGE_BYTES};
use crate::{Failure, MemoryBucket};
use onefold_ground::{Access, File, Ground, Listing, LocalGround, Put, Requests, read_file, replace_file};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;
use tempfile::TempDir;

/// A bucket whose reads take a while.
#[derive(Debug)]
struct SlowBucket {
    bucket: MemoryBucket,
    delay: Duration,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
    /// Answers wait while it is closed.
    is_closed: AtomicBool,
}

impl SlowBucket {
    fn new(bucket: &MemoryBucket, delay_ms: u64) -> Arc<SlowBucket> {
        let [in_flight, most_in_flight] = [const { AtomicUsize::new(0) }; 2];
        let (bucket, delay) = (bucket.clone(), Duration::from_millis(delay_ms));
        Arc::new(SlowBucket { bucket, delay, in_flight, most_in_flight, is_closed: AtomicBool::new(false) })
    }

    fn slowly<T>(&self, work: impl FnOnce() -> T) -> T {
        let now = self.in_flight.fetch_add(1, Relaxed) + 1;
        self.most_in_flight.fetch_max(now, Relaxed);
        std::thread::sleep(self.delay);
        let result = work();
        while self.is_closed.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.in_flight.fetch_sub(1, Relaxed);
        result
    }
}

impl Bucket for SlowBucket {
    fn put_new(&self, name: &str, content: &[u8]) -> Result<Put> {
        self.bucket.put_new(name, content)
    }
    fn put_over(&self, name: &str, content: &[u8]) -> Result<()> {
        self.bucket.put_over(name, content)
    }
    fn replace(&self, name: &str, old: &[u8], new: &[u8]) -> Result<Put> {
        self.bucket.replace(name, old, new)
    }
    fn get(&self, name: &str, limit_bytes: u64) -> Result<Vec<u8>> {
        // Reads of files ask for ranges. A rename looks at what is there.
        self.bucket.get(name, limit_bytes)
    }
    fn get_as_it_comes(&self, name: &str, take: &mut dyn FnMut(u64, &[u8]) -> bool) -> Result<()> {
        self.slowly(|| self.bucket.get_as_it_comes(name, take))
    }
    fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>> {
        self.slowly(|| self.bucket.get_range(name, offset, length))
    }
    fn get_end(&self, name: &str, length: usize) -> Result<(Vec<u8>, u64)> {
        self.slowly(|| self.bucket.get_end(name, length))
    }
    fn length(&self, name: &str) -> Result<Option<u64>> {
        self.bucket.length(name)
    }
    fn list(&self, prefix: &str, after: &str) -> Result<Listing> {
        self.bucket.list(prefix, after)
    }
    fn delete(&self, names: &[String]) -> Result<()> {
        self.bucket.delete(names)
    }
    fn describe(&self, name: &str) -> String {
        self.bucket.describe(name)
    }
    fn requests(&self) -> Requests {
        self.bucket.requests()
    }
}

struct Bench {
    bucket: MemoryBucket,
    place: TempDir,
}

const MIB: usize = 1 << 20;

fn content(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| ((at + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
}

fn name(number: usize) -> String {
    format!("containers/0000/00000/{number:08x}")
}

impl Bench {
    /// A bucket with containers of these lengths.
    fn new(lengths: &[usize]) -> Bench {
        let bench = Bench { bucket: MemoryBucket::new(), place: tempfile::tempdir().unwrap() };
        replace_file(&bench.state(), "stamp", b"").unwrap();
        for (number, length) in lengths.iter().enumerate() {
            bench.bucket.insert(&name(number), &content(number as u64, *length));
        }
        bench
    }

    fn state(&self) -> LocalGround {
        LocalGround::open(self.place.path()).unwrap()
    }

    fn directory(&self) -> PathBuf {
        self.place.path().join("cache")
    }

    /// A ground of another process.
    fn ground(&self, cache_bytes: u64, held_bytes: usize) -> BucketGround {
        self.ground_on(Arc::new(self.bucket.clone()), cache_bytes, held_bytes)
    }

    fn ground_on(&self, bucket: Arc<dyn Bucket>, cache_bytes: u64, held_bytes: usize) -> BucketGround {
        let state = Arc::new(self.state());
        let options = CacheOptions { directory: self.directory(), bytes: cache_bytes, stamp: "stamp".to_owned() };
        let cache = (cache_bytes > 0).then(|| Cache::new(options, state.clone()));
        BucketGround::make(state, bucket, 0, cache, held_bytes)
    }

    fn cached_files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> = std::fs::read_dir(self.directory()).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    /// Returns the reading requests of some work, and their bytes.
    fn gets_of(&self, work: impl FnOnce()) -> (u64, usize) {
        let before = self.bucket.requests();
        work();
        let after = self.bucket.requests();
        assert_eq!(after.heads, before.heads);
        (after.gets - before.gets, (after.received_bytes - before.received_bytes) as usize)
    }
}

fn open(ground: &BucketGround, path: &str) -> Arc<dyn File> {
    Ground::open(ground, path, Access::Read).unwrap()
}

fn read(file: &dyn File, offset: usize, length: usize) -> Result<Vec<u8>> {
    let mut buffer = vec![0xee; length];
    file.read_at(offset as u64, &mut buffer).map(|()| buffer)
}

fn check(file: &dyn File, expected: &[u8], offset: usize, length: usize) {
    assert!(read(file, offset, length).unwrap() == expected[offset..offset + length], "{offset} {length}");
}

const ON_DISK: u64 = 1 << 30;

#[test]
fn a_container_is_read_from_its_start_to_its_end_in_three_requests() {
    for cache_bytes in [0, ON_DISK] {
        let length = 4 * MIB + 777;
        let bench = Bench::new(&[length]);
        let (ground, expected) = (bench.ground(cache_bytes, HELD_BYTES), content(0, length));
        let requests = bench.gets_of(|| {
            let file = open(&ground, &name(0));
            for start in (0..length).step_by(length / 20) {
                check(&*file, &expected, start, (length / 20).min(length - start));
            }
            assert!(file.try_read_at(length as u64 / 2, &mut [0; 1000]).unwrap());
        });
        // No byte comes twice.
        assert_eq!(requests, (3, length));
        // It is still here when it is opened again.
        assert_eq!(bench.gets_of(|| check(&*open(&ground, &name(0)), &expected, 0, length)), (0, 0));
    }
}

#[test]
fn a_header_does_not_count_and_leads_to_what_follows() {
    let bench = Bench::new(&[4 * MIB, 4 * MIB]);
    let ground = bench.ground(0, HELD_BYTES);
    let random = bench.gets_of(|| {
        let file = open(&ground, &name(0));
        check(&*file, &content(0, 4 * MIB), 0, 64);
        check(&*file, &content(0, 4 * MIB), 2 * MIB, 4096);
    });
    assert_eq!(random, (3, TAIL_BYTES + (HEAD_BYTES + RANGE_BYTES) as usize));
    let from_start = bench.gets_of(|| {
        let file = open(&ground, &name(1));
        check(&*file, &content(1, 4 * MIB), 0, 64);
        for start in (64..4 * MIB - 50_000).step_by(50_000) {
            check(&*file, &content(1, 4 * MIB), start, 50_000);
        }
    });
    assert_eq!(from_start, (3, 4 * MIB));
}

#[test]
fn a_random_read_fetches_little() {
    let bench = Bench::new(&[4 * MIB; 12]);
    let ground = bench.ground(ON_DISK, HELD_BYTES);
    for number in 0..12 {
        let requests = bench.gets_of(|| check(&*open(&ground, &name(number)), &content(number as u64, 4 * MIB), 999_999, 4096));
        assert_eq!(requests, (2, TAIL_BYTES + RANGE_BYTES as usize));
    }
    // Near the end, what is here is not fetched again.
    let requests = bench.gets_of(|| {
        let last = Bench::new(&[MIB]);
        let ground = last.ground(0, HELD_BYTES);
        let file = open(&ground, &name(0));
        check(&*file, &content(0, MIB), MIB - TAIL_BYTES - 10, 20);
        assert_eq!(last.bucket.requests().received_bytes, TAIL_BYTES as u64 + 10);
    });
    assert_eq!(requests, (0, 0));
}

#[test]
fn threads_that_read_one_container_share_its_requests() {
    let length = 4 * MIB;
    let bench = Bench::new(&[length]);
    for cache_bytes in [0, ON_DISK] {
        let ground = bench.ground_on(SlowBucket::new(&bench.bucket, 20), cache_bytes, HELD_BYTES);
        let (barrier, expected) = (Barrier::new(8), content(0, length));
        let requests = bench.gets_of(|| {
            std::thread::scope(|scope| {
                for thread in 0..8 {
                    let (ground, barrier, expected) = (&ground, &barrier, &expected);
                    scope.spawn(move || {
                        barrier.wait();
                        let file = open(ground, &name(0));
                        for at in 0..20 {
                            check(&*file, expected, (thread * 7 + at * 3) % 20 * 200_000, 190_000);
                        }
                    });
                }
            });
        });
        assert!(requests.0 <= 3 && requests.1 <= length + 300_000, "{requests:?}");
    }
}

#[test]
fn after_some_containers_that_were_read_whole_each_takes_one_request() {
    let bench = Bench::new(&[2 * MIB; 24]);
    let ground = bench.ground(0, HELD_BYTES);
    let whole = |number: usize| {
        let file = open(&ground, &name(number));
        check(&*file, &content(number as u64, 2 * MIB), 0, 64);
        for start in (64..2 * MIB - 200_000).step_by(200_000) {
            check(&*file, &content(number as u64, 2 * MIB), start, 200_000);
        }
    };
    assert_eq!((0..8).map(|number| bench.gets_of(|| whole(number)).0).collect::<Vec<_>>(), [3, 3, 3, 1, 1, 1, 1, 1]);
    // Random reads end that.
    let random = |number: usize| bench.gets_of(|| check(&*open(&ground, &name(number)), &content(number as u64, 2 * MIB), MIB, 10)).0;
    assert_eq!((8..20).map(random).collect::<Vec<_>>(), [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
    // One that is too long for this is opened as usual.
    ground.shared.objects.score.store(MOST_SCORE, Relaxed);
    bench.bucket.insert(&name(99), &content(99, 13 * MIB));
    check(&*open(&ground, &name(99)), &content(99, 13 * MIB), 12 * MIB, MIB);
}

#[test]
fn a_container_that_will_be_read_takes_one_request_and_is_kept_in_pieces() {
    let length = 21 * MIB + 5;
    let bench = Bench::new(&[length, length, 0, MOST_EXPECTED_BYTES as usize + 1, length, MIB]);
    let expected = content(0, length);
    let ground = bench.ground(ON_DISK, HELD_BYTES);
    let requests = bench.gets_of(|| {
        assert!(!ground.is_coming(&name(0)));
        (0..3).for_each(|_| ground.will_read(&name(0)));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (ground, expected) = (&ground, &expected);
                scope.spawn(move || check(&*open(ground, &name(0)), expected, thread * 5 * MIB, 5 * MIB + 5));
            }
        });
        ground.will_read(&name(0));
        assert!(!ground.is_coming(&name(0)));
    });
    assert_eq!((requests, bench.cached_files().len()), ((1, length), 3));
    assert_eq!(ground.shared.objects.held_bytes(), 0);
    // An empty object has nothing to fetch.
    ground.will_read(&name(2));
    assert_eq!(open(&ground, &name(2)).len().unwrap(), 0);
    // Without a cache the hint is worth nothing: what was fetched might be dropped before it is read.
    let without = bench.ground(0, HELD_BYTES);
    let requests = bench.gets_of(|| {
        without.will_read(&name(1));
        open(&without, &name(1));
    });
    assert_eq!(requests, (1, TAIL_BYTES));
    // One that is too long is opened by its end, and so are those behind it.
    let requests = bench.gets_of(|| {
        for number in [3, 4, 5] {
            ground.will_read(&name(number));
            open(&ground, &name(number));
        }
    });
    assert_eq!(requests.0, 4);
}

#[test]
fn what_was_said_to_be_read_is_coming_until_it_is_here() {
    let bench = Bench::new(&[MIB, MIB]);
    let slow = SlowBucket::new(&bench.bucket, 0);
    let ground = bench.ground_on(slow.clone(), ON_DISK, HELD_BYTES);
    slow.is_closed.store(true, Relaxed);
    ground.will_read(&name(0));
    assert!(ground.is_coming(&name(0)) && !ground.is_coming(&name(1)));
    slow.is_closed.store(false, Relaxed);
    open(&ground, &name(0));
    assert!(!ground.is_coming(&name(0)));
    // A container that is not there ends it, too, and takes no other one along.
    let hinted = [name(2), name(3), name(4), name(1)];
    slow.is_closed.store(true, Relaxed);
    hinted.iter().for_each(|name| ground.will_read(name));
    assert!(hinted.iter().all(|name| ground.is_coming(name)));
    slow.is_closed.store(false, Relaxed);
    while hinted.iter().any(|name| ground.is_coming(name)) {}
    assert_eq!(bench.gets_of(|| drop(open(&ground, &name(1)))), (0, 0));
    // What somebody opens is on its way for all others.
    let next = bench.ground_on(slow.clone(), ON_DISK, HELD_BYTES);
    bench.bucket.insert(&name(5), &content(5, MIB));
    slow.is_closed.store(true, Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| drop(open(&next, &name(5))));
        while slow.in_flight.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        next.will_read(&name(5));
        let is_coming = next.is_coming(&name(5));
        slow.is_closed.store(false, Relaxed);
        assert!(is_coming);
    });
    // Without a cache nothing comes.
    let without = bench.ground(0, HELD_BYTES);
    without.will_read(&name(1));
    assert!(!without.is_coming(&name(1)));
}

#[test]
fn large_objects_are_fetched_in_pieces() {
    let length = 21 * MIB + 5;
    let bench = Bench::new(&[length]);
    let expected = content(0, length);
    let ground = bench.ground(ON_DISK, HELD_BYTES);
    let requests = bench.gets_of(|| {
        let file = open(&ground, &name(0));
        for start in (0..length).step_by(100_000) {
            check(&*file, &expected, start, 100_000.min(length - start));
        }
        check(&*file, &expected, 0, length);
    });
    assert_eq!(requests, (5, length));
    assert_eq!(bench.cached_files().len(), 3);
    let later = bench.ground(ON_DISK, HELD_BYTES);
    assert_eq!(bench.gets_of(|| check(&*open(&later, &name(0)), &expected, 0, length)), (0, 0));
    assert_eq!([0, 12 * MIB as u64, 12 * MIB as u64 + 1, 16 * MIB as u64].map(pieces), [1, 1, 2, 2]);
    assert_eq!((piece(12 * MIB as u64 + 1, 1), piece(0, 0)), (PIECE_BYTES..12 * MIB as u64 + 1, 0..0));
}

#[test]
fn a_hint_fetches_beside_its_caller_and_readers_wait_for_it() {
    let bench = Bench::new(&[4 * MIB; 20]);
    let slow = SlowBucket::new(&bench.bucket, 30);
    let ground = bench.ground_on(slow.clone(), ON_DISK, HELD_BYTES);
    let files: Vec<_> = (0..20).map(|number| open(&ground, &name(number))).collect();
    let requests = bench.gets_of(|| {
        for file in &files {
            file.read_ahead(0, 64);
            file.read_ahead(64, 4 * MIB as u64);
            file.read_ahead(100_000, u64::MAX);
        }
        for (number, file) in files.iter().enumerate() {
            check(&**file, &content(number as u64, 4 * MIB), MIB, 2 * MIB);
        }
    });
    assert_eq!(requests, (20, 20 * (4 * MIB - TAIL_BYTES)));
    let most = slow.most_in_flight.load(Relaxed);
    assert!((3..=4).contains(&most), "{most}");
}

#[test]
fn another_process_reads_what_one_has_fetched_or_put_without_a_request() {
    let bench = Bench::new(&[4 * MIB, 10_000]);
    let first = bench.ground(ON_DISK, HELD_BYTES);
    check(&*open(&first, &name(0)), &content(0, 4 * MIB), 0, 4 * MIB);
    check(&*open(&first, &name(1)), &content(1, 10_000), 0, 10_000);
    let put = Ground::create(&first, &name(2)).unwrap();
    put.write_at(0, &content(2, 300_000)).unwrap();
    put.sync().unwrap();
    drop(put);
    let second = bench.ground(ON_DISK, HELD_BYTES);
    let requests = bench.gets_of(|| {
        for (number, length) in [(0, 4 * MIB), (1, 10_000), (2, 300_000)] {
            let file = open(&second, &name(number));
            assert_eq!(file.len().unwrap(), length as u64);
            check(&*file, &content(number as u64, length), length / 3, length / 2);
        }
    });
    assert_eq!(requests, (0, 0));
    // What is on disk is not in memory too.
    assert_eq!((first.shared.objects.held_bytes(), second.shared.objects.held_bytes()), (0, 0));
}

#[test]
fn a_removed_or_replaced_object_is_forgotten_everywhere_here() {
    for cache_bytes in [0, ON_DISK] {
        let bench = Bench::new(&[MIB, MIB]);
        let ground = bench.ground(cache_bytes, HELD_BYTES);
        let tested: &dyn Ground = &ground;
        let early = open(&ground, &name(0));
        check(&*early, &content(0, MIB), 0, MIB);
        check(&*open(&ground, &name(1)), &content(1, MIB), 0, MIB);
        replace_file(tested, &name(0), &content(7, 2 * MIB)).unwrap();
        assert!(read_file(tested, &name(0), u64::MAX).unwrap() == content(7, 2 * MIB));
        tested.remove(&name(1)).unwrap();
        assert!(tested.open(&name(1), Access::Read).unwrap_err().is_not_found());
        // A file that was open reads the bucket, as far as that still has the range.
        check(&*early, &content(7, 2 * MIB), 0, MIB);
        let later = bench.ground(cache_bytes, HELD_BYTES);
        assert!(read_file(&later as &dyn Ground, &name(0), u64::MAX).unwrap() == content(7, 2 * MIB));
        assert!(Ground::open(&later, &name(1), Access::Read).unwrap_err().is_not_found());
    }
}

#[test]
fn what_was_fetched_before_a_change_is_not_kept_after_it() {
    for cache_bytes in [0, ON_DISK] {
        let bench = Bench::new(&[MIB]);
        let slow = SlowBucket::new(&bench.bucket, 0);
        let ground = bench.ground_on(slow.clone(), cache_bytes, HELD_BYTES);
        let file = open(&ground, &name(0));
        slow.is_closed.store(true, Relaxed);
        std::thread::scope(|scope| {
            // It has the old bytes, but no answer yet.
            let reader = scope.spawn(|| read(&*file, 0, MIB).unwrap());
            while slow.in_flight.load(Relaxed) == 0 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            replace_file(&ground as &dyn Ground, &name(0), &content(7, MIB)).unwrap();
            slow.is_closed.store(false, Relaxed);
            assert!(reader.join().unwrap()[..MIB / 2] == content(0, MIB)[..MIB / 2]);
        });
        for ground in [ground, bench.ground(cache_bytes, HELD_BYTES)] {
            check(&*open(&ground, &name(0)), &content(7, MIB), 0, MIB);
        }
    }
}

#[test]
fn a_reader_who_drops_what_is_cached_asks_the_bucket() {
    for cache_bytes in [0, ON_DISK] {
        let bench = Bench::new(&[MIB]);
        let ground = bench.ground(cache_bytes, HELD_BYTES);
        let file = open(&ground, &name(0));
        check(&*file, &content(0, MIB), 0, MIB);
        // Another machine has repaired it.
        bench.bucket.insert(&name(0), &content(5, MIB));
        check(&*file, &content(0, MIB), 0, MIB);
        check(&*ground.shared_past_cache(&name(0)), &content(5, MIB), 0, MIB);
        file.drop_cached(0, MIB as u64);
        check(&*file, &content(5, MIB), 0, MIB);
        for ground in [&ground, &bench.ground(cache_bytes, HELD_BYTES)] {
            check(&*open(ground, &name(0)), &content(5, MIB), 0, MIB);
        }
    }
}

impl BucketGround {
    fn shared_past_cache(&self, path: &str) -> Arc<dyn File> {
        Ground::open_past_cache(self, path).unwrap()
    }
}

#[test]
fn an_object_that_another_machine_removed_is_found_gone() {
    for cache_bytes in [0, ON_DISK] {
        let bench = Bench::new(&[MIB, MIB]);
        let ground = bench.ground(cache_bytes, HELD_BYTES);
        let file = open(&ground, &name(0));
        check(&*open(&ground, &name(1)), &content(1, MIB), 0, MIB);
        bench.bucket.remove(&name(0));
        bench.bucket.remove(&name(1));
        assert!(read(&*file, 0, 100_000).unwrap_err().is_not_found());
        assert!(Ground::open(&ground, &name(0), Access::Read).unwrap_err().is_not_found());
        // One that is here is as good as it was.
        check(&*open(&ground, &name(1)), &content(1, MIB), 0, MIB);
        assert!(!Ground::exists(&ground, &name(1)).unwrap());
    }
}

#[test]
fn empty_and_short_objects_do_not_pile_up() {
    let bench = Bench::new(&[]);
    let ground = bench.ground(0, MIB);
    for number in 0..2000 {
        bench.bucket.insert(&format!("marks/{number}"), &[7; 10][..number % 11]);
        open(&ground, &format!("marks/{number}"));
    }
    assert!(ground.shared.objects.held_bytes() <= MIB);
}

#[test]
fn only_containers_and_parity_are_shared_and_cached() {
    for path in ["containers/0000/00000/00000abc", "containers/0000/parity/00000/0000001-00000002-00000003", "parity/1"] {
        assert!(is_cacheable(path), "{path}");
    }
    for path in ["containers/0000/00000/00000abc.forward", "containers/0000/owner", "marks/1", "containers/0000/1.new", "containers/"] {
        assert!(!is_cacheable(path), "{path}");
    }
    let bench = Bench::new(&[]);
    let ground = bench.ground(ON_DISK, HELD_BYTES);
    let path = "containers/0000/00000/00000abc.forward";
    for content in [[1; 512], [2; 512]] {
        bench.bucket.insert(path, &content);
        assert_eq!(read_file(&ground as &dyn Ground, path, 512).unwrap(), content);
    }
    assert!(bench.cached_files().is_empty());
}

#[test]
fn a_failed_fetch_fails_once_for_all_who_wait_and_the_next_read_tries_again() {
    let bench = Bench::new(&[4 * MIB]);
    let slow = SlowBucket::new(&bench.bucket, 50);
    let ground = bench.ground_on(slow, ON_DISK, HELD_BYTES);
    let file = open(&ground, &name(0));
    bench.bucket.fail_at(bench.bucket.steps(), Failure::Before);
    let barrier = Barrier::new(8);
    let requests = bench.gets_of(|| {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    let error = read(&*file, MIB, 2 * MIB).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::TimedOut);
                    assert_eq!(error.to_string().matches("memory:///containers/0000/00000/00000000").count(), 1, "{error}");
                });
            }
        });
    });
    assert_eq!(requests.0, 1);
    check(&*file, &content(0, 4 * MIB), MIB, 2 * MIB);
}

#[test]
fn memory_is_bounded_and_an_object_that_found_no_room_is_read_in_ranges() {
    let bench = Bench::new(&[2 * MIB; 10]);
    let ground = bench.ground(0, 5 * MIB);
    let files: Vec<_> = (0..10).map(|number| open(&ground, &name(number))).collect();
    let pass = || {
        for at in 0..20 {
            for (number, file) in files.iter().enumerate() {
                check(&**file, &content(number as u64, 2 * MIB), at * 100_000, 100_000);
                assert!(ground.shared.objects.held_bytes() <= 5 * MIB);
            }
        }
    };
    let (requests, bytes) = bench.gets_of(pass);
    // As if there were no memory, and each object once.
    assert!(requests <= 10 * (2 + 20) && bytes <= 10 * (2 * MIB + 20 * 256 * 1024), "{requests} {bytes}");
}

#[test]
fn a_piece_in_use_stays_in_memory_while_others_pass_through() {
    let bench = Bench::new(&[2 * MIB; 20]);
    let ground = bench.ground(0, 9 * MIB);
    let metadata = open(&ground, &name(0));
    check(&*metadata, &content(0, 2 * MIB), 0, 2 * MIB);
    for number in 1..20 {
        check(&*metadata, &content(0, 2 * MIB), number * 1000, 50_000);
        check(&*open(&ground, &name(number)), &content(number as u64, 2 * MIB), 0, 2 * MIB);
    }
    let requests = bench.gets_of(|| check(&*metadata, &content(0, 2 * MIB), 0, 2 * MIB));
    assert_eq!(requests, (0, 0));
}

#[test]
fn many_objects_are_known_and_those_in_use_are_never_forgotten() {
    let bench = Bench::new(&[1000; 3 * KNOWN]);
    let ground = bench.ground(ON_DISK, HELD_BYTES);
    let first = open(&ground, &name(0));
    for number in 0..3 * KNOWN {
        check(&*open(&ground, &name(number)), &content(number as u64, 1000), 0, 1000);
        assert!(ground.shared.objects.known.lock().slots.len() <= KNOWN);
    }
    assert!(ground.shared.objects.known.lock().slots.contains_key(&name(0)));
    drop(first);
}
