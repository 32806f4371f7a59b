//! The tests of `damaged.rs`, on a store behind a connection (M3.1).

#[path = "damaged.rs"]
mod tests;
