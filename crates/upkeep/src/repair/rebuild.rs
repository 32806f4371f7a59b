//! Rebuilds the chunk index from the containers and from everything that refers to chunks (M0.13: the index is a view).

use crate::Monitor;
use crate::references::{StoreRoots, metadata_of, of_objects, volumes};
use crate::{Result, UpkeepError};
use onefold_engine::{BlockRebuild, Descriptor, Engine, EngineError, Piece, Rebuild, Settings, Tree};
use onefold_fingerprint::Fingerprint;
use onefold_ground::Ground;
use std::collections::HashMap;
use std::sync::Arc;

/// Distinct chunks whose references are summed up before they go to the index.
const BATCH: usize = 1 << 18;

/// Discards the chunk index and builds a new one: places from the catalogs of all containers or from the blocks, usage
/// counts from all references. Returns what is damaged or lost, which is not in the new index. Errors: anything else
/// cannot be read, because counts must never be too low. After an error or an interruption, rebuild again before the
/// store opens.
pub fn rebuild_chunk_index(ground: Arc<dyn Ground>, settings: Settings, command: &str, monitor: &dyn Monitor) -> Result<Vec<String>> {
    if ground.bucket().is_some() {
        // The log and its history say what is in it.
        Engine::renew_state(&ground, &settings, command)?;
        return Ok(Vec::new());
    }
    if Descriptor::read_any(&*ground)?.profile.has_blocks() {
        return rebuild_from_blocks(ground, settings, command, monitor);
    }
    let mut problems = Vec::new();
    monitor.step("places of chunks", 1);
    let mut rebuild = Rebuild::start(ground, settings, command, &mut |problem| problems.push(problem))?;
    monitor.advance(1);
    let engine = rebuild.engine().clone();
    let containers = engine.storage().units()?;
    let answering = engine.storage().answering(&containers, &engine.storage().forwards()?)?;
    let moment = engine.moment(None)?;
    monitor.step("references", containers.len() as u64 + 1);
    let mut counts = Counts::default();
    let counted = engine.descriptor().profile.counts().then_some(&containers);
    for container in counted.into_iter().flat_map(|containers| containers.iter()) {
        let slots = match engine.storage().known_chunks_of(container, &mut Vec::new()) {
            Ok(slots) => slots,
            // It was reported with the places.
            Err(error) if error.is_damage() => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let mut lost = Vec::new();
        let counting = answering.origins(container, &slots)?;
        for (chunk, _) in metadata_of(&engine, moment.containers(), &counting, container, &slots) {
            match chunk.read_references(&engine)? {
                Some(pieces) => pieces.iter().for_each(|piece| counts.add(piece)),
                None => {
                    problems.push(format!("metadata chunk {} at {} cannot be read", chunk.fingerprint, chunk.address));
                    lost.push(chunk.fingerprint);
                }
            }
        }
        rebuild.lose(&lost)?;
        counts.hand_over(&mut rebuild, BATCH)?;
        monitor.advance(1);
    }
    // Without counts, the places are all there is to it.
    if !engine.descriptor().profile.counts() {
        drop(moment);
        drop(engine);
        rebuild.finish()?;
        return Ok(problems);
    }
    let names = volumes(&moment, &mut |problem| problems.push(problem));
    if let Some(why) =
        of_objects(&moment, &names, &mut |tree| tree.recipe.pieces.iter().for_each(|piece| counts.add(piece)), &mut |problem| {
            problems.push(problem)
        })
    {
        return Err(not_rebuilt(&why));
    }
    counts.hand_over(&mut rebuild, 0)?;
    monitor.advance(1);
    drop(moment);
    drop(engine);
    rebuild.finish()?;
    Ok(problems)
}

/// Does the same for a store of blocks: from what the blocks hold, and from all references.
fn rebuild_from_blocks(ground: Arc<dyn Ground>, settings: Settings, command: &str, monitor: &dyn Monitor) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    monitor.step("places of chunks", 1);
    let mut rebuild = BlockRebuild::start(ground, settings, command)?;
    monitor.advance(1);
    let engine = rebuild.engine().clone();
    let moment = engine.moment(None)?;
    monitor.step("references", 2);
    let roots = StoreRoots::new(engine.digest_bytes());
    let names = volumes(&moment, &mut |problem| problems.push(problem));
    let mut failed = None;
    let mut follow = |tree: Tree<'_>| {
        if failed.is_none() {
            failed = rebuild.follow(tree, &roots).err();
        }
    };
    let unread = of_objects(&moment, &names, &mut follow, &mut |problem| problems.push(problem));
    if let Some(error) = failed {
        return Err(error.into());
    }
    if let Some(why) = unread {
        return Err(not_rebuilt(&why));
    }
    monitor.advance(1);
    rebuild.find_lost(&roots)?;
    monitor.advance(1);
    drop(moment);
    drop(engine);
    problems.extend(rebuild.finish()?);
    Ok(problems)
}

/// Counts would be lower than the number of references.
fn not_rebuilt(why: &str) -> UpkeepError {
    EngineError::Inconsistent { why: format!("the chunk index was not rebuilt: some references could not be read: {why}") }.into()
}

#[derive(Default)]
struct Counts(HashMap<Fingerprint, i64>);

impl Counts {
    fn add(&mut self, piece: &Piece) {
        if let Some(fingerprint) = piece.fingerprint() {
            *self.0.entry(fingerprint).or_default() += 1;
        }
    }

    fn hand_over(&mut self, rebuild: &mut Rebuild, above: usize) -> Result<()> {
        if self.0.len() > above {
            let sums: Vec<_> = self.0.drain().collect();
            rebuild.count(&sums)?;
        }
        Ok(())
    }
}
