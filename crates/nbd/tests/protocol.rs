//! The protocol, request by request, with a client that speaks bytes.

mod common;

use common::client::*;
use common::{Memory, loopback, one, start};
use onefold_nbd::{Command, ExportError, Limits};
use proptest::prelude::*;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const FORMS: [Form; 3] = [Form::Simple, Form::Structured, Form::Extended];
const SIZE: u64 = 1 << 20;

const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EOVERFLOW: u32 = 75;
const ENOTSUP: u32 = 95;
const ESHUTDOWN: u32 = 108;

#[test]
fn what_is_written_is_read_back_in_every_form() {
    for form in FORMS {
        let disk = Memory::new(SIZE);
        let server = start(loopback(), one(&disk));
        let mut client = Client::go(server.port(), form);
        assert_eq!(client.size, SIZE);
        let data: Vec<u8> = (0..10_000u32).map(|at| at as u8).collect();
        assert_eq!(client.write(0, 777, &data), 0);
        assert_eq!(client.read(0, 777, data.len()), Ok(data.clone()));
        assert_eq!(client.read(0, 500_000, 4096), Ok(vec![0; 4096]), "holes");
        assert_eq!(client.call(WRITE_ZEROES, 0, 1000, 100, &[]), 0);
        assert_eq!(client.call(TRIM, 0, 8192, 4096, &[]), 0);
        assert_eq!(client.call(CACHE, 0, 0, SIZE, &[]), 0);
        assert_eq!(client.call(FLUSH, 0, 0, 0, &[]), 0);
        assert_eq!(disk.flushes.load(SeqCst), 1);
        assert_eq!(client.write(FUA, 0, b"durable"), 0);
        assert_eq!(disk.flushes.load(SeqCst), 2);
        let mut expected = vec![0; SIZE as usize];
        expected[777..10_777].copy_from_slice(&data);
        expected[1000..1100].fill(0);
        expected[8192..12_288].fill(0);
        expected[..7].copy_from_slice(b"durable");
        assert!(disk.content() == expected);
        client.send(DISC, 0, 0, 0, &[]);
        assert!(client.closed());
        let metrics = server.metrics.snapshot();
        assert_eq!((metrics.written_bytes, metrics.read_bytes, metrics.errors), (10_007, 14_096, 0));
        assert_eq!(metrics.requests[Command::Write as usize], 2);
    }
}

#[test]
fn requests_of_length_zero_succeed_and_change_nothing() {
    for form in FORMS {
        let disk = Memory::new(SIZE);
        let server = start(loopback(), one(&disk));
        let mut client = Client::go(server.port(), form);
        assert_eq!(client.read(0, 5, 0), Ok(vec![]));
        assert_eq!(client.write(0, 5, &[]), 0);
        for kind in [TRIM, WRITE_ZEROES, CACHE] {
            assert_eq!(client.call(kind, 0, SIZE, 0, &[]), 0);
        }
        assert_eq!(client.read(0, 5, 1), Ok(vec![0]));
    }
}

#[test]
fn each_mistake_has_its_error_and_the_connection_goes_on() {
    for form in FORMS {
        let server = start(loopback(), one(&Memory::new(SIZE)));
        let mut client = Client::go(server.port(), form);
        let long = (32 << 20) + 1;
        assert_eq!(client.read(0, SIZE - 1, 2), Err(EINVAL));
        assert_eq!(client.write(0, SIZE - 1, b"ab"), ENOSPC);
        assert_eq!(client.call(WRITE_ZEROES, 0, SIZE, 1, &[]), ENOSPC);
        assert_eq!(client.call(TRIM, 0, SIZE, 1, &[]), EINVAL);
        assert_eq!(client.call(CACHE, 0, u64::MAX, 1, &[]), EINVAL);
        assert_eq!(client.call(99, 0, 0, 0, &[]), EINVAL);
        assert_eq!(client.call(FLUSH, 0, 1, 0, &[]), EINVAL);
        assert_eq!(client.call(TRIM, NO_HOLE, 0, 1, &[]), EINVAL);
        assert_eq!(client.call(TRIM, 1 << 9, 0, 1, &[]), EINVAL);
        assert_eq!(client.call(WRITE_ZEROES, NO_HOLE | 16, 0, 1, &[]), ENOTSUP);
        assert_eq!(client.call(WRITE_ZEROES, 16, 0, 4096, &[]), 0);
        assert_eq!(client.read(0, 0, long), Err(EINVAL), "beyond the end comes first");
        assert_eq!(client.write(0, 0, b"fine"), 0);
        assert_eq!(server.metrics.snapshot().errors, 11);
    }
}

#[test]
fn long_reads_overflow_and_the_largest_do_not() {
    let size = 65 << 20;
    let server = start(loopback(), one(&Memory::new(size)));
    for (form, error) in [(Form::Simple, EINVAL), (Form::Structured, EOVERFLOW), (Form::Extended, EOVERFLOW)] {
        let mut client = Client::go(server.port(), form);
        assert_eq!(client.read(0, 0, (32 << 20) + 1), Err(error));
        assert_eq!(client.write(0, 32 << 20, &vec![7; 32 << 20]), 0);
        assert!(client.read(0, 32 << 20, 32 << 20).unwrap() == vec![7; 32 << 20]);
        // More than one of the largest at a time wait for each other within the bounds of memory.
        for _ in 0..6 {
            client.send(READ, 0, 1 << 20, 32 << 20, &[]);
        }
        for _ in 0..6 {
            assert!(client.chunk(32 << 20).payload.len() >= 32 << 20);
        }
    }
}

#[test]
fn payloads_over_the_largest_end_the_connection() {
    let server = start(loopback(), one(&Memory::new(SIZE)));
    for form in FORMS {
        let mut client = Client::go(server.port(), form);
        let flags = if form == Form::Extended { PAYLOAD_LEN } else { 0 };
        client.send(WRITE, flags, 0, (32 << 20) + 1, &[]);
        assert!(client.closed());
    }
    let mut client = Client::go(server.port(), Form::Extended);
    client.send(CACHE, PAYLOAD_LEN, 0, u64::MAX, &[]);
    assert!(client.closed());
}

#[test]
fn read_only_exports_refuse_changes() {
    let disk = Memory::new(SIZE);
    disk.read_only.store(true, SeqCst);
    let server = start(loopback(), one(&disk));
    for form in FORMS {
        let mut client = Client::go(server.port(), form);
        assert_eq!(client.flags & 0b10, 0b10);
        assert_eq!(client.flags & (1 << 5 | 1 << 6), 0, "neither trim nor write zeroes");
        assert_eq!(client.write(0, 0, &[1; 100_000]), EPERM);
        assert_eq!(client.call(TRIM, 0, 0, 512, &[]), EPERM);
        assert_eq!(client.call(WRITE_ZEROES, 0, 0, 512, &[]), EPERM);
        assert_eq!(client.read(0, 0, 4), Ok(vec![0; 4]));
    }
}

#[test]
fn failures_of_the_export_become_errors_of_the_protocol() {
    let disk = Memory::new(SIZE);
    let server = start(loopback(), one(&disk));
    let cases = [
        (ExportError::NoSpace, ENOSPC, ENOSPC),
        (ExportError::ReadOnly, EPERM, EPERM),
        (ExportError::OutOfRange, ENOSPC, EINVAL),
        (ExportError::Io("container 7 is damaged".into()), EIO, EIO),
        (ExportError::ShuttingDown, ESHUTDOWN, ESHUTDOWN),
    ];
    for form in FORMS {
        let mut client = Client::go(server.port(), form);
        for (failure, writing, reading) in &cases {
            *disk.failure.write().unwrap() = Some(failure.clone());
            assert_eq!(client.write(0, 0, b"x"), *writing);
            assert_eq!(client.read(0, 0, 1), Err(*reading));
        }
        *disk.failure.write().unwrap() = None;
        assert_eq!(client.write(0, 0, b"x"), 0);
    }
    // Causes are for the log of the server, not for clients.
    *disk.failure.write().unwrap() = Some(ExportError::Io("/secret/path".into()));
    let mut client = Client::go(server.port(), Form::Structured);
    client.send(READ, 0, 0, 1, &[]);
    assert!(!String::from_utf8_lossy(&client.chunk(0).payload).contains("secret"));
}

#[test]
fn a_panic_of_the_export_is_an_error_of_one_request() {
    let disk = Memory::new(SIZE);
    let server = start(loopback(), one(&disk));
    let mut client = Client::go(server.port(), Form::Structured);
    disk.panics.store(true, SeqCst);
    assert_eq!(client.write(0, 0, b"x"), EIO);
    disk.panics.store(false, SeqCst);
    assert_eq!(client.write(0, 0, b"x"), 0);
}

#[test]
fn block_status_tells_holes_from_data() {
    let disk = Memory::new(SIZE);
    let server = start(loopback(), one(&disk));
    for form in [Form::Structured, Form::Extended] {
        let mut client = Client::go(server.port(), form);
        assert_eq!(client.flags & (1 << 12) != 0, form == Form::Extended, "BLOCK_STATUS_PAYLOAD");
        assert_eq!(client.call(TRIM, 0, 0, SIZE, &[]), 0);
        assert_eq!(client.write(0, 8192, &[1; 4096]), 0);
        assert_eq!(client.status(0, 0, SIZE), Ok(vec![(8192, 3), (4096, 0), (SIZE - 12_288, 3)]));
        assert_eq!(client.status(REQ_ONE, 100, 200), Ok(vec![(200, 3)]));
        assert_eq!(client.status(REQ_ONE, 8192, SIZE - 8192), Ok(vec![(4096, 0)]));
        assert_eq!(client.status(0, 0, SIZE + 1), Err(EINVAL));
        assert_eq!(client.status(0, 0, 0), Err(EINVAL));
    }
    let mut client = Client::go(server.port(), Form::Simple);
    assert_eq!(client.status(0, 0, 512), Err(EINVAL), "no context was chosen");
}

#[test]
fn block_status_by_payload_asks_for_contexts() {
    let server = start(loopback(), one(&Memory::new(SIZE)));
    let mut client = Client::go(server.port(), Form::Extended);
    let mut ask = |length: u64, ids: &[u32]| {
        let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_be_bytes()).collect();
        let payload = [&length.to_be_bytes()[..], &ids].concat();
        client.send(BLOCK_STATUS, PAYLOAD_LEN, 0, payload.len() as u64, &payload);
        client.status_reply()
    };
    assert_eq!(ask(8192, &[1]), Ok(vec![(8192, 3)]));
    assert_eq!(ask(8192, &[1, 1]), Err(EINVAL));
    assert_eq!(ask(8192, &[2]), Err(EINVAL));
    assert_eq!(ask(8192, &[]), Err(EINVAL));
    assert_eq!(ask(SIZE + 1, &[1]), Err(EINVAL));
    assert_eq!(ask(8192, &[1; 5000]), Err(EINVAL), "a long payload is consumed");
    assert_eq!(ask(SIZE, &[1]), Ok(vec![(SIZE, 3)]));
}

#[test]
fn extended_requests_have_64_bit_lengths_and_marked_payloads() {
    let server = start(loopback(), one(&Memory::new(SIZE)));
    let mut client = Client::go(server.port(), Form::Extended);
    assert_eq!(client.call(WRITE_ZEROES, 0, 0, 1 << 40, &[]), ENOSPC);
    assert_eq!(client.call(TRIM, 0, 1, u64::MAX, &[]), EINVAL);
    assert_eq!(client.call(WRITE, 0, 0, 512, &[]), EINVAL, "a write without a payload");
    assert_eq!(client.call(TRIM, PAYLOAD_LEN, 0, 700, &[9; 700]), EINVAL);
    assert_eq!(client.call(88, PAYLOAD_LEN, 0, 700, &[9; 700]), EINVAL);
    assert_eq!(client.write(0, 0, b"fine"), 0);
}

#[test]
fn requests_of_a_connection_run_side_by_side_within_the_bound() {
    let disk = Memory::new(SIZE);
    *disk.delay.write().unwrap() = Duration::from_millis(100);
    let mut config = loopback();
    config.limits = Limits { requests_per_connection: 8, ..Limits::default() };
    let server = start(config, one(&disk));
    let mut client = Client::go(server.port(), Form::Simple);
    let begin = Instant::now();
    for at in 0..32 {
        client.send(READ, 0, at * 512, 512, &[]);
    }
    let mut cookies: Vec<u64> = (0..32).map(|_| client.chunk(512).cookie).collect();
    cookies.sort_unstable();
    assert_eq!(cookies, (1..=32).collect::<Vec<_>>());
    assert_eq!(disk.most_running.load(SeqCst), 8);
    assert!(begin.elapsed() < Duration::from_millis(2000), "{:?}", begin.elapsed());
}

#[test]
fn disconnecting_waits_for_what_is_in_flight() {
    let disk = Memory::new(SIZE);
    *disk.delay.write().unwrap() = Duration::from_millis(200);
    let server = start(loopback(), one(&disk));
    let mut client = Client::go(server.port(), Form::Simple);
    client.send(WRITE, 0, 0, 4, b"last");
    client.send(DISC, 0, 0, 0, &[]);
    assert_eq!(client.chunk(0).error, 0);
    assert!(client.closed());
    assert_eq!(&disk.content()[..4], b"last");
}

#[test]
fn the_old_ways_in_still_work() {
    let server = start(loopback(), one(&Memory::new(SIZE)));
    for (flags, padding) in [(0, 124), (FIXED_NEWSTYLE, 124), (FIXED_NEWSTYLE | NO_ZEROES, 0)] {
        let mut client = Client::connect(server.port());
        client.greeted();
        std::io::Write::write_all(&mut client.stream, &flags.to_be_bytes()).unwrap();
        client.send_option(OPT_EXPORT_NAME, b"");
        let reply = client.bytes(10 + padding).unwrap();
        assert_eq!(reply[..8], SIZE.to_be_bytes());
        assert_eq!(client.read(0, 0, 4), Ok(vec![0; 4]));
    }
}

#[test]
fn a_stopping_server_finishes_what_runs_refuses_what_comes_and_flushes() {
    let disk = Memory::new(SIZE);
    let mut server = start(loopback(), one(&disk));
    let mut client = Client::go(server.port(), Form::Structured);
    let mut haggling = Client::greet(server.port());
    *disk.delay.write().unwrap() = Duration::from_millis(400);
    let slow = client.send(WRITE, 0, 0, 4, b"slow");
    std::thread::sleep(Duration::from_millis(100));
    server.ask_to_stop();
    std::thread::sleep(Duration::from_millis(100));
    let late = client.send(WRITE, 0, 8, 4, b"late");
    assert_eq!(haggling.option(OPT_GO, b"\0\0\0\x04disk\0\0").last().unwrap().0, ERR + 7, "ERR_SHUTDOWN");
    let replies = [client.chunk(0), client.chunk(0)];
    assert_eq!(replies.iter().find(|reply| reply.cookie == late).unwrap().error, ESHUTDOWN);
    assert_eq!(replies.iter().find(|reply| reply.cookie == slow).unwrap().error, 0);
    server.wait().unwrap();
    assert!(client.closed());
    assert_eq!(&disk.content()[..12], b"slow\0\0\0\0\0\0\0\0");
    assert_eq!(disk.flushes.load(SeqCst), 1);
}

#[test]
fn a_stop_that_cannot_flush_says_so_and_one_that_hangs_ends() {
    let disk = Memory::new(SIZE);
    let mut server = start(loopback(), one(&disk));
    let mut client = Client::go(server.port(), Form::Simple);
    assert_eq!(client.write(0, 0, b"x"), 0);
    *disk.failure.write().unwrap() = Some(ExportError::Io("the disk is gone".into()));
    server.ask_to_stop();
    assert!(server.wait().unwrap_err().to_string().contains("the disk is gone"));

    let disk = Memory::new(SIZE);
    let mut config = loopback();
    config.limits.shutdown_timeout = Duration::from_millis(300);
    let mut server = start(config, one(&disk));
    let mut client = Client::go(server.port(), Form::Simple);
    *disk.delay.write().unwrap() = Duration::from_secs(3);
    client.send(READ, 0, 0, 512, &[]);
    std::thread::sleep(Duration::from_millis(50));
    let begin = Instant::now();
    server.ask_to_stop();
    assert!(server.wait().is_err());
    assert!(begin.elapsed() < Duration::from_secs(2));
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>),
    Zero(u64, u64, bool),
    Read(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || (0..60_000u64, 0..5_000u64);
    let step = prop_oneof![
        (0..60_000u64, proptest::collection::vec(any::<u8>(), 0..3000)).prop_map(|(at, data)| Step::Write(at, data)),
        (place(), any::<bool>()).prop_map(|((at, length), keep)| Step::Zero(at, length, keep)),
        place().prop_map(|(at, length)| Step::Read(at, length)),
    ];
    proptest::collection::vec(step, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_sequence_of_requests_acts_like_an_array(steps in steps(), form in 0usize..3) {
        let size = 64 << 10;
        let disk = Memory::new(size);
        let server = start(loopback(), one(&disk));
        let mut client = Client::go(server.port(), FORMS[form]);
        let mut model = vec![0; size as usize];
        for step in steps {
            match step {
                Step::Write(at, data) => {
                    assert_eq!(client.write(0, at, &data), 0);
                    model[at as usize..][..data.len()].copy_from_slice(&data);
                }
                Step::Zero(at, length, keep) => {
                    assert_eq!(client.call(WRITE_ZEROES, if keep { NO_HOLE } else { 0 }, at, length, &[]), 0);
                    model[at as usize..][..length as usize].fill(0);
                }
                Step::Read(at, length) => {
                    let expected = model[at as usize..][..length as usize].to_vec();
                    assert_eq!(client.read(0, at, length as usize), Ok(expected));
                }
            }
        }
        prop_assert!(disk.content() == model);
    }
}
