//! Frames: the layout of everything that a link carries, and the payloads of the frames that belong to no service.
//!
//! All functions are pure and take any input, so that fuzzers can call them.

use super::error::codes;
use super::greeting::{Hello, Refusal, Resume, Welcome};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Bytes of a frame before its payload: length (u32), kind (u8), channel (u32), all little-endian.
pub(super) const HEADER_BYTES: usize = 9;
/// What a message costs beside its payload, so that empty ones are not free.
pub(super) const OVERHEAD_BYTES: u64 = 64;
/// The longest text in a frame.
pub(super) const TEXT_BYTES: usize = 4096;
/// The largest payload before a session exists.
pub(super) const GREETING_BYTES: usize = TEXT_BYTES + 64;
/// The longest opening of a channel, with its service.
pub(super) const OPENING_BYTES: usize = 64 * 1024;

/// The kinds of frames. Messages of services have the highest bit set; the rest is their own kind.
pub mod kinds {
    /// Client: the first frame of a new session.
    pub const HELLO: u8 = 0x01;
    /// Client: the first frame of a link that resumes a session.
    pub const RESUME: u8 = 0x02;
    /// Server: the answer to both.
    pub const WELCOME: u8 = 0x03;
    /// Server: the other answer to both.
    pub const REFUSAL: u8 = 0x04;
    /// How many numbered frames arrived (u64).
    pub const ACK: u8 = 0x05;
    /// Nothing: the sender is there.
    pub const PING: u8 = 0x06;
    /// The session ends: code (u16) and text.
    pub const END: u8 = 0x07;
    /// Client, numbered: a new channel; service (u8) and opening.
    pub const OPEN: u8 = 0x10;
    /// Numbered: the sender sends no more messages on the channel.
    pub const FINISH: u8 = 0x11;
    /// Numbered: the sender drops the channel; code (u16) and text.
    pub const CANCEL: u8 = 0x12;
    /// Numbered: the receiver consumed messages; bytes added to the window (u32).
    pub const CREDIT: u8 = 0x13;
    /// Numbered: a part of a message that is not the last one.
    pub const PART: u8 = 0x14;
    /// Numbered: a message or its last part. The low seven bits are its kind.
    pub const MESSAGE: u8 = 0x80;
}

/// The bounds of what a peer may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The longest payload of a message.
    pub payload_bytes: usize,
}

impl Limits {
    /// The limits that can be set.
    pub const PAYLOADS: RangeInclusive<usize> = OPENING_BYTES..=17 << 20;

    /// Returns limits with payloads of at most `payload_bytes`, which is brought into the range that is allowed.
    pub fn with_payload(payload_bytes: usize) -> Limits {
        Limits { payload_bytes: payload_bytes.clamp(*Limits::PAYLOADS.start(), *Limits::PAYLOADS.end()) }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { payload_bytes: (1 << 20) + (64 << 10) }
    }
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes that follow.
    pub length: u32,
    /// One of [`kinds`].
    pub kind: u8,
    /// 0: the session itself.
    pub channel: u32,
}

/// A breach of the protocol: the session ends with this code and text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// One of [`codes`].
    pub code: u16,
    /// For people.
    pub text: String,
}

impl Violation {
    pub(super) fn new(code: u16, text: impl Into<String>) -> Violation {
        Violation { code, text: text.into() }
    }
}

/// A frame of a session that is sent.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) channel: u32,
    pub(super) payload: Arc<Vec<u8>>,
}

impl Frame {
    pub(super) fn new(kind: u8, channel: u32, payload: Vec<u8>) -> Frame {
        Frame { kind, channel, payload: Arc::new(payload) }
    }

    pub(super) fn header(&self) -> [u8; HEADER_BYTES] {
        encode_header(Header { length: self.payload.len() as u32, kind: self.kind, channel: self.channel })
    }

    /// Returns what the frame takes of a window.
    pub(super) fn cost(&self) -> u64 {
        if is_data(self.kind) { cost(self.payload.len()) } else { 0 }
    }
}

/// Returns what a message or part takes of a window.
pub(super) fn cost(length: usize) -> u64 {
    length as u64 + OVERHEAD_BYTES
}

/// Returns whether frames of this kind take a part of a window.
pub(super) fn is_data(kind: u8) -> bool {
    kind == kinds::PART || kind >= kinds::MESSAGE
}

/// Returns whether frames of this kind are numbered.
pub(super) fn is_numbered(kind: u8) -> bool {
    kind >= kinds::OPEN
}

/// Encodes the head of a frame.
pub fn encode_header(header: Header) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&header.length.to_le_bytes());
    bytes[4] = header.kind;
    bytes[5..].copy_from_slice(&header.channel.to_le_bytes());
    bytes
}

/// Decodes the head of a frame of a session and checks it: the kind is known, the channel fits it, and the length is
/// within what the kind and the limits allow.
///
/// Errors: the frame breaks the protocol.
pub fn decode_header(bytes: &[u8; HEADER_BYTES], limits: Limits) -> Result<Header, Violation> {
    let [a, b, c, d, kind, e, f, g, h] = *bytes;
    let header = Header { length: u32::from_le_bytes([a, b, c, d]), kind, channel: u32::from_le_bytes([e, f, g, h]) };
    let (least, most) = match kind {
        kinds::ACK => (8, 8),
        kinds::PING | kinds::FINISH => (0, 0),
        kinds::END | kinds::CANCEL => (2, 2 + TEXT_BYTES),
        kinds::OPEN => (1, OPENING_BYTES),
        kinds::CREDIT => (4, 4),
        kinds::PART => (1, limits.payload_bytes),
        kinds::MESSAGE.. => (0, limits.payload_bytes),
        _ => return Err(Violation::new(codes::KIND, format!("a frame has the unknown kind {kind:#04x}"))),
    };
    let length = header.length as usize;
    if length < least || length > most {
        return Err(Violation::new(codes::FRAME, format!("a frame of kind {kind:#04x} has {length} bytes")));
    }
    if is_numbered(kind) != (header.channel != 0) {
        return Err(Violation::new(codes::CHANNEL, format!("a frame of kind {kind:#04x} names channel {}", header.channel)));
    }
    Ok(header)
}

/// Decodes how many numbered frames the peer has.
pub fn decode_ack(payload: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(payload.try_into().ok()?))
}

/// Decodes how many bytes a window grows by.
pub fn decode_credit(payload: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(payload.try_into().ok()?))
}

/// Decodes the code and text of a refusal, a cancellation or an end.
pub fn decode_reason(payload: &[u8]) -> Option<(u16, String)> {
    let (code, text) = payload.split_first_chunk::<2>()?;
    if text.len() > TEXT_BYTES {
        return None;
    }
    Some((u16::from_le_bytes(*code), std::str::from_utf8(text).ok()?.to_owned()))
}

/// Encodes a code and a text, which is cut at the limit.
pub(super) fn encode_reason(code: u16, text: &str) -> Vec<u8> {
    let mut end = text.len().min(TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut payload = code.to_le_bytes().to_vec();
    payload.extend_from_slice(&text.as_bytes()[..end]);
    payload
}

/// Decodes a stream of frames as both ends would, and returns how many are well-formed. For fuzzers: it panics only if
/// a decoder does, or if a payload that was decoded is encoded differently.
pub fn decode_frames(mut bytes: &[u8], limits: Limits) -> usize {
    let mut frames = 0;
    while let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let Some(payload) = rest.get(..length) else { break };
        let fits = match head[4] {
            kinds::HELLO => Hello::decode(payload).is_some_and(|hello| same(&hello.encode(), payload)),
            kinds::RESUME => Resume::decode(payload).is_some_and(|resume| same(&resume.encode(), payload)),
            kinds::WELCOME => Welcome::decode(payload).is_some_and(|welcome| same(&welcome.encode(), payload)),
            kinds::REFUSAL => Refusal::decode(payload).is_some_and(|refusal| same(&refusal.encode(), payload)),
            kind => match (decode_header(head, limits), kind) {
                (Err(_), _) => false,
                (Ok(_), kinds::ACK) => decode_ack(payload).is_some(),
                (Ok(_), kinds::CREDIT) => decode_credit(payload).is_some(),
                (Ok(_), kinds::END | kinds::CANCEL) => decode_reason(payload).is_some(),
                (Ok(_), _) => true,
            },
        };
        if !fits {
            break;
        }
        frames += 1;
        bytes = &rest[length..];
    }
    frames
}

fn same(encoded: &[u8], payload: &[u8]) -> bool {
    assert_eq!(encoded, payload, "decoding and encoding are inverse");
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn garbage_is_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            decode_frames(&bytes, Limits::default());
        }

        #[test]
        fn garbage_behind_a_plausible_head_is_refused_without_a_panic(
            kind in 0u8..0x16, channel in 0u32..3, payload in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..300,
        ) {
            let mut bytes = encode_header(Header { length: payload.len() as u32, kind, channel }).to_vec();
            bytes.extend_from_slice(&payload);
            bytes.truncate(cut.max(HEADER_BYTES));
            decode_frames(&bytes, Limits::default());
        }

        #[test]
        fn a_header_survives(length in 0u32..1_000_000, kind in 0x80u8.., channel in 1u32..) {
            let header = Header { length, kind, channel };
            prop_assert_eq!(decode_header(&encode_header(header), Limits::default()), Ok(header));
        }

        #[test]
        fn a_reason_survives_up_to_its_limit(code: u16, text in "\\PC{0,3000}") {
            let (found, cut) = decode_reason(&encode_reason(code, &text)).unwrap();
            prop_assert_eq!(found, code);
            prop_assert!(text.starts_with(&cut) && (cut == text || cut.len() > TEXT_BYTES - 4));
        }
    }

    #[test]
    fn a_frame_beyond_the_limit_is_a_violation_before_anything_is_allocated() {
        let limits = Limits::with_payload(1 << 20);
        let header = |length, kind, channel| decode_header(&encode_header(Header { length, kind, channel }), limits);
        assert!(header(1 << 20, 0x80, 1).is_ok());
        assert_eq!(header((1 << 20) + 1, 0x80, 1).unwrap_err().code, codes::FRAME);
        assert_eq!(header(u32::MAX, kinds::OPEN, 1).unwrap_err().code, codes::FRAME);
        assert_eq!(header(0, 0x7f, 1).unwrap_err().code, codes::KIND);
        assert_eq!(header(0, kinds::HELLO, 0).unwrap_err().code, codes::KIND, "no greeting in a session");
        assert_eq!(header(0, 0x80, 0).unwrap_err().code, codes::CHANNEL);
        assert_eq!(header(0, kinds::PING, 1).unwrap_err().code, codes::CHANNEL);
    }
}
