//! The life of an open store: its descriptor, locks, recovery, background threads, the reserve, the clock.

pub(crate) mod activity;
pub(crate) mod append_only;
pub(crate) mod background;
pub(crate) mod chunks;
pub(crate) mod clock;
pub(crate) mod compaction;
pub(crate) mod copied;
pub(crate) mod descriptor;
pub(crate) mod layout;
pub(crate) mod mode;
pub(crate) mod open;
pub(crate) mod partitions;
pub(crate) mod presence;
pub(crate) mod profile;
pub(crate) mod recovery;
pub(crate) mod reserve;
pub(crate) mod settings;
pub(crate) mod state;
pub(crate) mod void;
