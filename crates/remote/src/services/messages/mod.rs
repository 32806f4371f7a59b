//! What clients and the services of backups say to each other (`docs/protocol.md` section 5).
//!
//! Every message is bounded by the payload limit of its channel, and decoding allocates no more than a constant times
//! what came. Nothing in a message is an address: a client that reads gets sealed ones ([`super::Seal`]).

mod backup;
mod contents;
mod read;

pub use backup::{Against, BackupAnswer, BackupRequest, Began, Begin, Commit, KeptNames, Method, Step, without_root};
pub use contents::{ContentsRequest, Offered, Wanted};
pub use read::{Listed, Metadata, Open, ReadAnswer, ReadRequest, Records, Sent};

use onefold_catalog::BackupId;
use onefold_ground::wire::{Reader, WireError};

/// The services.
pub mod services {
    /// A command of the command line.
    pub const COMMAND: u8 = 1;
    /// A backup: comparing, its tree, its record.
    pub const BACKUP: u8 = 2;
    /// The content of files for a backup.
    pub const CONTENTS: u8 = 3;
    /// Reading a backup.
    pub const READ: u8 = 4;
    /// The backups that the account may read.
    pub const LIST: u8 = 5;
}

/// The codes with which services cancel a channel.
pub mod codes {
    use crate::transport::codes::SERVICES;
    /// A message makes no sense.
    pub const MALFORMED: u16 = SERVICES;
    /// The account may not do that, or there is no such thing for it.
    pub const FORBIDDEN: u16 = SERVICES + 1;
    /// A chunk has another name than its bytes.
    pub const MISNAMED: u16 = SERVICES + 2;
    /// The quota of the account is used up.
    pub const QUOTA: u16 = SERVICES + 3;
    /// The store refused: it is full, damaged or read-only.
    pub const STORE: u16 = SERVICES + 4;
    /// A part of the backup cannot be read.
    pub const DAMAGED: u16 = SERVICES + 5;
    /// The client's copy of the earlier backup's tree is stale.
    pub const STALE: u16 = SERVICES + 6;
    /// No backup is meant, or more than one.
    pub const UNKNOWN: u16 = SERVICES + 7;
}

/// The most chunks of an offer.
pub const MAX_OFFERED: usize = 1024;
/// The most chunks that a client has offered and that are neither refused nor supplied.
pub const MAX_WANTED: usize = 16 << 10;
/// The most things of an offer, and of all offers of a channel that are not supplied.
pub const MAX_QUEUED: usize = MAX_WANTED + 4 * MAX_OFFERED;
/// The most steps of a message.
pub const MAX_STEPS: usize = 4096;
/// The most pieces of a question.
pub const MAX_PIECES: usize = 16 << 10;
/// The most tags of a backup.
const MAX_TAGS: usize = 1024;
/// The longest name, host, user or tag.
const MAX_TEXT_BYTES: usize = 4 << 10;
/// The longest options of a backup, and the longest path.
pub const MAX_LONG_BYTES: usize = 64 << 10;

type Result<T> = std::result::Result<T, WireError>;

/// Reads bytes of at most `limit`.
fn bounded<'a>(reader: &mut Reader<'a>, what: &'static str, limit: usize) -> Result<&'a [u8]> {
    let offset_bytes = reader.position();
    let bytes = reader.bytes()?;
    if bytes.len() > limit {
        return Err(WireError::OutOfRange { what, value: bytes.len() as u64, offset_bytes });
    }
    Ok(bytes)
}

fn text(reader: &mut Reader<'_>, what: &'static str, limit: usize) -> Result<String> {
    let offset_bytes = reader.position();
    let bytes = bounded(reader, what, limit)?;
    let valid = std::str::from_utf8(bytes);
    valid.map(str::to_owned).map_err(|error| WireError::OutOfRange { what, value: error.valid_up_to() as u64, offset_bytes })
}

fn flag(reader: &mut Reader<'_>, what: &'static str) -> Result<bool> {
    let offset_bytes = reader.position();
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        value => Err(WireError::OutOfRange { what, value: u64::from(value), offset_bytes }),
    }
}

fn whole<T>(bytes: &[u8], read: impl FnOnce(&mut Reader<'_>) -> Result<T>) -> Result<T> {
    let mut reader = Reader::new(bytes);
    let value = read(&mut reader)?;
    reader.end()?;
    Ok(value)
}

fn unknown(what: &'static str, value: u8) -> WireError {
    WireError::OutOfRange { what, value: u64::from(value), offset_bytes: 0 }
}

fn id(reader: &mut Reader<'_>) -> Result<BackupId> {
    let mut id = [0; 16];
    id.copy_from_slice(reader.take(16)?);
    Ok(BackupId::from_bytes(id))
}
