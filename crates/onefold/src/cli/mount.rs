//! `mount`.

use super::Place as StorePlace;
use crate::units::parse_size;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `onefold mount`.
#[derive(Args, Debug)]
#[command(after_help = "\
Without --fs the directory shows DIR/NAME/TIME/..., and links DIR/NAME/latest and DIR/ids/ID; nobody can write there. New backups appear by themselves.
Unmount it with `fusermount3 -u DIR`, or as root with `umount DIR`.

Examples:
  onefold mount /mnt/backups
  ls /mnt/backups/home/latest/home/ann
  onefold mount --foreground /mnt/backups
  onefold --repository onefold://ann@server mount ~/backups
  onefold mount --fs files /mnt/files")]
pub struct Mount {
    /// Which store.
    #[command(flatten)]
    pub store: StorePlace,
    /// Mounts this filesystem, for reading and writing, instead of the backups; a daemon of the store serves it, if
    /// there is one
    #[arg(long, value_name = "NAME")]
    pub fs: Option<String>,
    /// With --fs: nobody can write
    #[arg(long, requires = "fs")]
    pub read_only: bool,
    /// Directory at which the backups or the filesystem appear
    #[arg(value_name = "DIR")]
    pub at: PathBuf,
    /// Stays in the foreground, until ^C or until it is unmounted
    #[arg(short, long)]
    pub foreground: bool,
    /// Shows it to other users, too: each may read what the modes and ACLs of the files allow
    #[arg(long)]
    pub allow_other: bool,
    /// Lets device files be opened
    #[arg(long, conflicts_with = "fs")]
    pub dev: bool,
    /// Memory for reading ahead
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64MiB", conflicts_with = "fs")]
    pub read_ahead: u64,
}

/// What a daemon is to mount.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct MountFs {
    /// The store, as typed.
    #[serde(skip)]
    pub directory: PathBuf,
    /// Name of the filesystem.
    pub name: String,
    /// Where it is to appear: from the root.
    #[serde(with = "super::any_path")]
    pub place: PathBuf,
    /// Whether other users see it, too.
    pub allows_others: bool,
    /// Whether nobody can write.
    pub is_read_only: bool,
}

/// Request to undo a mount.
#[derive(Debug, Deserialize, Serialize)]
pub struct UnmountFs {
    /// The store, as typed.
    #[serde(skip)]
    pub directory: PathBuf,
    /// Name of the filesystem.
    pub name: String,
}
