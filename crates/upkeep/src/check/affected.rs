//! Step 4 of `check`: names every path of every backup, and every range of every volume, that needs a lost chunk. What
//! the blocks of a filesystem mean is not known here, so their numbers are named.

use super::{Check, Lost, Needed, ProblemKind};
use crate::Result;
use crate::references::{Kind, mapping, mapping_key, named, objects};
use onefold_blocks::{SpaceInfo, SpaceKind};
use onefold_catalog::{Backup, CatalogError, Content, TreeWalk};
use onefold_engine::{Engine, Moment, Piece, Recipe};
use onefold_storage::ChunkKind;

/// Adds a problem for everything that needs one of the lost chunks.
pub(crate) fn name(check: &mut Check<'_>) -> Result<()> {
    let moment = check.engine.moment(None)?;
    volumes(check, &moment);
    // Unreadable parts of the object index and records that cannot be decoded were reported before.
    let mut backups = Vec::new();
    let digest_bytes = check.engine.digest_bytes();
    objects(&moment, Kind::Backup, &mut |_, value| backups.extend(Backup::decode(value, digest_bytes)), &mut |_| {});
    check.monitor.step("affected files and volumes", backups.len() as u64);
    for backup in &backups {
        if check.monitor.is_cancelled() {
            break;
        }
        paths(check, backup);
        check.monitor.advance(1);
    }
    Ok(())
}

fn volumes(check: &mut Check<'_>, moment: &Moment<'_>) {
    let volumes = crate::references::volumes(moment, &mut |_| {});
    let engine = check.engine;
    let (report, lost, kinds) = (&mut check.report, &check.lost, &mut check.kinds);
    let digest_bytes = moment.digest_bytes();
    let visit = &mut |key: &[u8], value: &[u8]| {
        let (Some((map, block)), Some(recipe)) = (mapping_key(key), mapping(value, digest_bytes)) else { return };
        let Some((_, layer)) = volumes.owner(map) else { return };
        let mut at = 0u64;
        let mut ranges = Vec::new();
        for piece in &recipe.pieces {
            let end = at.saturating_add(piece.length());
            if let Some(chunk) = needs(engine, piece, lost) {
                kinds.learn(&chunk, ChunkKind::Data);
                match ranges.last_mut() {
                    Some(std::ops::Range { end: before, .. }) if *before == at => *before = end,
                    _ => ranges.push(at..end),
                }
            }
            at = end;
        }
        if ranges.is_empty() {
            return;
        }
        // Snapshots and clones share mappings: every volume that has the block from this map needs the chunk.
        for info in volumes.showing(moment, map, block) {
            let Some(size) = info.record.end_bytes else {
                for range in &ranges {
                    let what = format!("{}: bytes {} to {} of block {block} are lost", named(info), range.start, range.end);
                    report.add(ProblemKind::Affected, what);
                }
                continue;
            };
            let first = block.saturating_mul(u64::from(layer.block_bytes));
            for range in ranges.iter().map(|range| first.saturating_add(range.start)..first.saturating_add(range.end).min(size)) {
                if !range.is_empty() {
                    let what = format!("{} {:?}: bytes {} to {} are lost", kind(info), info.record.name, range.start, range.end);
                    report.add(ProblemKind::Affected, what);
                }
            }
        }
    };
    objects(moment, Kind::Mapping, visit, &mut |_| {});
}

fn kind(info: &SpaceInfo) -> &'static str {
    if info.record.kind == SpaceKind::Snapshot { "snapshot" } else { "volume" }
}

/// Returns the lost chunk that a piece needs.
fn needs(engine: &Engine, piece: &Piece, lost: &Lost) -> Option<Needed> {
    Needed::by_piece(engine, piece).filter(|chunk| lost.contains(chunk))
}

fn paths(check: &mut Check<'_>, backup: &Backup) {
    let what =
        |path: &[u8], why: &str| format!("backup {} ({}): {:?}: {why}", backup.id.short(), backup.name, String::from_utf8_lossy(path));
    // A directory is named once: reading it does not repeat what its parent already knew.
    let mut named = None;
    if needs_lost(check, &backup.root, ChunkKind::Directory) {
        check.report.add(ProblemKind::Affected, what(b"", "a part of this directory is lost"));
        named = Some(Vec::new());
    }
    for item in TreeWalk::new(check.engine, b"", &backup.root) {
        if check.monitor.is_cancelled() {
            break;
        }
        match item.entry {
            Err(error) => {
                check.meets_lost_metadata |= !matches!(error, CatalogError::Rest { refers: false, .. });
                if named.as_ref() != Some(&item.path) {
                    check.report.add(ProblemKind::Affected, what(&item.path, &format!("a part of this directory is lost: {error}")));
                }
            }
            Ok(entry) => {
                let (recipe, of, why) = match &entry.content {
                    Content::File { recipe, .. } => (recipe, ChunkKind::Data, "a part of this file is lost"),
                    // It may be readable right now where its recipe points. A chunk in quarantine is still reported.
                    Content::Directory { recipe } => (recipe, ChunkKind::Directory, "a part of this directory is lost"),
                    _ => continue,
                };
                if needs_lost(check, recipe, of) {
                    check.report.add(ProblemKind::Affected, what(&item.path, why));
                    named = Some(item.path);
                }
            }
        }
    }
}

/// Returns whether a chunk of kind `of` that the recipe names, or a chunk of the recipe itself, is lost.
fn needs_lost(check: &mut Check<'_>, recipe: &Recipe, of: ChunkKind) -> bool {
    pieces_need_lost(check, &recipe.pieces, recipe.level, of)
}

/// Visits all pieces, to learn the kind of each lost one. Decoding limits the level, and so the depth.
fn pieces_need_lost(check: &mut Check<'_>, pieces: &[Piece], level: u8, of: ChunkKind) -> bool {
    let kind = if level > 0 { ChunkKind::Recipe } else { of };
    let mut is_any = false;
    for piece in pieces {
        if let Some(chunk) = needs(check.engine, piece, &check.lost) {
            check.kinds.learn(&chunk, kind);
            check.meets_lost_metadata |= kind != ChunkKind::Data;
            is_any = true;
        }
        if level > 0 {
            match check.engine.recipe_chunk(piece) {
                Ok(below) => is_any |= pieces_need_lost(check, &below, level - 1, of),
                Err(_) => (is_any, check.meets_lost_metadata) = (true, true),
            }
        }
    }
    is_any
}
