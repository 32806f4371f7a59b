//! `onefold protect`.

use super::chosen::chosen;
use crate::cli::{Protect, Until};
use crate::clocks;
use crate::failure::{Exit, Failure, Result};
use crate::session::{Session, StoreCommand, store_command};
use crate::units::{local_time, local_zone, printable, utc_time};
use jiff::Timestamp;
use onefold_catalog::Backup;
use onefold_remote::accounts::{Event, Permission};
use serde_json::{Value, json};

impl StoreCommand for Protect {
    store_command!("protect", far, waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        run(self, session)
    }
}

/// Protects backups, or ends their protection.
fn run(options: &Protect, session: &Session<'_>) -> Result<Exit> {
    let until_ns = until_ns(options.until)?;
    let catalog = session.catalog();
    let backups: Vec<Backup> =
        options.backups.iter().map(|asked| chosen(&catalog, asked, &|text| session.advise(text))).collect::<Result<_>>()?;
    if let Some(doubt) = clocks::doubt(&session.store.engine) {
        session.advise(format!("warning: {doubt}"));
    }
    let before = catalog.protected()?;
    if let Some(account) = session.account() {
        // Over the network a protection only grows, unless an administrator says otherwise.
        let shortens = |backup: &&Backup| before.get(&backup.id).is_some_and(|before| until_ns.is_none_or(|until_ns| until_ns < *before));
        let is_refused = |backup: &Backup| !account.permissions.allows(Permission::Admin, &backup.name);
        if let Some(backup) = backups.iter().filter(shortens).find(|backup| is_refused(backup)) {
            let why = format!("the account may not end the protection of backup {} earlier", backup.id.short());
            return Err(Failure::failed(why).advise("this takes the permission `admin` for the backup"));
        }
    }
    catalog.protect(&backups, until_ns)?;
    for backup in &backups {
        let details = json!({"id": backup.id.to_string(), "until": until_ns.map(utc_time)});
        session.audit(Event::Protect, Some(&backup.name), details);
    }
    let after = catalog.protected()?;
    let mut output = session.output();
    if options.format.json {
        let items = backups.iter().map(|backup| {
            let until = after.get(&backup.id).copied().map(utc_time);
            json!({"id": backup.id.to_string(), "name": backup.name, "protected_until": until})
        });
        output.json(&items.collect::<Value>())?;
    } else if !session.quiet {
        for backup in &backups {
            let after = after.get(&backup.id);
            let now =
                after.map_or_else(|| "no longer protected".to_owned(), |until_ns| format!("protected until {}", local_time(*until_ns)));
            let before = match before.get(&backup.id) {
                Some(before) if Some(before) != after => format!(" (before: until {})", local_time(*before)),
                _ => String::new(),
            };
            output.line(format_args!("{} of {} is {now}{before}", backup.id.short(), printable(backup.name.as_bytes())))?;
        }
    }
    output.finish()?;
    for backup in backups.iter().filter(|backup| after.get(&backup.id).copied() > until_ns) {
        session.advise(format!(
            "{} stays protected longer than you asked, because the store has not seen enough time pass; `onefold protect --off {}` ends \
                the protection",
            backup.id.short(),
            backup.id.short()
        ));
    }
    Ok(Exit::Done)
}

/// Returns the end of the protection. `None`: it ends now.
fn until_ns(until: Until) -> Result<Option<i64>> {
    let now = Timestamp::now();
    let until_ns = match (until.moment_ns, until.period) {
        (Some(moment_ns), _) => moment_ns,
        (None, Some(period)) => period
            .after(&now.to_zoned(local_zone()))
            .ok_or_else(|| Failure::cannot_run(format!("--for {period}: this ends after the year 2261, the last possible year")))?,
        (None, None) => return Ok(None),
    };
    if i128::from(until_ns) <= now.as_nanosecond() {
        return Err(Failure::cannot_run(format!("--until: {} is in the past", local_time(until_ns)))
            .advise("give a date in the future; `--off` ends a protection"));
    }
    Ok(Some(until_ns))
}
