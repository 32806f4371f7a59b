//! Bounds of a server and of its sessions.

use std::time::Duration;

/// Bounds of a server and of its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Commands under way.
    pub queue_depth: u32,
    /// Data of commands of one session that are under way, bytes: at least that of the longest command.
    pub session_bytes: u32,
    /// Data of commands of all sessions that are under way, bytes, beside 256 KiB for each session: at least that of the longest command.
    pub bytes: u64,
    /// Commands of all sessions that are under way; to further ones the answer is TASK SET FULL.
    pub commands: usize,
    /// Sessions at a time, discovery sessions left aside.
    pub sessions: usize,
    /// Discovery sessions at a time: initiators prove nothing in them.
    pub discoveries: usize,
    /// Those of them from one address.
    pub discoveries_of_address: usize,
    /// A discovery session ends after so long.
    pub discovery: Duration,
    /// Connections in their login at a time.
    pub logins: usize,
    /// Those of them from one address.
    pub logins_of_address: usize,
    /// A connection on which nothing comes for so long is asked whether somebody is there.
    pub idle: Duration,
    /// For a login, for an answer of an initiator that was asked, and for one that does not send or take data while others wait for the memory.
    pub patience: Duration,
    /// How long initiators may take to log out when the server ends.
    pub farewell: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            queue_depth: 64,
            session_bytes: 32 << 20,
            bytes: 128 << 20,
            commands: 8192,
            sessions: 256,
            discoveries: 32,
            discoveries_of_address: 8,
            discovery: Duration::from_secs(60),
            logins: 128,
            logins_of_address: 32,
            idle: Duration::from_secs(30),
            patience: Duration::from_secs(15),
            farewell: Duration::from_secs(5),
        }
    }
}

impl Limits {
    /// Commands that a session may have under way. In one for discovery there is nothing to gain by several.
    pub(crate) fn window(&self, is_discovery: bool) -> u32 {
        if is_discovery { 1 } else { self.queue_depth }
    }
}
