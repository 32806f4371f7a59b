//! Containers (M0.12).
mod address;
pub use address::{Address, ContainerId};
