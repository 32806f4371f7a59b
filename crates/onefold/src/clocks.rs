//! Warnings when the machine's clock does not fit what the store has seen.

use crate::units::{duration, local_time};
use onefold_catalog::{Backup, Catalog};
use onefold_engine::Engine;
use std::time::Duration;

const HOUR_NS: i64 = 3_600_000_000_000;

/// Returns what is wrong with the date, as far as the store can tell.
pub fn doubt(engine: &Engine) -> Option<String> {
    let jump = engine.clock_jump()?;
    let (direction, by) = (if jump.by_ns > 0 { "forward" } else { "back" }, span(jump.by_ns));
    Some(format!(
        "the clock of this machine was set {direction} by {by} since the last write to the store ({} then, {} now), or was wrong then. \
            This does not change the order of backups or how long they are protected",
        local_time(jump.last_ns),
        local_time(jump.now_ns)
    ))
}

/// Returns the same, or that there is a backup from the future.
pub fn doubt_of_backup(catalog: &Catalog) -> Option<String> {
    if let Some(doubt) = doubt(catalog.engine()) {
        return Some(doubt);
    }
    let now_ns = catalog.engine().date_ns();
    // Damage is reported by the command that needs the damaged part.
    let newest: Backup = catalog.newest(|_| true).ok()??;
    (newest.finished_ns.saturating_sub(now_ns) > HOUR_NS).then(|| {
        format!(
            "the newest backup, {}, is dated {}, but it is {} now: the clock of this machine was wrong then or is wrong now. The new \
                backup counts as the newer one",
            newest.id.short(),
            local_time(newest.finished_ns),
            local_time(now_ns)
        )
    })
}

fn span(by_ns: i64) -> String {
    let by = Duration::from_nanos(by_ns.unsigned_abs());
    let days = by.as_secs() / 86_400;
    if days < 3 { duration(by) } else { format!("{days} days") }
}
