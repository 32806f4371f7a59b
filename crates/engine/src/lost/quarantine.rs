//! Quarantine: what happens to a stored chunk that cannot be read (`docs/decisions/0020-repair-and-quarantine.md`).
//!
//! The chunk is *lost*: its entry in the chunk index keeps its count but has no address any more, its slot is dead, and
//! an object (key `q`) remembers it. All three change in one batch. Nothing is destroyed: the bytes stay where they
//! are, and merging leaves their container alone while the object exists. So the next write of the same data, whatever
//! its path, finds no address and stores the chunk again. The batch with the new copy removes the object, and recipes
//! that name the old address find the new copy through the index.
//!
//! # Where each copy counts for itself
//! Without a chunk index nobody finds the new copy by the chunk's name. So there is an object for each copy (the key
//! ends with its address). When the chunk is stored again, the batch with the new copy replaces the object by a
//! redirect ([`crate::lookup::redirects`]).
//!
//! # The references of a lost metadata chunk
//! Nobody can read them any more. So they stay counted, and no chunk goes that it may need:
//! [`Quarantined::is_counted`]. When the chunk is stored again, its references are not counted a second time.
//!
//! After a rebuild of the counts ([`Rebuild`](crate::Rebuild)) they are not counted. Then its children may look unused,
//! so no chunk is removed until the lost one is stored again or nobody needs it ([`Engine::why_nothing_is_removed`]). A
//! rebuild cannot write objects. It leaves a file, and the next opening for writing notes what the rebuild did
//! ([`crate::liveness::recount`]): that references of chunks in quarantine are not counted, and which chunks are
//! counted and nowhere.

use crate::lookup::redirects::RedirectChanges;
use crate::lost::Settled;
use crate::{Change, Engine, EngineError, Piece, Recipe, Result, StoreProfile};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::{Reader, WireError, put_signed, put_varint};
use onefold_index::ObjectIndex;
use onefold_storage::{Address, ChunkKind, ContainerId, Prepared};
use parking_lot::RwLock;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// First byte of the keys, and their partition.
const PREFIX: u8 = b'q';
const VERSION: u8 = 1;
/// Version of the objects of single copies.
const OF_COPY: u8 = 2;
/// Encodes an unknown kind.
const UNKNOWN_KIND: u8 = 255;
/// State of the references of a metadata chunk. 0: they are not counted.
const COUNTED: u8 = 1;
const UNREACHABLE: u8 = 2;

/// A chunk in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// Its name.
    pub fingerprint: Fingerprint,
    /// Where it was; 0: unknown.
    pub address: Address,
    /// Its kind, if known.
    pub kind: Option<ChunkKind>,
    /// Its length, bytes; 0: unknown.
    pub length_bytes: u32,
    /// Whether its references (if it is a metadata chunk) are still counted.
    pub is_counted: bool,
    /// Nothing reaches it, so nobody needs what it refers to: a removal need not wait for it.
    pub is_unreachable: bool,
    /// When it was found to be lost, nanoseconds since 1970.
    pub since_ns: i64,
}

impl Quarantined {
    /// Returns whether it may refer to other chunks.
    pub fn may_refer(&self) -> bool {
        self.kind != Some(ChunkKind::Data)
    }

    fn encode(&self, is_of_copy: bool) -> Vec<u8> {
        let kind = self.kind.map_or(UNKNOWN_KIND, |kind| kind as u8);
        let references = if self.is_counted { COUNTED } else { u8::from(self.is_unreachable) * UNREACHABLE };
        let mut out = vec![if is_of_copy { OF_COPY } else { VERSION }, references, kind];
        out.extend_from_slice(&self.address.bits().to_le_bytes());
        put_varint(&mut out, u64::from(self.length_bytes));
        put_signed(&mut out, self.since_ns);
        out
    }

    /// Reads the object of a chunk.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Quarantined> {
        let read = || {
            let out_of_range = |what, value: u8| WireError::OutOfRange { what, value: u64::from(value), offset_bytes: 0 };
            let mut reader = Reader::new(value);
            let (version, references, kind) = (reader.u8()?, reader.u8()?, reader.u8()?);
            if version != VERSION && version != OF_COPY {
                return Err(out_of_range("version of a chunk in quarantine", version));
            }
            let known = ChunkKind::from_number(kind);
            let digest =
                key.get(1..key.len().saturating_sub(if version == OF_COPY { size_of::<Address>() } else { 0 })).unwrap_or_default();
            if !(1..=size_of::<Fingerprint>()).contains(&digest.len()) {
                let what = "length of the key of a chunk in quarantine";
                return Err(WireError::OutOfRange { what, value: key.len() as u64, offset_bytes: 0 });
            }
            if references > UNREACHABLE || (known.is_none() && kind != UNKNOWN_KIND) {
                return Err(out_of_range("kind of a chunk in quarantine", kind));
            }
            let quarantined = Quarantined {
                fingerprint: Fingerprint::from_digest(digest),
                is_counted: references == COUNTED,
                is_unreachable: references == UNREACHABLE,
                kind: known,
                address: Address::from_bits(reader.u64()?),
                length_bytes: reader.varint_to("length of a chunk", u64::from(u32::MAX))? as u32,
                since_ns: reader.signed()?,
            };
            if version == OF_COPY && key.get(1 + digest.len()..) != Some(&quarantined.address.bits().to_be_bytes()) {
                let what = "address of a copy in quarantine";
                return Err(WireError::OutOfRange { what, value: quarantined.address.bits(), offset_bytes: 3 });
            }
            reader.end().map(|()| quarantined)
        };
        read().map_err(|source| EngineError::Wire { what: "chunk in quarantine".into(), source })
    }
}

/// Most chunk names kept in memory: writers ask for each chunk that they store.
const NAMES: usize = 1 << 16;
/// Origins that are looked at under the commit lock together.
const ORIGINS_TOGETHER: usize = 256;
/// Objects read at a time.
const PAGE: usize = 1024;

/// The names of all chunks that may be in quarantine, and some that left it.
#[derive(Debug, Default)]
struct Names {
    known: HashSet<Fingerprint>,
    /// There are more: only the object index knows them.
    has_more: bool,
}

impl Names {
    fn insert(&mut self, fingerprint: Fingerprint) {
        if self.known.len() < NAMES {
            self.known.insert(fingerprint);
        } else {
            self.has_more |= !self.known.contains(&fingerprint);
        }
    }

    fn may_have(&self, fingerprint: &Fingerprint) -> bool {
        self.has_more || self.known.contains(fingerprint)
    }
}

impl FromIterator<Fingerprint> for Names {
    fn from_iter<T: IntoIterator<Item = Fingerprint>>(fingerprints: T) -> Names {
        let mut names = Names::default();
        fingerprints.into_iter().for_each(|fingerprint| names.insert(fingerprint));
        names
    }
}

/// What it means that some chunks are stored, which may have been lost.
#[derive(Debug, Default)]
pub(crate) struct StoredAgain {
    /// These leave the quarantine.
    pub(crate) changes: Vec<Change>,
    /// Where each copy counts for itself: where they are now.
    pub(crate) redirects: RedirectChanges,
    /// The chunks whose references are counted already.
    pub(crate) counted: HashSet<Fingerprint>,
    /// Whether some may have been somewhere else.
    pub(crate) may_have_moved: bool,
}

/// The objects of the chunks in quarantine.
#[derive(Debug)]
pub(crate) struct Quarantine {
    objects: Arc<ObjectIndex>,
    digest_bytes: usize,
    /// Whether there may be any. If not, nobody asks.
    is_used: AtomicBool,
    names: RwLock<Names>,
    /// Counts were rebuilt, and the objects do not say so yet.
    is_recounted: AtomicBool,
    /// Of the store: whether it counts references, and whether each copy counts for itself.
    of: StoreProfile,
}

impl Quarantine {
    pub(crate) fn open(objects: Arc<ObjectIndex>, digest_bytes: usize, is_recounted: bool, of: StoreProfile) -> Result<Quarantine> {
        let mut names = Names::default();
        let mut from = vec![PREFIX];
        while !names.has_more {
            let page = objects.range(objects.own_partition(), &from, &[PREFIX + 1], PAGE)?;
            // A key of another length is no name: nobody asks for it.
            let of_copy = if of.is_exact() { 0 } else { size_of::<Address>() };
            let keys = page.iter().filter(|(key, _)| key.len() == 1 + digest_bytes + of_copy);
            keys.for_each(|(key, _)| names.insert(Fingerprint::from_digest(&key[1..1 + digest_bytes])));
            match page.last() {
                Some((last, _)) if page.len() == PAGE => from = [last, &[0][..]].concat(),
                _ => break,
            }
        }
        let (is_used, is_recounted) = (AtomicBool::new(!names.known.is_empty()), AtomicBool::new(is_recounted));
        Ok(Quarantine { objects, digest_bytes, is_used, names: RwLock::new(names), is_recounted, of })
    }

    /// Returns whether counts were rebuilt and that is not noted yet.
    pub(crate) fn is_recounted(&self) -> bool {
        self.is_recounted.load(Ordering::SeqCst)
    }

    /// Records that the rebuild is noted. If `is_used` is false, nothing is in quarantine.
    pub(crate) fn recount_noted(&self, is_used: bool) {
        self.is_used.store(is_used, Ordering::SeqCst);
        self.is_recounted.store(false, Ordering::SeqCst);
    }

    fn is_used(&self) -> bool {
        self.is_used.load(Ordering::SeqCst)
    }

    /// Announces that chunks are about to be put in quarantine.
    pub(crate) fn set_used(&self) {
        self.is_used.store(true, Ordering::SeqCst);
    }

    /// Returns the key of a chunk, or of its copy at an address where each copy counts for itself.
    fn key(&self, fingerprint: &Fingerprint, address: Address) -> Vec<u8> {
        let mut key = vec![PREFIX];
        key.extend_from_slice(fingerprint.digest(self.digest_bytes));
        if !self.of.is_exact() {
            key.extend_from_slice(&address.bits().to_be_bytes());
        }
        key
    }

    fn decode(&self, key: &[u8], value: &[u8]) -> Result<Quarantined> {
        let read = Quarantined::decode(key, value)?;
        // Marks need no help of a lost chunk to know what hangs on it: they keep what they had.
        Ok(Quarantined { is_counted: !self.of.counts() || (read.is_counted && !self.is_recounted()), ..read })
    }

    /// Returns a chunk, if it is in quarantine. Where each copy counts for itself: the copy at this address.
    pub(crate) fn get(&self, fingerprint: &Fingerprint, address: Address) -> Result<Option<Quarantined>> {
        if !self.is_used() || !self.names.read().may_have(fingerprint) {
            return Ok(None);
        }
        let key = self.key(fingerprint, address);
        self.objects.get(self.objects.own_partition(), &key)?.map(|value| self.decode(&key, &value)).transpose()
    }

    /// Returns all copies of a chunk that are in quarantine.
    fn copies(&self, fingerprint: &Fingerprint) -> Result<Vec<Quarantined>> {
        if !self.is_used() || !self.names.read().may_have(fingerprint) {
            return Ok(Vec::new());
        }
        if self.of.is_exact() {
            return Ok(self.get(fingerprint, Address::from_bits(0))?.into_iter().collect());
        }
        let of_name = self.key(fingerprint, Address::from_bits(0));
        let (mut from, mut found) = (of_name[..1 + self.digest_bytes].to_vec(), Vec::new());
        let end = [&from[..], &[u8::MAX; size_of::<Address>() + 1]].concat();
        loop {
            let page = self.objects.range(self.objects.own_partition(), &from, &end, PAGE)?;
            for (key, value) in &page {
                found.push(self.decode(key, value)?);
            }
            match page.last() {
                Some((last, _)) if page.len() == PAGE => from = [last, &[0][..]].concat(),
                _ => return Ok(found),
            }
        }
    }

    /// Returns the change that puts a chunk in quarantine, or changes its entry.
    pub(crate) fn put(&self, chunk: &Quarantined) -> Change {
        // Before the object exists: an extra name only costs a look-up.
        self.names.write().insert(chunk.fingerprint);
        (self.objects.own_partition(), self.key(&chunk.fingerprint, chunk.address), Some(chunk.encode(!self.of.is_exact())))
    }

    /// Returns the change that takes a chunk out.
    pub(crate) fn take(&self, fingerprint: &Fingerprint, address: Address) -> Change {
        (self.objects.own_partition(), self.key(fingerprint, address), None)
    }

    /// Returns what a commit which stores these chunks means for the quarantine.
    pub(crate) fn stored(&self, prepared: &Prepared) -> StoredAgain {
        let mut again = StoredAgain::default();
        if self.is_used() {
            for (fingerprint, address, _) in &prepared.chunks {
                match self.copies(fingerprint) {
                    Ok(copies) => {
                        for lost in copies {
                            again.changes.push(self.take(fingerprint, lost.address));
                            if !self.of.is_exact() {
                                again.redirects.set(lost.address, Some(*address));
                            }
                            again.counted.extend(lost.is_counted.then_some(*fingerprint));
                            again.may_have_moved = true;
                        }
                    }
                    // No reason to refuse writes: at worst references are counted twice, which `check` finds.
                    Err(error) => {
                        tracing::warn!(%fingerprint, %error, "cannot look up whether a chunk was lost");
                        again.may_have_moved = true;
                    }
                }
            }
        }
        again
    }
}

impl Engine {
    /// Returns a chunk, if it is in quarantine. Where each copy counts for itself: what a reference to this address
    /// leads to.
    pub fn quarantined(&self, fingerprint: &Fingerprint, address: Address) -> Result<Option<Quarantined>> {
        if !self.quarantine.is_used() {
            return Ok(None);
        }
        self.quarantine.get(fingerprint, self.redirects.follow(address, &mut |_| {})?)
    }

    /// Returns which copy of a chunk a reference to this address leads to: the address, or where the copy is now. 0:
    /// whichever the chunk index names.
    pub fn copy_of(&self, address: Address) -> Address {
        if self.descriptor.profile.is_exact() {
            return Address::from_bits(0);
        }
        let mut copy = address;
        if let Err(error) = self.redirects.follow(address, &mut |next| copy = next) {
            tracing::warn!(%error, "cannot look up where a copy is now");
        }
        copy
    }

    /// Passes the places besides these addresses that marks of these chunks need: where the chunk index has them, or
    /// where they were if they are in quarantine. Where each copy counts for itself: where it is now.
    pub(crate) fn further_places(&self, chunks: &[(Fingerprint, Address)], visit: &mut dyn FnMut(Address)) -> Result<()> {
        let names: Vec<Fingerprint> = chunks.iter().map(|(chunk, _)| *chunk).collect();
        let Some(places) = self.places(&names)? else {
            if self.redirects.is_used() {
                for (_, address) in chunks {
                    self.redirects.follow(*address, visit)?;
                }
            }
            return Ok(());
        };
        for (place, (chunk, address)) in places.into_iter().zip(chunks) {
            match place {
                Some(place) => visit(place),
                None => self
                    .quarantine
                    .get(chunk, *address)?
                    .map(|lost| lost.address)
                    .filter(|at| at.bits() != 0)
                    .into_iter()
                    .for_each(&mut *visit),
            }
        }
        Ok(())
    }

    /// Passes every chunk in quarantine to `visit`. Some of them may be stored again or unneeded by now.
    pub fn for_each_quarantined(&self, visit: &mut dyn FnMut(Quarantined)) -> Result<()> {
        self.for_each_quarantined_batch(PAGE, &mut |batch| {
            batch.iter().for_each(|chunk| visit(*chunk));
            Ok(())
        })
    }

    /// Does the same in batches of `limit`, in the order of their names. `visit` may change what is in quarantine.
    /// Unreadable objects are skipped, and are an error at the end.
    pub fn for_each_quarantined_batch<E: From<EngineError>>(
        &self,
        limit: usize,
        visit: &mut dyn FnMut(&[Quarantined]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let (mut from, mut damaged) = (vec![PREFIX], None);
        while self.quarantine.is_used() {
            let page = self.range(self.objects.own_partition(), &from, &[PREFIX + 1], limit)?;
            let Some((last, _)) = page.last() else { break };
            from = [last, &[0][..]].concat();
            let read =
                page.iter().filter_map(|(key, value)| self.quarantine.decode(key, value).map_err(|error| damaged = Some(error)).ok());
            visit(&read.collect::<Vec<_>>())?;
            if page.len() < limit {
                break;
            }
        }
        damaged.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Returns how many chunks in quarantine are needed, and their bytes.
    pub(crate) fn needed_quarantined(&self) -> Result<(u64, u64)> {
        let mut sum = (0, 0);
        self.for_each_quarantined_batch(PAGE, &mut |batch| {
            let needed = self.needed_of(batch)?;
            sum = needed.iter().fold(sum, |(chunks, bytes), chunk| (chunks + 1, bytes + u64::from(chunk.length_bytes)));
            Ok::<_, EngineError>(())
        })?;
        Ok(sum)
    }

    /// Returns the chunks among these that are nowhere and counted, or may be needed in a store without counts.
    fn needed_of(&self, chunks: &[Quarantined]) -> Result<Vec<Quarantined>> {
        let names: Vec<Fingerprint> = chunks.iter().map(|chunk| chunk.fingerprint).collect();
        let Some(index) = self.lookup.index() else { return Ok(chunks.to_vec()) };
        let mut entries = Vec::with_capacity(names.len());
        index.lookup(&names, &mut entries)?;
        let counts = self.descriptor.profile.counts();
        let is_needed = |entry: &Option<onefold_index::IndexEntry>| match entry {
            Some(entry) => entry.address == 0 && (entry.count > 0 || !counts),
            // Without counts, only marks could tell.
            None => !counts,
        };
        Ok(chunks.iter().zip(&entries).filter(|(_, entry)| is_needed(entry)).map(|(chunk, _)| *chunk).collect())
    }

    /// Returns whether any chunk is in quarantine.
    pub fn has_quarantined(&self) -> bool {
        self.quarantine.is_used()
    }

    /// Returns whether a recipe cannot be read completely because of chunks in quarantine.
    pub fn needs_quarantined(&self, recipe: &Recipe) -> Result<bool> {
        if !self.quarantine.is_used() {
            return Ok(false);
        }
        let (mut is_needed, mut failed) = (false, None);
        let expanded = self.expand(recipe, &mut |piece| {
            let Piece::Chunk { fingerprint, address, .. } = piece else { return true };
            match self.quarantined(fingerprint, *address) {
                Ok(Some(_)) => is_needed = true,
                Err(error) => failed = Some(error),
                Ok(None) => {}
            }
            !is_needed && failed.is_none()
        });
        match (failed, expanded) {
            (Some(error), _) => Err(error),
            (None, Err(error)) if error.is_damage() => Ok(true),
            (None, Err(error)) => Err(error),
            (None, Ok(())) => Ok(is_needed),
        }
    }

    /// Returns the container files that have chunks in quarantine. They are not merged, so that nothing is destroyed
    /// that may become readable again.
    pub fn quarantined_containers(&self) -> Result<HashSet<ContainerId>> {
        let Some(containers) = &self.containers else { return Ok(HashSet::new()) };
        let mut origins = HashSet::new();
        self.for_each_quarantined(&mut |chunk| {
            if chunk.address.bits() != 0 {
                origins.insert(chunk.address.origin());
            }
        })?;
        Ok(origins.into_iter().flat_map(|origin| containers.possible_containers(origin)).collect())
    }

    /// Releases chunks in quarantine that are stored again or that nobody needs. For metadata chunks whose references
    /// are counted, it keeps that fact.
    ///
    /// Where each copy counts for itself, it also removes redirects from addresses that nobody has. Somebody in flight
    /// may have got the address of a copy before it was lost or found damaged, and not have submitted it yet. Nobody
    /// gets it since. So nothing is released while somebody is in flight; a later call does it. (An address that is
    /// redirected because two copies were joined may still be got while its copy is alive. Then it needs no redirect.)
    pub fn settle_quarantine(&self) -> Result<()> {
        if !self.quarantine.is_used() && !self.redirects.is_used() {
            return Ok(());
        }
        if !self.descriptor.profile.is_exact() {
            if !self.reclaiming.is_nobody_in_flight() {
                self.redirects.leave_unsettled();
                return Ok(());
            }
            // What they submitted counts as added.
            self.flush_before_repair()?;
        }
        let _one = self.reclaiming.alone();
        self.settle_redirects().inspect_err(|_| self.redirects.leave_unsettled())?;
        let counts = self.descriptor.profile.counts();
        let mut left = Names::default();
        self.for_each_quarantined_batch(self.lost_in_a_batch(), &mut |batch| {
            let mut kept: Vec<Fingerprint> = Vec::new();
            let places: Vec<Address> = batch.iter().map(|chunk| chunk.address).collect();
            let unmarked = self.liveness.nobody_needs(&places);
            self.commit_settled(&mut || {
                let mut entries = vec![None; batch.len()];
                if let Some(index) = self.lookup.index() {
                    entries.clear();
                    index.lookup(&batch.iter().map(|chunk| chunk.fingerprint).collect::<Vec<_>>(), &mut entries)?;
                }
                let unneeded = self.still_nobody_needs(&places, &unmarked);
                let (settled, others): (Vec<_>, Vec<_>) =
                    batch.iter().zip(&entries).zip(&unneeded).partition(|((chunk, entry), is_unneeded)| match entry {
                        Some(entry) => entry.address != 0,
                        None if counts => !(chunk.may_refer() && chunk.is_counted),
                        None => **is_unneeded,
                    });
                let (settled, others) = (settled.into_iter().map(|(one, _)| one), others.into_iter().map(|(one, _)| one));
                kept = others.map(|(chunk, _)| chunk.fingerprint).collect();
                let changes = settled.map(|(chunk, _)| self.quarantine.take(&chunk.fingerprint, chunk.address)).collect();
                Ok(Settled { changes, ..Settled::default() })
            })?;
            kept.into_iter().for_each(|chunk| left.insert(chunk));
            Ok::<_, EngineError>(())
        })?;
        let is_empty = left.known.is_empty();
        // Putting a chunk in quarantine takes the same lock.
        *self.quarantine.names.write() = left;
        if is_empty && !self.quarantine.is_recounted() {
            self.quarantine.is_used.store(false, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Returns which of these places that have no mark are still in nobody's hands. The caller holds the commit lock.
    fn still_nobody_needs(&self, places: &[Address], unmarked: &[bool]) -> Vec<bool> {
        if self.descriptor.profile.counts() || !unmarked.contains(&true) {
            return unmarked.to_vec();
        }
        // Whoever came since may have been given an address a moment before it was forgotten.
        let is_exact = self.descriptor.profile.is_exact();
        if !is_exact && !self.reclaiming.is_nobody_in_flight() {
            return vec![false; places.len()];
        }
        let added = self.liveness.may_be_added(self, places);
        unmarked.iter().zip(added).map(|(is_unmarked, is_added)| *is_unmarked && !is_added).collect()
    }

    /// Removes redirects from addresses that no group has marked, and shortens chains. Looks only where marks may have
    /// gone, unless a settling before was skipped. After copies were joined, that is everywhere.
    fn settle_redirects(&self) -> Result<()> {
        let is_all = self.redirects.begin_settling();
        if !self.liveness.is_surveyed() {
            self.redirects.leave_unsettled();
        }
        let (mut seen, mut after, mut damaged) = (Vec::new(), None, None);
        while let Some(page) = self.redirects.page(after)? {
            after = page.last().map(|(origin, _)| *origin);
            let mut known: Vec<(Address, Address)> = Vec::new();
            for (origin, of_origin) in page.into_iter().filter(|(origin, _)| is_all || self.liveness.may_have_lost(*origin)) {
                seen.push(origin);
                match of_origin {
                    Ok(of_origin) => known.extend(of_origin.into_iter().map(|(slot, is_at)| (origin.address(slot), is_at))),
                    Err(error) => damaged = Some(error),
                }
            }
            for batch in known.chunks(self.lost_in_a_batch()) {
                let places: Vec<Address> = batch.iter().map(|(copy, _)| *copy).collect();
                let unmarked = self.liveness.nobody_needs(&places);
                self.commit_settled(&mut || {
                    let mut settled = Settled::default();
                    let unneeded = self.still_nobody_needs(&places, &unmarked);
                    if unneeded != unmarked {
                        self.redirects.leave_unsettled();
                    }
                    for ((copy, next), is_unneeded) in batch.iter().zip(&unneeded) {
                        let end = if *is_unneeded { None } else { Some(self.redirects.follow(*copy, &mut |_| {})?) };
                        if end != Some(*next) {
                            settled.redirects.set(*copy, end);
                        }
                    }
                    Ok(settled)
                })?;
            }
        }
        // Whoever makes a redirect holds the commit lock, from before its origin is noted until it can be read.
        for origins in seen.chunks(ORIGINS_TOGETHER) {
            let _commits = self.commits.alone();
            self.redirects.forget_unused(origins)?;
        }
        damaged.map_or(Ok(()), Err)
    }

    /// Passes lost metadata chunks to `visit` that are counted but whose references are not, except those found to be
    /// unreachable.
    pub fn for_each_lost_in_doubt(&self, visit: &mut dyn FnMut(&Quarantined)) -> Result<()> {
        self.for_each_quarantined_batch(PAGE, &mut |batch| {
            let in_doubt = |chunk: &&Quarantined| chunk.may_refer() && !chunk.is_counted && !chunk.is_unreachable;
            let in_doubt: Vec<Quarantined> = batch.iter().filter(in_doubt).copied().collect();
            self.needed_of(&in_doubt)?.iter().for_each(&mut *visit);
            Ok(())
        })
    }

    /// Returns why no chunk may be removed, if so. The reason is a needed lost metadata chunk whose references are not
    /// counted: chunks that nothing else needs look unused.
    pub fn why_nothing_is_removed(&self) -> Result<Option<String>> {
        if self.quarantine.is_recounted() {
            return Ok(Some("unused chunks are kept until the store opens with enough disk space to note the lost chunks".into()));
        }
        let mut needed = 0u64;
        match self.for_each_lost_in_doubt(&mut |_| needed += 1) {
            Ok(()) => {}
            Err(EngineError::Index(error)) => {
                return Ok(Some(format!("unused chunks are kept because the list of lost chunks cannot be read: {error}")));
            }
            Err(error) => return Err(error),
        }
        Ok((needed > 0).then(|| format!("unused chunks are kept: some may belong to lost chunks that are still needed ({needed})")))
    }

    /// Notes that no object reaches any of the chunks in quarantine, as the caller found. Durable on return. Anything
    /// that refers to them is unused itself.
    pub fn note_unreachable(&self) -> Result<()> {
        self.note(&mut |chunk| {
            let in_doubt = chunk.may_refer() && !chunk.is_counted && !chunk.is_unreachable;
            in_doubt.then_some(Quarantined { is_unreachable: true, ..*chunk })
        })
    }

    /// Notes the kinds of chunks in quarantine that were unknown and that `kind` knows. Durable on return. Returns how
    /// many these were.
    pub fn note_kinds(&self, kind: &dyn Fn(&Quarantined) -> Option<ChunkKind>) -> Result<u64> {
        let mut count = 0;
        self.note(&mut |chunk| {
            let found = kind(chunk).filter(|_| chunk.kind.is_none());
            count += u64::from(found.is_some());
            found.map(|kind| Quarantined { kind: Some(kind), ..*chunk })
        })?;
        Ok(count)
    }

    /// Writes the result of `change` for each chunk in quarantine.
    fn note(&self, change: &mut dyn FnMut(&Quarantined) -> Option<Quarantined>) -> Result<()> {
        let _one = self.reclaiming.alone();
        self.for_each_quarantined_batch(self.lost_in_a_batch(), &mut |batch| {
            let changed: Vec<Quarantined> = batch.iter().filter_map(&mut *change).collect();
            self.commit_settled(&mut || {
                let mut changes = Vec::with_capacity(changed.len());
                for chunk in &changed {
                    // It may have been stored again a moment ago.
                    let known = self.quarantine.get(&chunk.fingerprint, chunk.address)?;
                    changes.extend(known.map(|_| self.quarantine.put(chunk)));
                }
                Ok(Settled { changes, ..Settled::default() })
            })
        })
    }
}

pub(crate) fn now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_storage::ContainerId;

    #[test]
    fn beyond_the_bound_of_names_everything_may_be_in_quarantine() {
        let name = |number: u32| Fingerprint::from_digest(&number.to_le_bytes());
        let mut names: Names = (0..NAMES as u32).map(name).collect();
        names.insert(name(7));
        assert!(names.may_have(&name(7)) && !names.may_have(&name(NAMES as u32)));
        names.insert(name(NAMES as u32));
        assert!(names.may_have(&name(NAMES as u32)) && names.may_have(&name(u32::MAX)));
        assert_eq!(names.known.len(), NAMES);
    }

    #[test]
    fn chunks_in_quarantine_are_read_as_written_and_garbage_is_refused() {
        let fingerprint = Fingerprint::from_digest(&[9; 32]);
        let key = [&[PREFIX], fingerprint.digest(32)].concat();
        for kind in [Some(ChunkKind::Data), Some(ChunkKind::Recipe), Some(ChunkKind::Directory), None] {
            let address = Address::new(ContainerId::new(1, 7), 3);
            let chunk = Quarantined {
                fingerprint,
                address,
                kind,
                length_bytes: 4000,
                is_counted: kind.is_none(),
                is_unreachable: kind == Some(ChunkKind::Data),
                since_ns: 5,
            };
            let of_copy = [&key[..], &address.bits().to_be_bytes()].concat();
            for (key, value) in [(&key, chunk.encode(false)), (&of_copy, chunk.encode(true))] {
                assert_eq!(Quarantined::decode(key, &value).unwrap(), chunk);
                for length in 0..value.len() {
                    assert!(Quarantined::decode(key, &value[..length]).is_err());
                }
            }
            assert!(Quarantined::decode(&key, &chunk.encode(true)).is_err());
        }
    }
}
