//! A server with services for tests, and clients of it.

#![allow(dead_code)]

pub mod proxy;

use onefold_remote::transport::*;
use std::any::Any;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::oneshot;

/// Sends back what it gets.
pub const ECHO: u8 = 1;
/// Reads the number of bytes from the opening and sends so many, in messages of 100,000 bytes.
pub const POUR: u8 = 2;
/// Receives nothing until the channel is cancelled.
pub const IGNORE: u8 = 3;
/// Counts bytes until the end, then says how many.
pub const COUNT: u8 = 4;
/// Panics.
pub const PANIC: u8 = 5;
/// Notices only after a while that its channel was cancelled.
pub const SLOW: u8 = 6;

pub struct TestServices;

impl Services for TestServices {
    fn serve(&self, visitor: &Visitor, service: u8, opening: Vec<u8>, channel: Channel) {
        assert_eq!(visitor.account.downcast_ref::<String>().map(String::as_str), Some("the account"));
        // A channel that fails ends the service.
        let _ = match service {
            ECHO => echo(&channel),
            POUR => pour(&channel, usize::from_le_bytes(opening.try_into().unwrap())),
            IGNORE => ignore(&channel),
            COUNT => count(&channel),
            PANIC => panic!("as asked"),
            SLOW => {
                std::thread::sleep(Duration::from_secs(2));
                Ok(())
            }
            _ => {
                channel.cancel_with(codes::SERVICES, "no such service");
                Ok(())
            }
        };
    }
}

fn echo(channel: &Channel) -> Result<(), ChannelError> {
    while let Some(message) = channel.receive()? {
        channel.send(message.kind, message.payload)?;
    }
    channel.finish();
    Ok(())
}

fn pour(channel: &Channel, total: usize) -> Result<(), ChannelError> {
    let mut at = 0;
    while at < total {
        let length = (total - at).min(100_000);
        channel.send(0, pattern(at, length))?;
        at += length;
    }
    channel.finish();
    Ok(())
}

fn ignore(channel: &Channel) -> Result<(), ChannelError> {
    // The window of the client is full long before.
    loop {
        channel.send(0, vec![0; 100_000])?;
    }
}

fn count(channel: &Channel) -> Result<(), ChannelError> {
    let mut total = 0u64;
    while let Some(message) = channel.receive()? {
        total += message.payload.len() as u64;
    }
    channel.send(0, total.to_le_bytes().to_vec())?;
    channel.finish();
    Ok(())
}

/// Bytes that tell where they belong.
pub fn pattern(at: usize, length: usize) -> Vec<u8> {
    (at..at + length).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

pub struct TestDoor;

impl Door for TestDoor {
    fn admit(&self, login: &Login, peer: &Peer) -> Result<Arc<dyn Any + Send + Sync>, Refusal> {
        let is_local = matches!(peer.address, PeerAddress::Unix(_));
        if is_local || (login.account == "client" && login.secret == b"secret") {
            Ok(Arc::new("the account".to_owned()))
        } else {
            Err(Refusal::new(codes::DENIED, "the account or its secret is wrong"))
        }
    }
}

/// A server that runs until it is dropped.
pub struct TestServer {
    pub server: Server,
    pub address: SocketAddr,
    pub socket: PathBuf,
    pub tls: ServerTls,
    pub place: TempDir,
    runtime: Option<tokio::runtime::Runtime>,
    stop: Option<oneshot::Sender<()>>,
    running: Option<tokio::task::JoinHandle<()>>,
}

impl TestServer {
    pub fn start(options: ServerOptions) -> TestServer {
        TestServer::start_with(options, None)
    }

    pub fn start_with(options: ServerOptions, clients: Option<&ClientCertificates>) -> TestServer {
        let place = tempfile::tempdir().unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let tls = ServerTls::self_signed(&names, clients).unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let socket = place.path().join("socket");
        let unix = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let server = Server::new(options, Arc::new(TestDoor), Arc::new(TestServices));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (stop, stopped) = oneshot::channel();
        let listeners = vec![Listener::Tls(tcp, tls.clone()), Listener::Unix(unix)];
        let running = runtime.spawn({
            let server = server.clone();
            async move {
                let stopped = async {
                    stopped.await.ok();
                };
                server.run(listeners, stopped).await.unwrap();
            }
        });
        TestServer { server, address, socket, tls, place, runtime: Some(runtime), stop: Some(stop), running: Some(running) }
    }

    /// Stops the server in good order.
    pub fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.runtime.as_ref().unwrap().block_on(self.running.take().unwrap()).unwrap();
    }

    /// Returns options for a client that knows the server.
    pub fn options(&self) -> ConnectOptions {
        self.options_at(self.address)
    }

    /// The same, by another address.
    pub fn options_at(&self, address: SocketAddr) -> ConnectOptions {
        let trust = Trust::Pinned(self.tls.fingerprint());
        let target = Target::Tls { host: address.ip().to_string(), port: address.port(), trust, identity: None };
        ConnectOptions::new(target, credentials())
    }

    pub fn unix(&self) -> ConnectOptions {
        ConnectOptions::new(Target::Unix(self.socket.clone()), Credentials::default())
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

pub fn credentials() -> Credentials {
    Credentials { account: "client".to_owned(), secret: b"secret".to_vec() }
}

/// Options under which nothing takes long.
pub fn quick() -> ServerOptions {
    ServerOptions { keep_alive: Duration::from_secs(1), linger: Duration::from_secs(20), ..ServerOptions::default() }
}

/// Echoes so many bytes in messages of various lengths, and checks what comes back.
pub fn echoes(session: &ClientSession, total: usize, seed: usize) {
    let channel = session.open(ECHO, Vec::new()).unwrap();
    let lengths: Vec<usize> = lengths(total, seed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = seed;
            for (index, length) in lengths.iter().enumerate() {
                channel.send((index % 128) as u8, pattern(at, *length)).unwrap();
                at += length;
            }
            channel.finish();
        });
        let mut at = seed;
        for (index, length) in lengths.iter().enumerate() {
            let message = channel.receive().unwrap().expect("as many as were sent");
            assert_eq!(message.kind, (index % 128) as u8);
            assert!(message.payload == pattern(at, *length), "message {index} of {length} bytes is whole and in order");
            at += length;
        }
        assert_eq!(channel.receive().unwrap(), None);
    });
}

fn lengths(total: usize, seed: usize) -> Vec<usize> {
    let mut left = total;
    let mut state = seed as u64 | 1;
    let mut lengths = Vec::new();
    while left > 0 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let most = [100, 5_000, 70_000, 600_000][(state >> 33) as usize % 4];
        let length = ((state >> 40) as usize % most).min(left);
        lengths.push(length);
        left -= length.max(1);
    }
    lengths
}
