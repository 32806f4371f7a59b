//! The messages between a command and the daemon, on a channel of the service COMMAND (`docs/protocol.md` section 5.1).

/// The longest request that a daemon accepts.
pub const MAX_REQUEST_BYTES: usize = 1 << 20;
/// The longest piece of output or of a remark in one message.
pub const MAX_TEXT_BYTES: usize = 64 << 10;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// To the daemon: the command, JSON; the first message.
    Request = 1,
    /// To the daemon: stop early.
    Cancel = 2,
    /// To the daemon: the user's answer to a question, one byte; 1 is yes.
    Answer = 3,
    /// Bytes for standard output.
    Output = 16,
    /// A remark for standard error, UTF-8.
    Note = 17,
    /// Progress of the work, JSON.
    Progress = 18,
    /// The long work is over.
    EndOfProgress = 19,
    /// The result of the command, JSON; the last message.
    Result = 20,
    /// A question for the user, UTF-8. An Answer follows.
    Question = 21,
}

impl Kind {
    /// Returns the kind with a number.
    pub fn of(byte: u8) -> Option<Kind> {
        use Kind::*;
        [Request, Cancel, Answer, Output, Note, Progress, EndOfProgress, Result, Question].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Returns a text for one message, cut at a character if it is too long.
pub(super) fn cut(text: &str) -> Vec<u8> {
    let end = (0..=text.len().min(MAX_TEXT_BYTES)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.as_bytes()[..end].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let long = "ä".repeat(MAX_TEXT_BYTES);
        assert_eq!(cut(&format!("x{long}")).len(), MAX_TEXT_BYTES - 1);
        assert_eq!(cut("short"), b"short");
    }
}
