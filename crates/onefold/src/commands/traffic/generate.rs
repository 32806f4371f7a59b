//! `onefold traffic generate`. The work is in [`onefold_traffic::write`].

use super::workload;
use crate::cli::TrafficGenerate;
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::note;
use crate::progress::bar;
use crate::talk::Talk;
use crate::units::{duration, rate, size};
use indicatif::ProgressBar;
use onefold_traffic::write::{Watcher, WriteError, write, write_file};
use std::io::IsTerminal;
use std::path::Path;
use std::time::Instant;

/// Writes a stream.
pub fn run(options: &TrafficGenerate, talk: Talk) -> Result<Exit> {
    let workload = workload(&options.stream)?;
    let mut stream = workload.stream()?;
    let length = workload.length_bytes();
    let interrupt = Interrupt::watch()?;
    let is_standard_output = options.file == Path::new("-");
    let mut out = std::io::stdout().lock();
    if is_standard_output && out.is_terminal() {
        return Err(Failure::cannot_run("standard output is a terminal, and the stream is not text").advise("write into a file or a pipe"));
    }
    let began = Instant::now();
    let watch = Watch { bar: bar(talk, length), interrupt };
    let written = match is_standard_output {
        true => write(&mut stream, &mut out, &watch),
        false => write_file(&mut stream, length, &options.file, options.force, &watch),
    };
    watch.bar.finish_and_clear();
    written?;
    if !talk.quiet {
        note(format_args!("wrote {} in {}, {}", size(length), duration(began.elapsed()), rate(length, began.elapsed())));
    }
    Ok(Exit::Done)
}

/// Shows how far the stream is, and stops it when a signal comes.
struct Watch {
    bar: ProgressBar,
    interrupt: Interrupt,
}

impl Watcher for Watch {
    fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn is_cancelled(&self) -> bool {
        self.interrupt.came()
    }
}

impl From<WriteError> for Failure {
    fn from(error: WriteError) -> Failure {
        match error {
            WriteError::Directory { path } => Failure::of_file("write", &path, "it is a directory").advise("give the name of a file in it"),
            WriteError::Exists { path } => {
                Failure::of_file("write", &path, "it already exists").advise("give a new name, or --force to overwrite it")
            }
            WriteError::Device { path } => {
                Failure::of_file("write", &path, "it is a block device; its content would be lost").advise("give --force to overwrite it")
            }
            WriteError::TooLong { path, length_bytes, room_bytes } => {
                let why = format!("the stream has {}, the device {}", size(length_bytes), size(room_bytes));
                Failure::of_file("write", &path, why).advise("give a smaller --size")
            }
            WriteError::Io { operation, path, source } => Failure::of_file(operation, &path, source),
            WriteError::Output(error) => Failure::output(&error),
            WriteError::Cancelled { written_bytes } => {
                Failure::interrupted(format!("stopped after {}: the stream is not complete", size(written_bytes)))
            }
        }
    }
}
