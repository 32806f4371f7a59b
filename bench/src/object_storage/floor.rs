//! What a restore can be held against: all objects of a repository, downloaded whole and thrown away.

use super::gateway::Service;
use anyhow::{Context, Result};
use onefold_bucket::{BucketOptions, Location};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Instant;

/// Downloads at once.
pub const PARALLEL: usize = 16;

/// Downloads everything through the proxy. Returns seconds and bytes. Names are listed before that.
pub fn download(service: &Service, proxy: SocketAddr) -> Result<(f64, u64)> {
    let options = |address: SocketAddr| BucketOptions {
        endpoint: Some(format!("http://{address}")),
        region: Some(service.region.clone()),
        key: Some((service.key.clone(), service.secret.clone(), None)),
        ..BucketOptions::default()
    };
    let location = Location::parse(&format!("s3://{}", service.bucket))?;
    let mut objects = Vec::new();
    let directly = onefold_bucket::open(&location, &options(service.address))?;
    onefold_ground::list_after(&*directly, "", String::new(), &mut |name, bytes| {
        // Some programs put empty objects that stand for directories.
        if bytes > 0 {
            objects.push((name.to_owned(), bytes));
        }
        true
    })?;
    let bucket = onefold_bucket::open(&location, &options(proxy))?;
    let (next, read_bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    let began = Instant::now();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..PARALLEL)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    while let Some((name, bytes)) = objects.get(next.fetch_add(1, SeqCst)) {
                        read_bytes.fetch_add(bucket.get(name, *bytes)?.len() as u64, SeqCst);
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })
    .context("cannot download the repository")?;
    Ok((began.elapsed().as_secs_f64(), read_bytes.into_inner()))
}
