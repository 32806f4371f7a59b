//! Replies as bytes, in the three forms of the protocol. No I/O.

use crate::Extent;
use crate::haggling::ALLOCATION_ID;
use crate::request::Request;
use crate::style::Style;
use crate::wire::{EXTENDED_REPLY_MAGIC, Errno, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk, state};

/// A complete reply to one request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Header and fixed fields.
    pub head: Vec<u8>,
    /// Data read from the export.
    pub body: Vec<u8>,
}

impl Reply {
    /// Returns success without data, for commands other than read and for a read of length 0.
    pub fn done(style: Style, request: &Request) -> Reply {
        let mut reply = Reply::default();
        // Clients of structured replies accept a simple reply too, which is shorter. Not for a read.
        if style == Style::Extended || (style == Style::Structured && request.kind == crate::wire::command::READ) {
            reply.put_chunk(style, request, chunk::NONE, 0);
        } else {
            reply.put_simple(request, 0);
        }
        reply
    }

    /// Returns the bytes that were read, at least one.
    pub fn data(style: Style, request: &Request, data: Vec<u8>) -> Reply {
        let mut reply = Reply::default();
        if style == Style::Simple {
            reply.put_simple(request, 0);
        } else {
            reply.put_chunk(style, request, chunk::OFFSET_DATA, 8 + data.len());
            reply.head.extend(request.offset.to_be_bytes());
        }
        reply.body = data;
        reply
    }

    /// Returns the reply to a read that found only zeros. Not for the simple style.
    pub fn hole(style: Style, request: &Request, length: u32) -> Reply {
        let mut reply = Reply::default();
        reply.put_chunk(style, request, chunk::OFFSET_HOLE, 12);
        reply.head.extend(request.offset.to_be_bytes());
        reply.head.extend(length.to_be_bytes());
        reply
    }

    /// Returns how the range is allocated, as [`tidy`] extents. Not for the simple style.
    pub fn status(style: Style, request: &Request, extents: &[Extent]) -> Reply {
        let mut reply = Reply::default();
        let flags = |extent: &Extent| (if extent.hole { state::HOLE } else { 0 }) | (if extent.zero { state::ZERO } else { 0 });
        if style == Style::Extended {
            reply.put_chunk(style, request, chunk::BLOCK_STATUS_EXT, 8 + 16 * extents.len());
            reply.head.extend(ALLOCATION_ID.to_be_bytes());
            reply.head.extend((extents.len() as u32).to_be_bytes());
            for extent in extents {
                reply.head.extend(extent.length.to_be_bytes());
                reply.head.extend(u64::from(flags(extent)).to_be_bytes());
            }
        } else {
            reply.put_chunk(style, request, chunk::BLOCK_STATUS, 4 + 8 * extents.len());
            reply.head.extend(ALLOCATION_ID.to_be_bytes());
            for extent in extents {
                // Compact requests have 32-bit lengths, and extents are within the request.
                reply.head.extend((extent.length as u32).to_be_bytes());
                reply.head.extend(flags(extent).to_be_bytes());
            }
        }
        reply
    }

    /// Returns an error, with a text for people if the style has room for it.
    pub fn error(style: Style, request: &Request, errno: Errno) -> Reply {
        let mut reply = Reply::default();
        if style == Style::Simple {
            reply.put_simple(request, errno as u32);
            return reply;
        }
        let text = errno.text();
        reply.put_chunk(style, request, chunk::ERROR, 6 + text.len());
        reply.head.extend((errno as u32).to_be_bytes());
        reply.head.extend((text.len() as u16).to_be_bytes());
        reply.head.extend(text.as_bytes());
        reply
    }

    fn put_simple(&mut self, request: &Request, error: u32) {
        self.head.extend(SIMPLE_REPLY_MAGIC.to_be_bytes());
        self.head.extend(error.to_be_bytes());
        self.head.extend(request.cookie.to_be_bytes());
    }

    /// Writes the header of the only chunk of a reply.
    fn put_chunk(&mut self, style: Style, request: &Request, kind: u16, length: usize) {
        let extended = style == Style::Extended;
        let magic = if extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC };
        self.head.extend(magic.to_be_bytes());
        self.head.extend(chunk::FLAG_DONE.to_be_bytes());
        self.head.extend(kind.to_be_bytes());
        self.head.extend(request.cookie.to_be_bytes());
        if extended {
            self.head.extend(request.offset.to_be_bytes());
            self.head.extend((length as u64).to_be_bytes());
        } else {
            // At most MAX_PAYLOAD_BYTES and a few.
            self.head.extend((length as u32).to_be_bytes());
        }
    }
}

impl Errno {
    fn text(self) -> &'static str {
        match self {
            Errno::Permission => "the export is read-only",
            Errno::Io => "input/output error; see the server's log",
            Errno::Invalid => "invalid request",
            Errno::NoSpace => "no space left",
            Errno::Overflow => "the payload exceeds the limit",
            Errno::NotSupported => "this would not be fast",
            Errno::Shutdown => "the server is stopping",
        }
    }
}

/// Makes the export's answer fit the request: extents within `length` bytes, equal neighbours joined, at most `limit`
/// of them, at least one. If the export returned nothing, the range counts as data, which is always safe.
pub fn tidy(extents: Vec<Extent>, length: u64, limit: usize) -> Vec<Extent> {
    let mut tidied: Vec<Extent> = Vec::new();
    let mut left = length;
    for extent in extents {
        let extent = Extent { length: extent.length.min(left), ..extent };
        if extent.length == 0 {
            continue;
        }
        left -= extent.length;
        let count = tidied.len();
        match tidied.last_mut() {
            Some(last) if (last.hole, last.zero) == (extent.hole, extent.zero) => last.length += extent.length,
            Some(_) if count == limit => break,
            _ => tidied.push(extent),
        }
    }
    if tidied.is_empty() {
        tidied.push(Extent { length, hole: false, zero: false });
    }
    tidied
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::command;

    const REQUEST: Request = Request { flags: 0, kind: command::READ, cookie: 0x0102_0304_0506_0708, offset: 4096, length: 512 };

    fn extent(length: u64, hole: bool) -> Extent {
        Extent { length, hole, zero: hole }
    }

    #[test]
    fn each_style_has_its_header() {
        let simple = Reply::data(Style::Simple, &REQUEST, vec![7; 512]);
        assert_eq!(simple.head, [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0][..], &REQUEST.cookie.to_be_bytes()].concat());
        let structured = Reply::data(Style::Structured, &REQUEST, vec![7; 512]);
        assert_eq!((structured.head.len(), &structured.head[16..20]), (28, &520u32.to_be_bytes()[..]));
        let extended = Reply::data(Style::Extended, &REQUEST, vec![7; 512]);
        assert_eq!((extended.head.len(), &extended.head[16..24]), (40, &4096u64.to_be_bytes()[..]));
    }

    #[test]
    fn reads_are_never_answered_simply_when_structured() {
        assert_eq!(Reply::done(Style::Structured, &REQUEST).head[..4], STRUCTURED_REPLY_MAGIC.to_be_bytes());
        assert_eq!(Reply::error(Style::Structured, &REQUEST, Errno::Io).head[..4], STRUCTURED_REPLY_MAGIC.to_be_bytes());
        let write = Request { kind: command::WRITE, ..REQUEST };
        assert_eq!(Reply::done(Style::Structured, &write).head[..4], SIMPLE_REPLY_MAGIC.to_be_bytes());
        assert_eq!(Reply::done(Style::Extended, &write).head[..4], EXTENDED_REPLY_MAGIC.to_be_bytes());
    }

    #[test]
    fn the_length_of_an_error_covers_its_text() {
        let reply = Reply::error(Style::Structured, &REQUEST, Errno::NoSpace);
        let length = u32::from_be_bytes(reply.head[16..20].try_into().unwrap()) as usize;
        assert_eq!(reply.head.len(), 20 + length);
        assert_eq!(reply.head[20..24], 28u32.to_be_bytes());
        assert_eq!(&reply.head[26..], b"no space left");
    }

    #[test]
    fn extents_are_joined_cut_and_never_missing() {
        assert_eq!(
            tidy(vec![extent(10, true), extent(0, false), extent(5, true), extent(9, false)], 20, 9),
            [extent(15, true), extent(5, false)]
        );
        assert_eq!(tidy(vec![extent(1, true), extent(1, false), extent(1, true)], 20, 2), [extent(1, true), extent(1, false)]);
        assert_eq!(tidy(vec![extent(u64::MAX, true), extent(u64::MAX, true)], 20, 2), [extent(20, true)]);
        assert_eq!(tidy(vec![], 20, 2), [extent(20, false)]);
    }
}
