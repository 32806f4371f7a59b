//! The command line of `onefold node`.

use super::{Faces, Format, Span};
use clap::Args;
use std::path::PathBuf;

/// `onefold node`.
#[derive(Args, Debug)]
#[command(after_help = "\
Each node finds every duplicate that any of them has stored, and one of them serves clients: the home of all objects (docs/cluster.md). The
others answer for their share of the chunk index and of the containers, and pass clients on. If a node is gone, the others take over what it
had. The first node of a store turns it into a cluster; from then on other commands use it through the nodes. Every node needs the same
--zookeeper and --session, and its own --state if several run on one machine.

Examples:
  onefold init s3://bucket/store
  onefold node --cluster s3://bucket/store --zookeeper zk1:2181,zk2:2181,zk3:2181 --listen 10.0.0.1:7420 --nbd 10.0.0.1:10809")]
pub struct Node {
    /// The store, in a bucket: s3://BUCKET/PREFIX (also gs://, az://, file://)
    #[arg(long, value_name = "STORE")]
    pub cluster: String,
    /// The servers of ZooKeeper, with commas between them
    #[arg(long, value_name = "HOST:PORT,...")]
    pub zookeeper: String,
    /// Where this node listens for the others
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: String,
    /// Where the others reach it [default: where it listens]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// Its name, for people [default: that of this machine]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Directory of its own, for its number, its key and its indexes [default: one in the cache, as for other commands]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// How long a node may be silent until the others take over what it has: 2s to 60s, at least eight ticks of
    /// ZooKeeper
    #[arg(long, value_name = "TIME", default_value = "6s")]
    pub session: Span,
    /// File with USER:PASSWORD for ZooKeeper: then nobody else may change what the nodes keep there
    #[arg(long, value_name = "FILE")]
    pub zookeeper_credentials: Option<PathBuf>,
    /// What it serves while it is the home.
    #[command(flatten)]
    pub faces: Faces,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}
