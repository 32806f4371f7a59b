//! Limits of a server and of its sessions.

use std::time::Duration;

/// Limits of a server and of its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Commands of one session under way.
    pub queue_depth: u32,
    /// Bytes of data of one session's commands under way. At least the longest command.
    pub session_bytes: u32,
    /// Bytes of data of all sessions' commands under way, besides 256 KiB per session. At least the longest command.
    pub bytes: u64,
    /// Commands of all sessions under way. Further ones are answered with TASK SET FULL, or with BUSY if the session
    /// has no command under way.
    pub commands: usize,
    /// Sessions at a time, without discovery sessions.
    pub sessions: usize,
    /// Discovery sessions at a time. Initiators prove nothing in them.
    pub discoveries: usize,
    /// Discovery sessions of one address at a time.
    pub discoveries_of_address: usize,
    /// The longest time of a discovery session.
    pub discovery: Duration,
    /// Connections in their login at a time.
    pub logins: usize,
    /// Connections of one address in their login at a time.
    pub logins_of_address: usize,
    /// When a connection was silent for this long, the initiator is asked whether it is there.
    pub idle: Duration,
    /// The longest time for a login, and for an answer of an initiator that was asked. An initiator that neither sends
    /// nor takes data while others wait for memory has this much time too.
    pub patience: Duration,
    /// How long initiators may take to log out when the server stops.
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
    /// Returns how many commands a session may have under way. In a discovery session, several would gain nothing.
    pub(crate) fn window(&self, is_discovery: bool) -> u32 {
        if is_discovery { 1 } else { self.queue_depth }
    }
}
