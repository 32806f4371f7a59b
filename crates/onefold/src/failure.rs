//! How a failed command ends, for people and scripts: one message with what happened and the values, one line of
//! advice, one exit code.

use crate::units::printable;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How a command ended. The numbers are part of the interface (`docs/cli.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Everything is done.
    Done = 0,
    /// The command ran and failed, or `check` found damage.
    Failed = 1,
    /// The command line or a setting is wrong, or the command could not start: no store, store in use.
    CannotRun = 2,
    /// The command did its work except for some files, which it listed.
    Partial = 3,
    /// Stopped by ^C or SIGTERM before it was done.
    Interrupted = 130,
    /// The reader of the output has closed it (`onefold dump ... | head`); as if ended by SIGPIPE.
    PipeClosed = 141,
}

impl Exit {
    /// Returns the exit with a number.
    pub fn of(number: i32) -> Option<Exit> {
        use Exit::*;
        [Done, Failed, CannotRun, Partial, Interrupted, PipeClosed].into_iter().find(|exit| *exit as i32 == number)
    }
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What happened, with the values. Empty: print nothing (the reader of the output is gone).
    pub message: String,
    /// What to do next.
    pub advice: Option<String>,
}

/// The result of a command.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Returns the failure of a command that ran.
    pub fn failed(message: impl fmt::Display) -> Failure {
        Failure { exit: Exit::Failed, message: message.to_string(), advice: None }
    }

    /// Returns the failure of a command that could not start.
    pub fn cannot_run(message: impl fmt::Display) -> Failure {
        Failure { exit: Exit::CannotRun, message: message.to_string(), advice: None }
    }

    /// Returns the end by a signal. `message` says what that means for the store.
    pub fn interrupted(message: impl fmt::Display) -> Failure {
        Failure { exit: Exit::Interrupted, message: message.to_string(), advice: None }
    }

    /// Something could not be done with a file: `operation` is a verb.
    pub fn of_file(operation: &str, path: &Path, why: impl fmt::Display) -> Failure {
        Failure::failed(format!("cannot {operation} {}: {why}", printable(path.as_os_str().as_bytes())))
    }

    /// Adds what to do next.
    pub fn advise(mut self, advice: impl Into<String>) -> Failure {
        self.advice = Some(advice.into());
        self
    }

    /// Returns the failure to write standard output: silent if its reader is gone.
    pub fn output(source: &std::io::Error) -> Failure {
        if source.kind() == std::io::ErrorKind::BrokenPipe {
            return Failure { exit: Exit::PipeClosed, message: String::new(), advice: None };
        }
        Failure::failed(format!("cannot write to standard output: {source}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "onefold: {}", self.message)?;
        if let Some(advice) = &self.advice {
            write!(out, "\n  hint: {advice}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_happened_and_what_to_do() {
        let failure = Failure::cannot_run("no store at /x").advise("make one with `onefold init /x`");
        assert_eq!(failure.to_string(), "onefold: no store at /x\n  hint: make one with `onefold init /x`");
        assert_eq!(failure.exit as i32, 2);
    }
}
