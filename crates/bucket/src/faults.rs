//! Object storage that loses requests and answers, for tests of what retries.
//!
//! [`FaultyBucket`] is below the requests, so a test sees the real retries. Where only the outcome counts,
//! [`MemoryBucket`](crate::MemoryBucket) is simpler.

use crate::requests::{Patience, RequestBucket};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream, stream::BoxStream};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

/// What goes wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It never arrives.
    LostRequest,
    /// It is executed, and the answer never arrives.
    LostAnswer,
    /// A put that is executed later: by [`FaultyBucket::release_late`], or after some more requests. Other requests are
    /// lost.
    LatePut,
    /// The server is busy (503), and does nothing.
    Busy,
    /// The server wants fewer requests (429), and does nothing.
    Throttled,
    /// The body of a read ends too early. Other requests succeed.
    TruncatedBody,
}

impl Fault {
    const ALL: [Fault; 6] = [Fault::LostRequest, Fault::LostAnswer, Fault::LatePut, Fault::Busy, Fault::Throttled, Fault::TruncatedBody];

    fn error(self) -> Error {
        let (kind, why) = match self {
            Fault::Busy => (HttpErrorKind::Interrupted, "the server answered 503 Slow Down"),
            Fault::Throttled => (HttpErrorKind::Interrupted, "the server answered 429 Too Many Requests"),
            _ => (HttpErrorKind::Timeout, "no answer"),
        };
        Error::Generic { store: "faulty", source: Box::new(HttpError::new_boxed(kind, why.into())) }
    }
}

/// Object storage in memory with faults. Clones share it.
#[derive(Clone, Debug)]
pub struct FaultyBucket {
    objects: Arc<InMemory>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Requests so far.
    requests: u64,
    planned: BTreeMap<u64, Fault>,
    /// Random faults: state of the generator, and how many of a hundred requests have one.
    random: Option<(u64, u64)>,
    late: VecDeque<Late>,
    late_after: Option<u64>,
    /// Greatest page of a list.
    page: Option<usize>,
}

/// A put on its way.
#[derive(Debug)]
struct Late {
    due: Option<u64>,
    path: Path,
    payload: PutPayload,
    options: PutOptions,
}

impl Default for FaultyBucket {
    fn default() -> FaultyBucket {
        FaultyBucket::new()
    }
}

impl FaultyBucket {
    /// Creates an empty one without faults.
    pub fn new() -> FaultyBucket {
        FaultyBucket { objects: Arc::new(InMemory::new()), state: Arc::default() }
    }

    /// Returns a bucket on this storage. Its names are below the prefix `store`.
    pub fn bucket(&self, patience: Patience) -> onefold_ground::Result<RequestBucket> {
        let bucket = RequestBucket::new(Arc::new(self.clone()), "faulty://bucket/store", "store", patience)?;
        Ok(bucket.with_lister(Arc::new(self.clone())))
    }

    /// Lets `count` more requests succeed. The next one has this fault.
    pub fn plan(&self, count: u64, fault: Fault) {
        self.storm(count, 1, fault);
    }

    /// Lets `count` more requests succeed. The `length` next ones have this fault.
    pub fn storm(&self, count: u64, length: u64, fault: Fault) {
        let mut state = self.state.lock();
        let first = state.requests + count;
        state.planned.extend((first..first + length).map(|request| (request, fault)));
    }

    /// Gives `of_100` of a hundred requests a random fault. The same seed gives the same faults.
    pub fn randomize(&self, seed: u64, of_100: u64) {
        self.state.lock().random = Some((seed, of_100));
    }

    /// Cancels all faults that have not happened yet. Late puts stay on their way.
    pub fn calm(&self) {
        let mut state = self.state.lock();
        state.planned.clear();
        state.random = None;
    }

    /// Lets each late put arrive before the request that comes `requests` after it. `None`: only when it is released.
    pub fn set_late_after(&self, requests: Option<u64>) {
        self.state.lock().late_after = requests;
    }

    /// Lets all late puts arrive. Returns how many there were.
    pub fn release_late(&self) -> usize {
        let late: Vec<Late> = self.state.lock().late.drain(..).collect();
        let count = late.len();
        for put in late {
            self.arrive(put);
        }
        count
    }

    /// Sets the greatest number of objects on a page of a list.
    pub fn set_page(&self, objects: usize) {
        self.state.lock().page = Some(objects);
    }

    /// Returns the number of requests so far.
    pub fn requests(&self) -> u64 {
        self.state.lock().requests
    }

    /// Gives an object a content, without a request.
    pub fn set_content(&self, name: &str, content: &[u8]) {
        // Memory neither waits nor fails.
        let _ = at_once(self.objects.put(&Path::from(name), content.to_vec().into()));
    }

    /// Returns the content of an object by its full name, with the prefix, without a request.
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let read = async { self.objects.get(&Path::from(name)).await?.bytes().await };
        at_once(read)?.ok().map(Vec::from)
    }

    fn arrive(&self, Late { path, payload, options, .. }: Late) {
        // Nobody hears the answer.
        let _ = at_once(self.objects.put_opts(&path, payload, options));
    }

    /// Begins a request: late puts arrive, and it gets its fault.
    fn begin(&self) -> Option<Fault> {
        let (due, fault) = {
            let mut state = self.state.lock();
            let number = state.requests;
            state.requests += 1;
            let (due, later): (Vec<_>, Vec<_>) =
                std::mem::take(&mut state.late).into_iter().partition(|late| late.due.is_some_and(|due| due <= number));
            state.late = later.into();
            let planned = state.planned.remove(&number);
            (due, planned.or_else(|| state.random_fault()))
        };
        due.into_iter().for_each(|put| self.arrive(put));
        fault
    }

    /// Does a request that is not a put, or not.
    async fn request<T>(&self, execute: impl Future<Output = Result<T>>) -> Result<T> {
        match self.begin() {
            None | Some(Fault::TruncatedBody) => execute.await,
            Some(fault) => {
                if fault == Fault::LostAnswer {
                    let _ = execute.await;
                }
                Err(fault.error())
            }
        }
    }
}

impl State {
    fn random_fault(&mut self) -> Option<Fault> {
        let (state, of_100) = self.random.as_mut()?;
        let mut next = || {
            // SplitMix64.
            *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        };
        let has_fault = next() % 100 < *of_100;
        has_fault.then(|| Fault::ALL[(next() % Fault::ALL.len() as u64) as usize])
    }
}

/// Runs a future of the storage in memory, which never waits.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    future.now_or_never()
}

impl fmt::Display for FaultyBucket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("FaultyBucket")
    }
}

#[async_trait]
impl ObjectStore for FaultyBucket {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        match self.begin() {
            None | Some(Fault::TruncatedBody) => self.objects.put_opts(path, payload, options).await,
            Some(fault) => {
                if fault == Fault::LostAnswer {
                    let _ = self.objects.put_opts(path, payload, options).await;
                } else if fault == Fault::LatePut {
                    let mut state = self.state.lock();
                    let due = state.late_after.map(|after| state.requests + after);
                    state.late.push_back(Late { due, path: path.clone(), payload, options });
                }
                Err(fault.error())
            }
        }
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.request(self.objects.put_multipart_opts(path, options)).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let fault = self.begin();
        match fault {
            None | Some(Fault::TruncatedBody) => {}
            Some(fault) => return Err(fault.error()),
        }
        let mut result = self.objects.get_opts(path, options).await?;
        if fault.is_some()
            && let GetResultPayload::Stream(body) = result.payload
        {
            let whole: Vec<Bytes> = body.try_collect().await?;
            let whole = Bytes::from(whole.concat());
            let cut = whole.slice(..whole.len() / 2);
            result.payload = GetResultPayload::Stream(stream::once(async { Ok(cut) }).boxed());
        }
        Ok(result)
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let faulty = self.clone();
        let deleted = async move {
            let execute = faulty.objects.delete_stream(paths).collect::<Vec<_>>().map(Ok);
            faulty.request(execute).await.unwrap_or_else(|error| vec![Err(error)])
        };
        stream::once(deleted).flat_map(stream::iter).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (faulty, prefix) = (self.clone(), prefix.cloned());
        let listed = async move {
            let execute = faulty.objects.list(prefix.as_ref()).collect::<Vec<_>>().map(Ok);
            faulty.request(execute).await.unwrap_or_else(|error| vec![Err(error)])
        };
        stream::once(listed).flat_map(stream::iter).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.request(self.objects.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.request(self.objects.copy_opts(from, to, options)).await
    }
}

#[async_trait]
impl PaginatedListStore for FaultyBucket {
    async fn list_paginated(&self, prefix: Option<&str>, options: PaginatedListOptions) -> Result<PaginatedListResult> {
        let execute = async {
            let mut objects: Vec<ObjectMeta> = self.objects.list(None).try_collect().await?;
            let after = options.page_token.or(options.offset).unwrap_or_default();
            objects
                .retain(|meta| meta.location.as_ref() > after.as_str() && meta.location.as_ref().starts_with(prefix.unwrap_or_default()));
            objects.sort_by(|left, right| left.location.cmp(&right.location));
            let page = self.state.lock().page.into_iter().chain(options.max_keys).min().unwrap_or(usize::MAX);
            let has_more = objects.len() > page;
            objects.truncate(page);
            let page_token = objects.last().filter(|_| has_more).map(|meta| meta.location.to_string());
            let result = ListResult { objects, common_prefixes: Vec::new(), extensions: Default::default() };
            Ok(PaginatedListResult { result, page_token })
        };
        self.request(execute).await
    }
}
