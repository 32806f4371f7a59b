//! The search byte by byte, for any processor.
//!
//! A word holds the unfinished hashes of the next eight places. Byte `k` is what the bytes so far add to `h_8(i + k)`,
//! the hash of the 8 bytes up to that place. The next byte shifts the word by one place and adds its weighted values,
//! with one table lookup. Each step waits for the one before, so several places of a chunk are hashed at once.
//!
//! The hashes of 8 bytes are collected. A second pass turns them into hashes of windows:
//! `h(i) = h_8(i) + g^8 h_8(i - 8)`, where `g^8` is 2. The compiler uses whatever vectors the processor has for that
//! pass.

use super::hash::{Condition, Hash, MEMORY, WINDOW};

/// Lanes that are hashed at once.
const LANES: usize = 4;
/// Bytes per lane.
const LANE: usize = 64;
/// Bytes between two tests for candidates.
const BLOCK: usize = LANES * LANE;
/// Bytes that go into [`HALF`] hashes before the first one is complete.
const RAMP: usize = HALF - 1;
/// Half a window.
const HALF: usize = WINDOW / 2;
/// How far back the condition of a place reads hashes of half windows.
const BACK: usize = WINDOW + HALF;

/// Returns the first boundary among the places `from .. to` of `data`.
pub(super) fn scan(hash: &Hash, data: &[u8], from: usize, to: usize, condition: Condition) -> Option<usize> {
    // Hashes of half windows: the last ones of the previous block, then this block's.
    let mut halves = [0; BACK + BLOCK];
    hash_halves(hash, &data[from - BACK - RAMP..from], &mut halves[..BACK]);
    let mut at = from;
    while at < to {
        let length = BLOCK.min(to - at);
        let bytes = &data[at - RAMP..at + length];
        match (bytes.try_into(), halves.last_chunk_mut()) {
            (Ok(bytes), Some(halves)) => hash_block(hash, bytes, halves),
            _ => hash_halves(hash, bytes, &mut halves[BACK..BACK + length]),
        }
        // After `length`, the block holds stale hashes. They may look like candidates, but none of them is used.
        if has_candidates(hash.zeros, &halves, condition) {
            let candidates = (0..length).filter(|offset| {
                let [older, newer] = windows(hash.zeros, &halves, *offset);
                condition.admits(newer, older)
            });
            let mut places = candidates.map(|offset| at + offset);
            let found = places.find(|place| condition.confirms(hash, &data[place + 1 - MEMORY..=*place]));
            if found.is_some() {
                return found;
            }
        }
        halves.copy_within(BLOCK.., 0);
        at += BLOCK;
    }
    None
}

/// Returns the hashes of the older and the newer window of the place `offset` of the block.
#[inline(always)]
fn windows(zeros: u8, halves: &[u8; BACK + BLOCK], offset: usize) -> [u8; 2] {
    let window = |at: usize| halves[at + HALF] ^ double(halves[at]) ^ zeros;
    [window(offset), window(offset + WINDOW)]
}

/// Does what [`field::double`](super::field::double) does, without a branch.
#[inline(always)]
fn double(byte: u8) -> u8 {
    byte << 1 ^ (byte.cast_signed() >> 7).cast_unsigned() & 0x1b
}

/// Returns whether any place of the block is a candidate.
fn has_candidates(zeros: u8, halves: &[u8; BACK + BLOCK], condition: Condition) -> bool {
    let mut any = 0u8;
    for offset in 0..BLOCK {
        let [older, newer] = windows(zeros, halves, offset);
        any |= if condition.admits(newer, older) { 0xff } else { 0 };
    }
    any != 0
}

/// Returns the next state of a lane.
#[inline(always)]
fn step(hash: &Hash, state: u64, byte: u8) -> u64 {
    state >> 8 ^ hash.powers[usize::from(byte)]
}

/// Hashes the half windows of all of `bytes` except the first [`RAMP`].
fn hash_halves(hash: &Hash, bytes: &[u8], halves: &mut [u8]) {
    let (ramp, bytes) = bytes.split_at(RAMP);
    let mut state = ramp.iter().fold(0, |state, byte| step(hash, state, *byte));
    for (byte, half) in bytes.iter().zip(halves) {
        state = step(hash, state, *byte);
        *half = state as u8;
    }
}

/// Does what [`hash_halves`] does, in all lanes at once.
fn hash_block(hash: &Hash, bytes: &[u8; RAMP + BLOCK], halves: &mut [u8; BLOCK]) {
    let mut states: [u64; LANES] =
        std::array::from_fn(|lane| bytes[lane * LANE..lane * LANE + RAMP].iter().fold(0, |state, byte| step(hash, state, *byte)));
    for offset in 0..LANE {
        for (lane, state) in states.iter_mut().enumerate() {
            let at = lane * LANE + offset;
            *state = step(hash, *state, bytes[RAMP + at]);
            halves[at] = *state as u8;
        }
    }
}
