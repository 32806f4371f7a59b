//! Entries as stored: a key and an opaque value under a map (`docs/format.md` sections 7 and 7.18).

use crate::error::{Result, SpaceError};
use crate::record::VERSION;
use onefold_engine::EngineError;

/// Longest key of an entry, bytes.
pub const MAX_ENTRY_KEY_BYTES: usize = 300;
/// Longest value of an entry, bytes.
pub const MAX_ENTRY_VALUE_BYTES: usize = 64 << 10;

/// First byte of the keys of entries.
pub(crate) const ENTRIES: u8 = b'E';
/// The letter and the map.
const PREFIX_BYTES: usize = 5;
/// The value of an entry that hides one in a layer below. No other value is as short.
const TOMBSTONE: [u8; 1] = [VERSION];

/// The key of an entry in a map.
pub(crate) fn entry_key(map: u32, key: &[u8]) -> Vec<u8> {
    [&[ENTRIES], map.to_be_bytes().as_slice(), key].concat()
}

/// Returns the end of the keys of a map's entries.
pub(crate) fn entries_end(map: u32) -> Vec<u8> {
    map.checked_add(1).map_or_else(|| vec![ENTRIES + 1], |next| entry_key(next, &[]))
}

/// Returns the key of an entry behind the letter and the map.
pub(crate) fn key_in_map(key: &[u8]) -> Result<&[u8]> {
    key.get(PREFIX_BYTES..)
        .ok_or_else(|| SpaceError::Damaged { object: format!("the key {key:02x?} of an entry"), reason: "it has no map".into() })
}

/// Encodes the value of an entry. `None`: one that hides an entry in a layer below.
pub(crate) fn encode_entry(value: Option<&[u8]>) -> Vec<u8> {
    [&TOMBSTONE, value.unwrap_or_default()].concat()
}

/// Returns whether an encoded value hides an entry in a layer below.
pub(crate) fn is_tombstone(value: &[u8]) -> bool {
    value == TOMBSTONE
}

/// Reads the value of an entry that is no tombstone.
pub(crate) fn decode_entry(key: &[u8], mut value: Vec<u8>) -> Result<Vec<u8>> {
    let damaged = |reason| SpaceError::Damaged { object: format!("the entry {key:02x?}"), reason };
    match value.first() {
        Some(&VERSION) => Ok(value.split_off(1)),
        Some(version) => Err(damaged(format!("its version is {version}"))),
        None => Err(damaged("it has no version".into())),
    }
}

/// Refuses entries that cannot be stored. An empty value would be a tombstone.
pub(crate) fn check_entry(key: &[u8], value: Option<&[u8]>) -> Result<()> {
    let why = if key.len() > MAX_ENTRY_KEY_BYTES {
        format!("its key has {} bytes; the limit is {MAX_ENTRY_KEY_BYTES} bytes", key.len())
    } else if let Some(value) = value.filter(|value| value.is_empty() || value.len() > MAX_ENTRY_VALUE_BYTES) {
        format!("its value has {} bytes; it must have from 1 byte to {MAX_ENTRY_VALUE_BYTES} bytes", value.len())
    } else {
        return Ok(());
    };
    Err(EngineError::Invalid { what: "entry".into(), why }.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(key: Vec<u8>, value: Vec<u8>) {
            let _ = key_in_map(&key);
            let _ = decode_entry(&key, value);
        }

        #[test]
        fn an_entry_is_read_as_written(map: u32, key in proptest::collection::vec(any::<u8>(), 0..20), value in proptest::collection::vec(any::<u8>(), 1..20)) {
            let stored = entry_key(map, &key);
            prop_assert_eq!(key_in_map(&stored).unwrap(), &key[..]);
            prop_assert!(entry_key(map, &[]) <= stored && stored < entries_end(map));
            let encoded = encode_entry(Some(&value));
            prop_assert!(!is_tombstone(&encoded));
            prop_assert_eq!(decode_entry(&key, encoded).unwrap(), value);
        }
    }

    #[test]
    fn entries_that_are_too_long_or_look_like_tombstones_are_refused() {
        assert!(is_tombstone(&encode_entry(None)));
        check_entry(&[7; MAX_ENTRY_KEY_BYTES], Some(&[0; MAX_ENTRY_VALUE_BYTES])).unwrap();
        check_entry(&[], None).unwrap();
        assert!(check_entry(&[7; MAX_ENTRY_KEY_BYTES + 1], None).is_err());
        assert!(check_entry(&[], Some(&[])).is_err());
        assert!(check_entry(&[], Some(&[0; MAX_ENTRY_VALUE_BYTES + 1])).is_err());
    }
}
