//! Containers (`docs/format.md` section 5): header, footer, catalog, forward and the records of the log. Any bytes are
//! refused, or are a structure that is the same when written and read again, and whose chunks lie where addresses can
//! name them.

use onefold_ground::checksum;
use onefold_ground::wire::Reader;
use onefold_oplog::{Partition, PartitionClass, Record};
use onefold_storage::{
    CONTAINER_CHECKPOINT, CONTAINERS_MERGED, Catalog, ContainerId, ContainerRecord, FOOTER_BYTES, FORWARD_BYTES, FRAME_COMMITTED, Footer,
    Forward, HEADER_BYTES, Header, MAX_SLOTS, Origin,
};

/// The first byte chooses structure and length of digests; what follows is read as it.
pub fn run(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    let digest_bytes = if choice & 1 == 0 { 32 } else { 20 };
    match choice >> 1 & 15 {
        0 => header(bytes),
        1 => footer(bytes),
        2 | 3 => catalog(bytes, digest_bytes, false),
        8 | 11 | 14 => catalog(bytes, digest_bytes, true),
        9 | 12 | 15 => forward(bytes),
        10 | 13 => record(CONTAINERS_MERGED, bytes, digest_bytes),
        kind => record(FRAME_COMMITTED + kind - 4, bytes, digest_bytes),
    }
}

fn header(bytes: &[u8]) {
    for bytes in [bytes.to_vec(), with_checksum_at_the_end(bytes, HEADER_BYTES)] {
        if let Ok(header) = Header::decode(&bytes) {
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }
}

fn footer(bytes: &[u8]) {
    for bytes in [bytes.to_vec(), with_checksum_at_the_end(bytes, FOOTER_BYTES)] {
        if let Ok(footer) = Footer::decode(&bytes) {
            assert_eq!(footer.encode()[..], bytes);
        }
    }
}

/// So many bytes, whose last eight are the checksum of those before.
fn with_checksum_at_the_end(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(length, 0);
    let sum = checksum(&bytes[..length - 8]);
    bytes[length - 8..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn forward(bytes: &[u8]) {
    let mut content = bytes.to_vec();
    content.resize(FORWARD_BYTES, 0);
    let sum = checksum(&content[..48]);
    content[48..56].copy_from_slice(&sum.to_le_bytes());
    for bytes in [bytes, &content] {
        if let Ok(forward) = Forward::decode(bytes) {
            assert!(forward.encode()[..] == *bytes);
            assert_ne!(forward.container, forward.target);
        }
    }
}

fn catalog(bytes: &[u8], digest_bytes: usize, is_merged: bool) {
    let decode = if is_merged { Catalog::decode_merged } else { Catalog::decode };
    let Ok(catalog) = decode(&mut Reader::new(bytes), digest_bytes) else { return };
    assert_eq!(catalog.homes.is_some(), is_merged);
    for slot in 0..catalog.slots.len() {
        assert_eq!(catalog.position(catalog.address(slot)), Some(slot));
        assert!(catalog.origins().any(|origin| origin == catalog.address(slot).origin()));
    }
    assert!(catalog.slots.len() <= MAX_SLOTS);
    assert!(catalog.memory_bytes() <= 4096 + 8 * bytes.len(), "{} bytes of {}", catalog.memory_bytes(), bytes.len());
    let mut slots = 0;
    for frame in &catalog.frames {
        let own = catalog.slots_of(frame);
        assert_eq!(own.len(), frame.slots as usize);
        assert_eq!(own.iter().map(|slot| u64::from(slot.length_bytes)).sum::<u64>(), u64::from(frame.raw_bytes));
        assert!(frame.end_bytes() <= catalog.end_bytes());
        slots += own.len();
    }
    assert_eq!(slots, catalog.slots.len());
    let mut again = Vec::new();
    catalog.encode(digest_bytes, &mut again);
    let mut reader = Reader::new(&again);
    assert_eq!(decode(&mut reader, digest_bytes), Ok(catalog));
    assert_eq!(reader.end(), Ok(()));
}

fn record(kind: u8, payload: &[u8], digest_bytes: usize) {
    assert!(kind <= CONTAINER_CHECKPOINT || kind == CONTAINERS_MERGED);
    // The partition is the container's, so that this check of the reader does not stop everything here.
    let id = |at: usize| payload.get(at..at + 8).and_then(|bits| bits.try_into().ok()).map_or(0, u64::from_le_bytes);
    // A merge that left nothing names what went behind two counts.
    let container = if kind == CONTAINERS_MERGED && id(0) == 0 { id(18) } else { id(0) };
    let partition = Partition { class: PartitionClass::Container, number: ContainerId::from_bits(container).partition() };
    let record = Record { kind, partition, payload: payload.to_vec() };
    let Ok(read) = ContainerRecord::decode(&record, digest_bytes) else { return };
    assert_eq!(read.container().bits(), container);
    for (_, address, _) in read.chunks() {
        assert_eq!(address.origin(), Origin::from(read.container()));
        assert!(usize::from(address.slot()) < MAX_SLOTS);
    }
    assert_eq!(ContainerRecord::decode(&read.encode(digest_bytes), digest_bytes).ok(), Some(read));
}
