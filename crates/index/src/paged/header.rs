//! The header file of a paged structure: two slots, written in turn.
//!
//! A torn write leaves the previous header. The sequence advances only after a synced write: a failed write repeats
//! into the *same* slot, and the good one stays.

use super::PAGE_BYTES;
use crate::{IndexError, Result};
use onefold_ground::{Access, File, Ground};
use std::sync::Arc;

/// What a header says.
pub trait HeaderContent: Copy {
    /// Encodes a slot: [`PAGE_BYTES`] bytes with a checksum.
    fn encode(&self) -> Vec<u8>;
    /// Decodes a slot. The error says what is wrong with it.
    fn decode(bytes: &[u8]) -> std::result::Result<Self, &'static str>;
    /// Returns which header write this is.
    fn sequence(&self) -> u64;
    /// Returns the same header with this sequence.
    fn with_sequence(self, sequence: u64) -> Self;
    /// Makes the error for a damaged header file.
    fn damaged(path: String, what: String) -> IndexError;
}

/// The open header file.
#[derive(Debug)]
pub(crate) struct HeaderFile<H> {
    file: Arc<dyn File>,
    current: H,
    /// Whether a write failed, so that the device may have the old or the new header.
    is_in_doubt: bool,
}

impl<H: HeaderContent> HeaderFile<H> {
    /// Creates the file with a first header. The caller makes the name durable.
    pub fn create(ground: &dyn Ground, path: &str, header: H) -> Result<()> {
        let file = ground.create(path)?;
        file.set_len(2 * PAGE_BYTES as u64)?;
        file.write_at(slot_offset(header.sequence()), &header.encode())?;
        file.sync()?;
        Ok(())
    }

    /// Opens the file and finds the current header: the valid one with the highest sequence.
    pub fn open(ground: &dyn Ground, path: &str, access: Access) -> Result<HeaderFile<H>> {
        let file = ground.open(path, access)?;
        let damaged = |what: String| H::damaged(ground.describe(path), what);
        let length = file.len()?;
        if length < 2 * PAGE_BYTES as u64 {
            return Err(damaged(format!("the header file has {length} bytes")));
        }
        let mut bytes = vec![0; 2 * PAGE_BYTES];
        file.read_at(0, &mut bytes)?;
        let slots = [H::decode(&bytes[..PAGE_BYTES]), H::decode(&bytes[PAGE_BYTES..])];
        let found = slots.iter().filter_map(|slot| slot.as_ref().ok()).max_by_key(|header| header.sequence());
        match (found, slots) {
            (Some(header), _) => Ok(HeaderFile { current: *header, file, is_in_doubt: false }),
            (None, [first, second]) => {
                Err(damaged(format!("no header is valid: {}; {}", first.err().unwrap_or_default(), second.err().unwrap_or_default())))
            }
        }
    }

    /// Returns the current header.
    pub fn current(&self) -> H {
        self.current
    }

    /// Makes `header` the current one, durable on return. Sets its sequence.
    pub fn write(&mut self, header: H) -> Result<()> {
        let header = header.with_sequence(self.current.sequence() + 1);
        self.is_in_doubt = true;
        self.file.write_at(slot_offset(header.sequence()), &header.encode())?;
        self.file.sync()?;
        self.current = header;
        self.is_in_doubt = false;
        Ok(())
    }

    /// Returns whether the device may have another header than [`HeaderFile::current`].
    pub fn is_in_doubt(&self) -> bool {
        self.is_in_doubt
    }

    /// Makes sure that the device has the current header.
    pub fn settle(&mut self) -> Result<()> {
        if self.is_in_doubt { self.write(self.current) } else { Ok(()) }
    }
}

fn slot_offset(sequence: u64) -> u64 {
    sequence % 2 * PAGE_BYTES as u64
}
