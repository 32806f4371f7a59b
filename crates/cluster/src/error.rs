//! Errors of the cluster.

use onefold_ground::GroundError;

/// An error of the chain of tables.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A request to the bucket failed. If it was a put, nobody knows whether it arrived, or will.
    #[error(transparent)]
    Ground(#[from] GroundError),
    /// An object of the bucket is not what its name says.
    #[error("{path} is damaged: {why}")]
    Damaged {
        /// The object.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// A table contradicts itself. It was not put.
    #[error("table {number} is wrong: {why}")]
    Wrong {
        /// Its number.
        number: u64,
        /// What is wrong with it.
        why: String,
    },
}

/// Result of operations on the chain of tables.
pub type Result<T> = std::result::Result<T, ClusterError>;
