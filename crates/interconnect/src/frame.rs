//! Frames: what a connection carries. The head is that of the clients' protocol; in place of the channel it has the
//! number of the request.

use crate::greeting::{self, GREETING_BYTES};
use crate::messages::limit_bytes;
use onefold_remote::transport::{Header, encode_header};
use std::io::{self, ErrorKind};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

/// Bytes of the head.
pub const HEAD_BYTES: usize = 9;
/// A payload is read in steps of so many bytes, so that its memory is taken as it arrives.
const STEP_BYTES: usize = 64 << 10;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// One of [`messages::kinds`](crate::messages::kinds), or of [`greeting::kinds`].
    pub kind: u8,
    /// The request, or the one that this answers. 0 outside of requests.
    pub id: u32,
    /// What it says.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Appends the bytes of the frame.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&encode_header(Header { length: self.payload.len() as u32, kind: self.kind, channel: self.id }));
        out.extend_from_slice(&self.payload);
    }

    /// Returns how many bytes the frame takes on a connection.
    pub fn bytes(&self) -> u64 {
        (HEAD_BYTES + self.payload.len()) as u64
    }
}

/// Decodes the head of a frame: the length of the payload, the kind, the number of the request.
///
/// Errors: the kind is unknown, or the payload is longer than the kind allows.
pub fn decode_head(head: &[u8; HEAD_BYTES]) -> Result<(usize, u8, u32), String> {
    let [a, b, c, d, kind, e, f, g, h] = *head;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    let limit = match kind {
        greeting::kinds::PING => 0,
        greeting::kinds::HELLO | greeting::kinds::WELCOME | greeting::kinds::REFUSAL => GREETING_BYTES,
        kind => limit_bytes(kind).ok_or_else(|| format!("a frame has the unknown kind {kind:#04x}"))?,
    };
    if length > limit {
        return Err(format!("a frame of kind {kind:#04x} has {length} bytes, more than {limit}"));
    }
    Ok((length, kind, u32::from_le_bytes([e, f, g, h])))
}

/// Reads a frame. Errors: nothing came for `silence`; the head makes no sense; the connection ended.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin), silence: Duration) -> io::Result<Frame> {
    let mut head = [0; HEAD_BYTES];
    within(silence, stream.read_exact(&mut head)).await?;
    let (length, kind, id) = decode_head(&head).map_err(|why| io::Error::new(ErrorKind::InvalidData, why))?;
    let mut payload = Vec::new();
    while payload.len() < length {
        let from = payload.len();
        payload.resize(length.min(from + STEP_BYTES), 0);
        within(silence, stream.read_exact(&mut payload[from..])).await?;
    }
    Ok(Frame { kind, id, payload })
}

/// Waits at most so long.
pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(io::Error::new(ErrorKind::TimedOut, "the other end is silent")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::kinds;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_head_survives_or_is_refused(length: u32, kind: u8, id: u32) {
            let head = encode_header(Header { length, kind, channel: id });
            match decode_head(&head) {
                Ok(decoded) => prop_assert_eq!(decoded, (length as usize, kind, id)),
                Err(_) => {
                    let limit = limit_bytes(kind).unwrap_or_else(|| if (0x01..=0x03).contains(&kind) { GREETING_BYTES } else { 0 });
                    prop_assert!(kind == 0 || kind > 0x04 && limit_bytes(kind).is_none() || length as usize > limit);
                }
            }
        }
    }

    #[test]
    fn a_payload_beyond_the_limit_of_its_kind_is_refused_by_its_head() {
        let head = |length, kind| decode_head(&encode_header(Header { length, kind, channel: 1 }));
        assert!(head(limit_bytes(kinds::CLAIM).unwrap() as u32, kinds::CLAIM).is_ok());
        assert!(head(limit_bytes(kinds::CLAIM).unwrap() as u32 + 1, kinds::CLAIM).is_err());
        assert!(head(u32::MAX, kinds::DELIVER).is_err());
        assert!(head(1, greeting::kinds::PING).is_err());
        assert!(head(0, 0x7f).is_err());
    }
}
