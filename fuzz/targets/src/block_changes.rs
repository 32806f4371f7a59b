//! Records of the log for the indexes (`docs/format.md` section 4): ObjectsWritten and ChunkDeltas. Any bytes are
//! refused, or spell changes that are the same when written and read again.

use onefold_engine::decode_deltas;
use onefold_ground::wire::{put_signed, put_varint};
use onefold_index::{decode_changes, encode_changes};

/// The first byte chooses record and length of digests; what follows is read as it.
pub fn run(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    match choice % 3 {
        0 => objects(u16::from(choice / 3), bytes),
        1 => deltas(bytes, 32),
        _ => deltas(bytes, 20),
    }
}

fn objects(partition: u16, bytes: &[u8]) {
    let Ok(changes) = decode_changes(partition, bytes) else { return };
    let again = encode_changes(&changes);
    let read: Vec<_> =
        again.iter().flat_map(|(partition, payload)| decode_changes(*partition, payload).expect("changes are read as written")).collect();
    assert_eq!(read, changes);
}

fn deltas(bytes: &[u8], digest_bytes: usize) {
    let Ok(deltas) = decode_deltas(bytes, digest_bytes) else { return };
    let mut again = Vec::new();
    put_varint(&mut again, deltas.len() as u64);
    for (fingerprint, change) in &deltas {
        again.extend_from_slice(fingerprint.digest(digest_bytes));
        put_signed(&mut again, *change);
    }
    assert_eq!(decode_deltas(&again, digest_bytes), Ok(deltas));
}
