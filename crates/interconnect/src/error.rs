//! The errors of the interconnect, and what an owner answers instead of doing what it was asked.

use onefold_engine::EngineError;
use onefold_remote::transport::TransportError;

/// Why a node does not do what another one asks of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It does not have the partition with this epoch. Its answer has the number of the table that it knows.
    #[error("it does not have the partition by its table")]
    NotOwned,
    /// It will: it is taking the partition over, giving it away, or has just begun. Retry.
    #[error("it cannot answer yet: {0}")]
    Later(String),
    /// It will not: the store stopped, its disk is full, or the request makes no sense.
    #[error("it refused: {0}")]
    Refused(String),
}

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Refusal {
        match error {
            EngineError::NotOwned { .. } => Refusal::NotOwned,
            EngineError::OtherNode { why } => Refusal::Later(why),
            error => Refusal::Refused(error.to_string()),
        }
    }
}

/// Why another node was not asked, or did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It answered that it does not.
    #[error("{0}")]
    Refusal(Refusal),
    /// The connection was lost after the request was sent: it may have been done.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The two ends do not fit: another store, version or certificate.
    #[error("{0}")]
    Unfit(String),
    /// There was no answer in time.
    #[error("no answer in time{0}")]
    Late(String),
    /// This node's log is not open yet, so nobody would know which opening asks.
    #[error("this node has not opened its log")]
    Unopened,
    /// The interconnect of this node has ended.
    #[error("this node is stopping")]
    Stopped,
}

/// A node cannot take part.
#[derive(Debug, thiserror::Error)]
pub enum InterconnectError {
    /// A certificate or key cannot be used.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A socket or thread failed.
    #[error("{action}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
}

/// A result of the interconnect.
pub type Result<T, E = InterconnectError> = std::result::Result<T, E>;
