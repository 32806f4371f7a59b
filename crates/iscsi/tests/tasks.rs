//! Commands that are ended, ordered or lost, beside others that go on: none is forgotten, and none waits for what
//! cannot come.

mod served;

use onefold_tests::RequestError;
use onefold_tests::iscsi::{HEADER_BYTES, Initiator, connect, login_request, receive, send, word};
use served::{HALF, NAME, SIZE, Served, begin, limits, management, ping, read_10, send_asked_for, tag, take_all_memory, window, write_10};
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn m0_1_room_for_a_command_that_was_aborted_is_not_taken_for_one_with_its_tag() {
    let served = Served::with(limits());
    let mut initiator = served.log_in(1);
    let greedy = take_all_memory(&mut initiator);
    let blocks = 2048 + 128;
    // It waits for room, and is aborted.
    let first = begin(&mut initiator, &write_10(0, blocks), 0xa1, usize::from(blocks) * 512, &[]);
    let abort = |initiator: &mut Initiator, referenced| {
        let header = management(initiator, 1, referenced, true);
        send(&mut initiator.stream, header, &[]).unwrap();
        let (answer, _) = receive(&mut initiator.stream).unwrap();
        assert_eq!((answer[0], answer[2]), (0x22, 0));
    };
    abort(&mut initiator, tag(&first));
    // Another one has its tag, and data that come without being asked for.
    let mut second = initiator.header(&write_10(0, blocks), 0x21, usize::from(blocks) * 512);
    second[16..20].copy_from_slice(&tag(&first));
    initiator.command_number += 1;
    send(&mut initiator.stream, second, &[]).unwrap();
    greedy.iter().for_each(|header| abort(&mut initiator, tag(header)));
    ping(&mut initiator);
    let mut data = [0; HEADER_BYTES];
    (data[0], data[1]) = (0x05, 0x80);
    data[16..20].copy_from_slice(&tag(&first));
    data[20..24].fill(0xff);
    send(&mut initiator.stream, data, &[9; 64 << 10]).unwrap();
    let (mut answer, _) = receive(&mut initiator.stream).unwrap();
    assert_eq!((answer[0], word(&answer, 40)), (0x31, 64 << 10), "what has come is not asked for");
    while answer[0] == 0x31 {
        send_asked_for(&mut initiator, &answer, 9);
        answer = receive(&mut initiator.stream).unwrap().0;
    }
    assert_eq!((answer[0], answer[3]), (0x21, 0));
    assert!(served.disk.bytes.lock().unwrap()[..usize::from(blocks) * 512].iter().all(|byte| *byte == 9), "all of it is written");
}

/// PERSISTENT RESERVE OUT.
fn reserve_out(action: u8, key: u64, new_key: u64) -> ([u8; 10], Vec<u8>) {
    ([0x5f, action, 0, 0, 0, 0, 0, 0, 24, 0], [key.to_be_bytes(), new_key.to_be_bytes(), [0; 8]].concat())
}

#[test]
fn m0_1_preempt_and_abort_is_answered_when_what_it_ends_is_over_or_itself_is_ended() {
    let served = Served::with(limits());
    let (mut a, mut b) = (served.log_in(1), served.log_in(2));
    for is_ended in [false, true] {
        let arrived = served.disk.arrived.load(Ordering::Relaxed);
        for (initiator, key) in [(&mut a, 1), (&mut b, 2)] {
            let (cdb, list) = reserve_out(6, 0, key);
            // Unit attentions of the round before come first.
            while initiator.command(&cdb, &list, 0).is_err() {}
        }
        let gate = served.disk.gate.lock().unwrap();
        begin(&mut b, &write_10(0, 1), 0xa1, 512, &[8; 512]);
        served.disk.wait_for(arrived + 1);
        let (cdb, list) = reserve_out(5, 1, 2);
        let preempt = begin(&mut a, &cdb, 0xa1, list.len(), &list);
        // It has taken effect when there is one key left. Whatever is asked behind that, it is not answered.
        let mut since = 0;
        while since < 20 {
            let keys = a.command(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0], &[], 64).unwrap();
            since += u32::from(word(&keys, 4) == 8);
        }
        let ping = ping(&mut a);
        if is_ended {
            let header = management(&mut a, 1, tag(&preempt), true);
            send(&mut a.stream, header, &[]).unwrap();
            let (answer, _) = receive(&mut a.stream).unwrap();
            assert_eq!((answer[0], answer[2]), (0x22, 0), "nobody waits for it, so it waits for nobody");
            drop(gate);
        } else {
            drop(gate);
            let (answer, _) = receive(&mut a.stream).unwrap();
            assert_eq!((answer[0], &answer[16..20], answer[3]), (0x21, &tag(&preempt)[..], 0));
            assert_eq!(word(&answer, 24), word(&ping, 24) + 1, "the next answer");
            let now = served.disk.bytes.lock().unwrap()[..512].to_vec();
            assert_eq!(now, [8; 512], "the write is over");
        }
    }
}

#[test]
fn m0_1_what_is_behind_an_ordered_command_takes_no_room_from_it() {
    let served = Served::with(limits());
    let mut initiator = served.log_in(1);
    let gate = served.disk.gate.lock().unwrap();
    begin(&mut initiator, &read_10(0, 1), 0xc1, 512, &[]);
    served.disk.wait_for(1);
    // Ordered; and simple writes behind it that could take all memory before it begins.
    begin(&mut initiator, &read_10(0, 2048), 0xc2, 1 << 20, &[]);
    for _ in 0..4 {
        begin(&mut initiator, &write_10(0, HALF), 0xa1, SIZE / 2, &[]);
    }
    ping(&mut initiator);
    drop(gate);
    let mut answered = 0;
    while answered < 6 {
        let (answer, _) = receive(&mut initiator.stream).unwrap();
        match answer[0] {
            0x31 => send_asked_for(&mut initiator, &answer, 7),
            0x25 => answered += u32::from(answer[1] & 1),
            other => {
                assert_eq!((other, answer[3]), (0x21, 0));
                answered += 1;
            }
        }
    }
}

#[test]
fn m0_1_an_ordered_command_keeps_only_its_own_unit_waiting() {
    let served = Served::with(limits());
    let mut initiator = served.log_in(1);
    let ordered = begin(&mut initiator, &write_10(0, 1), 0xa2, 512, &[]);
    assert_eq!(receive(&mut initiator.stream).unwrap().0[0], 0x31);
    let mut other = initiator.header(&[0; 6], 0x81, 0);
    other[9] = 5;
    initiator.command_number += 1;
    send(&mut initiator.stream, other, &[]).unwrap();
    let (answer, _) = receive(&mut initiator.stream).unwrap();
    assert_eq!((answer[0], &answer[16..20], answer[3]), (0x21, &other[16..20], 2), "there is no such unit");
    // What waited behind it on its own unit goes on when it is aborted.
    let behind = begin(&mut initiator, &read_10(0, 1), 0xc1, 512, &[]);
    let header = management(&mut initiator, 1, tag(&ordered), true);
    send(&mut initiator.stream, header, &[]).unwrap();
    assert_eq!(receive(&mut initiator.stream).unwrap().0[0], 0x22);
    let (answer, _) = receive(&mut initiator.stream).unwrap();
    assert_eq!((answer[0], &answer[16..20]), (0x25, &behind[16..20]));
}

#[test]
fn m0_1_task_management_that_waits_is_bounded() {
    let served = Served::with(limits());
    let mut initiator = served.log_in(1);
    let gate = served.disk.gate.lock().unwrap();
    let read = begin(&mut initiator, &read_10(0, 1), 0xc1, 512, &[]);
    served.disk.wait_for(1);
    for is_immediate in [false, true] {
        for _ in 0..100 {
            let header = management(&mut initiator, 1, tag(&read), is_immediate);
            initiator.command_number += u32::from(!is_immediate);
            send(&mut initiator.stream, header, &[]).unwrap();
        }
    }
    let mut rejected = 0;
    for _ in 0..84 {
        let (answer, _) = receive(&mut initiator.stream).unwrap();
        assert_eq!((answer[0], answer[2], window(&answer)), (0x3f, 0x06, 0));
        rejected += 1;
    }
    assert_eq!(rejected, 100 - 16);
    assert_eq!(window(&ping(&mut initiator)), 0);
    drop(gate);
    for _ in 0..63 + 16 {
        let (answer, _) = receive(&mut initiator.stream).unwrap();
        assert_eq!((answer[0], answer[2]), (0x22, 0));
    }
    assert_eq!(window(&ping(&mut initiator)), 64);
}

#[test]
fn m0_1_a_command_that_has_not_begun_is_ended_without_waiting_for_those_who_work() {
    let served = Served::with(limits());
    let mut others: Vec<Initiator> = (10..14).map(|number| served.log_in(number)).collect();
    let mut initiator = served.log_in(1);
    let gate = served.disk.gate.lock().unwrap();
    for other in &mut others {
        for block in 0..16 {
            begin(other, &read_10(block, 1), 0xc1, 512, &[]);
        }
    }
    served.disk.wait_for(64);
    let read = begin(&mut initiator, &read_10(0, 1), 0xc1, 512, &[]);
    let header = management(&mut initiator, 1, tag(&read), true);
    send(&mut initiator.stream, header, &[]).unwrap();
    let (answer, _) = receive(&mut initiator.stream).unwrap();
    assert_eq!((answer[0], answer[2]), (0x22, 0));
    // Nor does a session that ends: the same initiator port is there again at once.
    begin(&mut initiator, &read_10(0, 1), 0xc1, 512, &[]);
    let mut again = connect(&served.portal).unwrap();
    let (login, text) = login_request(1, &[("InitiatorName", "iqn.2026-01.com.example:test"), ("TargetName", NAME)]);
    send(&mut again, login, &text).unwrap();
    let (answer, _) = receive(&mut again).unwrap();
    assert_eq!((answer[0], answer[36], answer[37]), (0x23, 0, 0));
    drop(gate);
}

#[test]
fn m0_1_a_reset_ends_with_the_session_that_asked_for_it() {
    let served = Served::with(limits());
    let (mut a, mut b, mut other) = (served.log_in(1), served.log_in(2), served.log_in(3));
    let gate = served.disk.gate.lock().unwrap();
    begin(&mut b, &read_10(0, 1), 0xc1, 512, &[]);
    served.disk.wait_for(1);
    let header = management(&mut a, 5, [0xff; 4], true);
    send(&mut a.stream, header, &[]).unwrap();
    ping(&mut a);
    // It logs in again, which waits for the end of the session before.
    let mut a = served.log_in(1);
    a.command(&[0x16, 0, 0, 0, 0, 0], &[], 0).unwrap();
    drop(gate);
    for _ in 0..20 {
        other.inquiry(0x80).unwrap();
    }
    let heard = other.read(0, 512);
    assert!(matches!(heard, Err(RequestError::Refused(0x0006_2903))), "its commands may have been ended: {heard:?}");
    assert!(matches!(other.read(0, 512), Err(RequestError::Refused(0x1800_0000))), "the reservation is there");
}

#[test]
fn m0_1_lost_data_are_answered_when_no_more_are_on_their_way() {
    let served = Served::with(limits());
    let mut initiator = served.log_in(1);
    begin(&mut initiator, &write_10(0, 256), 0xa1, 128 << 10, &[]);
    let (request, _) = receive(&mut initiator.stream).unwrap();
    let mut data = [0; HEADER_BYTES];
    data[0] = 0x05;
    data[8..24].copy_from_slice(&request[8..24]);
    data[39] = 5;
    send(&mut initiator.stream, data, &[8; 512]).unwrap();
    ping(&mut initiator);
    data[1] = 0x80;
    send(&mut initiator.stream, data, &[8; 512]).unwrap();
    let (answer, sense) = receive(&mut initiator.stream).unwrap();
    assert_eq!((answer[0], answer[3], sense[4] & 15), (0x21, 2, 0x0b), "the command is aborted");
    assert_eq!(initiator.read(0, 512).unwrap(), [7; 512]);
}

#[test]
fn m0_1_no_command_has_data_in_both_directions() {
    let served = Served::with(limits());
    let mut initiator = served.log_in(1);
    begin(&mut initiator, &read_10(0, 1), 0xe1, 512, &[]);
    let (answer, sense) = receive(&mut initiator.stream).unwrap();
    assert_eq!((answer[0], answer[3], sense[4] & 15, sense[14], sense[15]), (0x21, 2, 5, 0x0e, 3));
    initiator.read(0, 512).unwrap();
}

#[test]
fn m0_1_reads_of_those_who_send_one_command_at_a_time_are_as_others_and_keep_nobody_waiting() {
    let served = Served::with(limits());
    // More of them than the server has threads for its sessions.
    let mut alone: Vec<Initiator> = (1..=4).map(|number| served.log_in(number)).collect();
    for (at, initiator) in alone.iter_mut().enumerate() {
        for step in 0..20 {
            let (offset, byte) = ((at * 20 + step) * 4096, step as u8);
            assert_eq!(initiator.read(offset as u64, 4096).unwrap(), [7; 4096]);
            initiator.write(offset as u64, &[byte; 4096]).unwrap();
            assert_eq!(initiator.read(offset as u64, 4096).unwrap(), [byte; 4096]);
        }
        assert!(matches!(initiator.read(SIZE as u64, 512), Err(RequestError::Refused(0x05_2100))));
    }
    let arrived = served.disk.arrived.load(Ordering::Relaxed);
    let gate = served.disk.gate.lock().unwrap();
    for initiator in &mut alone {
        begin(initiator, &read_10(0, 1), 0xc1, 512, &[]);
    }
    served.disk.wait_for(arrived + alone.len());
    let mut other = served.log_in(9);
    for _ in 0..20 {
        other.command(&[0; 6], &[], 0).unwrap();
    }
    drop(gate);
    for initiator in &mut alone {
        let (answer, data) = receive(&mut initiator.stream).unwrap();
        assert_eq!((answer[0], answer[1] & 1, &data[..]), (0x25, 1, &[0; 512][..]));
    }
}

#[test]
fn m0_1_reads_of_those_who_begin_to_send_several_commands_at_a_time_are_executed_at_a_time() {
    let served = Served::with(limits());
    let mut initiator = served.log_in(1);
    for _ in 0..20 {
        initiator.read(0, 4096).unwrap();
    }
    let two = |initiator: &mut Initiator| {
        begin(initiator, &read_10(0, 1), 0xc1, 512, &[]);
        begin(initiator, &read_10(8, 1), 0xc1, 512, &[]);
    };
    let answered = |initiator: &mut Initiator| {
        for _ in 0..2 {
            let (answer, data) = receive(&mut initiator.stream).unwrap();
            assert_eq!((answer[0], answer[1] & 1, &data[..]), (0x25, 1, &[7; 512][..]));
        }
    };
    // The server cannot know of the first ones. It sees soon that one does not wait for the other, but not while the
    // thread that sends them has to wait for a processor between the two.
    let are_together = |initiator: &mut Initiator| {
        for _ in 0..50 {
            two(initiator);
            answered(initiator);
        }
        let arrived = served.disk.arrived.load(Ordering::Relaxed);
        let gate = served.disk.gate.lock().unwrap();
        two(initiator);
        let have_come = served.disk.come_within(Duration::from_secs(1), arrived + 2);
        drop(gate);
        answered(initiator);
        have_come
    };
    assert!((0..30).any(|_| are_together(&mut initiator)));
}
