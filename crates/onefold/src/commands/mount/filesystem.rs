//! `onefold mount --fs`: has the daemon of the store mount a filesystem, or becomes a daemon that does nothing else.

use super::{DETACHED, STEP, detach, in_background};
use crate::cli::{Mount, MountFs};
use crate::commands::{Request, serve};
use crate::console::Terminal;
use crate::control::{self, Ran};
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::mounts::{failure, whole_path};
use crate::remote::is_url;
use crate::session::{Session, StoreCommand};
use crate::settings::FileMount;
use crate::talk::Talk;
use crate::units::printable;
use onefold_engine::Mode;
use onefold_fuse::{is_mounted, unmount};
use std::path::Path;

/// Mounts a filesystem.
pub(super) fn run(options: &Mount, name: &str, talk: Talk) -> Result<Exit> {
    let directory = &options.store.directory;
    if is_url(directory) {
        return Err(
            Failure::cannot_run("`mount --fs` needs the store itself, not a server").advise("run it on the machine that has the store")
        );
    }
    let wanted = MountFs {
        directory: directory.clone(),
        name: name.to_owned(),
        place: whole_path(&options.at),
        allows_others: options.allow_other,
        is_read_only: options.read_only,
    };
    let is_detached = std::env::var_os(DETACHED).is_some();
    // If the daemon is ending, this process becomes the next one.
    let mut ask = || match control::connect(directory)? {
        None => Ok(None),
        Some(daemon) => match daemon.run(Request::MountFs(wanted.clone()), talk, &Terminal::new(talk))? {
            Ran::NotBegun(_) => Ok(None),
            Ran::Done(Exit::Done) if options.foreground => stay(&wanted.place).map(Some),
            Ran::Done(done) => Ok(Some(done)),
        },
    };
    if !is_detached && let Some(done) = ask()? {
        return Ok(done);
    }
    if !options.foreground && !is_detached {
        return in_background();
    }
    let mut mounted = |place: &Path| {
        if !talk.quiet {
            println!("{}", said(name, place));
        }
        if is_detached {
            detach().map_err(|error| Failure::failed(format!("cannot leave the terminal: {error}")))?;
        }
        Ok(())
    };
    serve::for_a_mount(directory, wanted.as_setting(), talk, &mut mounted, &mut ask)
}

fn said(name: &str, place: &Path) -> String {
    let (name, place) = (printable(name.as_bytes()), place.display());
    format!("filesystem {name} is mounted at {place}; unmount it with `fusermount3 -u {place}`")
}

/// Waits until it is unmounted, or unmounts it after a signal.
fn stay(place: &Path) -> Result<Exit> {
    let interrupt = Interrupt::watch()?;
    while is_mounted(place) {
        if interrupt.sleep(STEP) {
            unmount(place).map_err(failure)?;
        }
    }
    Ok(Exit::Done)
}

impl MountFs {
    fn as_setting(&self) -> FileMount {
        let MountFs { name, place, allows_others, is_read_only, .. } = self;
        FileMount { name: name.clone(), place: place.clone(), allows_others: *allows_others, is_read_only: *is_read_only }
    }
}

impl StoreCommand for MountFs {
    fn name(&self) -> &'static str {
        "mount"
    }

    fn directory(&self) -> &Path {
        &self.directory
    }

    fn mode(&self) -> Mode {
        Mode::ReadWrite
    }

    fn is_for_owner(&self) -> bool {
        true
    }

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let daemon = session.daemon().ok_or_else(|| Failure::failed("only a daemon mounts filesystems"))?;
        crate::commands::fs::chosen(session.filesystems()?, &self.name)?;
        let place = daemon.mounts.mount(&self.as_setting())?;
        if !session.quiet {
            let mut output = session.output();
            output.line(said(&self.name, &place))?;
            output.finish()?;
        }
        Ok(Exit::Done)
    }
}
