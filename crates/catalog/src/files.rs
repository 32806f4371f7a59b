//! Files by their names (M3.3, `docs/decisions/0057-file-fingerprints.md`): for stores that have no chunk index.
//!
//! The name of a file is a digest of the names and lengths of its chunks. An object says for a name which backup had
//! such a file, and the file's recipe. It is advice: it may be missing, damaged or stale.
//!
//! # When a recipe may be taken without a look at its chunks
//! The chunks of a backup that exists are kept. So it is enough to prove that the backup exists and has the recipe:
//! * The backup is found under a guard ([`Catalog::backups_with_named_files`]). Its chunks stay as long as the guard is
//!   held, even if it is forgotten meanwhile.
//! * A backup that is copied back from another store has the id of the one that was forgotten here, but other
//!   addresses. So the backup that names files leaves its root in an object of its own, in the transaction of its
//!   record. The recipe of a root spells, with all chunks below it, every address in the backup. As long as record and
//!   object have the same root, the backup has the recipes that were noted under its id.

use crate::keys::named_root_key;
use crate::{Backup, BackupId, Catalog, CatalogError, PieceReader, Result};
use onefold_engine::{Address, Change, Engine, InFlight, Piece, Recipe, Spelled};
use onefold_fingerprint::{Algorithm, Fingerprint};
use onefold_ground::wire::{Reader, WireError, put_varint};
use std::collections::{BTreeMap, HashSet};

/// The first byte of the keys of files.
const FILE: u8 = b'j';
/// The version of both kinds of objects.
const VERSION: u8 = 1;
/// What is hashed begins with this, so that it is no chunk's content by chance.
const DOMAIN: &[u8] = b"1FLDFILE";

/// The name of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileName(Fingerprint);

impl FileName {
    /// Returns the names of files that spell this.
    pub fn of(algorithm: Algorithm, files: &[Spelled]) -> Vec<FileName> {
        let encoded: Vec<Vec<u8>> = files.iter().map(|spelled| encode(spelled, algorithm.digest_bytes())).collect();
        let mut names = Vec::with_capacity(files.len());
        algorithm.fingerprint_many(&encoded.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut names);
        names.into_iter().map(FileName).collect()
    }

    fn place(&self, engine: &Engine) -> (u16, Vec<u8>) {
        let partition = (self.0.prefix() % u64::from(engine.object_partitions())) as u16;
        (partition, [&[FILE], self.0.digest(engine.digest_bytes())].concat())
    }
}

fn encode(spelled: &Spelled, digest_bytes: usize) -> Vec<u8> {
    let mut out = DOMAIN.to_vec();
    for (name, length) in spelled {
        match name {
            Some(name) => {
                out.push(0);
                out.extend_from_slice(name.digest(digest_bytes));
            }
            None => out.push(1),
        }
        put_varint(&mut out, *length);
    }
    out
}

/// A file that a backup had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// The backup.
    pub backup: BackupId,
    /// The file's recipe in it.
    pub recipe: Recipe,
}

impl NamedFile {
    /// Returns the change of the object that says so.
    pub fn change(&self, engine: &Engine, name: &FileName) -> Change {
        let mut value = vec![VERSION];
        value.extend_from_slice(self.backup.as_bytes());
        self.recipe.encode(engine.digest_bytes(), &mut value);
        let (partition, key) = name.place(engine);
        (partition, key, Some(value))
    }

    fn decode(value: &[u8], digest_bytes: usize) -> std::result::Result<NamedFile, WireError> {
        let mut reader = Reader::new(value);
        let version = reader.u8()?;
        if version != VERSION {
            return Err(WireError::OutOfRange { what: "version of a file", value: u64::from(version), offset_bytes: 0 });
        }
        let mut id = [0; 16];
        id.copy_from_slice(reader.take(16)?);
        let file = NamedFile { backup: BackupId::from_bytes(id), recipe: Recipe::decode(&mut reader, digest_bytes)? };
        reader.end().map(|()| file)
    }
}

impl Catalog {
    /// Returns the file that was noted under each name. `None` also if that cannot be read.
    pub fn named_files(&self, names: &[FileName]) -> Vec<Option<NamedFile>> {
        let engine = self.engine();
        let mut places: BTreeMap<u16, (Vec<usize>, Vec<Vec<u8>>)> = BTreeMap::new();
        for (at, name) in names.iter().enumerate() {
            let (partition, key) = name.place(engine);
            let (of, keys) = places.entry(partition).or_default();
            of.push(at);
            keys.push(key);
        }
        let mut found = vec![None; names.len()];
        for (partition, (of, keys)) in places {
            for (at, value) in of.into_iter().zip(engine.get_many(partition, &keys).unwrap_or_default()) {
                found[at] = value.and_then(|value| NamedFile::decode(&value, engine.digest_bytes()).ok());
            }
        }
        found
    }

    /// Returns a file's recipe if it can be taken as it is: the backup that has it `is_kept`, the recipe spells the
    /// chunks of the file one by one, and none of them is lost. Else appends addresses where the chunks may be all the
    /// same.
    pub fn take(&self, found: NamedFile, is_kept: bool, file: &Spelled, recall: &mut Vec<Address>) -> Option<Recipe> {
        let (engine, recipe) = (self.engine(), found.recipe);
        // One more than wanted shows that there are too many.
        let pieces = PieceReader::new(engine, &recipe).take(file.len() + 1).collect::<Result<Vec<Piece>>>().ok()?;
        if is_kept && spells(&pieces, file) && engine.needs_quarantined(&recipe).is_ok_and(|needs| !needs) {
            return Some(recipe);
        }
        recall.extend(pieces.iter().filter_map(|piece| match piece {
            Piece::Chunk { address, .. } => Some(*address),
            Piece::Zeros { .. } => None,
        }));
        None
    }

    /// Returns the backups that exist and have all files that were noted under their ids. Their chunks stay as long as
    /// the guard is held.
    pub fn backups_with_named_files(&self, _guard: &InFlight) -> Result<HashSet<BackupId>> {
        let (mut backups, mut failed) = (HashSet::new(), None);
        let visited = self.visit(&mut |backup| match self.engine().get(self.partition(&backup.name), &named_root_key(&backup.id)) {
            Ok(noted) if noted == Some(self.root_of(&backup)) => drop(backups.insert(backup.id)),
            Ok(_) => {}
            Err(error) => failed = Some(error),
        });
        match visited {
            // The others were visited.
            Err(CatalogError::Damaged { .. }) => {}
            visited => visited?,
        }
        failed.map_or(Ok(backups), |error| Err(error.into()))
    }

    /// Returns the change that notes the root of a backup.
    pub(crate) fn note_root(&self, backup: &Backup) -> Change {
        (self.partition(&backup.name), named_root_key(&backup.id), Some(self.root_of(backup)))
    }

    fn root_of(&self, backup: &Backup) -> Vec<u8> {
        let mut value = vec![VERSION];
        backup.root.encode(self.engine().digest_bytes(), &mut value);
        value
    }

    /// Passes about `most` files to `is_useless` and forgets those for which it returns true. Begins at `from`, the
    /// first eight bytes of a name as a number. Returns how many it forgot. It asks `go_on` between its steps.
    pub fn forget_named_files(
        &self,
        from: u64,
        most: u64,
        is_useless: &mut dyn FnMut(&NamedFile) -> bool,
        go_on: &dyn Fn() -> bool,
    ) -> Result<u64> {
        const PAGE: usize = 256;
        let (engine, partitions) = (self.engine(), u64::from(self.engine().object_partitions()));
        let (mut looked_at, mut forgotten) = (0, 0);
        // Each partition has its share of every range of names. The first part of a partition comes last.
        for partition in 0..engine.object_partitions() {
            let start = [&[FILE][..], &from.to_be_bytes()].concat();
            for (mut from, to) in [(start.clone(), vec![FILE + 1]), (vec![FILE], start)] {
                while looked_at < most.saturating_mul(u64::from(partition) + 1) / partitions && go_on() {
                    let page = engine.range(partition, &from, &to, PAGE)?;
                    let Some((last, _)) = page.last() else { break };
                    from = [&last[..], &[0]].concat();
                    looked_at += page.len() as u64;
                    let digest_bytes = engine.digest_bytes();
                    let mut is_gone = |value: &[u8]| NamedFile::decode(value, digest_bytes).map_or(true, |file| is_useless(&file));
                    let gone: Vec<Change> =
                        page.into_iter().filter(|(_, value)| is_gone(value)).map(|(key, _)| (partition, key, None)).collect();
                    forgotten += gone.len() as u64;
                    if !gone.is_empty() {
                        engine.submit_advice(gone);
                    }
                }
            }
        }
        Ok(forgotten)
    }
}

/// Returns whether these pieces are the chunks that a file was cut into.
fn spells(pieces: &[Piece], file: &Spelled) -> bool {
    let spelled = |piece: &Piece| match piece {
        // A part of a chunk never has its name.
        Piece::Chunk { offset, .. } if *offset > 0 => None,
        piece => Some((piece.fingerprint(), piece.length())),
    };
    pieces.len() == file.len() && pieces.iter().zip(file).all(|(piece, chunk)| spelled(piece) == Some(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::recipe;
    use proptest::prelude::*;

    fn spelled() -> impl Strategy<Value = Spelled> {
        let piece = (proptest::option::of(any::<[u8; 32]>()), 1u64..300);
        let of = |(name, length): (Option<[u8; 32]>, u64)| (name.map(|name| Fingerprint::from_digest(&name)), length);
        proptest::collection::vec(piece.prop_map(of), 0..6)
    }

    proptest! {
        #[test]
        fn m3_3_two_files_have_one_name_only_if_they_spell_the_same(one in spelled(), other in spelled(), at: usize) {
            let names = FileName::of(Algorithm::Blake3, &[one.clone(), other.clone(), one.clone()]);
            prop_assert_eq!(names[0] == names[1], one == other);
            prop_assert_eq!(names[0], names[2]);
            let mut near = one.clone();
            if !near.is_empty() {
                let at = at % near.len();
                near[at].1 += 1;
                prop_assert!(FileName::of(Algorithm::Blake3, &[near.clone()])[0] != names[0]);
                near.remove(at);
                prop_assert!(FileName::of(Algorithm::Blake3, &[near])[0] != names[0]);
            }
        }

        #[test]
        fn m3_3_a_named_file_is_read_as_written_and_garbage_is_refused(id: [u8; 16], recipe in recipe(), noise: Vec<u8>) {
            let file = NamedFile { backup: BackupId::from_bytes(id), recipe };
            let mut value = vec![VERSION];
            value.extend_from_slice(&id);
            file.recipe.encode(32, &mut value);
            prop_assert_eq!(NamedFile::decode(&value, 32).unwrap(), file);
            for length in 0..value.len() {
                prop_assert!(NamedFile::decode(&value[..length], 32).is_err());
            }
            let _ = NamedFile::decode(&noise, 32);
        }
    }
}
