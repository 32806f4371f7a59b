//! The tests of `hostile.rs`, on a store behind a connection (M3.1).

#[path = "hostile.rs"]
mod tests;
