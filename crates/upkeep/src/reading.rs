//! Reads many containers at once: while one is read, others are decompressed and fingerprinted, so that the disk is
//! always busy.

use onefold_engine::Engine;
use onefold_fingerprint::Fingerprint;
use onefold_ground::ReadBuffer;
use onefold_storage::{Address, ChunkKind, ChunkRead, ContainerId, ContainerReport, ContainerSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Returns one more than the number of processors, so that one thread always waits for the disk. Each thread takes the
/// memory of one container.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).min(7) + 1
}

/// How often the caller is asked whether to go on.
const INTERVAL: Duration = Duration::from_millis(100);

/// What was found in a container.
pub(crate) struct Looked {
    pub(crate) container: ContainerId,
    pub(crate) found: onefold_storage::Result<ContainerReport>,
    /// Chunks whose bytes have another fingerprint.
    pub(crate) wrong: Vec<(Address, Fingerprint)>,
    /// Bytes of chunks that were fingerprinted.
    pub(crate) read_bytes: u64,
}

/// Reads a container's structures. With `read_data`, reads all bytes.
pub(crate) fn look_into(engine: &Engine, container: ContainerId, read_data: bool, buffer: &mut ReadBuffer) -> Looked {
    let algorithm = engine.descriptor().fingerprint;
    let (mut wrong, mut read_bytes) = (Vec::new(), 0);
    let mut names = Vec::new();
    let mut visit = |chunks: &[ChunkRead<'_>]| {
        // Fingerprinting many at once is faster than one by one.
        let data: Vec<&[u8]> = chunks.iter().filter(|chunk| chunk.kind == ChunkKind::Data).map(|chunk| chunk.bytes).collect();
        names.clear();
        algorithm.fingerprint_many(&data, &mut names);
        let mut names = names.iter();
        for chunk in chunks {
            read_bytes += chunk.bytes.len() as u64;
            let is_right = match chunk.kind {
                ChunkKind::Data => names.next() == Some(&chunk.fingerprint),
                ChunkKind::Recipe | ChunkKind::Directory => algorithm.metadata(chunk.bytes) == chunk.fingerprint,
            };
            if !is_right {
                wrong.push((chunk.address, chunk.fingerprint));
            }
        }
    };
    let found = engine.storage().verify(container, read_data, buffer, &mut visit);
    Looked { container, found, wrong, read_bytes }
}

/// Reads many containers in any order, and passes each result on, on this thread, until `go_on` returns false.
pub(crate) fn look_into_all(
    engine: &Engine,
    containers: &ContainerSet,
    read_data: bool,
    go_on: &dyn Fn() -> bool,
    each: &mut dyn FnMut(Looked),
) {
    let (next, is_stopped) = (Mutex::new(containers.iter()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (sender, receiver) = channel();
        let work = |sender: std::sync::mpsc::Sender<Looked>| {
            let mut buffer = ReadBuffer::default();
            // Nobody panics with it.
            let take = || next.lock().ok().and_then(|mut next| next.next());
            while !is_stopped.load(Ordering::Relaxed)
                && let Some(container) = take()
                && sender.send(look_into(engine, container, read_data, &mut buffer)).is_ok()
            {}
        };
        for _ in 0..threads().min(containers.len()) {
            let sender = sender.clone();
            scope.spawn(move || work(sender));
        }
        drop(sender);
        loop {
            if !go_on() {
                is_stopped.store(true, Ordering::Relaxed);
            }
            match receiver.recv_timeout(INTERVAL) {
                Ok(looked) => each(looked),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
}
