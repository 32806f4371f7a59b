//! `onefold mount --fs`: has the daemon of the store mount a filesystem, or becomes a daemon that does nothing else.

use super::{DETACHED, STEP, detach, in_background};
use crate::cli::{Mount, MountFs, UnmountFs};
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
use onefold_fuse::{is_dead, is_mounted, unmount};
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
        Some(daemon) => match mounted_by(&daemon, &wanted, talk)? {
            Some(Exit::Done) if options.foreground => stay(&wanted.place).map(Some),
            done => Ok(done),
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

/// Has a daemon mount it. `None`: the daemon is ending. Errors: this process does not see what the daemon mounted.
fn mounted_by(daemon: &control::Client, wanted: &MountFs, talk: Talk) -> Result<Option<Exit>> {
    let MountFs { directory, name, place, .. } = wanted;
    // Nobody mounts over what is mounted. If the daemon does, it does not see what is here.
    let was_mounted = is_mounted(place) && !is_dead(place);
    let terminal = Terminal::new(talk);
    // Whether it is there is known here only.
    match daemon.run(Request::MountFs(wanted.clone()), Talk { quiet: true, ..talk }, &terminal)? {
        Ran::NotBegun(_) => return Ok(None),
        Ran::Done(Exit::Done) => {}
        Ran::Done(other) => return Ok(Some(other)),
    }
    if is_mounted(place) && !was_mounted {
        if !talk.quiet {
            println!("{}", said(name, place));
        }
        return Ok(Some(Exit::Done));
    }
    let undo = UnmountFs { directory: directory.clone(), name: name.clone() };
    let undone = match daemon.run(Request::UnmountFs(undo), talk, &terminal) {
        Ok(Ran::Done(Exit::Done) | Ran::NotBegun(_)) => "it is unmounted again".to_owned(),
        Ok(Ran::Done(_)) => "it is mounted there still".to_owned(),
        Err(failure) => format!("it is mounted there still: {}", failure.message),
    };
    let why = format!("the daemon mounted it at {} in a mount namespace of its own, where this process does not see it", place.display());
    Err(Failure::failed(format!("{why}; {undone}")).advise(
        "run this command in the daemon's namespace (`nsenter --mount --target PID`), or run a daemon outside of containers and \
         sandboxes: options of a systemd unit such as PrivateTmp= and ProtectSystem= make one",
    ))
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

impl StoreCommand for UnmountFs {
    fn name(&self) -> &'static str {
        "mount (undo)"
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
        let daemon = session.daemon().ok_or_else(|| Failure::failed("only a daemon unmounts filesystems"))?;
        daemon.mounts.unmount(&self.name).map(|()| Exit::Done)
    }
}
