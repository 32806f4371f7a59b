//! What the engine spends time on, as profiles name it. Each filter names itself.

use onefold_ground::profile::Component;

/// Finding chunk boundaries.
pub static CHUNKING: Component = Component::new("chunking");
/// Hashing.
pub static FINGERPRINT: Component = Component::new("fingerprint");
/// Hashing chunks that were expected, and were right: nothing was scanned for them.
pub static PREDICTION: Component = Component::new("prediction");
/// Waiting for another stream that stores the same chunk.
pub static RESERVATION: Component = Component::new("reservation");
/// Looking chunks up in the chunk index.
pub static FILTER_CHUNK_INDEX: Component = Component::new("filter_chunk_index");
/// Chunk index: applying and sweeping, in the background.
pub static CHUNK_INDEX: Component = Component::new("chunk_index");
/// Object index: looking up and persisting.
pub static OBJECT_INDEX: Component = Component::new("object_index");
/// Writing and syncing the operations log.
pub static LOG: Component = Component::new("log");
