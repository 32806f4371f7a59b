//! The first part of a repair: what opening a store needs, and a chunk index to go with it.

use super::rebuild_chunk_index;
use crate::{Monitor, Result};
use onefold_catalog::Backup;
use onefold_engine::{SalvageOptions, Salvaged, Settings};
use onefold_ground::Ground;
use onefold_ground::wire::Reader;
use std::sync::Arc;

/// What a repair of what opening needs would lose.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    /// A sentence each. None: nothing is lost.
    pub sentences: Vec<String>,
    /// Backups that were made or changed in what is lost, as far as that can still be understood.
    pub backups: Vec<Backup>,
    /// The names of volumes that were made or changed there.
    pub volumes: Vec<String>,
    /// Blocks of volumes that were written there.
    pub blocks: u64,
}

impl Losses {
    /// What a salvage of a store of these digests found.
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

/// Makes a store open again, as far as what keeps it from opening can be repaired: descriptor, owner epoch, object index, operations log, chunk index. Returns a sentence
/// for everything that was repaired and for everything that is lost; nothing if the store was sound. In a dry run nothing is changed, and the
/// sentences tell what would be done. Nobody else may have the store open. Cut short, it is to be run again.
///
/// What is damaged inside the containers is not looked at.
pub fn salvage(
    ground: &Arc<dyn Ground>,
    settings: &Settings,
    options: SalvageOptions,
    command: &str,
    monitor: &dyn Monitor,
) -> Result<Salvaged> {
    monitor.step("what opening needs", 1);
    let mut done = onefold_engine::salvage(ground, settings, options, command)?;
    monitor.advance(1);
    if done.needs_index && !options.dry_run && !done.is_refused {
        done.sentences.extend(rebuild_chunk_index(ground.clone(), settings.clone(), command, monitor)?);
    }
    Ok(done)
}
