//! The log of the parts, on standard error.

use crate::failure::{Failure, Result};
use tracing_subscriber::EnvFilter;

/// Environment variable whose filter overrides `-q` and `-v`.
pub const LOG_VARIABLE: &str = "ONEFOLD_LOG";

/// Starts logging to standard error: warnings by default, only errors with `quiet`, also information with one
/// `verbose`, everything with more.
pub fn start(quiet: bool, verbose: u8) -> Result<()> {
    let level = match (quiet, verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "info",
        (false, _) => "debug",
    };
    let filter = match std::env::var(LOG_VARIABLE) {
        Ok(text) => EnvFilter::try_new(&text).map_err(|error| {
            Failure::cannot_run(format!("{LOG_VARIABLE} is `{text}`: {error}"))
                .advise("write a level (error, warn, info, debug) or filters as in `onefold_nbd=debug,info`")
        })?,
        Err(_) => EnvFilter::new(level),
    };
    let colours = std::env::var_os("NO_COLOR").is_none() && std::io::IsTerminal::is_terminal(&std::io::stderr());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    // A second start in one process (tests) keeps the first.
    let _ = if goes_to_journal() { log.with_ansi(false).without_time().try_init() } else { log.try_init() };
    Ok(())
}

/// Returns whether standard error is the journal, which knows the time of each line (`systemd.exec(5)`).
fn goes_to_journal() -> bool {
    let Some(stream) = std::env::var_os("JOURNAL_STREAM") else { return false };
    let Ok(found) = rustix::fs::fstat(std::io::stderr()) else { return false };
    stream.to_str() == Some(&format!("{}:{}", found.st_dev, found.st_ino))
}
