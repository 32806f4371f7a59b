//! `onefold bench`: experiments and their report (crate `onefold_experiment`). It needs no store.

mod program;
pub mod report;
pub mod run;
mod services;
mod summary;

use crate::failure::Failure;
use crate::units::printable;
use std::io::{Error, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A path as it stands in messages.
fn shown(path: &Path) -> String {
    printable(path.as_os_str().as_bytes())
}

/// Returns the failure to write a file. Before anything has run, `fail` is [`Failure::cannot_run`].
fn cannot_write(path: &Path, error: &Error, fail: fn(String) -> Failure) -> Failure {
    if error.kind() == ErrorKind::IsADirectory {
        return fail(format!("cannot write {}: it is a directory", shown(path))).advise("give the name of a file in it");
    }
    fail(format!("cannot write {}: {error}", shown(path))).advise("give a file in a directory that exists and can be written to")
}
