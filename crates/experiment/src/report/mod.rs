//! The report: one HTML page that shows the measurements beside the paper's figures, shape against shape.
//!
//! The page is self-contained: no network and no scripts; its own content security policy forbids them. Texts come from
//! untrusted files: `maud` escapes them in the page, and plotters in the plots. Numbers are bounded before they are
//! drawn.
//!
//! The files: `reading.rs` (results files), `page.rs` (the frame and the summary), `section.rs` (one experiment),
//! `tables.rs`, `levels.rs` (levels beside their formulae), `figures.rs` (means and their notation), `plot/`
//! (pictures).

mod figures;
mod levels;
mod page;
mod plot;
mod reading;
mod section;
mod tables;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

pub use reading::{ReadError, read};

use crate::results::Results;

/// Returns the report on `runs`, in their order, as an HTML document.
pub fn html(runs: &[Results]) -> String {
    page::page(runs).into_string()
}
