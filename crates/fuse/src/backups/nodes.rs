//! What the kernel knows of the tree: a node for each name that it has looked up and not forgotten.
//!
//! # Numbers
//! The number of a node is a hash of the number above it and its name: so it is the same in every mount, and a
//! directory can be listed without making nodes. Two nodes of one hash get different numbers, as long as both are
//! known.
//!
//! # Links
//! Names of one file are one node: that of its first name.

use super::held::{Held, Opening};
use onefold_catalog::{CatalogError, Content, DirectoryReader, Entry, components};
use onefold_engine::Recipe;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

/// The number of the root, which the kernel knows.
pub(super) const ROOT: u64 = 1;

pub(super) type Failed = Box<dyn Error + Send + Sync>;

/// Something with a number.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) number: u64,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// A directory above the backups, by its path.
    Above(String),
    /// A link above the backups.
    Link(String),
    /// The root of a backup.
    Backup(Arc<Held>),
    /// Something in a backup.
    In(Inside),
}

#[derive(Debug)]
pub(super) struct Inside {
    pub(super) held: Arc<Held>,
    name: Box<[u8]>,
    /// `None` only while it is dropped.
    above: Option<Arc<Node>>,
    /// With the number of the opening whose chunks it refers to. Held only for a look or a change.
    found: Mutex<(u64, Arc<Entry>)>,
}

impl Drop for Inside {
    fn drop(&mut self) {
        // One by one: a tree may be deeper than a stack.
        let mut above = self.above.take();
        while let Some(mut node) = above.and_then(Arc::into_inner) {
            above = match &mut node.kind {
                Kind::In(inside) => inside.above.take(),
                _ => None,
            };
        }
    }
}

/// Returns the number of a name.
pub(super) fn number_of(above: u64, name: &[u8]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&above.to_le_bytes()).update(name);
    let mut number = [0; 8];
    hasher.finalize_xof().fill(&mut number);
    // 0 is no number, and 1 the root.
    u64::from_le_bytes(number).max(ROOT + 1)
}

/// Returns the number of the root of a backup.
fn number_of_backup(held: &Held) -> u64 {
    number_of(0, held.backup.id.to_string().as_bytes())
}

impl Inside {
    /// Returns the entry, as any opening had it: its attributes are right, its recipe may mean nothing now.
    pub(super) fn entry(&self) -> Arc<Entry> {
        self.found.lock().1.clone()
    }

    /// Returns the entry as an opening has it, if it was found in that.
    fn known_in(&self, opening: &Opening) -> Option<Arc<Entry>> {
        let found = self.found.lock();
        (found.0 == opening.number).then(|| found.1.clone())
    }

    /// Returns the entry as an opening has it.
    fn entry_in(&self, opening: &Opening) -> Result<Arc<Entry>, Failed> {
        if let Some(entry) = self.known_in(opening) {
            return Ok(entry);
        }
        // From the nearest directory that is known in this opening down to here.
        let mut way: Vec<&Inside> = vec![self];
        let mut above = self.above.as_deref();
        let mut directory = loop {
            match above.map(|node| &node.kind) {
                Some(Kind::In(inside)) => match inside.known_in(opening) {
                    Some(entry) => break directory_of(&entry).ok_or_else(|| gone(&inside.name))?,
                    None => {
                        way.push(inside);
                        above = inside.above.as_deref();
                    }
                },
                _ => break opening.opened.root.clone(),
            }
        };
        loop {
            let Some(next) = way.pop() else { return Err(gone(&self.name).into()) };
            let found = DirectoryReader::find(&opening.opened.chunks, &directory, &next.name)?.ok_or_else(|| gone(&next.name))?;
            let found = Arc::new(found);
            *next.found.lock() = (opening.number, found.clone());
            if way.is_empty() {
                return Ok(found);
            }
            directory = directory_of(&found).ok_or_else(|| gone(&next.name))?;
        }
    }
}

fn directory_of(entry: &Entry) -> Option<Recipe> {
    match &entry.content {
        Content::Directory { recipe } => Some(recipe.clone()),
        _ => None,
    }
}

/// The error of something that was in a backup and is not any more.
fn gone(name: &[u8]) -> CatalogError {
    CatalogError::PathNotFound { path: String::from_utf8_lossy(name).into_owned() }
}

impl Node {
    /// Returns the backup that it is in.
    pub(super) fn held(&self) -> Option<&Arc<Held>> {
        match &self.kind {
            Kind::Backup(held) | Kind::In(Inside { held, .. }) => Some(held),
            Kind::Above(_) | Kind::Link(_) => None,
        }
    }

    /// Returns the recipe of its entries, in an opening of its backup. `None`: it is no directory of a backup.
    pub(super) fn directory(&self, opening: &Opening) -> Result<Option<Recipe>, Failed> {
        match &self.kind {
            Kind::Backup(_) => Ok(Some(opening.opened.root.clone())),
            Kind::In(inside) => Ok(directory_of(&*inside.entry_in(opening)?)),
            Kind::Above(_) | Kind::Link(_) => Ok(None),
        }
    }

    /// Returns the recipe of its content. `None`: it is no file of a backup.
    pub(super) fn file(&self, opening: &Opening) -> Result<Option<Recipe>, Failed> {
        let Kind::In(inside) = &self.kind else { return Ok(None) };
        match &inside.entry_in(opening)?.content {
            Content::File { recipe, .. } => Ok(Some(recipe.clone())),
            _ => Ok(None),
        }
    }

    /// Returns the path in the backup, for people.
    pub(super) fn path(&self) -> String {
        let (mut node, mut names) = (self, Vec::new());
        let begin = loop {
            match &node.kind {
                Kind::Above(path) => break path.clone(),
                Kind::Link(target) => break target.clone(),
                Kind::Backup(held) => break format!("backup {}:", held.backup.id.short()),
                Kind::In(inside) => {
                    names.push(String::from_utf8_lossy(&inside.name));
                    match &inside.above {
                        Some(above) => node = above,
                        None => break String::new(),
                    }
                }
            }
        };
        names.into_iter().rev().fold(begin, |path, name| format!("{path}/{name}"))
    }
}

/// The nodes that the kernel knows, with how often it looked each up.
#[derive(Debug)]
pub(super) struct Nodes {
    known: Mutex<HashMap<u64, (Arc<Node>, u64)>>,
}

/// Returns whether two nodes are the same thing.
fn is_same(one: &Node, other: &Node) -> bool {
    match (&one.kind, &other.kind) {
        (Kind::Above(one), Kind::Above(other)) | (Kind::Link(one), Kind::Link(other)) => one == other,
        (Kind::Backup(one), Kind::Backup(other)) => one.backup.id == other.backup.id,
        (Kind::In(one), Kind::In(other)) => {
            let above = |inside: &Inside| inside.above.as_ref().map(|node| node.number);
            above(one) == above(other) && one.name == other.name
        }
        _ => false,
    }
}

impl Nodes {
    pub(super) fn new() -> Nodes {
        let root = Arc::new(Node { number: ROOT, kind: Kind::Above(String::new()) });
        Nodes { known: Mutex::new(HashMap::from([(ROOT, (root, 1))])) }
    }

    /// Returns a node that the kernel knows.
    pub(super) fn get(&self, number: u64) -> Option<Arc<Node>> {
        self.known.lock().get(&number).map(|(node, _)| node.clone())
    }

    /// Notes that the kernel gets to know a node. Returns the one that it is to know.
    pub(super) fn look_up(&self, mut node: Node) -> Arc<Node> {
        let mut known = self.known.lock();
        loop {
            match known.get_mut(&node.number) {
                Some((there, count)) if is_same(there, &node) => {
                    *count += 1;
                    return there.clone();
                }
                // Another one has this number.
                Some(_) => node.number = node.number.wrapping_add(1).max(ROOT + 1),
                None => {
                    let node = Arc::new(node);
                    known.insert(node.number, (node.clone(), 1));
                    return node;
                }
            }
        }
    }

    /// Notes that the kernel forgets this many look-ups of a node.
    pub(super) fn forget(&self, number: u64, times: u64) {
        let mut known = self.known.lock();
        if number != ROOT
            && let Some((_, count)) = known.get_mut(&number)
        {
            *count = count.saturating_sub(times);
            if *count == 0 {
                let gone = known.remove(&number);
                drop(known);
                // It may be the last that knows a long way up.
                drop(gone);
            }
        }
    }
}

/// Returns the node of a directory above the backups, or a link there.
pub(super) fn above(parent: u64, name: &str, kind: Kind) -> Node {
    Node { number: number_of(parent, name.as_bytes()), kind }
}

/// Returns the node of a backup, whose number does not depend on its name.
pub(super) fn of_backup(held: Arc<Held>) -> Node {
    Node { number: number_of_backup(&held), kind: Kind::Backup(held) }
}

/// Returns the node of an entry of a directory. Of a link, that of the first name.
pub(super) fn inside(held: &Arc<Held>, above: &Arc<Node>, opening: &Opening, entry: Entry) -> Result<Node, Failed> {
    if let Content::HardLink { path } = &entry.content {
        return at(held, opening, path);
    }
    let (number, name) = (number_of(above.number, &entry.name), entry.name.clone().into_boxed_slice());
    let found = Mutex::new((opening.number, Arc::new(entry)));
    Ok(Node { number, kind: Kind::In(Inside { held: held.clone(), name, above: Some(above.clone()), found }) })
}

/// Returns the number of an entry of a directory, without making a node.
pub(super) fn number_of_entry(held: &Held, above: u64, entry: &Entry) -> u64 {
    match &entry.content {
        Content::HardLink { path } => components(path).fold(number_of_backup(held), number_of),
        _ => number_of(above, &entry.name),
    }
}

/// Returns the node at a path of a backup.
fn at(held: &Arc<Held>, opening: &Opening, path: &[u8]) -> Result<Node, Failed> {
    let mut node = of_backup(held.clone());
    for name in components(path) {
        let directory = node.directory(opening)?.ok_or_else(|| gone(path))?;
        let entry = DirectoryReader::find(&opening.opened.chunks, &directory, name)?.ok_or_else(|| gone(path))?;
        if matches!(entry.content, Content::HardLink { .. }) {
            // The first name of a file is no link, unless somebody made that up.
            return Err(gone(path).into());
        }
        node = inside(held, &Arc::new(node), opening, entry)?;
    }
    // A directory has one name, unless somebody made that up.
    match &node.kind {
        Kind::In(inside) if !matches!(inside.entry().content, Content::Directory { .. }) => Ok(node),
        _ => Err(gone(path).into()),
    }
}
