//! What upkeep does to whole stores that crash, fill up and are written to meanwhile. The stores, the steps and the
//! model are those of `onefold-crash-harness`.

mod beside;
mod full;
mod repairs;
mod space;
mod windows;
