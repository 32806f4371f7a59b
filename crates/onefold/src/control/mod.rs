//! Commands beside a running daemon. A command that finds the store locked by a daemon hands itself over, and the
//! daemon runs it with its own open store.
//!
//! The daemon listens on a Unix socket in the store (`socket.rs`). A conversation (`docs/format.md` section 10) is a
//! greeting from both sides, one request, and then the command's output until its result ([`frame`], [`message`]). The
//! request is the parsed command: neither side looks for any of it in files or the environment.
//!
//! What the daemon relies on (`server.rs`):
//! * Clients are the daemon's user or root, or members of the store's group if the store's directory lets them write.
//!   The mode of the socket says so (0600 or 0660), and the peer's credentials are checked.
//! * Every length is checked before memory is allocated for it. Bytes that are no frame of the protocol close the
//!   connection.
//! * There are at most [`MAX_CLIENTS`] connections, each with a thread of its own that waits only for its client.
//! * A client that goes away, or asks to stop, stops its command wherever a signal would have stopped it without a
//!   daemon.
//! * When the daemon ends, it ends all conversations before it closes the store.

mod client;
pub mod frame;
pub mod message;
mod server;
mod socket;

pub use client::{Client, connect};
pub use server::ControlServer;

/// Most concurrent commands of clients.
pub const MAX_CLIENTS: usize = 32;
