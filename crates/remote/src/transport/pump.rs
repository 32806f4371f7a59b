//! Moves frames between a session and one link.
//!
//! The reader takes in one frame after another. The writer takes batches, so that TLS gets much at a time, and never
//! copies a long payload. Acknowledgements follow the clock or the bytes that arrived, never what was done with them.

use super::core::{Arrival, Core, Taken};
use super::error::{ChannelError, codes};
use super::frame::{Frame, HEADER_BYTES, Header, Limits, Violation, decode_header, encode_header, kinds};
use std::io::{self, ErrorKind, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until, timeout};

/// The clock of acknowledgements.
const STEP: Duration = Duration::from_millis(20);
/// The buffer of a reader. Longer payloads are read in place.
const READ_BYTES: usize = 64 << 10;
/// The buffer below TLS, which reads 4 KiB at a time by itself.
pub(super) const RAW_READ_BYTES: usize = 256 << 10;
/// What TLS may hold in encrypted form.
pub(super) const TLS_WRITE_BYTES: usize = 512 << 10;
/// Shorter payloads are copied beside their heads.
const COPIED_BYTES: usize = 4 << 10;
/// The most pieces of one write.
const SLICES: usize = 64;
/// The payloads beyond which the window is checked before memory is allocated.
const CHECKED_BYTES: u32 = 4 << 10;
/// How long an end of a session may take to reach the peer.
const FAREWELL: Duration = Duration::from_secs(2);

/// How long to read after writing failed.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// A stream of a connection: TCP with TLS, or a Unix socket.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection.
pub(super) struct Link {
    pub(super) reader: Reader,
    pub(super) writer: WriteHalf<Box<dyn Stream>>,
}

impl Link {
    pub(super) fn new(stream: Box<dyn Stream>) -> Link {
        let (read, writer) = tokio::io::split(stream);
        Link { reader: Reader { stream: read, buffer: vec![0; READ_BYTES], at: 0..0 }, writer }
    }

    /// Writes one frame before there is a session.
    pub(super) async fn greet(&mut self, kind: u8, payload: &[u8]) -> io::Result<()> {
        let mut frame = encode_header(Header { length: payload.len() as u32, kind, channel: 0 }).to_vec();
        frame.extend_from_slice(payload);
        self.writer.write_all(&frame).await?;
        self.writer.flush().await
    }

    /// Reads one frame before there is a session. `None`: it is too long or names a channel.
    pub(super) async fn greeting(&mut self, limit: usize) -> io::Result<Option<(u8, Vec<u8>)>> {
        let [a, b, c, d, kind, channel @ ..] = self.reader.head(Duration::MAX).await?;
        let length = u32::from_le_bytes([a, b, c, d]);
        if length as usize > limit || channel != [0; 4] {
            return Ok(None);
        }
        Ok(Some((kind, self.reader.payload(length as usize, Duration::MAX).await?)))
    }

    /// Gives the peer time to read what was written before the connection is closed.
    pub(super) async fn farewell(mut self) {
        let _ = timeout(FAREWELL, async {
            let _ = self.writer.shutdown().await;
            while self.reader.fill(Duration::MAX).await.is_ok() {
                self.reader.at = 0..0;
            }
        })
        .await;
    }
}

/// The reading half of a connection, with a buffer.
pub(super) struct Reader {
    stream: ReadHalf<Box<dyn Stream>>,
    buffer: Vec<u8>,
    at: Range<usize>,
}

impl Reader {
    /// Reads more into the buffer.
    async fn fill(&mut self, silence: Duration) -> io::Result<()> {
        if self.at.start > 0 {
            self.buffer.copy_within(self.at.clone(), 0);
            self.at = 0..self.at.len();
        }
        let count = within(silence, self.stream.read(&mut self.buffer[self.at.end..])).await?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.at.end += count;
        Ok(())
    }

    async fn head(&mut self, silence: Duration) -> io::Result<[u8; HEADER_BYTES]> {
        loop {
            if let Some((head, _)) = self.buffer[self.at.clone()].split_first_chunk::<HEADER_BYTES>() {
                let head = *head;
                self.at.start += HEADER_BYTES;
                return Ok(head);
            }
            self.fill(silence).await?;
        }
    }

    /// Reads a payload whose length was checked.
    async fn payload(&mut self, length: usize, silence: Duration) -> io::Result<Vec<u8>> {
        let mut payload = Vec::with_capacity(length);
        let buffered = self.at.len().min(length);
        payload.extend_from_slice(&self.buffer[self.at.start..][..buffered]);
        self.at.start += buffered;
        if length - payload.len() <= READ_BYTES / 2 {
            while payload.len() < length {
                self.fill(silence).await?;
                let more = self.at.len().min(length - payload.len());
                payload.extend_from_slice(&self.buffer[self.at.start..][..more]);
                self.at.start += more;
            }
            return Ok(payload);
        }
        while payload.len() < length {
            let mut rest = (&mut self.stream).take((length - payload.len()) as u64);
            if within(silence, rest.read_buf(&mut payload)).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(payload)
    }
}

async fn within<T>(limit: Duration, io: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    if limit == Duration::MAX {
        return io.await;
    }
    timeout(limit, io).await.unwrap_or_else(|_| Err(io::Error::new(ErrorKind::TimedOut, "the other end is silent")))
}

/// Starts a channel that the peer opened.
pub(super) type Opener = dyn Fn(u8, Vec<u8>, super::channel::Channel) + Send + Sync;

/// Moves frames until the link breaks, the session ends, or a newer link takes over. Returns why the link broke.
pub(super) async fn run(core: &Arc<Core>, mut link: Link, generation: u64, opener: &Opener) -> String {
    let done = {
        let read = read(core, &mut link.reader, generation, opener);
        let write = write(core, &mut link.writer, generation);
        tokio::pin!(read, write);
        let (done, is_read) = tokio::select! {
            done = &mut read => (done, true),
            done = &mut write => (done, false),
            () = core.until_superseded(generation) => (Done::Stale, true),
        };
        match done {
            Done::Violated(Violation { code, text }) => {
                let error = ChannelError::Violated { code, text: text.clone() };
                core.end(error, Some((code, &text)));
                // The writer may be within a frame, so it must write the end itself.
                let _ = timeout(FAREWELL, write).await;
                Done::Ended
            }
            Done::Ended if is_read => {
                // This end may have ended the session, and the peer should know.
                let _ = timeout(FAREWELL, write).await;
                Done::Ended
            }
            Done::Broken(error) if !is_read => {
                // What the peer said last may still wait to be read, such as why it ended the session.
                match timeout(LAST_WORDS, read).await {
                    Ok(Done::Ended) => Done::Ended,
                    _ => Done::Broken(error),
                }
            }
            done => done,
        }
    };
    match done {
        Done::Ended => {
            link.farewell().await;
            String::new()
        }
        Done::Violated(_) | Done::Stale => String::new(),
        Done::Broken(error) => error.to_string(),
    }
}

/// Why one half of a link stopped.
enum Done {
    Ended,
    Stale,
    Broken(io::Error),
    Violated(Violation),
}

async fn read(core: &Arc<Core>, reader: &mut Reader, generation: u64, opener: &Opener) -> Done {
    let settings = core.settings();
    let limits = Limits { payload_bytes: settings.payload_bytes };
    let silence = settings.silence();
    loop {
        let head = match reader.head(silence).await {
            Ok(head) => head,
            Err(error) => return Done::Broken(error),
        };
        let checked = decode_header(&head, limits).and_then(|header| {
            if header.length > CHECKED_BYTES {
                core.check(header)?;
            }
            Ok(header)
        });
        let header = match checked {
            Ok(header) => header,
            Err(violation) => return Done::Violated(violation),
        };
        let payload = match reader.payload(header.length as usize, silence).await {
            Ok(payload) => payload,
            Err(error) => return Done::Broken(error),
        };
        core.count_received(HEADER_BYTES + payload.len());
        match core.arrived(generation, header, payload) {
            Ok(Arrival::Nothing) => {}
            Ok(Arrival::Opened { service, opening, channel }) => opener(service, opening, channel),
            Ok(Arrival::Ended) => return Done::Ended,
            Ok(Arrival::Stale) => return Done::Stale,
            Err(violation) => return Done::Violated(violation),
        }
    }
}

async fn write(core: &Arc<Core>, writer: &mut WriteHalf<Box<dyn Stream>>, generation: u64) -> Done {
    let keep_alive = core.settings().keep_alive;
    let silence = core.settings().silence();
    let start = Instant::now();
    let mut last = start;
    let mut step_at: Option<Instant> = None;
    let mut batch = Batch::default();
    loop {
        let step = step_at.is_some_and(|at| Instant::now() >= at);
        let (frames, ack, is_owing) = match core.take(generation, step) {
            Taken::Frames { frames, ack, is_owing } => (frames, ack, is_owing),
            Taken::Stale => return Done::Stale,
            Taken::End(notice) => {
                if let Some(notice) = notice {
                    batch.add(Frame::new(kinds::END, 0, notice));
                    let _ = batch.write(core, writer, silence).await;
                }
                return Done::Ended;
            }
        };
        if step || ack.is_some() {
            step_at = None;
        }
        if is_owing && step_at.is_none() {
            let steps = start.elapsed().as_millis() as u64 / STEP.as_millis() as u64 + 1;
            step_at = Some(start + Duration::from_millis(steps * STEP.as_millis() as u64));
        }
        if let Some(count) = ack {
            batch.add(Frame::new(kinds::ACK, 0, count.to_le_bytes().to_vec()));
        }
        frames.into_iter().for_each(|frame| batch.add(frame));
        if batch.is_empty() {
            let ping_at = last + keep_alive;
            if Instant::now() < ping_at {
                tokio::select! {
                    () = core.outbound.notified() => {}
                    () = sleep_until(step_at.unwrap_or(ping_at).min(ping_at)) => {}
                }
                continue;
            }
            batch.add(Frame::new(kinds::PING, 0, Vec::new()));
        }
        if let Err(error) = batch.write(core, writer, silence).await {
            return Done::Broken(error);
        }
        last = Instant::now();
    }
}

/// Frames that are written together.
#[derive(Default)]
struct Batch {
    /// Heads and short payloads.
    copied: Vec<u8>,
    pieces: Vec<Piece>,
}

enum Piece {
    Copied(Range<usize>),
    Payload(Arc<Vec<u8>>),
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    fn add(&mut self, frame: Frame) {
        let start = self.copied.len();
        self.copied.extend_from_slice(&frame.header());
        let is_short = frame.payload.len() <= COPIED_BYTES;
        if is_short {
            self.copied.extend_from_slice(&frame.payload);
        }
        match self.pieces.last_mut() {
            Some(Piece::Copied(range)) => range.end = self.copied.len(),
            _ => self.pieces.push(Piece::Copied(start..self.copied.len())),
        }
        if !is_short {
            self.pieces.push(Piece::Payload(frame.payload));
        }
    }

    /// Writes everything. Errors: the peer takes nothing for too long, or the link is broken.
    async fn write(&mut self, core: &Core, writer: &mut WriteHalf<Box<dyn Stream>>, silence: Duration) -> io::Result<()> {
        let mut total = 0;
        for pieces in self.pieces.chunks(SLICES) {
            let mut slices: Vec<IoSlice<'_>> = pieces
                .iter()
                .map(|piece| match piece {
                    Piece::Copied(range) => IoSlice::new(&self.copied[range.clone()]),
                    Piece::Payload(payload) => IoSlice::new(payload),
                })
                .collect();
            let mut slices = &mut slices[..];
            while !slices.is_empty() {
                let count = within(silence, writer.write_vectored(slices)).await?;
                if count == 0 {
                    return Err(ErrorKind::WriteZero.into());
                }
                total += count;
                IoSlice::advance_slices(&mut slices, count);
            }
        }
        within(silence, writer.flush()).await?;
        core.count_sent(total);
        self.copied.clear();
        self.pieces.clear();
        Ok(())
    }
}

/// The code of an end without a reason.
pub(super) const GOODBYE: (u16, &str) = (codes::DONE, "");
