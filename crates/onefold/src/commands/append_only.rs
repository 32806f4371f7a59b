//! `onefold append-only`: while the mode is on, nobody deletes anything.

use crate::cli::{AppendOnlyOff, AppendOnlyOn, AppendOnlyStatus, Wait};
use crate::failure::{Exit, Result};
use crate::session::{Session, StoreCommand};
use crate::units::{local_time, utc_time};
use onefold_engine::Mode;
use serde_json::json;
use std::path::Path;

impl StoreCommand for AppendOnlyOn {
    fn name(&self) -> &'static str {
        "append-only on"
    }

    fn directory(&self) -> &Path {
        &self.store.directory
    }

    fn wait(&self) -> Option<Wait> {
        self.store.wait
    }

    fn mode(&self) -> Mode {
        Mode::ReadWrite
    }

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        session.store.engine.switch_append_only_on(self.secret.as_bytes())?;
        if !session.quiet {
            session.note("append-only mode is on: `onefold append-only off` and the secret switch it off");
        }
        Ok(Exit::Done)
    }
}

impl StoreCommand for AppendOnlyOff {
    fn name(&self) -> &'static str {
        "append-only off"
    }

    fn directory(&self) -> &Path {
        &self.store.directory
    }

    fn wait(&self) -> Option<Wait> {
        self.store.wait
    }

    fn mode(&self) -> Mode {
        Mode::ReadWrite
    }

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        session.store.engine.switch_append_only_off(self.secret.as_bytes())?;
        if !session.quiet {
            session.note("append-only mode is off");
        }
        Ok(Exit::Done)
    }
}

impl StoreCommand for AppendOnlyStatus {
    fn name(&self) -> &'static str {
        "append-only status"
    }

    fn directory(&self) -> &Path {
        &self.store.directory
    }

    fn mode(&self) -> Mode {
        Mode::Snapshot
    }

    fn asks_the_daemon(&self) -> bool {
        true
    }

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
