//! Who needs a lost chunk: every path of every backup, and every range of every volume, by name.

use crate::Result;
use crate::check::{CheckReport, Monitor, ProblemKind};
use crate::references::{mapping, mapping_key, objects};
use onefold_catalog::{Backup, Catalog, Content, TreeWalk};
use onefold_engine::{Engine, Piece, Recipe};
use onefold_fingerprint::Fingerprint;
use onefold_volume::VolumeInfo;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Adds a problem for everything that needs one of the `lost` chunks.
pub(crate) fn name(engine: &Arc<Engine>, lost: &HashSet<Fingerprint>, monitor: &dyn Monitor, report: &mut CheckReport) -> Result<()> {
    volumes(engine, lost, report)?;
    let backups = Catalog::new(engine.clone()).list()?;
    monitor.step("what is affected", backups.len() as u64);
    for backup in &backups {
        if monitor.is_cancelled() {
            break;
        }
        paths(engine, backup, lost, report);
        monitor.advance(1);
    }
    Ok(())
}

fn volumes(engine: &Arc<Engine>, lost: &HashSet<Fingerprint>, report: &mut CheckReport) -> Result<()> {
    let mut infos: HashMap<u32, VolumeInfo> = HashMap::new();
    objects(engine, b'v', &mut |key, value| {
        let number = key.get(1..5).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
        if let Some(number) = number
            && let Ok(info) = VolumeInfo::decode(number, value)
        {
            infos.insert(number, info);
        }
    })?;
    objects(engine, b'm', &mut |key, value| {
        let (Some((number, block)), Some(recipe)) = (mapping_key(key), mapping(value, engine.digest_bytes())) else { return };
        let Some(info) = infos.get(&number) else { return };
        let mut at = block * u64::from(info.block_size);
        for piece in &recipe.pieces {
            let end = at + piece.length();
            if is_lost(piece, lost) {
                report.add(ProblemKind::Affected, format!("volume {:?}: bytes {at} to {end} are lost", info.name));
            }
            at = end;
        }
    })
}

fn is_lost(piece: &Piece, lost: &HashSet<Fingerprint>) -> bool {
    piece.fingerprint().is_some_and(|fingerprint| lost.contains(&fingerprint))
}

fn paths(engine: &Arc<Engine>, backup: &Backup, lost: &HashSet<Fingerprint>, report: &mut CheckReport) {
    let what =
        |path: &[u8], why: &str| format!("backup {} ({}): {:?}: {why}", backup.id.short(), backup.name, String::from_utf8_lossy(path));
    for item in TreeWalk::new(engine, b"", &backup.root) {
        match item.entry {
            Err(error) => report.add(ProblemKind::Affected, what(&item.path, &format!("a part of this directory is lost: {error}"))),
            Ok(entry) => {
                if let Content::File { recipe, .. } = &entry.content
                    && needs_lost(engine, recipe, lost)
                {
                    report.add(ProblemKind::Affected, what(&item.path, "a part of this file is lost"));
                }
            }
        }
    }
}

/// Whether a file cannot be restored whole.
fn needs_lost(engine: &Engine, recipe: &Recipe, lost: &HashSet<Fingerprint>) -> bool {
    let mut found = recipe.pieces.iter().any(|piece| is_lost(piece, lost));
    if !found && recipe.level > 0 {
        let expanded = engine.expand(recipe, &mut |piece| {
            found = is_lost(piece, lost);
            !found
        });
        found |= expanded.is_err();
    }
    found
}
