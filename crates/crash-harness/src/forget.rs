//! Forgetting backups by id and by policy, and what keeps them from being forgotten.

use crate::model::{BackupModel, Model};
use crate::world::{Fault, Random, World};
use jiff::tz::TimeZone;
use onefold_catalog::retention::{Limit, Policy, plan};
use onefold_catalog::{Backup, CatalogError, Now};
use std::collections::HashMap;

/// Long after any run of this program: nanoseconds since 1970.
const PROTECTED_UNTIL_NS: i64 = i64::MAX / 2;

fn visible(model: &Model) -> impl Iterator<Item = &BackupModel> {
    model.backups.values().filter(|known| known.visible.last() == Some(&true))
}

/// Forgets one or two backups, whatever they are.
pub(crate) fn by_id(world: &mut World, model: &mut Model, random: &mut Random) -> Result<(), Fault> {
    let backups: Vec<Backup> = visible(model).map(|known| known.backup.clone()).collect();
    if backups.is_empty() {
        return Ok(());
    }
    let chosen = (0..=random.below(2)).map(|_| backups[random.below(backups.len() as u64) as usize].clone());
    forget(world, model, chosen.collect())
}

/// Forgets what a policy does not keep.
pub(crate) fn by_policy(world: &mut World, model: &mut Model, random: &mut Random) -> Result<(), Fault> {
    let mut backups: Vec<Backup> = visible(model).map(|known| known.backup.clone()).collect();
    backups.sort_by_key(|backup| backup.started_ns);
    let newest = backups.last().map(|backup| backup.id);
    let protected: HashMap<_, _> = world.catalog.protected()?;
    let policy = Policy {
        last: Limit::AtMost(1 + random.below(4) as u32),
        hourly: Limit::AtMost(random.below(3) as u32),
        daily: Limit::AtMost(random.below(4) as u32),
        ..Policy::default()
    };
    let plans = plan(backups, &protected, &policy, Now { date_ns: i64::MAX, seen_ns: u64::MAX }, &TimeZone::UTC);
    let chosen: Vec<Backup> = plans.into_values().flat_map(|plan| plan.remove).collect();
    assert!(chosen.iter().all(|backup| Some(backup.id) != newest && !protected.contains_key(&backup.id)), "{policy}");
    forget(world, model, chosen)
}

fn forget(world: &mut World, model: &mut Model, backups: Vec<Backup>) -> Result<(), Fault> {
    world.doing = "forget";
    let ids: Vec<[u8; 16]> = backups.iter().map(|backup| *backup.id.as_bytes()).collect();
    let result = world.catalog.remove_backups(&backups);
    let may_be = |is_protected| ids.iter().any(|id| model.backups[id].protected.contains(&is_protected));
    match &result {
        Ok(()) => assert!(ids.iter().all(|id| model.backups[id].protected != [true]), "a protected backup was forgotten"),
        Err(CatalogError::Protected { .. }) => {
            assert!(may_be(true), "refused though none is protected");
            return Ok(());
        }
        Err(_) => {}
    }
    settle_visible(world, model, &ids, false, result)
}

/// Protects a backup, or ends its protection.
pub(crate) fn protect(world: &mut World, model: &mut Model, random: &mut Random, _: usize) -> Result<(), Fault> {
    world.doing = "protect";
    let backups: Vec<Backup> = visible(model).map(|known| known.backup.clone()).collect();
    if backups.is_empty() {
        return Ok(());
    }
    let backup = &backups[random.below(backups.len() as u64) as usize];
    // More are freed than protected, or nothing could be forgotten after a while.
    let is_wanted = random.one_in(3);
    let result = world.catalog.protect(std::slice::from_ref(backup), is_wanted.then_some(PROTECTED_UNTIL_NS));
    let is_taken = match &result {
        Err(_) if !world.ground.is_crashed() => world.catalog.protected_until(backup)?.is_some() == is_wanted,
        _ => true,
    };
    if is_taken {
        model.backups.get_mut(backup.id.as_bytes()).expect("it is visible").protected.push(is_wanted);
    }
    if result.is_ok() {
        model.objects_flushed();
    }
    Ok(result?)
}

/// What a commit or a removal of backups came to.
pub(crate) fn settle_visible(
    world: &World,
    model: &mut Model,
    ids: &[[u8; 16]],
    wanted: bool,
    result: Result<(), CatalogError>,
) -> Result<(), Fault> {
    let listed = if result.is_ok() || world.ground.is_crashed() { None } else { world.catalog.list().ok() };
    for id in ids {
        let is_visible = listed.as_ref().map_or(wanted, |listed| listed.iter().any(|backup| backup.id.as_bytes() == id));
        if is_visible == wanted {
            model.backups.get_mut(id).expect("known").visible.push(wanted);
        }
    }
    if result.is_ok() {
        model.objects_flushed();
    }
    Ok(result?)
}
