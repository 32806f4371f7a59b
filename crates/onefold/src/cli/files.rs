//! What looks into a backup: `ls`, `diff`, `restore`, `dump`.

use super::{Format, Store, any_path};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `onefold ls`.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "Examples:\n  onefold ls latest:home\n  onefold ls 3f2a /home/ann/notes")]
pub struct Ls {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Store,
    /// Backup: its id or the unique beginning of it, or `latest[-any][:NAME][#TAG]`
    #[arg(value_name = "ID")]
    pub backup: String,
    /// File or directory in the backup [default: all]
    #[serde(with = "any_path::optional")]
    pub path: Option<PathBuf>,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
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
Owners and device files need root; without it they are left out, with one warning.

Examples:
  onefold restore latest:home --target /tmp/restored
  onefold restore 3f2a /home/ann/notes --target / --overwrite if-changed")]
pub struct Restore {
    /// Which store.
    #[command(flatten)]
    pub store: Store,
    /// Backup: its id or the unique beginning of it, or `latest[-any][:NAME][#TAG]`
    #[arg(value_name = "ID")]
    pub backup: String,
    /// Files and directories in the backup [default: all]
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Directory to restore into; made if absent
    #[arg(long, value_name = "DIR")]
    pub target: PathBuf,
    /// What to do with files that exist in the target
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = OverwriteWhen::Never)]
    pub overwrite: OverwriteWhen,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// What to do with files that exist in the target of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OverwriteWhen {
    /// Leaves them alone and lists them
    Never,
    /// Replaces those whose size or modification time differs
    IfChanged,
    /// Replaces them
    Always,
}

/// `onefold dump`.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "Example:\n  onefold dump latest:home /home/ann/notes.txt | less")]
pub struct Dump {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Store,
    /// Backup: its id or the unique beginning of it, or `latest[-any][:NAME][#TAG]`
    #[arg(value_name = "ID")]
    pub backup: String,
    /// File in the backup
    #[serde(with = "any_path")]
    pub path: PathBuf,
}
