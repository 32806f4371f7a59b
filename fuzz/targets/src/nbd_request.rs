//! NBD requests: any header is refused or judged, no verdict lets a request out of its export, and payloads are
//! bounded.

use onefold_nbd::reply::{Reply, tidy};
use onefold_nbd::request::{Facts, Operation, header_bytes, judge, parse_header, parse_status_payload};
use onefold_nbd::style::Style;
use onefold_nbd::{Extent, MAX_PAYLOAD_BYTES};

/// The first byte chooses style, rights and contexts, the next three the size of the export; what follows is requests
/// as on the wire.
pub fn run(data: &[u8]) {
    let Some((choices, mut bytes)) = data.split_first_chunk::<4>() else { return };
    let style = [Style::Simple, Style::Structured, Style::Extended][usize::from(choices[0] % 3)];
    let size = u64::from(u32::from_be_bytes([0, choices[1], choices[2], choices[3]]) << 9);
    let facts = Facts { size, read_only: choices[0] & 0x80 != 0, style, contexts: choices[0] & 0x40 != 0 };
    while let Some((header, rest)) = bytes.split_at_checked(header_bytes(style)) {
        bytes = rest;
        let Some(request) = parse_header(style, header) else { return };
        // The end of the session.
        if request.kind == 2 {
            return;
        }
        let Some(judged) = judge(&request, &facts) else { return };
        assert!(judged.payload_bytes <= MAX_PAYLOAD_BYTES);
        let (payload, rest) = bytes.split_at((judged.payload_bytes as usize).min(bytes.len()));
        bytes = rest;
        let inside = |length: u64| assert!(request.offset.checked_add(length).is_some_and(|end| end <= size));
        let changes = || assert!(!facts.read_only);
        match judged.verdict {
            Ok(Operation::Read { length }) => {
                inside(u64::from(length));
                assert!(length <= MAX_PAYLOAD_BYTES);
            }
            Ok(Operation::Write { .. }) => {
                inside(u64::from(judged.payload_bytes));
                changes();
            }
            Ok(Operation::Trim { length, .. } | Operation::WriteZeroes { length, .. }) => {
                inside(length);
                changes();
            }
            Ok(Operation::Cache { length }) => inside(length),
            Ok(Operation::Status { length, .. }) => {
                inside(length);
                assert!(facts.contexts);
                status(style, &request, length, payload);
            }
            Ok(Operation::StatusByPayload { .. }) => {
                assert!(facts.contexts && style == Style::Extended);
                if let Ok(length) = parse_status_payload(payload, &request, &facts) {
                    inside(length);
                    status(style, &request, length, payload);
                }
            }
            Ok(Operation::Flush) => {}
            Err(errno) => assert!(Reply::error(style, &request, errno).head.len() < 256),
        }
    }
}

/// Whatever an export says, what is answered lies in the range and is not empty.
fn status(style: Style, request: &onefold_nbd::request::Request, length: u64, seed: &[u8]) {
    let extents = seed.iter().map(|byte| Extent { length: u64::from(byte >> 2) << 8, hole: byte & 1 != 0, zero: byte & 2 != 0 }).collect();
    let tidied = tidy(extents, length, 4);
    assert!((1..=4).contains(&tidied.len()));
    assert!(tidied.iter().all(|extent| extent.length > 0));
    assert!(tidied.iter().map(|extent| extent.length).sum::<u64>() <= length);
    if style != Style::Simple {
        assert!(!Reply::status(style, request, &tidied).head.is_empty());
    }
}
