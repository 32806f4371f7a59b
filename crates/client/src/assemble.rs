//! The assembler of a backup: turns entries in tree order into directories, from the leaves up.

use crate::Result;
use crate::monitor::{Counter, Watch};
use crate::read::Answer;
use crate::state::{State, drop_xattrs};
use crate::walk::{Event, absolute};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use onefold_catalog::{Attributes, CatalogError, Content, DirectoryWriter, Entry, join};
use onefold_engine::{Engine, Recipe, WriteStream};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Entries held back while a directory is unchanged, so that it need not be encoded again.
const HELD_ENTRIES: usize = 4096;
/// How often the assembler checks whether the backup was stopped, while it waits for an answer.
const LOOKS_UP_AFTER: Duration = Duration::from_millis(100);

/// A directory under construction.
struct Frame {
    name: Vec<u8>,
    attributes: Attributes,
    earlier: Option<Entry>,
    path: Vec<u8>,
    writer: DirectoryWriter,
    /// While all entries equal the earlier ones, they wait here.
    held: Vec<Entry>,
    same: bool,
}

struct Assembler<'a> {
    digest_bytes: usize,
    metadata: &'a Mutex<WriteStream>,
    watch: &'a Watch<'a>,
    entries: Receiver<Answer>,
    /// Entries that came before their turn.
    early: HashMap<u64, Option<Entry>>,
    /// First names of files with several names, if they could not be stored.
    missing: HashSet<Vec<u8>>,
    frames: Vec<Frame>,
}

/// Builds the tree; `None` if the walk or the readers stopped before the end.
pub(crate) fn assemble(
    engine: &Arc<Engine>,
    metadata: &Mutex<WriteStream>,
    watch: &Watch<'_>,
    events: Receiver<Event>,
    entries: Receiver<Answer>,
) -> Result<Option<Recipe>> {
    let mut assembler = Assembler {
        digest_bytes: engine.digest_bytes(),
        metadata,
        watch,
        entries,
        early: HashMap::new(),
        missing: HashSet::new(),
        frames: Vec::new(),
    };
    assembler.enter(Vec::new(), Attributes::default(), None);
    for event in events {
        if watch.should_stop() || !assembler.take(event)? {
            return Ok(None);
        }
    }
    if watch.should_stop() {
        return Ok(None);
    }
    let root = assembler.frames.pop().expect("the root is entered first and left last");
    assembler.close(root, false).map(Some)
}

impl Assembler<'_> {
    fn enter(&mut self, name: Vec<u8>, attributes: Attributes, earlier: Option<Entry>) {
        let path = self.frames.last().map_or(Vec::new(), |above| join(&above.path, &name));
        let same = earlier.is_some();
        self.frames.push(Frame {
            name,
            attributes,
            earlier,
            path,
            writer: DirectoryWriter::new(self.digest_bytes),
            held: Vec::new(),
            same,
        });
    }

    /// Returns false if a file's entry will never come.
    fn take(&mut self, event: Event) -> Result<bool> {
        match event {
            Event::Enter { name, attributes, earlier } => self.enter(name, attributes, earlier),
            Event::Leave { has_all } => {
                let mut frame = self.frames.pop().expect("the walk leaves what it has entered");
                let (name, attributes) = (std::mem::take(&mut frame.name), std::mem::take(&mut frame.attributes));
                let earlier = frame.earlier.clone();
                let recipe = self.close(frame, has_all)?;
                self.watch.count(Counter::Directories, 1);
                let entry = Entry { name, attributes, content: Content::Directory { recipe } };
                let same = earlier.as_ref() == Some(&entry);
                self.push(entry, same)?;
            }
            Event::Ready { entry, size_bytes, state } => {
                if let Content::HardLink { path: first } = &entry.content
                    && self.missing.contains(first)
                {
                    let path = self.path_of(&entry.name);
                    self.watch.error(&absolute(&path), "it is another name of a file that could not be read");
                    self.skip();
                    return Ok(true);
                }
                count(self.watch, &entry, size_bytes, state);
                self.push(entry, state == State::Same)?;
            }
            Event::Reading { ticket, name, earlier } => {
                let Some(answer) = self.wait(ticket) else { return Ok(false) };
                match answer {
                    Some(entry) => {
                        let size_bytes = if let Content::File { size_bytes, .. } = entry.content { size_bytes } else { 0 };
                        count(self.watch, &entry, size_bytes, State::between(earlier.as_ref(), &entry));
                        let same = earlier.as_ref() == Some(&entry);
                        self.push(entry, same)?;
                    }
                    None => {
                        let path = self.path_of(&name);
                        self.missing.insert(path);
                        self.skip();
                    }
                }
            }
        }
        Ok(true)
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

    fn frame(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("the root is left last")
    }

    fn path_of(&mut self, name: &[u8]) -> Vec<u8> {
        join(&self.frame().path, name)
    }

    /// Notes that a name will be missing from the directory.
    fn skip(&mut self) {
        self.frame().same = false;
    }

    /// Appends an entry to the innermost directory. `same`: it equals the earlier one exactly.
    fn push(&mut self, entry: Entry, same: bool) -> Result<()> {
        let frame = self.frames.last_mut().expect("the root is left last");
        frame.same &= same;
        frame.held.push(entry);
        if !frame.same || frame.held.len() > HELD_ENTRIES {
            write_held(frame, self.metadata, self.watch)?;
        }
        Ok(())
    }

    /// Returns the recipe of a complete directory.
    fn close(&mut self, mut frame: Frame, has_all: bool) -> Result<Recipe> {
        if frame.same
            && has_all
            && let Some(Entry { content: Content::Directory { recipe }, .. }) = &frame.earlier
        {
            self.watch.count(Counter::UnmodifiedDirectories, 1);
            return Ok(recipe.clone());
        }
        write_held(&mut frame, self.metadata, self.watch)?;
        Ok(frame.writer.finish(&mut self.metadata.lock())?)
    }
}

/// Counts a finished entry.
pub(crate) fn count(watch: &Watch<'_>, entry: &Entry, size_bytes: u64, state: State) {
    if !matches!(entry.content, Content::File { .. } | Content::HardLink { .. }) {
        watch.count(Counter::Others, 1);
        return;
    }
    watch.count(Counter::Files, 1);
    let counter = match state {
        State::New => Counter::NewFiles,
        State::Changed => Counter::ChangedFiles,
        State::Same => Counter::UnmodifiedFiles,
    };
    watch.count(counter, 1);
    // The bytes of a file with several names count once.
    if let Content::File { .. } = entry.content {
        watch.count(Counter::LogicalBytes, size_bytes);
    }
}

/// Encodes the entries that were held back.
fn write_held(frame: &mut Frame, metadata: &Mutex<WriteStream>, watch: &Watch<'_>) -> Result<()> {
    // Once some entries of a directory are encoded, the rest is too.
    let mut metadata = metadata.lock();
    for mut entry in frame.held.drain(..) {
        match frame.writer.push(&mut metadata, &entry) {
            Err(CatalogError::TooLong { .. }) if !entry.attributes.xattrs.is_empty() => {
                watch.error(&absolute(&join(&frame.path, &entry.name)), "its extended attributes are too long and were left out");
                drop_xattrs(&mut entry.attributes);
                frame.writer.push(&mut metadata, &entry)?;
            }
            result => result?,
        }
        frame.same = false;
    }
    Ok(())
}
