//! Rebuilds a damaged or lost container from the parity of its group.
//!
//! Blocks of the file that are still right stay. Each other block is the exclusive or of the parity's block and the
//! blocks of all other members. Those must all be right, and the result must have the checksum that the parity file
//! knows.
//!
//! The file is written beside the old one, synced, verified as a container, and renamed into its place. So at any
//! moment there is either the old file or the right one. Nothing is ever guessed: what cannot be repaired stays as it
//! is.

use crate::components::REPAIR;
use crate::containers::file;
use crate::containers::group_id::Folder;
use crate::containers::parity::{
    BLOCK_BYTES, Member, ParityHeader, add, block_length, blocks, data_offset, new_parity_path, parity_directory, parity_path,
};
use crate::containers::scrub::Window;
use crate::containers::sealed::Bytes;
use crate::containers::store::{ContainerStore, Shared};
use crate::{ContainerId, FOOTER_BYTES, Footer, GroupId, HEADER_BYTES, Header, Result, StorageError};
use onefold_ground::{File, Ground, GroundError, ReadBuffer, checksum, parent};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// The result of a repair: what happened to a container that looked damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// It was rebuilt.
    Repaired,
    /// Its file is as it was when parity was made of it. The reading failed, not the file.
    Whole,
    /// It cannot be rebuilt: it has no parity, or more of its group is damaged.
    Impossible,
}

/// Groups whose names are read at a time.
const GROUPS_AT_ONCE: usize = 64;

/// Blocks of the parity that one read of a verification takes.
const WINDOW_BLOCKS: usize = 64;

/// The parity file of a group, open.
pub(crate) struct Parity {
    pub(crate) header: ParityHeader,
    file: Arc<dyn File>,
}

/// Why the parity is of no use now.
pub(crate) enum Unusable {
    /// The file is damaged or missing. The text is for people.
    Damaged(String),
    /// A failure that has nothing to do with what is stored.
    Failed(StorageError),
}

impl From<GroundError> for Unusable {
    fn from(error: GroundError) -> Unusable {
        if error.is_lasting() { Unusable::Damaged(error.to_string()) } else { Unusable::Failed(error.into()) }
    }
}

/// A member's file, opened past all caches; `None`: no file that can be read.
pub(crate) type MemberFile = Option<Arc<dyn File>>;

impl ContainerStore {
    /// Rebuilds a damaged or lost container, if its group allows it. Durable on return. Readers go on meanwhile and
    /// find the new file. An error (such as a full disk) leaves everything as it is.
    pub fn repair(&self, container: ContainerId) -> Result<Repair> {
        self.shared.repair(container)
    }

    /// Allows rebuilding containers though the store is open for reading only. Call only when the caller has the store
    /// alone and is about to rebuild other things from the containers.
    pub fn allow_repairs(&self) {
        self.shared.mode.allow_repairs();
    }

    /// Rebuilds containers that have parity but no file. Returns the rebuilt ones, and those that could not be rebuilt,
    /// with the error if the cause was not the parity. Asks `go_on` between groups.
    pub fn repair_lost(&self, go_on: &dyn Fn() -> bool) -> Result<RepairedAndLost> {
        let (mut repaired, mut lost) = (Vec::new(), Vec::new());
        let mut from = GroupId::FIRST;
        loop {
            let groups = self.parity_groups_from(from, GROUPS_AT_ONCE)?;
            let Some(last) = groups.last() else { return Ok((repaired, lost)) };
            from = last.next();
            for group in groups {
                if !go_on() {
                    return Ok((repaired, lost));
                }
                let (now, still) = self.shared.repair_lost_of(group)?;
                repaired.extend(now);
                lost.extend(still);
            }
        }
    }

    /// Reads the parity file of a group from the device, after rebuilding members that lost their files. If the parity
    /// is damaged, [`make_parity`](Self::make_parity) makes new parity of its members. Until then the file stays: the
    /// right parts of it may be of use.
    pub fn scrub_parity(&self, group: GroupId) -> Result<ScrubbedParity> {
        self.shared.scrub_parity(group, &mut ReadBuffer::default())
    }
}

/// What scrubbing the parity of a group found.
#[derive(Debug, Default)]
pub struct ScrubbedParity {
    /// Bytes read.
    pub read_bytes: u64,
    /// Members that were lost and rebuilt.
    pub repaired: Vec<ContainerId>,
    /// Members that stay lost: each is [`StorageError::Damaged`].
    pub damage: Vec<StorageError>,
    /// What is wrong with the parity file itself. No data is damaged.
    pub damaged_parity: Option<String>,
}

/// Members that were rebuilt, and members that could not be. The latter have the error, if the cause was not the
/// parity.
pub type RepairedAndLost = (Vec<ContainerId>, Vec<(ContainerId, Option<StorageError>)>);

impl Shared {
    /// Returns whether containers may be rebuilt, for real or in a rehearsal.
    pub(crate) fn may_repair(&self) -> bool {
        self.rehearsal.is_on() || self.mode.allows_repairs() || self.check_writable().is_ok()
    }

    pub(crate) fn repair(&self, container: ContainerId) -> Result<Repair> {
        if !self.may_repair() || self.unsealed.contains(container) {
            return Ok(Repair::Impossible);
        }
        let folder = Folder::of(container);
        let group = |groups: &mut crate::containers::groups::Groups<'_>| {
            let is_hopeless = groups.is_beyond_repair(container);
            Ok(if is_hopeless { None } else { groups.group_of(container) })
        };
        // Most often there is no parity; then there is no wait.
        if self.with_groups(folder, group)?.is_none() {
            return Ok(Repair::Impossible);
        }
        let _nothing_goes = self.merging.hold_files();
        let begun = Instant::now();
        // A merged container whose files still wait for their replacement is no longer looked up.
        let was_merged = self.forwards.is_logged(container);
        let Some(group) = self.with_groups(folder, group)?.filter(|_| !was_merged) else { return Ok(Repair::Impossible) };
        let repaired = self.make_anew(group, container)?;
        match repaired {
            Repair::Repaired => {
                self.profile.add(&REPAIR, begun.elapsed().as_nanos() as u64, self.file_bytes(container));
                self.note_groups(folder, |groups| groups.repaired(container))?;
            }
            Repair::Whole => {}
            Repair::Impossible => self.note_groups(folder, |groups| groups.set_beyond_repair(container))?,
        }
        Ok(repaired)
    }

    pub(crate) fn scrub_parity(&self, group: GroupId, buffer: &mut ReadBuffer) -> Result<ScrubbedParity> {
        let (repaired, lost) = self.repair_lost_of(group)?;
        let missing = |(member, why): (ContainerId, Option<StorageError>)| match why {
            Some(why) => self.damaged(member, None, None, format!("the file is missing, and parity cannot rebuild it: {why}")),
            None => self.missing(member),
        };
        let damage = lost.into_iter().map(missing).collect();
        let mut scrubbed = ScrubbedParity { read_bytes: 0, repaired, damage, damaged_parity: None };
        let is_there = || self.with_groups(group.folder(), |groups| Ok(groups.numbers(group).is_some()));
        if !is_there()? {
            return Ok(scrubbed);
        }
        if let Ok(read_bytes) = self.verify_parity(group, buffer) {
            scrubbed.read_bytes = read_bytes;
            return Ok(scrubbed);
        }
        // It may have gone while it was read. Now nothing goes.
        let _nothing_goes = self.merging.hold_files();
        if is_there()? {
            match self.verify_parity(group, buffer) {
                Ok(read_bytes) => scrubbed.read_bytes = read_bytes,
                Err(Unusable::Failed(error)) => return Err(error),
                Err(Unusable::Damaged(why)) => {
                    scrubbed.damaged_parity = Some(format!("{}: {why}", self.ground.describe(&self.parity_file(group)?)));
                    self.note_groups(group.folder(), |groups| groups.set_outdated(group))?;
                }
            }
        }
        Ok(scrubbed)
    }

    /// Rebuilds members of a group that have no file.
    fn repair_lost_of(&self, group: GroupId) -> Result<RepairedAndLost> {
        let (mut repaired, mut lost) = (Vec::new(), Vec::new());
        for member in self.with_groups(group.folder(), |groups| Ok(groups.members_counting_on(group)))? {
            if self.rehearsed(member).is_some() || self.ground.exists(&file::path(&self.directory, member))? {
                continue;
            }
            // It was merged. A list of a bucket may be too old to show the parity that leaves it out.
            if self.ground.exists(&file::forward_path(&self.directory, member))? {
                continue;
            }
            let error = match self.repair(member) {
                Ok(Repair::Repaired) => {
                    repaired.push(member);
                    continue;
                }
                Ok(_) => None,
                Err(error) => {
                    tracing::warn!(container = %member, %error, "a lost container could not be rebuilt");
                    Some(error)
                }
            };
            // It may have gone while it was read. From here on nothing goes.
            if self.with_groups(group.folder(), |groups| Ok(groups.group_of(member)))? == Some(group) {
                lost.push((member, error));
            }
        }
        Ok((repaired, lost))
    }

    fn file_bytes(&self, container: ContainerId) -> u64 {
        let opened = self.ground.open(&file::path(&self.directory, container), onefold_ground::Access::Read);
        opened.and_then(|file| file.len()).unwrap_or(0)
    }

    fn parity_file(&self, group: GroupId) -> Result<String> {
        self.with_groups(group.folder(), |groups| Ok(parity_path(&self.directory, group, groups.numbers(group).unwrap_or_default())))
    }

    /// Reads and checks the header.
    pub(crate) fn open_parity(&self, group: GroupId) -> std::result::Result<Parity, Unusable> {
        let damaged = |why: &str| Unusable::Damaged(why.to_owned());
        let file = self.ground.open_past_cache(&self.parity_file(group).map_err(Unusable::Failed)?)?;
        let length = file.len()?;
        let mut start = vec![0; length.min(512) as usize];
        file.read_at(0, &mut start)?;
        let header_bytes = ParityHeader::length_of(&start).map_err(Unusable::Damaged)?;
        if header_bytes as u64 > length {
            return Err(damaged("the file is too short for its header"));
        }
        start.resize(header_bytes, 0);
        file.read_at(0, &mut start)?;
        let header = ParityHeader::decode(&start).map_err(Unusable::Damaged)?;
        let members: Vec<ContainerId> = header.members.iter().map(|member| member.container).collect();
        let named = self.with_groups(group.folder(), |groups| Ok(groups.members(group))).map_err(Unusable::Failed)?;
        if header.group != group || header.store != self.options.store || named.is_some_and(|named| named != members) {
            return Err(damaged("it belongs to another group or another store"));
        }
        if header.file_bytes() != length {
            return Err(Unusable::Damaged(format!("the file has {length} bytes instead of {}", header.file_bytes())));
        }
        Ok(Parity { header, file })
    }

    /// Reads a whole parity file. Returns its length.
    fn verify_parity(&self, group: GroupId, buffer: &mut ReadBuffer) -> std::result::Result<u64, Unusable> {
        let parity = self.open_parity(group)?;
        let mut block = [0; BLOCK_BYTES];
        for (window, sums) in parity.header.checksums.chunks(WINDOW_BLOCKS).enumerate() {
            let first = window * WINDOW_BLOCKS;
            let offset = parity.header.data_offset() + (first * BLOCK_BYTES) as u64;
            let is_read = buffer.read(&*parity.file, offset, sums.len() * BLOCK_BYTES).is_ok();
            for (number, sum) in sums.iter().enumerate() {
                // If the device cannot read the whole range, one bad block may be the reason.
                let is_right = if is_read {
                    checksum(&buffer[number * BLOCK_BYTES..(number + 1) * BLOCK_BYTES]) == *sum
                } else {
                    parity.block(first + number, &mut block).map_err(Unusable::Failed)?
                };
                if !is_right {
                    return Err(Unusable::Damaged(format!("block {} is damaged", first + number)));
                }
            }
        }
        Ok(parity.header.file_bytes())
    }

    /// The caller [holds files in place](crate::containers::merging::Merging::hold_files).
    fn make_anew(&self, group: GroupId, container: ContainerId) -> Result<Repair> {
        let parity = match self.open_parity(group) {
            Ok(parity) => parity,
            Err(Unusable::Failed(error)) => return Err(error),
            Err(Unusable::Damaged(why)) => {
                tracing::warn!(%container, %why, "the parity of a damaged container cannot be read");
                return Ok(Repair::Impossible);
            }
        };
        let Some(lost) = parity.header.members.iter().position(|member| member.container == container) else {
            return Ok(Repair::Impossible);
        };
        let files = parity.header.members.iter().map(|member| self.member_file(member)).collect::<Result<Vec<_>>>()?;
        if self.is_as_it_was(&parity.header.members[lost], &files[lost])? {
            // The copy in memory may have been the damaged one.
            self.retire([container].iter());
            return Ok(if self.is_sound(container, &files[lost])? { Repair::Whole } else { Repair::Impossible });
        }
        if self.rehearsal.is_on() {
            return self.rehearse_anew(container, &files[lost]);
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
        tracing::warn!(%container, "a damaged container was rebuilt from the parity of its group");
        Ok(Repair::Repaired)
    }

    /// Makes this opening see the file that a repair would write for the container.
    fn rehearse_anew(&self, container: ContainerId, there: &MemberFile) -> Result<Repair> {
        let Some(made) = self.stand_in(container)? else { return Ok(Repair::Impossible) };
        if !self.is_the_same(container, there, made.clone())? {
            return Ok(Repair::Impossible);
        }
        self.rehearse_file(container, &made);
        Ok(Repair::Repaired)
    }

    /// Returns the file of a member, or the rehearsed repair of it.
    fn member_file(&self, member: &Member) -> Result<MemberFile> {
        match self.rehearsed(member.container) {
            Some(file) => Ok(Some(file)),
            None => member_file(&*self.ground, &self.directory, member),
        }
    }

    /// Returns whether a file has exactly the blocks that a member had.
    fn is_as_it_was(&self, member: &Member, file: &MemberFile) -> Result<bool> {
        let Some(file) = file else { return Ok(false) };
        if file.len()? != member.length_bytes {
            return Ok(false);
        }
        let mut block = vec![0; BLOCK_BYTES];
        for number in 0..blocks(member.length_bytes) {
            if !read_block(member, file, number, &mut block)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the file of member `lost` as it was. Returns `false` if that is impossible.
    fn write_anew(&self, parity: &Parity, lost: usize, files: &[MemberFile], temporary: &str) -> Result<bool> {
        let member = &parity.header.members[lost];
        let output = self.create_beside(temporary)?;
        let (mut own, mut sum) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
        for number in 0..blocks(member.length_bytes) {
            let length = block_length(member.length_bytes, number);
            let is_own = match &files[lost] {
                Some(file) => read_block(member, file, number, &mut own)?,
                None => false,
            };
            if !is_own {
                if !parity.lost_block(lost, number, &|other| Ok(files[other].clone()), &mut sum)? {
                    return Ok(false);
                }
                own[..length].copy_from_slice(&sum[..length]);
            }
            output.write_at((number * BLOCK_BYTES) as u64, &own[..length]).map_err(StorageError::cannot_write)?;
        }
        output.sync().map_err(StorageError::cannot_write)?;
        self.is_the_same(member.container, &files[lost], output)
    }

    /// Returns whether the rebuilt file is a sound container, and the same one as the file that is there.
    fn is_the_same(&self, container: ContainerId, there: &MemberFile, made: Arc<dyn File>) -> Result<bool> {
        let made = Some(made);
        if !self.is_sound(container, &made)? {
            return Ok(false);
        }
        let header = |file: &MemberFile| Header::decode(&part(file, 0, HEADER_BYTES)?).ok();
        let footer = |file: &MemberFile| {
            let start = file.as_ref()?.len().ok()?.checked_sub(FOOTER_BYTES as u64)?;
            Footer::decode(&part(file, start, FOOTER_BYTES)?).ok()
        };
        // A file of another origin is never replaced. If its header does not say what it is, the footer may.
        Ok(match header(there) {
            Some(found) => Some(found) == header(&made),
            None => footer(there).is_none_or(|found| Some(found) == footer(&made)),
        })
    }

    /// Returns whether a file is a container without damage.
    fn is_sound(&self, container: ContainerId, file: &MemberFile) -> Result<bool> {
        let Some(file) = file else { return Ok(false) };
        let mut damage = Vec::new();
        match self.verify_bytes(container, None, &Window::of(file.clone()), &mut damage) {
            Ok(()) => Ok(damage.is_empty()),
            Err(StorageError::Damaged { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes parity of the staying members and puts it in its place, durably, before the files of the others go.
    /// Without space for that, it repairs the staying members instead. If one of them cannot be repaired, that is the
    /// error, and the files wait. The caller [holds files in place](crate::containers::merging::Merging::hold_files).
    pub(crate) fn shrink_or_verify(&self, group: GroupId, gone: &BTreeSet<ContainerId>) -> Result<()> {
        let full = match self.shrink(group, gone) {
            Ok(true) => return Ok(()),
            Ok(false) => None,
            Err(error) if error.is_full() => Some(error),
            Err(error) => return Err(error),
        };
        for member in self.with_groups(group.folder(), |groups| Ok(groups.members_counting_on(group)))? {
            if !gone.contains(&member) && self.make_anew(group, member)? == Repair::Impossible {
                tracing::warn!(container = %member, "a container cannot be read, and parity cannot rebuild it");
                if let Some(full) = full {
                    return Err(full);
                }
            }
        }
        Ok(())
    }

    /// Returns `false` if the parity's header cannot be read: such parity is of no use.
    fn shrink(&self, group: GroupId, gone: &BTreeSet<ContainerId>) -> Result<bool> {
        let parity = match self.open_parity(group) {
            Ok(parity) => parity,
            Err(Unusable::Failed(error)) => return Err(error),
            Err(Unusable::Damaged(_)) => return Ok(false),
        };
        // Members that count on another group keep that one, which may be better.
        let counting = self.with_groups(group.folder(), |groups| Ok(groups.members_counting_on(group)))?;
        let staying: BTreeSet<ContainerId> = counting.into_iter().filter(|member| !gone.contains(member)).collect();
        let new = self.with_groups(group.folder(), |groups| groups.next_group())?;
        let folder = self.make_parity_folder(new)?;
        let temporary = new_parity_path(&self.directory, new);
        let written = self.write_shrunk(&parity, new, &staying, &temporary);
        let placed = written.and_then(|(members, is_damaged)| {
            self.ground.rename(&temporary, &parity_path(&self.directory, new, &members)).map_err(StorageError::cannot_write)?;
            self.put_in_place(new, members, &folder)?;
            if is_damaged {
                // Its sound members get better parity.
                self.note_groups(new.folder(), |groups| groups.set_outdated(new))?;
            }
            Ok(true)
        });
        if !matches!(placed, Ok(true)) {
            let _ = self.ground.remove(&temporary);
        }
        placed
    }

    /// Writes the parity file of group `new`, with the members of an older group that are `staying`. Returns their
    /// numbers, and whether a place is damaged.
    fn write_shrunk(&self, parity: &Parity, new: GroupId, staying: &BTreeSet<ContainerId>, temporary: &str) -> Result<(Vec<u32>, bool)> {
        let all = &parity.header.members;
        let files = all.iter().map(|member| member_file(&*self.ground, &self.directory, member)).collect::<Result<Vec<_>>>()?;
        let stays = |member: &Member| staying.contains(&member.container);
        let members: Vec<Member> = all.iter().filter(|member| stays(member)).cloned().collect();
        let output = self.create_beside(temporary)?;
        let offset = data_offset(members.iter().map(|member| member.length_bytes));
        let most = members.iter().map(|member| blocks(member.length_bytes)).max().unwrap_or(0);
        let mut checksums = Vec::with_capacity(most);
        let mut is_damaged = false;
        let mut sum = vec![0; BLOCK_BYTES];
        for number in 0..most {
            // The departing members are taken out of the sum. If that fails, the sum is made of the staying ones.
            let going = all.iter().zip(&files).filter(|(member, _)| !stays(member));
            let mut is_right = parity.block(number, &mut sum)? && add_blocks(going, number, &mut sum)?;
            if !is_right {
                sum.fill(0);
                is_right = add_blocks(all.iter().zip(&files).filter(|(member, _)| stays(member)), number, &mut sum)?;
            }
            if is_right {
                checksums.push(checksum(&sum));
            } else {
                // Nothing can be rebuilt at this place, neither now nor before. The other places are kept, and this one
                // gets a checksum that is never right.
                is_damaged = true;
                sum.fill(0);
                checksums.push(!checksum(&sum));
            }
            output.write_at(offset + (number * BLOCK_BYTES) as u64, &sum).map_err(StorageError::cannot_write)?;
        }
        let numbers = members.iter().map(|member| member.container.number()).collect();
        let header = ParityHeader { group: new, store: self.options.store, members, checksums };
        output.write_at(0, &header.encode()).map_err(StorageError::cannot_write)?;
        output.sync().map_err(StorageError::cannot_write)?;
        Ok((numbers, is_damaged))
    }
}

impl Parity {
    /// Reads a block of the parity. Returns whether it is right.
    pub(crate) fn block(&self, number: usize, out: &mut [u8]) -> Result<bool> {
        let offset = self.header.data_offset() + (number * BLOCK_BYTES) as u64;
        is_right(&self.file, offset, out, self.header.checksums[number])
    }

    /// Rebuilds a block of a member from the parity and the other members, by their places in the header. It goes into
    /// the beginning of `out`, which has room for a whole block. Returns whether that worked.
    pub(crate) fn lost_block(
        &self,
        lost: usize,
        number: usize,
        file_of: &dyn Fn(usize) -> Result<MemberFile>,
        out: &mut [u8],
    ) -> Result<bool> {
        let members = &self.header.members;
        if !self.block(number, out)? {
            return Ok(false);
        }
        for (at, other) in members.iter().enumerate().filter(|(at, other)| *at != lost && number < blocks(other.length_bytes)) {
            if !add_blocks(std::iter::once((other, &file_of(at)?)), number, out)? {
                return Ok(false);
            }
        }
        let length = block_length(members[lost].length_bytes, number);
        Ok(checksum(&out[..length]) == members[lost].checksums[number])
    }
}

/// Opens the file of a member; `None` if there is none that can be read.
pub(crate) fn member_file(ground: &dyn Ground, directory: &str, member: &Member) -> Result<MemberFile> {
    match ground.open_past_cache(&file::path(directory, member.container)) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.is_lasting() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads bytes. Returns whether they have this checksum. An error is not about the stored data.
fn is_right(file: &Arc<dyn File>, offset: u64, out: &mut [u8], expected: u64) -> Result<bool> {
    match file.read_at(offset, out) {
        Ok(()) => Ok(checksum(out) == expected),
        Err(error) if error.is_lasting() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Reads a block of a member into the beginning of `out`. Returns whether it is right.
pub(crate) fn read_block(member: &Member, file: &Arc<dyn File>, number: usize, out: &mut [u8]) -> Result<bool> {
    let block = &mut out[..block_length(member.length_bytes, number)];
    is_right(file, (number * BLOCK_BYTES) as u64, block, member.checksums[number])
}

/// Adds a block of several members, as far as they have it. Returns `false` if one of them is not right.
pub(crate) fn add_blocks<'a>(members: impl Iterator<Item = (&'a Member, &'a MemberFile)>, number: usize, sum: &mut [u8]) -> Result<bool> {
    let mut block = vec![0; BLOCK_BYTES];
    for (member, file) in members.filter(|(member, _)| number < blocks(member.length_bytes)) {
        let Some(file) = file else { return Ok(false) };
        if !read_block(member, file, number, &mut block)? {
            return Ok(false);
        }
        add(sum, &block[..block_length(member.length_bytes, number)]);
    }
    Ok(true)
}

/// Returns some bytes of a file, if they can be read.
fn part(file: &MemberFile, offset: u64, length: usize) -> Option<Vec<u8>> {
    file.as_ref()?.range(offset, length).ok().map(std::borrow::Cow::into_owned)
}
