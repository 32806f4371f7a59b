//! Volumes from store to store, with their snapshots and clones.
//!
//! As they are at one moment, in the order in which they were made. Of each volume there is a working copy in the destination, whose content goes through the states of the
//! source: that of its first snapshot, of which a snapshot is made, then what differs to the second, and so on. Clones begin as clones of what they
//! were made of. So layers are shared as in the source, and each difference is read once.
//!
//! Invariants:
//! * A snapshot is made when the working copy is what it shall be; a working copy gets its volume's name when it is complete.
//! * What a working copy holds is known only from this run: one of an earlier run that was cut short is written as a whole.
//! * A volume of the destination that has the name already is left as it is, and nothing is made of it.

use crate::error::{Result, source};
use crate::{CopyError, Monitor, Problem};
use onefold_engine::EngineError;
use onefold_volume::{Frozen, Volume, VolumeError, VolumeInfo, VolumeKind, Volumes};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are read and written at a time.
const STEP: u64 = 4 << 20;
/// Extents that are asked for at a time.
const EXTENTS: usize = 1024;
/// Longest beginning of a name that a working copy keeps, bytes.
const NAME_BYTES: usize = 200;

/// What became of the volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumesOutcome {
    /// Names of those that are in the destination now.
    pub copied: Vec<String>,
    /// Names of those that it had, and that were left as they are.
    pub there: Vec<String>,
    /// Those that cannot be read.
    pub problems: Vec<Problem>,
    /// Bytes that were read from the source.
    pub read_bytes: u64,
}

/// Content in the destination.
#[derive(Clone)]
struct Copied {
    /// The volume of the destination.
    name: String,
    state: State,
}

/// What it holds.
#[derive(Clone)]
enum State {
    /// What an earlier run left.
    Unknown,
    /// Nothing but zeros.
    Empty,
    /// The content of the volume of the source with this number.
    Of(u32),
}

struct Copy<'a> {
    source: &'a Frozen<'a>,
    destination: &'a Volumes,
    monitor: &'a dyn Monitor,
    /// By the number of the volume in the source: its working copy, or its snapshot.
    known: HashMap<u32, Copied>,
    outcome: VolumesOutcome,
}

/// Copies volumes as they were when they were frozen. Errors: what ends the copy as a whole.
pub fn copy_volumes(source: &Frozen<'_>, destination: &Volumes, monitor: &dyn Monitor) -> Result<VolumesOutcome> {
    let mut copy = Copy { source, destination, monitor, known: HashMap::new(), outcome: VolumesOutcome::default() };
    let mut working = Vec::new();
    for info in source.list() {
        if let Ok(there) = destination.get(&info.name) {
            copy.tidy_up_after(info, &there.info())?;
            copy.outcome.there.push(info.name.clone());
            continue;
        }
        let made = if info.is_read_only { copy.frozen(info) } else { copy.begin(info) };
        match made {
            Ok(()) if info.is_read_only => copy.outcome.copied.push(info.name.clone()),
            Ok(()) => working.push(info),
            Err(error) => copy.problem(info, error)?,
        }
    }
    for info in working {
        match copy.finish(info) {
            Ok(()) => copy.outcome.copied.push(info.name.clone()),
            Err(error) => copy.problem(info, error)?,
        }
    }
    Ok(copy.outcome)
}

/// Each volume of the source has a working name of its own.
fn working_name(info: &VolumeInfo) -> String {
    let end = (0..=info.name.len().min(NAME_BYTES)).rev().find(|end| info.name.is_char_boundary(*end)).unwrap_or(0);
    format!("{}.copying-{}", &info.name[..end], info.number)
}

impl Copy<'_> {
    /// Damage of the source is noted, and its working copy goes; every other error ends the copy.
    fn problem(&mut self, info: &VolumeInfo, error: CopyError) -> Result<()> {
        let CopyError::Source(reason) = error else { return Err(error) };
        self.outcome.problems.push(Problem { what: info.name.clone().into_bytes(), reason });
        self.known.remove(&info.number);
        self.drop_working(info)
    }

    /// An earlier run may have been cut short between making what is `there` of its working copy, and dropping that one.
    fn tidy_up_after(&self, info: &VolumeInfo, there: &VolumeInfo) -> Result<()> {
        let Ok(left) = self.destination.get(&working_name(info)) else { return Ok(()) };
        let is_of_it = there.origin.as_ref().is_some_and(|origin| origin.number == left.info().number);
        if is_of_it { self.drop_working(info) } else { Ok(()) }
    }

    /// Where nothing may be deleted, it stays: what it was made for is complete.
    fn drop_working(&self, info: &VolumeInfo) -> Result<()> {
        let name = working_name(info);
        if self.destination.get(&name).is_err() {
            return Ok(());
        }
        match self.destination.delete(&name) {
            Ok(()) | Err(VolumeError::NotFound { .. } | VolumeError::Engine(EngineError::AppendOnly { .. })) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// What a volume of the source holds.
    fn content(&self, number: u32) -> Result<Arc<Volume>> {
        self.source.get(number).cloned().ok_or_else(|| CopyError::Source(format!("volume {number} was not frozen")))
    }

    /// What a volume was made of, if this run has copied it.
    fn origin(&self, info: &VolumeInfo) -> Option<(u32, Copied)> {
        let number = info.origin.as_ref()?.number;
        Some((number, self.known.get(&number)?.clone()))
    }

    /// Makes the working copy of a volume, without its content.
    fn begin(&mut self, info: &VolumeInfo) -> Result<()> {
        let name = working_name(info);
        let is_new = self.destination.get(&name).is_err();
        let mut state = if is_new { State::Empty } else { State::Unknown };
        match self.origin(info).filter(|_| is_new && info.kind == VolumeKind::Clone) {
            Some((_, origin)) => {
                self.destination.make_clone(&origin.name, &name, false)?;
                state = origin.state;
            }
            None if is_new => drop(self.destination.create(&name, info.size, info.block_size, info.chain.clone())?),
            None => {}
        }
        self.known.insert(info.number, Copied { name, state });
        Ok(())
    }

    /// Makes a snapshot, or a clone that never changes.
    fn frozen(&mut self, info: &VolumeInfo) -> Result<()> {
        let origin = self.origin(info).filter(|_| info.kind == VolumeKind::Snapshot);
        let working = match origin {
            // The working copy of the volume becomes what it was then.
            Some((number, _)) => number,
            None => {
                self.begin(info)?;
                info.number
            }
        };
        self.bring(working, info)?;
        let name = self.known[&working].name.clone();
        match info.kind {
            VolumeKind::Snapshot => drop(self.destination.snapshot(&name, &info.name)?),
            _ => drop(self.destination.make_clone(&name, &info.name, true)?),
        }
        self.drop_working(info)?;
        self.known.insert(info.number, Copied { name: info.name.clone(), state: State::Of(info.number) });
        Ok(())
    }

    /// Gives the working copy of a volume its last content and its name.
    fn finish(&mut self, info: &VolumeInfo) -> Result<()> {
        self.bring(info.number, info)?;
        self.destination.rename(&working_name(info), &info.name)?;
        Ok(())
    }

    /// Makes a working copy what `target` is in the source; durable on return.
    fn bring(&mut self, working: u32, target: &VolumeInfo) -> Result<()> {
        let Some(Copied { name, state }) = self.known.get(&working).cloned() else {
            return Err(CopyError::Source("what it was made of cannot be read".to_owned()));
        };
        // Until it is done nobody knows what it holds.
        self.known.insert(working, Copied { name: name.clone(), state: State::Unknown });
        let (from, to) = (self.content(target.number)?, self.destination.get(&name)?);
        if to.size() != target.size {
            to.resize(target.size)?;
        }
        let mut ranges = Vec::new();
        match &state {
            State::Of(state) => {
                let before = self.content(*state)?;
                let mut add = |range: Range<u64>| {
                    ranges.push(range.start..range.end.min(target.size));
                    true
                };
                self.source.volumes().diff(&before, &from, &mut add).map_err(source)?;
            }
            State::Unknown | State::Empty => ranges.push(0..target.size),
        }
        let mut buffer = vec![0; STEP as usize];
        for range in ranges.into_iter().filter(|range| range.start < range.end) {
            let mut at = range.start;
            while at < range.end {
                let before = at;
                for extent in from.status(at, range.end - at, EXTENTS).map_err(source)? {
                    let end = (at + extent.length).min(range.end);
                    if extent.is_hole {
                        if !matches!(state, State::Empty) {
                            to.write_zeroes(at, end - at)?;
                        }
                        at = end;
                    }
                    while at < end {
                        if self.monitor.is_cancelled() {
                            return Err(CopyError::Cancelled);
                        }
                        let step = &mut buffer[..(end - at).min(STEP - at % STEP) as usize];
                        from.read(at, step).map_err(|error| source(format!("offset {at}: {error}")))?;
                        to.write(at, step)?;
                        at += step.len() as u64;
                        self.outcome.read_bytes += step.len() as u64;
                        self.monitor.advance(step.len() as u64);
                    }
                }
                if at == before {
                    return Err(CopyError::Source(format!("no extent at offset {at}")));
                }
            }
        }
        to.flush()?;
        self.known.insert(working, Copied { name, state: State::Of(target.number) });
        Ok(())
    }
}
