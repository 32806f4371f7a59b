//! The model: references as sets in memory, fed through a wrapper around the liveness of the store.

use onefold_engine::{
    Address, Candidate, Cursor, Engine, Facts, Group, Liveness, Marked, Moment, Noted, Reached, Reference, ReferencesOf, Roots, Stored,
    Survey,
};
use onefold_fingerprint::Fingerprint;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// References of groups, by group, name and address.
pub(super) type Groups = BTreeMap<(Group, Fingerprint, Address), i64>;

#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) groups: Groups,
    /// What each stored metadata chunk refers to.
    pub(super) metadata: BTreeMap<Fingerprint, Vec<Fingerprint>>,
}

/// The facts of one batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Batch {
    references: Vec<Reference>,
    stored: Vec<Stored>,
    removed: Vec<Stored>,
}

impl State {
    pub(super) fn apply(&mut self, batch: &Batch) -> Result<(), String> {
        for Reference { group, fingerprint, address, change } in &batch.references {
            *self.groups.entry((*group, *fingerprint, *address)).or_default() += change;
        }
        self.groups.retain(|_, references| *references != 0);
        if let Some((place, references)) = self.groups.iter().find(|(_, references)| **references < 0) {
            return Err(format!("{place:?} has {references} references"));
        }
        for chunk in &batch.removed {
            if self.metadata.remove(&chunk.fingerprint).unwrap_or_default() != chunk.references {
                return Err(format!("chunk {} is removed with other references than it was stored with", chunk.fingerprint));
            }
        }
        for chunk in &batch.stored {
            if self.metadata.insert(chunk.fingerprint, chunk.references.clone()).is_some() {
                return Err(format!("metadata chunk {} becomes known twice", chunk.fingerprint));
            }
        }
        Ok(())
    }

    /// The chunks that something refers to.
    pub(super) fn referred(&self) -> BTreeSet<Fingerprint> {
        let roots = self.groups.keys().map(|(_, fingerprint, _)| *fingerprint);
        roots.chain(self.metadata.values().flatten().copied()).collect()
    }

    /// The chunks that can be reached from a group.
    pub(super) fn reachable(&self) -> BTreeSet<Fingerprint> {
        let mut left: Vec<Fingerprint> = self.groups.keys().map(|(_, fingerprint, _)| *fingerprint).collect();
        let mut reached = BTreeSet::new();
        while let Some(chunk) = left.pop() {
            if reached.insert(chunk) {
                left.extend(self.metadata.get(&chunk).into_iter().flatten());
            }
        }
        reached
    }
}

/// The model, over all openings of a store.
#[derive(Debug, Default)]
pub(super) struct Sets {
    pub(super) state: State,
    /// Batches that were noted and not answered, since the last that was.
    pub(super) open: Vec<Batch>,
    /// What is wrong with what was stated.
    pub(super) wrong: Option<String>,
    /// References that went from one group to another.
    pub(super) moved: u64,
    /// The marks of the store that is open.
    pub(super) marked: Option<Arc<Marked>>,
}

/// Passes what it is told to the model, and everything on to the store's own liveness.
pub(super) struct Beside {
    pub(super) inner: Box<dyn Liveness>,
    pub(super) marked: Arc<Marked>,
    pub(super) sets: Arc<Mutex<Sets>>,
}

impl Liveness for Beside {
    fn note(&self, facts: &Facts<'_>) -> onefold_engine::Result<Noted> {
        let references = facts.references.iter().copied().flatten().copied().collect();
        let batch = Batch { references, stored: facts.stored.to_vec(), removed: facts.removed.to_vec() };
        self.sets.lock().unwrap().open.push(batch);
        let mut noted = self.inner.note(facts)?;
        noted.changes.extend(self.marked.note(facts)?.changes);
        Ok(noted)
    }

    fn committed(&self) {
        self.marked.committed();
        let mut sets = self.sets.lock().unwrap();
        let batch = sets.open.pop().expect("it was noted before");
        if batch == Batch::default() {
            // Perhaps nothing was written: then the next opening may still find an earlier one.
            return self.inner.committed();
        }
        sets.open.clear();
        let applied = sets.state.apply(&batch);
        let added: BTreeMap<_, _> =
            batch.references.iter().filter(|one| one.change > 0).map(|one| ((one.fingerprint, one.address), one.group)).collect();
        let dropped = batch.references.iter().filter(|one| one.change < 0);
        sets.moved +=
            dropped.filter(|one| added.get(&(one.fingerprint, one.address)).is_some_and(|group| *group != one.group)).count() as u64;
        sets.wrong = sets.wrong.take().or(applied.err());
        self.inner.committed();
    }

    fn survey(
        &self,
        engine: &Engine,
        roots: &mut dyn Roots,
        go_on: &dyn Fn() -> bool,
        damaged: &mut Vec<String>,
    ) -> onefold_engine::Result<Survey> {
        self.inner.survey(engine, roots, go_on, damaged)
    }

    fn settle(&self, engine: &Engine, references: ReferencesOf<'_>, go_on: &dyn Fn() -> bool) -> onefold_engine::Result<()> {
        self.inner.settle(engine, references, go_on)
    }

    fn candidates(
        &self,
        engine: &Engine,
        from: Cursor,
        max: usize,
        out: &mut Vec<Candidate>,
        damaged: &mut Vec<String>,
    ) -> onefold_engine::Result<Option<Cursor>> {
        self.inner.candidates(engine, from, max, out, damaged)
    }

    fn all_candidates(&self, engine: &Engine, roots: &mut dyn Roots, damaged: &mut Vec<String>) -> onefold_engine::Result<Vec<Candidate>> {
        self.inner.all_candidates(engine, roots, damaged)
    }

    fn unneeded(
        &self,
        engine: &Engine,
        candidates: &[Candidate],
        out: &mut Vec<bool>,
        damaged: &mut Vec<String>,
    ) -> onefold_engine::Result<()> {
        self.inner.unneeded(engine, candidates, out, damaged)
    }

    fn may_be_added(&self, engine: &Engine, places: &[Address]) -> Vec<bool> {
        self.inner.may_be_added(engine, places)
    }

    fn nobody_needs(&self, places: &[Address]) -> Vec<bool> {
        self.inner.nobody_needs(places)
    }

    fn reached(
        &self,
        engine: &Engine,
        moment: &Moment<'_>,
        roots: &mut dyn Roots,
        go_on: &dyn Fn() -> bool,
        wrong: &mut Vec<String>,
    ) -> onefold_engine::Result<Option<Reached>> {
        self.inner.reached(engine, moment, roots, go_on, wrong)
    }

    fn unneeded_without(
        &self,
        lost: &[(Fingerprint, u32)],
        out: &mut Vec<Candidate>,
        damaged: &mut Vec<String>,
    ) -> onefold_engine::Result<()> {
        self.inner.unneeded_without(lost, out, damaged)
    }
}
