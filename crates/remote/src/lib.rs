//! Clients of a store behind a connection (M3.1, `docs/protocol.md`): links, sessions, channels, services.
//!
//! ```text
//! services    what channels are for: backups, their contents, reading
//! transport   links, greetings, sessions, channels
//! ```

pub mod services;
pub mod transport;

pub use onefold_accounts as accounts;
