//! A round: a heartbeat, what there is to do, and a look.
//!
//! # Why a heartbeat is a write, and told of as if it were sent earlier
//! A member stops at two thirds of a session after it asked (unsafe order 3). So the session must not end within a
//! whole one after that.
//! * A server that is cut off answers reads and `sync` while the others elect a leader, which ends sessions. A write is
//!   answered when a majority has it. The heartbeat is a transaction that only checks that the ephemeral node is there:
//!   it changes nothing, and wakes no watch.
//! * A follower tells its leader only with each ping, twice in a tick, which sessions it has heard of. If it dies just
//!   after it answered a heartbeat, the leader counts from an earlier one: the last one that a ping came after. `Heard`
//!   says when the newest one was sent that is an eighth of a session older, at least ([`Asked`]): that is a tick, if a
//!   session has eight. With the time of the newest one, less an eighth, a slow round would promise too much.
//!
//! The look comes behind the heartbeat in the same session, so it sees everything that was there when that was sent.

use super::{BEATS, Settings, Wanted};
use crate::content::{Faces, decode_store, decode_table, encode_store, encode_table, node_of_name};
use crate::{CoordinatorError, Event, Joining, Listed, Process};
use onefold_cluster::{NodeNumber, Opening, Present, View};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use zookeeper_client::{AddWatchMode, Client, CreateMode, CreateOptions, Error, MultiReadResult, MultiWriteError, PersistentWatcher, Stat};

/// Most entries below `nodes`.
const NODES_LIMIT: usize = 4096;

/// Why a round did not come to its end.
pub(super) enum Failure {
    /// A request failed. The next round tries it again, if there is a session.
    Request(Error),
    /// The session is over.
    Over(CoordinatorError),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Request(error)
    }
}

/// What rounds know of each other.
pub(super) struct Round {
    settings: Arc<Settings>,
    node: NodeNumber,
    opening: Opening,
    address: String,
    faces: Faces,
    /// The ephemeral node.
    own_path: String,
    process: Arc<dyn Process>,
    ephemeral: CreateOptions<'static>,
    persistent: CreateOptions<'static>,
    asked: Asked,
    /// The persistent nodes are there.
    is_prepared: bool,
    has_joined: bool,
    /// What the ephemeral node contains.
    written: Option<Listed>,
    /// Announcements that have come to an end.
    announced: u64,
    /// What the last look counted.
    seen_changes: i32,
    told_view: Option<(View, BTreeMap<NodeNumber, Listed>)>,
    told_ahead: Option<(u64, u64)>,
    told_damage: Option<CoordinatorError>,
}

/// When requests were sent that were answered: from when on a session has its whole time.
struct Asked {
    least_ms: u64,
    /// In order. The first one is known to the leader; the others were sent later, and perhaps only a follower knows.
    sent_ms: VecDeque<u64>,
}

impl Asked {
    fn new(session_ms: u64) -> Asked {
        Asked { least_ms: session_ms / BEATS, sent_ms: VecDeque::new() }
    }

    /// Begins with a connection. The leader makes or confirms the session of each.
    fn begin(&mut self, asked_ms: u64) {
        self.sent_ms.clear();
        self.sent_ms.push_back(asked_ms);
    }

    /// Takes the time when an answered heartbeat was sent. Returns from when on the session has its whole time.
    fn answered(&mut self, asked_ms: u64) -> u64 {
        let known_ms = asked_ms.saturating_sub(self.least_ms);
        while self.sent_ms.get(1).is_some_and(|sent_ms| *sent_ms <= known_ms) {
            self.sent_ms.pop_front();
        }
        self.sent_ms.push_back(asked_ms);
        self.sent_ms[0].min(asked_ms)
    }
}

/// What a look found.
struct Seen {
    /// How many nodes have come and gone below `nodes`, ever.
    changes: i32,
    /// The nodes, or what cannot be read of them.
    nodes: Result<BTreeMap<NodeNumber, Listed>, CoordinatorError>,
    /// The session that has the own ephemeral node.
    own: Option<i64>,
    /// The session of the master.
    master: Option<i64>,
    /// The number of the table, if it can be read.
    table: Option<u64>,
    /// The version of what is there in its place.
    table_version: Option<i32>,
    /// What is wrong, and does no harm to the view.
    damage: Option<CoordinatorError>,
}

impl Round {
    pub(super) fn new(settings: Arc<Settings>, joining: Joining, process: Arc<dyn Process>) -> Round {
        let Joining { present: Present { node, opening }, address, faces, table: _ } = joining;
        Round {
            own_path: settings.paths.node(node),
            ephemeral: CreateMode::Ephemeral.with_acls(settings.acls()),
            persistent: CreateMode::Persistent.with_acls(settings.acls()),
            asked: Asked::new(settings.session_ms),
            settings,
            node,
            opening,
            address,
            faces,
            process,
            is_prepared: false,
            has_joined: false,
            written: None,
            announced: 0,
            seen_changes: 0,
            told_view: None,
            told_ahead: None,
            told_damage: None,
        }
    }

    /// Begins with another connection, which was asked for at `asked_ms`. What was told before it is told again.
    pub(super) fn begin(&mut self, asked_ms: u64) {
        self.asked.begin(asked_ms);
        self.told_view = None;
    }

    /// Makes a round.
    pub(super) async fn go(&mut self, client: &Client, wanted: Wanted, watcher: &mut Option<PersistentWatcher>) -> Result<(), Failure> {
        let result = self.go_through(client, wanted, watcher).await;
        if matches!(result, Err(Failure::Request(Error::NoNode))) {
            self.is_prepared = false;
        }
        result
    }

    async fn go_through(&mut self, client: &Client, wanted: Wanted, watcher: &mut Option<PersistentWatcher>) -> Result<(), Failure> {
        let asked_ms = self.process.now_ms();
        if !self.is_prepared {
            self.prepare(client).await?;
            self.is_prepared = true;
        }
        self.beat(client).await?;
        if watcher.is_none() {
            *watcher = Some(client.watch(&self.settings.paths.store, AddWatchMode::PersistentRecursive).await?);
        }
        let mut damage = self.describe(client, wanted).await?;
        if self.has_joined {
            let mut seen = self.look(client).await?;
            if self.act(client, wanted, &seen).await? {
                seen = self.look(client).await?;
            }
            damage = self.tell_view(client, seen)?;
        }
        if damage != self.told_damage {
            self.told_damage = damage.clone();
            if let Some(error) = damage {
                tracing::warn!(%error, "ZooKeeper has something that no node of this version wrote");
                self.process.tell(Event::Damaged { opening: self.opening, error });
            }
        }
        let asked_ms = self.asked.answered(asked_ms);
        self.process.tell(Event::Heard { opening: self.opening, asked_ms });
        Ok(())
    }

    /// Makes the persistent nodes, and compares how long sessions are.
    async fn prepare(&self, client: &Client) -> Result<(), Failure> {
        let Settings { session_ms, ref paths, .. } = *self.settings;
        let content = encode_store(session_ms);
        let ancestors = paths.root.match_indices('/').skip(1).map(|(at, _)| (&paths.root[..at], b"".as_slice()));
        let own = [(&*paths.root, b"".as_slice()), (&*paths.store, content.as_slice()), (&*paths.nodes, b"".as_slice())];
        for (path, content) in ancestors.chain(own) {
            match client.create(path, content, &self.persistent).await {
                Ok(_) | Err(Error::NodeExists) => {}
                // ZooKeeper asks whether one may make it before it sees that it is there.
                Err(Error::NoAuth) if client.check_stat(path).await?.is_some() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let (content, _) = client.get_data(&paths.store).await?;
        match decode_store(&paths.store, &content) {
            Ok(found_ms) if found_ms == session_ms => Ok(()),
            Ok(found_ms) => Err(Failure::Over(CoordinatorError::SessionLength { session_ms, found_ms })),
            Err(error) => Err(Failure::Over(error)),
        }
    }

    /// Sends the heartbeat.
    async fn beat(&self, client: &Client) -> Result<(), Failure> {
        let mut writer = client.new_multi_writer();
        writer.add_check_version(&self.settings.paths.store, -1)?;
        if self.has_joined {
            writer.add_check_version(&self.own_path, -1)?;
        }
        match writer.commit().await {
            Ok(_) => Ok(()),
            Err(MultiWriteError::OperationFailed { source: Error::NoNode, .. }) if self.has_joined => Err(self.lost()),
            Err(error) => Err(Failure::Request(error.into())),
        }
    }

    fn lost(&self) -> Failure {
        Failure::Over(CoordinatorError::Lost { path: self.own_path.clone() })
    }

    /// Makes the ephemeral node, or writes what has changed in it. Returns why there is none and never will be.
    async fn describe(&mut self, client: &Client, wanted: Wanted) -> Result<Option<CoordinatorError>, Failure> {
        let (address, faces) = (self.address.clone(), self.faces.clone());
        let listed = Listed { opening: self.opening, address, faces, table: wanted.knows };
        if !self.has_joined {
            match client.create(&self.own_path, &listed.encode(), &self.ephemeral).await {
                Ok(_) => self.written = Some(listed.clone()),
                Err(Error::NodeExists) => match client.check_stat(&self.own_path).await? {
                    // The answer to an earlier request was lost.
                    Some(stat) if stat.ephemeral_owner == client.session_id().0 => {}
                    Some(stat) if stat.ephemeral_owner == 0 => return Ok(Some(not_ephemeral(&self.own_path))),
                    // An earlier session has it, or had it just now.
                    _ => return Ok(None),
                },
                Err(error) => return Err(error.into()),
            }
            self.has_joined = true;
        }
        if self.written.as_ref() != Some(&listed) {
            match client.set_data(&self.own_path, &listed.encode(), None).await {
                Ok(_) => self.written = Some(listed),
                Err(Error::NoNode) => return Err(self.lost()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    async fn look(&self, client: &Client) -> Result<Seen, Failure> {
        let paths = &self.settings.paths;
        let (names, stat) = client.get_children(&paths.nodes).await?;
        let mut seen = Seen {
            changes: stat.cversion,
            nodes: Ok(BTreeMap::new()),
            own: None,
            master: None,
            table: None,
            table_version: None,
            damage: None,
        };
        if names.len() > NODES_LIMIT {
            seen.nodes = Err(damaged(&paths.nodes, format!("{} entries", names.len())));
            return Ok(seen);
        }
        let mut numbers: Vec<NodeNumber> = Vec::new();
        for name in &names {
            match node_of_name(name) {
                Some(node) => numbers.push(node),
                // It hides no node: none is called that.
                None => seen.damage = Some(damaged(&paths.nodes, format!("{name:?} is no number of a node"))),
            }
        }
        let mut reader = client.new_multi_reader();
        reader.add_get_data(&paths.master)?;
        reader.add_get_data(&paths.table)?;
        for node in &numbers {
            reader.add_get_data(&paths.node(*node))?;
        }
        let results = reader.commit().await?;
        if results.len() != numbers.len() + 2 {
            return Err(Failure::Request(Error::UnexpectedError(format!("{} answers", results.len()))));
        }
        let mut results = results.into_iter().map(found);
        let mut next = || results.next().expect("they were counted");
        if let Some((_, stat)) = next()? {
            seen.master = Some(stat.ephemeral_owner);
            if stat.ephemeral_owner == 0 {
                seen.damage = Some(not_ephemeral(&paths.master));
            }
        }
        if let Some((content, stat)) = next()? {
            seen.table_version = Some(stat.version);
            match decode_table(&paths.table, &content) {
                Ok(number) => seen.table = Some(number),
                Err(error) => seen.damage = Some(error),
            }
        }
        for node in numbers {
            // One that has gone meanwhile is gone.
            let Some((content, stat)) = next()? else { continue };
            let path = paths.node(node);
            if node == self.node {
                seen.own = Some(stat.ephemeral_owner);
            }
            let listed = match stat.ephemeral_owner {
                0 => Err(not_ephemeral(&path)),
                _ => Listed::decode(&path, &content),
            };
            seen.nodes = seen.nodes.and_then(|mut nodes| {
                nodes.insert(node, listed?);
                Ok(nodes)
            });
        }
        Ok(seen)
    }

    /// Becomes master if there is none, and announces the table. Returns whether another look is needed.
    async fn act(&mut self, client: &Client, wanted: Wanted, seen: &Seen) -> Result<bool, Failure> {
        let paths = &self.settings.paths;
        let mut has_changed = false;
        if seen.master.is_none() {
            match client.create(&paths.master, self.node.to_string().as_bytes(), &self.ephemeral).await {
                Ok(_) | Err(Error::NodeExists) => has_changed = true,
                Err(error) => return Err(error.into()),
            }
        }
        let Some(announced) = wanted.announces.filter(|_| wanted.announcements > self.announced) else { return Ok(has_changed) };
        if seen.table >= Some(announced) {
            self.announced = wanted.announcements;
            if let Some(found) = seen.table.filter(|found| *found > announced)
                && self.told_ahead.replace((announced, found)) != Some((announced, found))
            {
                tracing::warn!(announced, found, "ZooKeeper speaks of a newer table");
                self.process.tell(Event::Ahead { opening: self.opening, announced, found });
            }
            return Ok(has_changed);
        }
        let content = encode_table(announced);
        let put = match seen.table_version {
            Some(version) => client.set_data(&paths.table, &content, Some(version)).await.map(drop),
            None => client.create(&paths.table, &content, &self.persistent).await.map(drop),
        };
        match put {
            Ok(()) => self.announced = wanted.announcements,
            // Somebody else was faster. The watch, or the next heartbeat, leads to another round.
            Err(Error::BadVersion | Error::NodeExists | Error::NoNode) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    /// Tells the view, if it is another one than before. Returns what is wrong with it.
    fn tell_view(&mut self, client: &Client, seen: Seen) -> Result<Option<CoordinatorError>, Failure> {
        let own_session = client.session_id().0;
        // If there are too many nodes, nobody has looked for it.
        if seen.own != Some(own_session) && (seen.own.is_some() || seen.nodes.is_ok()) {
            return Err(self.lost());
        }
        // Old data may have this session, too, in an earlier time of it. Who is absent there may be alive.
        if seen.changes < self.seen_changes {
            tracing::warn!(opening = self.opening.0, "the data of ZooKeeper have gone back in time");
            return Err(Failure::Over(CoordinatorError::Ended));
        }
        self.seen_changes = seen.changes;
        let nodes = match seen.nodes {
            Ok(nodes) => nodes,
            Err(error) => return Ok(Some(error)),
        };
        let alive = nodes.iter().map(|(node, listed)| (*node, listed.opening)).collect();
        let view = View { alive, is_master: seen.master == Some(own_session), table: seen.table };
        let told = Some((view.clone(), nodes.clone()));
        if self.told_view != told {
            self.told_view = told;
            self.process.tell(Event::View { opening: self.opening, view, nodes });
        }
        Ok(seen.damage)
    }
}

/// Returns what a read has found. `None`: nothing is there.
fn found(result: MultiReadResult) -> Result<Option<(Vec<u8>, Stat)>, Error> {
    match result {
        MultiReadResult::Data { data, stat } => Ok(Some((data, stat))),
        MultiReadResult::Error { err: Error::NoNode } => Ok(None),
        MultiReadResult::Error { err } => Err(err),
        other => Err(Error::UnexpectedError(format!("{other:?} is no answer to a read"))),
    }
}

fn damaged(path: &str, why: String) -> CoordinatorError {
    CoordinatorError::Damaged { path: path.to_owned(), why }
}

fn not_ephemeral(path: &str) -> CoordinatorError {
    damaged(path, "it belongs to no session".to_owned())
}

#[cfg(test)]
mod tests {
    use super::Asked;

    /// Of requests that follow each other quickly, the leader may know the first one only.
    #[test]
    fn m4_3_what_is_heard_is_the_newest_request_that_the_leader_must_know() {
        let mut asked = Asked::new(8000);
        asked.begin(100);
        for (sent_ms, heard_ms) in [
            (150, 100),
            (1099, 100),
            // The request at 150 is older than an eighth of a session.
            (1150, 150),
            (1160, 150),
            // A round was slow: an eighth of a session before it, nothing was sent.
            (5000, 1160),
            (6000, 5000),
            (7500, 6000),
        ] {
            assert_eq!(asked.answered(sent_ms), heard_ms, "{sent_ms}");
        }
        asked.begin(9000);
        assert_eq!(asked.answered(9001), 9000);
    }
}
