//! `onefold session`: the sessions logged in over iSCSI.

use crate::cli::{SessionDrop, SessionList};
use crate::failure::{Exit, Failure, Result};
use crate::iscsi::Iscsi;
use crate::output::Table;
use crate::session::{Session, StoreCommand, store_command};
use crate::units::{counted, local_time, number, printable, size, utc_time};
use onefold_iscsi::{Handle, SessionInfo};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// The daemon's server.
fn server<'a>(session: &'a Session<'_>) -> Result<&'a Handle> {
    let iscsi: Option<&Iscsi> = session.daemon().and_then(|daemon| daemon.iscsi.as_deref());
    iscsi.and_then(Iscsi::server).ok_or_else(|| {
        let why = if session.is_in_daemon() {
            "the daemon does not serve iSCSI"
        } else {
            "no daemon serves this store, so there are no sessions"
        };
        Failure::failed(why).advise("`onefold serve --iscsi ADDRESS` serves its volumes")
    })
}

impl StoreCommand for SessionList {
    store_command!("session list", reads, asks);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let list = server(session)?.sessions();
        let mut output = session.output();
        if self.format.json {
            output.json(&list.iter().map(to_json).collect::<Value>())?;
        } else if !list.is_empty() {
            let mut table = Table::new(&[
                ">session",
                "target",
                "initiator",
                "address",
                ">portal",
                "since",
                "digests",
                ">commands",
                ">read",
                ">written",
            ]);
            for info in &list {
                table.row(vec![
                    info.number.to_string(),
                    info.target.clone().unwrap_or_else(|| "(discovery)".to_owned()),
                    printable(info.visitor.initiator.as_bytes()),
                    info.visitor.address.to_string(),
                    info.visitor.group.to_string(),
                    local_time(nanoseconds(info.since)),
                    digests(info),
                    number(info.commands),
                    size(info.read_bytes),
                    size(info.written_bytes),
                ]);
            }
            table.print(&mut output)?;
        }
        output.finish()?;
        Ok(Exit::Done)
    }
}

fn nanoseconds(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or(0)
}

fn digests(info: &SessionInfo) -> String {
    let names = [(info.header_digest, "header"), (info.data_digest, "data")];
    names.iter().filter(|(is_used, _)| *is_used).map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}

pub(super) fn to_json(info: &SessionInfo) -> Value {
    let isid = info.isid.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    json!({
        "number": info.number,
        "target": info.target,
        "initiator": info.visitor.initiator,
        "isid": isid,
        "address": info.visitor.address.to_string(),
        "portal": info.visitor.portal.to_string(),
        "portal_group": info.visitor.group,
        "since": utc_time(nanoseconds(info.since)),
        "header_digest": info.header_digest,
        "data_digest": info.data_digest,
        "commands": info.commands,
        "read_bytes": info.read_bytes,
        "written_bytes": info.written_bytes,
    })
}

impl StoreCommand for SessionDrop {
    store_command!("session drop", reads, asks);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let server = server(session)?;
        let numbers = match &self.target {
            None => self.numbers.clone(),
            Some(target) => server.sessions().iter().filter(|info| info.target.as_ref() == Some(target)).map(|info| info.number).collect(),
        };
        let known: Vec<u64> = server.sessions().iter().map(|info| info.number).collect();
        if let Some(unknown) = numbers.iter().find(|number| self.target.is_none() && !known.contains(number)) {
            return Err(
                Failure::failed(format!("there is no session {unknown}; none was closed")).advise("`onefold session list` lists them")
            );
        }
        let closed = numbers.iter().filter(|number| server.close(**number)).count();
        if !session.quiet {
            session.note(format_args!("closed {}", counted(closed as u64, "session", "sessions")));
        }
        Ok(Exit::Done)
    }
}
