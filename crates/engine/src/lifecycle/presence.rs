//! Who uses a store in a bucket, for others to see: an object with a count that its owner raises (decision 0068).
//!
//! This is advice, for politeness. A second writer waits for the first one to end, or gives up, instead of taking the
//! store from it. That the first one has ended is in the log, so a writer has a presence only if it stays for some
//! time. A prune keeps what a reader on another machine reads. What protects data is the fence in the log.
//!
//! No clock is compared with another one's. Whoever finds a presence watches it for a while of its own time: if it does
//! not change, its owner is gone.

use crate::lifecycle::descriptor::random_digits;
use crate::{EngineError, Result};
use onefold_ground::{Bucket, Ground, Holder, LockError, read_file, replace_file};
use onefold_oplog::{Position, Wait};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The presence of the writer.
const WRITER: &str = "leases/writer";
/// The presences of readers are below this.
const READERS: &str = "leases/readers/";
/// The file with the name of a state, which tells it from those of other machines and users.
const STATE_NAME: &str = "state-name";
/// How often a count is raised.
const RAISED_EVERY: Duration = Duration::from_secs(10);
/// Whoever has not raised its count for this time is gone. Several times [`RAISED_EVERY`]: a request may take long.
const GONE_AFTER: Duration = Duration::from_secs(45);
/// How often a presence is looked at meanwhile.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(2);
/// No presence is longer: a reader names what it reads.
const LIMIT_BYTES: u64 = 17 << 20;

/// A presence of this process. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Presence {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    bucket: Arc<dyn Bucket>,
    name: String,
    state_name: String,
    holder: Holder,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug)]
struct State {
    count: u64,
    text: Vec<u8>,
    has_ended: bool,
    /// Somebody else has put theirs in its place.
    is_lost: bool,
}

/// A presence that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Its name.
    pub(crate) name: String,
    content: Vec<u8>,
}

impl Seen {
    /// Returns what it says: who it is, in the first line, and what it reads.
    pub(crate) fn text(&self) -> &[u8] {
        self.content.splitn(3, |byte| *byte == b'\n').nth(2).unwrap_or_default()
    }

    /// Returns the name of the state that it uses.
    fn state(&self) -> &[u8] {
        self.content.splitn(3, |byte| *byte == b'\n').nth(1).unwrap_or_default()
    }

    /// Returns who it says to be.
    pub(crate) fn holder(&self) -> Option<Holder> {
        Holder::parse(self.text().split(|byte| *byte == b'\n').next()?)
    }
}

impl Shared {
    fn content(&self, state: &State) -> Vec<u8> {
        [format!("{:016x}\n{}\n", state.count, self.state_name).as_bytes(), &state.text].concat()
    }

    /// Raises the count. False: somebody else has put theirs in its place.
    fn raise_once(&self, state: &mut State) -> Result<bool> {
        let is_anothers = |seen: Seen| seen.state() != self.state_name.as_bytes() || seen.holder().as_ref() != Some(&self.holder);
        // The first one takes the place of what a process that died has left.
        if state.count > 0 && look_at(&*self.bucket, &self.name)?.is_some_and(is_anothers) {
            return Ok(false);
        }
        state.count += 1;
        self.bucket.put_over(&self.name, &self.content(state))?;
        Ok(true)
    }

    fn raise(&self) {
        let mut state = self.state.lock();
        loop {
            if !state.has_ended {
                self.ended.wait_for(&mut state, RAISED_EVERY);
            }
            if state.has_ended {
                return;
            }
            match self.raise_once(&mut state) {
                Ok(true) => {}
                Ok(false) => {
                    tracing::warn!("{} is another process's now, or gone", self.bucket.describe(&self.name));
                    state.is_lost = true;
                    return;
                }
                Err(error) => tracing::warn!(%error, "others may take this process for gone"),
            }
        }
    }
}

impl Presence {
    /// Begins. `now` is false for one that others see only when it has stayed for some time.
    fn begin(bucket: &Arc<dyn Bucket>, name: &str, state_name: &str, holder: &Holder, now: bool) -> Result<Presence> {
        let state = Mutex::new(State { count: 0, text: holder.line(), has_ended: false, is_lost: false });
        let (bucket, name, state_name, holder) = (bucket.clone(), name.to_owned(), state_name.to_owned(), holder.clone());
        let shared = Arc::new(Shared { bucket, name, state_name, holder, state, ended: Condvar::new() });
        if now {
            shared.raise_once(&mut shared.state.lock())?;
        }
        let raising = shared.clone();
        let thread = std::thread::Builder::new().name("onefold-presence".to_owned()).spawn(move || raising.raise());
        let thread = thread.map_err(|error| EngineError::Invalid { what: "background thread".into(), why: error.to_string() })?;
        Ok(Presence { shared, thread: Some(thread) })
    }

    /// Says something else from the next count on. Whoever looks at a presence waits for that: until then it has seen a
    /// reader that does not say what it reads, and removes nothing.
    pub(crate) fn say(&self, text: Vec<u8>) {
        self.shared.state.lock().text = text;
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.shared.state.lock().has_ended = true;
        self.shared.ended.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let (is_there, is_lost) = {
            let state = self.shared.state.lock();
            (state.count > 0, state.is_lost)
        };
        if is_there && !is_lost {
            // If that fails, whoever comes next watches it for a while.
            let _ = self.shared.bucket.delete(std::slice::from_ref(&self.shared.name));
        }
    }
}

/// Becomes the writer that others see, if it stays for long. The caller owns the log, which says so too.
pub(crate) fn become_writer(bucket: &Arc<dyn Bucket>, ground: &dyn Ground, holder: &Holder) -> Result<Presence> {
    Presence::begin(bucket, WRITER, &state_name(ground)?, holder, false)
}

/// Returns the first bytes of the name of a state. Whoever cannot have one, and does not write to the log, gets zeros.
pub(crate) fn owner(ground: &dyn Ground, is_needed: bool) -> Result<[u8; 8]> {
    if !is_needed {
        return Ok([0; 8]);
    }
    let name = state_name(ground)?;
    let number = name.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    Ok(number.unwrap_or_default().to_be_bytes())
}

/// Watches the owner of a presence, until it is clear whether it is there.
#[derive(Debug)]
struct Watch<'a> {
    bucket: &'a dyn Bucket,
    name: &'a str,
    began: Instant,
    /// What was seen first.
    first: Option<Seen>,
}

/// What a watch has found out.
#[derive(Debug)]
enum Found {
    /// It is there.
    There(Option<Holder>),
    /// It has ended, or has not shown itself for [`GONE_AFTER`].
    Gone,
    /// Look again.
    Unknown,
}

impl<'a> Watch<'a> {
    fn begin(bucket: &'a dyn Bucket, name: &'a str, first: Option<Seen>) -> Watch<'a> {
        tell(first.as_ref());
        Watch { bucket, name, began: Instant::now(), first }
    }

    /// Waits for a moment, and looks.
    fn look(&self) -> Result<Found> {
        std::thread::sleep(LOOKED_AT_EVERY);
        let now = look_at(self.bucket, self.name)?;
        Ok(match (&self.first, &now) {
            (Some(_), None) => Found::Gone,
            _ if now != self.first => Found::There(now.as_ref().and_then(Seen::holder)),
            _ if self.began.elapsed() >= GONE_AFTER => Found::Gone,
            _ => Found::Unknown,
        })
    }
}

/// Returns what to do about a writer elsewhere that has not ended its work, as far as the log says. The log goes on to
/// the position that each call passes. Errors: the writer is there.
pub(crate) fn wait_for_writer(bucket: &dyn Bucket) -> impl FnMut(Position) -> Result<Wait> + '_ {
    let mut watched: Option<(Position, Watch<'_>)> = None;
    move |end| {
        let Some((first_end, watch)) = &watched else {
            watched = Some((end, Watch::begin(bucket, WRITER, look_at(bucket, WRITER)?)));
            return Ok(Wait::LookAgain);
        };
        let found = if end == *first_end { watch.look()? } else { Found::There(watch.first.as_ref().and_then(Seen::holder)) };
        match found {
            Found::There(holder) => Err(LockError::Held { path: bucket.describe(WRITER), holder }.into()),
            Found::Gone => Ok(Wait::Over),
            Found::Unknown => Ok(Wait::LookAgain),
        }
    }
}

/// Says why this process waits: once, as whoever waits for a store looks again and again.
fn tell(seen: Option<&Seen>) {
    static WAS_TOLD: AtomicBool = AtomicBool::new(false);
    if !WAS_TOLD.swap(true, Ordering::Relaxed) {
        let whose = seen.and_then(Seen::holder).map_or_else(|| "another process".to_owned(), |holder| holder.to_string());
        tracing::warn!("looking for up to {} s whether {whose} still uses the store", GONE_AFTER.as_secs());
    }
}

/// Becomes a reader that others see. It says nothing yet about what it reads.
pub(crate) fn become_reader(bucket: &Arc<dyn Bucket>, ground: &dyn Ground, holder: &Holder) -> Result<Presence> {
    let path = format!("{READERS}{}", random_digits()?);
    Presence::begin(bucket, &path, &state_name(ground)?, holder, true)
}

/// Returns the readers on other machines. If there are some, this watches them for a while.
pub(crate) fn readers(bucket: &dyn Bucket, ground: &dyn Ground) -> Result<Vec<Seen>> {
    let state = state_name(ground)?;
    let mut names = Vec::new();
    onefold_ground::list_after(bucket, READERS, String::new(), &mut |name, _| {
        names.push(name.to_owned());
        true
    })?;
    let mut there = Vec::new();
    for name in names {
        let Some(seen) = look_at(bucket, &name)? else { continue };
        let is_here = seen.state() == state.as_bytes();
        if is_here && !seen.holder().is_some_and(|holder| holder.has_ended()) {
            // It has a lease in the directory, too.
        } else if !is_here && is_there(bucket, &seen)? {
            // What it says now.
            there.extend(look_at(bucket, &name)?);
        } else {
            bucket.delete(&[name])?;
        }
    }
    Ok(there)
}

fn look_at(bucket: &dyn Bucket, name: &str) -> Result<Option<Seen>> {
    match bucket.get(name, LIMIT_BYTES) {
        Err(error) if error.is_not_found() => Ok(None),
        content => Ok(Some(Seen { name: name.to_owned(), content: content? })),
    }
}

/// Watches a presence. Returns whether its owner is there.
fn is_there(bucket: &dyn Bucket, seen: &Seen) -> Result<bool> {
    let watch = Watch::begin(bucket, &seen.name, Some(seen.clone()));
    loop {
        match watch.look()? {
            Found::There(_) => return Ok(true),
            Found::Gone => return Ok(false),
            Found::Unknown => {}
        }
    }
}

/// Returns the name of the state in a directory. It is made if there is none.
fn state_name(ground: &dyn Ground) -> Result<String> {
    if let Ok(name) = read_file(ground, STATE_NAME, 64)
        && let Ok(name) = String::from_utf8(name)
        && name.len() == 32
    {
        return Ok(name);
    }
    let name = random_digits()?;
    replace_file(ground, STATE_NAME, name.as_bytes())?;
    Ok(name)
}
