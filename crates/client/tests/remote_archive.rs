//! The tests of `archive.rs`, on a store behind a connection (M3.1).

#[path = "archive.rs"]
mod tests;
