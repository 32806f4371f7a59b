//! In which order things are done that others rely on. Each test holds a lock, so that whoever it watches comes as far as to it and no further,
//! and looks what has been done by then.

use crate::{Descriptor, Engine, Hints, MetadataKind, Mode, Piece, Settings, Transaction};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{CrashPolicy, Ground, SimulatedGround};
use std::sync::Arc;
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

/// Whether `is_done` comes true by what `act` does before it has to wait for what `stop` holds.
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

/// Whether `act`, which cannot go on as long as `stop` is held, takes the watched chunk off the list before.
fn is_taken_off<T>(engine: &Engine, chunk: Fingerprint, stop: impl FnOnce() -> T, act: impl FnOnce() + Send) -> bool {
    engine.reclaiming.watch().begin([chunk]);
    let is_off = is_done_before(stop, act, || !engine.reclaiming.watch().is_watched(&chunk));
    engine.reclaiming.watch().end();
    is_off
}

#[test]
fn m0_5_a_chunk_leaves_the_reservations_only_when_the_index_has_it() {
    let engine = opened();
    let chunk = written(&engine, &[7; 1000]);
    let is_indexed = || {
        let mut entries = Vec::new();
        engine.index.lookup(&[chunk], &mut entries).unwrap();
        entries[0].is_some()
    };
    assert!(!is_indexed());
    assert!(is_done_before(|| engine.reservations.hold(&chunk), || engine.flush().unwrap(), is_indexed));
}

#[test]
fn m0_19_a_chunk_is_off_the_watch_list_before_a_stream_asks_for_its_reservation() {
    let (engine, data, chunk) = with_an_unused_chunk();
    let asks = || assert_eq!(written(&engine, &data), chunk);
    assert!(is_taken_off(&engine, chunk, || engine.reservations.hold(&chunk), asks));
}

#[test]
fn m0_19_what_a_metadata_chunk_refers_to_is_off_the_watch_list_before_the_chunk_is_reserved() {
    let (engine, _, chunk) = with_an_unused_chunk();
    let content = b"names a chunk";
    let name = engine.descriptor.fingerprint.metadata(content);
    let refers = || {
        engine.stream().write_metadata(MetadataKind::Recipe, content, &[chunk]).unwrap();
    };
    assert!(is_taken_off(&engine, chunk, || engine.reservations.hold(&name), refers));
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
    assert_eq!(engine.reservations.count(), 0);
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
