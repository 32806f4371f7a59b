//! A run: marks the groups that changed, and finds out what has to be swept.

use crate::liveness::marked::file::{Label, MarkWriter};
use crate::liveness::marked::group::GroupMarks;
use crate::liveness::marked::objects::{Changed, Saved, Swept, Trust};
use crate::liveness::marked::origins::{Chunks, Origins};
use crate::liveness::marked::state::{ALL, MARKS, Marked, Run, remove};
use crate::liveness::marked::trace::Roots;
use crate::liveness::reference::Group;
use crate::liveness::slots::Slots;
use crate::{Change, Engine, EngineError, Moment, Result, Transaction};
use onefold_oplog::Position;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marking {
    /// Groups that were marked.
    pub marked: u64,
    /// Groups whose marks were reused.
    pub reused: u64,
    /// Why nothing may be removed before the next run, if so.
    pub held: Option<String>,
    /// Damage that was met, a sentence for each place.
    pub damaged: Vec<String>,
}

/// What a run looks at.
struct Scene<'a> {
    engine: &'a Engine,
    moment: &'a Moment<'a>,
    roots: &'a mut dyn Roots,
    go_on: &'a dyn Fn() -> bool,
}

/// What a run has found so far.
struct Progress {
    floor: Position,
    /// The marks of all groups after the run.
    saved: BTreeMap<Group, Saved>,
    changes: Vec<Change>,
    sweep: Origins,
    /// Whether marks were lost, so that nobody knows which origins lost some.
    sweeps_all: bool,
    done: Marking,
}

impl Marked {
    /// Marks what changed, so that [`candidates`](Marked::candidates) finds what is unneeded. Durable on return. One
    /// run at a time: a second call waits. If it is cut short, nothing changes.
    pub fn run(&self, engine: &Engine, roots: &mut dyn Roots, go_on: &dyn Fn() -> bool) -> Result<Marking> {
        let _one = self.running.lock();
        let floor = self.begin(engine)?;
        engine.flush()?;
        let moment = engine.moment(None)?;
        let result = self.mark_all(&mut Scene { engine, moment: &moment, roots, go_on }, floor);
        if !matches!(&result, Ok(Marking { held: None, .. })) {
            self.state.lock().run = None;
        }
        result
    }

    /// Sets the floor. Under the lock of commits: a batch is noted either before, and is in the moment, or after, and
    /// then its groups are noted again.
    fn begin(&self, engine: &Engine) -> Result<Position> {
        let _commits = engine.commits.alone();
        if let Some(why) = engine.commits.why_stopped() {
            return Err(EngineError::Stopped { why: why.to_owned() });
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        state.noted.clear();
        // What the last sweep has left, if it began: its marks are durable.
        state.left = state.run.take().filter(|run| run.is_planned).map(|run| run.sweep).or(state.left.take());
        state.run = Some(Run {
            is_planned: false,
            committed: engine.storage.committed_slots(),
            added: Chunks::default(),
            names: Vec::new(),
            followed: Chunks::default(),
            sweep: Origins::default(),
            void: engine.storage.void().into(),
            needed: BTreeMap::new(),
            ended: None,
        });
        Ok(engine.log.end())
    }

    fn mark_all(&self, scene: &mut Scene<'_>, floor: Position) -> Result<Marking> {
        let held = |why: String| Ok(Marking { held: Some(why), ..Marking::default() });
        let mut groups = BTreeSet::new();
        if let Err(why) = scene.roots.groups(scene.moment, &mut |group| {
            groups.insert(group);
        }) {
            return held(why);
        }
        let old = match Saved::read_all(&self.objects) {
            Ok(old) => old,
            Err(error) if error.is_damage() => return held(error.to_string()),
            Err(error) => return Err(error),
        };
        self.ground.create_directory(MARKS)?;
        let mut progress = Progress {
            floor,
            saved: BTreeMap::new(),
            changes: Vec::new(),
            sweep: Origins::default(),
            sweeps_all: false,
            done: Marking::default(),
        };
        let all = match Changed::read(&self.objects, ALL) {
            Ok(all) => all.unwrap_or_default(),
            // Chunks may be somewhere else then, without marks.
            Err(error) => return held(format!("what changed cannot be read: {error}")),
        };
        // Then chunks may be where nobody has swept them.
        progress.sweeps_all |= old.get(&ALL).is_some_and(|plan| all.dropped >= plan.position);
        for group in &groups {
            if !(scene.go_on)() || !self.mark(scene, *group, old.get(group).copied(), all, &mut progress)? {
                return held("it was cut short".to_owned());
            }
        }
        if scene.moment.has_moved() {
            // Then a reference may have gone from where nobody had looked to where somebody had.
            return held("objects could not be read as of one moment".to_owned());
        }
        let gone: Vec<Group> = old.keys().copied().filter(|group| *group != ALL && !groups.contains(group)).collect();
        for group in &gone {
            self.lose(*group, old[group], &mut progress);
            progress.changes.push(Saved::forget(*group));
        }
        if progress.saved.values().any(|saved| saved.trust == Trust::Lacking) {
            let why = progress.done.damaged.first().cloned().unwrap_or_default();
            progress.done.held = Some(format!("what is needed cannot be told: {why}"));
        }
        let before = Swept::read(&self.objects);
        let plan = old.get(&ALL).copied();
        let frontier = self.plan(plan, &before, &mut progress)?;
        let is_unchanged = progress.changes.is_empty() && !progress.sweeps_all && frontier == before.frontier;
        match plan {
            // An idle store is not written to, once what its last sweep did is noted.
            Some(plan) if is_unchanged && self.lists(plan, &progress.sweep) => {
                progress.saved.insert(ALL, plan);
                self.begin_sweep(&mut progress, &gone);
            }
            _ => {
                progress.changes.push(Swept { frontier }.put());
                self.commit(scene.engine, &mut progress, &gone)?;
            }
        }
        Ok(progress.done)
    }

    /// Marks a group if it changed. Returns false if it was cut short.
    fn mark(&self, scene: &mut Scene<'_>, group: Group, saved: Option<Saved>, all: Changed, progress: &mut Progress) -> Result<bool> {
        // If that cannot be read, it counts as changed.
        let changed = Changed::read(&self.objects, group).ok().flatten();
        let opened = saved.map(|saved| self.open(group, saved));
        let is_lost = self.state.lock().lost.contains(&group) || matches!(opened, Some(Err(_)));
        let is_before = |position: Position| saved.is_some_and(|saved| position < saved.position);
        let is_whole = saved.is_some_and(|saved| saved.trust == Trust::Whole) && !is_lost && is_before(all.dropped);
        let has_grown_only = is_whole && changed.is_some_and(|changed| is_before(changed.dropped));
        if let Some(saved) = saved.filter(|_| has_grown_only && changed.is_some_and(|changed| is_before(changed.grown))) {
            progress.saved.insert(group, saved);
            progress.done.reused += 1;
            return Ok(true);
        }
        if is_lost {
            tracing::warn!(?group, "the marks of a group are lost, and are made again");
        }
        // Then nobody knows what it had marked.
        progress.sweeps_all |= is_lost;
        let lacking = saved.filter(|saved| saved.trust == Trust::Lacking);
        if let Some(lacking) = lacking {
            self.lose(group, lacking, progress);
        }
        let old = opened.and_then(|opened| opened.ok()).filter(|_| !is_lost && lacking.is_none());
        let is_current = is_before(all.dropped);
        let limit_bytes = scene.engine.settings.marks_bytes;
        let mut marks = GroupMarks::new(scene.engine, old, is_current, limit_bytes);
        if has_grown_only && let Err(why) = marks.keep_old() {
            tracing::warn!(why, "the marks of a group are lost, and are made again");
            progress.sweeps_all = true;
            marks = GroupMarks::new(scene.engine, None, false, limit_bytes);
        }
        let label = Label { group, position: progress.floor };
        if !marks.mark(label, scene.moment, scene.roots, scene.go_on) {
            return Ok(false);
        }
        progress.done.damaged.append(&mut marks.damaged);
        progress.done.marked += 1;
        match marks.write(&*self.ground, label, &mut progress.sweep)? {
            Ok(new) => {
                progress.saved.insert(group, new);
                progress.changes.push(new.put(group));
            }
            Err(why) => {
                // The old marks could be opened and not read: the next run begins from nothing.
                self.state.lock().lost.insert(group);
                progress.done.held = Some(why);
            }
        }
        Ok(true)
    }

    /// Has everything swept that had marks in this file.
    fn lose(&self, group: Group, saved: Saved, progress: &mut Progress) {
        let sweep = &mut progress.sweep;
        let read = self.open(group, saved).and_then(|mut file| file.for_each(&mut |origin, _| sweep.insert(origin)));
        progress.sweeps_all |= read.is_err();
    }

    /// Adds to the sweep what the last one left, and what is newer than it. Returns the next frontier.
    fn plan(&self, left: Option<Saved>, swept: &Swept, progress: &mut Progress) -> Result<BTreeMap<u16, u32>> {
        let mut is_known = true;
        let kept = self.state.lock().left.take();
        match (kept, left) {
            (Some(left), _) => left.iter().for_each(|origin| progress.sweep.insert(origin)),
            (None, Some(left)) => self.lose(ALL, left, progress),
            // Without the list, nobody knows what the last sweep left.
            (None, None) => is_known = false,
        }
        let (committed, void, has_swept) = {
            let state = self.state.lock();
            let Some(run) = &state.run else { return Ok(BTreeMap::new()) };
            (run.committed.clone(), run.void.clone(), state.has_swept)
        };
        let mut frontier = BTreeMap::new();
        for (partition, end) in committed.ends() {
            let is_known = is_known && !progress.sweeps_all;
            let from = swept.frontier.get(&partition).copied().filter(|_| is_known).unwrap_or(1);
            // An earlier opening may have swept numbers that this one gives out again.
            let opened_at = self.opened_at.get(&partition).copied().unwrap_or(1);
            let from = if has_swept { from } else { from.min(opened_at) };
            progress.sweep.insert_range(partition, from, end);
            frontier.insert(partition, end);
        }
        // They get more chunks, which the next run has to look at.
        committed.growing().for_each(|origin| progress.sweep.insert(origin));
        // Each opening of a store in a bucket leaves out a thousand numbers, and no container ever gets one of them.
        progress.sweep.subtract(&void);
        Ok(frontier)
    }

    /// Returns whether a list of what is to be swept has these and no others.
    fn lists(&self, plan: Saved, sweep: &Origins) -> bool {
        let mut wanted = sweep.iter();
        let mut is_same = true;
        let read = self.open(ALL, plan).and_then(|mut file| file.for_each(&mut |origin, _| is_same &= wanted.next() == Some(origin)));
        read.is_ok() && is_same && wanted.next().is_none()
    }

    /// Makes the marks and the plan durable, and gives up old files.
    fn commit(&self, engine: &Engine, progress: &mut Progress, gone: &[Group]) -> Result<()> {
        let label = Label { group: ALL, position: progress.floor };
        let mut writer = MarkWriter::create(&*self.ground, &label.path(MARKS), label)?;
        for origin in progress.sweep.iter() {
            writer.push(origin, &Slots::default())?;
        }
        let plan = Saved { position: progress.floor, length_bytes: writer.finish()?, trust: Trust::Whole };
        progress.changes.push(plan.put(ALL));
        self.ground.sync_directory(MARKS)?;
        engine.submit(Transaction { changes: std::mem::take(&mut progress.changes), references: Vec::new() })?;
        engine.flush()?;
        progress.saved.insert(ALL, plan);
        let kept: HashSet<String> = progress.saved.iter().map(|(group, saved)| self.path(*group, *saved)).collect();
        self.begin_sweep(progress, gone);
        for entry in self.ground.list(MARKS)? {
            let path = format!("{MARKS}/{}", entry.name);
            if !kept.contains(&path) {
                remove(&*self.ground, &path)?;
            }
        }
        Ok(())
    }

    /// Lets the sweep begin: marks and plan are durable.
    fn begin_sweep(&self, progress: &mut Progress, gone: &[Group]) {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.saved = std::mem::take(&mut progress.saved);
        state.has_swept = true;
        state.lost.retain(|group| state.saved.get(group).is_none_or(|saved| saved.position != progress.floor));
        state.gone.extend(gone.iter().copied().filter(|group| !state.noted.contains_key(group)));
        if let Some(run) = &mut state.run {
            run.sweep = std::mem::take(&mut progress.sweep);
            run.is_planned = true;
            // From here on others judge by it, unless something has ended it meanwhile: copies that were joined
            // since it began have no marks.
            run.ended = run.ended.take().or_else(|| progress.done.held.clone());
        }
    }
}
