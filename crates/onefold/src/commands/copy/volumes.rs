//! The part of `onefold copy` that copies volumes. A daemon that has the store open copies them as of one moment, while
//! their clients continue. Otherwise the command's own process does it.

use crate::bucket;
use crate::cli::any_path;
use crate::failure::{Exit, Failure, Result};
use crate::session::{Session, StoreCommand};
use crate::store::{SETTINGS_FILE, Store, cannot_open, ground, read_settings};
use crate::waiting::InUse;
use onefold_copy::{CopyError, Problem, copy_volumes};
use onefold_engine::{Engine, Mode};
use onefold_upkeep::Monitor as _;
use onefold_volume::{VolumeInfo, Volumes, VolumesOptions};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// A request to copy volumes.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct CopyVolumes {
    /// Directory of the source store.
    #[serde(skip)]
    pub from: PathBuf,
    /// Directory of the destination store, as an absolute path.
    #[serde(with = "any_path")]
    pub to: PathBuf,
    /// The random name of that store: the path may mean another store for a daemon.
    pub to_store: [u8; 16],
    /// Names of volumes, snapshots and clones.
    pub volumes: Vec<String>,
}

/// The result: the command's output, as JSON.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Reply {
    /// The process that has the other store open, so that nothing was done.
    pub in_use: Option<String>,
    /// Volumes that were copied.
    pub copied: Vec<String>,
    /// Volumes that the other store already had, which stay as they are.
    pub there: Vec<String>,
    /// Volumes that were not copied, with the reasons.
    pub problems: Vec<(String, String)>,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Damage in this store that kept volumes from being listed.
    pub damaged: Vec<String>,
}

impl StoreCommand for CopyVolumes {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn directory(&self) -> &Path {
        &self.from
    }

    fn mode(&self) -> Mode {
        Mode::ReadOnly
    }

    fn ends_early(&self) -> bool {
        true
    }

    fn is_heavy(&self) -> bool {
        true
    }

    fn is_for_owner(&self) -> bool {
        true
    }

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let reply = serde_json::to_value(self.copy(session)?).map_err(Failure::failed)?;
        let mut output = session.output();
        output.json(&reply)?;
        output.finish()?;
        Ok(Exit::Done)
    }
}

impl CopyVolumes {
    fn copy(&self, session: &Session<'_>) -> Result<Reply> {
        let destination = match self.open_destination() {
            Ok(Ok(destination)) => destination,
            Ok(Err(in_use)) => return Ok(Reply { in_use: Some(in_use), ..Reply::default() }),
            Err(failure) if session.is_in_daemon() => {
                let message =
                    format!("the daemon, which copies the volumes of the store that it has open, cannot do it: {}", failure.message);
                return Err(Failure { message, ..failure });
            }
            Err(failure) => return Err(failure),
        };
        let copied = self.copy_into(&destination, session);
        // An error of the copy takes priority over one of closing.
        let closed = destination.close();
        let reply = copied?;
        closed?;
        Ok(reply)
    }

    /// The destination store, or who has it open.
    fn open_destination(&self) -> Result<std::result::Result<Store, String>> {
        let ground = ground(&self.to)?;
        if Engine::descriptor_of(&*ground)?.store != self.to_store {
            return Err(Failure::cannot_run(format!("{} is not the store that the command found there", bucket::shown(&self.to)))
                .advise("a daemon may see other directories than you do (a container, PrivateTmp of systemd): use a directory that both see, or stop the daemon"));
        }
        let settings = read_settings(&self.to.join(SETTINGS_FILE), true)?;
        match Engine::open(ground, settings.engine.clone(), Mode::ReadWrite, "copy") {
            Ok(engine) => Ok(Ok(Store { engine, settings })),
            Err(error) => match error.holder() {
                Some(holder) => Ok(Err(holder)),
                // The backups were copied, so the command could run.
                None => Err(Failure { exit: Exit::Failed, ..cannot_open(error) }),
            },
        }
    }

    fn copy_into(&self, destination: &Store, session: &Session<'_>) -> Result<Reply> {
        let opened;
        let source = if session.is_in_daemon() {
            session.volumes()?
        } else {
            // Reads compare fingerprints.
            let options = VolumesOptions { verify: true, ..session.store.volumes_options() };
            opened = Volumes::open(session.store.engine.clone(), options)?;
            &opened
        };
        let wanted: HashSet<&str> = self.volumes.iter().map(String::as_str).collect();
        let frozen = source.frozen(&|info: &VolumeInfo| wanted.contains(info.name.as_str()))?;
        let there: HashSet<&str> = frozen.list().map(|info| info.name.as_str()).collect();
        // Each layer is read once, so each difference counts once.
        let total: u64 = frozen.list().filter_map(|info| frozen.get(info.number)).map(|volume| volume.own_bytes()).sum();
        session.step("MiB of volumes", total >> 20);
        let volumes = Volumes::open(destination.engine.clone(), destination.volumes_options())?;
        let copied = copy_volumes(&frozen, &volumes, &Progress { session, left: std::cell::Cell::new(0) });
        session.end_progress();
        let outcome = copied.map_err(failed)?;
        // Finishes the deletion of working copies that are left.
        volumes.resume_deletions(&|| !session.is_cancelled())?;
        let gone = self.volumes.iter().filter(|name| !there.contains(name.as_str()));
        let mut problems: Vec<(String, String)> =
            outcome.problems.into_iter().map(|Problem { what, reason }| (String::from_utf8_lossy(&what).into_owned(), reason)).collect();
        problems.extend(gone.map(|name| (name.clone(), "it was deleted or renamed meanwhile".to_owned())));
        Ok(Reply {
            in_use: None,
            copied: outcome.copied,
            there: outcome.there,
            problems,
            read_bytes: outcome.read_bytes,
            damaged: source.damaged().to_vec(),
        })
    }
}

/// Passes the progress of the copy to the session.
struct Progress<'a> {
    session: &'a Session<'a>,
    /// Bytes that do not fill a whole MiB yet.
    left: std::cell::Cell<u64>,
}

impl onefold_copy::Monitor for Progress<'_> {
    fn advance(&self, bytes: u64) {
        let bytes = self.left.get() + bytes;
        self.session.advance(bytes >> 20);
        self.left.set(bytes % (1 << 20));
    }

    fn is_cancelled(&self) -> bool {
        self.session.is_cancelled()
    }
}

fn failed(error: CopyError) -> Failure {
    match error {
        CopyError::Engine(error) => error.into(),
        CopyError::Catalog(error) => error.into(),
        CopyError::Volume(error) => error.into(),
        CopyError::Source(reason) => Failure::failed(format!("the source cannot be read: {reason}")),
        CopyError::Cancelled => Failure::interrupted("stopped by a signal while copying volumes: incomplete copies were not created")
            .advise("run it again: it skips what is already there"),
    }
}
