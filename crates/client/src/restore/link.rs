//! A further name of a file, found by the walk and made when it is over.

use onefold_catalog::Attributes;

/// A further name.
pub(super) struct Link {
    /// Path in the backup.
    pub(super) path: Vec<u8>,
    pub(super) first: Vec<u8>,
    pub(super) attributes: Attributes,
}
