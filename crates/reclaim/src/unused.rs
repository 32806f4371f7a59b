//! Removing all chunks that nothing refers to (M0.19): what a deleted backup or volume, an overwritten block, or a backup that was cut short
//! leaves behind. The engine decides on each chunk (`onefold_engine`, `removal.rs`); here it is decided which to ask about.
//!
//! A backup's root goes with its record; the chunks of its tree follow level by level, as each removed metadata chunk gives up what it refers to.
//! These are asked about at once, so one pass over the pages of the chunk index that have unused chunks is enough.

use crate::Result;
use crate::check::Monitor;
use crate::references::of_chunk;
use onefold_engine::{Engine, MAX_CANDIDATES, Removed, UnusedCursor};
use std::sync::Arc;

/// Released chunks that wait for being asked about; more are left to the next pass over the index. Bounds memory.
const MAX_WAITING: usize = 8 * MAX_CANDIDATES;
/// Passes over the index in one call: later ones only have what the first had no room for.
const MAX_PASSES: usize = 64;

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovalReport {
    /// Chunks removed.
    pub chunks: u64,
    /// Their bytes before compression.
    pub bytes: u64,
    /// Chunks that could not be judged, because a container cannot be read: one sentence each, the first hundred.
    pub damaged: Vec<String>,
    /// Whether all unused chunks are gone: not if writes in flight did not end, or the monitor cancelled.
    pub is_complete: bool,
}

/// Sentences that a report has at most.
const LISTED: usize = 100;

impl RemovalReport {
    fn add(&mut self, removed: &Removed) {
        self.chunks += removed.chunks;
        self.bytes += removed.bytes;
        let room = LISTED.saturating_sub(self.damaged.len());
        self.damaged.extend(removed.damaged.iter().take(room).cloned());
    }
}

/// Removes all chunks that nothing refers to; the space in their containers comes back with merging. `go_on` is asked while writes in flight are
/// waited for. What was removed is durable whatever comes after; after an error or a crash the next call goes on.
pub fn remove_unused(engine: &Arc<Engine>, monitor: &dyn Monitor, go_on: &dyn Fn() -> bool) -> Result<RemovalReport> {
    let digest_bytes = engine.digest_bytes();
    let references = |kind, content: &[u8]| {
        let pieces = of_chunk(content, kind, digest_bytes).ok_or("its content is not what it should be")?;
        Ok(pieces.iter().filter_map(onefold_engine::Piece::fingerprint).collect())
    };
    let go_on = || go_on() && !monitor.is_cancelled();
    let mut report = RemovalReport::default();
    // What was stored and never referred to is in the index only when it is durable.
    engine.flush()?;
    for _ in 0..MAX_PASSES {
        // Counts that only the memory knows are brought into the pages, where the search looks.
        engine.maintain(true)?;
        let mut was_left = false;
        let mut cursor = Some(UnusedCursor::default());
        while let Some(from) = cursor {
            let (mut waiting, next) = engine.unused(from, MAX_CANDIDATES)?;
            cursor = next;
            while !waiting.is_empty() {
                if !go_on() {
                    return Ok(report);
                }
                let candidates = waiting.split_off(waiting.len().saturating_sub(MAX_CANDIDATES));
                let removed = engine.remove_unused(&candidates, &references, &go_on)?;
                if removed.was_busy {
                    return Ok(report);
                }
                report.add(&removed);
                monitor.advance(removed.chunks);
                was_left |= waiting.len() + removed.released.len() > MAX_WAITING;
                let room = MAX_WAITING.saturating_sub(waiting.len());
                waiting.extend(removed.released.into_iter().take(room));
            }
        }
        if !was_left {
            report.is_complete = true;
            return Ok(report);
        }
    }
    Ok(report)
}
