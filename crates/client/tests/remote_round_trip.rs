//! The tests of `round_trip.rs`, on a store behind a connection (M3.1).

#[path = "round_trip.rs"]
mod tests;
