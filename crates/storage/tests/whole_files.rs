//! Stores whose container files become durable only as a whole, when they are sealed (decision 0068).

mod common;

use common::whole::{Fault, Objects, WholeGround};
use common::*;
use onefold_ground::Access;
use onefold_oplog::{Ownership, Position, Record};
use onefold_storage::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const PARTITIONS: u32 = 2;

fn small() -> StorageOptions {
    StorageOptions { container_bytes: 8 << 10, frame_bytes: 1 << 10, whole_files: true, ..options() }
}

/// What is durable, and what has to be there.
#[derive(Default)]
struct World {
    objects: Objects,
    log: Log,
    epoch: u64,
    next_name: u64,
    committed: Chunks,
    /// By container: the epoch of the opening that gave out its number.
    givers: BTreeMap<ContainerId, u64>,
    has_bucket: bool,
    hides_objects: bool,
    /// The last owner has ended its work.
    is_complete: bool,
}

/// A process that has the store open for writing.
struct Owner {
    epoch: u64,
    ground: WholeGround,
    store: Arc<ContainerStore>,
    writers: Vec<Writer>,
    /// All chunks that it can read.
    all: Chunks,
    /// Whether merges may hold the log.
    has_merges: bool,
}

impl Owner {
    fn renew_writers(&mut self) {
        self.writers = vec![self.store.writer(), self.store.writer(), self.store.writer().sequential()];
    }

    /// Ends without a clean close.
    fn die(self) {
        self.ground.kill();
        drop(self.writers);
        drop(self.store);
        self.ground.check();
    }

    fn close(self) {
        self.store.release_room();
        drop(self.writers);
        drop(self.store);
        self.ground.check();
    }
}

impl World {
    fn ownership(&self) -> Ownership {
        Ownership::all(PARTITIONS, self.epoch)
    }

    fn ground(&self) -> WholeGround {
        WholeGround::new(&self.objects, self.has_bucket).hiding_objects(self.hides_objects)
    }

    /// Opens for writing, as the next owner.
    fn open(&mut self, options: &StorageOptions) -> Owner {
        self.epoch += 1;
        let ground = self.ground();
        self.log.append((0..PARTITIONS).map(|partition| numbers_reserved(partition as u16)).collect());
        let is_complete = std::mem::take(&mut self.is_complete);
        let store = open_behind(Arc::new(ground.clone()), &self.log, &self.ownership(), options, Access::ReadWrite, is_complete).unwrap();
        let mut owner = Owner { epoch: self.epoch, ground, store, writers: Vec::new(), all: self.committed.clone(), has_merges: false };
        owner.renew_writers();
        owner
    }

    fn commit(&mut self, owner: &Owner, mut prepared: Prepared) {
        if prepared.records.is_empty() {
            return owner.store.abandoned(prepared);
        }
        check_batch(&prepared.records);
        for (_, address, _) in &prepared.surplus {
            assert!(!owner.all.contains_key(address), "a chunk that somebody has is called dead");
        }
        for (name, address, _) in std::mem::take(&mut prepared.chunks) {
            assert_eq!(owner.all[&address].0, name);
            assert!(self.committed.insert(address, owner.all[&address].clone()).is_none(), "{address} is new twice");
        }
        let (start, end) = self.log.append(std::mem::take(&mut prepared.records));
        owner.store.committed(prepared, start, end);
    }

    /// Commits, unless puts fail.
    fn flush(&mut self, owner: &Owner, scope: Scope) -> Result<()> {
        let prepared = owner.store.prepare(scope)?;
        self.commit(owner, prepared);
        if scope == Scope::Everything {
            assert_eq!(owner.store.unsynced_bytes(), 0);
        }
        Ok(())
    }

    fn append(&mut self, owner: &mut Owner, writer: usize, lengths: &[usize]) -> Result<()> {
        let mut chunks = Chunks::new();
        let appended = append(&mut owner.writers[writer], &mut self.next_name, lengths, &mut chunks);
        self.note(owner, chunks);
        appended
    }

    fn append_frame(&mut self, owner: &mut Owner, lengths: &[usize]) {
        let mut chunks = Chunks::new();
        append_frame(&mut owner.writers[2], Compression::Zstd(1), &mut self.next_name, lengths, &mut chunks).unwrap();
        self.note(owner, chunks);
    }

    fn note(&mut self, owner: &mut Owner, chunks: Chunks) {
        for address in chunks.keys() {
            let giver = *self.givers.entry(address.container()).or_insert(owner.epoch);
            assert_eq!(giver, owner.epoch, "two owners gave out {address}");
        }
        owner.all.extend(chunks);
    }

    fn merge(&mut self, owner: &mut Owner, first: usize, count: usize, end: u8) {
        let containers = owner.store.containers().unwrap();
        let sealed = containers.iter().filter(|id| id.partition() == 0 && owner.store.is_sealed(*id));
        let victims: Vec<_> = sealed.skip(first).take(count).collect();
        if victims.is_empty() {
            return;
        }
        let merge = match owner.store.merge(&victims, &live_of(self, owner, &victims)) {
            Ok(merge) => merge,
            // Another merge has them, or the put failed.
            Err(error) => return assert!(matches!(error, StorageError::Merge { .. } | StorageError::CannotWrite { .. }), "{error}"),
        };
        owner.has_merges |= (1..=2).contains(&end);
        match end {
            0 => owner.store.abandon_merge(merge),
            1 => drop(merge),
            _ => {
                let (start, after) = self.log.append(vec![merge.record()]);
                if end == 2 { owner.store.merge_logged(merge, start, after) } else { owner.store.merged(merge, start, after) }
            }
        }
    }

    /// Checks what a reader sees that opens the store now.
    fn check_reader(&self, options: &StorageOptions) {
        let ground = self.ground();
        let reader = open_owned(Arc::new(ground.clone()), &self.log, &Ownership::all(PARTITIONS, 1), options, Access::Read).unwrap();
        check(&reader, &self.committed);
        check_all(&reader, &self.committed);
        drop(reader);
        assert_eq!(ground.puts(), 0);
        ground.check();
    }
}

/// Checks that a batch names no bytes that it does not carry or that no sealed container has.
fn check_batch(records: &[Record]) {
    let decoded: Vec<_> = records
        .iter()
        .filter(|record| record.kind != NUMBERS_USED && record.kind != NUMBERS_RESERVED)
        .map(|record| ContainerRecord::decode(record, 32).unwrap())
        .collect();
    let sealed: BTreeSet<ContainerId> = decoded
        .iter()
        .filter_map(|record| match record {
            ContainerRecord::ContainerSealed { container } => Some(*container),
            _ => None,
        })
        .collect();
    for record in decoded {
        match record {
            ContainerRecord::FrameCommitted { container, stored, .. } => assert_eq!(stored.is_none(), sealed.contains(&container)),
            ContainerRecord::FrameData { container, chunks } => assert!(!sealed.contains(&container) && !chunks.slots.is_empty()),
            ContainerRecord::ContainerSealed { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Append {
        writer: usize,
        lengths: Vec<usize>,
    },
    Frame {
        lengths: Vec<usize>,
    },
    Flush,
    FullFrames,
    Abandon,
    Checkpoint,
    DropWriters,
    Fail(Vec<Fault>),
    Deliver,
    Check,
    Read,
    Crash,
    Close,
    /// Another process opens the store, while this one is still there and does not know.
    TakeOver,
    /// A former owner goes on, appends and prepares.
    Former {
        lengths: Vec<usize>,
    },
    FormersDie,
    /// Merges some containers: gives it up, forgets it, logs it, or logs it and replaces the files.
    Merge {
        first: usize,
        count: usize,
        end: u8,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let length = || prop_oneof![5 => 0..3000usize, 1 => 3000..40_000usize, 1 => Just(0)];
    let fault = prop_oneof![Just(Fault::Before), Just(Fault::After), Just(Fault::Late)];
    prop_oneof![
        12 => (0..3usize, proptest::collection::vec(length(), 1..12)).prop_map(|(writer, lengths)| Step::Append { writer, lengths }),
        5 => proptest::collection::vec(0..3000usize, 1..6).prop_map(|lengths| Step::Frame { lengths }),
        5 => Just(Step::Flush),
        3 => Just(Step::FullFrames),
        1 => Just(Step::Abandon),
        2 => Just(Step::Checkpoint),
        1 => Just(Step::DropWriters),
        2 => proptest::collection::vec(fault, 1..4).prop_map(Step::Fail),
        1 => Just(Step::Deliver),
        2 => Just(Step::Check),
        1 => Just(Step::Read),
        2 => Just(Step::Crash),
        1 => Just(Step::Close),
        1 => Just(Step::TakeOver),
        2 => proptest::collection::vec(length(), 1..12).prop_map(|lengths| Step::Former { lengths }),
        1 => Just(Step::FormersDie),
        3 => (0..9usize, 1..4usize, 0..4u8).prop_map(|(first, count, end)| Step::Merge { first, count, end }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_was_committed_can_be_read_whatever_fails_and_whoever_owns_the_store(
        steps in proptest::collection::vec(step(), 1..70),
        frame_bytes in 512..6000u32,
        container_bytes in 4096..40_000u32,
        in_flight_bytes in 0..20_000usize,
        cache_bytes in 0..20_000usize,
        hides_objects: bool,
        has_bucket: bool,
    ) {
        let options = StorageOptions {
            container_bytes, frame_bytes, in_flight_bytes, frame_cache_bytes: cache_bytes, catalog_cache_bytes: cache_bytes, ..small()
        };
        let mut world = World { hides_objects, has_bucket, ..World::default() };
        let mut owner = world.open(&options);
        let mut formers: Vec<Owner> = Vec::new();
        for step in steps {
            match step {
                Step::Append { writer, lengths } => world.append(&mut owner, writer, &lengths).unwrap(),
                Step::Frame { lengths } => world.append_frame(&mut owner, &lengths),
                Step::Flush => match world.flush(&owner, Scope::Everything) {
                    Ok(()) => prop_assert_eq!(&world.committed, &owner.all),
                    Err(error) => prop_assert!(matches!(error, StorageError::CannotWrite { .. }), "{}", error),
                },
                Step::FullFrames => drop(world.flush(&owner, Scope::FullFrames)),
                Step::Abandon => {
                    let _ = owner.store.prepare(Scope::Everything).map(|prepared| owner.store.abandoned(prepared));
                }
                Step::Checkpoint => {
                    let end = world.log.end();
                    prop_assert!(owner.store.checkpoint_before(end).unwrap().is_empty());
                    // A put that begins just now may hold the log for a moment.
                    for tries in 0.. {
                        if world.flush(&owner, Scope::FullFrames).is_err() || owner.has_merges || owner.store.oldest_needed().unwrap() >= end {
                            break;
                        }
                        prop_assert!(tries < 1000);
                        std::thread::sleep(std::time::Duration::from_millis(1));
                        prop_assert!(owner.store.checkpoint_before(end).unwrap().is_empty());
                    }
                    world.log.trim(Some(owner.store.trim_point(world.log.end())));
                }
                Step::DropWriters => owner.renew_writers(),
                Step::Fail(faults) => owner.ground.fail_puts(faults),
                Step::Deliver => world.objects.deliver_late(),
                Step::Check => check(&owner.store, &owner.all),
                Step::Read => world.check_reader(&options),
                Step::Crash | Step::Close => {
                    if matches!(step, Step::Crash) {
                        owner.die();
                    } else {
                        world.is_complete = world.flush(&owner, Scope::Everything).is_ok() && world.committed == owner.all;
                        owner.close();
                    }
                    owner = world.open(&options);
                    check(&owner.store, &owner.all);
                }
                Step::TakeOver => {
                    let next = world.open(&options);
                    formers.push(std::mem::replace(&mut owner, next));
                    check(&owner.store, &owner.all);
                }
                Step::Former { lengths } => for former in &mut formers {
                    if let Err(error) = world.append(former, 0, &lengths) {
                        prop_assert!(matches!(error, StorageError::Poisoned { .. }), "{}", error);
                    }
                    // Its batch is refused.
                    let _ = former.store.prepare(Scope::Everything).map(|prepared| former.store.abandoned(prepared));
                    // It replaces files that others have replaced long ago. Without a bucket it would undo that.
                    if has_bucket {
                        let _ = former.store.finish_merges();
                    }
                },
                Step::FormersDie => formers.drain(..).for_each(Owner::die),
                Step::Merge { first, count, end } => world.merge(&mut owner, first, count, end),
            }
        }
        check(&owner.store, &owner.all);
        check_all(&owner.store, &owner.all);
        formers.into_iter().for_each(Owner::die);
        owner.die();
        world.objects.deliver_late();
        world.check_reader(&options);
        let owner = world.open(&options);
        check(&owner.store, &world.committed);
        prop_assert!(owner.store.checkpoint_before(world.log.end()).unwrap().is_empty());
        world.flush(&owner, Scope::FullFrames).unwrap();
        prop_assert_eq!(owner.store.statistics().open_containers, 0);
        check(&owner.store, &world.committed);
        check_all(&owner.store, &world.committed);
        owner.close();
        world.check_reader(&options);
    }
}

/// Returns the object of a container.
fn name(id: ContainerId) -> String {
    format!("{DIRECTORY}/{:04x}/{:05x}/{:08x}", id.partition(), id.number() >> 12, id.number())
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Commits some chunks of a container, then fills it. Returns it.
fn fill_half_committed(world: &mut World, owner: &mut Owner) -> ContainerId {
    world.append(owner, 0, &[700, 800, 100]).unwrap();
    world.flush(owner, Scope::Everything).unwrap();
    let container = world.committed.keys().next().unwrap().container();
    while world.append(owner, 0, &[900]).is_ok() && owner.all.keys().all(|address| address.container() == container) {}
    container
}

/// The options of a store whose containers take several frames of noise.
fn plain() -> StorageOptions {
    StorageOptions { compression: Compression::None, workers: 1, ..small() }
}

#[test]
fn a_container_that_was_put_before_its_batch_is_sealed_as_it_is() {
    let mut world = World::default();
    let mut owner = world.open(&plain());
    let container = fill_half_committed(&mut world, &mut owner);
    wait_until("a full container is put without a commit", || world.objects.content(&name(container)).is_some());
    owner.die();
    let object = world.objects.content(&name(container)).unwrap();
    world.check_reader(&plain());
    let owner = world.open(&plain());
    check(&owner.store, &world.committed);
    assert!(owner.store.prepare(Scope::FullFrames).unwrap().sealed.containers == 0, "it may stay in the log");
    assert!(owner.store.checkpoint_before(world.log.end()).unwrap().is_empty());
    let prepared = owner.store.prepare(Scope::FullFrames).unwrap();
    let committed = world.committed.len();
    let all = owner.store.slots(container).unwrap();
    let surplus: Vec<_> = prepared.surplus.iter().map(|(name, address, _)| (*address, *name)).collect();
    assert!(committed < all.len());
    assert_eq!(surplus, all[committed..].iter().map(|(address, slot)| (*address, slot.fingerprint)).collect::<Vec<_>>());
    assert!(prepared.chunks.is_empty() && prepared.sealed.containers == 1 && prepared.sealed.container_bytes == object.len() as u64);
    assert!(prepared.raw_bytes > 0 && prepared.stored_bytes > 0);
    world.commit(&owner, prepared);
    assert!(owner.store.is_sealed(container));
    check(&owner.store, &world.committed);
    check_all(&owner.store, &world.committed);
    assert!(world.objects.content(&name(container)) == Some(object), "it changed");
    owner.die();
    world.check_reader(&plain());
}

#[test]
fn a_container_of_an_earlier_owner_stays_as_it_is_although_its_frame_could_be_full() {
    let mut world = World::default();
    let mut owner = world.open(&StorageOptions { frame_bytes: 4 << 10, ..plain() });
    // The log has an open frame, and the file will have it with more chunks.
    world.append(&mut owner, 0, &[700, 800, 100]).unwrap();
    world.flush(&owner, Scope::Everything).unwrap();
    let container = world.committed.keys().next().unwrap().container();
    while world.append(&mut owner, 0, &[900]).is_ok() && owner.all.keys().all(|address| address.container() == container) {}
    wait_until("a full container is put without a commit", || world.objects.content(&name(container)).is_some());
    owner.die();
    // Such a frame would be full here.
    let owner = world.open(&plain());
    let prepared = owner.store.prepare(Scope::Everything).unwrap();
    assert_eq!(prepared.records.len(), 0);
    owner.store.abandoned(prepared);
    assert!(owner.store.checkpoint_before(world.log.end()).unwrap().is_empty());
    world.flush(&owner, Scope::Everything).unwrap();
    assert!(owner.store.is_sealed(container));
    check(&owner.store, &world.committed);
    check_all(&owner.store, &world.committed);
    owner.close();
}

#[test]
fn containers_of_which_much_will_be_read_are_named_in_the_order_of_need() {
    let mut world = World::default();
    let mut owner = world.open(&plain());
    for _ in 0..40 {
        world.append(&mut owner, 0, &[900]).unwrap();
    }
    world.flush(&owner, Scope::Everything).unwrap();
    owner.close();
    let owner = world.open(&plain());
    let of = |container: ContainerId| {
        let chunks = world.committed.iter().filter(move |(address, _)| address.container() == container);
        chunks.map(|(address, (_, bytes))| (*address, bytes.len() as u32)).collect::<Vec<_>>()
    };
    let containers: BTreeSet<ContainerId> = world.committed.keys().map(|address| address.container()).collect();
    let (sealed, open): (Vec<_>, Vec<_>) = containers.into_iter().partition(|id| owner.store.is_sealed(*id));
    let [first, second, third] = sealed[..3] else { panic!("{sealed:?}") };
    let will_read = |chunks: &[(Address, u32)]| {
        owner.store.will_read(chunks.iter().copied());
        owner.ground.take_expected()
    };
    // A quarter is 2 KiB.
    assert_eq!(will_read(&of(first)[..2]), [""; 0]);
    let both = [&of(second)[..4], &of(first)[2..3]].concat();
    assert_eq!(will_read(&both), [name(second), name(first)]);
    // What is on its way is known by its container.
    let first_coming = |chunks: &[(Address, u32)]| owner.store.first_coming(chunks.iter().map(|(address, _)| *address).enumerate());
    owner.store.will_read(of(first).into_iter());
    assert_eq!([&both[..], &both[4..], &both[..4]].map(first_coming), [Some(4), Some(0), None]);
    assert_eq!((owner.ground.take_expected(), first_coming(&both)), (vec![name(first)], None));
    open.iter().for_each(|id| assert_eq!(will_read(&of(*id)), [""; 0]));
    // One that is open is there already, or on its way.
    let mut slices = Vec::new();
    let (address, (fingerprint, _)) = world.committed.iter().find(|(address, _)| address.container() == second).unwrap();
    owner.store.load(&[(*address, *fingerprint)], &mut slices).unwrap();
    assert_eq!(will_read(&of(second)), [""; 0]);
    owner.store.will_read_all();
    assert_eq!(will_read(&of(third)[..1]), [name(third)]);
    let (address, (fingerprint, _)) = world.committed.iter().find(|(address, _)| address.container() == third).unwrap();
    owner.store.load(&[(*address, *fingerprint)], &mut slices).unwrap();
    assert_eq!(owner.ground.take_expected(), [name(third)]);
    owner.close();
}

#[test]
fn whoever_puts_an_unsealed_container_first_wins_and_both_are_right() {
    for arrives_first in [true, false] {
        let mut world = World::default();
        let mut owner = world.open(&plain());
        owner.ground.fail_puts([Fault::Late; 8]);
        let container = fill_half_committed(&mut world, &mut owner);
        wait_until("the put is tried", || owner.ground.puts() > 0);
        assert!(world.objects.names().is_empty());
        owner.die();
        // The put is still on its way.
        let next = world.ground();
        next.pause_puts(true);
        world.epoch += 1;
        let store = open_owned(Arc::new(next.clone()), &world.log, &world.ownership(), &plain(), Access::ReadWrite).unwrap();
        check(&store, &world.committed);
        assert!(store.checkpoint_before(world.log.end()).unwrap().is_empty());
        wait_until("it is put again", || next.puts() > 0);
        if arrives_first {
            world.objects.deliver_late();
        }
        next.pause_puts(false);
        let owner = Owner { epoch: world.epoch, ground: next, store, writers: vec![], all: world.committed.clone(), has_merges: false };
        let prepared = owner.store.prepare(Scope::FullFrames).unwrap();
        assert_eq!(prepared.surplus.is_empty(), !arrives_first);
        world.commit(&owner, prepared);
        world.objects.deliver_late();
        assert!(owner.store.is_sealed(container));
        for _ in 0..2 {
            check(&owner.store, &world.committed);
            check_all(&owner.store, &world.committed);
        }
        owner.die();
        world.check_reader(&plain());
        let owner = world.open(&plain());
        check_all(&owner.store, &world.committed);
        owner.close();
    }
}

#[test]
fn a_file_that_no_batch_names_is_removed_and_its_number_is_not_used_again() {
    let mut world = World::default();
    let mut owner = world.open(&plain());
    world.append(&mut owner, 0, &[900; 30]).unwrap();
    wait_until("containers are put", || world.objects.names().len() >= 2);
    let written: BTreeSet<_> = owner.all.keys().map(|address| address.container()).collect();
    owner.die();
    let reader = open_owned(Arc::new(world.ground()), &world.log, &Ownership::all(PARTITIONS, 1), &plain(), Access::Read).unwrap();
    assert!(reader.containers().unwrap().is_empty());
    let mut owner = world.open(&plain());
    assert!(world.objects.names().is_empty() && owner.store.containers().unwrap().is_empty());
    world.append(&mut owner, 0, &[900; 30]).unwrap();
    assert!(owner.all.keys().all(|address| !written.contains(&address.container())));
    owner.close();
}

#[test]
fn a_former_owner_removes_nothing_of_a_later_one() {
    let mut world = World::default();
    // The former owner has read the log, and then stops for a long time.
    world.epoch += 1;
    let (ownership, log) = (world.ownership(), world.log.clone());
    let mut owner = world.open(&plain());
    world.append(&mut owner, 0, &[900; 30]).unwrap();
    world.flush(&owner, Scope::Everything).unwrap();
    let objects = world.objects.names();
    assert!(!objects.is_empty());
    let ground = world.ground();
    drop(open_owned(Arc::new(ground.clone()), &log, &ownership, &plain(), Access::ReadWrite).unwrap());
    assert_eq!(world.objects.names(), objects);
    owner.close();
    world.check_reader(&plain());
}

#[test]
fn a_failed_put_loses_nothing_and_is_tried_again_with_the_same_content() {
    for fault in [Fault::Before, Fault::After, Fault::Late] {
        let mut world = World::default();
        let mut owner = world.open(&plain());
        owner.ground.fail_puts([fault; 12]);
        world.append(&mut owner, 0, &[900; 30]).unwrap();
        let mut failed = 0;
        for _ in 0..20 {
            match world.flush(&owner, Scope::Everything) {
                Ok(()) => break,
                Err(error) => {
                    assert!(matches!(error, StorageError::CannotWrite { .. }), "{error}");
                    failed += 1;
                }
            }
            check(&owner.store, &owner.all);
            world.append(&mut owner, 1, &[50]).unwrap();
        }
        assert!(failed > 0);
        world.objects.deliver_late();
        world.flush(&owner, Scope::Everything).unwrap();
        assert_eq!(world.committed, owner.all);
        owner.die();
        world.check_reader(&plain());
    }
}

#[test]
fn full_containers_are_put_several_at_once_while_others_are_filled() {
    let mut world = World::default();
    let mut owner = world.open(&plain());
    owner.ground.pause_puts(true);
    world.append(&mut owner, 0, &[900; 60]).unwrap();
    wait_until("four puts are under way", || owner.ground.puts() == 4);
    // Writers and readers do not wait for them.
    world.append(&mut owner, 1, &[900; 20]).unwrap();
    check(&owner.store, &owner.all);
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| owner.store.prepare(Scope::FullFrames));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!commit.is_finished());
        owner.ground.pause_puts(false);
        let prepared = commit.join().unwrap().unwrap();
        let puts = owner.ground.puts();
        assert!(puts >= 8 && puts == world.objects.names().len() as u64, "each is put once: {puts}");
        // Nothing of what is not sealed is sent.
        assert!(prepared.records.iter().all(|record| record.kind != FRAME_STORED && record.kind != FRAME_DATA));
        assert_eq!(prepared.sealed.containers, puts);
        owner.store.abandoned(prepared);
    });
    world.flush(&owner, Scope::Everything).unwrap();
    owner.die();
    world.check_reader(&plain());
}

#[test]
fn a_batch_carries_about_16_mib_at_most() {
    let options = StorageOptions { container_bytes: 8 << 20, frame_bytes: 256 << 10, in_flight_bytes: 32 << 20, ..plain() };
    let mut world = World::default();
    let mut owner = world.open(&options);
    owner.writers = (0..5).map(|_| owner.store.writer()).collect();
    let carried = |records: &[Record]| records.iter().map(|record| record.payload.len()).sum::<usize>();
    for writer in 0..5 {
        // Only these are noise.
        world.next_name = world.next_name.next_multiple_of(3);
        for _ in 0..5 + writer {
            let data = content(world.next_name, 1 << 20);
            let chunk = NewChunk { fingerprint: fingerprint(world.next_name), kind: ChunkKind::Data, data: &data };
            let address = owner.writers[writer].append(&[chunk]).unwrap()[0];
            owner.all.insert(address, (fingerprint(world.next_name), data));
            world.next_name += 3;
        }
    }
    let prepared = owner.store.prepare(Scope::Everything).unwrap();
    let bytes = carried(&prepared.records);
    assert!(bytes > 5 << 20 && bytes < 17 << 20, "{bytes}");
    assert!(prepared.sealed.containers >= 3, "{}", prepared.sealed.containers);
    world.commit(&owner, prepared);
    assert_eq!(world.committed, owner.all);
    // Writers go on in other containers.
    for writer in 0..5 {
        world.append(&mut owner, writer, &[5000, 300_000]).unwrap();
    }
    world.append_frame(&mut owner, &[900; 3]);
    world.flush(&owner, Scope::Everything).unwrap();
    check(&owner.store, &owner.all);
    owner.die();
    world.check_reader(&options);
}

#[test]
fn an_old_container_is_sealed_so_that_the_log_can_be_trimmed() {
    let mut world = World::default();
    let mut owner = world.open(&plain());
    world.append(&mut owner, 0, &[700]).unwrap();
    world.flush(&owner, Scope::Everything).unwrap();
    let container = world.committed.keys().next().unwrap().container();
    world.append(&mut owner, 0, &[300]).unwrap();
    let end = world.log.end();
    assert!(owner.store.oldest_needed().unwrap() < end);
    assert!(owner.store.checkpoint_before(end).unwrap().is_empty());
    world.flush(&owner, Scope::FullFrames).unwrap();
    assert!(owner.store.is_sealed(container) && owner.store.oldest_needed().unwrap() >= end);
    assert_eq!(world.committed, owner.all, "it is sealed with all that it has");
    // The log always says which numbers are used.
    let end = world.log.end();
    assert!(owner.store.checkpoint_before(end).unwrap().is_empty());
    world.flush(&owner, Scope::FullFrames).unwrap();
    assert!(owner.store.oldest_needed().unwrap() >= end);
    world.log.trim(Some(owner.store.trim_point(world.log.end())));
    assert_eq!(world.log.batches.iter().flat_map(|(_, records)| records).count(), PARTITIONS as usize);
    // A container without a committed chunk does not hold it.
    world.append(&mut owner, 1, &[300]).unwrap();
    assert!(owner.store.oldest_needed().unwrap() >= end);
    owner.die();
    world.check_reader(&plain());
}

#[test]
fn numbers_are_given_out_only_shortly_ahead_of_the_log() {
    let options = StorageOptions { container_bytes: 4 << 10, ..plain() };
    let mut world = World::default();
    let mut owner = world.open(&options);
    let mut refused = 0;
    for _ in 0..600 {
        match world.append(&mut owner, 0, &[2100, 1900, 2050, 1950, 2010, 1990, 2005, 1995]) {
            Ok(()) => {}
            Err(StorageError::CommitFirst { .. }) => {
                refused += 1;
                world.flush(&owner, Scope::FullFrames).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
    let numbers = owner.store.containers().unwrap().len();
    assert!(refused > 0 && numbers > 2048, "{refused} of {numbers}");
    world.flush(&owner, Scope::Everything).unwrap();
    // Those of an append that was refused half-way were committed too.
    check(&owner.store, &owner.all);
    owner.die();
    world.check_reader(&options);
}

#[test]
fn an_opening_does_not_look_at_files_that_cannot_be_leftovers() {
    let mut world = World::default();
    let mut owner = world.open(&plain());
    world.append(&mut owner, 0, &[900; 1500]).unwrap();
    world.flush(&owner, Scope::Everything).unwrap();
    assert!(owner.store.checkpoint_before(world.log.end()).unwrap().is_empty());
    world.flush(&owner, Scope::FullFrames).unwrap();
    world.log.trim(Some(owner.store.trim_point(world.log.end())));
    owner.close();
    assert!(world.objects.names().len() > 150);
    let before = world.objects.requests();
    world.open(&plain()).close();
    let requests = world.objects.requests() - before;
    assert!(requests < 10, "{requests}");
}

#[test]
fn data_that_is_discarded_does_not_go_with_whole_files() {
    let options = StorageOptions { discards_data: true, ..small() };
    let ground = Arc::new(WholeGround::new(&Objects::default(), false));
    let opened = open(ground, &Log::default(), 1, &options, Access::ReadWrite);
    assert!(matches!(opened, Err(StorageError::Option { option: "discards_data", .. })));
}

/// Returns the needed chunks of containers, for a merge.
fn live_of(world: &World, owner: &Owner, victims: &[ContainerId]) -> Vec<(Address, onefold_fingerprint::Fingerprint)> {
    let is_in = |address: &Address| victims.contains(&owner.store.container_of(*address).unwrap());
    world.committed.iter().filter(|(address, _)| is_in(address)).map(|(address, (name, _))| (*address, *name)).collect()
}

#[test]
fn merged_containers_and_forwards_are_objects_and_forwards_only_go_on() {
    for has_bucket in [true, false] {
        let mut world = World { has_bucket, ..World::default() };
        let mut owner = world.open(&plain());
        world.append(&mut owner, 0, &[900; 60]).unwrap();
        world.flush(&owner, Scope::Everything).unwrap();
        let sealed = |owner: &Owner| {
            let all = owner.store.containers().unwrap();
            all.iter().filter(|id| id.partition() == 0 && owner.store.is_sealed(*id)).collect::<Vec<_>>()
        };
        let mut targets = Vec::new();
        for round in 0..3 {
            let victims: Vec<_> = sealed(&owner).into_iter().take(2).collect();
            let live = live_of(&world, &owner, &victims);
            let merge = owner.store.merge(&victims, &live).unwrap();
            targets.push((live[0].0.container(), merge.container().unwrap()));
            let (start, end) = world.log.append(vec![merge.record()]);
            if round == 1 {
                // The process dies before the files are replaced.
                drop(merge);
                owner.die();
                owner = world.open(&plain());
            } else {
                owner.store.merged(merge, start, end);
            }
            assert!(!owner.store.has_pending_merges());
            check(&owner.store, &world.committed);
            // The next one merges the merged one again.
            let target = targets[round].1;
            let victims: Vec<_> = [target].into_iter().chain(sealed(&owner).into_iter().find(|id| *id != target)).collect();
            let live = live_of(&world, &owner, &victims);
            let merge = owner.store.merge(&victims, &live).unwrap();
            let last = merge.container().unwrap();
            assert!(last > target);
            let (start, end) = world.log.append(vec![merge.record()]);
            owner.store.merged(merge, start, end);
            assert_eq!(owner.store.forward_target(targets[round].0), Some(last));
            if has_bucket {
                // A former owner comes late.
                owner.store.repair_forwards(&[targets[round].0], target).unwrap();
                assert_eq!(owner.store.forward_target(targets[round].0), Some(last));
            }
        }
        check(&owner.store, &world.committed);
        check_all(&owner.store, &world.committed);
        // A merged container that no record names is a leftover.
        world.flush(&owner, Scope::FullFrames).unwrap();
        let victims: Vec<_> = sealed(&owner).into_iter().take(2).collect();
        let before = world.objects.names();
        let merge = owner.store.merge(&victims, &live_of(&world, &owner, &victims)).unwrap();
        assert_eq!(world.objects.names().len(), before.len() + 1);
        drop(merge);
        owner.die();
        let owner = world.open(&plain());
        assert_eq!(world.objects.names(), before);
        check(&owner.store, &world.committed);
        owner.close();
        world.check_reader(&plain());
    }
}

#[test]
fn a_damaged_header_is_repaired_by_another_object() {
    let mut world = World::default();
    let mut owner = world.open(&plain());
    world.append(&mut owner, 0, &[900; 30]).unwrap();
    world.flush(&owner, Scope::Everything).unwrap();
    owner.close();
    let owner = world.open(&plain());
    let container = world.committed.keys().next().unwrap().container();
    assert!(owner.store.is_sealed(container));
    let whole = world.objects.content(&name(container)).unwrap();
    let mut damaged = whole.to_vec();
    damaged[20] ^= 4;
    world.objects.set(&name(container), damaged);
    assert!(owner.store.repair_header(container).unwrap() && !owner.store.repair_header(container).unwrap());
    assert_eq!(world.objects.content(&name(container)).unwrap(), whole);
    check_all(&owner.store, &world.committed);
    owner.close();
}

#[test]
fn containers_of_a_log_that_is_given_up_are_sealed_with_what_it_has() {
    let mut world = World::default();
    let mut owner = world.open(&plain());
    world.append(&mut owner, 0, &[900; 3]).unwrap();
    world.append(&mut owner, 1, &[100]).unwrap();
    world.flush(&owner, Scope::Everything).unwrap();
    owner.die();
    for dry_run in [true, false, false] {
        let ground = world.ground();
        let store = ContainerStore::open(
            Arc::new(ground.clone()),
            DIRECTORY,
            &Ownership::all(PARTITIONS, 9),
            plain(),
            Access::Read,
            Arc::default(),
        )
        .unwrap();
        world.log.batches.iter().for_each(|(start, records)| records.iter().for_each(|record| store.replay(*start, record).unwrap()));
        let before = world.objects.names().len();
        let closed = store.close_damaged(9, Position(0), "aside", dry_run).unwrap();
        assert!(closed.cut.is_empty() && closed.unreadable.is_empty() && closed.gone.is_empty());
        assert_eq!(world.objects.names().len(), if dry_run { 0 } else { 2 });
        assert_eq!(closed.sealed.len(), 2 - before);
        ground.check();
    }
    let log = Log::default();
    let store = open_owned(Arc::new(world.ground()), &log, &Ownership::all(PARTITIONS, 10), &plain(), Access::Read).unwrap();
    check(&store, &world.committed);
}

#[test]
fn writers_commits_and_readers_work_at_the_same_time() {
    let mut world = World::default();
    let owner = world.open(&small());
    let log = parking_lot::Mutex::new(std::mem::take(&mut world.log));
    let store = owner.store.clone();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let all = std::thread::scope(|scope| {
        let flusher = scope.spawn(|| {
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                flush(&store, &mut log.lock(), Scope::Everything).unwrap();
                flush(&store, &mut log.lock(), Scope::FullFrames).unwrap();
                let end = log.lock().end();
                drop(store.checkpoint_before(end).unwrap());
            }
        });
        let writers: Vec<_> = (0..4u64)
            .map(|thread| {
                let store = &store;
                scope.spawn(move || {
                    let (mut writer, mut chunks, mut next_name) = (store.writer(), Chunks::new(), thread << 32);
                    for round in 0..150 {
                        append(&mut writer, &mut next_name, &[100, 900, 3000, round], &mut chunks).unwrap();
                        if round % 20 == 0 {
                            check(store, &chunks);
                            writer = store.writer();
                        }
                        if thread % 2 == 1 {
                            writer.be_sequential();
                            append_frame(&mut writer, Compression::Zstd(1), &mut next_name, &[900, 800], &mut chunks).unwrap();
                        }
                    }
                    chunks
                })
            })
            .collect();
        let all: Chunks = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        flusher.join().unwrap();
        all
    });
    flush(&store, &mut log.lock(), Scope::Everything).unwrap();
    drop(store);
    world.log = log.into_inner();
    owner.die();
    world.committed = all;
    world.check_reader(&small());
    let owner = world.open(&small());
    check_all(&owner.store, &world.committed);
    owner.close();
}
