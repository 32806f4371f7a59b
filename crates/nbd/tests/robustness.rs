//! Clients that are broken, slow, many or hostile: they lose their own connection and nothing else.

mod common;

use common::client::*;
use common::{Memory, eventually, loopback, one, start, works};
use onefold_nbd::{Config, Limits, Listen, NbdError, Server};
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

const SIZE: u64 = 1 << 20;

/// xorshift: garbage that is the same each time.
fn garbage(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn garbage_at_each_stage_closes_the_connection_and_the_server_lives() {
    let server = start(loopback(), one(&Memory::new(SIZE)));
    let port = server.port();
    for seed in 1..20 {
        let garbage = garbage(seed, 300);
        let send = |mut client: Client| {
            // The server may close before everything is written.
            let _ = client.stream.write_all(&garbage);
            assert!(client.closed());
        };
        let mut fresh = Client::connect(port);
        fresh.greeted();
        send(fresh);
        send(Client::greet(port));
        for form in [Form::Simple, Form::Structured, Form::Extended] {
            send(Client::go(port, form));
        }
    }
    assert_eq!(server.metrics.snapshot().failed_negotiations, 38);
    works(port);
}

#[test]
fn garbage_behind_a_right_header_is_refused_or_skipped() {
    let server = start(loopback(), one(&Memory::new(SIZE)));
    for seed in 1..20 {
        let mut client = Client::greet(server.port());
        for option in [OPT_LIST, OPT_STARTTLS, 6, OPT_STRUCTURED_REPLY, 9, OPT_SET_META_CONTEXT, OPT_EXTENDED_HEADERS, 4, 1000] {
            let replies = client.option(option, &garbage(seed, 100));
            assert!(replies.last().unwrap().0 > ERR, "option {option}");
        }
        assert_eq!(client.option(OPT_STRUCTURED_REPLY, &[0; 100_000]).last().unwrap().0, ERR + 9, "too big, but skipped");
        client.enter();
        client.send_option(OPT_ABORT, &[0; 100]);
        assert!(client.closed(), "an option is no request");
    }
    let mut client = Client::greet(server.port());
    client.stream.write_all(b"IHAVEOPT\0\0\0\x03\xff\xff\xff\xff").unwrap();
    assert!(client.closed());
    works(server.port());
}

#[test]
fn a_connection_cut_anywhere_harms_nothing() {
    let disk = Memory::new(SIZE);
    let server = start(loopback(), one(&disk));
    let mut whole = Client::go(server.port(), Form::Structured);
    let message = whole.request(WRITE, 0, 0, 64, &[7; 64]);
    for length in 0..message.len() {
        let mut client = Client::go(server.port(), Form::Structured);
        client.stream.write_all(&message[..length]).unwrap();
    }
    let metrics = &server.metrics;
    eventually("all but one connection end", || metrics.snapshot().open_connections == 1);
    assert!(disk.content() == vec![0; SIZE as usize], "a write that did not arrive whole is not done");
    assert_eq!(whole.write(0, 0, &[7; 64]), 0);
}

#[test]
fn negotiations_and_payloads_that_do_not_come_are_timed_out() {
    let mut config = loopback();
    config.limits.negotiation_timeout = Duration::from_millis(300);
    config.limits.transfer_timeout = Duration::from_millis(300);
    let server = start(config, one(&Memory::new(SIZE)));
    let begin = Instant::now();
    let mut silent = Client::connect(server.port());
    silent.greeted();
    let mut half = Client::greet(server.port());
    half.stream.write_all(b"IHAVE").unwrap();
    let mut idle = Client::go(server.port(), Form::Simple);
    let mut short = Client::go(server.port(), Form::Simple);
    short.send(WRITE, 0, 0, 4096, &[1; 100]);
    let mut header = Client::go(server.port(), Form::Simple);
    header.stream.write_all(&0x2560_9513u32.to_be_bytes()).unwrap();
    assert!(silent.closed() && half.closed() && short.closed() && header.closed());
    assert!(begin.elapsed() < Duration::from_secs(3));
    assert_eq!(idle.write(0, 0, b"x"), 0, "between requests a client may be silent for ever");
    drop(idle);
    works(server.port());
}

#[test]
fn a_slow_reader_does_not_slow_others_and_is_cut() {
    let size = 64 << 20;
    let mut config = loopback();
    config.limits =
        Limits { bytes: 32 << 20, bytes_per_connection: 32 << 20, transfer_timeout: Duration::from_millis(1500), ..Limits::default() };
    let disk = Memory::new(size);
    let server = start(config, one(&disk));
    let mut writer = Client::go(server.port(), Form::Structured);
    for at in 0..4 {
        assert_eq!(writer.write(0, at << 23, &vec![1; 8 << 20]), 0);
    }
    // All shared memory is held by replies that nobody takes.
    let mut slow = Client::go(server.port(), Form::Structured);
    for _ in 0..20 {
        slow.send(READ, 0, 0, 8 << 20, &[]);
    }
    std::thread::sleep(Duration::from_millis(300));
    let begin = Instant::now();
    let mut other = Client::go(server.port(), Form::Structured);
    for at in 0..200 {
        assert_eq!(other.write(0, at * 4096, &[2; 4096]), 0);
        assert_eq!(other.read(0, at * 4096, 4096), Ok(vec![2; 4096]));
    }
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    // What needs shared memory waits until the slow one is cut.
    assert_eq!(other.read(0, 16 << 20, 8 << 20).unwrap().len(), 8 << 20);
    drop((writer, other));
    eventually("the slow one is cut", || server.metrics.snapshot().open_connections == 0);
    assert!(slow.closed());
}

#[test]
fn unix_sockets_serve_replace_stale_files_and_leave_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    drop(UnixListener::bind(&path).unwrap());
    let config = || Config::new(Listen::Unix(path.clone()));
    let exports = || one(&Memory::new(SIZE));
    let server = start(config(), exports());
    assert!(UnixStream::connect(&path).is_ok());
    assert!(matches!(Server::bind(config(), exports()), Err(NbdError::Listen { .. })), "a socket in use is left alone");
    drop(server);
    assert!(!path.exists());
    std::fs::write(&path, "not a socket").unwrap();
    assert!(matches!(Server::bind(config(), exports()), Err(NbdError::Listen { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "not a socket");
}

#[test]
fn plain_text_off_loopback_must_be_allowed() {
    let mut config = Config::new(Listen::Tcp("0.0.0.0:0".parse().unwrap()));
    let exports = || one(&Memory::new(SIZE));
    assert!(matches!(Server::bind(config.clone(), exports()), Err(NbdError::PlainOffLoopback { .. })));
    config.allow_plain_off_loopback = true;
    works(start(config, exports()).port());
    let nowhere = Config { listen: vec![], ..loopback() };
    assert!(matches!(Server::bind(nowhere, exports()), Err(NbdError::NoAddress)));
}
