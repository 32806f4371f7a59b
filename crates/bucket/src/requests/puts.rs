//! Requests that change something.

use crate::requests::call::Call;
use crate::requests::reads;
use bytes::Bytes;
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};
use onefold_ground::{GroundError, Put, Result};
use std::collections::BTreeSet;

/// Longer contents are put in parts.
const WHOLE_BYTES: usize = 16 << 20;
const PART_BYTES: usize = 8 << 20;
/// A put of so much is not repeated blindly: after an error, the name is looked up first.
const LOOKED_UP_BYTES: usize = 64 << 10;
/// Names that one request deletes.
const DELETED: usize = 1000;

/// Puts an object if the name is free. If it is taken, its content says whether by an earlier try of this put.
pub(super) async fn put_new(mut call: Call, content: PutPayload) -> Result<Put> {
    loop {
        match put(&call, &content, PutMode::Create).await {
            Ok(()) => return Ok(Put::Done),
            Err(error @ (Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. })) => {
                match reads::same(&mut call, &content).await? {
                    Some(true) => return Ok(Put::Done),
                    Some(false) => return Ok(Put::Taken),
                    // It is gone, or it was never there: the put met another one that failed.
                    None => call.wait(&error).await?,
                }
            }
            Err(error) => {
                call.again(error).await?;
                // A server may refuse a taken name before it has read the content, and close the connection. If that
                // breaks while the content is sent, the refusal is lost, and it would be so with each try.
                if content.content_length() >= LOOKED_UP_BYTES
                    && let Some(is_same) = reads::same(&mut call, &content).await?
                {
                    return Ok(if is_same { Put::Done } else { Put::Taken });
                }
            }
        }
    }
}

/// Puts an object, whatever was there.
pub(super) async fn put_over(mut call: Call, content: Bytes) -> Result<()> {
    loop {
        let done = if content.len() <= WHOLE_BYTES {
            put(&call, &content.clone().into(), PutMode::Overwrite).await
        } else {
            put_in_parts(&call, &content).await
        };
        match done {
            Ok(()) => return Ok(()),
            Err(error) => call.again(error).await?,
        }
    }
}

/// Puts an object in place of another version. Each try begins with what is there.
pub(super) async fn replace(mut call: Call, old: Bytes, new: Bytes) -> Result<Put> {
    loop {
        let found = match reads::whole(&mut call, old.len().max(new.len()) as u64).await {
            Ok(found) => found,
            Err(GroundError::TooLong { .. }) => return Ok(Put::Taken),
            Err(error) if error.is_not_found() => return Ok(Put::Taken),
            Err(error) => return Err(error),
        };
        if found.bytes == new {
            return Ok(Put::Done);
        }
        if found.bytes != old {
            return Ok(Put::Taken);
        }
        let mode = if call.shared.replaces {
            PutMode::Update(UpdateVersion { e_tag: found.e_tag, version: found.version })
        } else {
            PutMode::Overwrite
        };
        match put(&call, &new.clone().into(), mode).await {
            Ok(()) => return Ok(Put::Done),
            // Somebody was faster, or an earlier try arrived.
            Err(error @ (Error::Precondition { .. } | Error::AlreadyExists { .. } | Error::NotModified { .. })) => {
                call.wait(&error).await?;
            }
            Err(error) => call.again(error).await?,
        }
    }
}

async fn put(call: &Call, content: &PutPayload, mode: PutMode) -> object_store::Result<()> {
    call.count(|counters| &counters.puts, 1);
    call.count(|counters| &counters.sent_bytes, content.content_length() as u64);
    let options = PutOptions::from(mode);
    call.within(call.shared.store.put_opts(&call.path, content.clone(), options)).await.map(drop)
}

async fn put_in_parts(call: &Call, content: &Bytes) -> object_store::Result<()> {
    call.count(|counters| &counters.puts, 1);
    let mut upload = call.within(call.shared.store.put_multipart(&call.path)).await?;
    let mut rest = content.clone();
    while !rest.is_empty() {
        let part = rest.split_to(rest.len().min(PART_BYTES));
        call.count(|counters| &counters.puts, 1);
        call.count(|counters| &counters.sent_bytes, part.len() as u64);
        if let Err(error) = call.within(upload.put_part(part.into())).await {
            // What stays takes space until the bucket's own rules remove it.
            let _ = call.within(upload.abort()).await;
            return Err(error);
        }
    }
    call.count(|counters| &counters.puts, 1);
    let completed = call.within(upload.complete()).await;
    if completed.is_err() {
        let _ = call.within(upload.abort()).await;
    }
    completed.map(drop)
}

/// Deletes objects, many with one request.
pub(super) async fn delete(mut call: Call, names: Vec<String>) -> Result<()> {
    let paths = names.iter().map(|name| call.shared.path(call.operation, name)).collect::<Result<Vec<_>>>()?;
    for batch in paths.chunks(DELETED) {
        let mut pending: BTreeSet<Path> = batch.iter().cloned().collect();
        while let Err(error) = delete_batch(&call, &mut pending).await {
            call.again(error).await?;
        }
    }
    Ok(())
}

/// Deletes objects. After an error, `pending` has those that may still be there.
async fn delete_batch(call: &Call, pending: &mut BTreeSet<Path>) -> object_store::Result<()> {
    call.count(|counters| &counters.deletes, 1);
    let paths: Vec<object_store::Result<Path>> = pending.iter().cloned().map(Ok).collect();
    let stream = call.shared.store.delete_stream(futures_util::stream::iter(paths).boxed());
    let results: Vec<object_store::Result<Path>> = call.within(async { Ok(stream.collect().await) }).await?;
    let mut failed = None;
    for result in results {
        match result {
            Ok(path) => drop(pending.remove(&path)),
            Err(error @ Error::NotFound { .. }) if !crate::requests::errors::is_no_bucket(&error) => {}
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(()), Err)
}
