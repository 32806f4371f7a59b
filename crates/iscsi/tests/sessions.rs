//! Sessions with initiators that are slow, dead or malicious: they harm nobody else, and cost no more memory than they
//! may.

mod served;

use onefold_iscsi::Limits;
use onefold_tests::iscsi::{HEADER_BYTES, Initiator, connect, login_request, receive, send, word};
use onefold_tests::{Random, RequestError};
use served::{NAME, SIZE, Served, is_closed, limits, read_10, window};
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Tests that measure the memory of this process go one by one.
static MEASURED: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    MEASURED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory of this process that is in use, bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn one_that_stops_reading_stalls_nobody_and_its_memory_is_bounded() {
    let _alone = alone();
    let served = Served::with(limits());
    let mut dead = served.log_in(1);
    let before = resident();
    // As many reads as the window takes, each of a megabyte.
    for number in 0..60 {
        let header = dead.header(&read_10(number * 64, 2048), 0xc1, 1 << 20);
        dead.command_number += 1;
        send(&mut dead.stream, header, &[]).unwrap();
    }
    // And questions whether the target is there, with a lot of text to send back, until nothing more is taken.
    dead.stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut ping = [0; HEADER_BYTES];
    (ping[0], ping[1]) = (0x40, 0x80);
    ping[16..20].copy_from_slice(&0x7777_u32.to_be_bytes());
    ping[20..24].fill(0xff);
    let mut sent = 0;
    while sent < 64 << 20 && send(&mut dead.stream, ping, &[b'x'; 64 << 10]).is_ok() {
        sent += 64 << 10;
        let mut working = served.log_in(2);
        working.write(1 << 20, &[7; 4096]).unwrap();
        assert_eq!(working.read(1 << 20, 4096).unwrap(), [7; 4096]);
    }
    assert!(sent < 64 << 20, "the server takes what it cannot answer");
    let grown = resident().saturating_sub(before);
    // 32 MiB for reads, as much again for the one that is just answered, 8 MiB for the rest, and what the sockets and
    // the allocator keep.
    assert!(grown < 128 << 20, "memory has grown by {grown} bytes");
    drop(dead);
    served.works();
}

#[test]
fn m0_1_what_there_is_no_room_for_is_refused_and_can_be_tried_again() {
    let served = Served::with(Limits { commands: 4, ..limits() });
    let (mut busy, mut other) = (served.log_in(1), served.log_in(2));
    let gate = served.disk.gate.lock().unwrap();
    for number in 0..6 {
        let header = busy.header(&read_10(number, 1), 0xc1, 512);
        busy.command_number += 1;
        send(&mut busy.stream, header, &[]).unwrap();
    }
    for _ in 0..2 {
        let (answer, _) = receive(&mut busy.stream).unwrap();
        assert_eq!((answer[0], answer[3]), (0x21, 0x28), "TASK SET FULL");
    }
    assert!(matches!(other.read(0, 512), Err(RequestError::Refused(0x0800_0000))), "BUSY");
    drop(gate);
    for _ in 0..4 {
        let (answer, _) = receive(&mut busy.stream).unwrap();
        assert_eq!((answer[0], answer[1] & 1, answer[3]), (0x25, 1, 0), "data and GOOD");
    }
    busy.read(0, 512).unwrap();
    other.read(0, 512).unwrap();
}

#[test]
fn m0_1_commands_beyond_the_window_are_dropped_and_those_within_are_not() {
    let served = Served::with(Limits { queue_depth: 4, ..limits() });
    let mut stream = connect(&served.portal).unwrap();
    let (header, text) = login_request(2, &[("InitiatorName", "iqn.2026-01.com.example:other"), ("TargetName", NAME)]);
    send(&mut stream, header, &text).unwrap();
    let (answer, _) = receive(&mut stream).unwrap();
    assert_eq!(window(&answer), 4, "the login promises no more than the session keeps");
    let mut initiator = served.log_in(1);
    let gate = served.disk.gate.lock().unwrap();
    for number in 0..6 {
        let header = initiator.header(&read_10(number, 1), 0xc1, 512);
        initiator.command_number += 1;
        send(&mut initiator.stream, header, &[]).unwrap();
    }
    // An immediate command is not bounded by the window, but there are few.
    for _ in 0..40 {
        let mut header = initiator.header(&read_10(0, 1), 0xc1, 512);
        header[0] |= 0x40;
        send(&mut initiator.stream, header, &[]).unwrap();
    }
    let mut last = 0;
    for _ in 0..24 {
        let (answer, _) = receive(&mut initiator.stream).unwrap();
        assert_eq!((answer[0], answer[2]), (0x3f, 0x06), "rejected: too many immediate commands");
        assert_eq!(window(&answer), 0);
        last = word(&answer, 32);
    }
    drop(gate);
    let mut done = 0;
    let mut most = 0;
    while done < 20 {
        let (answer, _) = receive(&mut initiator.stream).unwrap();
        assert_eq!((answer[0], answer[1] & 1), (0x25, 1));
        most = most.max(window(&answer));
        assert!(word(&answer, 32) >= last, "MaxCmdSN never goes back");
        last = word(&answer, 32);
        done += 1;
    }
    assert!(most <= 4, "the window is never wider than was told");
    // Those that were beyond the window are not missed: their numbers come again.
    initiator.command_number -= 2;
    initiator.read(0, 512).unwrap();
}

#[test]
fn m0_1_a_logout_is_answered_when_no_write_has_an_effect_any_more() {
    let served = Served::with(limits());
    let mut others: Vec<Initiator> = (10..14).map(|number| served.log_in(number)).collect();
    let mut leaving = served.log_in(1);
    let gate = served.disk.gate.lock().unwrap();
    // One write is in the disk's hands, others wait until it is their turn.
    let write = |initiator: &mut Initiator, block: u8| {
        let header = initiator.header(&[0x2a, 0, 0, 0, 0, block, 0, 0, 1, 0], 0xa1, 512);
        initiator.command_number += 1;
        send(&mut initiator.stream, header, &[8; 512]).unwrap();
    };
    write(&mut leaving, 0);
    served.disk.wait_for(1);
    for initiator in &mut others {
        for number in 0..60 {
            let header = initiator.header(&read_10(100 + number, 1), 0xc1, 512);
            initiator.command_number += 1;
            send(&mut initiator.stream, header, &[]).unwrap();
        }
    }
    served.disk.wait_for(64);
    write(&mut leaving, 1);
    leaving.begin_log_out().unwrap();
    leaving.stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let early = receive(&mut leaving.stream);
    assert!(early.is_err(), "answered while a write is under way: {early:02x?}");
    drop(gate);
    leaving.stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (answer, _) = receive(&mut leaving.stream).unwrap();
    assert_eq!((answer[0], answer[2]), (0x26, 0), "the next answer is that of the logout");
    let now = served.disk.bytes.lock().unwrap()[..1024].to_vec();
    is_closed(&mut leaving.stream);
    assert!(served.disk.bytes.lock().unwrap()[..1024] == now, "nothing is written behind it");
}

#[test]
fn m0_1_one_session_does_not_take_all_who_work() {
    let served = Served::with(limits());
    let (mut greedy, mut other) = (served.log_in(1), served.log_in(2));
    let gate = served.disk.gate.lock().unwrap();
    for number in 0..64 {
        let header = greedy.header(&read_10(number, 1), 0xc1, 512);
        greedy.command_number += 1;
        send(&mut greedy.stream, header, &[]).unwrap();
    }
    served.disk.wait_for(16);
    // What needs no reading is done for others meanwhile.
    other.inquiry(0x80).unwrap();
    assert_eq!(served.disk.arrived.load(Ordering::Relaxed), 16);
    drop(gate);
    for _ in 0..64 {
        let (answer, _) = receive(&mut greedy.stream).unwrap();
        assert_eq!((answer[0], answer[1] & 1, answer[3]), (0x25, 1, 0), "data and GOOD");
    }
}

#[test]
fn m0_1_discovery_takes_no_places_of_others_and_does_not_last() {
    let served = Served::with(Limits { sessions: 1, discoveries_of_address: 2, discovery: Duration::from_secs(2), ..limits() });
    let discover = |number: u32| {
        let mut stream = connect(&served.portal).unwrap();
        let (header, text) = login_request(number, &[("InitiatorName", "iqn.x"), ("SessionType", "Discovery")]);
        send(&mut stream, header, &text).unwrap();
        let (answer, _) = receive(&mut stream).unwrap();
        (u16::from_be_bytes([answer[36], answer[37]]), window(&answer), stream)
    };
    let (mut first, second, third) = (discover(1), discover(2), discover(3));
    assert_eq!(((first.0, first.1), (second.0, second.1), third.0), ((0, 1), (0, 1), 0x0302));
    served.log_in(1).read(0, 512).unwrap();
    // Though somebody is there.
    let mut ping = [0; HEADER_BYTES];
    (ping[0], ping[1]) = (0x40, 0x80);
    ping[16..20].copy_from_slice(&7u32.to_be_bytes());
    ping[20..24].fill(0xff);
    send(&mut first.2, ping, &[]).unwrap();
    assert_eq!(receive(&mut first.2).unwrap().0[0], 0x20);
    is_closed(&mut first.2);
}

#[test]
fn m0_1_nobody_comes_in_when_the_server_ends() {
    let mut served = Served::with(limits());
    let mut old = served.log_in(1);
    let gate = served.disk.gate.lock().unwrap();
    let header = old.header(&read_10(0, 1), 0xc1, 512);
    send(&mut old.stream, header, &[]).unwrap();
    served.disk.wait_for(1);
    // The same initiator port again waits for its old session, which waits for the disk.
    let mut newcomer = connect(&served.portal).unwrap();
    let (header, text) = login_request(1, &[("InitiatorName", "iqn.2026-01.com.example:test"), ("TargetName", NAME)]);
    send(&mut newcomer, header, &text).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    drop(served.stop.take());
    std::thread::sleep(Duration::from_millis(200));
    drop(gate);
    // On a slow machine it was perhaps not even accepted.
    if let Ok((answer, _)) = receive(&mut newcomer) {
        assert_eq!((answer[36], answer[37]), (3, 1), "the service is not there");
    }
    let thread = served.thread.take().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !thread.is_finished() {
        assert!(Instant::now() < until, "the server does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn m0_1_initiators_are_told_how_long_they_may_take_to_log_out() {
    let mut served = Served::with(Limits { farewell: Duration::from_millis(1500), patience: Duration::from_secs(15), ..limits() });
    let mut initiator = served.log_in(1);
    drop(served.stop.take());
    let (message, _) = receive(&mut initiator.stream).unwrap();
    assert_eq!((message[0], message[36]), (0x32, 1), "asked to log out");
    assert_eq!(u16::from_be_bytes([message[42], message[43]]), 2, "whole seconds, after which it is disconnected");
}

#[test]
fn nonsense_ends_its_own_session_only() {
    let served = Served::with(limits());
    let nonsense: [fn(&mut Initiator); 7] = [
        // A data segment of 16 MiB.
        |initiator| {
            let mut header = initiator.header(&read_10(0, 1), 0x81, 0);
            header[5..8].fill(0xff);
            initiator.stream.write_all(&header).unwrap();
        },
        // Additional header segments of a kilobyte, which say that they are longer.
        |initiator| {
            let mut header = initiator.header(&read_10(0, 1), 0x81, 0);
            header[4] = 255;
            initiator.stream.write_all(&[&header[..], &[0xff; 1020]].concat()).unwrap();
        },
        // Data for a command that reads.
        |initiator| {
            let header = initiator.header(&read_10(0, 1), 0xc1, 512);
            send(&mut initiator.stream, header, &[0; 512]).unwrap();
        },
        // More data than a first burst.
        |initiator| {
            let header = initiator.header(&[0x2a, 0, 0, 0, 0, 0, 0, 1, 0, 0], 0xa1, 128 << 10);
            send(&mut initiator.stream, header, &[0; 128 << 10]).unwrap();
        },
        // A second login.
        |initiator| {
            let (header, text) = login_request(1, &[("InitiatorName", "iqn.x"), ("TargetName", NAME)]);
            send(&mut initiator.stream, header, &text).unwrap();
        },
        // Data that nobody asked for, for a command that waits for other data.
        |initiator| {
            let header = initiator.header(&[0x2a, 0, 0, 0, 0, 0, 0, 4, 0, 0], 0xa1, 512 << 10);
            send(&mut initiator.stream, header, &[]).unwrap();
            let mut data = [0; HEADER_BYTES];
            (data[0], data[1]) = (0x05, 0x80);
            data[16..20].copy_from_slice(&header[16..20]);
            data[20..24].copy_from_slice(&0xdead_u32.to_be_bytes());
            send(&mut initiator.stream, data, &[0; 512]).unwrap();
        },
        // Half a header.
        |initiator| {
            initiator.stream.write_all(&[0x01; 20]).unwrap();
            initiator.stream.shutdown(std::net::Shutdown::Write).unwrap();
        },
    ];
    for (number, send_nonsense) in (1..).zip(nonsense) {
        let mut initiator = served.log_in(number);
        send_nonsense(&mut initiator);
        is_closed(&mut initiator.stream);
        served.works();
    }
    // Wrong numbers of data cost the command, not the session.
    let mut initiator = served.log_in(90);
    let header = initiator.header(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 2, 0], 0x21, 1024);
    initiator.command_number += 1;
    send(&mut initiator.stream, header, &[]).unwrap();
    let mut data = [0; HEADER_BYTES];
    (data[0], data[1]) = (0x05, 0x80);
    data[16..20].copy_from_slice(&header[16..20]);
    data[20..24].fill(0xff);
    data[36..40].copy_from_slice(&5u32.to_be_bytes());
    send(&mut initiator.stream, data, &[0; 1024]).unwrap();
    let (answer, sense) = receive(&mut initiator.stream).unwrap();
    assert_eq!((answer[0], answer[3], sense[4] & 15), (0x21, 2, 0x0b), "the command is aborted");
    assert_eq!(initiator.read(0, 512).unwrap(), [7; 512], "and nothing was written");
}

#[test]
fn any_bytes_at_all_harm_nobody() {
    let served = Served::with(Limits { patience: Duration::from_millis(300), ..limits() });
    let mut random = Random::new(1);
    for number in 0..60 {
        let mut stream = if number % 2 == 0 { connect(&served.portal).unwrap() } else { served.log_in(1).stream };
        let mut bytes: Vec<u8> = (0..48 * 6).map(|_| random.next_u64() as u8).collect();
        for pdu in bytes.chunks_mut(48) {
            // Mostly types that there are, and lengths that can be.
            pdu[0] = [0x00, 0x40, 0x01, 0x41, 0x02, 0x42, 0x43, 0x03, 0x04, 0x05, 0x06, 0x10, 0x1f][random.below(13) as usize];
            pdu[4] = if random.below(4) == 0 { pdu[4] } else { 0 };
            pdu[5..8].copy_from_slice(&[0, 0, (random.below(3) * 16) as u8]);
        }
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        is_closed(&mut stream);
    }
    served.works();
}

#[test]
fn half_open_logins_are_few_and_do_not_last() {
    let _alone = alone();
    let served = Served::with(Limits { logins_of_address: 16, patience: Duration::from_secs(2), ..limits() });
    let before = resident();
    let mut connections: Vec<TcpStream> = (0..200).map(|_| connect(&served.portal).unwrap()).collect();
    // Some say the beginning of a login, that never ends.
    let (header, text) = login_request(1, &[("InitiatorName", "iqn.x")]);
    for stream in &mut connections {
        let mut partial = header;
        partial[1] = 0x44;
        let _ = send(stream, partial, &text);
    }
    assert!(resident().saturating_sub(before) < 32 << 20);
    // Those beyond the bound at once, the others after a while.
    connections.iter_mut().for_each(is_closed);
    served.works();
}

#[test]
fn m0_1_a_thousand_sessions_work_and_cost_little() {
    let _alone = alone();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    if limit.maximum.is_some_and(|most| most < 4096) || rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).is_err() {
        println!("skipped: this process may not open 4096 files");
        return;
    }
    let served = Served::with(Limits { sessions: 1000, ..limits() });
    let before = resident();
    let mut sessions: Vec<Initiator> = (0..1000).map(|number| served.log_in(number)).collect();
    for (number, session) in sessions.iter_mut().enumerate() {
        session.write(number as u64 * 4096, &[7; 4096]).unwrap();
    }
    let refused = Initiator::log_in(&served.portal, NAME, "iqn.2026-01.com.example:test", 5000, 0).unwrap_err();
    assert_eq!(refused.to_string(), "0302", "out of resources");
    // The same initiator port again takes the place of its own session.
    let again = served.log_in(77);
    let grown = resident().saturating_sub(before);
    assert!(grown < 400 << 20, "memory has grown by {grown} bytes");
    for session in sessions.iter_mut().step_by(50) {
        assert_eq!(session.read(0, 4096).unwrap(), [7; 4096]);
    }
    drop((sessions, again));
}

#[test]
fn a_long_list_of_targets_comes_in_parts() {
    let served = Served::with(limits());
    let mut stream = connect(&served.portal).unwrap();
    let keys = [("InitiatorName", "iqn.x"), ("SessionType", "Discovery")];
    let (header, text) = login_request(9, &keys);
    send(&mut stream, header, &text).unwrap();
    receive(&mut stream).unwrap();
    let (mut tag, mut number, mut ask, mut list) = (u32::MAX, 1u32, &b"SendTargets=All\0SendTargets=All\0"[..], Vec::new());
    loop {
        let mut request = [0; HEADER_BYTES];
        (request[0], request[1]) = (0x04, 0x80);
        request[16..20].copy_from_slice(&7u32.to_be_bytes());
        request[20..24].copy_from_slice(&tag.to_be_bytes());
        request[24..28].copy_from_slice(&number.to_be_bytes());
        send(&mut stream, request, ask).unwrap();
        let (answer, part) = receive(&mut stream).unwrap();
        assert!(answer[0] == 0x24 && part.len() <= 8192);
        list.extend(part);
        (tag, number, ask) = (word(&answer, 20), number + 1, b"");
        if answer[1] & 0x80 != 0 {
            break;
        }
    }
    let list = String::from_utf8(list).unwrap();
    assert_eq!(list.split_terminator('\0').filter(|pair| pair.starts_with("TargetName=")).count(), 1000);
    assert!(list.ends_with("SendTargets=Reject\0") && list.contains(&format!("{NAME}-999\0")), "once, and whole");
}

#[test]
fn the_initiator_for_measuring_has_many_writes_in_flight_and_waits_where_the_window_ends() {
    let served = Served::with(Limits { queue_depth: 4, ..limits() });
    let name = "iqn.2026-01.com.example:measuring";
    let portal = served.portal.parse().unwrap();
    let mut initiator = onefold_iscsi::initiator::Initiator::log_in(portal, NAME, name, 1, 0).unwrap();
    // Longer than a first burst, and in sum than what goes at a time.
    let block = |number: u64| vec![number as u8 + 10; 192 << 10];
    let mut answers = Vec::new();
    for number in 0..16 {
        initiator.send_write(number, number * (192 << 10), block(number)).unwrap();
    }
    for _ in 0..16 {
        let answer = initiator.next_answer().unwrap();
        assert_eq!((answer.status, answer.data), (0, block(answer.cookie)));
        answers.push(answer.cookie);
    }
    answers.sort_unstable();
    assert_eq!(answers, (0..16).collect::<Vec<_>>());
    initiator.send_flush(77).unwrap();
    let answer = initiator.next_answer().unwrap();
    assert_eq!((answer.cookie, answer.status), (77, 0));
    initiator.send_write(78, SIZE as u64, vec![1; 512]).unwrap();
    let answer = initiator.next_answer().unwrap();
    assert_eq!((answer.status, answer.sense), (2, Some([5, 0x21, 0])), "behind the end");
    assert!(initiator.next_answer().is_err(), "nothing is in flight");
    let bytes = served.disk.bytes.lock().unwrap();
    (0..16).for_each(|number| assert!(bytes[number as usize * (192 << 10)..][..192 << 10] == block(number)));
    drop(bytes);
    let refused = onefold_iscsi::initiator::Initiator::log_in(portal, "iqn.2026-01.com.example:other", name, 2, 0).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "{refused}");
}
