//! The same attack on two stores: one has what the attacker looks for, the other has not. Every byte of every answer is
//! the same, but for what is random or a time (decision 0059).

mod attackers;

use attackers::*;
use onefold_catalog::{Backup, Content, Entry, Of, encode_directory_chunk};
use onefold_engine::{Address, Piece, Recipe, StoreProfile, encode_pieces};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::Reader;
use onefold_remote::accounts::Limits;
use onefold_remote::services::messages::*;
use onefold_remote::transport::{Channel, ClientSession};
use std::time::Duration;

/// Everything that the attacker was told, in order: what it was, kind, payload.
type Trace = Vec<(String, u8, Vec<u8>)>;

fn plain_piece(piece: &Piece) -> Piece {
    match *piece {
        Piece::Chunk { offset, length, .. } => {
            Piece::Chunk { fingerprint: Fingerprint::from_digest(&[0; DIGEST]), address: Address::from_bits(0), offset, length }
        }
        zeros => zeros,
    }
}

fn plain_recipe(recipe: &Recipe) -> Recipe {
    Recipe { pieces: recipe.pieces.iter().map(plain_piece).collect(), ..recipe.clone() }
}

fn plain_record(backup: &Backup) -> Backup {
    let id = onefold_catalog::BackupId::from_bytes([0; 16]);
    Backup { id, seen_ns: 0, started_ns: 0, finished_ns: 0, root: plain_recipe(&backup.root), ..backup.clone() }
}

/// Takes times, ids and sealed pieces out of an answer on the channel of a backup.
fn plain_answer(answer: BackupAnswer) -> (u8, Vec<u8>) {
    match answer {
        BackupAnswer::Began(began) => {
            let earlier = began.earlier.as_ref().map(plain_record);
            BackupAnswer::Began(Box::new(Began { started_ns: 0, earlier, ..*began })).encode()
        }
        BackupAnswer::Committed(backup) => BackupAnswer::Committed(Box::new(plain_record(&backup))).encode(),
        finished => finished.encode(),
    }
}

struct Attacker<'a> {
    place: &'a Place,
    trace: Trace,
}

impl Attacker<'_> {
    fn note(&mut self, what: &str, (kind, payload): (u8, Vec<u8>)) {
        self.trace.push((what.to_owned(), kind, payload));
    }

    fn refused(&mut self, what: &str, (code, text): Refused) {
        self.note(what, (255, [&code.to_le_bytes()[..], text.as_bytes()].concat()));
    }

    fn begins(&mut self, session: &ClientSession, name: &str) -> (Channel, Channel) {
        let (channel, began) = start(session, name);
        let data = contents(session, began.number);
        self.note("began", plain_answer(BackupAnswer::Began(Box::new(began))));
        (channel, data)
    }

    fn offers(&mut self, data: &Channel, items: Vec<Offered>) -> Option<Vec<bool>> {
        match offer(data, items) {
            Ok(wanted) => {
                self.note("wanted", (Wanted::KIND, Wanted(wanted.clone()).encode()));
                Some(wanted)
            }
            Err(refused) => {
                self.refused("offer", refused);
                None
            }
        }
    }

    /// Stores a file, as long as it is let.
    fn stores(&mut self, data: &Channel, ticket: u64, earlier: &str, chunks: &[Vec<u8>]) {
        let mut rest = chunks;
        for items in file_of(ticket, earlier, chunks).chunks(1000) {
            let Some(wanted) = self.offers(data, items.to_vec()) else { return };
            let (now, later) = rest.split_at(wanted.len());
            rest = later;
            let missing: Vec<Vec<u8>> = now.iter().zip(&wanted).filter(|(_, wanted)| **wanted).map(|(chunk, _)| chunk.clone()).collect();
            missing.chunks(8).for_each(|chunks| put(data, &supply_of(chunks)));
        }
    }

    fn ends(&mut self, channel: &Channel, data: &Channel, steps: Vec<Step>) -> Option<Backup> {
        data.finish();
        loop {
            match receive(data) {
                Ok(Some(message)) => self.note("contents", (message.kind, message.payload)),
                Ok(None) => break,
                Err(refused) => {
                    self.refused("contents", refused);
                    break;
                }
            }
        }
        match finish(channel, steps) {
            Ok(answer) => self.note("finished", plain_answer(answer)),
            Err(refused) => {
                self.refused("tree", refused);
                return None;
            }
        }
        match commit(channel, no_details()) {
            Ok(backup) => {
                self.note("committed", plain_answer(BackupAnswer::Committed(Box::new(backup.clone()))));
                Some(backup)
            }
            Err(refused) => {
                self.refused("commit", refused);
                None
            }
        }
    }

    /// Reads a backup back, with all metadata.
    fn reads(&mut self, session: &ClientSession, which: &Open) {
        let reading = open(session, which).unwrap();
        self.note("record", (1, plain_record(&reading.backup).encode(DIGEST)));
        for entry in reading.entries(&reading.backup.root) {
            let Content::File { recipe, size_bytes } = &entry.content else { panic!("no file") };
            let content = Content::File { size_bytes: *size_bytes, recipe: plain_recipe(recipe) };
            self.note("entry", (2, encode_directory_chunk(&[Entry { content, ..entry.clone() }], DIGEST)));
            let pieces = reading.pieces(recipe, Of::File);
            let mut out = Vec::new();
            encode_pieces(&pieces.iter().map(plain_piece).collect::<Vec<_>>(), DIGEST, &mut out);
            self.note("pieces", (2, out));
            for (at, pieces) in pieces.chunks(8).enumerate() {
                let request = ReadRequest::Data { compresses: at % 2 == 0, pieces: pieces.to_vec() };
                let answer = reading.ask(&request).unwrap();
                self.note("data", answer.encode(DIGEST));
            }
        }
        // The stream has the same metadata in the same order.
        let beside = open(session, &Open::Beside(reading.number)).unwrap();
        let (kind, payload) = ReadRequest::Stream { files: true }.encode(DIGEST);
        beside.channel.send(kind, payload).unwrap();
        while let Some(message) = receive(&beside.channel).unwrap() {
            let ReadAnswer::Metadata(chunks) = ReadAnswer::decode(message.kind, &message.payload, DIGEST).unwrap() else { panic!() };
            for chunk in chunks {
                let content = match chunk.what {
                    Metadata::Directory => Vec::new(),
                    Metadata::Recipe { .. } => {
                        let pieces = onefold_engine::decode_pieces(&mut Reader::new(&chunk.content), DIGEST).unwrap();
                        let mut out = Vec::new();
                        encode_pieces(&pieces.iter().map(plain_piece).collect::<Vec<_>>(), DIGEST, &mut out);
                        out
                    }
                };
                let length = chunk.content.len() as u64;
                self.note("streamed", (chunk.what.number(), [&length.to_le_bytes()[..], &content].concat()));
            }
        }
    }

    fn limit(&self, limits: Limits) {
        self.place.limit("attacker", limits);
    }
}

/// What the attacker looks for, and what nobody has.
fn sought() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    (random(100, 120, 4000), random(200, 120, 4000))
}

fn attack(place: &Place) -> Trace {
    let mut attacker = Attacker { place, trace: Vec::new() };
    let (sought, random_ones) = sought();
    // It tries a few names of its own first.
    let session = place.session("attacker");
    for name in ["victim/0", "victim"] {
        attacker.refused("begin", begin(&session, name).unwrap_err());
    }
    attacker.refused("open", open(&session, &Open::Meant("latest".into())).unwrap_err());
    // Is it there? Before and after it was supplied, and in parts.
    let (channel, data) = attacker.begins(&session, "attacker");
    for (ticket, chunks) in [&sought, &random_ones].into_iter().enumerate() {
        attacker.stores(&data, ticket as u64 * 10, "long", &chunks[..100]);
        attacker.stores(&data, ticket as u64 * 10 + 1, "", &chunks[50..]);
        attacker.stores(&data, ticket as u64 * 10 + 2, "", chunks);
    }
    // Abandoned, and offered again by the next session.
    channel.cancel();
    drop((channel, data, session));
    std::thread::sleep(Duration::from_millis(600));
    let session = place.session("attacker");
    let (channel, data) = attacker.begins(&session, "attacker");
    let mixed: Vec<Vec<u8>> = sought.iter().zip(&random_ones).flat_map(|(a, b)| [a.clone(), b.clone()]).collect();
    attacker.stores(&data, 0, "", &sought[..7]);
    attacker.stores(&data, 1, "", &random_ones[..7]);
    // The last of them first: neighbours help nobody.
    attacker.stores(&data, 2, "", &sought.iter().rev().cloned().collect::<Vec<_>>());
    attacker.stores(&data, 3, "", &random_ones.iter().rev().cloned().collect::<Vec<_>>());
    attacker.stores(&data, 4, "", &mixed);
    let names = ["a", "b", "c", "d", "e"];
    let steps = || names.iter().enumerate().map(|(ticket, name)| entry(name, ticket as u64)).collect();
    let first = attacker.ends(&channel, &data, steps()).unwrap();
    attacker.reads(&session, &Open::Backup(first.id));
    drop(session);
    // The next backup, with and without the earlier versions of the files.
    let session = place.session("attacker");
    let (channel, data) = attacker.begins(&session, "attacker");
    attacker.stores(&data, 0, "a", &sought);
    attacker.stores(&data, 1, "b", &random_ones);
    attacker.stores(&data, 2, "c", &sought);
    attacker.stores(&data, 3, "", &sought[..30]);
    attacker.stores(&data, 4, "", &random_ones[..30]);
    let second = attacker.ends(&channel, &data, steps()).unwrap();
    attacker.reads(&session, &Open::Meant("latest".into()));
    assert_eq!(second.statistics.added_bytes, second.statistics.stored_bytes);
    // Chunks under the names of others.
    for chunks in [&sought, &random_ones] {
        let (channel, data) = attacker.begins(&session, "attacker/misnamed");
        attacker.offers(&data, file_of(1, "", &chunks[..2]));
        put(&data, &supply_of(&[chunks[1].clone(), chunks[0].clone()]));
        attacker.refused("misnamed", refusal(&data));
        channel.cancel();
    }
    // Quotas.
    for (limits, chunks) in [
        (Limits { new_bytes_a_day: Some(3_000_000), ..Limits::default() }, &sought),
        (Limits { logical_bytes: Some(9_000_000), ..Limits::default() }, &sought),
        (Limits { logical_bytes: Some(100), ..Limits::default() }, &random_ones),
    ] {
        for again in 0..3 {
            let (channel, data) = attacker.begins(&session, &format!("attacker/quota/{again}"));
            // A quota that is used up would refuse the begin, and so all that follows.
            attacker.limit(limits);
            attacker.stores(&data, 0, "", chunks);
            attacker.ends(&channel, &data, vec![entry("file", 0)]);
            attacker.limit(Limits::default());
        }
    }
    attacker.trace
}

/// Has the victim store what is sought, in the way that hurts most: scattered over files and containers, beside much
/// else, some of it in several backups.
fn fill(place: &Place) {
    let (sought, _) = sought();
    let session = place.session("victim");
    for backup in 0..6u64 {
        let (channel, began) = start(&session, &format!("victim/{backup}"));
        let data = contents(&session, began.number);
        let mut ticket = 0;
        for (at, chunk) in sought.iter().enumerate().filter(|(at, _)| *at as u64 % 6 <= backup) {
            let file = [random(1000 + at as u64, 6, 4000), vec![chunk.clone()], random(2000 + at as u64, 6, 4000)].concat();
            store(&data, ticket, "", &file).unwrap();
            ticket += 1;
        }
        data.finish();
        finish(&channel, (0..ticket).map(|ticket| entry(&format!("{ticket:05}"), ticket)).collect()).unwrap();
        commit(&channel, no_details()).unwrap();
    }
    session.close().unwrap();
}

fn compare(profile: StoreProfile) {
    let (with, without) = (Place::new(profile), Place::new(profile));
    fill(&with);
    let before = with.catalog.engine().stored_bytes();
    let (found, nothing) = std::thread::scope(|scope| {
        let found = scope.spawn(|| attack(&with));
        let nothing = attack(&without);
        (found.join().unwrap(), nothing)
    });
    assert!(before > without.catalog.engine().stored_bytes(), "the victim has much");
    assert_eq!(found.len(), nothing.len());
    for (at, (with, without)) in found.iter().zip(&nothing).enumerate() {
        assert!(with == without, "answer {at}, {}: {:?} with the victim's data, {:?} without", with.0, with, without);
    }
    assert!(found.len() > 100);
}

#[test]
fn an_attack_hears_the_same_with_and_without_the_victims_data_in_an_exact_store() {
    compare(StoreProfile::Exact);
}

#[test]
fn an_attack_hears_the_same_with_and_without_the_victims_data_in_a_marked_store() {
    compare(StoreProfile::Marked);
}

#[test]
fn an_attack_hears_the_same_with_and_without_the_victims_data_in_a_sampled_store() {
    compare(StoreProfile::Sampled);
}
