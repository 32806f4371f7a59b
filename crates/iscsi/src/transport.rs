//! Reading and writing PDUs.

use crate::negotiation::Parameters;
use crate::pdu::{HEADER_BYTES, Header, Incoming, Outgoing, digest, padding};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

/// What a PDU with digests that are wrong is: nothing of it can be trusted (RFC 7143 section 7.7, error recovery level 0).
fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Bytes of the longest data segment of a login request (RFC 7143 section 13.12).
pub(crate) const LOGIN_SEGMENT_BYTES: u32 = 8192;

/// Reads a PDU whose data segment has at most `limit` bytes. Its lengths are checked before memory is taken.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin), parameters: &Parameters, limit: u32) -> io::Result<Incoming> {
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
        return Err(wrong("a data segment is longer than was agreed on"));
    }
    let mut data = vec![0; length + padding(length)];
    stream.read_exact(&mut data).await?;
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

/// The bytes of a PDU.
pub(crate) fn spell(pdu: Outgoing, parameters: &Parameters) -> Vec<u8> {
    let Outgoing { header, data, .. } = pdu;
    let mut out = Vec::with_capacity(HEADER_BYTES + data.len() + 12);
    out.extend_from_slice(&header);
    if parameters.header_digest {
        out.extend_from_slice(&digest(&[&header]));
    }
    if !data.is_empty() {
        let start = out.len();
        out.extend_from_slice(&data);
        out.resize(out.len() + padding(data.len()), 0);
        if parameters.data_digest {
            let sum = digest(&[&out[start..]]);
            out.extend_from_slice(&sum);
        }
    }
    out
}
