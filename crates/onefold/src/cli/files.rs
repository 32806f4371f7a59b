//! What looks into backups: `ls`, `find`, `diff`, `restore`, `dump`.

use super::{Format, Store, any_path};
use crate::units::{parse_moment, parse_size};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `onefold ls`.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "\
Without PATH it lists what is in the directories that were backed up.

Examples:
  onefold ls latest:home
  onefold ls -l 3f2a /home/ann/notes
  onefold ls -R latest > everything")]
pub struct Ls {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Store,
    /// Backup: its id or the unique beginning of it, or `latest[-any][:NAME][#TAG]`
    #[arg(value_name = "ID")]
    pub backup: String,
    /// File or directory in the backup
    #[serde(with = "any_path::optional")]
    pub path: Option<PathBuf>,
    /// Lists mode, owner, group, size and time, too
    #[arg(short, long)]
    pub long: bool,
    /// Lists everything below, too
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold find`.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "\
A pattern without / matches a name at any depth, one with / in front a path from the root; *, ? and [a-z] stay within a name,
** stands for any number of directories. What any of the patterns matches is found, with all that is true of the options.
Of each path every different version is listed, the newest first, with the backups that have it.

Examples:
  onefold find notes.txt
  onefold find '*.odt' --name home --newer 2026-11-01
  onefold find '/home/ann/**/report*' --backup latest --type file --min-size 1MiB")]
pub struct Find {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Store,
    /// What to find, by name or path [default: everything that the options let pass]
    #[arg(value_name = "GLOB")]
    pub patterns: Vec<String>,
    /// Looks only into this backup: an id, the unique beginning of one, `latest`, or `latest:NAME`; may be given many times
    #[arg(long, value_name = "ID")]
    pub backup: Vec<String>,
    /// Looks only into the backups of this name
    #[arg(long)]
    pub name: Option<String>,
    /// Finds only things of this kind; may be given many times
    #[arg(long = "type", value_enum, value_name = "TYPE")]
    pub kinds: Vec<FileType>,
    /// Finds only files of at least this size
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub min_size: Option<u64>,
    /// Finds only files of at most this size
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub max_size: Option<u64>,
    /// Finds only what was modified at this time or later
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    pub newer: Option<i64>,
    /// Finds only what was modified before this time
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
    /// Further names of files
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
Lines begin with + (only in the second), - (only in the first) or M (differs; what differs follows).

Example:
  onefold diff 3f2a latest:home")]
pub struct Diff {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Store,
    /// The older backup: id, beginning of an id, or `latest[-any][:NAME][#TAG]`
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
Owners and device files need root; without it owners are left out, with one warning, and each device file is an error.
A path that the backup has not may be a pattern from its root: * and ? within a name, ** for any number of directories.
--include and --exclude take patterns as `backup --exclude` does.

Examples:
  onefold restore latest:home --target /tmp/restored
  onefold restore 3f2a /home/ann/notes --target / --overwrite if-changed
  onefold restore latest '/home/*/.config' --target /tmp/restored --dry-run
  onefold restore latest:home --target /home/ann --strip-components 2 --overwrite if-changed --delete")]
pub struct Restore {
    /// Which store.
    #[command(flatten)]
    pub store: Store,
    /// Backup: its id or the unique beginning of it, or `latest[-any][:NAME][#TAG]`
    #[arg(value_name = "ID")]
    pub backup: String,
    /// Files and directories in the backup, or patterns of such [default: all]
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Directory to restore into; made if absent
    #[arg(long, value_name = "DIR")]
    pub target: PathBuf,
    /// What to do with files that exist in the target
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = OverwriteWhen::Never)]
    pub overwrite: OverwriteWhen,
    /// Restores only what matches this pattern, and what is below it; may be given many times
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,
    /// Leaves out what matches this pattern; may be given many times
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Takes so many components off the front of each path; what has no more is left out
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub strip_components: usize,
    /// Deletes from the directories that are restored what the backup has not
    #[arg(long)]
    pub delete: bool,
    /// Changes nothing; lists what would be made, replaced and deleted
    #[arg(long)]
    pub dry_run: bool,
    /// Shows progress also where standard error is no terminal; with --json as lines of JSON on standard error
    #[arg(long)]
    pub progress: bool,
    /// What becomes of files of which a part cannot be read
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
    /// Replaces them
    Always,
}

/// What becomes of a file of which a part cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DamagedFile {
    /// Leaves it out
    Skip,
    /// Restores it as NAME.onefold-damaged, with zeros in place of what is lost
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
    pub store: Store,
    /// Backup: its id or the unique beginning of it, or `latest[-any][:NAME][#TAG]`
    #[arg(value_name = "ID")]
    pub backup: String,
    /// File in the backup; with --archive also a directory
    #[serde(with = "any_path")]
    pub path: PathBuf,
    /// Writes an archive with attributes, and everything below a directory; names in it begin with that of the directory
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub archive: Option<ArchiveFormat>,
    /// What to do where a file cannot be read
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
