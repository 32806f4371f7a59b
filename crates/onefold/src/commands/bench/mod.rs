//! `onefold bench`: experiments and their report. No store is needed.

mod program;
pub mod report;
pub mod run;
mod services;
mod summary;

use crate::failure::{Failure, Result};
use crate::units::printable;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Writes a file that is there whole or, if that fails, as it was before. What is no file, as `/dev/stdout`, is written as it is.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let cannot = |error: std::io::Error| {
        Failure::failed(format!("cannot write {}: {error}", shown(path)))
            .advise("give a file in a directory that exists and can be written to")
    };
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return std::fs::write(path, bytes).map_err(cannot);
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.part", std::process::id()));
    let beside = Path::new(&beside);
    let write = || {
        let mut file = std::fs::File::create(beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(beside, path)
    };
    write().map_err(|error| {
        let _ = std::fs::remove_file(beside);
        cannot(error)
    })
}

/// A path as it stands in messages.
fn shown(path: &Path) -> String {
    printable(path.as_os_str().as_bytes())
}
