//! Copies volumes from store to store, with their snapshots and clones.
//!
//! Volumes are copied as of one moment, in the order in which they were created. The destination has a working copy of
//! each volume. Its content goes through the states of the source: it gets the content of the first snapshot and is
//! snapshotted, then gets what differs in the second, and so on. A clone begins as a clone of its origin's copy. So
//! layers are shared as in the source, and each difference is read once.
//!
//! Invariants:
//! * A snapshot is created when the working copy has its content. A working copy gets its volume's name when it is
//!   complete.
//! * The content of a working copy is known only within this run. A working copy that an interrupted run left is
//!   rewritten as a whole.
//! * If the destination already has a volume of that name, it is left as it is, and nothing is derived from it.

use crate::error::{Result, source};
use crate::{CopyError, Monitor, Problem};
use onefold_engine::EngineError;
use onefold_volume::{Frozen, Volume, VolumeError, VolumeInfo, VolumeKind, Volumes};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes read and written at a time.
const STEP: u64 = 4 << 20;
/// Extents queried at a time.
const EXTENTS: usize = 1024;
/// The longest part of a volume's name that its working copy keeps, in bytes.
const NAME_BYTES: usize = 200;

/// The outcome of copying the volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumesOutcome {
    /// Names of the volumes that were copied.
    pub copied: Vec<String>,
    /// Names of the volumes that the destination already had. They were left as they are.
    pub there: Vec<String>,
    /// Volumes that cannot be read.
    pub problems: Vec<Problem>,
    /// Bytes read from the source.
    pub read_bytes: u64,
}

/// A volume in the destination, and the content it has.
#[derive(Clone)]
struct Copied {
    /// The name of the volume in the destination.
    name: String,
    state: State,
}

/// The content of a volume in the destination.
#[derive(Clone)]
enum State {
    /// Whatever an earlier run left.
    Unknown,
    /// Nothing but zeros.
    Empty,
    /// The content of the source's volume with this number.
    Of(u32),
}

struct Copy<'a> {
    source: &'a Frozen<'a>,
    destination: &'a Volumes,
    monitor: &'a dyn Monitor,
    /// The working copy or the snapshot, by the number of the volume in the source.
    known: HashMap<u32, Copied>,
    outcome: VolumesOutcome,
}

/// Copies volumes as they were when they were frozen. Errors: anything that ends the whole copy.
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

/// Returns a working name that is unique to this volume of the source.
fn working_name(info: &VolumeInfo) -> String {
    let end = (0..=info.name.len().min(NAME_BYTES)).rev().find(|end| info.name.is_char_boundary(*end)).unwrap_or(0);
    format!("{}.copying-{}", &info.name[..end], info.number)
}

impl Copy<'_> {
    /// Reports damage of the source and drops the volume's working copy. Any other error ends the copy.
    fn problem(&mut self, info: &VolumeInfo, error: CopyError) -> Result<()> {
        let CopyError::Source(reason) = error else { return Err(error) };
        self.outcome.problems.push(Problem { what: info.name.clone().into_bytes(), reason });
        self.known.remove(&info.number);
        self.drop_working(info)
    }

    /// Cleans up after an earlier run that was interrupted after deriving `there` from its working copy, but before
    /// dropping that copy.
    fn tidy_up_after(&self, info: &VolumeInfo, there: &VolumeInfo) -> Result<()> {
        let Ok(left) = self.destination.get(&working_name(info)) else { return Ok(()) };
        let is_of_it = there.origin.as_ref().is_some_and(|origin| origin.number == left.info().number);
        if is_of_it { self.drop_working(info) } else { Ok(()) }
    }

    /// Drops the working copy. In append-only mode it stays, and a later run reuses or drops it.
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

    /// Returns the content of a volume of the source.
    fn content(&self, number: u32) -> Result<Arc<Volume>> {
        self.source.get(number).cloned().ok_or_else(|| CopyError::Source(format!("volume {number} was not frozen")))
    }

    /// Returns the number and the copy of the volume's origin, if this run has copied it.
    fn origin(&self, info: &VolumeInfo) -> Option<(u32, Copied)> {
        let number = info.origin.as_ref()?.number;
        Some((number, self.known.get(&number)?.clone()))
    }

    /// Creates the working copy of a volume, without its content.
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

    /// Creates a snapshot, or a read-only clone.
    fn frozen(&mut self, info: &VolumeInfo) -> Result<()> {
        let origin = self.origin(info).filter(|_| info.kind == VolumeKind::Snapshot);
        let working = match origin {
            // The volume's working copy gets the snapshot's content.
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

    /// Gives the working copy of a volume its final content and its name.
    fn finish(&mut self, info: &VolumeInfo) -> Result<()> {
        self.bring(info.number, info)?;
        self.destination.rename(&working_name(info), &info.name)?;
        Ok(())
    }

    /// Gives a working copy the content of `target`. Durable on return.
    fn bring(&mut self, working: u32, target: &VolumeInfo) -> Result<()> {
        let Some(Copied { name, state }) = self.known.get(&working).cloned() else {
            return Err(CopyError::Source("its origin cannot be read".to_owned()));
        };
        // Its content is unknown until this is done.
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
