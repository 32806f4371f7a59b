//! Repeatable experiments: a file says what is written and on which devices, a run measures it, a report shows the
//! result beside the paper's figures.
//!
//! * [`spec`]: the declaration.
//! * [`run`]: running it, and measuring.
//! * [`results`]: the measurements, as a run writes them to JSON and the report reads them.
//! * [`files`]: declarations, results and pages in files.
//! * [`report`]: the page that shows results beside the paper's.
//! * [`statistics`]: means with their confidence intervals, and their expected order.
//!
//! This crate must never know a protocol: a program that runs an experiment over NBD or iSCSI brings its own way to a
//! volume.

pub mod files;
pub mod report;
pub mod results;
pub mod run;
pub mod spec;
pub mod statistics;

#[cfg(test)]
mod testing;
