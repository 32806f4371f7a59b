//! A client that speaks bytes, so that it can also speak them wrongly. Every read has a timeout.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

pub const FIXED_NEWSTYLE: u32 = 1;
pub const NO_ZEROES: u32 = 2;

pub const OPT_EXPORT_NAME: u32 = 1;
pub const OPT_ABORT: u32 = 2;
pub const OPT_LIST: u32 = 3;
pub const OPT_STARTTLS: u32 = 5;
pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED_REPLY: u32 = 8;
pub const OPT_SET_META_CONTEXT: u32 = 10;
pub const OPT_EXTENDED_HEADERS: u32 = 11;

pub const ACK: u32 = 1;
pub const ERR: u32 = 1 << 31;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;
pub const PAYLOAD_LEN: u16 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Simple,
    Structured,
    Extended,
}

pub struct Client {
    pub stream: TcpStream,
    pub form: Form,
    pub size: u64,
    pub flags: u16,
    cookie: u64,
}

/// One chunk of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub cookie: u64,
    pub kind: u16,
    pub done: bool,
    pub error: u32,
    pub payload: Vec<u8>,
}

impl Client {
    /// After the greeting.
    pub fn greet(port: u16) -> Client {
        let mut client = Client::connect(port);
        client.greeted();
        client.stream.write_all(&(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes()).unwrap();
        client
    }

    pub fn connect(port: u16) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream, form: Form::Simple, size: 0, flags: 0, cookie: 0 }
    }

    pub fn greeted(&mut self) {
        assert_eq!(&self.bytes(18).unwrap(), b"NBDMAGICIHAVEOPT\0\x03");
    }

    /// In the transmission phase of `disk`.
    pub fn go(port: u16, form: Form) -> Client {
        let mut client = Client::greet(port);
        match form {
            Form::Simple => {}
            Form::Structured => assert_eq!(client.option(OPT_STRUCTURED_REPLY, &[]).last().unwrap().0, ACK),
            Form::Extended => assert_eq!(client.option(OPT_EXTENDED_HEADERS, &[]).last().unwrap().0, ACK),
        }
        client.form = form;
        if form != Form::Simple {
            let query = b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation";
            assert_eq!(client.option(OPT_SET_META_CONTEXT, query).len(), 2);
        }
        client.enter();
        client
    }

    pub fn enter(&mut self) {
        let replies = self.option(OPT_GO, b"\0\0\0\x04disk\0\0");
        assert_eq!(replies.last().unwrap().0, ACK, "{replies:?}");
        let export = &replies[0].1;
        self.size = u64::from_be_bytes(export[2..10].try_into().unwrap());
        self.flags = u16::from_be_bytes(export[10..12].try_into().unwrap());
    }

    /// Sends an option and takes its replies, up to the last.
    pub fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send_option(option, data);
        let mut replies = Vec::new();
        loop {
            let header = self.bytes(20).unwrap();
            assert_eq!(header[..8], 0x0003_e889_0455_65a9u64.to_be_bytes());
            assert_eq!(header[8..12], option.to_be_bytes());
            let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
            let (kind, length) = (number(12), number(16));
            replies.push((kind, self.bytes(length as usize).unwrap()));
            if kind == ACK || kind >= ERR {
                return replies;
            }
        }
    }

    pub fn send_option(&mut self, option: u32, data: &[u8]) {
        let header = [b"IHAVEOPT", &option.to_be_bytes()[..], &(data.len() as u32).to_be_bytes()].concat();
        self.stream.write_all(&[&header, data].concat()).unwrap();
    }

    pub fn bytes(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Whether the server has closed the connection, having sent whatever it had to.
    pub fn closed(&mut self) -> bool {
        match self.stream.read_to_end(&mut Vec::new()) {
            Ok(_) => true,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    /// Sends a request; returns its cookie.
    pub fn send(&mut self, kind: u16, flags: u16, offset: u64, length: u64, payload: &[u8]) -> u64 {
        let message = self.request(kind, flags, offset, length, payload);
        self.stream.write_all(&message).unwrap();
        self.cookie
    }

    pub fn request(&mut self, kind: u16, flags: u16, offset: u64, length: u64, payload: &[u8]) -> Vec<u8> {
        self.cookie += 1;
        let magic: u32 = if self.form == Form::Extended { 0x21e4_1c71 } else { 0x2560_9513 };
        let mut message = magic.to_be_bytes().to_vec();
        message.extend(flags.to_be_bytes());
        message.extend(kind.to_be_bytes());
        message.extend(self.cookie.to_be_bytes());
        message.extend(offset.to_be_bytes());
        if self.form == Form::Extended {
            message.extend(length.to_be_bytes());
        } else {
            message.extend((length as u32).to_be_bytes());
        }
        message.extend(payload);
        message
    }

    /// Takes one chunk; `read` is what a simple reply without an error carries.
    pub fn chunk(&mut self, read: usize) -> Chunk {
        let magic = u32::from_be_bytes(self.bytes(4).unwrap().try_into().unwrap());
        if magic == 0x6744_6698 {
            assert_ne!(self.form, Form::Extended);
            let header = self.bytes(12).unwrap();
            let error = u32::from_be_bytes(header[..4].try_into().unwrap());
            let cookie = u64::from_be_bytes(header[4..].try_into().unwrap());
            assert!(read == 0 || self.form == Form::Simple, "a read is answered with chunks");
            let payload = if error == 0 { self.bytes(read).unwrap() } else { Vec::new() };
            return Chunk { cookie, kind: 0, done: true, error, payload };
        }
        let rest = match self.form {
            Form::Simple => panic!("magic {magic:x}"),
            Form::Structured => {
                assert_eq!(magic, 0x668e_33ef);
                16
            }
            Form::Extended => {
                assert_eq!(magic, 0x6e8a_278c);
                28
            }
        };
        let header = self.bytes(rest).unwrap();
        let half = |at: usize| u16::from_be_bytes(header[at..at + 2].try_into().unwrap());
        let whole = |at: usize| u64::from_be_bytes(header[at..at + 8].try_into().unwrap());
        let length =
            if self.form == Form::Extended { whole(20) } else { u64::from(u32::from_be_bytes(header[12..16].try_into().unwrap())) };
        assert!(length <= (32 << 20) + 8);
        let payload = self.bytes(length as usize).unwrap();
        let error = if half(2) & 0x8000 != 0 { u32::from_be_bytes(payload[..4].try_into().unwrap()) } else { 0 };
        Chunk { cookie: whole(4), kind: half(2), done: half(0) & 1 != 0, error, payload }
    }

    /// Sends a request and takes the whole reply: its error.
    pub fn call(&mut self, kind: u16, flags: u16, offset: u64, length: u64, payload: &[u8]) -> u32 {
        let cookie = self.send(kind, flags, offset, length, payload);
        let chunk = self.chunk(0);
        assert_eq!((chunk.cookie, chunk.done), (cookie, true));
        chunk.error
    }

    pub fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        let flags = if self.form == Form::Extended { flags | PAYLOAD_LEN } else { flags };
        self.call(WRITE, flags, offset, data.len() as u64, data)
    }

    pub fn read(&mut self, flags: u16, offset: u64, length: usize) -> Result<Vec<u8>, u32> {
        let cookie = self.send(READ, flags, offset, length as u64, &[]);
        let mut data = vec![0xAA; length];
        loop {
            let chunk = self.chunk(length);
            assert_eq!(chunk.cookie, cookie);
            if chunk.error != 0 {
                return Err(chunk.error);
            }
            let start = || (u64::from_be_bytes(chunk.payload[..8].try_into().unwrap()) - offset) as usize;
            match chunk.kind {
                0 if self.form == Form::Simple => data = chunk.payload.clone(),
                0 => {}
                1 => data[start()..][..chunk.payload.len() - 8].copy_from_slice(&chunk.payload[8..]),
                2 => data[start()..][..u32::from_be_bytes(chunk.payload[8..].try_into().unwrap()) as usize].fill(0),
                kind => panic!("chunk {kind}"),
            }
            if chunk.done {
                return Ok(data);
            }
        }
    }

    /// Block status: (length, flags) of the extents.
    pub fn status(&mut self, flags: u16, offset: u64, length: u64) -> Result<Vec<(u64, u64)>, u32> {
        self.send(BLOCK_STATUS, flags, offset, length, &[]);
        self.status_reply()
    }

    pub fn status_reply(&mut self) -> Result<Vec<(u64, u64)>, u32> {
        let chunk = self.chunk(0);
        if chunk.error != 0 {
            return Err(chunk.error);
        }
        assert!(chunk.done);
        assert_eq!(chunk.payload[..4], 1u32.to_be_bytes(), "the id of base:allocation");
        Ok(if self.form == Form::Extended {
            assert_eq!(chunk.kind, 6);
            let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
            let extents: Vec<_> = chunk.payload[8..].chunks(16).map(|extent| (number(&extent[..8]), number(&extent[8..]))).collect();
            assert_eq!(chunk.payload[4..8], (extents.len() as u32).to_be_bytes());
            extents
        } else {
            assert_eq!(chunk.kind, 5);
            let number = |bytes: &[u8]| u64::from(u32::from_be_bytes(bytes.try_into().unwrap()));
            chunk.payload[4..].chunks(8).map(|extent| (number(&extent[..4]), number(&extent[4..]))).collect()
        })
    }
}
