//! What the engine asks of marks.

use crate::liveness::marked::state::Marked;
use crate::liveness::marked::trace::Roots;
use crate::liveness::marked::trial::Reached;
use crate::liveness::{Candidate, Cursor, Facts, Liveness, Noted, ReferencesOf, Survey};
use crate::{Address, Engine, Moment, Result};
use onefold_fingerprint::Fingerprint;
use onefold_storage::Origin;

impl Liveness for Marked {
    fn note(&self, facts: &Facts<'_>) -> Result<Noted> {
        self.note_groups(facts)
    }

    fn committed(&self) {
        self.noted();
    }

    fn survey(&self, engine: &Engine, roots: &mut dyn Roots, go_on: &dyn Fn() -> bool, damaged: &mut Vec<String>) -> Result<Survey> {
        let mut marking = self.run(engine, roots, go_on)?;
        damaged.append(&mut marking.damaged);
        Ok(Survey { held: marking.held, is_short_of_room: false })
    }

    fn settle(&self, engine: &Engine, references: ReferencesOf<'_>, go_on: &dyn Fn() -> bool) -> Result<()> {
        self.follow_added(engine, references, go_on)
    }

    fn candidates(
        &self,
        engine: &Engine,
        from: Cursor,
        max: usize,
        out: &mut Vec<Candidate>,
        damaged: &mut Vec<String>,
    ) -> Result<Option<Cursor>> {
        Ok(self.sweep(engine, from.into(), max, out, damaged)?.map(Cursor::from))
    }

    fn all_candidates(&self, engine: &Engine, roots: &mut dyn Roots, damaged: &mut Vec<String>) -> Result<Vec<Candidate>> {
        self.would_sweep(engine, roots, damaged)
    }

    fn unneeded(&self, engine: &Engine, candidates: &[Candidate], out: &mut Vec<bool>, damaged: &mut Vec<String>) -> Result<()> {
        self.judge(engine, candidates, out, damaged)
    }

    fn may_be_added(&self, engine: &Engine, places: &[Address]) -> Vec<bool> {
        self.added_since(engine, places)
    }

    fn is_surveyed(&self) -> bool {
        self.state.lock().run.as_ref().is_some_and(|run| run.is_planned && run.ended.is_none())
    }

    fn may_have_lost(&self, origin: Origin) -> bool {
        self.state.lock().run.as_ref().is_none_or(|run| !run.is_planned || run.sweep.contains(origin))
    }

    fn nobody_needs(&self, places: &[Address]) -> Vec<bool> {
        self.unmarked(places)
    }

    fn reached(
        &self,
        engine: &Engine,
        moment: &Moment<'_>,
        roots: &mut dyn Roots,
        go_on: &dyn Fn() -> bool,
        wrong: &mut Vec<String>,
    ) -> Result<Option<Reached>> {
        self.verify(engine, moment, roots, go_on, wrong).map(Some)
    }

    /// Appends nothing: a survey finds all that cannot be reached, whatever it hung on.
    fn unneeded_without(&self, _: &[(Fingerprint, u32)], _: &mut Vec<Candidate>, _: &mut Vec<String>) -> Result<()> {
        Ok(())
    }
}
