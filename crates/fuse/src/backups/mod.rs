//! All backups as a read-only tree.
//!
//! # What the kernel may keep
//! A backup never changes, so the kernel keeps names, attributes, directories and data of backups as long as it likes.
//! Only the directories above them change: they are kept for a second.
//!
//! # Backups come and go
//! The list is read again when somebody looks at the directories above the backups. A backup is opened when something
//! of it is read, and closed when nobody had it open for a while: it keeps all its chunks from being removed.
//! What is found in a backup refers to chunks, and behind a connection that means something only to one opening. So
//! whatever was found is found again after another opening ([`nodes`]).

mod held;
mod names;
mod nodes;
mod reading;
mod tree;

pub use held::{Backups, Opened};
pub use tree::{BackupTree, TreeOptions};
pub(crate) use tree::{answer, time};
