//! The assembler of a backup: puts entries into the tree, in the order of the walk.

use crate::Result;
use crate::monitor::{Counter, Watch};
use crate::read::Answer;
use crate::repository::{Earlier, Finished, Making};
use crate::state::{State, drop_xattrs};
use crate::walk::{Event, absolute};
use crate::{ClientError, repository};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use onefold_catalog::{CatalogError, Content, Entry, join};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// How often the assembler checks whether the backup was stopped, while it waits for an answer.
const LOOKS_UP_AFTER: Duration = Duration::from_millis(100);

struct Assembler<'a> {
    tree: Box<dyn repository::Tree + 'a>,
    watch: &'a Watch<'a>,
    entries: Receiver<Answer>,
    /// Entries that came before their turn.
    early: HashMap<u64, Option<Entry>>,
    /// First names of files with several names, if they could not be stored.
    missing: HashSet<Vec<u8>>,
    /// Paths of the directories on the way to the current one.
    paths: Vec<Vec<u8>>,
}

/// Builds the tree; `None` if the walk or the readers stopped before the end.
pub(crate) fn assemble(
    making: &dyn Making,
    watch: &Watch<'_>,
    events: Receiver<Event>,
    entries: Receiver<Answer>,
) -> Result<Option<Finished>> {
    let tree = making.tree()?;
    let mut assembler = Assembler { tree, watch, entries, early: HashMap::new(), missing: HashSet::new(), paths: vec![Vec::new()] };
    for event in events {
        if watch.should_stop() || !assembler.take(event)? {
            return Ok(None);
        }
    }
    if watch.should_stop() {
        return Ok(None);
    }
    let finished = assembler.tree.finish()?;
    watch.count(Counter::ChangedFiles, finished.changed);
    watch.count(Counter::UnmodifiedFiles, finished.same);
    Ok(Some(finished))
}

impl Assembler<'_> {
    /// Returns false if a file's entry will never come.
    fn take(&mut self, event: Event) -> Result<bool> {
        match event {
            Event::Enter { name, attributes, earlier } => {
                self.paths.push(self.path_of(&name));
                self.tree.enter(name, attributes, earlier)?;
            }
            Event::Leave { has_all } => {
                if self.tree.leave(has_all)? {
                    self.watch.count(Counter::UnmodifiedDirectories, 1);
                }
                self.paths.pop();
                self.watch.count(Counter::Directories, 1);
            }
            Event::Same { earlier, size_bytes } => {
                if self.has_first(&earlier.entry) {
                    count(self.watch, &earlier.entry, size_bytes, State::Same);
                    self.tree.keep(earlier)?;
                }
            }
            Event::Ready { entry, size_bytes, earlier } => {
                if self.has_first(&entry) {
                    let state = if earlier.is_some() { State::Changed } else { State::New };
                    count(self.watch, &entry, size_bytes, state);
                    self.put(entry, None, earlier)?;
                }
            }
            Event::Reading { ticket, name, earlier } => {
                let Some(answer) = self.wait(ticket) else { return Ok(false) };
                match answer {
                    Some(entry) => {
                        while !self.tree.has_content(ticket, LOOKS_UP_AFTER) {
                            if self.watch.should_stop() {
                                return Ok(false);
                            }
                        }
                        let size_bytes = if let Content::File { size_bytes, .. } = entry.content { size_bytes } else { 0 };
                        self.watch.count(Counter::Files, 1);
                        self.watch.count(Counter::LogicalBytes, size_bytes);
                        if let Some(state) = self.put(entry, Some(ticket), earlier)? {
                            count_state(self.watch, state);
                        }
                    }
                    None => {
                        let path = self.path_of(&name);
                        self.missing.insert(path);
                        self.tree.skip();
                    }
                }
            }
        }
        Ok(true)
    }

    /// Returns whether the first name of a file could be stored, if this is another one.
    fn has_first(&mut self, entry: &Entry) -> bool {
        if let Content::HardLink { path: first } = &entry.content
            && self.missing.contains(first)
        {
            let path = self.path_of(&entry.name);
            self.watch.error(&absolute(&path), "it is another name of a file that could not be read");
            self.tree.skip();
            return false;
        }
        true
    }

    /// Returns a reader's answer to a ticket. `None`: no answer will come.
    fn wait(&mut self, ticket: u64) -> Option<Option<Entry>> {
        loop {
            if let Some(answer) = self.early.remove(&ticket) {
                return Some(answer);
            }
            match self.entries.recv_timeout(LOOKS_UP_AFTER) {
                Ok((ticket, answer)) => drop(self.early.insert(ticket, answer)),
                // A reader that stops answers nothing more, but the queue stays open: the other reader waits for the
                // walk, and the walk for us.
                Err(RecvTimeoutError::Timeout) if !self.watch.should_stop() => {}
                Err(_) => return None,
            }
        }
    }

    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        join(self.paths.last().expect("the root is left last"), name)
    }

    /// Puts an entry into the tree, if need be without its extended attributes.
    fn put(&mut self, entry: Entry, ticket: Option<u64>, earlier: Option<Earlier>) -> Result<Option<State>> {
        if entry.attributes.xattrs.is_empty() {
            return self.tree.put(entry, ticket, earlier);
        }
        let mut shorter = entry.clone();
        match self.tree.put(entry, ticket, earlier.clone()) {
            Err(ClientError::Catalog(CatalogError::TooLong { .. })) => {
                let entry = &mut shorter;
                let path = self.path_of(&entry.name);
                self.watch.error(&absolute(&path), "its extended attributes are too long and were left out");
                drop_xattrs(&mut entry.attributes);
                self.tree.put(shorter, ticket, earlier)
            }
            done => done,
        }
    }
}

/// Counts a finished entry.
pub(crate) fn count(watch: &Watch<'_>, entry: &Entry, size_bytes: u64, state: State) {
    if !matches!(entry.content, Content::File { .. } | Content::HardLink { .. }) {
        watch.count(Counter::Others, 1);
        return;
    }
    watch.count(Counter::Files, 1);
    count_state(watch, state);
    // The bytes of a file with several names count once.
    if let Content::File { .. } = entry.content {
        watch.count(Counter::LogicalBytes, size_bytes);
    }
}

/// Counts how a file compares with the earlier backup.
fn count_state(watch: &Watch<'_>, state: State) {
    let counter = match state {
        State::New => Counter::NewFiles,
        State::Changed => Counter::ChangedFiles,
        State::Same => Counter::UnmodifiedFiles,
    };
    watch.count(counter, 1);
}
