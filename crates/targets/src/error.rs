//! The errors of targets.

use onefold_engine::EngineError;

/// An error of a change or a lookup of targets.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The store refuses or fails.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A change could neither be made durable nor be reverted. Whether it exists after a restart is unknown.
    #[error("the change may not survive a restart: {0}")]
    NotDurable(#[source] EngineError),
    /// An invalid name.
    #[error("{name:?} is not a valid target name: {reason}")]
    Name {
        /// The given name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A target of that name exists.
    #[error("target {name} already exists")]
    Exists {
        /// Its name.
        name: String,
    },
    /// There is no target of that name.
    #[error("there is no target {name}")]
    NotFound {
        /// The name.
        name: String,
    },
    /// A LUN is taken, or none is left.
    #[error("LUN {lun} of target {name} {reason}")]
    Lun {
        /// The number.
        lun: u32,
        /// The target.
        name: String,
        /// Why it cannot be used.
        reason: &'static str,
    },
    /// The volume is in a target already: it can be in one at a time.
    #[error("the volume is already LUN {lun} of target {name}")]
    Attached {
        /// Its LUN there.
        lun: u16,
        /// That target.
        name: String,
    },
    /// An object does not match its format.
    #[error("{object} is damaged: {reason}")]
    Damaged {
        /// Which object.
        object: String,
        /// What is wrong.
        reason: String,
    },
    /// All target numbers are used up.
    #[error("the store has used all its target numbers")]
    NoNumber,
    /// More of something than a record holds.
    #[error("a target has at most {limit} {what}")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

/// A result.
pub type Result<T> = std::result::Result<T, TargetError>;
