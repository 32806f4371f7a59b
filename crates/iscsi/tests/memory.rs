//! The memory of all sessions has one bound. Within it, a session that makes no progress keeps no other waiting.

mod served;

use onefold_iscsi::Limits;
use onefold_tests::iscsi::receive;
use served::{HALF, SIZE, Served, begin, is_closed, limits, read_10, send_asked_for, take_all_memory, write_10};
use std::time::Duration;

#[test]
fn m0_1_who_holds_the_memory_of_all_sessions_does_not_keep_short_commands_waiting() {
    let served = Served::with(Limits { bytes: 32 << 20, queue_depth: 128, ..limits() });
    let (mut greedy, mut other) = (served.log_in(1), served.log_in(2));
    take_all_memory(&mut greedy);
    other.write(0, &[7; 128 << 10]).unwrap();
    assert_eq!(other.read(0, 64 << 10).unwrap(), [7; 64 << 10]);
    // Commands bring data for which there is no room: so many wait, the others are turned away.
    for number in 0..100 {
        begin(&mut other, &write_10(number * 256, 256), 0xa1, 128 << 10, &[7; 64 << 10]);
    }
    // Two have the reserve, and 64 bring four megabytes.
    let answers: Vec<_> = (0..100 - 64).map(|_| receive(&mut other.stream).unwrap().0).collect();
    let (requests, full): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer[0] == 0x31);
    assert!(requests.len() == 2 && full.iter().all(|answer| (answer[0], answer[3]) == (0x21, 0x28)), "TASK SET FULL");
    requests.iter().for_each(|request| send_asked_for(&mut other, request, 7));
    drop(greedy);
    let mut done = 0;
    while done < 2 + 64 {
        let (answer, _) = receive(&mut other.stream).unwrap();
        if answer[0] == 0x31 {
            send_asked_for(&mut other, &answer, 7);
        } else {
            assert_eq!((answer[0], answer[3]), (0x21, 0));
            done += 1;
        }
    }
    served.works();
}

#[test]
fn m0_1_who_holds_memory_and_does_not_go_on_is_gone_when_others_wait_for_it() {
    let impatient = || Served::with(Limits { bytes: 32 << 20, patience: Duration::from_secs(3), ..limits() });
    let write_long = |served: &Served| {
        let mut other = served.log_in(2);
        other.write(0, &vec![7; 1 << 20]).unwrap();
    };
    // One does not send what it was asked for.
    let served = impatient();
    let mut greedy = served.log_in(1);
    take_all_memory(&mut greedy);
    write_long(&served);
    is_closed(&mut greedy.stream);
    served.works();
    // Another one does not take what it has asked for.
    let served = impatient();
    let mut greedy = served.log_in(1);
    for _ in 0..4 {
        begin(&mut greedy, &read_10(0, HALF), 0xc1, SIZE / 2, &[]);
    }
    served.disk.wait_for(4);
    write_long(&served);
    drop(greedy);
    served.works();
}
