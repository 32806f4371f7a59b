//! The errors of connecting and of channels, and the codes that both ends know.

use super::tls::CertificateFingerprint;
use std::path::PathBuf;

/// The codes in refusals, cancellations and ends of sessions. Services use codes from [`codes::SERVICES`] on.
pub mod codes {
    /// A clean goodbye, or a channel whose receiver needs nothing more.
    pub const DONE: u16 = 0;
    /// A channel was cancelled.
    pub const CANCELLED: u16 = 1;
    /// The server speaks no version that the client speaks.
    pub const VERSION: u16 = 2;
    /// The account or its secret is wrong, or the account may not log in.
    pub const DENIED: u16 = 3;
    /// The server has no room for another session or channel.
    pub const BUSY: u16 = 4;
    /// The server does not know the session (any more).
    pub const SESSION_UNKNOWN: u16 = 5;
    /// A greeting makes no sense.
    pub const GREETING: u16 = 6;
    /// Both ends disagree about which frames arrived.
    pub const NUMBERS: u16 = 7;
    /// A session has too many channels.
    pub const CHANNELS: u16 = 8;
    /// A frame is too long, or its payload is malformed.
    pub const FRAME: u16 = 32;
    /// A frame has an unknown kind, or one that its direction does not allow.
    pub const KIND: u16 = 33;
    /// A channel received more than its window.
    pub const WINDOW: u16 = 34;
    /// A frame names a channel that does not exist, or opens one out of order.
    pub const CHANNEL: u16 = 35;
    /// The peer makes this end keep too many frames.
    pub const UNACKNOWLEDGED: u16 = 36;
    /// The server stops.
    pub const SHUTDOWN: u16 = 48;
    /// The server's administrator closed the session.
    pub const CLOSED: u16 = 49;
    /// The first code of services and of doors.
    pub const SERVICES: u16 = 256;
}

/// Why a channel does not work (any more).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// One of the two ends cancelled the channel.
    #[error("the channel was cancelled (code {code}): {text}")]
    Cancelled {
        /// One of [`codes`], or a code of the service.
        code: u16,
        /// For people.
        text: String,
    },
    /// The session ended: this end closed it, or the client stayed away for too long.
    #[error("the session is closed")]
    Closed,
    /// The peer ended the session.
    #[error("the other end closed the session (code {code}): {text}")]
    Ended {
        /// One of [`codes`].
        code: u16,
        /// For people.
        text: String,
    },
    /// The client connected again, but the server does not know the session any more.
    #[error("the server does not know the session any more")]
    SessionLost,
    /// The client could not connect again in time.
    #[error("the connection to the server is lost: {reason}")]
    LinkLost {
        /// What the last attempt ended with.
        reason: String,
    },
    /// The peer broke the protocol.
    #[error("the other end broke the protocol (code {code}): {text}")]
    Violated {
        /// One of [`codes`].
        code: u16,
        /// For people.
        text: String,
    },
    /// Sending after `finish`.
    #[error("the channel was finished already")]
    Finished,
    /// A message exceeds the limit of payloads.
    #[error("a message of {length_bytes} bytes exceeds the limit of {limit_bytes}")]
    TooLarge {
        /// The message.
        length_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// A message's kind exceeds 127.
    #[error("a message has kind {kind}, but kinds end at 127")]
    Kind {
        /// The kind.
        kind: u8,
    },
}

/// Why there is no connection, or no server.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The server refused the client.
    #[error("the server refused (code {code}): {text}")]
    Refused {
        /// One of [`codes`], or a code of the door.
        code: u16,
        /// For people.
        text: String,
    },
    /// Nothing is known about the server's certificate: ask, then pin it.
    #[error("the server's certificate {fingerprint} is unknown")]
    UnknownCertificate {
        /// The certificate that the server proved to own.
        fingerprint: CertificateFingerprint,
    },
    /// The server has another certificate than the pinned one.
    #[error("the server's certificate is {found}, expected {expected}: it was replaced, or somebody else answers")]
    WrongCertificate {
        /// The pinned one.
        expected: CertificateFingerprint,
        /// The server's.
        found: CertificateFingerprint,
    },
    /// The TLS handshake failed.
    #[error("TLS: {reason}")]
    Tls {
        /// What rustls says.
        reason: String,
    },
    /// A certificate or key cannot be used.
    #[error("cannot use {path}: {reason}")]
    TlsFile {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A connection, a listener or a file failed.
    #[error("{action}: {source}")]
    Io {
        /// What was tried.
        action: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The other end does not speak this protocol.
    #[error("the other end does not follow the protocol: {reason}")]
    Protocol {
        /// What it did.
        reason: String,
    },
    /// The other end did not answer in time.
    #[error("the other end did not answer within {seconds} s")]
    Timeout {
        /// The limit.
        seconds: u64,
    },
    /// A text is no fingerprint.
    #[error("\"{text}\" is not a SHA-256 fingerprint: it takes 64 hexadecimal digits")]
    Fingerprint {
        /// The text.
        text: String,
    },
}

impl TransportError {
    pub(super) fn io(action: impl Into<String>) -> impl FnOnce(std::io::Error) -> TransportError {
        let action = action.into();
        move |source| TransportError::Io { action, source }
    }

    /// Returns whether connecting again may help.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            TransportError::Io { .. } | TransportError::Timeout { .. } | TransportError::Protocol { .. } => true,
            TransportError::Refused { code, .. } => *code == codes::BUSY,
            TransportError::Tls { .. } => true,
            _ => false,
        }
    }
}
