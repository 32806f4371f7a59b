//! How a store is opened.

/// What the opener wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One process, alone.
    ReadWrite,
    /// Any number of processes, none of which writes; nothing in the store is changed. For what reads all kinds of things for a long time.
    ReadOnly,
    /// Any number of processes, beside one that may write; nothing in the store is changed. What is read is the store as of the opening. As soon
    /// as it is known what is read, [`Engine::hold`] says so: until then a writer may have to wait.
    /// Where this process may not write to the store's directory it is the same as [`Mode::ReadOnly`].
    Snapshot,
    /// One process, alone, which makes the chunk index anew and reads everything else: [`crate::Rebuild`].
    Rebuild,
}
