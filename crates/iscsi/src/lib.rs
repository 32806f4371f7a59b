//! An iSCSI target in user space (RFC 7143): the protocol, and the SCSI block commands on top of any
//! [`Disk`](scsi::Disk). This crate must never know a volume or a store.
//!
//! # The path of a command
//! 1. `server` accepts a connection. [`login`] decides who the initiator is and what both sides agree on, without I/O.
//! 2. A `session` has one task with all its state. It gets PDUs ([`pdu`]) from another task, asks for data when there
//!    is memory, and starts commands.
//! 3. [`scsi::LogicalUnit`] checks and executes a command, on a thread that may wait for a disk.
//! 4. Answers get their numbers in the order in which commands end, and go to the task that writes.
//!
//! # Invariants
//! - Every length in a PDU is checked before memory is allocated for it. The memory of each session, and of all
//!   sessions together, is bounded ([`Limits`]).
//! - A disk wait delays only its own session. A command that waits for memory may wait for other sessions, but only for
//!   those that make progress.
//! - A status is sent after the disk has returned. The status of a flush is sent after the flush.

pub mod chap;
mod denials;
pub mod initiator;
mod limits;
pub mod login;
mod memory;
pub mod negotiation;
pub mod pdu;
pub mod scsi;
mod server;
mod session;
mod shared;
mod target;
pub mod text;
mod transport;

pub use limits::Limits;
pub use server::{Handle, PortalConfig, Server};
pub use target::{SessionInfo, Target, Targets, lun_number};
