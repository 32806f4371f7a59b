//! `onefold bench`: experiments and their report. It needs no store.

mod program;
pub mod report;
pub mod run;
mod services;
mod summary;

use crate::failure::{Failure, Result};
use crate::units::printable;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Writes a file that is there whole or, if that fails, as it was before. What is no file, as `/dev/stdout`, is written as it is.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let cannot = |error: std::io::Error| {
        Failure::failed(format!("cannot write {}: {error}", shown(path)))
            .advise("give a file in a directory that exists and can be written to")
    };
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return std::fs::write(path, bytes).map_err(cannot);
    }
    let beside = beside(path);
    let write = || {
        let mut file = std::fs::File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    write().map_err(|error| {
        let _ = std::fs::remove_file(&beside);
        cannot(error)
    })
}

/// Whether [`write_whole`] will be able to write a file, as far as that can be known before hours of work. A file that is there stays as it is.
fn can_be_written(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Err(Failure::cannot_run(format!("cannot write {}: it is a directory", shown(path))).advise("give the name of a file in it"));
    }
    if path.exists() && !path.is_file() {
        return Ok(());
    }
    let beside = beside(path);
    std::fs::File::create(&beside).and_then(|_| std::fs::remove_file(&beside)).map_err(|error| {
        Failure::cannot_run(format!("cannot write {}: {error}", shown(path)))
            .advise("give a file in a directory that exists and can be written to")
    })
}

/// Where a file is written before it has its name.
fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.part", std::process::id()));
    PathBuf::from(beside)
}

/// A path as it stands in messages.
fn shown(path: &Path) -> String {
    printable(path.as_os_str().as_bytes())
}
