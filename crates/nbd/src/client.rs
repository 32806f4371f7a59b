//! A client for measurements: writes and flushes of one export over a Unix socket, any number of them in flight, and
//! reads one by one. It negotiates no options, so it expects simple replies. Tests have a client of their own, which
//! shares nothing with the server.

use crate::wire::{
    INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, command, handshake_flag, info, option, option_reply,
};
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A server that is silent for this long is given up.
const PATIENCE: Duration = Duration::from_secs(600);
/// The longest reply to an option. Replies to our options are short.
const MAX_REPLY_BYTES: u32 = 64 << 10;

/// A connection in its transmission phase.
#[derive(Debug)]
pub struct Client {
    /// Used for reads. Writes bypass its buffer.
    stream: BufReader<UnixStream>,
    size: u64,
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

impl Client {
    /// Connects to an export. Errors: the connection failed, or `InvalidData` if the other side is no such server or
    /// refuses.
    pub fn connect(socket: &Path, export: &str) -> io::Result<Client> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut client = Client { stream: BufReader::new(stream), size: 0 };
        let greeting = client.take::<18>()?;
        if greeting[..16] != [INIT_MAGIC.to_be_bytes(), OPTION_MAGIC.to_be_bytes()].concat() {
            return Err(invalid("the other side is not a newstyle NBD server"));
        }
        let flags = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        let name = export.as_bytes();
        let mut message = flags.to_be_bytes().to_vec();
        message.extend(OPTION_MAGIC.to_be_bytes());
        message.extend(option::GO.to_be_bytes());
        message.extend((name.len() as u32 + 6).to_be_bytes());
        message.extend((name.len() as u32).to_be_bytes());
        message.extend(name);
        message.extend([0; 2]);
        client.send(&message, &[])?;
        while !client.option_reply(export)? {}
        Ok(client)
    }

    /// Reads a reply to GO. Returns whether it was the last one.
    fn option_reply(&mut self, export: &str) -> io::Result<bool> {
        let header = self.take::<20>()?;
        let (kind, length) = (u32_at(&header, 12), u32_at(&header, 16));
        if header[..8] != OPTION_REPLY_MAGIC.to_be_bytes() || length > MAX_REPLY_BYTES {
            return Err(invalid("the answer to an option is not an option reply"));
        }
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data)?;
        match kind {
            option_reply::ACK => return Ok(true),
            option_reply::INFO if data.len() >= 12 && data[..2] == info::EXPORT.to_be_bytes() => {
                self.size = u64::from_be_bytes(data[2..10].try_into().expect("eight bytes"));
            }
            option_reply::INFO => {}
            _ => return Err(invalid(format!("the server refused export {export:?}: {}", String::from_utf8_lossy(&data)))),
        }
        Ok(false)
    }

    /// Size of the export, bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Sends a write of at most [`crate::MAX_PAYLOAD_BYTES`]. The reply has the same cookie.
    pub fn send_write(&mut self, cookie: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        self.request(command::WRITE, cookie, offset, data.len() as u32, data)
    }

    /// Sends a flush.
    pub fn send_flush(&mut self, cookie: u64) -> io::Result<()> {
        self.request(command::FLUSH, cookie, 0, 0, &[])
    }

    /// Waits for the next reply to a write or flush. Returns its cookie and the protocol's error number, 0 for success.
    pub fn receive(&mut self) -> io::Result<(u64, u32)> {
        let reply = self.take::<16>()?;
        if u32_at(&reply, 0) != SIMPLE_REPLY_MAGIC {
            return Err(invalid("a reply is invalid"));
        }
        Ok((u64::from_be_bytes(reply[8..].try_into().expect("eight bytes")), u32_at(&reply, 4)))
    }

    /// Fills `into`, at most [`crate::MAX_PAYLOAD_BYTES`]. Returns the error number of the protocol, 0 for success.
    /// Call only when nothing is in flight.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<u32> {
        self.request(command::READ, offset, offset, into.len() as u32, &[])?;
        let (_, error) = self.receive()?;
        if error == 0 {
            self.stream.read_exact(into)?;
        }
        Ok(error)
    }

    fn request(&mut self, kind: u16, cookie: u64, offset: u64, length: u32, data: &[u8]) -> io::Result<()> {
        let mut header = [0; 28];
        header[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        header[6..8].copy_from_slice(&kind.to_be_bytes());
        header[8..16].copy_from_slice(&cookie.to_be_bytes());
        header[16..24].copy_from_slice(&offset.to_be_bytes());
        header[24..].copy_from_slice(&length.to_be_bytes());
        self.send(&header, data)
    }

    /// Sends header and data with one system call, as far as the socket takes them.
    fn send(&mut self, header: &[u8], data: &[u8]) -> io::Result<()> {
        let (mut header, mut data) = (header, data);
        while !header.is_empty() || !data.is_empty() {
            let sent = match self.stream.get_mut().write_vectored(&[IoSlice::new(header), IoSlice::new(data)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                sent => sent?,
            };
            let of_header = sent.min(header.len());
            (header, data) = (&header[of_header..], &data[sent - of_header..]);
        }
        Ok(())
    }

    fn take<const COUNT: usize>(&mut self) -> io::Result<[u8; COUNT]> {
        let mut bytes = [0; COUNT];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The server would treat a closed connection the same way.
        let _ = self.request(command::DISC, 0, 0, 0, &[]);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
