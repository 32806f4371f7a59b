//! A store behind a connection: a server in this process, and a session to it over a Unix socket.

use onefold_catalog::{Backup, Catalog};
use onefold_client::repository::{Comparable, Compared, Reading, Remote, Repository};
use onefold_remote::services::server::{Guest, Unobserved, serve};
use onefold_remote::transport::{
    Channel, ClientSession, ConnectOptions, Credentials, Door, Listener, Login, Peer, Refusal, Server, ServerOptions, Services, Target,
    Visitor,
};
use std::any::Any;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Lets everybody in as the owner of the store.
struct Owner;

impl Door for Owner {
    fn admit(&self, _: &Login, _: &Peer) -> Result<Arc<dyn Any + Send + Sync>, Refusal> {
        Ok(Arc::new(Guest::owner(Box::new(Unobserved))))
    }
}

struct Backups(Catalog);

impl Services for Backups {
    fn serve(&self, visitor: &Visitor, service: u8, opening: Vec<u8>, channel: Channel) {
        let guest = visitor.account.downcast_ref::<Guest>().unwrap();
        assert!(serve(&self.0, guest, service, &opening, &channel));
    }
}

/// A repository with its server.
#[derive(Debug)]
pub struct Behind {
    remote: Option<Remote>,
    _sockets: tempfile::TempDir,
    stop: Mutex<Option<tokio::sync::oneshot::Sender<()>>>,
    thread: Option<JoinHandle<()>>,
}

impl Behind {
    pub fn new(catalog: &Catalog, directory: &Path) -> Behind {
        Behind::with(catalog, directory, ServerOptions::default())
    }

    pub fn with(catalog: &Catalog, directory: &Path, options: ServerOptions) -> Behind {
        // A test may run as somebody who cannot write to the directory.
        let sockets = tempfile::tempdir().unwrap();
        let socket = sockets.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let options = ServerOptions { limits: onefold_remote::services::limits(catalog.engine()), ..options };
        let server = Server::new(options, Arc::new(Owner), Arc::new(Backups(catalog.clone())));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let stopped = async {
                let _ = stopped.await;
            };
            runtime.block_on(server.run(vec![Listener::Unix(listener)], stopped)).unwrap();
        });
        let credentials = Credentials { account: String::new(), secret: Vec::new() };
        let session = ClientSession::connect(ConnectOptions::new(Target::Unix(socket), credentials)).unwrap();
        let remote = Remote::new(Arc::new(session), Some(directory.join("cache")), true);
        Behind { remote: Some(remote), _sockets: sockets, stop: Mutex::new(Some(stop)), thread: Some(thread) }
    }

    /// Stops the server, and waits until the client knows it.
    pub fn stop(&self) {
        self.stop.lock().unwrap().take().map(|stop| stop.send(()));
        while self.remote().session().ended().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn remote(&self) -> &Remote {
        self.remote.as_ref().unwrap()
    }
}

impl Repository for Behind {
    fn compare(&self, wanted: &Comparable<'_>) -> onefold_client::Result<Box<dyn Compared + '_>> {
        self.remote().compare(wanted)
    }

    fn read(&self, backup: &Backup) -> onefold_client::Result<Reading> {
        self.remote().read(backup)
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.remote = None;
        self.stop.lock().unwrap().take().map(|stop| stop.send(()));
        self.thread.take().map(|thread| thread.join());
    }
}
