//! Fingerprints of many chunks at once, a chunk (or a part of one) in each lane.

pub(crate) mod blake3;

#[cfg(target_arch = "x86_64")]
use crate::lanes::{Avx2, Avx512, Pair};
use crate::{Algorithm, Fingerprint, Implementation};

/// Writes the fingerprints of `chunks` to `out`, which is as long. Without lanes, or where they would not pay, chunk by chunk.
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

#[cfg(target_arch = "x86_64")]
fn with_avx512(lanes: Avx512, algorithm: Algorithm, chunks: &[&[u8]], out: &mut [Fingerprint]) {
    match algorithm {
        Algorithm::Blake3 => blake3::fingerprint(Pair(lanes), chunks, out),
        Algorithm::Sha256 | Algorithm::Sha1 => one_by_one(algorithm, chunks, out),
    }
}

#[cfg(target_arch = "x86_64")]
fn with_avx2(lanes: Avx2, algorithm: Algorithm, chunks: &[&[u8]], out: &mut [Fingerprint]) {
    match algorithm {
        Algorithm::Blake3 => blake3::fingerprint(lanes, chunks, out),
        Algorithm::Sha256 | Algorithm::Sha1 => one_by_one(algorithm, chunks, out),
    }
}
