//! The backup server: clients on other machines, over TLS.
//!
//! ```text
//! door       who comes in: account, secret, certificate, number of connections
//! presence   a client that came in, and what the access log says of it
//! permit     which commands an account may have the server run, and on which backups
//! files      what the server keeps in its store
//! server     listens, serves, ends
//! ```
//!
//! What the server relies on:
//! * A client learns nothing from a refusal: every wrong login has the same answer, and so has every command that an
//!   account may not run.
//! * A command of an account sees only the backups that the account may use for it ([`Session::catalog`]). So counts,
//!   errors and `latest` say nothing about others.
//!
//! [`Session::catalog`]: crate::session::Session::catalog

mod door;
mod files;
mod permit;
mod presence;
mod server;

pub use door::NetworkDoor;
pub use permit::{permitted, refused};
pub use presence::{Network, Presence, Watched};
pub use server::BackupServer;

/// The port of the backup server.
pub const DEFAULT_PORT: u16 = 8210;
