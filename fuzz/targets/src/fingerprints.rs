//! Fingerprints of batches: every implementation that the machine has gives what the crates give one by one (M0.3).

use onefold_fingerprint::{Algorithm, Fingerprint, Implementation};

/// Most inputs of a batch. The longest has 64 KiB less a byte.
const MAX_INPUTS: usize = 300;

/// One byte chooses the algorithm, one how many lengths follow; a length is two bytes. What is behind them are the
/// bytes of the inputs, repeated as often as it takes; each input begins a byte later than the one before.
pub fn run(data: &[u8]) {
    let Some(([choice, count], rest)) = data.split_first_chunk::<2>() else { return };
    let algorithm = [Algorithm::Blake3, Algorithm::Sha256, Algorithm::Sha1][usize::from(choice % 3)];
    // Many short inputs, or some long ones.
    let (shift, factor) = if choice & 0x80 == 0 { (5, 2) } else { (0, 1) };
    let (lengths, bytes) = rest.split_at(rest.len().min(2 * usize::from(*count)));
    let lengths: Vec<usize> = lengths.as_chunks::<2>().0.iter().map(|length| usize::from(u16::from_le_bytes(*length) >> shift)).collect();
    let lengths: Vec<usize> = lengths.iter().copied().cycle().take((factor * lengths.len()).min(MAX_INPUTS)).collect();
    let longest = lengths.iter().max().copied().unwrap_or(0);
    // Blocks that are all alike would hide a block in the wrong place.
    let bytes: Vec<u8> = bytes
        .iter()
        .chain(&[0])
        .cycle()
        .zip(0u32..)
        .map(|(byte, at)| byte ^ (at.wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .take(longest + MAX_INPUTS)
        .collect();
    let inputs: Vec<&[u8]> = lengths.iter().enumerate().map(|(at, length)| &bytes[at..at + length]).collect();

    let expected: Vec<Fingerprint> = inputs.iter().map(|input| algorithm.fingerprint(input)).collect();
    for implementation in Implementation::available() {
        let mut found = Vec::new();
        algorithm.fingerprint_many_with(implementation, &inputs, &mut found);
        assert_eq!(found, expected, "{algorithm} with {implementation}");
    }
}
