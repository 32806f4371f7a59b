//! Blocks of mark files (`docs/format.md` 7.13): any bytes are refused, or are marks in order. Fuzzers cannot guess a
//! checksum, so the target adds header and checksum to what it is given, and also reads it as it is.

use onefold_engine::{Group, decode_marks};
use onefold_ground::checksum;
use onefold_oplog::Position;
use onefold_storage::MAX_SLOTS;

const MAGIC: &[u8; 8] = b"1FLDMRK1";
const GROUP: u64 = 7;
const POSITION: u64 = 4096;

/// Reads the bytes as a block, and as the entries of one.
pub fn run(data: &[u8]) {
    let group = Group::new(0, GROUP);
    let _ = decode_marks(data, group, Position(POSITION), 0);
    let mut block = MAGIC.to_vec();
    block.extend_from_slice(&GROUP.to_le_bytes());
    block.extend_from_slice(&POSITION.to_le_bytes());
    block.extend_from_slice(&3u32.to_le_bytes());
    block.extend_from_slice(&(data.len() as u32).to_le_bytes());
    block.extend_from_slice(data);
    block.extend_from_slice(&checksum(&block).to_le_bytes());
    assert!(decode_marks(&block, group, Position(POSITION), 4).is_err(), "it is another block");
    assert!(decode_marks(&block, Group::new(0, GROUP + 1), Position(POSITION), 3).is_err(), "it is of another group");
    let Ok(marks) = decode_marks(&block, group, Position(POSITION), 3) else { return };
    assert!(marks.windows(2).all(|two| two[0].0 < two[1].0), "origins are in order");
    assert!(marks.iter().all(|(_, slots)| slots.iter().all(|slot| usize::from(*slot) < MAX_SLOTS)));
}
