//! Reading and writing PDUs.

use crate::negotiation::Parameters;
use crate::pdu::{HEADER_BYTES, Header, Incoming, Outgoing, Segment, digest, opcode, padding};
use std::io::{self, IoSlice};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The error for a PDU with wrong digests: nothing in it can be trusted (RFC 7143 section 7.7, error recovery level 0).
fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// The longest data segment of a login request, in bytes (RFC 7143 section 13.12).
pub(crate) const LOGIN_SEGMENT_BYTES: u32 = 8192;

/// Reads a PDU whose data segment has at most `limit` bytes. Lengths are checked before memory is allocated. Data of a
/// Data-Out goes into `room`, which is taken for it: that data is copied and not kept. The data of other PDUs may be
/// kept, and must not keep more memory than its length.
pub(crate) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    parameters: &Parameters,
    limit: u32,
    room: &mut Vec<u8>,
) -> io::Result<Incoming> {
    let mut bytes = [0; HEADER_BYTES];
    stream.read_exact(&mut bytes).await?;
    let header = Header(bytes);
    let mut additional = vec![0; header.additional_bytes()];
    stream.read_exact(&mut additional).await?;
    if parameters.header_digest {
        let mut sent = [0; 4];
        stream.read_exact(&mut sent).await?;
        if sent != digest(&[&bytes, &additional]) {
            return Err(wrong("the digest of a header is wrong"));
        }
    }
    let length = header.data_bytes();
    if length > limit as usize {
        return Err(wrong("a data segment is longer than negotiated"));
    }
    let mut data = if header.opcode() == opcode::DATA_OUT { std::mem::take(room) } else { Vec::new() };
    data.clear();
    let whole = length + padding(length);
    data.reserve_exact(whole);
    let mut segment = (&mut *stream).take(whole as u64);
    while data.len() < whole {
        if segment.read_buf(&mut data).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    if parameters.data_digest && length > 0 {
        let mut sent = [0; 4];
        stream.read_exact(&mut sent).await?;
        if sent != digest(&[&data]) {
            return Err(wrong("the digest of a data segment is wrong"));
        }
    }
    data.truncate(length);
    Incoming::new(header, &additional, data).map_err(wrong)
}

/// Bytes of a header and its digest, and of a data segment's padding and digest.
const HEAD_BYTES: usize = HEADER_BYTES + 4;
const TAIL_BYTES: usize = 3 + 4;

/// A PDU in the form in which it is sent.
#[derive(Debug)]
pub(crate) struct Spelled {
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    data: Segment,
    tail: [u8; TAIL_BYTES],
    tail_bytes: usize,
}

impl Spelled {
    /// Returns the parts to send, in order.
    pub(crate) fn parts(&self) -> [&[u8]; 3] {
        [&self.head[..self.head_bytes], &self.data, &self.tail[..self.tail_bytes]]
    }

    /// How many bytes are sent.
    pub(crate) fn bytes(&self) -> usize {
        self.head_bytes + self.data.len() + self.tail_bytes
    }
}

/// Adds digests and padding to a PDU.
pub(crate) fn spell(pdu: Outgoing, parameters: &Parameters) -> Spelled {
    let Outgoing { header, data, .. } = pdu;
    let (mut head, mut tail) = ([0; HEAD_BYTES], [0; TAIL_BYTES]);
    let (mut head_bytes, mut tail_bytes) = (HEADER_BYTES, padding(data.len()));
    head[..HEADER_BYTES].copy_from_slice(&header);
    if parameters.header_digest {
        head[HEADER_BYTES..].copy_from_slice(&digest(&[&header]));
        head_bytes += 4;
    }
    if parameters.data_digest && !data.is_empty() {
        let sum = digest(&[&data, &tail[..tail_bytes]]);
        tail[tail_bytes..tail_bytes + 4].copy_from_slice(&sum);
        tail_bytes += 4;
    }
    Spelled { head, head_bytes, data, tail, tail_bytes }
}

/// Writes PDUs with as few system calls as possible. After each call that takes something, calls `moved` with the
/// number of bytes.
pub(crate) async fn write<'a>(
    stream: &mut (impl AsyncWrite + Unpin),
    pdus: impl Iterator<Item = &'a Spelled>,
    moved: impl Fn(usize),
) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = pdus.flat_map(Spelled::parts).filter(|part| !part.is_empty()).map(IoSlice::new).collect();
    let mut left = &mut slices[..];
    while !left.is_empty() {
        let written = stream.write_vectored(left).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        moved(written);
        IoSlice::advance_slices(&mut left, written);
    }
    stream.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pdu::StatusNumber;

    #[tokio::test]
    async fn m0_1_what_is_spelled_is_read_again_with_and_without_digests() {
        for (header_digest, data_digest, length) in
            [(false, false, 5), (true, false, 0), (false, true, 0), (true, true, 6), (true, true, 8192)]
        {
            let parameters = Parameters { header_digest, data_digest, ..Parameters::default() };
            let data: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let pdus = [1, 2].map(|tag| {
                let mut pdu = Outgoing::new(0x25, 0x80, tag, StatusNumber::Next).with_data(data.clone());
                pdu.finish(&mut 7, 8, 9);
                spell(pdu, &parameters)
            });
            let mut sent = Vec::new();
            write(&mut sent, pdus.iter(), |_| ()).await.unwrap();
            assert_eq!(sent.len(), pdus.iter().map(Spelled::bytes).sum::<usize>());
            let mut input = &sent[..];
            for tag in [1, 2] {
                let pdu = read(&mut input, &parameters, 8192, &mut vec![9; 10]).await.unwrap();
                assert_eq!((pdu.header.task_tag(), pdu.data), (tag, data.clone()));
            }
            assert!(read(&mut input, &parameters, 8192, &mut Vec::new()).await.is_err(), "nothing is left");
        }
    }

    #[tokio::test]
    async fn room_that_was_used_before_is_for_data_of_commands_only() {
        let parameters = Parameters::default();
        for (code, is_used) in [(opcode::DATA_OUT, true), (opcode::NOP_OUT, false), (opcode::SCSI_COMMAND, false), (opcode::TEXT, false)] {
            let mut pdu = Outgoing::new(code, 0x80, 1, StatusNumber::None).with_data(vec![3; 5]);
            pdu.finish(&mut 1, 1, 1);
            let sent = spell(pdu, &parameters).parts().concat();
            let mut room = vec![9; 256 << 10];
            let read = read(&mut &sent[..], &parameters, 8192, &mut room).await.unwrap();
            assert_eq!(read.data, [3; 5]);
            assert_eq!((read.data.capacity() >= 256 << 10, room.capacity() >= 256 << 10), (is_used, !is_used), "{code:02x}");
        }
    }

    #[tokio::test]
    async fn m0_1_a_wrong_digest_and_half_a_segment_are_refused() {
        let parameters = Parameters { header_digest: true, data_digest: true, ..Parameters::default() };
        let mut pdu = Outgoing::new(0x25, 0x80, 1, StatusNumber::None).with_data(vec![3; 100]);
        pdu.finish(&mut 1, 1, 1);
        let sent = spell(pdu, &parameters).parts().concat();
        assert!(read(&mut &sent[..], &parameters, 8192, &mut Vec::new()).await.is_ok());
        assert!(read(&mut &sent[..], &parameters, 99, &mut Vec::new()).await.is_err(), "too long");
        assert!(read(&mut &sent[..100], &parameters, 8192, &mut Vec::new()).await.is_err(), "half of it");
        for at in [20, 60] {
            let mut damaged = sent.clone();
            damaged[at] ^= 1;
            assert!(read(&mut &damaged[..], &parameters, 8192, &mut Vec::new()).await.is_err());
        }
    }
}
