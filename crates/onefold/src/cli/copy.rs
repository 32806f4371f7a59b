//! `copy`.

use super::backup::plain_name;
use super::{Format, StoreToOneself};
use clap::Args;
use std::path::PathBuf;

/// `onefold copy`.
#[derive(Args, Debug)]
#[command(after_help = "\
Copies everything, or the named backups and volumes. The other store may use other chunks, fingerprints and compression. If chunks and
fingerprints are the same, data that it already has is not even read. A backup keeps its id, so a repeated or interrupted copy continues with
what is missing. A volume whose name exists in the other store is left unchanged.
Copying backups works beside a daemon or another backup. If a daemon has the store open, the daemon copies the volumes as of one moment, while
their clients continue. Without a daemon, nobody else may write to the store meanwhile (--wait waits for that).

Examples:
  onefold copy --store /srv/store --to /mnt/usb/store --init
  onefold copy --to /mnt/usb/store --name home --name mail
  onefold copy --to /mnt/usb/store latest:home --volume disk")]
pub struct Copy {
    /// Which store.
    #[command(flatten)]
    pub store: StoreToOneself,
    /// Directory of the store to copy into, or s3://BUCKET/PREFIX
    #[arg(long, value_name = "STORE", value_parser = super::place_parser())]
    pub to: PathBuf,
    /// Creates that store first if there is none, with the settings of this one
    #[arg(long)]
    pub init: bool,
    /// Only backups of this name; repeatable
    #[arg(long = "name", value_name = "NAME", value_parser = plain_name)]
    pub names: Vec<String>,
    /// Only this volume, snapshot or clone; repeatable
    #[arg(long = "volume", value_name = "NAME")]
    pub volumes: Vec<String>,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
    /// Only these backups: ids, unique prefixes of ids, `latest`, or `latest:NAME`
    #[arg(value_name = "ID")]
    pub backups: Vec<String>,
}
