//! Tests the catalog on a real store.

use onefold_catalog::{
    Attributes, Backup, BackupId, Catalog, CatalogError, Content, Difference, DirectoryReader, DirectoryWriter, Entry, PieceReader,
    Statistics, TreeWalk, diff, encode_directory_chunk,
};
use onefold_engine::{
    Descriptor, Engine, MAX_LEVEL, MetadataKind, Mode, Piece, Recipe, RecipeWriter, Settings, Transaction, WriteStream, encode_pieces,
};
use onefold_ground::{Ground, LocalGround};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

struct Place {
    catalog: Catalog,
    stream: WriteStream,
    _directory: tempfile::TempDir,
}

fn place() -> Place {
    place_with(Descriptor::new().unwrap())
}

fn place_with(descriptor: Descriptor) -> Place {
    let directory = tempfile::tempdir().unwrap();
    let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).unwrap());
    Engine::create(&ground, &Descriptor { object_partitions: 4, ..descriptor }).unwrap();
    let engine = Engine::open(ground, Settings::default(), Mode::ReadWrite, "test").unwrap();
    Place { stream: engine.stream(), catalog: Catalog::new(engine), _directory: directory }
}

/// A tree to store: names, with directories or the bytes of files.
#[derive(Clone, Debug)]
enum Node {
    File(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, Node>),
}

fn directory(names: &[(&str, Node)]) -> Node {
    Node::Directory(names.iter().map(|(name, node)| (name.as_bytes().to_vec(), node.clone())).collect())
}

fn file(content: &str) -> Node {
    Node::File(content.as_bytes().to_vec())
}

fn entry(name: &[u8], content: Content) -> Entry {
    Entry { name: name.to_vec(), attributes: Attributes { mode: 0o644, ..Attributes::default() }, content }
}

impl Place {
    fn engine(&self) -> &Arc<Engine> {
        self.catalog.engine()
    }

    fn store(&mut self, node: &Node) -> Content {
        match node {
            Node::File(bytes) => {
                let mut pieces = Vec::new();
                self.stream.write(bytes, true, Default::default(), &mut pieces).unwrap();
                Content::File { size_bytes: bytes.len() as u64, recipe: recipe_of(self, &pieces) }
            }
            Node::Directory(names) => {
                let mut writer = DirectoryWriter::new(self.engine());
                for (name, node) in names {
                    let content = self.store(node);
                    writer.push(&mut self.stream, &entry(name, content)).unwrap();
                }
                Content::Directory { recipe: writer.finish(&mut self.stream).unwrap() }
            }
        }
    }

    fn backup(&mut self, number: u8, name: &str, tree: &Node) -> Backup {
        let Content::Directory { recipe: root } = self.store(tree) else { panic!("a tree begins with a directory") };
        let mut id = [number; 16];
        id[15] = 0;
        let mut backup = Backup {
            id: BackupId::from_bytes(id),
            sequence: 0,
            seen_ns: 0,
            name: name.into(),
            host: "h".into(),
            user: "u".into(),
            started_ns: i64::from(number),
            finished_ns: i64::from(number),
            tags: vec![],
            paths: vec![],
            options: "{}".into(),
            root,
            statistics: Statistics::default(),
        };
        self.catalog.commit_backup(&mut backup).unwrap();
        backup
    }
}

#[test]
fn backups_are_listed_in_their_order_and_found_by_latest_group_prefix_and_id() {
    let mut place = place();
    let tree = directory(&[("f", file("x"))]);
    let backups: Vec<Backup> = [(0x3a, "one"), (0x12, "two"), (0x3b, "one")].map(|(number, name)| place.backup(number, name, &tree)).into();
    let catalog = &place.catalog;
    assert_eq!(catalog.list().unwrap(), backups);
    assert_eq!(catalog.find("latest").unwrap(), backups[2]);
    assert_eq!(catalog.find("latest:two").unwrap(), backups[1]);
    assert_eq!(catalog.find("3A").unwrap(), backups[0]);
    assert_eq!(catalog.find(&backups[1].id.to_string()).unwrap(), backups[1]);
    let ambiguous = catalog.find("3").unwrap_err();
    assert!(matches!(&ambiguous, CatalogError::AmbiguousBackup { candidates, .. } if candidates.len() == 2), "{ambiguous}");
    for unknown in ["ffff", "latest:none", "", "nonsense"] {
        let error = catalog.find(unknown).unwrap_err();
        assert!(matches!(&error, CatalogError::UnknownBackup { candidates, .. } if candidates.len() == 3), "{error}");
    }
}

#[test]
fn a_6_the_newest_backup_is_the_last_one_made_whatever_its_date() {
    let mut place = place();
    let tree = directory(&[("f", file("x"))]);
    // The second backup is dated 2040.
    let backups: Vec<Backup> = [5, 200, 6].map(|number| place.backup(number, "one", &tree)).into();
    assert_eq!(place.catalog.find("latest").unwrap(), backups[2]);
    assert_eq!(place.catalog.find("latest:one").unwrap(), backups[2]);
    assert_eq!(place.catalog.list().unwrap(), backups);
    assert_eq!(backups.iter().map(|backup| backup.sequence).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(backups[0].seen_ns < backups[1].seen_ns);
    place.catalog.remove_backups(&backups[..1]).unwrap();
    assert_eq!(place.backup(7, "two", &tree).sequence, 4);
}

#[test]
fn a_6_no_backup_gets_the_sequence_of_a_forgotten_one() {
    let mut place = place();
    let tree = directory(&[("f", file("x"))]);
    let backups: Vec<Backup> = [1, 2, 3].map(|number| place.backup(number, "one", &tree)).into();
    place.catalog.remove_backups(&backups[1..]).unwrap();
    assert_eq!(place.backup(4, "one", &tree).sequence, 4);
    // The id of a backup from another store is not reused either.
    let mut copy = Backup { id: BackupId::from_bytes([5; 16]), sequence: 10, ..backups[0].clone() };
    place.catalog.commit_copy(&mut copy).unwrap();
    place.catalog.remove_backups(&[copy]).unwrap();
    assert_eq!(place.backup(6, "two", &tree).sequence, 11);
    // If the note is missing, old or damaged, a new backup still comes after all existing ones.
    for note in [None, Some(vec![1, 3]), Some(vec![9])] {
        let last = place.catalog.newest(|_| true).unwrap().unwrap();
        let changes = vec![(0, b"g".to_vec(), note)];
        place.engine().submit(Transaction { changes, references: Vec::new() }).unwrap();
        assert_eq!(place.backup(last.id.as_bytes()[0] + 1, "one", &tree).sequence, last.sequence + 1);
    }
}

#[test]
fn a_backup_that_is_committed_again_stays_as_it_is() {
    let mut place = place();
    let mut backup = place.backup(5, "one", &directory(&[("f", file("x"))]));
    place.backup(6, "one", &directory(&[]));
    place.catalog.commit_backup(&mut backup).unwrap();
    assert_eq!(backup.sequence, 1);
    assert_eq!(place.catalog.list().unwrap().len(), 2);
    backup.user = "another".into();
    place.catalog.commit_backup(&mut backup).unwrap_err();
}

#[test]
fn a_4_latest_is_the_newest_complete_backup_and_says_what_it_passed_over() {
    let mut place = place();
    let tree = directory(&[("f", file("x"))]);
    let mut made = |number: u8, name: &str, errors: u64, tags: &[&str]| {
        let backup = place.backup(number, name, &tree);
        place.catalog.remove_backups(std::slice::from_ref(&backup)).unwrap();
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let mut backup = Backup { statistics: Statistics { errors, ..Statistics::default() }, tags, ..backup };
        place.catalog.commit_backup(&mut backup).unwrap();
        backup
    };
    let complete = made(1, "a", 0, &["x"]);
    let partial = made(2, "a", 1, &["x"]);
    let only_partial = made(3, "b", 2, &[]);
    let with_sign = made(4, "b#x", 0, &["y"]);
    let find = |asked: &str| place.catalog.look_up(asked).map(|found| (found.backup, found.newer_partial)).ok();
    assert_eq!(find("latest:a"), Some((complete.clone(), Some(partial.clone()))));
    assert_eq!(find("latest-any:a"), Some((partial.clone(), None)));
    assert_eq!(find("latest:b"), Some((only_partial.clone(), None)));
    assert_eq!(find("latest"), Some((with_sign.clone(), None)));
    assert_eq!(find("latest-any"), Some((with_sign.clone(), None)));
    assert_eq!(find(&partial.id.to_string()), Some((partial.clone(), None)));
    // Tags.
    assert_eq!(find("latest#x"), Some((complete, Some(partial.clone()))));
    assert_eq!(find("latest-any:a#x"), Some((partial, None)));
    assert_eq!(find("latest:b#x"), Some((with_sign.clone(), None)), "a name comes before a name with a tag");
    assert_eq!(find("latest:b#x#y"), Some((with_sign, None)));
    assert_eq!((find("latest:a#z"), find("latest#z"), find("latest-anything")), (None, None, None));
}

#[test]
fn removed_backups_are_gone_and_cannot_be_removed_twice() {
    let mut place = place();
    let tree = directory(&[("f", file("x"))]);
    let (first, second) = (place.backup(1, "a", &tree), place.backup(2, "b", &tree));
    place.catalog.remove_backups(&[first.clone(), first.clone()]).unwrap();
    assert_eq!(place.catalog.list().unwrap(), std::slice::from_ref(&second));
    assert!(matches!(place.catalog.remove_backups(&[second.clone(), first]), Err(CatalogError::UnknownBackup { .. })));
    assert_eq!(place.catalog.list().unwrap(), [second]);
}

#[test]
fn a_damaged_record_does_not_stand_before_a_backup_that_is_asked_for_by_its_id() {
    let mut place = place();
    let backup = place.backup(1, "home", &directory(&[]));
    let damaged = onefold_engine::Transaction {
        changes: vec![(0, [b"b".as_slice(), &[2; 16]].concat(), Some(vec![1, 2, 3]))],
        references: Vec::new(),
    };
    place.engine().submit(damaged).unwrap();
    assert_eq!(place.catalog.find(&backup.id.to_string()).unwrap(), backup);
    assert_eq!(place.catalog.find(&backup.id.short()).unwrap(), backup);
    // Without all backups, the newest is unknown.
    assert!(matches!(place.catalog.find("latest"), Err(CatalogError::Damaged { .. })));
    assert!(matches!(place.catalog.list(), Err(CatalogError::Damaged { .. })));
}

#[test]
fn a_backup_that_many_remove_at_once_is_removed_once() {
    let mut place = place();
    for number in 1..20 {
        let backup = place.backup(number, "a", &directory(&[("f", file("x"))]));
        let catalog = &place.catalog;
        let removed = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| catalog.remove_backups(std::slice::from_ref(&backup)).is_ok())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).filter(|is_ok| *is_ok).count()
        });
        assert_eq!(removed, 1);
    }
}

#[test]
fn backups_that_are_made_at_once_have_places_of_their_own() {
    let mut place = place();
    let one = place.backup(1, "a", &directory(&[]));
    std::thread::scope(|scope| {
        for thread in 2..6 {
            let (catalog, one) = (&place.catalog, &one);
            scope.spawn(move || {
                for number in 0..25 {
                    let mut id = [thread; 16];
                    id[0] = number;
                    catalog.commit_backup(&mut Backup { id: BackupId::from_bytes(id), ..one.clone() }).unwrap();
                }
            });
        }
    });
    let places: Vec<u64> = place.catalog.list().unwrap().iter().map(|backup| backup.sequence).collect();
    assert_eq!(places, (1..=101).collect::<Vec<_>>());
}

#[test]
fn a_backup_that_is_removed_and_protected_at_once_is_either() {
    let mut place = place();
    for number in 1..40 {
        let backup = place.backup(number, "a", &directory(&[]));
        let (catalog, backups) = (&place.catalog, std::slice::from_ref(&backup));
        let (protected, removed) = std::thread::scope(|scope| {
            let removing = scope.spawn(|| catalog.remove_backups(backups).is_ok());
            (catalog.protect(backups, Some(i64::MAX)).is_ok(), removing.join().unwrap())
        });
        assert!(protected != removed, "protected: {protected}, removed: {removed}");
        assert_eq!((catalog.has(&backup).unwrap(), catalog.protected().unwrap().contains_key(&backup.id)), (protected, protected));
    }
}

#[test]
fn more_backups_than_a_page_are_all_listed() {
    let mut place = place();
    let tree = directory(&[]);
    let backup = place.backup(1, "a", &tree);
    for number in 0..600u32 {
        let mut id = [9; 16];
        id[..4].copy_from_slice(&number.to_be_bytes());
        let more = Backup { id: BackupId::from_bytes(id), ..backup.clone() };
        let value = more.encode(place.engine().digest_bytes());
        let mut key = vec![b'b'];
        key.extend_from_slice(&id);
        let change = ((number % 4) as u16, key, Some(value));
        place.engine().submit(onefold_engine::Transaction { changes: vec![change], references: vec![] }).unwrap();
    }
    assert_eq!(place.catalog.list().unwrap().len(), 601);
}

#[test]
fn paths_are_looked_up_and_trees_walked() {
    let mut place = place();
    let tree = directory(&[("a", directory(&[("b", file("1")), ("c", directory(&[]))])), ("d", file("2"))]);
    let backup = place.backup(1, "a", &tree);
    let catalog = &place.catalog;
    assert!(catalog.lookup(&backup, b"/").unwrap().is_none());
    assert_eq!(catalog.lookup(&backup, b"/a//./b").unwrap().unwrap().name, b"b");
    assert!(matches!(catalog.lookup(&backup, b"a/x"), Err(CatalogError::PathNotFound { .. })));
    assert!(matches!(catalog.lookup(&backup, b"d/x"), Err(CatalogError::NotADirectory { .. })));
    assert!(catalog.directory(&backup, b"a/c").unwrap().pieces.is_empty());
    let mut paths = Vec::new();
    for item in TreeWalk::new(place.engine(), b"", &backup.root) {
        paths.push(String::from_utf8(item.path).unwrap());
        item.entry.unwrap();
    }
    assert_eq!(paths, ["a", "a/b", "a/c", "d"]);
    let mut walk = TreeWalk::new(place.engine(), b"", &backup.root);
    assert_eq!(walk.next().unwrap().path, b"a");
    walk.skip_directory();
    assert_eq!(walk.next().unwrap().path, b"d");
}

#[test]
fn differences_are_found_and_equal_directories_are_equal_recipes() {
    let mut place = place();
    let same = directory(&[("deep", directory(&[("x", file("same"))]))]);
    let old = directory(&[("a", file("1")), ("gone", directory(&[("g", file("2"))])), ("same", same.clone()), ("turn", file("3"))]);
    let new = directory(&[("a", file("one")), ("new", file("4")), ("same", same), ("turn", directory(&[("t", file("5"))]))]);
    let (old, new) = (place.backup(1, "a", &old), place.backup(2, "a", &new));
    let recipe = |backup| place.catalog.directory(backup, b"same").unwrap();
    assert_eq!(recipe(&old), recipe(&new));
    let mut found = Vec::new();
    diff(&place.catalog, &old, &new, &mut |difference| {
        found.push(match difference {
            Difference::Added { path, .. } => format!("+{}", String::from_utf8_lossy(path)),
            Difference::Removed { path, .. } => format!("-{}", String::from_utf8_lossy(path)),
            Difference::Changed { path, change, .. } => {
                format!("{}{}", if change.kind { 'T' } else { 'M' }, String::from_utf8_lossy(path))
            }
        });
        true
    })
    .unwrap();
    assert_eq!(found, ["Ma", "-gone", "-gone/g", "+new", "Tturn", "+turn/t"]);
    let mut count = 0;
    diff(&place.catalog, &old, &new, &mut |_| {
        count += 1;
        count < 2
    })
    .unwrap();
    assert_eq!(count, 2, "the visitor stops the walk");
}

#[test]
fn a_change_of_one_name_changes_few_chunks_of_a_large_directory() {
    let mut place = place();
    let names = |skip: u32| (0..20_000u32).filter(move |number| *number != skip).map(|number| format!("{number:06}").into_bytes());
    let mut recipes = Vec::new();
    for skip in [u32::MAX, 7777] {
        let mut writer = DirectoryWriter::new(place.engine());
        names(skip).for_each(|name| writer.push(&mut place.stream, &entry(&name, Content::Fifo)).unwrap());
        let recipe = writer.finish(&mut place.stream).unwrap();
        recipes.push(PieceReader::new(place.engine(), &recipe).map(|piece| piece.unwrap().fingerprint()).collect::<Vec<_>>());
    }
    let new = recipes[1].iter().filter(|fingerprint| !recipes[0].contains(fingerprint)).count();
    assert!(recipes[0].len() > 100 && new <= 2, "{new} of {} chunks are new", recipes[1].len());
}

#[test]
fn a_directory_that_claims_to_have_no_end_is_looked_into_all_the_same() {
    let place = place();
    let mut stream = place.engine().stream();
    let digest_bytes = place.engine().digest_bytes();
    let mut store = |kind, content: &[u8]| stream.write_metadata(kind, content, &[]).unwrap();
    let entries = [entry(b"b", Content::Fifo), entry(b"d", Content::Fifo)];
    let mut piece = store(MetadataKind::Directory, &encode_directory_chunk(&entries, digest_bytes));
    for _ in 0..MAX_LEVEL {
        // The same directory a thousand times: ten to the power of 24 directory chunks.
        let mut content = Vec::new();
        encode_pieces(&[piece; 1000], digest_bytes, &mut content);
        piece = store(MetadataKind::Recipe, &content);
    }
    let recipe = Recipe { level: MAX_LEVEL, length: u64::MAX, pieces: vec![piece; 3] };
    for (name, is_there) in [(b"a", false), (b"b", true), (b"c", false), (b"d", true), (b"e", false)] {
        assert_eq!(DirectoryReader::find(place.engine(), &recipe, name).unwrap().is_some(), is_there, "{name:?}");
    }
}

#[test]
fn entries_out_of_order_and_too_long_are_refused_and_the_writer_goes_on() {
    let mut place = place();
    let mut writer = DirectoryWriter::new(place.engine());
    writer.push(&mut place.stream, &entry(b"b", Content::Fifo)).unwrap();
    for name in [&b"a"[..], b"b"] {
        assert!(matches!(writer.push(&mut place.stream, &entry(name, Content::Fifo)), Err(CatalogError::Disordered { .. })));
    }
    let long = entry(b"c", Content::Symlink { target: vec![0; 2 << 20] });
    assert!(matches!(writer.push(&mut place.stream, &long), Err(CatalogError::TooLong { .. })));
    writer.push(&mut place.stream, &entry(b"d", Content::Fifo)).unwrap();
    let recipe = writer.finish(&mut place.stream).unwrap();
    let names: Vec<_> = DirectoryReader::new(place.engine(), &recipe).map(|entry| entry.unwrap().name).collect();
    assert_eq!(names, [b"b", b"d"]);
}

#[test]
fn entries_that_are_longer_than_a_block_come_back() {
    let mut place = place_with(Descriptor::new().unwrap().of_blocks(4096));
    let noise = |seed: u32, length: usize| -> Vec<u8> {
        let digest = |number: usize| {
            *onefold_fingerprint::Algorithm::Blake3.fingerprint(&[seed, number as u32].map(u32::to_le_bytes).concat()).as_bytes()
        };
        (0..length.div_ceil(32)).flat_map(digest).take(length).collect()
    };
    let content = place.store(&file("what a file with many attributes has"));
    let mut entries = Vec::new();
    for number in 0..40u32 {
        let name = format!("{number:03}").into_bytes();
        let mut made = match number % 5 {
            0 => entry(&name, Content::Symlink { target: noise(number, 4095) }),
            1 => entry(&name, Content::HardLink { path: vec![b'/'; 9000 * number as usize] }),
            2 => entry(&name, content.clone()),
            // Some of them fit exactly, and some are one byte too long.
            3 => entry(&name, Content::Symlink { target: noise(number, 4030 + number as usize) }),
            _ => entry(&name, Content::Fifo),
        };
        if number % 5 == 2 {
            made.attributes.xattrs = (0..number * 8).map(|at| (format!("user.{at}").into_bytes(), noise(at, 1000))).collect();
        }
        entries.push(made);
    }
    let mut writer = DirectoryWriter::new(place.engine());
    for entry in &entries {
        writer.push(&mut place.stream, entry).unwrap();
    }
    let too_long = entry(b"long", Content::Symlink { target: vec![1; 1 << 20] });
    let name_too_long = entry(&[b'n'; 4000], Content::Symlink { target: vec![1; 200] });
    for long in [too_long, name_too_long] {
        assert!(matches!(writer.push(&mut place.stream, &long), Err(CatalogError::TooLong { .. })));
    }
    let recipe = writer.finish(&mut place.stream).unwrap();
    let read: Vec<Entry> = DirectoryReader::new(place.engine(), &recipe).map(|entry| entry.unwrap()).collect();
    assert!(read == entries);
    for entry in &entries {
        assert_eq!(DirectoryReader::find(place.engine(), &recipe, &entry.name).unwrap().as_ref(), Some(entry));
    }
    assert_eq!(DirectoryReader::find(place.engine(), &recipe, b"0020").unwrap(), None);
}

#[test]
fn the_rest_of_an_entry_that_claims_anything_is_refused() {
    let mut place = place();
    let digest_bytes = place.engine().digest_bytes();
    let short = entry(b"a", Content::Symlink { target: Vec::new() });
    let pieces = place.stream.write_chunks(&[&b"\0\x06target"[..], b"\x01", &[7; 5000]]).unwrap();
    let zeros = Piece::Zeros { length: 1 << 40 };
    let mut deep = pieces[0];
    for _ in 0..MAX_LEVEL {
        let mut content = Vec::new();
        encode_pieces(&[deep; 1000], digest_bytes, &mut content);
        deep = place.stream.write_metadata(MetadataKind::Recipe, &content, &[]).unwrap();
    }
    let right = Recipe::flat(vec![pieces[0]]);
    let wrong = [
        Recipe::flat(vec![pieces[1]]),
        Recipe::flat(vec![pieces[0], pieces[2]]),
        Recipe::flat(vec![zeros]),
        Recipe { length: 7, ..right.clone() },
        Recipe { level: MAX_LEVEL, length: 1000, pieces: vec![deep] },
        Recipe { level: 1, ..right.clone() },
    ];
    let mut found = |rest: &Recipe| {
        let mut content = vec![0];
        rest.encode(digest_bytes, &mut content);
        short.encode(digest_bytes, &mut content);
        let piece = place.stream.write_metadata(MetadataKind::Directory, &content, &[]).unwrap();
        DirectoryReader::find(place.engine(), &Recipe::flat(vec![piece]), b"a")
    };
    assert_eq!(found(&right).unwrap().unwrap().content, Content::Symlink { target: b"target".to_vec() });
    for rest in &wrong {
        assert!(found(rest).is_err(), "{rest:?}");
    }
}

#[test]
fn a_lost_rest_hides_no_other_name_and_no_content() {
    let mut place = place();
    let digest_bytes = place.engine().digest_bytes();
    let bytes = place.stream.write_chunks(&[&b"\x01"[..]]).unwrap();
    // Not what a rest is like, and no recipe chunk either.
    let wrong = [Recipe::flat(bytes.clone()), Recipe { level: 1, length: 9, pieces: bytes }];
    let content = place.store(&file("the content of a file"));
    for (rest, refers) in wrong.iter().zip([false, true]) {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut pieces = Vec::new();
        let mut expected = Vec::new();
        for number in 0..12 {
            let name = format!("{number:02}").into_bytes();
            let (is_lost, is_link) = (number % 3 == 1, number % 2 == 0);
            let made = match is_link {
                true => entry(&name, Content::Symlink { target: if is_lost { Vec::new() } else { b"there".to_vec() } }),
                false => entry(&name, content.clone()),
            };
            let mut encoded = if is_lost { vec![0] } else { encode_directory_chunk(std::slice::from_ref(&made), digest_bytes) };
            if is_lost {
                rest.encode(digest_bytes, &mut encoded);
                made.encode(digest_bytes, &mut encoded);
            }
            pieces.push(place.stream.write_metadata(MetadataKind::Directory, &encoded, &[]).unwrap());
            names.push(name);
            if !(is_lost && is_link) {
                expected.push(Some(made));
            }
            if is_lost {
                expected.push(None);
            }
        }
        let directory = Recipe::flat(pieces);
        let whole: Vec<Entry> = DirectoryReader::new(place.engine(), &directory).filter_map(|entry| entry.ok()).collect();
        assert_eq!(whole.len(), 8, "who compares gets only what is whole");
        let read: Vec<Option<Entry>> = DirectoryReader::new(place.engine(), &directory)
            .with_incomplete()
            .map(|entry| match entry {
                Err(CatalogError::Rest { refers: found, .. }) if found == refers => None,
                entry => Some(entry.unwrap()),
            })
            .collect();
        assert!(read == expected, "{read:?}");
        for (number, name) in names.iter().enumerate() {
            match DirectoryReader::find(place.engine(), &directory, name) {
                Ok(found) => assert!(expected.contains(&found) && found.unwrap().name == *name),
                Err(error) => assert!(matches!(error, CatalogError::Rest { .. }) && number % 3 == 1, "{error}"),
            }
        }
        assert_eq!(DirectoryReader::find(place.engine(), &directory, b"045").unwrap(), None);
    }
}

#[test]
fn recipes_are_read_back_piece_by_piece() {
    let mut place = place();
    let mut state = 1u64;
    for count in [0, 1, 3, 4, 15, 16, 17, 256, 257, 5000, 60_000] {
        let pieces: Vec<Piece> = (0..count)
            .map(|number| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let digest: Vec<u8> = (0..32u32).map(|byte| (state.rotate_left(byte * 7) >> 16) as u8).collect();
                let fingerprint = onefold_fingerprint::Fingerprint::from_digest(&digest);
                let address = onefold_engine::Address::from_bits(state >> 1);
                if number % 10 == 9 {
                    Piece::Zeros { length: state >> 40 }
                } else {
                    Piece::Chunk { fingerprint, address, offset: 0, length: 8192 }
                }
            })
            .collect();
        let recipe = recipe_of(&mut place, &pieces);
        assert_eq!(recipe.length, pieces.iter().map(Piece::length).sum::<u64>());
        let read: Vec<Piece> = PieceReader::new(place.engine(), &recipe).map(|piece| piece.unwrap()).collect();
        assert!(read == pieces, "{count} pieces");
    }
}

#[test]
fn recipe_chunks_resynchronise_after_an_insertion() {
    let mut place = place();
    let piece = |number: u32| Piece::Chunk {
        fingerprint: onefold_fingerprint::Algorithm::Blake3.fingerprint(&number.to_le_bytes()),
        address: onefold_engine::Address::from_bits(1),
        offset: 0,
        length: 1,
    };
    let mut level_1 = |pieces: &[Piece]| -> Vec<Piece> {
        let recipe = recipe_of(&mut place, pieces);
        assert_eq!(recipe.level, 2);
        recipe.pieces.iter().flat_map(|piece| place.engine().recipe_chunk(piece).unwrap()).collect()
    };
    let mut pieces: Vec<_> = (0..400).map(piece).collect();
    let before = level_1(&pieces);
    pieces.insert(200, piece(99_999));
    let after = level_1(&pieces);
    let changed = after.iter().filter(|piece| !before.contains(piece)).count();
    assert!(after.len() > 10 && (1..=2).contains(&changed), "{changed} of {} recipe chunks changed", after.len());
}

fn recipe_of(place: &mut Place, pieces: &[Piece]) -> Recipe {
    let mut writer = RecipeWriter::new(place.engine());
    pieces.iter().for_each(|piece| writer.push(&mut place.stream, *piece).unwrap());
    writer.finish(&mut place.stream).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn a_directory_is_a_sorted_map(model in proptest::collection::btree_map(proptest::collection::vec(any::<u8>(), 1..6), any::<u16>(), 0..1000)) {
        let mut place = place();
        let mut writer = DirectoryWriter::new(place.engine());
        for (name, mode) in &model {
            let mut entry = entry(name, Content::Socket);
            entry.attributes.mode = mode & 0o7777;
            writer.push(&mut place.stream, &entry).unwrap();
        }
        let recipe: Recipe = writer.finish(&mut place.stream).unwrap();
        let read: Vec<(Vec<u8>, u16)> =
            DirectoryReader::new(place.engine(), &recipe).map(|entry| entry.map(|entry| (entry.name, entry.attributes.mode)).unwrap()).collect();
        prop_assert_eq!(read, model.iter().map(|(name, mode)| (name.clone(), mode & 0o7777)).collect::<Vec<_>>());
        for name in model.keys().take(50).cloned().chain([b"none".to_vec(), vec![], vec![255; 7]]) {
            let found = DirectoryReader::find(place.engine(), &recipe, &name).unwrap();
            prop_assert_eq!(found.map(|entry| entry.name), model.get_key_value(&name).map(|(name, _)| name.clone()));
        }
    }
}
