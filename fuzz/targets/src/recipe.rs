//! Recipes and pieces (`docs/format.md` 8.1): any bytes are refused or spell a recipe that is the same when written and
//! read again.

use onefold_engine::{MAX_LEVEL, Piece, Recipe, decode_pieces, encode_pieces};
use onefold_ground::wire::Reader;

/// The first byte chooses the length of digests; what follows is read as a recipe and as pieces.
pub fn run(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    let digest_bytes = if choice % 2 == 0 { 32 } else { 20 };

    if let Ok(recipe) = Recipe::decode(&mut Reader::new(bytes), digest_bytes) {
        assert!(recipe.level <= MAX_LEVEL);
        if recipe.level == 0 {
            assert_eq!(recipe.length, recipe.pieces.iter().map(Piece::length).sum::<u64>());
        }
        let mut again = Vec::new();
        recipe.encode(digest_bytes, &mut again);
        let mut reader = Reader::new(&again);
        assert_eq!(Recipe::decode(&mut reader, digest_bytes).as_ref(), Ok(&recipe));
        assert_eq!(reader.end(), Ok(()));
    }

    if let Ok(pieces) = decode_pieces(&mut Reader::new(bytes), digest_bytes) {
        let mut again = Vec::new();
        encode_pieces(&pieces, digest_bytes, &mut again);
        let mut reader = Reader::new(&again);
        assert_eq!(decode_pieces(&mut reader, digest_bytes).as_ref(), Ok(&pieces));
        assert_eq!(reader.end(), Ok(()));
    }
}
