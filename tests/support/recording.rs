//! A block device that remembers in which order it was written and flushed: an NBD server in the test's own process.
//!
//! It works on one request at a time, so the order of its entries is the order in which it answered. A flush covers
//! every write before it. What a power cut would have left of the device at any of its moments is worked out afterwards
//! (`power_cut.rs`).

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const FUA: u16 = 1;
/// Flags of the export: has flags, flush, FUA, trim.
const FLAGS: u32 = 1 | 4 | 8 | 32;
const EINVAL: u32 = 22;

/// Something that happened to the device.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// Bytes were written, with FUA or not.
    Written { offset: u64, bytes: Arc<[u8]>, is_durable: bool },
    /// A range was discarded; it reads as zeros.
    Trimmed { offset: u64, length: u64 },
    /// Everything before is durable.
    Flushed,
}

/// What a device does with a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushes {
    /// It obeys.
    Obeyed,
    /// It acknowledges it and does nothing: a power cut may take what was written before. Writes with FUA are treated
    /// in the same way.
    Ignored,
}

#[derive(Debug)]
struct State {
    content: Vec<u8>,
    entries: Vec<Entry>,
    flushes: Flushes,
}

/// The device. Its server ends when it is dropped; whoever uses it must be gone by then.
#[derive(Debug)]
pub struct RecordingDevice {
    state: Arc<Mutex<State>>,
    socket: PathBuf,
    server: Option<JoinHandle<()>>,
}

impl RecordingDevice {
    /// Serves a device of zeros on a Unix socket, to one client.
    pub fn start(size: u64, socket: &Path) -> RecordingDevice {
        let content = vec![0; size as usize];
        let state = Arc::new(Mutex::new(State { content, entries: Vec::new(), flushes: Flushes::Obeyed }));
        let listener = UnixListener::bind(socket).unwrap();
        let of_server = state.clone();
        let server = std::thread::spawn(move || {
            if let Ok((stream, _)) = listener.accept() {
                // The client has gone, or this test is over: both end the service.
                let _ = serve(stream, size, &of_server);
            }
        });
        RecordingDevice { state, socket: socket.to_owned(), server: Some(server) }
    }

    /// What `nbdfuse` connects to.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// How many things have happened to it: a moment to come back to.
    pub fn moment(&self) -> usize {
        self.state.lock().unwrap().entries.len()
    }

    /// How many flushes were obeyed so far.
    pub fn flushes(&self) -> usize {
        self.state.lock().unwrap().entries.iter().filter(|entry| matches!(entry, Entry::Flushed)).count()
    }

    /// From now on flushes are treated like this.
    pub fn treat_flushes(&self, flushes: Flushes) {
        self.state.lock().unwrap().flushes = flushes;
    }

    /// Everything that has happened so far.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.state.lock().unwrap().entries.clone()
    }

    /// Its size, bytes.
    pub(crate) fn size(&self) -> u64 {
        self.state.lock().unwrap().content.len() as u64
    }
}

impl Drop for RecordingDevice {
    fn drop(&mut self) {
        // A server that nobody ever connected to still waits.
        drop(UnixStream::connect(&self.socket));
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// The oldstyle handshake, then simple replies until the client leaves.
fn serve(mut stream: UnixStream, size: u64, state: &Mutex<State>) -> io::Result<()> {
    let mut hello = Vec::from(b"NBDMAGIC");
    hello.extend_from_slice(&0x0000_4202_8186_1253u64.to_be_bytes());
    hello.extend_from_slice(&size.to_be_bytes());
    hello.extend_from_slice(&FLAGS.to_be_bytes());
    hello.resize(hello.len() + 124, 0);
    stream.write_all(&hello)?;
    loop {
        let mut header = [0; 28];
        stream.read_exact(&mut header)?;
        let number = |range: std::ops::Range<usize>| header[range].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        assert_eq!(number(0..4), 0x2560_9513, "the client sends requests");
        let (flags, command, offset, length) = (number(4..6) as u16, number(6..8) as u16, number(16..24), number(24..28));
        let mut payload = vec![0; if command == WRITE { length as usize } else { 0 }];
        stream.read_exact(&mut payload)?;
        let fits = offset.checked_add(length).is_some_and(|end| end <= size);
        let mut reply = Vec::from(0x6744_6698u32.to_be_bytes());
        let carried_out = if fits { state.lock().unwrap().carry_out(command, flags & FUA != 0, offset, length, payload) } else { None };
        reply.extend_from_slice(&if carried_out.is_some() { 0 } else { EINVAL }.to_be_bytes());
        reply.extend_from_slice(&header[8..16]);
        reply.extend(carried_out.into_iter().flatten());
        if command == DISCONNECT {
            return Ok(());
        }
        stream.write_all(&reply)?;
    }
}

impl State {
    /// Does what a request asks for, and returns what was read; nothing for a request that is not known.
    fn carry_out(&mut self, command: u16, is_durable: bool, offset: u64, length: u64, payload: Vec<u8>) -> Option<Vec<u8>> {
        let range = offset as usize..(offset + length) as usize;
        match command {
            READ => return Some(self.content[range].to_vec()),
            WRITE => {
                self.content[range].copy_from_slice(&payload);
                let is_durable = is_durable && self.flushes == Flushes::Obeyed;
                self.entries.push(Entry::Written { offset, bytes: payload.into(), is_durable });
            }
            TRIM => {
                self.content[range].fill(0);
                self.entries.push(Entry::Trimmed { offset, length });
            }
            FLUSH if self.flushes == Flushes::Ignored => {}
            FLUSH => self.entries.push(Entry::Flushed),
            _ => return None,
        }
        Some(Vec::new())
    }
}
