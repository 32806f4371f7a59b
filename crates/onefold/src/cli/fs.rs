//! Filesystems: `fs`.

use super::{Format, Store, StoreToOneself};
use crate::units::parse_size;
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// `onefold fs`.
#[derive(Debug, Subcommand)]
pub enum Fs {
    /// Creates an empty filesystem
    #[command(after_help = "\
Examples:
  onefold fs create files
  onefold fs create team --size 500GiB
  onefold mount --fs files /mnt/files")]
    Create(FsCreate),
    /// Lists the filesystems, snapshots and clones
    List(FsList),
    /// Changes how much the files of a filesystem may have together
    #[command(after_help = "Examples:\n  onefold fs resize team --size 1TiB\n  onefold fs resize team --size none")]
    Resize(FsResize),
    /// Renames a filesystem or a snapshot
    Rename(FsRename),
    /// Creates a snapshot: a read-only copy of the filesystem as of now, made at once and without copying data
    #[command(after_help = "\
A mounted filesystem shows its snapshots in the directory `.snapshots` of its root, which is found by its name and not listed.

Example:
  onefold fs snapshot files monday
  ls /mnt/files/.snapshots/monday")]
    Snapshot(FsSnapshot),
    /// Creates a filesystem as a copy of a filesystem or snapshot, at once and without copying data
    #[command(after_help = "Example:\n  onefold fs clone monday test")]
    Clone(FsClone),
    /// Rolls a filesystem back to a snapshot; everything changed since then is lost
    #[command(after_help = "\
The filesystem must not be mounted. The snapshot must be one of the filesystem itself, or of the one that it was cloned from. All snapshots stay.

Example:
  onefold fs rollback files monday")]
    Rollback(FsRollback),
    /// Deletes a filesystem or a snapshot after asking; other snapshots and clones keep the data they share with it
    Delete(FsDelete),
}

/// How much the files of a filesystem may have together.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Quota(pub Option<u64>);

impl FromStr for Quota {
    type Err = String;

    fn from_str(text: &str) -> Result<Quota, String> {
        if text == "none" { Ok(Quota(None)) } else { parse_size(text).map(|bytes| Quota(Some(bytes))).map_err(|error| error.to_string()) }
    }
}

/// `onefold fs create`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct FsCreate {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the filesystem: 1 to 255 bytes without `/` and control characters
    pub name: String,
    /// What its files may have together; none: as much as the store has room for
    #[arg(long, default_value = "none")]
    pub size: Quota,
    /// User and group of its root; the caller's own.
    #[arg(skip)]
    pub owner: (u32, u32),
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold fs list`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct FsList {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Store,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold fs resize`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct FsResize {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the filesystem
    pub name: String,
    /// What its files may have together; it may be less than they have. `none`: as much as the store has room for
    #[arg(long)]
    pub size: Quota,
}

/// `onefold fs rename`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct FsRename {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the filesystem or snapshot
    pub name: String,
    /// Its new name: not yet used by a filesystem or snapshot
    pub new: String,
}

/// `onefold fs snapshot`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct FsSnapshot {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the filesystem
    pub filesystem: String,
    /// Name of the snapshot: not yet used by a filesystem or snapshot
    pub name: String,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold fs clone`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct FsClone {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the filesystem or snapshot to copy
    pub source: String,
    /// Name of the new filesystem: not yet used by a filesystem or snapshot
    pub name: String,
    /// Creates a filesystem that never changes
    #[arg(long)]
    pub read_only: bool,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold fs rollback`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct FsRollback {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the filesystem
    pub filesystem: String,
    /// Name of the snapshot
    pub snapshot: String,
    /// Does not ask; required if there is no terminal
    #[arg(short, long)]
    pub yes: bool,
}

/// `onefold fs delete`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct FsDelete {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the filesystem or snapshot
    pub name: String,
    /// Does not ask; required if there is no terminal
    #[arg(short, long)]
    pub yes: bool,
}
