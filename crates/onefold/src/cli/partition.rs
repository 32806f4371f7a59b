//! The command line of `onefold partition`.

use super::{Format, Store, StoreToOneself, any_path};
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `onefold partition`.
#[derive(Debug, Subcommand)]
pub enum Partition {
    /// Lists the partitions, with what they have and where
    List(PartitionList),
    /// Moves a partition to another directory or disk, while the store is in use
    #[command(after_help = "\
All tables of the partition go to a directory of its own in DIRECTORY, and new ones too. Reading and writing go on. A move that was stopped goes on
when it is asked for again; meanwhile everything is found. From then on the store needs that disk: without it, it is not opened.

Examples:
  onefold partition move 3 /mnt/disk2
  onefold partition move 3 --home")]
    Move(PartitionMove),
}

/// `onefold partition list`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct PartitionList {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Store,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold partition move`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct PartitionMove {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Number of the partition, as `onefold partition list` shows it
    #[arg(value_name = "NUMBER")]
    pub number: u16,
    /// Directory that exists, on any disk
    #[arg(value_name = "DIRECTORY", required_unless_present = "home", conflicts_with = "home")]
    #[serde(with = "any_path::optional")]
    pub to: Option<PathBuf>,
    /// Moves it back into the directory of the store
    #[arg(long)]
    pub home: bool,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}
