//! An ideal counter: what the chunks of the corpus take when each is stored once and nothing else is stored at all.
//! It says how much of a repository's size is the data's and how much is the store's.

use crate::report::Report;
use crate::{Options, corpus};
use anyhow::Result;
use onefold_chunking::{Chunker, Kind, Sizes, chunker};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// The chunks seen so far.
struct Counter {
    chunker: Arc<dyn Chunker>,
    seen: HashSet<[u8; 32]>,
    compressor: zstd::bulk::Compressor<'static>,
    unique_bytes: u64,
    one_by_one_bytes: u64,
    frames_bytes: u64,
    frame: Vec<u8>,
}

/// Raw bytes of a frame: 64 KiB as in the store.
const FRAME_BYTES: usize = 64 << 10;

/// Counts both generations and the image with scattered writes.
pub fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let place = tempfile::tempdir_in(&options.memory)?;
    let tree = place.path().join("tree");
    corpus::create(&tree, options.size, options.seed)?;
    report.group(format!("Ideal counter, 8 KiB chunks, no overhead ({:.2} GB)", corpus::measure(&tree).0 as f64 / 1e9));
    let mut counter = Counter {
        chunker: chunker(Kind::default(), Sizes::default())?,
        seen: HashSet::new(),
        compressor: zstd::bulk::Compressor::new(1)?,
        unique_bytes: 0,
        one_by_one_bytes: 0,
        frames_bytes: 0,
        frame: Vec::new(),
    };
    for (name, generation) in [("first", 1), ("second adds", 2), ("image of the second, 1 % overwritten, adds", 3)] {
        match generation {
            2 => corpus::change(&tree, options.seed)?,
            3 => corpus::scatter(&tree.join("disk.img"), options.seed)?,
            _ => {}
        }
        let (unique, single, frames) = counter.count(&tree)?;
        report.add(format!("{name}: unique"), unique as f64 / 1e6, "MB");
        report.add(format!("{name}: zstd -1 one by one"), single as f64 / 1e6, "MB");
        report.add(format!("{name}: zstd -1 in frames of 64 KiB"), frames as f64 / 1e6, "MB");
    }
    report.add("chunks in all", counter.seen.len() as f64, "");
    Ok(())
}

impl Counter {
    /// Unique bytes of a tree that were not seen before: raw, compressed one by one, compressed in frames.
    fn count(&mut self, tree: &Path) -> Result<(u64, u64, u64)> {
        let before = (self.unique_bytes, self.one_by_one_bytes, self.frames_bytes);
        let mut waiting = vec![tree.to_path_buf()];
        while let Some(path) = waiting.pop() {
            if path.is_dir() {
                let mut below = std::fs::read_dir(&path)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
                below.sort_by(|a, b| b.cmp(a));
                waiting.extend(below);
            } else {
                self.file(&std::fs::read(&path)?)?;
            }
        }
        self.close_frame()?;
        Ok((self.unique_bytes - before.0, self.one_by_one_bytes - before.1, self.frames_bytes - before.2))
    }

    fn file(&mut self, data: &[u8]) -> Result<()> {
        let mut cuts = Vec::new();
        self.chunker.cut(data, true, &mut cuts);
        let mut start = 0;
        for cut in cuts {
            let chunk = &data[start..cut];
            start = cut;
            if chunk.iter().all(|byte| *byte == 0) || !self.seen.insert(*blake3::hash(chunk).as_bytes()) {
                continue;
            }
            self.unique_bytes += chunk.len() as u64;
            self.one_by_one_bytes += self.compressor.compress(chunk)?.len().min(chunk.len()) as u64;
            self.frame.extend_from_slice(chunk);
            if self.frame.len() >= FRAME_BYTES {
                self.close_frame()?;
            }
        }
        Ok(())
    }

    fn close_frame(&mut self) -> Result<()> {
        self.frames_bytes += self.compressor.compress(&self.frame)?.len().min(self.frame.len()) as u64;
        self.frame.clear();
        Ok(())
    }
}
