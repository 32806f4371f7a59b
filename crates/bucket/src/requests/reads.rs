//! Requests that change nothing.

use crate::requests::call::{Call, interrupted};
use crate::requests::errors;
use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::client::HttpErrorKind;
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectMeta, PutPayload};
use onefold_ground::{GroundError, Listing, Result};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;
use tokio::sync::Semaphore;

/// Objects on a page of a list.
const PAGE: usize = 1000;

/// Bytes of an object that have come and wait to be taken.
pub(super) const ROOM_BYTES: usize = 1 << 20;

/// A part of an object, or all of it.
pub(super) struct Found {
    pub(super) bytes: Bytes,
    offset: u64,
    /// Length of the whole object.
    length: u64,
    pub(super) e_tag: Option<String>,
    pub(super) version: Option<String>,
}

/// Reads a range once. `None`: it is longer than `limit_bytes`, and not read; then the length is that of the object.
async fn read_once(call: &Call, range: Option<GetRange>, limit_bytes: u64) -> object_store::Result<std::result::Result<Found, u64>> {
    call.count(|counters| &counters.gets, 1);
    let options = GetOptions { range, ..GetOptions::default() };
    let result = call.within(call.shared.store.get_opts(&call.path, options)).await?;
    let (meta, range) = (result.meta.clone(), result.range.clone());
    let length = range.end.saturating_sub(range.start);
    if length > limit_bytes {
        return Ok(Err(meta.size));
    }
    let bytes = call.within_for(length, result.bytes()).await?;
    call.count(|counters| &counters.received_bytes, bytes.len() as u64);
    if bytes.len() as u64 != length {
        let why = format!("the body ended after {} of {length} bytes", bytes.len());
        return Err(interrupted(HttpErrorKind::Interrupted, why));
    }
    Ok(Ok(Found { bytes, offset: range.start, length: meta.size, e_tag: meta.e_tag, version: meta.version }))
}

/// Reads a whole object of at most `limit_bytes`.
pub(super) async fn whole(call: &mut Call, limit_bytes: u64) -> Result<Found> {
    loop {
        match read_once(call, None, limit_bytes).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(length_bytes)) => {
                return Err(GroundError::TooLong { path: call.shared.describe(&call.name), length_bytes, limit_bytes });
            }
            Err(error) => call.again(error).await?,
        }
    }
}

/// Returns whether the object has this content. `None`: there is none.
pub(super) async fn same(call: &mut Call, content: &PutPayload) -> Result<Option<bool>> {
    match whole(call, content.content_length() as u64).await {
        Ok(found) => Ok(Some(is_same(&found.bytes, content))),
        Err(GroundError::TooLong { .. }) => Ok(Some(false)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_same(mut found: &[u8], content: &PutPayload) -> bool {
    found.len() == content.content_length() && content.iter().all(|piece| found.split_off(..piece.len()).is_some_and(|next| next == piece))
}

pub(super) async fn get(mut call: Call, limit_bytes: u64) -> Result<Vec<u8>> {
    Ok(whole(&mut call, limit_bytes).await?.bytes.into())
}

/// Bytes of an object on their way to the caller.
pub(super) struct Arrived {
    /// Length of the object.
    pub(super) length: u64,
    pub(super) bytes: Bytes,
}

/// Where the bytes of an object go as they come.
pub(super) struct Sink {
    pub(super) sender: Sender<Arrived>,
    /// Bytes that may be on their way. The caller frees the room of those that it takes.
    pub(super) room: Arc<Semaphore>,
}

impl Sink {
    /// Passes bytes on. Returns false if nobody wants them.
    async fn pass(&self, arrived: Arrived) -> bool {
        let Ok(room) = self.room.acquire_many(room_for(&arrived.bytes)).await else { return false };
        room.forget();
        self.sender.send(arrived).is_ok()
    }
}

/// Returns the room that bytes take. However many they are, they find it.
pub(super) fn room_for(bytes: &Bytes) -> u32 {
    bytes.len().min(ROOM_BYTES) as u32
}

/// What is known of an object of which a part has come.
#[derive(Default)]
struct Progress {
    at: u64,
    length: Option<u64>,
    e_tag: Option<String>,
}

/// Reads a whole object. After a failure it goes on where it was.
pub(super) async fn get_as_it_comes(mut call: Call, sink: Sink) -> Result<()> {
    let mut progress = Progress::default();
    loop {
        let before = progress.at;
        match get_rest(&call, &sink, &mut progress).await {
            Ok(()) => return Ok(()),
            Err(error) => {
                if progress.length == Some(progress.at) {
                    return Ok(()); // only the end of the body is missing
                }
                if progress.at >= before + ROOM_BYTES as u64 {
                    call.gets_on();
                }
                call.again(error).await?;
            }
        }
    }
}

async fn get_rest(call: &Call, sink: &Sink, progress: &mut Progress) -> object_store::Result<()> {
    call.count(|counters| &counters.gets, 1);
    let range = (progress.at > 0).then_some(GetRange::Offset(progress.at));
    // An object that was replaced meanwhile must not be mixed up with this one.
    let options = GetOptions { range, if_match: progress.e_tag.clone(), ..GetOptions::default() };
    let result = call.within(call.shared.store.get_opts(&call.path, options)).await?;
    let (start, length) = (result.range.start, result.meta.size);
    if start != progress.at || progress.length.is_some_and(|before| before != length) {
        return Err(interrupted(HttpErrorKind::Decode, "another range came than was asked for".to_owned()));
    }
    // There are servers that overlook conditions.
    if let (Some(before), Some(now)) = (&progress.e_tag, &result.meta.e_tag)
        && before != now
    {
        let source = "the object was replaced while it was read".into();
        return Err(Error::Precondition { path: call.path.to_string(), source });
    }
    (progress.length, progress.e_tag) = (Some(length), result.meta.e_tag.clone());
    let mut stream = result.into_stream();
    while let Some(bytes) = call.within(stream.try_next()).await? {
        call.count(|counters| &counters.received_bytes, bytes.len() as u64);
        if bytes.len() as u64 > length - progress.at {
            return Err(interrupted(HttpErrorKind::Decode, format!("more than the {length} bytes of the object came")));
        }
        progress.at += bytes.len() as u64;
        if !bytes.is_empty() && !sink.pass(Arrived { length, bytes }).await {
            return Ok(());
        }
    }
    if progress.at != length {
        let why = format!("the body ended after {} of {length} bytes", progress.at);
        return Err(interrupted(HttpErrorKind::Interrupted, why));
    }
    Ok(())
}

pub(super) async fn get_range(mut call: Call, offset: u64, length: u64) -> Result<Vec<u8>> {
    let ends_early = |call: &Call, there: u64| {
        let why = format!("the object has {there} bytes; {length} were asked for from {offset} on");
        call.because(ErrorKind::UnexpectedEof, &why)
    };
    let Some(end) = offset.checked_add(length) else { return Err(ends_early(&call, offset)) };
    loop {
        match read_once(&call, Some(GetRange::Bounded(offset..end)), length).await {
            Ok(Ok(found)) if found.offset == offset && found.bytes.len() as u64 == length => return Ok(found.bytes.into()),
            Ok(Ok(found)) if found.length < end => return Err(ends_early(&call, found.length)),
            Ok(_) => call.again(interrupted(HttpErrorKind::Decode, "another range came than was asked for".to_owned())).await?,
            Err(error) if errors::may_be_range(&error) => match head(&mut call).await? {
                Some(meta) if meta.size < end => return Err(ends_early(&call, meta.size)),
                Some(_) => return Err(call.failed(error)),
                None => return Err(not_found(&call)),
            },
            Err(error) => call.again(error).await?,
        }
    }
}

pub(super) async fn get_end(mut call: Call, length: u64) -> Result<(Vec<u8>, u64)> {
    while length > 0 && !call.shared.refuses_suffix.load(Relaxed) {
        match read_once(&call, Some(GetRange::Suffix(length)), length).await {
            Ok(Ok(found)) if found.offset + found.bytes.len() as u64 == found.length => return Ok((found.bytes.into(), found.length)),
            Ok(_) => call.again(interrupted(HttpErrorKind::Decode, "another range came than was asked for".to_owned())).await?,
            Err(error @ (Error::NotSupported { .. } | Error::NotImplemented { .. })) => {
                tracing::debug!(%error, "this storage reads the end of an object only by its length");
                call.shared.refuses_suffix.store(true, Relaxed);
            }
            // An empty object has no end. Another store may just be strange.
            Err(error) if errors::may_be_range(&error) => break,
            Err(error) => call.again(error).await?,
        }
    }
    loop {
        let Some(meta) = head(&mut call).await? else { return Err(not_found(&call)) };
        let wanted = length.min(meta.size);
        if wanted == 0 {
            return Ok((Vec::new(), meta.size));
        }
        match read_once(&call, Some(GetRange::Bounded(meta.size - wanted..meta.size)), wanted).await {
            Ok(Ok(found)) if found.length == meta.size && found.bytes.len() as u64 == wanted => return Ok((found.bytes.into(), meta.size)),
            Ok(_) => call.again(interrupted(HttpErrorKind::Decode, "the object changed while it was read".to_owned())).await?,
            Err(error) => call.again(error).await?,
        }
    }
}

pub(super) async fn length(mut call: Call) -> Result<Option<u64>> {
    Ok(head(&mut call).await?.map(|meta| meta.size))
}

async fn head(call: &mut Call) -> Result<Option<ObjectMeta>> {
    loop {
        call.count(|counters| &counters.heads, 1);
        let options = GetOptions { head: true, ..GetOptions::default() };
        match call.within(call.shared.store.get_opts(&call.path, options)).await {
            Ok(result) => return Ok(Some(result.meta)),
            // This answer has no body that says what is missing. That of a get has one.
            Err(error) if matches!(error, Error::NotFound { .. }) && !errors::is_no_bucket(&error) => match first_byte(call).await {
                Err(Error::NotFound { .. }) => return Ok(None),
                Err(error) => call.again(error).await?,
                // It has come meanwhile.
                Ok(()) => {}
            },
            Err(error) => call.again(error).await?,
        }
    }
}

async fn first_byte(call: &Call) -> object_store::Result<()> {
    call.count(|counters| &counters.gets, 1);
    let options = GetOptions { range: Some((0..1).into()), ..GetOptions::default() };
    call.within(call.shared.store.get_opts(&call.path, options)).await.map(drop)
}

fn not_found(call: &Call) -> GroundError {
    call.because(ErrorKind::NotFound, "there is no such object")
}

pub(super) async fn list(mut call: Call, prefix: String, after: String) -> Result<Listing> {
    loop {
        match list_once(&call, &prefix, &after).await {
            Ok(listing) => return Ok(listing),
            Err(error) => call.again(error).await?,
        }
    }
}

async fn list_once(call: &Call, prefix: &str, after: &str) -> object_store::Result<Listing> {
    let shared = &call.shared;
    let full_prefix = format!("{}{prefix}", shared.prefix);
    let wanted = |meta: &ObjectMeta| {
        let name = meta.location.as_ref().strip_prefix(&shared.prefix)?;
        (name.starts_with(prefix) && name > after).then(|| (name.to_owned(), meta.size))
    };
    let Some(lister) = &shared.lister else {
        call.count(|counters| &counters.lists, 1);
        let directory = full_prefix.rsplit_once('/').map(|(directory, _)| Path::parse(directory)).transpose()?;
        let all: Vec<ObjectMeta> = call.within(shared.store.list(directory.as_ref()).try_collect()).await?;
        return Ok(page(all.iter().filter_map(wanted).collect(), false));
    };
    let mut page_token = None;
    loop {
        call.count(|counters| &counters.lists, 1);
        let options = PaginatedListOptions {
            offset: (page_token.is_none() && after > prefix).then(|| format!("{}{after}", shared.prefix)),
            max_keys: Some(PAGE),
            page_token: page_token.take(),
            ..PaginatedListOptions::default()
        };
        let listed = call.within(lister.list_paginated((!full_prefix.is_empty()).then_some(&full_prefix), options)).await?;
        let objects: Vec<_> = listed.result.objects.iter().filter_map(wanted).collect();
        match listed.page_token {
            Some(token) if objects.is_empty() => page_token = Some(token),
            token => return Ok(page(objects, token.is_some())),
        }
    }
}

fn page(mut objects: Vec<(String, u64)>, has_more: bool) -> Listing {
    objects.sort();
    let has_more = has_more || objects.len() > PAGE;
    objects.truncate(PAGE);
    Listing { objects, has_more }
}
