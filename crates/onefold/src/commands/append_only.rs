//! `onefold append-only`: while the mode is on, nobody deletes anything.

use crate::cli::{AppendOnlyOff, AppendOnlyOn, AppendOnlyStatus};
use crate::failure::{Exit, Result};
use crate::session::{Session, StoreCommand, store_command};
use crate::units::{local_time, utc_time};
use serde_json::json;

impl StoreCommand for AppendOnlyOn {
    store_command!("append-only on", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        session.store.engine.switch_append_only_on(self.secret.as_bytes())?;
        if !session.quiet {
            session.note("append-only mode is on: `onefold append-only off` and the secret switch it off");
        }
        Ok(Exit::Done)
    }
}

impl StoreCommand for AppendOnlyOff {
    store_command!("append-only off", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        session.store.engine.switch_append_only_off(self.secret.as_bytes())?;
        if !session.quiet {
            session.note("append-only mode is off");
        }
        Ok(Exit::Done)
    }
}

impl StoreCommand for AppendOnlyStatus {
    store_command!("append-only status", reads, asks);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let since_ns = session.store.engine.append_only_since()?;
        let mut output = session.output();
        if self.format.json {
            output.json(&json!({"append_only": since_ns.is_some(), "since": since_ns.map(utc_time)}))?;
        } else {
            let state = since_ns.map_or_else(|| "off".to_owned(), |since_ns| format!("on since {}", local_time(since_ns)));
            output.line(format_args!("append-only mode is {state}"))?;
        }
        output.finish()?;
        Ok(Exit::Done)
    }
}
