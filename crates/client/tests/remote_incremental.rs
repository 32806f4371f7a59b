//! The tests of `incremental.rs`, on a store behind a connection (M3.1).

#[path = "incremental.rs"]
mod tests;
