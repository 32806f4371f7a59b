//! `backup` and `backups`.

use super::{Format, Store, StoreToOneself};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `onefold backup`.
#[derive(Args, Debug)]
#[command(after_help = "\
Files that are unchanged since the last backup of the same name and paths (size, times, inode) are not read again.
A pattern without `/` matches a name at any depth; with `/` it matches a path; `**` matches any number of directories.
^C leaves no backup behind; what was stored so far makes the next run faster.

Examples:
  onefold backup --store /srv/store --name home /home
  onefold backup --name system --one-file-system --exclude '/var/cache/**' --exclude '*.tmp' / /boot")]
pub struct Backup {
    /// Which store.
    #[command(flatten)]
    pub store: StoreToOneself,
    /// Name of the series of backups that this one belongs to
    #[arg(long, value_parser = plain_name)]
    pub name: String,
    /// A word to find the backup by; may be given many times
    #[arg(long = "tag", value_name = "TAG", value_parser = tag)]
    pub tags: Vec<String>,
    /// Leaves out what matches this pattern; may be given many times
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Stays on the file systems of the given paths
    #[arg(long)]
    pub one_file_system: bool,
    /// Reads all files, also those that look unchanged
    #[arg(long)]
    pub force_read: bool,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
    /// Files and directories to back up
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
}

pub(super) fn plain_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 255 {
        return Err("a name has 1 to 255 bytes".to_owned());
    }
    if text.chars().any(char::is_control) {
        return Err("a name has no control characters (newline, tab, ...)".to_owned());
    }
    Ok(text.to_owned())
}

fn tag(text: &str) -> Result<String, String> {
    if onefold_catalog::is_valid_tag(text) {
        return Ok(text.to_owned());
    }
    Err("a tag is a word of 1 to 64 bytes, without white space, `,` and `#`".to_owned())
}

/// `onefold backups`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct Backups {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Store,
    /// Only backups of this name
    #[arg(long)]
    pub name: Option<String>,
    /// Only backups with this tag; may be given many times: any of them
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}
