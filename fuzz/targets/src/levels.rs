//! Levelled stores (`docs/format.md` 5.13): a table, a manifest or a record with any bytes. They are refused, or what
//! is read is what was stored. With checksums that are right again, nothing is promised but an end without a panic.

use onefold_ground::profile::Profile;
use onefold_ground::{Access, Ground, SimulatedGround, checksum};
use onefold_oplog::{Effects, Partition, PartitionClass, Position, Record};
use onefold_storage::{
    Address, CHUNKS_HELD, ChunkKind, ChunkStore, Compression, LevelsOptions, LevelsStore, NewChunk, Result, Scope, TABLE_WRITTEN,
    stored_chunks,
};
use std::sync::Arc;

const HEADER_BYTES: usize = 96;
const PAGE_BYTES: usize = 4096;
const CHUNKS: u8 = 100;

fn options() -> LevelsOptions {
    LevelsOptions { memtable_bytes: 32 << 10, compression: Compression::Lz4, frame_bytes: 1 << 10, ..LevelsOptions::default() }
}

fn content(number: u8) -> Vec<u8> {
    vec![number; 30 + usize::from(number)]
}

/// The first byte chooses what is changed, and whether checksums are made right. Then come pairs of a place (u16) and a
/// byte, or the payload of a record.
pub fn run(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    match choice & 3 {
        0 => changed("0000000100000000.table", bytes, choice & 4 != 0),
        1 => changed("manifest", bytes, choice & 4 != 0),
        kind => record(if kind == 2 { CHUNKS_HELD } else { TABLE_WRITTEN }, bytes),
    }
}

/// Makes a store with a table of a hundred chunks.
fn made() -> (SimulatedGround, Vec<Address>) {
    let ground = SimulatedGround::new(1);
    let all = || -> Result<Vec<Address>> {
        LevelsStore::create(&ground, "levels", 1, &options())?;
        let store = open(&ground)?;
        let contents: Vec<Vec<u8>> = (0..CHUNKS).map(content).collect();
        let algorithm = options().fingerprint;
        let chunk = |data| NewChunk { fingerprint: algorithm.fingerprint(data), kind: ChunkKind::Data, data };
        let chunks: Vec<NewChunk<'_>> = contents.iter().map(|data| chunk(data)).collect();
        let addresses = store.clone().new_writer().append(&chunks)?;
        let prepared = store.prepare(Scope::Everything)?;
        store.committed(prepared, Position(0), Position(512));
        let _ = store.checkpoint_before(Position(512))?;
        let prepared = store.prepare(Scope::FullFrames)?;
        store.committed(prepared, Position(512), Position(1024));
        store.leave();
        Ok(addresses)
    };
    let addresses = all().expect("nothing fails");
    (ground, addresses)
}

fn open(ground: &SimulatedGround) -> Result<Arc<LevelsStore>> {
    let profile = Arc::new(Profile::default());
    let store = LevelsStore::open(Arc::new(ground.clone()), "levels", 1, 1, options(), profile, Access::ReadWrite)?;
    store.recovered(Position(1024), Position(1024))?;
    Ok(store)
}

fn changed(name: &str, changes: &[u8], makes_right: bool) {
    let (ground, addresses) = made();
    let path = format!("levels/0000/{name}");
    let file = ground.open(&path, Access::ReadWrite).expect("it was written");
    let mut bytes = vec![0; file.len().expect("it is open") as usize];
    file.read_at(0, &mut bytes).expect("it is there");
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
        bytes[at] = change[2];
    }
    if makes_right {
        make_right(name, &mut bytes);
    }
    file.write_at(0, &bytes).expect("the simulated disk takes it");
    let Ok(store) = open(&ground) else { return };
    let algorithm = options().fingerprint;
    for (number, address) in (0..CHUNKS).zip(addresses) {
        let mut slices = Vec::new();
        let loaded = store.load(&[(address, algorithm.fingerprint(&content(number)))], &mut slices);
        assert!(loaded.is_err() || makes_right || slices[0][..] == content(number)[..]);
    }
    for unit in store.units().expect("they are known").iter() {
        let _ = store.chunks_of(unit);
        let _ = store.verify(unit, true, &mut Default::default(), &mut |_| {});
    }
    while store.compact(&|| true).unwrap_or(false) {}
}

/// Writes the checksums of the header and the pages, or of the manifest, again.
fn make_right(name: &str, bytes: &mut [u8]) {
    let mut right = |from: usize, to: usize, place: u64| {
        if to + 8 <= bytes.len() && from <= to {
            let sum = checksum(&bytes[from..to]) ^ place;
            bytes[to..to + 8].copy_from_slice(&sum.to_le_bytes());
        }
    };
    let place = |at: usize| checksum(&[(1u64 << 32).to_le_bytes(), (at as u64).to_le_bytes()].concat());
    if name == "manifest" {
        let length = bytes.len();
        let sum = checksum(&bytes[..length - 8]);
        bytes[length - 8..].copy_from_slice(&sum.to_le_bytes());
        return;
    }
    right(0, HEADER_BYTES - 8, 0);
    let pages = usize::from(CHUNKS).div_ceil((PAGE_BYTES - 10) / (options().fingerprint.digest_bytes() + 19));
    right(HEADER_BYTES, HEADER_BYTES + 64 + 8 * pages, place(HEADER_BYTES));
    (1..=pages).for_each(|page| right(page * PAGE_BYTES, (page + 1) * PAGE_BYTES - 8, place(page * PAGE_BYTES)));
}

fn record(kind: u8, bytes: &[u8]) {
    let partition = Partition { class: PartitionClass::Container, number: 0 };
    let records = [Record { kind, partition, payload: bytes.to_vec() }];
    let digest_bytes = options().fingerprint.digest_bytes();
    let (mut chunks, mut notes) = (Vec::new(), Vec::new());
    let is_read = stored_chunks(&records[0], digest_bytes, &mut chunks, &mut notes).is_ok();
    let ground = SimulatedGround::new(1);
    LevelsStore::create(&ground, "levels", 1, &options()).expect("nothing fails");
    let profile = Arc::new(Profile::default());
    let store = LevelsStore::open(Arc::new(ground.clone()), "levels", 1, 1, options(), profile, Access::ReadWrite).expect("it is empty");
    let effects = Effects { replayed: &records, ..Effects::default() };
    let is_applied = store.apply(Position(512), &effects).is_ok();
    let _ = store.recovered(Position(0), Position(512));
    assert!(is_read || !is_applied, "an index knows what the store takes");
}
