//! Secrets of accounts: 160 random bits, so nobody can guess one. The store keeps a salted Argon2id hash.
//!
//! A trial takes 19 MiB and two passes: the least that OWASP recommends. More would only cost the server, as the secret
//! is no word that a person chose. One secret is tried at a time, over all callers. That bounds the memory.

use super::error::{AccountError, Result};
use onefold_engine::{EngineError, random_name};
use onefold_ground::wire::{Reader, WireError, put_bytes, put_varint};
use parking_lot::Mutex;
use std::fmt;
use std::str::FromStr;

/// What a secret begins with, so that scanners for lost secrets find it.
const PREFIX: &str = "1fs";
/// Characters of the base-32 text (RFC 4648, lower case).
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const SECRET_BYTES: usize = 20;
/// Characters of a group of the text.
const GROUP: usize = 4;
pub(crate) const HASH_BYTES: usize = 32;
pub(crate) const SALT_BYTES: usize = 16;
const MAX_MEMORY_KIB: u64 = 64 << 10;
const MAX_PASSES: u64 = 16;
const MAX_LANES: u64 = 4;
static HASHING: Mutex<()> = Mutex::new(());

/// A secret of an account. It is never printed by mistake: only [`Secret::text`] shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// Returns a new random secret.
    pub fn random() -> Result<Secret> {
        let mut bytes = [0; SECRET_BYTES];
        let (first, last) = (random_name()?, random_name()?);
        bytes[..16].copy_from_slice(&first);
        bytes[16..].copy_from_slice(&last[..SECRET_BYTES - 16]);
        Ok(Secret(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    /// Returns it as text: `1fs-`, and eight groups of four characters with `-` between them.
    pub fn text(&self) -> String {
        let mut text = PREFIX.to_owned();
        let (mut bits, mut count, mut written) = (0u32, 0, 0);
        for byte in self.0 {
            bits = bits << 8 | u32::from(byte);
            count += 8;
            while count >= 5 {
                count -= 5;
                if written % GROUP == 0 {
                    text.push('-');
                }
                text.push(char::from(ALPHABET[(bits >> count & 31) as usize]));
                written += 1;
            }
        }
        text
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret")
    }
}

impl FromStr for Secret {
    type Err = AccountError;

    /// Reads a text. Case and hyphens do not matter, except in the prefix, which must be there.
    fn from_str(text: &str) -> Result<Secret> {
        let rest = text.trim().strip_prefix(PREFIX).ok_or(AccountError::Secret)?;
        let mut bytes = [0; SECRET_BYTES];
        let (mut bits, mut count, mut at) = (0u32, 0, 0);
        for letter in rest.bytes().filter(|letter| *letter != b'-') {
            let value = ALPHABET.iter().position(|known| *known == letter.to_ascii_lowercase()).ok_or(AccountError::Secret)?;
            bits = (bits << 5 | value as u32) & 0xfff;
            count += 5;
            if count >= 8 {
                count -= 8;
                *bytes.get_mut(at).ok_or(AccountError::Secret)? = (bits >> count) as u8;
                at += 1;
            }
        }
        if at == SECRET_BYTES && count == 0 { Ok(Secret(bytes)) } else { Err(AccountError::Secret) }
    }
}

/// Parameters of Argon2id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) memory_kib: u32,
    pub(crate) passes: u32,
    pub(crate) lanes: u32,
}

/// The cost of a trial.
#[cfg(not(test))]
pub(crate) const COST: Cost = Cost { memory_kib: 19 << 10, passes: 2, lanes: 1 };
#[cfg(test)]
pub(crate) const COST: Cost = Cost { memory_kib: 64, passes: 2, lanes: 1 };

/// How a secret is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    pub(crate) cost: Cost,
    pub(crate) salt: [u8; SALT_BYTES],
}

impl Recipe {
    /// Returns one with a new salt.
    pub(crate) fn new() -> Result<Recipe> {
        Ok(Recipe { cost: COST, salt: random_name()? })
    }

    /// Hashes a secret. Takes as long for a wrong one.
    pub(crate) fn hash(&self, secret: &[u8; SECRET_BYTES]) -> Result<[u8; HASH_BYTES]> {
        #[cfg(test)]
        HASHES.with(|hashes| hashes.set(hashes.get() + 1));
        let impossible = |error: argon2::Error| EngineError::Invalid { what: "hashing the secret".into(), why: error.to_string() };
        let Cost { memory_kib, passes, lanes } = self.cost;
        let params = argon2::Params::new(memory_kib, passes, lanes, Some(HASH_BYTES)).map_err(impossible)?;
        let _one_at_a_time = HASHING.lock();
        let mut memory = vec![argon2::Block::new(); params.block_count()];
        let mut hash = [0; HASH_BYTES];
        let argon2 = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
        argon2.hash_password_into_with_memory(secret, &self.salt, &mut hash, &mut memory).map_err(impossible)?;
        Ok(hash)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        [self.cost.memory_kib, self.cost.passes, self.cost.lanes].iter().for_each(|part| put_varint(out, u64::from(*part)));
        put_bytes(out, &self.salt);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> std::result::Result<Recipe, WireError> {
        let offset_bytes = reader.position();
        let cost = Cost {
            memory_kib: reader.varint_to("memory", MAX_MEMORY_KIB)? as u32,
            passes: reader.varint_to("passes", MAX_PASSES)? as u32,
            lanes: reader.varint_to("lanes", MAX_LANES)? as u32,
        };
        // Otherwise Argon2 refuses, and the account could not be told from a broken machine.
        if cost.lanes == 0 || cost.passes == 0 || cost.memory_kib < 8 * cost.lanes {
            return Err(WireError::OutOfRange { what: "cost of the hash", value: cost.memory_kib.into(), offset_bytes });
        }
        Ok(Recipe { cost, salt: fixed(reader, "length of the salt")? })
    }
}

/// Reads a byte string of a known length.
pub(crate) fn fixed<const N: usize>(reader: &mut Reader<'_>, what: &'static str) -> std::result::Result<[u8; N], WireError> {
    let offset_bytes = reader.position();
    let bytes = reader.bytes()?;
    bytes.try_into().map_err(|_| WireError::OutOfRange { what, value: bytes.len() as u64, offset_bytes })
}

/// Returns whether two hashes are equal. Looks at all bytes, however early they differ.
pub(crate) fn is_equal(one: &[u8; HASH_BYTES], other: &[u8; HASH_BYTES]) -> bool {
    std::hint::black_box(one.iter().zip(other).fold(0, |differences, (a, b)| differences | (a ^ b))) == 0
}

#[cfg(test)]
thread_local! {
    /// Hashes that this thread made.
    static HASHES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Returns how many hashes this thread made.
#[cfg(test)]
pub(crate) fn hashes() -> u64 {
    HASHES.get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_secret_has_160_bits_as_groups_of_base_32() {
        assert_eq!(Secret([0; 20]).text(), "1fs-aaaa-aaaa-aaaa-aaaa-aaaa-aaaa-aaaa-aaaa");
        assert_eq!(Secret(*b"onefold onefold one!").text(), "1fs-n5xg-kztp-nrsc-a33o-mvtg-63de-ebxw-4zjb");
        assert_ne!(Secret::random().unwrap().text(), Secret::random().unwrap().text());
        assert_eq!(format!("{:?}", Secret([0; 20])), "Secret");
    }

    #[test]
    fn a_text_that_is_no_secret_is_refused() {
        let right = Secret([7; 20]).text();
        assert_eq!(format!(" {}\n", right).parse::<Secret>().unwrap(), Secret([7; 20]));
        assert_eq!(format!("1fs{}", right[3..].to_uppercase().replace('-', "")).parse::<Secret>().unwrap(), Secret([7; 20]));
        for wrong in ["", "1fs-", &right[1..], &right[..right.len() - 1], &format!("{right}a"), &right.replace('a', "1"), "1fs-ä"] {
            assert!(wrong.parse::<Secret>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn equal_secrets_have_different_hashes_under_different_salts() {
        let (one, two) = (Recipe::new().unwrap(), Recipe::new().unwrap());
        assert_ne!(one.hash(&[1; 20]).unwrap(), two.hash(&[1; 20]).unwrap());
        assert_eq!(one.hash(&[1; 20]).unwrap(), one.hash(&[1; 20]).unwrap());
        assert!(is_equal(&[1; 32], &[1; 32]) && !is_equal(&[1; 32], &[2; 32]));
    }

    proptest! {
        #[test]
        fn a_secret_is_read_as_written(bytes: [u8; 20]) {
            prop_assert_eq!(Secret(bytes).text().parse::<Secret>().unwrap(), Secret(bytes));
        }

        #[test]
        fn any_text_is_taken_without_panic(text: String) {
            let _ = text.parse::<Secret>();
            let _ = format!("1fs-{text}").parse::<Secret>();
        }
    }
}
