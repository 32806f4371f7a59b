//! The other papers' sets as sequences of steps.

use crate::op::Op;

/// Bytes per fingerprint of [`Set::Fingerprints`](crate::Set::Fingerprints).
pub const FINGERPRINT_BYTES: u64 = 32;

/// Only new data, or only data from the pool.
#[derive(Debug)]
pub(crate) struct PlainScript {
    only: Option<Op>,
}

impl PlainScript {
    pub(crate) fn new(only: Op) -> PlainScript {
        PlainScript { only: Some(only) }
    }

    pub(crate) fn next(&mut self) -> Option<Op> {
        self.only.take()
    }
}

/// Fingerprints in a row that are either all new or all duplicates: as many as a 4 MiB container has chunks of 8 KiB.
const RUN_FINGERPRINTS: u64 = 512;
/// Bytes of such a run of fingerprints.
pub(crate) const FINGERPRINTS_RUN_BYTES: u64 = RUN_FINGERPRINTS * FINGERPRINT_BYTES;
/// Bytes of such a run of data: 128 chunks of 8 KiB, so that chunks that content defines lose little at its ends.
pub(crate) const DATA_RUN_BYTES: u64 = 1 << 20;

/// LevelStore's second data set: version v has (v - 1) tenths of version v - 1, in runs that keep their places.
#[derive(Debug)]
pub(crate) struct VersionScript {
    tenths: u64,
    run_bytes: u64,
    run: u64,
    left: u64,
    skip: u64,
}

impl VersionScript {
    pub(crate) fn new(version: u32, size: u64, run_bytes: u64) -> VersionScript {
        VersionScript { tenths: u64::from(version) - 1, run_bytes, run: 0, left: size, skip: 0 }
    }

    pub(crate) fn next(&mut self) -> Option<Op> {
        if self.skip > 0 {
            return Some(Op::Skip(std::mem::take(&mut self.skip)));
        }
        if self.left == 0 {
            return None;
        }
        let length = self.left.min(self.run_bytes);
        self.left -= length;
        // Spreads this many duplicate runs evenly over each ten runs.
        let is_duplicate = (self.run + 1) * self.tenths / 10 > self.run * self.tenths / 10;
        self.run += 1;
        if is_duplicate {
            return Some(Op::Copy(length));
        }
        if self.tenths > 0 {
            self.skip = length;
        }
        Some(Op::Unique(length))
    }
}

/// A segment of a virtual machine image, in bytes.
pub(crate) const SEGMENT_BYTES: u64 = 4096;
/// Segments in a row that are either all new, all kept or all dropped: 256 KiB.
const RUN_SEGMENTS: u64 = 64;

/// The paper's images VM0 to VM3: distinct segments of each image, and of all images up to it.
pub(crate) const IMAGES: [(u64, u64); 4] = [(518_326, 518_326), (733_267, 921_522), (904_579, 1_189_230), (1_145_029, 1_616_585)];

/// The steps from one image to the next.
#[derive(Debug)]
pub(crate) struct ImageScript {
    /// Segments kept from the previous image, segments dropped from it, and new segments.
    kept: u64,
    dropped: u64,
    new: u64,
    /// How many of each are done.
    kept_done: u64,
    dropped_done: u64,
    new_done: u64,
}

/// Returns the number of segments of image `version` (from 1) if the first image has `golden`: all segments, and those
/// that no earlier image had.
pub(crate) fn image_segments(version: u32, golden: u64) -> (u64, u64) {
    let scale = |segments: u64| (u128::from(segments) * u128::from(golden) / u128::from(IMAGES[0].0)) as u64;
    let place = version as usize - 1;
    let (all, known) = IMAGES[place];
    let before = if place == 0 { 0 } else { IMAGES[place - 1].1 };
    (scale(all), scale(known - before))
}

impl ImageScript {
    pub(crate) fn new(version: u32, golden: u64) -> ImageScript {
        let (all, new) = image_segments(version, golden);
        let before = if version == 1 { 0 } else { image_segments(version - 1, golden).0 };
        // For very small images, the rounded numbers may not fit together.
        let kept = (all - new).min(before);
        ImageScript { kept, dropped: before - kept, new: all - kept, kept_done: 0, dropped_done: 0, new_done: 0 }
    }

    pub(crate) fn next(&mut self) -> Option<Op> {
        let step = |done: &mut u64, all: u64| {
            let now = (all - *done).min(RUN_SEGMENTS);
            *done += now;
            now * SEGMENT_BYTES
        };
        // Spread evenly: whichever kind lags behind the kept segments comes next.
        let is_behind = |done: u64, all: u64, kept_done: u64, kept: u64| {
            done < all && (kept_done == kept || u128::from(done) * u128::from(kept) <= u128::from(kept_done) * u128::from(all))
        };
        if is_behind(self.new_done, self.new, self.kept_done, self.kept) {
            return Some(Op::Unique(step(&mut self.new_done, self.new)));
        }
        if is_behind(self.dropped_done, self.dropped, self.kept_done, self.kept) {
            return Some(Op::Skip(step(&mut self.dropped_done, self.dropped)));
        }
        if self.kept_done < self.kept {
            return Some(Op::Copy(step(&mut self.kept_done, self.kept)));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_images_have_the_papers_segments() {
        for (version, expected) in [(1, 0), (2, 330_071), (3, 636_871), (4, 717_674)] {
            let mut script = ImageScript::new(version, IMAGES[0].0);
            let (mut new, mut kept, mut dropped) = (0, 0, 0);
            while let Some(op) = script.next() {
                match op {
                    Op::Unique(length) => new += length / SEGMENT_BYTES,
                    Op::Copy(length) => kept += length / SEGMENT_BYTES,
                    Op::Skip(length) => dropped += length / SEGMENT_BYTES,
                    Op::Internal(_) => unreachable!("an image repeats nothing"),
                }
            }
            let place = version as usize - 1;
            assert_eq!((new + kept, kept), (IMAGES[place].0, expected));
            assert_eq!(kept + dropped, if place == 0 { 0 } else { IMAGES[place - 1].0 });
        }
    }

    #[test]
    fn small_images_fit_together() {
        for golden in [1, 2, 3, 10, 63, 64, 65, 1000] {
            for version in 2..=4 {
                let mut script = ImageScript::new(version, golden);
                let (mut all, mut source) = (0, 0);
                while let Some(op) = script.next() {
                    match op {
                        Op::Copy(length) => (all, source) = (all + length, source + length),
                        Op::Skip(length) => source += length,
                        Op::Unique(length) | Op::Internal(length) => all += length,
                    }
                }
                assert_eq!(all, image_segments(version, golden).0 * SEGMENT_BYTES);
                assert_eq!(source, image_segments(version - 1, golden).0 * SEGMENT_BYTES);
            }
        }
    }

    #[test]
    fn c_versions_have_tenths_of_duplicates() {
        for (version, run_bytes) in (1..=10).flat_map(|version| [(version, FINGERPRINTS_RUN_BYTES), (version, DATA_RUN_BYTES)]) {
            let size = 10 * run_bytes;
            let mut script = VersionScript::new(version, size, run_bytes);
            let (mut copied, mut source) = (0, 0);
            while let Some(op) = script.next() {
                match op {
                    Op::Copy(length) => (copied, source) = (copied + length, source + length),
                    Op::Skip(length) => source += length,
                    _ => {}
                }
            }
            assert_eq!(copied, size / 10 * (u64::from(version) - 1));
            assert_eq!(source, if version == 1 { 0 } else { size });
        }
    }
}
