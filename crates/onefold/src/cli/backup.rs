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
  onefold backup --name home --exclude-caches --exclude-from ~/.backup-excludes --tag before-upgrade /home
  pg_dumpall | onefold backup --name db --stdin dump.sql
  find /srv -newer mark -print0 | onefold backup --name new --files-from - --null
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
    /// Leaves out what matches the patterns in this file, one a line; may be given many times. Empty lines and those that begin with # do not count
    #[arg(long, value_name = "FILE")]
    pub exclude_from: Vec<PathBuf>,
    /// Leaves directories of caches empty but for the file CACHEDIR.TAG that marks them
    #[arg(long)]
    pub exclude_caches: bool,
    /// Leaves directories empty that have a file of this name, but for that file; may be given many times
    #[arg(long, value_name = "NAME", value_parser = file_name)]
    pub exclude_if_present: Vec<String>,
    /// Stays on the file systems of the given paths
    #[arg(long)]
    pub one_file_system: bool,
    /// Reads all files, also those that look unchanged
    #[arg(long)]
    pub force_read: bool,
    /// Reads the content of block devices and FIFOs that are named as PATH (also through links), and stores it as files
    #[arg(long)]
    pub read_special: bool,
    /// Compares with this backup, or with `none`: then every file is read [default: the newest of the same name, machine and paths]
    #[arg(long, value_name = "ID|none", conflicts_with = "stdin")]
    pub parent: Option<String>,
    /// Backs up what comes from standard input, as a file of this name
    #[arg(long, value_name = "NAME", conflicts_with_all = ["paths", "files_from", "dry_run"])]
    pub stdin: Option<PathBuf>,
    /// Backs up the files and directories that are listed in this file, one a line, `-` for standard input; may be given many times
    #[arg(long, value_name = "FILE")]
    pub files_from: Vec<PathBuf>,
    /// Names in --files-from end with NUL instead of a newline, as `find -print0` writes them
    #[arg(long, requires = "files_from")]
    pub null: bool,
    /// Says what would be backed up; reads no file and changes nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Shows progress also where standard error is no terminal; with --json as lines of JSON on standard error
    #[arg(long)]
    pub progress: bool,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
    /// Files and directories to back up
    #[arg(required_unless_present_any = ["stdin", "files_from"], value_name = "PATH")]
    pub paths: Vec<PathBuf>,
}

fn file_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains('/') {
        return Err("it is the name of a file, without `/`".to_owned());
    }
    Ok(text.to_owned())
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
