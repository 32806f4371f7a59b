//! Greetings and frames: the bytes on the socket between a command and the daemon.

use std::io::{self, ErrorKind, Read, Write};

/// What both sides say first, before the number of the protocol's version.
const MAGIC: &[u8; 8] = b"1FLDCTL1";
/// The protocol version of this program.
pub const VERSION: u32 = 2;
/// Length of a greeting.
pub const GREETING_BYTES: usize = 12;
/// Length of kind and length before a payload.
const HEAD_BYTES: usize = 5;
/// The longest payload that a reader accepts.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// The longest piece of output or of a remark in one frame.
pub const MAX_TEXT_BYTES: usize = 64 << 10;

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// To the daemon: the command, JSON.
    Request = 1,
    /// To the daemon: stop early.
    Cancel = 2,
    /// To the daemon: the user's answer to a question, one byte; 1 is yes.
    Answer = 3,
    /// Bytes for standard output.
    Output = 16,
    /// A remark for standard error, UTF-8.
    Note = 17,
    /// Progress of the work, JSON.
    Progress = 18,
    /// The long work is over.
    EndOfProgress = 19,
    /// The result of the command, JSON; the last frame.
    Result = 20,
    /// A question for the user, UTF-8. An Answer follows.
    Question = 21,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        use Kind::*;
        [Request, Cancel, Answer, Output, Note, Progress, EndOfProgress, Result, Question].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its kind.
    pub kind: Kind,
    /// Its content.
    pub payload: Vec<u8>,
}

/// Encodes a frame. Call only with payloads of at most [`MAX_PAYLOAD_BYTES`].
pub fn encode(kind: Kind, payload: &[u8]) -> Vec<u8> {
    debug_assert!(payload.len() <= MAX_PAYLOAD_BYTES, "a payload is cut before it is put into a frame");
    let mut bytes = Vec::with_capacity(HEAD_BYTES + payload.len());
    bytes.push(kind as u8);
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Returns the greeting of this version.
pub fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Returns the version in a greeting. `None`: it is not a greeting.
pub fn version(greeting: &[u8; GREETING_BYTES]) -> Option<u32> {
    let number = greeting.strip_prefix(MAGIC)?;
    Some(u32::from_le_bytes(number.try_into().ok()?))
}

/// Writes a frame.
pub fn send(mut stream: impl Write, kind: Kind, payload: &[u8]) -> io::Result<()> {
    stream.write_all(&encode(kind, payload))
}

/// Reads frames. If the wait for the rest of a frame ends, it keeps the part that has come.
#[derive(Debug, Default)]
pub struct Reader {
    buffer: Vec<u8>,
}

/// The result of a [`Reader`].
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// A complete frame.
    Frame(Frame),
    /// No complete frame yet: the stream's timeout is over.
    Nothing,
    /// The other side has closed the connection.
    End,
}

impl Reader {
    /// Reads the next frame. Bytes that are no frame are [`ErrorKind::InvalidData`].
    pub fn next(&mut self, mut stream: impl Read) -> io::Result<Found> {
        loop {
            // Never more than the rest of this frame, so nothing is kept beside it.
            let wanted = match self.buffer.get(..HEAD_BYTES) {
                None => HEAD_BYTES,
                Some(head) => {
                    let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
                    let kind = Kind::of(head[0]).filter(|_| length <= MAX_PAYLOAD_BYTES);
                    let kind = kind.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "not a frame of this protocol"))?;
                    if self.buffer.len() == HEAD_BYTES + length {
                        let payload = self.buffer.split_off(HEAD_BYTES);
                        self.buffer.clear();
                        return Ok(Found::Frame(Frame { kind, payload }));
                    }
                    HEAD_BYTES + length
                }
            };
            let mut step = [0; 16 << 10];
            let room = (wanted - self.buffer.len()).min(step.len());
            match stream.read(&mut step[..room]) {
                Ok(0) if self.buffer.is_empty() => return Ok(Found::End),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.buffer.extend_from_slice(&step[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(Found::Nothing),
                Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(Found::Nothing),
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A reader that returns its bytes one by one, with a timeout between them.
    struct Slow<'a>(&'a [u8], bool);

    impl Read for Slow<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.0.read(&mut out[..1])
        }
    }

    #[test]
    fn frames_that_come_byte_by_byte_are_read_whole() {
        let bytes = [encode(Kind::Output, b"some bytes"), encode(Kind::Cancel, b"")].concat();
        let (mut reader, mut slow, mut frames) = (Reader::default(), Slow(&bytes, false), Vec::new());
        loop {
            match reader.next(&mut slow).unwrap() {
                Found::Frame(frame) => frames.push(frame),
                Found::Nothing => {}
                Found::End => break,
            }
        }
        let expected = [(Kind::Output, b"some bytes".to_vec()), (Kind::Cancel, vec![])];
        assert_eq!(frames, expected.map(|(kind, payload)| Frame { kind, payload }));
    }

    #[test]
    fn a_length_is_refused_before_memory_is_taken_for_it() {
        let mut reader = Reader::default();
        let error = reader.next(&[Kind::Output as u8, 255, 255, 255, 255][..]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(reader.buffer.capacity() < 1024);
    }

    #[test]
    fn a_connection_that_ends_within_a_frame_is_an_error() {
        let bytes = encode(Kind::Note, b"text");
        assert_eq!(Reader::default().next(&bytes[..7]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn greetings_tell_their_version() {
        assert_eq!(version(&greeting()), Some(VERSION));
        assert_eq!(version(b"GET / HTTP/1"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_frames_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (mut reader, mut rest) = (Reader::default(), &bytes[..]);
            while let Ok(Found::Frame(frame)) = reader.next(&mut rest) {
                prop_assert!(bytes.windows(frame.payload.len() + HEAD_BYTES).any(|part| part == encode(frame.kind, &frame.payload)));
            }
        }
    }
}
