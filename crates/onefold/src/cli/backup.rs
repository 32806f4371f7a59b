//! `backup` and `backups`.

use super::{Format, Place, PlaceToOneself};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Options that say how files are read.
const OF_FILES: [&str; 14] = [
    "paths",
    "stdin",
    "files_from",
    "null",
    "dry_run",
    "parent",
    "force_read",
    "read_special",
    "one_file_system",
    "exclude",
    "exclude_from",
    "exclude_caches",
    "exclude_if_present",
    "progress",
];

/// `onefold backup`.
#[derive(Args, Debug)]
#[command(after_help = "\
Does not read files that are unchanged (size, times, inode) since the last backup of the same name and paths.
A pattern without `/` matches a name at any depth; with `/` it matches a path; `**` matches any number of directories.
^C leaves no backup behind, but the data stored so far makes the next run faster.
--fs backs up a filesystem of the store itself: no data is read or stored, and an unchanged one takes milliseconds.

Examples:
  onefold backup --store /srv/store --name home /home
  onefold backup --name home --exclude-caches --exclude-from ~/.backup-excludes --tag before-upgrade /home
  pg_dumpall | onefold backup --name db --stdin dump.sql
  onefold backup --fs files
  find /srv -newer mark -print0 | onefold backup --name new --files-from - --null
  onefold backup --name system --one-file-system --exclude '/var/cache/**' --exclude '*.tmp' / /boot")]
pub struct Backup {
    /// Which store.
    #[command(flatten)]
    pub store: PlaceToOneself,
    /// Name of the series that this backup belongs to [with --fs the default is the name of the filesystem]
    #[arg(long, value_parser = plain_name, required_unless_present = "fs")]
    pub name: Option<String>,
    /// Backs up this filesystem of the store (`onefold fs list`)
    #[arg(long, value_name = "NAME", conflicts_with_all = OF_FILES)]
    pub fs: Option<String>,
    /// Tag to find the backup by; repeatable
    #[arg(long = "tag", value_name = "TAG", value_parser = tag)]
    pub tags: Vec<String>,
    /// Leaves out names that match this pattern; repeatable
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Leaves out names that match the patterns in this file, one a line; repeatable. Empty lines and lines that begin
    /// with # are ignored
    #[arg(long, value_name = "FILE")]
    pub exclude_from: Vec<PathBuf>,
    /// Leaves out the content of cache directories, except the file CACHEDIR.TAG that marks them
    #[arg(long)]
    pub exclude_caches: bool,
    /// Leaves out the content of directories that have a file of this name, except that file; repeatable
    #[arg(long, value_name = "NAME", value_parser = file_name)]
    pub exclude_if_present: Vec<String>,
    /// Stays on the file systems of the given paths
    #[arg(long)]
    pub one_file_system: bool,
    /// Reads all files, even those that look unchanged
    #[arg(long)]
    pub force_read: bool,
    /// Reads block devices and FIFOs that are named as PATH (also through links), and stores their content as files
    #[arg(long)]
    pub read_special: bool,
    /// Compares with this backup; `none` reads every file [default: the newest of the same name, machine and paths]
    #[arg(long, value_name = "ID|none", conflicts_with = "stdin")]
    pub parent: Option<String>,
    /// Backs up standard input as a file of this name
    #[arg(long, value_name = "NAME", conflicts_with_all = ["paths", "files_from", "dry_run"])]
    pub stdin: Option<PathBuf>,
    /// Backs up the files and directories listed in this file, one a line; `-` for standard input; repeatable
    #[arg(long, value_name = "FILE")]
    pub files_from: Vec<PathBuf>,
    /// Names in --files-from end with NUL instead of a newline, as `find -print0` writes them
    #[arg(long, requires = "files_from")]
    pub null: bool,
    /// Shows what it would back up; reads no file and changes nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Shows progress even if standard error is not a terminal; with --json as JSON lines on standard error
    #[arg(long)]
    pub progress: bool,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
    /// Files and directories to back up
    #[arg(required_unless_present_any = ["stdin", "files_from", "fs"], value_name = "PATH")]
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

impl Backup {
    /// Returns the name of the series.
    pub fn name(&self) -> &str {
        self.name.as_ref().or(self.fs.as_ref()).map_or("", String::as_str)
    }
}

/// `onefold backup --fs`, as a daemon runs it.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct BackupFs {
    /// Which store.
    #[serde(skip)]
    pub store: PlaceToOneself,
    /// The filesystem.
    pub fs: String,
    /// Name of the series that this backup belongs to.
    pub name: String,
    /// Tags, sorted, each once.
    pub tags: Vec<String>,
    /// The machine's name.
    pub host: String,
    /// The user's name.
    pub user: String,
    /// How facts are printed.
    pub format: Format,
}

/// `onefold backups`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct Backups {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Place,
    /// Only backups of this name
    #[arg(long)]
    pub name: Option<String>,
    /// Only backups with this tag; repeatable, any of them matches
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}
