//! Zero-chunk filter: a chunk of zeros is not stored at all; it exists everywhere.

use super::{Filter, Lookup, Request, Verdict};
use crate::Result;
use onefold_ground::profile::Component;

static COMPONENT: Component = Component::new("filter_zero_chunk");

/// Returns whether all bytes are zero. Compares blocks that the compiler turns into vector operations.
pub fn is_zero(data: &[u8]) -> bool {
    let (blocks, rest) = data.as_chunks::<128>();
    blocks.iter().all(|block| block.iter().fold(0, |or, byte| or | byte) == 0) && rest.iter().all(|byte| *byte == 0)
}

/// Says EXISTING to chunks of zeros, and nothing to others.
#[derive(Debug, Default)]
pub struct ZeroChunkFilter;

impl Filter for ZeroChunkFilter {
    fn name(&self) -> &'static str {
        "zero-chunk"
    }

    fn max(&self) -> Verdict {
        Verdict::Existing
    }

    fn component(&self) -> &'static Component {
        &COMPONENT
    }

    fn check(&self, _request: &Request<'_>, lookups: &mut [Lookup<'_>], active: &[usize]) -> Result<()> {
        for at in active {
            if lookups[*at].verdict == Verdict::WeakMaybe && is_zero(lookups[*at].data) {
                lookups[*at].verdict = Verdict::Existing;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_anywhere_is_seen() {
        for length in [0, 1, 127, 128, 129, 1000] {
            let mut data = vec![0; length];
            assert!(is_zero(&data));
            for place in 0..length {
                data[place] = 1;
                assert!(!is_zero(&data), "{place} of {length}");
                data[place] = 0;
            }
        }
    }
}
