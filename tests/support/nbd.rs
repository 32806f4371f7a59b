//! An NBD client of the fewest means: fixed newstyle negotiation, simple replies, one request at a time. It exists so
//! that a test knows exactly which requests were acknowledged when the daemon died.

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The error number of a full disk in NBD replies.
pub const ENOSPC: u32 = 28;

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;
const FUA: u16 = 1;

/// A connection over whichever socket.
trait Stream: Read + Write + Debug + Send {}

impl<S: Read + Write + Debug + Send> Stream for S {}

/// How long a connection, a request or a reply may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection in its transmission phase.
#[derive(Debug)]
pub struct Client {
    stream: Box<dyn Stream>,
    cookie: u64,
    /// Size of the volume in bytes.
    pub size: u64,
}

/// Why a request was not acknowledged.
#[derive(Debug)]
pub enum RequestError {
    /// The server refused it with this error number.
    Refused(u32),
    /// The connection is gone; whether the request was carried out is not known.
    Lost(io::Error),
}

impl From<io::Error> for RequestError {
    fn from(error: io::Error) -> RequestError {
        RequestError::Lost(error)
    }
}

impl Client {
    /// Connects to the volume `name`.
    pub fn connect(socket: &Path, name: &str) -> io::Result<Client> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Client::begin(stream, name)
    }

    /// Connects to the volume `name` over TCP.
    pub fn connect_to(address: SocketAddr, name: &str) -> io::Result<Client> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Client::begin(stream, name)
    }

    fn begin(mut stream: impl Stream + 'static, name: &str) -> io::Result<Client> {
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        let mut hello = Vec::new();
        hello.extend_from_slice(&3u32.to_be_bytes()); // fixed newstyle, no zeroes
        hello.extend_from_slice(b"IHAVEOPT");
        hello.extend_from_slice(&1u32.to_be_bytes()); // export name
        hello.extend_from_slice(&u32::try_from(name.len()).unwrap().to_be_bytes());
        hello.extend_from_slice(name.as_bytes());
        stream.write_all(&hello)?;
        let mut export = [0; 10];
        stream.read_exact(&mut export)?;
        let size = u64::from_be_bytes(export[..8].try_into().unwrap());
        Ok(Client { stream: Box::new(stream), cookie: 0, size })
    }

    /// Reads `length` bytes.
    pub fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, RequestError> {
        self.request(READ, 0, offset, length, &[])?;
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes; acknowledged does not mean durable.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RequestError> {
        self.request(WRITE, 0, offset, bytes.len(), bytes)
    }

    /// Writes durably (FUA).
    pub fn write_durable(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RequestError> {
        self.request(WRITE, FUA, offset, bytes.len(), bytes)
    }

    /// Makes everything durable that was acknowledged before, on whichever connection.
    pub fn flush(&mut self) -> Result<(), RequestError> {
        self.request(FLUSH, 0, 0, 0, &[])
    }

    /// Discards.
    pub fn trim(&mut self, offset: u64, length: usize) -> Result<(), RequestError> {
        self.request(TRIM, 0, offset, length, &[])
    }

    /// Writes zeros.
    pub fn write_zeroes(&mut self, offset: u64, length: usize) -> Result<(), RequestError> {
        self.request(WRITE_ZEROES, 0, offset, length, &[])
    }

    fn request(&mut self, command: u16, flags: u16, offset: u64, length: usize, payload: &[u8]) -> Result<(), RequestError> {
        self.cookie += 1;
        let mut header = Vec::with_capacity(28 + payload.len());
        header.extend_from_slice(&0x2560_9513u32.to_be_bytes());
        header.extend_from_slice(&flags.to_be_bytes());
        header.extend_from_slice(&command.to_be_bytes());
        header.extend_from_slice(&self.cookie.to_be_bytes());
        header.extend_from_slice(&offset.to_be_bytes());
        header.extend_from_slice(&u32::try_from(length).unwrap().to_be_bytes());
        header.extend_from_slice(payload);
        self.stream.write_all(&header)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes(), "a simple reply");
        assert_eq!(reply[8..], self.cookie.to_be_bytes(), "the reply to this request");
        match u32::from_be_bytes(reply[4..8].try_into().unwrap()) {
            0 => Ok(()),
            error => Err(RequestError::Refused(error)),
        }
    }
}
