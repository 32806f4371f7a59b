//! An iSCSI target in user space (RFC 7143): the protocol, and the SCSI block commands on whatever is a [`Disk`](scsi::Disk). It knows no volume and no store.
//!
//! # How a command goes
//! 1. `server` accepts a connection; [`login`] decides who it is and what both agree on, without I/O.
//! 2. A `session` has one task with all its state: it reads PDUs ([`pdu`]) from another task, asks for data as there is memory, and starts commands.
//! 3. [`scsi::LogicalUnit`] judges and does a command, on a thread that may wait for a disk.
//! 4. The answer gets its numbers in the order in which commands end, and goes to the task that writes.
//!
//! # Invariants
//! - Every length in a PDU is checked before memory is taken for it. Memory of a session, and of all of them, is bounded ([`Limits`]).
//! - What waits for a disk waits for its own session only. What waits for memory may wait for others, but only for those that go on.
//! - A status is sent after the disk has returned; of a flush, after the flush has.

pub mod chap;
mod denials;
pub mod initiator;
pub mod login;
pub mod negotiation;
pub mod pdu;
pub mod scsi;
mod server;
mod session;
mod target;
pub mod text;
mod transport;

pub(crate) use server::Shared;
pub use server::{Handle, PortalConfig, Server};
pub use session::Limits;
pub use target::{SessionInfo, Target, Targets, lun_number};
