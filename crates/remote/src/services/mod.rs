//! The services of backups: what a client asks for, and the server's side of it.

pub mod messages;
mod seal;
pub mod server;

pub use seal::Seal;

use crate::transport::Limits;
use onefold_engine::Engine;

/// What a message has beside the bytes of chunks.
const HEAD_BYTES: usize = 64 << 10;

/// Returns the limits of messages for clients of a store: its longest chunk and its largest frame fit one.
pub fn limits(engine: &Engine) -> Limits {
    let longest_bytes = engine.chunk_limits().max.max(engine.descriptor().sequential_frame_bytes as usize);
    Limits::with_payload((longest_bytes + HEAD_BYTES).max(Limits::default().payload_bytes))
}
