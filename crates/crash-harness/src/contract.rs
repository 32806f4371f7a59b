//! What the engine owes every liveness, watched in all trials.
//!
//! A liveness that keeps something in memory (marks) relies on these rules; one that counts does not notice when they
//! are broken:
//! * Batches are noted one after the other: the caller holds the lock of commits from [`Liveness::note`] until
//!   [`Liveness::committed`].
//! * Only the batch that was noted last is said to be committed, and at most once.
//! * When a batch with transactions fails, their references come again, before all others, with the next such batch.

use onefold_engine::{
    Address, Candidate, Cursor, Engine, Facts, Liveness, Moment, Noted, Reached, Reference, ReferencesOf, Result, Roots, Survey,
};
use onefold_fingerprint::Fingerprint;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Puts the watch around a liveness.
pub(crate) fn watched(inner: Box<dyn Liveness>) -> Box<dyn Liveness> {
    Box::new(Watched { inner, batches: Mutex::default() })
}

struct Watched {
    inner: Box<dyn Liveness>,
    batches: Mutex<Batches>,
}

#[derive(Default)]
struct Batches {
    /// References of the batch that was noted last, until it is committed.
    noted: Option<Vec<Reference>>,
    /// References of the last batch with transactions, if it failed.
    owed: Vec<Reference>,
}

impl Watched {
    fn alone(&self) -> MutexGuard<'_, Batches> {
        match self.batches.try_lock() {
            Ok(batches) => batches,
            Err(TryLockError::WouldBlock) => panic!("two batches are noted at the same time"),
            Err(TryLockError::Poisoned(_)) => panic!("an earlier batch broke the rules"),
        }
    }
}

impl Liveness for Watched {
    fn note(&self, facts: &Facts<'_>) -> Result<Noted> {
        let mut batches = self.alone();
        if let Some(failed) = batches.noted.take().filter(|failed| !failed.is_empty()) {
            batches.owed = failed;
        }
        let references: Vec<Reference> = facts.references.iter().copied().flatten().copied().collect();
        let comes_again = references.is_empty() || references.starts_with(&batches.owed);
        assert!(comes_again, "references of a batch that failed do not come again");
        let noted = self.inner.note(facts);
        batches.noted = Some(references);
        noted
    }

    fn committed(&self) {
        let mut batches = self.alone();
        let references = batches.noted.take().expect("only what was noted is committed");
        if !references.is_empty() {
            batches.owed.clear();
        }
        self.inner.committed();
    }

    fn survey(&self, engine: &Engine, roots: &mut dyn Roots, go_on: &dyn Fn() -> bool, damaged: &mut Vec<String>) -> Result<Survey> {
        self.inner.survey(engine, roots, go_on, damaged)
    }

    fn settle(&self, engine: &Engine, references: ReferencesOf<'_>, go_on: &dyn Fn() -> bool) -> Result<()> {
        self.inner.settle(engine, references, go_on)
    }

    fn candidates(
        &self,
        engine: &Engine,
        from: Cursor,
        max: usize,
        out: &mut Vec<Candidate>,
        damaged: &mut Vec<String>,
    ) -> Result<Option<Cursor>> {
        self.inner.candidates(engine, from, max, out, damaged)
    }

    fn all_candidates(&self, engine: &Engine, roots: &mut dyn Roots, damaged: &mut Vec<String>) -> Result<Vec<Candidate>> {
        self.inner.all_candidates(engine, roots, damaged)
    }

    fn unneeded(&self, engine: &Engine, candidates: &[Candidate], out: &mut Vec<bool>, damaged: &mut Vec<String>) -> Result<()> {
        let before = out.len();
        self.inner.unneeded(engine, candidates, out, damaged)?;
        assert_eq!(out.len() - before, candidates.len(), "there is one answer for each candidate");
        Ok(())
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
    ) -> Result<Option<Reached>> {
        self.inner.reached(engine, moment, roots, go_on, wrong)
    }

    fn unneeded_without(&self, lost: &[(Fingerprint, u32)], out: &mut Vec<Candidate>, damaged: &mut Vec<String>) -> Result<()> {
        self.inner.unneeded_without(lost, out, damaged)
    }
}
