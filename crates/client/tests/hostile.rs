//! Damaged stores, and malicious stores and targets.

mod common;

use common::{noise, place};
use onefold_catalog::{Attributes, Backup, BackupId, Content, Entry, Statistics, encode_directory_chunk};
use onefold_client::{RestoreOptions, Tally};
use onefold_engine::{MetadataKind, Piece, Recipe, encode_pieces};
use std::fs;
use std::os::unix::fs::symlink;

/// Makes a directory of exactly these entries, whatever their names and order.
fn directory(place: &common::Place, entries: &[Entry]) -> Recipe {
    let engine = place.catalog.engine();
    let content = encode_directory_chunk(entries, engine.digest_bytes());
    let references: Vec<_> = entries.iter().flat_map(Entry::references).collect();
    Recipe::flat(vec![engine.stream().write_metadata(MetadataKind::Directory, &content, &references).unwrap()])
}

fn commit(place: &common::Place, root: Recipe) -> Backup {
    let mut backup = Backup {
        id: BackupId::from_bytes([7; 16]),
        sequence: 0,
        seen_ns: 0,
        name: "evil".into(),
        host: String::new(),
        user: String::new(),
        started_ns: 0,
        finished_ns: 0,
        tags: vec![],
        paths: vec![],
        options: "{}".into(),
        root,
        statistics: Statistics::default(),
    };
    place.catalog.commit_backup(&mut backup).unwrap();
    backup
}

fn entry(name: &[u8], content: Content) -> Entry {
    Entry { name: name.to_vec(), attributes: Attributes { mode: 0o755, ..Attributes::default() }, content }
}

fn file(place: &common::Place, name: &[u8], bytes: &[u8]) -> Entry {
    let mut pieces = Vec::new();
    place.catalog.engine().stream().write(bytes, true, Default::default(), &mut pieces).unwrap();
    entry(name, Content::File { size_bytes: bytes.len() as u64, recipe: Recipe::flat(pieces) })
}

#[test]
fn names_in_the_store_cannot_lead_out_of_the_target() {
    let place = place();
    let outside = place.directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let inner = directory(&place, &[file(&place, b"hit", b"evil")]);
    let mut entries: Vec<Entry> = [&b""[..], b".", b"..", b"../outside/hit", b"/etc/hit", b"a/b", b"nul\0x"]
        .iter()
        .flat_map(|name| [file(&place, name, b"evil"), entry(name, Content::Directory { recipe: inner.clone() })])
        .collect();
    // A link out, and then the same name as a directory to go through it.
    entries.push(entry(b"x", Content::Symlink { target: outside.as_os_str().as_encoded_bytes().to_vec() }));
    entries.push(entry(b"x", Content::Directory { recipe: inner.clone() }));
    entries.push(entry(b"y", Content::HardLink { path: b"../../etc/passwd".to_vec() }));
    entries.push(entry(b"z", Content::HardLink { path: b"x/hit".to_vec() }));
    entries.push(file(&place, b"good", b"good"));
    let root = directory(&place, &entries);
    let backup = commit(&place, root);
    let tally = Tally::default();
    let options = RestoreOptions { target: place.target(), ..RestoreOptions::default() };
    let outcome = onefold_client::restore(&*place.repository(), &backup, &options, &tally).unwrap();
    assert_eq!(outcome.errors, 7 * 2 + 3, "{:?}", tally.problems());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    let mut names: Vec<_> = fs::read_dir(place.target()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["good", "x"]);
    assert_eq!(fs::read(place.target().join("good")).unwrap(), b"good");
}

#[test]
fn links_in_the_target_are_not_followed() {
    let place = place();
    place.write("d/file", b"from the backup");
    place.write("file", b"from the backup");
    let (backup, _) = place.backup();
    let outside = place.directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("victim"), b"untouched").unwrap();
    fs::create_dir(place.target()).unwrap();
    symlink(&outside, place.target().join("d")).unwrap();
    symlink(outside.join("victim"), place.target().join("file")).unwrap();
    let always = RestoreOptions { overwrite: onefold_client::Overwrite::Always, ..RestoreOptions::default() };
    let (outcome, tally) = place.restore_with(&backup.backup, always);
    assert_eq!(outcome.errors, 1, "{:?}", tally.problems());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(fs::read(outside.join("victim")).unwrap(), b"untouched");
    assert_eq!(fs::read(place.target().join("file")).unwrap(), b"from the backup");
    assert!(!fs::symlink_metadata(place.target().join("file")).unwrap().is_symlink());
}

#[test]
fn recipes_that_do_not_spell_the_size_are_refused() {
    let place = place();
    let mut short = file(&place, b"short", b"four");
    let mut long = file(&place, b"long", &noise(1, 6 << 20));
    for (entry, size) in [(&mut short, 5), (&mut long, 7 << 20)] {
        if let Content::File { size_bytes, .. } = &mut entry.content {
            *size_bytes = size;
        }
    }
    let zeros = |length| Recipe { level: 0, length, pieces: vec![Piece::Zeros { length }] };
    let endless = entry(b"endless", Content::File { size_bytes: u64::MAX, recipe: zeros(u64::MAX) });
    // Above level 0 a recipe only claims its length. What it spells shows later.
    let chunk = |pieces: &[Piece]| {
        let mut content = Vec::new();
        encode_pieces(pieces, place.catalog.engine().digest_bytes(), &mut content);
        place.catalog.engine().stream().write_metadata(MetadataKind::Recipe, &content, &[]).unwrap()
    };
    let bomb = |size_bytes, length, spelled| {
        let recipe = Recipe { level: 1, length, pieces: vec![chunk(&[Piece::Zeros { length: spelled }])] };
        entry(b"bomb", Content::File { size_bytes, recipe })
    };
    let (silent, modest) = (bomb(1 << 60, 0, 1 << 60), bomb(5, 5, u64::MAX));
    let root = directory(&place, &[short, long, endless, silent, modest]);
    let backup = commit(&place, root);
    let tally = Tally::default();
    let options = RestoreOptions { target: place.target(), ..RestoreOptions::default() };
    let outcome = onefold_client::restore(&*place.repository(), &backup, &options, &tally).unwrap();
    assert_eq!((outcome.errors, outcome.files), (5, 0), "{:?}", tally.problems());
    assert_eq!(fs::read_dir(place.target()).unwrap().count(), 0);
}

#[test]
fn a_small_file_of_very_many_pieces_is_restored_in_ranges() {
    // No client makes such a recipe, and none is sent.
    if common::IS_REMOTE {
        return;
    }
    let place = place();
    let Content::File { recipe, .. } = file(&place, b"", b"abcd").content else { unreachable!() };
    let Piece::Chunk { fingerprint, address, .. } = recipe.pieces[0] else { unreachable!() };
    let pieces: Vec<Piece> = (0..100_000).map(|at| Piece::Chunk { fingerprint, address, offset: at % 4, length: 1 }).collect();
    let mut content = Vec::new();
    encode_pieces(&pieces, place.catalog.engine().digest_bytes(), &mut content);
    let chunk = place.catalog.engine().stream().write_metadata(MetadataKind::Recipe, &content, &[]).unwrap();
    let recipe = Recipe { level: 1, length: 100_000, pieces: vec![chunk] };
    let root = directory(&place, &[entry(b"many", Content::File { size_bytes: 100_000, recipe })]);
    let backup = commit(&place, root);
    let tally = Tally::default();
    let options = RestoreOptions { target: place.target(), ..RestoreOptions::default() };
    let outcome = onefold_client::restore(&*place.repository(), &backup, &options, &tally).unwrap();
    assert_eq!(outcome.errors, 0, "{:?}", tally.problems());
    assert_eq!(fs::read(place.target().join("many")).unwrap(), b"abcd".repeat(25_000));
}
