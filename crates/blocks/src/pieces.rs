//! The recipe of a range, without its bytes: for owners that hand the chunks of a space on to others.

use crate::at::At;
use crate::copy::{append, cut};
use crate::error::Result;
use crate::space::Space;
use onefold_engine::Piece;

impl Space {
    /// Returns the pieces of the first stored blocks of a range, and how many bytes of the range they spell: all of
    /// them, or fewer if there are many blocks. Holes are zeros. The last piece ends where the range ends, so it may be
    /// a part of its chunk.
    ///
    /// Shows what is stored: writes that are only in memory are missing, so a range of a space that others write to is
    /// of no one moment. The caller holds an [in-flight guard](onefold_engine::Engine::in_flight) from before the call
    /// until something durable refers to the chunks.
    pub fn pieces(&self, at: At, length: u64) -> Result<(Vec<Piece>, u64)> {
        let block_bytes = self.block_bytes() as u64;
        let gate = self.gate.read();
        gate.check_live()?;
        let ((first, start), end) = (at.within(block_bytes), at.plus(length).next_block(block_bytes));
        if length == 0 {
            return Ok((Vec::new(), 0));
        }
        let (mapped, next) = self.shared.layers.mapped(gate.record.layer, first, end)?;
        // A file may be a hole of many exabytes, whose last block ends where a u64 does.
        let reaches = |block: u64, within: u64| {
            let bytes = u128::from(block - first) * u128::from(block_bytes) + u128::from(within) - u128::from(start);
            u64::try_from(bytes).unwrap_or(u64::MAX).min(length)
        };
        let (mut pieces, mut done) = (Vec::new(), 0);
        for (block, value) in mapped {
            let from = reaches(block, if block == first { start } else { 0 });
            let to = reaches(block + 1, 0);
            if from > done {
                append(&mut pieces, Piece::Zeros { length: from - done });
            }
            let stored = self.decode(block, &value)?;
            if stored.is_empty() {
                append(&mut pieces, Piece::Zeros { length: to - from });
            } else {
                let within = if block == first { start } else { 0 };
                cut(&stored, within, to - from).for_each(|piece| append(&mut pieces, piece));
            }
            done = to;
        }
        let to = reaches(next, 0);
        if to > done {
            append(&mut pieces, Piece::Zeros { length: to - done });
        }
        Ok((pieces, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Owner;
    use crate::disks::{BLOCK, create_filesystem, options};
    use crate::testing::{TestStore, bytes};
    use proptest::prelude::*;

    const BLOCK_BYTES: u64 = BLOCK as u64;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn pieces_spell_what_a_read_returns(
            writes in proptest::collection::vec((0u64..20 * BLOCK_BYTES, 1usize..200_000, any::<bool>()), 1..8),
            ranges in proptest::collection::vec((0u64..22 * BLOCK_BYTES, 0u64..22 * BLOCK_BYTES), 1..6),
        ) {
            let mut store = TestStore::new();
            let spaces = store.spaces(options());
            let space = create_filesystem(&spaces, "f").unwrap();
            let base = 7 << 28;
            for (number, (offset, length, discards)) in writes.into_iter().enumerate() {
                match discards {
                    true => space.discard(At::new(base, offset), length as u64).unwrap(),
                    false => space.write(At::new(base, offset), &bytes(number as u64, length)).unwrap(),
                }
                if number == 3 {
                    spaces.snapshot(Owner::Filesystems, "f", "below").unwrap();
                }
            }
            space.flush().unwrap();
            for (offset, length) in ranges {
                let mut expected = vec![0; length as usize];
                space.read(At::new(base, offset), &mut expected).unwrap();
                let (mut found, mut at) = (Vec::new(), 0);
                while at < length {
                    let (pieces, spelled) = space.pieces(At::new(base, offset + at), length - at).unwrap();
                    prop_assert!(spelled > 0);
                    prop_assert_eq!(pieces.iter().map(Piece::length).sum::<u64>(), spelled);
                    let mut part = vec![0; spelled as usize];
                    store.engine().unwrap().read(&pieces, 0, &mut part, true).unwrap();
                    found.extend(part);
                    at += spelled;
                }
                prop_assert!(found == expected);
            }
        }
    }

    #[test]
    fn the_largest_file_of_holes_is_one_piece() {
        let mut store = TestStore::new();
        let spaces = store.spaces(options());
        let space = create_filesystem(&spaces, "f").unwrap();
        let length = BLOCK_BYTES << 28;
        assert_eq!(space.pieces(At::new(5 << 28, 0), length).unwrap(), (vec![Piece::Zeros { length }], length));
        assert_eq!(space.pieces(At::new(5 << 28, 3), 0).unwrap(), (Vec::new(), 0));
    }
}
