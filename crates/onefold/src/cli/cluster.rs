//! The command lines of `onefold cluster`.

use super::Format;
use clap::{Args, Subcommand};

/// `onefold cluster`.
#[derive(Debug, Subcommand)]
pub enum Cluster {
    /// Shows the nodes of a cluster, and which partitions each of them has
    Status(ClusterStatus),
}

/// `onefold cluster status`.
#[derive(Args, Debug)]
#[command(after_help = "\
It reads the newest table in the bucket, and asks no node. So it works when no node does. A node that was just lost is shown until the others
have noticed.

Example:
  onefold cluster status s3://bucket/store")]
pub struct ClusterStatus {
    /// The store, in a bucket: s3://BUCKET/PREFIX (also gs://, az://, file://)
    #[arg(value_name = "STORE")]
    pub cluster: String,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}
