//! Short reads: a few chunks of a plain frame, without the rest of the frame.
//!
//! A frame has one checksum, so checking it takes all of its bytes: 64 KiB for a random read of 4 KiB. The chunks of a plain
//! frame lie in the file as they are, and each has a checksum of its own: its fingerprint.
//!
//! # Why no wrong byte is given
//! * The bytes that are given are hashed after they were read, and compared with the fingerprint that the caller wants. So it
//!   does not matter whether their place was right: after a merge that moved the chunk since it was looked up, in a file that
//!   another process changed, or by a wrong catalog.
//! * [`Needed::short_range`] keeps the place within the frame before anything is allocated.
//! * If anything is not as it should be (an error of the device, a file that is gone, another fingerprint), nothing is given,
//!   and the frame is read as a whole, as if there were no short reads. That finds damage, looks again where a merge has moved
//!   the chunk, and lets the engine repair it.
//! * No byte of it goes into the cache of frames.
//!
//! # What it does not see
//! Damage elsewhere in the frame: a reader of that, a second reader soon after, or a scrub finds it. So what *decides* by
//! reading whether a chunk is good (byte-compare, salvage, check) uses [`ContainerStore::load`](crate::ContainerStore::load),
//! which always checks whole frames.

use crate::components::FINGERPRINT;
use crate::frame_cache::Needed;
use crate::store::Shared;
use crate::{Address, Codec, Slice};
use onefold_fingerprint::Fingerprint;
use std::ops::Range;
use std::sync::Arc;

/// A call that needs more frames than this is no short one: its neighbours probably want the rest of the frames.
pub(crate) const SHORT_READ_FRAMES: usize = 4;
/// A short read takes at most this part of its frame. A fingerprint takes several times as long as the checksum of as many
/// bytes (decision 0052).
const LARGEST_SHARE: usize = 2;

impl Needed {
    /// Returns the bytes of the frame from the first wanted chunk to the end of the last, if a short read can take them.
    pub(crate) fn short_range(&self) -> Option<Range<usize>> {
        let raw_bytes = self.frame.raw_bytes as usize;
        if self.frame.codec != Codec::Plain || self.frame.stored_bytes != self.frame.raw_bytes {
            return None;
        }
        let start = self.users.iter().map(|(_, range)| range.start).min()?;
        let end = self.users.iter().map(|(_, range)| range.end).max()?;
        (start <= end && end <= raw_bytes && end - start <= raw_bytes / LARGEST_SHARE).then_some(start..end)
    }
}

impl Shared {
    /// Reads the wanted chunks of a frame without the rest, and gives them if all have their fingerprints. Otherwise returns
    /// false, and gives nothing.
    pub(crate) fn read_short(&self, wanted: &[(Address, Fingerprint)], needed: &Needed, slices: &mut [Option<Slice>]) -> bool {
        let Some(range) = needed.short_range() else { return false };
        let offset = u64::from(needed.frame.offset_bytes) + range.start as u64;
        let Ok(bytes) = self.read_stored(needed.container, Some(needed.frame.number), offset, range.len()) else { return false };
        let within = |chunk: &Range<usize>| chunk.start - range.start..chunk.end - range.start;
        let is_right = self.profile.time(&FINGERPRINT, range.len() as u64, || {
            needed.users.iter().all(|(at, chunk)| self.options.fingerprint.fingerprint(&bytes[within(chunk)]) == wanted[*at].1)
        });
        if is_right {
            let bytes = Arc::new(bytes);
            for (at, chunk) in &needed.users {
                slices[*at] = Some(Slice::new(bytes.clone(), within(chunk)));
            }
        }
        is_right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ContainerId, Frame};

    fn needed(codec: Codec, raw_bytes: u32, users: &[(usize, usize)]) -> Needed {
        let frame = Frame {
            number: 0,
            first_slot: 0,
            slots: users.len() as u32,
            offset_bytes: 64,
            stored_bytes: if codec == Codec::Plain { raw_bytes } else { raw_bytes / 2 },
            raw_bytes,
            codec,
            checksum: 0,
        };
        Needed { container: ContainerId::new(0, 1), frame, users: users.iter().map(|(start, end)| *start..*end).enumerate().collect() }
    }

    #[test]
    fn a_short_read_takes_at_most_half_of_a_plain_frame_and_nothing_behind_it() {
        let range = |users: &[(usize, usize)]| needed(Codec::Plain, 1000, users).short_range();
        assert_eq!(range(&[(300, 400), (100, 200)]), Some(100..400));
        assert_eq!((range(&[(0, 500)]), range(&[(0, 501)]), range(&[(0, 10), (600, 700)])), (Some(0..500), None, None));
        assert_eq!((range(&[(900, 1000)]), range(&[(900, 1001)]), range(&[(5000, 5001)])), (Some(900..1000), None, None));
        assert_eq!((range(&[(7, 7)]), range(&[])), (Some(7..7), None));
        for codec in [Codec::Lz4, Codec::Zstd, Codec::Zlib, Codec::Bzip2] {
            assert_eq!(needed(codec, 1000, &[(0, 10)]).short_range(), None);
        }
        let mut torn = needed(Codec::Plain, 1000, &[(0, 10)]);
        torn.frame.stored_bytes = 999;
        assert_eq!(torn.short_range(), None);
    }
}
