//! What the interconnect needs to know of its node, and of the others.

use crate::counters::Counters;
use crate::tls::Identity;
use onefold_engine::Everybody;
use onefold_oplog::Partition;
use onefold_remote::transport::CertificateFingerprint;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Who is where, and who owns what, as the node knows it now.
pub trait Directory: Debug + Send + Sync {
    /// Returns the fingerprint of a node's certificate: that in `nodes/N/node`. It may ask the bucket. `None`: there is
    /// no such node, or the bucket cannot be asked.
    fn fingerprint(&self, node: u32) -> Option<CertificateFingerprint>;

    /// Returns where a node listens (`host:port`). `None`: it is not there.
    fn address(&self, node: u32) -> Option<String>;

    /// Returns the nodes that own something, or will: those that are told when this one begins. Nobody waits for a node
    /// that is not among them and has no address.
    fn nodes(&self) -> Vec<u32>;

    /// Returns the number of the newest table that this node knows.
    fn table(&self) -> u64;

    /// Returns the owner of a partition and the epoch of its ownership. `None`: nobody has it now.
    fn owner(&self, partition: Partition) -> Option<(u32, u64)>;

    /// Returns who has the store open: by the newest table, which is looked for in the bucket. Errors: it cannot be
    /// told now, and why.
    fn everybody(&self) -> Result<Everybody, String>;

    /// Returns whether this node may answer reads now: it has heard from the coordinator lately. Must return at once.
    fn may_answer(&self) -> bool;

    /// Somebody speaks of a newer table. Must return at once.
    fn heads(&self, table: u64);
}

/// A node, before it takes part.
#[derive(Debug)]
pub struct Setup {
    /// The store.
    pub store: [u8; 16],
    /// The length of its fingerprints: [`onefold_engine::Engine::digest_bytes`].
    pub digest_bytes: usize,
    /// The number of the node.
    pub node: u32,
    /// Its certificate and key.
    pub identity: Identity,
    /// The others.
    pub directory: Arc<dyn Directory>,
    /// How long it waits for what.
    pub options: Options,
}

/// How long a node waits, and for how many.
#[derive(Clone, Debug)]
pub struct Options {
    /// For claims, and for owners that are taking a partition over.
    pub claim: Duration,
    /// For the answer to a delivery: the owner commits.
    pub deliver: Duration,
    /// For a container that is put into the bucket.
    pub seal: Duration,
    /// For a handshake and a greeting together.
    pub greeting: Duration,
    /// Both ends send a ping after so long a silence.
    pub ping: Duration,
    /// Both ends give a connection up after so long a silence. A step of 64 KiB of a message takes no longer.
    pub silence: Duration,
    /// How long a claim waits for others while another message is under way (M4.7).
    pub gather: Duration,
    /// The longest pause between attempts to connect.
    pub pause: Duration,
    /// The most connections that have not greeted.
    pub strangers: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            claim: Duration::from_secs(10),
            deliver: Duration::from_secs(60),
            seal: Duration::from_secs(60),
            greeting: Duration::from_secs(10),
            ping: Duration::from_secs(5),
            silence: Duration::from_secs(15),
            gather: Duration::from_millis(1),
            pause: Duration::from_secs(1),
            strangers: 64,
        }
    }
}

/// What the parts of an interconnect share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) setup: Setup,
    pub(crate) counters: Counters,
    pub(crate) opening: OnceLock<u64>,
}

impl Context {
    /// Notes the number of a table in a message.
    pub(crate) fn heard(&self, table: u64) {
        if table > self.setup.directory.table() {
            self.setup.directory.heads(table);
        }
    }

    pub(crate) fn options(&self) -> &Options {
        &self.setup.options
    }
}
