//! A further name of a file: the walk finds it, and it is made after the walk.

use onefold_catalog::Attributes;

/// A further name.
pub(super) struct Link {
    /// Path in the backup.
    pub(super) path: Vec<u8>,
    pub(super) first: Vec<u8>,
    pub(super) attributes: Attributes,
}
