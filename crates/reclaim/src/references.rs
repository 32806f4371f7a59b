//! Everything in a store that refers to chunks, once each (`docs/format.md` section 8.5): block mappings, roots of backups, stored metadata chunks.

use crate::Result;
use onefold_catalog::{Backup, decode_directory_chunk};
use onefold_engine::{Engine, Piece, Recipe, decode_pieces};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::Reader;
use onefold_storage::{Address, ChunkKind, ContainerId, Slot};

/// Objects read at a time.
const PAGE: usize = 512;

/// Passes all objects whose key starts with `prefix` to `visit`.
pub(crate) fn objects(engine: &Engine, prefix: u8, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
    for partition in 0..engine.block_partitions() {
        let mut from = vec![prefix];
        loop {
            let page = engine.range(partition, &from, &[prefix + 1], PAGE)?;
            for (key, value) in &page {
                visit(key, value);
            }
            match page.last() {
                Some((last, _)) if page.len() == PAGE => {
                    from.clone_from(last);
                    from.push(0);
                }
                _ => break,
            }
        }
    }
    Ok(())
}

/// The volume and block of the key of a mapping.
pub(crate) fn mapping_key(key: &[u8]) -> Option<(u32, u64)> {
    let volume = key.get(1..5)?.try_into().ok()?;
    let block = key.get(5..13)?.try_into().ok()?;
    (key.len() == 13).then(|| (u32::from_be_bytes(volume), u64::from_be_bytes(block)))
}

/// The recipe of a mapping.
pub(crate) fn mapping(value: &[u8], digest_bytes: usize) -> Option<Recipe> {
    let mut reader = Reader::new(value);
    if reader.u8().ok()? != 1 {
        return None;
    }
    let recipe = Recipe::decode(&mut reader, digest_bytes).ok()?;
    (reader.end().is_ok() && recipe.level == 0).then_some(recipe)
}

/// The pieces that objects name: of every block mapping, and of the root recipe of every backup. `damaged` gets what cannot be read.
pub(crate) fn of_objects(engine: &Engine, visit: &mut dyn FnMut(&Piece), damaged: &mut dyn FnMut(String)) -> Result<()> {
    let digest_bytes = engine.digest_bytes();
    objects(engine, b'm', &mut |key, value| match (mapping_key(key), mapping(value, digest_bytes)) {
        (Some(_), Some(recipe)) => recipe.pieces.iter().for_each(&mut *visit),
        (Some((volume, block)), None) => damaged(format!("the mapping of block {block} of volume number {volume} cannot be read")),
        (None, _) => damaged("the block index has a mapping whose key cannot be read".into()),
    })?;
    objects(engine, b'b', &mut |_, value| match Backup::decode(value, digest_bytes) {
        Ok(backup) => backup.root.pieces.iter().for_each(&mut *visit),
        Err(error) => damaged(format!("the record of a backup cannot be read: {error}")),
    })
}

/// What a stored metadata chunk refers to; `None` if its content cannot be read.
pub(crate) fn of_chunk(content: &[u8], kind: ChunkKind, digest_bytes: usize) -> Option<Vec<Piece>> {
    match kind {
        ChunkKind::Data => Some(Vec::new()),
        ChunkKind::Recipe => {
            let mut reader = Reader::new(content);
            let pieces = decode_pieces(&mut reader, digest_bytes).ok()?;
            reader.end().ok().map(|()| pieces)
        }
        ChunkKind::Directory => {
            let entries = decode_directory_chunk(content, digest_bytes).ok()?;
            Some(entries.iter().filter_map(|entry| entry.content.recipe()).flat_map(|recipe| recipe.pieces.iter().copied()).collect())
        }
    }
}

/// The metadata chunks of a container: where they are, and what they are.
pub(crate) fn metadata_of(container: ContainerId, slots: &[Slot]) -> Vec<(Address, Fingerprint, ChunkKind)> {
    slots
        .iter()
        .enumerate()
        .filter(|(_, slot)| slot.kind != ChunkKind::Data)
        .map(|(number, slot)| (Address::new(container, number as u16), slot.fingerprint, slot.kind))
        .collect()
}
