//! One row of the result: data cut in one way, and what of it is unique.

use crate::compression::{Estimate, Sample};
use crate::lengths::Lengths;
use crate::read::{Batch, Run};
use crate::seen::{Seen, Sight, Unique};
use onefold_chunking::{Chunker, ChunkingError, Kind, Sizes, chunker};
use onefold_engine::chain::is_zero;
use onefold_fingerprint::{Algorithm, Fingerprint};
use rustix::time::{ClockId, clock_gettime};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Fingerprints that are made in one call, as the engine does.
const FINGERPRINT_BATCH: usize = 1024;

/// How data is cut in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Not at all: a file is a duplicate or not.
    WholeFiles,
    /// Into chunks.
    Chunks {
        /// By this chunker,
        kind: Kind,
        /// around this size.
        target: usize,
    },
}

impl Cut {
    /// How many pieces there are in as much data, compared with other lanes: memory is shared out by it.
    pub fn weight(self) -> f64 {
        match self {
            Cut::WholeFiles => 1.0 / 16384.0,
            Cut::Chunks { target, .. } => 1.0 / target as f64,
        }
    }
}

/// What a lane found.
#[derive(Clone, Debug)]
pub struct Figures {
    /// How data was cut.
    pub cut: Cut,
    /// All bytes, holes and zeros among them.
    pub logical_bytes: u64,
    /// Of them holes, and chunks (or files) of zeros.
    pub zero_bytes: u64,
    /// The chunks (or files) of the rest.
    pub lengths: Lengths,
    /// The different ones among them.
    pub unique: Unique,
    /// How the unique ones compress; not told for whole files.
    pub compression: Option<Estimate>,
    /// Cutting; nothing for whole files.
    pub cutting: Effort,
    /// Making fingerprints.
    pub fingerprinting: Effort,
}

/// Work on so many bytes, in time of the processor: what else the machine does is not in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effort {
    /// Bytes worked on.
    pub bytes: u64,
    /// Time of the thread that did it.
    pub time: Duration,
}

impl Effort {
    fn add(&mut self, bytes: u64, since: Duration) {
        self.bytes += bytes;
        self.time += thread_time().saturating_sub(since);
    }
}

/// Time that the processor has given to this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Cuts all data in one way. Batches come in their order.
pub struct Lane {
    how: How,
    algorithm: Algorithm,
    seen: Seen,
    lengths: Lengths,
    logical_bytes: u64,
    zero_bytes: u64,
    fingerprinting: Effort,
}

/// The parts of one kind of lane.
enum How {
    Chunks(Box<Cutting>),
    WholeFiles(File),
}

struct Cutting {
    kind: Kind,
    target: usize,
    chunker: Arc<dyn Chunker>,
    /// Bytes at the end of the batch before that are in no chunk yet.
    carried: usize,
    cuts: Vec<usize>,
    /// Where the next chunk begins in all data, holes left out.
    at: u64,
    sample: Sample,
    effort: Effort,
}

/// The file that is passing.
#[derive(Clone, Copy)]
struct File {
    /// Names its pieces and holes so far, each of which is mixed in.
    name: Fingerprint,
    /// Bytes so far, without holes.
    bytes: u64,
    is_zero: bool,
}

impl File {
    fn new() -> File {
        File { name: Fingerprint::from_digest(&[]), bytes: 0, is_zero: true }
    }
}

impl Lane {
    /// A lane with so much memory for what it has seen, of one path or of several.
    pub fn new(cut: Cut, algorithm: Algorithm, memory_bytes: u64, has_paths: bool) -> Result<Lane, ChunkingError> {
        let how = match cut {
            Cut::WholeFiles => How::WholeFiles(File::new()),
            Cut::Chunks { kind, target } => How::Chunks(Box::new(Cutting {
                kind,
                target,
                chunker: chunker(kind, Sizes::around(target))?,
                carried: 0,
                cuts: Vec::new(),
                at: 0,
                sample: Sample::new(),
                effort: Effort::default(),
            })),
        };
        Ok(Lane {
            how,
            algorithm,
            seen: Seen::new(memory_bytes, has_paths),
            lengths: Lengths::default(),
            logical_bytes: 0,
            zero_bytes: 0,
            fingerprinting: Effort::default(),
        })
    }

    /// The longest chunk: a batch must repeat as many bytes of the one before.
    pub fn longest_chunk(&self) -> usize {
        match &self.how {
            How::Chunks(cutting) => cutting.chunker.limits().max,
            How::WholeFiles(_) => 0,
        }
    }

    /// Takes the next batch.
    pub fn take(&mut self, batch: &Batch) {
        for run in &batch.runs {
            // A hole may be as long as a file can be: three such files are more than a number holds.
            let bytes = run.hole_bytes.saturating_add((run.data.end - run.new_at) as u64);
            self.logical_bytes = self.logical_bytes.saturating_add(bytes);
            self.zero_bytes = self.zero_bytes.saturating_add(run.hole_bytes);
        }
        let pieces = match &mut self.how {
            How::Chunks(cutting) => cutting.cut(batch),
            How::WholeFiles(_) => batch.runs.iter().map(|run| run.new_at..run.data.end).collect(),
        };
        let pieces: Vec<&[u8]> = pieces.into_iter().map(|range| &batch.data[range]).collect();
        match self.how {
            How::Chunks(_) => self.chunks(batch.root, &pieces),
            How::WholeFiles(file) => self.files(batch, &pieces, file),
        }
    }

    fn chunks(&mut self, root: u32, chunks: &[&[u8]]) {
        // Zeros are not stored, so they need no name.
        let (zeros, named): (Vec<&[u8]>, Vec<&[u8]>) = chunks.iter().partition(|chunk| is_zero(chunk));
        let zero_bytes: u64 = zeros.iter().map(|chunk| chunk.len() as u64).sum();
        self.zero_bytes = self.zero_bytes.saturating_add(zero_bytes);
        let fingerprints = self.fingerprints(&named);
        let How::Chunks(cutting) = &mut self.how else { return };
        for (chunk, fingerprint) in named.iter().zip(&fingerprints) {
            self.lengths.add(chunk.len());
            if self.seen.insert(fingerprint.prefix(), root, chunk.len() as u64) == Sight::First {
                cutting.sample.add(chunk, cutting.at, self.seen.one_in());
            }
            cutting.at += chunk.len() as u64;
        }
        // Where exactly the zeros were does not matter to the sample, but the lanes must keep step.
        cutting.at += zero_bytes;
    }

    fn files(&mut self, batch: &Batch, pieces: &[&[u8]], mut file: File) {
        let fingerprints = self.fingerprints(pieces);
        for ((run, piece), fingerprint) in batch.runs.iter().zip(pieces).zip(&fingerprints) {
            file = self.piece_of_file(file, run, piece, fingerprint, batch.root);
        }
        self.how = How::WholeFiles(file);
    }

    fn piece_of_file(&mut self, mut file: File, run: &Run, piece: &[u8], fingerprint: &Fingerprint, root: u32) -> File {
        // Equal files are read in equal pieces, so their names are equal.
        let mut link = [0; 72];
        link[..32].copy_from_slice(file.name.as_bytes());
        link[32..64].copy_from_slice(fingerprint.as_bytes());
        link[64..].copy_from_slice(&run.hole_bytes.to_le_bytes());
        file.name = self.algorithm.fingerprint(&link);
        file.bytes += piece.len() as u64;
        file.is_zero &= is_zero(piece);
        if !run.is_end_of_file {
            return file;
        }
        if file.is_zero {
            self.zero_bytes = self.zero_bytes.saturating_add(file.bytes);
        } else {
            self.lengths.add(usize::try_from(file.bytes).unwrap_or(usize::MAX));
            self.seen.insert(file.name.prefix(), root, file.bytes);
        }
        File::new()
    }

    fn fingerprints(&mut self, pieces: &[&[u8]]) -> Vec<Fingerprint> {
        let start = thread_time();
        let mut fingerprints = Vec::with_capacity(pieces.len());
        pieces.chunks(FINGERPRINT_BATCH).for_each(|pieces| self.algorithm.fingerprint_many(pieces, &mut fingerprints));
        self.fingerprinting.add(pieces.iter().map(|piece| piece.len() as u64).sum(), start);
        fingerprints
    }

    /// What it found. All batches were taken.
    pub fn finish(self) -> Figures {
        let (cut, compression, cutting) = match self.how {
            How::WholeFiles(_) => (Cut::WholeFiles, None, Effort::default()),
            How::Chunks(mut cutting) => {
                (Cut::Chunks { kind: cutting.kind, target: cutting.target }, Some(cutting.sample.estimate()), cutting.effort)
            }
        };
        Figures {
            cut,
            logical_bytes: self.logical_bytes,
            zero_bytes: self.zero_bytes,
            lengths: self.lengths,
            unique: self.seen.unique(),
            compression,
            cutting,
            fingerprinting: self.fingerprinting,
        }
    }
}

impl Cutting {
    /// The chunks of a batch whose ends are certain.
    fn cut(&mut self, batch: &Batch) -> Vec<Range<usize>> {
        let start = thread_time();
        let mut chunks = Vec::with_capacity(batch.data.len() / self.target + batch.runs.len());
        let mut bytes = 0;
        for run in &batch.runs {
            // What is left over is shorter than the longest chunk, and so much is repeated.
            let mut from = run.new_at.saturating_sub(self.carried).max(run.data.start);
            let data = &batch.data[from..run.data.end];
            self.cuts.clear();
            let consumed = self.chunker.cut(data, run.is_end, &mut self.cuts);
            self.carried = if run.is_end { 0 } else { data.len() - consumed };
            let first = from;
            for cut in &self.cuts {
                chunks.push(from..first + cut);
                from = first + cut;
            }
            bytes += (run.data.end - run.new_at) as u64;
        }
        self.effort.add(bytes, start);
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn data(length: usize, seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut byte = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        (0..length).map(|_| byte()).collect()
    }

    /// A file in batches that end at `ends`, each repeating `repeated` bytes of the one before.
    fn batches(file: &[u8], ends: &[usize], repeated: usize) -> Vec<Batch> {
        let mut batches = Vec::new();
        let mut at = 0;
        for end in ends.iter().copied().chain([file.len()]) {
            let start = at - repeated.min(at);
            let is_end = end == file.len() && batches.len() == ends.len();
            let run = Run { data: 0..end - start, new_at: at - start, hole_bytes: 0, is_end, is_end_of_file: is_end };
            batches.push(Batch { root: 0, data: file[start..end].to_vec(), runs: vec![run] });
            at = end;
        }
        batches
    }

    fn figures(cut: Cut, batches: &[Batch]) -> Figures {
        let mut lane = Lane::new(cut, Algorithm::Blake3, 1 << 20, false).unwrap();
        batches.iter().for_each(|batch| lane.take(batch));
        lane.finish()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn a_file_is_cut_alike_in_any_batches(length in 0..60_000usize, seed: u64, ends in proptest::collection::vec(0..60_000usize, 0..8)) {
            let file = data(length, seed);
            let mut ends: Vec<usize> = ends.into_iter().map(|end| end.min(length)).collect();
            ends.sort_unstable();
            for kind in Kind::ALL {
                let cut = Cut::Chunks { kind, target: 1024 };
                let mut direct = Vec::new();
                chunker(kind, Sizes::around(1024)).unwrap().cut(&file, true, &mut direct);
                let longest = chunker(kind, Sizes::around(1024)).unwrap().limits().max;
                let found = figures(cut, &batches(&file, &ends, longest));
                prop_assert_eq!((found.logical_bytes, found.lengths.bytes(), found.lengths.chunks()), (length as u64, length as u64, direct.len() as u64));
                prop_assert_eq!(found.unique.bytes, length as u64);
            }
        }
    }

    #[test]
    fn a_file_of_many_batches_is_a_duplicate_as_a_whole_only() {
        let file = data(10_000, 1);
        let mut other = file.clone();
        other[9_999] ^= 1;
        let ends = [3000, 6000, 9000];
        let twice: Vec<Batch> = [&file, &file, &other].into_iter().flat_map(|file| batches(file, &ends, 0)).collect();
        let found = figures(Cut::WholeFiles, &twice);
        assert_eq!((found.logical_bytes, found.unique.bytes, found.unique.chunks, found.lengths.chunks()), (30_000, 20_000, 2, 3));
    }

    #[test]
    fn more_holes_than_can_be_counted_are_as_many_as_can_be() {
        let run = Run { data: 0..4096, new_at: 0, hole_bytes: i64::MAX as u64, is_end: true, is_end_of_file: true };
        let batch = Batch { root: 0, data: vec![0; 4096], runs: vec![run; 3] };
        for cut in [Cut::WholeFiles, Cut::Chunks { kind: Kind::Galois, target: 4096 }] {
            let found = figures(cut, std::slice::from_ref(&batch));
            assert_eq!((found.logical_bytes, found.zero_bytes, found.unique.bytes), (u64::MAX, u64::MAX, 0), "{cut:?}");
        }
    }

    #[test]
    fn holes_and_zeros_cost_nothing() {
        let run =
            |data: Range<usize>, hole_bytes, is_end_of_file| Run { new_at: data.start, data, hole_bytes, is_end: true, is_end_of_file };
        // A file of a hole, noise, a hole; a file of zeros.
        let mut bytes = data(5000, 2);
        bytes.resize(9000, 0);
        let runs = vec![run(0..5000, 1 << 20, false), run(5000..5000, 1 << 30, true), run(5000..9000, 0, true)];
        let batch = [Batch { root: 0, data: bytes, runs }];
        for cut in [Cut::WholeFiles, Cut::Chunks { kind: Kind::FastCdc, target: 4096 }] {
            let found = figures(cut, &batch);
            assert_eq!(found.logical_bytes, (1 << 20) + (1 << 30) + 9000, "{cut:?}");
            assert_eq!(found.zero_bytes, (1 << 20) + (1 << 30) + 4000, "{cut:?}");
            assert_eq!((found.unique.bytes, found.lengths.bytes()), (5000, 5000), "{cut:?}");
        }
    }
}
