//! The tokens of a server: which data each stands for, and when it expires. [`token`](super::token) has the commands.

use super::Content;
use super::sense::{Code, Key, Sense};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most tokens of a server.
const MAX_TOKENS: usize = 256;
/// The most memory of all tokens of a server, in bytes.
const MAX_MEMORY_BYTES: usize = 64 << 20;

/// The tokens of a server.
#[derive(Debug, Default)]
pub struct Tokens(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<Held>,
    next: u64,
    /// Whether a thread looks for unused tokens.
    is_watched: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) token: Vec<u8>,
    pub(super) creator: u64,
    pub(super) contents: Vec<Arc<dyn Content>>,
    pub(super) timeout: Duration,
    pub(super) expires: Instant,
    /// When it expires, however much it is used.
    pub(super) ends: Instant,
}

impl Held {
    fn memory_bytes(&self) -> usize {
        self.contents.iter().map(|content| content.memory_bytes()).sum()
    }

    pub(super) fn length(&self) -> u64 {
        self.contents.iter().map(|content| content.length()).sum()
    }
}

impl State {
    fn expire(&mut self, now: Instant) {
        self.held.retain(|held| held.expires > now);
    }
}

impl Tokens {
    pub(super) fn add(&self, mut held: Held) -> Result<Vec<u8>, Sense> {
        let mut state = self.0.state.lock();
        state.expire(Instant::now());
        let memory: usize = state.held.iter().map(Held::memory_bytes).sum();
        if state.held.len() >= MAX_TOKENS || memory + held.memory_bytes() > MAX_MEMORY_BYTES {
            return Err(Sense::new(Key::IllegalRequest, Code::INSUFFICIENT_RESOURCES_TO_CREATE_ROD_TOKEN));
        }
        state.next += 1;
        held.token[8..16].copy_from_slice(&state.next.to_be_bytes());
        let token = held.token.clone();
        state.held.push(held);
        self.0.changed.notify_all();
        if !state.is_watched {
            let shared = self.0.clone();
            state.is_watched = std::thread::Builder::new().name("tokens".into()).spawn(move || shared.watch()).is_ok();
        }
        Ok(token)
    }

    /// Returns the token's content, and restarts its timeout.
    pub(super) fn find(&self, token: &[u8], is_last_use: bool) -> Option<Held> {
        let mut state = self.0.state.lock();
        let now = Instant::now();
        state.expire(now);
        let at = state.held.iter().position(|held| held.token == token)?;
        if is_last_use {
            return Some(state.held.swap_remove(at));
        }
        let held = &mut state.held[at];
        held.expires = (now + held.timeout).min(held.ends);
        Some(held.clone())
    }

    /// Drops the tokens that have expired at a time.
    #[cfg(test)]
    pub(super) fn expire(&self, now: Instant) {
        self.0.state.lock().expire(now);
    }

    /// Drops all tokens of a unit.
    pub(super) fn cancel(&self, creator: u64) {
        self.0.state.lock().held.retain(|held| held.creator != creator);
        self.0.changed.notify_all();
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        self.0.state.lock().held.clear();
        self.0.changed.notify_all();
    }
}

impl Shared {
    /// Drops unused tokens, because they hold back reclamation. Ends when there are no tokens.
    fn watch(&self) {
        let mut state = self.state.lock();
        loop {
            state.expire(Instant::now());
            let Some(next) = state.held.iter().map(|held| held.expires).min() else {
                state.is_watched = false;
                return;
            };
            self.changed.wait_until(&mut state, next);
        }
    }
}
