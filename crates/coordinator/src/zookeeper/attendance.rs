//! A session with ZooKeeper, from its beginning to its end, over any number of connections.
//!
//! The library reconnects by itself, with waits between, and gives a session up when it has heard nothing for 1.4 times
//! its length. ZooKeeper may know better: when all servers were away, it gives every session its whole time again. So
//! a session is over only when ZooKeeper says so.

use super::round::{Failure, Round};
use super::{BEATS, Credentials, Settings, Wanted};
use crate::{CoordinatorError, Event, Joining, Process, Result};
use onefold_cluster::Opening;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use zookeeper_client::{Client, EventType, PersistentWatcher, SessionInfo, WatchedEvent};

/// The first wait after a failure. Each further one is twice as long.
const FIRST_WAIT_MS: u64 = 50;
/// The longest wait before another connection is tried.
const LONGEST_WAIT_MS: u64 = 1_000;
/// Changes that come together are looked at together.
const SETTLES_MS: u64 = 10;

/// What keeps a session up.
pub(super) struct Attendance {
    settings: Arc<Settings>,
    opening: Opening,
    process: Arc<dyn Process>,
    round: Round,
}

/// How a connection ended.
enum End {
    /// The process wants the session to end.
    Left,
    /// The library has given the session up.
    GivenUp,
}

type Leaving = oneshot::Receiver<Infallible>;

impl Attendance {
    pub(super) fn new(settings: Arc<Settings>, joining: Joining, process: Arc<dyn Process>) -> Attendance {
        let opening = joining.present.opening;
        let round = Round::new(settings.clone(), joining, process.clone());
        Attendance { settings, opening, process, round }
    }

    /// Returns when the session has ended, for whatever reason.
    pub(super) async fn run(mut self, mut wanted: watch::Receiver<Wanted>, mut leaving: Leaving) {
        if let Err(error) = self.attend(&mut wanted, &mut leaving).await {
            self.process.tell(Event::Over { opening: self.opening, error });
        }
    }

    async fn attend(&mut self, wanted: &mut watch::Receiver<Wanted>, leaving: &mut Leaving) -> Result<()> {
        let mut session = None;
        loop {
            let Some((client, asked_ms)) = self.connect(session.as_ref(), leaving).await? else { return Ok(()) };
            session = Some(client.session().clone());
            self.round.begin(asked_ms);
            let end = self.serve(&client, wanted, leaving).await;
            self.close(client).await;
            match end? {
                End::Left => return Ok(()),
                End::GivenUp => tracing::info!(opening = self.opening.0, "asking ZooKeeper for the session again"),
            }
        }
    }

    /// Connects, however long it takes: with a new session, or with the one that there was. Returns when it asked, too.
    /// `None`: the process wants it no longer.
    async fn connect(&self, session: Option<&SessionInfo>, leaving: &mut Leaving) -> Result<Option<(Client, u64)>> {
        let mut wait_ms = FIRST_WAIT_MS;
        loop {
            // Once through all servers: the library's waits between grow too long for a session that may be ending.
            let length = Duration::from_millis(self.settings.session_ms);
            let mut connector = Client::connector().with_session_timeout(length).with_fail_eagerly();
            if let Some(session) = session {
                connector = connector.with_session(session.clone());
            }
            if let Some(Credentials { user, password }) = &self.settings.credentials {
                connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
            }
            let asked_ms = self.process.now_ms();
            let connected = tokio::select! {
                connected = connector.connect(&self.settings.servers) => connected,
                _ = &mut *leaving => return Ok(None),
            };
            match connected {
                Ok(client) => return Ok(Some((client, asked_ms))),
                Err(zookeeper_client::Error::SessionExpired) if session.is_some() => return Err(CoordinatorError::Ended),
                Err(error) if refuses(&error) => return Err(CoordinatorError::Refused { why: error.to_string() }),
                Err(error) => tracing::warn!(%error, "ZooKeeper does not answer at {}; trying again", self.settings.servers),
            }
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(wait_ms)) => {}
                _ = &mut *leaving => return Ok(None),
            }
            wait_ms = (wait_ms * 2).min(LONGEST_WAIT_MS);
        }
    }

    /// Sends heartbeats and looks, as long as the library has a session.
    async fn serve(&mut self, client: &Client, wanted: &mut watch::Receiver<Wanted>, leaving: &mut Leaving) -> Result<End> {
        let found_ms = u64::try_from(client.session_timeout().as_millis()).unwrap_or(u64::MAX);
        let session_ms = self.settings.session_ms;
        if found_ms != session_ms {
            return Err(CoordinatorError::SessionLength { session_ms, found_ms });
        }
        let beat_ms = session_ms / BEATS;
        let mut failures = 0u32;
        let mut watcher: Option<PersistentWatcher> = None;
        loop {
            let now_wanted = *wanted.borrow_and_update();
            let result = tokio::select! {
                result = self.round.go(client, now_wanted, &mut watcher) => result,
                _ = &mut *leaving => return Ok(End::Left),
            };
            let wait_ms = match result {
                Ok(()) => {
                    failures = 0;
                    beat_ms
                }
                Err(Failure::Over(error)) => return Err(error),
                Err(Failure::Request(error)) if refuses(&error) => return Err(CoordinatorError::Refused { why: error.to_string() }),
                Err(Failure::Request(error)) if gives_up(&error) => return Ok(End::GivenUp),
                Err(Failure::Request(error)) => {
                    tracing::debug!(%error, "a request to ZooKeeper failed");
                    failures = (failures + 1).min(10);
                    (FIRST_WAIT_MS << failures).min(beat_ms)
                }
            };
            let mut due = Instant::now() + Duration::from_millis(wait_ms);
            loop {
                tokio::select! {
                    () = tokio::time::sleep_until(due) => break,
                    _ = &mut *leaving => return Ok(End::Left),
                    changed = wanted.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return Ok(End::Left),
                    },
                    event = next(&mut watcher) => {
                        // Behind its last event a watcher must not be asked.
                        if event.event_type == EventType::Session && event.session_state.is_terminated() {
                            return Ok(End::GivenUp);
                        }
                        due = due.min(Instant::now() + Duration::from_millis(SETTLES_MS));
                    }
                }
            }
        }
    }

    /// Ends the session, unless the library has given it up. Waits for ZooKeeper's answer.
    async fn close(&self, client: Client) {
        if client.state().is_terminated() {
            return;
        }
        let mut states = client.state_watcher();
        // The library ends a session when its last client is gone.
        drop(client);
        let ended = async { while !states.changed().await.is_terminated() {} };
        if tokio::time::timeout(Duration::from_millis(self.settings.session_ms), ended).await.is_err() {
            tracing::warn!(opening = self.opening.0, "ZooKeeper has not answered to the end of a session; it ends by itself");
        }
    }
}

/// Returns the next event of a watcher. Without one there is none.
async fn next(watcher: &mut Option<PersistentWatcher>) -> WatchedEvent {
    match watcher {
        Some(watcher) => watcher.changed().await,
        None => std::future::pending().await,
    }
}

/// Returns whether every further request would be refused in the same way.
fn refuses(error: &zookeeper_client::Error) -> bool {
    use zookeeper_client::Error;
    matches!(error, Error::AuthFailed | Error::NoAuth | Error::InvalidAcl | Error::BadArguments(_) | Error::Unimplemented)
}

/// Returns whether the library has given the session up, or its connection says things that it must not say.
fn gives_up(error: &zookeeper_client::Error) -> bool {
    use zookeeper_client::Error;
    let is_over = matches!(error, Error::SessionExpired | Error::SessionMoved | Error::ClientClosed | Error::NoHosts | Error::Timeout);
    is_over || matches!(error, Error::UnexpectedError(_) | Error::UnmarshalError { .. })
}
