//! The directories that have the tables of a partition (M2.10).
//!
//! A partition has a *home*: the directory that new tables go to. At first that is its own one, beside the manifests.
//! Another home is a directory on any disk, and `home-1`, `home-2` ... in the partition's own directory lead to it. The
//! one with the greatest number is the home; while tables move, there is more than one.
//!
//! No manifest says where a table is: an opening looks for it in all of them. While a table moves, it may be in two.
//! Both have everything that counts.
//!
//! A home knows whose it is (`home`), so that a disk that is not mounted is not taken for one without tables. It also
//! knows who wrote to it last (`owner`): a copy of the store's directory has the same links, and would remove the
//! tables that it does not know.

use super::id_of;
use crate::levels::options::LevelsOptions;
use crate::{Result, StorageError};
use onefold_ground::wire::Reader;
use onefold_ground::{Ground, checksum, read_file, replace_file};
use std::collections::BTreeMap;
use std::path::Path;

const PREFIX: &str = "home-";
const MARKER_MAGIC: &[u8; 8] = b"1FLDHOM1";
const OWNER_MAGIC: &[u8; 8] = b"1FLDOWN1";
const LIMIT_BYTES: u64 = 4096;

/// The homes of a partition.
#[derive(Clone, Debug)]
pub(crate) struct Homes {
    directory: String,
    partition: u16,
    /// Numbers of links, in order.
    links: Vec<u32>,
    /// The number of the home. 0: the directory of the partition itself.
    current: u32,
}

impl Homes {
    /// Finds the homes of a partition. Errors: among others, a disk is not mounted.
    pub(crate) fn find(ground: &dyn Ground, directory: &str, partition: u16, options: &LevelsOptions) -> Result<Homes> {
        let number = |name: &str| name.strip_prefix(PREFIX).and_then(|digits| digits.parse::<u32>().ok()).filter(|number| *number > 0);
        let mut homes = Homes { directory: directory.to_owned(), partition, links: Vec::new(), current: 0 };
        for link in ground.list(directory)?.iter().filter_map(|entry| number(&entry.name)) {
            if homes.is_begun(ground, link, options)? {
                homes.links.push(link);
            }
        }
        homes.links.sort_unstable();
        homes.current = homes.links.last().copied().unwrap_or(0);
        Ok(homes)
    }

    /// Returns whether a link leads to a home. False: a move had just made it, and got no further.
    fn is_begun(&self, ground: &dyn Ground, link: u32, options: &LevelsOptions) -> Result<bool> {
        let path = self.path(link);
        let marker = format!("{path}/home");
        match read_file(ground, &marker, LIMIT_BYTES) {
            Ok(bytes) if bytes == self.marker(options) => Ok(true),
            Ok(_) => Err(self.refused(ground, link, "it belongs to another store or partition".to_owned())),
            Err(error) if !error.is_not_found() => Err(error.into()),
            Err(_) => match ground.list(&path) {
                Ok(entries) if entries.iter().all(|entry| id_of(&entry.name).is_none()) => Ok(false),
                Ok(_) => Err(self.refused(ground, link, format!("it has tables, and no file {}", ground.describe(&marker)))),
                Err(error) if error.is_not_found() => {
                    let link_path = ground.describe(&path);
                    let why = "it is not there; mount its disk. If it is lost for good";
                    Err(self.refused(ground, link, format!("{why}, remove {link_path} and run `onefold check --repair`")))
                }
                Err(error) => Err(error.into()),
            },
        }
    }

    fn refused(&self, ground: &dyn Ground, link: u32, why: String) -> StorageError {
        StorageError::Home { partition: self.partition, directory: self.place(ground, link), why }
    }

    fn marker(&self, options: &LevelsOptions) -> Vec<u8> {
        let mut bytes = MARKER_MAGIC.to_vec();
        bytes.extend_from_slice(&1u32.to_le_bytes());
        bytes.extend_from_slice(&options.store);
        bytes.extend_from_slice(&self.partition.to_le_bytes());
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn path(&self, home: u32) -> String {
        if home == 0 { self.directory.clone() } else { format!("{}/{PREFIX}{home}", self.directory) }
    }

    /// Returns where a home is, for people.
    fn place(&self, ground: &dyn Ground, home: u32) -> String {
        let path = self.path(home);
        let linked = (home > 0).then(|| ground.linked_directory(&path)).and_then(|linked| linked.ok().flatten());
        linked.map_or_else(|| ground.describe(&path), |linked| linked.display().to_string())
    }

    /// Returns where the home is, for people.
    pub(crate) fn current_place(&self, ground: &dyn Ground) -> String {
        self.place(ground, self.current)
    }

    /// Returns the path of the home.
    pub(crate) fn current(&self) -> String {
        self.path(self.current)
    }

    /// Returns the paths of all of them. The home is the first one.
    pub(crate) fn all(&self) -> Vec<String> {
        let others = self.links.iter().rev().copied().chain([0]).filter(|home| *home != self.current);
        [self.current].into_iter().chain(others).map(|home| self.path(home)).collect()
    }

    /// Returns the paths of the tables that are there, by their numbers.
    pub(crate) fn tables(&self, ground: &dyn Ground) -> Result<BTreeMap<u64, Vec<String>>> {
        let mut tables: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for home in self.all() {
            for entry in ground.list(&home)? {
                if let Some(id) = id_of(&entry.name) {
                    tables.entry(id).or_default().push(format!("{home}/{}", entry.name));
                }
            }
        }
        Ok(tables)
    }

    /// Refuses homes that somebody else has written to: another copy of the store, or a newer one. `known` is the
    /// greatest epoch that the manifest knows.
    pub(crate) fn check_owners(&self, ground: &dyn Ground, known: u64) -> Result<()> {
        for link in &self.links {
            let path = format!("{}/owner", self.path(*link));
            let bytes = match read_file(ground, &path, LIMIT_BYTES) {
                Err(error) if error.is_not_found() => continue,
                bytes => bytes?,
            };
            let file = ground.describe(&path);
            let why = match decode_owner(&bytes) {
                None => format!("its file {file} is damaged. If no copy of the store uses the directory, remove that file"),
                Some((epoch, born_ns)) if epoch > known || born_ns.is_some() && born_ns != self.born_ns(ground)? => {
                    let what = "another copy of the store has used it, or a newer state of this one. Two copies must not use the same";
                    format!("{what}. If no other one will be used any more, remove {file}")
                }
                Some(_) => continue,
            };
            return Err(self.refused(ground, *link, why));
        }
        Ok(())
    }

    /// Writes down that an owner uses them.
    pub(crate) fn take(&self, ground: &dyn Ground, epoch: u64) -> Result<()> {
        self.links.iter().try_for_each(|link| self.take_one(ground, *link, epoch))
    }

    fn take_one(&self, ground: &dyn Ground, link: u32, epoch: u64) -> Result<()> {
        let born_ns = self.born_ns(ground)?;
        let mut bytes = OWNER_MAGIC.to_vec();
        bytes.extend_from_slice(&epoch.to_le_bytes());
        bytes.push(u8::from(born_ns.is_some()));
        bytes.extend_from_slice(&born_ns.unwrap_or(0).to_le_bytes());
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        Ok(replace_file(ground, &format!("{}/owner", self.path(link)), &bytes)?)
    }

    /// Returns when the directory of the partition was made. A copy does not share that.
    fn born_ns(&self, ground: &dyn Ground) -> Result<Option<u64>> {
        Ok(ground.identity(&self.directory)?.map(|identity| identity.born_ns))
    }

    /// Makes another directory the home. `None`: the partition's own one. Returns false if it is the home already.
    pub(crate) fn go_to(&mut self, ground: &dyn Ground, to: Option<&Path>, options: &LevelsOptions, epoch: u64) -> Result<bool> {
        let Some(to) = to else {
            return Ok(std::mem::take(&mut self.current) != 0);
        };
        let store: String = options.store.iter().map(|byte| format!("{byte:02x}")).collect();
        let to = to.join(format!("onefold-{store}-{:04x}", self.partition));
        for link in &self.links {
            if ground.linked_directory(&self.path(*link))?.is_some_and(|linked| linked == to) {
                return Ok(std::mem::replace(&mut self.current, *link) != *link);
            }
        }
        let link = self.links.last().map_or(1, |last| last + 1);
        let path = self.path(link);
        // What a move had just made, and got no further.
        if ground.linked_directory(&path).is_ok_and(|linked| linked.is_some()) || ground.exists(&path)? {
            forget_begun(ground, &path);
            ground.unlink_directory(&path)?;
        }
        ground.link_directory(&path, &to)?;
        let begin = || -> Result<()> {
            forget_begun(ground, &path);
            if let Some(entry) = ground.list(&path)?.first() {
                let why = format!("it is not empty: it has {}. Give another directory, or empty it", entry.name);
                return Err(StorageError::Home { partition: self.partition, directory: to.display().to_string(), why });
            }
            self.take_one(ground, link, epoch)?;
            // With this file it is a home.
            Ok(replace_file(ground, &format!("{path}/home"), &self.marker(options))?)
        };
        if let Err(error) = begin() {
            forget_begun(ground, &path);
            let _ = ground.unlink_directory(&path);
            return Err(error);
        }
        self.links.push(link);
        self.current = link;
        Ok(true)
    }

    /// Removes homes, but the current one, that have no table any more.
    pub(crate) fn leave_empty(&mut self, ground: &dyn Ground) -> Result<()> {
        let mut left = Vec::new();
        for link in self.links.iter().copied().filter(|link| *link != self.current) {
            let path = self.path(link);
            if ground.list(&path)?.iter().any(|entry| id_of(&entry.name).is_some()) {
                continue;
            }
            // Without this file it is no home.
            for name in ["home", "owner"] {
                match ground.remove(&format!("{path}/{name}")) {
                    Err(error) if error.is_not_found() => {}
                    removed => removed?,
                }
            }
            ground.unlink_directory(&path)?;
            left.push(link);
        }
        if !left.is_empty() {
            ground.sync_directory(&self.directory)?;
            self.links.retain(|link| !left.contains(link));
        }
        Ok(())
    }
}

/// Removes what the beginning of a move leaves that got no further. It is no home yet.
fn forget_begun(ground: &dyn Ground, path: &str) {
    if ground.exists(&format!("{path}/home")).is_ok_and(|exists| !exists) {
        for name in ["owner", "owner.new", "home.new"] {
            let _ = ground.remove(&format!("{path}/{name}"));
        }
    }
}

fn decode_owner(bytes: &[u8]) -> Option<(u64, Option<u64>)> {
    let (bytes, sum) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
    let mut reader = Reader::new(bytes.strip_prefix(OWNER_MAGIC).filter(|_| checksum(bytes).to_le_bytes() == sum)?);
    let (epoch, has_born, born_ns) = (reader.u64().ok()?, reader.u8().ok()?, reader.u64().ok()?);
    reader.end().ok()?;
    Some((epoch, (has_born == 1).then_some(born_ns)))
}
