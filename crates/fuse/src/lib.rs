//! Mounts: the faces of a store that are directories, through FUSE.
//!
//! * [`BackupTree`]: all backups as a read-only tree. It gets them from a [`Backups`], so it does the same for a store
//!   that is open here and for one behind a connection.
//! * [`FileTree`]: a filesystem of the store, for writing.
//! * [`mount()`]: shows such a tree at a directory until it is unmounted.
//!
//! This crate must never know how a store keeps its data, nor whether there is a connection.

mod backups;
mod files;
mod mount;

pub use backups::{BackupTree, Backups, Opened, TreeOptions};
pub use files::FileTree;
pub use mount::{MountError, MountOptions, Mounted, Tree, is_dead, is_mounted, mount, unmount, unmount_dead};
