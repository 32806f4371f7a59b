//! The file `open` (`docs/format.md` section 3). It exists while a store is open for writing, and says in which
//! directory.
//!
//! A copy of a store that is open has no single moment: parts of it may be older than others, and the parts alone
//! cannot show all of that. So an opening for writing notes the identity of the descriptor's file, which a copy does
//! not share ([`Ground::identity`]). A clean close removes the note. A note with another identity means such a copy, or
//! a store that was moved after a crash. A note that cannot be read is ignored: it is only a warning.

use crate::{DESCRIPTOR, EngineError, Result};
use onefold_ground::{Ground, GroundError, Identity, checksum, read_file, replace_file};

/// The file.
const NOTE: &str = "open";

/// Errors: this is a copy of a store that was open when it was copied.
pub(crate) fn refuse_a_copy(ground: &dyn Ground) -> Result<()> {
    let Some(noted) = noted(ground)? else { return Ok(()) };
    match here(ground)? {
        Some(here) if here != noted => Err(EngineError::Copied { place: ground.describe("") }),
        _ => Ok(()),
    }
}

/// Returns whether the store was not closed cleanly.
pub(crate) fn was_left_open(ground: &dyn Ground) -> Result<bool> {
    Ok(ground.exists(NOTE)?)
}

/// Notes where the store is open; durable on return.
pub(crate) fn note(ground: &dyn Ground) -> Result<()> {
    let Some(Identity { born_ns }) = here(ground)? else { return Ok(()) };
    let line = format!("{born_ns:016x}");
    Ok(replace_file(ground, NOTE, format!("{line} {:016x}\n", checksum(line.as_bytes())).as_bytes())?)
}

/// Removes the note: the store is closed, or this copy is accepted as it is.
pub(crate) fn take_back(ground: &dyn Ground) -> Result<()> {
    match ground.remove(NOTE) {
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(ground.sync_directory("")?),
    }
}

fn noted(ground: &dyn Ground) -> Result<Option<Identity>> {
    let bytes = match read_file(ground, NOTE, 4096) {
        Err(error) if error.is_lasting() || matches!(error, GroundError::TooLong { .. }) => return Ok(None),
        bytes => bytes?,
    };
    let parse = || {
        let text = std::str::from_utf8(&bytes).ok()?;
        let (line, sum) = text.trim_end().split_once(' ')?;
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        (number(sum)? == checksum(line.as_bytes())).then_some(Identity { born_ns: number(line)? })
    };
    Ok(parse())
}

/// Returns the identity of the store here, which a copy of it does not share.
fn here(ground: &dyn Ground) -> Result<Option<Identity>> {
    match ground.identity(DESCRIPTOR) {
        // A repair restores the descriptor.
        Err(error) if error.is_not_found() => Ok(None),
        identity => Ok(identity?),
    }
}
