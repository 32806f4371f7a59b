//! State shared by all connections of a server.

use crate::{Export, Exports, Limits, Metrics};
use onefold_pool::Pool;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

/// How long a stopping server waits for further requests of a client that has none in flight.
pub(crate) const LINGER: Duration = Duration::from_millis(250);

/// State shared by all connections.
pub(crate) struct Context {
    pub exports: Arc<dyn Exports>,
    pub limits: Limits,
    pub acceptor: Option<TlsAcceptor>,
    pub metrics: Arc<Metrics>,
    /// The threads for exports, ...
    pub pool: Pool,
    /// ... and one permit per thread, which connections take in turn.
    pub workers: Arc<Semaphore>,
    /// Bytes for payloads.
    pub shared_bytes: Arc<Semaphore>,
    /// Becomes true when the server stops.
    pub stop: watch::Sender<bool>,
    in_use: Mutex<InUse>,
}

/// Exports with connections. The key is the address of the object; the value is the object and the number of its
/// connections.
type InUse = HashMap<usize, (Arc<dyn Export>, usize)>;

impl Context {
    pub(crate) fn new(exports: Arc<dyn Exports>, acceptor: Option<TlsAcceptor>, limits: &Limits) -> Arc<Context> {
        Arc::new(Context {
            exports,
            acceptor,
            metrics: Arc::default(),
            pool: Pool::new("nbd", limits.parallel_requests),
            workers: Arc::new(Semaphore::new(limits.parallel_requests)),
            shared_bytes: Arc::new(Semaphore::new(limits.bytes)),
            stop: watch::Sender::new(false),
            in_use: Mutex::default(),
            limits: limits.clone(),
        })
    }

    /// Returns the exports with connections.
    pub(crate) fn exports_in_use(&self) -> Vec<Arc<dyn Export>> {
        self.in_use().values().map(|(export, _)| Arc::clone(export)).collect()
    }

    fn in_use(&self) -> MutexGuard<'_, InUse> {
        // No code panics while it is held.
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until the server stops.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, and with it the server.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// An export in use by a connection.
pub(crate) struct Using {
    context: Arc<Context>,
    key: usize,
}

impl Using {
    pub(crate) fn new(context: &Arc<Context>, export: &Arc<dyn Export>) -> Using {
        let key = Arc::as_ptr(export).cast::<()>() as usize;
        context.in_use().entry(key).or_insert_with(|| (Arc::clone(export), 0)).1 += 1;
        Using { context: Arc::clone(context), key }
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        let mut in_use = self.context.in_use();
        if let Some((_, connections)) = in_use.get_mut(&self.key) {
            *connections -= 1;
            if *connections == 0 {
                in_use.remove(&self.key);
            }
        }
    }
}
