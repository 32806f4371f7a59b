//! Experiments that anyone can repeat: a file says what is written and on which devices, a run measures it, a report shows it beside the paper's figures.
//!
//! * [`spec`]: the declaration.
//! * [`run`]: doing it, and measuring.
//! * [`results`]: what was measured, as it is written to JSON and read by the report.
//! * [`files`]: declarations, results and pages in files.
//! * [`report`]: the page that shows results beside the paper's.
//! * [`statistics`]: means with their confidence, the order that is expected of them.
//!
//! This crate must never know a protocol: whoever runs an experiment over NBD or iSCSI brings the way to a volume with it.

pub mod files;
pub mod report;
pub mod results;
pub mod run;
pub mod spec;
pub mod statistics;

#[cfg(test)]
mod testing;
