//! Waiting for another process that has the store (`--wait`).

use crate::cli::{Span, Wait};
use crate::console::Console;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output;
use crate::store::SERVE;
use onefold_engine::EngineError;
use onefold_ground::LockError;
use onefold_oplog::LogError;
use onefold_upkeep::UpkeepError;
use std::time::{Duration, Instant};

/// How often the store is tried again.
const TRY_EVERY: Duration = Duration::from_millis(100);
/// How long a daemon may start or stop before commands say that it has the store.
pub const PATIENCE: Span = Span(30);

/// Who has a store that nodes share. The node that serves clients takes commands.
const NODES: &str = "the nodes of its cluster; the one that serves clients takes commands: on its machine, name its directory (`onefold node --state`) with \
    --store";

/// An error that may say that another process has the store.
pub trait InUse {
    /// Returns the holder. `None`: it is another error.
    fn holder(&self) -> Option<String>;
    /// Returns whether it may be a daemon that takes commands, or will.
    fn is_daemon(&self) -> bool {
        false
    }
}

impl InUse for EngineError {
    fn holder(&self) -> Option<String> {
        match self {
            EngineError::Lock(LockError::Held { holder, .. }) => {
                Some(holder.as_ref().map_or_else(|| "another process".to_owned(), |holder| holder.to_string()))
            }
            EngineError::Log(LogError::Shared { .. }) => Some(NODES.to_owned()),
            _ => None,
        }
    }

    fn is_daemon(&self) -> bool {
        let holder = match self {
            EngineError::Lock(LockError::Held { holder, .. }) => holder,
            // Another node may be taking over.
            EngineError::Log(LogError::Shared { .. }) => return true,
            _ => return false,
        };
        // While it takes or leaves the lock, the file says nothing yet, and its command line is seen.
        let of_line = |command: &str| ["onefold serve", "onefold mount"].contains(&command);
        holder.as_ref().is_none_or(|holder| holder.command == SERVE || of_line(&holder.command))
    }
}

impl InUse for UpkeepError {
    fn holder(&self) -> Option<String> {
        match self {
            UpkeepError::Engine(error) => error.holder(),
            _ => None,
        }
    }
}

/// How a command waits, and whom it tells.
pub struct Waiting<'a> {
    wait: Option<Wait>,
    began: Instant,
    told: Option<String>,
    note: Box<dyn Fn(&str) + 'a>,
    is_cancelled: Box<dyn Fn() -> bool + 'a>,
    quiet: bool,
}

impl<'a> Waiting<'a> {
    /// Starts the wait now. Without `wait` it waits for nobody.
    pub fn new(wait: Option<Wait>, console: &'a dyn Console, quiet: bool) -> Waiting<'a> {
        let (note, is_cancelled) = (Box::new(|text: &str| console.note(text)), Box::new(|| console.is_cancelled()));
        Waiting { wait, began: Instant::now(), told: None, note, is_cancelled, quiet }
    }

    /// Returns the same for a command without a console.
    pub fn until(wait: Option<Wait>, interrupt: &'a Interrupt, quiet: bool) -> Waiting<'a> {
        let (note, is_cancelled) = (Box::new(|text: &str| output::note(text)), Box::new(|| interrupt.came()));
        Waiting { wait, began: Instant::now(), told: None, note, is_cancelled, quiet }
    }

    /// Opens the store, or runs what opens it. While another process has the store, retries as long as this waits.
    pub fn open<T, E: InUse>(&mut self, mut open: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        loop {
            match open() {
                Err(error) if self.goes_on_after(&error) => {}
                opened => return opened,
            }
        }
    }

    /// Returns how the command ends if it was stopped while another process had the store.
    pub fn interruption(&self, error: &impl InUse) -> Option<Failure> {
        let was_stopped = error.holder().is_some() && (self.is_cancelled)();
        was_stopped.then(|| Failure::interrupted("stopped while another process had the store open; nothing was done"))
    }

    /// Waits a moment if another process has the store and the command may wait. Returns false if the error stands.
    pub fn goes_on_after(&mut self, error: &impl InUse) -> bool {
        self.goes_on(error, self.wait)
    }

    /// Like [`goes_on_after`](Self::goes_on_after), but without `wait` it waits for a daemon that is starting or
    /// stopping: one that was asked and takes no commands.
    pub fn outlasts(&mut self, error: &impl InUse) -> bool {
        self.goes_on(error, self.wait.or(error.is_daemon().then_some(Wait::AtMost(PATIENCE))))
    }

    /// Waits a moment. Errors: the command was stopped.
    pub fn pause(&self) -> Result<(), Failure> {
        std::thread::sleep(TRY_EVERY);
        if (self.is_cancelled)() { Err(Failure::interrupted("stopped while the daemon was ending; nothing was done")) } else { Ok(()) }
    }

    fn goes_on(&mut self, error: &impl InUse, wait: Option<Wait>) -> bool {
        let (Some(wait), Some(holder)) = (wait, error.holder()) else { return false };
        let is_over = matches!(wait, Wait::AtMost(span) if self.began.elapsed() >= Duration::from_secs(span.0));
        if is_over || (self.is_cancelled)() {
            return false;
        }
        if !self.quiet && self.told.as_ref() != Some(&holder) {
            (self.note)(&format!("waiting for {holder}"));
            self.told = Some(holder);
        }
        std::thread::sleep(TRY_EVERY);
        true
    }
}
