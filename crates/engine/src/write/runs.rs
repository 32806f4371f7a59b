//! Many whole short runs at once (small files). Somebody may know a run by the names of its chunks before any of them
//! is looked up (M3.3, `docs/decisions/0057-file-fingerprints.md`): then its chunks take no further part.

use crate::components::CHUNKING;
use crate::write::stream::{STEP_BYTES, Step, push_chunks, push_piece};
use crate::{Hints, Piece, Result, WriteStream};
use onefold_fingerprint::Fingerprint;
use onefold_storage::Address;

/// The bytes of a run without their places: for each chunk its name (`None`: zeros) and its length. Zeros behind zeros
/// are one.
pub type Spelled = Vec<(Option<Fingerprint>, u64)>;

/// Returns for each of these runs whether it is known, so that it need not be stored. Appends addresses where the
/// chunks of the others may be stored already ([`WriteStream::recall`]).
pub type AskKnown<'a> = &'a mut dyn FnMut(&[Spelled], &mut Vec<Address>) -> Vec<bool>;

impl Step<'_> {
    /// Returns what its runs spell.
    fn spelled(&self) -> Vec<Spelled> {
        let unnamed = Fingerprint::from_digest(&[]);
        let mut chunks = self.chunks.iter().zip(&self.fingerprints);
        let of_run = |count: &Option<usize>| {
            let mut spelled = Spelled::new();
            for (chunk, name) in chunks.by_ref().take(count.unwrap_or(0)) {
                let (name, length) = ((*name != unnamed).then_some(*name), chunk.len() as u64);
                match spelled.last_mut() {
                    Some((None, before)) if name.is_none() => *before += length,
                    _ => spelled.push((name, length)),
                }
            }
            spelled
        };
        self.counts.iter().map(of_run).collect()
    }

    /// Leaves out the chunks of known runs.
    fn leave_out(&mut self, is_known: &[bool]) {
        if !is_known.contains(&true) {
            return;
        }
        let (chunks, fingerprints) = (std::mem::take(&mut self.chunks), std::mem::take(&mut self.fingerprints));
        let mut at = 0;
        for (count, is_known) in self.counts.iter_mut().zip(is_known) {
            let run = at..at + count.unwrap_or(0);
            at = run.end;
            if *is_known {
                *count = None;
            } else {
                self.chunks.extend_from_slice(&chunks[run.clone()]);
                self.fingerprints.extend_from_slice(&fingerprints[run]);
            }
        }
    }
}

impl WriteStream {
    /// Stores many whole short runs (small files) in few batches; returns the pieces of each.
    pub fn write_runs(&mut self, runs: &[&[u8]], hints: Hints<'_>) -> Result<Vec<Vec<Piece>>> {
        Ok(self.store_runs(runs, hints, None)?.into_iter().flatten().collect())
    }

    /// Does the same, and asks before it stores whether a run is known. Returns `None` for those that are.
    pub fn write_unknown_runs(&mut self, runs: &[&[u8]], ask: AskKnown<'_>) -> Result<Vec<Option<Vec<Piece>>>> {
        self.store_runs(runs, Hints::default(), Some(ask))
    }

    fn store_runs<'d>(&mut self, runs: &[&'d [u8]], hints: Hints<'_>, mut ask: Option<AskKnown<'_>>) -> Result<Vec<Option<Vec<Piece>>>> {
        let engine = self.engine.clone();
        let chain = hints.chain.unwrap_or(engine.filters.data());
        engine.served(runs.iter().map(|run| run.len()).sum());
        self.wake();
        let mut pieces = Vec::with_capacity(runs.len());
        let mut runs = runs.iter();
        let cut = |stream: &mut WriteStream, step: &mut Step<'d>| {
            let mut cuts = Vec::new();
            let begun = std::time::Instant::now();
            for run in runs.by_ref() {
                let before = step.chunks.len();
                cuts.clear();
                engine.chunker.cut(run, true, &mut cuts);
                push_chunks(&mut step.chunks, run, &cuts);
                step.counts.push(Some(step.chunks.len() - before));
                step.bytes += run.len();
                if step.bytes >= STEP_BYTES {
                    break;
                }
            }
            if step.counts.is_empty() {
                return false;
            }
            engine.profile.add(&CHUNKING, begun.elapsed().as_nanos() as u64, step.bytes as u64);
            engine.name(&step.chunks, chain, &mut step.fingerprints);
            if let Some(ask) = &mut ask {
                let mut recalled = Vec::new();
                step.leave_out(&ask(&step.spelled(), &mut recalled));
                stream.recall(&recalled);
            }
            true
        };
        self.store_steps(hints, cut, |step, stored| {
            for count in &step.counts {
                pieces.push(count.map(|count| {
                    let mut run = Vec::with_capacity(count);
                    (&mut *stored).take(count).for_each(|piece| push_piece(&mut run, piece));
                    run
                }));
            }
        })?;
        Ok(pieces)
    }
}
