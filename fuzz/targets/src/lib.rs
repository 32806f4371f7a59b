//! What the fuzz targets do, apart from the fuzzer that drives them: libFuzzer in `fuzz/fuzz_targets`, or the replay of the
//! committed corpus in this crate's tests.
//!
//! Each module has one target, `run`, which takes any bytes and panics only on a bug.

pub mod chunkers;
pub mod recipe;
pub mod wire;

/// A target: its name, which is also that of its folder in `fuzz/corpus`, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[("chunkers", chunkers::run), ("recipe", recipe::run), ("wire", wire::run)];
