//! BLAKE3 of many inputs at once (the BLAKE3 paper, sections 2.1 to 2.6).
//!
//! An input is cut into *leaves* of 1 KiB (the paper calls them chunks); the last one may be shorter. Each leaf becomes
//! a chaining value of 32 bytes. Two adjacent values become their parent's value, level by level, until one is left:
//! the digest. All leaves of all inputs are independent of each other, and so are all parents of a level. So they fill
//! the lanes whatever the lengths of the inputs.
//!
//! - Whole leaves have 16 blocks, so lanes filled with them start and end together. Shorter leaves are hashed with
//!   others of about the same length. A lane that is done before the others keeps its value.
//! - A parent without a neighbour moves up a level unchanged. That gives the paper's tree, whose left subtrees are
//!   powers of two.
//! - Memory is bounded by [`GROUP_LEAVES`], not by the batch.

use super::times::four_times;
use crate::Fingerprint;
use crate::lanes::{Block, ByteOrder, Lanes, MAX_LANES, Row, Task};
use std::slice;

const LEAF_BYTES: usize = 1024;
const LEAF_BLOCKS: usize = 16;

/// The flags of the paper's table 3.
const CHUNK_START: u32 = 1;
const CHUNK_END: u32 = 2;
const PARENT: u32 = 4;
const ROOT: u32 = 8;

/// The paper's table 1: the same values as for SHA-256.
const IV: [u32; 8] = [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// The paper's table 2, applied repeatedly: the word of the block that each step of each round takes.
const SCHEDULE: [[usize; 16]; 7] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8],
    [3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1],
    [10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6],
    [12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4],
    [9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7],
    [11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13],
];

/// Inputs longer than this fill the lanes on their own, so the crate `blake3` hashes them. The number of a leaf fits in
/// 32 bits.
const LONG_BYTES: usize = 256 << 10;

/// Inputs are hashed together as soon as they have this many leaves. A group has at least one input and at most this
/// many leaves plus the leaves of one more input. Memory is for chaining values: twice 32 bytes per leaf.
const GROUP_LEAVES: usize = 1024;

/// A batch is worth its lanes from this many leaves on, where each input counts as two extra leaves. Measured with
/// chunks of 8 KiB and with small chunks.
const LEAST: usize = 22;

/// How far ahead data is prefetched: chunks usually lie one after the other, and 32 lanes read this much at a time.
/// Batches from memory become 40 % faster, batches in cache 4 % slower.
const AHEAD_BYTES: usize = 32 * LEAF_BYTES;

type Value = [u8; 32];

/// Writes the fingerprints of `inputs` to `out`, which has the same length.
pub(crate) fn fingerprint<L: Lanes>(lanes: L, inputs: &[&[u8]], out: &mut [Fingerprint]) {
    let mut group = Group::new();
    for (at, input) in inputs.iter().enumerate() {
        if input.len() > LONG_BYTES {
            out[at] = Fingerprint::from_digest(::blake3::hash(input).as_bytes());
            continue;
        }
        group.inputs.push((at, input));
        group.leaves += leaves_of(input);
        if group.leaves >= GROUP_LEAVES {
            group.finish(lanes, out);
        }
    }
    group.finish(lanes, out);
}

/// Returns the number of leaves. An empty input has one empty leaf.
fn leaves_of(input: &[u8]) -> usize {
    input.len().div_ceil(LEAF_BYTES).max(1)
}

/// Inputs whose leaves fill lanes together.
struct Group<'a> {
    /// Each input, with its place in the batch.
    inputs: Vec<(usize, &'a [u8])>,
    /// The number of leaves of all inputs.
    leaves: usize,
    /// The chaining values of one level of all trees, one tree after the other. `next` has the values of the next
    /// level.
    level: Vec<Value>,
    next: Vec<Value>,
    /// The trees of `level`: the input's place in the batch, and the number of values.
    trees: Vec<(usize, usize)>,
    /// The last leaves of inputs, if shorter than 1 KiB.
    short: Vec<ShortLeaf<'a>>,
}

/// A leaf of less than 1 KiB. [`Job`] describes the other fields.
struct ShortLeaf<'a> {
    bytes: &'a [u8],
    counter: usize,
    end_flags: u32,
    target: usize,
}

impl<'a> Group<'a> {
    fn new() -> Group<'a> {
        Group { inputs: Vec::new(), leaves: 0, level: Vec::new(), next: Vec::new(), trees: Vec::new(), short: Vec::new() }
    }

    /// Hashes the inputs and leaves the group empty.
    fn finish<L: Lanes>(&mut self, lanes: L, out: &mut [Fingerprint]) {
        if self.leaves + 2 * self.inputs.len() < LEAST {
            for (at, input) in &self.inputs {
                out[*at] = Fingerprint::from_digest(::blake3::hash(input).as_bytes());
            }
        } else {
            self.level.resize(self.leaves, [0; 32]);
            self.hash_leaves(lanes);
            while self.collect_roots(out) {
                self.hash_parents(lanes);
            }
        }
        self.inputs.clear();
        self.leaves = 0;
    }

    fn hash_leaves<L: Lanes>(&mut self, lanes: L) {
        let mut whole = Work::new();
        let mut target = 0;
        for (at, input) in &self.inputs {
            let count = leaves_of(input);
            let end_flags = if count == 1 { CHUNK_END | ROOT } else { CHUNK_END };
            let (blocks, _) = input.as_chunks::<64>();
            let (leaves, _) = blocks.as_chunks::<LEAF_BLOCKS>();
            for (counter, blocks) in leaves.iter().enumerate() {
                whole.push(Job { blocks, length: LEAF_BYTES, counter, start_flags: CHUNK_START, end_flags, target: target + counter });
                if whole.count == L::COUNT {
                    whole.hash(lanes, &mut self.level);
                }
            }
            let counter = leaves.len();
            if counter < count {
                self.short.push(ShortLeaf { bytes: &input[counter * LEAF_BYTES..], counter, end_flags, target: target + counter });
            }
            self.trees.push((*at, count));
            target += count;
        }
        // Longest first: these share lanes with the whole leaves that are left.
        self.short.sort_unstable_by_key(|leaf| std::cmp::Reverse(leaf.bytes.len()));
        let mut padded = [[[0; 64]; LEAF_BLOCKS]; MAX_LANES];
        let mut short = self.short.drain(..);
        while whole.count > 0 || short.len() > 0 {
            let mut mixed = whole.take();
            let free = (L::COUNT - mixed.count).min(short.len());
            for (leaf, padded) in short.by_ref().take(free).zip(&mut padded) {
                let length = leaf.bytes.len();
                let blocks = &mut padded[..length.div_ceil(64).max(1)];
                let (bytes, rest) = blocks.as_flattened_mut().split_at_mut(length);
                bytes.copy_from_slice(leaf.bytes);
                rest.fill(0);
                let ShortLeaf { counter, end_flags, target, .. } = leaf;
                mixed.push(Job { blocks, length, counter, start_flags: CHUNK_START, end_flags, target });
            }
            mixed.hash(lanes, &mut self.level);
        }
    }

    /// Writes out the digests of trees that have only one value left. Returns whether any tree has more.
    fn collect_roots(&mut self, out: &mut [Fingerprint]) -> bool {
        let mut start = 0;
        for (at, count) in &self.trees {
            if *count == 1 {
                out[*at] = Fingerprint::from_digest(&self.level[start]);
            }
            start += count;
        }
        let more = self.trees.iter().any(|(_, count)| *count > 1);
        if !more {
            self.trees.clear();
        }
        more
    }

    /// Computes the values of the next level from this level's. Leaves out finished trees.
    fn hash_parents<L: Lanes>(&mut self, lanes: L) {
        let next_count = self.trees.iter().filter(|(_, count)| *count > 1).map(|(_, count)| count.div_ceil(2)).sum();
        self.next.resize(next_count, [0; 32]);
        let mut parents = Work::new();
        let (mut start, mut target) = (0, 0);
        for (_, count) in &self.trees {
            let values = &self.level[start..start + count];
            start += count;
            if *count == 1 {
                continue;
            }
            let end_flags = if *count == 2 { PARENT | ROOT } else { PARENT };
            let (pairs, _) = values.as_flattened().as_chunks::<64>();
            for pair in pairs {
                parents.push(Job { blocks: slice::from_ref(pair), length: 64, counter: 0, start_flags: 0, end_flags, target });
                target += 1;
                if parents.count == L::COUNT {
                    parents.hash(lanes, &mut self.next);
                }
            }
            if let (true, Some(last)) = (count % 2 == 1, values.last()) {
                self.next[target] = *last;
                target += 1;
            }
        }
        parents.hash(lanes, &mut self.next);
        self.trees.retain_mut(|(_, count)| {
            let keep = *count > 1;
            *count = count.div_ceil(2);
            keep
        });
        std::mem::swap(&mut self.level, &mut self.next);
    }
}

/// A leaf or a parent: the input of one chaining value.
struct Job<'a> {
    /// At least one.
    blocks: &'a [Block],
    /// Bytes that count. The rest of the last block is zeros.
    length: usize,
    /// The number of the leaf in its input.
    counter: usize,
    /// Flags of the first block and of the last block. A single block has both.
    start_flags: u32,
    end_flags: u32,
    /// Where in the level the chaining value goes.
    target: usize,
}

/// Read by lanes that have nothing to do.
static NOTHING: Block = [0; 64];

/// One job per lane. Together they should have about the same number of blocks.
struct Work<'a> {
    /// The number of lanes with a job.
    count: usize,
    blocks: [&'a [Block]; MAX_LANES],
    /// Length, counter and flags of each lane's job.
    lengths: Row,
    counters: Row,
    start_flags: Row,
    end_flags: Row,
    targets: [usize; MAX_LANES],
}

impl<'a> Work<'a> {
    fn new() -> Work<'a> {
        let rows = [0; MAX_LANES];
        let blocks = [slice::from_ref(&NOTHING); MAX_LANES];
        Work { count: 0, blocks, lengths: rows, counters: rows, start_flags: rows, end_flags: rows, targets: [0; MAX_LANES] }
    }

    /// Moves the jobs out, so that jobs with a shorter lifetime can be added.
    fn take<'b>(&mut self) -> Work<'b>
    where
        'a: 'b,
    {
        let taken = Work { blocks: self.blocks, ..*self };
        self.count = 0;
        taken
    }

    #[inline(always)]
    fn push(&mut self, job: Job<'a>) {
        let lane = self.count;
        self.blocks[lane] = job.blocks;
        self.lengths[lane] = job.length as u32;
        self.counters[lane] = job.counter as u32;
        self.start_flags[lane] = job.start_flags;
        self.end_flags[lane] = job.end_flags;
        self.targets[lane] = job.target;
        self.count += 1;
    }

    /// Does the jobs, writes the chaining values to their targets, and leaves no jobs.
    fn hash<L: Lanes>(&mut self, lanes: L, level: &mut [Value]) {
        let mut values = [[0; 8]; MAX_LANES];
        lanes.run(Hash { lanes, work: self, values: &mut values });
        for (value, target) in values.iter().zip(&self.targets).take(self.count) {
            for (bytes, word) in level[*target].as_chunks_mut::<4>().0.iter_mut().zip(value) {
                *bytes = word.to_le_bytes();
            }
        }
        self.count = 0;
    }

    /// Returns the number of blocks of the longest job.
    fn steps(&self) -> usize {
        self.blocks[..self.count].iter().map(|blocks| blocks.len()).max().unwrap_or(0)
    }

    /// Returns what each lane does with its block number `at`.
    #[inline(always)]
    fn step(&self, at: usize) -> Step<'a> {
        let mut step =
            Step { blocks: [&NOTHING; MAX_LANES], lengths: [64; MAX_LANES], flags: [0; MAX_LANES], active: [u32::MAX; MAX_LANES] };
        for lane in 0..MAX_LANES {
            step.blocks[lane] = self.blocks[lane].get(at).unwrap_or(&NOTHING);
        }
        for lane in 0..MAX_LANES {
            let (length, start) = (self.lengths[lane], 64 * at as u32);
            // An empty job still has one block.
            step.active[lane] = if length > start || at == 0 { u32::MAX } else { 0 };
            step.lengths[lane] = length.saturating_sub(start).min(64);
            step.flags[lane] =
                if at == 0 { self.start_flags[lane] } else { 0 } | if length <= start + 64 { self.end_flags[lane] } else { 0 };
        }
        step
    }
}

struct Step<'a> {
    blocks: [&'a Block; MAX_LANES],
    /// Bytes that count in the block.
    lengths: Row,
    flags: Row,
    /// All ones in lanes that are not done yet.
    active: Row,
}

/// Computes the chaining values of the jobs.
struct Hash<'a, L> {
    lanes: L,
    work: &'a Work<'a>,
    values: &'a mut [[u32; 8]; MAX_LANES],
}

impl<L: Lanes> Task for Hash<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Hash { lanes, work, values } = self;
        let [a, b, c, d, e, f, g, h] = IV;
        let [a, b, c, d] = [lanes.splat(a), lanes.splat(b), lanes.splat(c), lanes.splat(d)];
        let mut state = [a, b, c, d, lanes.splat(e), lanes.splat(f), lanes.splat(g), lanes.splat(h)];
        let counters = lanes.load(&work.counters);
        for at in 0..work.steps() {
            let step = work.step(at);
            for block in &step.blocks[..L::COUNT] {
                lanes.prefetch(block, AHEAD_BYTES);
            }
            let words = lanes.load_blocks(&step.blocks, ByteOrder::Little);
            let after = compress(lanes, &state, &words, counters, lanes.load(&step.lengths), lanes.load(&step.flags));
            let active = lanes.load(&step.active);
            for word in 0..8 {
                state[word] = lanes.choose(active, after[word], state[word]);
            }
        }
        lanes.store(&state, values);
    }
}

/// The compression function (section 2.2 of the paper), as far as chaining values need it.
#[inline(always)]
fn compress<L: Lanes>(
    lanes: L,
    state: &[L::Word; 8],
    words: &[L::Word; 16],
    counters: L::Word,
    lengths: L::Word,
    flags: L::Word,
) -> [L::Word; 8] {
    let [a, b, c, d, e, f, g, h] = *state;
    let [iv0, iv1, iv2, iv3] = [lanes.splat(IV[0]), lanes.splat(IV[1]), lanes.splat(IV[2]), lanes.splat(IV[3])];
    let mut v = [a, b, c, d, e, f, g, h, iv0, iv1, iv2, iv3, counters, lanes.splat(0), lengths, flags];
    // Word indices are constants, so that the words can stay in registers.
    round::<L, 0>(lanes, &mut v, words);
    round::<L, 1>(lanes, &mut v, words);
    round::<L, 2>(lanes, &mut v, words);
    round::<L, 3>(lanes, &mut v, words);
    round::<L, 4>(lanes, &mut v, words);
    round::<L, 5>(lanes, &mut v, words);
    round::<L, 6>(lanes, &mut v, words);
    let mut after = *state;
    for word in 0..8 {
        after[word] = lanes.xor(v[word], v[word + 8]);
    }
    after
}

#[inline(always)]
fn round<L: Lanes, const ROUND: usize>(lanes: L, v: &mut [L::Word; 16], m: &[L::Word; 16]) {
    // The columns, then the diagonals.
    half_step::<L, ROUND, 0, 0, 16, 12>(lanes, v, m);
    half_step::<L, ROUND, 0, 1, 8, 7>(lanes, v, m);
    half_step::<L, ROUND, 1, 0, 16, 12>(lanes, v, m);
    half_step::<L, ROUND, 1, 1, 8, 7>(lanes, v, m);
}

/// One half (`HALF`) of the function G for four columns (`DIAGONAL` 0) or four diagonals (1). Each column waits for its
/// own results, and the other columns fill that time.
#[inline(always)]
fn half_step<L: Lanes, const ROUND: usize, const DIAGONAL: usize, const HALF: usize, const D_BITS: i32, const B_BITS: i32>(
    lanes: L,
    v: &mut [L::Word; 16],
    m: &[L::Word; 16],
) {
    macro_rules! a {
        ($i:ident) => {
            v[$i]
        };
    }
    macro_rules! b {
        ($i:ident) => {
            v[const { 4 + ($i + DIAGONAL) % 4 }]
        };
    }
    macro_rules! c {
        ($i:ident) => {
            v[const { 8 + ($i + 2 * DIAGONAL) % 4 }]
        };
    }
    macro_rules! d {
        ($i:ident) => {
            v[const { 12 + ($i + 3 * DIAGONAL) % 4 }]
        };
    }
    four_times!(I => a!(I) = lanes.add(a!(I), m[const { SCHEDULE[ROUND][8 * DIAGONAL + 2 * I + HALF] }]));
    four_times!(I => a!(I) = lanes.add(a!(I), b!(I)));
    four_times!(I => d!(I) = lanes.xor(d!(I), a!(I)));
    four_times!(I => d!(I) = lanes.rotate_right::<D_BITS>(d!(I)));
    four_times!(I => c!(I) = lanes.add(c!(I), d!(I)));
    four_times!(I => b!(I) = lanes.xor(b!(I), c!(I)));
    four_times!(I => b!(I) = lanes.rotate_right::<B_BITS>(b!(I)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{Pair, Portable};

    fn check<L: Lanes>(lanes: L, inputs: &[&[u8]]) {
        let mut out = vec![Fingerprint::from_digest(&[]); inputs.len()];
        fingerprint(lanes, inputs, &mut out);
        for (found, input) in out.iter().zip(inputs) {
            assert_eq!(*found, Fingerprint::from_digest(::blake3::hash(input).as_bytes()), "{} bytes of {}", input.len(), inputs.len());
        }
    }

    #[test]
    fn plain_lanes_give_the_digests_of_the_crate() {
        let bytes: Vec<u8> = (0..20_000u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        let lengths = [0, 1, 63, 64, 65, 1023, 1024, 1025, 2048, 3100, 5 * 1024, 7 * 1024 + 1];
        let mut inputs: Vec<&[u8]> = lengths.iter().map(|length| &bytes[*length..2 * length]).collect();
        check(Portable, &inputs);
        check(Pair(Portable), &inputs);
        if !cfg!(miri) {
            // Makes more than one group.
            inputs = inputs.repeat(60);
            check(Portable, &inputs);
        }
    }
}
