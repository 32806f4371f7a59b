//! `copy`.

use super::backup::plain_name;
use super::{Format, StoreToOneself};
use clap::Args;
use std::path::PathBuf;

/// `onefold copy`.
#[derive(Args, Debug)]
#[command(after_help = "\
Copies everything, or the backups and volumes that are named. The other store may have other chunks, fingerprints and compression; with the same
chunks and fingerprints, data that it has is not even read. A backup keeps its id, so repeating a copy, or one that was stopped, goes on with what is
missing. A volume that the other store has by name is left as it is.
Backups are copied beside a daemon or another backup. Volumes are copied by the daemon that has the store open, as they are at one moment while their
clients go on; without a daemon, while nobody else writes to the store (--wait waits for that).

Examples:
  onefold copy --store /srv/store --to /mnt/usb/store --init
  onefold copy --to /mnt/usb/store --name home --name mail
  onefold copy --to /mnt/usb/store latest:home --volume disk")]
pub struct Copy {
    /// Which store.
    #[command(flatten)]
    pub store: StoreToOneself,
    /// Directory of the store to copy into
    #[arg(long, value_name = "STORE")]
    pub to: PathBuf,
    /// Makes that store first, with the settings of this one, if there is none
    #[arg(long)]
    pub init: bool,
    /// Only backups of this name; may be given many times
    #[arg(long = "name", value_name = "NAME", value_parser = plain_name)]
    pub names: Vec<String>,
    /// Only this volume, snapshot or clone; may be given many times
    #[arg(long = "volume", value_name = "NAME")]
    pub volumes: Vec<String>,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
    /// Only these backups: ids, unique beginnings of them, `latest`, or `latest:NAME`
    #[arg(value_name = "ID")]
    pub backups: Vec<String>,
}
