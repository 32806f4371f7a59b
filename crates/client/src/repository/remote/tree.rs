//! The tree of a backup as steps: what nothing changed in is one entry of the directory above.

use super::cache::CacheWriter;
use super::contents::Supplied;
use super::making::RemoteCompared;
use crate::repository::{Earlier, Finished, State, Tree};
use crate::{ClientError, Result};
use onefold_catalog::{Attributes, CatalogError, Content, Entry, MAX_ENTRY_BYTES};
use onefold_engine::Recipe;
use onefold_remote::services::messages::{BackupAnswer, BackupRequest, KeptNames, Step};
use parking_lot::Mutex;
use std::time::Duration;

/// Steps are sent together.
const STEPS: usize = 256;
/// The longest recipe of an entry: it is in the entry, and a client does not see it.
const RECIPE_BYTES: usize = 4 << 10;

pub(super) struct RemoteTree<'a> {
    compared: &'a RemoteCompared<'a>,
    supplied: &'a Supplied,
    cache: &'a Mutex<Option<CacheWriter>>,
    steps: Vec<Step>,
    step_bytes: usize,
    /// The root, and the directories on the way to the current one.
    levels: Vec<Level>,
}

struct Level {
    name: Vec<u8>,
    attributes: Attributes,
    earlier: Option<Earlier>,
    /// The server knows that the directory began.
    is_entered: bool,
    /// All entries so far are kept.
    is_same: bool,
    kept: Option<Kept>,
}

/// Entries that are kept, one after the other.
struct Kept {
    from: u64,
    count: u64,
    names: KeptNames,
}

impl<'a> RemoteTree<'a> {
    pub(super) fn new(compared: &'a RemoteCompared<'a>, supplied: &'a Supplied, cache: &'a Mutex<Option<CacheWriter>>) -> RemoteTree<'a> {
        let root =
            Level { name: Vec::new(), attributes: Attributes::default(), earlier: None, is_entered: true, is_same: false, kept: None };
        RemoteTree { compared, supplied, cache, steps: Vec::new(), step_bytes: 0, levels: vec![root] }
    }

    fn level(&mut self) -> &mut Level {
        self.levels.last_mut().expect("the root is left last")
    }

    fn note(&self, write: impl FnOnce(&mut CacheWriter)) {
        if let Some(cache) = &mut *self.cache.lock() {
            write(cache);
        }
    }

    /// Tells the server of all directories on the way, and of what is kept in them.
    fn tell_all(&mut self) -> Result<()> {
        for at in 0..self.levels.len() {
            let level = &mut self.levels[at];
            let enters = !level.is_entered;
            level.is_entered = true;
            let enter = enters.then(|| Step::Enter {
                name: level.name.clone(),
                attributes: level.attributes.clone(),
                earlier: level.earlier.as_ref().map(|earlier| earlier.index),
            });
            let keep = level.kept.take().map(Kept::into_step);
            for step in enter.into_iter().chain(keep) {
                self.tell(step)?;
            }
        }
        Ok(())
    }

    fn tell(&mut self, step: Step) -> Result<()> {
        self.step_bytes += match &step {
            Step::Enter { name, attributes, .. } | Step::Put { entry: Entry { name, attributes, .. }, .. } => {
                name.len() + xattr_bytes(attributes) + 64
            }
            Step::Keep { .. } | Step::Leave { .. } => 32,
        };
        self.steps.push(step);
        if self.steps.len() >= STEPS || self.step_bytes >= 64 << 10 { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> Result<()> {
        self.step_bytes = 0;
        self.compared.send(&BackupRequest::Steps(std::mem::take(&mut self.steps)))
    }

    /// Keeps an entry of the current directory.
    fn keep_entry(&mut self, earlier: &Earlier) -> Result<()> {
        let level = self.level();
        match &mut level.kept {
            Some(kept) if kept.from + kept.count == earlier.index => kept.add(&earlier.entry.name),
            Some(_) => {
                self.tell_all()?;
                self.level().kept = Some(Kept::new(earlier));
            }
            None => level.kept = Some(Kept::new(earlier)),
        }
        Ok(())
    }
}

impl Kept {
    fn new(earlier: &Earlier) -> Kept {
        let mut kept = Kept { from: earlier.index, count: 0, names: KeptNames::default() };
        kept.add(&earlier.entry.name);
        kept
    }

    fn add(&mut self, name: &[u8]) {
        self.count += 1;
        self.names.add(name);
    }

    fn into_step(self) -> Step {
        Step::Keep { from: self.from, count: self.count, names: self.names.sum() }
    }
}

fn xattr_bytes(attributes: &Attributes) -> usize {
    attributes.xattrs.iter().map(|(name, value)| name.len() + value.len() + 16).sum()
}

impl Tree for RemoteTree<'_> {
    fn enter(&mut self, name: Vec<u8>, attributes: Attributes, earlier: Option<Earlier>) -> Result<()> {
        self.note(|cache| cache.enter(&name, &attributes));
        let is_same = earlier.is_some();
        self.levels.push(Level { name, attributes, earlier, is_entered: false, is_same, kept: None });
        Ok(())
    }

    fn keep(&mut self, earlier: Earlier) -> Result<()> {
        self.note(|cache| cache.entry(&earlier.entry));
        self.keep_entry(&earlier)
    }

    fn has_content(&self, ticket: u64, patience: Duration) -> bool {
        self.supplied.has(ticket, patience)
    }

    fn put(&mut self, mut entry: Entry, ticket: Option<u64>, earlier: Option<Earlier>) -> Result<Option<State>> {
        let length_bytes = entry.name.len() + xattr_bytes(&entry.attributes) + RECIPE_BYTES;
        if length_bytes > MAX_ENTRY_BYTES {
            let (length_bytes, limit_bytes) = (length_bytes as u64, MAX_ENTRY_BYTES as u64);
            return Err(CatalogError::TooLong { what: "directory entry", length_bytes, limit_bytes }.into());
        }
        ticket.map_or(Ok(()), |ticket| self.supplied.take(ticket))?;
        self.note(|cache| cache.entry(&entry));
        self.level().is_same = false;
        self.tell_all()?;
        if let Content::File { size_bytes, recipe } = &mut entry.content {
            // The server has both from the content.
            (*size_bytes, *recipe) = (0, Recipe::default());
        }
        let state = match (ticket, &earlier) {
            // Only the server knows whether the content differs.
            (Some(_), Some(_)) => None,
            (_, Some(_)) => Some(State::Changed),
            (_, None) => Some(State::New),
        };
        self.tell(Step::Put { entry, ticket, earlier: earlier.map(|earlier| earlier.index) })?;
        Ok(state)
    }

    fn skip(&mut self) {
        self.level().is_same = false;
        // Nothing is sent for it: an entry that is missing is one that nobody keeps.
    }

    fn leave(&mut self, has_all: bool) -> Result<bool> {
        self.note(CacheWriter::leave);
        let level = self.level();
        let is_whole = level.is_same && has_all;
        let is_kept =
            is_whole && !level.is_entered && level.earlier.as_ref().is_some_and(|earlier| earlier.entry.attributes == level.attributes);
        if is_kept {
            let level = self.levels.pop().expect("looked above");
            let earlier = level.earlier.expect("looked above");
            self.keep_entry(&earlier)?;
            return Ok(true);
        }
        self.tell_all()?;
        self.levels.pop();
        self.level().is_same = false;
        self.tell(Step::Leave { has_all: is_whole })?;
        Ok(is_whole)
    }

    fn finish(mut self: Box<Self>) -> Result<Finished> {
        self.tell_all()?;
        self.send()?;
        self.compared.send(&BackupRequest::Finish)?;
        match self.compared.answer()? {
            BackupAnswer::Finished { changed, same } => Ok(Finished { root: Recipe::default(), changed, same }),
            other => Err(ClientError::Protocol(format!("a tree ends with {other:?}"))),
        }
    }
}
