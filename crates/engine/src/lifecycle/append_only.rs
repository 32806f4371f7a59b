//! Append-only mode: while it is on, nobody can delete stored data through this library. Switching it off takes the
//! secret with which it was switched on.
//!
//! The state is one object of the object index (key `a`), so that it is durable, crash-safe and moves with the store
//! like all others. It holds a salted Argon2id hash of the secret: trying secrets costs time and memory. The mode keeps
//! out callers of the library (a stolen client, a mistaken script). It does not keep out anyone who can write the
//! store's files.
//!
//! # Invariant
//! A deleter holds a [`DeletionPermit`] from the check to the submission. The mode changes only while nobody holds one.
//! So no transaction after the one that switches the mode on deletes anything. Doubt (an unreadable object) counts as
//! on.

use crate::{Engine, EngineError, Result, Transaction, random_name};
use onefold_ground::wire::{Reader, WireError, put_bytes, put_signed, put_varint};
use parking_lot::{Mutex, RwLockReadGuard};
use std::time::{SystemTime, UNIX_EPOCH};

/// The key and partition of the state.
const KEY: &[u8] = b"a";
const PARTITION: u16 = 0;
/// Version of the value.
const VERSION: u8 = 1;
/// Shortest and longest secret, bytes.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 8..=1024;
/// The cost of a trial: the memory and passes that RFC 9106 recommends where memory is scarce. One lane, as one thread
/// computes it.
const COST: Cost = Cost { memory_kib: 64 << 10, passes: 3, lanes: 1 };
/// Limits, so that a damaged object does not take all memory or time.
const MAX_MEMORY_KIB: u64 = 1 << 20;
const MAX_PASSES: u64 = 100;
const MAX_LANES: u64 = 64;
const HASH_BYTES: usize = 32;
/// One secret is tried at a time, over all callers. That bounds the memory, and makes guessing slow however many guess.
static HASHING: Mutex<()> = Mutex::new(());

/// Permission to delete. A deleter holds it until its transaction is submitted.
#[derive(Debug)]
#[must_use = "the mode can be switched on as soon as the permit is dropped"]
pub struct DeletionPermit<'a> {
    _nobody_switches: RwLockReadGuard<'a, ()>,
}

/// Parameters of Argon2id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
}

/// The state that is stored while the mode is on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    /// When it was switched on, nanoseconds since 1970.
    since_ns: i64,
    cost: Cost,
    salt: [u8; 16],
    hash: [u8; HASH_BYTES],
}

impl State {
    fn new(secret: &[u8]) -> Result<State> {
        let (salt, since) = (random_name()?, SystemTime::now().duration_since(UNIX_EPOCH).ok());
        let since_ns = since.and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or(0);
        Ok(State { since_ns, cost: COST, salt, hash: slow_hash(secret, &salt, COST)? })
    }

    fn is_secret(&self, secret: &[u8]) -> Result<bool> {
        let hash = slow_hash(secret, &self.salt, self.cost)?;
        // Look at all bytes, however early they differ.
        Ok(hash.iter().zip(&self.hash).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0)
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_signed(&mut out, self.since_ns);
        [self.cost.memory_kib, self.cost.passes, self.cost.lanes].iter().for_each(|part| put_varint(&mut out, u64::from(*part)));
        put_bytes(&mut out, &self.salt);
        put_bytes(&mut out, &self.hash);
        out
    }

    fn decode(value: &[u8]) -> std::result::Result<State, WireError> {
        fn fixed<const N: usize>(reader: &mut Reader<'_>, what: &'static str) -> std::result::Result<[u8; N], WireError> {
            let offset_bytes = reader.position();
            let bytes = reader.bytes()?;
            bytes.try_into().map_err(|_| WireError::OutOfRange { what, value: bytes.len() as u64, offset_bytes })
        }
        let mut reader = Reader::new(value);
        match reader.u8()? {
            VERSION => {}
            version => return Err(WireError::OutOfRange { what: "version", value: u64::from(version), offset_bytes: 0 }),
        }
        let since_ns = reader.signed()?;
        let cost = Cost {
            memory_kib: reader.varint_to("memory", MAX_MEMORY_KIB)? as u32,
            passes: reader.varint_to("passes", MAX_PASSES)? as u32,
            lanes: reader.varint_to("lanes", MAX_LANES)? as u32,
        };
        let (salt, hash) = (fixed(&mut reader, "length of the salt")?, fixed(&mut reader, "length of the hash")?);
        reader.end()?;
        Ok(State { since_ns, cost, salt, hash })
    }
}

fn slow_hash(secret: &[u8], salt: &[u8], cost: Cost) -> Result<[u8; HASH_BYTES]> {
    let impossible = |error: argon2::Error| EngineError::Invalid { what: "hashing the secret".into(), why: error.to_string() };
    let params = argon2::Params::new(cost.memory_kib, cost.passes, cost.lanes, Some(HASH_BYTES)).map_err(impossible)?;
    let _one_at_a_time = HASHING.lock();
    let mut memory = vec![argon2::Block::new(); params.block_count()];
    let mut hash = [0; HASH_BYTES];
    let argon2 = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
    argon2.hash_password_into_with_memory(secret, salt, &mut hash, &mut memory).map_err(impossible)?;
    Ok(hash)
}

impl Engine {
    /// Returns since when the store is in append-only mode, nanoseconds since 1970. `None`: it is not.
    pub fn append_only_since(&self) -> Result<Option<i64>> {
        Ok(self.append_only()?.map(|state| state.since_ns))
    }

    /// Permits a deletion, or refuses it while the store is in append-only mode. `what` completes "nobody can ...".
    /// Hold the permit until the deletion is submitted.
    ///
    /// A switch of the mode waits for all permits. So call this before taking any lock that may be held by somebody who
    /// waits for the switch. Never hold a permit over a wait or long work.
    pub fn permit_deletion(&self, what: &'static str) -> Result<DeletionPermit<'_>> {
        // Recursive: a holder of a permit that asks for another must not wait for a writer that waits for the first.
        let permit = DeletionPermit { _nobody_switches: self.deletions.read_recursive() };
        if !self.knows_append_only() {
            // The node that knows is asked (`cluster/removing.rs`).
            return Ok(permit);
        }
        match self.append_only()? {
            None => Ok(permit),
            Some(_) => Err(EngineError::AppendOnly { what }),
        }
    }

    /// Switches append-only mode on. Durable on return. The secret, of 8 to 1,024 bytes, is needed to switch it off.
    /// Takes a moment, and 64 MiB.
    pub fn switch_append_only_on(&self, secret: &[u8]) -> Result<()> {
        self.writable()?;
        if !SECRET_BYTES.contains(&secret.len()) {
            let (fewest, most) = (SECRET_BYTES.start(), SECRET_BYTES.end());
            let why = format!("it has {} bytes; it must have from {fewest} to {most}", secret.len());
            return Err(EngineError::Invalid { what: "the secret of append-only mode".into(), why });
        }
        let is_on = || EngineError::Invalid { what: "append-only mode".into(), why: "it is already on; its secret stays the same".into() };
        if self.append_only()?.is_some() {
            return Err(is_on());
        }
        let value = State::new(secret)?.encode();
        let nobody_deletes = self.nobody_deletes()?;
        if self.append_only()?.is_some() {
            return Err(is_on());
        }
        self.submit(Transaction { changes: vec![(PARTITION, KEY.to_vec(), Some(value))], references: Vec::new() })?;
        drop(nobody_deletes);
        self.flush()
    }

    /// Switches append-only mode off. Durable on return. A wrong secret changes nothing, and trying one takes as long
    /// as the right one.
    pub fn switch_append_only_off(&self, secret: &[u8]) -> Result<()> {
        self.writable()?;
        let Some(state) = self.append_only()? else {
            return Err(EngineError::Invalid { what: "append-only mode".into(), why: "it is not on".into() });
        };
        // A longer one cannot be the secret. Hashing it would let anyone make us work.
        if !SECRET_BYTES.contains(&secret.len()) || !state.is_secret(secret)? {
            return Err(EngineError::WrongSecret);
        }
        let nobody_deletes = self.deletions.write();
        // Somebody else may have switched it off meanwhile, and on again with another secret.
        if self.append_only()?.as_ref() != Some(&state) {
            return Err(EngineError::WrongSecret);
        }
        self.submit(Transaction { changes: vec![(PARTITION, KEY.to_vec(), None)], references: Vec::new() })?;
        drop(nobody_deletes);
        self.flush()
    }

    fn append_only(&self) -> Result<Option<State>> {
        let value = self.get(PARTITION, KEY)?;
        let state = value.map(|value| State::decode(&value)).transpose();
        state.map_err(|source| EngineError::Wire { what: "state of append-only mode in the object index".into(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHEAP: Cost = Cost { memory_kib: 8, passes: 1, lanes: 1 };

    #[test]
    fn a_state_is_read_as_written_and_knows_its_secret_only() {
        let salt = [7; 16];
        let state = State { since_ns: -1, cost: CHEAP, salt, hash: slow_hash(b"open sesame", &salt, CHEAP).unwrap() };
        let value = state.encode();
        assert_eq!(State::decode(&value).unwrap(), state);
        assert!(state.is_secret(b"open sesame").unwrap());
        for wrong in [&b"open sesam"[..], b"open sesame ", b"", &[0; 2000]] {
            assert!(!state.is_secret(wrong).unwrap());
        }
        for length in 0..value.len() {
            assert!(State::decode(&value[..length]).is_err());
        }
    }

    #[test]
    fn equal_secrets_have_different_hashes_and_trying_one_is_expensive() {
        let (one, two) = (State::new(b"open sesame").unwrap(), State::new(b"open sesame").unwrap());
        assert_ne!((one.salt, one.hash), (two.salt, two.hash));
        assert!(one.cost.memory_kib >= 19 << 10 && one.cost.passes >= 2, "less than is recommended: {:?}", one.cost);
    }

    proptest! {
        #[test]
        fn garbage_is_refused_and_costs_nothing(mut bytes: Vec<u8>) {
            let _ = State::decode(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            if let Ok(state) = State::decode(&bytes) {
                prop_assert!(u64::from(state.cost.memory_kib) <= MAX_MEMORY_KIB && u64::from(state.cost.passes) <= MAX_PASSES);
            }
        }
    }
}
