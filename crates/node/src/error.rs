//! Errors of a node.

use onefold_cluster::ClusterError;
use onefold_coordinator::CoordinatorError;
use onefold_engine::EngineError;
use onefold_ground::GroundError;
use onefold_interconnect::InterconnectError;
use std::path::PathBuf;

/// An error of a node.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A file of the node's directory could not be read or written.
    #[error("{}: {source}", path.display())]
    Local {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file of the node's directory, or an object of the bucket, is not what its name says.
    #[error("{path} is damaged: {why}")]
    Damaged {
        /// The file or object.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The node cannot listen for others.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The system refuses a socket or a thread.
    #[error("{action}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
    /// A setting is not usable.
    #[error("{what} is not usable: {why}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Another node has taken the number. The next one is tried.
    #[error("another node has taken number {number}")]
    Taken {
        /// The number.
        number: u32,
    },
    /// No table says who owns what: the first node of the store puts it when its log is open. If it is lost before,
    /// another one does.
    #[error("the store has no table yet; its node 0 makes the first one, or this node does after a session")]
    NoTable,
    /// A request to the bucket or a file of the store failed.
    #[error(transparent)]
    Ground(#[from] GroundError),
    /// The chain of tables could not be read or written.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The session with the coordinator.
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The messages between nodes.
    #[error(transparent)]
    Interconnect(#[from] InterconnectError),
}

/// Result of operations of a node.
pub type Result<T, E = NodeError> = std::result::Result<T, E>;
