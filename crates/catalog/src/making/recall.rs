//! What a file had in the previous backup (M3.6): most of it comes again, in the same order. A store that knows only a
//! sample of its chunks finds them once it has read what lies beside them.

use crate::PieceReader;
use onefold_engine::{Address, Engine, Piece, Recipe, WriteStream};
use std::sync::Arc;

/// How far behind the bytes that are being stored: what was inserted moves the rest back.
const AHEAD_BYTES: u64 = 1 << 20;

/// The chunks of a file in the previous backup.
#[derive(Debug)]
pub(crate) struct Recalled {
    pieces: PieceReader,
    at: u64,
}

impl Recalled {
    pub(crate) fn new(engine: &Arc<Engine>, recipe: &Recipe) -> Recalled {
        Recalled { pieces: PieceReader::new(engine, recipe), at: 0 }
    }

    /// Tells the stream what the file had up to about `end`, as far as it was not told yet. What cannot be read is left
    /// out: it is advice.
    pub(crate) fn tell(&mut self, stream: &WriteStream, end: u64) {
        let mut addresses: Vec<Address> = Vec::new();
        while self.at < end.saturating_add(AHEAD_BYTES) {
            let Some(piece) = self.pieces.next() else { break };
            let Ok(piece) = piece else { continue };
            self.at = self.at.saturating_add(piece.length());
            if let Piece::Chunk { address, .. } = piece
                && addresses.last().is_none_or(|last| last.origin() != address.origin())
            {
                addresses.push(address);
            }
        }
        stream.recall(&addresses);
    }
}
