//! Ways to volumes of an experiment over protocols: the daemon's servers in this process, with measuring clients.

use crate::commands::serve::{iscsi_limits, nbd_limits};
use crate::export::VolumeExports;
use crate::iscsi::{Iscsi, Options};
use crate::settings::Settings;
use onefold_experiment::run::{Served, Service, Way, WayError};
use onefold_iscsi::PortalConfig;
use onefold_iscsi::initiator::Initiator;
use onefold_nbd::client::Client;
use onefold_nbd::{Config, Limits, Listen};
use std::collections::HashMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The longest name that a Unix socket can have, bytes.
const MAX_SOCKET_NAME_BYTES: usize = 107;
/// The name that initiators have.
const INITIATOR: &str = "iqn.2026-01.io.onefold:bench";
/// No request has this number: flushes do.
const FLUSH: u64 = u64::MAX;

/// A server on its own threads. Dropping it stops it. After that it holds nothing of the store.
struct Running {
    runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<()>>,
}

impl Running {
    fn new() -> Result<Running, String> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("threads cannot be started: {error}"))?;
        Ok(Running { runtime, stop: None, task: None })
    }

    /// Serves until it is dropped. `serve` gets a future that ends when it must stop.
    fn serve<Serving: Future<Output = ()> + Send + 'static>(&mut self, serve: impl FnOnce(oneshot::Receiver<()>) -> Serving) {
        let (stop, stopped) = oneshot::channel();
        self.stop = Some(stop);
        self.task = Some(self.runtime.spawn(serve(stopped)));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The server stops when the sender is gone.
        drop(self.stop.take());
        if let Some(task) = self.task.take() {
            // A task that panicked has reported that.
            let _ = self.runtime.block_on(task);
        }
    }
}

/// Volumes over NBD.
pub(super) struct NbdService {
    socket: PathBuf,
    _running: Running,
}

impl NbdService {
    /// Serves all volumes at a Unix socket. The error completes a sentence that begins with "cannot".
    pub(super) fn start(store: &Served<'_>, settings: &Settings) -> Result<NbdService, String> {
        let socket = store.directory.join("nbd");
        let length = socket.as_os_str().len();
        if length > MAX_SOCKET_NAME_BYTES {
            return Err(format!("a socket cannot have the name {} of {length} bytes; give a shorter --directory", socket.display()));
        }
        let mut running = Running::new()?;
        let limits = nbd_limits(&settings.nbd);
        let limits = Limits { requests_per_connection: limits.requests_per_connection.max(store.depth), ..limits };
        let config = Config { limits, ..Config::new(Listen::Unix(socket.clone())) };
        let exports = Arc::new(VolumeExports::new(store.engine.clone(), store.volumes.clone(), false));
        let bound = running.runtime.block_on(async { onefold_nbd::Server::bind(config, exports) });
        let server = bound.map_err(|error| error.to_string())?;
        running.serve(async move |stopped| {
            if let Err(error) = server.run(async { drop(stopped.await) }).await {
                tracing::error!("the NBD server of an experiment failed: {error}");
            }
        });
        Ok(NbdService { socket, _running: running })
    }
}

impl Service for NbdService {
    fn connect(&self, volume: &str) -> Result<Box<dyn Way>, WayError> {
        let client = Client::connect(&self.socket, volume).map_err(|error| broken(volume, &error))?;
        Ok(Box::new(NbdWay { volume: volume.to_owned(), client, in_flight: HashMap::new() }))
    }
}

fn broken(volume: &str, why: &dyn Display) -> WayError {
    WayError::Broken { volume: volume.to_owned(), why: why.to_string() }
}

struct NbdWay {
    volume: String,
    client: Client,
    in_flight: HashMap<u64, Vec<u8>>,
}

impl NbdWay {
    fn receive(&mut self, request: &'static str) -> Result<u64, WayError> {
        match self.client.receive() {
            Ok((cookie, 0)) => Ok(cookie),
            Ok((_, error)) => Err(WayError::Refused { volume: self.volume.clone(), request, why: format!("error {error} of NBD") }),
            Err(error) => Err(broken(&self.volume, &error)),
        }
    }
}

impl Way for NbdWay {
    fn submit(&mut self, tag: u64, offset: u64, data: Vec<u8>) -> Result<(), WayError> {
        self.client.send_write(tag, offset, &data).map_err(|error| broken(&self.volume, &error))?;
        self.in_flight.insert(tag, data);
        Ok(())
    }

    fn wait(&mut self) -> Result<(u64, Vec<u8>), WayError> {
        let tag = self.receive("write")?;
        let buffer = self.in_flight.remove(&tag).ok_or_else(|| broken(&self.volume, &"a reply to nothing"))?;
        Ok((tag, buffer))
    }

    fn flush(&mut self) -> Result<(), WayError> {
        self.client.send_flush(FLUSH).map_err(|error| broken(&self.volume, &error))?;
        self.receive("flush").map(drop)
    }
}

/// Volumes over iSCSI.
pub(super) struct IscsiService {
    portal: SocketAddr,
    targets: Arc<Iscsi>,
    /// Each session has its own.
    next_isid: AtomicU32,
    running: Option<Running>,
}

impl IscsiService {
    /// Serves all existing volumes at the loopback address. The error completes a sentence that begins with "cannot".
    pub(super) fn start(store: &Served<'_>, settings: &Settings) -> Result<IscsiService, String> {
        let of_settings = iscsi_limits(&settings.iscsi);
        // As many as the experiment has in flight. With fewer, waiting for the window would count as latency.
        let limits = onefold_iscsi::Limits { queue_depth: of_settings.queue_depth.max(store.depth as u32), ..of_settings };
        let options = Options { ports: vec![1], ..Options::default() };
        let targets = Iscsi::new(store.engine.clone(), store.volumes.clone(), options).map_err(|failure| failure.message)?;
        let targets = Arc::new(targets);
        let mut running = Running::new()?;
        let portals = [PortalConfig { listen: SocketAddr::from(([127, 0, 0, 1], 0)), advertised: None }];
        let bound = running.runtime.block_on(onefold_iscsi::Server::bind(&portals, targets.clone(), limits));
        let server = bound.map_err(|error| error.to_string())?;
        let portal = server.local_addresses().next().ok_or("it has no address")?;
        targets.attach(server.handle());
        running.serve(async move |stopped| server.run(async { drop(stopped.await) }).await);
        Ok(IscsiService { portal, targets, next_isid: AtomicU32::new(1), running: Some(running) })
    }
}

impl Drop for IscsiService {
    fn drop(&mut self) {
        drop(self.running.take());
        self.targets.stop();
    }
}

impl Service for IscsiService {
    fn connect(&self, volume: &str) -> Result<Box<dyn Way>, WayError> {
        let shown = self.targets.shown();
        let mut units = shown.iter().flat_map(|(target, units)| units.iter().map(move |unit| (target, unit)));
        let (target, unit) = units.find(|(_, unit)| unit.volume == volume).ok_or_else(|| broken(volume, &"no target shows it"))?;
        let isid = self.next_isid.fetch_add(1, Ordering::Relaxed);
        let initiator = Initiator::log_in(self.portal, target, INITIATOR, isid, unit.lun).map_err(|error| broken(volume, &error))?;
        Ok(Box::new(IscsiWay { volume: volume.to_owned(), initiator }))
    }
}

struct IscsiWay {
    volume: String,
    initiator: Initiator,
}

impl IscsiWay {
    fn receive(&mut self, request: &'static str) -> Result<(u64, Vec<u8>), WayError> {
        let answer = self.initiator.next_answer().map_err(|error| broken(&self.volume, &error))?;
        if answer.status == 0 {
            return Ok((answer.cookie, answer.data));
        }
        let why = format!("status {:02x}, sense {:02x?}", answer.status, answer.sense.unwrap_or_default());
        Err(WayError::Refused { volume: self.volume.clone(), request, why })
    }
}

impl Way for IscsiWay {
    fn submit(&mut self, tag: u64, offset: u64, data: Vec<u8>) -> Result<(), WayError> {
        self.initiator.send_write(tag, offset, data).map_err(|error| broken(&self.volume, &error))
    }

    fn wait(&mut self) -> Result<(u64, Vec<u8>), WayError> {
        self.receive("write")
    }

    fn flush(&mut self) -> Result<(), WayError> {
        self.initiator.send_flush(FLUSH).map_err(|error| broken(&self.volume, &error))?;
        self.receive("flush").map(drop)
    }
}
