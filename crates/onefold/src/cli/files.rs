//! Commands that look into backups: `ls`, `find`, `diff`, `restore`, `dump`.

use super::{Format, Place, any_path};
use crate::units::{parse_moment, parse_size};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `onefold ls`.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "\
Without PATH it lists the directories that were backed up.

Examples:
  onefold ls latest:home
  onefold ls -l 3f2a /home/ann/notes
  onefold ls -R latest > everything")]
pub struct Ls {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Place,
    /// Backup: its id, a unique prefix of the id, or `latest[-any][:NAME][#TAG]`
    #[arg(value_name = "ID")]
    pub backup: String,
    /// File or directory in the backup
    #[serde(with = "any_path::optional")]
    pub path: Option<PathBuf>,
    /// Also lists mode, owner, group, size and time
    #[arg(short, long)]
    pub long: bool,
    /// Lists directories recursively
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold find`.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "\
A pattern without / matches a name at any depth; one that begins with / matches a path from the root. *, ? and [a-z] match within
a name, ** matches any number of directories. A file is found if any pattern and all options match it.
Each version of a path is listed, the newest first, with the backups that have it.

Examples:
  onefold find notes.txt
  onefold find '*.odt' --name home --newer 2026-11-01
  onefold find '/home/ann/**/report*' --backup latest --type file --min-size 1MiB")]
pub struct Find {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Place,
    /// Patterns of names or paths [default: everything that the options match]
    #[arg(value_name = "GLOB")]
    pub patterns: Vec<String>,
    /// Searches only this backup: an id, a unique prefix of one, `latest`, or `latest:NAME`; repeatable
    #[arg(long, value_name = "ID")]
    pub backup: Vec<String>,
    /// Searches only backups of this name
    #[arg(long)]
    pub name: Option<String>,
    /// Finds only this kind of file; repeatable
    #[arg(long = "type", value_enum, value_name = "TYPE")]
    pub kinds: Vec<FileType>,
    /// Finds only files of at least this size
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub min_size: Option<u64>,
    /// Finds only files of at most this size
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub max_size: Option<u64>,
    /// Finds only files modified at this time or later
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    pub newer: Option<i64>,
    /// Finds only files modified before this time
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    pub older: Option<i64>,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// Kinds of files, as `ls --json` names them.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum FileType {
    /// Regular files
    File,
    /// Directories
    Directory,
    /// Symbolic links
    Symlink,
    /// Character devices
    Character,
    /// Block devices
    Block,
    /// Named pipes
    Fifo,
    /// Sockets
    Socket,
    /// Hard links: further names of files
    Hardlink,
}

impl FileType {
    /// The word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            FileType::File => "file",
            FileType::Directory => "directory",
            FileType::Symlink => "symlink",
            FileType::Character => "character",
            FileType::Block => "block",
            FileType::Fifo => "fifo",
            FileType::Socket => "socket",
            FileType::Hardlink => "hardlink",
        }
    }
}

/// `onefold diff`.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "\
Lines begin with + (only in the second), - (only in the first) or M (differs; the differences follow).

Example:
  onefold diff 3f2a latest:home")]
pub struct Diff {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Place,
    /// The older backup: its id, a unique prefix of the id, or `latest[-any][:NAME][#TAG]`
    #[arg(value_name = "ID")]
    pub older: String,
    /// The newer backup
    #[arg(value_name = "ID")]
    pub newer: String,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold restore`.
#[derive(Args, Debug)]
#[command(after_help = "\
The paths of the backup appear below the target: /home/ann of the backup becomes TARGET/home/ann.
Owners and device files need root. Without root, owners are not restored (one warning), and each device file is an error.
A path that is not in the backup is a pattern from its root: * and ? match within a name, ** matches any number of directories.
--include and --exclude take patterns as `backup --exclude` does.

Examples:
  onefold restore latest:home --target /tmp/restored
  onefold restore 3f2a /home/ann/notes --target / --overwrite if-changed
  onefold restore latest '/home/*/.config' --target /tmp/restored --dry-run
  onefold restore latest:home --target /home/ann --strip-components 2 --overwrite if-changed --delete")]
pub struct Restore {
    /// Which store.
    #[command(flatten)]
    pub store: Place,
    /// Backup: its id, a unique prefix of the id, or `latest[-any][:NAME][#TAG]`
    #[arg(value_name = "ID")]
    pub backup: String,
    /// Files and directories in the backup, or patterns [default: all]
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Directory to restore into; created if absent
    #[arg(long, value_name = "DIR")]
    pub target: PathBuf,
    /// What to do with files that exist in the target
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = OverwriteWhen::Never)]
    pub overwrite: OverwriteWhen,
    /// Restores only names that match this pattern, and everything below them; repeatable
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,
    /// Leaves out names that match this pattern; repeatable
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Removes the first N components of each path; leaves out paths that have no more
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub strip_components: usize,
    /// In the restored directories, deletes files that the backup does not have
    #[arg(long)]
    pub delete: bool,
    /// Lists what it would create, replace and delete, and changes nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Shows progress even if standard error is not a terminal; with --json as JSON lines on standard error
    #[arg(long)]
    pub progress: bool,
    /// What to do with files that cannot be read completely
    #[arg(long, value_enum, value_name = "HOW", default_value_t = DamagedFile::Zero)]
    pub damaged: DamagedFile,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// What to do with files that exist in the target of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OverwriteWhen {
    /// Leaves them alone; lists those that differ in kind, size or modification time
    Never,
    /// Replaces those that differ in kind, size or modification time, as root also in owner
    IfChanged,
    /// Replaces all of them
    Always,
}

/// What becomes of a file of which a part cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DamagedFile {
    /// Leaves it out
    Skip,
    /// Restores it as NAME.onefold-damaged, with zeros in place of lost data
    Zero,
    /// Ends with an error
    Fail,
}

/// `onefold dump`.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "\
Examples:
  onefold dump latest:home /home/ann/notes.txt | less
  onefold dump latest:home /home/ann/notes --archive tar | tar -x --xattrs --acls -C /tmp")]
pub struct Dump {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Place,
    /// Backup: its id, a unique prefix of the id, or `latest[-any][:NAME][#TAG]`
    #[arg(value_name = "ID")]
    pub backup: String,
    /// File in the backup; with --archive, a file or a directory
    #[serde(with = "any_path")]
    pub path: PathBuf,
    /// Writes an archive with attributes and, for a directory, everything below it; names begin with the directory's
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub archive: Option<ArchiveFormat>,
    /// What to do where bytes cannot be read
    #[arg(long, value_enum, value_name = "HOW", default_value_t = DamagedBytes::Fail)]
    pub damaged: DamagedBytes,
}

/// Formats of archives.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ArchiveFormat {
    /// POSIX (pax), with extended attributes, ACLs and holes as GNU tar and bsdtar know them
    Tar,
}

/// What a dump does where bytes cannot be read.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum DamagedBytes {
    /// Ends with an error that says where
    Fail,
    /// Writes zeros in their place, and says where
    Zero,
}
