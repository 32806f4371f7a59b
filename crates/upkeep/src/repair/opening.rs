//! The first part of a repair: what opening a store needs, and a matching chunk index.

use super::meaning::ObjectMeaning;
use super::rebuild_chunk_index;
use crate::{Monitor, Result};
use onefold_blocks::{Owner, Record};
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
    /// The names of filesystems created or changed there.
    pub filesystems: Vec<String>,
    /// Blocks of volumes and filesystems written there.
    pub blocks: u64,
    /// Entries of filesystems written or removed there.
    pub entries: u64,
}

impl Losses {
    /// Returns what a salvage found. `digest_bytes` is the store's.
    pub(crate) fn of(found: Salvaged, digest_bytes: usize) -> Losses {
        let mut losses = Losses { sentences: found.losses, ..Losses::default() };
        for (_, key, value) in &found.lost_objects {
            match (key.first(), value) {
                (Some(b'b'), Some(value)) => losses.backups.extend(Backup::decode_object(key, value, digest_bytes).ok()),
                (Some(b'v'), Some(value)) if is_filesystem(value) => losses.filesystems.extend(name_of(value)),
                (Some(b'v'), Some(value)) => losses.volumes.extend(name_of(value)),
                (Some(b'm'), _) => losses.blocks += 1,
                (Some(b'E'), _) => losses.entries += 1,
                _ => {}
            }
        }
        losses
    }
}

/// Returns the name in the record of a volume or a filesystem, even if the rest cannot be read.
fn name_of(value: &[u8]) -> Option<String> {
    let name = Reader::new(value.get(1..)?).bytes().ok()?.to_vec();
    Some(String::from_utf8_lossy(&name).into_owned())
}

fn is_filesystem(value: &[u8]) -> bool {
    Record::decode(0, value).is_ok_and(|record| record.kind.owner() == Owner::Filesystems)
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
