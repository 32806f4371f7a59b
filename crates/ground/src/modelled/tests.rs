use super::*;
use crate::SimulatedGround;
use std::io;
use std::sync::atomic::AtomicBool;

/// A clock that records what it is asked to wait for. It jumps to that time unless it is stopped. While it is stopped,
/// operations arrive at the same time, as from many threads.
#[derive(Debug, Default)]
struct TestClock {
    now_ns: AtomicU64,
    stands: AtomicBool,
    waited_for: Mutex<Vec<u64>>,
}

impl Clock for TestClock {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(Relaxed)
    }

    fn sleep_until(&self, time_ns: u64) {
        self.waited_for.lock().push(time_ns);
        if !self.stands.load(Relaxed) {
            self.now_ns.fetch_max(time_ns, Relaxed);
        }
    }
}

struct Bench {
    clock: Arc<TestClock>,
    disk: SimulatedGround,
    ground: ModelledGround,
}

impl Bench {
    /// Directories `index` and `log`. The first is on modelled devices.
    fn new(model: DeviceModel) -> Bench {
        let disk = SimulatedGround::new(1);
        for directory in ["index/0000", "log", "containers"] {
            disk.create_directory(directory).unwrap();
        }
        let clock = Arc::new(TestClock::default());
        let part = |name: &str, prefix: &str, model| ModelledPart { name: name.into(), prefix: prefix.into(), model };
        let parts = vec![part("log", "log/", None), part("chunk-index", "index/", Some(model))];
        let ground = ModelledGround::with_clock(Arc::new(disk.clone()), parts, clock.clone());
        Bench { clock, disk, ground }
    }

    /// Creates a file of 1 MiB without the model, so that no time passes.
    fn file(&self, path: &str) -> Arc<dyn File> {
        self.disk.create(path).unwrap().set_len(1 << 20).unwrap();
        self.ground.open(path, Access::ReadWrite).unwrap()
    }

    /// From now on operations arrive at the same time.
    fn stand(&self) {
        self.clock.stands.store(true, Relaxed);
    }

    /// Returns the end times of all waits since the last call, microseconds.
    fn ends_us(&self) -> Vec<u64> {
        self.clock.waited_for.lock().drain(..).map(|time_ns| time_ns / 1000).collect()
    }

    fn counters(&self, part: &str) -> PartCounters {
        self.ground.traffic().into_iter().find(|(name, _)| name == part).unwrap().1
    }
}

fn read(file: &dyn File, offset: u64, length: usize) {
    file.read_at(offset, &mut vec![0; length]).unwrap();
}

#[test]
fn reads_writes_and_syncs_take_their_times_and_are_counted() {
    let bench = Bench::new(DeviceModel { read_us: 245, write_us: 791, sync_us: 1000, ..DeviceModel::default() });
    let file = bench.file("index/0000/pages");
    read(&*file, 0, 4096);
    file.write_at(8192, &[1; 100]).unwrap();
    file.sync().unwrap();
    bench.ground.sync_directory("index").unwrap();
    bench.ground.sync_directory("index/0000").unwrap();
    assert_eq!(bench.ends_us(), [245, 1036, 2036, 3036, 4036]);
    let expected = PartCounters { reads: 1, read_bytes: 4096, writes: 1, written_bytes: 100, syncs: 3, waited_ns: 4_036_000, devices: 1 };
    assert_eq!(bench.counters("chunk-index"), expected);
    // The data is there.
    let mut bytes = [0; 102];
    file.read_at(8191, &mut bytes).unwrap();
    assert!(bytes[0] == 0 && bytes[1..101] == [1; 100] && bytes[101] == 0);
}

#[test]
fn what_is_only_pretended_takes_the_time_of_a_write_and_leaves_the_file_as_it_is() {
    let bench = Bench::new(DeviceModel { write_us: 100, write_bytes_per_s: 1_000_000, ..DeviceModel::default() });
    for path in ["index/pages", "log/segment"] {
        let file = bench.file(path);
        file.pretend_write(1 << 20, 1000).unwrap();
        file.pretend_write(0, 0).unwrap();
        assert_eq!(file.len().unwrap(), 1 << 20);
    }
    assert_eq!((bench.ends_us(), bench.disk.used_bytes()), (vec![1100], 0));
    for part in ["chunk-index", "log"] {
        let PartCounters { writes, written_bytes, .. } = bench.counters(part);
        assert_eq!((writes, written_bytes), (1, 1000), "{part}");
    }
}

#[test]
fn a_part_without_a_model_is_counted_and_what_is_in_no_part_is_neither_counted_nor_slowed() {
    let bench = Bench::new(DeviceModel { read_us: 100, write_us: 100, sync_us: 100, ..DeviceModel::default() });
    let log = bench.file("log/segment");
    log.write_at(0, &[0; 512]).unwrap();
    log.sync().unwrap();
    read(&*log, 0, 10);
    bench.ground.sync_directory("log").unwrap();
    let other = bench.file("containers/one");
    other.write_at(0, b"data").unwrap();
    other.sync().unwrap();
    // This name only starts the same.
    bench.ground.sync_directory("containers").unwrap();
    bench.file("indexes").write_at(0, b"data").unwrap();
    assert_eq!(bench.ends_us(), [0u64; 0]);
    let expected = PartCounters { reads: 1, read_bytes: 10, writes: 1, written_bytes: 512, syncs: 2, waited_ns: 0, devices: 1 };
    assert_eq!(bench.counters("log"), expected);
    assert_eq!(bench.counters("chunk-index"), PartCounters { devices: 1, ..PartCounters::default() });
}

#[test]
fn operations_at_the_same_time_queue_on_their_device() {
    let one_at_a_time = Bench::new(DeviceModel { read_us: 100, ..DeviceModel::default() });
    let file = one_at_a_time.file("index/pages");
    one_at_a_time.stand();
    (0..3).for_each(|page| read(&*file, page * 4096, 4096));
    assert_eq!(one_at_a_time.ends_us(), [100, 200, 300]);
    assert_eq!(one_at_a_time.counters("chunk-index").waited_ns, 600_000);

    let two_at_a_time = Bench::new(DeviceModel { read_us: 100, write_us: 30, sync_us: 50, queue: 2, ..DeviceModel::default() });
    let file = two_at_a_time.file("index/pages");
    two_at_a_time.stand();
    (0..3).for_each(|page| read(&*file, page * 4096, 4096));
    file.write_at(0, b"data").unwrap();
    file.sync().unwrap();
    // The write takes the place of the second read. The sync comes after the write.
    assert_eq!(two_at_a_time.ends_us(), [100, 100, 200, 130, 180]);
}

#[test]
fn a_device_that_was_idle_has_saved_nothing_up() {
    let bench = Bench::new(DeviceModel { read_us: 100, operations_per_s: 1000, read_bytes_per_s: 1 << 20, ..DeviceModel::default() });
    let file = bench.file("index/pages");
    bench.clock.now_ns.store(10_000_000, Relaxed);
    bench.stand();
    read(&*file, 0, 1);
    read(&*file, 4096, 1);
    assert_eq!(bench.ends_us(), [10_100, 11_100]);
}

#[test]
fn operations_per_second_are_bounded_however_deep_the_queue() {
    let bench = Bench::new(DeviceModel { read_us: 245, operations_per_s: 5000, queue: 32, ..DeviceModel::default() });
    let file = bench.file("index/pages");
    bench.stand();
    (0..4).for_each(|page| read(&*file, page * 4096, 4096));
    // One operation may start every 200 microseconds.
    assert_eq!(bench.ends_us(), [245, 445, 645, 845]);
}

#[test]
fn bytes_go_through_a_device_one_operation_after_the_other() {
    let bench = Bench::new(DeviceModel {
        read_us: 100,
        read_bytes_per_s: 1_000_000,
        write_bytes_per_s: 2_000_000,
        queue: 8,
        ..DeviceModel::default()
    });
    let file = bench.file("index/pages");
    bench.stand();
    read(&*file, 0, 1000);
    read(&*file, 0, 500);
    file.write_at(0, &[0; 1000]).unwrap();
    // Latencies overlap; the 1000 + 500 + 500 microseconds of bytes do not.
    assert_eq!(bench.ends_us(), [1100, 1600, 2100]);
}

#[test]
fn only_what_begins_where_the_last_operation_ended_needs_no_seek() {
    let bench = Bench::new(DeviceModel { read_us: 10, write_us: 20, seek_us: 8000, ..DeviceModel::default() });
    let (first, second) = (bench.file("index/first"), bench.file("index/second"));
    read(&*first, 0, 4096);
    read(&*first, 4096, 4096);
    // The same file, opened again.
    bench.ground.open("index/first", Access::ReadWrite).unwrap().write_at(8192, &[0; 100]).unwrap();
    first.sync().unwrap();
    first.write_at(8292, &[0; 100]).unwrap();
    assert_eq!(bench.ends_us(), [8010, 8020, 8040, 8060]);
    read(&*second, 8392, 1);
    read(&*second, 8392, 1);
    assert_eq!(bench.ends_us(), [16_070, 24_080]);
}

#[test]
fn a_file_is_striped_over_devices_that_work_at_the_same_time() {
    let model =
        DeviceModel { read_us: 100, sync_us: 7, read_bytes_per_s: 1_000_000, devices: 4, stripe_bytes: 1000, ..DeviceModel::default() };
    let bench = Bench::new(model.clone());
    let file = bench.file("index/pages");
    bench.stand();
    // Each on its own device.
    (0..4).for_each(|stripe| read(&*file, stripe * 1000, 1000));
    assert_eq!(bench.ends_us(), [1100; 4]);
    // The fifth goes to the device of the first.
    read(&*file, 4000, 1);
    assert_eq!(bench.ends_us(), [1201]);
    // Eight stripes, two on each device, behind the earlier operations. The first device has the most.
    let bench = Bench::new(model.clone());
    let file = bench.file("index/pages");
    bench.stand();
    read(&*file, 500, 8000);
    assert_eq!(bench.ends_us(), [2100]);
    file.sync().unwrap();
    assert_eq!(bench.ends_us(), [2107]);
    assert_eq!(
        bench.counters("chunk-index"),
        PartCounters { reads: 1, read_bytes: 8000, syncs: 1, waited_ns: 4_207_000, devices: 4, ..PartCounters::default() }
    );

    // Without stripes, each file lies on one device, and another file may lie on another.
    let bench = Bench::new(DeviceModel { stripe_bytes: 0, read_bytes_per_s: 0, ..model });
    let files: Vec<_> = (0..8).map(|number| bench.file(&format!("index/{number}"))).collect();
    bench.stand();
    (0..4).for_each(|stripe| read(&*files[0], stripe * 1000, 1000));
    assert_eq!(bench.ends_us(), [100, 200, 300, 400]);
    files.iter().for_each(|file| read(&**file, 0, 1));
    assert!(bench.ends_us().contains(&100), "eight names are not all on the device of the first");
}

#[test]
fn stripes_of_a_file_follow_each_other_on_their_device() {
    let model = DeviceModel { seek_us: 1000, devices: 2, stripe_bytes: 1024, ..DeviceModel::default() };
    let bench = Bench::new(model);
    let file = bench.file("index/pages");
    // Both devices seek once, at the same time.
    (0..16).for_each(|step| read(&*file, step * 1536, 1536));
    assert_eq!(bench.ends_us().last(), Some(&1000));
    // A read within one stripe moves one device.
    read(&*file, 0, 1);
    read(&*file, 1, 2);
    assert_eq!(bench.ends_us(), [2000]);
}

#[test]
fn errors_pass_through_without_time_and_without_being_counted() {
    let bench = Bench::new(DeviceModel { read_us: 100, write_us: 100, sync_us: 100, ..DeviceModel::default() });
    let file = bench.file("index/pages");
    assert_eq!(file.read_at(1 << 20, &mut [0; 1]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    bench.disk.fail_operation(0, io::ErrorKind::StorageFull);
    assert!(file.write_at(0, b"data").unwrap_err().is_full());
    bench.disk.fail_operation(0, io::ErrorKind::Other);
    assert!(file.sync().is_err());
    assert!(bench.ground.sync_directory("index/absent").is_err());
    assert!(bench.ground.open("index/absent", Access::Read).unwrap_err().is_not_found());
    assert!(bench.ground.open_past_cache("index/absent").unwrap_err().is_not_found());
    assert!(bench.ground.open("index/pages", Access::Read).unwrap().write_at(0, b"data").is_err());
    assert_eq!(bench.ground.create("index/pages").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!((bench.ends_us(), bench.counters("chunk-index")), (vec![], PartCounters { devices: 1, ..PartCounters::default() }));
}

/// Everything but reads and writes takes no time and reaches the wrapped ground.
#[test]
fn names_lengths_room_hints_and_locks_pass_through() {
    let bench = Bench::new(DeviceModel { read_us: 100, write_us: 100, sync_us: 100, ..DeviceModel::default() });
    let (ground, disk) = (&bench.ground, &bench.disk);
    ground.create_directory("index/0001").unwrap();
    let file = ground.create("index/0001/file").unwrap();
    file.allocate(0, 10_000).unwrap();
    assert_eq!((file.len().unwrap(), disk.used_bytes()), (10_000, 3 * 4096));
    file.set_len(5000).unwrap();
    file.start_writeback(0, 5000);
    file.read_ahead(0, 5000);
    file.drop_cached(0, 5000);
    file.read_at(0, &mut []).unwrap();
    file.write_at(0, &[]).unwrap();
    ground.rename("index/0001/file", "index/0001/other").unwrap();
    assert!(disk.exists("index/0001/other").unwrap() && !ground.exists("index/0001/file").unwrap());
    assert_eq!(ground.list("index/0001").unwrap(), disk.list("index/0001").unwrap());
    ground.remove("index/0001/other").unwrap();
    disk.set_capacity(1 << 20);
    assert_eq!(ground.space().unwrap(), disk.space().unwrap());
    assert_eq!(ground.describe("index/x"), "index/x");
    let holder = crate::Holder::this_process("test");
    let guard = ground.lock("lock", true, &holder).unwrap();
    assert!(matches!(disk.lock("lock", true, &holder), Err(crate::LockError::Held { .. })));
    drop(guard);
    disk.lock("lock", true, &holder).unwrap();
    assert_eq!((bench.ends_us(), bench.counters("chunk-index")), (vec![], PartCounters { devices: 1, ..PartCounters::default() }));

    // A file opened past the cache is opened so below too, and its reads take the device's time.
    bench.file("index/pages").write_at(0, b"data").unwrap();
    read(&*ground.open_past_cache("index/pages").unwrap(), 0, 4);
    assert_eq!(bench.ends_us(), [100, 200]);
    let directory = tempfile::tempdir().unwrap();
    let local: Arc<dyn Ground> = Arc::new(crate::LocalGround::open(directory.path()).unwrap());
    local.create("file").unwrap();
    let part = ModelledPart { name: "all".into(), prefix: String::new(), model: None };
    let past_cache = |ground: &dyn Ground| format!("{:?}", ground.open_past_cache("file").unwrap()).contains("DirectFile");
    assert_eq!(past_cache(&ModelledGround::new(local.clone(), vec![part])), past_cache(&*local));
}

#[test]
fn the_longest_prefix_counts() {
    let disk = Arc::new(SimulatedGround::new(1));
    disk.create_directory("index/0000").unwrap();
    let part = |name: &str, prefix: &str| ModelledPart { name: name.into(), prefix: prefix.into(), model: None };
    let ground = ModelledGround::new(disk, vec![part("all", ""), part("first", "index/0000/"), part("index", "index/")]);
    for path in ["descriptor", "index/one", "index/0000/two"] {
        ground.create(path).unwrap().write_at(0, path.as_bytes()).unwrap();
    }
    let bytes: Vec<(String, u64)> = ground.traffic().into_iter().map(|(name, counters)| (name, counters.written_bytes)).collect();
    assert_eq!(bytes, [("all".into(), 10), ("first".into(), 14), ("index".into(), 9)]);
}

#[test]
fn values_out_of_range_are_named() {
    assert_eq!(DeviceModel::default().check(), Ok(()));
    let refused = |model: DeviceModel| model.check().unwrap_err();
    assert!(refused(DeviceModel { queue: 0, ..DeviceModel::default() }).contains("`queue` is 0; it must be from 1"));
    assert!(refused(DeviceModel { devices: 2000, ..DeviceModel::default() }).contains("`devices` is 2000"));
    assert!(refused(DeviceModel { seek_us: 60_000_001, ..DeviceModel::default() }).contains("`seek_us` is 60000001"));
    assert!(refused(DeviceModel { stripe_bytes: 100, ..DeviceModel::default() }).contains("`stripe_bytes` is 100"));
    // Without the check, values are clamped.
    let bench = Bench::new(DeviceModel { queue: 0, devices: 0, stripe_bytes: 1, read_us: 1, ..DeviceModel::default() });
    read(&*bench.file("index/pages"), 0, 4096);
    assert_eq!((bench.ends_us(), bench.counters("chunk-index").devices), (vec![1], 1));
}

#[test]
fn nobody_goes_on_before_the_time_on_the_clock_of_the_machine() {
    let clock = SystemClock::new();
    let until = clock.now_ns() + 300_000;
    clock.sleep_until(until);
    assert!(clock.now_ns() >= until);
    clock.sleep_until(0);
}
