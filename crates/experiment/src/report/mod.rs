//! The report: one page of HTML that shows what was measured beside the paper's figures, shape against shape.
//!
//! The page needs nothing but itself: no network, no scripts, which its own content security policy forbids. Texts come from files that anyone may have written:
//! `maud` escapes them in the page, and plotters in the plots. Numbers are bounded before they are drawn.
//!
//! The files: `reading.rs` (results files), `page.rs` (the frame and the summary), `section.rs` (one experiment), `tables.rs`, `figures.rs` (means and how they are
//! written), `plot/` (pictures).

mod figures;
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

/// The report on `runs`, in their order, as an HTML document.
pub fn html(runs: &[Results]) -> String {
    page::page(runs).into_string()
}
