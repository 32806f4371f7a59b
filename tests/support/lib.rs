//! What the tests of the whole program share: the built binary, a daemon that can be killed, real clients with a time
//! limit, small file systems, a comparer of file trees.
//!
//! Every process that a test starts is its own child and is ended by it; every wait has an end; sockets are Unix
//! sockets in the test's directory or free ports of the loopback address. What a machine lacks makes a test skip, and
//! it says what.

mod binary;
mod daemon;
mod data;
pub mod iscsi;
mod machines;
mod mounts;
mod nbd;
mod power_cut;
mod processes;
mod recording;
mod scene;
mod trees;

pub use binary::binary;
pub use daemon::Daemon;
pub use data::{Random, noise};
pub use iscsi::Initiator;
pub use machines::{Machine, ObjectStorage};
pub use mounts::{LoopDevice, MountPlace, Mounted, NbdFuse, Served, Tmpfs, has_fuse};
pub use nbd::{Client, ENOSPC, RequestError};
pub use power_cut::{PowerCuts, Survivors};
pub use processes::{Running, client, installed, is_root, setting, suite};
pub use recording::{Flushes, RecordingDevice};
pub use scene::{Run, Scene};
pub use trees::{assert_same_tree, differences, disk_bytes, grow, plant};
