//! Floors: what the machine gives without a store, measured in the same run as what is compared with it.

use crate::random::Random;
use anyhow::Result;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

const BUFFER_BYTES: usize = 64 << 20;

/// GB/s of a closure that handles `bytes`.
pub fn rate(bytes: u64, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(bytes as f64 / start.elapsed().as_secs_f64() / 1e9)
}

/// Copying memory that is larger than the caches.
pub fn memcpy() -> Result<f64> {
    let source = vec![1u8; BUFFER_BYTES];
    let mut target = vec![2u8; BUFFER_BYTES];
    rate(16 * BUFFER_BYTES as u64, || {
        for _ in 0..16 {
            black_box(&mut target).copy_from_slice(black_box(&source));
        }
        Ok(())
    })
}

/// BLAKE3 of 8 KiB pieces, one thread, one piece after the other.
pub fn blake3() -> Result<f64> {
    let data = vec![1u8; BUFFER_BYTES];
    rate(8 * BUFFER_BYTES as u64, || {
        for _ in 0..8 {
            for piece in data.chunks(8 << 10) {
                black_box(::blake3::hash(black_box(piece)));
            }
        }
        Ok(())
    })
}

/// Writing `bytes` of random data into one file, 1 MiB a call, a sync each 64 MiB and at the end.
pub fn sequential_write(directory: &Path, bytes: u64) -> Result<f64> {
    let mut data = vec![0; BUFFER_BYTES];
    Random::new(1).fill(&mut data);
    let path = directory.join("floor");
    let mut file = File::create(&path)?;
    let result = rate(bytes, || {
        let mut left = bytes;
        while left > 0 {
            for piece in data[..left.min(BUFFER_BYTES as u64) as usize].chunks(1 << 20) {
                file.write_all(piece)?;
                left -= piece.len() as u64;
            }
            file.sync_data()?;
        }
        Ok(())
    });
    fs::remove_file(&path)?;
    result
}
