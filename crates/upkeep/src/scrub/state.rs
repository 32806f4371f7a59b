//! The progress of scrubbing, and what it proves: the object `s` of the object index (`docs/format.md` section 7.6).
//!
//! # The proof of coverage
//! Everything that is read has a place in one order, its [`Position`], and a pass goes through the positions upwards. A
//! [`Sample`] says: of everything that existed at `time`, whatever is at or after `position` was read after `time` by
//! this pass. Anything newer was written after `time`. For that, a sample is taken only at a moment without writes in
//! progress that are still invisible (`Engine::settled_moment`). So:
//! * Everything after the position of the current pass was read or written since a sample of the *previous* pass: the
//!   last one that is not after this position.
//! * Everything before it was read or written since the first sample of the current pass, which is later.
//!
//! The claim is the earlier of the two. It needs no list of what was read. Leaving out samples makes it weaker but
//! never wrong. A clock that was set back could make it wrong, so a state with times in the future claims nothing.

use onefold_ground::wire::{Reader, WireError, put_bytes, put_signed, put_varint};

const VERSION: u8 = 1;
/// The most samples of a pass.
const MAX_SAMPLES: usize = 256;
/// The most damages that are kept by name.
pub(super) const MAX_DAMAGES: usize = 1000;
/// The time of a sample that proves nothing: no store is that old.
const NEVER: i64 = 0;
/// Longest description of a damage, bytes.
const MAX_WHAT_BYTES: usize = 1000;

/// What is read, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Phase {
    /// Container files, by container.
    Containers = 0,
    /// Forwards of merged containers, by container.
    Forwards = 1,
    /// Parity files, by group.
    Parity = 2,
    /// Pages of the chunk index, by partition and place.
    ChunkIndex = 3,
    /// Partitions of the object index.
    ObjectIndex = 4,
    /// Everything was read.
    End = 5,
}

impl Phase {
    const ALL: [Phase; 6] = [Phase::Containers, Phase::Forwards, Phase::Parity, Phase::ChunkIndex, Phase::ObjectIndex, Phase::End];

    fn from_number(number: u8) -> Option<Phase> {
        Phase::ALL.into_iter().find(|phase| *phase as u8 == number)
    }

    /// Returns the position after everything in this phase.
    pub(super) fn end(self) -> Position {
        let next = Phase::ALL.into_iter().find(|phase| *phase > self).unwrap_or(Phase::End);
        Position { phase: next, unit: 0 }
    }
}

/// A place in the order of everything that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) phase: Phase,
    /// A container, a group, a partition of the object index, or a place in a partition of the chunk index
    /// ([`Position::in_chunk_index`]).
    pub(super) unit: u64,
}

impl Position {
    pub(super) const START: Position = Position { phase: Phase::Containers, unit: 0 };

    pub(super) fn is_end(self) -> bool {
        self.phase == Phase::End
    }

    /// Returns the position of the pages whose fingerprints begin at `place`, a 32-bit fraction of a partition. So it
    /// stays correct when the partition grows.
    pub(super) fn in_chunk_index(partition: u32, place: u32) -> Position {
        Position { phase: Phase::ChunkIndex, unit: u64::from(partition) << 32 | u64::from(place) }
    }

    /// Returns the next position.
    pub(super) fn next(self) -> Position {
        Position { unit: self.unit.saturating_add(1), ..self }
    }
}

/// The proof above defines it. The time is nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) position: Position,
    pub(super) time_ns: i64,
}

/// One pass over everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    pub(super) started_ns: i64,
    /// The end of the last step.
    pub(super) ended_ns: i64,
    /// Everything before this was read.
    pub(super) position: Position,
    pub(super) read_bytes: u64,
    /// Ascending by position and by time. The first is the start of the pass.
    samples: Vec<Sample>,
    /// The number of damages of this pass that are not listed.
    pub(super) unlisted: u64,
}

impl Pass {
    /// Returns a pass that begins at a moment about which it may claim something.
    pub(super) fn new(now_ns: i64) -> Pass {
        Pass::with_first_sample(now_ns, now_ns)
    }

    /// Returns a pass that claims nothing about data written before its next sample. So it claims nothing at all until
    /// another pass has read that data.
    pub(super) fn without_claim(now_ns: i64) -> Pass {
        Pass::with_first_sample(now_ns, NEVER)
    }

    fn with_first_sample(now_ns: i64, time_ns: i64) -> Pass {
        let samples = vec![Sample { position: Position::START, time_ns }];
        Pass { started_ns: now_ns, ended_ns: now_ns, position: Position::START, read_bytes: 0, samples, unlisted: 0 }
    }

    /// The time of the last sample.
    pub(super) fn last_sample_ns(&self) -> i64 {
        self.samples.last().map_or(NEVER, |sample| sample.time_ns)
    }

    /// Takes a sample: nothing at or after the pass's position was read before `time_ns`, and everything there at that
    /// time will be.
    pub(super) fn sample(&mut self, time_ns: i64) {
        let last = self.samples.last().expect("a pass has its first sample");
        if last.position == self.position || time_ns <= last.time_ns {
            return;
        }
        if self.samples.len() >= MAX_SAMPLES {
            // Removes the sample whose neighbours are closest in time, which weakens the claim least.
            let gap = |at: &usize| self.samples[at + 1].time_ns.saturating_sub(self.samples[at - 1].time_ns);
            let least = (1..self.samples.len() - 1).min_by_key(gap).expect("there are many");
            self.samples.remove(least);
        }
        self.samples.push(Sample { position: self.position, time_ns });
    }

    /// Returns since when everything at or after `position` was read or written, once the pass is complete.
    fn since(&self, position: Position) -> i64 {
        let before = self.samples.iter().rev().find(|sample| sample.position <= position);
        before.map_or(NEVER, |sample| sample.time_ns)
    }
}

/// Damage at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) position: Position,
    pub(super) what: String,
}

/// The progress of scrubbing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// The pass under way.
    pub(super) current: Option<Pass>,
    /// The last complete one.
    pub(super) last: Option<Pass>,
    /// Damage that was found and has not been found repaired since, ascending.
    pub(super) damages: Vec<Damage>,
}

impl State {
    /// Returns since when everything was read or written, or `None` if not everything was ever read.
    pub(super) fn covered_since(&self, now_ns: i64) -> Option<i64> {
        if self.latest_ns() > now_ns {
            return None;
        }
        let last = self.last.as_ref()?;
        let behind = last.since(self.current.as_ref().map_or(Position::START, |pass| pass.position));
        let since = self.current.as_ref().map_or(behind, |pass| behind.min(pass.since(Position::START)));
        Some(since).filter(|since| *since > NEVER)
    }

    /// Returns the latest time in the state.
    pub(super) fn latest_ns(&self) -> i64 {
        let times = |pass: &Pass| pass.samples.iter().map(|sample| sample.time_ns).chain([pass.started_ns, pass.ended_ns]).max();
        self.current.iter().chain(&self.last).filter_map(times).max().unwrap_or(i64::MIN)
    }

    /// Replaces the damages between `from` and the position of the pass, which was just read, with `found`.
    pub(super) fn replace_damages(&mut self, from: Position, found: Vec<Damage>) {
        let Some(pass) = &mut self.current else { return };
        self.damages.retain(|damage| damage.position < from || damage.position >= pass.position);
        for mut damage in found {
            if self.damages.len() >= MAX_DAMAGES {
                pass.unlisted += 1;
                continue;
            }
            let end = (0..=MAX_WHAT_BYTES.min(damage.what.len())).rev().find(|end| damage.what.is_char_boundary(*end)).unwrap_or(0);
            damage.what.truncate(end);
            let place = self.damages.partition_point(|other| other.position <= damage.position);
            self.damages.insert(place, damage);
        }
    }

    /// Returns the number of known damages, listed or not.
    pub(super) fn damage_count(&self) -> u64 {
        let unlisted = self.current.iter().chain(&self.last).map(|pass| pass.unlisted).max().unwrap_or(0);
        self.damages.len() as u64 + unlisted
    }

    /// Marks the current pass as complete.
    pub(super) fn complete(&mut self) {
        self.last = self.current.take().or(self.last.take());
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        for pass in [&self.current, &self.last] {
            out.push(u8::from(pass.is_some()));
            let Some(pass) = pass else { continue };
            put_signed(&mut out, pass.started_ns);
            put_signed(&mut out, pass.ended_ns);
            put_position(&mut out, pass.position);
            put_varint(&mut out, pass.read_bytes);
            put_varint(&mut out, pass.unlisted);
            put_varint(&mut out, pass.samples.len() as u64);
            for sample in &pass.samples {
                put_position(&mut out, sample.position);
                put_signed(&mut out, sample.time_ns);
            }
        }
        put_varint(&mut out, self.damages.len() as u64);
        for damage in &self.damages {
            put_position(&mut out, damage.position);
            put_bytes(&mut out, damage.what.as_bytes());
        }
        out
    }

    pub(super) fn decode(value: &[u8]) -> Result<State, WireError> {
        let mut reader = Reader::new(value);
        let version = reader.u8()?;
        if version != VERSION {
            return Err(WireError::OutOfRange { what: "version of the scrub state", value: u64::from(version), offset_bytes: 0 });
        }
        let (current, last) = (read_pass(&mut reader)?, read_pass(&mut reader)?);
        let mut damages = Vec::new();
        for _ in 0..reader.varint_to("damages", MAX_DAMAGES as u64)? {
            let position = read_position(&mut reader)?;
            damages.push(Damage { position, what: String::from_utf8_lossy(reader.bytes()?).into_owned() });
        }
        reader.end()?;
        Ok(State { current, last, damages })
    }
}

fn put_position(out: &mut Vec<u8>, position: Position) {
    out.push(position.phase as u8);
    put_varint(out, position.unit);
}

fn read_position(reader: &mut Reader<'_>) -> Result<Position, WireError> {
    let offset_bytes = reader.position();
    let number = reader.u8()?;
    let what = "phase of a scrub";
    let phase = Phase::from_number(number).ok_or(WireError::OutOfRange { what, value: u64::from(number), offset_bytes })?;
    Ok(Position { phase, unit: reader.varint()? })
}

fn read_pass(reader: &mut Reader<'_>) -> Result<Option<Pass>, WireError> {
    if reader.u8()? == 0 {
        return Ok(None);
    }
    let (started_ns, ended_ns) = (reader.signed()?, reader.signed()?);
    let position = read_position(reader)?;
    let (read_bytes, unlisted) = (reader.varint()?, reader.varint()?);
    let offset_bytes = reader.position();
    let count = reader.varint_to("samples of a scrub", MAX_SAMPLES as u64)?;
    if count == 0 {
        return Err(WireError::OutOfRange { what: "samples of a scrub", value: 0, offset_bytes });
    }
    let sample = |reader: &mut Reader<'_>| Ok(Sample { position: read_position(reader)?, time_ns: reader.signed()? });
    let samples = (0..count).map(|_| sample(reader)).collect::<Result<_, WireError>>()?;
    Ok(Some(Pass { started_ns, ended_ns, position, read_bytes, samples, unlisted }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(phase: Phase, unit: u64) -> Position {
        Position { phase, unit }
    }

    fn stepped(times: &[(Position, i64)]) -> Pass {
        let mut pass = Pass::new(times[0].1);
        for (position, time) in times {
            pass.position = *position;
            pass.sample(*time);
            pass.ended_ns = *time;
        }
        pass
    }

    #[test]
    fn the_claim_is_that_of_what_was_not_read_for_longest() {
        let mut state = State::default();
        assert_eq!(state.covered_since(1000), None);
        state.current = Some(stepped(&[(Position::START, 100), (at(Phase::Containers, 50), 200), (at(Phase::ChunkIndex, 3), 300)]));
        assert_eq!(state.covered_since(1000), None, "the first pass is not complete");
        state.complete();
        assert_eq!(state.covered_since(1000), Some(100));
        // The second pass has read containers up to 49, then 60, then all.
        state.current = Some(stepped(&[(Position::START, 500), (at(Phase::Containers, 49), 510)]));
        assert_eq!(state.covered_since(1000), Some(100));
        state.current = Some(stepped(&[(Position::START, 500), (at(Phase::Containers, 60), 520)]));
        assert_eq!(state.covered_since(1000), Some(200));
        state.current = Some(stepped(&[(Position::START, 500), (at(Phase::ObjectIndex, 0), 530)]));
        assert_eq!(state.covered_since(1000), Some(300));
        state.complete();
        assert_eq!(state.covered_since(1000), Some(500));
        assert_eq!(state.covered_since(529), None, "the clock was set back");
    }

    #[test]
    fn samples_that_go_make_the_claim_weaker_only() {
        let mut pass = Pass::new(0);
        for unit in 1..5000u64 {
            pass.position = at(Phase::Containers, unit);
            pass.sample(unit as i64);
        }
        assert!(pass.samples.len() <= MAX_SAMPLES);
        for unit in 0..5000u64 {
            let since = pass.since(at(Phase::Containers, unit));
            assert!(since <= unit as i64 && since + 200 >= unit as i64, "{unit}: {since}");
        }
    }

    #[test]
    fn damages_go_when_their_place_was_read_and_is_whole() {
        let damage = |unit| Damage { position: at(Phase::Containers, unit), what: format!("é{unit}") };
        let mut state = State { current: Some(Pass::new(0)), ..State::default() };
        let read_up_to = |state: &mut State, unit| {
            let pass = state.current.as_mut().unwrap();
            std::mem::replace(&mut pass.position, at(Phase::Containers, unit))
        };
        let from = read_up_to(&mut state, 10);
        state.replace_damages(from, vec![damage(7), damage(3)]);
        let from = read_up_to(&mut state, 20);
        state.replace_damages(from, vec![damage(15)]);
        assert_eq!(state.damages, [damage(3), damage(7), damage(15)]);
        state.current = Some(Pass::new(5));
        let from = read_up_to(&mut state, 5);
        state.replace_damages(from, Vec::new());
        assert_eq!(state.damages, [damage(7), damage(15)]);
        let long = Damage { what: "é".repeat(MAX_WHAT_BYTES), ..damage(6) };
        let from = read_up_to(&mut state, 9);
        state.replace_damages(from, vec![long]);
        assert_eq!((state.damages[0].what.len(), state.damages[1].clone()), (MAX_WHAT_BYTES, damage(15)));
        let many: Vec<Damage> = (100..100 + MAX_DAMAGES as u64).map(damage).collect();
        let from = read_up_to(&mut state, 5000);
        state.replace_damages(from, many);
        assert_eq!(state.damage_count(), MAX_DAMAGES as u64 + 1);
    }

    #[test]
    fn a_state_is_read_as_written_and_garbage_refused() {
        let mut state = State { current: Some(stepped(&[(Position::START, 5), (at(Phase::Forwards, 77), 9)])), ..State::default() };
        assert_eq!(State::decode(&state.encode()), Ok(state.clone()));
        // The greatest name that a group can have.
        state.current = Some(stepped(&[(Position::START, 5), (at(Phase::Parity, u64::MAX - 1).next(), 9)]));
        assert_eq!(State::decode(&state.encode()), Ok(state.clone()));
        state.complete();
        state.current = Some(Pass::new(20));
        state.damages.push(Damage { position: at(Phase::ObjectIndex, 0), what: "torn".into() });
        let encoded = state.encode();
        assert_eq!(State::decode(&encoded), Ok(state));
        for length in 0..encoded.len() {
            assert!(State::decode(&encoded[..length]).is_err());
        }
    }
}
