//! The one binary of onefold: command line and daemon.
//!
//! This library holds everything but `main`, so that tests and fuzz targets can reach it. From the outside in: [`cli`]
//! parses the command line, [`commands`] runs it (a file each), and [`settings`] reads the store's `onefold.toml`.
//! [`session`] is the context of a command that needs only the store, and [`console`] shows its output. [`failure`]
//! says how a command ends, [`output`] prints results, and [`units`] reads and writes sizes, times and names.
//!
//! This crate puts the others together. Of all formats on disk and wire it knows one, its own between a command and the
//! daemon: [`control`].

mod advice;
mod allocator;
pub mod bucket;
pub mod cli;
mod clocks;
pub mod commands;
pub mod console;
pub mod control;
pub mod daemon;
mod erasure;
pub mod export;
pub mod failure;
mod forward;
pub mod interrupt;
pub mod iscsi;
pub mod logging;
pub mod mounts;
pub mod network;
pub mod notify;
pub mod output;
pub mod progress;
pub mod remote;
pub mod secret;
pub mod session;
pub mod settings;
pub mod store;
pub mod talk;
pub mod units;
pub mod waiting;

use clap::Parser;
use clap::error::ErrorKind;
use std::process::ExitCode;

/// Runs the whole program: reads the command line, does what it says, and reports the result.
pub fn main() -> ExitCode {
    allocator::bound();
    let has_store = std::env::var_os("ONEFOLD_STORE").is_some();
    let arguments = cli::with_store(std::env::args_os().collect(), has_store, std::env::var_os("ONEFOLD_REPOSITORY"));
    let cli = match cli::Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output with code 0, wrong usage to standard error with code 2.
            let _ = error.print();
            if error.kind() == ErrorKind::MissingRequiredArgument && !has_store && error.to_string().contains("--store") {
                output::note("hint: name the store with --store STORE, or once for all commands: export ONEFOLD_STORE=STORE");
            }
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    let done = logging::start(cli.quiet, cli.verbose).and_then(|()| commands::run(cli));
    bucket::remove_unused();
    match done {
        Ok(exit) => {
            if let Some(advice) = bucket::advice_on_state() {
                output::note(advice);
            }
            ExitCode::from(exit as u8)
        }
        Err(failure) => {
            let failure = match bucket::advice_on_state() {
                Some(advice) => failure.advise(advice),
                None => failure,
            };
            if !failure.message.is_empty() {
                output::note(&failure);
            }
            ExitCode::from(failure.exit as u8)
        }
    }
}
