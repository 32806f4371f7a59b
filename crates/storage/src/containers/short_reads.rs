//! Short reads: a few chunks of a plain frame, without the rest of the frame.
//!
//! A frame has one checksum, so checking it takes all of its bytes: 64 KiB for a random read of 4 KiB. The chunks of a
//! plain frame lie in the file as they are, and each has its own checksum: its fingerprint.
//!
//! # Why no wrong byte is returned
//! * The bytes are hashed after they were read, and compared with the fingerprint that the caller wants. So it does not
//!   matter whether their place was right: a merge may have moved the chunk since it was looked up, another process may
//!   have changed the file, or the catalog may be wrong.
//! * [`Needed::short_range`] keeps the place within the frame before anything is allocated.
//! * If anything is wrong (an error of the device, a missing file, another fingerprint), nothing is returned, and the
//!   frame is read as a whole, as if there were no short reads. That finds damage, looks again where a merge has moved
//!   the chunk, and lets the engine repair it.
//! * None of these bytes go into the cache of frames.
//!
//! # What it does not see
//! Damage elsewhere in the frame. A reader of that part finds it, or a second reader soon after, or a scrub. So whoever
//! *decides* by reading whether a chunk is good (byte-compare, salvage, check) uses
//! [`ContainerStore::load`](crate::ContainerStore::load), which always checks whole frames.

use crate::components::FINGERPRINT;
use crate::containers::frame_cache::Needed;
use crate::containers::store::Shared;
use crate::{Address, Slice};
use onefold_fingerprint::Fingerprint;
use std::ops::Range;
use std::sync::Arc;

impl Shared {
    /// Reads the wanted chunks of a frame without the rest, and puts them into `slices` if all have their fingerprints.
    /// Otherwise returns false, and `slices` stays.
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
