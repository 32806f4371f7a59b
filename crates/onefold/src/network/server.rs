//! Listens for clients on other machines.

use super::door::NetworkDoor;
use super::files;
use super::presence::Network;
use crate::control::{Host, serve_channel};
use crate::failure::{Failure, Result};
use crate::settings::{Backup, parse_listen};
use onefold_ground::Ground;
use onefold_remote::accounts::{Accounts, Connections, Logins, Quotas};
use onefold_remote::services::server::Unfinished;
use onefold_remote::transport::{
    CertificateFingerprint, Channel, ClientCertificates, Listener, Server, ServerOptions, ServerTls, Services, TransportError, Visitor,
};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it looks whether supplies are to be noted.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// How often it forgets what was supplied for backups that nobody finishes.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);

/// Serves clients on other machines until it is dropped.
pub struct BackupServer {
    addresses: Vec<SocketAddr>,
    fingerprint: CertificateFingerprint,
    host: Arc<Host>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Far(Arc<Host>);

impl Services for Far {
    fn serve(&self, visitor: &Visitor, service: u8, opening: Vec<u8>, channel: Channel) {
        serve_channel(&self.0, visitor, service, &opening, &channel);
    }
}

fn cannot(error: TransportError) -> Failure {
    let failure = Failure::cannot_run(format!("cannot serve backups: {error}"));
    match &error {
        TransportError::Io { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
            failure.advise("stop what listens there, or give another address with --backup")
        }
        TransportError::TlsFile { .. } => failure.advise("give a certificate and its key, PEM, or neither for one that is made here"),
        _ => failure,
    }
}

impl BackupServer {
    /// Listens where the settings say. The store is in `directory`.
    pub fn start(directory: &Path, host: &Arc<Host>, settings: &Backup, unfinished: &Arc<Unfinished>) -> Result<BackupServer> {
        let mut wanted = Vec::new();
        for text in &settings.listen {
            wanted.extend(parse_listen(text, super::DEFAULT_PORT).map_err(|why| Failure::cannot_run(format!("backup.listen {why}")))?);
        }
        let engine = host.store.engine.clone();
        let ground = engine.ground().clone();
        let tls = tls(directory, &*ground, settings, &wanted)?;
        let mut listeners = Vec::new();
        for address in wanted {
            listeners.push(Listener::tls(address, tls.clone()).map_err(cannot)?);
        }
        let addresses = listeners.iter().filter_map(|listener| match listener {
            Listener::Tls(listener, _) => listener.local_addr().ok(),
            Listener::Unix(_) => None,
        });
        let addresses = addresses.collect();
        let log = settings.access_log.then(|| files::access_log(directory, &*ground, settings.logs.as_deref())).transpose()?;
        let (accounts, connections) = (Accounts::new(engine.clone())?, Connections::default());
        let door = NetworkDoor {
            logins: Logins::new(accounts, log.clone()),
            quotas: Arc::new(Quotas::new(engine)),
            connections: connections.clone(),
            log: log.clone(),
            unfinished: Arc::clone(unfinished),
            sessions: 1.into(),
        };
        let options = ServerOptions {
            limits: onefold_remote::services::limits(&host.store.engine),
            sessions: settings.max_sessions,
            budget_bytes: settings.budget_bytes,
            linger: Duration::from_secs(settings.linger_seconds),
            keep_alive: Duration::from_secs(settings.keep_alive_seconds),
            ..ServerOptions::default()
        };
        let server = Server::new(options, Arc::new(door), Arc::new(Far(Arc::clone(host))));
        host.daemon.set_network(Some(Network { server: server.clone(), connections, log }));
        let started = |error: std::io::Error| Failure::cannot_run(format!("cannot start threads: {error}"));
        let runtime = tokio::runtime::Builder::new_multi_thread().thread_name("backup-link").enable_all().build().map_err(started)?;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let unfinished = Arc::clone(unfinished);
        let thread = std::thread::Builder::new().name("backups".to_owned()).spawn(move || {
            let keep = async {
                let mut expired_at = Instant::now();
                loop {
                    tokio::time::sleep(WRITE_EVERY).await;
                    let is_time = expired_at.elapsed() >= EXPIRE_EVERY;
                    if is_time {
                        expired_at = Instant::now();
                    }
                    let unfinished = Arc::clone(&unfinished);
                    let work = move || {
                        unfinished.write_due();
                        if is_time {
                            unfinished.expire();
                        }
                    };
                    let _ = tokio::task::spawn_blocking(work).await;
                }
            };
            let stopped = async {
                tokio::select! {
                    _ = stopped => {}
                    () = keep => {}
                }
            };
            if let Err(error) = runtime.block_on(server.run(listeners, stopped)) {
                tracing::error!("clients on other machines are not served: {error}");
            }
        });
        Ok(BackupServer {
            addresses,
            fingerprint: tls.fingerprint(),
            host: Arc::clone(host),
            stop: Some(stop),
            thread: Some(thread.map_err(started)?),
        })
    }

    /// Returns where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the fingerprint of its certificate.
    pub fn fingerprint(&self) -> CertificateFingerprint {
        self.fingerprint
    }
}

impl Drop for BackupServer {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
        // It refers to the host, and the host to it.
        self.host.daemon.set_network(None);
    }
}

/// Returns the certificate of the settings, or the store's own.
fn tls(directory: &Path, ground: &dyn Ground, settings: &Backup, addresses: &[SocketAddr]) -> Result<ServerTls> {
    let clients =
        settings.client_ca.clone().map(|authorities| ClientCertificates { authorities, is_required: settings.client_certificate_required });
    let (certificate, key) = match settings.certificate.clone().zip(settings.key.clone()) {
        Some(given) => given,
        None => files::certificate(directory, ground, addresses)?,
    };
    ServerTls::from_files(&certificate, &key, clients.as_ref()).map_err(cannot)
}
