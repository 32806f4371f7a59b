//! iSCSI end to end with real clients: libiscsi's tools and QEMU.

use onefold_tests::{Daemon, Initiator, RequestError, Scene, client, installed, noise};
use std::fs;

const ISCSI: [&str; 4] = ["--nbd", "none", "--iscsi", "127.0.0.1:0"];

/// Write protected: sense key DATA PROTECT.
const WRITE_PROTECTED: u32 = 0x07_2700;

fn has_qemu() -> bool {
    if !installed(&["qemu-img", "qemu-io"]) {
        return false;
    }
    let has_driver = !client("qemu-img", ["info", "iscsi://127.0.0.1:1/iqn.x/0"]).text().contains("Unknown protocol");
    if !has_driver {
        println!("skipped: qemu-img has no driver for iSCSI (package qemu-block-extra)");
    }
    has_driver
}

#[test]
fn m0_1_an_image_goes_in_and_comes_out_over_iscsi() {
    if !has_qemu() {
        return;
    }
    let scene = Scene::new(&[], "");
    scene.volume("disk", "64MiB");
    let mut image = noise(1, 64 << 20);
    image[20 << 20..40 << 20].fill(0);
    fs::write(scene.path("image"), &image).unwrap();
    let daemon = scene.serve_with(&ISCSI);
    let (url, image) = (daemon.iscsi_url("disk"), scene.text("image"));
    client("qemu-img", ["convert", "-n", "-f", "raw", "-O", "raw", &image, &url]).succeeds();
    client("qemu-img", ["compare", "-f", "raw", "-F", "raw", &image, &url]).succeeds();
    let map = client("qemu-img", ["map", "--output", "json", "-f", "raw", &url]).succeeds().json();
    let holes = map.as_array().unwrap().iter().filter(|extent| extent["zero"] == true);
    assert!(holes.map(|extent| extent["length"].as_u64().unwrap()).sum::<u64>() >= 19 << 20, "{map}");
    let io = ["write -P 0x5a 3145728 1048576", "discard 0 2097152", "write -z 5242880 4096", "flush"];
    let io: Vec<&str> = io.iter().flat_map(|command| ["-c", command]).chain(["-f", "raw", &url]).collect();
    client("qemu-io", io).succeeds();
    daemon.stop();
    let daemon = scene.serve_with(&ISCSI);
    let url = daemon.iscsi_url("disk");
    let io = ["read -P 0x5a 3145728 1048576", "read -P 0 0 2097152", "read -P 0 5242880 4096"];
    let io: Vec<&str> = io.iter().flat_map(|command| ["-c", command]).chain(["-f", "raw", &url]).collect();
    let read = client("qemu-io", io).succeeds().text();
    assert!(!read.contains("failed"), "{read}");
    daemon.stop();
    scene.check();
}

#[test]
fn the_tools_of_libiscsi_find_all_volumes() {
    if !installed(&["iscsi-ls", "iscsi-inq", "iscsi-readcapacity16"]) {
        return;
    }
    let scene = Scene::new(&[], "");
    scene.volume("disk", "1GiB");
    scene.volume("other", "2GiB");
    let daemon = scene.serve_with(&ISCSI);
    let found = client("iscsi-ls", ["-s", &format!("iscsi://{}/", daemon.portal())]).succeeds().text();
    let (target, _) = daemon.unit("disk");
    assert!(found.contains(&format!("Target:{target} Portal:{},1", daemon.portal())) && found.contains("Lun:1 "), "{found}");
    let capacity = client("iscsi-readcapacity16", [&daemon.iscsi_url("other")]).succeeds().text();
    assert!(capacity.contains("Total size:2147483648") && capacity.contains("LBPME:1 LBPRZ:1"), "{capacity}");
    let page = client("iscsi-inq", ["-e", "1", "-c", "178", &daemon.iscsi_url("disk")]).succeeds().text();
    assert!(page.contains("lbpu:1") || page.contains("LBPU:1"), "{page}");
    daemon.stop();
}

/// Device identification but for what is said of the port and the target: the NAA designator.
fn naa(initiator: &mut Initiator) -> Vec<u8> {
    initiator.inquiry(0x83).unwrap()[4..16].to_vec()
}

#[test]
fn a_volume_is_the_same_device_after_restarts_and_whatever_happens_to_others() {
    let scene = Scene::new(&[], "");
    scene.volume("first", "1MiB");
    scene.volume("disk", "64MiB");
    let daemon = scene.serve_with(&ISCSI);
    let (lun, mut initiator) = (daemon.unit("disk").1, daemon.initiator("disk", 1));
    let (own, serial) = (naa(&mut initiator), initiator.inquiry(0x80).unwrap());
    assert_ne!(naa(&mut daemon.initiator("first", 2)), own);
    initiator.log_out().unwrap();
    daemon.stop();
    scene.run(["volume", "delete", "first", "--yes"]).succeeds();
    scene.volume("a-new-one", "1MiB");
    let daemon = scene.serve_with(&ISCSI);
    assert_eq!(daemon.unit("disk").1, lun, "its LUN is its own as long as it exists");
    let mut initiator = daemon.initiator("disk", 1);
    assert_eq!((naa(&mut initiator), initiator.inquiry(0x80).unwrap()), (own, serial));
    drop(initiator);
    daemon.stop();
}

#[test]
fn volumes_come_and_go_while_initiators_are_logged_in() {
    let scene = Scene::new(&[], "");
    scene.volume("disk", "4MiB");
    let daemon = scene.serve_with(&ISCSI);
    let mut initiator = daemon.initiator("disk", 1);
    initiator.write(0, &noise(7, 4096)).unwrap();
    scene.run(["volume", "snapshot", "disk", "monday"]).succeeds();
    // Reported LUNs data has changed.
    assert!(matches!(initiator.read(0, 512), Err(RequestError::Refused(0x06_3f0e))));
    initiator.write(0, &noise(8, 4096)).unwrap();
    let luns = initiator.command(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[], 256).unwrap();
    assert_eq!(luns[..4], 16u32.to_be_bytes());
    let mut snapshot = Initiator::log_in(daemon.portal(), daemon.unit("disk").0, "iqn.2026-01.com.example:other", 1, 1).unwrap();
    assert!(snapshot.read(0, 4096).unwrap() == noise(7, 4096));
    assert!(matches!(snapshot.write(0, &[0; 512]), Err(RequestError::Refused(WRITE_PROTECTED))));
    let busy = scene.run(["volume", "delete", "monday", "--yes"]).ends_with(1).text();
    assert!(busy.contains("in use: 2 sessions have") && busy.contains("log the initiators out"), "{busy}");
    scene.run(["volume", "resize", "disk", "--size", "8MiB"]).succeeds();
    // Capacity data has changed.
    assert!(matches!(initiator.read(0, 512), Err(RequestError::Refused(0x06_2a09))));
    initiator.write((8 << 20) - 512, &[1; 512]).unwrap();
    snapshot.log_out().unwrap();
    initiator.log_out().unwrap();
    wait_until_unused(&scene, "monday");
    daemon.stop();
    scene.check();
}

/// The daemon hears of the end of connections by itself; deletes the volume when it has.
fn wait_until_unused(scene: &Scene, volume: &str) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while scene.run(["volume", "delete", volume, "--yes"]).code != 0 {
        assert!(std::time::Instant::now() < until, "the volume stays in use");
    }
}

#[test]
fn a_stop_asks_initiators_to_log_out_and_makes_durable_what_they_wrote() {
    let scene = Scene::new(&[], "");
    scene.volume("disk", "4MiB");
    let daemon = scene.serve_with(&ISCSI);
    let mut initiator = daemon.initiator("disk", 1);
    // Longer than what may come without being asked for.
    let data = noise(3, 1 << 20);
    initiator.write(1 << 20, &data).unwrap();
    let stopping = std::thread::spawn(move || daemon.stop());
    let (asked, _) = onefold_tests::iscsi::receive(&mut initiator.stream).unwrap();
    assert_eq!((asked[0], asked[36]), (0x32, 1), "an asynchronous message: log out");
    initiator.log_out().unwrap();
    assert_eq!(stopping.join().unwrap()["iscsi_sessions"], 1);
    let daemon = scene.serve_with(&ISCSI);
    assert!(daemon.initiator("disk", 1).read(1 << 20, data.len()).unwrap() == data);
    // One that does not listen keeps it from nothing.
    let silent = daemon.initiator("disk", 2);
    daemon.stop();
    drop(silent);
    scene.check();
}

#[test]
fn a_store_that_is_only_read_is_served_write_protected() {
    let scene = Scene::new(&[], "");
    scene.volume("disk", "4MiB");
    let daemon = scene.serve_with(&[&ISCSI[..], &["--read-only"]].concat());
    let mut initiator = daemon.initiator("disk", 1);
    assert_eq!(initiator.read(0, 4096).unwrap(), [0; 4096]);
    assert!(matches!(initiator.write(0, &[1; 512]), Err(RequestError::Refused(WRITE_PROTECTED))));
    initiator.log_out().unwrap();
    daemon.stop();
}

#[test]
fn portals_are_told_as_they_are_advertised() {
    let scene = Scene::new(&[], "");
    scene.volume("disk", "4MiB");
    let portals = ["--nbd", "none", "--iscsi", "127.0.0.1:0=san.example.com:3261", "--iscsi", "0.0.0.0:0"];
    let daemon = scene.serve_with(&portals);
    let wild = daemon.event["iscsi_portals"][1].as_str().unwrap().replace("0.0.0.0", "127.0.0.1");
    let told = discover(&daemon);
    assert_eq!(
        told,
        [format!("TargetName={}", daemon.unit("disk").0), "TargetAddress=san.example.com:3261,1".into(), format!("TargetAddress={wild},2")]
    );
    daemon.stop();
}

/// What SendTargets says at the first portal.
fn discover(daemon: &Daemon) -> Vec<String> {
    let mut stream = onefold_tests::iscsi::connect(daemon.portal()).unwrap();
    let keys = [("InitiatorName", "iqn.2026-01.com.example:test"), ("SessionType", "Discovery")];
    let (header, text) = onefold_tests::iscsi::login_request(9, &keys);
    onefold_tests::iscsi::send(&mut stream, header, &text).unwrap();
    let (answer, _) = onefold_tests::iscsi::receive(&mut stream).unwrap();
    assert_eq!(answer[36], 0);
    let mut request = [0; 48];
    (request[0], request[1]) = (0x44, 0x80);
    request[16..20].copy_from_slice(&7u32.to_be_bytes());
    request[20..24].fill(0xff);
    request[24..28].copy_from_slice(&1u32.to_be_bytes());
    onefold_tests::iscsi::send(&mut stream, request, b"SendTargets=All\0").unwrap();
    let (_, text) = onefold_tests::iscsi::receive(&mut stream).unwrap();
    String::from_utf8(text).unwrap().split_terminator('\0').map(str::to_owned).collect()
}
