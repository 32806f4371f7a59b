//! Restoring and dumping files with an unreadable part.

mod common;

use common::{Place, look, noise, place};
use onefold_catalog::{Attributes, Backup, BackupId, Content, DirectoryReader, Entry, Statistics, encode_directory_chunk};
use onefold_client::{ClientError, DAMAGED_SUFFIX, Damaged, Problem, RestoreOptions, Tally};
use onefold_engine::{MetadataKind, Piece, Recipe, encode_pieces};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Makes a large file with one damaged frame, and fifty small files.
fn damaged() -> (Place, Backup) {
    let place = place();
    place.write("a", noise(1, 9 << 20));
    fs::hard_link(place.source().join("a"), place.source().join("b")).unwrap();
    for number in 0..50 {
        place.write(&format!("small/{number}"), noise(100 + number, 10_000));
    }
    let (backup, _) = place.backup();
    let store = place.store();
    let Place { directory, catalog } = place;
    catalog.engine().close().unwrap();
    drop(catalog);
    // Two hundred bytes of each container: in full containers a frame of the large file, in the others mostly nothing.
    for container in fs::read_dir(store.join("containers/0000/00000")).unwrap() {
        let container = fs::OpenOptions::new().write(true).open(container.unwrap().path()).unwrap();
        container.write_all_at(&[0x5a; 200], 1_500_000).unwrap();
    }
    (Place { directory, catalog: common::open(&store) }, backup.backup)
}

/// Returns the file with zeros in its lost ranges.
fn with_zeros(mut bytes: Vec<u8>, lost: &[Range<u64>]) -> Vec<u8> {
    lost.iter().for_each(|range| bytes[range.start as usize..range.end as usize].fill(0));
    bytes
}

fn named<'a>(place: &Place, problems: &'a [Problem], name: &str) -> &'a Problem {
    let path = [&place.root()[..], b"/", name.as_bytes()].concat();
    problems.iter().find(|problem| problem.path == path).unwrap_or_else(|| panic!("{name} in {problems:?}"))
}

#[test]
fn a_damaged_file_is_restored_around_its_holes_under_a_name_that_says_so() {
    let (place, backup) = damaged();
    for _ in 0..2 {
        let (outcome, tally) =
            place.restore_with(&backup, RestoreOptions { overwrite: onefold_client::Overwrite::IfChanged, ..RestoreOptions::default() });
        let problems = tally.problems();
        let lost = &named(&place, &problems, "a").lost;
        let sum: u64 = lost.iter().map(|range| range.end - range.start).sum();
        assert!((1..=8 << 19).contains(&sum), "some frames are lost, not more: {lost:?}");
        assert!(outcome.damaged_files >= 1 && outcome.errors == problems.len() as u64, "{problems:?}");
        let name = format!("a{DAMAGED_SUFFIX}");
        assert!(named(&place, &problems, "a").reason.contains(&name), "{problems:?}");
        let found = fs::read(place.target().join(&name)).unwrap();
        assert!(found == with_zeros(noise(1, 9 << 20), lost), "everything else is there, zeros stand for the rest");
        // The further name refers to the same file, and has the suffix too.
        let inode = |name: &str| fs::metadata(place.target().join(format!("{name}{DAMAGED_SUFFIX}"))).unwrap().ino();
        assert_eq!(inode("a"), inode("b"));
        named(&place, &problems, "b");
    }
    // No file has a name of the backup unless it is equal, and nothing temporary stays.
    let expected = look(&place.source());
    for (name, found) in look(&place.target()) {
        match expected.get(&name) {
            Some(expected) => assert!(expected.content == found.content, "{:?}", String::from_utf8_lossy(&name)),
            None => assert!(name.ends_with(DAMAGED_SUFFIX.as_bytes()), "{:?}", String::from_utf8_lossy(&name)),
        }
    }
}

#[test]
fn a_damaged_file_is_left_out_if_asked_for() {
    let (place, backup) = damaged();
    let (outcome, tally) = place.restore_with(&backup, RestoreOptions { damaged: Damaged::Skip, ..RestoreOptions::default() });
    assert_eq!((outcome.damaged_files, outcome.errors), (0, tally.problems().len() as u64));
    assert!(!named(&place, &tally.problems(), "a").lost.is_empty());
    let expected = look(&place.source());
    let found = look(&place.target());
    assert_eq!(found.len() + tally.problems().len(), expected.len(), "nothing temporary is left, nothing else is missing");
    assert!(found.iter().all(|(name, found)| name.is_empty() || expected[name].content == found.content));
}

#[test]
fn the_first_damaged_file_ends_a_restore_that_must_be_whole() {
    let (place, backup) = damaged();
    let options = RestoreOptions { target: place.target(), damaged: Damaged::Fail, ..RestoreOptions::default() };
    let error = onefold_client::restore(&*place.repository(), &backup, &options, &Tally::default()).unwrap_err();
    assert!(matches!(&error, ClientError::Lost { reason, .. } if reason.contains("bytes ")), "{error}");
    assert!(look(&place.target()).keys().all(|name| !String::from_utf8_lossy(name).contains(".onefold-")), "nothing temporary is left");
}

#[test]
fn dump_ends_where_the_damage_begins_or_writes_zeros() {
    let (place, backup) = damaged();
    let path = [&place.root()[..], b"/a"].concat();
    let bytes = noise(1, 9 << 20);
    let dump = |damaged, tally: &Tally| {
        let mut out = Vec::new();
        let dumped = onefold_client::dump(&*place.repository(), &backup, &path, damaged, tally, &mut out);
        (dumped, out)
    };
    let tally = Tally::default();
    let (dumped, out) = dump(Damaged::Zero, &tally);
    let lost = tally.problems()[0].lost.clone();
    assert!(dumped.unwrap() == 9 << 20 && out == with_zeros(bytes.clone(), &lost));
    let (dumped, out) = dump(Damaged::Fail, &Tally::default());
    assert!(out == bytes[..lost[0].start as usize], "all bytes before the damage, none behind it");
    let error = dumped.unwrap_err().to_string();
    assert!(error.contains(&format!("bytes {}..", lost[0].start)) && error.contains("/a"), "{error}");
}

#[test]
fn lost_recipe_chunks_take_what_they_spell_and_no_more() {
    let place = place();
    let engine = place.catalog.engine().clone();
    let mut pieces = Vec::new();
    let mut bytes = Vec::new();
    for part in 0..8u64 {
        bytes.extend(noise(part, 5000));
        engine.stream().write(&bytes[part as usize * 5000..], true, Default::default(), &mut pieces).unwrap();
    }
    let chunks: Vec<Piece> = pieces
        .chunks(pieces.len() / 8)
        .map(|pieces| {
            let mut content = Vec::new();
            encode_pieces(pieces, engine.digest_bytes(), &mut content);
            let references: Vec<_> = pieces.iter().filter_map(Piece::fingerprint).collect();
            engine.stream().write_metadata(MetadataKind::Recipe, &content, &references).unwrap()
        })
        .collect();
    let length: Vec<u64> = pieces.chunks(pieces.len() / 8).map(|pieces| pieces.iter().map(Piece::length).sum()).collect();
    let start = |part: usize| length[..part].iter().sum::<u64>();
    // Data in place of a recipe chunk: it cannot be read as one.
    let lose = |parts: &[usize]| {
        let mut chunks = chunks.clone();
        parts.iter().for_each(|part| chunks[*part] = pieces[0]);
        Recipe { level: 1, length: 40_000, pieces: chunks }
    };
    let cases: [(&[usize], Range<u64>); 4] =
        [(&[0], 0..start(1)), (&[7], start(7)..40_000), (&[3], start(3)..start(4)), (&[2, 5], start(2)..start(6))];
    for (number, (parts, expected)) in cases.into_iter().enumerate() {
        let entry = Entry {
            name: b"file".to_vec(),
            attributes: Attributes { mode: 0o644, ..Attributes::default() },
            content: Content::File { size_bytes: 40_000, recipe: lose(parts) },
        };
        let content = encode_directory_chunk(&[entry], engine.digest_bytes());
        let root = engine.stream().write_metadata(MetadataKind::Directory, &content, &[]).unwrap();
        let mut backup = backup(number as u8, Recipe::flat(vec![root]));
        place.catalog.commit_backup(&mut backup).unwrap();
        let target = place.directory.path().join(format!("target {number}"));
        let tally = Tally::default();
        let options = RestoreOptions { target: target.clone(), ..RestoreOptions::default() };
        let outcome = onefold_client::restore(&*place.repository(), &backup, &options, &tally).unwrap();
        assert_eq!((outcome.errors, outcome.damaged_files), (1, 1), "{:?}", tally.problems());
        assert_eq!(tally.problems()[0].lost, std::slice::from_ref(&expected));
        let found = fs::read(target.join(format!("file{DAMAGED_SUFFIX}"))).unwrap();
        assert!(found == with_zeros(bytes.clone(), &[expected]), "{parts:?}");
    }
}

/// As a chunk store of blocks has them.
#[test]
fn a_file_whose_long_attributes_are_lost_is_restored_without_them_and_named() {
    let place = place();
    let engine = place.catalog.engine();
    let pieces = engine.stream().write_chunks(&[&b"content"[..], b"\x01"]).unwrap();
    let entry = Entry {
        name: b"file".to_vec(),
        attributes: Attributes { mode: 0o640, ..Attributes::default() },
        content: Content::File { size_bytes: 7, recipe: Recipe::flat(vec![pieces[0]]) },
    };
    let mut content = vec![0];
    Recipe::flat(vec![pieces[1]]).encode(engine.digest_bytes(), &mut content);
    entry.encode(engine.digest_bytes(), &mut content);
    let root = engine.stream().write_metadata(MetadataKind::Directory, &content, &[]).unwrap();
    let mut backup = backup(1, Recipe::flat(vec![root]));
    place.catalog.commit_backup(&mut backup).unwrap();
    let (target, tally) = (place.target(), Tally::default());
    let options = RestoreOptions { target: target.clone(), ..RestoreOptions::default() };
    let outcome = onefold_client::restore(&*place.repository(), &backup, &options, &tally).unwrap();
    let problems = tally.problems();
    assert_eq!((outcome.errors, outcome.files), (1, 1), "{problems:?}");
    assert!(problems[0].reason.contains("the attributes or the target of \"file\" are lost"), "{problems:?}");
    assert_eq!(fs::read(target.join("file")).unwrap(), b"content");
}

/// Returns the directory with the rest of the entry at a path lost, as a chunk store of blocks has it.
fn with_lost_rest(place: &Place, recipe: &Recipe, path: &[&[u8]]) -> Recipe {
    let engine = place.catalog.engine();
    let lost = engine.stream().write_chunks(&[&b"\x01"[..]]).unwrap();
    let mut pieces = Vec::new();
    for entry in DirectoryReader::new(engine, recipe) {
        let mut entry = entry.unwrap();
        let is_on_path = entry.name == path[0];
        let mut content = Vec::new();
        match &mut entry.content {
            Content::Directory { recipe } if is_on_path && path.len() > 1 => *recipe = with_lost_rest(place, recipe, &path[1..]),
            _ if is_on_path => {
                entry.attributes.xattrs.clear();
                content.push(0);
                Recipe::flat(lost.clone()).encode(engine.digest_bytes(), &mut content);
            }
            _ => {}
        }
        match content.is_empty() {
            true => content = encode_directory_chunk(&[entry], engine.digest_bytes()),
            false => entry.encode(engine.digest_bytes(), &mut content),
        }
        pieces.push(engine.stream().write_metadata(MetadataKind::Directory, &content, &[]).unwrap());
    }
    Recipe::flat(pieces)
}

#[test]
fn the_next_backup_does_not_take_over_what_lost_its_attributes() {
    let place = place();
    place.write("file", b"content");
    fs::create_dir(place.source().join("directory")).unwrap();
    place.write("directory/other", b"other");
    let path = |name: &str| rustix::fs::setxattr(place.source().join(name), "user.x", b"kept", rustix::fs::XattrFlags::empty());
    let has_xattrs = path("file").and_then(|()| path("directory")).is_ok();
    for name in ["file", "directory"] {
        let (first, _) = place.backup();
        let root = place.root();
        let mut components: Vec<&[u8]> = root.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
        components.push(name.as_bytes());
        let id = BackupId::from_bytes([name.len() as u8; 16]);
        let started_ns = first.backup.started_ns + 1;
        let mut damaged = Backup { id, sequence: 0, seen_ns: 0, started_ns, finished_ns: started_ns + 1, ..first.backup.clone() };
        damaged.root = with_lost_rest(&place, &first.backup.root, &components);
        place.catalog.commit_backup(&mut damaged).unwrap();
        let (next, _) = place.backup();
        let found = place.catalog.lookup(&next.backup, &components.join(&b'/')).unwrap().unwrap();
        assert_eq!(found.attributes.xattrs.is_empty(), !has_xattrs, "{name}");
        let (outcome, tally) = place.restore_with(&next.backup, RestoreOptions::default());
        assert_eq!(outcome.errors, 0, "{:?}", tally.problems());
    }
}

fn backup(number: u8, root: Recipe) -> Backup {
    Backup {
        id: BackupId::from_bytes([number; 16]),
        sequence: 0,
        seen_ns: 0,
        tags: vec![],
        name: "made".into(),
        host: String::new(),
        user: String::new(),
        started_ns: 0,
        finished_ns: 0,
        paths: vec![],
        options: "{}".into(),
        root,
        statistics: Statistics::default(),
    }
}
