//! Retention: `forget`, `prune`, `protect`, `append-only`.

use super::{Format, PlaceToOneself, Store, StoreToOneself};
use crate::secret::Secret;
use crate::units::parse_moment;
use clap::{Args, Subcommand};
use onefold_catalog::retention::{Limit, Period, Policy};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::str::FromStr;

/// `onefold forget`.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "\
A policy applies to each group separately; a group is all backups of one name. A backup is kept if any rule keeps it. --keep-daily 7 keeps \
the newest backup of each of the last 7 days that have one; hours, weeks (from Monday), months and years work alike, in local time. A rule that \
finds fewer also keeps the oldest backup. A partial backup never replaces a complete one. --keep-within 30d keeps backups that are less than \
30 days older than the newest of the group; periods are written with y, m (months), d, h. Protected backups are always kept.

Forgetting takes a moment, whatever the size. `onefold prune` frees the space.

Examples:
  onefold forget --keep-daily 7 --keep-monthly 12 --keep-yearly unlimited --dry-run
  onefold forget --name home --keep-within 1y6m
  onefold forget 3f2a91bc latest:scratch
  onefold forget --name scratch --keep-last 0")]
pub struct Forget {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: PlaceToOneself,
    /// Applies the policy only to backups of this name; repeatable
    #[arg(long = "name", value_name = "NAME", conflicts_with = "backups")]
    pub names: Vec<String>,
    /// Applies the policy only to backups of this machine; repeatable
    #[arg(long = "host", value_name = "HOST", conflicts_with = "backups")]
    pub hosts: Vec<String>,
    /// Applies the policy only to backups with this tag; repeatable, any of them matches
    #[arg(long = "tag", value_name = "TAG", conflicts_with = "backups")]
    pub tags: Vec<String>,
    /// Which backups to keep.
    #[command(flatten)]
    pub keep: Keep,
    /// Shows what it would forget, and changes nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Forgets named backups without asking; required if there is no terminal. A policy never asks
    #[arg(short, long)]
    pub yes: bool,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
    /// Backups to forget: ids, unique prefixes of ids, or `latest[-any][:NAME][#TAG]`
    #[arg(value_name = "ID")]
    pub backups: Vec<String>,
}

/// `onefold prune`.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "\
First removes chunks that nothing refers to: what forgotten backups, deleted volumes and overwritten blocks left behind. Then merges the \
containers with the most unused bytes, until at most --max-unused of all bytes is unused. Chunks still in use move together, in the order in \
which the newest backup reads them. Nothing is locked: clients of a daemon continue to read and write.

You can stop it at any time; the next prune continues.

Examples:
  onefold prune
  onefold prune --max-unused 0 --dry-run
  onefold forget --keep-daily 7 && onefold prune")]
pub struct Prune {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: PlaceToOneself,
    /// Share of all bytes that may stay unused; 0 frees as much as possible
    #[arg(long, value_name = "SHARE", default_value = "5%")]
    pub max_unused: Share,
    /// Skips containers of which a greater share is in use: copies less, but more may stay unused
    #[arg(long, value_name = "SHARE", default_value = "100%")]
    pub max_fill: Share,
    /// Shows what it would remove, and changes nothing; reads the whole chunk index
    #[arg(long)]
    pub dry_run: bool,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold dedup`.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "\
Only a store of profile `sampled` may have chunks twice: its look-ups miss some duplicates. This reads the catalogs of all containers, \
compares what seems to be the same byte by byte, and keeps one copy. Then it prunes. Nothing is locked: clients of a daemon continue to \
read and write, and a daemon does this by itself now and then.

You can stop it at any time; the next one continues.

Examples:
  onefold dedup --dry-run
  onefold dedup --max-unused 0")]
pub struct Dedup {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: PlaceToOneself,
    /// Share of all bytes that may stay unused; 0 frees as much as possible
    #[arg(long, value_name = "SHARE", default_value = "5%")]
    pub max_unused: Share,
    /// Shows how much is stored twice, and changes nothing
    #[arg(long)]
    pub dry_run: bool,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// A share, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Share(pub f64);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let digits = text.strip_suffix('%').map(str::trim_end).or((text == "0").then_some("0"));
        let percent = digits.and_then(|digits| digits.parse::<f64>().ok()).filter(|percent| (0.0..=100.0).contains(percent));
        percent
            .map(|percent| Share(percent / 100.0))
            .ok_or_else(|| "a share is written as a percentage from 0% to 100%, as in 5% or 2.5%".to_owned())
    }
}

/// The rules of a policy. N is a number or `unlimited`.
#[derive(Args, Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Keep {
    /// Keeps the N newest backups of a group; 0 keeps none
    #[arg(long = "keep-last", value_name = "N", conflicts_with = "backups")]
    last: Option<Limit>,
    /// Keeps the newest backup of each of the last N hours that have one
    #[arg(long = "keep-hourly", value_name = "N", conflicts_with = "backups")]
    hourly: Option<Limit>,
    /// Keeps the newest backup of each of the last N days that have one
    #[arg(long = "keep-daily", value_name = "N", conflicts_with = "backups")]
    daily: Option<Limit>,
    /// Keeps the newest backup of each of the last N weeks that have one
    #[arg(long = "keep-weekly", value_name = "N", conflicts_with = "backups")]
    weekly: Option<Limit>,
    /// Keeps the newest backup of each of the last N months that have one
    #[arg(long = "keep-monthly", value_name = "N", conflicts_with = "backups")]
    monthly: Option<Limit>,
    /// Keeps the newest backup of each of the last N years that have one
    #[arg(long = "keep-yearly", value_name = "N", conflicts_with = "backups")]
    yearly: Option<Limit>,
    /// Keeps backups that are older than the newest of their group by less than this: 30d, 1y5m7d2h
    #[arg(long = "keep-within", value_name = "PERIOD", conflicts_with = "backups")]
    within: Option<Period>,
}

impl Keep {
    /// The policy; `None` if no rule was given.
    pub fn policy(&self) -> Option<Policy> {
        let limits = [self.last, self.hourly, self.daily, self.weekly, self.monthly, self.yearly];
        if limits.iter().all(Option::is_none) && self.within.is_none() {
            return None;
        }
        let [last, hourly, daily, weekly, monthly, yearly] = limits.map(Option::unwrap_or_default);
        Some(Policy { last, hourly, daily, weekly, monthly, yearly, within: self.within })
    }

    /// Whether it was said in so many words that none shall be kept.
    pub fn says_none(&self) -> bool {
        self.last == Some(Limit::AtMost(0))
    }
}

/// `onefold protect`.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "\
Nobody can forget a protected backup before its date. In append-only mode, a protection can be extended but not shortened.

Examples:
  onefold protect latest:home --for 1y
  onefold protect 3f2a91bc 77b1 --until 2027-12-31
  onefold protect 3f2a91bc --off")]
pub struct Protect {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: PlaceToOneself,
    /// Until when.
    #[command(flatten)]
    pub until: Until,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
    /// Backups: ids, unique prefixes of ids, or `latest[-any][:NAME][#TAG]`
    #[arg(required = true, value_name = "ID")]
    pub backups: Vec<String>,
}

/// One of three ways to say until when a backup is protected.
#[derive(Args, Clone, Copy, Debug, Deserialize, Serialize)]
#[group(required = true, multiple = false)]
pub struct Until {
    /// Protects until this day or time: 2027-01-31, 2027-01-31T14:05 (local time), or with a zone as in RFC 3339
    #[arg(long = "until", value_name = "DATE", value_parser = parse_moment)]
    pub moment_ns: Option<i64>,
    /// Protects for this long from now, written with y, m, d, h: 30d, 1y6m
    #[arg(long = "for", value_name = "PERIOD")]
    pub period: Option<Period>,
    /// Ends the protection
    #[arg(long)]
    pub off: bool,
}

/// `onefold append-only`.
#[derive(Debug, Subcommand)]
pub enum AppendOnly {
    /// Switches append-only mode on, with a secret that switches it off again
    #[command(after_help = "\
While it is on, nobody can forget backups, shorten their protection, prune, or delete, shrink or roll back volumes, neither with this \
program nor through its daemon. Backups, new volumes and writes to volumes still work. It does not stop users who can write to the store's \
files from deleting them.

The command asks for the secret (8 to 1,024 bytes), or takes it from --secret-file or ONEFOLD_SECRET. A lost secret cannot be recovered; \
keep it off the machines that make the backups.

Example:
  onefold append-only on --store /srv/store")]
    On(AppendOnlyOn),
    /// Switches append-only mode off
    #[command(after_help = "The secret is asked for, or taken from --secret-file or from ONEFOLD_SECRET.")]
    Off(AppendOnlyOff),
    /// Shows whether append-only mode is on
    Status(AppendOnlyStatus),
}

/// `onefold append-only on`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct AppendOnlyOn {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Reads the secret from this file, `-` for standard input; ignores a newline at its end
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub secret_file: Option<PathBuf>,
    /// The secret, once it was read.
    #[arg(skip)]
    pub secret: Secret,
}

/// `onefold append-only off`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct AppendOnlyOff {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Reads the secret from this file, `-` for standard input; ignores a newline at its end
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub secret_file: Option<PathBuf>,
    /// The secret, once it was read.
    #[arg(skip)]
    pub secret: Secret,
}

/// `onefold append-only status`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct AppendOnlyStatus {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Store,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}
