//! The connection to another node: made on first need, made again with pauses that grow when it is lost.

use crate::frame::{self, Frame, within};
use crate::greeting::{GREETING_BYTES, Hello, VERSION, Welcome, codes, kinds};
use crate::peer::{Next, Peer};
use crate::{CallError, Result};
use onefold_remote::transport::decode_reason;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::Error as RustlsError;

/// The buffer of a reader.
pub(crate) const READ_BYTES: usize = 64 << 10;
/// Small frames are written together, up to so many bytes.
pub(crate) const WRITE_BYTES: usize = 32 << 10;

/// Why there is no connection.
enum Trouble {
    /// Trying again may help.
    Passing(String),
    /// The two ends do not fit.
    Lasting(String),
}

type Stream = TlsStream<TcpStream>;

/// Keeps the connection to a node, as long as there is need.
pub(crate) async fn keep(peer: Arc<Peer>) {
    while !peer.is_stopped() {
        if !peer.has_need() {
            peer.need.notified().await;
            continue;
        }
        let limit = peer.context.options().greeting;
        let connected = timeout(limit, connect(&peer)).await;
        let trouble = match connected.unwrap_or_else(|_| Err(Trouble::Passing("it does not answer".to_owned()))) {
            Ok(stream) => {
                peer.connected();
                let why = serve(&peer, stream).await;
                peer.lost(&why);
                Trouble::Passing(why)
            }
            Err(trouble) => trouble,
        };
        let (Trouble::Passing(why) | Trouble::Lasting(why)) = &trouble;
        tracing::debug!(node = peer.node, why, "no connection to a node");
        let pause = peer.unreached(why.clone());
        if let Trouble::Lasting(why) = trouble {
            peer.refused(&CallError::Unfit(why));
        } else if !peer.is_named() {
            peer.gone();
        }
        if !peer.is_stopped() {
            sleep(pause).await;
        }
    }
}

/// Connects and greets.
async fn connect(peer: &Peer) -> Result<Stream, Trouble> {
    let passing = |why: &str| Trouble::Passing(why.to_owned());
    let setup = &peer.context.setup;
    let opening = *peer.context.opening.get().ok_or_else(|| passing("this node has not opened its log"))?;
    let address = setup.directory.address(peer.node).ok_or_else(|| passing("it is not there"))?;
    let (directory, node) = (setup.directory.clone(), peer.node);
    let expected = tokio::task::spawn_blocking(move || directory.fingerprint(node)).await.ok().flatten();
    let expected = expected.ok_or_else(|| passing("its certificate is not known"))?;
    let (config, name) = setup.identity.client(peer.node, &setup.store, expected).map_err(|error| Trouble::Lasting(error.to_string()))?;
    let lost = |error: io::Error| Trouble::Passing(format!("{address}: {error}"));
    let stream = TcpStream::connect(&address).await.map_err(lost)?;
    stream.set_nodelay(true).map_err(lost)?;
    let mut stream = TlsConnector::from(config).connect(name, stream).await.map_err(|error| {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<RustlsError>());
        match inner {
            Some(RustlsError::InvalidCertificate(_)) => Trouble::Lasting(format!(
                "{address} has not the certificate of node {}: its fingerprint or its name is another one",
                peer.node
            )),
            _ => lost(error),
        }
    })?;
    let connection = peer.next_connection();
    let hello = Hello { version: VERSION, store: setup.store, from: setup.node, to: peer.node, opening, connection };
    greet(&mut stream, &Frame { kind: kinds::HELLO, id: 0, payload: hello.encode() }).await.map_err(lost)?;
    let answer = frame::read(&mut stream, peer.context.options().greeting).await.map_err(lost)?;
    match answer.kind {
        kinds::WELCOME => match Welcome::decode(&answer.payload) {
            Ok(welcome) if welcome.store == setup.store && welcome.node == peer.node => Ok(stream),
            Ok(welcome) => Err(Trouble::Lasting(format!("{address} is node {} of another store, or another node", welcome.node))),
            Err(Some(version)) => Err(Trouble::Lasting(format!("{address} speaks version {version}, and this node {VERSION}"))),
            Err(None) => Err(Trouble::Passing(format!("{address} welcomes with nonsense"))),
        },
        kinds::REFUSAL => match decode_reason(&answer.payload) {
            Some((codes::BUSY, text)) => Err(Trouble::Passing(format!("{address} is busy: {text}"))),
            Some((code, text)) => Err(Trouble::Lasting(format!("{address} refused this node (code {code}): {text}"))),
            None => Err(Trouble::Passing(format!("{address} refuses with nonsense"))),
        },
        kind => Err(Trouble::Passing(format!("{address} answered a greeting with kind {kind:#04x}"))),
    }
}

/// Writes a frame of the greeting.
pub(crate) async fn greet(stream: &mut (impl AsyncWrite + Unpin), frame: &Frame) -> io::Result<()> {
    debug_assert!(frame.payload.len() <= GREETING_BYTES);
    let mut bytes = Vec::new();
    frame.put(&mut bytes);
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// Moves requests and answers until the connection is lost. Returns why.
async fn serve(peer: &Peer, stream: Stream) -> String {
    let (reading, writing) = split(stream);
    let error = tokio::select! {
        error = receive(peer, reading) => error,
        error = send(peer, writing) => error,
    };
    error.map_or_else(|error| error.to_string(), |()| "this node is stopping".to_owned())
}

async fn receive(peer: &Peer, stream: ReadHalf<Stream>) -> io::Result<()> {
    let mut stream = BufReader::with_capacity(READ_BYTES, stream);
    loop {
        let frame = frame::read(&mut stream, peer.context.options().silence).await?;
        if frame.kind == kinds::PING {
            continue;
        }
        peer.context.counters.received(&frame);
        peer.arrived(&frame).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
    }
}

async fn send(peer: &Peer, stream: WriteHalf<Stream>) -> io::Result<()> {
    let mut writer = Writer::new(stream, peer.context.options().ping, peer.context.options().silence);
    loop {
        match peer.next() {
            Next::Frame(frame) => {
                peer.context.counters.sent(&frame);
                writer.put(frame).await?;
            }
            Next::Until(until) => {
                writer.flush().await?;
                tokio::select! {
                    () = peer.wake.notified() => {}
                    () = sleep_until(until.into()) => {}
                }
            }
            Next::Nothing => writer.rest(peer.wake.notified()).await?,
            Next::Stop => return Ok(()),
        }
    }
}

/// Writes frames, small ones together.
pub(crate) struct Writer<S> {
    stream: S,
    buffer: Vec<u8>,
    ping: Duration,
    silence: Duration,
    last: Instant,
}

impl<S: AsyncWrite + Unpin> Writer<S> {
    pub(crate) fn new(stream: S, ping: Duration, silence: Duration) -> Writer<S> {
        Writer { stream, buffer: Vec::new(), ping, silence, last: Instant::now() }
    }

    /// Writes a frame, or keeps it for the next [flush](Writer::flush).
    pub(crate) async fn put(&mut self, frame: Frame) -> io::Result<()> {
        frame.put(&mut self.buffer);
        if self.buffer.len() >= WRITE_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Writes what is left.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.buffer);
        // In steps, so that each has its time.
        for step in bytes.chunks(READ_BYTES) {
            within(self.silence, self.stream.write_all(step)).await?;
        }
        within(self.silence, self.stream.flush()).await?;
        self.last = Instant::now();
        Ok(())
    }

    /// Writes what is left, and waits. Sends a ping if nothing else was sent for long.
    pub(crate) async fn rest(&mut self, work: impl Future<Output = ()>) -> io::Result<()> {
        self.flush().await?;
        tokio::select! {
            () = work => Ok(()),
            () = sleep_until(self.last + self.ping) => {
                Frame { kind: kinds::PING, id: 0, payload: Vec::new() }.put(&mut self.buffer);
                self.flush().await
            }
        }
    }
}
