//! What each batch has to say about groups.

use crate::Result;
use crate::liveness::Noted;
use crate::liveness::marked::objects::Changed;
use crate::liveness::marked::state::{ALL, Kinds, Marked, Run};
use crate::liveness::reference::{Facts, Group};
use std::collections::BTreeMap;

impl Marked {
    /// Returns what the next batch must contain because of these facts.
    pub(super) fn note_groups(&self, facts: &Facts<'_>) -> Result<Noted> {
        let mut kinds: BTreeMap<Group, Kinds> = BTreeMap::new();
        let state = &mut *self.state.lock();
        if facts.has_moved {
            kinds.insert(ALL, Kinds { grown: true, dropped: true });
        }
        for reference in facts.references.iter().copied().flatten() {
            let of_group = kinds.entry(reference.group).or_default();
            of_group.grown |= reference.change > 0;
            of_group.dropped |= reference.change < 0;
            if let Some(run) = state.run.as_mut().filter(|_| reference.change > 0) {
                run.add(reference.address, reference.fingerprint);
            }
        }
        state.run.iter_mut().for_each(Run::end_if_too_much);
        if let (Some(why), Some(run)) = (facts.outdates, &mut state.run) {
            run.ended.get_or_insert_with(|| why.to_owned());
        }
        state.pending.clear();
        let mut changes = Vec::new();
        for (group, now) in kinds {
            let before = state.noted.get(&group).copied().unwrap_or_default();
            let all = Kinds { grown: before.grown | now.grown, dropped: before.dropped | now.dropped };
            if all != before {
                // If that cannot be read, both may have happened.
                let unknown = Changed { grown: facts.end, dropped: facts.end };
                let mut changed = Changed::read(&self.objects, group).map_or(unknown, Option::unwrap_or_default);
                changed.grown = if now.grown { facts.end } else { changed.grown };
                changed.dropped = if now.dropped { facts.end } else { changed.dropped };
                changes.push(changed.put(group));
                state.pending.insert(group, all);
            }
        }
        // Nobody else deletes these objects, so that no deletion passes a change on its way to the log.
        let noted = &state.noted;
        let pending = &state.pending;
        state.gone.retain(|group| !noted.contains_key(group) && !pending.contains_key(group));
        state.forgotten = state.gone.iter().copied().collect();
        changes.extend(state.forgotten.iter().map(|group| Changed::forget(*group)));
        state.emptied = facts.emptied.to_vec();
        Ok(Noted { changes, ..Noted::default() })
    }

    /// Notes that this batch is durable and applied.
    pub(super) fn noted(&self) {
        let state = &mut *self.state.lock();
        state.noted.extend(state.pending.drain());
        for group in std::mem::take(&mut state.forgotten) {
            state.gone.remove(&group);
        }
        for origin in std::mem::take(&mut state.emptied) {
            state.run.iter_mut().for_each(|run| run.sweep.remove(origin));
            state.left.iter_mut().for_each(|left| left.remove(origin));
        }
    }
}
