//! `onefold dump`.

use super::catalog_path;
use super::chosen::chosen;
use crate::cli::{ArchiveFormat, DamagedBytes, Dump};
use crate::failure::{Exit, Failure, Result};
use crate::progress::said;
use crate::session::{Session, StoreCommand, store_command};
use onefold_client::{ClientError, Counter, Damaged, Monitor, Problem};
use std::sync::atomic::{AtomicU64, Ordering};

impl StoreCommand for Dump {
    store_command!("dump", far, reads);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        run(self, session)
    }
}

/// Writes one file of a backup, or an archive, to standard output.
fn run(options: &Dump, session: &Session<'_>) -> Result<Exit> {
    let catalog = session.catalog();
    // A backup that is forgotten meanwhile is read to its end: none of its chunks is removed before.
    let _in_flight = session.store.engine.in_flight();
    let backup = chosen(&catalog, &options.backup, &|text| session.advise(text))?;
    catalog.hold(&[&backup])?;
    session.audit_reads([&backup]);
    let mut output = session.output();
    let damaged = match options.damaged {
        DamagedBytes::Fail => Damaged::Fail,
        DamagedBytes::Zero => Damaged::Zero,
    };
    let listener = Listener { session, errors: AtomicU64::new(0) };
    let path = catalog_path(&options.path);
    let dumped = match options.archive {
        Some(ArchiveFormat::Tar) => onefold_client::archive(&catalog, &backup, &path, damaged, &listener, output.writer()),
        None => onefold_client::dump(&catalog, &backup, &path, damaged, &listener, output.writer()).map(|_| ()),
    };
    // Sound data is written, whatever damage follows it.
    let finished = output.finish();
    dumped.map_err(|error| match error {
        ClientError::Io { source, .. } => Failure::output(&source),
        ClientError::NotAFile { kind: "directory", .. } => {
            Failure::failed(error).advise("--archive tar writes a directory and everything below it as an archive")
        }
        error => Failure::from(error),
    })?;
    finished?;
    Ok(if listener.errors.load(Ordering::Relaxed) > 0 { Exit::Partial } else { Exit::Done })
}

/// Reports problems with the data that is written.
struct Listener<'a> {
    session: &'a Session<'a>,
    errors: AtomicU64,
}

impl Monitor for Listener<'_> {
    fn count(&self, counter: Counter, increment: u64) {
        if counter == Counter::Errors {
            self.errors.fetch_add(increment, Ordering::Relaxed);
        }
    }

    fn problem(&self, problem: &Problem) {
        self.session.note(said(problem));
    }
}
