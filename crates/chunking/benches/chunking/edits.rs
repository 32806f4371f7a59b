//! The edit test: what share of an edited copy lies in chunks that the original does not have.

use crate::contenders::Contender;
use crate::corpus;
use std::collections::HashSet;
use xxhash_rust::xxh3::xxh3_64;

/// One edit per this many bytes.
const EVERY_BYTES: usize = 400_000;
/// Number of copies, each with different edits: about 5,000 edits in total.
const COPIES: u64 = 8;

pub struct Result {
    /// Mean length of a chunk.
    pub mean_bytes: f64,
    /// Mean length of the chunk that a byte is in. This is the cost of an edit if the next boundary is found again.
    pub weighted_bytes: f64,
    /// Total length of the distinct chunks.
    pub unique_bytes: usize,
    /// Share of the copies' bytes that are new.
    pub new_share: f64,
}

/// Measures each chunker on the same copies.
pub fn measure(contenders: &[&Contender], data: &[u8]) -> Vec<Result> {
    let originals: Vec<Original> = contenders.iter().map(|contender| Original::new(contender, data)).collect();
    let mut new_bytes = vec![0; contenders.len()];
    let mut copied_bytes = 0;
    for seed in 0..COPIES {
        let copy = corpus::edited(data, EVERY_BYTES, seed);
        copied_bytes += copy.len();
        for ((contender, original), new_bytes) in contenders.iter().zip(&originals).zip(&mut new_bytes) {
            let (_, new) = each_chunk(contender, &copy, |chunk, hash| if original.chunks.contains(&hash) { 0 } else { chunk.len() });
            *new_bytes += new;
        }
    }
    let result = |(original, new): (Original, usize)| Result { new_share: new as f64 / copied_bytes as f64, ..original.result };
    originals.into_iter().zip(new_bytes).map(result).collect()
}

struct Original {
    chunks: HashSet<u64>,
    result: Result,
}

impl Original {
    fn new(contender: &Contender, data: &[u8]) -> Original {
        let mut chunks = HashSet::new();
        let (_, unique_bytes) = each_chunk(contender, data, |chunk, hash| if chunks.insert(hash) { chunk.len() } else { 0 });
        let (count, squares) = each_chunk(contender, data, |chunk, _| chunk.len() * chunk.len());
        let length = data.len() as f64;
        let result = Result { mean_bytes: length / count as f64, weighted_bytes: squares as f64 / length, unique_bytes, new_share: 0.0 };
        Original { chunks, result }
    }
}

/// Returns the number of chunks, and the sum of what `weigh` returns for each chunk and its hash.
fn each_chunk(contender: &Contender, data: &[u8], mut weigh: impl FnMut(&[u8], u64) -> usize) -> (usize, usize) {
    let mut cuts = Vec::new();
    contender.cut(data, &mut cuts);
    let mut start = 0;
    let mut sum = 0;
    for end in &cuts {
        let chunk = &data[start..*end];
        sum += weigh(chunk, xxh3_64(chunk));
        start = *end;
    }
    (cuts.len(), sum)
}
