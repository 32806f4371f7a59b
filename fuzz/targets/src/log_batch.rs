//! Batches of the operations log (`docs/format.md` section 4): any bytes are refused, or are a batch that reads the
//! same when it is spelled again from what was read.

use onefold_ground::checksum;
use onefold_ground::wire::put_bytes;
use onefold_oplog::{Batch, parse_batch};

const HEADER_BYTES: usize = 64;
const CHECKED_BYTES: usize = 56;
/// Where batches begin.
const ALIGNMENT_BYTES: u64 = 4096;

/// The bytes as they are, then with the checksum put right, so that what lies behind it is reached.
pub fn run(data: &[u8]) {
    look_at(data);
    look_at(&repaired(data.to_vec()));
}

fn look_at(bytes: &[u8]) {
    let Ok(batch) = parse_batch(bytes) else { return };
    assert!(batch.durable <= batch.position);
    assert_eq!(batch.length_bytes % ALIGNMENT_BYTES, 0);
    let payload: usize = batch.records.iter().map(|record| record.payload.len()).sum();
    assert!(payload <= bytes.len());
    // What follows a batch, and its padding, is nobody's.
    let again = spelled(&batch);
    assert_eq!(
        parse_batch(&again).as_ref(),
        Ok(&Batch { length_bytes: again.len().next_multiple_of(ALIGNMENT_BYTES as usize) as u64, ..batch.clone() })
    );
    assert_eq!(parse_batch(&[&again[..], &[0xff; 700]].concat()), parse_batch(&again));
}

/// The batch as `docs/format.md` has it, without padding.
fn spelled(batch: &Batch) -> Vec<u8> {
    let mut payload = Vec::new();
    for record in &batch.records {
        payload.extend([record.kind, record.partition.class as u8]);
        payload.extend(record.partition.number.to_le_bytes());
        put_bytes(&mut payload, &record.payload);
    }
    let mut bytes = b"LOG1".to_vec();
    bytes.extend((batch.records.len() as u32).to_le_bytes());
    bytes.extend(batch.position.0.to_le_bytes());
    bytes.extend(batch.durable.0.to_le_bytes());
    bytes.extend((payload.len() as u64).to_le_bytes());
    bytes.extend(batch.store);
    bytes.extend(batch.epoch.to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(payload);
    repaired(bytes)
}

fn repaired(mut bytes: Vec<u8>) -> Vec<u8> {
    let Some(length) = bytes.get(24..32).and_then(|field| field.try_into().ok()).map(u64::from_le_bytes) else { return bytes };
    let end = usize::try_from(length).ok().and_then(|length| length.checked_add(HEADER_BYTES));
    if let Some(payload) = end.and_then(|end| bytes.get(HEADER_BYTES..end)) {
        let sum = checksum(&[&bytes[..CHECKED_BYTES], payload].concat());
        bytes[CHECKED_BYTES..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    }
    bytes
}
