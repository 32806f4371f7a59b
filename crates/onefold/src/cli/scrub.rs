//! The command line of `onefold scrub`.

use super::{Format, PlaceToOneself};
use crate::units::parse_size;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// `onefold scrub`.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "\
Reads all stored data from disk, past all caches, and verifies its checksums, to find bit rot before the data is needed. Each scrub continues
where the last one stopped, whatever stopped it. `onefold serve` scrubs on its own. `check --read-data` verifies more, and also finds missing data.

Examples:
  onefold scrub --rate 50MiB/s --for 2h
  onefold scrub --status")]
pub struct Scrub {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: PlaceToOneself,
    /// Reads at most this much a second, as in 50MiB/s [default: as fast as the disk allows]
    #[arg(long, value_name = "SIZE/s")]
    pub rate: Option<Rate>,
    /// Stops after this time, as in 30m or 2h; the next scrub continues there
    #[arg(long = "for", value_name = "TIME")]
    pub time: Option<Span>,
    /// Starts a new pass even if one is under way
    #[arg(long)]
    pub restart: bool,
    /// Only shows the progress, and the date of the last full pass
    #[arg(long, conflicts_with_all = ["rate", "time", "restart"])]
    pub status: bool,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// Bytes a second, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Rate(pub u64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let size = text.trim().strip_suffix("/s").ok_or_else(|| format!("`{text}` is not a rate: write it as in 50MiB/s"))?;
        match parse_size(size) {
            Ok(0) => Err("a rate is at least 1B/s".to_owned()),
            Ok(bytes) => Ok(Rate(bytes)),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// A span of time, seconds, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Span(pub u64);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        let wrong = || format!("`{text}` is not a time: write it as in 90s, 30m, 2h or 1d");
        let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).ok_or_else(wrong)?);
        let seconds = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return Err(wrong()),
        };
        let number: u64 = number.parse().map_err(|_| wrong())?;
        number.checked_mul(seconds).filter(|seconds| *seconds > 0).map(Span).ok_or_else(wrong)
    }
}

/// How long a command waits for another process that has the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// As long as it takes.
    Forever,
    /// At most so long.
    AtMost(Span),
}

impl FromStr for Wait {
    type Err = String;

    fn from_str(text: &str) -> Result<Wait, String> {
        if text == "forever" { Ok(Wait::Forever) } else { text.parse().map(Wait::AtMost) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_times_are_read_or_refused() {
        assert_eq!("50MiB/s".parse(), Ok(Rate(50 << 20)));
        for wrong in ["50MiB", "0B/s", "/s", "x/s", ""] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
        assert_eq!(["90s", "30m", "2h", "1d"].map(|text| text.parse()), [Ok(Span(90)), Ok(Span(1800)), Ok(Span(7200)), Ok(Span(86_400))]);
        for wrong in ["", "5", "0s", "m", "1w", "99999999999999999999s", "999999999999999999d"] {
            assert!(wrong.parse::<Span>().is_err() && wrong.parse::<Wait>().is_err(), "{wrong}");
        }
    }
}
