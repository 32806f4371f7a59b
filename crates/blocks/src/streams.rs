//! The writing streams of a space, lent to the threads that write out.

use onefold_engine::{Engine, WriteStream};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// The writing streams of a space. Their number is limited, so that the space's chunks lie in few containers.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) limit: usize,
    idle: Mutex<(Vec<WriteStream>, usize)>,
    returned: Condvar,
}

/// A stream on loan.
pub(crate) struct Loan<'a> {
    streams: &'a Streams,
    pub(crate) stream: Option<WriteStream>,
}

impl Streams {
    pub(crate) fn new(limit: usize) -> Streams {
        Streams { limit: limit.max(1), idle: Mutex::default(), returned: Condvar::new() }
    }

    pub(crate) fn borrow(&self, engine: &Arc<Engine>) -> Loan<'_> {
        let mut idle = self.idle.lock();
        loop {
            if let Some(stream) = idle.0.pop() {
                return Loan { streams: self, stream: Some(stream) };
            }
            if idle.1 < self.limit {
                idle.1 += 1;
                return Loan { streams: self, stream: Some(engine.stream()) };
            }
            self.returned.wait(&mut idle);
        }
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        if let Some(stream) = &mut self.stream {
            // The guard of the write-out protects what the stream returned.
            stream.rest();
        }
        self.streams.idle.lock().0.extend(self.stream.take());
        self.streams.returned.notify_one();
    }
}
