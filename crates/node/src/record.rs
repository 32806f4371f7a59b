//! `nodes/N/node`: who has the number N of a node (`docs/format.md` section 11.6).
//!
//! It is put once, if its name is free, and never changes: a number belongs to one key for ever. So what was read once
//! is kept.

use crate::{NodeError, Result};
use onefold_cluster::NodeNumber;
use onefold_ground::wire::{Reader, WireError, put_bytes};
use onefold_ground::{Bucket, Put, checksum};
use onefold_remote::transport::CertificateFingerprint;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"1FLDNID1";
const VERSION: u32 = 1;
/// The longest name of a node.
pub(crate) const NAME_BYTES: usize = 255;
/// The object is never longer.
const LIMIT_BYTES: u64 = 1024;

/// What the bucket says of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// For people.
    pub(crate) name: String,
    pub(crate) fingerprint: CertificateFingerprint,
}

impl Record {
    fn encode(&self, store: &[u8; 16], node: NodeNumber) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(store);
        out.extend_from_slice(&node.0.to_le_bytes());
        put_bytes(&mut out, self.name.as_bytes());
        out.extend_from_slice(self.fingerprint.as_bytes());
        out.extend_from_slice(&checksum(&out).to_le_bytes());
        out
    }

    /// Reads an object; the error is for people.
    fn decode(bytes: &[u8], store: &[u8; 16], node: NodeNumber) -> Result<Record, String> {
        let Some((content, sum)) = bytes.split_last_chunk::<8>() else { return Err("the object is too short".to_owned()) };
        if checksum(content) != u64::from_le_bytes(*sum) {
            return Err("its checksum is wrong".to_owned());
        }
        let mut reader = Reader::new(content);
        let mut head = || Ok::<_, WireError>((reader.take(8)?, reader.u32()?, reader.take(16)?, reader.u32()?));
        let (magic, version, found_store, found) = head().map_err(|error| error.to_string())?;
        if magic != MAGIC {
            return Err("this is no record of a node".to_owned());
        }
        if version != VERSION {
            return Err(format!("it has format version {version}; this program reads version {VERSION}"));
        }
        if found_store != store {
            return Err("it belongs to another store".to_owned());
        }
        if found != node.0 {
            return Err(format!("it says that it is of node {found}"));
        }
        let mut rest = || {
            let name = reader.bytes()?;
            let fingerprint: [u8; 32] = reader.take(32)?.try_into().expect("it has this length");
            reader.end()?;
            Ok::<_, WireError>((name, fingerprint))
        };
        let (name, fingerprint) = rest().map_err(|error| error.to_string())?;
        check_name(name)?;
        let name = String::from_utf8(name.to_vec()).map_err(|_| "the name is no text".to_owned())?;
        Ok(Record { name, fingerprint: fingerprint.into() })
    }
}

/// Checks the name of a node; the error is for people.
pub(crate) fn check_name(name: &[u8]) -> Result<(), String> {
    match name {
        [] => Err("the name is empty".to_owned()),
        _ if name.len() > NAME_BYTES => Err(format!("the name is longer than {NAME_BYTES} bytes")),
        _ if name.iter().any(u8::is_ascii_control) => Err("the name has a control character".to_owned()),
        _ => Ok(()),
    }
}

/// The records of a store's nodes.
pub(crate) struct Records {
    bucket: Arc<dyn Bucket>,
    store: [u8; 16],
    known: Mutex<BTreeMap<NodeNumber, Record>>,
}

impl fmt::Debug for Records {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Records").finish_non_exhaustive()
    }
}

impl Records {
    pub(crate) fn new(bucket: Arc<dyn Bucket>, store: [u8; 16]) -> Records {
        Records { bucket, store, known: Mutex::default() }
    }

    /// Returns the name of the object of a node.
    fn name(node: NodeNumber) -> String {
        format!("nodes/{node}/node")
    }

    /// Takes a number. Returns whether it is this node's now: no other one has it. After an error nobody knows. Then
    /// ask with the same record again.
    pub(crate) fn take(&self, node: NodeNumber, record: &Record) -> Result<bool> {
        match self.bucket.put_new(&Records::name(node), &record.encode(&self.store, node))? {
            Put::Done => Ok(true),
            // It may have had another name then.
            Put::Taken => Ok(self.get(node)?.is_some_and(|found| found.fingerprint == record.fingerprint)),
        }
    }

    /// Returns the record of a node. `None`: nobody has taken this number.
    pub(crate) fn get(&self, node: NodeNumber) -> Result<Option<Record>> {
        if let Some(record) = self.known.lock().get(&node) {
            return Ok(Some(record.clone()));
        }
        let name = Records::name(node);
        let bytes = match self.bucket.get(&name, LIMIT_BYTES) {
            Err(error) if error.is_not_found() => return Ok(None),
            bytes => bytes?,
        };
        let damaged = |why| NodeError::Damaged { path: self.bucket.describe(&name), why };
        let record = Record::decode(&bytes, &self.store, node).map_err(damaged)?;
        self.known.lock().insert(node, record.clone());
        Ok(Some(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_bucket::{Failure, MemoryBucket};
    use proptest::prelude::*;

    const STORE: [u8; 16] = [3; 16];

    fn record(name: &str, byte: u8) -> Record {
        Record { name: name.to_owned(), fingerprint: [byte; 32].into() }
    }

    #[test]
    fn m4_2_a_number_is_taken_once_and_a_lost_answer_does_no_harm() {
        let bucket = MemoryBucket::new();
        let records = Records::new(Arc::new(bucket.clone()), STORE);
        let (one, other) = (record("one", 1), record("two", 2));
        assert_eq!(records.get(NodeNumber(0)).unwrap(), None);
        bucket.fail_at_change(bucket.changes(), Failure::After);
        assert!(records.take(NodeNumber(0), &one).is_err());
        assert!(records.take(NodeNumber(0), &one).unwrap());
        assert!(!records.take(NodeNumber(0), &other).unwrap());
        assert!(records.take(NodeNumber(0), &Record { name: "new".to_owned(), ..one.clone() }).unwrap(), "it has another name by now");
        assert!(records.take(NodeNumber(1), &other).unwrap());
        for (node, expected) in [(0, &one), (1, &other)] {
            assert_eq!(records.get(NodeNumber(node)).unwrap().as_ref(), Some(expected));
        }
        let before = bucket.requests().gets;
        records.get(NodeNumber(1)).unwrap();
        assert_eq!(bucket.requests().gets, before, "it is asked for once");
    }

    #[test]
    fn every_change_of_a_record_is_an_error() {
        let bytes = record("a node", 9).encode(&STORE, NodeNumber(7));
        assert!((0..bytes.len()).all(|length| Record::decode(&bytes[..length], &STORE, NodeNumber(7)).is_err()));
        for at in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[at / 8] ^= 1 << (at % 8);
            assert!(Record::decode(&changed, &STORE, NodeNumber(7)).is_err(), "bit {at}");
        }
        assert!(Record::decode(&bytes, &[4; 16], NodeNumber(7)).unwrap_err().contains("another store"));
        assert!(Record::decode(&bytes, &STORE, NodeNumber(8)).unwrap_err().contains("node 7"));
        for name in ["", "a\nb", &"a".repeat(NAME_BYTES + 1)] {
            assert!(Record::decode(&record(name, 1).encode(&STORE, NodeNumber(7)), &STORE, NodeNumber(7)).is_err(), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn a_record_is_read_as_written(name in "\\PC{1,60}", fingerprint: [u8; 32], node: u32) {
            let record = Record { name, fingerprint: fingerprint.into() };
            let bytes = record.encode(&STORE, NodeNumber(node));
            prop_assert!(bytes.len() as u64 <= LIMIT_BYTES);
            prop_assert_eq!(Record::decode(&bytes, &STORE, NodeNumber(node)), Ok(record));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Record::decode(&bytes, &STORE, NodeNumber(0));
        }
    }
}
