//! Where a command shows its output, and who may stop it: the terminal of this process, or, in the daemon, the
//! connection of a client.

use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::note;
use crate::progress::steps;
use crate::talk::Talk;
use indicatif::ProgressBar;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

/// The other end of a command: it gets results, remarks and progress, and may ask to stop.
pub trait Console: Sync {
    /// Returns standard output, unbuffered.
    fn out(&self) -> Box<dyn Write + '_>;
    /// Writes a remark beside the result, to standard error.
    fn note(&self, text: &str);
    /// A step of long work with `total` units begins.
    fn step(&self, what: &str, total: u64);
    /// This many more units of the step are done. Never waits for a slow reader.
    fn advance(&self, units: u64);
    /// Removes the progress display: the long work is over.
    fn end_progress(&self);
    /// Returns whether to stop early.
    fn is_cancelled(&self) -> bool;
    /// Asks a yes-or-no question, and waits for the answer. `None`: nobody can be asked.
    fn ask(&self, question: &str) -> Result<Option<bool>>;
}

/// Returns whether a person is at the terminal of this process.
pub fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// The terminal, or the pipes, of this process.
#[derive(Debug)]
pub struct Terminal {
    talk: Talk,
    bar: Mutex<Option<ProgressBar>>,
    interrupt: OnceLock<Interrupt>,
}

impl Terminal {
    /// Shows progress as far as `talk` allows. A signal ends the process at once, unless [`Terminal::watch_signals`] is
    /// called.
    pub fn new(talk: Talk) -> Terminal {
        Terminal { talk, bar: Mutex::new(None), interrupt: OnceLock::new() }
    }

    /// Returns the same, for a command that watches for signals itself.
    pub fn stopped_by(talk: Talk, interrupt: Interrupt) -> Terminal {
        Terminal { talk, bar: Mutex::new(None), interrupt: OnceLock::from(interrupt) }
    }

    /// From here on the first signal asks the command to stop.
    pub fn watch_signals(&self) -> Result<()> {
        if self.interrupt.get().is_none() {
            let _ = self.interrupt.set(Interrupt::watch()?);
        }
        Ok(())
    }

    fn bar(&self) -> MutexGuard<'_, Option<ProgressBar>> {
        // The bar is complete whenever its lock is free, even after a panic.
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Console for Terminal {
    fn out(&self) -> Box<dyn Write + '_> {
        Box::new(std::io::stdout())
    }

    fn note(&self, text: &str) {
        match &*self.bar() {
            Some(bar) => bar.suspend(|| note(text)),
            None => note(text),
        }
    }

    fn step(&self, what: &str, total: u64) {
        let mut bar = self.bar();
        let bar = bar.get_or_insert_with(|| steps(self.talk));
        bar.set_length(total);
        bar.set_position(0);
        bar.set_message(what.to_owned());
    }

    fn advance(&self, units: u64) {
        if let Some(bar) = &*self.bar() {
            bar.inc(units);
        }
    }

    fn end_progress(&self) {
        if let Some(bar) = self.bar().take() {
            bar.finish_and_clear();
        }
    }

    fn is_cancelled(&self) -> bool {
        self.interrupt.get().is_some_and(Interrupt::came)
    }

    fn ask(&self, question: &str) -> Result<Option<bool>> {
        if !can_ask() {
            return Ok(None);
        }
        self.end_progress();
        let _ = write!(std::io::stderr(), "{question} [y/N] ");
        // Another thread waits for the line, so that this one sees a signal.
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = std::io::stdin().read_line(&mut line);
            let _ = sender.send(line);
        });
        loop {
            match receiver.recv_timeout(SIGNAL_STEP) {
                Ok(line) => return Ok(Some(matches!(line.trim().to_lowercase().as_str(), "y" | "yes"))),
                Err(mpsc::RecvTimeoutError::Timeout) if self.is_cancelled() => {
                    return Err(Failure::interrupted("stopped by a signal; nothing was done"));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(Some(false)),
            }
        }
    }
}

/// Passes everything but results to another console, and keeps the results for later.
pub struct Keeping<'a> {
    console: &'a dyn Console,
    kept: Mutex<Vec<u8>>,
}

impl<'a> Keeping<'a> {
    /// Returns an empty one.
    pub fn new(console: &'a dyn Console) -> Keeping<'a> {
        Keeping { console, kept: Mutex::default() }
    }

    /// Returns the results so far.
    pub fn take(self) -> Vec<u8> {
        self.kept.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Keep<'a>(&'a Mutex<Vec<u8>>);

impl Write for Keep<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Console for Keeping<'_> {
    fn out(&self) -> Box<dyn Write + '_> {
        Box::new(Keep(&self.kept))
    }

    fn note(&self, text: &str) {
        self.console.note(text);
    }

    fn step(&self, what: &str, total: u64) {
        self.console.step(what, total);
    }

    fn advance(&self, units: u64) {
        self.console.advance(units);
    }

    fn end_progress(&self) {
        self.console.end_progress();
    }

    fn is_cancelled(&self) -> bool {
        self.console.is_cancelled()
    }

    fn ask(&self, question: &str) -> Result<Option<bool>> {
        self.console.ask(question)
    }
}

/// How often it checks for a signal while it waits for an answer.
const SIGNAL_STEP: Duration = Duration::from_millis(50);
