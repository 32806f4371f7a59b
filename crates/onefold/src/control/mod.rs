//! Commands beside a running daemon: a command that finds the store locked by a daemon hands itself over, and the daemon does it with the
//! store that it has open.
//!
//! The daemon listens on a Unix socket in the store (`socket.rs`). A conversation (`docs/format.md` section 10) is a greeting from both sides,
//! one request, then what the command says until its result ([`frame`], [`message`]). The request is the command in its typed form: nothing
//! of it is looked for in the files or the environment of either side.
//!
//! What the daemon relies on (`server.rs`):
//! * Who connects is the daemon's user or root: the socket has mode 0600, and the peer's credentials are asked.
//! * Every length is checked before memory is taken for it; what is no frame of the protocol closes the connection.
//! * There are at most [`MAX_CLIENTS`] connections, each with a thread of its own that waits for its client alone.
//! * A client that goes away, or asks for it, stops its command wherever a signal would have stopped it without a daemon.
//! * The daemon's end ends all conversations before the store is closed.

mod client;
pub mod frame;
pub mod message;
mod server;
mod socket;

pub use client::{Client, connect};
pub use server::ControlServer;

/// Most commands of clients at a time.
pub const MAX_CLIENTS: usize = 32;
