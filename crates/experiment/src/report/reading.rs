//! Results files, as one `onefold bench run` writes them.

use crate::results::{Results, VERSION};
use serde_json::Value;

/// Why a file has no results.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not JSON, or JSON of something else, or damaged.
    #[error("these are no results of experiments: {0}")]
    NotResults(#[from] serde_json::Error),
    /// It has another version.
    #[error("these results have version {found}, and this program reads version {VERSION}")]
    OtherVersion {
        /// The version.
        found: u64,
    },
    /// It is empty.
    #[error("there are no results in it")]
    Empty,
}

/// Reads the text of a file: one run, or a list of runs.
pub fn read(text: &[u8]) -> Result<Vec<Results>, ReadError> {
    // Check the version first: another version may have all fields, but with other meanings.
    let runs = match serde_json::from_slice(text)? {
        Value::Array(runs) => runs,
        run => vec![run],
    };
    if runs.is_empty() {
        return Err(ReadError::Empty);
    }
    let read_one = |run: Value| match run.get("version").and_then(Value::as_u64) {
        Some(found) if found != u64::from(VERSION) => Err(ReadError::OtherVersion { found }),
        _ => Ok(serde_json::from_value(run)?),
    };
    runs.into_iter().map(read_one).collect()
}
