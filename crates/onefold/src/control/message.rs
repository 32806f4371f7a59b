//! The frames whose payload is JSON: request, progress, result.

use crate::commands::Request;
use crate::failure::{Exit, Failure, Result};
use jiff::fmt::temporal::{DateTimeParser, DateTimePrinter};
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

/// A client's request: a command, and the context of its own process.
#[derive(Debug, Deserialize, Serialize)]
pub struct Call {
    /// The command.
    pub command: Request,
    /// Whether to print only errors and requested results.
    pub quiet: bool,
    /// Whether anybody watches the progress.
    pub progress: bool,
    /// Whether a person can be asked.
    pub can_ask: bool,
    /// The zone in which times are shown, as RFC 9557 writes zones, or a POSIX string; `None`: UTC.
    zone: Option<String>,
}

impl Call {
    /// Returns a request of this process, with its time zone.
    pub fn new(command: Request, quiet: bool, progress: bool, can_ask: bool) -> Call {
        Call { command, quiet, progress, can_ask, zone: DateTimePrinter::new().time_zone_to_string(&TimeZone::system()).ok() }
    }

    /// Encodes the payload of a Request. It never fails for typed commands: all of them have a JSON form.
    pub fn encode(&self) -> std::result::Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// Reads a request. An unknown command or option is refused: without it, this would be another command.
    pub fn decode(payload: &[u8]) -> std::result::Result<Call, String> {
        let value: serde_json::Value = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
        let call = Call::deserialize(&value).map_err(|error| error.to_string())?;
        let understood = serde_json::to_value(&call).map_err(|error| error.to_string())?;
        if understood != value {
            return Err(format!("of {value} it understands only {understood}"));
        }
        Ok(call)
    }

    /// Returns the zone in which times are shown.
    pub fn zone(&self) -> TimeZone {
        self.zone.as_ref().and_then(|zone| DateTimeParser::new().parse_time_zone(zone).ok()).unwrap_or(TimeZone::UTC)
    }
}

/// The progress of the work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Progress {
    /// The step being done.
    pub step: String,
    /// Units of the step.
    pub total: u64,
    /// How many of them are done.
    pub done: u64,
}

/// The end of a command.
#[derive(Debug, Deserialize, Serialize)]
pub struct Ended {
    exit: i32,
    /// Empty: print nothing.
    message: String,
    advice: Option<String>,
}

impl Ended {
    /// Returns the payload of a Result, from the command's result.
    pub fn new(result: Result<Exit>) -> Ended {
        match result {
            Ok(exit) => Ended { exit: exit as i32, message: String::new(), advice: None },
            Err(Failure { exit, message, advice }) => Ended { exit: exit as i32, message, advice },
        }
    }

    /// Returns what the command would have returned in a process of its own. `None`: the exit code does not exist.
    pub fn result(self) -> Option<Result<Exit>> {
        let exit = Exit::of(self.exit)?;
        let silent = self.message.is_empty() && self.advice.is_none();
        Some(if silent { Ok(exit) } else { Err(Failure { exit, message: self.message, advice: self.advice }) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    fn ls(path: &[u8]) -> Request {
        let arguments = [OsStr::new("onefold"), OsStr::new("ls"), OsStr::new("--store=s"), OsStr::new("latest"), OsStr::from_bytes(path)];
        match Cli::try_parse_from(arguments).unwrap().command {
            Command::Ls(options) => Request::Ls(options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_arrives_as_it_was_typed_without_the_place_of_the_store() {
        let call = Call::decode(&Call::new(ls(b"/a\xff"), true, false, false).encode().unwrap()).unwrap();
        let Request::Ls(options) = &call.command else { panic!("{call:?}") };
        assert_eq!(options.backup, "latest");
        assert_eq!(options.path.as_ref().unwrap().as_os_str().as_bytes(), b"/a\xff");
        assert_eq!(options.store.directory, std::path::PathBuf::new());
        assert!(call.quiet && !call.progress);
    }

    #[test]
    fn an_option_that_is_not_known_is_refused() {
        let mut value: serde_json::Value = serde_json::from_slice(&Call::new(ls(b"/"), false, false, false).encode().unwrap()).unwrap();
        value["command"]["ls"]["no-such-option"] = true.into();
        assert!(Call::decode(value.to_string().as_bytes()).unwrap_err().contains("no-such-option"));
        assert!(Call::decode(br#"{"command":{"no-such-command":{}},"quiet":false,"progress":false,"zone":null}"#).is_err());
        assert!(Call::decode(b"{").is_err());
    }

    #[test]
    fn times_are_shown_in_the_zone_of_the_client() {
        let call =
            |zone: Option<&str>| Call { command: ls(b"/"), quiet: false, progress: false, can_ask: false, zone: zone.map(str::to_owned) };
        assert_eq!(call(Some("Asia/Tokyo")).zone().iana_name(), Some("Asia/Tokyo"));
        assert_eq!(call(Some("+02:00")).zone().to_fixed_offset().unwrap().seconds(), 7200);
        assert_eq!(call(Some("no zone")).zone(), TimeZone::UTC);
        assert_eq!(call(None).zone(), TimeZone::UTC);
    }

    #[test]
    fn a_result_comes_back_whole() {
        let failure = Failure::cannot_run("why").advise("do this");
        assert_eq!(Ended::new(Err(failure.clone())).result(), Some(Err(failure)));
        assert_eq!(Ended::new(Ok(Exit::Partial)).result(), Some(Ok(Exit::Partial)));
        assert_eq!(Ended { exit: 77, message: String::new(), advice: None }.result(), None);
    }
}
