//! What can go wrong with targets.

use onefold_engine::EngineError;

/// Why something is not done.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The store refuses or fails.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Something was changed, could not be made durable, and could not be taken back either: whether it is there after a restart is not known.
    #[error("the change may not survive a restart: {0}")]
    NotDurable(#[source] EngineError),
    /// A name that no target can have.
    #[error("{name:?} is not a valid target name: {reason}")]
    Name {
        /// What was given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// There is a target of that name.
    #[error("target {name} exists already")]
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
    /// A volume is in one target at a time.
    #[error("the volume is LUN {lun} of target {name} already")]
    Attached {
        /// Its LUN there.
        lun: u16,
        /// That target.
        name: String,
    },
    /// An object does not hold what the format says.
    #[error("{object} is damaged: {reason}")]
    Damaged {
        /// Which object.
        object: String,
        /// What is wrong.
        reason: String,
    },
    /// All numbers of targets were given away.
    #[error("no number is left for a target")]
    NoNumber,
    /// More of something than a record has room for.
    #[error("a target has at most {limit} {what}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many are possible.
        limit: usize,
    },
}

/// A result.
pub type Result<T> = std::result::Result<T, TargetError>;
