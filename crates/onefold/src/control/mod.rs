//! Clients of a running daemon. A command that finds the store locked by a daemon hands itself over, and the daemon
//! runs it with its own open store. A backup or a restore reads and writes files of its own process, and reaches the
//! store through the daemon.
//!
//! The daemon listens on a Unix socket in the store ([`socket`]), and for other machines where it is told to
//! ([`network`](crate::network)). Both speak the protocol of `docs/protocol.md`. A command is a channel: one request,
//! and then the command's output until its result ([`kinds`], [`message`]). The request is the parsed command: neither
//! side looks for any of it in files or the environment.
//!
//! What the daemon relies on ([`host`], [`command`]):
//! * Clients of the socket are the daemon's user or root, or members of the store's group if the store's directory lets
//!   them write. The mode of the socket says so (0600 or 0660), and the peer's credentials are checked.
//! * There are at most [`MAX_COMMANDS`] commands of users of this machine, and as many of accounts. An account has at
//!   most [`ACCOUNT_COMMANDS`], so it cannot take the turn of others. Each command has two or three threads that wait
//!   only for its client.
//! * A client that goes away, or asks to stop, stops its command wherever a signal would have stopped it without a
//!   daemon.
//! * When the daemon ends, it ends all conversations before it closes the store.

mod client;
mod command;
mod host;
pub mod kinds;
pub mod message;
mod server;
pub(crate) mod socket;

pub use client::{Client, Ran, connect};
pub use host::{Caller, Host, Identity};
pub use server::ControlServer;
pub(crate) use server::serve_channel;

/// Most concurrent commands of users of this machine; as many of accounts.
pub const MAX_COMMANDS: usize = 32;
/// Most concurrent commands of one account.
pub const ACCOUNT_COMMANDS: usize = 4;
/// What to do if the daemon or server runs as many commands as it may.
pub const WHEN_BUSY: &str = "run the command again when some have ended";
