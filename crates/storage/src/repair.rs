//! Making a damaged or lost container anew from the parity of its group.
//!
//! Blocks of the file that are what they were stay; each other one is the exclusive or of the parity's block and those of all other members, which must
//! all be right, and must itself have the checksum that the parity file knows. The file is written beside, synced, verified as a container, and renamed
//! into its place: at any moment there is the old file or the right one. Nothing is ever guessed: what cannot be made right stays as it is.

use crate::parity::{BLOCK_BYTES, Member, ParityHeader, add, block_length, blocks, parity_directory, parity_path};
use crate::scrub::Window;
use crate::store::{ContainerStore, Shared};
use crate::{ContainerId, Header, Result, StorageError, file};
use onefold_ground::profile::Component;
use onefold_ground::{File, checksum, parent};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// What became of a container that looked damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// It was made anew.
    Repaired,
    /// Its file is what it was when parity was made of it: what failed was the reading.
    Whole,
    /// It cannot be made anew: it has no parity, or more of its group is damaged.
    Impossible,
}

/// The parity file of a group, open.
struct Parity {
    header: ParityHeader,
    file: Arc<dyn File>,
}

/// A file of a member, past all caches; `None`: there is none that can be read.
type MemberFile = Option<Arc<dyn File>>;

impl ContainerStore {
    /// Makes a damaged or lost container anew, if its group allows it; durable on return. Readers go on meanwhile and find the new file. An error (a full
    /// disk) leaves everything as it is.
    pub fn repair(&self, container: ContainerId) -> Result<Repair> {
        let shared = &self.shared;
        if shared.check_writable().is_err() || shared.open.read().contains_key(&container) {
            return Ok(Repair::Impossible);
        }
        let _nothing_goes = shared.replacing.lock();
        let begun = Instant::now();
        let group = shared.with_groups(|groups| {
            let is_hopeless = groups.unsound.contains(&container);
            Ok(if is_hopeless { None } else { groups.group_of(container) })
        })?;
        // One that was merged and whose files wait for being replaced is not looked up any more.
        let was_merged = shared.forwarding.lock().logged().contains_key(&container);
        let Some(group) = group.filter(|_| !was_merged) else { return Ok(Repair::Impossible) };
        let repaired = shared.make_anew(group, container)?;
        match repaired {
            Repair::Repaired => {
                shared.profile.add(Component::Repair, begun.elapsed().as_nanos() as u64, shared.file_bytes(container));
                // What could not be made anew before may be now.
                shared.with_groups(|groups| {
                    for member in groups.members(group).into_iter().flatten() {
                        groups.unsound.remove(&member);
                    }
                    Ok(())
                })?;
            }
            Repair::Whole => {}
            Repair::Impossible => shared.with_groups(|groups| {
                groups.unsound.insert(container);
                Ok(())
            })?,
        }
        Ok(repaired)
    }

    /// Makes containers with parity anew that have no file. Returns those, and those that could not be made.
    pub fn repair_lost(&self) -> Result<(Vec<ContainerId>, Vec<ContainerId>)> {
        let (mut repaired, mut lost) = (Vec::new(), Vec::new());
        for group in self.parity_groups()? {
            let (now, still) = self.shared.repair_lost_of(self, group)?;
            repaired.extend(now);
            lost.extend(still);
        }
        Ok((repaired, lost))
    }

    /// Reads the parity file of a group from the device: what is wrong with it, and how many bytes were read. A file that is damaged is
    /// taken away, so that its members get parity anew; members that lost their files are made anew before. Returns what was found and which
    /// containers were repaired.
    pub fn scrub_parity(&self, group: ContainerId) -> Result<ScrubbedParity> {
        let shared = &self.shared;
        let mut scrubbed = ScrubbedParity::default();
        let (repaired, lost) = shared.repair_lost_of(self, group)?;
        scrubbed.repaired = repaired;
        scrubbed.damage.extend(lost.into_iter().map(|member| shared.missing(member)));
        let _nothing_goes = shared.replacing.lock();
        if shared.with_groups(|groups| Ok(groups.members(group)))?.is_none() {
            return Ok(scrubbed);
        }
        match shared.verify_parity(group) {
            Ok(read_bytes) => scrubbed.read_bytes = read_bytes,
            Err(why) => {
                let path = shared.parity_file(group)?;
                scrubbed.damaged_parity = Some(format!("{}: {why}", shared.ground.describe(&path)));
                // As long as a member needs it, what is right in it may still be of use.
                if scrubbed.damage.is_empty() && shared.access == onefold_ground::Access::ReadWrite {
                    shared.remove_groups(&[group])?;
                }
            }
        }
        Ok(scrubbed)
    }
}

/// What scrubbing the parity of a group found.
#[derive(Debug, Default)]
pub struct ScrubbedParity {
    /// Bytes read.
    pub read_bytes: u64,
    /// Members that were lost and made anew.
    pub repaired: Vec<ContainerId>,
    /// Members that are lost: each is [`StorageError::Damaged`].
    pub damage: Vec<StorageError>,
    /// What is wrong with the parity file itself. No data is.
    pub damaged_parity: Option<String>,
}

impl Shared {
    /// Members of a group that had no file: those that were made anew, and the others.
    fn repair_lost_of(&self, store: &ContainerStore, group: ContainerId) -> Result<(Vec<ContainerId>, Vec<ContainerId>)> {
        let (mut repaired, mut lost) = (Vec::new(), Vec::new());
        let members = self.with_groups(|groups| Ok(groups.members(group)))?;
        for member in members.into_iter().flatten() {
            if self.ground.exists(&file::path(&self.directory, member))? {
                continue;
            }
            if store.repair(member)? == Repair::Repaired {
                repaired.push(member);
            } else if self.with_groups(|groups| Ok(groups.group_of(member)))? == Some(group) {
                // Else it was merged meanwhile.
                lost.push(member);
            }
        }
        Ok((repaired, lost))
    }

    fn file_bytes(&self, container: ContainerId) -> u64 {
        let opened = self.ground.open(&file::path(&self.directory, container), onefold_ground::Access::Read);
        opened.and_then(|file| file.len()).unwrap_or(0)
    }

    fn parity_file(&self, group: ContainerId) -> Result<String> {
        self.with_groups(|groups| Ok(parity_path(&self.directory, group, groups.numbers(group).unwrap_or_default())))
    }

    /// Reads and checks the header; the error is for people.
    fn open_parity(&self, group: ContainerId) -> std::result::Result<Parity, String> {
        let said = |error: onefold_ground::GroundError| error.to_string();
        let path = self.parity_file(group).map_err(|error| error.to_string())?;
        let file = self.ground.open_past_cache(&path).map_err(said)?;
        let length = file.len().map_err(said)?;
        let mut start = vec![0; length.min(512) as usize];
        file.read_at(0, &mut start).map_err(said)?;
        let header_bytes = ParityHeader::length_of(&start)?;
        if header_bytes as u64 > length {
            return Err("the file is too short for its header".to_owned());
        }
        start.resize(header_bytes, 0);
        file.read_at(0, &mut start).map_err(said)?;
        let header = ParityHeader::decode(&start)?;
        let members: Vec<ContainerId> = header.members.iter().map(|member| member.container).collect();
        let named = self.with_groups(|groups| Ok(groups.members(group))).map_err(|error| error.to_string())?;
        if header.group != group || header.store != self.options.store || named.is_some_and(|named| named != members) {
            return Err("it is the parity of another group or another store".to_owned());
        }
        if header.file_bytes() != length {
            return Err(format!("the file has {length} bytes, not {}", header.file_bytes()));
        }
        Ok(Parity { header, file })
    }

    /// Reads a whole parity file; returns how long it is, or what is wrong.
    fn verify_parity(&self, group: ContainerId) -> std::result::Result<u64, String> {
        let parity = self.open_parity(group)?;
        let mut block = vec![0; BLOCK_BYTES];
        for number in 0..parity.header.checksums.len() {
            if !parity.block(number, &mut block) {
                return Err(format!("block {number} is damaged"));
            }
        }
        Ok(parity.header.file_bytes())
    }

    /// Nothing goes meanwhile: `replacing` is held.
    fn make_anew(&self, group: ContainerId, container: ContainerId) -> Result<Repair> {
        let parity = match self.open_parity(group) {
            Ok(parity) => parity,
            Err(why) => {
                tracing::warn!(%container, %why, "the parity of a damaged container cannot be read");
                return Ok(Repair::Impossible);
            }
        };
        let Some(lost) = parity.header.members.iter().position(|member| member.container == container) else {
            return Ok(Repair::Impossible);
        };
        let files: Vec<MemberFile> = parity
            .header
            .members
            .iter()
            .map(|member| self.ground.open_past_cache(&file::path(&self.directory, member.container)).ok())
            .collect();
        if self.is_whole(&parity.header.members[lost], &files[lost]) {
            // What is in memory of it may have been what was wrong.
            self.retire([container].iter());
            return Ok(Repair::Whole);
        }
        let directory = parity_directory(&self.directory, container.partition());
        let temporary = format!("{directory}/{:08x}.repair", container.number());
        let made = self.write_anew(&parity, lost, &files, &temporary);
        if !matches!(made, Ok(true)) {
            let _ = self.ground.remove(&temporary);
        }
        if !made? {
            return Ok(Repair::Impossible);
        }
        let path = file::path(&self.directory, container);
        self.ground.create_directory(parent(&path)).map_err(StorageError::cannot_write)?;
        self.ground.rename(&temporary, &path).map_err(StorageError::cannot_write)?;
        self.sync_folders(&BTreeSet::from([parent(&path).to_owned(), directory]))?;
        // From here on readers open the new file.
        self.retire([container].iter());
        tracing::warn!(%container, "a damaged container was made anew from the parity of its group");
        Ok(Repair::Repaired)
    }

    /// Whether a file has exactly the blocks that a member had.
    fn is_whole(&self, member: &Member, file: &MemberFile) -> bool {
        let Some(file) = file else { return false };
        let mut block = vec![0; BLOCK_BYTES];
        file.len().is_ok_and(|length| length == member.length_bytes)
            && (0..blocks(member.length_bytes)).all(|number| read_block(member, file, number, &mut block))
    }

    /// Writes the file of member `lost` as it was; `false`: it cannot be done.
    fn write_anew(&self, parity: &Parity, lost: usize, files: &[MemberFile], temporary: &str) -> Result<bool> {
        let member = &parity.header.members[lost];
        let output = self.create_beside(temporary)?;
        let (mut own, mut sum, mut block) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
        for number in 0..blocks(member.length_bytes) {
            let length = block_length(member.length_bytes, number);
            let is_own = files[lost].as_ref().is_some_and(|file| read_block(member, file, number, &mut own));
            if !is_own {
                if !parity.block(number, &mut sum) {
                    return Ok(false);
                }
                for (other, file) in parity.header.members.iter().zip(files).filter(|(other, _)| other.container != member.container) {
                    if number >= blocks(other.length_bytes) {
                        continue;
                    }
                    let is_right = file.as_ref().is_some_and(|file| read_block(other, file, number, &mut block));
                    if !is_right {
                        return Ok(false);
                    }
                    add(&mut sum, &block[..block_length(other.length_bytes, number)]);
                }
                if checksum(&sum[..length]) != member.checksums[number] {
                    return Ok(false);
                }
                own[..length].copy_from_slice(&sum[..length]);
            }
            output.write_at((number * BLOCK_BYTES) as u64, &own[..length]).map_err(StorageError::cannot_write)?;
        }
        output.sync().map_err(StorageError::cannot_write)?;
        self.is_the_same(member.container, &files[lost], output)
    }

    /// Whether what was made is a sound container, and the one whose file is there.
    fn is_the_same(&self, container: ContainerId, there: &MemberFile, made: Arc<dyn File>) -> Result<bool> {
        let mut damage = Vec::new();
        let made = Window::of(made);
        let verified = self.verify_bytes(container, None, &made, &mut damage);
        match verified {
            Ok(()) if damage.is_empty() => {}
            Ok(()) | Err(StorageError::Damaged { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        let header = self.header_in(container, &made)?;
        let found = there.as_ref().and_then(|file| {
            let mut bytes = [0; crate::HEADER_BYTES];
            file.read_at(0, &mut bytes).ok().and_then(|()| Header::decode(&bytes).ok())
        });
        // A file of another origin is never replaced.
        Ok(found.is_none_or(|found| found == header))
    }
}

impl Parity {
    /// Reads a block of the parity; whether it is right.
    fn block(&self, number: usize, out: &mut [u8]) -> bool {
        let offset = self.header.data_offset() + (number * BLOCK_BYTES) as u64;
        self.file.read_at(offset, out).is_ok() && checksum(out) == self.header.checksums[number]
    }
}

/// Reads a block of a member into the beginning of `out`; whether it is right.
fn read_block(member: &Member, file: &Arc<dyn File>, number: usize, out: &mut [u8]) -> bool {
    let block = &mut out[..block_length(member.length_bytes, number)];
    file.read_at((number * BLOCK_BYTES) as u64, block).is_ok() && checksum(block) == member.checksums[number]
}
