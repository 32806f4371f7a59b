//! Thousands of connections. A test binary of its own, because it looks at the memory and the file descriptors of the
//! whole process.

mod common;

use common::client::*;
use common::{Memory, eventually, loopback, one, start, works};
use onefold_nbd::Limits;
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::Duration;

const SIZE: u64 = 1 << 20;

/// One test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn connections_over_the_limit_are_closed_at_once_and_cost_nothing() {
    let _alone = ALONE.lock();
    let mut config = loopback();
    config.limits.connections = 4;
    let server = start(config, one(&Memory::new(SIZE)));
    let served: Vec<_> = (0..4).map(|_| Client::go(server.port(), Form::Simple)).collect();
    let before = resident_bytes();
    // The process has both ends; those that the server closed are kept open here.
    let refused: Vec<_> = (0..10_000).map_while(|_| TcpStream::connect(("127.0.0.1", server.port())).ok()).collect();
    println!("{} connections over the limit", refused.len());
    assert!(refused.len() >= 500, "too few file descriptors for the test");
    let metrics = &server.metrics;
    eventually("all are refused", || metrics.snapshot().refused_connections == refused.len() as u64);
    let grown = resident_bytes().saturating_sub(before);
    println!("{grown} bytes more in memory");
    assert!(grown < 16 << 20, "{grown} bytes");
    assert_eq!(metrics.snapshot().connections, 4);
    drop(served);
    eventually("places become free", || metrics.snapshot().open_connections == 0);
    works(server.port());
}

#[test]
fn thousands_of_idle_negotiations_and_sessions_are_cheap() {
    let _alone = ALONE.lock();
    // Both ends are in this process: half of the file descriptors that it may have, and some left for others.
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20) as usize;
    let count = ((allowed.saturating_sub(1000)) / 2).min(4000);
    let mut config = loopback();
    config.limits = Limits { connections: 100_000, negotiation_timeout: Duration::from_secs(60), ..Limits::default() };
    let server = start(config, one(&Memory::new(SIZE)));
    let metrics = &server.metrics;
    let before = resident_bytes();
    let negotiating: Vec<_> = (0..count / 2).map(|_| TcpStream::connect(("127.0.0.1", server.port())).unwrap()).collect();
    eventually("all are served", || metrics.snapshot().open_connections == negotiating.len() as u64);
    let negotiations = resident_bytes().saturating_sub(before);
    let sessions: Vec<_> = (0..count / 2).map(|_| Client::go(server.port(), Form::Simple)).collect();
    let grown = resident_bytes().saturating_sub(before + negotiations);
    let each = (negotiations / negotiating.len(), grown / sessions.len());
    println!("{count} idle connections: {} bytes for a negotiation, {} for a session", each.0, each.1);
    assert!(each.0 < 16 << 10 && each.1 < 64 << 10);
    works(server.port());
}
