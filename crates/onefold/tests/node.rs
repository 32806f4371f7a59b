//! `onefold node` with real processes: nodes of one store die, hang, leave and lose ZooKeeper, while clients go on.

mod support;
mod nodes {
    pub mod scene;
    pub mod zookeeper;
}

use nodes::scene::{Cluster, INTERRUPTION, MIB, PATIENCE, SESSION_S, VOLUME, free_port, until};
use onefold_tests::{Client, RequestError};
use std::time::{Duration, Instant};
use support::{noise, tree};

const VOLUME_BYTES: usize = 4 * MIB;

/// A cluster of three with an empty volume, and the volume's bytes.
fn three_nodes() -> Option<(Cluster, Vec<u8>)> {
    let cluster = Cluster::with_nodes(3)?;
    let home = cluster.home();
    cluster.run_at(home, &["volume", "create", VOLUME, "--size", &VOLUME_BYTES.to_string()]).succeeds();
    Some((cluster, vec![0; VOLUME_BYTES]))
}

/// Writes through a node, and notes what was acknowledged.
fn write(cluster: &Cluster, at: usize, volume: &mut [u8], offset: usize, bytes: &[u8]) {
    cluster.write(at, offset as u64, bytes);
    volume[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// Waits for a home other than some machines.
fn next_home(cluster: &Cluster, without: &[usize]) -> usize {
    let mut home = None;
    until("another node serves clients", INTERRUPTION, || {
        home = cluster.home_but_for(without);
        home.is_some()
    });
    home.unwrap()
}

/// Reads the first MiB through a node, with a new connection.
fn read_freshly(cluster: &Cluster, at: usize) -> Result<Vec<u8>, RequestError> {
    Client::connect_to(cluster.nbd(at), VOLUME)?.read(0, MIB)
}

#[test]
fn m4_8_clients_go_on_when_the_home_is_killed_and_when_it_is_told_to_end() {
    let Some((mut cluster, mut volume)) = three_nodes() else { return };
    let (home, other) = (cluster.home(), cluster.other());

    // A real client, which flushes, through a node that passes it on.
    let image = cluster.scene.path("image");
    volume[..3 * MIB].copy_from_slice(&noise(1, 3 * MIB));
    std::fs::write(&image, &volume).unwrap();
    let copied = onefold_tests::client("nbdcopy", ["--flush", image.to_str().unwrap(), &cluster.uri(other)]);
    assert_eq!(copied.code, 0, "{copied:?}");
    cluster.all_read(&volume);
    let data = cluster.scene.path("data");
    std::fs::create_dir_all(data.join("below")).unwrap();
    std::fs::write(data.join("below/large"), noise(2, 2 * MIB)).unwrap();
    // Some of it is in the volume, too.
    std::fs::write(data.join("shared"), &volume[MIB..2 * MIB]).unwrap();
    let data = data.to_str().unwrap();
    cluster.run_at(home, &["backup", "--name", "home", data]).succeeds();
    let restores = |cluster: &Cluster, at: usize, target: &str| {
        cluster.run_at(at, &["restore", "latest:home", "--target", target, "--strip-components", "0"]).succeeds();
        let restored = cluster.scene.path(target).join(data.trim_start_matches('/'));
        assert!(tree(&restored) == tree(data.as_ref()), "machine {at} restores something else");
    };
    restores(&cluster, home, "restored by the first home");

    let killed_at = Instant::now();
    cluster.kill(home);
    write(&cluster, other, &mut volume, MIB / 2, &noise(3, MIB));
    println!("clients could not write for {} ms", killed_at.elapsed().as_millis());
    cluster.all_read(&volume);
    let second = next_home(&cluster, &[]);
    restores(&cluster, second, "restored by the second home");
    std::fs::write(cluster.scene.path("data/later"), noise(4, MIB)).unwrap();
    cluster.run_at(second, &["backup", "--name", "home", data]).succeeds();

    // What nobody needs any more goes, whichever node has it, and the rest stays.
    let gone = cluster.scene.path("gone");
    std::fs::create_dir(&gone).unwrap();
    std::fs::write(gone.join("large"), noise(7, 4 * MIB)).unwrap();
    cluster.run_at(second, &["backup", "--name", "gone", gone.to_str().unwrap()]).succeeds();
    cluster.run_at(second, &["forget", "latest:gone", "--yes"]).succeeds();
    let pruned = cluster.run_at(second, &["prune", "--max-unused", "0", "--json"]).succeeds().json();
    assert!(pruned["complete"] == true && pruned["problems"].as_array().is_some_and(Vec::is_empty), "{pruned}");
    assert!(pruned["removed_bytes"].as_u64().is_some_and(|bytes| bytes >= 4 * MIB as u64), "{pruned}");
    assert!(pruned["freed_bytes"].as_u64().is_some_and(|bytes| bytes >= 4 * MIB as u64) && pruned["unused_bytes"] == 0, "{pruned}");
    cluster.all_read(&volume);
    restores(&cluster, second, "restored after a prune");
    // Containers of the first home are another node's by now, or this one's.
    cluster.run_at(second, &["check", "--read-data"]).succeeds();
    cluster.run_at(second, &["backup", "--name", "gone", gone.to_str().unwrap()]).succeeds();
    cluster.run_at(second, &["restore", "latest:gone", "--target", "stored again", "--strip-components", "0"]).succeeds();

    // The log of its number is closed for ever.
    cluster.start(home);
    until("the killed node is back with a new number", PATIENCE, || cluster.number(home) == Some(3));
    let status = || cluster.run(&["cluster", "status", &cluster.bucket(), "--json"]).succeeds().json();
    let of = |key: &'static str| status()["nodes"].as_array().unwrap().iter().map(|node| node[key].as_u64().unwrap()).collect::<Vec<_>>();
    until("the table names it", PATIENCE, || of("number") == [1, 2, 3]);
    assert_eq!(status()["home"].as_u64(), cluster.number(second));
    cluster.run(&["cluster", "status", &cluster.bucket()]).succeeds();
    write(&cluster, home, &mut volume, 0, &noise(5, MIB));
    cluster.all_read(&volume);

    assert_eq!(cluster.terminate(second), Some(0));
    let begin = Instant::now();
    cluster.all_read(&volume);
    println!("all nodes answer {} ms after one that left", begin.elapsed().as_millis());
    let third = next_home(&cluster, &[]);
    write(&cluster, third, &mut volume, 2 * MIB, &noise(6, MIB));
    cluster.all_read(&volume);
    restores(&cluster, third, "restored by the third home");
}

#[test]
fn m4_3_a_home_that_hangs_or_hears_nothing_does_not_answer_for_others() {
    let Some((mut cluster, mut volume)) = three_nodes() else { return };
    let (home, other) = (cluster.home(), cluster.other());
    write(&cluster, other, &mut volume, 0, &noise(1, 2 * MIB));
    cluster.all_read(&volume);

    // Clients of the home, connected with it itself.
    let connect = || (cluster.client(home), cluster.client(home), cluster.client(home));
    let (mut reader, mut writer, mut unflushed) = connect();
    let old = volume.clone();
    cluster.freeze(home);
    let second = next_home(&cluster, &[home]);
    write(&cluster, other, &mut volume, 0, &noise(2, MIB));
    write(&cluster, second, &mut volume, 3 * MIB, &noise(3, MIB / 2));
    std::thread::scope(|threads| {
        // These requests are at the old home when it wakes up.
        let read = threads.spawn(move || reader.read(0, MIB));
        let written = threads.spawn(move || writer.write_durable(0, &noise(4, 4096)));
        let flushed = threads.spawn(move || (unflushed.write(0, &noise(4, 4096)), unflushed.flush()));
        std::thread::sleep(Duration::from_millis(200));
        cluster.thaw(home);
        // Whoever connects to it now gets no answer, or the new home's.
        let (begin, mut answers) = (Instant::now(), 0);
        while begin.elapsed() < PATIENCE && answers < 20 {
            if let Ok(bytes) = read_freshly(&cluster, home) {
                assert!(bytes != old[..MIB], "the old home answers with what was before");
                assert!(bytes == volume[..MIB]);
                answers += 1;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(answers, 20, "the old home passes clients on");
        let read = read.join().unwrap();
        assert!(read.as_ref().map_or(true, |bytes| *bytes == volume[..MIB]), "it answered a read as the home");
        assert!(written.join().unwrap().is_err(), "it acknowledged a durable write");
        let (written, flushed) = flushed.join().unwrap();
        assert!(written.is_err() && flushed.is_err(), "it acknowledged a write or a flush: {written:?}, {flushed:?}");
    });
    cluster.all_read(&volume);
    write(&cluster, home, &mut volume, MIB, &noise(5, MIB));
    cluster.all_read(&volume);

    // Without ZooKeeper nobody can know who is home.
    let home = next_home(&cluster, &[]);
    let other = cluster.other();
    let [mut at_home, mut passed_on] = [home, other].map(|at| cluster.client(at));
    cluster.zookeeper.kill();
    let killed = Instant::now();
    // By the clock of the home, which asks it when a request has come.
    let may_answer = Duration::from_millis(SESSION_S * 1000 * 2 / 3);
    for client in [&mut at_home, &mut passed_on] {
        until("reads are refused", PATIENCE, || {
            let asked = killed.elapsed();
            let Ok(bytes) = client.read(0, MIB) else { return true };
            assert!(bytes == volume[..MIB]);
            assert!(asked <= may_answer, "it answers what was asked {} ms after ZooKeeper had died", asked.as_millis());
            false
        });
    }
    let end = Instant::now() + Duration::from_secs(SESSION_S);
    while Instant::now() < end {
        // What is refused changes nothing, but nobody promises that.
        assert!(at_home.read(0, 4096).is_err() && at_home.flush().is_err() && at_home.write(0, &volume[..4096]).is_err());
        for at in cluster.running() {
            assert!(read_freshly(&cluster, at).is_err(), "machine {at} answers without ZooKeeper");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    cluster.run_at(home, &["backups"]).ends_with(1).says(&["has not heard", "ZooKeeper"]);
    cluster.zookeeper.go_on();
    cluster.all_read(&volume);
    write(&cluster, other, &mut volume, 2 * MIB, &noise(6, MIB));
    cluster.all_read(&volume);
}

#[test]
fn what_a_node_cannot_do_is_said_with_what_to_do() {
    let Some(mut cluster) = Cluster::with_nodes(1) else { return };
    let refused = |change: &[(&str, &str)], code: i32, said: &[&str]| {
        let state = cluster.scene.path("state of a node that is refused");
        let mut line = cluster.command_line(0);
        let changed = [("--state", state.to_str().unwrap())];
        let ports = ["--listen", "--nbd"].map(|option| (option, format!("127.0.0.1:{}", free_port())));
        for (option, value) in changed.iter().chain(&ports.each_ref().map(|(option, value)| (*option, &**value))).chain(change) {
            let at = line.iter().position(|word| word == option).unwrap();
            (*value).clone_into(&mut line[at + 1]);
        }
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        cluster.run(&line).ends_with(code).says(said);
    };
    let place = |name: &str| format!("file://{}", cluster.scene.path(name).display());
    refused(&[("--cluster", cluster.scene.path("store").to_str().unwrap())], 2, &["no place in object storage", "s3://"]);
    refused(&[("--cluster", &place("none"))], 2, &["there is no onefold store", "onefold init"]);
    cluster.run(&["init", &place("sampled"), "--profile", "sampled"]).succeeds();
    refused(&[("--cluster", &place("sampled"))], 2, &["profile is `sampled`", "must be `exact`"]);
    refused(&[("--zookeeper", "localhost")], 2, &["localhost", "HOST:PORT"]);
    refused(&[("--session", "1s")], 2, &["--session", "2s to 60s"]);
    // That of the other nodes, and what ZooKeeper allows.
    refused(&[("--session", "4s")], 2, &["4000 ms", "3000 ms", "all nodes of a store need the same --session"]);
    refused(&[("--session", "6s")], 2, &["6000 ms", "5000 ms", "ticks"]);
    let [others, clients] = cluster.addresses(0);
    refused(&[("--listen", &others)], 2, &[&others, "in use", "--listen"]);
    refused(&[("--nbd", &clients)], 2, &[&clients, "in use", "another address"]);

    // Other commands go to the node that serves clients.
    let bucket = cluster.bucket();
    let shared = ["several nodes share the store", "onefold node --state", "--store"];
    cluster.run(&["volume", "create", VOLUME, "--size", "1MiB", "--store", &bucket, "--wait=1s"]).ends_with(2).says(&shared);
    cluster.run_at(0, &["volume", "create", VOLUME, "--size", "1MiB"]).succeeds();

    // It may be started before ZooKeeper.
    cluster.zookeeper.kill();
    cluster.add();
    let address = cluster.zookeeper.address();
    until("the node says whom it waits for", PATIENCE, || cluster.log(1).contains(&format!("ZooKeeper does not answer at {address}")));
    cluster.zookeeper.go_on();
    cluster.wait_until_it_takes_part(1);
    cluster.all_read(&vec![0; MIB]);
}
