//! Nodes of one process, over sockets of this machine.

mod batches;
mod broken;
mod engines;
mod greetings;
mod harness;
mod order;
mod requests;
