//! The first part of a repair: what opening a store needs, and a chunk index to go with it.

use crate::check::Monitor;
use crate::{Result, rebuild_chunk_index};
use onefold_engine::Settings;
use onefold_ground::Ground;
use std::sync::Arc;

/// Makes a store open again, as far as what keeps it from opening can be repaired: descriptor, owner epoch, block index, operations log, chunk index. Returns a sentence
/// for everything that was repaired and for everything that is lost; nothing if the store was sound. With `dry_run` nothing is changed, and the
/// sentences tell what would be done. Nobody else may have the store open. Cut short, it is to be run again.
///
/// What is damaged inside the containers is not looked at.
pub fn salvage(ground: &Arc<dyn Ground>, settings: &Settings, dry_run: bool, command: &str, monitor: &dyn Monitor) -> Result<Vec<String>> {
    monitor.step("what opening needs", 1);
    let mut done = onefold_engine::salvage(ground, settings, dry_run, command)?;
    monitor.advance(1);
    if done.needs_index && !dry_run {
        done.sentences.extend(rebuild_chunk_index(ground.clone(), settings.clone(), command, monitor)?);
    }
    Ok(done.sentences)
}
