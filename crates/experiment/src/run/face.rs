//! Ways to volumes: the one in this process. Programs that know a protocol bring others.

use onefold_volume::{Volume, VolumeError, Volumes};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

/// Serves volumes until it is dropped. After that it holds no volume any more.
pub trait Service {
    /// Opens a new connection to a volume.
    fn connect(&self, volume: &str) -> Result<Box<dyn Way>, WayError>;
}

/// A client's connection to a volume. Requests may be answered in any order.
pub trait Way: Send {
    /// Fills `into` with what is at an offset. Only ways to files and direct calls can. Nothing else is in flight.
    fn read(&mut self, _offset: u64, _into: &mut [u8]) -> Result<(), WayError> {
        Err(WayError::Unreadable)
    }
    /// Sends a write of `data`. It may wait until earlier writes are accepted, but not for their answers.
    fn submit(&mut self, tag: u64, offset: u64, data: Vec<u8>) -> Result<(), WayError>;
    /// Waits for the answer to any request in flight. Returns its tag, and its buffer for reuse.
    fn wait(&mut self) -> Result<(u64, Vec<u8>), WayError>;
    /// Makes all answered writes durable. Nothing else is in flight.
    fn flush(&mut self) -> Result<(), WayError>;
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum WayError {
    /// The volume refused it.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// It cannot read.
    #[error("this way to a volume cannot read")]
    Unreadable,
    /// The operating system refused something.
    #[error("cannot {operation} {}: {source}", .path.display())]
    Io {
        /// The operation, as a verb.
        operation: &'static str,
        /// Its object.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The connection broke, or delivered nonsense.
    #[error("the connection to volume {volume:?} failed: {why}")]
    Broken {
        /// The volume.
        volume: String,
        /// What happened.
        why: String,
    },
    /// The server refused it.
    #[error("a {request} of volume {volume:?} was refused: {why}")]
    Refused {
        /// The volume.
        volume: String,
        /// The request: `write` or `flush`.
        request: &'static str,
        /// The server's reason.
        why: String,
    },
}

/// Direct calls.
pub(super) struct InProcess {
    pub(super) volumes: Arc<Volumes>,
}

impl Service for InProcess {
    fn connect(&self, volume: &str) -> Result<Box<dyn Way>, WayError> {
        Ok(Box::new(Calls { volume: self.volumes.get(volume)?, answered: VecDeque::new() }))
    }
}

struct Calls {
    volume: Arc<Volume>,
    answered: VecDeque<(u64, Vec<u8>)>,
}

impl Way for Calls {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), WayError> {
        Ok(self.volume.read(offset, into)?)
    }

    fn submit(&mut self, tag: u64, offset: u64, data: Vec<u8>) -> Result<(), WayError> {
        self.volume.write(offset, &data)?;
        self.answered.push_back((tag, data));
        Ok(())
    }

    fn wait(&mut self) -> Result<(u64, Vec<u8>), WayError> {
        let none = || WayError::Broken { volume: self.volume.name(), why: "nothing is in flight".to_owned() };
        self.answered.pop_front().ok_or_else(none)
    }

    fn flush(&mut self) -> Result<(), WayError> {
        Ok(self.volume.flush()?)
    }
}
