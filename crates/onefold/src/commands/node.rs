//! `onefold node`: a node of a cluster. While it is the home of the objects, it serves clients as the daemon does. If
//! not, it passes them on to the node that is.

use super::serve::{self, End, EndedBy, STOP_INTERVAL};
use crate::bucket;
use crate::cli::{self, Serve, StoreToOneself};
use crate::failure::{Exit, Failure, Result};
use crate::forward::Forwarder;
use crate::output::{Output, note};
use crate::secret::user_and_password;
use crate::settings::{Settings, parse_listen, parse_portal};
use crate::store::Store;
use crate::talk::Talk;
use crate::units::printable;
use onefold_coordinator::{CoordinatorError, Credentials, Faces, ZooKeeper, ZooKeeperOptions};
use onefold_engine::{Descriptor, Engine, PruneOptions, PruneReport};
use onefold_node::{Node, NodeError, NodeSettings};
use onefold_oplog::{Partition, PartitionClass};
use onefold_upkeep::{NoMonitor, prune_here};
use serde_json::json;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

/// Sessions, seconds.
const SESSIONS: std::ops::RangeInclusive<u64> = 2..=60;
/// The names of protocols, as nodes tell each other.
const NBD: &str = "nbd";
const ISCSI: &str = "iscsi";
const BACKUP: &str = "backup";

/// Takes part until SIGINT or SIGTERM, or until no session with the coordinator can begin. Then the others take over
/// what it had, unless it is back before they do.
pub fn run(options: &cli::Node, talk: Talk) -> Result<Exit> {
    let (directory, bucket) = bucket::of_cluster(&options.cluster, options.state.as_deref())?;
    let store = StoreToOneself { store: cli::Store { directory: directory.clone() }, wait: None };
    let served = Serve { store, faces: options.faces.clone(), format: options.format };
    let settings = serve::settings(&served)?;
    if settings.nbd.read_only {
        return Err(Failure::cannot_run("a node opens the store for writing, so --read-only and nbd.read_only are not possible"));
    }
    // What is wrong with the settings is said now, and not when this node becomes the home.
    serve::Network::of(&settings)?;
    let doors = Doors::of(&settings)?;
    let reached = options.advertise.clone().unwrap_or_else(|| options.listen.clone());
    let ground = bucket::ground_of_node(&directory.join("store"), bucket.clone(), &settings.cache).map_err(Failure::cannot_run)?;
    let descriptor = Engine::descriptor_of(&*ground)?;
    drop(ground);
    check_descriptor(&descriptor)?;
    let coordinator = Arc::new(ZooKeeper::new(zookeeper(options)?, descriptor.store).map_err(Failure::cannot_run)?);
    let grounds = {
        let (directory, bucket, cache) = (directory.clone(), bucket.clone(), settings.cache.clone());
        move |number: onefold_cluster::NodeNumber| bucket::ground_of_node(&directory.join(format!("node-{number}")), bucket.clone(), &cache)
    };
    let node = Node::start(NodeSettings {
        descriptor: descriptor.clone(),
        bucket,
        grounds: Arc::new(grounds),
        directory: directory.join("node"),
        name: options.name.clone().unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned()),
        listen: options.listen.clone(),
        address: options.advertise.clone(),
        faces: doors.faces(&reached),
        coordinator,
        engine: settings.engine.clone(),
        interconnect: onefold_interconnect::Options::default(),
        reclaim: Arc::new(reclaim),
    })
    .map_err(|error| {
        let failure = Failure::cannot_run(&error);
        match error {
            NodeError::Listen { .. } => failure.advise("stop what listens there, or name another address of this machine with --listen"),
            _ => failure,
        }
    })?;
    if !talk.quiet && !options.format.json {
        note(format_args!("taking part at {}; ^C stops", node.address()));
    }
    let of_cluster =
        OfCluster { node: &node, partitions: descriptor.object_partitions, options: &served, settings: &settings, doors: &doors };
    let ended = of_cluster.serve_or_pass_on(talk);
    if !talk.quiet {
        note("stopping: the other nodes take over what this one had");
    }
    node.stop();
    ended?;
    Ok(Exit::Done)
}

/// Frees the space that this node can free by itself: its part of what `onefold prune` does at the home.
fn reclaim(engine: &Arc<Engine>, options: PruneOptions, go_on: &dyn Fn() -> bool) -> std::result::Result<PruneReport, String> {
    prune_here(engine, options, &NoMonitor, go_on).map_err(|error| error.to_string())
}

fn check_descriptor(descriptor: &Descriptor) -> Result<()> {
    let refused = |why: &str| Err(Failure::cannot_run(format!("several nodes cannot share this store: {why}")));
    if !descriptor.profile.counts() || !descriptor.profile.is_exact() {
        return refused(&format!("its profile is `{}`, and must be `exact`", descriptor.profile));
    }
    if !descriptor.has_own_partition {
        return refused("it was made by an earlier version; copy it into a new store with `onefold copy`");
    }
    Ok(())
}

fn zookeeper(options: &cli::Node) -> Result<ZooKeeperOptions> {
    let session = options.session.0;
    if !SESSIONS.contains(&session) {
        return Err(Failure::cannot_run(format!("--session: it is {session} s, and must be 2s to 60s")));
    }
    let credentials = options.zookeeper_credentials.as_deref().map(user_and_password).transpose()?;
    let credentials = credentials.map(|(user, password)| Credentials { user, password });
    Ok(ZooKeeperOptions { credentials, ..ZooKeeperOptions::new(&options.zookeeper, session * 1000) })
}

fn refused_by_zookeeper(error: &CoordinatorError) -> Failure {
    let failure = Failure::cannot_run(format!("this node cannot take part: {error}"));
    match error {
        CoordinatorError::SessionLength { .. } => failure.advise(
            "all nodes of a store need the same --session, and ZooKeeper must allow it: by default 2 to 20 of its ticks (tickTime)",
        ),
        CoordinatorError::Refused { .. } => failure.advise("all nodes of a store need the same --zookeeper-credentials"),
        _ => failure,
    }
}

/// Where clients are served.
#[derive(Debug)]
struct Doors(Vec<(&'static str, Vec<SocketAddr>)>);

impl Doors {
    fn of(settings: &Settings) -> Result<Doors> {
        let mut doors = Vec::new();
        if let Some(listen) = &settings.nbd.listen {
            let addresses =
                listen.to_socket_addrs().map_err(|error| Failure::cannot_run(format!("cannot listen on `{listen}`: {error}")))?;
            doors.push((NBD, addresses.collect()));
        }
        let mut portals = Vec::new();
        for text in &settings.iscsi.listen {
            portals.extend(parse_portal(text).map_err(|why| Failure::cannot_run(format!("iscsi.listen {why}")))?);
        }
        doors.push((ISCSI, portals.iter().map(|portal| portal.listen).collect()));
        let mut backups = Vec::new();
        for text in &settings.backup.listen {
            let port = crate::network::DEFAULT_PORT;
            backups.extend(parse_listen(text, port).map_err(|why| Failure::cannot_run(format!("backup.listen {why}")))?);
        }
        doors.push((BACKUP, backups));
        doors.retain(|(_, addresses): &(&str, Vec<SocketAddr>)| !addresses.is_empty());
        Ok(Doors(doors))
    }

    /// Returns where other nodes reach them. This one is at `reached`.
    fn faces(&self, reached: &str) -> Faces {
        let host = reached.rsplit_once(':').map_or(reached, |(host, _)| host);
        let address = |address: &SocketAddr| match address.ip().is_unspecified() {
            true => format!("{host}:{}", address.port()),
            false => address.to_string(),
        };
        self.0.iter().filter_map(|(protocol, addresses)| Some(((*protocol).to_owned(), address(addresses.first()?)))).collect()
    }
}

/// Who serves clients.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Home {
    /// This node.
    Here,
    /// Another one, which is there.
    There { number: u32, address: String, faces: Faces },
    /// Nobody, at the moment.
    Nobody,
}

/// A node of a cluster, and what it serves.
struct OfCluster<'a> {
    node: &'a Node,
    partitions: u16,
    options: &'a Serve,
    settings: &'a Settings,
    doors: &'a Doors,
}

impl OfCluster<'_> {
    fn objects(&self) -> impl Iterator<Item = Partition> {
        (0..self.partitions).map(|number| Partition { class: PartitionClass::ObjectIndex, number })
    }

    /// Returns who has all objects.
    fn home(&self) -> Home {
        use onefold_cluster::Right;
        if self.objects().all(|partition| matches!(self.node.may_serve(partition), Right::All | Right::Reads)) {
            return Home::Here;
        }
        let status = self.node.status();
        let mut owners: Vec<_> = self.objects().map(|partition| self.node.owner_of(partition).map(|(owner, _)| owner)).collect();
        owners.dedup();
        match owners[..] {
            [Some(owner)] if status.node != Some(owner) => match status.alive.get(&owner) {
                Some(listed) => Home::There { number: owner.0, address: listed.address.clone(), faces: listed.faces.clone() },
                None => Home::Nobody,
            },
            _ => Home::Nobody,
        }
    }

    /// Serves clients or passes them on, until a signal.
    ///
    /// Errors: the node has ended by itself, or clients cannot be served.
    fn serve_or_pass_on(&self, talk: Talk) -> Result<()> {
        loop {
            if let Some(error) = self.node.failure() {
                return Err(refused_by_zookeeper(&error));
            }
            let ended_by = match (self.home(), self.node.engine()) {
                (Home::Here, Some(engine)) => self.serve(engine, talk)?,
                (home, _) => self.pass_on(&home, talk)?,
            };
            if ended_by == EndedBy::Signal {
                return Ok(());
            }
        }
    }

    fn serve(&self, engine: Arc<Engine>, talk: Talk) -> Result<EndedBy> {
        let opening = engine.opening();
        let is_another = || self.node.engine().is_none_or(|engine| engine.opening() != opening);
        let has_lost = || self.node.failure().is_some() || is_another() || self.objects().any(|partition| self.has_left(partition));
        let store = Store { engine, settings: self.settings.clone() };
        let network = serve::Network::of(self.settings)?;
        match serve::serve(self.options, store, network, talk, End::OfNode(&has_lost)) {
            // It was taken from this node while it was beginning: whoever has it now serves.
            Err(failure) if has_lost() => {
                tracing::warn!("clients cannot be served here any more: {}", failure.message);
                Ok(EndedBy::Loss)
            }
            ended => ended,
        }
    }

    /// Returns whether a partition of objects is no longer here. One that waits for the coordinator is.
    fn has_left(&self, partition: Partition) -> bool {
        use onefold_cluster::Right;
        matches!(self.node.may_serve(partition), Right::Refuse | Right::Wait)
    }

    /// Passes clients on to the home, until another node is.
    fn pass_on(&self, home: &Home, talk: Talk) -> Result<EndedBy> {
        self.say(home, talk)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::cannot_run(format!("cannot start threads: {error}")))?;
        runtime.block_on(async {
            let shutdown = serve::shutdown_signal(Talk { quiet: true, ..talk }, false)?;
            let mut forwarders = tokio::task::JoinSet::new();
            if let Home::There { faces, .. } = home {
                for (protocol, addresses) in &self.doors.0 {
                    if let Some(to) = faces.get(*protocol) {
                        forwarders.spawn(Forwarder::bind(addresses, to.clone()).await?.run());
                    }
                }
            }
            let another = async {
                while self.home() == *home && self.node.failure().is_none() {
                    tokio::time::sleep(STOP_INTERVAL).await;
                }
            };
            let ended_by = tokio::select! {
                () = shutdown => EndedBy::Signal,
                () = another => EndedBy::Loss,
            };
            forwarders.shutdown().await;
            Ok(ended_by)
        })
    }

    /// Says who serves clients.
    fn say(&self, home: &Home, talk: Talk) -> Result<()> {
        let status = self.node.status();
        let number = status.node.map(|node| node.0);
        if self.options.format.json {
            let (home, address) = match home {
                Home::There { number, address, .. } => (Some(*number), Some(address.clone())),
                Home::Here => (number, Some(self.node.address().to_owned())),
                Home::Nobody => (None, None),
            };
            let mut output = Output::new();
            output.json(&json!({"event": "node", "node": number, "home": home, "home_address": address, "trouble": status.trouble}))?;
            return output.finish();
        }
        if talk.quiet {
            return Ok(());
        }
        let this = number.map_or_else(|| "this node".to_owned(), |number| format!("this is node {number}"));
        match home {
            Home::There { number, address, .. } => note(format_args!("{this}; node {number} at {address} serves clients")),
            Home::Here => note(format_args!("{this}; it serves clients")),
            Home::Nobody => match status.trouble {
                Some(trouble) => note(format_args!("{this}; nobody serves clients yet: {}", printable(trouble.as_bytes()))),
                None => note(format_args!("{this}; nobody serves clients yet")),
            },
        }
        Ok(())
    }
}
