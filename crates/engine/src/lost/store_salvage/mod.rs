//! Repairs the parts that an opening needs: descriptor, owner epoch, object index, operations log
//! (`docs/decisions/0021-salvage.md`).
//!
//! Every step checks whether its part is sound and then leaves it alone. So a run that was cut short is simply
//! repeated. Nothing damaged is destroyed: it is set aside. If a log is given up, the chunk index does not fit any
//! more, and the caller rebuilds it.

mod aside;
mod log;
mod meaning;
mod objects;
mod overlay;

use crate::lifecycle::copied;
use crate::lifecycle::descriptor::{DESCRIPTOR, DESCRIPTOR_COPY, Descriptor};
use crate::lifecycle::layout::{ARENA, INDEX, LEVELS, LOCK, LOG, OBJECTS, OWNER, arena_options, levels_options, read_epoch, write_epoch};
use crate::lifecycle::{recovery, state};
use crate::lost::rebuild;
use crate::read::snapshot::nobody_reads;
use crate::read::views::{OPENING_LIMIT, lock_views_within};
use crate::{Change, Engine, EngineError, Mode, Result, Settings};
use onefold_ground::{Access, Bucket, Ground, GroundError, Holder, read_file, replace_file};
use onefold_index::chunk::header;
use onefold_index::{ChunkIndex, ChunkIndexOptions, CountedIndex, IndexError, LinkedIndex, LinkedOptions, ObjectIndex, ObjectIndexOptions};
use onefold_oplog::{Ownership, Position, Remnants};
use onefold_storage::{ArenaStore, LevelsStore};
use std::sync::Arc;

pub(crate) use log::MARKER;
pub use meaning::Meaning;

/// Options of a salvage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SalvageOptions {
    /// Change nothing; only say what would be done.
    pub dry_run: bool,
    /// Make repairs even if they lose something.
    pub may_lose: bool,
}

/// What a salvage did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// Nothing was done, because something would be lost without permission. The other fields say what would be done.
    pub is_refused: bool,
    /// A sentence for each repair and each loss.
    pub sentences: Vec<String>,
    /// The chunk index must be rebuilt before the store opens.
    pub needs_index: bool,
    /// The sentences about losses.
    pub losses: Vec<String>,
    /// Objects written in lost parts of the log, as far as their bytes can be understood. Use them only to tell a
    /// person what may be lost.
    pub lost_objects: Vec<Change>,
}

/// Repairs the damaged parts that an opening needs. Nobody else may have the store open. A dry run changes nothing; its
/// sentences say what would be done. Errors: something cannot be repaired, or a device fails; it may be run again.
///
/// Whether anything would be lost is determined under the same lock as the repair, and a sound store is read once for
/// both.
pub fn salvage(
    ground: &Arc<dyn Ground>,
    settings: &Settings,
    options: SalvageOptions,
    meaning: &dyn Meaning,
    command: &str,
) -> Result<Salvaged> {
    if let Some(bucket) = ground.bucket() {
        return salvage_in_bucket(ground, bucket, settings, options.dry_run);
    }
    // If there is no store here, say so, and leave no lock file behind. The findings count only under the lock.
    look_at_descriptor(&**ground)?.0.check_settings(settings, &**ground)?;
    let holder = Holder::this_process(command);
    let _lock = ground.lock(LOCK, true, &holder)?;
    let _views = lock_views_within(&**ground, true, &holder, OPENING_LIMIT)?;
    nobody_reads(&**ground, &holder)?;
    if options.dry_run || !options.may_lose {
        let found = repair_parts(ground, settings, meaning, Way::DryRun)?;
        let is_refused = !options.dry_run && !found.losses.is_empty();
        if options.dry_run || is_refused {
            return Ok(Salvaged { is_refused, ..found });
        }
        if found.sentences.is_empty() && !found.needs_index {
            log::forget_report(&**ground)?;
            return Ok(found);
        }
    }
    repair_parts(ground, settings, meaning, Way::Repair)
}

/// Puts the descriptor of a store in a bucket back. What is in the directory is made again when the store is opened,
/// and of the log there is only what is there.
fn salvage_in_bucket(ground: &Arc<dyn Ground>, bucket: Arc<dyn Bucket>, settings: &Settings, dry_run: bool) -> Result<Salvaged> {
    let mut done = Salvaged::default();
    let Ok(descriptor) = Descriptor::read(&**ground) else { return Ok(done) };
    if bucket.length(state::STORE)?.is_some() {
        return Ok(done);
    }
    // Without the log of this store, it is not its place.
    recovery::read_objects(ground, bucket.clone(), &descriptor, settings)?;
    let what = if dry_run { "would be" } else { "was" };
    done.sentences.push(format!("{} {what} put back: this machine has a copy", bucket.describe(state::STORE)));
    if !dry_run {
        state::put_back(&*bucket, &descriptor)?;
    }
    Ok(done)
}

/// How to treat damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Repair,
    DryRun,
    /// Repair, but do not look at the chunk index: it is not needed.
    WithoutIndex,
}

fn repair_parts(ground: &Arc<dyn Ground>, settings: &Settings, meaning: &dyn Meaning, way: Way) -> Result<Salvaged> {
    let dry_run = way == Way::DryRun;
    let mut done = Salvaged { needs_index: way == Way::WithoutIndex, ..Salvaged::default() };
    match copied::refuse_a_copy(&**ground) {
        Err(error @ EngineError::Copied { .. }) => done.sentences.push(format!("{error}. The repair takes it as it is")),
        looked => looked?,
    }
    let (descriptor, spelled) = look_at_descriptor(&**ground)?;
    let mut work = Work {
        ground,
        settings,
        meaning,
        descriptor,
        dry_run,
        sets_aside: way == Way::Repair,
        done,
        epoch: 0,
        aside: None,
        objects_made: None,
        log: Err("it was not read".to_owned()),
        remnants: None,
        furthest: None,
    };
    work.repair_descriptor(spelled)?;
    work.look_at_log()?;
    work.repair_owner()?;
    work.repair_arena()?;
    work.repair_manifests()?;
    work.repair_objects()?;
    work.look_at_index()?;
    work.repair_log()?;
    if !dry_run {
        copied::take_back(&**ground)?;
    }
    Ok(work.done)
}

/// A salvage under way.
struct Work<'a> {
    ground: &'a Arc<dyn Ground>,
    settings: &'a Settings,
    meaning: &'a dyn Meaning,
    descriptor: Descriptor,
    dry_run: bool,
    /// Whether the old state of changed files is kept.
    sets_aside: bool,
    done: Salvaged,
    /// The owner epoch of everything that this writes.
    epoch: u64,
    /// The name for set-aside files.
    aside: Option<String>,
    /// Position up to which rebuilt files of the object index are applied. In a dry run: would be.
    objects_made: Option<Position>,
    /// Start, end and greatest epoch of the log, read once. `Err`: what is wrong with it.
    log: std::result::Result<WholeLog, String>,
    /// The remains of a log that is not complete.
    remnants: Option<Remnants>,
    /// Greatest epoch and position in the headers of the containers, or of the arena.
    furthest: Option<(u64, Position)>,
}

/// A log that can be read as an opening reads it.
#[derive(Clone, Copy, Debug)]
struct WholeLog {
    start: Position,
    end: Position,
    epoch: u64,
}

/// How far a part of the store has come.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The owner epoch.
    epoch: u64,
    /// All of it has the log up to here.
    applied: Position,
    /// Some of it has the log up to here.
    position: Position,
}

impl Seen {
    fn new(epoch: u64, applied: u64, target: u64) -> Seen {
        Seen { epoch, applied: Position(applied), position: Position(applied.max(target)) }
    }
}

/// Which file of the descriptor must be rewritten, and why.
enum Spelled {
    Sound,
    Copy(String),
    Main(String),
}

/// Reads the descriptor from the file that is sound.
fn look_at_descriptor(ground: &dyn Ground) -> Result<(Descriptor, Spelled)> {
    let main = match Descriptor::read(ground) {
        Err(error @ EngineError::Descriptor { .. }) => Err(error),
        read => Ok(read?),
    };
    let copy = match Descriptor::read_copy(ground) {
        Err(error @ EngineError::Descriptor { .. }) => Err(error),
        read => Ok(read?),
    };
    match (main, copy) {
        (Ok(main), Ok(Some(copy))) if main == copy => Ok((main, Spelled::Sound)),
        (Ok(main), Ok(Some(copy))) => Err(EngineError::Descriptor {
            path: ground.describe(DESCRIPTOR),
            why: format!(
                "it differs from {}, and both are valid (of the stores {:02x?} and {:02x?}): remove the one that does not belong here",
                ground.describe(DESCRIPTOR_COPY),
                main.store,
                copy.store
            ),
        }),
        (Ok(main), copy) => {
            let why = copy.err().map_or("it was missing".to_owned(), |error| error.to_string());
            Ok((main, Spelled::Copy(why)))
        }
        (Err(error), Ok(Some(copy))) => Ok((copy, Spelled::Main(error.to_string()))),
        (Err(error), _) => Err(error),
    }
}

impl Engine {
    /// Opens a damaged store for reading its sound parts. The parts that an opening needs are repaired in memory, and
    /// nothing is changed. Returns the findings too. The chunk index is not used, so a chunk that cannot be read where
    /// its recipe says is lost here. Nobody can write meanwhile.
    pub fn open_sound(
        ground: Arc<dyn Ground>,
        settings: Settings,
        meaning: &dyn Meaning,
        command: &str,
    ) -> Result<(Arc<Engine>, Salvaged)> {
        if let Some(bucket) = ground.bucket() {
            let why = "its sound part cannot be read without the rest. Get older versions of the damaged objects back".to_owned();
            return Err(EngineError::Invalid { what: bucket.describe(""), why });
        }
        look_at_descriptor(&*ground)?.0.check_settings(&settings, &*ground)?;
        let lock = ground.lock(LOCK, false, &Holder::this_process(command))?;
        let overlay: Arc<dyn Ground> = Arc::new(overlay::Overlay::new(ground, lock));
        let done = repair_parts(&overlay, &settings, meaning, Way::WithoutIndex)?;
        let engine = Engine::open(overlay, settings, Mode::Rebuild, command)?;
        // Containers rebuilt from parity are not written down: they would stay in memory.
        engine.containers.iter().for_each(|containers| containers.rehearse());
        Ok((engine, done))
    }
}

impl Work<'_> {
    /// Adds a sentence, once: an earlier run that was cut short may have added it too.
    fn say(&mut self, sentence: impl Into<String>) {
        let sentence = sentence.into();
        if !self.done.sentences.contains(&sentence) {
            self.done.sentences.push(sentence);
        }
    }

    /// Adds a sentence about a loss.
    fn lose(&mut self, sentence: String) {
        if !self.done.losses.contains(&sentence) {
            self.done.losses.push(sentence.clone());
        }
        self.say(sentence);
    }

    /// Restores the descriptor from its second copy, or the copy from the descriptor.
    fn repair_descriptor(&mut self, spelled: Spelled) -> Result<()> {
        let (path, sentence) = match spelled {
            Spelled::Sound => return Ok(()),
            Spelled::Copy(why) => (DESCRIPTOR_COPY, format!("the second copy of the descriptor is rewritten: {why}")),
            Spelled::Main(why) => (DESCRIPTOR, format!("the descriptor is restored from its second copy: {why}")),
        };
        self.say(sentence);
        if self.dry_run {
            return Ok(());
        }
        self.set_aside(path)?;
        if path == DESCRIPTOR { self.descriptor.write(&**self.ground) } else { self.descriptor.write_copy(&**self.ground) }
    }

    /// Raises the owner epoch above every epoch in any part of the store, if it is damaged or less than one of them.
    fn repair_owner(&mut self) -> Result<()> {
        let seen = self.greatest_epoch()?;
        let why = match read_epoch(&**self.ground) {
            Ok(epoch) if epoch >= seen => {
                self.epoch = epoch;
                return Ok(());
            }
            Ok(epoch) => format!("it has epoch {epoch}, but epoch {seen} has written to the store"),
            Err(error) if error.is_damage() => error.to_string(),
            Err(error) => return Err(error),
        };
        self.epoch = seen + 1;
        self.say(format!("the owner epoch is set to {}: {why}", self.epoch));
        if self.dry_run {
            return Ok(());
        }
        self.set_aside(OWNER)?;
        write_epoch(&**self.ground, self.epoch)
    }

    /// Returns the greatest owner epoch in any readable part of the store.
    fn greatest_epoch(&mut self) -> Result<u64> {
        let mut epoch = match &self.log {
            Ok(whole) => whole.epoch,
            Err(_) => self.remnants()?.epoch,
        };
        epoch = epoch.max(self.furthest()?.0);
        for header in self.index_headers()? {
            epoch = epoch.max(header.epoch);
        }
        for partition in 0..self.descriptor.object_partitions {
            epoch = epoch.max(ObjectIndex::epoch(self.ground, OBJECTS, partition).unwrap_or(0));
        }
        Ok(epoch)
    }

    /// Returns what the valid headers of the chunk index say.
    fn index_headers(&self) -> Result<Vec<Seen>> {
        let has_partitions = !self.descriptor.profile.has_blocks();
        let of_partition = |partition| format!("{INDEX}/{partition:04x}/header");
        let paths: Vec<String> = match has_partitions {
            true => (0..self.descriptor.index_partitions).map(of_partition).collect(),
            false => vec![format!("{INDEX}/header")],
        };
        let mut headers = Vec::new();
        for path in paths {
            let bytes = match read_file(&**self.ground, &path, 1 << 20) {
                Ok(bytes) => bytes,
                Err(error) if error.is_lasting() || matches!(error, GroundError::TooLong { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            if has_partitions {
                let slots = bytes.chunks(header::SLOT_BYTES).filter_map(|slot| header::Header::decode(slot).ok());
                headers.extend(slots.map(|header| Seen::new(header.epoch, header.applied, header.target)));
            } else {
                let slots = LinkedIndex::read_headers(&bytes).into_iter();
                headers.extend(slots.map(|header| Seen::new(header.epoch, header.applied, header.target)));
            }
        }
        Ok(headers)
    }

    /// Makes the manifests of levels again of which both copies are damaged, from the tables that are there.
    fn repair_manifests(&mut self) -> Result<()> {
        let Some(options) = levels_options(&self.descriptor, self.settings) else { return Ok(()) };
        let partitions = self.descriptor.container_partitions;
        for home in LevelsStore::restore_homes(&**self.ground, LEVELS, partitions, &options, self.dry_run)? {
            self.say(format!("{home} gets a new file that says whose it is"));
        }
        let (_, _, damaged) = LevelsStore::manifests(&**self.ground, LEVELS, partitions, &options)?;
        for directory in &damaged {
            self.say(format!("the manifest of {directory} is made again from its tables; chunks that were removed may come back"));
        }
        // Chunks that come back need entries, or nothing would remove them again.
        self.done.needs_index |= !damaged.is_empty();
        if !self.dry_run && !damaged.is_empty() {
            self.mark_index()?;
            LevelsStore::restore_manifests(&**self.ground, LEVELS, partitions, &options, self.epoch)?;
        }
        Ok(())
    }

    /// Writes the header of the arena again, if it is damaged: the descriptor says what it has to say.
    fn repair_arena(&mut self) -> Result<()> {
        let Some(options) = arena_options(&self.descriptor, self.settings) else { return Ok(()) };
        let why = match ArenaStore::owner(&**self.ground, ARENA, &options) {
            Ok(_) => return Ok(()),
            Err(error) if error.is_damage() => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        self.say(format!("the header of the arena is rewritten: {why}"));
        if self.dry_run {
            return Ok(());
        }
        self.set_aside(&format!("{ARENA}/header"))?;
        Ok(ArenaStore::rebuild_header(&**self.ground, ARENA, &options, self.epoch)?)
    }

    /// Determines whether the chunk index must be rebuilt.
    fn look_at_index(&mut self) -> Result<()> {
        if self.done.needs_index {
            return Ok(());
        }
        if self.ground.exists(rebuild::MARKER)? {
            self.done.needs_index = true;
            self.say("an interrupted rebuild of the chunk index starts again");
            return Ok(());
        }
        if !self.descriptor.profile.is_exact() {
            return Ok(());
        }
        let why = match self.index() {
            Ok(index) => {
                let damaged = index.verify_while(&mut || true);
                damaged
                    .first()
                    .map(|page| format!("{} of its pages are damaged; the first is {} page {}", damaged.len(), page.path, page.page))
            }
            Err(error) if error.is_damage() || error.is_lasting() => Some(error.to_string()),
            // The number of openings went back. It was set right above, but not in a dry run.
            Err(IndexError::Fenced { .. }) => None,
            Err(error @ IndexError::Mismatch { .. }) => Some(error.to_string()),
            Err(error) => return Err(error.into()),
        };
        if let Some(why) = why {
            self.done.needs_index = true;
            self.say(format!("the chunk index is rebuilt: {why}"));
            self.mark_index()?;
        }
        Ok(())
    }

    /// From here on nothing opens the store until its chunk index is rebuilt.
    fn mark_index(&self) -> Result<()> {
        if self.dry_run {
            return Ok(());
        }
        self.ground.create_directory(INDEX)?;
        Ok(replace_file(&**self.ground, rebuild::MARKER, b"the chunk index is being rebuilt\n")?)
    }

    fn index(&self) -> onefold_index::Result<Box<dyn CountedIndex>> {
        let digest_bytes = self.descriptor.fingerprint.digest_bytes();
        if self.descriptor.profile.has_blocks() {
            let index = LinkedIndex::open(self.ground, INDEX, self.epoch, digest_bytes, LinkedOptions::default(), Access::Read)?;
            return Ok(Box::new(index));
        }
        let ownership = Ownership::all(self.descriptor.index_partitions, self.epoch);
        Ok(Box::new(ChunkIndex::open(self.ground, INDEX, &ownership, digest_bytes, ChunkIndexOptions::default(), Access::Read)?))
    }

    fn objects(&self, access: Access) -> onefold_index::Result<ObjectIndex> {
        let options = ObjectIndexOptions {
            cache_bytes: self.settings.object_index_cache_bytes,
            pending_bytes: self.settings.object_index_pending_bytes,
        };
        let ownership = Ownership::all(u32::from(self.descriptor.object_partitions), self.epoch);
        ObjectIndex::open(self.ground.clone(), OBJECTS, &ownership, options, access)
    }

    /// Returns the directory for the set-aside files of this run.
    fn aside(&mut self) -> String {
        format!("{LOG}/{}", self.aside_name())
    }

    /// Returns the suffix for the names of this run's set-aside files.
    fn aside_name(&mut self) -> String {
        let name = || {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            format!("damaged-{}", since.as_secs())
        };
        self.aside.get_or_insert_with(name).clone()
    }
}

impl Engine {
    /// Returns the damaged parts that this opening did not need, but the next one may.
    pub fn damaged_spares(&self) -> Vec<String> {
        if let Some(bucket) = self.ground.bucket() {
            // The directory is derived, all of it.
            let mut damaged = self.log.verify();
            match state::read_store(&*bucket) {
                Ok(found) if found == self.descriptor => {}
                Ok(_) => damaged.push(format!("{} is not the descriptor that this store was opened with", bucket.describe(state::STORE))),
                Err(error) => damaged.push(error.to_string()),
            }
            return damaged;
        }
        // Before looking at the copies: a trim of the log writes them first.
        let log_start = self.log.start();
        let mut damaged = Vec::new();
        for read in [Descriptor::read(&*self.ground).map(Some), Descriptor::read_copy(&*self.ground)] {
            match read {
                Ok(Some(found)) if found != self.descriptor => damaged.push("the descriptor and its second copy differ".to_owned()),
                Ok(Some(_)) => {}
                Ok(None) => {
                    damaged.push(format!("{} is missing; the next command that writes creates it", self.ground.describe(DESCRIPTOR_COPY)))
                }
                Err(error) => damaged.push(error.to_string()),
            }
        }
        match read_epoch(&*self.ground) {
            Ok(epoch) if epoch >= self.log.epoch() => {}
            Ok(epoch) => damaged.push(format!(
                "{} has epoch {epoch}, but epoch {} has written to the log",
                self.ground.describe(crate::lifecycle::layout::OWNER),
                self.log.epoch()
            )),
            Err(error) => damaged.push(error.to_string()),
        }
        damaged.extend(self.objects.damaged_copies(log_start));
        damaged.extend(self.storage.damaged_owners().unwrap_or_else(|error| vec![error.to_string()]));
        damaged
    }
}
