//! Files in compressed frames, as a client supplies them to a backup server (decision 0059).

use crate::world::{Fault, LINE_BYTES, Random};
use onefold_engine::{CompressedFrame, Engine, EngineError, Piece, WriteStream};
use onefold_storage::{Compression, Compressor};

/// Stores a file frame by frame. Some frames have another codec than the store, and some have a wrong name.
pub(crate) fn supply(engine: &Engine, stream: &mut WriteStream, bytes: &[u8], random: &mut Random) -> Result<Vec<Piece>, Fault> {
    let (algorithm, store) = (engine.descriptor().fingerprint, engine.descriptor().sequential_compression);
    let mut pieces = Vec::new();
    for raw in bytes.chunks(LINE_BYTES * (4 + random.below(16) as usize)) {
        let mut compressor = Compressor::new(if random.one_in(6) { Compression::Lz4 } else { store });
        let (codec, stored) = compressor.compress(raw);
        let frame = CompressedFrame::decompress(codec, stored, raw.len())?;
        let chunks: Vec<_> = frame.raw().chunks(LINE_BYTES).collect();
        let names: Vec<_> = chunks.iter().map(|chunk| algorithm.fingerprint(chunk)).collect();
        if random.one_in(8) {
            let at = random.below(names.len() as u64) as usize;
            let mut wrong = names.clone();
            wrong[at] = algorithm.fingerprint(b"another chunk");
            let refused = stream.write_frame(&chunks, &wrong, Some(&frame));
            assert!(matches!(refused, Err(EngineError::Misnamed { index, .. }) if index == at), "a wrong name was believed: {refused:?}");
        }
        pieces.extend(stream.write_frame(&chunks, &names, Some(&frame))?);
    }
    Ok(pieces)
}
