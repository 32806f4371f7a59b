//! The daemon's Unix socket.

use super::command::{self, only_owner};
use super::host::{Caller, Host, Identity};
use super::socket;
use onefold_remote::services::messages::services::COMMAND;
use onefold_remote::services::server::{Guest, Unobserved, serve};
use onefold_remote::transport::{
    Channel, Door, Listener, Login, Peer, PeerAddress, Refusal, Server, ServerOptions, Services, Visitor, codes,
};
use std::any::Any;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Most sessions: commands, backups and restores.
const SESSIONS: usize = 64;
/// The memory for their windows.
const BUDGET_BYTES: u64 = 96 << 20;

/// Serves the clients of the daemon on this machine. Dropping it ends the sessions.
pub struct ControlServer {
    directory: PathBuf,
    server: Server,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Listens in the store's directory. The store is open for writing: the caller holds its lock alone.
    pub fn start(directory: &Path, host: &Arc<Host>) -> io::Result<ControlServer> {
        let listener = socket::listen(directory)?;
        let door = LocalDoor { is_open_to_group: socket::is_shared(directory)? };
        // A client that is gone does not come back: it has nothing to resume.
        let limits = onefold_remote::services::limits(&host.store.engine);
        let options =
            ServerOptions { limits, sessions: SESSIONS, budget_bytes: BUDGET_BYTES, linger: Duration::ZERO, ..ServerOptions::default() };
        let server = Server::new(options, Arc::new(door), Arc::new(Local(Arc::clone(host))));
        let running = server.clone();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("control-link").enable_all().build()?;
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            let stopped = async {
                let _ = stopped.await;
            };
            if let Err(error) = runtime.block_on(running.run(vec![Listener::Unix(listener)], stopped)) {
                tracing::warn!("no command can use the store beside this daemon: {error}");
            }
        })?;
        Ok(ControlServer { directory: directory.to_owned(), server, stop: Some(stop), thread: Some(thread) })
    }

    /// Lets in no clients from now on.
    pub fn refuse_new(&self) {
        self.server.refuse_new();
    }

    /// Lets in no clients from now on if there are none. Returns whether it does.
    pub fn stop_if_idle(&self) -> bool {
        self.server.stop_if_idle()
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        if let Err(error) = socket::remove(&self.directory) {
            tracing::warn!("cannot remove the socket {}: {error}", self.directory.join(socket::NAME).display());
        }
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Lets in whom the mode of the socket means.
struct LocalDoor {
    is_open_to_group: bool,
}

impl Door for LocalDoor {
    fn admit(&self, _: &Login, peer: &Peer) -> Result<Arc<dyn Any + Send + Sync>, Refusal> {
        let PeerAddress::Unix(Some(user)) = peer.address else {
            return Err(Refusal::new(codes::DENIED, "the daemon cannot identify the client"));
        };
        let is_owner = user == rustix::process::geteuid().as_raw() || user == 0;
        if !is_owner && !self.is_open_to_group {
            return Err(Refusal::new(codes::DENIED, only_owner("it").message));
        }
        Ok(Arc::new(Caller { guest: Guest::owner(Box::new(Unobserved)), identity: Identity::Local { user, is_owner } }))
    }
}

struct Local(Arc<Host>);

impl Services for Local {
    fn serve(&self, visitor: &Visitor, service: u8, opening: Vec<u8>, channel: Channel) {
        serve_channel(&self.0, visitor, service, &opening, &channel);
    }
}

/// Serves a channel of any service.
pub(crate) fn serve_channel(host: &Host, visitor: &Visitor, service: u8, opening: &[u8], channel: &Channel) {
    let Some(caller) = visitor.account.downcast_ref::<Caller>() else {
        return channel.cancel_with(codes::DENIED, "the daemon does not know the client");
    };
    let Some(_place) = host.enter() else { return channel.cancel_with(codes::SHUTDOWN, "the daemon stops") };
    match service {
        COMMAND if opening.is_empty() => command::serve(host, caller, visitor, channel),
        COMMAND => channel.cancel_with(codes::SERVICES, "the opening of a command is empty"),
        _ if serve(&host.catalog(), &caller.guest, service, opening, channel) => {}
        _ => channel.cancel_with(codes::SERVICES, "there is no such service"),
    }
}
