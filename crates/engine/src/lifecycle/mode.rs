//! How a store is opened.

/// What an opening may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One process, alone.
    ReadWrite,
    /// Any number of processes, none of which writes. Nothing in the store is changed. For long reads of many parts of
    /// the store.
    ReadOnly,
    /// Any number of processes, beside one that may write. Nothing in the store is changed. The opening reads the store
    /// as of its moment. Call [`Engine::hold`] as soon as it is known what is read: until then a writer may have to
    /// wait. If this process cannot write to the store's directory, this is the same as [`Mode::ReadOnly`].
    Snapshot,
    /// One process, alone, which rebuilds the chunk index and reads everything else: [`crate::Rebuild`].
    Rebuild,
}
