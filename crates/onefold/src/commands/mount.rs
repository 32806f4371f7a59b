//! `onefold mount`.
//!
//! Without `--foreground` the command starts itself again, with [`DETACHED`] set. That process asks what there is to
//! ask, mounts, writes a zero byte to its output, and leaves the terminal. Until then it is what the user sees.

mod filesystem;
mod source;

use super::Talk;
use crate::cli::Mount;
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::mounts::failure;
use crate::output::note;
use onefold_fuse::{BackupTree, MountError, MountOptions, Mounted, TreeOptions};
use rustix::process::{getegid, geteuid, setsid};
use signal_hook::consts::SIGHUP;
use source::Source;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// How often it looks for a signal, and whether it was unmounted.
const STEP: Duration = Duration::from_millis(100);
/// Threads that serve the kernel: a read may wait for a disk or a connection.
const THREADS: usize = 8;
/// Says that the process was started by another one, which waits.
const DETACHED: &str = "ONEFOLD_MOUNT_DETACHED";
/// The end of what a detached process says.
const DONE: u8 = 0;

/// Mounts the backups of a store, or a filesystem.
pub fn run(options: &Mount, talk: Talk) -> Result<Exit> {
    if let Some(name) = &options.fs {
        return filesystem::run(options, name, talk);
    }
    let is_detached = std::env::var_os(DETACHED).is_some();
    if !options.foreground && !is_detached {
        return in_background();
    }
    let interrupt = Interrupt::watch()?;
    // The terminal of a mount in the foreground may be closed.
    interrupt.watch_also(SIGHUP)?;
    let source = Arc::new(Source::open(options, &interrupt, talk)?);
    let name = source.name();
    let ahead_bytes = usize::try_from(options.read_ahead).unwrap_or(usize::MAX);
    let tree_options =
        TreeOptions { ahead_bytes, checks_permissions: options.allow_other, owner: (geteuid().as_raw(), getegid().as_raw()) };
    let tree = BackupTree::new(source, tree_options).map_err(|error| Failure::cannot_run(format!("cannot start threads: {error}")))?;
    let mount_options = MountOptions {
        source: name,
        kind: "onefold",
        is_read_only: true,
        allows_others: options.allow_other,
        checks_permissions: options.allow_other,
        allows_suid: false,
        allows_devices: options.dev,
        notes_reads: false,
        threads: THREADS,
    };
    let mut mounted = onefold_fuse::mount(tree, &options.at, &mount_options).map_err(failure)?;
    if !talk.quiet {
        let place = mounted.place().display();
        println!("the backups are mounted at {place}; unmount them with `fusermount3 -u {place}`");
    }
    if is_detached {
        detach().map_err(|error| Failure::failed(format!("cannot leave the terminal: {error}")))?;
    }
    wait(&mut mounted, &interrupt)
}

/// Waits until it is unmounted, by a signal or by others.
fn wait(mounted: &mut Mounted, interrupt: &Interrupt) -> Result<Exit> {
    while !mounted.has_ended() {
        if interrupt.sleep(STEP) {
            match mounted.unmount() {
                Err(MountError::Busy(place)) => {
                    note(format_args!(
                        "{} is in use: it goes when nobody uses it any more; a second signal ends it at once",
                        place.display()
                    ));
                    mounted.detach().map_err(failure)?;
                    while !mounted.has_ended() {
                        // A second signal ends the process.
                        std::thread::sleep(STEP);
                    }
                }
                unmounted => unmounted.map_err(failure)?,
            }
            break;
        }
    }
    Ok(Exit::Done)
}

/// Starts this command again in the background, and ends when that one is mounted, or as it ends.
fn in_background() -> Result<Exit> {
    let cannot = |error: std::io::Error| Failure::cannot_run(format!("cannot start in the background: {error}"));
    let program = std::env::current_exe().map_err(cannot)?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).env(DETACHED, "1").stdout(Stdio::piped());
    let mut child = command.spawn().map_err(cannot)?;
    let mut said = Vec::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_end(&mut said).map_err(cannot)?;
    }
    let is_mounted = said.last() == Some(&DONE);
    said.retain(|byte| *byte != DONE);
    std::io::stdout().write_all(&said).and_then(|()| std::io::stdout().flush()).map_err(|error| Failure::output(&error))?;
    if is_mounted {
        return Ok(Exit::Done);
    }
    let ended = child.wait().map_err(cannot)?;
    Ok(ended.code().and_then(Exit::of).unwrap_or(Exit::Failed))
}

/// Tells the parent that it is mounted, and leaves the terminal.
fn detach() -> std::io::Result<()> {
    std::io::stdout().write_all(&[DONE])?;
    std::io::stdout().flush()?;
    // It is a process group leader only if a shell made it one, and then it has no terminal to leave.
    let _ = setsid();
    std::env::set_current_dir("/")?;
    let nothing = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    Ok(())
}
