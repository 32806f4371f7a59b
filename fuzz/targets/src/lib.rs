//! What the fuzz targets do, apart from the fuzzer that drives them: libFuzzer in `fuzz/fuzz_targets`, or the replay of
//! the committed corpus in this crate's tests.
//!
//! Each module has one target, `run`, which takes any bytes and panics only on a bug.

pub mod block_changes;
pub mod chunk_index;
pub mod chunkers;
pub mod container;
pub mod control;
pub mod descriptor;
pub mod experiment;
pub mod fingerprints;
pub mod galois;
pub mod hooks;
pub mod iscsi_login;
pub mod iscsi_pdu;
pub mod iscsi_session;
pub mod levels;
pub mod log_batch;
pub mod marks;
mod memory_disk;
pub mod nbd_negotiation;
pub mod nbd_request;
pub mod recipe;
pub mod remote_frames;
pub mod remote_messages;
pub mod remote_session;
pub mod scsi_command;
pub mod settings;
pub mod tree;
pub mod volume;
pub mod wire;

/// A target: its name, which is also that of its folder in `fuzz/corpus`, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("block_changes", block_changes::run),
    ("chunk_index", chunk_index::run),
    ("chunkers", chunkers::run),
    ("container", container::run),
    ("control", control::run),
    ("descriptor", descriptor::run),
    ("experiment", experiment::run),
    ("fingerprints", fingerprints::run),
    ("galois", galois::run),
    ("hooks", hooks::run),
    ("iscsi_login", iscsi_login::run),
    ("iscsi_pdu", iscsi_pdu::run),
    ("iscsi_session", iscsi_session::run),
    ("levels", levels::run),
    ("log_batch", log_batch::run),
    ("marks", marks::run),
    ("nbd_negotiation", nbd_negotiation::run),
    ("nbd_request", nbd_request::run),
    ("recipe", recipe::run),
    ("remote_frames", remote_frames::run),
    ("remote_messages", remote_messages::run),
    ("remote_session", remote_session::run),
    ("scsi_command", scsi_command::run),
    ("settings", settings::run),
    ("tree", tree::run),
    ("volume", volume::run),
    ("wire", wire::run),
];
