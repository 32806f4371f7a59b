//! Tests of the order of steps that others rely on. Each test holds a lock, so that the watched code gets as far as
//! that lock and no further. Then it checks what has been done by then.

use crate::write::chain::{Chain, Filter, Lookup, Request, Stage, Verdict};
use crate::write::claims::{Claim, Search, Wanted};
use crate::write::in_flight::Remover;
use crate::{Address, Candidate, Descriptor, Engine, Hints, MetadataKind, Mode, Piece, Settings, Transaction};
use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Component;
use onefold_ground::{CrashPolicy, Ground, SimulatedGround};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn opened() -> Arc<Engine> {
    open(&created())
}

fn created() -> SimulatedGround {
    let disk = SimulatedGround::new(1);
    let ground: Arc<dyn Ground> = Arc::new(disk.clone());
    Engine::create(&ground, &Descriptor::new().unwrap()).unwrap();
    disk
}

fn open(disk: &SimulatedGround) -> Arc<Engine> {
    let settings = Settings { workers: 1, background: false, ..Settings::default() };
    Engine::open(Arc::new(disk.clone()), settings, Mode::ReadWrite, "test").unwrap()
}

/// A store with one chunk that nothing refers to, its bytes and its name.
fn with_an_unused_chunk() -> (Arc<Engine>, Vec<u8>, Fingerprint) {
    let engine = opened();
    let data = vec![7; 1000];
    let chunk = written(&engine, &data);
    engine.flush().unwrap();
    (engine, data, chunk)
}

fn written(engine: &Arc<Engine>, data: &[u8]) -> Fingerprint {
    let pieces = engine.stream().write_runs(&[data], Hints::default()).unwrap().remove(0);
    pieces.iter().find_map(Piece::fingerprint).unwrap()
}

/// Returns whether `is_done` becomes true by what `act` does before it has to wait for what `stop` holds.
fn is_done_before<T>(stop: impl FnOnce() -> T, act: impl FnOnce() + Send, is_done: impl Fn() -> bool) -> bool {
    std::thread::scope(|scope| {
        let stopped = stop();
        let acting = scope.spawn(act);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_done() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let is_done = is_done();
        drop(stopped);
        acting.join().unwrap();
        is_done
    })
}

/// Returns whether `act` takes the watched chunk off the list before it has to wait for what `stop` holds.
fn is_taken_off<T>(engine: &Engine, chunk: Fingerprint, stop: impl FnOnce() -> T, act: impl FnOnce() + Send) -> bool {
    engine.reclaiming.watch().begin(Remover::Here, [chunk]);
    let is_off = is_done_before(stop, act, || !engine.reclaiming.watch().is_watched(&chunk));
    engine.reclaiming.watch().end(Remover::Here);
    is_off
}

#[test]
fn m0_5_a_chunk_leaves_the_reservations_only_when_the_index_has_it() {
    let engine = opened();
    let chunk = written(&engine, &[7; 1000]);
    let is_indexed = || {
        let mut entries = Vec::new();
        engine.index().unwrap().lookup(&[chunk], &mut entries).unwrap();
        entries[0].is_some()
    };
    assert!(!is_indexed());
    assert!(is_done_before(|| engine.claims.hold(&chunk), || engine.flush().unwrap(), is_indexed));
}

#[test]
fn m0_19_a_chunk_is_off_the_watch_list_before_a_stream_asks_for_its_reservation() {
    let (engine, data, chunk) = with_an_unused_chunk();
    let asks = || assert_eq!(written(&engine, &data), chunk);
    assert!(is_taken_off(&engine, chunk, || engine.claims.hold(&chunk), asks));
}

#[test]
fn m0_19_what_a_metadata_chunk_refers_to_is_off_the_watch_list_before_the_chunk_is_reserved() {
    let (engine, _, chunk) = with_an_unused_chunk();
    let content = b"names a chunk";
    let name = engine.descriptor.fingerprint.metadata(content);
    let refers = || {
        engine.stream().write_metadata(MetadataKind::Recipe, content, &[chunk]).unwrap();
    };
    assert!(is_taken_off(&engine, chunk, || engine.claims.hold(&name), refers));
}

#[test]
fn m0_19_what_a_transaction_refers_to_is_off_the_watch_list_before_it_is_queued() {
    let (engine, _, chunk) = with_an_unused_chunk();
    let reference =
        crate::Reference { group: crate::Group::new(b'x', 0), fingerprint: chunk, address: crate::Address::from_bits(0), change: 1 };
    let counts = || engine.submit(Transaction { changes: Vec::new(), references: vec![reference] }).unwrap();
    assert!(is_taken_off(&engine, chunk, || engine.commits.lock_queue(), counts));
}

#[test]
fn m0_5_a_stream_that_found_its_chunks_known_gives_their_reservations_back() {
    let (engine, data, chunk) = with_an_unused_chunk();
    assert_eq!(written(&engine, &data), chunk);
    assert_eq!(engine.claims.count(), 0);
}

#[test]
fn a_4_a_stream_that_only_looks_for_chunks_keeps_no_claim() {
    let (engine, _, chunk) = with_an_unused_chunk();
    let (unknown, mut found) = (Fingerprint::from_digest(&[9; 32]), Vec::new());
    engine.stream().find(&[chunk, unknown], &mut found).unwrap();
    assert_eq!(found, [engine.locate(&chunk).unwrap(), None]);
    assert_eq!(engine.claims.count(), 0);
}

#[test]
fn a_full_frame_that_names_a_chunk_of_an_open_one_becomes_durable_with_it() {
    let disk = created();
    let engine = open(&disk);
    let (mut data, mut metadata) = (engine.stream(), engine.stream());
    let pieces = data.write_runs(&[&[7; 1000]], Hints::default()).unwrap().remove(0);
    let chunk = pieces[0].fingerprint().unwrap();
    let content = vec![5; engine.descriptor.frame_bytes as usize];
    let name = metadata.write_metadata(MetadataKind::Recipe, &content, &[chunk]).unwrap().fingerprint().unwrap();
    engine.commit_full_frames().unwrap();
    let engine = open(&disk.restart(CrashPolicy::DropAll));
    assert!(engine.locate(&name).unwrap().is_some(), "its frame was full");
    assert!(engine.locate(&chunk).unwrap().is_some(), "what it names is gone");
}

/// A cache that knows one chunk, and calls `look` before it answers.
struct Cache<F>(Fingerprint, Address, F);

impl<F> std::fmt::Debug for Cache<F> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Cache")
    }
}

impl<F: Fn() + Send + Sync> Filter for Cache<F> {
    fn name(&self) -> &'static str {
        "cache"
    }
    fn max(&self) -> Verdict {
        Verdict::StrongMaybe
    }
    fn component(&self) -> &'static Component {
        static COMPONENT: Component = Component::new("test");
        &COMPONENT
    }
    fn check(&self, _: &Request<'_>, lookups: &mut [Lookup<'_>], active: &[usize]) -> crate::Result<()> {
        (self.2)();
        for at in active {
            if lookups[*at].fingerprint == self.0 {
                lookups[*at].verdict = Verdict::StrongMaybe;
                lookups[*at].address = Some(self.1);
            }
        }
        Ok(())
    }
}

/// Returns a chain that asks a cache with this chunk before it claims. It calls `look` as soon as it asks the cache.
fn cached(engine: &Engine, chunk: Fingerprint, look: impl Fn() + Send + Sync + 'static) -> Chain {
    let address = engine.locate(&chunk).unwrap().unwrap();
    Chain::new(vec![Stage::filter(Cache(chunk, address, look)), Stage::ChunkIndex], Arc::default())
}

#[test]
fn a_4_a_chunk_is_off_the_watch_list_before_a_cache_is_asked_for_it() {
    let (engine, data, chunk) = with_an_unused_chunk();
    let was_watched = Arc::new(AtomicBool::new(false));
    let chain = cached(&engine, chunk, {
        let (engine, was_watched) = (engine.clone(), was_watched.clone());
        move || was_watched.store(engine.reclaiming.watch().is_watched(&chunk), Ordering::SeqCst)
    });
    engine.reclaiming.watch().begin(Remover::Here, [chunk]);
    let hints = Hints { chain: Some(&chain), ..Hints::default() };
    let pieces = engine.stream().write_runs(&[&data], hints).unwrap();
    engine.reclaiming.watch().end(Remover::Here);
    assert_eq!(pieces[0][0].fingerprint(), Some(chunk));
    assert!(!was_watched.load(Ordering::SeqCst));
    assert_eq!(engine.claims.count(), 0, "what a cache knows is not claimed");
}

/// A removal is stopped after it has decided on the chunk, but before it removes it. A stream asks for the chunk, which
/// a cache still knows.
#[test]
fn a_4_no_cache_is_believed_of_a_chunk_that_a_removal_is_taking_away() {
    let (engine, data, chunk) = with_an_unused_chunk();
    let address = engine.locate(&chunk).unwrap().unwrap();
    let chain = cached(&engine, chunk, || {});
    let (is_waiting, is_written) = (AtomicBool::new(false), AtomicBool::new(false));
    let older = engine.in_flight();
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| {
            let nothing_inside = |_: onefold_storage::ChunkKind, _: &[u8]| Ok(Vec::new());
            let candidate = Candidate { address, fingerprint: chunk };
            let go_on = || {
                is_waiting.store(true, Ordering::SeqCst);
                true
            };
            engine.remove_unused(&[candidate], &nothing_inside, &go_on).unwrap()
        });
        let soon = Instant::now() + Duration::from_secs(10);
        while !is_waiting.load(Ordering::SeqCst) && Instant::now() < soon {
            std::thread::yield_now();
        }
        let no_deletions = engine.deletions.write();
        drop(older);
        while !engine.reclaiming.watch().is_doomed(&chunk) && Instant::now() < soon {
            std::thread::yield_now();
        }
        assert!(engine.reclaiming.watch().is_doomed(&chunk));
        let writing = scope.spawn(|| {
            let mut stream = engine.stream();
            let hints = Hints { chain: Some(&chain), ..Hints::default() };
            let pieces = stream.write_runs(&[&data], hints).unwrap().remove(0);
            is_written.store(true, Ordering::SeqCst);
            (stream, pieces)
        });
        let while_doomed = Instant::now() + Duration::from_millis(300);
        while !is_written.load(Ordering::SeqCst) && Instant::now() < while_doomed {
            std::thread::yield_now();
        }
        drop(no_deletions);
        assert_eq!(removal.join().unwrap().chunks, 1);
        let (_stream, pieces) = writing.join().unwrap();
        let mut read = vec![0; data.len()];
        assert!(engine.locate(&chunk).unwrap().is_some(), "the stream has a piece of a chunk that is not stored");
        engine.read(&pieces, 0, &mut read, true).unwrap();
        assert_eq!(read, data);
    });
}

#[test]
fn a_4_what_a_filter_denied_before_another_stored_it_is_found_by_the_claim() {
    let disk = created();
    let chain = ["bloom", "chunk-index"].map(String::from).into();
    let settings = Settings { workers: 1, background: false, chain, ..Settings::default() };
    let engine = Engine::open(Arc::new(disk), settings, Mode::ReadWrite, "test").unwrap();
    engine.filters.bloom().unwrap().set_complete();
    let chunk = written(&engine, &[7; 1000]);
    engine.flush().unwrap();
    let mut claims = Vec::new();
    engine.claims.claim(&[Wanted { fingerprint: chunk, search: Search::Denied }], &mut claims).unwrap();
    assert_eq!(claims, [Claim::Known(engine.locate(&chunk).unwrap().unwrap())]);
    assert_eq!(engine.claims.count(), 0);
}

#[test]
fn a_4_while_a_merge_is_committed_no_catalog_comes_into_the_cache() {
    let disk = SimulatedGround::new(1);
    let ground: Arc<dyn Ground> = Arc::new(disk.clone());
    let frame_bytes = 4 << 10;
    let descriptor =
        Descriptor { container_bytes: 64 << 10, frame_bytes, sequential_frame_bytes: frame_bytes, ..Descriptor::new().unwrap() };
    Engine::create(&ground, &descriptor).unwrap();
    let noise = |at: u32| onefold_ground::checksum(&at.to_le_bytes()).to_le_bytes();
    let data: Vec<u8> = (0..64 << 10).flat_map(noise).collect();
    let write = |engine: &Arc<Engine>| {
        engine.stream().write(&data, true, Hints::default(), &mut Vec::new()).unwrap();
        engine.flush().unwrap();
    };
    let found = |engine: &Engine| engine.filters.statistics().into_iter().find(|one| one.filter == "container-cache").unwrap().strong_maybe;
    let engine = open(&disk);
    write(&engine);
    engine.close().unwrap();
    drop(engine);
    let engine = open(&disk);
    let merging = engine.filters.merging();
    write(&engine);
    assert_eq!(found(&engine), 0);
    drop(merging);
    write(&engine);
    assert!(found(&engine) > 0);
}

#[test]
fn m0_19_what_is_named_twice_is_removed_once() {
    let (engine, _, chunk) = with_an_unused_chunk();
    let (mut stream, content) = (engine.stream(), b"a recipe");
    let piece = stream.write_metadata(MetadataKind::Recipe, content, &[chunk]).unwrap();
    drop(stream);
    engine.flush().unwrap();
    let Piece::Chunk { fingerprint, address, .. } = piece else { unreachable!("metadata has an address") };
    let candidate = Candidate { address, fingerprint };
    let inside = Piece::Chunk { fingerprint: chunk, address, offset: 0, length: 0 };
    let removed = engine.remove_unused(&[candidate, candidate], &|_, _| Ok(vec![inside]), &|| true).unwrap();
    // Once, or more references of the chunk inside would go than it has, and it would stay.
    assert_eq!((removed.chunks, engine.chunks()), (2, 0), "{removed:?}");
}

#[test]
fn m0_19_a_tree_goes_in_one_batch_but_for_what_somebody_asks_for_meanwhile() {
    for is_wanted in [false, true] {
        let (engine, _, chunk) = with_an_unused_chunk();
        let mut stream = engine.stream();
        let mut metadata = |content: &[u8], of| match stream.write_metadata(MetadataKind::Recipe, content, &[of]).unwrap() {
            Piece::Chunk { fingerprint, address, .. } => Candidate { address, fingerprint },
            Piece::Zeros { .. } => unreachable!("metadata has an address"),
        };
        let inner = metadata(b"inner", chunk);
        let root = metadata(b"root", inner.fingerprint);
        drop(stream);
        engine.flush().unwrap();
        let (batches, is_asked) = (engine.log.end(), AtomicBool::new(false));
        let references = |_, content: &[u8]| {
            let is_root = content == b"root";
            // The guess reads it first, then the removal itself, which watches it by then.
            if !is_root && is_wanted && is_asked.swap(true, Ordering::SeqCst) {
                engine.reclaiming.watch().touch([&inner.fingerprint]);
            }
            let fingerprint = if is_root { inner.fingerprint } else { chunk };
            Ok(vec![Piece::Chunk { fingerprint, address: root.address, offset: 0, length: 0 }])
        };
        let removed = engine.remove_unused(&[root], &references, &|| true).unwrap();
        assert!(engine.log.end() > batches);
        if is_wanted {
            // What somebody asked for keeps what it needs.
            assert_eq!((removed.chunks, removed.in_use, engine.chunks()), (1, 0, 2), "{removed:?}");
            assert_eq!(removed.released, [inner]);
            assert!(engine.locate(&chunk).unwrap().is_some());
        } else {
            assert_eq!((removed.chunks, engine.chunks()), (3, 0), "{removed:?}");
            assert_eq!((removed.released, removed.left), (Vec::new(), Vec::new()));
        }
        // Stored again, it counts from nothing.
        let again = written(&engine, &[7; 1000]);
        engine.flush().unwrap();
        assert!(engine.locate(&again).unwrap().is_some());
    }
}

#[test]
fn m0_19_a_container_that_is_merged_while_a_removal_guesses_is_looked_into_again() {
    let disk = SimulatedGround::new(1);
    let ground: Arc<dyn Ground> = Arc::new(disk.clone());
    Engine::create(&ground, &Descriptor { container_bytes: 1 << 20, ..Descriptor::new().unwrap() }).unwrap();
    let engine = open(&disk);
    // More than a container, of what does not compress.
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    let chunks: Vec<Fingerprint> = (0..40).map(|_| written(&engine, &[(); 60_000].map(|()| random()))).collect();
    engine.flush().unwrap();
    let [dead, data] = [5, 3].map(|at| Candidate { fingerprint: chunks[at], address: engine.locate(&chunks[at]).unwrap().unwrap() });
    let container = engine.storage.unit_of(data.address.origin()).unwrap();
    assert_eq!(engine.remove_unused(&[dead], &|_, _| Ok(Vec::new()), &|| true).unwrap().chunks, 1);
    assert!(engine.containers.as_ref().unwrap().is_sealed(container));
    let piece = engine.stream().write_metadata(MetadataKind::Recipe, b"a recipe", &[]).unwrap();
    engine.flush().unwrap();
    let Piece::Chunk { fingerprint, address, .. } = piece else { unreachable!("metadata has an address") };
    // The guess looks into containers in their order, so it has looked into the first one by now.
    let is_merged = AtomicBool::new(false);
    let references = |_, _: &[u8]| {
        if !is_merged.swap(true, Ordering::SeqCst) {
            // The last chunk comes first: every slot has another number.
            let rank = |address: Address| u64::from(u16::MAX - address.slot());
            engine.merge_containers(&[container], &rank).unwrap().unwrap();
        }
        Ok(Vec::new())
    };
    let removed = engine.remove_unused(&[data, Candidate { fingerprint, address }], &references, &|| true).unwrap();
    assert_eq!((removed.chunks, removed.damaged.len()), (2, 0), "{removed:?}");
    let file = engine.storage.unit_of(data.address.origin()).unwrap();
    assert_ne!(file, container);
    let slots = engine.storage.chunks_of(file).unwrap();
    let dead = engine.dead_slots(file).unwrap();
    let found: Vec<Fingerprint> =
        slots.iter().enumerate().filter(|(number, _)| dead.contains(*number)).map(|(_, (_, slot))| slot.fingerprint).collect();
    assert_eq!(found, [data.fingerprint]);
}
