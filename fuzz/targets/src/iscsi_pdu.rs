//! PDUs of iSCSI and the texts in them: any bytes are taken apart or refused, and nothing is longer than what came.

use onefold_iscsi::pdu::{HEADER_BYTES, Header, Incoming};
use onefold_iscsi::text::{binary, hexadecimal, number, parse, put};

/// A basic header segment, additional segments as long as it says, then the data.
pub fn run(data: &[u8]) {
    texts(data);
    let Some((header, rest)) = data.split_first_chunk::<HEADER_BYTES>() else { return };
    let header = Header(*header);
    assert!(header.additional_bytes() <= 1020 && header.data_bytes() < 1 << 24);
    let Some((additional, rest)) = rest.split_at_checked(header.additional_bytes()) else { return };
    let data = &rest[..header.data_bytes().min(rest.len())];
    let Ok(incoming) = Incoming::new(header, additional, data.to_vec()) else { return };
    assert!(incoming.long_cdb.len() <= additional.len());
    assert_eq!(incoming.cdb().len(), 16 + incoming.long_cdb.len());
    let _ = (header.lun(), header.isid(), header.tsih(), header.connection_id(), header.buffer_offset(), header.expected_status_number());
}

/// Pairs that were read are read the same when they are written again.
fn texts(data: &[u8]) {
    let Ok(pairs) = parse(data) else { return };
    let mut written = Vec::new();
    pairs.iter().for_each(|(key, value)| put(&mut written, key, value));
    assert_eq!(parse(&written).as_ref(), Ok(&pairs));
    for (_, value) in &pairs {
        let _ = number(value);
        if let Some(bytes) = binary(value) {
            assert!(bytes.len() <= value.len());
            assert_eq!(binary(&hexadecimal(&bytes)), Some(bytes));
        }
    }
}
