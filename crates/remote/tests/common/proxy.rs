//! A proxy on loopback that delays, cuts and stalls connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// What happens to one connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fate {
    /// It breaks after so many bytes from the client.
    pub cut_up: Option<u64>,
    /// It breaks after so many bytes from the server.
    pub cut_down: Option<u64>,
    /// Nothing passes any more after so many bytes from the server, but the connection stays.
    pub stall_down: Option<u64>,
}

/// A proxy that runs until it is dropped.
pub struct Proxy {
    pub address: SocketAddr,
    pub connections: Arc<AtomicUsize>,
    pub passed: Arc<AtomicU64>,
    cut: watch::Sender<u64>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Proxy {
    /// Passes connections to `target`. `fate` is asked for each one by its number.
    pub fn start(target: SocketAddr, delay: Duration, fate: impl Fn(usize) -> Fate + Send + Sync + 'static) -> Proxy {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, passed): (Arc<AtomicUsize>, Arc<AtomicU64>) = Default::default();
        let (cut, _) = watch::channel(0);
        let (counter, sum, cutter) = (Arc::clone(&connections), Arc::clone(&passed), cut.clone());
        runtime.spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let fate = fate(counter.fetch_add(1, Ordering::SeqCst));
                let Ok(server) = TcpStream::connect(target).await else { continue };
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let (client_read, client_write) = client.into_split();
                let (server_read, server_write) = server.into_split();
                let mut cut = cutter.subscribe();
                let (up, down) = (Arc::clone(&sum), Arc::clone(&sum));
                tokio::spawn(async move {
                    // When one direction ends, both are dropped.
                    tokio::select! {
                        () = pass(client_read, server_write, delay, fate.cut_up, None, up) => {}
                        () = pass(server_read, client_write, delay, fate.cut_down, fate.stall_down, down) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Proxy { address, connections, passed, cut, runtime: Some(runtime) }
    }

    /// Breaks all connections.
    pub fn cut(&self) {
        self.cut.send_modify(|count| *count += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

/// Passes bytes on after a delay, until the cut.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    delay: Duration,
    cut: Option<u64>,
    stall: Option<u64>,
    passed: Arc<AtomicU64>,
) {
    let (sender, mut receiver) = mpsc::channel::<(Instant, Vec<u8>)>(1 << 12);
    let read = async move {
        let mut total = 0u64;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let most = cut.map_or(buffer.len() as u64, |cut| (cut - total).min(buffer.len() as u64)) as usize;
            if most == 0 {
                return;
            }
            match from.read(&mut buffer[..most]).await {
                Ok(0) | Err(_) => return,
                Ok(count) => {
                    total += count as u64;
                    if stall.is_some_and(|stall| total >= stall) {
                        std::future::pending::<()>().await;
                    }
                    if sender.send((Instant::now() + delay, buffer[..count].to_vec())).await.is_err() {
                        return;
                    }
                }
            }
        }
    };
    let write = async move {
        while let Some((at, bytes)) = receiver.recv().await {
            if !delay.is_zero() {
                sleep_until(at).await;
            }
            if to.write_all(&bytes).await.is_err() {
                return;
            }
            passed.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        }
    };
    tokio::join!(read, write);
}
