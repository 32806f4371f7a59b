//! Fingerprints of many chunks at once, with a chunk (or a part of one) in each lane.

#[cfg(any(test, target_arch = "x86_64"))]
mod blake3;
#[cfg(any(test, target_arch = "x86_64"))]
mod sha;
#[cfg(any(test, target_arch = "x86_64"))]
mod sha1;
#[cfg(any(test, target_arch = "x86_64"))]
mod sha256;
#[cfg(any(test, target_arch = "x86_64"))]
mod times;

#[cfg(target_arch = "x86_64")]
use crate::lanes::{Avx2, Avx512, Pair};
use crate::{Algorithm, Fingerprint, Implementation};
#[cfg(target_arch = "x86_64")]
use {sha1::Sha1, sha256::Sha256};

/// Writes the fingerprints of `chunks` to `out`, which has the same length. Goes chunk by chunk if there are no lanes,
/// or if lanes would not pay. Of the short BLAKE3 it may write the whole digests.
pub(crate) fn fingerprint(algorithm: Algorithm, implementation: Implementation, chunks: &[&[u8]], out: &mut [Fingerprint]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(lanes) = Avx512::new().filter(|_| implementation == Implementation::Avx512) {
        return with_avx512(lanes, algorithm, chunks, out);
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(lanes) = Avx2::new().filter(|_| implementation >= Implementation::Avx2) {
        return with_avx2(lanes, algorithm, chunks, out);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = implementation;
    one_by_one(algorithm, chunks, out);
}

fn one_by_one(algorithm: Algorithm, chunks: &[&[u8]], out: &mut [Fingerprint]) {
    for (chunk, fingerprint) in chunks.iter().zip(out) {
        *fingerprint = algorithm.fingerprint(chunk);
    }
}

/// From this many inputs on, two sets of 16 lanes are full most of the time.
#[cfg(target_arch = "x86_64")]
const MANY: usize = 96;

// The numbers are the lanes that must be in use for lanes to be faster than SHA-NI chunk by chunk. They were measured
// (`docs/fingerprints.md`).
#[cfg(target_arch = "x86_64")]
fn with_avx512(lanes: Avx512, algorithm: Algorithm, chunks: &[&[u8]], out: &mut [Fingerprint]) {
    match algorithm {
        Algorithm::Blake3 | Algorithm::Blake3Short => blake3::fingerprint(Pair(lanes), chunks, out),
        Algorithm::Sha256 if chunks.len() >= MANY => sha::fingerprint::<Sha256, _>(Pair(lanes), 12, chunks, out),
        Algorithm::Sha256 => sha::fingerprint::<Sha256, _>(lanes, 8, chunks, out),
        Algorithm::Sha1 => sha::fingerprint::<Sha1, _>(lanes, 4, chunks, out),
    }
}

#[cfg(target_arch = "x86_64")]
fn with_avx2(lanes: Avx2, algorithm: Algorithm, chunks: &[&[u8]], out: &mut [Fingerprint]) {
    match algorithm {
        Algorithm::Blake3 | Algorithm::Blake3Short => blake3::fingerprint(lanes, chunks, out),
        // SHA instructions, where available, are a little faster than eight lanes.
        Algorithm::Sha256 if is_x86_feature_detected!("sha") => one_by_one(algorithm, chunks, out),
        Algorithm::Sha256 => sha::fingerprint::<Sha256, _>(lanes, 3, chunks, out),
        Algorithm::Sha1 => sha::fingerprint::<Sha1, _>(lanes, 5, chunks, out),
    }
}
