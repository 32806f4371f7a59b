//! Measures messages of 512 KiB in one direction, over TLS on loopback and over a Unix socket.
//!
//! `cargo run --release -p onefold-remote --example throughput [MiB]`
//!
//! Both ends are in this process, so the processor time is that of both. The floor is the same bytes over the same kind
//! of socket without a protocol and without encryption, 256 KiB at a time.

use onefold_remote::transport::{
    Channel, ConnectOptions, Credentials, Door, Listener, Login, Peer, Refusal, Server, ServerOptions, ServerTls, Services, Target, Trust,
    Visitor,
};
use std::any::Any;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Instant;

const MESSAGE_BYTES: usize = 512 << 10;
const RAW_BYTES: usize = 256 << 10;
const UP: u8 = 1;
const DOWN: u8 = 2;

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

struct OpenDoor;

impl Door for OpenDoor {
    fn admit(&self, _login: &Login, _peer: &Peer) -> std::result::Result<Arc<dyn Any + Send + Sync>, Refusal> {
        Ok(Arc::new(()))
    }
}

struct Both;

impl Services for Both {
    fn serve(&self, _visitor: &Visitor, service: u8, opening: Vec<u8>, channel: Channel) {
        let count = opening.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let served = if service == UP { drain(&channel) } else { pour(&channel, count) };
        if let Err(error) = served {
            eprintln!("the service failed: {error}");
        }
        channel.finish();
    }
}

fn drain(channel: &Channel) -> Result<()> {
    while channel.receive()?.is_some() {}
    Ok(())
}

fn pour(channel: &Channel, count: u32) -> Result<()> {
    for _ in 0..count {
        channel.send(0, vec![7; MESSAGE_BYTES])?;
    }
    Ok(())
}

/// Returns the processor time of this process in seconds.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

fn measure(what: &str, mib: u32, run: impl FnOnce() -> Result<()>) -> Result<()> {
    let (start, processor) = (Instant::now(), processor_seconds());
    run()?;
    let (wall, processor) = (start.elapsed().as_secs_f64(), processor_seconds() - processor);
    let megabytes = f64::from(mib) * 1.048_576;
    println!("{what:<28} {:>7.0} MB/s   {:.2} processor seconds a GB, both ends", megabytes / wall, processor / megabytes * 1000.0);
    Ok(())
}

fn raw(mut from: impl Read + Send, mut to: impl Write + Send, mib: u32) -> Result<()> {
    let total = (mib as usize) << 20;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let bytes = vec![7; RAW_BYTES];
            (0..total / RAW_BYTES).try_for_each(|_| to.write_all(&bytes))
        });
        let mut buffer = vec![0; RAW_BYTES];
        let mut left = total;
        while left > 0 {
            match from.read(&mut buffer)? {
                0 => return Err("the writer stopped".into()),
                count => left -= count,
            }
        }
        Ok(())
    })
}

fn main() -> Result<()> {
    let mib: u32 = std::env::args().nth(1).map_or(Ok(2048), |text| text.parse())?;
    let place = tempfile::tempdir()?;
    let tls = ServerTls::self_signed(&["localhost".to_owned()], None)?;
    let tcp = TcpListener::bind("127.0.0.1:0")?;
    let port = tcp.local_addr()?.port();
    let socket = place.path().join("socket");

    let floor = TcpListener::bind("127.0.0.1:0")?;
    let to = TcpStream::connect(floor.local_addr()?)?;
    let from = floor.accept()?.0;
    measure("TCP, floor", mib, || raw(from, to, mib))?;
    let (from, to) = UnixStream::pair()?;
    measure("Unix socket, floor", mib, || raw(from, to, mib))?;

    let unix = UnixListener::bind(&socket)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let server = Server::new(ServerOptions::default(), Arc::new(OpenDoor), Arc::new(Both));
    let listeners = vec![Listener::Tls(tcp, tls.clone()), Listener::Unix(unix)];
    runtime.spawn(async move { server.run(listeners, std::future::pending()).await });

    let trust = Trust::Pinned(tls.fingerprint());
    let encrypted = Target::Tls { host: "127.0.0.1".to_owned(), port, trust, identity: None };
    for (name, target) in [("TLS", encrypted), ("Unix socket", Target::Unix(socket))] {
        let session = onefold_remote::transport::ClientSession::connect(ConnectOptions::new(target, Credentials::default()))?;
        let count = mib * 2;
        measure(&format!("{name}, client to server"), mib, || {
            let channel = session.open(UP, Vec::new())?;
            pour(&channel, count)?;
            channel.finish();
            drain(&channel)
        })?;
        measure(&format!("{name}, server to client"), mib, || {
            let channel = session.open(DOWN, count.to_le_bytes().to_vec())?;
            channel.finish();
            drain(&channel)
        })?;
        session.close()?;
    }
    Ok(())
}
