//! What a marking run has to know of the objects of a store: its groups, and what they refer to.

use crate::references::{Kind, mapping, mapping_key};
use onefold_catalog::{Backup, DirectoryChunk};
use onefold_engine::{Group, Moment, Roots, Tree};
use onefold_ground::checksum;
use std::collections::HashMap;

/// Objects read at a time.
const PAGE: usize = 512;

type Result<T> = std::result::Result<T, String>;

/// The place of an object: partition and key.
type Place = (u16, Vec<u8>);

/// The objects of a store, for one run.
#[derive(Debug)]
pub struct StoreRoots {
    digest_bytes: usize,
    /// The backups of each group. Takes about 100 bytes for each.
    backups: HashMap<Group, Vec<Place>>,
}

impl StoreRoots {
    /// Returns the objects of a store with such digests.
    pub fn new(digest_bytes: usize) -> StoreRoots {
        StoreRoots { digest_bytes, backups: HashMap::new() }
    }

    fn mappings(&self, moment: &Moment<'_>, map: u32, visit: &mut dyn FnMut(Tree<'_>)) -> Result<()> {
        let mut damaged = Ok(());
        for partition in 0..moment.object_partitions() {
            let read = range(moment, partition, map_key(map), &map_end(map), &mut |key, value| match mapping(value, self.digest_bytes) {
                Some(recipe) => visit(Tree { recipe: &recipe, is_directory: false }),
                None => damaged = Err(format!("the block mapping {key:02x?} cannot be read")),
            });
            if read.is_err() {
                damaged = read;
            }
        }
        damaged
    }
}

impl Roots for StoreRoots {
    fn groups(&mut self, moment: &Moment<'_>, visit: &mut dyn FnMut(Group)) -> Result<()> {
        self.backups.clear();
        let mut damaged = Ok(());
        for partition in 0..moment.object_partitions() {
            let mut from = vec![Kind::Mapping.prefix()];
            // Not each mapping, but the first one of each map.
            while let Some((key, _)) = page(moment, partition, &from, &[Kind::Mapping.prefix() + 1], 1)?.first() {
                let (map, _) = mapping_key(key).ok_or("the object index has a mapping with an unreadable key")?;
                visit(Group::new(Kind::Mapping.prefix(), map.into()));
                from = map_end(map);
            }
            let (first, end) = (vec![Kind::Backup.prefix()], [Kind::Backup.prefix() + 1]);
            range(moment, partition, first, &end, &mut |key, value| match Backup::decode_object(key, value, self.digest_bytes) {
                Ok(backup) => {
                    let group = Group::new(Kind::Backup.prefix(), checksum(backup.name.as_bytes()));
                    self.backups.entry(group).or_default().push((partition, key.to_vec()));
                    visit(group);
                }
                Err(error) => damaged = Err(format!("the record of a backup cannot be read: {error}")),
            })?;
        }
        damaged
    }

    fn of(&self, moment: &Moment<'_>, group: Group, visit: &mut dyn FnMut(Tree<'_>)) -> Result<()> {
        if group.kind() == Kind::Mapping.prefix() {
            return self.mappings(moment, group.number() as u32, visit);
        }
        for (partition, key) in self.backups.get(&group).into_iter().flatten() {
            // A moment that had to move on may lack it. Then the run ends without a result.
            if let Some(value) = moment.get(*partition, key).map_err(|error| error.to_string())? {
                let backup = Backup::decode_object(key, &value, self.digest_bytes).map_err(|error| error.to_string())?;
                visit(Tree { recipe: &backup.root, is_directory: true });
            }
        }
        Ok(())
    }

    fn directory(&self, content: &[u8], visit: &mut dyn FnMut(Tree<'_>)) -> Result<()> {
        let chunk = DirectoryChunk::decode(content, self.digest_bytes).map_err(|error| error.to_string())?;
        chunk.recipes().for_each(|(recipe, is_directory)| visit(Tree { recipe, is_directory }));
        Ok(())
    }
}

fn map_key(map: u32) -> Vec<u8> {
    let mut key = vec![Kind::Mapping.prefix()];
    key.extend_from_slice(&map.to_be_bytes());
    key
}

/// Returns the first key behind those of a map.
fn map_end(map: u32) -> Vec<u8> {
    map.checked_add(1).map_or_else(|| vec![Kind::Mapping.prefix() + 1], map_key)
}

fn page(moment: &Moment<'_>, partition: u16, from: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    moment.range(partition, from, end, limit).map_err(|error| error.to_string())
}

fn range(moment: &Moment<'_>, partition: u16, mut from: Vec<u8>, end: &[u8], visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
    loop {
        let page = page(moment, partition, &from, end, PAGE)?;
        page.iter().for_each(|(key, value)| visit(key, value));
        match page.last() {
            Some((last, _)) if page.len() == PAGE => {
                from.clone_from(last);
                from.push(0);
            }
            _ => return Ok(()),
        }
    }
}
