//! The first part of a repair: what opening a store needs, and a matching chunk index.

use super::meaning::ObjectMeaning;
use super::rebuild_chunk_index;
use crate::{Monitor, Result};
use onefold_catalog::Backup;
use onefold_engine::{SalvageOptions, Salvaged, Settings};
use onefold_ground::Ground;
use onefold_ground::wire::Reader;
use std::sync::Arc;

/// What would be lost if a repair fixed what opening needs.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    /// One sentence each. Empty: nothing is lost.
    pub sentences: Vec<String>,
    /// Backups created or changed in the lost part, as far as they can still be decoded.
    pub backups: Vec<Backup>,
    /// The names of volumes created or changed there.
    pub volumes: Vec<String>,
    /// Blocks of volumes written there.
    pub blocks: u64,
}

impl Losses {
    /// Returns what a salvage found. `digest_bytes` is the store's.
    pub(crate) fn of(found: Salvaged, digest_bytes: usize) -> Losses {
        let mut losses = Losses { sentences: found.losses, ..Losses::default() };
        for (_, key, value) in &found.lost_objects {
            match (key.first(), value) {
                (Some(b'b'), Some(value)) => losses.backups.extend(Backup::decode_object(key, value, digest_bytes).ok()),
                (Some(b'v'), Some(value)) => {
                    let mut reader = Reader::new(value.get(1..).unwrap_or_default());
                    losses.volumes.extend(reader.bytes().ok().map(|name| String::from_utf8_lossy(name).into_owned()));
                }
                (Some(b'm'), _) => losses.blocks += 1,
                _ => {}
            }
        }
        losses
    }
}

/// Makes a store open again, as far as possible: repairs descriptor, owner epoch, object index, operations log and
/// chunk index. Returns a sentence for everything repaired and everything lost; none if the store was sound. A dry run
/// changes nothing, and the sentences say what would be done. Nobody else may have the store open. If interrupted, run
/// it again.
///
/// Ignores damage inside containers.
pub fn salvage(
    ground: &Arc<dyn Ground>,
    settings: &Settings,
    options: SalvageOptions,
    command: &str,
    monitor: &dyn Monitor,
) -> Result<Salvaged> {
    monitor.step("what opening needs", 1);
    let mut done = onefold_engine::salvage(ground, settings, options, &ObjectMeaning, command)?;
    monitor.advance(1);
    if done.needs_index && !options.dry_run && !done.is_refused {
        done.sentences.extend(rebuild_chunk_index(ground.clone(), settings.clone(), command, monitor)?);
    }
    Ok(done)
}
