//! Batches of lookups on a device whose reads take time: how many are in flight, and what they find while sweeps write.

use super::tests::{DIGEST_BYTES, apply, check, key, log_batch};
use super::*;
use onefold_ground::{DelegatingFile, DelegatingGround, File, LocalGround, SimulatedGround};
use onefold_oplog::Ownership;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

/// Counts the reads of pages.
#[derive(Default)]
struct Reads {
    all: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
    /// A read does not end before this many were in flight, or after ten seconds: a busy machine starts threads late.
    expected: AtomicUsize,
    /// An action to run once, before the read of this place.
    before: Mutex<Option<(u64, Deed)>>,
}

type Deed = Box<dyn FnOnce() + Send>;

impl std::fmt::Debug for Reads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reads").field("all", &self.all).finish_non_exhaustive()
    }
}

/// A ground on which each page read must wait for the device.
#[derive(Debug)]
struct Device {
    ground: Arc<dyn Ground>,
    read: Duration,
    reads: Arc<Reads>,
}

#[derive(Debug)]
struct DeviceFile {
    file: Arc<dyn File>,
    read: Duration,
    reads: Arc<Reads>,
}

impl Device {
    fn over(ground: Arc<dyn Ground>, read: Duration) -> (Arc<dyn Ground>, Arc<Reads>) {
        let reads = Arc::new(Reads::default());
        (Arc::new(Device { ground, read, reads: reads.clone() }), reads)
    }

    fn file(&self, path: &str, file: Arc<dyn File>) -> Arc<dyn File> {
        match path.contains("/pages-") {
            true => Arc::new(DeviceFile { file, read: self.read, reads: self.reads.clone() }),
            false => file,
        }
    }
}

impl DelegatingGround for Device {
    fn below(&self) -> &dyn Ground {
        &*self.ground
    }

    fn create(&self, path: &str) -> onefold_ground::Result<Arc<dyn File>> {
        Ok(self.file(path, self.ground.create(path)?))
    }

    fn open(&self, path: &str, access: Access) -> onefold_ground::Result<Arc<dyn File>> {
        Ok(self.file(path, self.ground.open(path, access)?))
    }
}

impl DelegatingFile for DeviceFile {
    fn below(&self) -> &dyn File {
        &*self.file
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> onefold_ground::Result<()> {
        self.reads.all.fetch_add(1, Ordering::Relaxed);
        self.reads.most.fetch_max(self.reads.now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        std::thread::sleep(self.read);
        let until = Instant::now() + Duration::from_secs(10);
        while self.reads.most.load(Ordering::Relaxed) < self.reads.expected.load(Ordering::Relaxed) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let before = self.reads.before.lock().take_if(|(place, _)| *place == offset);
        if let Some((_, before)) = before {
            before();
        }
        let read = self.file.read_at(offset, buffer);
        self.reads.now.fetch_sub(1, Ordering::Relaxed);
        read
    }

    fn try_read_at(&self, _offset: u64, _buffer: &mut [u8]) -> onefold_ground::Result<bool> {
        Ok(false)
    }
}

/// Makes every page read go through the pool.
pub(super) fn on_a_device(ground: Arc<dyn Ground>) -> Arc<dyn Ground> {
    Device::over(ground, Duration::ZERO).0
}

fn open(ground: &Arc<dyn Ground>, partitions: u32, page_cache_bytes: usize, reads_in_flight: usize) -> ChunkIndex {
    let options = ChunkIndexOptions { auxiliary_bytes: 1 << 16, page_cache_bytes, filter_bytes: 1 << 20, reads_in_flight };
    ChunkIndex::open(ground, "index", &Ownership::all(partitions, 1), DIGEST_BYTES, options, Access::ReadWrite).unwrap()
}

#[test]
fn m0_13_the_pages_of_a_batch_are_read_at_once_over_all_partitions() {
    const PARTITIONS: u32 = 16;
    let disk: Arc<dyn Ground> = Arc::new(SimulatedGround::new(1));
    ChunkIndex::create(&disk, "index", PARTITIONS, DIGEST_BYTES).unwrap();
    let inserts: Vec<_> = (0..1600).map(|chunk| (key(chunk), chunk + 1)).collect();
    let index = open(&disk, PARTITIONS, 0, 1);
    index.apply(Position(512), &inserts, &[]).unwrap();
    index.sweep_all().unwrap();
    let pages = (index.statistics().page_bytes / page::PAGE_BYTES as u64) as usize;
    index.close().unwrap();
    drop(index);
    // Two pages in each partition: only a set over all partitions keeps this many in flight.
    assert_eq!(pages, 2 * PARTITIONS as usize);

    let (device, reads) = Device::over(disk, Duration::from_millis(2));
    let wanted: Vec<_> = inserts.iter().map(|(key, _)| *key).collect();
    let mut out = Vec::new();
    for (reads_in_flight, most) in [(1, 1..=1), (12, 12..=13), (64, 24..=32)] {
        let index = open(&device, PARTITIONS, 0, reads_in_flight);
        reads.most.store(0, Ordering::Relaxed);
        reads.expected.store(*most.start(), Ordering::Relaxed);
        let before = reads.all.load(Ordering::Relaxed);
        index.lookup(&wanted, &mut out).unwrap();
        assert!(inserts.iter().zip(&out).all(|((_, address), found)| *found == Some(IndexEntry { address: *address, count: 0 })));
        assert_eq!(reads.all.load(Ordering::Relaxed) - before, pages, "each page is read once");
        let found = reads.most.load(Ordering::Relaxed);
        assert!(most.contains(&found), "{found} reads in flight of {reads_in_flight}");
    }
}

#[test]
fn pages_are_kept_within_the_bound_and_found_there_until_they_are_written() {
    const PARTITIONS: u32 = 2;
    let disk: Arc<dyn Ground> = Arc::new(SimulatedGround::new(1));
    ChunkIndex::create(&disk, "index", PARTITIONS, DIGEST_BYTES).unwrap();
    let (device, reads) = Device::over(disk, Duration::ZERO);
    let count = |index: &ChunkIndex, model: &BTreeMap<Fingerprint, IndexEntry>| {
        let before = reads.all.load(Ordering::Relaxed);
        let mut out = Vec::new();
        index.lookup(&model.keys().copied().collect::<Vec<_>>(), &mut out).unwrap();
        assert!(model.values().zip(&out).all(|(entry, found)| *found == Some(*entry)));
        reads.all.load(Ordering::Relaxed) - before
    };
    let index = open(&device, PARTITIONS, 1 << 20, 8);
    let mut model = BTreeMap::new();
    let mut add = |index: &ChunkIndex, end, chunks: std::ops::Range<u64>, deltas: &[(u64, i64)]| {
        let batch = log_batch(end, &model, &[], &chunks.map(|chunk| (chunk, chunk + 1)).collect::<Vec<_>>(), deltas);
        super::tests::apply_to_model(&mut model, &batch);
        apply(index, &batch);
        index.sweep_all().unwrap();
        model.clone()
    };
    let model = add(&index, 512, 0..3000, &[]);
    let pages = (index.statistics().page_bytes / page::PAGE_BYTES as u64) as usize;
    assert!(count(&index, &model) >= pages - 2);
    assert_eq!((count(&index, &model), index.statistics().page_cache_bytes as usize), (0, pages * (page::PAGE_BYTES + 4)));
    // One chunk changed: its page is read again, perhaps with its neighbour.
    let model = add(&index, 1024, 0..0, &[(7, 1)]);
    assert!((1..=2).contains(&count(&index, &model)));
    assert_eq!(count(&index, &model), 0);
    // Growth rewrites all pages.
    let model = add(&index, 1536, 3000..30_000, &[]);
    assert!(index.statistics().page_bytes > 1 << 20);
    assert!(count(&index, &model) > 256);
    let kept_bytes = index.statistics().page_cache_bytes;
    assert!((9 << 16..=1 << 20).contains(&kept_bytes), "{kept_bytes}");
    check(&index, &model);
}

#[test]
fn m0_13_pages_that_are_expected_are_read_ahead_once_and_taken_unless_they_were_written_since() {
    const CHUNKS: u64 = 1600;
    let disk: Arc<dyn Ground> = Arc::new(SimulatedGround::new(1));
    ChunkIndex::create(&disk, "index", 4, DIGEST_BYTES).unwrap();
    let (device, reads) = Device::over(disk, Duration::from_millis(2));
    let index = open(&device, 4, 0, 16);
    let mut model = BTreeMap::new();
    let mut change = |end, chunks: std::ops::Range<u64>, deltas: &[(u64, i64)]| {
        let batch = log_batch(end, &model, &[], &chunks.map(|chunk| (chunk, chunk + 1)).collect::<Vec<_>>(), deltas);
        super::tests::apply_to_model(&mut model, &batch);
        apply(&index, &batch);
        index.sweep_all().unwrap();
        model.clone()
    };
    let found = |model: &BTreeMap<Fingerprint, IndexEntry>| {
        let before = reads.all.load(Ordering::Relaxed);
        let mut out = Vec::new();
        let waited = index.lookup(&model.keys().copied().collect::<Vec<_>>(), &mut out).unwrap();
        assert!(model.values().zip(&out).all(|(entry, found)| *found == Some(*entry)));
        (reads.all.load(Ordering::Relaxed) - before, waited)
    };
    let names = |model: &BTreeMap<Fingerprint, IndexEntry>| model.keys().copied().collect::<Vec<_>>();

    let model = change(512, 0..CHUNKS, &[]);
    let pages = (index.statistics().page_bytes / page::PAGE_BYTES as u64) as usize;
    assert_eq!(found(&model), (pages, pages));
    let before = reads.all.load(Ordering::Relaxed);
    assert_eq!(index.expect(&names(&model)), pages);
    assert_eq!(index.expect(&names(&model)), 0, "they are being read");
    assert_eq!(found(&model).1, pages);
    assert_eq!(reads.all.load(Ordering::Relaxed) - before, pages, "each page is read once");
    assert_eq!(found(&model), (pages, pages), "what was taken is gone");

    // Every page is written between: in place, then by growth. The log's changes are in memory no more.
    index.expect(&names(&model));
    let model = change(1024, 0..0, &(0..CHUNKS).map(|chunk| (chunk, 1)).collect::<Vec<_>>());
    assert_eq!(found(&model).0, pages);
    index.expect(&names(&model));
    let model = change(1536, CHUNKS..8 * CHUNKS, &[]);
    assert!(index.statistics().growths > 0);
    assert!(found(&model).0 > pages);
    // The pages that the pool may read ahead are bounded.
    let pages = (index.statistics().page_bytes / page::PAGE_BYTES as u64) as usize;
    assert!(index.expect(&names(&model)) <= pages.min(4 * 16 * EXPECTED_FOR_EACH_READER));
    check(&index, &model);

    // Without a pool nothing is read ahead.
    index.close().unwrap();
    drop(index);
    let alone = open(&device, 4, 0, 1);
    assert_eq!(alone.expect(&names(&model)), 0);
}

/// Finds the chunks of a pair of pages at any time, while sweeps make it spill to one side and the other. Home and
/// neighbour are never of two moments.
#[test]
fn m0_14_entries_that_move_between_the_pages_of_a_pair_are_found_meanwhile() {
    const STAYING: usize = 75;
    const MOVING: usize = 60;
    for page_cache_bytes in [0, 1 << 20] {
        let directory = tempfile::tempdir().unwrap();
        let local: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).unwrap());
        ChunkIndex::create(&local, "index", 1, DIGEST_BYTES).unwrap();
        let (device, _) = Device::over(local, Duration::from_micros(200));
        let index = open(&device, 1, page_cache_bytes, 4);
        let sided = |side: u8, skip| (0..).map(key).filter(move |key| key.as_bytes()[0] >> 7 == side).skip(skip);
        let staying: Vec<_> = sided(0, 0).take(STAYING).chain(sided(1, 0).take(STAYING)).map(|key| (key, 9)).collect();
        let moving = [0, 1].map(|side| sided(side, STAYING).take(MOVING).map(|key| (key, 5)).collect::<Vec<_>>());
        let counts: Vec<_> = staying.iter().map(|(key, _)| (*key, 1)).collect();
        index.apply(Position(512), &staying, &counts).unwrap();
        index.sweep_all().unwrap();
        let has_ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let wanted: Vec<_> = staying.iter().map(|(key, _)| *key).collect();
                    let mut out = Vec::new();
                    while !has_ended.load(Ordering::Relaxed) {
                        index.expect(&wanted[..STAYING]);
                        index.lookup(&wanted, &mut out).unwrap();
                        assert!(out.iter().all(|found| *found == Some(IndexEntry { address: 9, count: 1 })), "{out:?}");
                    }
                });
            }
            let mut end = 512;
            for round in 0..200 {
                let moving = &moving[round / 2 % 2];
                let removals: Vec<_> = moving.iter().map(|(key, _)| *key).collect();
                end += 512;
                let batch = match round % 2 {
                    0 => ChunkBatch { inserts: moving, ..ChunkBatch::default() },
                    _ => ChunkBatch { removals: &removals, ..ChunkBatch::default() },
                };
                index.apply_batch(Position(end), batch).unwrap();
                index.sweep_all().unwrap();
            }
            has_ended.store(true, Ordering::Relaxed);
        });
        assert_eq!(index.statistics().growths, 0);
    }
}

/// A sweep writes both pages after the lookup read the home and before it reads the neighbour. Together they lack the
/// entry that the sweep moved home.
#[test]
fn m0_14_a_home_and_a_neighbour_of_two_moments_are_read_again_as_a_pair() {
    let simulated = SimulatedGround::new(1);
    let disk: Arc<dyn Ground> = Arc::new(simulated.clone());
    ChunkIndex::create(&disk, "index", 1, DIGEST_BYTES).unwrap();
    let (device, reads) = Device::over(disk.clone(), Duration::ZERO);
    let mut own: Vec<_> = (0..).map(key).filter(|key| key.as_bytes()[0] >> 7 == 0).take(page::page_capacity(DIGEST_BYTES) + 8).collect();
    own.sort_unstable();
    let inserts: Vec<_> = own.iter().map(|key| (*key, 9)).collect();
    let index = open(&device, 1, 1 << 20, 4);
    index.apply(Position(512), &inserts, &[]).unwrap();
    index.sweep_all().unwrap();
    drop(index);
    // With a filter that knows nothing, the lookup reads the home first.
    disk.remove("index/0000/filter").unwrap();
    let index = Arc::new(open(&device, 1, 1 << 20, 4));
    index.apply_batch(Position(1024), ChunkBatch { removals: &own[..20], ..ChunkBatch::default() }).unwrap();
    // This sweep took its changes and wrote nothing.
    simulated.fail_operation(0, std::io::ErrorKind::Other);
    index.sweep_all().unwrap_err();
    let sweeping = index.clone();
    *reads.before.lock() = Some((page::PAGE_BYTES as u64, Box::new(move || sweeping.sweep_all().unwrap())));
    let mut out = Vec::new();
    index.lookup(&own[own.len() - 1..], &mut out).unwrap();
    assert!(reads.before.lock().is_none(), "the neighbour was read");
    assert_eq!(out, [Some(IndexEntry { address: 9, count: 0 })]);
}
