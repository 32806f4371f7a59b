//! What both ends say before a session has a link.

use super::frame::{GREETING_BYTES, decode_reason, encode_reason};
use onefold_ground::wire::Reader;
use std::fmt;

/// The first bytes that a client sends.
pub(super) const MAGIC: &[u8; 8] = b"1FLDNET1";
/// The version of the protocol that this code speaks.
pub(super) const VERSION: u32 = 1;
/// How many extensions a greeting can name.
pub(super) const MOST_EXTENSIONS: usize = 32;
/// The longest name of an extension.
pub(super) const EXTENSION_BYTES: usize = 64;
/// The longest name of an account, and the longest secret.
pub(super) const NAME_BYTES: usize = 256;

/// The name of a session. It is no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub [u8; 16]);

impl fmt::Display for SessionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// The secret by which a client resumes its session.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub [u8; 32]);

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token")
    }
}

/// A client asks for a new session.
#[derive(Clone, PartialEq, Eq)]
pub struct Hello {
    /// The newest version that the client speaks.
    pub version: u32,
    /// The extensions that the client knows.
    pub extensions: Vec<String>,
    /// The account. Empty on a Unix socket.
    pub account: String,
    /// Its secret. Empty on a Unix socket.
    pub secret: Vec<u8>,
}

impl fmt::Debug for Hello {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Hello").field("version", &self.version).field("account", &self.account).finish_non_exhaustive()
    }
}

/// A client brings a new link for its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// The version of the session.
    pub version: u32,
    /// The session.
    pub session: SessionId,
    /// Its secret.
    pub token: Token,
    /// The numbered frames that the client has.
    pub received: u64,
}

/// A server accepts a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The version that both speak from now on.
    pub version: u32,
    /// The extensions that both know.
    pub extensions: Vec<String>,
    /// The session.
    pub session: SessionId,
    /// The secret for resuming it.
    pub token: Token,
    /// The longest payload of a message, in both directions.
    pub payload_bytes: u32,
    /// The window that every channel begins with, in both directions.
    pub window_bytes: u32,
    /// Both ends send a ping after so long a silence of their own.
    pub keep_alive_ms: u32,
    /// The numbered frames that the server has. 0 in a new session.
    pub received: u64,
}

/// A server turns a client away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// One of [`super::codes`], or a code of the door.
    pub code: u16,
    /// For people.
    pub text: String,
}

impl Refusal {
    /// Creates a refusal.
    pub fn new(code: u16, text: impl Into<String>) -> Refusal {
        Refusal { code, text: text.into() }
    }

    /// Encodes the payload of the frame. A long text is cut.
    pub fn encode(&self) -> Vec<u8> {
        encode_reason(self.code, &self.text)
    }

    /// Decodes the payload of the frame.
    pub fn decode(payload: &[u8]) -> Option<Refusal> {
        let (code, text) = decode_reason(payload)?;
        Some(Refusal { code, text })
    }
}

impl Hello {
    /// Encodes the payload of the frame. `None`: something exceeds its limit.
    pub(super) fn checked(&self) -> Option<Vec<u8>> {
        let fits = self.extensions.len() <= MOST_EXTENSIONS
            && self.extensions.iter().all(|name| (1..=EXTENSION_BYTES).contains(&name.len()))
            && self.account.len() <= NAME_BYTES
            && self.secret.len() <= NAME_BYTES;
        fits.then(|| self.encode())
    }

    /// Encodes the payload of the frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut payload = head(self.version);
        put_extensions(&mut payload, &self.extensions);
        for text in [self.account.as_bytes(), &self.secret] {
            payload.extend_from_slice(&(text.len() as u16).to_le_bytes());
            payload.extend_from_slice(text);
        }
        payload
    }

    /// Decodes the payload of the frame.
    pub fn decode(payload: &[u8]) -> Option<Hello> {
        let mut reader = Reader::new(payload);
        let version = read_head(&mut reader)?;
        let extensions = extensions(&mut reader)?;
        let account = std::str::from_utf8(text(&mut reader)?).ok()?.to_owned();
        let secret = text(&mut reader)?.to_vec();
        reader.end().ok()?;
        Some(Hello { version, extensions, account, secret })
    }
}

impl Resume {
    /// Encodes the payload of the frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut payload = head(self.version);
        payload.extend_from_slice(&self.session.0);
        payload.extend_from_slice(&self.token.0);
        payload.extend_from_slice(&self.received.to_le_bytes());
        payload
    }

    /// Decodes the payload of the frame.
    pub fn decode(payload: &[u8]) -> Option<Resume> {
        let mut reader = Reader::new(payload);
        let version = read_head(&mut reader)?;
        let (session, token) = (SessionId(array(&mut reader)?), Token(array(&mut reader)?));
        let received = reader.u64().ok()?;
        reader.end().ok()?;
        Some(Resume { version, session, token, received })
    }
}

impl Welcome {
    /// Encodes the payload of the frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut payload = self.version.to_le_bytes().to_vec();
        put_extensions(&mut payload, &self.extensions);
        payload.extend_from_slice(&self.session.0);
        payload.extend_from_slice(&self.token.0);
        for number in [self.payload_bytes, self.window_bytes, self.keep_alive_ms] {
            payload.extend_from_slice(&number.to_le_bytes());
        }
        payload.extend_from_slice(&self.received.to_le_bytes());
        payload
    }

    /// Decodes the payload of the frame.
    pub fn decode(payload: &[u8]) -> Option<Welcome> {
        let mut reader = Reader::new(payload);
        let version = reader.u32().ok()?;
        let extensions = extensions(&mut reader)?;
        let (session, token) = (SessionId(array(&mut reader)?), Token(array(&mut reader)?));
        let (payload_bytes, window_bytes, keep_alive_ms) = (reader.u32().ok()?, reader.u32().ok()?, reader.u32().ok()?);
        let received = reader.u64().ok()?;
        reader.end().ok()?;
        Some(Welcome { version, extensions, session, token, payload_bytes, window_bytes, keep_alive_ms, received })
    }
}

fn head(version: u32) -> Vec<u8> {
    let mut payload = Vec::with_capacity(GREETING_BYTES);
    payload.extend_from_slice(MAGIC);
    payload.extend_from_slice(&version.to_le_bytes());
    payload
}

fn put_extensions(payload: &mut Vec<u8>, extensions: &[String]) {
    payload.push(extensions.len() as u8);
    for name in extensions {
        payload.push(name.len() as u8);
        payload.extend_from_slice(name.as_bytes());
    }
}

fn array<const N: usize>(reader: &mut Reader<'_>) -> Option<[u8; N]> {
    reader.take(N).ok()?.try_into().ok()
}

/// Reads the magic and returns the version.
fn read_head(reader: &mut Reader<'_>) -> Option<u32> {
    if reader.take(MAGIC.len()).ok()? != MAGIC {
        return None;
    }
    reader.u32().ok()
}

fn extensions(reader: &mut Reader<'_>) -> Option<Vec<String>> {
    let count = reader.u8().ok()?;
    if usize::from(count) > MOST_EXTENSIONS {
        return None;
    }
    (0..count)
        .map(|_| {
            let length = usize::from(reader.u8().ok()?);
            if !(1..=EXTENSION_BYTES).contains(&length) {
                return None;
            }
            Some(std::str::from_utf8(reader.take(length).ok()?).ok()?.to_owned())
        })
        .collect()
}

fn text<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    let length = usize::from(reader.u16().ok()?);
    if length > NAME_BYTES { None } else { reader.take(length).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extensions() -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec("[a-z]{1,64}", 0..=MOST_EXTENSIONS)
    }

    proptest! {
        #[test]
        fn greetings_survive(
            version: u32, extensions in extensions(), account in "[a-z]{0,256}",
            secret in prop::collection::vec(any::<u8>(), 0..=256), numbers: (u32, u32, u32, u64), session: [u8; 16], token: [u8; 32],
        ) {
            let (payload_bytes, window_bytes, keep_alive_ms, received) = numbers;
            let (session, token) = (SessionId(session), Token(token));
            let hello = Hello { version, extensions: extensions.clone(), account, secret };
            prop_assert!(hello.checked().unwrap().len() <= GREETING_BYTES);
            prop_assert_eq!(Hello::decode(&hello.encode()), Some(hello));
            let resume = Resume { version, session, token: token.clone(), received };
            prop_assert_eq!(Resume::decode(&resume.encode()), Some(resume));
            let welcome = Welcome { version, extensions, session, token, payload_bytes, window_bytes, keep_alive_ms, received };
            prop_assert!(welcome.encode().len() <= GREETING_BYTES);
            prop_assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
        }

        #[test]
        fn a_greeting_that_is_cut_or_prolonged_is_refused(cut in 0usize..100, more in 1usize..5) {
            let hello = Hello { version: 1, extensions: vec!["x".into()], account: "a".into(), secret: vec![7; 40] }.encode();
            prop_assert_eq!(Hello::decode(&hello[..cut.min(hello.len() - 1)]), None);
            let longer = [hello, vec![0; more]].concat();
            prop_assert_eq!(Hello::decode(&longer), None);
        }
    }

    #[test]
    fn what_exceeds_a_limit_is_not_sent() {
        let hello = |extensions: Vec<String>, account: usize, secret: usize| {
            Hello { version: 1, extensions, account: "a".repeat(account), secret: vec![0; secret] }.checked().is_some()
        };
        assert!(hello(vec!["e".repeat(64); 32], 256, 256));
        assert!(!hello(vec!["e".repeat(65)], 0, 0));
        assert!(!hello(vec!["e".into(); 33], 0, 0));
        assert!(!hello(vec![], 257, 0));
        assert!(!hello(vec![], 0, 257));
    }
}
