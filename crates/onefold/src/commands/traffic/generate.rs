//! `onefold traffic generate`.

use super::workload;
use crate::cli::TrafficGenerate;
use crate::failure::Exit;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::note;
use crate::progress::bar;
use crate::talk::Talk;
use crate::units::{duration, printable, rate, size};
use onefold_traffic::Stream;
use rustix::fs::SeekFrom;
use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Instant;

/// Bytes made and written at a time.
const STEP: usize = 1 << 20;

/// Writes a stream.
pub fn run(options: &TrafficGenerate, talk: Talk) -> Result<Exit> {
    let workload = workload(&options.stream)?;
    let mut stream = workload.stream()?;
    let length = workload.length_bytes();
    let interrupt = Interrupt::watch()?;
    let began = Instant::now();
    let mut write = |out: &mut dyn Write, fail: &dyn Fn(std::io::Error) -> Failure| {
        let progress = bar(talk, length);
        let copied = copy(&mut stream, out, &interrupt, |bytes| progress.inc(bytes), fail);
        progress.finish_and_clear();
        copied
    };
    if options.file == Path::new("-") {
        let mut out = std::io::stdout().lock();
        if out.is_terminal() {
            return Err(
                Failure::cannot_run("standard output is a terminal, and the stream is not text").advise("write into a file or a pipe")
            );
        }
        write(&mut out, &|error| Failure::output(&error))?;
    } else {
        write_file(&options.file, options.force, length, write)?;
    }
    if !talk.quiet {
        note(format_args!("wrote {} in {}, {}", size(length), duration(began.elapsed()), rate(length, began.elapsed())));
    }
    Ok(Exit::Done)
}

fn copy(
    stream: &mut Stream,
    out: &mut dyn Write,
    interrupt: &Interrupt,
    progress: impl Fn(u64),
    fail: &dyn Fn(std::io::Error) -> Failure,
) -> Result<()> {
    let mut buffer = vec![0; STEP];
    let mut written = 0;
    loop {
        if interrupt.came() {
            return Err(Failure::interrupted(format!("stopped after {}: the stream is not complete", size(written))));
        }
        let filled = stream.fill(&mut buffer);
        if filled == 0 {
            return out.flush().map_err(fail);
        }
        out.write_all(&buffer[..filled]).map_err(fail)?;
        written += filled as u64;
        progress(filled as u64);
    }
}

fn cannot(operation: &str, path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("cannot {operation} {}: {error}", printable(path.as_os_str().as_bytes())))
}

/// What stands at the place that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Nothing,
    File,
    Device,
    /// A pipe, or a device that keeps nothing: there is nothing to overwrite, and nothing to remove.
    Sink,
}

fn place(path: &Path) -> Result<Place> {
    let found = match std::fs::metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Place::Nothing),
        Err(error) => return Err(cannot("ask for", path, error)),
    };
    if found.is_dir() {
        return Err(cannot("write", path, "it is a directory").advise("give the name of a file in it"));
    }
    Ok(match found {
        found if found.is_file() => Place::File,
        found if found.is_block_device() => Place::Device,
        _ => Place::Sink,
    })
}

fn write_file(
    path: &Path,
    force: bool,
    length: u64,
    write: impl FnOnce(&mut dyn Write, &dyn Fn(std::io::Error) -> Failure) -> Result<()>,
) -> Result<()> {
    let place = place(path)?;
    match place {
        Place::File if !force => {
            return Err(cannot("write", path, "it exists already").advise("give a new name, or --force to overwrite it"));
        }
        Place::Device if !force => {
            return Err(cannot("write", path, "it is a block device, whose content would be lost").advise("give --force to overwrite it"));
        }
        _ => {}
    }
    let mut options = File::options();
    options.write(true).create_new(place == Place::Nothing).truncate(place == Place::File);
    let mut file = options.open(path).map_err(|error| cannot(if place == Place::Nothing { "create" } else { "open" }, path, error))?;
    if place == Place::Device {
        // The length of a device shows only in its end.
        let room = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|error| cannot("ask the length of", path, error))?;
        if length > room {
            return Err(cannot("write", path, format_args!("the stream has {}, the device {}", size(length), size(room)))
                .advise("give a smaller --size"));
        }
        rustix::fs::seek(&file, SeekFrom::Start(0)).map_err(|error| cannot("find the beginning of", path, error))?;
    }
    let mut done = write(&mut file, &|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::output(&error),
        _ => cannot("write", path, error),
    });
    if done.is_ok() && place != Place::Sink {
        done = file.sync_all().map_err(|error| cannot("sync", path, error));
    }
    if done.is_err() && matches!(place, Place::Nothing | Place::File) {
        // Half a stream must not be taken for a whole one.
        let _ = std::fs::remove_file(path);
    }
    done
}
