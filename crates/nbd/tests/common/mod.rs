//! What the tests and the benchmark share: an export in memory, a server on a thread, a client that speaks bytes.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod client;

use onefold_nbd::{Config, Export, ExportError, ExportInfo, Exports, Extent, Listen, LocalAddress, Metrics, Server};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The grain in which a [`Memory`] export knows what is allocated.
pub const GRAIN: usize = 4096;

/// A disk in memory, thin as a volume is, and able to fail.
pub struct Memory {
    size: u64,
    state: RwLock<State>,
    pub read_only: AtomicBool,
    pub flushes: AtomicU64,
    /// What every operation answers instead of working.
    pub failure: RwLock<Option<ExportError>>,
    /// Every operation panics.
    pub panics: AtomicBool,
    /// How long every operation takes.
    pub delay: RwLock<Duration>,
    /// Operations under way, and the most there were.
    pub running: AtomicU64,
    pub most_running: AtomicU64,
}

struct State {
    bytes: Vec<u8>,
    allocated: Vec<bool>,
}

impl Memory {
    pub fn new(size: u64) -> Arc<Memory> {
        let state = State { bytes: vec![0; size as usize], allocated: vec![false; (size as usize).div_ceil(GRAIN)] };
        Arc::new(Memory {
            size,
            state: RwLock::new(state),
            read_only: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            failure: RwLock::new(None),
            panics: AtomicBool::new(false),
            delay: RwLock::new(Duration::ZERO),
            running: AtomicU64::new(0),
            most_running: AtomicU64::new(0),
        })
    }

    pub fn content(&self) -> Vec<u8> {
        self.state.read().unwrap().bytes.clone()
    }

    fn enter(&self) -> Result<Running<'_>, ExportError> {
        let running = self.running.fetch_add(1, SeqCst) + 1;
        self.most_running.fetch_max(running, SeqCst);
        let guard = Running(self);
        let delay = *self.delay.read().unwrap();
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        assert!(!self.panics.load(SeqCst), "the export panics, as the test wants");
        self.failure.read().unwrap().clone().map_or(Ok(guard), Err)
    }

    fn erase(&self, offset: u64, length: u64, keep: bool) {
        let (start, end) = (offset as usize, (offset + length) as usize);
        let mut state = self.state.write().unwrap();
        state.bytes[start..end].fill(0);
        if keep {
            state.allocated[start / GRAIN..end.div_ceil(GRAIN)].fill(true);
        } else {
            let last = if end as u64 == self.size { end.div_ceil(GRAIN) } else { end / GRAIN };
            let first = start.div_ceil(GRAIN);
            if first < last {
                state.allocated[first..last].fill(false);
            }
        }
    }
}

struct Running<'a>(&'a Memory);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, SeqCst);
    }
}

impl Export for Memory {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_only(&self) -> bool {
        self.read_only.load(SeqCst)
    }

    fn preferred_block_bytes(&self) -> u32 {
        4096
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), ExportError> {
        let _running = self.enter()?;
        out.copy_from_slice(&self.state.read().unwrap().bytes[offset as usize..][..out.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<(), ExportError> {
        let _running = self.enter()?;
        let start = offset as usize;
        let mut state = self.state.write().unwrap();
        state.bytes[start..start + data.len()].copy_from_slice(data);
        state.allocated[start / GRAIN..(start + data.len()).div_ceil(GRAIN)].fill(true);
        if fua {
            self.flushes.fetch_add(1, SeqCst);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), ExportError> {
        let _running = self.enter()?;
        self.flushes.fetch_add(1, SeqCst);
        Ok(())
    }

    fn trim(&self, offset: u64, length: u64, _fua: bool) -> Result<(), ExportError> {
        let _running = self.enter()?;
        self.erase(offset, length, false);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, length: u64, may_trim: bool, _fua: bool) -> Result<(), ExportError> {
        let _running = self.enter()?;
        self.erase(offset, length, !may_trim);
        Ok(())
    }

    fn cache(&self, _offset: u64, _length: u64) -> Result<(), ExportError> {
        self.enter().map(drop)
    }

    fn status(&self, offset: u64, length: u64, limit_extents: usize) -> Result<Vec<Extent>, ExportError> {
        let _running = self.enter()?;
        let state = self.state.read().unwrap();
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = offset;
        while at < offset + length {
            let hole = !state.allocated[at as usize / GRAIN];
            let end = ((at / GRAIN as u64 + 1) * GRAIN as u64).min(offset + length);
            let count = extents.len();
            match extents.last_mut() {
                Some(last) if last.hole == hole => last.length += end - at,
                _ if count == limit_extents => break,
                _ => extents.push(Extent { length: end - at, hole, zero: hole }),
            }
            at = end;
        }
        Ok(extents)
    }
}

/// Named exports.
pub struct Disks(pub BTreeMap<String, Arc<Memory>>);

impl Exports for Disks {
    fn list(&self) -> Vec<ExportInfo> {
        self.0.keys().map(|name| ExportInfo { name: name.clone(), description: format!("{name} of the test") }).collect()
    }

    fn open(&self, name: &str) -> Option<Arc<dyn Export>> {
        let found = match self.0.get(name) {
            None if name.is_empty() && self.0.len() == 1 => self.0.values().next(),
            found => found,
        };
        found.map(|disk| Arc::clone(disk) as Arc<dyn Export>)
    }
}

/// One export named `disk`.
pub fn one(disk: &Arc<Memory>) -> Arc<Disks> {
    Arc::new(Disks(BTreeMap::from([("disk".to_owned(), Arc::clone(disk))])))
}

pub fn loopback() -> Config {
    Config::new(Listen::Tcp("127.0.0.1:0".parse().unwrap()))
}

/// A server on its own runtime; stops when dropped.
pub struct Serving {
    pub address: LocalAddress,
    pub metrics: Arc<Metrics>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<onefold_nbd::Result<()>>>,
}

pub fn start(config: Config, exports: Arc<dyn Exports>) -> Serving {
    let server = Server::bind(config, exports).unwrap();
    let (address, metrics) = (server.local_address().clone(), server.metrics());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let outcome = runtime.block_on(server.run(async {
            let _ = stopped.await;
        }));
        // An export that hangs must not hang the test.
        runtime.shutdown_timeout(Duration::from_millis(100));
        outcome
    });
    Serving { address, metrics, stop: Some(stop), thread: Some(thread) }
}

impl Serving {
    pub fn port(&self) -> u16 {
        match &self.address {
            Listen::Tcp(address) => address.port(),
            Listen::Unix(path) => panic!("{} has no port", path.display()),
        }
    }

    pub fn uri(&self, name: &str) -> String {
        match &self.address {
            Listen::Tcp(address) => format!("nbd://{address}/{name}"),
            Listen::Unix(path) => format!("nbd+unix:///{name}?socket={}", path.display()),
        }
    }

    pub fn ask_to_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    pub fn wait(&mut self) -> onefold_nbd::Result<()> {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.ask_to_stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The server serves.
pub fn works(port: u16) {
    let mut client = client::Client::go(port, client::Form::Structured);
    assert_eq!(client.write(0, 0, b"works"), 0);
    assert_eq!(client.read(0, 0, 5), Ok(b"works".to_vec()));
}

/// Waits until `met`, at most 10 s.
pub fn eventually(what: &str, met: impl Fn() -> bool) {
    let begin = Instant::now();
    while !met() {
        assert!(begin.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
