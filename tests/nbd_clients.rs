//! Clients of the field on volumes of a real store: what they wrote is there, also after a restart, and is stored once.

use onefold_tests::{Daemon, Run, Scene, client, disk_bytes, installed, noise};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const MIB: u64 = 1 << 20;

/// Makes an image of 64 MiB with noise, text, zeros that are written, and holes.
fn make_image(path: &Path) {
    let file = File::create_new(path).unwrap();
    file.set_len(64 * MIB).unwrap();
    file.write_all_at(&noise(1, 9 * MIB as usize + 1234), 0).unwrap();
    file.write_all_at(&b"the same line again and again\n".repeat(100_000), 20 * MIB + 511).unwrap();
    file.write_all_at(&vec![0; 2 * MIB as usize], 30 * MIB).unwrap();
    file.write_all_at(&noise(2, 3 * MIB as usize), 61 * MIB).unwrap();
}

fn same_bytes(left: &Path, right: &Path) -> bool {
    std::fs::read(left).unwrap() == std::fs::read(right).unwrap()
}

#[track_caller]
fn qemu_io(uri: &str, commands: &[&str]) -> Run {
    let arguments = ["-f", "raw", "--discard=unmap"].into_iter().chain(commands.iter().flat_map(|command| ["-c", command])).chain([uri]);
    let run = client("qemu-io", arguments).succeeds();
    // Not every version of qemu-io ends with an error when a pattern differs.
    assert!(!run.text().contains("failed"), "{}", run.text());
    run
}

#[test]
fn m0_1_nbdinfo_sees_a_thin_volume_with_every_ability() {
    if !installed(&["nbdinfo"]) {
        return;
    }
    let scene = Scene::new(&[], "");
    scene.volume("thin", "1TiB");
    scene.volume("other disk", "10000000");
    let daemon = scene.serve();
    let uri = daemon.uri("thin");
    assert_eq!(client("nbdinfo", ["--size", &uri]).succeeds().text().trim(), (1u64 << 40).to_string());
    assert_eq!(client("nbdinfo", ["--size", &daemon.uri("other%20disk")]).succeeds().text().trim(), "10000000");
    for ability in ["connect", "cache", "df", "fast-zero", "flush", "fua", "multi-conn", "trim", "write", "zero"] {
        client("nbdinfo", ["--can", ability, &uri]).succeeds();
    }
    assert_ne!(client("nbdinfo", ["--is", "read-only", &uri]).code, 0);
    assert_ne!(client("nbdinfo", ["--size", &daemon.uri("absent")]).code, 0);
    let list = client("nbdinfo", ["--list", &daemon.uri("")]).succeeds().text();
    assert!(list.contains("\"thin\"") && list.contains("\"other disk\""), "{list}");
    let map = client("nbdinfo", ["--map", &uri]).succeeds().text();
    assert_eq!(map.split_whitespace().take(3).collect::<Vec<_>>(), ["0", "1099511627776", "3"], "one hole: {map}");
    daemon.stop();
    assert!(disk_bytes(scene.store()) < 64 * MIB, "nothing was written: {}", disk_bytes(scene.store()));
}

#[test]
fn nbdcopy_in_and_out_and_the_same_image_again_takes_nothing() {
    if !installed(&["nbdcopy"]) {
        return;
    }
    let scene = Scene::new(&[], "");
    let image = scene.path("image");
    make_image(&image);
    scene.volume("one", "64MiB");
    scene.volume("two", "64MiB");
    let daemon = scene.serve();
    client("nbdcopy", ["--flush", &scene.text("image"), &daemon.uri("one")]).succeeds();
    client("nbdcopy", [&daemon.uri("one"), &scene.text("out")]).succeeds();
    assert!(same_bytes(&image, &scene.path("out")));
    daemon.stop();
    let (unique, stored) = (scene.statistic("unique_bytes"), scene.statistic("stored_bytes"));
    assert!((12 * MIB..16 * MIB).contains(&unique), "{unique}");

    let daemon = scene.serve();
    // Other request sizes and several connections: what is cut into chunks must not depend on them.
    client("nbdcopy", ["--flush", "--request-size=65536", "--connections=4", &scene.text("image"), &daemon.uri("two")]).succeeds();
    daemon.stop();
    assert_eq!((scene.statistic("unique_bytes"), scene.statistic("stored_bytes")), (unique, stored));
    let ratio = scene.run(["stats", "--json"]).succeeds().json()["dedup_ratio"].as_f64().unwrap();
    assert!(ratio > 1.9, "{ratio}");

    let daemon = scene.serve();
    client("nbdcopy", [&daemon.uri("two"), &scene.text("second")]).succeeds();
    assert!(same_bytes(&image, &scene.path("second")));
    daemon.stop();
    scene.check();
}

#[test]
fn qemu_img_converts_and_compares_both_ways() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new(&[], "");
    let (raw, qcow2) = (scene.text("image"), scene.text("image.qcow2"));
    make_image(raw.as_ref());
    client("qemu-img", ["convert", "-f", "raw", "-O", "qcow2", &raw, &qcow2]).succeeds();
    scene.volume("raw", "64MiB");
    scene.volume("cow", "64MiB");
    let daemon = scene.serve();
    client("qemu-img", ["convert", "-n", "-f", "raw", "-O", "raw", &raw, &daemon.uri("raw")]).succeeds();
    client("qemu-img", ["convert", "-n", "-W", "-m", "8", "-f", "qcow2", "-O", "raw", &qcow2, &daemon.uri("cow")]).succeeds();
    daemon.stop();
    let daemon = scene.serve();
    client("qemu-img", ["compare", "-f", "raw", "-F", "raw", &raw, &daemon.uri("raw")]).succeeds();
    client("qemu-img", ["compare", "-f", "qcow2", "-F", "raw", &qcow2, &daemon.uri("cow")]).succeeds();
    let back = scene.text("back.qcow2");
    client("qemu-img", ["convert", "-f", "raw", "-O", "qcow2", &daemon.uri("cow"), &back]).succeeds();
    client("qemu-img", ["compare", "-f", "qcow2", "-F", "raw", &back, &raw]).succeeds();
    let map = client("qemu-img", ["map", "--output=json", "-f", "raw", &daemon.uri("raw")]).succeeds().json();
    let data: u64 =
        map.as_array().unwrap().iter().filter(|extent| extent["data"] == true).map(|extent| extent["length"].as_u64().unwrap()).sum();
    assert!((14 * MIB..17 * MIB).contains(&data), "written zeros are holes: {map}");
    daemon.stop();
    let unique = scene.statistic("unique_bytes");
    assert!(unique < 16 * MIB, "two volumes of the same image are stored once: {unique}");
    scene.check();
}

#[test]
fn qemu_io_patterns_zeros_and_discards_survive_a_restart() {
    if !installed(&["qemu-io"]) {
        return;
    }
    let scene = Scene::new(&[], "");
    scene.volume("disk", "1TiB");
    let daemon = scene.serve();
    let writes = [
        "write -P 0xa5 0 1M",
        "write -P 0x3c 777216 65536",
        "write -z 128k 64k",
        "write -z -u 256k 64k",
        "write -f -P 7 5M 2M",
        "aio_write -P 9 8M 64k",
        "aio_write -P 8 9M 64k",
        "aio_flush",
        "discard 5M 1M",
        "write -P 1 511 3",
        "write -P 0xee 1099511623680 4096",
        "write -P 0xdd 549755813377 70001",
    ];
    let reads = [
        "read -P 0xa5 0 511",
        "read -P 1 511 3",
        "read -P 0xa5 514 130558",
        "read -P 0 128k 64k",
        "read -P 0xa5 192k 64k",
        "read -P 0 256k 64k",
        "read -P 0x3c 777216 65536",
        "read -P 0xa5 842752 205824",
        "read -P 0 1M 4M",
        "read -P 0 5M 1M",
        "read -P 7 6M 1M",
        "read -P 9 8M 64k",
        "read -P 8 9M 64k",
        "read -P 0xee 1099511623680 4096",
        "read -P 0xdd 549755813377 70001",
    ];
    qemu_io(&daemon.uri("disk"), &[&writes[..], &reads].concat());
    daemon.stop();
    let daemon = scene.serve();
    qemu_io(&daemon.uri("disk"), &reads);
    // All of it given back: no block is mapped any more.
    qemu_io(&daemon.uri("disk"), &["discard 0 16M", "write -z -u 1099511623680 4096", "discard 549755813376 1M", "flush"]);
    if installed(&["nbdinfo"]) {
        let map = client("nbdinfo", ["--map", &daemon.uri("disk")]).succeeds().text();
        assert_eq!(map.lines().count(), 1, "{map}");
    }
    daemon.stop();
    assert_eq!(scene.statistic("volume_bytes"), 0);
    scene.check();
}

/// The part of a command line of fio that all runs here share. The same seed writes the same, so that a later run can
/// verify it.
fn fio(daemon: &Daemon, scene: &Scene, options: &[&str]) -> Run {
    let fixed = ["--name=load", "--ioengine=nbd", "--iodepth=16", "--size=48m", "--verify=crc32c", "--verify_fatal=1", "--randseed=7"];
    let places = [format!("--uri={}", daemon.uri("disk")), format!("--aux-path={}", scene.text("")), "--verify_state_save=0".to_owned()];
    client("fio", fixed.into_iter().chain(options.iter().copied()).chain(places.iter().map(String::as_str)))
}

#[test]
fn fio_verifies_random_io_and_again_after_a_restart() {
    if !installed(&["fio"]) {
        return;
    }
    if !client("fio", ["--enghelp"]).text().lines().any(|line| line.trim() == "nbd") {
        println!("skipped: fio was built without its nbd engine");
        return;
    }
    let scene = Scene::new(&[], "");
    scene.volume("disk", "64MiB");
    let daemon = scene.serve();
    let text = fio(&daemon, &scene, &["--rw=randrw", "--bsrange=4k-64k", "--verify_backlog=256", "--fsync=64"]).succeeds().text();
    assert!(text.contains("err= 0"), "{text}");
    fio(&daemon, &scene, &["--rw=randwrite", "--bs=4k", "--do_verify=0", "--end_fsync=1"]).succeeds();
    daemon.stop();
    let daemon = scene.serve();
    let text = fio(&daemon, &scene, &["--rw=randwrite", "--bs=4k", "--verify_only=1"]).succeeds().text();
    assert!(text.contains("err= 0"), "{text}");
    assert_eq!(daemon.stop()["errors"], 0);
    scene.check();
}

#[test]
fn m0_21_snapshots_of_a_volume_under_writing_are_moments_and_stay_as_they_are() {
    if !installed(&["nbdcopy", "qemu-img"]) {
        return;
    }
    const SLOTS: u64 = 4096;
    let slot = |number: u64| (number * 2731 % SLOTS) * 16 * 1024;
    let scene = Scene::new(&[], "");
    let image = scene.path("image");
    make_image(&image);
    scene.volume("disk", "64MiB");
    let daemon = scene.serve();
    client("nbdcopy", ["--flush", &scene.text("image"), &daemon.uri("disk")]).succeeds();
    scene.run(["volume", "snapshot", "disk", "first"]).succeeds();

    let (acknowledged, stopping) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // One write after the other, each at another place: a moment has all up to some number and none behind it.
            let mut writer = daemon.connect("disk");
            for number in 1..SLOTS {
                if stopping.load(Ordering::Relaxed) {
                    break;
                }
                writer.write(slot(number), &number.to_be_bytes().repeat(512)).unwrap();
                acknowledged.store(number, Ordering::SeqCst);
            }
        });
        for round in 0..6 {
            while acknowledged.load(Ordering::SeqCst) < round * 300 {
                std::thread::yield_now();
            }
            let before = acknowledged.load(Ordering::SeqCst);
            let (name, copy) = (format!("s{round}"), scene.path(&format!("copy{round}")));
            scene.run(["volume", "snapshot", "disk", &name]).succeeds();
            client("nbdcopy", [&daemon.uri(&name), &scene.text(&format!("copy{round}"))]).succeeds();
            let bytes = std::fs::read(&copy).unwrap();
            let has = |number: &u64| bytes[slot(*number) as usize..][..4096] == number.to_be_bytes().repeat(512);
            let last = (1..SLOTS).take_while(has).count() as u64;
            assert!(last >= before, "{name} ends with write {last}, {before} were acknowledged before it was asked for");
            assert_eq!((last + 1..SLOTS).find(has), None, "{name} has no write {}, but a later one", last + 1);
            if round % 2 == 1 {
                scene.run(["volume", "delete", &format!("s{}", round - 1), "--yes"]).succeeds();
            }
            let same = client("qemu-img", ["compare", "-f", "raw", "-F", "raw", &scene.text(&format!("copy{round}")), &daemon.uri(&name)]);
            assert!(same.succeeds().text().contains("identical"));
        }
        stopping.store(true, Ordering::Relaxed);
    });
    let same = client("qemu-img", ["compare", "-f", "raw", "-F", "raw", &scene.text("image"), &daemon.uri("first")]);
    assert!(same.succeeds().text().contains("identical"));
    daemon.stop();
    scene.check();
}
