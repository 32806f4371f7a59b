//! A store on a small real file system that becomes full: it is said clearly, nothing that was acknowledged is lost,
//! what is there can be read, and with room given everything goes on.

use onefold_tests::{Client, Daemon, ENOSPC, RequestError, Scene, Tmpfs, assert_same_tree, noise};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PIECE: usize = 256 << 10;

/// A log that fits.
const SETTINGS: &str = "[log]\nsegment = \"1MiB\"\nlimit = \"8MiB\"\n[memory]\nvolume_dirty = \"4MiB\"\n";

fn make_tree(root: &Path, files: u64, seed: u64) {
    fs::create_dir_all(root.join("sub")).unwrap();
    for number in 0..files {
        fs::write(root.join(format!("sub/{number}")), noise(seed + number, 1 << 20)).unwrap();
    }
}

fn restored(scene: &Scene, target: &str, source: &Path) -> PathBuf {
    scene.path(target).join(fs::canonicalize(source).unwrap().strip_prefix("/").unwrap())
}

#[test]
fn a_backup_that_does_not_fit_is_refused_and_leaves_everything_usable() {
    let Some(small) = Tmpfs::new("72m") else { return };
    let scene = Scene::with_store_in(small.place(), &[], SETTINGS);
    let [first, second] = ["first", "second"].map(|name| scene.path(name));
    make_tree(&first, 20, 1);
    make_tree(&second, 120, 1000);
    scene.run(["backup", "--name", "first", "first"]).succeeds();

    for _ in 0..2 {
        let refused = scene.run(["backup", "--name", "second", "second"]).ends_with(1).text();
        assert!(refused.contains("full") || refused.contains("No space"), "{refused}");
        let listed = scene.run(["backups", "--json"]).succeeds().json();
        assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    }
    scene.run(["restore", "latest:first", "--target", "back"]).succeeds();
    assert_same_tree(&first, &restored(&scene, "back", &first));
    scene.check();
    scene.run(["stats"]).succeeds();

    small.grow("320m");
    let made = scene.run(["backup", "--name", "second", "--json", "second"]).succeeds().json();
    println!("added with room: {}", made["added_bytes"]);
    scene.run(["restore", "latest:second", "--target", "back"]).succeeds();
    assert_same_tree(&second, &restored(&scene, "back", &second));
    scene.run(["restore", "latest:first", "--target", "third"]).succeeds();
    assert_same_tree(&first, &restored(&scene, "third", &first));
    scene.check();
}

/// What the test knows of a volume: pieces in the order of their places.
#[derive(Default)]
struct Written {
    acknowledged: usize,
    durable: usize,
}

impl Written {
    /// Writes pieces and flushes now and then, until one is refused or there are so many.
    fn write_to(&mut self, client: &mut Client, pieces: usize) -> Result<(), RequestError> {
        while self.acknowledged < pieces {
            client.write((self.acknowledged * PIECE) as u64, &noise(self.acknowledged as u64, PIECE))?;
            self.acknowledged += 1;
            if self.acknowledged.is_multiple_of(8) {
                self.flush(client)?;
            }
        }
        Ok(())
    }

    fn flush(&mut self, client: &mut Client) -> Result<(), RequestError> {
        client.flush()?;
        self.durable = self.acknowledged;
        Ok(())
    }

    #[track_caller]
    fn verify(client: &mut Client, pieces: usize) {
        for piece in 0..pieces {
            let found = client.read((piece * PIECE) as u64, PIECE).unwrap();
            assert!(found == noise(piece as u64, PIECE), "piece {piece} of {pieces}");
        }
    }
}

/// A volume that is written to until the file system is full.
fn fill(scene: &Scene) -> (Daemon, Client, Written) {
    scene.volume("disk", "1GiB");
    let daemon = scene.serve_with_log(&["--nbd", "none", "--nbd-socket", "nbd.sock"], &scene.path("log"));
    let mut client = daemon.connect("disk");
    let mut written = Written::default();
    match written.write_to(&mut client, 4096) {
        Err(RequestError::Refused(ENOSPC)) => {}
        other => panic!("{other:?} after {} pieces", written.acknowledged),
    }
    assert!(written.durable > 40, "only {} pieces fit", written.durable);
    println!("{} pieces acknowledged, {} flushed", written.acknowledged, written.durable);
    (daemon, client, written)
}

#[test]
fn a_volume_refuses_writes_on_a_full_disk_and_goes_on_in_the_same_daemon_with_room() {
    let Some(small) = Tmpfs::new("72m") else { return };
    let scene = Scene::with_store_in(small.place(), &[], SETTINGS);
    let (daemon, mut client, mut written) = fill(&scene);
    // What was acknowledged is read as it was written, flushed or not, while the disk is full.
    Written::verify(&mut client, written.acknowledged);
    for _ in 0..3 {
        assert!(matches!(client.flush(), Ok(()) | Err(RequestError::Refused(ENOSPC))));
        let _ = client.write((written.acknowledged * PIECE) as u64, &noise(7, PIECE));
    }
    Written::verify(&mut daemon.connect("disk"), written.acknowledged);

    small.grow("320m");
    let more = written.acknowledged + 100;
    written.write_to(&mut client, more).unwrap();
    written.flush(&mut client).unwrap();
    Written::verify(&mut client, more);
    daemon.stop();
    let daemon = scene.serve();
    Written::verify(&mut daemon.connect("disk"), more);
    daemon.stop();
    scene.check();
}

#[test]
fn a_daemon_that_is_killed_on_a_full_disk_loses_nothing_that_was_flushed() {
    let Some(small) = Tmpfs::new("72m") else { return };
    let scene = Scene::with_store_in(small.place(), &[], SETTINGS);
    let (daemon, client, written) = fill(&scene);
    drop(client);
    daemon.kill();
    scene.check();

    small.grow("320m");
    let daemon = scene.serve();
    let mut client = daemon.connect("disk");
    Written::verify(&mut client, written.durable);
    let mut written = Written { acknowledged: written.durable, durable: written.durable };
    let more = written.durable + 20;
    written.write_to(&mut client, more).unwrap();
    written.flush(&mut client).unwrap();
    daemon.stop();
    let daemon = scene.serve();
    Written::verify(&mut daemon.connect("disk"), more);
    daemon.stop();
    scene.check();
}

/// Takes every byte that is left, as another program on the same disk may.
fn fill_up(place: &Path) {
    let mut file = fs::File::options().create(true).append(true).open(place.join("of others")).unwrap();
    for piece in [1 << 20, 64 << 10, 4096] {
        while std::io::Write::write_all(&mut file, &vec![7; piece]).is_ok() {}
    }
}

fn settings_with_reclamation_off() -> String {
    format!("{SETTINGS}[reclamation]\ninterval_seconds = 0\n")
}

#[test]
fn a_disk_full_to_the_last_block_under_a_daemon_is_emptied_by_discards_and_prune() {
    let Some(small) = Tmpfs::new("272m") else { return };
    let scene = Scene::with_store_in(small.place(), &[], &settings_with_reclamation_off());
    let (daemon, mut client, written) = fill(&scene);
    fill_up(small.place());
    let _ = client.flush();
    // What the buffers take, until they are full, too.
    let refused = (written.acknowledged..).find_map(|piece| client.write((piece * PIECE) as u64, &noise(7, PIECE)).err());
    assert!(matches!(refused, Some(RequestError::Refused(ENOSPC))), "{refused:?}");

    // All but the first pieces, some of which were never flushed, go. Not a byte is given by anybody else.
    let kept = 16;
    client.trim((kept * PIECE) as u64, (1 << 30) - kept * PIECE).unwrap();
    client.flush().unwrap();
    // The log of the daemon says what happened, and what to do. The store may have got along with what it gave up
    // itself: others take that too, and references to what is stored need the log until the reserve is in use.
    let until = Instant::now() + Duration::from_secs(60);
    for piece in (kept..1000).cycle() {
        let log = fs::read_to_string(scene.path("log")).unwrap();
        let is_in_use = log.contains("the reserve is in use");
        if is_in_use && log.contains("then `onefold prune`") {
            break;
        }
        assert!(Instant::now() < until, "{log}");
        if is_in_use {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        }
        fill_up(small.place());
        let _ = client.write((piece * PIECE) as u64, &noise(0, PIECE)).and_then(|()| client.flush());
    }
    scene.run(["prune"]).succeeds();
    assert!(scene.statistic("reserve_bytes") > 1 << 20, "the reserve is whole again");
    assert_eq!(scene.run(["stats", "--json"]).succeeds().json()["reserve_in_use"], false);
    Written::verify(&mut client, kept);

    // Writing works again.
    let mut written = Written { acknowledged: kept, durable: kept };
    written.write_to(&mut client, 200).unwrap();
    written.flush(&mut client).unwrap();
    daemon.stop();
    let daemon = scene.serve();
    Written::verify(&mut daemon.connect("disk"), 200);
    daemon.stop();
    scene.check();
}

#[test]
fn a_daemon_stops_and_a_volume_is_deleted_on_a_disk_full_to_the_last_block() {
    let Some(small) = Tmpfs::new("172m") else { return };
    let scene = Scene::with_store_in(small.place(), &[], &settings_with_reclamation_off());
    scene.volume("small", "16MiB");
    let (daemon, mut client, written) = fill(&scene);
    // What there was no room for is given up.
    client.trim((written.durable * PIECE) as u64, (1 << 30) - written.durable * PIECE).unwrap();
    client.flush().unwrap();
    fill_up(small.place());
    drop(client);
    daemon.stop();
    fill_up(small.place());

    let daemon = scene.serve();
    let mut client = daemon.connect("disk");
    for piece in [0, written.durable - 1] {
        assert!(client.read((piece * PIECE) as u64, PIECE).unwrap() == noise(piece as u64, PIECE));
    }
    drop(client);
    scene.run(["volume", "delete", "disk", "--yes"]).succeeds();
    scene.run(["prune"]).succeeds();
    let mut client = daemon.connect("small");
    client.write(0, &noise(1, 8 << 20)).unwrap();
    client.flush().unwrap();
    daemon.stop();
    scene.check();
}

#[test]
fn backups_are_forgotten_and_pruned_away_on_a_disk_full_to_the_last_block() {
    let Some(small) = Tmpfs::new("172m") else { return };
    let scene = Scene::with_store_in(small.place(), &[], &settings_with_reclamation_off());
    let [first, second] = ["first", "second"].map(|name| scene.path(name));
    make_tree(&first, 20, 1);
    make_tree(&second, 100, 1000);
    scene.run(["backup", "--name", "first", "first"]).succeeds();
    scene.run(["backup", "--name", "second", "second"]).succeeds();
    fill_up(small.place());
    fs::write(first.join("new"), noise(5, 1 << 20)).unwrap();
    let refused = scene.run(["backup", "--name", "third", "first"]).ends_with(1).text();
    assert!(refused.contains("full") || refused.contains("No space"), "{refused}");

    scene.run(["forget", "latest:second", "--yes"]).succeeds();
    scene.run(["prune"]).succeeds();
    scene.run(["backup", "--name", "third", "first"]).succeeds();
    scene.run(["restore", "latest:third", "--target", "back"]).succeeds();
    assert_same_tree(&first, &restored(&scene, "back", &first));
    scene.check();
}
