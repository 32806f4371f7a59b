//! Errors of the coordinator.

/// An error of a session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoordinatorError {
    /// A setting is not usable.
    #[error("{what} is not usable: {why}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Sessions of this coordinator have another length than those of the node. Members stop by it, and masters wait
    /// for it: so all must have the same.
    #[error("the coordinator's sessions have {found_ms} ms, those of this node {session_ms} ms")]
    SessionLength {
        /// What the node has.
        session_ms: u64,
        /// What the coordinator has.
        found_ms: u64,
    },
    /// The coordinator refuses this node.
    #[error("the coordinator refuses: {why}")]
    Refused {
        /// What it says.
        why: String,
    },
    /// Something in the coordinator is not what its name says.
    #[error("{path} of the coordinator is damaged: {why}")]
    Damaged {
        /// The znode.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The session has ended.
    #[error("the session with the coordinator has ended")]
    Ended,
    /// The ephemeral node is gone, although nobody ended the session.
    #[error("{path} of the coordinator is gone or has another owner")]
    Lost {
        /// The ephemeral node.
        path: String,
    },
    /// No thread could be started.
    #[error("cannot start a thread for the session: {why}")]
    Thread {
        /// What the system says.
        why: String,
    },
}

impl CoordinatorError {
    /// Returns whether another session would end in the same way.
    pub fn is_final(&self) -> bool {
        !matches!(self, CoordinatorError::Ended | CoordinatorError::Lost { .. } | CoordinatorError::Thread { .. })
    }
}

/// Result of operations of a coordinator.
pub type Result<T> = std::result::Result<T, CoordinatorError>;
