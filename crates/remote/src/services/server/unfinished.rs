//! What accounts supplied for backups that are not finished: a killed client's next run need not send it again.
//!
//! # Why an account may be told that these chunks are known
//! It had them. And the answer must not depend on others, who may have the same chunks: so a chunk counts only as long
//! as it cannot go, whoever needs it. A guard keeps it, which is older than the supply and ends with the entry here.
//! After a crash the names come from a file, and the chunks are those that no removal has taken since: a removal in a
//! process that does not hold these guards deletes the files first ([`forget_all`]).
//!
//! # Order
//! Chunks become durable before their names do. So every name in a file is that of a durable chunk. A file is gone for
//! good before the guard ends.
//!
//! # Limits
//! A guard holds back every removal that begins after it. So an entry lives for a quarter of an hour after its backup
//! ended ([`KEEP`]), or until the backups of the account that began meanwhile end, which were told of it. And entries
//! and names are bounded in number ([`MAX_ENTRIES`], [`MAX_NAMES`]). What is beyond is sent again. One account gets at
//! most half of the names, so that it cannot take all of them.
//!
//! # Files
//! ```text
//! unfinished/<32 hex digits>    8 magic "1FLDUNF1", account (length and bytes: its name, a space, and when it was
//!                               made), then 24 bytes for each chunk: 16 of
//!                               its name (below), 8 of its address. A torn one at the end counts for nothing.
//! ```
//! A name is the beginning of a fingerprint, with the length of the chunk (u32) added to its first four bytes by
//! exclusive or. So a chunk that is offered with another length is another chunk.

use onefold_catalog::Comparison;
use onefold_engine::{Address, Engine, EngineError, InFlight};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::{Reader, put_bytes};
use onefold_ground::{Access, File, Ground, GroundError};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The folder in a store.
const FOLDER: &str = "unfinished";
const MAGIC: &[u8; 8] = b"1FLDUNF1";
/// Bytes of a name: enough that nobody finds two chunks of one name.
const NAME_BYTES: usize = 16;
/// How long what was supplied is known after its backup ended.
const KEEP: Duration = Duration::from_secs(15 * 60);
/// Bytes of a chunk in a file.
const CHUNK_BYTES: usize = NAME_BYTES + 8;
/// The most backups of an account that ended, and whose supplies are kept.
const MAX_ENTRIES: usize = 32;
/// The most names of a store: 80 MiB of memory.
const MAX_NAMES: usize = 2 << 20;
/// Names are written when so many wait, or after this time.
const TOGETHER: usize = 4096;
const AFTER: Duration = Duration::from_secs(5);

/// The name of a chunk here.
type Name = [u8; NAME_BYTES];
/// Where chunks are.
type Places = HashMap<Name, Address>;

/// The supplies of a store's accounts.
#[derive(Debug)]
pub struct Unfinished {
    engine: Arc<Engine>,
    all: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    entries: Vec<Arc<Supplies>>,
    /// How many names the entries have together, and those of each account.
    names: usize,
    of_accounts: HashMap<String, usize>,
}

/// What one backup of an account was supplied with.
#[derive(Debug)]
pub(super) struct Supplies {
    account: String,
    path: String,
    state: Mutex<State>,
    /// Locked before `state`, by those who write or remove the file.
    file: Mutex<Names>,
}

#[derive(Debug)]
struct State {
    places: Places,
    /// Chunks that are in no file, and when the last were written.
    new: Vec<(Name, Address)>,
    written_at: Instant,
    phase: Phase,
    _guard: Guard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// It ended without being finished.
    Ended(Instant),
    /// Nobody asks for it any more, and nothing is noted.
    Over,
}

/// The file of a backup.
#[derive(Debug, Default)]
struct Names {
    exists: bool,
    /// It is open with this length while the backup runs.
    open: Option<(Arc<dyn File>, u64)>,
}

#[derive(Debug)]
#[allow(dead_code, reason = "it is held")]
enum Guard {
    Of(Arc<Comparison>),
    Own(InFlight),
}

fn name(chunk: &Fingerprint, length: u32) -> Name {
    let mut name = [0; NAME_BYTES];
    name.copy_from_slice(&chunk.as_bytes()[..NAME_BYTES]);
    name.iter_mut().zip(length.to_le_bytes()).for_each(|(byte, length)| *byte ^= length);
    name
}

impl All {
    /// Takes room for names of an account, if there is any.
    fn take(&mut self, account: &str, names: usize) -> bool {
        let own = self.of_accounts.get(account).copied().unwrap_or(0);
        if self.names + names > MAX_NAMES || own + names > MAX_NAMES / 2 {
            return false;
        }
        self.names += names;
        match self.of_accounts.get_mut(account) {
            Some(own) => *own += names,
            None => drop(self.of_accounts.insert(account.to_owned(), names)),
        }
        true
    }

    fn give_back(&mut self, account: &str, names: usize) {
        self.names -= names;
        if let Some(own) = self.of_accounts.get_mut(account) {
            *own -= names;
            if *own == 0 {
                self.of_accounts.remove(account);
            }
        }
    }
}

impl Unfinished {
    /// Returns the supplies of a store, with those from before a crash. Call before anything is removed. Errors: they
    /// can be neither read nor forgotten.
    pub fn open(engine: Arc<Engine>) -> Result<Unfinished, GroundError> {
        let all = match load(&engine) {
            Ok(all) => all,
            Err(error) => {
                tracing::warn!(%error, "what was supplied for unfinished backups cannot be read: it is sent again");
                forget_all(engine.ground().as_ref())?;
                All::default()
            }
        };
        Ok(Unfinished { engine, all: Mutex::new(all) })
    }

    /// Begins to note what a backup is supplied with. Returns that, and what earlier ones of the account were supplied
    /// with.
    pub(super) fn begin(&self, account: &str, comparison: &Arc<Comparison>) -> Result<(Arc<Supplies>, Vec<Arc<Supplies>>), EngineError> {
        self.expire();
        let id = onefold_engine::random_name()?;
        let path = id.iter().fold(format!("{FOLDER}/"), |path, byte| format!("{path}{byte:02x}"));
        let supplies = Arc::new(Supplies::new(account.to_owned(), path, Places::new(), Phase::Running, Guard::Of(comparison.clone())));
        let of_account = || {
            let all = self.all.lock();
            all.entries.iter().filter(|entry| entry.account == account).cloned().collect::<Vec<_>>()
        };
        let ended: Vec<_> = of_account().into_iter().filter(|entry| matches!(entry.state.lock().phase, Phase::Ended(_))).collect();
        for oldest in ended.iter().take((ended.len() + 1).saturating_sub(MAX_ENTRIES)) {
            self.remove(oldest);
        }
        let earlier = of_account();
        self.all.lock().entries.push(supplies.clone());
        Ok((supplies, earlier))
    }

    /// Notes chunks that were stored. It only helps: an error is not the client's.
    pub(super) fn add(&self, supplies: &Supplies, chunks: &[(Fingerprint, Address, u32)]) {
        if !self.all.lock().take(&supplies.account, chunks.len()) {
            return;
        }
        let mut added = 0;
        let mut state = supplies.state.lock();
        if state.phase == Phase::Running {
            for (chunk, address, length) in chunks {
                let name = name(chunk, *length);
                if state.places.insert(name, *address).is_none() {
                    state.new.push((name, *address));
                    added += 1;
                }
            }
        }
        drop(state);
        self.all.lock().give_back(&supplies.account, chunks.len() - added);
    }

    /// Writes the names that wait. Call every second, on a thread of its own: clients must not wait for the disk, nor
    /// see how long it takes.
    pub fn write_due(&self) {
        let is_due = |entry: &Arc<Supplies>| {
            let state = entry.state.lock();
            state.new.len() >= TOGETHER || (!state.new.is_empty() && state.written_at.elapsed() >= AFTER)
        };
        let due: Vec<Arc<Supplies>> = self.all.lock().entries.iter().filter(|entry| is_due(entry)).cloned().collect();
        self.write(&due);
    }

    /// The backup ended. If it was not finished, its supplies are known for a while.
    pub(super) fn end(&self, supplies: &Arc<Supplies>) {
        let is_kept = {
            let mut state = supplies.state.lock();
            if state.phase != Phase::Running {
                return;
            }
            state.phase = Phase::Ended(Instant::now());
            !state.places.is_empty()
        };
        if is_kept {
            self.write(std::slice::from_ref(supplies));
            supplies.file.lock().open = None;
        } else {
            // Nothing to keep, and nothing to hold removals back for.
            self.remove(supplies);
        }
    }

    /// The backup is visible: what it has is known from it.
    pub(super) fn finish(&self, supplies: &Arc<Supplies>) {
        self.remove(supplies);
    }

    /// Forgets what was kept for long enough.
    pub fn expire(&self) {
        let entries = self.all.lock().entries.clone();
        for entry in entries {
            let is_over = match entry.state.lock().phase {
                Phase::Running => false,
                Phase::Ended(ended) => ended.elapsed() >= KEEP,
                // The file could not be removed.
                Phase::Over => true,
            };
            if is_over {
                self.remove(&entry);
            }
        }
    }

    /// Forgets an entry. It is left, with its guard, if its file cannot be removed: the file could be believed later.
    fn remove(&self, supplies: &Arc<Supplies>) {
        let mut file = supplies.file.lock();
        let names = {
            let mut state = supplies.state.lock();
            state.phase = Phase::Over;
            state.new = Vec::new();
            std::mem::take(&mut state.places).len()
        };
        self.all.lock().give_back(&supplies.account, names);
        if file.exists {
            let ground = self.engine.ground();
            let removed = match ground.remove(&supplies.path) {
                Err(error) if error.is_not_found() => Ok(()),
                removed => removed,
            };
            if let Err(error) = removed.and_then(|()| ground.sync_directory(FOLDER)) {
                tracing::warn!(%error, "a file of an unfinished backup cannot be removed");
                return;
            }
            *file = Names::default();
        }
        self.all.lock().entries.retain(|entry| !Arc::ptr_eq(entry, supplies));
    }

    /// Writes the names of these that are in no file.
    fn write(&self, due: &[Arc<Supplies>]) {
        let take = |entry: &Arc<Supplies>| {
            let mut state = entry.state.lock();
            state.written_at = Instant::now();
            std::mem::take(&mut state.new)
        };
        let due: Vec<_> = due.iter().map(|entry| (entry, take(entry))).collect();
        if due.iter().all(|(_, new)| new.is_empty()) {
            return;
        }
        // The chunks first.
        let mut written = self.engine.flush();
        for (entry, new) in due.iter().filter(|(_, new)| !new.is_empty()) {
            let mut file = entry.file.lock();
            // It may have been removed meanwhile, with its file.
            if entry.state.lock().phase != Phase::Over {
                written = written.and_then(|()| self.write_names(entry, &mut file, new));
            }
        }
        if let Err(error) = written {
            tracing::warn!(%error, "what a client supplied is not noted: after a crash it is sent again");
        }
    }

    fn write_names(&self, supplies: &Supplies, names: &mut Names, new: &[(Name, Address)]) -> Result<(), EngineError> {
        let ground = self.engine.ground();
        if !names.exists {
            ground.create_directory(FOLDER)?;
            names.exists = true;
            let file = ground.create(&supplies.path)?;
            let mut head = MAGIC.to_vec();
            put_bytes(&mut head, supplies.account.as_bytes());
            file.write_at(0, &head)?;
            ground.sync_directory(FOLDER)?;
            names.open = Some((file, head.len() as u64));
        }
        if let Some((file, end)) = &mut names.open {
            let bytes: Vec<u8> = new.iter().flat_map(|(name, address)| name.iter().copied().chain(address.bits().to_le_bytes())).collect();
            file.write_at(*end, &bytes)?;
            file.sync()?;
            *end += bytes.len() as u64;
        }
        Ok(())
    }
}

impl Supplies {
    fn new(account: String, path: String, places: Places, phase: Phase, guard: Guard) -> Supplies {
        let state = State { places, new: Vec::new(), written_at: Instant::now(), phase, _guard: guard };
        Supplies { account, path, state: Mutex::new(state), file: Mutex::default() }
    }

    /// Returns where a chunk is, if the account supplied it with this length.
    pub(super) fn place(&self, chunk: &Fingerprint, length: u32) -> Option<Address> {
        self.state.lock().places.get(&name(chunk, length)).copied()
    }
}

/// Forgets all supplies: call before chunks are removed in a process that holds no guards for them.
pub fn forget_all(ground: &dyn Ground) -> Result<(), GroundError> {
    let names = names_of_files(ground)?;
    if names.is_empty() {
        return Ok(());
    }
    for name in names {
        ground.remove(&format!("{FOLDER}/{name}"))?;
    }
    ground.sync_directory(FOLDER)
}

fn names_of_files(ground: &dyn Ground) -> Result<Vec<String>, GroundError> {
    match ground.list(FOLDER) {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        names => Ok(names?.into_iter().map(|entry| entry.name).collect()),
    }
}

fn load(engine: &Arc<Engine>) -> Result<All, GroundError> {
    let ground = engine.ground();
    let mut all = All::default();
    for file_name in names_of_files(ground.as_ref())? {
        let path = format!("{FOLDER}/{file_name}");
        let file = ground.open(&path, Access::Read)?;
        let mut bytes = vec![0; file.len()?.min((MAX_NAMES * CHUNK_BYTES) as u64) as usize];
        file.read_at(0, &mut bytes)?;
        let parsed = parse(&bytes).filter(|(account, places)| all.take(account, places.len()));
        let Some((account, places)) = parsed else {
            ground.remove(&path)?;
            ground.sync_directory(FOLDER)?;
            continue;
        };
        let entry = Supplies::new(account, path, places, Phase::Ended(Instant::now()), Guard::Own(engine.in_flight()));
        entry.file.lock().exists = true;
        all.entries.push(Arc::new(entry));
    }
    Ok(all)
}

/// Reads a file. `None`: it is none of ours.
pub fn parse(bytes: &[u8]) -> Option<(String, HashMap<[u8; NAME_BYTES], Address>)> {
    let mut reader = Reader::new(bytes);
    if reader.take(MAGIC.len()).ok()? != MAGIC {
        return None;
    }
    let account = std::str::from_utf8(reader.bytes().ok()?).ok()?.to_owned();
    let names = reader.take(reader.left()).ok()?;
    let place = |bytes: &[u8]| {
        let (name, address) = bytes.split_first_chunk::<NAME_BYTES>()?;
        Some((*name, Address::from_bits(u64::from_le_bytes(address.try_into().ok()?))))
    };
    Some((account, names.chunks_exact(CHUNK_BYTES).filter_map(place).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_catalog::Catalog;
    use onefold_engine::{Descriptor, Mode, Settings};
    use onefold_ground::LocalGround;

    fn store() -> (tempfile::TempDir, Arc<Engine>) {
        let directory = tempfile::tempdir().unwrap();
        let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).unwrap());
        Engine::create(&ground, &Descriptor::new().unwrap()).unwrap();
        (directory, Engine::open(ground, Settings::default(), Mode::ReadWrite, "test").unwrap())
    }

    fn chunk(number: usize) -> (Fingerprint, Address, u32) {
        let number = number as u64;
        (Fingerprint::from_digest(blake3::hash(&number.to_le_bytes()).as_bytes()), Address::from_bits(number + 1), number as u32 + 5)
    }

    #[test]
    fn a_file_has_the_chunks_of_its_account_with_their_lengths_and_places() {
        let (_directory, engine) = store();
        let comparison = Arc::new(Comparison::find(&Catalog::new(engine.clone()), |_| false).unwrap());
        let unfinished = Unfinished::open(engine.clone()).unwrap();
        let (supplies, earlier) = unfinished.begin("ann", &comparison).unwrap();
        assert!(earlier.is_empty());
        unfinished.add(&supplies, &(0..100).map(chunk).collect::<Vec<_>>());
        unfinished.end(&supplies);
        drop(unfinished);
        // As after a crash.
        let unfinished = Unfinished::open(engine.clone()).unwrap();
        assert!(unfinished.begin("bob", &comparison).unwrap().1.is_empty());
        let (_, earlier) = unfinished.begin("ann", &comparison).unwrap();
        for (name, address, length) in (0..100).map(chunk) {
            assert_eq!(earlier[0].place(&name, length), Some(address));
            assert_eq!(earlier[0].place(&name, length + 1), None);
        }
        drop((unfinished, earlier));
        forget_all(engine.ground().as_ref()).unwrap();
        assert!(Unfinished::open(engine.clone()).unwrap().begin("ann", &comparison).unwrap().1.is_empty());
        drop(comparison);
        engine.close().unwrap();
    }

    #[test]
    fn backups_that_are_begun_and_given_up_take_no_memory_and_hold_nothing_back() {
        let (_directory, engine) = store();
        let comparison = Arc::new(Comparison::find(&Catalog::new(engine.clone()), |_| false).unwrap());
        let unfinished = Unfinished::open(engine.clone()).unwrap();
        for number in 0..MAX_ENTRIES * 3 {
            let (nothing, _) = unfinished.begin("ann", &comparison).unwrap();
            unfinished.end(&nothing);
            let (some, _) = unfinished.begin("ann", &comparison).unwrap();
            unfinished.add(&some, &[chunk(number)]);
            unfinished.end(&some);
        }
        assert!(unfinished.all.lock().entries.len() <= MAX_ENTRIES + 1);
        assert!(names_of_files(engine.ground().as_ref()).unwrap().len() <= MAX_ENTRIES + 1);
        drop((unfinished, comparison));
        engine.close().unwrap();
    }

    fn files(engine: &Engine) -> usize {
        names_of_files(engine.ground().as_ref()).unwrap().len()
    }

    #[test]
    fn a_finished_backup_leaves_nothing_even_if_chunks_come_late() {
        let (_directory, engine) = store();
        let comparison = Arc::new(Comparison::find(&Catalog::new(engine.clone()), |_| false).unwrap());
        let unfinished = Unfinished::open(engine.clone()).unwrap();
        let (supplies, _) = unfinished.begin("ann", &comparison).unwrap();
        unfinished.add(&supplies, &[chunk(1)]);
        unfinished.finish(&supplies);
        unfinished.add(&supplies, &(0..2 * TOGETHER).map(chunk).collect::<Vec<_>>());
        unfinished.end(&supplies);
        assert_eq!(files(&engine), 0);
        let (large, _) = unfinished.begin("ann", &comparison).unwrap();
        unfinished.add(&large, &(0..TOGETHER).map(chunk).collect::<Vec<_>>());
        assert_eq!(files(&engine), 0, "a client does not wait for the disk");
        unfinished.write_due();
        assert_eq!(files(&engine), 1);
        unfinished.finish(&large);
        unfinished.end(&large);
        let all = unfinished.all.lock();
        assert!(all.entries.is_empty() && all.names == 0 && all.of_accounts.is_empty(), "{all:?}");
        assert_eq!(files(&engine), 0);
        drop(all);
        drop((unfinished, comparison));
        engine.close().unwrap();
    }

    #[test]
    fn one_account_gets_half_of_the_names_and_they_come_back() {
        let mut all = All::default();
        assert!(all.take("ann", MAX_NAMES / 2) && !all.take("ann", 1));
        assert!(all.take("bob", MAX_NAMES / 2) && !all.take("eve", 1));
        all.give_back("ann", 1);
        assert!(all.take("eve", 1));
        for (account, names) in [("ann", MAX_NAMES / 2 - 1), ("bob", MAX_NAMES / 2), ("eve", 1)] {
            all.give_back(account, names);
        }
        assert!(all.names == 0 && all.of_accounts.is_empty());
    }
}
