//! A backup of a client: what it is compared with, its tree, its record.

use super::blur;
use super::guest::{Guest, LOOKS_UP_AFTER};
use super::unfinished::{Supplies, Unfinished};
use super::{End, Result};
use crate::accounts::{Account, Permission, is_valid_backup_name};
use crate::services::messages::{Against, BackupAnswer, BackupRequest, Began, Begin, Commit, KeptNames, Method, Step, codes, without_root};
use crate::transport::Channel;
use onefold_catalog::{
    Backup, Catalog, Comparison, Content, Details, DirectoryReader, Entry, Growth, MAX_DEPTH, Making, TreeWalk, TreeWriter, is_valid_name,
    is_valid_tag,
};
use onefold_engine::{Address, Engine, Recipe};
use onefold_fingerprint::Fingerprint;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The most files whose content is complete and which the tree has not taken.
const MAX_COMPLETE: usize = 64 << 10;
/// Of the chunks supplied last, so many are known to the session.
const SUPPLIED_CHUNKS: usize = 32 << 10;
/// How long a tree waits for a file that nobody supplies.
/// Longer than a session waits for a client whose connection is lost.
const PATIENCE: Duration = Duration::from_secs(300);

/// A backup that a session makes.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) number: u64,
    /// The backup group.
    pub(super) name: String,
    pub(super) comparison: Arc<Comparison>,
    making: OnceLock<Arc<Making>>,
    /// What it was supplied with, and what earlier ones of the account were.
    supplies: Option<(Arc<Unfinished>, Arc<Supplies>)>,
    pub(super) earlier_supplies: Vec<Arc<Supplies>>,
    /// Bytes that were supplied, raw and as they came.
    pub(super) raw_bytes: AtomicU64,
    pub(super) wire_bytes: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Files whose content is complete, by ticket.
    complete: HashMap<u64, Recipe>,
    /// Channels for contents.
    writers: usize,
    /// Why nothing more comes.
    broken: Option<&'static str>,
    supplied: Supplied,
}

/// The chunks that were supplied last, with their lengths.
#[derive(Debug, Default)]
struct Supplied {
    places: HashMap<Fingerprint, (Address, u32)>,
    order: VecDeque<Fingerprint>,
}

impl Running {
    fn new(number: u64, name: String, comparison: Comparison, guest: &Guest) -> Result<Running> {
        let comparison = Arc::new(comparison);
        let (mut supplies, mut earlier_supplies) = (None, Vec::new());
        if let Some((unfinished, account)) = guest.unfinished() {
            let (own, earlier) = unfinished.begin(&account, &comparison)?;
            supplies = Some((unfinished.clone(), own));
            earlier_supplies = earlier;
        }
        Ok(Running {
            number,
            name,
            comparison,
            supplies,
            earlier_supplies,
            making: OnceLock::new(),
            raw_bytes: AtomicU64::new(0),
            wire_bytes: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Returns the backup that is made. Waits for its start, which is on its way on another channel.
    pub(super) fn making(&self, channel: &Channel) -> Result<&Arc<Making>> {
        let mut state = self.state.lock();
        loop {
            if let Some(making) = self.making.get() {
                return Ok(making);
            }
            if state.broken.is_some() {
                return Err(End::malformed("the backup did not begin"));
            }
            if let Some(error) = channel.broken() {
                return Err(End::Gone(error));
            }
            self.changed.wait_for(&mut state, LOOKS_UP_AFTER);
        }
    }

    fn starts(&self, making: Arc<Making>) {
        let _state = self.state.lock();
        // It starts once: the channel has passed that point.
        let _ = self.making.set(making);
        self.changed.notify_all();
    }

    /// A channel for contents begins.
    pub(super) fn writer_begins(&self) {
        self.state.lock().writers += 1;
    }

    /// A channel for contents ends.
    pub(super) fn writer_ends(&self, is_clean: bool) {
        let mut state = self.state.lock();
        state.writers -= 1;
        if !is_clean {
            state.broken.get_or_insert("a channel for contents ended early");
        }
        self.changed.notify_all();
    }

    /// Stops everything that waits.
    fn breaks(&self, why: &'static str) {
        self.state.lock().broken.get_or_insert(why);
        self.changed.notify_all();
    }

    /// Keeps the content of a file for the tree.
    pub(super) fn complete(&self, ticket: u64, recipe: Recipe) -> Result<()> {
        let mut state = self.state.lock();
        if state.complete.len() >= MAX_COMPLETE {
            return Err(End::malformed(format!("more than {MAX_COMPLETE} files are complete and in no directory")));
        }
        if state.complete.insert(ticket, recipe).is_some() {
            return Err(End::malformed(format!("ticket {ticket} was used twice")));
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Waits for the content of a file, for as long as the channel of the tree is there.
    fn take(&self, ticket: u64, channel: &Channel) -> Result<Recipe> {
        let mut state = self.state.lock();
        let mut without_writer = None;
        loop {
            if let Some(recipe) = state.complete.remove(&ticket) {
                return Ok(recipe);
            }
            if let Some(why) = state.broken {
                return Err(End::malformed(why));
            }
            if let Some(error) = channel.broken() {
                return Err(End::Gone(error));
            }
            // A channel for contents may be on its way.
            let since = *without_writer.get_or_insert_with(Instant::now);
            if state.writers > 0 {
                without_writer = None;
            } else if since.elapsed() > PATIENCE {
                return Err(End::malformed(format!("nobody supplies the content of ticket {ticket}")));
            }
            self.changed.wait_for(&mut state, LOOKS_UP_AFTER);
        }
    }

    /// Remembers chunks that this session supplied.
    pub(super) fn remember(&self, chunks: &[(Fingerprint, Address, u32)]) {
        if let Some((unfinished, supplies)) = &self.supplies {
            unfinished.add(supplies, chunks);
        }
        let Supplied { places, order } = &mut self.state.lock().supplied;
        for (fingerprint, address, length) in chunks.iter().copied() {
            if places.insert(fingerprint, (address, length)).is_none() {
                order.push_back(fingerprint);
            }
        }
        while order.len() > SUPPLIED_CHUNKS {
            order.pop_front().into_iter().for_each(|oldest| {
                places.remove(&oldest);
            });
        }
    }

    /// Appends where the chunks of these names and lengths are that this session supplied.
    pub(super) fn recall(&self, chunks: &[(Fingerprint, u32)], out: &mut Vec<Option<Address>>) {
        let state = self.state.lock();
        let place = |(name, length): &(Fingerprint, u32)| {
            state.supplied.places.get(name).filter(|(_, supplied)| supplied == length).map(|(address, _)| *address)
        };
        out.extend(chunks.iter().map(place));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some((unfinished, supplies)) = &self.supplies {
            unfinished.end(supplies);
        }
    }
}

/// Breaks the backup when its channel ends, however it ends.
struct Breaks<'a>(&'a Running);

impl Drop for Breaks<'_> {
    fn drop(&mut self) {
        self.0.breaks("the backup ended");
    }
}

pub(super) fn serve(catalog: &Catalog, guest: &Guest, opening: &[u8], channel: &Channel) -> Result<()> {
    let begin = Begin::decode(opening)?;
    let account = guest.permit(Permission::Backup, &begin.name)?;
    check(&begin, account.as_ref())?;
    guest.has_room(account.as_ref())?;
    let comparison = compare(catalog, guest, account.as_ref(), &begin)?;
    let engine = catalog.engine();
    let began = Began {
        number: 0,
        started_ns: engine.date_ns(),
        method: method(engine),
        is_sound: is_sound(engine),
        earlier: comparison.earlier.as_ref().map(|earlier| without_root(&guest.shown(earlier))),
        damage: comparison.damage.as_ref().map_or_else(String::new, |_| "its record is damaged".to_owned()),
    };
    let running = guest.begin(|number| Running::new(number, begin.name.clone(), comparison, guest))?;
    let _breaks = Breaks(&running);
    answer(channel, &BackupAnswer::Began(Box::new(Began { number: running.number, ..began })))?;
    let Some(message) = channel.receive()? else { return Ok(()) };
    if BackupRequest::decode(message.kind, &message.payload)? != BackupRequest::Start {
        return Err(End::malformed("a backup starts first"));
    }
    drop(message);
    let making = Arc::new(Making::begin(catalog, &running.comparison)?);
    running.starts(making.clone());
    guest.observer().began(&begin.name);
    let made = make(guest, &begin, &running, &making, channel);
    if let Err(end) = &made {
        let why = match end {
            End::Gone(error) => error.to_string(),
            End::Refused { text, .. } => text.clone(),
        };
        guest.observer().aborted(&begin.name, &why);
    }
    made
}

/// Checks what the record will say. A backup without a server may have another name.
fn check(begin: &Begin, account: Option<&Account>) -> Result<()> {
    if account.is_some() && !is_valid_backup_name(&begin.name) {
        return Err(End::malformed("a backup over the network has a name like team/host: parts of A-Z a-z 0-9 . _ - with / between them"));
    }
    if !is_plain(&begin.name) || !is_plain(&begin.host) {
        return Err(End::malformed("a name or host has control characters"));
    }
    Ok(())
}

/// Returns whether a text can be shown on a terminal.
fn is_plain(text: &str) -> bool {
    !text.contains(char::is_control)
}

/// Returns whether no chunk is known to be lost.
fn is_sound(engine: &Engine) -> bool {
    let mut is_sound = true;
    engine.for_each_quarantined(&mut |_| is_sound = false).is_ok() && is_sound
}

fn answer(channel: &Channel, answer: &BackupAnswer) -> Result<()> {
    let (kind, payload) = answer.encode();
    Ok(channel.send(kind, payload)?)
}

fn method(engine: &Engine) -> Method {
    let descriptor = engine.descriptor();
    let sizes = descriptor.chunk_sizes;
    Method {
        chunker: descriptor.chunker.to_string(),
        chunk_sizes: [sizes.min, sizes.target, sizes.max].map(|size| size as u32),
        chunker_key: Vec::new(),
        fingerprint: descriptor.fingerprint.to_string(),
        fingerprint_key: Vec::new(),
        compression: descriptor.sequential_compression.to_string(),
        frame_bytes: descriptor.sequential_frame_bytes,
    }
}

fn compare(catalog: &Catalog, guest: &Guest, account: Option<&Account>, begin: &Begin) -> Result<Comparison> {
    let is_earlier = |backup: &Backup| {
        guest.may_see(account, backup)
            && match begin.against {
                Against::Newest => backup.name == begin.name && backup.host == begin.host && backup.paths == begin.paths,
                Against::This(id) => backup.id == id,
                Against::Nothing => false,
            }
    };
    Ok(Comparison::find(catalog, is_earlier)?)
}

/// Builds the tree, and makes the record.
fn make(guest: &Guest, begin: &Begin, running: &Running, making: &Arc<Making>, channel: &Channel) -> Result<()> {
    let mut tree = Tree::new(running, making, channel);
    loop {
        let Some(message) = channel.receive()? else { return Err(End::malformed("the tree has no end")) };
        guest.describes(&begin.name, message.payload.len() as u64, channel)?;
        match BackupRequest::decode(message.kind, &message.payload)? {
            BackupRequest::Steps(steps) => steps.into_iter().try_for_each(|step| tree.step(step))?,
            BackupRequest::Finish => break,
            BackupRequest::Start | BackupRequest::Commit(_) => return Err(End::malformed("the tree comes first")),
        }
    }
    let (changed, same) = (tree.changed, tree.same);
    let root = tree.finish()?;
    if !guest.reads_everything() {
        // It waited for contents.
        blur::wait();
    }
    answer(channel, &BackupAnswer::Finished { changed, same })?;
    let Some(message) = channel.receive()? else {
        guest.observer().aborted(&begin.name, "the client gave it up");
        return Ok(());
    };
    let account = guest.describes(&begin.name, message.payload.len() as u64, channel)?;
    let BackupRequest::Commit(commit) = BackupRequest::decode(message.kind, &message.payload)? else {
        return Err(End::malformed("only the commit is missing"));
    };
    let details = details(begin, commit)?;
    let backup = commit_within_quota(guest, account.as_ref(), running, making, root, details)?;
    if let Some((unfinished, supplies)) = &running.supplies {
        unfinished.finish(supplies);
    }
    guest.observer().committed(&backup);
    answer(channel, &BackupAnswer::Committed(Box::new(without_root(&guest.shown(&backup)))))
}

fn commit_within_quota(
    guest: &Guest,
    account: Option<&Account>,
    running: &Running,
    making: &Arc<Making>,
    root: Recipe,
    mut details: Details,
) -> Result<Backup> {
    if account.is_some_and(|account| account.limits.logical_bytes.is_some()) {
        // The client only says so.
        details.statistics.logical_bytes = logical_bytes(making.engine(), &root)?;
    }
    if account.is_none() {
        // The owner may know of every chunk, so only new ones were supplied.
        details.statistics.added_bytes = running.raw_bytes.load(Ordering::Relaxed);
    }
    // What was new to the store would tell what others have. So an account reads what it supplied.
    let growth = match account {
        None => Growth::Measured,
        Some(_) => Growth::Given {
            added_bytes: running.raw_bytes.load(Ordering::Relaxed),
            stored_bytes: running.wire_bytes.load(Ordering::Relaxed),
        },
    };
    let logical_bytes = details.statistics.logical_bytes;
    guest.commit(account, logical_bytes, || Ok(making.commit(root, details, growth)?))
}

/// Returns the bytes of all files of a tree.
fn logical_bytes(engine: &Arc<Engine>, root: &Recipe) -> Result<u64> {
    let mut bytes = 0u64;
    for item in TreeWalk::new(engine, b"", root) {
        if let Content::File { size_bytes, .. } = item.entry?.content {
            bytes = bytes.saturating_add(size_bytes);
        }
    }
    Ok(bytes)
}

fn details(begin: &Begin, commit: Commit) -> Result<Details> {
    let Commit { user, tags, options, statistics } = commit;
    if !is_plain(&user) || !is_plain(&options) {
        return Err(End::malformed("a user or the options have control characters"));
    }
    if !tags.is_sorted_by(|a, b| a < b) || !tags.iter().all(|tag| is_valid_tag(tag)) {
        return Err(End::malformed("tags must be sorted words, each once"));
    }
    let Begin { name, host, paths, .. } = begin.clone();
    Ok(Details { name, host, user, tags, paths, options, statistics })
}

/// The tree under construction, and the earlier directories beside it.
struct Tree<'a> {
    running: &'a Running,
    making: &'a Arc<Making>,
    channel: &'a Channel,
    tree: TreeWriter,
    levels: Vec<Level>,
    changed: u64,
    same: u64,
}

/// The earlier version of a directory, as far as it was not used.
struct Level {
    entries: Option<DirectoryReader>,
    /// The place of the next entry.
    next: u64,
    /// Entries come sorted. `None`: there was none.
    last_name: Option<Vec<u8>>,
}

impl Level {
    fn new(engine: &Arc<Engine>, recipe: Option<&Recipe>) -> Level {
        Level { entries: recipe.map(|recipe| DirectoryReader::new(engine, recipe)), next: 0, last_name: None }
    }

    /// Returns the entry at a place, which must be behind those returned before.
    fn entry(&mut self, index: u64) -> Result<Entry> {
        let nothing = || End::malformed(format!("the earlier directory has no entry {index} there"));
        let entries = self.entries.as_mut().ok_or_else(nothing)?;
        if index < self.next {
            return Err(nothing());
        }
        loop {
            // The client saw the entries that can be read, and counted those.
            let entry = match entries.next() {
                None => return Err(End::stale()),
                Some(Err(_)) => continue,
                Some(Ok(entry)) => entry,
            };
            self.next += 1;
            if self.next > index {
                return Ok(entry);
            }
        }
    }

    /// Checks that a name can come next.
    fn comes(&mut self, name: &[u8]) -> Result<()> {
        if !is_valid_name(name) {
            return Err(End::malformed("a name is no file name"));
        }
        if self.last_name.as_ref().is_some_and(|last| &last[..] >= name) {
            return Err(End::malformed("entries of a directory must be sorted"));
        }
        self.last_name = Some(name.to_vec());
        Ok(())
    }
}

impl<'a> Tree<'a> {
    fn new(running: &'a Running, making: &'a Arc<Making>, channel: &'a Channel) -> Tree<'a> {
        let root = Level::new(making.engine(), making.earlier().map(|backup| &backup.root));
        Tree { running, making, channel, tree: making.tree(), levels: vec![root], changed: 0, same: 0 }
    }

    fn level(&mut self) -> &mut Level {
        self.levels.last_mut().expect("the root is left last")
    }

    fn step(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Enter { name, attributes, earlier } => {
                if self.levels.len() >= MAX_DEPTH {
                    return Err(End::malformed("the tree is nested too deeply"));
                }
                self.level().comes(&name)?;
                let earlier = self.earlier(earlier, &name)?;
                let recipe = match earlier.as_ref().map(|entry| &entry.content) {
                    Some(Content::Directory { recipe }) => Some(recipe),
                    _ => None,
                };
                self.levels.push(Level::new(self.making.engine(), recipe));
                self.tree.enter(name, attributes, earlier);
            }
            Step::Keep { from, count, names } => {
                let mut kept = KeptNames::default();
                for ahead in 0..count {
                    // No directory has so many entries.
                    let entry = self.level().entry(from.saturating_add(ahead))?;
                    self.level().comes(&entry.name)?;
                    kept.add(&entry.name);
                    self.tree.push(entry, true)?;
                }
                if kept.sum() != names {
                    return Err(End::stale());
                }
            }
            Step::Put { mut entry, ticket, earlier } => {
                self.level().comes(&entry.name)?;
                let earlier = self.earlier(earlier, &entry.name)?;
                if let (Content::File { size_bytes, recipe }, Some(ticket)) = (&mut entry.content, ticket) {
                    *recipe = self.running.take(ticket, self.channel)?;
                    *size_bytes = recipe.length;
                }
                let is_same = earlier.as_ref() == Some(&entry);
                if let (Some(_), Some(earlier)) = (ticket, &earlier) {
                    *if earlier.shows_the_same(&entry) { &mut self.same } else { &mut self.changed } += 1;
                }
                self.tree.push(entry, is_same)?;
            }
            Step::Leave { has_all } => {
                if self.levels.len() == 1 {
                    return Err(End::malformed("the root is left by the end of the tree"));
                }
                self.levels.pop();
                self.tree.leave(has_all)?;
            }
        }
        Ok(())
    }

    /// Returns the entry of this name in the earlier directory, which is there.
    fn earlier(&mut self, index: Option<u64>, name: &[u8]) -> Result<Option<Entry>> {
        match index.map(|index| self.level().entry(index)).transpose()? {
            Some(entry) if entry.name != name => Err(End::stale()),
            entry => Ok(entry),
        }
    }

    fn finish(self) -> Result<Recipe> {
        if self.levels.len() > 1 {
            return Err(End::refused(codes::MALFORMED, "the tree ends within a directory"));
        }
        Ok(self.tree.finish()?)
    }
}
