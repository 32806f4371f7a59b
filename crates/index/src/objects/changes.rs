//! Changes of objects and their record in the log: ObjectsWritten (`docs/format.md` section 4, kind 6).

use onefold_ground::wire::{Reader, WireError, put_bytes, put_varint};
use onefold_oplog::Change;

/// Smallest encoding of an object: an empty key and no value.
const OBJECT_MIN_BYTES: usize = 2;

/// Encodes the record payloads for `changes`: one for each partition that has any, with its objects in the order of the
/// changes.
pub fn encode_changes(changes: &[Change]) -> Vec<(u16, Vec<u8>)> {
    let mut partitions: Vec<u16> = changes.iter().map(|(partition, ..)| *partition).collect();
    partitions.sort_unstable();
    partitions.dedup();
    partitions
        .into_iter()
        .map(|partition| {
            let own = || changes.iter().filter(|(of, ..)| *of == partition);
            let mut payload = Vec::new();
            put_varint(&mut payload, own().count() as u64);
            for (_, key, value) in own() {
                put_bytes(&mut payload, key);
                payload.push(u8::from(value.is_some()));
                if let Some(value) = value {
                    put_bytes(&mut payload, value);
                }
            }
            (partition, payload)
        })
        .collect()
}

/// Decodes the payload of a record for `partition`.
pub fn decode_changes(partition: u16, payload: &[u8]) -> Result<Vec<Change>, WireError> {
    let mut reader = Reader::new(payload);
    let count = reader.count("objects", OBJECT_MIN_BYTES)?;
    let mut changes = Vec::new();
    for _ in 0..count {
        let key = reader.bytes()?.to_vec();
        let offset_bytes = reader.position();
        let value = match reader.u8()? {
            0 => None,
            1 => Some(reader.bytes()?.to_vec()),
            value => return Err(WireError::OutOfRange { what: "object present", value: u64::from(value), offset_bytes }),
        };
        changes.push((partition, key, value));
    }
    reader.end()?;
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn changes_are_read_as_written(changes: Vec<(u16, Vec<u8>, Option<Vec<u8>>)>) {
            let changes: Vec<Change> = changes.into_iter().map(|(partition, key, value)| (partition % 3, key, value)).collect();
            let mut expected = changes.clone();
            expected.sort_by_key(|(partition, ..)| *partition);
            let read: Vec<Change> =
                encode_changes(&changes).iter().flat_map(|(partition, payload)| decode_changes(*partition, payload).unwrap()).collect();
            prop_assert_eq!(read, expected);
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = decode_changes(0, &bytes);
        }
    }
}
