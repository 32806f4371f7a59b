//! The papers' workload as a sequence of runs: which state follows which, and how long each run is.

use crate::lengths::{self, Lengths, Tables};
use crate::noise::{Draws, Key};
use crate::op::Op;
use crate::state::{Placement, State, Trace};

/// The model as documented, or with defects of the published generators. Which of the defects affected the papers'
/// measurements is unknown. The shares are by bytes, for a second generation of `upb-6` in blocks.
///
/// Defects without a visible effect are left out: a random index that is one too high in one of 27,000 draws, an option
/// parsed with the length of another option's name, and one random number generator mistaken for another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variant {
    /// As documented: 98.0 % T, 1.25 % U, 0.75 % I.
    #[default]
    Documented,
    /// Defect 1: when interpolating between two items of a list of lengths, the generator goes one whole step too far.
    /// Temporal runs are 1.6 % longer on average; the shares do not change. The lists of generation 1 are unknown, so
    /// generation 1 is unaffected.
    Extrapolated,
    /// Defect 2: each line of the transition table overwrites the line before. So I always follows U and T, T always
    /// follows I, and nothing is unique.
    OverwrittenSwitches,
    /// Defect 3: the part of a run after the 1 MiB block in which it begins is counted twice while writing, so it is
    /// half as long. 97.0 % T, 2.0 % U, 1.0 % I.
    HalvedRuns,
    /// The Python generator of 2009. It has defect 1. Internal runs are 4096 bytes longer before rounding, and read one
    /// pattern of 1 MiB over and over instead of the pool. A second generation begins with U.
    Python2009,
    /// The online generator of 2011, with defects 1, 2 and 3 together: 96.5 % T, 3.5 % I, no U.
    Online2011,
}

impl Variant {
    fn extrapolates(self) -> bool {
        matches!(self, Variant::Extrapolated | Variant::Python2009 | Variant::Online2011)
    }

    fn overwrites_switches(self) -> bool {
        matches!(self, Variant::OverwrittenSwitches | Variant::Online2011)
    }

    fn halves(self) -> bool {
        matches!(self, Variant::HalvedRuns | Variant::Online2011)
    }
}

/// The parameters of the papers' workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// How new data is placed among old data.
    pub placement: Placement,
    /// The trace behind the run lengths and transitions of second and later generations.
    pub trace: Trace,
    /// The documented model, or a defective one.
    pub variant: Variant,
    /// Whether second and later generations also lose data of the previous one. The lost runs are as long as the runs
    /// that the trace found deleted.
    pub deleted_runs: bool,
}

/// The unit of [`Placement::Block`] in bytes.
const BLOCK: u64 = 4096;
/// Bytes that the online generator writes at a time.
const WRITE: u64 = 1 << 20;

/// The runs of one generation, as steps over the previous one.
#[derive(Debug)]
pub(crate) struct ModelScript {
    model: Model,
    first_generation: bool,
    /// Where the last run ends and the next one begins.
    at: u64,
    size: u64,
    state: Option<State>,
    lengths: Draws,
    switches: Draws,
    /// The previous generation, without its deleted runs.
    source: Source,
    doing: Doing,
}

/// What is left to do for a run.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Nothing,
    Copy(u64),
    Skip(u64),
}

#[derive(Debug)]
struct Source {
    /// Bytes left of the previous generation.
    left: u64,
    /// Bytes up to the next deleted run.
    kept: u64,
    /// Draws the lengths of kept and deleted runs. `None`: nothing is deleted.
    deleted: Option<Draws>,
}

impl ModelScript {
    /// Returns the script of generation `generation`. All generations have `size` bytes. `key` returns the key for a
    /// purpose.
    pub(crate) fn new(model: Model, generation: u32, size: u64, key: impl Fn(u64) -> Key) -> ModelScript {
        let first_generation = generation == 1;
        let mut source = Source { left: if first_generation { 0 } else { size }, kept: u64::MAX, deleted: None };
        if model.deleted_runs && !first_generation {
            let mut draws = Draws::new(key(3));
            source.kept = whole(lengths::second(model.trace).kept.draw(draws.unit()).length, model.placement);
            source.deleted = Some(draws);
        }
        let (lengths, switches) = (Draws::new(key(1)), Draws::new(key(2)));
        ModelScript { model, first_generation, at: 0, size, state: None, lengths, switches, source, doing: Doing::Nothing }
    }

    pub(crate) fn next(&mut self) -> Option<Op> {
        loop {
            let (wanted, copy) = match self.doing {
                Doing::Nothing if self.at == self.size => return None,
                Doing::Nothing => match self.run() {
                    Some(op) => return Some(op),
                    None => continue,
                },
                Doing::Copy(wanted) => (wanted, true),
                Doing::Skip(wanted) => (wanted, false),
            };
            self.doing = Doing::Nothing;
            if wanted == 0 {
                continue;
            }
            if self.source.left == 0 {
                // So much was deleted that the previous generation is used up. Everything that follows is new.
                if copy {
                    return Some(Op::Unique(wanted));
                }
                continue;
            }
            if self.source.kept == 0 {
                self.doing = if copy { Doing::Copy(wanted) } else { Doing::Skip(wanted) };
                return Some(Op::Skip(self.delete()));
            }
            let length = wanted.min(self.source.left).min(self.source.kept);
            self.source.left -= length;
            self.source.kept -= length;
            let rest = wanted - length;
            self.doing = if copy { Doing::Copy(rest) } else { Doing::Skip(rest) };
            return Some(if copy { Op::Copy(length) } else { Op::Skip(length) });
        }
    }

    /// Draws the next run and returns its new data, if any. Its work on the previous generation is left in `doing`.
    /// Call only while the generation is incomplete.
    fn run(&mut self) -> Option<Op> {
        let state = self.switch();
        let mut length = self.length(state);
        if self.model.variant.halves() {
            length = halved(length, self.at);
        }
        let length = length.min(self.size - self.at);
        self.at += length;
        let overwrites = self.model.placement == Placement::Block && !self.first_generation;
        self.doing = if overwrites { Doing::Skip(length) } else { Doing::Nothing };
        match state {
            State::Unique => Some(Op::Unique(length)),
            State::Internal => Some(Op::Internal(length)),
            State::Temporal => {
                self.doing = Doing::Copy(length);
                None
            }
        }
    }

    fn switch(&mut self) -> State {
        let next = match (self.state, self.first_generation) {
            (None, true) => State::Unique,
            (None, false) if self.model.variant == Variant::Python2009 => State::Unique,
            (None, false) => State::Temporal,
            (Some(State::Unique), true) => State::Internal,
            (Some(_), true) => State::Unique,
            (Some(State::Internal), false) if self.model.variant.overwrites_switches() => State::Temporal,
            (Some(_), false) if self.model.variant.overwrites_switches() => State::Internal,
            (Some(state), false) => {
                let share = self.switches.unit();
                let [internal_after_unique, unique_after_internal, internal_after_temporal] = self.model.trace.switches();
                match state {
                    State::Unique if share < internal_after_unique => State::Internal,
                    State::Unique => State::Temporal,
                    State::Internal if share < unique_after_internal => State::Unique,
                    State::Internal => State::Temporal,
                    State::Temporal if share < internal_after_temporal => State::Internal,
                    State::Temporal => State::Unique,
                }
            }
        };
        self.state = Some(next);
        next
    }

    fn length(&mut self, state: State) -> u64 {
        let drawn = self.table(state).draw(self.lengths.unit());
        let mut length = drawn.length;
        if self.model.variant.extrapolates() {
            length += drawn.step;
        }
        if state == State::Internal && self.model.variant == Variant::Python2009 {
            length += 4096.0;
        }
        whole(length, self.model.placement)
    }

    fn table(&self, state: State) -> &'static Lengths {
        if self.first_generation {
            return &lengths::first()[usize::from(state != State::Unique)];
        }
        self.tables().of(state)
    }

    fn tables(&self) -> &'static Tables {
        lengths::second(self.model.trace)
    }

    /// Returns the length of the deleted run at this place, and draws the kept run after it.
    fn delete(&mut self) -> u64 {
        let tables = self.tables();
        let placement = self.model.placement;
        let Some(draws) = &mut self.source.deleted else { return 0 };
        let length = whole(tables.deleted.draw(draws.unit()).length, placement).min(self.source.left);
        self.source.kept = whole(tables.kept.draw(draws.unit()).length, placement);
        self.source.left -= length;
        length
    }
}

/// Rounds a length to whole bytes or up to whole blocks, at least one.
fn whole(length: f64, placement: Placement) -> u64 {
    let bytes = (length as u64).max(1);
    match placement {
        Placement::Block => bytes.next_multiple_of(BLOCK),
        Placement::Floating => bytes,
    }
}

/// Returns how much of a run that begins at `at` is written if the part after the first block is counted twice.
fn halved(length: u64, at: u64) -> u64 {
    let first = length.min(WRITE - at % WRITE);
    let behind = length - first;
    // Each whole block written consumes two. At the end, up to one more block is written.
    first + behind / (2 * WRITE) * WRITE + (behind % (2 * WRITE)).min(WRITE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transitions_are_those_of_the_trace() {
        let mut lines = 0;
        for line in include_str!("../data/state-switches.csv").lines().skip(1) {
            let cells: Vec<&str> = line.split(',').collect();
            let trace = if cells[0] == "upb-6-rabin8" { Trace::Upb6 } else { Trace::Upb21S };
            let [ui, iu, ti] = trace.switches();
            let expected: f64 = cells[4].parse().unwrap();
            let ours = match (cells[1], cells[2]) {
                ("U", "I") => ui,
                ("U", "T") => 1.0 - ui,
                ("I", "U") => iu,
                ("I", "T") => 1.0 - iu,
                ("T", "I") => ti,
                ("T", "U") => 1.0 - ti,
                other => panic!("{other:?}"),
            };
            assert!((ours - expected).abs() < 1e-6, "{line}");
            lines += 1;
        }
        assert_eq!(lines, 12);
    }

    #[test]
    fn a_generation_asks_for_no_more_than_the_one_before_has() {
        let size = 64 << 20;
        let mut ended_early = [0; 2];
        for (kind, placement) in [Placement::Block, Placement::Floating].into_iter().enumerate() {
            for seed in 0..200 {
                let model = Model { placement, deleted_runs: true, ..Model::default() };
                let mut script = ModelScript::new(model, 2, size, |purpose| Key::derive(&[seed, purpose]));
                let (mut written, mut source, mut behind_the_end) = (0, 0, 0);
                while let Some(op) = script.next() {
                    match op {
                        Op::Copy(length) => (written, source) = (written + length, source + length),
                        Op::Skip(length) => source += length,
                        Op::Unique(length) | Op::Internal(length) => {
                            written += length;
                            behind_the_end += if source == size { length } else { 0 };
                        }
                    }
                }
                assert_eq!(written, size, "{placement:?} {seed}");
                assert!(source <= size, "{placement:?} {seed}: {source}");
                ended_early[kind] += u32::from(behind_the_end > 0);
            }
        }
        assert!(ended_early.iter().all(|seeds| *seeds > 0), "{ended_early:?}");
    }

    #[test]
    fn a_halved_run_is_what_the_loop_over_blocks_would_write() {
        let by_block = |length: u64, at: u64| {
            let first = length.min(WRITE - at % WRITE);
            let (mut left, mut written) = ((length - first) as i64, first);
            while left > 0 {
                let now = (left as u64).min(WRITE);
                written += now;
                left -= 2 * now as i64;
            }
            written
        };
        for length in [1, 4096, WRITE - 1, WRITE, WRITE + 1, 2 * WRITE, 3 * WRITE - 5, 10 * WRITE, 10 * WRITE + 77, 11 * WRITE + 77] {
            for at in [0, 1, 4096, WRITE - 4096, 5 * WRITE + 12345] {
                assert_eq!(halved(length, at), by_block(length, at), "{length} at {at}");
            }
        }
    }
}
