//! What is still needed, and what is done with the rest: usage counts, removal of chunks with count 0, dead slots, merging.

pub(crate) mod dead;
pub(crate) mod merge;
pub(crate) mod recount;
pub(crate) mod removal;
