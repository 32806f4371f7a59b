//! The steps of SHA-256 (FIPS 180-4, section 6.2).

use super::sha::Function;
use super::times::sixteen_times;
use crate::lanes::{Block, Lanes};

pub(crate) struct Sha256;

/// Section 4.2.2.
const K: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

impl Function for Sha256 {
    const WORDS: usize = 8;
    const INITIAL: [u32; 8] = [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

    #[inline(always)]
    fn step<L: Lanes>(lanes: L, state: &mut [L::Word; 8], words: [L::Word; 16]) {
        let mut w = words;
        let mut v = *state;
        sixteen_times!(T => round::<L, T>(lanes, &mut v, w[T], K[T]));
        for k in K.as_chunks::<16>().0.iter().skip(1) {
            sixteen_times!(T => {
                expand::<L, T>(lanes, &mut w);
                round::<L, T>(lanes, &mut v, w[T], k[T]);
            });
        }
        for word in 0..8 {
            state[word] = lanes.add(state[word], v[word]);
        }
    }

    fn finish(state: &mut [u32; 8], blocks: &[Block]) {
        sha2::block_api::compress256(state, blocks);
    }
}

/// Round `T` modulo 16. The words stay where they are and their names rotate instead.
#[inline(always)]
fn round<L: Lanes, const T: usize>(lanes: L, v: &mut [L::Word; 8], w: L::Word, k: u32) {
    macro_rules! name {
        ($place:literal) => {
            v[const { ($place + 16 - T) % 8 }]
        };
    }
    let (a, b, c) = (name!(0), name!(1), name!(2));
    let (e, f, g) = (name!(4), name!(5), name!(6));
    let sum1 = lanes.xor3(lanes.rotate_right::<6>(e), lanes.rotate_right::<11>(e), lanes.rotate_right::<25>(e));
    let sum0 = lanes.xor3(lanes.rotate_right::<2>(a), lanes.rotate_right::<13>(a), lanes.rotate_right::<22>(a));
    let early = lanes.add(lanes.add(name!(7), lanes.splat(k)), w);
    let t1 = lanes.add(lanes.add(early, lanes.choose(e, f, g)), sum1);
    let t2 = lanes.add(sum0, lanes.majority(a, b, c));
    name!(3) = lanes.add(name!(3), t1);
    name!(7) = lanes.add(t1, t2);
}

/// Word `T` modulo 16 of the message schedule, computed from the 16 words before it.
#[inline(always)]
fn expand<L: Lanes, const T: usize>(lanes: L, w: &mut [L::Word; 16]) {
    let w1 = w[const { (T + 1) % 16 }];
    let w14 = w[const { (T + 14) % 16 }];
    let sigma0 = lanes.xor3(lanes.rotate_right::<7>(w1), lanes.rotate_right::<18>(w1), lanes.shift_right::<3>(w1));
    let sigma1 = lanes.xor3(lanes.rotate_right::<17>(w14), lanes.rotate_right::<19>(w14), lanes.shift_right::<10>(w14));
    w[T] = lanes.add(lanes.add(w[T], sigma0), lanes.add(w[const { (T + 9) % 16 }], sigma1));
}
