//! Copies that initiators have the daemon make, and erasures: what becomes of the data and of the store. And what an
//! initiator can do to another.

use onefold_tests::iscsi::{HEADER_BYTES, receive, send};
use onefold_tests::{Initiator, RequestError, Scene, noise};

const ISCSI: [&str; 4] = ["--nbd", "none", "--iscsi", "127.0.0.1:0"];
const MIB: usize = 1 << 20;
/// Token unknown: sense key ILLEGAL REQUEST.
const TOKEN_UNKNOWN: u32 = 0x05_2304;

/// A target descriptor of EXTENDED COPY with the unit's NAA designator.
fn target(initiator: &mut Initiator) -> Vec<u8> {
    let naa = initiator.inquiry(0x83).unwrap()[8..16].to_vec();
    [&[0xe4, 0, 0, 0, 1, 3, 0, 8][..], &naa, &[0; 12], &512u32.to_be_bytes()].concat()
}

/// EXTENDED COPY of bytes between two units.
fn copy(initiator: &mut Initiator, targets: [Vec<u8>; 2], from: u64, to: u64, length: u32) -> Result<(), RequestError> {
    let segment = [
        &[10, 0, 0, 28, 0, 0, 0, 1][..],
        &length.to_be_bytes(),
        &(from / 512).to_be_bytes(),
        &(to / 512).to_be_bytes(),
        &((from % 512) as u16).to_be_bytes(),
        &((to % 512) as u16).to_be_bytes(),
    ]
    .concat();
    let list = [&[0, 0x18, 0, 64, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0][..], &targets.concat(), &segment].concat();
    initiator.command(&[0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0, 0], &list, 0).map(drop)
}

fn range(offset: usize, length: usize) -> Vec<u8> {
    [&[0, 16][..], &(offset as u64 / 512).to_be_bytes(), &(length as u32 / 512).to_be_bytes(), &[0; 4]].concat()
}

fn populate(initiator: &mut Initiator, offset: usize, length: usize) -> Vec<u8> {
    let list = [&[0, 30][..], &[0; 12], &range(offset, length)].concat();
    initiator.command(&[0x83, 0x10, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, list.len() as u8, 0, 0], &list, 0).unwrap();
    let answer = initiator.command(&[0x84, 0x07, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], &[], 1024).unwrap();
    answer[38..38 + 512].to_vec()
}

fn write_using(initiator: &mut Initiator, token: &[u8], offset: usize, length: usize) -> Result<(), RequestError> {
    let list = [&[0x02, 0x26][..], &[0; 14], token, &[0; 6], &range(offset, length)].concat();
    initiator.command(&[0x83, 0x11, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 2, 0x28, 0, 0], &list, 0).map(drop)
}

#[test]
fn copies_store_nothing_anew_wherever_blocks_begin_and_stay_when_the_source_is_erased() {
    let scene = Scene::new(&[], "");
    scene.volume("disk", "16MiB");
    scene.volume("other", "32MiB");
    let daemon = scene.serve_with(&ISCSI);
    let (mut disk, mut other) = (daemon.initiator("disk", 1), daemon.initiator("other", 2));
    let data = noise(3, 8 * MIB);
    disk.write(0, &data).unwrap();
    disk.flush().unwrap();
    let unique = scene.statistic("unique_bytes");
    let targets = [target(&mut disk), target(&mut other)];
    copy(&mut disk, targets, 0, 3 * 4096 + 17, 8 << 20).unwrap();
    let token = populate(&mut disk, MIB, 4 * MIB);
    // The data of a token is that of its moment.
    disk.write(0, &noise(4, 8 * MIB)).unwrap();
    write_using(&mut other, &token, 16 * MIB, 4 * MIB).unwrap();
    other.flush().unwrap();
    let found = other.read(0, 20 * MIB).unwrap();
    assert!(found[3 * 4096 + 17..][..8 * MIB] == data && found[16 * MIB..] == data[MIB..5 * MIB]);
    // What came are the ends, and what was written over the source.
    let after = scene.statistic("unique_bytes");
    assert!(after <= unique + 9 * MIB as u64, "{unique} bytes became {after}");
    // Erased, the source has nothing; a token of it is worth nothing; the copies are there.
    let token = populate(&mut disk, 0, MIB);
    disk.command(&[0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0).unwrap();
    assert!(disk.read(0, 16 * MIB).unwrap().iter().all(|byte| *byte == 0));
    assert!(matches!(write_using(&mut other, &token, 0, MIB), Err(RequestError::Refused(TOKEN_UNKNOWN))));
    daemon.stop();
    scene.check();
    scene.run(["prune", "--max-unused", "0%"]).succeeds();
    let daemon = scene.serve_with(&ISCSI);
    assert!(daemon.initiator("other", 1).read(0, 20 * MIB).unwrap() == found);
    daemon.stop();
    scene.check();
}

#[test]
fn m0_1_a_copy_reaches_what_the_initiator_could_log_in_to_with_what_it_has_proved() {
    let scene = Scene::new(&[], "");
    let names = ["iqn.2026-01.com.example:own", "iqn.2026-01.com.example:open", "iqn.2026-01.com.example:closed"];
    for (name, volume) in names.iter().zip(["own", "open", "closed"]) {
        scene.volume(volume, "1MiB");
        scene.run(["target", "create", name]).succeeds();
        scene.run(["target", "attach", name, volume]).succeeds();
    }
    let daemon = scene.serve_with(&ISCSI);
    let log_in = |name: &str, isid| Initiator::log_in(daemon.portal(), name, "iqn.2026-01.com.example:test", isid, 0).unwrap();
    let [mut own, mut open, mut closed] = [log_in(names[0], 1), log_in(names[1], 2), log_in(names[2], 3)];
    closed.write(0, &noise(5, 4096)).unwrap();
    let [to, from_open, from_closed] = [target(&mut own), target(&mut open), target(&mut closed)];
    copy(&mut own, [from_open.clone(), to.clone()], 0, 0, 4096).unwrap();
    let secret = scene.path("secret");
    std::fs::write(&secret, "secret of host").unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    scene.run(["target", "chap", names[2], "--user", "host", "--secret-file", &scene.text("secret")]).succeeds();
    // Somebody of that name is logged in there; that is no proof.
    closed.read(0, 512).unwrap();
    assert!(matches!(copy(&mut own, [from_closed, to.clone()], 0, 0, 4096), Err(RequestError::Refused(0x0a_0d02))));
    copy(&mut own, [from_open, to], 0, 0, 4096).unwrap();
    assert!(own.read(0, 4096).unwrap() == [0; 4096]);
    daemon.stop();
}

fn reserve_out(initiator: &mut Initiator, action: u8, key: u64, new_key: u64) {
    let list = [&key.to_be_bytes()[..], &new_key.to_be_bytes(), &[0; 8]].concat();
    initiator.command(&[0x5f, action, 3, 0, 0, 0, 0, 0, 24, 0], &list, 0).unwrap();
}

#[test]
fn m0_1_who_is_preempted_loses_the_commands_under_way() {
    let scene = Scene::new(&[], "");
    scene.volume("disk", "4MiB");
    let daemon = scene.serve_with(&ISCSI);
    let (mut one, mut other) = (daemon.initiator("disk", 1), daemon.initiator("disk", 2));
    reserve_out(&mut one, 0x00, 0, 1);
    reserve_out(&mut other, 0x00, 0, 2);
    reserve_out(&mut other, 0x01, 2, 0);
    assert!(matches!(one.read(0, 512), Err(RequestError::Refused(0x1800_0000))));
    // A write of which the data are asked for and do not come.
    let header = other.header(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 8, 0], 0xa1, 4096);
    other.command_number += 1;
    send(&mut other.stream, header, &[]).unwrap();
    let (request, _) = receive(&mut other.stream).unwrap();
    assert_eq!(request[0], 0x31);
    reserve_out(&mut one, 0x05, 1, 2);
    one.write(0, &noise(1, 4096)).unwrap();
    // They come now, and nobody wants them.
    let mut data = [0; HEADER_BYTES];
    (data[0], data[1]) = (0x05, 0x80);
    data[8..24].copy_from_slice(&request[8..24]);
    data[28..32].copy_from_slice(&other.expected_status.to_be_bytes());
    send(&mut other.stream, data, &noise(2, 4096)).unwrap();
    // Registrations preempted; commands cleared by another initiator.
    for sense in [0x06_2a05, 0x06_2f00] {
        assert!(matches!(other.command(&[0; 6], &[], 0), Err(RequestError::Refused(refused)) if refused == sense));
    }
    assert!(matches!(other.write(0, &noise(2, 4096)), Err(RequestError::Refused(0x1800_0000))));
    assert!(one.read(0, 4096).unwrap() == noise(1, 4096));
    daemon.stop();
}
