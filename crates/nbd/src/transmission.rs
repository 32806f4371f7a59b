//! The transmission phase of a connection: requests in, replies out, many at a time.
//!
//! One task reads requests and writes replies; exports work on the threads of the pool. A request first takes a place
//! of the connection, then memory, and, once its payload has arrived, a worker. It returns the worker before its reply
//! waits for the client. So no client keeps a worker. A request only ever waits for others that make progress or are
//! closed by a timeout.

use crate::context::{Context, LINGER, stopped};
use crate::execute::{STATUS_EXTENTS, execute};
use crate::haggling::Session;
use crate::limits::{Hold, Shares};
use crate::metrics::Command;
use crate::reply::Reply;
use crate::request::{self, Facts, Judged, Operation, Request};
use crate::tls::Wire;
use crate::wire::command;
use crate::{Errno, Extent};
use std::future::Future;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

/// Holds several 4 KiB requests. Larger payloads bypass the buffer.
const BUFFER_BYTES: usize = 16 << 10;

/// Replies written with one system call.
const REPLIES_AT_ONCE: usize = 64;

/// Memory for building a status reply: extents as the export returns them, and as bytes.
const STATUS_BYTES: u32 = (STATUS_EXTENTS * (size_of::<Extent>() + 16)) as u32;

/// A reply on its way, with the resources that are released when it is written.
struct Outgoing {
    reply: Reply,
    _place: OwnedSemaphorePermit,
    _hold: Option<Hold>,
}

/// Serves requests until the client ends the session, breaks the protocol or disappears, or the server stops.
pub(crate) async fn serve(stream: Box<dyn Wire>, session: Session, context: Arc<Context>) -> io::Result<()> {
    let (read_half, write_half) = tokio::io::split(stream);
    let (replies, outgoing) = unbounded_channel();
    let limits = &context.limits;
    let reading = Reading {
        reader: BufReader::with_capacity(BUFFER_BYTES, read_half),
        session,
        places: Arc::new(Semaphore::new(limits.requests_per_connection)),
        shares: Shares::new(limits.bytes_per_connection, limits.reserved_bytes_per_connection, Arc::clone(&context.shared_bytes)),
        stop: context.stop.subscribe(),
        stopping: false,
        replies,
        context: Arc::clone(&context),
    };
    let writing = write_replies(write_half, outgoing, &context);
    tokio::pin!(writing);
    tokio::select! {
        // A client that takes no replies is gone, whatever it still sends.
        written = &mut writing => written,
        read = reading.run() => {
            // Replies in flight hold the other ends of the channel. It closes when the last one is written.
            writing.await?;
            read
        }
    }
}

struct Reading {
    reader: BufReader<ReadHalf<Box<dyn Wire>>>,
    session: Session,
    places: Arc<Semaphore>,
    shares: Shares,
    stop: watch::Receiver<bool>,
    stopping: bool,
    replies: UnboundedSender<Outgoing>,
    context: Arc<Context>,
}

impl Reading {
    async fn run(mut self) -> io::Result<()> {
        while let Some(request) = self.next_request().await? {
            if request.kind == command::DISC {
                return Ok(());
            }
            self.context.metrics.requested(counted(request.kind));
            let facts = Facts {
                size: self.session.export.size(),
                read_only: self.session.export.read_only(),
                style: self.session.style,
                contexts: self.session.contexts,
            };
            let judged = request::judge(&request, &facts).ok_or_else(|| broken("a payload exceeds the limit"))?;
            self.handle(request, judged, &facts).await?;
        }
        Ok(())
    }

    /// Returns `None` if the client is gone, or if the server stops and the client has nothing in flight.
    async fn next_request(&mut self) -> io::Result<Option<Request>> {
        loop {
            if self.stopping {
                match timeout(LINGER, self.reader.fill_buf()).await {
                    Ok(filled) => {
                        if filled?.is_empty() {
                            return Ok(None);
                        }
                        break;
                    }
                    Err(_) if self.places.available_permits() == self.context.limits.requests_per_connection => return Ok(None),
                    Err(_) => {}
                }
            } else {
                tokio::select! {
                    biased;
                    () = stopped(&mut self.stop) => self.stopping = true,
                    filled = self.reader.fill_buf() => {
                        if filled?.is_empty() {
                            return Ok(None);
                        }
                        break;
                    }
                }
            }
        }
        let mut header = [0; 32];
        let header = &mut header[..request::header_bytes(self.session.style)];
        within(self.context.limits.transfer(0), self.reader.read_exact(header)).await?;
        request::parse_header(self.session.style, header).map(Some).ok_or_else(|| broken("the magic number of a request is wrong"))
    }

    async fn handle(&mut self, request: Request, judged: Judged, facts: &Facts) -> io::Result<()> {
        let place = self.place().await;
        let verdict = if self.stopping { Err(Errno::Shutdown) } else { judged.verdict };
        let mut operation = match verdict {
            Ok(operation) => operation,
            Err(errno) => {
                self.skip_payload(judged.payload_bytes).await?;
                self.refuse(&request, errno, place);
                return Ok(());
            }
        };
        let memory = match operation {
            Operation::Read { length } => length,
            Operation::Write { .. } => judged.payload_bytes,
            Operation::Status { .. } | Operation::StatusByPayload { .. } => STATUS_BYTES,
            Operation::Flush | Operation::Trim { .. } | Operation::WriteZeroes { .. } | Operation::Cache { .. } => 0,
        };
        let hold = self.shares.take(memory).await;
        let payload = self.read_payload(judged.payload_bytes as usize).await?;
        if let Operation::StatusByPayload { one } = operation {
            match request::parse_status_payload(&payload, &request, facts) {
                Ok(length) => operation = Operation::Status { length, one },
                Err(errno) => {
                    self.refuse(&request, errno, place);
                    return Ok(());
                }
            }
        }
        self.start(request, operation, payload, place, hold).await;
        Ok(())
    }

    async fn place(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.places).acquire_owned().await.expect("nobody closes the semaphore")
    }

    fn refuse(&self, request: &Request, errno: Errno, place: OwnedSemaphorePermit) {
        self.context.metrics.failed();
        let reply = Reply::error(self.session.style, request, errno);
        // The writer exists as long as this task runs.
        let _ = self.replies.send(Outgoing { reply, _place: place, _hold: None });
    }

    async fn start(&self, request: Request, operation: Operation, payload: Vec<u8>, place: OwnedSemaphorePermit, hold: Hold) {
        let worker = Arc::clone(&self.context.workers).acquire_owned().await.expect("nobody closes the semaphore");
        let export = Arc::clone(&self.session.export);
        let (style, replies, metrics) = (self.session.style, self.replies.clone(), Arc::clone(&self.context.metrics));
        self.context.pool.run(move || {
            let reply = match execute(&*export, style, &request, operation, &payload) {
                Ok(reply) => {
                    match operation {
                        Operation::Read { length } => metrics.read(length as usize),
                        Operation::Write { .. } => metrics.written(payload.len()),
                        _ => {}
                    }
                    reply
                }
                Err(errno) => {
                    metrics.failed();
                    Reply::error(style, &request, errno)
                }
            };
            drop((payload, worker));
            let keeps_memory = reply.body.len() + reply.head.len() > 1024;
            // No receiver: the connection is gone.
            let _ = replies.send(Outgoing { reply, _place: place, _hold: keeps_memory.then_some(hold) });
        });
    }

    async fn read_payload(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut payload = Vec::with_capacity(length);
        let stall = self.context.limits.transfer_timeout;
        let mut limited = (&mut self.reader).take(length as u64);
        within(self.context.limits.transfer(length), async {
            while payload.len() < length {
                if within(stall, limited.read_buf(&mut payload)).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Ok(())
        })
        .await?;
        Ok(payload)
    }

    async fn skip_payload(&mut self, length: u32) -> io::Result<()> {
        let mut limited = (&mut self.reader).take(u64::from(length));
        let skipped =
            within(self.context.limits.transfer(length as usize), tokio::io::copy_buf(&mut limited, &mut tokio::io::sink())).await?;
        if skipped == u64::from(length) { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// Writes replies as they come until all senders are gone, then closes the connection (TLS close, end of the TCP
/// stream).
async fn write_replies(
    mut writer: impl AsyncWrite + Unpin,
    mut outgoing: UnboundedReceiver<Outgoing>,
    context: &Context,
) -> io::Result<()> {
    let mut batch = Vec::new();
    while outgoing.recv_many(&mut batch, REPLIES_AT_ONCE).await > 0 {
        let bytes = batch.iter().map(|outgoing| outgoing.reply.head.len() + outgoing.reply.body.len()).sum();
        within(context.limits.transfer(bytes), write_batch(&mut writer, &batch, context.limits.transfer_timeout)).await?;
        batch.clear();
    }
    within(context.limits.transfer(0), writer.shutdown()).await
}

async fn write_batch(writer: &mut (impl AsyncWrite + Unpin), batch: &[Outgoing], stall: Duration) -> io::Result<()> {
    let parts = batch.iter().flat_map(|outgoing| [&outgoing.reply.head, &outgoing.reply.body]);
    let mut slices: Vec<IoSlice<'_>> = parts.filter(|part| !part.is_empty()).map(|part| IoSlice::new(part)).collect();
    let mut left = &mut slices[..];
    while !left.is_empty() {
        let written = within(stall, writer.write_vectored(left)).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut left, written);
    }
    writer.flush().await
}

async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn counted(kind: u16) -> Command {
    match kind {
        command::READ => Command::Read,
        command::WRITE => Command::Write,
        command::FLUSH => Command::Flush,
        command::TRIM => Command::Trim,
        command::CACHE => Command::Cache,
        command::WRITE_ZEROES => Command::WriteZeroes,
        command::BLOCK_STATUS => Command::BlockStatus,
        _ => Command::Unknown,
    }
}
