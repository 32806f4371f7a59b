//! `onefold bench`: experiments and their report (crate `onefold_experiment`). It needs no store.

mod program;
pub mod report;
pub mod run;
mod services;
mod summary;
mod trees;

use crate::failure::{Exit, Failure};
use crate::units::printable;
use std::io::{Error, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A path as it stands in messages.
fn shown(path: &Path) -> String {
    printable(path.as_os_str().as_bytes())
}

/// Returns the failure to write a file. Before anything has run, `exit` is [`Exit::CannotRun`].
fn cannot_write(path: &Path, error: &Error, exit: Exit) -> Failure {
    let failure = if error.kind() == ErrorKind::IsADirectory {
        Failure::of_file("write", path, "it is a directory").advise("give the name of a file in it")
    } else {
        Failure::of_file("write", path, error).advise("give a file in a directory that exists and can be written to")
    };
    Failure { exit, ..failure }
}
