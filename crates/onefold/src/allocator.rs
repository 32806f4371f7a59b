//! How the system's allocator gives memory back.
//!
//! A server has many threads that each hold a message of half a megabyte for a moment, and a backup to a bucket holds
//! containers for a moment. The allocator of glibc learns from the first of them to serve such sizes from a heap for
//! each thread, and keeps what was freed: several times what is in use (`onefold-bench servers --many 64` and
//! `onefold-bench object-storage` report the peak). Two bounds keep it small: larger pieces come from the system one by
//! one, and there are as many heaps as processors.

/// Larger pieces come from the system and go back to it. Frames of a store are smaller: to map each of them would
/// cost much time.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_BYTES: i32 = 1 << 20;

/// Bounds what the allocator keeps. Call before there are threads.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn bound() {
    /// `mallopt(3)`: names of parameters in `malloc.h`.
    const TRIM_THRESHOLD: i32 = -1;
    const MMAP_THRESHOLD: i32 = -3;
    const ARENA_MAX: i32 = -8;
    unsafe extern "C" {
        safe fn mallopt(parameter: i32, value: i32) -> i32;
    }
    let processors = std::thread::available_parallelism().map_or(2, |count| i32::try_from(count.get()).unwrap_or(i32::MAX));
    for (parameter, value) in [(MMAP_THRESHOLD, MAPPED_BYTES), (TRIM_THRESHOLD, MAPPED_BYTES), (ARENA_MAX, processors.max(2))] {
        // An allocator that does not know it keeps its own way.
        mallopt(parameter, value);
    }
}

/// Bounds what the allocator keeps: others do it themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn bound() {}
