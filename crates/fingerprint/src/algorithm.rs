//! The hash functions, and how digests become fingerprints.

use crate::{Fingerprint, FingerprintError, Implementation, batch};
use sha1::Digest;
use std::fmt;
use std::str::FromStr;

/// Bytes of the shorter digests.
const SHORT_BYTES: usize = 20;

/// A cryptographic hash function: one per store, chosen at `init`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// BLAKE3, 32 bytes: the default, and the fastest.
    #[default]
    Blake3,
    /// The first 20 bytes of BLAKE3: what profile `cacheless` keeps for each block. Two chunks with one name are found
    /// by chance among 2^80 chunks, and by an attacker with as many attempts.
    Blake3Short,
    /// SHA-256 (FIPS 180-4), 32 bytes.
    Sha256,
    /// SHA-1 (FIPS 180-4), 20 bytes: the paper's hash. Collisions can be made on purpose, so use it only for data that
    /// nobody wants to attack.
    Sha1,
}

impl Algorithm {
    /// All algorithms, the default first.
    pub const ALL: [Algorithm; 4] = [Algorithm::Blake3, Algorithm::Blake3Short, Algorithm::Sha256, Algorithm::Sha1];

    /// Returns the name in the store's descriptor and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Blake3 => "blake3",
            Algorithm::Blake3Short => "blake3-160",
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha1 => "sha1",
        }
    }

    /// Returns the length of a digest: the bytes of a [`Fingerprint`] that formats store.
    pub fn digest_bytes(self) -> usize {
        match self {
            Algorithm::Blake3 | Algorithm::Sha256 => 32,
            Algorithm::Blake3Short | Algorithm::Sha1 => SHORT_BYTES,
        }
    }

    /// Returns the name of a chunk of user data.
    pub fn fingerprint(&self, chunk: &[u8]) -> Fingerprint {
        match self {
            Algorithm::Blake3 => Fingerprint::from_digest(blake3::hash(chunk).as_bytes()),
            Algorithm::Blake3Short => Fingerprint::from_digest(&blake3::hash(chunk).as_bytes()[..SHORT_BYTES]),
            Algorithm::Sha256 => Fingerprint::from_digest(&sha2::Sha256::digest(chunk)),
            Algorithm::Sha1 => Fingerprint::from_digest(&sha1::Sha1::digest(chunk)),
        }
    }

    /// Appends the names of many chunks of user data to `out`, in order. From about ten chunks on, this is much faster
    /// than chunk by chunk (`docs/fingerprints.md`).
    pub fn fingerprint_many(&self, chunks: &[&[u8]], out: &mut Vec<Fingerprint>) {
        self.fingerprint_many_with(Implementation::best(), chunks, out);
    }

    /// Does the same with these instructions, or with lesser ones if the machine lacks them. For tests and
    /// measurements.
    pub fn fingerprint_many_with(&self, implementation: Implementation, chunks: &[&[u8]], out: &mut Vec<Fingerprint>) {
        let start = out.len();
        out.resize(start + chunks.len(), Fingerprint::from_digest(&[]));
        let names = &mut out[start..];
        batch::fingerprint(*self, implementation, chunks, names);
        if *self == Algorithm::Blake3Short {
            names.iter_mut().for_each(|name| *name = Fingerprint::from_digest(name.digest(SHORT_BYTES)));
        }
    }

    /// Returns the name of a metadata chunk: the complement of the digest of its bytes, so that no user data can have
    /// the same name (`docs/format.md` 5.3).
    pub fn metadata(&self, chunk: &[u8]) -> Fingerprint {
        let mut bytes = *self.fingerprint(chunk).as_bytes();
        for byte in &mut bytes[..self.digest_bytes()] {
            *byte = !*byte;
        }
        Fingerprint::from_digest(&bytes)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = FingerprintError;

    fn from_str(name: &str) -> Result<Algorithm, FingerprintError> {
        Algorithm::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .ok_or_else(|| FingerprintError::UnknownAlgorithm { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn digest(algorithm: Algorithm, chunk: &[u8]) -> String {
        algorithm.fingerprint(chunk).to_string()[..2 * algorithm.digest_bytes()].to_owned()
    }

    /// The examples of FIPS 180-4 (NIST CSRC "Secure Hash Standard" values) and the test vectors of the BLAKE3 project.
    #[test]
    fn m0_3_known_answers() {
        let blocks = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        assert_eq!(digest(Algorithm::Sha1, b""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        assert_eq!(digest(Algorithm::Sha1, b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert_eq!(digest(Algorithm::Sha1, blocks), "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
        assert_eq!(digest(Algorithm::Sha256, b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(digest(Algorithm::Sha256, b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(digest(Algorithm::Sha256, blocks), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
        assert_eq!(digest(Algorithm::Blake3, b""), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
        assert_eq!(digest(Algorithm::Blake3, b"abc"), "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85");
        assert_eq!(digest(Algorithm::Blake3Short, b"abc"), "6437b3ac38465133ffb63b75273a8db548c55846");
        assert_eq!(digest(Algorithm::Blake3, &[0]), "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213");
    }

    #[test]
    fn names_are_read_as_written_and_others_refused() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        let error = "md5".parse::<Algorithm>().unwrap_err();
        assert_eq!(error.to_string(), "unknown fingerprint \"md5\": it is blake3, blake3-160, sha256 or sha1");
    }

    proptest! {
        #[test]
        fn many_chunks_get_the_fingerprints_of_each(chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..3000), 0..20)) {
            let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
            for algorithm in Algorithm::ALL {
                let mut many = vec![Fingerprint::from_digest(b"before")];
                algorithm.fingerprint_many(&chunks, &mut many);
                prop_assert_eq!(many.len(), 1 + chunks.len());
                for (chunk, fingerprint) in chunks.iter().zip(&many[1..]) {
                    prop_assert_eq!(algorithm.fingerprint(chunk), *fingerprint);
                }
            }
        }

        #[test]
        fn metadata_has_all_bits_of_the_digest_flipped_and_none_behind_it(chunk: Vec<u8>) {
            for algorithm in Algorithm::ALL {
                let (data, metadata) = (algorithm.fingerprint(&chunk), algorithm.metadata(&chunk));
                for (index, (byte, flipped)) in data.as_bytes().iter().zip(metadata.as_bytes()).enumerate() {
                    if index < algorithm.digest_bytes() {
                        prop_assert_eq!(*byte, !flipped);
                    } else {
                        prop_assert_eq!((*byte, *flipped), (0, 0));
                    }
                }
            }
        }
    }
}
