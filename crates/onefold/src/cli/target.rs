//! iSCSI targets and sessions: `target`, `session`.

use super::{Format, Store, StoreToOneself, any_path};
use crate::units::parse_size;
use clap::{Args, Subcommand};
use onefold_targets::{Digest, Network, whole_name};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `onefold target`.
#[derive(Debug, Subcommand)]
pub enum Target {
    /// Creates a target; until there is one, a built-in target shows all volumes
    #[command(after_help = "\
A name that does not begin with iqn., eui. or naa. gets iqn.2026-01.io.github.onefold: before it.

Examples:
  onefold target create vmware
  onefold target create iqn.2026-01.com.example:databases --header-digest required --max-sessions 4")]
    Create(TargetCreate),
    /// Lists the targets, their volumes and who may use them
    List(TargetList),
    /// Deletes a target, not its volumes
    Delete(TargetDelete),
    /// Changes the settings of a target
    Set(TargetSet),
    /// Shows a volume as a LUN of a target
    #[command(after_help = "Examples:\n  onefold target attach vmware disk\n  onefold target attach vmware monday --lun 7 --read-only")]
    Attach(TargetAttach),
    /// Removes a volume from a target
    #[command(after_help = "Examples:\n  onefold target detach vmware disk\n  onefold target detach vmware --lun 7")]
    Detach(TargetDetach),
    /// Allows initiators to use a target, by name or network; without rules all may
    #[command(after_help = "\
An initiator must match one of the names, if there are any, and one of the networks, if there are any. In names, * matches any number of
characters and ? matches one.

Example:
  onefold target allow vmware --initiator 'iqn.1998-01.com.vmware:*' --network 10.1.0.0/16")]
    Allow(TargetAllow),
    /// Removes names and networks from the list of allowed initiators
    Deny(TargetDeny),
    /// Sets up CHAP: a name and a secret for initiators, or for the target itself
    #[command(after_help = "\
The secret has 12 to 128 bytes (12 to 16 for Windows), in a file that other users cannot read. The store keeps the path of the file, never
the secret. The daemon reads the file at each login, so a new secret works at once.

Examples:
  onefold target chap vmware --user esx1 --secret-file /etc/onefold/esx1.secret
  onefold target chap vmware --mutual --user onefold --secret-file /etc/onefold/own.secret
  onefold target chap vmware --off --user esx1")]
    Chap(TargetChap),
}

fn target_name(text: &str) -> Result<String, String> {
    whole_name(text).map_err(|error| error.to_string())
}

/// What a digest of a session must be, as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum DigestChoice {
    /// The initiator chooses
    Optional,
    /// CRC32C; other sessions are refused
    Required,
    /// None
    Off,
}

impl From<DigestChoice> for Digest {
    fn from(choice: DigestChoice) -> Digest {
        match choice {
            DigestChoice::Optional => Digest::Optional,
            DigestChoice::Required => Digest::Required,
            DigestChoice::Off => Digest::Off,
        }
    }
}

/// Settings of a target.
#[derive(Args, Clone, Copy, Debug, Deserialize, Serialize)]
pub struct TargetSettings {
    /// Write-protects all its LUNs
    #[arg(long, value_name = "YES-NO", num_args = 0..=1, default_missing_value = "true")]
    pub read_only: Option<bool>,
    /// Most sessions at a time; 0 for the daemon's limit
    #[arg(long, value_name = "N")]
    pub max_sessions: Option<u32>,
    /// CRC32C over the headers of all PDUs
    #[arg(long, value_enum, value_name = "WHEN")]
    pub header_digest: Option<DigestChoice>,
    /// CRC32C over all data
    #[arg(long, value_enum, value_name = "WHEN")]
    pub data_digest: Option<DigestChoice>,
}

/// `onefold target create`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct TargetCreate {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the target
    #[arg(value_parser = target_name)]
    pub name: String,
    /// Its settings.
    #[command(flatten)]
    pub settings: TargetSettings,
    /// Creates it even if initiators use the built-in target, which then goes
    #[arg(long)]
    pub force: bool,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold target list`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct TargetList {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Store,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold target delete`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct TargetDelete {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the target
    #[arg(value_parser = target_name)]
    pub name: String,
    /// Deletes it even if initiators are logged in, and closes their sessions
    #[arg(long)]
    pub force: bool,
    /// Does not ask; required if there is no terminal
    #[arg(short, long)]
    pub yes: bool,
}

/// `onefold target set`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct TargetSet {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the target
    #[arg(value_parser = target_name)]
    pub name: String,
    /// Its settings.
    #[command(flatten)]
    pub settings: TargetSettings,
}

/// `onefold target attach`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct TargetAttach {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the target
    #[arg(value_parser = target_name)]
    pub target: String,
    /// Name of the volume or snapshot
    pub volume: String,
    /// Its LUN, 0 to 16383 [default: the lowest free one]
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..=i64::from(onefold_targets::MAX_LUN)))]
    pub lun: Option<u16>,
    /// Write-protects it for initiators
    #[arg(long)]
    pub read_only: bool,
    /// Lets initiators eject and load its medium (RMB, START STOP UNIT)
    #[arg(long)]
    pub removable: bool,
    /// Size of its logical blocks: 512B or 4KiB
    #[arg(long, value_name = "SIZE", value_parser = logical_block, default_value = "512B")]
    pub block_size: u32,
}

fn logical_block(text: &str) -> Result<u32, String> {
    match parse_size(text) {
        Ok(512) => Ok(512),
        Ok(4096) => Ok(4096),
        Ok(_) => Err("it must be 512B or 4KiB".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// `onefold target detach`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct TargetDetach {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the target
    #[arg(value_parser = target_name)]
    pub target: String,
    /// Name of the volume
    #[arg(required_unless_present = "lun", conflicts_with = "lun")]
    pub volume: Option<String>,
    /// The volume of this LUN: for volumes that were deleted or cannot be read
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..=i64::from(onefold_targets::MAX_LUN)))]
    pub lun: Option<u16>,
    /// Removes it even if initiators are logged in, who do not expect it
    #[arg(long)]
    pub force: bool,
}

/// Names and networks.
#[derive(Args, Debug, Deserialize, Serialize)]
#[group(required = true, multiple = true)]
pub struct Rules {
    /// Name of an initiator, or a pattern; repeatable
    #[arg(long, value_name = "PATTERN", value_parser = initiator_pattern)]
    pub initiator: Vec<String>,
    /// Addresses, as in 10.1.0.0/16, fd00::/8 or 10.1.2.3; repeatable
    #[arg(long, value_name = "NETWORK", value_parser = network)]
    pub network: Vec<String>,
}

fn initiator_pattern(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 223 || text.chars().any(|char| char.is_control() || char.is_whitespace()) {
        return Err("a name of an initiator has 1 to 223 bytes and no spaces".to_owned());
    }
    Ok(text.to_ascii_lowercase())
}

fn network(text: &str) -> Result<String, String> {
    text.parse::<Network>().map(|network| network.to_string())
}

/// `onefold target allow`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct TargetAllow {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the target
    #[arg(value_parser = target_name)]
    pub name: String,
    /// Whom.
    #[command(flatten)]
    pub rules: Rules,
}

/// `onefold target deny`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct TargetDeny {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the target
    #[arg(value_parser = target_name)]
    pub name: String,
    /// Whom.
    #[command(flatten)]
    pub rules: Rules,
}

/// `onefold target chap`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct TargetChap {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the target
    #[arg(value_parser = target_name)]
    pub name: String,
    /// Name that goes with the secret
    #[arg(long, value_name = "NAME", required_unless_present = "off", value_parser = super::plain_name)]
    pub user: Option<String>,
    /// File with the secret; a newline at its end is ignored
    #[arg(long, value_name = "FILE", required_unless_present = "off", conflicts_with = "off")]
    #[serde(with = "any_path::optional")]
    pub secret_file: Option<PathBuf>,
    /// Sets the target's own name and secret, for initiators that authenticate it
    #[arg(long)]
    pub mutual: bool,
    /// Removes this name; without --user, all names
    #[arg(long)]
    pub off: bool,
}

/// `onefold session`.
#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// Lists the iSCSI sessions of the daemon
    List(SessionList),
    /// Closes iSCSI sessions; initiators may log in again unless a rule of the target refuses them
    #[command(after_help = "Examples:\n  onefold session drop 3\n  onefold session drop --target vmware")]
    Drop(SessionDrop),
}

/// `onefold session list`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct SessionList {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Store,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold session drop`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct SessionDrop {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Store,
    /// Numbers of sessions, as `session list` shows them
    #[arg(required_unless_present = "target", conflicts_with = "target")]
    pub numbers: Vec<u64>,
    /// All sessions of this target
    #[arg(long, value_name = "NAME", value_parser = target_name)]
    pub target: Option<String>,
}
