//! What the container store spends time on, by the names in profiles.

use onefold_ground::profile::Component;

/// Compressing frames.
pub static COMPRESS: Component = Component::new("compress");
/// Writing and syncing containers.
pub static STORAGE_WRITE: Component = Component::new("storage_write");
/// Reading containers.
pub static STORAGE_READ: Component = Component::new("storage_read");
/// Decompressing frames.
pub static DECOMPRESS: Component = Component::new("decompress");
/// Hashing chunks that were read without their frame.
pub static FINGERPRINT: Component = Component::new("fingerprint");
/// Rebuilding damaged containers from parity: a call for each.
pub static REPAIR: Component = Component::new("repair");
