//! Requests to object storage: each is tried until it succeeds, fails for good, or patience ends.
//!
//! * Callers are ordinary threads, also those of other runtimes. The requests run on threads of their own.
//! * A request whose answer is lost may have been executed, or may be executed later. A put is therefore looked up:
//!   if the name is taken, the content says by whom.
//! * What is repeated: timeouts, lost connections, server errors, requests to slow down, and bodies that end early.
//!   Refusals are not.

mod call;
mod errors;
mod puts;
mod reads;

use crate::error::{failed, failed_because};
use bytes::Bytes;
use call::Call;
use object_store::list::PaginatedListStore;
use object_store::path::Path;
use object_store::{ObjectStore, PutPayload};
use onefold_ground::{Bucket, Listing, Put, Requests, Result};
use parking_lot::Mutex;
use reads::{Arrived, ROOM_BYTES, Sink, room_for};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Receiver;
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;

/// Threads for the requests of all buckets of the process.
const THREADS: usize = 2;

/// How long a call tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// No try begins later than this after the call.
    pub total: Duration,
    /// How long one request may take. Long contents get more: a second for each [`SLOWEST_BYTES_PER_S`].
    pub request_timeout: Duration,
    /// The longest pause after the first failed try. It doubles with each, up to 5 s.
    pub first_pause: Duration,
}

/// A connection slower than this is taken for dead.
pub const SLOWEST_BYTES_PER_S: u64 = 256 << 10;

impl Default for Patience {
    fn default() -> Patience {
        Patience { total: Duration::from_secs(90), request_timeout: Duration::from_secs(30), first_pause: Duration::from_millis(50) }
    }
}

impl Patience {
    fn for_bytes(self, bytes: u64) -> Patience {
        let extra = Duration::from_millis(bytes.saturating_mul(1000) / SLOWEST_BYTES_PER_S);
        Patience { total: self.total + extra, request_timeout: self.request_timeout + extra, ..self }
    }
}

/// A [`Bucket`] over any object store.
#[derive(Debug)]
pub struct RequestBucket {
    shared: Arc<Shared>,
    runtime: Handle,
}

struct Shared {
    store: Arc<dyn ObjectStore>,
    /// Lists single pages. `None`: the store lists only as a whole.
    lister: Option<Arc<dyn PaginatedListStore>>,
    /// Whether the store replaces an object only if it is of some version.
    replaces: bool,
    /// Whether the store refused to read the end of an object without being told its length.
    refuses_suffix: AtomicBool,
    url: String,
    /// Before each name: empty, or ends with `/`.
    prefix: String,
    patience: Patience,
    /// Whether people know that it does not answer.
    has_told: AtomicBool,
    counters: Counters,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").field("url", &self.url).field("patience", &self.patience).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Counters {
    puts: AtomicU64,
    gets: AtomicU64,
    heads: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    retries: AtomicU64,
}

/// Serializes replacements where the store cannot.
static REPLACING: Mutex<()> = Mutex::new(());

/// Returns the runtime of all requests. The first call starts it.
fn runtime() -> io::Result<Handle> {
    static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);
    let mut runtime = RUNTIME.lock();
    let started = match runtime.take() {
        Some(started) => started,
        None => tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).thread_name("bucket").enable_all().build()?,
    };
    Ok(runtime.insert(started).handle().clone())
}

impl RequestBucket {
    /// Creates a bucket over a store that does not retry by itself. `prefix` comes before each name. `url` is what
    /// people know the place by, with the prefix.
    pub fn new(store: Arc<dyn ObjectStore>, url: &str, prefix: &str, patience: Patience) -> Result<RequestBucket> {
        let prefix = if prefix.is_empty() { String::new() } else { format!("{}/", prefix.trim_matches('/')) };
        let url = url.trim_end_matches('/').to_owned();
        let runtime = runtime().map_err(|source| failed("start threads for", &url, source))?;
        let shared = Shared {
            store,
            lister: None,
            replaces: true,
            refuses_suffix: AtomicBool::new(false),
            url,
            prefix,
            patience,
            has_told: AtomicBool::new(false),
            counters: Counters::default(),
        };
        Ok(RequestBucket { shared: Arc::new(shared), runtime })
    }

    /// Lists page by page with `lister`: the same store.
    pub fn with_lister(mut self, lister: Arc<dyn PaginatedListStore>) -> RequestBucket {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.lister = Some(lister);
        }
        self
    }

    /// Does not expect of the store that it replaces an object only if it is of some version. Then replacements are
    /// safe only within one process.
    pub fn without_updates(mut self) -> RequestBucket {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.replaces = false;
        }
        self
    }

    /// Runs a call on the threads of the requests and waits for it. The caller may be a thread of another runtime, so
    /// it must not enter this one.
    fn run<T: Send + 'static, F>(&self, operation: &'static str, name: &str, bytes: u64, work: impl FnOnce(Call) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let path = self.shared.path(operation, name)?;
        self.run_on(path, operation, name, bytes, work)
    }

    fn run_on<T: Send + 'static, F>(
        &self,
        path: Path,
        operation: &'static str,
        name: &str,
        bytes: u64,
        work: impl FnOnce(Call) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let call = Call::new(self.shared.clone(), path, operation, name, bytes);
        self.start(operation, name, work(call)).wait()
    }

    /// Starts a call on the threads of the requests.
    fn start<T: Send + 'static>(
        &self,
        operation: &'static str,
        name: &str,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Started<T> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            let _ = sender.send(work.await);
        });
        Started { receiver, operation, path: self.describe(name) }
    }
}

/// A call that runs.
struct Started<T> {
    receiver: Receiver<Result<T>>,
    operation: &'static str,
    path: String,
}

impl<T> Started<T> {
    fn wait(self) -> Result<T> {
        let died = |_| Err(failed_because(self.operation, &self.path, ErrorKind::Other, "the request was dropped"));
        self.receiver.recv().unwrap_or_else(died)
    }
}

impl Bucket for RequestBucket {
    fn put_new(&self, name: &str, content: &[u8]) -> Result<Put> {
        self.put_new_in_pieces(name, &[Bytes::copy_from_slice(content)])
    }

    fn put_new_in_pieces(&self, name: &str, pieces: &[Bytes]) -> Result<Put> {
        let content: PutPayload = pieces.iter().cloned().collect();
        self.run("put", name, content.content_length() as u64, |call| puts::put_new(call, content))
    }

    fn put_over(&self, name: &str, content: &[u8]) -> Result<()> {
        let content = Bytes::copy_from_slice(content);
        self.run("put", name, content.len() as u64, |call| puts::put_over(call, content))
    }

    fn replace(&self, name: &str, old: &[u8], new: &[u8]) -> Result<Put> {
        let (old, new) = (Bytes::copy_from_slice(old), Bytes::copy_from_slice(new));
        let _alone = (!self.shared.replaces).then(|| REPLACING.lock());
        self.run("replace", name, new.len() as u64, |call| puts::replace(call, old, new))
    }

    fn get(&self, name: &str, limit_bytes: u64) -> Result<Vec<u8>> {
        self.run("read", name, 0, |call| reads::get(call, limit_bytes))
    }

    fn get_as_it_comes(&self, name: &str, take: &mut dyn FnMut(u64, &[u8]) -> bool) -> Result<()> {
        let (sender, arriving) = std::sync::mpsc::channel();
        let room = Arc::new(Semaphore::new(ROOM_BYTES));
        let sink = Sink { sender, room: room.clone() };
        let path = self.shared.path("read", name)?;
        let call = Call::new(self.shared.clone(), path, "read", name, 0);
        let request = self.start("read", name, reads::get_as_it_comes(call, sink));
        for Arrived { length, bytes } in arriving {
            room.add_permits(room_for(&bytes) as usize);
            if !take(length, &bytes) {
                // It ends as soon as it notices.
                room.close();
                return Ok(());
            }
        }
        request.wait()
    }

    fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>> {
        if length == 0 {
            return Ok(Vec::new());
        }
        self.run("read", name, length as u64, |call| reads::get_range(call, offset, length as u64))
    }

    fn get_end(&self, name: &str, length: usize) -> Result<(Vec<u8>, u64)> {
        self.run("read", name, length as u64, |call| reads::get_end(call, length as u64))
    }

    fn length(&self, name: &str) -> Result<Option<u64>> {
        self.run("look for", name, 0, reads::length)
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Listing> {
        let (full, prefix, after) = (prefix.to_owned(), prefix.to_owned(), after.to_owned());
        self.run_on(Path::ROOT, "list", &full, 0, |call| reads::list(call, prefix, after))
    }

    fn delete(&self, names: &[String]) -> Result<()> {
        let Some(first) = names.first() else { return Ok(()) };
        let names = names.to_vec();
        self.run("delete", first, 0, |call| puts::delete(call, names))
    }

    fn describe(&self, name: &str) -> String {
        self.shared.describe(name)
    }

    fn requests(&self) -> Requests {
        let counters = &self.shared.counters;
        Requests {
            puts: counters.puts.load(Relaxed),
            gets: counters.gets.load(Relaxed),
            heads: counters.heads.load(Relaxed),
            lists: counters.lists.load(Relaxed),
            deletes: counters.deletes.load(Relaxed),
            sent_bytes: counters.sent_bytes.load(Relaxed),
            received_bytes: counters.received_bytes.load(Relaxed),
            retries: counters.retries.load(Relaxed),
        }
    }
}

impl Shared {
    fn describe(&self, name: &str) -> String {
        format!("{}/{name}", self.url)
    }
}

#[cfg(test)]
mod tests;
