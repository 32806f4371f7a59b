//! Attacks on the server of backups by its clients, which say anything (`docs/security.md`).

mod attackers;

use attackers::*;
use onefold_catalog::{Attributes, BackupId, Content, Entry, MAX_DEPTH, Of, Statistics};
use onefold_engine::{Address, Piece, Recipe, StoreProfile};
use onefold_fingerprint::Fingerprint;
use onefold_remote::accounts::Limits;
use onefold_remote::services::messages::*;
use onefold_remote::transport::{Channel, ClientSession};
use onefold_storage::{Codec, Compression, Compressor};
use std::time::{Duration, Instant};

const EXACT: StoreProfile = StoreProfile::Exact;

fn secret() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    vec![("long", random(1, 60, 5000)), ("secret-file", random(2, 2, 700))]
}

fn nothing() -> BackupId {
    BackupId::from_bytes([7; 16])
}

// What an account may not do.

#[test]
fn without_the_permission_everything_is_refused_in_the_same_words_whether_it_exists_or_not() {
    let place = Place::new(EXACT);
    let backup = place.victim(&secret());
    for (account, may_back_up) in [("nobody", false), ("attacker", false), ("reader", false), ("writer", true)] {
        let session = place.session(account);
        let refusals: Vec<Refused> = ["victim/secret-group", "victim/no-such", "unheard-of", "teamwork"]
            .iter()
            .map(|name| begin(&session, name).unwrap_err())
            .collect();
        assert!(refusals.iter().all(|refused| refused.0 == codes::FORBIDDEN && *refused == refusals[0]), "{account}: {refusals:?}");
        assert_eq!(begin(&session, "team/x").is_ok(), may_back_up, "{account}");
        let (real, other) = (open(&session, &Open::Backup(backup.id)).unwrap_err(), open(&session, &Open::Backup(nothing())).unwrap_err());
        assert_eq!(real, other, "{account}");
        assert_eq!(real.0, codes::FORBIDDEN);
        // What is meant by words is said back, and nothing else.
        let id = backup.id.to_string();
        for (real, other) in [
            (id.as_str(), nothing().to_string().as_str()),
            (&id[..6], "070707"),
            (&id[..4], "0707"),
            ("latest:victim/secret-group", "latest:victim/none"),
            ("latest:victim", "latest:nobody-at-all"),
            ("latest-any:victim/secret-group", "latest-any:none"),
            ("latest#tag", "latest#tug"),
        ] {
            let said = [real, other].map(|asked| open(&session, &Open::Meant(asked.to_owned())).unwrap_err());
            assert!(said.iter().all(|said| said.0 == codes::UNKNOWN), "{said:?}");
            assert_eq!(said[0].1.replace(real, "?"), said[1].1.replace(other, "?"), "{account}");
            assert!(!said[0].1.contains("secret-group") || real.contains("secret-group"), "{}", said[0].1);
        }
        // Numbers are those of the session.
        for number in [0, 1, 2, 77, u64::MAX] {
            let data = contents(&session, number + u64::from(may_back_up && number == 1) * 90);
            assert_eq!(refusal(&data).0, codes::MALFORMED);
            assert_eq!(open(&session, &Open::Beside(number)).unwrap_err().0, codes::MALFORMED);
        }
        for service in [0, 9, 255] {
            assert_eq!(refusal(&session.open(service, Vec::new()).unwrap()).0, codes::FORBIDDEN);
        }
    }
    place.victim_is_whole(&backup, &secret());
}

#[test]
fn latest_is_the_newest_of_the_account_and_candidates_are_its_own() {
    let place = Place::new(EXACT);
    let session = place.session("attacker");
    let own: Vec<_> = (0..40).map(|at| back_up(&session, &format!("attacker/{at}"), &[])).collect();
    let theirs = place.session("victim");
    let victims: Vec<_> = (0..40).map(|_| back_up(&theirs, "victim", &[]).id.to_string()).collect();
    assert_eq!(open(&session, &Open::Meant("latest".into())).unwrap().backup.id, own[39].id);
    let mut ambiguous = 0;
    for digit in "0123456789abcdef".chars() {
        if let Err((code, text)) = open(&session, &Open::Meant(digit.to_string())) {
            assert_eq!(code, codes::UNKNOWN);
            assert!(!text.contains("victim") && !victims.iter().any(|id| text.contains(id)), "{text}");
            ambiguous += usize::from(text.contains("attacker/"));
        }
    }
    assert!(ambiguous > 0, "40 ids share first digits");
    assert!(own.iter().all(|backup| backup.sequence == 0), "the place in the order of all backups is nobody's business");
}

#[test]
fn a_backup_of_others_is_no_parent_whatever_is_said_of_it() {
    let place = Place::new(EXACT);
    let victim = place.victim(&secret());
    let session = place.session("attacker");
    for against in [Against::This(victim.id), Against::This(nothing()), Against::Newest] {
        let begin = Begin { against, host: victim.host.clone(), paths: victim.paths.clone(), ..beginning("attacker") };
        let (channel, began) = begin_with(&session, &begin).unwrap();
        assert_eq!((began.earlier, began.damage.as_str()), (None, ""));
        assert_eq!(open(&session, &Open::Earlier(began.number)).unwrap_err().0, codes::MALFORMED);
        say(&channel, &BackupRequest::Start);
        // Nothing of the victim's tree can be kept, and its files help with nothing.
        let data = contents(&session, began.number);
        assert_eq!(offer(&data, file_of(1, "long", &secret()[0].1)).unwrap(), vec![true; 60]);
        let keep = Step::Keep { from: 0, count: 1, names: 0 };
        assert_eq!(finish(&channel, vec![keep]).unwrap_err().0, codes::MALFORMED);
    }
    // An account that may write to a group, and not read it, learns nothing of what is in the group.
    place.accounts.set("victim", |account| account.permissions = grants(&[("victim", "backup,read"), ("team", "backup,read")])).unwrap();
    let team = back_up(&place.session("victim"), "team", &secret());
    let writer = place.session("writer");
    for against in [Against::This(team.id), Against::Newest] {
        let (_, began) = begin_with(&writer, &Begin { against, ..beginning("team") }).unwrap();
        assert_eq!(began.earlier, None);
    }
    assert!(open(&place.session("reader"), &Open::Backup(team.id)).is_ok());
}

#[test]
fn names_of_backups_that_lead_elsewhere_are_refused() {
    let place = Place::new(EXACT);
    let session = place.session("attacker");
    let long = format!("attacker/{}", "x".repeat(300));
    for name in [
        "attacker/../victim",
        "attacker//x",
        "attacker/",
        "attacker/.",
        "attacker/..",
        "attacker/a b",
        "attacker/\0",
        "attacker/ä",
        "attacker/\u{1b}[2J",
        "attacker/a\nb",
        &long,
        "attacker/1/2/3/4/5/6/7/8",
    ] {
        assert_eq!(begin(&session, name).unwrap_err().0, codes::MALFORMED, "{name:?}");
    }
    for name in ["", "attackerX", "../attacker", "/attacker", "Attacker", "attacker\0/x", "./attacker", "*"] {
        assert_eq!(begin(&session, name).unwrap_err().0, codes::FORBIDDEN, "{name:?}");
    }
    let begin = Begin { host: "\u{1b}]0;title\u{7}".into(), ..beginning("attacker") };
    assert_eq!(begin_with(&session, &begin).unwrap_err().0, codes::MALFORMED);
    assert!(begin_with(&session, &beginning("attacker/x")).is_ok());
}

// Trees.

fn plain(name: &[u8]) -> Step {
    let entry = Entry { name: name.to_vec(), attributes: Attributes::default(), content: Content::Fifo };
    Step::Put { entry, ticket: None, earlier: None }
}

fn enter(name: &[u8]) -> Step {
    Step::Enter { name: name.to_vec(), attributes: Attributes::default(), earlier: None }
}

fn sum(names: &[&str]) -> u64 {
    let mut kept = KeptNames::default();
    names.iter().for_each(|name| kept.add(name.as_bytes()));
    kept.sum()
}

#[test]
fn trees_that_no_file_system_has_are_refused() {
    let place = Place::new(EXACT);
    let session = place.session("attacker");
    back_up(&session, "attacker", &[("a", Vec::new()), ("b", Vec::new()), ("c", Vec::new())]);
    let leave = || Step::Leave { has_all: true };
    let refused: Vec<(&str, Vec<Step>)> = vec![
        ("parent", vec![plain(b"..")]),
        ("itself", vec![plain(b".")]),
        ("slash", vec![plain(b"a/b")]),
        ("absolute", vec![plain(b"/etc/passwd")]),
        ("zero byte", vec![plain(b"a\0")]),
        ("empty", vec![plain(b"")]),
        ("directory above", vec![enter(b".."), leave()]),
        ("directory without a name", vec![enter(b""), leave()]),
        ("unsorted", vec![plain(b"b"), plain(b"a")]),
        ("twice", vec![plain(b"a"), plain(b"a")]),
        ("twice, as a directory", vec![plain(b"a"), enter(b"a"), leave()]),
        ("kept behind a later one", vec![plain(b"b"), Step::Keep { from: 0, count: 1, names: sum(&["a"]) }]),
        ("kept twice", vec![Step::Keep { from: 0, count: 1, names: sum(&["a"]) }, Step::Keep { from: 0, count: 1, names: sum(&["a"]) }]),
        (
            "indexes that go back",
            vec![
                Step::Keep { from: 1, count: 1, names: sum(&["b"]) },
                Step::Put {
                    entry: Entry { name: b"c".to_vec(), attributes: Attributes::default(), content: Content::Fifo },
                    ticket: None,
                    earlier: Some(0),
                },
            ],
        ),
        ("kept in a new directory", vec![enter(b"d"), Step::Keep { from: 0, count: 1, names: sum(&["a"]) }]),
        ("the root is left", vec![leave()]),
        ("within a directory", vec![enter(b"d")]),
        ("too deep", (0..=MAX_DEPTH).map(|_| enter(b"d")).collect()),
    ];
    for (what, steps) in refused {
        let (channel, _) = start(&session, "attacker");
        let refused = finish(&channel, steps).unwrap_err();
        assert_eq!(refused.0, codes::MALFORMED, "{what}: {refused:?}");
    }
    let beyond_the_end = [
        Step::Keep { from: 0, count: 4, names: sum(&["a", "b", "c"]) },
        Step::Keep { from: u64::MAX, count: 1, names: 0 },
        Step::Keep { from: 0, count: u64::MAX, names: 0 },
    ];
    for step in beyond_the_end {
        let (channel, _) = start(&session, "attacker");
        assert_eq!(finish(&channel, vec![step]).unwrap_err().0, codes::STALE);
    }
    // Nothing is refused that is allowed.
    let (channel, _) = start(&session, "attacker");
    let steps =
        vec![Step::Keep { from: 0, count: 1, names: sum(&["a"]) }, Step::Keep { from: 2, count: 1, names: sum(&["c"]) }, plain(b"d")];
    finish(&channel, steps).unwrap();
    let backup = commit(&channel, no_details()).unwrap();
    assert_eq!(read_all(&session, &Open::Backup(backup.id)).into_keys().collect::<Vec<_>>(), ["a", "c"]);
}

#[test]
fn entries_are_kept_only_under_the_names_that_the_client_saw() {
    let place = Place::new(EXACT);
    let session = place.session("attacker");
    back_up(&session, "attacker", &[("a", Vec::new()), ("b", Vec::new())]);
    for names in [0, sum(&["b"]), sum(&["a", "b"]), sum(&["a"]) ^ 1] {
        let (channel, _) = start(&session, "attacker");
        let refused = finish(&channel, vec![Step::Keep { from: 0, count: 1, names }]).unwrap_err();
        assert_eq!(refused.0, codes::STALE);
    }
    let (channel, _) = start(&session, "attacker");
    let put = Entry { name: b"x".to_vec(), attributes: Attributes::default(), content: Content::Fifo };
    assert_eq!(finish(&channel, vec![Step::Put { entry: put, ticket: None, earlier: Some(0) }]).unwrap_err().0, codes::STALE);
}

#[test]
fn steps_out_of_order_end_the_backup() {
    let place = Place::new(EXACT);
    let session = place.session("attacker");
    let finish = || BackupRequest::Finish;
    let commit = || BackupRequest::Commit(no_details());
    let steps = || BackupRequest::Steps(vec![plain(b"a")]);
    for requests in [
        vec![finish()],
        vec![steps()],
        vec![commit()],
        vec![BackupRequest::Start, BackupRequest::Start],
        vec![BackupRequest::Start, commit()],
        vec![BackupRequest::Start, steps(), commit()],
        vec![BackupRequest::Start, finish(), finish()],
        vec![BackupRequest::Start, finish(), steps()],
        vec![BackupRequest::Start, finish(), BackupRequest::Start],
    ] {
        let (channel, _) = begin(&session, "attacker").unwrap();
        requests.iter().for_each(|request| say(&channel, request));
        assert_eq!(refusal(&channel).0, codes::MALFORMED, "{requests:?}");
    }
    for (kind, payload) in [(0, vec![]), (5, vec![]), (127, vec![1, 2]), (1, vec![0]), (2, vec![9]), (4, vec![255; 9])] {
        let (channel, _) = begin(&session, "attacker").unwrap();
        channel.send(kind, payload).unwrap();
        assert_eq!(refusal(&channel).0, codes::MALFORMED);
    }
    assert!(place.catalog.list().unwrap().is_empty());
}

#[test]
fn tickets_serve_once_and_only_in_their_own_backup() {
    let place = Place::new(EXACT);
    let session = place.session("attacker");
    // Twice, by contents and by the tree.
    let (_channel, began) = start(&session, "attacker");
    let data = contents(&session, began.number);
    store(&data, 5, "", &random(3, 1, 100)).unwrap();
    put(&data, &ContentsRequest::Offer(file_of(5, "", &[])));
    put(&data, &ContentsRequest::Offer(file_of(5, "", &[])));
    assert_eq!(refusal(&data).0, codes::MALFORMED);
    let (channel, began) = start(&session, "attacker");
    let data = contents(&session, began.number);
    store(&data, 5, "", &random(3, 1, 100)).unwrap();
    data.finish();
    assert_eq!(receive(&data), Ok(None));
    say(&channel, &BackupRequest::Steps(vec![entry("a", 5), entry("b", 5)]));
    channel.cancel();
    // That of another backup of the session, and of another session.
    let other = place.session("attacker");
    let (mine, mine_began) = start(&session, "attacker");
    let (_theirs, theirs_began) = start(&other, "attacker/other");
    let data = contents(&other, theirs_began.number);
    store(&data, 9, "", &random(4, 1, 100)).unwrap();
    say(&mine, &BackupRequest::Steps(vec![entry("a", 9)]));
    let until = Instant::now() + Duration::from_millis(700);
    assert_eq!(mine.receive_until(until).unwrap(), onefold_remote::transport::Received::Timeout, "nobody else's ticket is taken");
    mine.cancel();
    // Numbers of other sessions mean nothing.
    assert!(mine_began.number > theirs_began.number);
    assert_eq!(refusal(&contents(&other, mine_began.number)).0, codes::MALFORMED);
    assert_eq!(open(&other, &Open::Earlier(mine_began.number)).unwrap_err().0, codes::MALFORMED);
}

#[test]
fn records_that_would_harm_readers_are_refused() {
    let place = Place::new(EXACT);
    let session = place.session("attacker");
    let mut wrong = Vec::new();
    for tags in [vec!["b", "a"], vec!["a", "a"], vec![""], vec!["a,b"], vec!["a b"], vec!["a\u{1b}"]] {
        wrong.push(Commit { tags: tags.into_iter().map(str::to_owned).collect(), ..no_details() });
    }
    wrong.push(Commit { tags: (0..2000).map(|number| format!("{number:06}")).collect(), ..no_details() });
    wrong.push(Commit { tags: vec!["x".repeat(65)], ..no_details() });
    wrong.push(Commit { user: "\u{1b}[31mroot".into(), ..no_details() });
    wrong.push(Commit { user: "u".repeat(5000), ..no_details() });
    wrong.push(Commit { options: "\u{9b}1m".into(), ..no_details() });
    wrong.push(Commit { options: "o".repeat(70_000), ..no_details() });
    for details in wrong {
        let (channel, _) = start(&session, "attacker");
        finish(&channel, Vec::new()).unwrap();
        assert_eq!(commit(&channel, details.clone()).unwrap_err().0, codes::MALFORMED, "{details:?}");
    }
    assert!(place.catalog.list().unwrap().is_empty());
}

// Readings.

fn piece(fingerprint: Fingerprint, address: Address, offset: u32, length: u32) -> Piece {
    Piece::Chunk { fingerprint, address, offset, length }
}

fn parts(piece: &Piece) -> (Fingerprint, Address, u32, u32) {
    let Piece::Chunk { fingerprint, address, offset, length } = *piece else { panic!("zeros") };
    (fingerprint, address, offset, length)
}

/// The pieces of a file's content at the store.
fn real_pieces(place: &Place, backup: BackupId, file: &str) -> Vec<Piece> {
    let engine = place.catalog.engine();
    let backup = place.catalog.find(&backup.to_string()).unwrap();
    let entry = onefold_catalog::lookup(engine, &backup.root, file.as_bytes()).unwrap().unwrap();
    let Content::File { recipe, .. } = entry.content else { panic!("no file") };
    let mut pieces = Vec::new();
    engine
        .expand(&recipe, &mut |piece| {
            pieces.push(*piece);
            true
        })
        .unwrap();
    pieces
}

#[test]
fn forged_pieces_open_nothing() {
    let place = Place::new(EXACT);
    let victim = place.victim(&secret());
    let session = place.session("attacker");
    let own_chunks = random(5, 40, 3000);
    let own = back_up(&session, "attacker", &[("own", own_chunks.clone())]);
    let reading = open(&session, &Open::Backup(own.id)).unwrap();
    let entries = reading.entries(&reading.backup.root);
    let Content::File { recipe, .. } = &entries[0].content else { panic!("no file") };
    assert!(recipe.level > 0);
    let sealed = reading.pieces(recipe, Of::File);
    let failed = |pieces: &[Piece], what: &str| match reading.data(pieces).unwrap() {
        ReadAnswer::Failed(text) => {
            let names = pieces.iter().filter_map(Piece::fingerprint).map(|name| name.to_string());
            assert!(!names.into_iter().any(|name| text.contains(&name[..8])), "{text}");
            text
        }
        other => panic!("{what}: {other:?}"),
    };
    // Real names, with real addresses and any others.
    let mut texts = Vec::new();
    for real in real_pieces(&place, victim.id, "long").into_iter().chain(real_pieces(&place, own.id, "own")) {
        let (name, address, _, length) = parts(&real);
        for address in [address, Address::from_bits(0), Address::from_bits(u64::MAX), parts(&sealed[0]).1] {
            texts.push(failed(&[piece(name, address, 0, length)], "a real name"));
        }
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    // Changed bits.
    let (name, address, _, length) = parts(&sealed[3]);
    for bit in 0..256 {
        let mut digest = *name.as_bytes();
        digest[bit / 8] ^= 1 << (bit % 8);
        failed(&[piece(Fingerprint::from_digest(&digest), address, 0, length)], "a bit of the name");
    }
    for bit in 0..64 {
        failed(&[piece(name, Address::from_bits(address.bits() ^ 1 << bit), 0, length)], "a bit of the address");
    }
    // Another reading's, also of the same backup; half of one and half of another.
    let other = open(&session, &Open::Backup(own.id)).unwrap();
    let theirs = other.pieces(recipe_of(&other), Of::File);
    failed(&theirs[..1], "sealed for another reading");
    failed(&[piece(parts(&sealed[0]).0, parts(&sealed[1]).1, 0, 100)], "two halves");
    // Metadata as data, and the other way; another kind of metadata.
    let root = &reading.backup.root.pieces[0];
    failed(&[*root], "a directory as data");
    failed(&[recipe.pieces[0]], "a recipe as data");
    let level = recipe.level;
    for (piece, what) in [
        (&sealed[0], Metadata::Directory),
        (&sealed[0], Metadata::Recipe { level: 1, of: Of::File }),
        (&recipe.pieces[0], Metadata::Directory),
        (&recipe.pieces[0], Metadata::Recipe { level, of: Of::Directory }),
        (&recipe.pieces[0], Metadata::Recipe { level: level + 1, of: Of::File }),
        (root, Metadata::Recipe { level: 1, of: Of::Directory }),
        (&theirs[0], Metadata::Directory),
    ] {
        reading.metadata(piece, what).unwrap_err();
    }
    // The reading goes on, and nothing was harmed.
    assert_eq!(reading.files()["own"], own_chunks.concat());
    let (mut lost, engine) = (0, place.catalog.engine());
    engine.for_each_quarantined(&mut |_| lost += 1).unwrap();
    assert_eq!(lost, 0, "a forged piece makes no chunk count as lost");
    place.victim_is_whole(&victim, &secret());
}

fn recipe_of(reading: &Reading) -> &'static Recipe {
    let entries = reading.entries(&reading.backup.root);
    let Content::File { recipe, .. } = entries[0].content.clone() else { panic!("no file") };
    Box::leak(Box::new(recipe))
}

#[test]
fn questions_beyond_a_chunk_or_a_message_are_refused() {
    let place = Place::new(EXACT);
    let session = place.session("attacker");
    let chunk = random(6, 1, 3000);
    let own = back_up(&session, "attacker", &[("own", chunk.clone())]);
    let reading = || {
        let reading = open(&session, &Open::Backup(own.id)).unwrap();
        let sealed = reading.pieces(recipe_of(&reading), Of::File);
        let (name, address, ..) = parts(&sealed[0]);
        (reading, name, address)
    };
    let (first, name, address) = reading();
    for (offset, length) in [(0, 3001), (3000, 1), (2999, 2), (16 << 20, 1), (1, 3000), (0, 100_000)] {
        let answer = first.data(&[piece(name, address, offset, length)]).unwrap();
        assert!(matches!(answer, ReadAnswer::Failed(_)), "{offset} {length}: {answer:?}");
    }
    let ReadAnswer::Data { bytes, .. } = first.data(&[piece(name, address, 10, 20), Piece::Zeros { length: 5 }]).unwrap() else {
        panic!("it is there")
    };
    assert_eq!(bytes, [&chunk[0][10..30], &[0; 5]].concat());
    let long = Piece::Zeros { length: u64::MAX };
    for pieces in [
        vec![piece(name, address, 0, 0)],
        vec![piece(name, address, u32::MAX, 1)],
        vec![Piece::Zeros { length: 0 }],
        vec![long, long],
        vec![Piece::Zeros { length: 2 << 20 }],
        vec![Piece::Zeros { length: 1 << 40 }],
        vec![Piece::Zeros { length: 1 }; 100_000],
    ] {
        let (reading, ..) = reading();
        assert_eq!(reading.data(&pieces).unwrap_err().0, codes::MALFORMED, "{:?}", pieces.first());
    }
    for (kind, payload) in
        [(1, vec![0, 0]), (1, vec![200, 1, 1, 1]), (1, vec![0, 1, 1, 1]), (3, vec![2]), (4, vec![]), (2, vec![0, 255, 255, 255, 255, 15])]
    {
        let (reading, ..) = reading();
        reading.channel.send(kind, payload).unwrap();
        assert_eq!(refusal(&reading.channel).0, codes::MALFORMED);
    }
}

#[test]
fn a_reading_of_another_session_is_not_read() {
    let place = Place::new(EXACT);
    let victim = place.victim(&secret());
    let theirs = place.session("victim");
    let reading = open(&theirs, &Open::Backup(victim.id)).unwrap();
    for account in ["attacker", "victim"] {
        let session = place.session(account);
        assert_eq!(open(&session, &Open::Beside(reading.number)).unwrap_err().0, codes::MALFORMED);
    }
    let session = place.session("attacker");
    let own = back_up(&session, "attacker", &[("own", random(7, 1, 100))]);
    let mine = open(&session, &Open::Backup(own.id)).unwrap();
    // The victim's own sealed pieces, should they leak.
    let stolen = reading.backup.root.pieces[0];
    mine.metadata(&stolen, Metadata::Directory).unwrap_err();
}

#[test]
fn an_account_that_loses_the_permission_reads_no_further() {
    let place = Place::new(EXACT);
    let session = place.session("attacker");
    let own = back_up(&session, "attacker", &[("own", random(7, 1, 100))]);
    let reading = open(&session, &Open::Backup(own.id)).unwrap();
    let root = reading.backup.root.pieces[0];
    reading.metadata(&root, Metadata::Directory).unwrap();
    place.accounts.set("attacker", |account| account.permissions = grants(&[("attacker", "backup")])).unwrap();
    let asked = reading.ask(&ReadRequest::Metadata { piece: root, what: Metadata::Directory });
    assert_eq!(asked.unwrap_err().0, codes::FORBIDDEN);
}

// Contents.

fn fresh(session: &ClientSession) -> (Channel, Channel) {
    let (channel, began) = start(session, "attacker");
    let data = contents(session, began.number);
    (channel, data)
}

#[test]
fn a_chunk_under_a_wrong_name_is_not_stored_and_the_next_writer_gets_its_own_bytes_back() {
    let place = Place::new(EXACT);
    let session = place.session("attacker");
    let (good, bad) = (random(8, 3, 2000), random(9, 3, 2000));
    // Alone, and behind good ones: then none of them is stored.
    for forged in [vec![bad[0].clone()], vec![good[1].clone(), bad[0].clone()], vec![bad[0].clone(), good[1].clone()]] {
        let (_channel, data) = fresh(&session);
        let names: Vec<Vec<u8>> = if forged.len() == 1 { vec![good[0].clone()] } else { vec![good[1].clone(), good[0].clone()] };
        offer(&data, file_of(1, "", &names)).unwrap();
        put(&data, &supply_of(&forged));
        assert_eq!(refusal(&data), (codes::MISNAMED, "a chunk has another name than its bytes".to_owned()));
    }
    let engine = place.catalog.engine();
    engine.flush().unwrap();
    for chunk in good.iter().chain(&bad) {
        assert_eq!(engine.locate(&name_of(chunk)).unwrap(), None);
    }
    place.victim(&[("file", good)]);
}

#[test]
fn m3_1_supplies_that_are_no_answer_to_an_offer_are_refused() {
    let place = Place::new(EXACT);
    let victim = place.victim(&secret());
    let session = place.session("attacker");
    let chunks = random(10, 4, 1000);
    let (all, bytes) = (chunks.concat(), chunks.concat().len() as u64);
    let supply = |chunks, codec, raw_bytes, bytes: &[u8]| ContentsRequest::Supply { chunks, codec, raw_bytes, bytes: bytes.to_vec() };
    let (codec, zstd) = {
        let mut compressor = Compressor::new(Compression::Zstd(1));
        let (codec, zstd) = compressor.compress(&[b'x'; 4000]);
        (codec as u8, zstd.to_vec())
    };
    assert_eq!(codec, Codec::Zstd as u8);
    for (what, request) in [
        ("shorter", supply(4, 0, bytes - 1, &all[1..])),
        ("longer", supply(4, 0, bytes + 1, &[&all[..], &[0]].concat())),
        ("fewer bytes than it says", supply(4, 0, bytes, &all[1..])),
        ("more bytes than it says", supply(4, 0, bytes, &[&all[..], &[0]].concat())),
        ("nothing", supply(0, 0, 0, &[])),
        ("more chunks than offered", supply(5, 0, bytes, &all)),
        ("a huge number", supply(u64::MAX, 0, bytes, &all)),
        ("a huge length", supply(4, 0, u64::MAX, &all)),
        ("no such codec", supply(4, 5, bytes, &all)),
        ("no such codec either", supply(4, 255, bytes, &all)),
        ("garbage as zstd", supply(4, 2, bytes, &all)),
        ("garbage as lz4", supply(4, 1, bytes, &all)),
        ("garbage as zlib", supply(4, 3, bytes, &all)),
        ("garbage as bzip2", supply(4, 4, bytes, &all)),
        ("two frames", supply(4, 2, bytes, &[&zstd[..], &zstd[..]].concat())),
        ("a frame and a skippable one", supply(4, 2, bytes, &[&zstd[..], &[0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4]].concat())),
        ("half a frame", supply(4, 2, bytes, &zstd[..zstd.len() / 2])),
        // A frame header with a window of 2 GiB and without a size, and one that says 2^60 bytes.
        ("a huge window", supply(4, 2, bytes, &[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0, 0])),
        ("a huge content", supply(4, 2, bytes, &[0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0x01, 0, 0])),
        ("a dictionary", supply(4, 2, bytes, &[0x28, 0xb5, 0x2f, 0xfd, 0x21, 0x07, 0xa0, 0x01, 0, 0])),
    ] {
        let (_channel, data) = fresh(&session);
        offer(&data, file_of(1, "", &chunks)).unwrap();
        put(&data, &request);
        let refused = refusal(&data);
        assert!([codes::MALFORMED, codes::MISNAMED].contains(&refused.0), "{what}: {refused:?}");
    }
    // Without an offer, for known chunks, and twice.
    let (_channel, data) = fresh(&session);
    put(&data, &supply_of(&chunks));
    assert_eq!(refusal(&data).0, codes::MALFORMED);
    let (_channel, data) = fresh(&session);
    store(&data, 1, "", &chunks).unwrap();
    put(&data, &supply_of(&chunks));
    assert_eq!(refusal(&data).0, codes::MALFORMED);
    place.victim_is_whole(&victim, &secret());
}

#[test]
fn a_bomb_is_not_unpacked_beyond_what_was_offered() {
    let place = Place::new(EXACT);
    let session = place.session("attacker");
    let chunks = random(10, 2, 1000);
    let mut compressor = Compressor::new(Compression::Zstd(1));
    let bomb = vec![b'b'; 4 << 20];
    let (codec, bytes) = compressor.compress(&bomb);
    let (codec, bytes) = (codec as u8, bytes.to_vec());
    assert!(bytes.len() < 2000);
    for raw_bytes in [2000, 4 << 20] {
        let (_channel, data) = fresh(&session);
        offer(&data, file_of(1, "", &chunks)).unwrap();
        put(&data, &ContentsRequest::Supply { chunks: 2, codec, raw_bytes, bytes: bytes.clone() });
        assert_eq!(refusal(&data).0, codes::MALFORMED);
    }
    // Offered as long: 128 chunks of 32 KiB are more than a supply has.
    let (_channel, data) = fresh(&session);
    let item = |at: u64| Offered::Chunk { fingerprint: name_of(&at.to_le_bytes()), length: 32 << 10 };
    let items = [Offered::Begin { ticket: 1, earlier: Vec::new() }].into_iter().chain((0..128).map(item)).collect();
    assert_eq!(offer(&data, items).unwrap(), vec![true; 128]);
    put(&data, &ContentsRequest::Supply { chunks: 128, codec, raw_bytes: 4 << 20, bytes });
    assert_eq!(refusal(&data).0, codes::MALFORMED);
}

#[test]
fn a_known_chunk_of_another_length_is_another_chunk() {
    let place = Place::new(EXACT);
    let session = place.session("attacker");
    let chunk = random(11, 1, 1000);
    let lying = |length| {
        vec![
            Offered::Begin { ticket: 7, earlier: b"file".to_vec() },
            Offered::Chunk { fingerprint: name_of(&chunk[0]), length },
            Offered::End,
        ]
    };
    back_up(&session, "attacker", &[("file", chunk.clone())]);
    // Of the earlier backup, of this one, asked for a moment ago, and of an unfinished one.
    let (channel, data) = fresh(&session);
    assert_eq!(offer(&data, lying(1000)).unwrap(), [false], "it is near the same place of the file");
    assert_eq!(offer(&data, lying(1001)).unwrap(), [true]);
    channel.cancel();
    let chunk = random(12, 1, 1000);
    let lying = |length| {
        vec![Offered::Begin { ticket: 7, earlier: Vec::new() }, Offered::Chunk { fingerprint: name_of(&chunk[0]), length }, Offered::End]
    };
    let (channel, data) = fresh(&session);
    assert_eq!(offer(&data, lying(1000)).unwrap(), [true]);
    assert_eq!(offer(&data, lying(999)).unwrap_err().0, codes::MALFORMED);
    channel.cancel();
    let (channel, data) = fresh(&session);
    store(&data, 1, "", &chunk).unwrap();
    assert_eq!(offer(&data, lying(2000)).unwrap(), [true]);
    put(&data, &ContentsRequest::Supply { chunks: 1, codec: 0, raw_bytes: 2000, bytes: [&chunk[0][..], &chunk[0]].concat() });
    assert_eq!(refusal(&data).0, codes::MISNAMED);
    channel.cancel();
    let (_channel, data) = again(&session);
    assert_eq!(offer(&data, lying(1000)).unwrap(), [false], "an unfinished backup had it");
    assert_eq!(offer(&data, [&lying(10)[..], &lying(2000)[..]].concat()).unwrap_err().0, codes::MALFORMED);
}

/// Begins again, once the server has seen the end of what was cancelled.
fn again(session: &ClientSession) -> (Channel, Channel) {
    std::thread::sleep(Duration::from_millis(500));
    fresh(session)
}

#[test]
fn offers_beyond_the_bounds_are_refused_and_cost_no_memory() {
    let place = Place::new(EXACT);
    let session = place.session("attacker");
    let chunk = |at: usize| Offered::Chunk { fingerprint: name_of(&at.to_le_bytes()), length: 1 };
    let begin = || Offered::Begin { ticket: 1, earlier: Vec::new() };
    for items in [
        [vec![begin()], (0..=MAX_OFFERED).map(chunk).collect()].concat(),
        vec![Offered::End; MAX_QUEUED + 1],
        vec![begin(), Offered::Zeros { length: 0 }],
        vec![begin(), Offered::Chunk { fingerprint: name_of(b"x"), length: 0 }],
        vec![begin(), Offered::Chunk { fingerprint: name_of(b"x"), length: (16 << 20) + 1 }],
        vec![begin(), Offered::Chunk { fingerprint: name_of(b"x"), length: u32::MAX }],
        vec![Offered::End],
        vec![Offered::Zeros { length: 1 }],
        vec![begin(), Offered::End, Offered::Zeros { length: 1 }],
    ] {
        let (_channel, data) = fresh(&session);
        // Some are refused behind the answer to the offer, which may arrive.
        put(&data, &ContentsRequest::Offer(items));
        assert_eq!(refusal(&data).0, codes::MALFORMED);
    }
    // Never supplied.
    let (_channel, data) = fresh(&session);
    let mut offers = 0;
    let refused = loop {
        let items = [vec![begin()], (0..MAX_OFFERED).map(|at| chunk(offers * MAX_OFFERED + at)).collect()].concat();
        match offer(&data, items) {
            Ok(_) => offers += 1,
            Err(refused) => break refused,
        }
        assert!(offers <= 80);
    };
    assert_eq!(refused.0, codes::MALFORMED);
    assert!(offers * MAX_OFFERED >= MAX_WANTED);
    // The end without supplies, and zeros whose sum overflows.
    let (_channel, data) = fresh(&session);
    offer(&data, file_of(1, "", &random(13, 1, 10))).unwrap();
    data.finish();
    assert_eq!(refusal(&data).0, codes::MALFORMED);
    let (channel, data) = fresh(&session);
    let zeros = || Offered::Zeros { length: u64::MAX };
    assert_eq!(offer(&data, vec![begin(), zeros(), zeros(), Offered::End]).unwrap(), Vec::<bool>::new());
    data.finish();
    finish(&channel, vec![entry("zeros", 1)]).unwrap();
    commit(&channel, no_details()).unwrap();
    // A chunk of zeros may be supplied, and is none when it comes again.
    let (_channel, data) = again(&session);
    let zeros = vec![vec![0; 500]];
    assert_eq!(store(&data, 1, "", &zeros).unwrap(), [true]);
    assert_eq!(offer(&data, file_of(2, "", &zeros)).unwrap(), [true]);
    assert_eq!(offer(&data, file_of(3, "", &zeros)).unwrap(), [false]);
    put(&data, &supply_of(&zeros));
    assert_eq!(refusal(&data).0, codes::MALFORMED);
}

#[test]
fn messages_of_many_small_things_are_refused_before_they_fill_memory() {
    let nothing = Step::Keep { from: 0, count: 0, names: KeptNames::default().sum() };
    let place = Place::new(EXACT);
    let session = place.session("attacker");
    let (channel, _) = start(&session, "attacker");
    assert_eq!(finish(&channel, vec![nothing.clone(); MAX_STEPS + 1]).unwrap_err().0, codes::MALFORMED);
    let (channel, _) = start(&session, "attacker");
    finish(&channel, vec![nothing; MAX_STEPS]).unwrap();
}

#[test]
fn channels_that_never_read_delay_nobody_else() {
    let place = Place::new(EXACT);
    let victim = place.victim(&secret());
    let session = place.session("attacker");
    let own = back_up(&session, "attacker", &[("own", random(14, 400, 4000))]);
    let deaf: Vec<Reading> = (0..16)
        .map(|_| open(&session, &Open::Backup(own.id)).unwrap())
        .inspect(|reading| {
            let sealed = Piece::Zeros { length: 1 << 20 };
            for _ in 0..8 {
                let (kind, payload) = ReadRequest::Data { compresses: false, pieces: vec![sealed] }.encode(DIGEST);
                reading.channel.send(kind, payload).unwrap();
            }
        })
        .collect();
    let begun = Instant::now();
    place.victim_is_whole(&victim, &secret());
    let other = place.session("attacker");
    back_up(&other, "attacker/other", &[("own", random(15, 20, 4000))]);
    assert!(begun.elapsed() < Duration::from_secs(10));
    drop(deaf);
}

#[test]
fn a_session_that_ends_leaves_no_service_waiting() {
    let place = Place::new(EXACT);
    let session = place.session("attacker");
    // Trees that wait for content which never comes, contents of backups that never begin, readings.
    for number in 0..5 {
        let (channel, began) = start(&session, &format!("attacker/{number}"));
        say(&channel, &BackupRequest::Steps(vec![entry("a", 9)]));
        let (waiting, data) = (begin(&session, "attacker").unwrap(), contents(&session, began.number));
        offer(&data, file_of(9, "", &random(number, 1, 10))).unwrap();
        drop((channel, waiting, data));
    }
    let (channel, began) = start(&session, "attacker");
    say(&channel, &BackupRequest::Steps(vec![entry("a", 9)]));
    let data = contents(&session, began.number);
    drop((session, channel, data));
    place.serves(0);
}

#[test]
fn a_client_that_leaves_keeps_no_thread_that_waits_for_a_start_or_a_rate() {
    let place = Place::new(EXACT);
    place.limit("attacker", Limits { bytes_per_second: Some(1000), ..Limits::default() });
    let session = place.session("attacker");
    let (waiting, began) = begin(&session, "attacker").unwrap();
    for _ in 0..3 {
        drop(contents(&session, began.number));
    }
    place.serves(1);
    drop(waiting);
    let (starting, began) = start(&session, "attacker");
    let data = contents(&session, began.number);
    let chunks = random(1, 10, 10_000);
    assert_eq!(offer(&data, file_of(1, "", &chunks)).unwrap(), [true; 10]);
    put(&data, &supply_of(&chunks));
    std::thread::sleep(Duration::from_millis(100));
    drop((starting, data));
    place.serves(0);
}

#[test]
fn a_list_has_only_what_the_account_may_read() {
    let place = Place::new(EXACT);
    place.victim(&[("secret", random(1, 3, 1000))]);
    let session = place.session("attacker");
    back_up(&session, "attacker", &[("own", random(2, 3, 1000))]);
    assert_eq!(place.lists(&session), ["attacker"]);
    assert!(place.lists(&place.session("nobody")).is_empty());
    let refused = session.open(services::LIST, vec![0]).unwrap();
    assert_eq!(refusal(&refused).0, codes::MALFORMED);
}

#[test]
fn a_session_ends_with_its_secret_unless_that_is_accepted_for_a_while() {
    let place = Place::new(EXACT);
    let session = place.session("attacker");
    place.accounts.rotate("attacker", Some(Duration::from_secs(3600))).unwrap();
    start(&session, "attacker");
    let newer = place.session("attacker");
    place.accounts.rotate("attacker", None).unwrap();
    for session in [session, newer] {
        assert_eq!(begin(&session, "attacker").unwrap_err().0, codes::FORBIDDEN);
    }
    let session = place.session("attacker");
    start(&session, "attacker");
    // Another one of the same name.
    place.accounts.delete("attacker", true).unwrap();
    place.accounts.create("attacker", Default::default()).unwrap();
    assert_eq!(begin(&session, "attacker").unwrap_err().0, codes::FORBIDDEN);
}

// Quotas.

#[test]
fn quotas_hold_whatever_the_client_says_of_itself() {
    let place = Place::new(EXACT);
    let session = place.session("attacker");
    place.limit("attacker", Limits { logical_bytes: Some(10_000), ..Limits::default() });
    let lying = Commit { statistics: Statistics { logical_bytes: 1, ..Statistics::default() }, ..no_details() };
    let back_up = |name: &str, bytes: usize| {
        let (channel, began) = start(&session, name);
        let data = contents(&session, began.number);
        store(&data, 1, "", &random(bytes as u64, bytes / 1000, 1000)).unwrap();
        data.finish();
        finish(&channel, vec![entry("file", 1)]).unwrap();
        commit(&channel, lying.clone())
    };
    assert_eq!(back_up("attacker/a", 6000).unwrap().statistics.logical_bytes, 6000);
    let (code, text) = back_up("attacker/b", 6000).unwrap_err();
    assert_eq!(code, codes::QUOTA);
    assert!(!text.contains("12000"), "the sum would tell what backups have that it may not read: {text}");
    // Zeros count, too.
    let (channel, data) = fresh(&session);
    offer(&data, vec![Offered::Begin { ticket: 1, earlier: Vec::new() }, Offered::Zeros { length: u64::MAX }, Offered::End]).unwrap();
    data.finish();
    finish(&channel, vec![entry("file", 1)]).unwrap();
    assert_eq!(commit(&channel, lying.clone()).unwrap_err().0, codes::QUOTA);
    assert_eq!(back_up("attacker/c", 4000).unwrap().statistics.logical_bytes, 4000);
    // Now it is used up: the next one does not begin.
    assert_eq!(begin(&session, "attacker/d").unwrap_err().0, codes::QUOTA);
}

#[test]
fn the_quota_of_a_day_counts_supplies_and_the_tree() {
    let place = Place::new(EXACT);
    let session = place.session("attacker");
    place.limit("attacker", Limits { new_bytes_a_day: Some(100_000), ..Limits::default() });
    let chunks = random(16, 30, 4000);
    let (_channel, data) = fresh(&session);
    assert_eq!(store(&data, 1, "", &chunks).and_then(|_| store(&data, 2, "", &random(17, 1, 10))).unwrap_err().0, codes::QUOTA);
    // What was refused is not stored.
    let engine = place.catalog.engine();
    engine.flush().unwrap();
    assert_eq!(engine.locate(&name_of(&chunks[29])).unwrap(), None);
    // Data in names and attributes are data.
    let (channel, _) = start(&session, "attacker");
    let mut attributes = Attributes::default();
    attributes.xattrs.push((b"user.x".to_vec(), vec![b'x'; 60_000]));
    let entry = Entry { name: b"a".to_vec(), attributes, content: Content::Fifo };
    assert_eq!(finish(&channel, vec![Step::Put { entry, ticket: None, earlier: None }]).unwrap_err().0, codes::QUOTA);
}

#[test]
fn a_locked_or_deleted_account_is_stopped_at_the_next_supply_step_or_question() {
    for deletes in [false, true] {
        let place = Place::new(EXACT);
        let session = place.session("attacker");
        let own = back_up(&session, "attacker", &[("own", random(18, 1, 100))]);
        let reading = open(&session, &Open::Backup(own.id)).unwrap();
        let chunks = random(19, 2, 1000);
        let (channel, data) = fresh(&session);
        offer(&data, file_of(1, "", &chunks)).unwrap();
        put(&data, &supply_of(&chunks[..1]));
        if deletes {
            place.accounts.delete("attacker", true).unwrap();
        } else {
            place.accounts.lock("attacker").unwrap();
        }
        put(&data, &supply_of(&chunks[1..]));
        assert_eq!(refusal(&data).0, codes::FORBIDDEN);
        assert_eq!(finish(&channel, Vec::new()).unwrap_err().0, codes::FORBIDDEN);
        assert_eq!(reading.data(&[Piece::Zeros { length: 1 }]).unwrap_err().0, codes::FORBIDDEN);
        assert_eq!(begin(&session, "attacker").unwrap_err().0, codes::FORBIDDEN);
        assert_eq!(open(&session, &Open::Backup(own.id)).unwrap_err().0, codes::FORBIDDEN);
        assert_eq!(open(&session, &Open::Meant("latest".into())).unwrap_err().0, codes::FORBIDDEN);
    }
}
