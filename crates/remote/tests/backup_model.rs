//! Backup sessions in random interleavings, over links that are cut, against a plain model of the tree: what is read
//! back is what the model has.

#[path = "common/proxy.rs"]
#[allow(dead_code, reason = "a part is used")]
mod proxy;

mod attackers;

use attackers::*;
use onefold_catalog::{Attributes, Backup};
use onefold_engine::StoreProfile;
use onefold_remote::services::messages::*;
use onefold_remote::transport::{Channel, ClientSession};
use std::collections::BTreeMap;
use std::time::Duration;

/// Files by path; directories end with `/` and have nothing.
type Tree = BTreeMap<String, Vec<Vec<u8>>>;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % limit
    }
}

/// A chunk out of few, so that many come again; sometimes zeros.
fn chunk(random: &mut Random) -> Vec<u8> {
    match random.below(8) {
        0 => vec![0; 1 + random.below(3000)],
        _ => {
            let seed = random.below(60) as u64;
            attackers::random(seed, 1, 1 + (seed as usize * 97) % 3000).remove(0)
        }
    }
}

/// The entries of a directory, by name: files, and directories with their prefix.
fn children(tree: &Tree, prefix: &str) -> Vec<(String, bool)> {
    let mut names: BTreeMap<String, bool> = BTreeMap::new();
    for path in tree.keys().filter(|path| path.len() > prefix.len()) {
        let Some(rest) = path.strip_prefix(prefix) else { continue };
        match rest.split_once('/') {
            Some((name, _)) => names.insert(name.to_owned(), true),
            None => names.insert(rest.to_owned(), false),
        };
    }
    names.into_iter().collect()
}

/// A change: some files come, change, or go.
fn changed(tree: &Tree, random: &mut Random) -> Tree {
    let mut tree = tree.clone();
    for _ in 0..=random.below(6) {
        let directory = ["", "a/", "a/b/", "c/"][random.below(4)];
        let path = format!("{directory}f{}", random.below(6));
        if random.below(5) == 0 {
            tree.remove(&path);
        } else {
            let count = random.below(30);
            tree.insert(path, (0..count).map(|_| chunk(random)).collect());
            // All directories on the way.
            directory.match_indices('/').for_each(|(at, _)| drop(tree.insert(directory[..=at].to_owned(), Vec::new())));
        }
    }
    tree
}

/// What a client does to make a backup, in an order that is drawn.
struct Client<'a> {
    random: &'a mut Random,
    session: &'a ClientSession,
    number: u64,
    writers: Vec<Channel>,
    next_ticket: u64,
    steps: Vec<Step>,
}

impl Client<'_> {
    /// Stores a file by some channel, with a file before it that is dropped half-way.
    fn stores(&mut self, path: &str, chunks: &[Vec<u8>]) -> u64 {
        if self.writers.len() < 3 && self.random.below(3) == 0 || self.writers.is_empty() {
            self.writers.push(contents(self.session, self.number));
        }
        let writer = &self.writers[self.random.below(self.writers.len())];
        let ticket = self.next_ticket;
        self.next_ticket += 2;
        if self.random.below(4) == 0 {
            // What is wanted of it is supplied all the same.
            let chunks = attackers::random(self.random.0, 2, 500);
            let mut items = file_of(ticket + 1, "", &chunks);
            items.pop();
            items.push(Offered::Zeros { length: 5 });
            assert_eq!(offer(writer, items).unwrap(), [true, true]);
            put(writer, &supply_of(&chunks));
        }
        let earlier = if self.random.below(2) == 0 { path } else { "" };
        self.pieces(ticket, earlier, chunks, &mut Random(self.random.0));
        ticket
    }

    /// Offers in several messages, and supplies in parts of any size.
    fn pieces(&self, ticket: u64, earlier: &str, chunks: &[Vec<u8>], random: &mut Random) {
        let writer = &self.writers[random.below(self.writers.len())];
        let mut items = vec![Offered::Begin { ticket, earlier: earlier.as_bytes().to_vec() }];
        let (mut offered, mut missing): (Vec<&Vec<u8>>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
        for (at, chunk) in chunks.iter().enumerate() {
            if chunk.iter().all(|byte| *byte == 0) {
                items.push(Offered::Zeros { length: chunk.len() as u64 });
            } else {
                items.push(Offered::Chunk { fingerprint: name_of(chunk), length: chunk.len() as u32 });
                offered.push(chunk);
            }
            if random.below(10) == 0 || at + 1 == chunks.len() {
                let wanted = offer(writer, std::mem::take(&mut items)).unwrap();
                missing.extend(offered.drain(..).zip(wanted).filter(|(_, wanted)| *wanted).map(|(chunk, _)| chunk.clone()));
            }
            while missing.len() > random.below(12) {
                let count = 1 + random.below(missing.len().min(8));
                put(writer, &supply_of(&missing.drain(..count).collect::<Vec<_>>()));
            }
        }
        while !missing.is_empty() {
            let count = missing.len().min(8);
            put(writer, &supply_of(&missing.drain(..count).collect::<Vec<_>>()));
        }
        items.push(Offered::End);
        offer(writer, items).unwrap();
    }

    fn tell(&mut self, channel: &Channel, step: Step) {
        self.steps.push(step);
        if self.random.below(4) == 0 {
            say(channel, &BackupRequest::Steps(std::mem::take(&mut self.steps)));
        }
    }

    /// Builds a directory; what did not change is kept or put again, as it comes.
    fn directory(&mut self, channel: &Channel, tree: &Tree, earlier: Option<&Tree>, prefix: &str) {
        let before = earlier.map(|earlier| children(earlier, prefix)).unwrap_or_default();
        let index =
            |name: &str, is_directory| before.iter().position(|entry| *entry == (name.to_owned(), is_directory)).map(|at| at as u64);
        for (name, is_directory) in children(tree, prefix) {
            let path = format!("{prefix}{name}");
            let at = index(&name, is_directory);
            if is_directory {
                let below = |tree: &Tree| -> Tree {
                    tree.iter().filter(|(path_, _)| path_.starts_with(&format!("{path}/"))).map(|(a, b)| (a.clone(), b.clone())).collect()
                };
                if let (Some(from), Some(earlier)) = (at, earlier)
                    && below(earlier) == below(tree)
                    && self.random.below(4) > 0
                {
                    self.keep(channel, from, &name);
                    continue;
                }
                self.tell(channel, Step::Enter { name: name.into_bytes(), attributes: Attributes::default(), earlier: at });
                self.directory(channel, tree, earlier.filter(|_| at.is_some()), &format!("{path}/"));
                self.tell(channel, Step::Leave { has_all: false });
            } else {
                if let (Some(from), Some(earlier)) = (at, earlier)
                    && earlier.get(&path) == tree.get(&path)
                    && self.random.below(4) > 0
                {
                    self.keep(channel, from, &name);
                    continue;
                }
                let ticket = self.stores(&path, &tree[&path]);
                let Step::Put { entry, ticket, .. } = entry(&name, ticket) else { unreachable!() };
                self.tell(channel, Step::Put { entry, ticket, earlier: at });
            }
        }
    }

    fn keep(&mut self, channel: &Channel, from: u64, name: &str) {
        let mut names = KeptNames::default();
        names.add(name.as_bytes());
        self.tell(channel, Step::Keep { from, count: 1, names: names.sum() });
    }
}

/// Makes a backup of a tree. `None`: it was given up half-way.
fn backs_up(session: &ClientSession, random: &mut Random, tree: &Tree, earlier: Option<&Tree>, gives_up: bool) -> Option<Backup> {
    let (channel, began) = start(session, "attacker");
    assert_eq!(began.earlier.is_some(), earlier.is_some());
    let next_ticket = random.below(1000) as u64;
    let mut client = Client { random, session, number: began.number, writers: Vec::new(), next_ticket, steps: Vec::new() };
    client.directory(&channel, tree, earlier, "");
    if gives_up {
        return None;
    }
    let (writers, steps) = (std::mem::take(&mut client.writers), std::mem::take(&mut client.steps));
    writers.iter().for_each(Channel::finish);
    finish(&channel, steps).unwrap();
    let backup = commit(&channel, no_details()).unwrap();
    writers.iter().for_each(|writer| assert_eq!(receive(writer), Ok(None)));
    Some(backup)
}

/// Returns how often a link broke.
fn run(profile: StoreProfile, seed: u64) -> usize {
    let place = Place::new(profile);
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let cuts = random.0;
    // Every connection but some breaks after some bytes.
    let fate = move |number: usize| {
        let mut random = Random((cuts ^ (number as u64 + 1).wrapping_mul(0xd134_2543_de82_ef95)) | 1);
        let mut cut = |chance| (random.below(chance) == 0).then(|| 3000 + random.below(60_000) as u64);
        proxy::Fate { cut_up: cut(2), cut_down: cut(3), stall_down: None }
    };
    let proxy = proxy::Proxy::start(place.address, Duration::ZERO, fate);
    let sessions = std::cell::Cell::new(0);
    let connect = || loop {
        sessions.set(sessions.get() + 1);
        // A connection that breaks in its first bytes makes no session.
        if let Ok(session) = place.session_at("attacker", proxy.address) {
            break session;
        }
    };
    let (mut earlier, mut session): (Option<Tree>, _) = (None, connect());
    let mut made = Vec::new();
    for _ in 0..5 {
        let tree = changed(earlier.as_ref().unwrap_or(&Tree::new()), &mut random);
        if random.below(3) == 0 {
            backs_up(&session, &mut random, &tree, earlier.as_ref(), true);
            if random.below(2) == 0 {
                session = connect();
            }
        }
        let backup = backs_up(&session, &mut random, &tree, earlier.as_ref(), false).unwrap();
        made.push((backup, tree.clone()));
        earlier = Some(tree);
    }
    // All of them, as they were.
    let reader = place.session("attacker");
    for (backup, tree) in &made {
        let expected: BTreeMap<String, Vec<u8>> = tree.iter().map(|(path, chunks)| (path.clone(), chunks.concat())).collect();
        assert_eq!(read_all(&reader, &Open::Backup(backup.id)), expected, "seed {seed}");
    }
    let records = place.catalog.list().unwrap();
    assert_eq!(records.len(), made.len(), "what was given up is not there");
    proxy.connections.load(std::sync::atomic::Ordering::SeqCst) - sessions.get()
}

#[test]
fn m3_2_backups_in_any_order_of_steps_over_broken_links_are_what_the_model_has() {
    let exact: usize = (1..=4).map(|seed| run(StoreProfile::Exact, seed)).sum();
    let sampled: usize = (5..=6).map(|seed| run(StoreProfile::Sampled, seed)).sum();
    assert!(exact + sampled > 5, "links broke {exact} and {sampled} times");
}
