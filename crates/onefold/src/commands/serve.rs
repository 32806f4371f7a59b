//! `onefold serve`: the daemon.

use super::stats::exceeds;
use crate::advice::FULL;
use crate::cli::{self, Serve, StoreToOneself};
use crate::control::{ControlServer, Host};
use crate::daemon::Daemon;
use crate::export::VolumeExports;
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::iscsi::{self, Iscsi as Targets, ShownUnit};
use crate::mounts::{Mounts, whole_path};
use crate::network::BackupServer;
use crate::notify::Notifier;
use crate::output::{Output, note};
use crate::settings::{FileMount, Iscsi, Nbd, Reclamation, Settings, parse_portal};
use crate::store::{SERVE, SETTINGS_FILE, Store, cannot_open, ground, read_settings};
use crate::talk::Talk;
use crate::units::{counted, printable, size};
use crate::waiting::{InUse, PATIENCE, Waiting};
use onefold_engine::{Engine, EngineError, Mode};
use onefold_fs::Filesystems;
use onefold_ground::Permissions;
use onefold_iscsi::PortalConfig;
use onefold_nbd::{Config, Limits, Listen, LocalAddress, Server, Tls, TlsFiles};
use onefold_remote::services::server::Unfinished;
use onefold_upkeep::{DedupOptions, NoMonitor, PruneOptions, Rests, SystemClock, UpkeepError, dedup, prune};
use onefold_volume::{VolumeInfo, Volumes};
use serde_json::json;
use std::cell::Cell;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// Serves until SIGINT or SIGTERM, then stops cleanly: requests in flight end, everything is flushed.
pub fn run(options: &Serve, talk: Talk) -> Result<Exit> {
    let settings = settings(options)?;
    let network = Network::of(&settings)?;
    let interrupt = Interrupt::default();
    let mut waiting = Waiting::until(options.store.wait, &interrupt, talk.quiet);
    let mode = mode(&settings);
    // Commands wait for a daemon that will take them.
    let name = if mode == Mode::ReadOnly { "serve --read-only" } else { SERVE };
    let store = Store::open_with(ground(&options.store.directory)?, settings, mode, name, &mut waiting)?;
    serve(options, store, network, talk, End::BySignal)?;
    Ok(Exit::Done)
}

fn mode(settings: &Settings) -> Mode {
    if settings.nbd.read_only { Mode::ReadOnly } else { Mode::ReadWrite }
}

/// Serves one mount and commands until the mount is gone, or until a signal. `mounted` is called when it is there.
/// While another process has the store, `ask` may have that one do it instead: then it returns how that ended.
pub(super) fn for_a_mount(
    directory: &Path,
    mount: FileMount,
    talk: Talk,
    mounted: &mut Started<'_>,
    ask: &mut dyn FnMut() -> Result<Option<Exit>>,
) -> Result<Exit> {
    let mut settings = read_settings(&directory.join(SETTINGS_FILE), true)?;
    (settings.nbd.listen, settings.nbd.socket) = (None, None);
    settings.iscsi.listen.clear();
    settings.backup.listen.clear();
    settings.filesystems = vec![mount];
    let network = Network::of(&settings)?;
    let (ground, interrupt) = (ground(directory)?, Interrupt::default());
    let mut waiting = Waiting::until(Some(cli::Wait::AtMost(PATIENCE)), &interrupt, talk.quiet);
    let engine = loop {
        match Engine::open(ground.clone(), settings.engine.clone(), mode(&settings), SERVE) {
            Ok(engine) => break engine,
            Err(error) => {
                // Of several mounts at once, one gets the store and takes commands a moment later.
                if error.holder().is_some()
                    && let Some(done) = ask()?
                {
                    return Ok(done);
                }
                if !waiting.goes_on_after(&error) {
                    return Err(cannot_open(error));
                }
            }
        }
    };
    let options = Serve { store: StoreToOneself { store: cli::Store { directory: directory.to_owned() }, wait: None }, ..Serve::default() };
    serve(&options, Store { engine, settings }, network, Talk { quiet: true, ..talk }, End::Unmounted(mounted))?;
    Ok(Exit::Done)
}

/// Is told where the filesystem is mounted.
pub(super) type Started<'a> = dyn FnMut(&Path) -> Result<()> + 'a;

/// What ends the serving.
pub(super) enum End<'a> {
    /// A signal.
    BySignal,
    /// Nothing is mounted any more, or a signal. It is told where the filesystem is mounted.
    Unmounted(&'a mut Started<'a>),
    /// The node has lost what it serves, as the function says, or a signal. The engine is the node's: it stays open.
    OfNode(&'a dyn Fn() -> bool),
}

/// What ended the serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedBy {
    /// A signal.
    Signal,
    /// What was served is gone.
    Loss,
}

/// What is served over the network, apart from backups.
pub(super) struct Network {
    portals: Vec<PortalConfig>,
    nbd: Option<Config>,
}

impl Network {
    /// Errors: the settings make no sense.
    pub(super) fn of(settings: &Settings) -> Result<Network> {
        let portals = portals(&settings.iscsi)?;
        let serves_backups = !settings.backup.listen.is_empty();
        let nbd = config(&settings.nbd, !portals.is_empty() || serves_backups || !settings.filesystems.is_empty())?;
        if settings.nbd.read_only && serves_backups {
            return Err(Failure::cannot_run("--backup and --read-only do not go together: clients make backups")
                .advise("give accounts only the permission `read` instead"));
        }
        Ok(Network { portals, nbd })
    }
}

/// Serves until the end.
pub(super) fn serve(options: &Serve, store: Store, network: Network, talk: Talk, end: End<'_>) -> Result<EndedBy> {
    let directory = &options.store.directory;
    let (mounted, of_node) = match end {
        End::BySignal => (None, None),
        End::Unmounted(mounted) => (Some(mounted), None),
        End::OfNode(has_lost) => (None, Some(has_lost)),
    };
    let is_node = of_node.is_some();
    let Network { portals, nbd: config } = network;
    let (read_only, serves_backups) = (store.settings.nbd.read_only, !store.settings.backup.listen.is_empty());
    let volumes = Arc::new(Volumes::open(store.engine.clone(), store.volumes_options())?);
    let stopping = Arc::new(AtomicBool::new(false));
    // Before anything is removed.
    let unfinished = if serves_backups { Some(Arc::new(Unfinished::open(store.engine.clone())?)) } else { None };
    if unfinished.is_none() && !read_only {
        store.forget_unfinished()?;
    }
    let cleaner = if read_only { None } else { Some(finish_deletions(&store, &volumes, &stopping)?) };
    // While several nodes have the store open, nobody removes or scrubs.
    let reclaimer = if read_only || is_node { None } else { reclaim(&store, &stopping)? };
    let scrubber = if read_only || is_node { None } else { super::scrub::beside_the_serving(&store, &stopping)? };

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::cannot_run(format!("cannot start threads: {error}")))?;
    // Before anything is mounted: a process that a signal kills leaves dead mounts.
    let shutdown = {
        let _runtime = runtime.enter();
        shutdown_signal(talk, mounted.is_some())?
    };
    let exports = Arc::new(VolumeExports::new(Arc::clone(&store.engine), Arc::clone(&volumes), read_only));
    let iscsi = if portals.is_empty() { None } else { Some(Arc::new(targets(&store, &volumes, portals.len(), read_only)?)) };
    let mounts = Arc::new(Mounts::new(Filesystems::of(Arc::clone(volumes.spaces()), store.filesystem_options()), directory));
    let places = store.settings.filesystems.iter().map(|mount| mounts.mount(mount)).collect::<Result<Vec<_>>>();
    let host = Host::new(store.clone(), Daemon::new(Arc::clone(&exports), iscsi.clone(), Arc::clone(&mounts)));
    // Beside a read-only daemon, reading commands open the store themselves.
    // A process that ends at once, because something is not mounted, takes no commands.
    let control = if read_only || places.is_err() { None } else { listen_for_commands(directory, &host) };
    let backups = match &unfinished {
        Some(unfinished) if places.is_ok() => BackupServer::start(directory, &host, &store.settings.backup, unfinished).map(Some),
        _ => Ok(None),
    };
    drop(unfinished);
    let notifier = Notifier::of_environment();
    let ended_by = Cell::new(EndedBy::Loss);
    let served = runtime.block_on(async {
        let backups = backups.as_ref().map_err(Clone::clone)?.as_ref();
        let nbd = config.map(|config| Server::bind(config, exports)).transpose()?;
        let scsi = match &iscsi {
            Some(iscsi) => Some(bind_iscsi(&portals, iscsi, &store.settings.iscsi).await?),
            None => None,
        };
        let places = places?;
        let nbd_addresses = nbd.as_ref().map_or_else(Vec::new, |server| server.local_addresses().cloned().collect());
        let iscsi_addresses = scsi.as_ref().map_or_else(Vec::new, |server| server.local_addresses().collect());
        let shown = iscsi.as_ref().map_or_else(Vec::new, |iscsi| iscsi.shown());
        let filesystems = mounts.list();
        let served = Serving {
            nbd: &nbd_addresses,
            iscsi: &iscsi_addresses,
            targets: &shown,
            volumes: &volumes.list(),
            filesystems: &filesystems,
            backups,
        };
        let is_for_a_mount = mounted.is_some();
        match (mounted, places.first()) {
            (Some(mounted), Some(place)) => mounted(place)?,
            _ => announce(options, talk, &served, &store.settings.nbd)?,
        }
        notifier.ready();
        let metrics = nbd.as_ref().map(Server::metrics);
        let shutdown = async {
            tokio::select! {
                () = shutdown => ended_by.set(EndedBy::Signal),
                () = until_unmounted(&mounts, control.as_ref()), if is_for_a_mount => {}
                () = until_the_log_is_lost(&store.engine) => {}
                () = until_lost(of_node), if is_node => {}
            }
            // A node goes on.
            if !is_node || ended_by.get() == EndedBy::Signal {
                notifier.stopping();
            }
        };
        run_both(nbd, scsi, shutdown).await?;
        Ok::<_, Failure>(metrics.map(|metrics| metrics.snapshot()).unwrap_or_default())
    });
    // Commands end before the store closes. Backups of clients that are not done are dropped.
    if let Some(control) = &control {
        control.refuse_new();
    }
    host.stop();
    drop(control);
    drop(backups);
    host.wait();
    drop(host);
    // The runtime ends before the volumes: after it, no request can reach a volume.
    drop(runtime);
    stopping.store(true, Ordering::Relaxed);
    if let Some(iscsi) = &iscsi {
        iscsi.stop();
    }
    let unmounted =
        mounts.end(&|place| note(format_args!("{} is in use: what programs have open there is taken away from them", place.display())));
    drop(mounts);
    // Whatever happened to the server, everything that clients wrote becomes durable first. The threads may take a
    // while to end.
    let flushed = if read_only { Ok(()) } else { volumes.flush() };
    let _ = cleaner.map(JoinHandle::join);
    let _ = reclaimer.map(JoinHandle::join);
    let _ = scrubber.map(JoinHandle::join);
    let iscsi_sessions = iscsi.as_ref().and_then(|iscsi| iscsi.server()).map_or(0, |server| server.begun());
    let has_iscsi = iscsi.is_some();
    drop(iscsi);
    drop(volumes);
    if ended_by.get() == EndedBy::Loss && is_node {
        served?;
        // What is unmounted or flushed too late, its next owner has as of the last flush before.
        for error in [unmounted.err(), flushed.err().map(Failure::from)].into_iter().flatten() {
            tracing::warn!("what clients had not flushed is lost: {}", error.message);
        }
        return Ok(EndedBy::Loss);
    }
    let lost = store.engine.has_lost_its_log().map(|why| {
        Failure::failed(format!("the daemon ends, because it could not write to the store and must open it again: {why}"))
            .advise("start it again when the service answers: what clients flushed before is safe, what they wrote after may be lost")
    });
    let closed = if is_node { Ok(()) } else { store.close() };
    lost.map_or(Ok(()), Err)?;
    let metrics = served?;
    unmounted?;
    flushed?;
    closed?;
    let requests: u64 = metrics.requests.iter().sum();
    if options.format.json {
        let mut output = Output::new();
        output.json(&json!({
            "event": "stopped",
            "connections": metrics.connections,
            "requests": requests,
            "errors": metrics.errors,
            "read_bytes": metrics.read_bytes,
            "written_bytes": metrics.written_bytes,
            "iscsi_sessions": iscsi_sessions,
        }))?;
        output.finish()?;
    } else if !talk.quiet {
        note(format_args!(
            "stopped; {} and {} were served, {} read and {} written{}",
            counted(metrics.connections, "connection", "connections"),
            counted(requests, "request", "requests"),
            size(metrics.read_bytes),
            size(metrics.written_bytes),
            if has_iscsi { format!("; {} over iSCSI", counted(iscsi_sessions, "session", "sessions")) } else { String::new() }
        ));
    }
    Ok(ended_by.get())
}

/// Ends when the node has lost what it serves.
async fn until_lost(has_lost: Option<&dyn Fn() -> bool>) {
    while has_lost.is_some_and(|has_lost| !has_lost()) {
        tokio::time::sleep(STOP_INTERVAL).await;
    }
}

/// Ends when nothing is mounted any more, and there is no client.
async fn until_unmounted(mounts: &Mounts, control: Option<&ControlServer>) {
    while !mounts.is_over(|| control.is_none_or(ControlServer::stop_if_idle)) {
        tokio::time::sleep(STOP_INTERVAL).await;
    }
}

/// Ends when only another opening of the store could write to it. A supervisor then starts the daemon again.
async fn until_the_log_is_lost(engine: &Engine) {
    while engine.has_lost_its_log().is_none() {
        tokio::time::sleep(STOP_INTERVAL).await;
    }
}

/// Serves until `shutdown` ends or one of the servers fails. Then the other one stops too.
async fn run_both(nbd: Option<Server>, iscsi: Option<onefold_iscsi::Server>, shutdown: impl Future<Output = ()>) -> Result<()> {
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let stopping = |mut stopped: tokio::sync::watch::Receiver<bool>| async move {
        // The server also stops when the sender is gone.
        let _ = stopped.wait_for(|is_over| *is_over).await;
    };
    let nbd = async {
        let done = match nbd {
            Some(server) => server.run(stopping(stopped.clone())).await,
            None => return Ok(()),
        };
        stop.send_replace(true);
        done
    };
    let iscsi = async {
        if let Some(server) = iscsi {
            server.run(stopping(stopped.clone())).await;
        }
    };
    let waiting = async {
        tokio::select! {
            () = shutdown => {}
            () = stopping(stopped.clone()) => {}
        }
        stop.send_replace(true);
    };
    let (done, (), ()) = tokio::join!(nbd, iscsi, waiting);
    Ok(done?)
}

/// Where to listen for initiators.
fn portals(iscsi: &Iscsi) -> Result<Vec<PortalConfig>> {
    let mut portals = Vec::new();
    for portal in &iscsi.listen {
        portals.extend(parse_portal(portal).map_err(|why| Failure::cannot_run(format!("iscsi.listen {why}")))?);
    }
    Ok(portals)
}

/// Returns what initiators see. Each portal is a target port.
fn targets(store: &Store, volumes: &Arc<Volumes>, portals: usize, is_read_only: bool) -> Result<Targets> {
    let options = iscsi::Options {
        is_read_only,
        allows_open_off_loopback: store.settings.iscsi.allow_open_off_loopback,
        low_space_percent: store.settings.iscsi.low_space_percent,
        ports: (1..=portals as u16).collect(),
        targets: store.settings.targets.clone(),
    };
    Targets::new(store.engine.clone(), Arc::clone(volumes), options)
}

async fn bind_iscsi(portals: &[PortalConfig], targets: &Arc<Targets>, settings: &Iscsi) -> Result<onefold_iscsi::Server> {
    let server = onefold_iscsi::Server::bind(portals, targets.clone(), iscsi_limits(settings)).await.map_err(|error| {
        let addresses: Vec<String> = portals.iter().map(|portal| portal.listen.to_string()).collect();
        Failure::cannot_run(format!("cannot listen for iSCSI at {}: {error}", addresses.join(", ")))
            .advise("stop what listens there, or give another address with --iscsi")
    })?;
    targets.attach(server.handle());
    Ok(server)
}

/// Returns the settings of the store or of `--config`, overridden by the options of the command line.
pub(super) fn settings(options: &Serve) -> Result<Settings> {
    let mut settings = match &options.faces.config {
        Some(path) => read_settings(path, false)?,
        None => read_settings(&options.store.directory.join(SETTINGS_FILE), true)?,
    };
    let nbd = &mut settings.nbd;
    if let Some(listen) = &options.faces.nbd {
        nbd.listen = Some(listen.clone()).filter(|listen| listen != "none" && !listen.is_empty());
    }
    let lay = |over: &Option<PathBuf>, setting: &mut Option<PathBuf>| {
        if over.is_some() {
            setting.clone_from(over);
        }
    };
    if !options.faces.iscsi.is_empty() {
        settings.iscsi.listen = options.faces.iscsi.iter().filter(|portal| *portal != "none" && !portal.is_empty()).cloned().collect();
    }
    if !options.faces.backup.is_empty() {
        settings.backup.listen = options.faces.backup.iter().filter(|address| *address != "none" && !address.is_empty()).cloned().collect();
    }
    lay(&options.faces.nbd_socket, &mut nbd.socket);
    lay(&options.faces.tls_certificate, &mut nbd.tls_certificate);
    lay(&options.faces.tls_key, &mut nbd.tls_key);
    lay(&options.faces.tls_client_ca, &mut nbd.tls_client_ca);
    // Certificate authorities are given to keep others out, so clients without TLS are refused too.
    nbd.tls_required |= options.faces.tls_required || nbd.tls_client_ca.is_some();
    nbd.allow_plain_off_loopback |= options.faces.allow_plain_off_loopback;
    nbd.read_only |= options.faces.read_only;
    for mount in &options.faces.fs {
        settings.filesystems.push(FileMount { place: whole_path(&mount.place), ..mount.clone() });
    }
    settings.check().map_err(Failure::cannot_run)?;
    Ok(settings)
}

/// Returns the NBD server's configuration. `None`: there is no NBD, because something else is served.
fn config(nbd: &Nbd, may_be_off: bool) -> Result<Option<Config>> {
    let mut listen: Vec<Listen> = Vec::new();
    if let Some(address) = &nbd.listen {
        let wrong = |why: String| {
            Failure::cannot_run(format!("cannot listen on `{}`: {why}", printable(address.as_bytes())))
                .advise("write an address and a port, as in 127.0.0.1:10809 or [::1]:10809")
        };
        let addresses: Vec<_> = address.to_socket_addrs().map_err(|error| wrong(error.to_string()))?.collect();
        if addresses.is_empty() {
            return Err(wrong("the name has no address".to_owned()));
        }
        listen.extend(addresses.into_iter().map(Listen::Tcp));
    }
    listen.extend(nbd.socket.clone().map(Listen::Unix));
    if listen.is_empty() {
        return if may_be_off { Ok(None) } else { Err(onefold_nbd::NbdError::NoAddress.into()) };
    }
    let files = nbd.tls_certificate.clone().zip(nbd.tls_key.clone());
    let tls = match files.map(|(certificate, key)| TlsFiles { certificate, key, client_authorities: nbd.tls_client_ca.clone() }) {
        None => Tls::Off,
        Some(files) if nbd.tls_required => Tls::Required(files),
        Some(files) => Tls::Optional(files),
    };
    let socket_mode = nbd.socket.as_deref().map_or(Permissions::PRIVATE, socket_permissions).file;
    Ok(Some(Config { listen, tls, allow_plain_off_loopback: nbd.allow_plain_off_loopback, limits: nbd_limits(nbd), socket_mode }))
}

/// Only the serving user may use a Unix socket. If the store's directory has a setgid bit, its group may too, as for
/// all files of such a store.
fn socket_permissions(socket: &Path) -> Permissions {
    let directory = socket.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::metadata(directory).map_or(Permissions::PRIVATE, |found| Permissions::below(&found))
}

/// Returns the limits of the NBD server.
pub(super) fn nbd_limits(nbd: &Nbd) -> Limits {
    let defaults = Limits::default();
    Limits {
        connections: nbd.max_connections,
        requests_per_connection: nbd.max_requests,
        bytes: nbd.payload_bytes,
        bytes_per_connection: defaults.bytes_per_connection.min(nbd.payload_bytes),
        ..defaults
    }
}

/// Returns the limits of the iSCSI server.
pub(super) fn iscsi_limits(settings: &Iscsi) -> onefold_iscsi::Limits {
    onefold_iscsi::Limits {
        queue_depth: settings.max_commands as u32,
        session_bytes: u32::try_from(settings.session_bytes).unwrap_or(u32::MAX),
        bytes: settings.payload_bytes,
        sessions: settings.max_sessions,
        ..onefold_iscsi::Limits::default()
    }
}

/// Accepts commands for this store. On a file system without sockets this fails, and clients of the volumes are served
/// all the same.
fn listen_for_commands(directory: &Path, host: &Arc<Host>) -> Option<ControlServer> {
    let listening = ControlServer::start(directory, host);
    listening
        .inspect_err(|error| {
            tracing::warn!("no command can use the store beside this daemon: cannot listen at {}/control: {error}", directory.display());
        })
        .ok()
}

/// How often the cleaning thread checks whether the daemon stops.
pub(super) const STOP_INTERVAL: Duration = Duration::from_millis(100);
/// How long it waits after an error.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Frees the space of deleted volumes beside the serving, also of those deleted in earlier runs. If the daemon stops,
/// the next start continues.
fn finish_deletions(store: &Store, volumes: &Arc<Volumes>, stopping: &Arc<AtomicBool>) -> Result<JoinHandle<()>> {
    let (engine, volumes, stopping) = (store.engine.clone(), Arc::clone(volumes), Arc::clone(stopping));
    let work = move || {
        let clock = SystemClock::start();
        let is_stopping = || stopping.load(Ordering::Relaxed);
        let (mut was_full, mut was_exceeded) = (false, false);
        while !is_stopping() {
            // A command that does not want to wait for this does it itself.
            let is_over = || is_stopping() || volumes.is_cleaning_wanted();
            let rests = Rests::new(&engine, &clock, &is_over);
            let failed = match volumes.resume_deletions(&|| rests.rest()) {
                Ok(true) => None,
                Ok(false) => Some(Instant::now()),
                Err(error) => {
                    tracing::warn!("the data of deleted volumes could not be dropped; will retry: {error}");
                    Some(Instant::now())
                }
            };
            let is_time = || failed.is_some_and(|at| at.elapsed() > RETRY_INTERVAL);
            while !is_stopping() && !volumes.wait_for_work(STOP_INTERVAL) && !is_time() {
                let is_full = engine.is_reserve_in_use();
                if is_full && !was_full {
                    tracing::warn!("{FULL}");
                }
                was_full = is_full;
                let exceeded = engine.exceeded_capacity();
                if let Some(capacity_bytes) = exceeded.filter(|_| !was_exceeded) {
                    tracing::warn!("{}", exceeds(capacity_bytes));
                }
                was_exceeded = exceeded.is_some();
            }
        }
    };
    let thread = std::thread::Builder::new().name("deletions".to_owned());
    thread.spawn(work).map_err(|error| Failure::cannot_run(format!("cannot start a thread: {error}")))
}

/// Frees unneeded space now and then, in small steps with rests between them.
fn reclaim(store: &Store, stopping: &Arc<AtomicBool>) -> Result<Option<JoinHandle<()>>> {
    let settings = store.settings.reclamation;
    if settings.interval_seconds == 0 {
        return Ok(None);
    }
    let (engine, stopping) = (store.engine.clone(), Arc::clone(stopping));
    let options = PruneOptions {
        max_unused: settings.max_unused_percent as f64 / 100.0,
        max_fill: settings.max_fill_percent as f64 / 100.0,
        dry_run: false,
    };
    let work = move || {
        let clock = SystemClock::start();
        let mut looked = Instant::now();
        let mut left_bytes = 0;
        while !stopping.load(Ordering::Relaxed) {
            if looked.elapsed() < Duration::from_secs(settings.interval_seconds) {
                std::thread::sleep(STOP_INTERVAL);
                continue;
            }
            let is_stopping = || stopping.load(Ordering::Relaxed);
            let rests = Rests::new(&engine, &clock, &is_stopping);
            let go_on = || rests.rest();
            join_copies(&engine, settings, &mut left_bytes, &go_on);
            match prune(&engine, options, &NoMonitor, &go_on) {
                Ok(report) if report.chunks > 0 || report.containers_before > 0 => tracing::info!(
                    "freed {}: {} removed, {} merged into {}",
                    size(report.freed_bytes),
                    counted(report.chunks, "chunk", "chunks"),
                    counted(report.containers_before, "container", "containers"),
                    report.containers_after
                ),
                Ok(_) | Err(UpkeepError::Engine(EngineError::AppendOnly { .. })) => {}
                Err(error) => tracing::warn!("cannot free space; will retry: {error}"),
            }
            if let Err(error) = engine.make_parity(true, &go_on) {
                tracing::warn!("parity could not be written; will retry: {error}");
            }
            looked = Instant::now();
        }
    };
    let thread = std::thread::Builder::new().name("reclamation".to_owned());
    thread.spawn(work).map(Some).map_err(|error| Failure::cannot_run(format!("cannot start a thread: {error}")))
}

/// Joins copies of chunks if look-ups have probably missed many. `left_bytes`: how many bytes of
/// them the last time has left.
fn join_copies(engine: &Arc<Engine>, settings: Reclamation, left_bytes: &mut u64, go_on: &dyn Fn() -> bool) {
    let missed = engine.missed_duplicates_estimate();
    let limit = engine.unique_bytes() / 100 * settings.max_missed_percent;
    if settings.max_missed_percent == 100 || missed <= limit.saturating_add(*left_bytes) {
        return;
    }
    let options = DedupOptions { memory_bytes: settings.dedup_memory_bytes, dry_run: false };
    match dedup(engine, options, &NoMonitor, go_on) {
        Ok(report) => {
            if report.duplicate_chunks > 0 {
                let chunks = counted(report.duplicate_chunks, "chunk that was", "chunks that were");
                tracing::info!("joined {chunks} stored twice, {}", size(report.duplicate_bytes));
            }
            for problem in report.problems {
                tracing::warn!("a chunk that may be stored twice stays so: {problem}");
            }
        }
        Err(UpkeepError::Engine(EngineError::AppendOnly { .. })) => {}
        Err(error) => tracing::warn!("cannot join chunks that are stored twice; will retry: {error}"),
    }
    // What could not be joined counts only once.
    *left_bytes = engine.missed_duplicates_estimate();
}

/// Ends when SIGINT or SIGTERM comes. It watches from the call on, so that no signal gets lost between mounting and
/// serving. A second signal ends the process at once. Data that was not flushed is then lost, as after a crash.
pub(super) fn shutdown_signal(talk: Talk, hangs_up: bool) -> Result<impl Future<Output = ()>> {
    let watch = |kind| signal(kind).map_err(|error| Failure::cannot_run(format!("cannot watch for signals: {error}")));
    let (mut interrupt, mut terminate) = (watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?);
    // The terminal of a mount may be closed.
    let mut hangup = hangs_up.then(|| watch(SignalKind::hangup())).transpose()?;
    let again = Interrupt::watch()?;
    Ok(async move {
        tokio::select! {
            _ = async { hangup.as_mut()?.recv().await }, if hangup.is_some() => {}
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        if !talk.quiet && again.came() {
            note("stopping: making the clients' writes durable; a second ^C ends it at once, like a crash");
        }
    })
}

/// What is served and where.
struct Serving<'a> {
    nbd: &'a [LocalAddress],
    iscsi: &'a [SocketAddr],
    targets: &'a [(String, Vec<ShownUnit>)],
    volumes: &'a [VolumeInfo],
    filesystems: &'a [(String, PathBuf)],
    backups: Option<&'a BackupServer>,
}

/// Prints what is served and how to connect.
fn announce(options: &Serve, talk: Talk, serving: &Serving<'_>, nbd: &Nbd) -> Result<()> {
    let uris: Vec<String> = serving.nbd.iter().map(|address| uri(address, "", nbd.tls_required)).collect();
    if options.format.json {
        let volume = |volume: &VolumeInfo| json!({"name": volume.name, "size": volume.size, "block_size": volume.block_size});
        let unit = |unit: &ShownUnit| json!({"lun": unit.lun, "volume": unit.volume, "size": unit.size, "read_only": unit.is_read_only});
        let target = |(name, units): &(String, Vec<ShownUnit>)| json!({"name": name, "luns": units.iter().map(unit).collect::<Vec<_>>()});
        let mut output = Output::new();
        output.json(&json!({
            "event": "serving",
            "addresses": uris,
            "volumes": serving.volumes.iter().map(volume).collect::<Vec<_>>(),
            "iscsi_portals": serving.iscsi.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "targets": serving.targets.iter().map(target).collect::<Vec<_>>(),
            "mounts": serving.filesystems.iter().map(|(name, place)| json!({"filesystem": name, "mounted": place.display().to_string()})).collect::<Vec<_>>(),
            "backup_addresses": serving.backups.map_or_else(Vec::new, |server| server.addresses().iter().map(ToString::to_string).collect()),
            "backup_fingerprint": serving.backups.map(|server| server.fingerprint().to_string()),
        }))?;
        return output.finish();
    }
    if talk.quiet {
        return Ok(());
    }
    let volumes = serving.volumes;
    if !uris.is_empty() {
        note(format_args!("serving {} over NBD at {}", counted(volumes.len() as u64, "volume", "volumes"), uris.join(" and ")));
    }
    for volume in volumes.iter().filter(|_| !uris.is_empty()) {
        let uri = serving.nbd.first().map_or_else(String::new, |address| uri(address, &volume.name, nbd.tls_required));
        note(format_args!(
            "  {}  {}{}  {uri}",
            printable(volume.name.as_bytes()),
            size(volume.size),
            if nbd.read_only || volume.is_read_only { "  read-only" } else { "" }
        ));
    }
    announce_targets(serving);
    for (name, place) in serving.filesystems {
        note(format_args!("filesystem {} is mounted at {}", printable(name.as_bytes()), place.display()));
    }
    if let Some(server) = serving.backups {
        let addresses: Vec<String> = server.addresses().iter().map(ToString::to_string).collect();
        note(format_args!("serving backups at {}", addresses.join(" and ")));
        note(format_args!("  certificate {}", server.fingerprint()));
        note(
            "  on another machine: onefold backup --store onefold://ACCOUNT@HOST --name NAME PATH; `onefold account create` makes accounts",
        );
    }
    if volumes.is_empty() && (!uris.is_empty() || !serving.iscsi.is_empty()) {
        note("there is no volume yet: `onefold volume create NAME --size SIZE` creates one");
    }
    if let Some((volume, address)) = volumes.first().zip(serving.nbd.first()) {
        let whole = uri(address, &volume.name, nbd.tls_required);
        note("connect, for example, with");
        note(format_args!("  qemu-img info '{whole}'"));
        note(format_args!("  nbdcopy '{whole}' image.raw"));
        if let LocalAddress::Tcp(address) = address {
            let name = volume.name.replace('\'', r"'\''");
            note(format_args!("  nbd-client {} {} -N '{name}' /dev/nbd0", address.ip(), address.port()));
        }
    }
    note("^C stops");
    Ok(())
}

fn announce_targets(serving: &Serving<'_>) {
    let Some(portal) = serving.iscsi.first() else { return };
    let portals: Vec<String> = serving.iscsi.iter().map(ToString::to_string).collect();
    note(format_args!("serving {} over iSCSI at {}", counted(serving.targets.len() as u64, "target", "targets"), portals.join(" and ")));
    if serving.iscsi.iter().any(|portal| !portal.ip().is_loopback()) {
        note("  other machines see targets with rules only (`onefold target allow`), unless [iscsi] allow_open_off_loopback is set");
    }
    for (name, units) in serving.targets {
        note(format_args!("  {name}"));
        for unit in units {
            note(format_args!(
                "    LUN {}  {}  {}{}  iscsi://{portal}/{name}/{}",
                unit.lun,
                printable(unit.volume.as_bytes()),
                size(unit.size),
                if unit.is_read_only { "  read-only" } else { "" },
                unit.lun
            ));
        }
    }
}

/// The NBD URI of an export.
fn uri(address: &LocalAddress, name: &str, tls: bool) -> String {
    let scheme = if tls { "nbds" } else { "nbd" };
    match address {
        LocalAddress::Tcp(address) => format!("{scheme}://{address}/{}", percent(name.as_bytes())),
        LocalAddress::Unix(path) => {
            let path = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
            format!("nbd+unix:///{}?socket={}", percent(name.as_bytes()), percent(path))
        }
    }
}

/// Bytes as a part of a URI (RFC 3986 section 2.3; `/` is allowed in paths and queries).
fn percent(bytes: &[u8]) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    bytes.iter().map(|byte| if keep(*byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_name_address_and_export() {
        let tcp = LocalAddress::Tcp("[::1]:10809".parse().unwrap());
        assert_eq!(uri(&tcp, "my disk", false), "nbd://[::1]:10809/my%20disk");
        assert_eq!(uri(&tcp, "d", true), "nbds://[::1]:10809/d");
        let unix = LocalAddress::Unix("/run/a b.sock".into());
        assert_eq!(uri(&unix, "d", false), "nbd+unix:///d?socket=/run/a%20b.sock");
    }
}
