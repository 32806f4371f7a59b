//! Who holds pieces that no object refers to yet, and which unused chunks somebody asked for: what keeps the removal of
//! a chunk (`removal.rs`) from taking it away from under a write.
//!
//! A piece that a stream returned is safe once the transaction with it is submitted: from then on it is stated that the
//! chunk is needed. Before that nothing on disk knows. So whoever looks at the store in order to refer to what is in it
//! holds an [`InFlight`] guard from before the first look until after the submission, and a removal waits until all
//! guards that are older than it are gone.
//!
//! For those that are younger there is the [`Watch`]: before the removal waits, it puts its candidates on the watch
//! list; every stream takes the chunks it asks for or refers to off the list; and only what is still on it at the end
//! is removed. A removal that has decided on a chunk *dooms* it: from then on nobody takes it off, and whoever tries is
//! told (`claims.rs` says why).
//!
//! Several removals may watch at once: one of this node, and one of each other node (`cluster/removing.rs`).

use onefold_fingerprint::Fingerprint;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::write::reservation::FingerprintMap;

/// The guards that there are, by age.
#[derive(Debug, Default)]
pub(crate) struct Guards {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    held: BTreeSet<u64>,
}

/// Something is being written whose pieces may not be part of any object yet. While it is held, no chunk goes that it
/// could have seen.
#[derive(Debug)]
pub struct InFlight {
    guards: Arc<Guards>,
    number: u64,
}

impl Guards {
    /// A new guard.
    pub(crate) fn enter(self: &Arc<Self>) -> InFlight {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.held.insert(number);
        InFlight { guards: self.clone(), number }
    }

    /// A moment: guards made later are younger.
    pub(crate) fn now(&self) -> u64 {
        self.state.lock().next
    }

    /// Whether no guard is left that was made before `moment`.
    pub(crate) fn all_gone_before(&self, moment: u64) -> bool {
        self.state.lock().held.first().is_none_or(|oldest| *oldest >= moment)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.guards.state.lock().held.remove(&self.number);
    }
}

/// Who removes chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remover {
    /// This engine.
    Here,
    /// Another node that has the store open.
    Node(u32),
}

/// What a removal has in mind with a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It would like to remove it.
    Watched,
    /// It has its claim and removes it, unless the chunk turns out to be counted.
    Doomed,
}

/// The chunks that removals would like to remove. A chunk that two of them watch is the later one's, unless it is
/// doomed.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    is_used: AtomicBool,
    chunks: Mutex<FingerprintMap<(Fate, Remover)>>,
}

impl Watch {
    /// Begins to watch these chunks for a removal; others of the same remover are not watched any more. What another
    /// remover has doomed stays so: it is about to be gone.
    pub(crate) fn begin(&self, remover: Remover, chunks: impl IntoIterator<Item = Fingerprint>) {
        let mut watched = self.chunks.lock();
        watched.retain(|_, (_, of)| *of != remover);
        for chunk in chunks {
            let fate = watched.entry(chunk).or_insert((Fate::Watched, remover));
            if fate.0 == Fate::Watched {
                fate.1 = remover;
            }
        }
        self.is_used.store(true, Ordering::SeqCst);
    }

    /// Somebody needs these chunks. Whoever calls holds a guard; that it sees the list follows from the mutex of the
    /// guards, through which both it and the removal went after the list was made. Older ones need not see it. Returns
    /// those that are doomed: no cache may be believed of them, and claiming them waits for the removal.
    pub(crate) fn touch<'a>(&self, chunks: impl IntoIterator<Item = &'a Fingerprint>) -> Vec<Fingerprint> {
        let mut doomed = Vec::new();
        if self.is_used.load(Ordering::SeqCst) {
            let mut watched = self.chunks.lock();
            for chunk in chunks {
                match watched.get(chunk) {
                    Some((Fate::Watched, _)) => drop(watched.remove(chunk)),
                    Some((Fate::Doomed, _)) => doomed.push(*chunk),
                    None => {}
                }
            }
        }
        doomed
    }

    /// The removal holds the claim of this chunk and decides on it. False if somebody has asked for it: then it must
    /// stay.
    pub(crate) fn doom(&self, remover: Remover, chunk: &Fingerprint) -> bool {
        match self.chunks.lock().get_mut(chunk) {
            Some((fate, of)) if *of == remover => {
                *fate = Fate::Doomed;
                true
            }
            _ => false,
        }
    }

    /// Whether nobody has asked for the chunk since this engine's removal watches it.
    pub(crate) fn is_watched(&self, chunk: &Fingerprint) -> bool {
        self.chunks.lock().get(chunk).is_some_and(|(_, remover)| *remover == Remover::Here)
    }

    /// Returns the chunks that a removal has doomed.
    #[cfg(test)]
    pub(crate) fn doomed(&self, remover: Remover) -> Vec<Fingerprint> {
        let watched = self.chunks.lock();
        watched.iter().filter(|(_, now)| **now == (Fate::Doomed, remover)).map(|(chunk, _)| *chunk).collect()
    }

    /// Whether the removal has decided on the chunk.
    #[cfg(test)]
    pub(crate) fn is_doomed(&self, chunk: &Fingerprint) -> bool {
        self.chunks.lock().get(chunk).is_some_and(|(fate, _)| *fate == Fate::Doomed)
    }

    /// Ends the watch of a removal; the list's memory is given back.
    pub(crate) fn end(&self, remover: Remover) {
        let mut watched = self.chunks.lock();
        watched.retain(|_, (_, of)| *of != remover);
        if watched.is_empty() {
            self.is_used.store(false, Ordering::SeqCst);
            *watched = FingerprintMap::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_guards_from_before_a_moment_are_waited_for() {
        let guards = Arc::new(Guards::default());
        let old = guards.enter();
        let moment = guards.now();
        let young = guards.enter();
        assert!(!guards.all_gone_before(moment));
        drop(old);
        assert!(guards.all_gone_before(moment));
        assert!(!guards.all_gone_before(guards.now()));
        drop(young);
        assert!(guards.all_gone_before(guards.now()));
    }

    #[test]
    fn what_is_touched_is_not_watched_any_more() {
        let watch = Watch::default();
        let [one, two] = [1, 2].map(|byte| Fingerprint::from_digest(&[byte; 32]));
        watch.touch([&one]);
        watch.begin(Remover::Here, [one, two]);
        watch.touch([&one]);
        assert!(!watch.is_watched(&one) && watch.is_watched(&two));
        watch.end(Remover::Here);
        assert!(!watch.is_watched(&two));
    }

    #[test]
    fn a_chunk_is_either_touched_or_doomed() {
        let watch = Watch::default();
        let [one, two] = [1, 2].map(|byte| Fingerprint::from_digest(&[byte; 32]));
        watch.begin(Remover::Here, [one, two]);
        assert_eq!(watch.touch([&one]), []);
        assert!(!watch.doom(Remover::Here, &one), "somebody has it");
        assert!(watch.doom(Remover::Here, &two));
        assert_eq!(watch.touch([&one, &two]), [two]);
        assert_eq!(watch.touch([&two]), [two], "it stays doomed");
        watch.end(Remover::Here);
        assert_eq!(watch.touch([&two]), []);
    }

    #[test]
    fn removals_of_several_nodes_do_not_doom_each_others_chunks() {
        let watch = Watch::default();
        let [one, two, three] = [1, 2, 3].map(|byte| Fingerprint::from_digest(&[byte; 32]));
        watch.begin(Remover::Here, [one]);
        watch.begin(Remover::Node(1), [two]);
        watch.begin(Remover::Node(2), [two, three]);
        assert!(watch.is_watched(&one) && !watch.is_watched(&two));
        assert!(!watch.doom(Remover::Here, &two) && !watch.doom(Remover::Node(1), &two) && watch.doom(Remover::Node(2), &two));
        assert_eq!(watch.doomed(Remover::Node(2)), [two]);
        watch.begin(Remover::Node(1), [two]);
        assert!(!watch.doom(Remover::Node(1), &two) && watch.doomed(Remover::Node(2)) == [two], "it stays doomed");
        watch.end(Remover::Node(1));
        watch.end(Remover::Here);
        assert_eq!(watch.touch([&one, &two, &three]), [two], "the rest of others stays");
        watch.end(Remover::Node(2));
        assert_eq!(watch.touch([&two]), []);
    }
}
