//! Tests that need a server: the cache of the client, channels that the server refuses, a server that stops.

mod common;

use common::behind::Behind;
use common::{noise, place};
use onefold_catalog::{Backup, BackupId, TreeWalk};
use onefold_chunking::Sizes;
use onefold_client::{BackupOptions, ClientError, Counter, Damaged, Monitor, Problem, RestoreOptions, Tally};
use onefold_engine::Descriptor;
use onefold_ground::checksum;
use onefold_remote::transport::ServerOptions;
use std::fs;
use std::path::PathBuf;

/// Returns the only cached tree.
fn cached(place: &common::Place) -> PathBuf {
    let files: Vec<PathBuf> = fs::read_dir(place.directory.path().join("cache")).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

fn write_cache(path: &PathBuf, id: BackupId, body: &[u8]) {
    fs::write(path, [b"1FLDTRE2", &id.as_bytes()[..], &checksum(body).to_le_bytes(), body].concat()).unwrap();
}

/// Returns the names of files in the source of a backup.
fn names(place: &common::Place, backup: &Backup) -> Vec<String> {
    let below = [&place.root()[..], b"/"].concat();
    let found = TreeWalk::new(place.catalog.engine(), b"", &backup.root).map(|item| item.path);
    found.filter_map(|path| path.strip_prefix(&below[..]).map(|name| String::from_utf8(name.to_vec()).unwrap())).collect()
}

#[test]
fn the_cached_tree_of_another_backup_is_refused_once() {
    let place = place();
    for name in ["d/a", "d/b", "d/c"] {
        place.write(name, name);
    }
    place.backup();
    let first = fs::read(cached(&place)).unwrap();
    fs::remove_file(place.source().join("d/a")).unwrap();
    let (second, _) = place.backup();
    // One entry is at another place, the next one is behind the end of the server's directory.
    write_cache(&cached(&place), second.backup.id, &first[32..]);
    let refused = onefold_client::backup(&*place.repository(), &place.options(), &Tally::default());
    assert!(matches!(refused, Err(ClientError::Stale)), "{refused:?}");
    let (third, tally) = place.backup();
    assert_eq!(tally.problems(), []);
    assert_eq!(third.parent, Some(second.backup.id));
    assert_eq!(names(&place, &third.backup), ["d", "d/b", "d/c"]);
}

#[test]
fn a_cached_tree_that_ends_early_keeps_nothing_that_it_does_not_have() {
    let place = place();
    for name in ["d/a", "d/b"] {
        place.write(name, name);
    }
    let (first, _) = place.backup();
    let path = cached(&place);
    let records = zstd::decode_all(&fs::read(&path).unwrap()[32..]).unwrap();
    let at = records.windows(2).rposition(|bytes| bytes == b"\x01b").unwrap();
    // The record of the last file begins with its length, of one byte or two.
    for cut in [at - 1, at - 2] {
        write_cache(&path, first.backup.id, &zstd::encode_all(&records[..cut], 1).unwrap());
        let (tally, options) = (Tally::default(), BackupOptions { excludes: vec!["d/b".into()], ..place.options() });
        let options = BackupOptions { parent: onefold_client::Parent::This(first.backup.id), ..options };
        let outcome = onefold_client::backup(&*place.repository(), &options, &tally).unwrap();
        let backup = place.catalog.find(&outcome.backup.id.to_string()).unwrap();
        assert_eq!(names(&place, &backup), ["d", "d/a"]);
        assert_eq!(outcome.errors, 0, "{:?}", tally.problems());
    }
}

#[test]
fn the_cache_of_the_client_is_not_backed_up() {
    let place = place();
    place.write("file", "content");
    // The first run creates it, the second one finds it.
    for _ in 0..2 {
        let repository = Behind::new(&place.catalog, &place.source());
        let outcome = onefold_client::backup(&repository, &place.options(), &Tally::default()).unwrap();
        assert!(place.source().join("cache").is_dir());
        let backup = place.catalog.find(&outcome.backup.id.to_string()).unwrap();
        assert_eq!(names(&place, &backup), ["file"]);
    }
}

#[test]
fn a_restore_gets_along_with_the_channels_that_the_server_has_room_for() {
    let place = place();
    for number in 0..64 {
        place.write(&number.to_string(), noise(number, 400_000));
    }
    let (backup, _) = place.backup();
    // One for metadata, one for the stream of it, two for data.
    let options = ServerOptions { threads: 4, ..ServerOptions::default() };
    let repository = Behind::with(&place.catalog, place.directory.path(), options);
    let (tally, options) = (Tally::default(), RestoreOptions { target: place.target(), ..RestoreOptions::default() });
    let outcome = onefold_client::restore(&repository, &backup.backup, &options, &tally).unwrap();
    assert_eq!((outcome.errors, outcome.files), (0, 64), "{:?}", tally.problems());
}

#[test]
fn chunks_of_any_length_that_a_store_may_have_fit_a_message() {
    let sizes = Sizes { min: 1 << 20, target: 4 << 20, max: 8 << 20 };
    let descriptor = Descriptor { chunk_sizes: sizes, container_bytes: 32 << 20, ..Descriptor::new().unwrap() };
    let place = common::place_with(&descriptor);
    place.write("file", noise(1, 30 << 20));
    let (backup, _) = place.backup();
    let (outcome, tally) = place.restore(&backup.backup);
    assert_eq!(outcome.errors, 0, "{:?}", tally.problems());
    common::assert_same(&place.source(), &place.target());
}

/// Stops the server when the client comes to a file.
struct Stops<'a> {
    server: &'a Behind,
    name: &'static [u8],
}

impl Monitor for Stops<'_> {
    fn count(&self, _: Counter, _: u64) {}

    fn problem(&self, _: &Problem) {}

    fn current(&self, path: &[u8]) {
        if path.ends_with(self.name) {
            self.server.stop();
        }
    }
}

#[test]
fn an_archive_that_a_lost_connection_cuts_off_is_not_ended() {
    let place = place();
    let first = place.write("a/first", "content");
    fs::create_dir(place.source().join("z")).unwrap();
    fs::hard_link(first, place.source().join("z/link")).unwrap();
    let (backup, _) = place.backup();
    let server = Behind::new(&place.catalog, place.directory.path());
    let (mut out, stops) = (Vec::new(), Stops { server: &server, name: b"z/link" });
    // What the link leads to has to be looked up.
    let path = [&place.root()[..], b"/z"].concat();
    let archived = onefold_client::archive(&server, &backup.backup, &path, Damaged::Zero, &stops, &mut out);
    assert!(archived.is_err());
    assert!(!out.is_empty() && !out.ends_with(&[0; 1024]), "only the directory is in it, and no end");
}
