//! The form of requests and replies, which client and server agree on.

/// The form of requests and replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Compact requests, simple replies.
    Simple,
    /// Compact requests, structured replies to whatever has data or an error.
    Structured,
    /// Extended requests and replies.
    Extended,
}
