//! Writing: chunks are cut, named, looked up in the filter chain, claimed and placed. The result is a recipe.

#[cfg(test)]
mod ahead_tests;
pub mod chain;
pub(crate) mod claims;
#[cfg(test)]
mod claims_model;
pub(crate) mod filters;
pub(crate) mod in_flight;
pub(crate) mod local_claims;
#[cfg(test)]
mod order_tests;
pub(crate) mod prediction;
pub(crate) mod recipe_writer;
pub(crate) mod reservation;
pub(crate) mod runs;
pub(crate) mod stream;
