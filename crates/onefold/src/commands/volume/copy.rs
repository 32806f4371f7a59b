//! `onefold volume import` and `export`: copies between a volume and a file, a device, or a pipe. Holes stay holes.

use super::destination::{self, Destination, check_outside};
use super::{data_bytes, extents};
use crate::cli::{StoreToOneself, VolumeExport, VolumeImport};
use crate::commands::chosen::chosen_volume;
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::note;
use crate::progress::bar;
use crate::store::Store;
use crate::talk::Talk;
use crate::units::{duration, printable, rate, size};
use crate::waiting::Waiting;
use indicatif::ProgressBar;
use onefold_engine::Mode;
use onefold_volume::{Volume, VolumeError, Volumes};
use rustix::fs::SeekFrom;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::time::Instant;

/// Bytes copied at a time.
const STEP: usize = 4 << 20;

/// Opens the store and its volumes, works with them, and closes both. An error of the work takes priority over one of
/// closing.
fn with_volumes<T>(
    store: &StoreToOneself,
    mode: Mode,
    command: &str,
    waiting: &mut Waiting<'_>,
    work: impl FnOnce(&Volumes) -> Result<T>,
) -> Result<T> {
    let store = Store::open_when_free(&store.directory, mode, command, waiting)?;
    let volumes = Volumes::open(store.engine.clone(), store.volumes_options())?;
    let done = work(&volumes);
    drop(volumes);
    let closed = store.close();
    let done = done?;
    closed?;
    Ok(done)
}

/// Copies a file into a volume, from its beginning.
pub fn import(options: &VolumeImport, talk: Talk) -> Result<Exit> {
    let path = &options.file;
    // The source is opened first: a wrong name needs no store.
    let source = if path == Path::new("-") {
        None
    } else {
        check_outside(&options.store.directory, path)?;
        Some(open_source(path)?)
    };
    let interrupt = Interrupt::watch()?;
    let began = Instant::now();
    let mut waiting = Waiting::until(options.store.wait, &interrupt, talk.quiet);
    let (read, length) = with_volumes(&options.store, Mode::ReadWrite, "volume import", &mut waiting, |volumes| {
        let volume = chosen_volume(volumes, &options.name)?;
        if volume.is_read_only() {
            return Err(VolumeError::ReadOnly { name: volume.name() }.into());
        }
        let done = match &source {
            Some((file, length)) => import_file(&volume, file, *length, path, talk, &interrupt)?,
            None => import_stream(&volume, std::io::stdin().lock(), talk, &interrupt)?,
        };
        volume.flush()?;
        Ok(done)
    })?;
    if !talk.quiet {
        let holes = length - read;
        note(format_args!(
            "copied {} ({} of holes) in {}, {}",
            size(length),
            size(holes),
            duration(began.elapsed()),
            rate(read, began.elapsed())
        ));
    }
    Ok(Exit::Done)
}

/// Opens a file or device that can be read at any offset, and finds its length. Other input comes through standard
/// input.
fn open_source(path: &Path) -> Result<(File, u64)> {
    let file = File::open(path).map_err(|error| Failure::of_file("open", path, error))?;
    let kind = file.metadata().map_err(|error| Failure::of_file("ask for", path, error))?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Failure::cannot_run(format!("{} is neither a file nor a block device", path.display()))
            .advise(format!("copy a pipe or the like through standard input: onefold volume import NAME - < {}", path.display())));
    }
    // Seeking to the end tells the length of a device.
    let length = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|error| Failure::of_file("read the length of", path, error))?;
    Ok((file, length))
}

fn import_file(volume: &Volume, file: &File, length: u64, path: &Path, talk: Talk, interrupt: &Interrupt) -> Result<(u64, u64)> {
    if length > volume.size() {
        return Err(too_long(volume, &size(length)));
    }
    let progress = bar(talk, length);
    let mut buffer = vec![0; STEP];
    let (mut at, mut read) = (0, 0);
    while at < length {
        let data = next_data(file, at, length);
        if data > at {
            volume.write_zeroes(at, data - at)?;
            progress.inc(data - at);
            at = data;
        }
        let end = next_hole(file, at, length);
        while at < end {
            stopped(interrupt, &progress, at)?;
            let step = &mut buffer[..step_at(at, end)];
            file.read_exact_at(step, at).map_err(|error| Failure::of_file("read", path, error))?;
            volume.write(at, step)?;
            at += step.len() as u64;
            read += step.len() as u64;
            progress.inc(step.len() as u64);
        }
    }
    progress.finish_and_clear();
    Ok((read, length))
}

/// Returns the length of the next step. It ends at a multiple of [`STEP`], so that blocks of the volume are written
/// whole.
fn step_at(at: u64, end: u64) -> usize {
    let step = STEP as u64;
    (end - at).min(step - at % step) as usize
}

/// Returns where data begins at or after `at`, or `length` if there is none. A file system without holes has data
/// everywhere.
fn next_data(file: &File, at: u64, length: u64) -> u64 {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => data.clamp(at, length),
        Err(rustix::io::Errno::NXIO) => length,
        Err(_) => at,
    }
}

fn next_hole(file: &File, at: u64, length: u64) -> u64 {
    rustix::fs::seek(file, SeekFrom::Hole(at)).map_or(length, |hole| if hole > at { hole.min(length) } else { length })
}

fn import_stream(volume: &Volume, mut source: impl Read, talk: Talk, interrupt: &Interrupt) -> Result<(u64, u64)> {
    let progress = bar(talk, volume.size());
    let mut buffer = vec![0; STEP];
    let mut at = 0;
    loop {
        stopped(interrupt, &progress, at)?;
        let mut filled = 0;
        while filled < buffer.len() {
            match source.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => stopped(interrupt, &progress, at)?,
                Err(error) => return Err(Failure::failed(format!("cannot read standard input: {error}"))),
            }
        }
        if filled == 0 {
            // ^C goes to all programs of a pipeline. The input may then end because the program before was stopped, not
            // because the image is complete.
            stopped(interrupt, &progress, at)?;
            break;
        }
        if at + filled as u64 > volume.size() {
            return Err(too_long(volume, &format!("more than {}", size(at + filled as u64 - 1))));
        }
        volume.write(at, &buffer[..filled])?;
        at += filled as u64;
        progress.inc(filled as u64);
    }
    progress.finish_and_clear();
    Ok((at, at))
}

fn too_long(volume: &Volume, length: &str) -> Failure {
    let name = printable(volume.name().as_bytes());
    Failure::failed(format!("the image has {length}, volume {name} has {}", size(volume.size())))
        .advise(format!("make the volume larger first: onefold volume resize {name} --size SIZE"))
}

fn stopped(interrupt: &Interrupt, progress: &ProgressBar, at: u64) -> Result<()> {
    if !interrupt.came() {
        return Ok(());
    }
    progress.finish_and_clear();
    Err(Failure::interrupted(format!("stopped after {}: the copy is not complete", size(at))))
}

/// Copies a volume into a file, a device or a pipe.
pub fn export(options: &VolumeExport, talk: Talk) -> Result<Exit> {
    let interrupt = Interrupt::watch()?;
    let began = Instant::now();
    let path = &options.file;
    if path != Path::new("-") {
        check_outside(&options.store.directory, path)?;
        // Checked before the store is opened, and again when the volume's size is known.
        destination::check(path, options.force)?;
    }
    let mut waiting = Waiting::until(options.store.wait, &interrupt, talk.quiet);
    let copied = with_volumes(&options.store, Mode::ReadOnly, "volume export", &mut waiting, |volumes| {
        let volume = chosen_volume(volumes, &options.name)?;
        let progress = bar(talk, data_bytes(&volume)?);
        let copied = if path == Path::new("-") {
            export_stream(&volume, &progress, &interrupt)
        } else {
            export_file(&volume, path, options.force, &progress, &interrupt)
        };
        progress.finish_and_clear();
        copied
    })?;
    if !talk.quiet {
        note(format_args!("copied {} of data in {}, {}", size(copied), duration(began.elapsed()), rate(copied, began.elapsed())));
    }
    Ok(Exit::Done)
}

/// Passes the volume's data to `write`, and with `zeros` the holes too, as zeros.
fn read_all(
    volume: &Volume,
    zeros: bool,
    progress: &ProgressBar,
    interrupt: &Interrupt,
    write: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<u64> {
    let mut buffer = vec![0; STEP];
    let mut copied = 0;
    extents(volume, 0, &mut |offset, length, hole| {
        if hole && !zeros {
            return Ok(());
        }
        let (mut at, end) = (offset, offset + length);
        if hole {
            buffer.fill(0);
        }
        while at < end {
            stopped(interrupt, progress, at)?;
            let step = &mut buffer[..step_at(at, end)];
            if !hole {
                volume.read(at, step)?;
                copied += step.len() as u64;
                progress.inc(step.len() as u64);
            }
            write(at, step)?;
            at += step.len() as u64;
        }
        Ok(())
    })?;
    Ok(copied)
}

fn export_stream(volume: &Volume, progress: &ProgressBar, interrupt: &Interrupt) -> Result<u64> {
    let mut out = std::io::stdout().lock();
    let copied = read_all(volume, true, progress, interrupt, &mut |_, data| out.write_all(data).map_err(|error| Failure::output(&error)))?;
    out.flush().map_err(|error| Failure::output(&error))?;
    Ok(copied)
}

fn export_file(volume: &Volume, path: &Path, force: bool, progress: &ProgressBar, interrupt: &Interrupt) -> Result<u64> {
    let destination = Destination::open(path, force, volume.size())?;
    let (file, is_device) = (destination.file(), destination.is_device());
    let copy = || {
        if !is_device {
            file.set_len(volume.size()).map_err(|error| Failure::of_file("set the length of", path, error))?;
        }
        // A new file is all holes; a device still has its old content.
        let copied = read_all(volume, is_device, progress, interrupt, &mut |at, data| {
            file.write_all_at(data, at).map_err(|error| Failure::of_file("write", path, error))
        })?;
        file.sync_all().map_err(|error| Failure::of_file("sync", path, error))?;
        Ok(copied)
    };
    let copied = copy();
    if copied.is_err() {
        destination.give_up(path);
    }
    copied
}
