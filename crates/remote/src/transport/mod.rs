//! The transport of the backup protocol, both ends: links, greetings, sessions and channels.
//!
//! ```text
//! ClientSession, Server   who connects, who accepts, and who resumes a session
//! Channel                 messages in both directions, from ordinary threads
//! core, lane, sequence    a session: its channels, and which frames the other end has
//! pump                    moves the frames of a session over one link
//! frame, greeting, tls    what a link carries
//! ```
//!
//! Invariants:
//! * A numbered frame arrives exactly once and in order, whatever happens to links (`sequence`).
//! * A peer makes this end hold no more than the session's share of the budget (`budget`, `lane`).
//! * Every length is checked before memory is allocated for it.

mod budget;
mod channel;
mod client;
mod core;
mod error;
mod frame;
mod greeting;
mod lane;
mod pump;
mod sequence;
mod server;
mod tls;

pub use budget::Budget;
pub use channel::{Channel, Message, Received};
pub use client::{ClientSession, ConnectOptions, Credentials, Target};
pub use error::{ChannelError, TransportError, codes};
pub use frame::{Header, Limits, Violation, decode_ack, decode_credit, decode_frames, decode_header, decode_reason, encode_header, kinds};
pub use greeting::{Hello, Refusal, Resume, SessionId, Token, Welcome};
pub use server::{Door, Listener, Login, Peer, PeerAddress, Server, ServerOptions, Services, SessionInfo, Visitor};
pub use tls::{CertificateFingerprint, ClientCertificates, ClientIdentity, ServerTls, Trust, new_certificate};

type Result<T, E = TransportError> = std::result::Result<T, E>;
