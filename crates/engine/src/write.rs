//! Writing: chunks are cut and named, reserved, asked of the filter chain, placed; what comes back is a recipe.

pub mod chain;
pub(crate) mod filters;
pub(crate) mod in_flight;
#[cfg(test)]
mod order_tests;
pub(crate) mod prediction;
pub(crate) mod recipe_writer;
pub mod reservation;
pub(crate) mod stream;
