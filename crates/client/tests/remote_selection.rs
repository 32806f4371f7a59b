//! The tests of `selection.rs`, on a store behind a connection (M3.1).

#[path = "selection.rs"]
mod tests;
