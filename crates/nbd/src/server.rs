//! The server: listens, limits connections, and stops in order.

use crate::context::{Context, Using};
use crate::haggling::TlsState;
use crate::listener::{Accepted, Listener};
use crate::tls::{self, Wire};
use crate::{Config, Export, ExportError, Exports, Listen, LocalAddress, Metrics, NbdError, Result, Tls, handshake, transmission};
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long to wait after a failure to accept (usually no file descriptors are left), so that the loop does not use a
/// whole core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A server that has its addresses and waits to be [run](Server::run).
pub struct Server {
    config: Config,
    listeners: Vec<Listener>,
    context: Arc<Context>,
}

impl Server {
    /// Binds the addresses and reads the certificates. From now on clients can connect, and [`Server::run`] serves
    /// them.
    pub fn bind(config: Config, exports: Arc<dyn Exports>) -> Result<Server> {
        config.limits.check()?;
        let acceptor = match &config.tls {
            Tls::Off => None,
            Tls::Optional(files) | Tls::Required(files) => Some(tls::acceptor(files)?),
        };
        if config.listen.is_empty() {
            return Err(NbdError::NoAddress);
        }
        for address in &config.listen {
            if let Listen::Tcp(tcp) = address
                && matches!(config.tls, Tls::Off)
                && !config.allow_plain_off_loopback
                && !tcp.ip().to_canonical().is_loopback()
            {
                return Err(NbdError::PlainOffLoopback { address: address.to_string() });
            }
        }
        let listeners = config.listen.iter().map(|listen| Listener::bind(listen, config.socket_mode)).collect::<Result<Vec<_>>>()?;
        let context = Context::new(exports, acceptor, &config.limits);
        Ok(Server { config, listeners, context })
    }

    /// Returns the first address, with the port that the system chose.
    pub fn local_address(&self) -> &LocalAddress {
        self.listeners[0].address()
    }

    /// Returns all addresses, in the order of [`Config::listen`].
    pub fn local_addresses(&self) -> impl Iterator<Item = &LocalAddress> {
        self.listeners.iter().map(Listener::address)
    }

    /// Returns the counters. They outlive the server.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.context.metrics)
    }

    /// Serves until `shutdown` is ready. Then it accepts nothing more, lets requests in flight finish, refuses further
    /// requests, and flushes the exports in use. Connections that take longer than the limit are cut.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<()> {
        for listener in &mut self.listeners {
            listener.start()?;
        }
        let mut connections = JoinSet::new();
        let places = Arc::new(Semaphore::new(self.config.limits.connections));
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(_) = connections.join_next() => {}
                accepted = accept(&self.listeners) => match accepted {
                    Err(error) => {
                        tracing::warn!("cannot accept NBD connections: {error}");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                    Ok(accepted) => match Arc::clone(&places).try_acquire_owned() {
                        Err(_) => self.context.metrics.refused(),
                        Ok(place) => {
                            let tls = tls_state(&self.config, accepted.is_unix(), accepted.is_local());
                            let context = Arc::clone(&self.context);
                            connections.spawn(async move {
                                serve(accepted, tls, context).await;
                                drop(place);
                            });
                        }
                    },
                },
            }
        }
        // Closes the sockets and removes their files.
        self.listeners.clear();
        let in_use = self.context.exports_in_use();
        self.context.stop.send_replace(true);
        let finished = timeout(self.config.limits.shutdown_timeout, async { while connections.join_next().await.is_some() {} }).await;
        if finished.is_err() {
            tracing::warn!("{} NBD connections did not end in time and were cut", connections.len());
            connections.shutdown().await;
        }
        flush(in_use, self.config.limits.shutdown_timeout).await
    }
}

/// Returns whether a connection may, must or cannot use TLS.
fn tls_state(config: &Config, is_unix: bool, is_local: bool) -> TlsState {
    match config.tls {
        Tls::Off => TlsState::Unavailable,
        Tls::Optional(_) if is_local || config.allow_plain_off_loopback => TlsState::Offered,
        Tls::Required(_) if is_unix => TlsState::Offered,
        Tls::Optional(_) | Tls::Required(_) => TlsState::Required,
    }
}

async fn accept(listeners: &[Listener]) -> io::Result<Accepted> {
    std::future::poll_fn(|task| {
        let ready = listeners.iter().map(|listener| listener.poll_accept(task)).find(|accepted| accepted.is_ready());
        ready.unwrap_or(std::task::Poll::Pending)
    })
    .await
}

/// Serves a connection from its first byte to its last.
async fn serve(accepted: Accepted, tls: TlsState, context: Arc<Context>) {
    context.metrics.connected();
    // Counts down however this future ends, even if it is cut.
    let _open = Open(Arc::clone(&context.metrics));
    let peer = accepted.peer();
    let stream: Box<dyn Wire> = accepted.into_stream();
    let negotiation = timeout(context.limits.negotiation_timeout, handshake::negotiate(stream, tls, &context)).await;
    let (stream, session) = match negotiation.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(Some(agreed)) => agreed,
        Ok(None) => return,
        Err(error) => {
            context.metrics.negotiation_failed();
            tracing::debug!(peer, "NBD negotiation failed: {error}");
            return;
        }
    };
    let _using = Using::new(&context, &session.export);
    tracing::debug!(peer, export = session.name, style = ?session.style, "NBD session begins");
    match Box::pin(transmission::serve(stream, session, Arc::clone(&context))).await {
        Ok(()) => tracing::debug!(peer, "NBD session ends"),
        Err(error) => tracing::debug!(peer, "NBD session failed: {error}"),
    }
}

struct Open(Arc<Metrics>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.disconnected();
    }
}

async fn flush(exports: Vec<Arc<dyn Export>>, limit: Duration) -> Result<()> {
    let total = exports.len();
    let mut flushes = JoinSet::new();
    for export in exports {
        flushes.spawn_blocking(move || export.flush());
    }
    let mut failures = Vec::new();
    let finished = timeout(limit, async {
        while let Some(flushed) = flushes.join_next().await {
            if let Err(error) = flushed.unwrap_or_else(|_| Err(ExportError::Io("the export panicked".into()))) {
                failures.push(error.to_string());
            }
        }
    })
    .await;
    if finished.is_err() {
        failures.extend((0..flushes.len()).map(|_| format!("not done after {limit:?}")));
    }
    match failures.first() {
        None => Ok(()),
        Some(first) => Err(NbdError::Flush { failed: failures.len(), exports: total, reason: first.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TlsFiles;
    use std::path::PathBuf;

    #[test]
    fn clients_on_other_machines_must_use_tls_unless_plain_text_is_allowed() {
        let files = TlsFiles { certificate: PathBuf::new(), key: PathBuf::new(), client_authorities: None };
        let plain = Config::new(Listen::Unix(PathBuf::new()));
        let state = |tls: Tls, allowed, is_unix, is_local| {
            tls_state(&Config { tls, allow_plain_off_loopback: allowed, ..plain.clone() }, is_unix, is_local)
        };
        let optional = |allowed, is_local| state(Tls::Optional(files.clone()), allowed, false, is_local);
        assert_eq!(optional(false, true), TlsState::Offered);
        assert_eq!(optional(false, false), TlsState::Required);
        assert_eq!(optional(true, false), TlsState::Offered);
        let required = |is_unix| state(Tls::Required(files.clone()), true, is_unix, true);
        assert_eq!((required(false), required(true)), (TlsState::Required, TlsState::Offered));
        assert_eq!(state(Tls::Off, true, false, false), TlsState::Unavailable);
    }
}
