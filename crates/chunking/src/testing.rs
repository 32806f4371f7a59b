//! Data for tests.

/// Returns `length` bytes similar to files: stretches of random bytes, of few values, of zeros, and repetitions of
/// earlier bytes. The same seed gives the same bytes.
pub(crate) fn mixed(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    let mut random = move || {
        // SplitMix64 (Steele et al., 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    };
    let mut data = Vec::with_capacity(length);
    while data.len() < length {
        let run = (random() % 20_000) as usize;
        match random() % 8 {
            0 => data.resize(data.len() + run, 0),
            1 => data.resize(data.len() + run, random() as u8),
            2 if data.len() > run => {
                let from = random() as usize % (data.len() - run);
                data.extend_from_within(from..from + run);
            }
            3 => data.extend((0..run).map(|_| b"etaoin shrdlu\n"[random() as usize % 14])),
            _ => data.extend((0..run).map(|_| random() as u8)),
        }
    }
    data.truncate(length);
    data
}
