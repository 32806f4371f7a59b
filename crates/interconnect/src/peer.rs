//! The requests of this node to another one: their queues, what is under way, and what answers them.
//!
//! # Invariants
//! * A request is in a queue, under way, or over. It is sent once: when the connection is lost, those under way fail.
//! * Only releases are sent again, first thing on the next connection: else the owner would keep the claims for ever
//!   (unsafe order 18). Their answers come in the order in which they were sent, before that of any later claim. So no
//!   claim that this node holds by an answer is released by a repetition.
//! * No queue is longer than its [capacity](Lane::capacity), and no lane has more under way than its window.

use crate::frame::Frame;
use crate::lanes::{LANES, Lane};
use crate::messages::{ClaimPart, MOST_NAMES, Message, kinds};
use crate::setup::Context;
use crate::{CallError, Refusal};
use onefold_fingerprint::Fingerprint;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The names of a claim that does not wait for others (M4.7).
const ENOUGH_NAMES: usize = 128;
/// The most names that wait to be released: 32 MiB.
const MOST_RELEASED: usize = 1 << 20;
/// The shortest pause between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// Who waits for an answer.
pub(crate) type Waiter = mpsc::Sender<Result<Message, CallError>>;

/// The requests to a node.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) node: u32,
    pub(crate) context: Arc<Context>,
    state: Mutex<State>,
    /// A queue has room again.
    room: Condvar,
    /// There may be something to send, or the end.
    pub(crate) wake: Notify,
    /// There is need of a connection, or the end.
    pub(crate) need: Notify,
}

#[derive(Debug, Default)]
struct State {
    queues: [VecDeque<Item>; LANES],
    under_way: HashMap<u32, Sent>,
    /// By lane.
    flying: [usize; LANES],
    /// Claim messages that are under way.
    claims_under_way: usize,
    /// Claims in the queue.
    claims_queued: usize,
    /// The names in releases that are queued.
    released: HashSet<Fingerprint>,
    last_id: u32,
    last_ticket: u64,
    connections: u64,
    pause: Duration,
    /// Why there is no connection.
    trouble: Option<String>,
    is_stopped: bool,
    /// The most that a queue had, by lane.
    #[cfg(test)]
    most_queued: [usize; LANES],
}

/// A request that waits to be sent.
#[derive(Debug)]
enum Item {
    Claim { ticket: u64, parts: Vec<ClaimPart>, names: usize, since: Instant, waiter: Waiter },
    Release(Vec<Fingerprint>),
    Call { ticket: u64, kind: u8, payload: Vec<u8>, waiter: Option<Waiter> },
}

impl Item {
    fn ticket(&self) -> u64 {
        match self {
            Item::Claim { ticket, .. } | Item::Call { ticket, .. } => *ticket,
            Item::Release(_) => 0,
        }
    }

    /// Ends the request.
    fn fail(self, error: &CallError) {
        match self {
            Item::Claim { waiter, .. } | Item::Call { waiter: Some(waiter), .. } => answer(&waiter, Err(error.clone())),
            Item::Release(_) | Item::Call { waiter: None, .. } => {}
        }
    }
}

/// A request that has no answer yet.
#[derive(Debug)]
enum Sent {
    /// Those who wait, and how many names each has claimed.
    Claim(Vec<(Waiter, usize)>),
    Release(Vec<Fingerprint>),
    Call {
        kind: u8,
        waiter: Option<Waiter>,
    },
}

impl Sent {
    fn lane(&self) -> Lane {
        match self {
            Sent::Claim(_) | Sent::Release(_) => Lane::Claims,
            Sent::Call { kind, .. } => Lane::of(*kind).expect("requests have a lane"),
        }
    }

    /// Returns whether a message answers it.
    fn is_answered_by(&self, message: &Message) -> bool {
        match (self, message) {
            (_, Message::Refused(_)) => true,
            (Sent::Claim(waiters), Message::Claimed(claims)) => waiters.iter().map(|(_, names)| names).sum::<usize>() == claims.len(),
            (Sent::Call { kind: kinds::DELIVER, .. }, Message::Delivered(_)) => true,
            (Sent::Call { kind: kinds::COLLECT, .. }, Message::Collected(_)) => true,
            (Sent::Call { kind: kinds::REMOVE, .. }, Message::Removing(_)) => true,
            (Sent::Call { kind: kinds::RECLAIM, .. }, Message::Reclaimed(_)) => true,
            (Sent::Call { kind, .. }, Message::Done) => !matches!(*kind, kinds::DELIVER | kinds::COLLECT | kinds::REMOVE | kinds::RECLAIM),
            (Sent::Release(_), Message::Done) => true,
            _ => false,
        }
    }
}

/// What to send next.
#[derive(Debug)]
pub(crate) enum Next {
    Frame(Frame),
    /// A claim waits for others until then.
    Until(Instant),
    Nothing,
    Stop,
}

/// A request that was queued.
#[derive(Debug)]
pub(crate) struct Call {
    ticket: u64,
    answer: mpsc::Receiver<Result<Message, CallError>>,
}

fn answer(waiter: &Waiter, result: Result<Message, CallError>) {
    // Who gave up has dropped the other end.
    let _ = waiter.send(result);
}

impl Peer {
    pub(crate) fn new(node: u32, context: Arc<Context>) -> Arc<Peer> {
        let state = State { pause: FIRST_PAUSE, ..State::default() };
        Arc::new(Peer { node, context, state: Mutex::new(state), room: Condvar::new(), wake: Notify::new(), need: Notify::new() })
    }

    // The callers.

    /// Queues a claim of at most [`MOST_NAMES`] chunks. Waits for room.
    pub(crate) fn claim(&self, parts: Vec<ClaimPart>, until: Instant) -> Result<Call, CallError> {
        let (waiter, answer) = mpsc::channel();
        let names = parts.iter().map(|part| part.wanted.len()).sum();
        let ticket = self.queue(Lane::Claims, until, |state, ticket| {
            state.claims_queued += 1;
            Item::Claim { ticket, parts, names, since: Instant::now(), waiter }
        })?;
        Ok(Call { ticket, answer })
    }

    /// Queues another request. Waits for room.
    pub(crate) fn call(&self, kind: u8, payload: Vec<u8>, until: Instant) -> Result<Call, CallError> {
        let (waiter, answer) = mpsc::channel();
        let lane = Lane::of(kind).expect("requests have a lane");
        let ticket = self.queue(lane, until, |_, ticket| Item::Call { ticket, kind, payload, waiter: Some(waiter) })?;
        Ok(Call { ticket, answer })
    }

    /// Queues a request whose answer nobody waits for, unless the same one is queued, or the queue is full.
    pub(crate) fn tell(&self, kind: u8, payload: Vec<u8>) {
        let lane = Lane::of(kind).expect("requests have a lane");
        let mut state = self.state.lock();
        let is_stopped = state.is_stopped;
        let queue = &mut state.queues[lane as usize];
        let is_same = |item: &Item| {
            matches!(item, Item::Call { kind: queued, payload: queued_payload, waiter: None, .. }
            if *queued == kind && *queued_payload == payload)
        };
        if self.is_opened() && !is_stopped && queue.len() < lane.capacity() && !queue.iter().any(is_same) {
            queue.push_back(Item::Call { ticket: 0, kind, payload, waiter: None });
            drop(state);
            self.announce();
        }
    }

    /// Queues releases. Waits for room.
    pub(crate) fn release(&self, names: &[Fingerprint], until: Instant) {
        let mut state = self.state.lock();
        for names in names.chunks(MOST_NAMES) {
            while state.released.len() + names.len() > MOST_RELEASED && !state.is_stopped {
                if self.room.wait_until(&mut state, until).timed_out() {
                    tracing::warn!(node = self.node, names = names.len(), "claims are not given back: too many wait for it");
                    return;
                }
            }
            // If no claim is queued, a queued release of a name is as good as a second one behind it.
            let is_new = |name: &&Fingerprint| state.claims_queued > 0 || !state.released.contains(*name);
            let names: Vec<Fingerprint> = names.iter().filter(is_new).copied().collect();
            if names.is_empty() || state.is_stopped {
                continue;
            }
            state.released.extend(&names);
            match state.queues[Lane::Claims as usize].back_mut() {
                Some(Item::Release(queued)) if queued.len() + names.len() <= MOST_NAMES => queued.extend(names),
                _ => state.queues[Lane::Claims as usize].push_back(Item::Release(names)),
            }
        }
        drop(state);
        self.announce();
    }

    fn queue(&self, lane: Lane, until: Instant, item: impl FnOnce(&mut State, u64) -> Item) -> Result<u64, CallError> {
        if !self.is_opened() {
            return Err(CallError::Unopened);
        }
        let mut state = self.state.lock();
        // Releases are bounded by themselves: they must not keep claims out, which are what ends them.
        let is_full = |state: &State| {
            let queue = &state.queues[lane as usize];
            let releases = if lane == Lane::Claims { queue.iter().filter(|item| matches!(item, Item::Release(_))).count() } else { 0 };
            queue.len() - releases >= lane.capacity()
        };
        while is_full(&state) && !state.is_stopped {
            if self.room.wait_until(&mut state, until).timed_out() {
                return Err(self.late(&state));
            }
        }
        if state.is_stopped {
            return Err(CallError::Stopped);
        }
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        let item = item(&mut state, ticket);
        state.queues[lane as usize].push_back(item);
        #[cfg(test)]
        {
            state.most_queued[lane as usize] = state.most_queued[lane as usize].max(state.queues[lane as usize].len());
        }
        drop(state);
        self.announce();
        Ok(ticket)
    }

    /// Returns whether the log of this node is open. An engine asks others already while it opens, and does without an
    /// answer.
    fn is_opened(&self) -> bool {
        self.context.opening.get().is_some()
    }

    fn announce(&self) {
        self.need.notify_one();
        self.wake.notify_one();
    }

    fn late(&self, state: &State) -> CallError {
        CallError::Late(state.trouble.as_ref().map(|trouble| format!(": {trouble}")).unwrap_or_default())
    }

    /// Waits for the answer. Gives up at `until`: what was not sent is not sent any more.
    pub(crate) fn answer(&self, call: &Call, until: Instant) -> Result<Message, CallError> {
        let received = call.answer.recv_timeout(until.saturating_duration_since(Instant::now()));
        match received {
            Ok(Ok(Message::Refused(refusal))) => Err(CallError::Refusal(refusal)),
            Ok(result) => result,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let mut state = self.state.lock();
                state.forget(call.ticket);
                self.room.notify_all();
                Err(self.late(&state))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(CallError::Stopped),
        }
    }

    #[cfg(test)]
    pub(crate) fn queued(&self) -> usize {
        self.state.lock().queues.iter().map(VecDeque::len).sum()
    }

    #[cfg(test)]
    pub(crate) fn most_queued(&self, lane: Lane) -> usize {
        self.state.lock().most_queued[lane as usize]
    }

    #[cfg(test)]
    pub(crate) fn trouble(&self) -> Option<String> {
        self.state.lock().trouble.clone()
    }

    // The connection.

    /// Returns whether something waits to be sent.
    pub(crate) fn has_need(&self) -> bool {
        self.state.lock().queues.iter().any(|queue| !queue.is_empty())
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().is_stopped
    }

    /// Returns the number of the next connection.
    pub(crate) fn next_connection(&self) -> u64 {
        let mut state = self.state.lock();
        state.connections += 1;
        state.connections
    }

    /// Notes that there is a connection.
    pub(crate) fn connected(&self) {
        let mut state = self.state.lock();
        state.trouble = None;
        state.pause = FIRST_PAUSE;
        self.context.counters.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the node cannot be reached now. Returns how long to pause.
    pub(crate) fn unreached(&self, why: String) -> Duration {
        let mut state = self.state.lock();
        state.trouble = Some(why);
        let pause = state.pause.min(self.context.options().pause);
        state.pause = (state.pause * 2).min(self.context.options().pause);
        pause
    }

    /// Fails what is queued, apart from releases: trying again does not help.
    pub(crate) fn refused(&self, error: &CallError) {
        let mut state = self.state.lock();
        state.claims_queued = 0;
        for queue in &mut state.queues {
            let (kept, failed) = std::mem::take(queue).into_iter().partition(|item| matches!(item, Item::Release(_)));
            *queue = kept;
            let failed: VecDeque<Item> = failed;
            failed.into_iter().for_each(|item| item.fail(error));
        }
        self.room.notify_all();
    }

    /// Returns whether the node takes part, or is there: it may answer one day.
    pub(crate) fn is_named(&self) -> bool {
        let directory = &self.context.setup.directory;
        directory.address(self.node).is_some() || directory.nodes().contains(&self.node)
    }

    /// Fails what is queued: the node owns nothing any more, and is not there. Others have what it had, so the callers
    /// ask them. What it would be given back, nobody holds any more.
    pub(crate) fn gone(&self) {
        self.refused(&CallError::Refusal(Refusal::NotOwned));
        let mut state = self.state.lock();
        state.released.clear();
        state.queues[Lane::Claims as usize].retain(|item| !matches!(item, Item::Release(_)));
        self.room.notify_all();
    }

    /// Fails what is under way: the connection is lost. Releases are sent again.
    pub(crate) fn lost(&self, why: &str) {
        let mut state = self.state.lock();
        state.trouble = Some(why.to_owned());
        let error = CallError::Lost(why.to_owned());
        for sent in std::mem::take(&mut state.under_way).into_values() {
            match sent {
                Sent::Claim(waiters) => waiters.iter().for_each(|(waiter, _)| answer(waiter, Err(error.clone()))),
                Sent::Call { waiter, .. } => waiter.iter().for_each(|waiter| answer(waiter, Err(error.clone()))),
                Sent::Release(names) => {
                    state.released.extend(&names);
                    state.queues[Lane::Claims as usize].push_front(Item::Release(names));
                }
            }
        }
        state.flying = [0; LANES];
        state.claims_under_way = 0;
    }

    /// Ends everything.
    pub(crate) fn stop(&self) {
        self.lost("this node is stopping");
        self.state.lock().is_stopped = true;
        self.refused(&CallError::Stopped);
        self.announce();
    }

    /// Returns what to send next.
    pub(crate) fn next(&self) -> Next {
        let mut state = self.state.lock();
        if state.is_stopped {
            return Next::Stop;
        }
        let mut until = None;
        for lane in Lane::ALL {
            if state.flying[lane as usize] >= lane.window() {
                continue;
            }
            let gathers = match state.queues[lane as usize].front() {
                None => continue,
                Some(Item::Claim { since, .. }) => state.gathers(*since, &self.context),
                Some(_) => None,
            };
            if gathers.is_some() {
                until = gathers;
                continue;
            }
            let frame = state.take(lane, &self.context);
            self.room.notify_all();
            return Next::Frame(frame);
        }
        until.map_or(Next::Nothing, Next::Until)
    }

    /// Takes an answer in. Errors: it is the answer to nothing that this node has asked.
    pub(crate) fn arrived(&self, frame: &Frame) -> Result<(), String> {
        let (table, message) = Message::decode(frame.kind, &frame.payload).map_err(|error| error.to_string())?;
        self.context.heard(table);
        let mut state = self.state.lock();
        let sent = state.under_way.get(&frame.id).ok_or_else(|| format!("it answered request {}, which is none", frame.id))?;
        if !sent.is_answered_by(&message) {
            return Err(format!("its answer to request {} is of kind {:#04x}, or of another length", frame.id, frame.kind));
        }
        let sent = state.under_way.remove(&frame.id).expect("it was found");
        state.flying[sent.lane() as usize] -= 1;
        match (sent, message) {
            (Sent::Claim(waiters), message) => {
                state.claims_under_way -= 1;
                let claims = if let Message::Claimed(claims) = &message { &claims[..] } else { &[] };
                let mut at = 0;
                for (waiter, names) in waiters {
                    let part = claims.get(at..at + names).map(|claims| Message::Claimed(claims.to_vec()));
                    answer(&waiter, Ok(part.unwrap_or_else(|| message.clone())));
                    at += names;
                }
            }
            (Sent::Call { waiter, .. }, message) => waiter.iter().for_each(|waiter| answer(waiter, Ok(message.clone()))),
            (Sent::Release(_), _) => {}
        }
        drop(state);
        self.wake.notify_one();
        Ok(())
    }
}

impl State {
    /// Returns until when the claims in front wait for others (M4.7). `None`: they are sent now.
    fn gathers(&self, since: Instant, context: &Context) -> Option<Instant> {
        let until = since + context.options().gather;
        let mut names = 0;
        let is_enough = self.queues[Lane::Claims as usize].iter().any(|item| {
            names += if let Item::Claim { names, .. } = item { *names } else { 0 };
            names >= ENOUGH_NAMES
        });
        (self.claims_under_way > 0 && !is_enough && Instant::now() < until).then_some(until)
    }

    /// Takes the first request of a lane, with what goes into the same message.
    fn take(&mut self, lane: Lane, context: &Context) -> Frame {
        let (table, digest_bytes) = (context.setup.directory.table(), context.setup.digest_bytes);
        let queue = &mut self.queues[lane as usize];
        let (kind, payload, sent) = match queue.pop_front().expect("the lane has a request") {
            Item::Call { kind, payload, waiter, .. } => (kind, payload, Sent::Call { kind, waiter }),
            Item::Release(mut names) => {
                while let Some(Item::Release(more)) = queue.front()
                    && names.len() + more.len() <= MOST_NAMES
                {
                    names.extend(more);
                    queue.pop_front();
                }
                names.iter().for_each(|name| {
                    self.released.remove(name);
                });
                (kinds::RELEASE, Message::Release(names.clone()).encode(table, digest_bytes), Sent::Release(names))
            }
            Item::Claim { mut parts, mut names, waiter, .. } => {
                let mut waiters = vec![(waiter, names)];
                self.claims_queued -= 1;
                while let Some(Item::Claim { names: more, .. }) = queue.front()
                    && names + more <= MOST_NAMES
                {
                    let Some(Item::Claim { parts: others, names: more, waiter, .. }) = queue.pop_front() else {
                        unreachable!("it is a claim")
                    };
                    parts.extend(others);
                    names += more;
                    waiters.push((waiter, more));
                    self.claims_queued -= 1;
                }
                self.claims_under_way += 1;
                context.counters.claimed_names.fetch_add(names as u64, Ordering::Relaxed);
                (kinds::CLAIM, Message::Claim(parts).encode(table, digest_bytes), Sent::Claim(waiters))
            }
        };
        let id = self.next_id();
        self.flying[lane as usize] += 1;
        self.under_way.insert(id, sent);
        Frame { kind, id, payload }
    }

    fn next_id(&mut self) -> u32 {
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            if self.last_id != 0 && !self.under_way.contains_key(&self.last_id) {
                return self.last_id;
            }
        }
    }

    /// Removes a request that was not sent.
    fn forget(&mut self, ticket: u64) {
        for queue in &mut self.queues {
            if let Some(at) = queue.iter().position(|item| item.ticket() == ticket) {
                let removed = queue.remove(at);
                self.claims_queued -= usize::from(matches!(removed, Some(Item::Claim { .. })));
            }
        }
    }
}
