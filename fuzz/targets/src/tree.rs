//! Trees (`docs/format.md` 8.2 to 8.4): directory chunks and records of backups. Any bytes are refused, or are the same
//! when written and read again.

use onefold_catalog::{Backup, DirectoryChunk, encode_directory_chunk};

/// The first byte chooses structure and length of digests; what follows is read as it.
pub fn run(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    let digest_bytes = if choice & 1 == 0 { 32 } else { 20 };
    if choice & 2 == 0 {
        let Ok(chunk) = DirectoryChunk::decode(bytes, digest_bytes) else { return };
        // Also of a chunk with a rest.
        assert!(chunk.rest.is_none() || (chunk.entries.len() == 1 && chunk.recipes().next().is_some()));
        if let Ok(entries) = chunk.whole() {
            let again = encode_directory_chunk(&entries, digest_bytes);
            assert_eq!(DirectoryChunk::decode(&again, digest_bytes).and_then(DirectoryChunk::whole).as_ref(), Ok(&entries));
        }
    } else if let Ok(backup) = Backup::decode(bytes, digest_bytes) {
        assert_eq!(Backup::decode(&backup.encode(digest_bytes), digest_bytes), Ok(backup));
    }
}
