//! The steps of SHA-1 (FIPS 180-4, section 6.1).

use super::sha::Function;
use super::times::twenty_times;
use crate::lanes::{Block, Lanes};

pub(crate) struct Sha1;

/// Section 4.2.1: one constant for each 20 rounds.
const K: [u32; 4] = [0x5a82_7999, 0x6ed9_eba1, 0x8f1b_bcdc, 0xca62_c1d6];

impl Function for Sha1 {
    const WORDS: usize = 5;
    const INITIAL: [u32; 8] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0, 0, 0, 0];

    #[inline(always)]
    fn step<L: Lanes>(lanes: L, state: &mut [L::Word; 8], words: [L::Word; 16]) {
        let mut w = words;
        let mut v = [state[0], state[1], state[2], state[3], state[4]];
        twenty_times!(T => round::<L, 0, T>(lanes, &mut v, &mut w));
        twenty_times!(T => round::<L, 1, T>(lanes, &mut v, &mut w));
        twenty_times!(T => round::<L, 2, T>(lanes, &mut v, &mut w));
        twenty_times!(T => round::<L, 3, T>(lanes, &mut v, &mut w));
        for word in 0..5 {
            state[word] = lanes.add(state[word], v[word]);
        }
    }

    fn finish(state: &mut [u32; 8], blocks: &[Block]) {
        let (own, _) = state.split_first_chunk_mut::<5>().expect("eight words are more than five");
        sha1::block_api::compress(own, blocks);
    }
}

/// Round `20 * PART + T`. The words stay where they are and their names rotate instead. After 20 rounds the names are
/// back in place.
#[inline(always)]
fn round<L: Lanes, const PART: usize, const T: usize>(lanes: L, v: &mut [L::Word; 5], w: &mut [L::Word; 16]) {
    macro_rules! name {
        ($place:literal) => {
            v[const { ($place + 20 - T) % 5 }]
        };
    }
    macro_rules! word {
        ($before:literal) => {
            w[const { (20 * PART + T + 16 - $before) % 16 }]
        };
    }
    if const { 20 * PART + T >= 16 } {
        word!(0) = lanes.rotate_right::<31>(lanes.xor(word!(3), lanes.xor3(word!(8), word!(14), word!(16))));
    }
    let (a, b, c, d) = (name!(0), name!(1), name!(2), name!(3));
    let f = match PART {
        0 => lanes.choose(b, c, d),
        2 => lanes.majority(b, c, d),
        _ => lanes.xor3(b, c, d),
    };
    let early = lanes.add(lanes.add(name!(4), lanes.splat(K[PART])), word!(0));
    name!(4) = lanes.add(lanes.add(early, f), lanes.rotate_right::<27>(a));
    name!(1) = lanes.rotate_right::<2>(b);
}
