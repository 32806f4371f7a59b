//! Requests as bytes: parses a header and decides, from it alone, what is asked or what is wrong. No I/O.

use crate::style::Style;
use crate::wire::{EXTENDED_REQUEST_MAGIC, Errno, Fields, MAX_PAYLOAD_BYTES, REQUEST_MAGIC, command, command_flag};

/// The longest payload of a block status request that is parsed: an effect length and context ids.
const MAX_STATUS_PAYLOAD_BYTES: u32 = 4096;

/// A request as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// `NBD_CMD_FLAG_*`.
    pub flags: u16,
    /// `NBD_CMD_*`.
    pub kind: u16,
    /// Returned with the reply.
    pub cookie: u64,
    /// The offset in the export.
    pub offset: u64,
    /// The length of the range, or of the payload.
    pub length: u64,
}

/// Returns the length of a request's header.
pub fn header_bytes(style: Style) -> usize {
    if style == Style::Extended { 32 } else { 28 }
}

/// Reads a header of [`header_bytes`]. Returns `None` if the magic is wrong, so that the start of the next request is
/// unknown.
pub fn parse_header(style: Style, bytes: &[u8]) -> Option<Request> {
    let mut fields = Fields(bytes);
    let extended = style == Style::Extended;
    let magic = if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
    (fields.u32()? == magic).then_some(())?;
    let (flags, kind, cookie, offset) = (fields.u16()?, fields.u16()?, fields.u64()?, fields.u64()?);
    let length = if extended { fields.u64()? } else { u64::from(fields.u32()?) };
    Some(Request { flags, kind, cookie, offset, length })
}

/// The facts for judging a request.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Size of the export in bytes.
    pub size: u64,
    /// Whether the export is read-only.
    pub read_only: bool,
    /// The negotiated style.
    pub style: Style,
    /// Whether a metadata context was chosen.
    pub contexts: bool,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read.
    Read {
        /// At most [`MAX_PAYLOAD_BYTES`].
        length: u32,
    },
    /// Write the payload.
    Write {
        /// Durable before the reply.
        fua: bool,
    },
    /// Make all writes durable.
    Flush,
    /// Discard a range.
    Trim {
        /// Bytes.
        length: u64,
        /// Durable before the reply.
        fua: bool,
    },
    /// Zero a range.
    WriteZeroes {
        /// Bytes.
        length: u64,
        /// Whether its space may be freed.
        may_trim: bool,
        /// Durable before the reply.
        fua: bool,
    },
    /// Prepare for reading a range.
    Cache {
        /// Bytes.
        length: u64,
    },
    /// Report how a range is allocated.
    Status {
        /// Bytes.
        length: u64,
        /// Only the first extent.
        one: bool,
    },
    /// The same, with length and contexts in the payload; see [`parse_status_payload`].
    StatusByPayload {
        /// Only the first extent.
        one: bool,
    },
}

/// A judged request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Bytes that follow the header, whatever the verdict.
    pub payload_bytes: u32,
    /// The operation, or the error to answer.
    pub verdict: Result<Operation, Errno>,
}

/// Judges a request other than `NBD_CMD_DISC`. Returns `None` if it announces an impossibly large payload, so that the
/// connection must be closed.
pub fn judge(request: &Request, facts: &Facts) -> Option<Judged> {
    let announced = request.flags & command_flag::PAYLOAD_LEN != 0;
    let has_payload = if facts.style == Style::Extended { announced } else { request.kind == command::WRITE };
    let payload_bytes = if has_payload { u32::try_from(request.length).ok().filter(|&length| length <= MAX_PAYLOAD_BYTES)? } else { 0 };
    Some(Judged { payload_bytes, verdict: verdict(request, facts, has_payload) })
}

fn verdict(request: &Request, facts: &Facts, has_payload: bool) -> Result<Operation, Errno> {
    let has = |flag| request.flags & flag != 0;
    let fua = has(command_flag::FUA);
    let length = request.length;

    let mut allowed = command_flag::FUA;
    if facts.style == Style::Extended && request.kind == command::WRITE {
        allowed |= command_flag::PAYLOAD_LEN;
    }
    allowed |= match request.kind {
        command::READ if facts.style != Style::Simple => command_flag::DF,
        command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
        command::BLOCK_STATUS if facts.style == Style::Extended => command_flag::REQ_ONE | command_flag::PAYLOAD_LEN,
        command::BLOCK_STATUS => command_flag::REQ_ONE,
        _ => 0,
    };
    if request.kind > command::BLOCK_STATUS || request.kind == command::DISC || request.flags & !allowed != 0 {
        return Err(Errno::Invalid);
    }

    let changes = matches!(request.kind, command::WRITE | command::TRIM | command::WRITE_ZEROES);
    if changes && facts.read_only {
        return Err(Errno::Permission);
    }
    let by_payload = request.kind == command::BLOCK_STATUS && has_payload;
    let inside = |length| request.offset.checked_add(length).is_some_and(|end| end <= facts.size);
    if request.kind != command::FLUSH && !inside(if by_payload { 0 } else { length }) {
        // "SHOULD return ENOSPC if it receives a write request including sectors beyond the size of the device", but
        // EINVAL for a trim.
        let beyond = if matches!(request.kind, command::WRITE | command::WRITE_ZEROES) { Errno::NoSpace } else { Errno::Invalid };
        return Err(beyond);
    }

    match request.kind {
        command::READ => match u32::try_from(length) {
            Ok(length) if length <= MAX_PAYLOAD_BYTES => Ok(Operation::Read { length }),
            // EOVERFLOW belongs to structured replies.
            _ => Err(if facts.style == Style::Simple { Errno::Invalid } else { Errno::Overflow }),
        },
        command::WRITE if has_payload => Ok(Operation::Write { fua }),
        command::FLUSH if request.offset == 0 && length == 0 => Ok(Operation::Flush),
        command::TRIM => Ok(Operation::Trim { length, fua }),
        command::CACHE => Ok(Operation::Cache { length }),
        command::WRITE_ZEROES => {
            let may_trim = !has(command_flag::NO_HOLE);
            // Zeros that need space are written like data, which is not fast.
            if has(command_flag::FAST_ZERO) && !may_trim {
                Err(Errno::NotSupported)
            } else {
                Ok(Operation::WriteZeroes { length, may_trim, fua })
            }
        }
        command::BLOCK_STATUS if !facts.contexts => Err(Errno::Invalid),
        command::BLOCK_STATUS if by_payload && length <= u64::from(MAX_STATUS_PAYLOAD_BYTES) => {
            Ok(Operation::StatusByPayload { one: has(command_flag::REQ_ONE) })
        }
        command::BLOCK_STATUS if !by_payload && length > 0 => Ok(Operation::Status { length, one: has(command_flag::REQ_ONE) }),
        _ => Err(Errno::Invalid),
    }
}

/// Reads the payload of [`Operation::StatusByPayload`] and returns the length asked about. It may only name the one
/// existing context, once.
pub fn parse_status_payload(payload: &[u8], request: &Request, facts: &Facts) -> Result<u64, Errno> {
    let mut fields = Fields(payload);
    let length = fields.u64().ok_or(Errno::Invalid)?;
    let id = fields.u32().ok_or(Errno::Invalid)?;
    let inside = request.offset.checked_add(length).is_some_and(|end| end <= facts.size);
    if length == 0 || !inside || id != crate::haggling::ALLOCATION_ID || !fields.0.is_empty() {
        return Err(Errno::Invalid);
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 1 << 30;

    fn facts(style: Style) -> Facts {
        Facts { size: SIZE, read_only: false, style, contexts: true }
    }

    fn request(kind: u16, flags: u16, offset: u64, length: u64) -> Request {
        Request { flags, kind, cookie: 1, offset, length }
    }

    fn error(kind: u16, flags: u16, offset: u64, length: u64, facts: &Facts) -> Option<Errno> {
        judge(&request(kind, flags, offset, length), facts).unwrap().verdict.err()
    }

    #[test]
    fn headers_are_read_in_both_forms_and_not_in_the_other() {
        let expected = request(command::WRITE, command_flag::FUA, 4096, 512);
        let rest = [&[0, 1, 0, 1][..], &1u64.to_be_bytes(), &4096u64.to_be_bytes()].concat();
        let compact = [&REQUEST_MAGIC.to_be_bytes()[..], &rest, &512u32.to_be_bytes()].concat();
        let extended = [&EXTENDED_REQUEST_MAGIC.to_be_bytes()[..], &rest, &512u64.to_be_bytes()].concat();
        assert_eq!((compact.len(), extended.len()), (header_bytes(Style::Simple), header_bytes(Style::Extended)));
        assert_eq!(parse_header(Style::Structured, &compact), Some(expected));
        assert_eq!(parse_header(Style::Extended, &extended), Some(expected));
        assert_eq!(parse_header(Style::Extended, &compact), None);
        assert_eq!(parse_header(Style::Simple, &extended), None);
    }

    #[test]
    fn beyond_the_end_is_no_space_for_writes_and_invalid_for_others() {
        let facts = facts(Style::Structured);
        for (offset, length) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 2), (u64::MAX, 0)] {
            for kind in [command::WRITE, command::WRITE_ZEROES] {
                assert_eq!(error(kind, 0, offset, length, &facts), Some(Errno::NoSpace));
            }
            for kind in [command::READ, command::TRIM, command::CACHE, command::BLOCK_STATUS] {
                assert_eq!(error(kind, 0, offset, length, &facts), Some(Errno::Invalid));
            }
        }
        assert_eq!(error(command::READ, 0, SIZE - 1, 1, &facts), None);
        assert_eq!(error(command::READ, 0, SIZE, 0, &facts), None);
    }

    #[test]
    fn changes_of_a_read_only_export_are_not_permitted() {
        let facts = Facts { read_only: true, ..facts(Style::Simple) };
        for kind in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            assert_eq!(error(kind, 0, 0, 512, &facts), Some(Errno::Permission));
        }
        assert_eq!(error(command::READ, 0, 0, 512, &facts), None);
        assert_eq!(error(command::FLUSH, 0, 0, 0, &facts), None);
    }

    #[test]
    fn flags_belong_to_their_commands_and_fua_to_all() {
        let flags = [
            (command_flag::NO_HOLE, vec![command::WRITE_ZEROES]),
            (command_flag::DF, vec![command::READ]),
            (command_flag::REQ_ONE, vec![command::BLOCK_STATUS]),
            (command_flag::FAST_ZERO, vec![command::WRITE_ZEROES]),
            (command_flag::PAYLOAD_LEN, vec![]),
            (1 << 6, vec![]),
            (1 << 15, vec![]),
        ];
        let commands =
            [command::READ, command::WRITE, command::FLUSH, command::TRIM, command::CACHE, command::WRITE_ZEROES, command::BLOCK_STATUS];
        for kind in commands {
            let length = if kind == command::FLUSH { 0 } else { 512 };
            assert_eq!(error(kind, command_flag::FUA, 0, length, &facts(Style::Structured)), None, "{kind}");
            for (flag, owners) in &flags {
                let expected = (!owners.contains(&kind)).then_some(Errno::Invalid);
                assert_eq!(error(kind, *flag, 0, length, &facts(Style::Structured)), expected, "command {kind} flag {flag}");
            }
        }
        assert_eq!(error(command::READ, command_flag::DF, 0, 512, &facts(Style::Simple)), Some(Errno::Invalid));
    }

    #[test]
    fn only_zeroing_that_may_trim_is_fast() {
        let facts = facts(Style::Simple);
        assert_eq!(error(command::WRITE_ZEROES, command_flag::FAST_ZERO, 0, 512, &facts), None);
        let both = command_flag::FAST_ZERO | command_flag::NO_HOLE;
        assert_eq!(error(command::WRITE_ZEROES, both, 0, 512, &facts), Some(Errno::NotSupported));
    }

    #[test]
    fn reads_over_the_largest_payload_overflow() {
        let long = u64::from(MAX_PAYLOAD_BYTES) + 1;
        assert_eq!(error(command::READ, 0, 0, long - 1, &facts(Style::Simple)), None);
        assert_eq!(error(command::READ, 0, 0, long, &facts(Style::Simple)), Some(Errno::Invalid));
        assert_eq!(error(command::READ, 0, 0, long, &facts(Style::Structured)), Some(Errno::Overflow));
        assert_eq!(error(command::TRIM, 0, 0, long, &facts(Style::Simple)), None, "only payloads are bounded");
    }

    #[test]
    fn a_payload_over_the_largest_ends_the_connection_and_others_are_consumed() {
        let long = u64::from(MAX_PAYLOAD_BYTES) + 1;
        assert_eq!(judge(&request(command::WRITE, 0, 0, long), &facts(Style::Simple)), None);
        assert_eq!(judge(&request(command::TRIM, command_flag::PAYLOAD_LEN, 0, u64::MAX), &facts(Style::Extended)), None);
        let trim = judge(&request(command::TRIM, command_flag::PAYLOAD_LEN, 0, 100), &facts(Style::Extended)).unwrap();
        assert_eq!(trim, Judged { payload_bytes: 100, verdict: Err(Errno::Invalid) });
        let unknown = judge(&request(99, command_flag::PAYLOAD_LEN, 0, 100), &facts(Style::Extended)).unwrap();
        assert_eq!(unknown, Judged { payload_bytes: 100, verdict: Err(Errno::Invalid) });
        let unmarked = judge(&request(command::WRITE, 0, 0, 512), &facts(Style::Extended)).unwrap();
        assert_eq!(unmarked, Judged { payload_bytes: 0, verdict: Err(Errno::Invalid) });
        let marked = judge(&request(command::WRITE, command_flag::PAYLOAD_LEN, 0, 512), &facts(Style::Extended)).unwrap();
        assert_eq!(marked, Judged { payload_bytes: 512, verdict: Ok(Operation::Write { fua: false }) });
    }

    #[test]
    fn block_status_needs_a_context_and_a_length() {
        let without = Facts { contexts: false, ..facts(Style::Structured) };
        assert_eq!(error(command::BLOCK_STATUS, 0, 0, 512, &without), Some(Errno::Invalid));
        assert_eq!(error(command::BLOCK_STATUS, 0, 0, 0, &facts(Style::Structured)), Some(Errno::Invalid));
    }

    #[test]
    fn a_status_payload_names_the_context_once() {
        let asked = request(command::BLOCK_STATUS, command_flag::PAYLOAD_LEN, SIZE - 512, 12);
        let facts = facts(Style::Extended);
        let parse = |length: u64, ids: &[u32]| {
            let ids = ids.iter().flat_map(|id| id.to_be_bytes()).collect::<Vec<_>>();
            parse_status_payload(&[&length.to_be_bytes()[..], &ids].concat(), &asked, &facts)
        };
        assert_eq!(parse(512, &[1]), Ok(512));
        for (length, ids) in [(513, &[1][..]), (0, &[1]), (u64::MAX, &[1]), (512, &[]), (512, &[2]), (512, &[1, 1])] {
            assert_eq!(parse(length, ids), Err(Errno::Invalid));
        }
        assert_eq!(parse_status_payload(&[0; 5], &asked, &facts), Err(Errno::Invalid));
    }

    proptest! {
        #[test]
        fn what_is_judged_right_lies_inside_the_export(
            kind in 0u16..10, flags in 0u16..128, offset in prop_oneof![0..2 * SIZE, any::<u64>()], length in prop_oneof![0..2 * SIZE, any::<u64>()],
            style in prop_oneof![Just(Style::Simple), Just(Style::Structured), Just(Style::Extended)],
        ) {
            let asked = request(kind, flags, offset, length);
            if let Some(judged) = judge(&asked, &facts(style)) {
                prop_assert!(judged.payload_bytes <= MAX_PAYLOAD_BYTES);
                let end = |length: u64| offset.checked_add(length).unwrap();
                match judged.verdict {
                    Ok(Operation::Read { length }) => prop_assert!(end(u64::from(length)) <= SIZE && length <= MAX_PAYLOAD_BYTES),
                    Ok(Operation::Write { .. }) => prop_assert!(end(u64::from(judged.payload_bytes)) <= SIZE),
                    Ok(Operation::Trim { length, .. } | Operation::WriteZeroes { length, .. }) => prop_assert!(end(length) <= SIZE),
                    Ok(Operation::Cache { length } | Operation::Status { length, .. }) => prop_assert!(end(length) <= SIZE),
                    Ok(Operation::Flush | Operation::StatusByPayload { .. }) | Err(_) => {}
                }
            }
        }

        #[test]
        fn arbitrary_headers_and_payloads_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            for style in [Style::Simple, Style::Structured, Style::Extended] {
                let _ = parse_header(style, &bytes);
            }
            let _ = parse_status_payload(&bytes, &request(command::BLOCK_STATUS, 0, 0, 0), &facts(Style::Extended));
        }
    }
}
