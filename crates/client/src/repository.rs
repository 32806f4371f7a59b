//! A store as the client sees it: open in this process, or behind a connection. A backup and a restore do the same on
//! both.

mod local;
mod remote;

use crate::Result;
use crate::options::Parent;
pub use crate::state::State;
use onefold_catalog::{Attributes, Backup, Chunks, Details, Entry, SmallFile};
use onefold_engine::{InFlight, Recipe};
use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

pub use remote::Remote;

/// A store.
pub trait Repository: Debug + Send + Sync {
    /// Finds the backup to compare a new one with.
    fn compare(&self, wanted: &Comparable<'_>) -> Result<Box<dyn Compared + '_>>;
    /// Opens a backup for reading. Its data stays readable for as long as the reading is there.
    fn read(&self, backup: &Backup) -> Result<Reading>;
}

/// Which backup to compare with: the newest of this group, host and paths, or another one.
#[derive(Clone, Copy, Debug)]
pub struct Comparable<'a> {
    /// The backup group.
    pub name: &'a str,
    /// The machine's name.
    pub host: &'a str,
    /// The absolute paths that are backed up, sorted.
    pub paths: &'a [Vec<u8>],
    /// The choice.
    pub parent: &'a Parent,
}

/// The earlier backup, which stays readable as long as this is there.
pub trait Compared: Sync {
    /// Returns the earlier backup. `None`: every file is new. Behind a connection its root has only a length.
    fn earlier(&self) -> Option<&Backup>;
    /// Returns why an earlier backup cannot be read, if there was one.
    fn damage(&self) -> Option<String>;
    /// Returns the entries of the earlier backup's root, in order.
    fn root(&self) -> Option<Listing>;
    /// Returns the entries of a directory of the earlier backup. Directories are listed in the order of the tree.
    fn directory(&self, entry: &Entry) -> Option<Listing>;
    /// Returns a directory of the client's own that no backup should have: it changes while the backup is made.
    fn own_directory(&self) -> Option<&Path>;
    /// Returns whether every chunk of an earlier file can be read. Storing it again brings lost ones back.
    fn is_sound(&self, entry: &Entry) -> bool;
    /// Returns whether the store finds more if it is told what a file had before. Then few files are stored at a time.
    fn recalls(&self) -> bool;
    /// Begins a backup.
    fn begin(&self) -> Result<Box<dyn Making + '_>>;
}

/// The entries of a directory. After an error, it goes on with the entries that can be read.
pub type Listing = Box<dyn Iterator<Item = onefold_catalog::Result<Entry>> + Send>;

/// An entry of a directory of the earlier backup.
#[derive(Clone, Debug)]
pub struct Earlier {
    /// The entry.
    pub entry: Entry,
    /// Its place in the directory, from 0.
    pub index: u64,
}

/// A backup that is not visible yet.
pub trait Making: Sync {
    /// Returns when it began, nanoseconds since 1970.
    fn started_ns(&self) -> i64;
    /// Returns a writer of contents, for one thread.
    fn contents(&self) -> Result<Box<dyn Contents + Send + '_>>;
    /// Returns the writer of the tree.
    fn tree(&self) -> Result<Box<dyn Tree + '_>>;
    /// Makes the backup visible. It is durable on return.
    fn commit(&self, root: Recipe, details: Details) -> Result<Backup>;
}

/// A file whose content is to be stored.
#[derive(Clone, Copy, Debug)]
pub struct NewFile<'a> {
    /// The number under which the tree takes it.
    pub ticket: u64,
    /// Path from the root, without the leading `/`.
    pub path: &'a [u8],
    /// What the file had in the earlier backup.
    pub earlier: Option<&'a Recipe>,
}

/// Stores the content of files. Behind a connection, the recipes that it returns have only a length.
pub trait Contents {
    /// Returns the bytes that were new to the store.
    fn added_bytes(&self) -> u64;
    /// Stores whole small files.
    fn small(&mut self, files: &[(NewFile<'_>, &[u8])]) -> Result<Vec<SmallFile>>;
    /// Begins a file, which comes in parts.
    fn begin(&mut self, file: NewFile<'_>) -> Result<()>;
    /// Stores the next bytes of the file. With `last` the end of `data` is the end of a run of data. Without, the tail
    /// whose boundary is not known yet is left: pass it again, with more behind it. Returns the number of bytes stored.
    fn write(&mut self, data: &[u8], last: bool) -> Result<usize>;
    /// Appends a hole to the file.
    fn zeros(&mut self, length: u64) -> Result<()>;
    /// Ends the file.
    fn finish(&mut self) -> Result<Recipe>;
    /// Ends the writer: everything is on its way. Without it, files that the tree waits for may never come.
    fn close(self: Box<Self>) -> Result<()>;
}

/// Builds the tree of a backup. Entries of a directory come sorted by name; the content of a directory comes between
/// its [`enter`](Tree::enter) and its [`leave`](Tree::leave).
pub trait Tree {
    /// Begins a directory. `earlier`: its entry in the earlier backup.
    fn enter(&mut self, name: Vec<u8>, attributes: Attributes, earlier: Option<Earlier>) -> Result<()>;
    /// Takes an entry of the earlier directory as it is.
    fn keep(&mut self, earlier: Earlier) -> Result<()>;
    /// Appends a new entry. `ticket`: its content was stored under this number. Returns how it compares with the
    /// earlier one, if that is known already.
    ///
    /// Errors: [`TooLong`](onefold_catalog::CatalogError::TooLong) leaves the tree without the entry.
    fn put(&mut self, entry: Entry, ticket: Option<u64>, earlier: Option<Earlier>) -> Result<Option<State>>;
    /// Waits a while for the content of a file. Returns whether [`put`](Tree::put) need not wait for it any more.
    fn has_content(&self, ticket: u64, patience: Duration) -> bool {
        let _ = (ticket, patience);
        true
    }
    /// Says that the current directory will lack an entry that could not be stored.
    fn skip(&mut self);
    /// Ends the current directory, and appends it to the one above. `has_all`: nothing of the earlier directory is
    /// missing. Returns whether it is the earlier directory, with everything in it.
    fn leave(&mut self, has_all: bool) -> Result<bool>;
    /// Ends the root.
    fn finish(self: Box<Self>) -> Result<Finished>;
}

/// A complete tree.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    /// The root. Behind a connection it has nothing.
    pub root: Recipe,
    /// Entries that differ from the earlier ones, of those whose comparison was not known when they were put.
    pub changed: u64,
    /// Those of them that are equal.
    pub same: u64,
}

/// Batches of a restore on their way to its threads, unless more are worth while.
const BATCHES_AHEAD: usize = 4;

/// A backup that is being read.
#[derive(Debug)]
pub struct Reading {
    pub(crate) chunks: std::sync::Arc<dyn Chunks>,
    /// How many threads of a restore are worth while,
    pub(crate) readers: usize,
    /// and how many of their batches are looked up before they are read.
    pub(crate) batches_ahead: usize,
    pub(crate) backup: Backup,
    newer_partial: Option<Backup>,
    /// Keeps the chunks. `None`: the server has the guard.
    _guard: Option<InFlight>,
}

impl Reading {
    /// Returns the record. Behind a connection its root means something only to this reading.
    pub fn backup(&self) -> &Backup {
        &self.backup
    }

    /// Returns what reads its chunks, for as long as the reading is there.
    pub fn chunks(&self) -> &std::sync::Arc<dyn Chunks> {
        &self.chunks
    }

    /// Returns a newer backup that was passed over because it is partial.
    pub fn newer_partial(&self) -> Option<&Backup> {
        self.newer_partial.as_ref()
    }

    /// Returns the entry at `path` ([`Catalog::lookup`](onefold_catalog::Catalog::lookup)).
    pub(crate) fn lookup(&self, path: &[u8]) -> onefold_catalog::Result<Option<Entry>> {
        onefold_catalog::lookup(&self.chunks, &self.backup.root, path)
    }
}
