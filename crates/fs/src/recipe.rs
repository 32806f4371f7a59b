//! The content of a file as pieces: which chunks it has, without reading them.

use crate::error::Result;
use crate::filesystem::{FILE_BITS, Filesystem};
use onefold_blocks::{At, Space};
use onefold_engine::Piece;
use std::sync::Arc;

impl Filesystem {
    /// Returns the space that it stands on.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// Returns the first pieces of a file from `offset` on, and how many bytes they spell. None: `offset` is the end.
    /// Holes are zeros; the last piece of a file may be a part of its chunk. Call until the end is reached, and only
    /// for a filesystem that is a snapshot or frozen: otherwise what is not written out is missing.
    ///
    /// The caller holds an [in-flight guard](onefold_engine::Engine::in_flight) from before the call until something
    /// durable refers to the chunks. Errors: a part of the file's mappings is lost or damaged.
    pub fn pieces(&self, number: u64, offset: u64) -> Result<(Vec<Piece>, u64)> {
        let length = self.size(number)?.saturating_sub(offset);
        Ok(self.space.pieces(At::new(number << FILE_BITS, offset), length)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Create, FsOptions, Kind, ROOT};
    use onefold_blocks::testing::{TestStore, bytes};
    use onefold_blocks::{MIN_BLOCK_BYTES, NewSpace, SpaceKind, SpacesOptions};
    use std::time::Duration;

    #[test]
    fn the_pieces_of_a_file_spell_it_up_to_its_end_and_not_further() {
        let mut store = TestStore::new();
        let spaces = store.spaces(SpacesOptions::default());
        let new = NewSpace { name: "f", kind: SpaceKind::Filesystem, end_bytes: None, block_bytes: MIN_BLOCK_BYTES, chain: None };
        let space = spaces.create(new).unwrap();
        Filesystem::format(&space, None, (0, 0)).unwrap();
        let options = FsOptions { commit_interval: Duration::from_secs(3600), ..FsOptions::default() };
        let filesystem = Filesystem::open(space.clone(), options).unwrap();
        let new = Create { mode: 0o644, umask: 0, uid: 0, gid: 0 };
        let (number, _) = filesystem.create(ROOT, b"a", Kind::File, new).unwrap();
        let data = bytes(1, 200_000);
        filesystem.write(number, 3, &data, false).unwrap();
        filesystem.truncate(number, 150_001).unwrap();
        let engine = store.engine().unwrap();
        let _guard = engine.in_flight();
        let frozen = filesystem.at_rest(|| Ok(spaces.frozen(&|info| info.number == space.number())?)).unwrap();
        filesystem.truncate(number, 0).unwrap();
        filesystem.sync().unwrap();
        let then = Filesystem::open(frozen.get(space.number()).unwrap().clone(), options).unwrap();
        let mut found = Vec::new();
        while found.len() < 150_001 {
            let (pieces, length) = then.pieces(number, found.len() as u64).unwrap();
            let mut part = vec![0; length as usize];
            engine.read(&pieces, 0, &mut part, true).unwrap();
            found.extend(part);
        }
        assert!(found[..3] == [0; 3] && found[3..] == data[..149_998]);
        assert_eq!(then.pieces(number, 150_001).unwrap(), (Vec::new(), 0));
        assert_eq!(filesystem.inode(number).unwrap().size, 0);
    }
}
