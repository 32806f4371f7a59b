//! What liveness by marks has in memory.

use crate::Address;
use crate::liveness::marked::file::{Label, MarkFile};
use crate::liveness::marked::objects::Saved;
use crate::liveness::marked::origins::{Chunks, Origins};
use crate::liveness::reference::Group;
use crate::liveness::slots::Slots;
use onefold_fingerprint::Fingerprint;
use onefold_ground::Ground;
use onefold_index::ObjectIndex;
use onefold_storage::{ChunkStore, CommittedSlots, Origin};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Directory of the mark files.
pub(super) const MARKS: &str = "marks";
/// Memory for the chunks that are added during a run. If it is used up, the run ends early.
const ADDED_BYTES: usize = 64 << 20;
/// Stands for all groups in [`Changed`], and for the list of what has to be swept in [`Saved`].
pub(super) const ALL: Group = Group::new(0, 0);

/// The kinds of changes of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kinds {
    pub(super) grown: bool,
    pub(super) dropped: bool,
}

/// What is in memory of a run whose marks are made.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) committed: CommittedSlots,
    /// References that were added since the floor, and what they lead to.
    pub(super) added: Chunks,
    /// The names of the latest of these: the index was not asked for them yet.
    pub(super) names: Vec<(Fingerprint, Address)>,
    /// Of these: what was followed.
    pub(super) followed: Chunks,
    /// Whether its marks and its plan are durable.
    pub(super) is_planned: bool,
    /// What is still to be swept. Empty until that is known.
    pub(super) sweep: Origins,
    /// Numbers that are void. They are not swept, and nothing is concluded from that.
    pub(super) void: Origins,
    /// All marks of some origins, kept because they are asked for several times.
    pub(super) needed: BTreeMap<Origin, Slots>,
    /// Why nothing more is removed in this run.
    pub(super) ended: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Groups whose changes since the floor are in the log.
    pub(super) noted: HashMap<Group, Kinds>,
    /// The same with the batch of the last `note`.
    pub(super) pending: HashMap<Group, Kinds>,
    /// Groups that have no objects and whose last change is before the floor.
    pub(super) gone: HashSet<Group>,
    /// Of these: whose last change the batch of the last `note` deletes.
    pub(super) forgotten: Vec<Group>,
    /// Origins of which no chunk is left with that batch.
    pub(super) emptied: Vec<Origin>,
    pub(super) run: Option<Run>,
    /// Whether a run of this opening has got to its sweep.
    pub(super) has_swept: bool,
    /// What the last sweep of this opening left.
    pub(super) left: Option<Origins>,
    /// The marks of all groups.
    pub(super) saved: BTreeMap<Group, Saved>,
    /// Groups whose files turned out to be lost.
    pub(super) lost: BTreeSet<Group>,
}

/// Liveness by marks.
#[derive(Debug)]
pub struct Marked {
    pub(super) ground: Arc<dyn Ground>,
    pub(super) objects: Arc<ObjectIndex>,
    pub(super) state: Mutex<State>,
    pub(super) running: Mutex<()>,
    /// By container partition: numbers from here on were not given out when the store was opened. Some of them may have
    /// been given out by an earlier opening, and have no container that a run has seen.
    pub(super) opened_at: BTreeMap<u16, u32>,
}

impl Marked {
    /// Opens the marks of a store that is being opened.
    pub fn new(ground: Arc<dyn Ground>, objects: Arc<ObjectIndex>, storage: &dyn ChunkStore) -> Marked {
        let opened_at = storage.committed_slots().ends().collect();
        Marked { ground, objects, state: Mutex::default(), running: Mutex::default(), opened_at }
    }

    /// Opens the mark file of a group. Errors: it is lost.
    pub(super) fn open(&self, group: Group, saved: Saved) -> std::result::Result<MarkFile, String> {
        let label = Label { group, position: saved.position };
        MarkFile::open(&*self.ground, &self.path(group, saved), label, saved.length_bytes)
    }

    /// Returns the path of the mark file of a group.
    pub(super) fn path(&self, group: Group, saved: Saved) -> String {
        Label { group, position: saved.position }.path(MARKS)
    }
}

impl Run {
    pub(super) fn add(&mut self, address: Address, fingerprint: Fingerprint) {
        if self.added.insert(address) {
            self.names.push((fingerprint, address));
        }
    }

    /// Ends the run if what was added takes too much memory.
    pub(super) fn end_if_too_much(&mut self) {
        if self.added.bytes() + self.followed.bytes() + self.names.len() * size_of::<(Fingerprint, Address)>() > ADDED_BYTES {
            self.ended.get_or_insert_with(|| "much was written meanwhile; the next run goes on".to_owned());
        }
    }

    /// Takes an origin without unmarked chunks off the list, unless it may get more chunks.
    pub(super) fn done_with(&mut self, origin: Origin) {
        if !self.committed.is_growing(origin) {
            self.sweep.remove(origin);
        }
    }

    /// Returns whether some group has a mark for this chunk of a swept origin, as far as known.
    pub(super) fn is_marked(&self, address: Address) -> bool {
        self.needed.get(&address.origin()).is_some_and(|slots| slots.contains(address.slot().into()))
    }

    pub(super) fn is_unneeded(&self, address: Address) -> bool {
        let origin = address.origin();
        let is_known = self.sweep.contains(origin) && self.needed.contains_key(&origin);
        is_known && self.committed.includes(address) && !self.is_marked(address) && !self.added.contains(address)
    }

    /// Returns whether the chunk was there at the floor and is known to have a mark: then all that it leads to has
    /// marks. In an origin that is not swept, all that was there has marks. So an origin goes off the list only when
    /// all its chunks were looked at, or when a merge has left none of them.
    pub(super) fn is_marked_if_old(&self, address: Address) -> bool {
        let origin = address.origin();
        self.committed.includes(address) && !self.sweep.contains(origin) && !self.void.contains(origin)
    }
}

/// Removes all mark files, so that the next run marks every group from nothing.
pub(crate) fn forget_marks(ground: &dyn Ground) -> onefold_ground::Result<()> {
    if ground.exists(MARKS)? {
        for entry in ground.list(MARKS)? {
            remove(ground, &format!("{MARKS}/{}", entry.name))?;
        }
        ground.sync_directory(MARKS)?;
    }
    Ok(())
}

/// Removes a mark file that was listed. The list of a bucket may have files that are gone.
pub(super) fn remove(ground: &dyn Ground, path: &str) -> onefold_ground::Result<()> {
    match ground.remove(path) {
        Err(error) if error.is_not_found() => Ok(()),
        removed => removed,
    }
}
