//! Trees (`docs/format.md` 8.2 to 8.4): directory chunks and records of backups. Any bytes are refused, or are the same
//! when written and read again.

use onefold_catalog::{Backup, DirectoryChunk, encode_directory_chunk, put_rest};

/// The first byte chooses structure and length of digests; what follows is read as it. Of a directory chunk whose entry
/// has a rest, the same bytes are tried as this rest.
pub fn run(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    let digest_bytes = if choice & 1 == 0 { 32 } else { 20 };
    if choice & 2 == 0 {
        let Ok(chunk) = DirectoryChunk::decode(bytes, digest_bytes) else { return };
        // Also of a chunk with a rest.
        assert!(chunk.rest.is_none() || (chunk.entries.len() == 1 && chunk.recipes().next().is_some()));
        for at in (0..bytes.len()).filter(|_| chunk.rest.is_some()) {
            let mut entry = chunk.entries[0].clone();
            if put_rest(&mut entry, &bytes[at..]).is_ok() {
                let again = encode_directory_chunk(std::slice::from_ref(&entry), digest_bytes);
                assert_eq!(DirectoryChunk::decode(&again, digest_bytes).map(|chunk| chunk.entries), Ok(vec![entry]));
            }
        }
        if let Ok(listed) = chunk.sent() {
            let again = DirectoryChunk::decode(&listed.encode(digest_bytes), digest_bytes).and_then(DirectoryChunk::sent);
            let again = again.expect("it was written");
            assert_eq!((again.first_name, again.entries, again.lost.is_some()), (listed.first_name, listed.entries, listed.lost.is_some()));
        }
    } else if let Ok(backup) = Backup::decode(bytes, digest_bytes) {
        assert_eq!(Backup::decode(&backup.encode(digest_bytes), digest_bytes), Ok(backup));
    }
}
