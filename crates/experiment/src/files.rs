//! The files of experiments: declarations and results are read, results and pages are written.
//!
//! - A length is bounded before a file is read into memory.
//! - A file that is written is there whole or, if that fails, as it was before.

use crate::report::{self, ReadError};
use crate::results::Results;
use crate::spec::{MAX_SPEC_BYTES, SettingsReader, Spec, SpecError};
use onefold_ground::size::{MIB, size};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The largest file of results that is read, in bytes. No run writes as much.
const MAX_RESULTS_BYTES: u64 = 256 * MIB;

/// The reason why a declaration cannot be used. The caller knows the name of the file.
#[derive(Debug, thiserror::Error)]
pub enum SpecFileError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is too long.
    #[error("it has {}, more than the {} that a declaration has", size(*.length_bytes), size(MAX_SPEC_BYTES))]
    TooLong {
        /// Its length.
        length_bytes: u64,
    },
    /// The declaration is wrong.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

/// The reason why a file is not one of results. The caller knows its name.
#[derive(Debug, thiserror::Error)]
pub enum ResultsFileError {
    /// There is no such file.
    #[error(transparent)]
    Missing(io::Error),
    /// The file is too long.
    #[error("it has {}, more than results ever have ({})", size(*.length_bytes), size(MAX_RESULTS_BYTES))]
    TooLong {
        /// Its length.
        length_bytes: u64,
    },
    /// The file cannot be read.
    #[error(transparent)]
    Io(io::Error),
    /// The file holds something else.
    #[error(transparent)]
    Content(#[from] ReadError),
}

/// Reads a declaration. `settings` judges its settings.
pub fn read_spec(path: &Path, settings: &dyn SettingsReader) -> Result<Spec, SpecFileError> {
    let length_bytes = std::fs::metadata(path)?.len();
    if length_bytes > MAX_SPEC_BYTES {
        return Err(SpecFileError::TooLong { length_bytes });
    }
    Ok(Spec::parse(&std::fs::read_to_string(path)?, settings)?)
}

/// Reads the results of one run or several.
pub fn read_results(path: &Path) -> Result<Vec<Results>, ResultsFileError> {
    let length_bytes = std::fs::metadata(path).map_err(ResultsFileError::Missing)?.len();
    if length_bytes > MAX_RESULTS_BYTES {
        return Err(ResultsFileError::TooLong { length_bytes });
    }
    Ok(report::read(&std::fs::read(path).map_err(ResultsFileError::Io)?)?)
}

/// Writes results, which [`read_results`] reads.
pub fn write_results(path: &Path, results: &[Results]) -> io::Result<()> {
    write_whole(path, format!("{:#}\n", to_json(results)).as_bytes())
}

/// Returns results as JSON.
pub fn to_json(results: &[Results]) -> serde_json::Value {
    // They have no keys but texts, and no numbers that JSON does not know.
    serde_json::to_value(results).unwrap_or_default()
}

/// Writes the report on results as an HTML page.
pub fn write_page(path: &Path, results: &[Results]) -> io::Result<()> {
    write_whole(path, report::html(results).as_bytes())
}

/// Finds out before hours of work whether results can be written to a path. An existing file stays as it is.
///
/// Errors: [`ErrorKind::IsADirectory`] for a directory, else what the system says.
pub fn check_writable(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if path.exists() && !path.is_file() {
        return Ok(());
    }
    let beside = beside(path);
    std::fs::File::create(&beside).and_then(|_| std::fs::remove_file(&beside))
}

/// Replaces a file. A path that is no file, such as `/dev/stdout`, is written in place.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return std::fs::write(path, bytes);
    }
    let beside = beside(path);
    let write = || {
        let mut file = std::fs::File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    write().inspect_err(|_| {
        let _ = std::fs::remove_file(&beside);
    })
}

/// The place where a file is written before it has its name.
fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.part", std::process::id()));
    PathBuf::from(beside)
}
