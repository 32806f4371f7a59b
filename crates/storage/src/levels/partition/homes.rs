//! The directories that have the tables of a partition (M2.10).
//!
//! A partition has a *home*: the directory that new tables go to. At first that is its own one, beside the manifests.
//! Another home is a directory on any disk, and `home-1`, `home-2` ... in the partition's own directory lead to it. The
//! file `home` there says which one it is. While tables move, there is more than one.
//!
//! No manifest says where a table is: an opening looks for it in all of them. While a table moves, it may be in two.
//! Both have everything that counts.
//!
//! A home knows whose it is (`home`), so that a disk that is not mounted is not taken for one without tables. It also
//! knows who wrote to it last, and up to where in the log (`owner`). A copy of the store's directory has the same
//! links, and would remove the tables that it does not know. So the log names no table in a home before `owner` says
//! how far the log is, and a store whose log ends before that is not opened.

use super::id_of;
use crate::levels::options::LevelsOptions;
use crate::levels::table::Table;
use crate::{Result, StorageError};
use onefold_ground::wire::Reader;
use onefold_ground::{Access, Ground, checksum, read_file, replace_file};
use onefold_oplog::Position;
use std::collections::BTreeMap;
use std::path::Path;

const PREFIX: &str = "home-";
const CURRENT_MAGIC: &[u8; 8] = b"1FLDHOMC";
const MARKER_MAGIC: &[u8; 8] = b"1FLDHOM1";
const OWNER_MAGIC: &[u8; 8] = b"1FLDOWN1";
const LIMIT_BYTES: u64 = 4096;
const IN_USE: &str = "another copy of the store has used it, or a newer state of this one. Two copies must not use the same";

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

/// What a home knows of who wrote to it last.
struct Owner {
    epoch: u64,
    log_end: Position,
    /// When the directory of the partition was made. A copy does not share that.
    born_ns: Option<u64>,
}

/// What is behind a link.
enum Behind {
    Home,
    /// A move had just made the link, and got no further.
    Nothing,
    /// Whose it is cannot be read.
    Damaged(String),
}

impl Homes {
    /// Finds the homes of a partition. Errors: among others, a disk is not mounted.
    pub(crate) fn find(ground: &dyn Ground, directory: &str, partition: u16, options: &LevelsOptions) -> Result<Homes> {
        let mut homes = Homes { directory: directory.to_owned(), partition, links: Vec::new(), current: 0 };
        for link in homes.find_links(ground)? {
            match homes.behind(ground, link, options)? {
                Behind::Home => homes.links.push(link),
                Behind::Nothing => {}
                Behind::Damaged(why) => return Err(homes.refused(ground, link, format!("{why}; run `onefold check --repair`"))),
            }
        }
        homes.current = match read_file(ground, &homes.current_path(), LIMIT_BYTES) {
            Err(error) if error.is_not_found() => 0,
            Ok(bytes) if homes.links.iter().chain(&[0]).any(|link| bytes == encode_current(*link)) => {
                homes.links.iter().copied().find(|link| bytes == encode_current(*link)).unwrap_or(0)
            }
            // Damaged, or its link is gone. It only says where new tables go.
            Err(error) if !error.is_lasting() => return Err(error.into()),
            _ => homes.links.last().copied().unwrap_or(0),
        };
        Ok(homes)
    }

    fn find_links(&self, ground: &dyn Ground) -> Result<Vec<u32>> {
        let number = |name: &str| name.strip_prefix(PREFIX).and_then(|digits| digits.parse::<u32>().ok()).filter(|number| *number > 0);
        let mut links: Vec<u32> = ground.list(&self.directory)?.iter().filter_map(|entry| number(&entry.name)).collect();
        links.sort_unstable();
        Ok(links)
    }

    fn behind(&self, ground: &dyn Ground, link: u32, options: &LevelsOptions) -> Result<Behind> {
        let path = self.path(link);
        let marker = format!("{path}/home");
        let file = ground.describe(&marker);
        match read_file(ground, &marker, LIMIT_BYTES) {
            Ok(bytes) if bytes == self.marker(options) => Ok(Behind::Home),
            Ok(bytes) if is_marker(&bytes) => Err(self.refused(ground, link, "it belongs to another store or partition".to_owned())),
            Ok(_) => Ok(Behind::Damaged(format!("its file {file} is damaged"))),
            Err(error) if !error.is_not_found() => Err(error.into()),
            Err(_) => match ground.list(&path) {
                Ok(entries) if entries.iter().all(|entry| id_of(&entry.name).is_none()) => Ok(Behind::Nothing),
                Ok(_) => Ok(Behind::Damaged(format!("it has tables, and no file {file}"))),
                Err(error) if error.is_not_found() => {
                    let link_path = ground.describe(&path);
                    let why = "it is not there; mount its disk. If it is lost for good";
                    Err(self.refused(ground, link, format!("{why}, remove {link_path} and run `onefold check --repair`")))
                }
                Err(error) => Err(error.into()),
            },
        }
    }

    /// Writes again whose a home is where that cannot be read, if its tables are those of the store. Returns the homes
    /// for people.
    pub(crate) fn restore_markers(
        ground: &dyn Ground,
        directory: &str,
        partition: u16,
        options: &LevelsOptions,
        dry_run: bool,
    ) -> Result<Vec<String>> {
        let homes = Homes { directory: directory.to_owned(), partition, links: Vec::new(), current: 0 };
        let mut restored = Vec::new();
        for link in homes.find_links(ground)? {
            let Behind::Damaged(why) = homes.behind(ground, link, options)? else { continue };
            let path = homes.path(link);
            let room = crate::levels::filter::Room::new(0);
            let is_ours = |entry: &onefold_ground::DirectoryEntry| {
                let table = id_of(&entry.name).map(|id| Table::open(ground, &format!("{path}/{}", entry.name), id, options, &room));
                table.is_some_and(|table| table.is_ok())
            };
            if !ground.list(&path)?.iter().any(is_ours) {
                let why = format!("{why}, and no table in it is of this store. If it is lost for good, remove {}", ground.describe(&path));
                return Err(homes.refused(ground, link, why));
            }
            if !dry_run {
                replace_file(ground, &format!("{path}/home"), &homes.marker(options))?;
            }
            restored.push(homes.place(ground, link));
        }
        Ok(restored)
    }

    fn refused(&self, ground: &dyn Ground, link: u32, why: String) -> StorageError {
        StorageError::Home { partition: self.partition, directory: self.place(ground, link), why }
    }

    fn marker(&self, options: &LevelsOptions) -> Vec<u8> {
        let mut bytes = MARKER_MAGIC.to_vec();
        bytes.extend_from_slice(&1u32.to_le_bytes());
        bytes.extend_from_slice(&options.store);
        bytes.extend_from_slice(&self.partition.to_le_bytes());
        with_checksum(bytes)
    }

    fn path(&self, home: u32) -> String {
        if home == 0 { self.directory.clone() } else { format!("{}/{PREFIX}{home}", self.directory) }
    }

    fn current_path(&self) -> String {
        format!("{}/home", self.directory)
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

    /// Refuses homes that somebody else has written to: another copy of the store, or a newer state of it. `epoch` is
    /// the greatest one that the manifest knows.
    pub(crate) fn check_owners(&self, ground: &dyn Ground, epoch: u64) -> Result<()> {
        for link in &self.links {
            let Some(owner) = self.owner(ground, *link)? else { continue };
            if owner.epoch > epoch || owner.born_ns.is_some() && owner.born_ns != self.born_ns(ground)? {
                return Err(self.in_use(ground, *link));
            }
        }
        Ok(())
    }

    /// Refuses homes that the log named tables of behind its end: the log is an older one.
    pub(crate) fn check_log_end(&self, ground: &dyn Ground, log_end: Position) -> Result<()> {
        for link in &self.links {
            if self.owner(ground, *link)?.is_some_and(|owner| owner.log_end > log_end) {
                return Err(self.in_use(ground, *link));
            }
        }
        Ok(())
    }

    fn in_use(&self, ground: &dyn Ground, link: u32) -> StorageError {
        let file = ground.describe(&self.owner_path(link));
        self.refused(ground, link, format!("{IN_USE}. If no other one will be used any more, remove {file}"))
    }

    fn owner_path(&self, link: u32) -> String {
        format!("{}/owner", self.path(link))
    }

    fn owner(&self, ground: &dyn Ground, link: u32) -> Result<Option<Owner>> {
        let path = self.owner_path(link);
        let bytes = match read_file(ground, &path, LIMIT_BYTES) {
            Err(error) if error.is_not_found() => return Ok(None),
            bytes => bytes?,
        };
        let damaged = || {
            let file = ground.describe(&path);
            self.refused(ground, link, format!("its file {file} is damaged. If no copy of the store uses the directory, remove that file"))
        };
        Owner::decode(&bytes).map(Some).ok_or_else(damaged)
    }

    /// Writes down that an owner uses them, and that the log may name tables in them up to `log_end`, if it is given.
    /// The file has room already: a full disk can be left.
    pub(crate) fn take(&self, ground: &dyn Ground, epoch: u64, log_end: Option<Position>) -> Result<()> {
        self.links.iter().try_for_each(|link| self.take_one(ground, *link, epoch, log_end))
    }

    fn take_one(&self, ground: &dyn Ground, link: u32, epoch: u64, log_end: Option<Position>) -> Result<()> {
        let before = self.owner(ground, link)?;
        let former = before.as_ref().map(|owner| owner.log_end);
        let log_end = log_end.max(former).unwrap_or_default();
        let bytes = Owner { epoch, log_end, born_ns: self.born_ns(ground)? }.encode();
        let path = self.owner_path(link);
        if before.is_none() {
            return Ok(replace_file(ground, &path, &bytes)?);
        }
        let file = ground.open(&path, Access::ReadWrite)?;
        file.write_at(0, &bytes)?;
        Ok(file.sync()?)
    }

    /// Returns the greatest position that any home knows, whatever else is wrong with them.
    pub(crate) fn known_end(ground: &dyn Ground, directory: &str, partition: u16) -> Position {
        let homes = Homes { directory: directory.to_owned(), partition, links: Vec::new(), current: 0 };
        let links = homes.find_links(ground).unwrap_or_default();
        let ends = links.iter().filter_map(|link| homes.owner(ground, *link).ok().flatten()).map(|owner| owner.log_end);
        ends.max().unwrap_or_default()
    }

    /// Notes that the log goes on behind `log_end`. A failure is harmless, as the next one says so too.
    pub(crate) fn note_committed(&self, ground: &dyn Ground, epoch: u64, log_end: Position) {
        let note = |link: &u32| -> Result<()> {
            let bytes = Owner { epoch, log_end, born_ns: self.born_ns(ground)? }.encode();
            Ok(ground.open(&self.owner_path(*link), Access::ReadWrite)?.write_at(0, &bytes)?)
        };
        if let Err(error) = self.links.iter().try_for_each(note) {
            tracing::debug!(%error, "a home does not know yet how far the log is");
        }
    }

    /// Notes that the log may name tables of an epoch up to `log_end`. Errors: another owner has taken a home.
    pub(crate) fn note_log_end(&self, ground: &dyn Ground, epoch: u64, log_end: Position) -> Result<()> {
        for link in &self.links {
            if self.owner(ground, *link)?.is_some_and(|owner| owner.epoch > epoch) {
                return Err(self.in_use(ground, *link));
            }
        }
        self.take(ground, epoch, Some(log_end))
    }

    /// Returns when the directory of the partition was made.
    fn born_ns(&self, ground: &dyn Ground) -> Result<Option<u64>> {
        Ok(ground.identity(&self.directory)?.map(|identity| identity.born_ns))
    }

    /// Makes another directory the home, durably. `None`: the partition's own one.
    pub(crate) fn go_to(
        &mut self,
        ground: &dyn Ground,
        to: Option<&Path>,
        options: &LevelsOptions,
        epoch: u64,
        log_end: Position,
    ) -> Result<()> {
        let number = match to {
            Some(to) => self.link_to(ground, to, options, epoch, log_end)?,
            None => 0,
        };
        replace_file(ground, &self.current_path(), &encode_current(number))?;
        self.current = number;
        Ok(())
    }

    /// Returns the number of the link to the partition's directory in `to`. Makes both, if they are not there.
    fn link_to(&mut self, ground: &dyn Ground, to: &Path, options: &LevelsOptions, epoch: u64, log_end: Position) -> Result<u32> {
        let store: String = options.store.iter().map(|byte| format!("{byte:02x}")).collect();
        let to = to.join(format!("onefold-{store}-{:04x}", self.partition));
        for link in &self.links {
            if ground.linked_directory(&self.path(*link))?.is_some_and(|linked| linked == to) {
                return Ok(*link);
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
        forget_begun(ground, &path);
        let begin = || -> Result<()> {
            if let Some(entry) = ground.list(&path)?.first() {
                let why = format!("it is not empty: it has {}. Give another directory, or empty it", entry.name);
                return Err(StorageError::Home { partition: self.partition, directory: to.display().to_string(), why });
            }
            let marker = format!("{path}/home");
            let made = self.take_one(ground, link, epoch, Some(log_end));
            // With this file it is a home.
            made.and_then(|()| Ok(replace_file(ground, &marker, &self.marker(options))?)).inspect_err(|_| {
                // It was empty, so this is ours.
                let _ = ground.remove(&marker);
                forget_begun(ground, &path);
            })
        };
        if let Err(error) = begin() {
            let _ = ground.unlink_directory(&path);
            return Err(error);
        }
        self.links.push(link);
        Ok(link)
    }

    /// Removes homes, but the current one, that have no table any more. Returns the others that stay, for people.
    pub(crate) fn leave_empty(&mut self, ground: &dyn Ground) -> Result<Vec<String>> {
        let mut stay = Vec::new();
        for link in self.links.clone().into_iter().filter(|link| *link != self.current) {
            let path = self.path(link);
            if ground.list(&path)?.iter().any(|entry| id_of(&entry.name).is_some()) {
                stay.push(self.place(ground, link));
                continue;
            }
            // Without this file it is no home.
            for name in ["home", "owner"] {
                match ground.remove(&format!("{path}/{name}")) {
                    Err(error) if error.is_not_found() => {}
                    removed => removed?,
                }
            }
            let unlinked = ground.unlink_directory(&path);
            // It is no home any more, whatever becomes of the link.
            self.links.retain(|other| *other != link);
            unlinked?;
            ground.sync_directory(&self.directory)?;
        }
        Ok(stay)
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

fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = checksum(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// Returns the bytes before their checksum, if it is right.
fn checked<'a>(bytes: &'a [u8], magic: &[u8; 8]) -> Option<&'a [u8]> {
    let (bytes, sum) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
    bytes.strip_prefix(magic).filter(|_| checksum(bytes).to_le_bytes() == sum)
}

fn is_marker(bytes: &[u8]) -> bool {
    checked(bytes, MARKER_MAGIC).is_some()
}

fn encode_current(home: u32) -> Vec<u8> {
    with_checksum([&CURRENT_MAGIC[..], &home.to_le_bytes()].concat())
}

impl Owner {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = OWNER_MAGIC.to_vec();
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(&self.log_end.0.to_le_bytes());
        bytes.push(u8::from(self.born_ns.is_some()));
        bytes.extend_from_slice(&self.born_ns.unwrap_or(0).to_le_bytes());
        with_checksum(bytes)
    }

    fn decode(bytes: &[u8]) -> Option<Owner> {
        let mut reader = Reader::new(checked(bytes, OWNER_MAGIC)?);
        let (epoch, log_end) = (reader.u64().ok()?, Position(reader.u64().ok()?));
        let (has_born, born_ns) = (reader.u8().ok()?, reader.u64().ok()?);
        reader.end().ok()?;
        Some(Owner { epoch, log_end, born_ns: (has_born == 1).then_some(born_ns) })
    }
}
