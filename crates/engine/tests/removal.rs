//! Chunks that nothing refers to are removed. Chunks in somebody's hands stay (M0.19).

mod common;

use common::{DEFAULT_CHAIN, bytes, descriptor, open, read, refer, references, settings, store, unused, write};
use onefold_engine::{Cursor, Engine, MetadataKind, Piece, Removed, Transaction, encode_pieces};
use onefold_ground::Ground;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SLICE: usize = 16 << 10;

fn nothing_inside(_: onefold_storage::ChunkKind, _: &[u8]) -> Result<Vec<Piece>, String> {
    Ok(Vec::new())
}

fn remove(engine: &Engine) -> Removed {
    engine.remove_unused(&unused(engine), &nothing_inside, &|| false).unwrap()
}

/// Writes a run without staying in flight.
fn written(engine: &Arc<Engine>, data: &[u8]) -> (Vec<Piece>, u64) {
    let mut stream = engine.stream();
    let pieces = write(&mut stream, data, SLICE);
    (pieces, stream.added_bytes())
}

#[test]
fn m0_19_what_nothing_refers_to_goes_and_the_rest_stays() {
    for chain in [DEFAULT_CHAIN, "bloom,zero-chunk,chunk-index,byte-compare", "chunk-index"] {
        let ground = store(&descriptor());
        let engine = open(&ground, settings(chain));
        let [kept, lost] = [1, 2].map(|seed| bytes(seed, 300_000));
        let (kept_pieces, _) = written(&engine, &kept);
        let (lost_pieces, _) = written(&engine, &lost);
        refer(&engine, 1, &kept_pieces, 1);
        refer(&engine, 2, &lost_pieces, 1);
        assert_eq!(remove(&engine).chunks, 0, "{chain}");
        refer(&engine, 2, &lost_pieces, -1);
        let removed = remove(&engine);
        assert_eq!((removed.bytes, removed.was_busy), (lost.len() as u64, false), "{chain}");
        assert_eq!(engine.statistics().unwrap().dead_bytes, lost.len() as u64);
        assert_eq!(unused(&engine), []);
        // After a crash too.
        drop(engine);
        let engine = open(&ground, settings(chain));
        assert_eq!(read(&engine, &kept_pieces).unwrap(), kept);
        let (_, added) = written(&engine, &kept);
        assert_eq!(added, 0, "{chain}: what is kept is a duplicate");
        let (again, added) = written(&engine, &lost);
        assert_eq!(added, lost.len() as u64, "{chain}: what was removed is new, whatever old catalogs say");
        refer(&engine, 3, &again, 1);
        assert_eq!(read(&engine, &again).unwrap(), lost);
        assert_eq!(remove(&engine).chunks, 0);
        let mut sizes = 0;
        engine.for_each_dead(&mut |_, dead| sizes += dead.bytes).unwrap();
        assert_eq!(sizes, lost.len() as u64, "the dead slots are those of the first time");
    }
}

#[test]
fn m0_19_what_is_in_flight_stays_until_it_is_not() {
    let engine = open(&store(&descriptor()), settings(DEFAULT_CHAIN));
    let data = bytes(3, 100_000);
    let (pieces, _) = written(&engine, &data);
    refer(&engine, 1, &pieces, 1);
    let mut stream = engine.stream();
    let again = write(&mut stream, &data, SLICE);
    refer(&engine, 1, &pieces, -1);
    assert!(remove(&engine).was_busy, "the stream may hold pieces");
    refer(&engine, 2, &again, 1);
    stream.rest();
    assert_eq!(remove(&engine), Removed::default());
    assert_eq!(read(&engine, &again).unwrap(), data);
    refer(&engine, 2, &again, -1);
    assert_eq!(remove(&engine).bytes, data.len() as u64);
}

#[test]
fn m0_19_a_removal_counts_what_was_submitted_before_it_and_is_not_durable_yet() {
    let engine = open(&store(&descriptor()), settings(DEFAULT_CHAIN));
    let data = bytes(3, 100_000);
    let (pieces, _) = written(&engine, &data);
    engine.flush().unwrap();
    let candidates = unused(&engine);
    engine.submit(Transaction { changes: Vec::new(), references: references(&pieces, 1) }).unwrap();
    assert_eq!(engine.remove_unused(&candidates, &nothing_inside, &|| false).unwrap(), Removed::default());
    assert_eq!(written(&engine, &data).1, 0, "it is stored still");
}

#[test]
fn m0_19_what_somebody_asks_for_while_a_removal_waits_stays() {
    let engine = open(&store(&descriptor()), settings(DEFAULT_CHAIN));
    let [asked, other] = [4, 5].map(|seed| bytes(seed, 100_000));
    let (pieces, _) = written(&engine, &asked);
    written(&engine, &other);
    engine.flush().unwrap();
    let candidates = unused(&engine);
    let older = engine.in_flight();
    // It is asked before it looks below the candidates, and then while it waits.
    let asked_times = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| {
            engine.remove_unused(&candidates, &nothing_inside, &|| {
                asked_times.fetch_add(1, Ordering::SeqCst);
                true
            })
        });
        while asked_times.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        // Younger than the removal, so not waited for.
        let mut stream = engine.stream();
        assert_eq!(write(&mut stream, &asked, SLICE), pieces);
        drop(older);
        let removed = removal.join().unwrap().unwrap();
        assert_eq!(removed.bytes, other.len() as u64);
        assert!(removed.in_use > 0, "not all that is unused was removed");
        refer(&engine, 1, &pieces, 1);
    });
    assert_eq!(read(&engine, &pieces).unwrap(), asked);
    assert_eq!(written(&engine, &asked).1, 0);
}

#[test]
fn m0_19_a_removed_metadata_chunk_gives_up_its_references_in_the_same_batch() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let data = bytes(6, 50_000);
    let mut stream = engine.stream();
    let pieces = write(&mut stream, &data, SLICE);
    let mut content = Vec::new();
    encode_pieces(&pieces, engine.digest_bytes(), &mut content);
    let references: Vec<_> = pieces.iter().filter_map(Piece::fingerprint).collect();
    stream.write_metadata(MetadataKind::Recipe, &content, &references).unwrap();
    stream.rest();
    engine.flush().unwrap();
    // A metadata chunk that cannot be decoded stays, and so does what it refers to.
    let candidates = unused(&engine);
    assert_eq!(candidates.len(), 1, "only the metadata chunk is unused");
    let refused = engine.remove_unused(&candidates, &|_, _| Err("no".into()), &|| false).unwrap();
    assert_eq!((refused.chunks, refused.damaged.len()), (0, 1));
    let removed = engine.remove_unused(&candidates, &|_, _| Ok(pieces.clone()), &|| false).unwrap();
    assert_eq!(removed.chunks, 1);
    let mut released: Vec<_> = removed.released.iter().map(|chunk| chunk.fingerprint).collect();
    let mut expected = references.clone();
    expected.sort_unstable();
    expected.dedup();
    released.sort_unstable();
    assert_eq!(released, expected);
    drop(stream);
    drop(engine);
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    assert_eq!(remove(&engine).bytes, data.len() as u64);
    assert!(matches!(read(&engine, &pieces), Ok(read) if read == data), "the bytes are in their containers until these are merged");
}

#[test]
fn m0_19_nobody_waits_while_containers_are_read_and_what_is_asked_for_then_stays() {
    let engine = open(&store(&descriptor()), settings(DEFAULT_CHAIN));
    let data = bytes(8, 50_000);
    let mut stream = engine.stream();
    let piece = stream.write_metadata(MetadataKind::Recipe, b"one", &[]).unwrap();
    stream.rest();
    let (pieces, _) = written(&engine, &data);
    engine.flush().unwrap();
    let mut other = engine.stream();
    other.rest();
    let other = std::cell::RefCell::new(other);
    let looks = |_, _: &[u8]| {
        // This would wait for ever if the removal had reserved anything.
        let mut other = other.borrow_mut();
        assert_eq!(write(&mut other, &data, SLICE), pieces);
        assert_eq!(other.write_metadata(MetadataKind::Recipe, b"one", &[]).unwrap(), piece);
        Ok(Vec::new())
    };
    let removed = engine.remove_unused(&unused(&engine), &looks, &|| false).unwrap();
    assert_eq!((removed.chunks, removed.was_busy), (0, false));
    assert_eq!(removed.in_use, unused(&engine).len() as u64);
    refer(&engine, 1, &pieces, 1);
    other.borrow_mut().rest();
    assert_eq!(remove(&engine).chunks, 1, "the metadata chunk, which nobody refers to");
    assert_eq!(read(&engine, &pieces).unwrap(), data);
}

#[test]
fn m0_19_a_damaged_page_of_the_index_keeps_its_chunks_and_no_others() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let data = bytes(9, 1_000_000);
    let (pieces, _) = written(&engine, &data);
    engine.flush().unwrap();
    let all = unused(&engine);
    engine.close().unwrap();
    drop(engine);
    let pages = ground.list("index/0000").unwrap().into_iter().find(|entry| entry.name.starts_with("pages-")).unwrap().name;
    ground.corrupt(&format!("index/0000/{pages}"), 100, 1).unwrap();
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    // The candidates are from before the damage, so some are in the damaged page.
    let removed = engine.remove_unused(&all, &nothing_inside, &|| false).unwrap();
    assert!(removed.damaged.len() == 1 && removed.damaged[0].contains("page 0"), "{:?}", removed.damaged);
    assert!(0 < removed.chunks && removed.chunks < all.len() as u64, "{} of {}", removed.chunks, all.len());
    // The search finds it.
    let mut damaged = Vec::new();
    engine.candidates(Cursor::default(), usize::MAX, &mut damaged).unwrap();
    assert!(damaged.len() == 1 && damaged[0].contains("page 0"), "{damaged:?}");
    assert_eq!(read(&engine, &pieces).unwrap(), data, "what is removed is in its container until that is merged");
}

#[test]
fn a_removal_that_finds_the_disk_full_is_done_behind_a_trim_of_the_log() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let data = bytes(7, 50_000);
    written(&engine, &data);
    engine.flush().unwrap();
    let candidates = unused(&engine);
    ground.fail_operation(0, std::io::ErrorKind::StorageFull);
    let removed = engine.remove_unused(&candidates, &nothing_inside, &|| false).unwrap();
    assert_eq!(removed.bytes, data.len() as u64);
    assert_eq!(written(&engine, &data).1, data.len() as u64, "it is stored anew, and its reservation is free");
}
