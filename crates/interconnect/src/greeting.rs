//! What both ends say before anything else. The end that has made the connection asks, and the other one answers.

use onefold_ground::wire::{Reader, WireError};

/// The first bytes of a greeting.
pub const MAGIC: &[u8; 8] = b"1FLDNOD1";
/// The version that this code speaks.
pub const VERSION: u32 = 1;
/// The longest payload of a greeting.
pub const GREETING_BYTES: usize = 4098;

/// The kinds of frames that are no messages.
pub mod kinds {
    /// The first frame.
    pub const HELLO: u8 = 0x01;
    /// The answer to it.
    pub const WELCOME: u8 = 0x02;
    /// The other answer: code (u16) and text. The connection ends.
    pub const REFUSAL: u8 = 0x03;
    /// The sender is there.
    pub const PING: u8 = 0x04;
}

/// The codes of a refusal.
pub mod codes {
    /// The greeting makes no sense.
    pub const GREETING: u16 = 1;
    /// Another version is spoken here.
    pub const VERSION: u16 = 2;
    /// Another store is open here.
    pub const STORE: u16 = 3;
    /// Another node is here.
    pub const NODE: u16 = 4;
    /// The certificate is not that of the node.
    pub const CERTIFICATE: u16 = 5;
    /// The node has greeted with a later opening, or with a later connection.
    pub const STALE: u16 = 6;
    /// This end has not begun, or has no room. Retry.
    pub const BUSY: u16 = 7;
}

/// The greeting of the end that has made the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version that it speaks.
    pub version: u32,
    /// The store.
    pub store: [u8; 16],
    /// Its own number.
    pub from: u32,
    /// The number of the node that it wants to reach.
    pub to: u32,
    /// Its opening.
    pub opening: u64,
    /// The number of this connection: greater than those that the opening made before.
    pub connection: u64,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The version that it speaks.
    pub version: u32,
    /// The store.
    pub store: [u8; 16],
    /// Its number.
    pub node: u32,
    /// Its opening.
    pub opening: u64,
}

impl Hello {
    /// Encodes the payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.store);
        out.extend_from_slice(&self.from.to_le_bytes());
        out.extend_from_slice(&self.to.to_le_bytes());
        out.extend_from_slice(&self.opening.to_le_bytes());
        out.extend_from_slice(&self.connection.to_le_bytes());
        out
    }

    /// Decodes a payload. `Err` with a version: it is that of another one, and the rest may be anything.
    pub fn decode(payload: &[u8]) -> Result<Hello, Option<u32>> {
        let mut reader = versioned(payload)?;
        let decode = || -> Result<Hello, WireError> {
            let store = reader.take(16)?.try_into().expect("16 bytes were taken");
            let (from, to) = (reader.u32()?, reader.u32()?);
            let hello = Hello { version: VERSION, store, from, to, opening: reader.u64()?, connection: reader.u64()? };
            reader.end().map(|()| hello)
        };
        decode_or_none(decode)
    }
}

impl Welcome {
    /// Encodes the payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.store);
        out.extend_from_slice(&self.node.to_le_bytes());
        out.extend_from_slice(&self.opening.to_le_bytes());
        out
    }

    /// Decodes a payload. `Err` with a version: it is that of another one, and the rest may be anything.
    pub fn decode(payload: &[u8]) -> Result<Welcome, Option<u32>> {
        let mut reader = versioned(payload)?;
        let decode = || -> Result<Welcome, WireError> {
            let store = reader.take(16)?.try_into().expect("16 bytes were taken");
            let welcome = Welcome { version: VERSION, store, node: reader.u32()?, opening: reader.u64()? };
            reader.end().map(|()| welcome)
        };
        decode_or_none(decode)
    }
}

fn decode_or_none<T>(decode: impl FnOnce() -> Result<T, WireError>) -> Result<T, Option<u32>> {
    decode().map_err(|_| None)
}

/// Reads magic and version, which every version begins with.
fn versioned(payload: &[u8]) -> Result<Reader<'_>, Option<u32>> {
    let mut reader = Reader::new(payload);
    if reader.take(MAGIC.len()).map_err(|_| None)? != MAGIC {
        return Err(None);
    }
    match reader.u32().map_err(|_| None)? {
        VERSION => Ok(reader),
        other => Err(Some(other)),
    }
}

/// Encodes a refusal.
pub(crate) fn encode_refusal(code: u16, text: &str) -> Vec<u8> {
    let mut end = text.len().min(GREETING_BYTES - 2);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    [&code.to_le_bytes()[..], &text.as_bytes()[..end]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_remote::transport::decode_reason;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn greetings_survive_and_are_refused_if_they_end_early_or_go_on(
            store: [u8; 16], from: u32, to: u32, opening: u64, connection: u64, at: prop::sample::Index,
        ) {
            let hello = Hello { version: VERSION, store, from, to, opening, connection };
            let welcome = Welcome { version: VERSION, store, node: to, opening };
            let (mut asked, mut answered) = (hello.encode(), welcome.encode());
            prop_assert_eq!(Hello::decode(&asked), Ok(hello));
            prop_assert_eq!(Welcome::decode(&answered), Ok(welcome));
            prop_assert!((0..asked.len()).all(|length| Hello::decode(&asked[..length]).is_err()));
            prop_assert!((0..answered.len()).all(|length| Welcome::decode(&answered[..length]).is_err()));
            prop_assert_ne!(Hello::decode(&flipped(&asked, at)), Ok(hello));
            prop_assert_ne!(Welcome::decode(&flipped(&answered, at)), Ok(welcome));
            asked.push(0);
            answered.push(0);
            prop_assert!(Hello::decode(&asked).is_err() && Welcome::decode(&answered).is_err());
        }

        #[test]
        fn garbage_is_no_greeting(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Hello::decode(&bytes).is_err() && Welcome::decode(&bytes).is_err());
        }
    }

    fn flipped(bytes: &[u8], at: prop::sample::Index) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let at = at.index(bytes.len() * 8);
        bytes[at / 8] ^= 1 << (at % 8);
        bytes
    }

    #[test]
    fn another_version_is_known_as_such_whatever_follows() {
        let bytes = [&MAGIC[..], &9u32.to_le_bytes(), b"something new"].concat();
        assert_eq!((Hello::decode(&bytes), Welcome::decode(&bytes)), (Err(Some(9)), Err(Some(9))));
    }

    #[test]
    fn a_refusal_is_cut_at_its_limit() {
        let text = "é".repeat(GREETING_BYTES);
        let (code, cut) = decode_reason(&encode_refusal(codes::STORE, &text)).unwrap();
        assert!(code == codes::STORE && text.starts_with(&cut) && cut.len() > GREETING_BYTES - 6);
    }
}
