//! The objects of marked liveness, all in partition 0 (`docs/format.md` section 7.13). Everything in them can be made
//! again, so one that is missing costs time. One that cannot be read keeps everything: nobody knows then what changed.

use crate::liveness::reference::Group;
use crate::{Change, EngineError, Result};
use onefold_ground::wire::{Reader, WireError, put_varint};
use onefold_index::ObjectIndex;
use onefold_oplog::Position;
use std::collections::BTreeMap;

const PARTITION: u16 = 0;
/// First byte of the keys of [`Changed`].
const CHANGED: u8 = b'u';
/// First byte of the keys of [`Saved`].
const SAVED: u8 = b'f';
/// Key of [`Swept`].
const SWEPT: &[u8] = b"w";
const VERSION: u8 = 1;
/// Objects read at a time.
const PAGE: usize = 512;

/// When a group changed last: positions of the log at or before the start of the batch. Only
/// [`note`](crate::Liveness::note) writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// A reference was added.
    pub(crate) grown: Position,
    /// A reference was dropped.
    pub(crate) dropped: Position,
}

/// How far the marks of a file can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// They are all that the group needs, and all that they lead to has marks too.
    Whole = 0,
    /// Something could not be read. All that the group needs has marks, and something else may have some.
    Enough = 1,
    /// Something could not be read, so something that the group needs may have no mark. Nothing may be removed.
    Lacking = 2,
}

/// The mark file of a group. Only a run writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Saved {
    /// The marks are those as of this position.
    pub(crate) position: Position,
    /// Length of the file.
    pub(crate) length_bytes: u64,
    pub(crate) trust: Trust,
}

/// How far the last run swept. Only a run writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    /// For each partition, the first number of a container from which on everything has to be swept.
    pub(crate) frontier: BTreeMap<u16, u32>,
}

impl Changed {
    /// Reads the object of a group, if it has one.
    pub(crate) fn read(objects: &ObjectIndex, group: Group) -> Result<Option<Changed>> {
        read(objects, &key(CHANGED, group), |reader| Ok(Changed { grown: Position(reader.varint()?), dropped: Position(reader.varint()?) }))
    }

    pub(crate) fn put(self, group: Group) -> Change {
        let mut value = vec![VERSION];
        put_varint(&mut value, self.grown.0);
        put_varint(&mut value, self.dropped.0);
        (PARTITION, key(CHANGED, group), Some(value))
    }

    pub(crate) fn forget(group: Group) -> Change {
        (PARTITION, key(CHANGED, group), None)
    }
}

impl Saved {
    /// Reads all objects. Errors: they cannot be listed.
    pub(crate) fn read_all(objects: &ObjectIndex) -> Result<BTreeMap<Group, Saved>> {
        let mut all = BTreeMap::new();
        let mut from = vec![SAVED];
        loop {
            let page = objects.range(PARTITION, &from, &[SAVED + 1], PAGE)?;
            for (key, value) in &page {
                let group = key.get(1..).and_then(|group| group.try_into().ok()).map(|group| Group::from_bits(u64::from_be_bytes(group)));
                let saved = decode(value, Saved::decode);
                let (Some(group), Ok(saved)) = (group, saved) else {
                    return Err(EngineError::Inconsistent { why: "the object index has an unreadable object of marks".to_owned() });
                };
                all.insert(group, saved);
            }
            match page.last() {
                Some((last, _)) if page.len() == PAGE => {
                    from.clone_from(last);
                    from.push(0);
                }
                _ => return Ok(all),
            }
        }
    }

    fn decode(reader: &mut Reader<'_>) -> std::result::Result<Saved, WireError> {
        let (position, length_bytes) = (Position(reader.varint()?), reader.varint()?);
        let offset_bytes = reader.position();
        let trust = match reader.u8()? {
            0 => Trust::Whole,
            1 => Trust::Enough,
            2 => Trust::Lacking,
            value => return Err(WireError::OutOfRange { what: "state of marks", value: value.into(), offset_bytes }),
        };
        Ok(Saved { position, length_bytes, trust })
    }

    pub(crate) fn put(self, group: Group) -> Change {
        let mut value = vec![VERSION];
        put_varint(&mut value, self.position.0);
        put_varint(&mut value, self.length_bytes);
        value.push(self.trust as u8);
        (PARTITION, key(SAVED, group), Some(value))
    }

    pub(crate) fn forget(group: Group) -> Change {
        (PARTITION, key(SAVED, group), None)
    }
}

impl Swept {
    /// Reads the object. One that cannot be read is taken for none: then everything is swept.
    pub(crate) fn read(objects: &ObjectIndex) -> Swept {
        let found = read(objects, SWEPT, |reader| {
            let count = reader.count("swept partitions", 2)?;
            let one = |reader: &mut Reader<'_>| {
                let partition = reader.varint_to("partition", u64::from(u16::MAX))? as u16;
                Ok((partition, reader.varint_to("number of a container", u64::from(u32::MAX))? as u32))
            };
            (0..count).map(|_| one(reader)).collect()
        });
        Swept { frontier: found.ok().flatten().unwrap_or_default() }
    }

    pub(crate) fn put(&self) -> Change {
        let mut value = vec![VERSION];
        put_varint(&mut value, self.frontier.len() as u64);
        for (partition, number) in &self.frontier {
            put_varint(&mut value, u64::from(*partition));
            put_varint(&mut value, u64::from(*number));
        }
        (PARTITION, SWEPT.to_vec(), Some(value))
    }
}

fn key(kind: u8, group: Group) -> Vec<u8> {
    let mut key = vec![kind];
    key.extend_from_slice(&group.bits().to_be_bytes());
    key
}

fn read<T>(
    objects: &ObjectIndex,
    key: &[u8],
    parse: impl FnOnce(&mut Reader<'_>) -> std::result::Result<T, WireError>,
) -> Result<Option<T>> {
    let Some(value) = objects.get(PARTITION, key)? else { return Ok(None) };
    decode(&value, parse).map(Some).map_err(|source| EngineError::Wire { what: "object of marks".to_owned(), source })
}

fn decode<T>(value: &[u8], parse: impl FnOnce(&mut Reader<'_>) -> std::result::Result<T, WireError>) -> std::result::Result<T, WireError> {
    let mut reader = Reader::new(value);
    let version = reader.u8()?;
    if version != VERSION {
        return Err(WireError::OutOfRange { what: "version of marks", value: version.into(), offset_bytes: 0 });
    }
    let found = parse(&mut reader)?;
    reader.end()?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m3_7_objects_are_read_as_written() {
        let group = Group::new(b'b', 5);
        for trust in [Trust::Whole, Trust::Enough, Trust::Lacking] {
            let saved = Saved { position: Position(1 << 40), length_bytes: 300, trust };
            let (_, key, value) = saved.put(group);
            let value = value.unwrap();
            assert_eq!((key.len(), key[0]), (9, SAVED));
            assert_eq!(decode(&value, Saved::decode), Ok(saved));
            for length in 0..value.len() {
                assert!(decode(&value[..length], Saved::decode).is_err());
            }
        }
    }
}
