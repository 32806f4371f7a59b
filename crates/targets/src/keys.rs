//! Keys of the objects: a letter, then the number of a target or of a volume, big-endian.

/// The partition of all these objects.
pub(crate) const PARTITION: u16 = 0;
/// First byte of the keys of targets.
pub(crate) const TARGET: u8 = b'i';
/// First byte of the keys of reservations.
pub(crate) const RESERVATIONS: u8 = b'r';
/// First byte of the keys of erasures.
pub(crate) const SANITIZE: u8 = b'e';

/// Returns the key of a target, or of an object of a volume.
pub(crate) fn key(prefix: u8, number: u32) -> Vec<u8> {
    [&[prefix], number.to_be_bytes().as_slice()].concat()
}

/// Returns the number in a key. `None`: the key has the wrong length.
pub(crate) fn number(key: &[u8]) -> Option<u32> {
    key.get(1..)?.try_into().ok().map(u32::from_be_bytes)
}
