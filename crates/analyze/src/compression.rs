//! How small unique chunks become when they are compressed as a store does it, told from a part of them.
//!
//! A store compresses frames of neighbouring new chunks. Here frames are made in the same way, of what is unique in
//! *windows* of the data: all of the first ones, so that little data is told exactly, then one of sixteen, so that this
//! takes less time than cutting does. All lanes look at the same windows, so that what one part of the data has more
//! than another does not make one lane look better than another.

/// A frame is closed when it has so many bytes: what `init` makes of backups by default.
pub const FRAME_BYTES: u64 = 512 << 10;
/// The level of zstd: what `init` makes of backups by default.
pub const LEVEL: i32 = 2;
/// Data that is looked at, or passed over, as one.
const WINDOW_BYTES: u64 = 1 << 20;
/// All windows of so much data are looked at,
const DENSE_BYTES: u64 = 128 << 20;
/// then one of so many.
const SPARSE: u64 = 16;

/// Gathers unique chunks and compresses a part of them.
pub struct Sample {
    zstd: Option<zstd::bulk::Compressor<'static>>,
    frame: Vec<u8>,
    packed: Vec<u8>,
    /// The part that the frame belongs to.
    part: usize,
    /// Of the data whose windows are all looked at, of the other.
    parts: [Part; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    /// What the sample stands for.
    bytes: u64,
    /// What was compressed,
    raw: u64,
    /// and what it became.
    stored: u64,
}

/// What a sample says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Stored bytes for each unique byte, up to 1.
    pub ratio: f64,
    /// Bytes that were compressed for it.
    pub sample_bytes: u64,
}

impl Sample {
    /// An empty sample.
    pub fn new() -> Sample {
        // Without memory for a context frames count as they are: too much rather than too little.
        let zstd = zstd::bulk::Compressor::new(LEVEL).ok();
        Sample { zstd, frame: Vec::new(), packed: Vec::new(), part: 0, parts: [Part::default(); 2] }
    }

    /// Adds a unique chunk that stands for `weight` of them and begins at byte `at` of all data.
    pub fn add(&mut self, chunk: &[u8], at: u64, weight: u64) {
        let part = usize::from(at >= DENSE_BYTES);
        self.parts[part].bytes += weight * chunk.len() as u64;
        if part == 1 && !is_chosen(at / WINDOW_BYTES) {
            return;
        }
        if part != self.part {
            self.close();
            self.part = part;
        }
        self.frame.extend_from_slice(chunk);
        if self.frame.len() as u64 >= FRAME_BYTES {
            self.close();
        }
    }

    fn close(&mut self) {
        let raw = self.frame.len();
        if raw == 0 {
            return;
        }
        let bound = zstd::zstd_safe::compress_bound(raw);
        if self.packed.len() < bound {
            self.packed.resize(bound, 0);
        }
        let packed = self.zstd.as_mut().and_then(|zstd| zstd.compress_to_buffer(&self.frame, &mut self.packed[..]).ok());
        // What does not shrink is stored as it is.
        self.parts[self.part].stored += packed.map_or(raw, |packed| packed.min(raw)) as u64;
        self.parts[self.part].raw += raw as u64;
        self.frame.clear();
    }

    /// What is known now.
    pub fn estimate(&mut self) -> Estimate {
        self.close();
        let [dense, sparse] = self.parts;
        let ratio = |part: Part| if part.raw == 0 { 1.0 } else { part.stored as f64 / part.raw as f64 };
        let all = (dense.bytes + sparse.bytes) as f64;
        let stored = dense.bytes as f64 * ratio(dense) + sparse.bytes as f64 * if sparse.raw == 0 { ratio(dense) } else { ratio(sparse) };
        Estimate { ratio: if all > 0.0 { stored / all } else { 1.0 }, sample_bytes: dense.raw + sparse.raw }
    }
}

/// One window of each group, another one in each: data that repeats with the groups does not mislead.
fn is_chosen(window: u64) -> bool {
    let bits = (window / SPARSE).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    window % SPARSE == (bits >> 32) % SPARSE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(length: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut byte = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        (0..length).map(|_| byte()).collect()
    }

    #[test]
    fn little_data_is_compressed_as_a_whole() {
        let mut sample = Sample::new();
        let noise = noise(1 << 20);
        noise.chunks(5000).for_each(|chunk| sample.add(chunk, 0, 1));
        let estimate = sample.estimate();
        assert_eq!(estimate, Estimate { ratio: 1.0, sample_bytes: 1 << 20 });
        let mut sample = Sample::new();
        sample.add(&b"onefold ".repeat(1000), 0, 1);
        let estimate = sample.estimate();
        assert!(estimate.ratio < 0.02 && estimate.sample_bytes == 8000, "{estimate:?}");
        assert_eq!(Sample::new().estimate().ratio, 1.0);
    }

    #[test]
    fn of_much_data_a_part_stands_for_all() {
        // After text, which vanishes, noise that does not shrink and text, taking turns; each is three times as long as
        // a window.
        let mut sample = Sample::new();
        let (text, noise) = (b"onefold ".repeat(512), noise(1 << 20));
        let (mut at, mut noise_bytes) = (0, 0);
        while at < 1 << 30 {
            let is_noise = at >= DENSE_BYTES && (at / (3 * WINDOW_BYTES)).is_multiple_of(2);
            // Within a frame nothing comes again.
            let chunk = if is_noise { &noise[at as usize % (1 << 20) / (64 << 10) * (64 << 10)..][..64 << 10] } else { &text[..] };
            sample.add(chunk, at, 1);
            at += chunk.len() as u64;
            noise_bytes += if is_noise { chunk.len() as u64 } else { 0 };
        }
        let estimate = sample.estimate();
        assert!((DENSE_BYTES..2 * DENSE_BYTES).contains(&estimate.sample_bytes), "{estimate:?}");
        let exact = noise_bytes as f64 / at as f64;
        assert!((estimate.ratio / exact - 1.0).abs() < 0.1, "{estimate:?} for {exact}");
    }
}
