//! Reads any part of a file. A recipe does not say where its parts begin, so they are found once, in their order, and
//! remembered: 80 bytes for each recipe chunk, which spells about a megabyte.

use crate::chunks::{Chunks, Of};
use crate::{CatalogError, Result};
use onefold_engine::{Engine, MAX_LEVEL, Piece, Recipe};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Recipe chunks that stay decoded.
const DECODED: usize = 4;

/// Reads any part of a file. Many threads may call all methods at once.
#[derive(Debug)]
pub struct FileReader<C: Chunks + ?Sized = Engine> {
    chunks: Arc<C>,
    length: u64,
    walk: Mutex<Walk>,
}

/// How far the recipe is known. A *leaf* is a run of level-0 pieces: a recipe chunk of level 1, or the recipe itself.
#[derive(Debug)]
struct Walk {
    leaves: Vec<Leaf>,
    /// The rest of each recipe chunk on the way down to the next leaf.
    stack: Vec<std::vec::IntoIter<Piece>>,
    level: usize,
    /// Where the leaves end that are known.
    end: u64,
    decoded: VecDeque<(usize, Arc<Vec<Piece>>)>,
}

#[derive(Clone, Copy, Debug)]
struct Leaf {
    start: u64,
    /// Where its pieces are. `None`: they are those of the recipe, which stay decoded.
    piece: Option<Piece>,
}

/// A run of a file that has data, or zeros that are not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataRun {
    /// Where it ends.
    pub end: u64,
    /// Whether nothing is stored for it.
    pub is_zeros: bool,
}

impl<C: Chunks + ?Sized> FileReader<C> {
    /// Returns a reader of the file with this recipe. Reads nothing yet.
    pub fn new(chunks: &Arc<C>, recipe: &Recipe) -> FileReader<C> {
        let level = usize::from(recipe.level.min(MAX_LEVEL));
        let mut walk = Walk { leaves: Vec::new(), stack: Vec::new(), level, end: 0, decoded: VecDeque::new() };
        if level == 0 {
            walk.leaves.push(Leaf { start: 0, piece: None });
            walk.end = sum(&recipe.pieces);
            walk.decoded.push_back((0, Arc::new(recipe.pieces.clone())));
        } else {
            walk.stack.push(recipe.pieces.clone().into_iter());
        }
        FileReader { chunks: chunks.clone(), length: recipe.length, walk: Mutex::new(walk) }
    }

    /// Returns the length of the file, bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Fills `out` from byte `offset` on, verified. Errors: a part is damaged or cannot be read, or the file is
    /// shorter.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let pieces = self.pieces(offset, out.len() as u64)?;
        self.chunks.data(&pieces, out)
    }

    /// Returns the pieces that spell a part of the file, cut to it.
    pub fn pieces(&self, offset: u64, length: u64) -> Result<Vec<Piece>> {
        let mut cut = Vec::new();
        let end = offset.checked_add(length).ok_or(self.wrong())?;
        let mut at = offset;
        while at < end {
            let (mut place, pieces) = self.leaf(at)?.ok_or(self.wrong())?;
            for piece in pieces.iter() {
                let stop = place.saturating_add(piece.length());
                let (from, to) = (at.max(place), stop.min(end));
                if from < to {
                    cut.push(part(piece, from - place, to - from));
                    at = to;
                }
                place = stop;
            }
        }
        Ok(cut)
    }

    /// Returns the run of data or of zeros at a place. Runs of one kind may follow each other. `None`: the file has
    /// ended there.
    pub fn run(&self, offset: u64) -> Result<Option<DataRun>> {
        if offset >= self.length {
            return Ok(None);
        }
        let Some((mut place, pieces)) = self.leaf(offset)? else { return Err(self.wrong()) };
        let mut found: Option<DataRun> = None;
        for piece in pieces.iter() {
            place = place.saturating_add(piece.length());
            let is_zeros = piece.fingerprint().is_none();
            if place <= offset {
                continue;
            }
            match &mut found {
                None => found = Some(DataRun { end: place, is_zeros }),
                Some(run) if run.is_zeros == is_zeros => run.end = place,
                Some(_) => break,
            }
        }
        Ok(found)
    }

    /// Returns the bytes that are stored for it, without reading anything. `None`: that is not known.
    pub fn stored_bytes(recipe: &Recipe) -> Option<u64> {
        let stored = recipe.pieces.iter().filter(|piece| piece.fingerprint().is_some());
        (recipe.level == 0).then(|| stored.map(Piece::length).fold(0, u64::saturating_add))
    }

    /// Returns the leaf that has a byte, with the place where it begins. `None`: there is none.
    fn leaf(&self, offset: u64) -> Result<Option<(u64, Arc<Vec<Piece>>)>> {
        let mut walk = self.walk.lock();
        while walk.end <= offset {
            if !self.advance(&mut walk)? {
                return Ok(None);
            }
        }
        let number = walk.leaves.partition_point(|leaf| leaf.start <= offset) - 1;
        let leaf = walk.leaves[number];
        if let Some((_, pieces)) = walk.decoded.iter().find(|(of, _)| *of == number) {
            return Ok(Some((leaf.start, pieces.clone())));
        }
        let Some(piece) = leaf.piece else { return Err(self.wrong()) };
        drop(walk);
        let pieces = Arc::new(self.chunks.recipe_chunk(&piece, 1, Of::File)?);
        self.walk.lock().keep(number, &pieces);
        Ok(Some((leaf.start, pieces)))
    }

    /// Finds the next leaf. Returns false if there is none.
    fn advance(&self, walk: &mut Walk) -> Result<bool> {
        loop {
            let level = (walk.level + 1).saturating_sub(walk.stack.len());
            let Some(pieces) = walk.stack.last_mut() else { return Ok(false) };
            let Some(piece) = pieces.as_slice().first().copied() else {
                walk.stack.pop();
                continue;
            };
            // Nothing is skipped if it cannot be read: a later call tries again.
            let below = self.chunks.recipe_chunk(&piece, level as u8, Of::File)?;
            pieces.next();
            if level > 1 {
                walk.stack.push(below.into_iter());
                continue;
            }
            let (start, number) = (walk.end, walk.leaves.len());
            walk.end = start.checked_add(sum(&below)).filter(|end| *end <= self.length).ok_or(self.wrong())?;
            if walk.end > start {
                walk.leaves.push(Leaf { start, piece: Some(piece) });
                walk.keep(number, &Arc::new(below));
            }
            return Ok(true);
        }
    }

    fn wrong(&self) -> CatalogError {
        CatalogError::DoesNotSpell { length_bytes: self.length }
    }
}

impl Walk {
    fn keep(&mut self, number: usize, pieces: &Arc<Vec<Piece>>) {
        self.decoded.push_front((number, pieces.clone()));
        self.decoded.truncate(DECODED);
    }
}

fn sum(pieces: &[Piece]) -> u64 {
    pieces.iter().map(Piece::length).fold(0, u64::saturating_add)
}

/// Returns a part of a piece.
fn part(piece: &Piece, start: u64, length: u64) -> Piece {
    match *piece {
        Piece::Zeros { .. } => Piece::Zeros { length },
        // Within a piece, whose length is a u32.
        Piece::Chunk { fingerprint, address, offset, .. } => {
            Piece::Chunk { fingerprint, address, offset: offset + start as u32, length: length as u32 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Listed, PieceReader};
    use onefold_engine::{Address, decode_pieces, encode_pieces};
    use onefold_fingerprint::{Algorithm, Fingerprint};
    use onefold_ground::wire::Reader;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Recipe chunks, and data whose bytes tell which chunk and which place they are of.
    #[derive(Debug, Default)]
    struct Memory(HashMap<Fingerprint, Vec<u8>>);

    fn byte(chunk: u64, at: u64) -> u8 {
        (chunk * 31 + at * 7 + 1) as u8
    }

    impl Memory {
        fn put(&mut self, pieces: &[Piece]) -> Piece {
            let mut content = Vec::new();
            encode_pieces(pieces, 32, &mut content);
            let fingerprint = Algorithm::Blake3.metadata(&content);
            let length = content.len() as u32;
            self.0.insert(fingerprint, content);
            Piece::Chunk { fingerprint, address: Address::from_bits(1), offset: 0, length }
        }
    }

    impl Chunks for Memory {
        fn recipe_chunk(&self, piece: &Piece, _: u8, _: Of) -> Result<Vec<Piece>> {
            let content = piece.fingerprint().and_then(|name| self.0.get(&name)).ok_or(CatalogError::DoesNotSpell { length_bytes: 0 })?;
            Ok(decode_pieces(&mut Reader::new(content), 32).unwrap())
        }

        fn directory_chunk(&self, _: &Piece) -> Result<Listed> {
            unreachable!("a file has none")
        }

        fn data(&self, pieces: &[Piece], out: &mut [u8]) -> Result<()> {
            let mut at = 0;
            for piece in pieces {
                for place in 0..piece.length() {
                    out[at] = match piece {
                        Piece::Zeros { .. } => 0,
                        Piece::Chunk { address, offset, .. } => byte(address.bits(), u64::from(*offset) + place),
                    };
                    at += 1;
                }
            }
            assert_eq!(at, out.len());
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn every_part_of_a_file_is_what_its_pieces_spell(
            lengths in proptest::collection::vec((1u64..40, any::<bool>()), 0..60),
            (level, width) in (0u8..4, 1usize..5),
            asked in proptest::collection::vec((0u64..2000, 0u64..200), 1..10),
        ) {
            let mut memory = Memory::default();
            let mut spelled = Vec::new();
            let mut pieces: Vec<Piece> = Vec::new();
            for (number, (length, is_zeros)) in lengths.into_iter().enumerate() {
                pieces.push(if is_zeros {
                    spelled.extend(std::iter::repeat_n(0, length as usize));
                    Piece::Zeros { length }
                } else {
                    let number = number as u64;
                    spelled.extend((3..3 + length).map(|at| byte(number, at)));
                    let fingerprint = Algorithm::Blake3.metadata(&number.to_le_bytes());
                    Piece::Chunk { fingerprint, address: Address::from_bits(number), offset: 3, length: length as u32 }
                });
            }
            for _ in 0..level {
                pieces = pieces.chunks(width).map(|pieces| memory.put(pieces)).collect();
            }
            let recipe = Recipe { level, length: spelled.len() as u64, pieces };
            let chunks = Arc::new(memory);
            let reader = FileReader::new(&chunks, &recipe);
            for (offset, length) in asked {
                let wanted = spelled.get(offset as usize..(offset + length) as usize);
                let mut out = vec![9; length as usize];
                match wanted {
                    Some(wanted) => {
                        reader.read(offset, &mut out).unwrap();
                        prop_assert_eq!(&out[..], wanted);
                    }
                    None => prop_assert!(length == 0 || reader.read(offset, &mut out).is_err()),
                }
            }
            // The runs of zeros and of data are those of the pieces.
            let (mut at, mut runs) = (0, Vec::new());
            while let Some(run) = reader.run(at).unwrap() {
                prop_assert!(run.end > at);
                runs.extend((at..run.end).map(|_| run.is_zeros));
                at = run.end;
            }
            let expected: Vec<bool> = PieceReader::new(&chunks, &recipe)
                .map(Result::unwrap)
                .flat_map(|piece| (0..piece.length()).map(move |_| piece.fingerprint().is_none()))
                .collect();
            prop_assert_eq!(runs, expected);
        }
    }

    #[test]
    fn a_recipe_that_spells_another_length_is_an_error_and_no_panic() {
        let mut memory = Memory::default();
        let leaf = memory.put(&[Piece::Zeros { length: u64::MAX }, Piece::Zeros { length: 2 }]);
        let chunks = Arc::new(memory);
        for recipe in [
            Recipe { level: 1, length: 10, pieces: vec![leaf, leaf] },
            Recipe { level: 0, length: 10, pieces: vec![Piece::Zeros { length: 9 }] },
            Recipe { level: 2, length: 10, pieces: vec![] },
        ] {
            let reader = FileReader::new(&chunks, &recipe);
            assert!(matches!(reader.read(9, &mut [0]), Err(CatalogError::DoesNotSpell { length_bytes: 10 })));
            assert!(reader.read(u64::MAX, &mut [0]).is_err());
        }
    }
}
