//! The walk of a backup: lists directories, reads attributes, decides what has to be read.
//!
//! Everything is looked up relative to an open directory, so a directory that is renamed meanwhile cannot lead the walk
//! astray.

use crate::job::Job;
use crate::marker::Markers;
use crate::monitor::{Counter, Watch};
use crate::repository::{Compared, Earlier, Listing as Entries};
use crate::source::{self, Found, Listing};
use crate::state::{looks_same, set_xattrs};
use crate::{ClientError, Excludes, Result};
use crossbeam_channel::{Sender, TrySendError};
use onefold_catalog::{Attributes, Content, Entry, components, join};
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::iter::Peekable;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

/// A batch is handed over when it has this many bytes to read,
const BATCH_BYTES: u64 = 4 << 20;
/// this many files,
const BATCH_FILES: usize = 256;
/// or files of this many directories, each of which is kept open.
const BATCH_DIRECTORIES: usize = 32;

/// What the walk tells the assembler, in tree order: names of a directory are sorted, and its content comes between its
/// `Enter` and its `Leave`. The root has neither.
#[derive(Debug)]
pub(crate) enum Event {
    /// A directory begins.
    Enter { name: Vec<u8>, attributes: Attributes, earlier: Option<Earlier> },
    /// The directory ends. `has_all`: nothing of the earlier directory is missing.
    Leave { has_all: bool },
    /// An entry as the earlier directory has it.
    Same { earlier: Earlier, size_bytes: u64 },
    /// Another entry that needs no reading.
    Ready { entry: Entry, size_bytes: u64, earlier: Option<Earlier> },
    /// A file whose entry comes from a reader under this ticket.
    Reading { ticket: u64, name: Vec<u8>, earlier: Option<Earlier> },
}

/// The requested paths, as a tree of components.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// Everything below is wanted.
    whole: bool,
    below: BTreeMap<Vec<u8>, Wanted>,
}

impl Wanted {
    pub(crate) fn new(paths: &[Vec<u8>]) -> Wanted {
        let mut root = Wanted::default();
        for path in paths {
            components(path).fold(&mut root, |node, component| node.below.entry(component.to_vec()).or_default()).whole = true;
        }
        root
    }
}

/// The context of a walk.
pub(crate) struct Walk<'a> {
    pub(crate) compared: &'a dyn Compared,
    pub(crate) watch: &'a Watch<'a>,
    pub(crate) excludes: &'a Excludes,
    pub(crate) one_file_system: bool,
    pub(crate) force_read: bool,
    /// The content of named devices and FIFOs is read.
    pub(crate) read_special: bool,
    pub(crate) markers: Markers<'a>,
    /// Only count; report and read nothing.
    pub(crate) is_scan: bool,
    /// Count nothing as found: a scan does that.
    pub(crate) is_scanned: bool,
    /// Device and inode of the directories that are left out: the store's, and the client's own.
    pub(crate) left_out: Vec<(u64, u64)>,
    pub(crate) events: Sender<Event>,
    pub(crate) jobs: Sender<Vec<Job>>,
}

/// The assembler is gone; it knows why.
struct Closed;

impl Walk<'_> {
    /// Walks the `wanted` paths.
    pub(crate) fn run(self, wanted: &Wanted) -> Result<()> {
        let root = source::open(rustix::fs::CWD, b"/", OFlags::DIRECTORY).map_err(|error| ClientError::io("open", "/", error))?;
        let found = source::find_open(&root).map_err(|error| ClientError::io("look at", "/", error))?;
        let mut walker = Walker {
            walk: &self,
            levels: Vec::new(),
            first_names: HashMap::new(),
            batch: Vec::new(),
            batch_bytes: 0,
            batch_directories: HashSet::new(),
            tickets: 0,
        };
        let level = Level::new(root, Vec::new(), Names::of(wanted), found.attributes.device);
        if let Some(mut level) = walker.list(level) {
            level.earlier = Comparing::new(if self.is_scan { None } else { self.compared.root() });
            walker.levels.push(level);
        }
        // If the assembler is gone, it has said why.
        let _ = walker.run();
        Ok(())
    }
}

/// Which names of a directory are wanted.
#[derive(Clone, Copy)]
enum Names<'a> {
    All,
    These(&'a Wanted),
}

impl<'a> Names<'a> {
    fn of(wanted: &'a Wanted) -> Names<'a> {
        if wanted.whole { Names::All } else { Names::These(wanted) }
    }
}

/// A directory on the current path of the walk.
struct Level<'a> {
    directory: Arc<OwnedFd>,
    /// Path from the root, without the leading `/`.
    path: Vec<u8>,
    names: Names<'a>,
    listing: Listing,
    next: usize,
    earlier: Option<Comparing>,
    /// Whether every name of the earlier directory was found again.
    has_all: bool,
    /// The device to stay on.
    device: u64,
}

/// The earlier directory, as far as it was not compared yet.
struct Comparing {
    entries: Peekable<Entries>,
    /// The place of the next entry.
    index: u64,
}

impl Comparing {
    fn new(entries: Option<Entries>) -> Option<Comparing> {
        entries.map(|entries| Comparing { entries: entries.peekable(), index: 0 })
    }

    fn next(&mut self) -> Option<onefold_catalog::Result<Earlier>> {
        let entry = self.entries.next()?;
        Some(entry.map(|entry| {
            self.index += 1;
            Earlier { entry, index: self.index - 1 }
        }))
    }
}

impl<'a> Level<'a> {
    fn new(directory: OwnedFd, path: Vec<u8>, names: Names<'a>, device: u64) -> Level<'a> {
        Level { directory: Arc::new(directory), path, names, listing: Listing::default(), next: 0, earlier: None, has_all: true, device }
    }

    /// Returns the earlier entry of this name. Names must be looked up in order.
    fn earlier(&mut self, name: &[u8], watch: &Watch<'_>) -> Option<Earlier> {
        loop {
            let order = match self.earlier.as_mut()?.entries.peek()? {
                Ok(entry) => entry.name.as_slice().cmp(name),
                Err(_) => Ordering::Less,
            };
            if order.is_gt() {
                return None;
            }
            match self.earlier.as_mut()?.next()? {
                Ok(entry) if order.is_eq() => return Some(entry),
                Ok(_) => {}
                Err(error) => watch.warn(&absolute(&self.path), format_args!("cannot compare with the previous backup: {error}")),
            }
            self.has_all = false;
        }
    }

    /// Returns whether nothing is left of the earlier directory and nothing was missed.
    fn has_all(&mut self) -> bool {
        self.has_all && self.earlier.as_mut().is_none_or(|earlier| earlier.entries.peek().is_none())
    }
}

struct Walker<'a> {
    walk: &'a Walk<'a>,
    levels: Vec<Level<'a>>,
    /// The first name of each file with several names.
    first_names: HashMap<(u64, u64), Vec<u8>>,
    batch: Vec<Job>,
    batch_bytes: u64,
    batch_directories: HashSet<usize>,
    tickets: u64,
}

impl<'a> Walker<'a> {
    fn run(&mut self) -> std::result::Result<(), Closed> {
        while let Some(level) = self.levels.last_mut() {
            if self.walk.watch.should_stop() {
                return Err(Closed);
            }
            let Some(name) = level.listing.get(level.next) else {
                let has_all = level.has_all();
                self.levels.pop();
                if !self.levels.is_empty() {
                    self.tell(Event::Leave { has_all })?;
                }
                continue;
            };
            let name = name.to_vec();
            level.next += 1;
            self.visit(name)?;
        }
        self.hand_over()
    }

    fn visit(&mut self, name: Vec<u8>) -> std::result::Result<(), Closed> {
        let walk = self.walk;
        let level = self.levels.last_mut().expect("run has looked");
        let path = join(&level.path, &name);
        // On the way to a wanted path, links are followed: the user named what is behind them.
        let (names, was_named) = match level.names {
            Names::All => (Names::All, false),
            Names::These(wanted) => match wanted.below.get(&name) {
                Some(wanted) => (Names::of(wanted), wanted.whole),
                None => return Ok(()),
            },
        };
        let on_the_way = matches!(names, Names::These(_));
        if !on_the_way && walk.excludes.matches(&path) {
            walk.watch.count(Counter::Excluded, 1);
            return Ok(());
        }
        let found = match source::find(&*level.directory, &name, on_the_way) {
            Ok(found) => found,
            Err(Errno::NOENT) if !was_named && !on_the_way => {
                walk.watch.warn(&absolute(&path), "vanished before it was read");
                return Ok(());
            }
            Err(error) => {
                walk.watch.error(&absolute(&path), format_args!("cannot look at it: {error}"));
                return Ok(());
            }
        };
        if walk.left_out.contains(&found.identity()) {
            walk.watch.count(Counter::Excluded, 1);
            return Ok(());
        }
        // A named device or FIFO is read through links to it.
        let special = if was_named && walk.read_special { special(&level.directory, &name) } else { None };
        let (found, is_special) = special.map_or((found, false), |special| (special, true));
        if !walk.is_scanned && found.kind != FileType::Directory {
            walk.watch.count(Counter::Found, 1);
        }
        let earlier = level.earlier(&name, walk.watch);
        if found.kind == FileType::Directory {
            return self.enter(name, path, found, earlier, names, was_named);
        }
        if on_the_way {
            walk.watch.error(&absolute(&path), "is not a directory");
            return self.leave_out();
        }
        if is_special {
            if !walk.is_scanned {
                walk.watch.count(Counter::FoundBytes, found.size_bytes);
            }
            return self.read(name, path, found.size_bytes, earlier, true);
        }
        let first = if found.attributes.links > 1 { self.first_names.get(&found.identity()).cloned() } else { None };
        match first {
            Some(first) => self.other(name, &path, found, earlier, Some(Content::HardLink { path: first })),
            None => {
                if found.attributes.links > 1 {
                    self.first_names.insert(found.identity(), path.clone());
                }
                match found.kind {
                    FileType::RegularFile => self.file(name, path, found, earlier),
                    _ => self.other(name, &path, found, earlier, None),
                }
            }
        }
    }

    fn enter(
        &mut self,
        name: Vec<u8>,
        path: Vec<u8>,
        mut found: Found,
        earlier: Option<Earlier>,
        names: Names<'a>,
        was_named: bool,
    ) -> std::result::Result<(), Closed> {
        let walk = self.walk;
        let level = self.levels.last().expect("visit has looked");
        let on_the_way = matches!(names, Names::These(_));
        let flags = if on_the_way { OFlags::DIRECTORY } else { OFlags::DIRECTORY | OFlags::NOFOLLOW };
        let directory = match source::open(&*level.directory, &name, flags) {
            Ok(directory) => directory,
            // A mount point where nothing can be mounted reports the same error as a missing name.
            Err(Errno::NOENT) if !was_named && !on_the_way && has_vanished(&level.directory, &name) => {
                walk.watch.warn(&absolute(&path), "vanished before it was read");
                return self.leave_out();
            }
            Err(error) => {
                walk.watch.error(&absolute(&path), format_args!("cannot open it: {error}"));
                return self.leave_out();
            }
        };
        let own_device = match walk.one_file_system.then(|| source::find_open(&directory)) {
            // Opening it may have mounted a file system there.
            Some(Ok(opened)) => opened.attributes.device,
            Some(Err(error)) => {
                walk.watch.error(&absolute(&path), format_args!("cannot look at it: {error}"));
                return self.leave_out();
            }
            None => found.attributes.device,
        };
        // The file system to stay on is that of the named path.
        let device = if matches!(level.names, Names::All) { level.device } else { own_device };
        match &earlier {
            Some(Earlier { entry: earlier, .. }) if looks_same(&earlier.attributes, &found.attributes) => {
                found.attributes.xattrs.clone_from(&earlier.attributes.xattrs);
                found.attributes.flags = earlier.attributes.flags;
            }
            _ if walk.is_scan => {}
            _ => {
                set_xattrs(&mut found.attributes, source::xattrs_of(&directory), walk.watch, &absolute(&path));
                found.attributes.flags = source::flags_of(&directory);
            }
        }
        walk.watch.current(&absolute(&path));
        let crosses = walk.one_file_system && own_device != device;
        let mut level = Level::new(directory, path, names, device);
        let earlier_entries = || self.walk.compared.directory(&earlier.as_ref()?.entry);
        if crosses {
            level.has_all = earlier_entries().is_some_and(|mut entries| entries.next().is_none());
        } else {
            match self.list(level) {
                Some(listed) => level = listed,
                None => return self.leave_out(),
            }
            level.earlier = Comparing::new(earlier_entries());
        }
        self.tell(Event::Enter { name, attributes: found.attributes, earlier })?;
        self.levels.push(level);
        Ok(())
    }

    /// Notes that a name is left out although the earlier directory may have it: that directory cannot be reused
    /// completely.
    fn leave_out(&mut self) -> std::result::Result<(), Closed> {
        self.levels.last_mut().expect("visit has looked").has_all = false;
        Ok(())
    }

    /// Reads the names of a directory. `None`: that failed, which has been reported.
    fn list(&self, mut level: Level<'a>) -> Option<Level<'a>> {
        level.listing = match level.names {
            Names::These(wanted) => Listing::of(wanted.below.keys()),
            Names::All => match Listing::read(&*level.directory) {
                Ok(listing) => listing,
                Err(error) => {
                    self.walk.watch.error(&absolute(&level.path), format_args!("cannot list it: {error}"));
                    return None;
                }
            },
        };
        if matches!(level.names, Names::All)
            && let Some(marker) = self.walk.markers.in_directory(&level.directory, &level.listing)
        {
            self.walk.watch.count(Counter::Excluded, 1);
            level.listing = Listing::of(std::iter::once(&marker.to_vec()));
        }
        Some(level)
    }

    fn file(&mut self, name: Vec<u8>, path: Vec<u8>, found: Found, earlier: Option<Earlier>) -> std::result::Result<(), Closed> {
        let watch = self.walk.watch;
        if !self.walk.is_scanned {
            watch.count(Counter::FoundBytes, found.size_bytes);
        }
        match earlier {
            Some(earlier) if self.is_unchanged(&earlier.entry, &found) => {
                watch.count(Counter::DoneBytes, found.size_bytes);
                self.tell(Event::Same { earlier, size_bytes: found.size_bytes })
            }
            earlier => self.read(name, path, found.size_bytes, earlier, false),
        }
    }

    /// Returns whether a file can be reused without reading it.
    fn is_unchanged(&self, earlier: &Entry, found: &Found) -> bool {
        let Content::File { size_bytes, .. } = &earlier.content else { return false };
        *size_bytes == found.size_bytes
            && looks_same(&earlier.attributes, &found.attributes)
            && !self.walk.force_read
            // Reading the file again restores lost chunks.
            && self.walk.compared.is_sound(earlier)
    }

    /// Hands a file to the readers.
    fn read(
        &mut self,
        name: Vec<u8>,
        path: Vec<u8>,
        size_bytes: u64,
        earlier: Option<Earlier>,
        is_special: bool,
    ) -> std::result::Result<(), Closed> {
        if self.walk.is_scan {
            return Ok(());
        }
        let directory = self.levels.last().expect("visit has looked").directory.clone();
        self.batch_directories.insert(Arc::as_ptr(&directory) as usize);
        self.batch_bytes += size_bytes;
        self.tickets += 1;
        let ticket = self.tickets;
        let of_file = |earlier: &Earlier| match &earlier.entry.content {
            Content::File { recipe, .. } => Some(recipe.clone()),
            _ => None,
        };
        let recipe = earlier.as_ref().and_then(of_file);
        self.batch.push(Job { ticket, directory, name: name.clone(), path, size_bytes, is_special, earlier: recipe });
        if self.batch_bytes >= BATCH_BYTES || self.batch.len() >= BATCH_FILES || self.batch_directories.len() >= BATCH_DIRECTORIES {
            self.hand_over()?;
        }
        self.tell(Event::Reading { ticket, name, earlier })
    }

    /// Adds an entry without data of its own. `content` is that of a hard link.
    fn other(
        &mut self,
        name: Vec<u8>,
        path: &[u8],
        mut found: Found,
        earlier: Option<Earlier>,
        content: Option<Content>,
    ) -> std::result::Result<(), Closed> {
        if self.walk.is_scan {
            return Ok(());
        }
        let watch = self.walk.watch;
        let size_bytes = if found.kind == FileType::RegularFile { found.size_bytes } else { 0 };
        let directory = self.levels.last().expect("visit has looked").directory.clone();
        let looks_same = earlier.as_ref().is_some_and(|earlier| looks_same(&earlier.entry.attributes, &found.attributes));
        let (major, minor) = (found.major, found.minor);
        let content = match (content, found.kind) {
            (Some(content), _) => content,
            (None, FileType::Symlink) => {
                match rustix::fs::readlinkat(&*directory, std::ffi::OsString::from_vec(name.clone()), Vec::new()) {
                    Ok(target) => Content::Symlink { target: target.into_bytes() },
                    Err(Errno::NOENT) => {
                        watch.warn(&absolute(path), "vanished before it was read");
                        return self.leave_out();
                    }
                    Err(error) => {
                        watch.error(&absolute(path), format_args!("cannot read the link: {error}"));
                        return self.leave_out();
                    }
                }
            }
            (None, FileType::CharacterDevice) => Content::CharacterDevice { major, minor },
            (None, FileType::BlockDevice) => Content::BlockDevice { major, minor },
            (None, FileType::Fifo) => Content::Fifo,
            (None, FileType::Socket) => Content::Socket,
            (None, _) => {
                watch.error(&absolute(path), "files of its type cannot be backed up");
                return self.leave_out();
            }
        };
        match &earlier {
            Some(earlier) if looks_same => found.attributes.xattrs.clone_from(&earlier.entry.attributes.xattrs),
            _ => match source::xattrs_at(&*directory, &name) {
                Err(Errno::NOENT) if has_vanished(&directory, &name) => {
                    watch.warn(&absolute(path), "vanished before it was read");
                    return self.leave_out();
                }
                read => set_xattrs(&mut found.attributes, read, watch, &absolute(path)),
            },
        }
        let entry = Entry { name, attributes: found.attributes, content };
        match earlier {
            Some(earlier) if earlier.entry == entry => self.tell(Event::Same { earlier, size_bytes }),
            earlier => self.tell(Event::Ready { entry, size_bytes, earlier }),
        }
    }

    fn tell(&mut self, event: Event) -> std::result::Result<(), Closed> {
        if self.walk.is_scan {
            return Ok(());
        }
        match self.walk.events.try_send(event) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(event)) => {
                // The assembler may be waiting for a file of the batch.
                self.hand_over()?;
                self.walk.events.send(event).map_err(|_| Closed)
            }
            Err(TrySendError::Disconnected(_)) => Err(Closed),
        }
    }

    fn hand_over(&mut self) -> std::result::Result<(), Closed> {
        self.batch_bytes = 0;
        self.batch_directories.clear();
        let batch = std::mem::take(&mut self.batch);
        if batch.is_empty() {
            return Ok(());
        }
        self.walk.jobs.send(batch).map_err(|_| Closed)
    }
}

/// Returns whether a name is gone. A name that is something else now is missing from the backup, so the backup must be
/// partial.
fn has_vanished(directory: &OwnedFd, name: &[u8]) -> bool {
    source::find(directory, name, false).is_err_and(|error| error == Errno::NOENT)
}

/// Returns a named device or FIFO, following links. `None`: it is neither.
fn special(directory: &OwnedFd, name: &[u8]) -> Option<Found> {
    let mut found = source::find(directory, name, true).ok()?;
    if !matches!(found.kind, FileType::BlockDevice | FileType::Fifo) {
        return None;
    }
    if found.kind == FileType::BlockDevice {
        found.size_bytes = source::device_bytes(directory, name).unwrap_or(0);
    }
    Some(found)
}

/// Returns the path as a person knows it.
pub(crate) fn absolute(path: &[u8]) -> Vec<u8> {
    let mut absolute = vec![b'/'];
    absolute.extend_from_slice(path);
    absolute
}
