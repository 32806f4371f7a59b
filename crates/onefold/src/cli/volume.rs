//! Network block devices: `volume`.

use super::{Format, Store, StoreToOneself};
use crate::settings::check_chain;
use crate::units::parse_size;
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `onefold volume`.
#[derive(Debug, Subcommand)]
pub enum Volume {
    /// Creates a volume; it takes no space until it is written to
    #[command(after_help = "Example:\n  onefold volume create disk --size 1TiB")]
    Create(VolumeCreate),
    /// Lists the volumes, snapshots and clones
    List(VolumeList),
    /// Creates a snapshot: a read-only copy of the volume as of now, made at once and without copying data
    #[command(after_help = "\
It has everything that clients wrote before the command started. It takes space only for data that is overwritten later.

Example:
  onefold volume snapshot disk disk-monday")]
    Snapshot(VolumeSnapshot),
    /// Creates a volume as a copy of a volume or snapshot, at once and without copying data
    #[command(after_help = "\
Examples:
  onefold volume clone disk-monday test
  onefold volume clone disk frozen --read-only")]
    Clone(VolumeClone),
    /// Rolls a volume back to a snapshot; everything written since then is lost
    #[command(after_help = "\
The snapshot must be one of the volume itself, or of the volume that it was cloned from. All snapshots stay.

Example:
  onefold volume rollback disk disk-monday")]
    Rollback(VolumeRollback),
    /// Lists the byte ranges in which two volumes or snapshots differ, without reading their data
    #[command(after_help = "\
Ranges that are not listed are equal. Listed ranges differ, or are stored in different pieces.

Example:
  onefold volume diff disk-monday disk")]
    Diff(VolumeDiff),
    /// Shows a volume or snapshot: its size, its data, its snapshots and clones, and its targets
    Info(VolumeFacts),
    /// Renames a volume or a snapshot
    #[command(after_help = "Example:\n  onefold volume rename disk old-disk")]
    Rename(VolumeRename),
    /// Grows or shrinks a volume; data beyond a smaller size is cut off
    #[command(after_help = "\
Before it cuts off data, it asks, and takes a snapshot of the volume named NAME.before-shrink- and the time.

Examples:
  onefold volume resize disk --size 2TiB
  onefold volume resize disk --size 100GiB --yes --no-snapshot")]
    Resize(VolumeResize),
    /// Deletes a volume or a snapshot after asking; other snapshots and clones keep the data they share with it
    Delete(VolumeDelete),
    /// Copies a file or a disk image into an existing volume, from its beginning
    #[command(after_help = "\
Holes of the file are not read and become zeros in the volume. Data beyond the end of the image stays as it is.

Examples:
  onefold volume import disk image.raw
  zcat image.raw.gz | onefold volume import disk -")]
    Import(VolumeImport),
    /// Copies a volume to a new file, with holes where it has no data, to a block device, or to standard output
    #[command(after_help = "\
Examples:
  onefold volume export disk image.raw
  onefold volume export disk - | gzip > image.raw.gz
  onefold volume export disk /dev/sdx --force")]
    Export(VolumeExport),
}

/// `onefold volume create`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct VolumeCreate {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the volume: 1 to 255 bytes without `/` and control characters
    pub name: String,
    /// Size
    #[arg(long, value_parser = parse_size)]
    pub size: u64,
    /// Size of a block, the unit of mapping and of locks: a power of two from 64KiB to 1MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256KiB")]
    pub block_size: u64,
    /// Filters for this volume, separated by commas [default: those of the store]
    #[arg(long, value_name = "FILTER,...", value_parser = filter_chain)]
    pub filter_chain: Option<String>,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

fn filter_chain(text: &str) -> Result<String, String> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    check_chain(&names).map_err(|why| format!("it {why}"))?;
    Ok(names.join(","))
}

/// `onefold volume list`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct VolumeList {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Store,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold volume snapshot`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct VolumeSnapshot {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the volume
    pub volume: String,
    /// Name of the snapshot: not yet used by a volume or snapshot
    pub name: String,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold volume clone`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct VolumeClone {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the volume or snapshot to copy
    pub source: String,
    /// Name of the new volume: not yet used by a volume or snapshot
    pub name: String,
    /// Creates a volume that never changes
    #[arg(long)]
    pub read_only: bool,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold volume rollback`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct VolumeRollback {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the volume
    pub volume: String,
    /// Name of the snapshot
    pub snapshot: String,
    /// Rolls back even if clients have the volume open, who do not expect it
    #[arg(long)]
    pub force: bool,
    /// Does not ask; required if there is no terminal
    #[arg(short, long)]
    pub yes: bool,
}

/// `onefold volume diff`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct VolumeDiff {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of a volume or snapshot
    pub first: String,
    /// Name of another
    pub second: String,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold volume resize`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct VolumeResize {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the volume
    pub name: String,
    /// New size
    #[arg(long, value_parser = parse_size)]
    pub size: u64,
    /// Takes no snapshot before data is cut off
    #[arg(long)]
    pub no_snapshot: bool,
    /// Does not ask; required if there is no terminal
    #[arg(short, long)]
    pub yes: bool,
}

/// `onefold volume delete`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct VolumeDelete {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the volume
    pub name: String,
    /// Does not ask; required if there is no terminal
    #[arg(short, long)]
    pub yes: bool,
}

/// `onefold volume rename`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct VolumeRename {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the volume or snapshot
    pub name: String,
    /// Its new name: not yet used by a volume or snapshot
    pub new: String,
}

/// `onefold volume info`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct VolumeFacts {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Store,
    /// Name of the volume or snapshot
    pub name: String,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold volume import`.
#[derive(Args, Debug)]
pub struct VolumeImport {
    /// Which store.
    #[command(flatten)]
    pub store: StoreToOneself,
    /// Name of the volume
    pub name: String,
    /// The file; `-` for standard input
    pub file: PathBuf,
}

/// `onefold volume export`.
#[derive(Args, Debug)]
pub struct VolumeExport {
    /// Which store.
    #[command(flatten)]
    pub store: StoreToOneself,
    /// Name of the volume
    pub name: String,
    /// The file; `-` for standard output
    pub file: PathBuf,
    /// Overwrites an existing file, or a block device that is unused and large enough
    #[arg(long)]
    pub force: bool,
}
