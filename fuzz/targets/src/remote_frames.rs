//! Frames and greetings of the transport, as both ends decode them. A greeting is encoded to the very bytes that it was
//! decoded from.

use onefold_remote::transport::{Limits, decode_frames};

/// Frames, one after the other.
pub fn run(data: &[u8]) {
    decode_frames(data, Limits::default());
}
