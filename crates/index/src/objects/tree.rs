//! Reads the objects of a database that redb refuses to open, as far as its pages are intact.
//!
//! redb opens no file with damage in a page that opening needs, such as its allocator's state. This module walks the
//! tree of objects itself (redb's `docs/design.md`, file format 3) and steps over damage. The keys between the intact
//! parts of the tree become a *lost range*.
//!
//! It trusts nothing but checksums. Those of [`Blocks`] prove that a page was once written. The parent's checksum of
//! its child proves that it is the right version. So an older version of a page, left behind by a lost write, is lost
//! too. Pages newer than the header belong to a commit that the header does not know.

use super::blocks::{Blocks, PAGE_BYTES, is_unreadable};
use std::collections::BTreeMap;
use std::io;

const REDB_MAGIC: &[u8; 9] = b"redb\x1a\x0a\xa9\x0d\x0a";
const REDB_FORMAT: u8 = 3;
const LEAF: u8 = 1;
const BRANCH: u8 = 2;
/// Bytes of a reference to a tree: page number, checksum of the page, length of the tree.
const ROOT_BYTES: usize = 32;
/// Bytes of a value in the table `meta`.
const NUMBER_BYTES: usize = 8;
/// Maximum depth of a tree: each branch has at least two children.
const MAX_DEPTH: u32 = 48;
/// Highest order of a page: 2^20 pages of 4096 bytes.
const MAX_ORDER: u32 = 20;
/// After all keys.
pub(super) const END: &[u8] = &[0xff];

/// Keys from `.0` up to but not including `.1`.
pub(super) type KeyRange = (Vec<u8>, Vec<u8>);

/// The location of a page, and the XXH3-128 of its used bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reference {
    page: u64,
    checksum: u128,
}

impl Reference {
    /// Decodes a reference whose number and checksum are adjacent.
    fn at(bytes: &[u8], at: usize) -> Option<Reference> {
        Some(Reference { page: u64_at(bytes, at)?, checksum: u128_at(bytes, at + 8)? })
    }
}

/// Receives the results of a walk.
pub(super) trait Visitor {
    /// Takes a readable object.
    fn object(&mut self, key: &[u8], value: &[u8]) -> io::Result<()>;
    /// Takes a range of unknown keys.
    fn lost(&mut self, range: KeyRange);
}

/// A database with readable tables.
pub(super) struct Database<'a> {
    tree: Tree<'a>,
    /// Roots of the tables by name. An empty table has none.
    tables: BTreeMap<Vec<u8>, Option<Reference>>,
}

impl<'a> Database<'a> {
    /// Finds the tables. `None`: the path to them is unreadable.
    pub(super) fn open(blocks: &'a Blocks) -> io::Result<Option<Database<'a>>> {
        let mut header = [0; PAGE_BYTES];
        if sound(blocks.read(0, &mut header))?.is_none()
            || !header.starts_with(REDB_MAGIC)
            || u32_at(&header, 12) != Some(PAGE_BYTES as u32)
        {
            return Ok(None);
        }
        let (Some(header_pages), Some(data_pages)) = (u32_at(&header, 16), u32_at(&header, 20)) else { return Ok(None) };
        let slot = &header[64 + 128 * usize::from(header[9] & 1)..][..128];
        let root = Reference::at(slot, 8).filter(|_| slot[0] == REDB_FORMAT && slot[1] != 0);
        let Some(root) = root else { return Ok(None) };
        let region_header_bytes = u64::from(header_pages) * PAGE_BYTES as u64;
        let region_bytes = region_header_bytes + u64::from(data_pages) * PAGE_BYTES as u64;
        let tree = Tree { blocks, region_header_bytes, region_bytes };
        let mut found = Tables::default();
        tree.walk(root, (Vec::new(), END.to_vec()), 0, &mut found)?;
        Ok(Some(Database { tree, tables: found.0 }))
    }

    /// Returns the number of this name in the table `meta`. `None`: it is unreadable.
    pub(super) fn meta(&self, name: &str) -> io::Result<Option<u64>> {
        let Some(root) = self.tables.get(b"meta".as_slice()).copied().flatten() else { return Ok(None) };
        Ok(self.tree.page(root, Some(NUMBER_BYTES))?.and_then(|bytes| number(&bytes, name.as_bytes())))
    }

    /// Passes all objects to `visitor`, sorted, with the unreadable ranges between them. Errors: those of `visitor` or
    /// of the device.
    pub(super) fn walk_objects(&self, visitor: &mut dyn Visitor) -> io::Result<()> {
        let all = (Vec::new(), END.to_vec());
        match self.tables.get(b"objects".as_slice()) {
            Some(Some(root)) => self.tree.walk(*root, all, 0, visitor),
            Some(None) => Ok(()),
            // Every partition has this table, so it is lost.
            None => {
                visitor.lost(all);
                Ok(())
            }
        }
    }
}

/// The pages of trees. Their keys may have any length.
struct Tree<'a> {
    blocks: &'a Blocks,
    region_header_bytes: u64,
    region_bytes: u64,
}

impl Tree<'_> {
    /// Walks a tree whose values may have any length too.
    fn walk(&self, page: Reference, range: KeyRange, depth: u32, visitor: &mut dyn Visitor) -> io::Result<()> {
        let Some(bytes) = (if depth < MAX_DEPTH { self.page(page, None)? } else { None }) else {
            visitor.lost(range);
            return Ok(());
        };
        match bytes[0] {
            LEAF => match leaf(&bytes) {
                Some(pairs) => pairs.into_iter().try_for_each(|(key, value)| visitor.object(key, value)),
                None => {
                    visitor.lost(range);
                    Ok(())
                }
            },
            BRANCH => {
                let Some((children, keys)) = branch(&bytes) else {
                    visitor.lost(range);
                    return Ok(());
                };
                let (mut from, end) = range;
                for (at, child) in children.into_iter().enumerate() {
                    // A branch key is at or after all keys of the child before it, and before all keys of the child
                    // after it.
                    let to = keys.get(at).map_or_else(|| end.clone(), |key| [key, &[0][..]].concat());
                    self.walk(child, (from, to.clone()), depth + 1, visitor)?;
                    from = to;
                }
                Ok(())
            }
            _ => {
                visitor.lost(range);
                Ok(())
            }
        }
    }

    /// Returns the bytes of a redb page. If all values have the same length, that is `value_bytes`. `None`: the page is
    /// damaged, or not the right version.
    fn page(&self, reference: Reference, value_bytes: Option<usize>) -> io::Result<Option<Vec<u8>>> {
        let number = reference.page;
        let order = (number >> 59) as u32;
        if order > MAX_ORDER {
            return Ok(None);
        }
        let index = number & (0xf_ffff >> order);
        let region = (number >> 20) & 0xf_ffff;
        let length = (PAGE_BYTES as u64) << order;
        let offset = PAGE_BYTES as u64 + region * self.region_bytes + self.region_header_bytes + index * length;
        if offset.checked_add(length).is_none_or(|end| end > self.blocks.len()) {
            return Ok(None);
        }
        let mut bytes = vec![0; length as usize];
        let is_meant =
            |bytes: &Vec<u8>| used(bytes, value_bytes).is_some_and(|used| xxhash_rust::xxh3::xxh3_128(used) == reference.checksum);
        Ok(sound(self.blocks.read_known(offset, &mut bytes))?.map(|()| bytes).filter(is_meant))
    }
}

/// The roots of tables.
#[derive(Default)]
struct Tables(BTreeMap<Vec<u8>, Option<Reference>>);

impl Visitor for Tables {
    fn object(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        // Type u8, length u64, whether there is a root u8, root.
        if value.len() >= 10 + ROOT_BYTES {
            self.0.insert(key.to_vec(), if value[9] == 0 { None } else { Reference::at(value, 10) });
        }
        Ok(())
    }

    /// The lost part may hold a table. Then the table is not found.
    fn lost(&mut self, _range: KeyRange) {}
}

/// Returns the number with this key in a leaf whose values are 64-bit numbers.
fn number(bytes: &[u8], key: &[u8]) -> Option<u64> {
    let count = usize::from(u16::from_le_bytes(bytes.get(2..4)?.try_into().ok()?));
    let ends = (0..count).map(|at| Some(u32_at(bytes, 4 + 4 * at)? as usize)).collect::<Option<Vec<usize>>>()?;
    let starts = std::iter::once(4 + 4 * count).chain(ends.iter().copied());
    let place = starts.zip(&ends).position(|(start, end)| bytes.get(start..*end) == Some(key))?;
    (bytes[0] == LEAF).then(|| u64_at(bytes, ends.last()? + NUMBER_BYTES * place))?
}

/// Returns the bytes of a page that its checksum covers: up to the end of its last value, or of a branch's last key.
fn used(bytes: &[u8], value_bytes: Option<usize>) -> Option<&[u8]> {
    let count = usize::from(u16::from_le_bytes(bytes.get(2..4)?.try_into().ok()?));
    let last = count.checked_sub(1)?;
    let end = match (bytes[0], value_bytes) {
        (LEAF, None) => u32_at(bytes, 4 + 4 * (count + last))? as usize,
        (LEAF, Some(value_bytes)) => u32_at(bytes, 4 + 4 * last)? as usize + value_bytes * count,
        (BRANCH, _) => u32_at(bytes, 8 + 24 * (count + 1) + 4 * last)? as usize,
        _ => return None,
    };
    bytes.get(..end)
}

/// Returns children and keys of a branch.
fn branch(bytes: &[u8]) -> Option<(Vec<Reference>, Vec<&[u8]>)> {
    let count = usize::from(u16::from_le_bytes(bytes.get(2..4)?.try_into().ok()?));
    let checksums = 8;
    let numbers = checksums + 16 * (count + 1);
    let ends = numbers + 8 * (count + 1);
    let child = |at| Some(Reference { page: u64_at(bytes, numbers + 8 * at)?, checksum: u128_at(bytes, checksums + 16 * at)? });
    let children = (0..=count).map(child).collect::<Option<Vec<_>>>()?;
    let mut start = ends + 4 * count;
    let mut keys = Vec::with_capacity(count);
    for at in 0..count {
        let end = u32_at(bytes, ends + 4 * at)? as usize;
        keys.push(bytes.get(start..end)?);
        start = end;
    }
    Some((children, keys))
}

/// Returns keys and values of a leaf.
fn leaf(bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let count = usize::from(u16::from_le_bytes(bytes.get(2..4)?.try_into().ok()?));
    let ends = |base: usize| (0..count).map(|at| Some(u32_at(bytes, base + 4 * at)? as usize)).collect::<Option<Vec<usize>>>();
    let (key_ends, value_ends) = (ends(4)?, ends(4 + 4 * count)?);
    let mut key_start = 4 + 8 * count;
    let mut value_start = *key_ends.last()?;
    let mut pairs = Vec::with_capacity(count);
    for (key_end, value_end) in key_ends.into_iter().zip(value_ends) {
        pairs.push((bytes.get(key_start..key_end)?, bytes.get(value_start..value_end)?));
        (key_start, value_start) = (key_end, value_end);
    }
    Some(pairs)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn u128_at(bytes: &[u8], at: usize) -> Option<u128> {
    Some(u128::from_le_bytes(bytes.get(at..at + 16)?.try_into().ok()?))
}

/// Turns damage into `None`.
fn sound<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) || is_unreadable(&error) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
