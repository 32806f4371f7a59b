//! A model of partitions that move between nodes with a log each: by plan, and because a node is gone.

use super::model::Dice;
use super::*;
use onefold_ground::BucketPart;

/// Keys of a partition.
const KEYS: u8 = 6;
const PARTITIONS: u8 = 4;

/// Records are `key, whether it is removed first, change of its count`, as chunks have them: what counts twice or not
/// at all shows.
#[derive(Debug)]
struct Counting;

type Counts = BTreeMap<u8, i8>;

fn count(key: u8, is_removed: bool, delta: i8) -> Record {
    let payload = vec![key, u8::from(is_removed), delta as u8];
    Record { kind: 1, partition: Partition { class: PartitionClass::ChunkIndex, number: 0 }, payload }
}

fn apply_counts(counts: &mut Counts, records: &[Record]) {
    for record in records {
        let [key, is_removed, delta] = record.payload[..] else { panic!("{record:?}") };
        let before = if is_removed == 1 { 0 } else { counts.get(&key).copied().unwrap_or_default() };
        match before + delta as i8 {
            0 => drop(counts.remove(&key)),
            after => drop(counts.insert(key, after)),
        }
    }
}

impl Meaning for Counting {
    fn effects(&self, records: &[Record], out: &mut KeyedEffects) -> std::result::Result<(), String> {
        records.iter().for_each(|record| out.push(&record.payload[..1], &record.payload[1..]));
        Ok(())
    }

    fn compose(&self, _: &[u8], older: &[u8], newer: &[u8]) -> std::result::Result<Vec<u8>, String> {
        Ok(if newer[0] == 1 { newer.to_vec() } else { vec![older[0], (older[1] as i8 + newer[1] as i8) as u8] })
    }

    fn is_nothing(&self, _: &[u8], effect: &[u8]) -> bool {
        effect[1] == 0
    }

    fn records(&self, effects: &KeyedEffects) -> std::result::Result<Vec<Record>, String> {
        Ok(effects.iter().map(|(key, effect)| count(key[0], effect[0] == 1, effect[1] as i8)).collect())
    }
}

/// One log of a lineage.
#[derive(Clone, Copy, Debug)]
struct Link {
    node: u64,
    since: Position,
    /// `None`: the node is the owner.
    upto: Option<Position>,
}

struct Node {
    log: ObjectLog,
    directory: SimulatedGround,
}

/// The cluster. What the master and the table do in earnest, it does at once.
struct World {
    bucket: MemoryBucket,
    dice: Dice,
    lineages: Vec<Vec<Link>>,
    nodes: BTreeMap<u64, Node>,
    /// They are gone for all others, and go on.
    zombies: Vec<ObjectLog>,
    next: u64,
    known: Counts,
    /// How often each happened that makes this test worth something.
    taken_over: usize,
    restated: usize,
    came_back: usize,
}

fn node_place(bucket: &MemoryBucket, node: u64, directory: &SimulatedGround) -> LogPlace {
    let mut owner = [0; 8];
    owner[0] = node as u8;
    let part = BucketPart::new(Arc::new(bucket.clone()), format!("nodes/{node:02}/"));
    LogPlace { owner, ..place(Arc::new(part), directory) }
}

fn keys_of(partition: usize) -> Holding {
    let from = partition as u8 * KEYS;
    Holding { from: vec![from], to: Some(vec![from + KEYS]), since: Position(0), is_first: true }
}

impl World {
    fn new(seed: u64) -> World {
        let (bucket, dice) = (MemoryBucket::new(), Dice(seed));
        let mut world = World {
            bucket,
            dice,
            lineages: vec![vec![Link { node: 0, since: Position(0), upto: None }]; PARTITIONS.into()],
            nodes: BTreeMap::new(),
            zombies: Vec::new(),
            next: 0,
            known: Counts::new(),
            taken_over: 0,
            restated: 0,
            came_back: 0,
        };
        world.join();
        world.join();
        world
    }

    fn below(&mut self, end: usize) -> usize {
        self.dice.below(end as u64) as usize
    }

    fn join(&mut self) {
        let (node, directory) = (self.next, directory());
        let place = node_place(&self.bucket, node, &directory);
        ObjectLog::create(&*place.bucket, STORE).unwrap();
        self.next += 1;
        let log = self.opened(node, &directory).unwrap();
        self.nodes.insert(node, Node { log, directory });
        self.hold(node);
    }

    fn opened(&self, node: u64, directory: &SimulatedGround) -> Result<ObjectLog> {
        let place = node_place(&self.bucket, node, directory);
        let looked = ObjectLog::look_for_taking(place, SMALL, Arc::new(Counting))?;
        Ok(looked.taken(1, &[], &mut never_wait)?.with_piece_bytes(45))
    }

    /// Tells a node's log what the table says of it.
    fn hold(&self, node: u64) {
        let holding = |(partition, lineage): (usize, &Vec<Link>)| {
            let at = lineage.iter().position(|link| link.node == node)?;
            Some(Holding { since: lineage[at].since, is_first: at == 0, ..keys_of(partition) })
        };
        let holdings = self.lineages.iter().enumerate().filter_map(holding).collect();
        self.nodes[&node].log.hold(Holdings::of(holdings).unwrap());
    }

    fn hold_all(&self) {
        self.nodes.keys().for_each(|node| self.hold(*node));
    }

    fn some_node(&mut self) -> u64 {
        let at = self.below(self.nodes.len());
        *self.nodes.keys().nth(at).unwrap()
    }

    fn owner(&self, partition: usize) -> u64 {
        self.lineages[partition].last().unwrap().node
    }

    /// Whether a node may drop and merge what its log has: a partition that came back to it was written down again.
    fn may_tidy(&self, node: u64) -> bool {
        self.lineages.iter().all(|lineage| lineage.iter().filter(|link| link.node == node).count() < 2)
    }

    /// Commits changes of keys of all partitions of a node. Returns the keys.
    fn commit(&mut self, node: u64) -> Vec<u8> {
        let owned: Vec<u8> = (0..PARTITIONS).filter(|partition| self.owner((*partition).into()) == node).collect();
        let mut records = Vec::new();
        for partition in owned {
            for _ in 0..self.below(3) {
                let key = partition * KEYS + self.below(KEYS.into()) as u8;
                let is_removed = self.below(6) == 0;
                let now = if is_removed { 0 } else { self.known.get(&key).copied().unwrap_or_default() };
                let delta = self.below(4) as i8 - i8::from(now > 0) * 2;
                if (0..100).contains(&(now + delta)) {
                    let record = count(key, is_removed, delta);
                    apply_counts(&mut self.known, std::slice::from_ref(&record));
                    records.push(record);
                }
            }
        }
        self.nodes[&node].log.commit(&records).unwrap();
        records.iter().map(|record| record.payload[0]).collect()
    }

    /// Reads a partition as somebody does who never had it.
    fn read(&self, partition: usize) -> Counts {
        let mut counts = Counts::new();
        for link in &self.lineages[partition] {
            let place = node_place(&self.bucket, link.node, &directory());
            let log = ObjectLog::open(LogPlace { keeps_copies: false, ..place }, SMALL, Arc::new(Counting)).unwrap();
            let holdings = Holdings::of(vec![Holding { since: link.since, ..keys_of(partition) }]).unwrap();
            let upto = link.upto.unwrap_or(Position(u64::MAX));
            let mut visit = |records: &[Record]| {
                apply_counts(&mut counts, records);
                ControlFlow::Continue(())
            };
            log.replay_holdings(&holdings, upto, &mut visit).unwrap();
        }
        counts
    }

    fn check(&self, partition: usize, what: &str) {
        let keys = partition as u8 * KEYS..(partition as u8 + 1) * KEYS;
        let expected: Counts = self.known.range(keys).map(|(key, value)| (*key, *value)).collect();
        assert_eq!(self.read(partition), expected, "partition {partition} after {what}: {:?}", self.lineages[partition]);
    }

    /// Gives a partition, whose owner's log ends here for it, to another node.
    fn give(&mut self, partition: usize, upto: Position, node: u64) {
        let log = &self.nodes[&node].log;
        log.jump_to(upto).unwrap();
        let lineage = &mut self.lineages[partition];
        lineage.last_mut().unwrap().upto = Some(upto);
        self.came_back += usize::from(lineage.iter().any(|link| link.node == node));
        lineage.push(Link { node, since: log.end(), upto: None });
    }

    /// Moves a partition by plan. One that was not written down again stays where it is.
    fn move_one(&mut self) {
        let (partition, to) = (self.below(PARTITIONS.into()), self.some_node());
        let from = self.owner(partition);
        if from != to && self.lineages[partition].len() == 1 {
            let upto = self.nodes[&from].log.end();
            self.give(partition, upto, to);
            self.hold_all();
        }
    }

    /// A node is gone. Others take over what it had.
    fn lose(&mut self) {
        let lost = self.some_node();
        if self.nodes.len() < 2 {
            self.join();
        }
        let may_tidy = self.may_tidy(lost);
        let node = self.nodes.remove(&lost).unwrap();
        // A master may die in the middle of it.
        for step in 0..self.below(3) as u64 {
            self.bucket.fail_at_change(self.bucket.changes() + step, Failure::Before);
            let _ = ObjectLog::close(node_place(&self.bucket, lost, &directory()), SMALL, Arc::new(Counting));
            self.bucket.calm();
            // The node may be in the middle of something.
            if self.below(2) == 0 && may_tidy {
                let _ = node.log.trim(node.log.end());
            }
        }
        let closed = ObjectLog::close(node_place(&self.bucket, lost, &directory()), SMALL, Arc::new(Counting)).unwrap();
        for partition in 0..usize::from(PARTITIONS) {
            if self.owner(partition) == lost {
                let to = self.some_node();
                self.give(partition, closed.end(), to);
                self.taken_over += 1;
            }
        }
        self.hold_all();
        self.check_closed(lost, &node.directory);
        self.check_closed(lost, &directory());
        self.zombies.push(node.log);
    }

    /// Writes a partition down again in the log of its owner, a few keys at a time. Then no other log counts for it.
    fn restate(&mut self) {
        let partition = self.below(PARTITIONS.into());
        let node = self.owner(partition);
        let since = self.nodes[&node].log.cut();
        let mut counts = self.read(partition);
        // Of those that have no count any more, the log has what led to that: it must not count either.
        let mut touched = BTreeSet::new();
        let dies_behind = if self.below(4) == 0 { self.below(KEYS.into()) } else { KEYS.into() };
        while let Some((key, value)) = counts.pop_first() {
            if counts.len() + dies_behind < KEYS.into() {
                self.nodes[&node].log.uncut(since);
                return;
            }
            self.nodes[&node].log.commit(&[count(key, true, value)]).unwrap();
            if self.below(3) == 0 {
                touched.extend(self.commit(node));
                if self.below(2) == 0 && self.may_tidy(node) {
                    let log = &self.nodes[&node].log;
                    log.trim(log.end()).unwrap();
                    while log.tidy().unwrap() {}
                }
                let end = (partition as u8 + 1) * KEYS;
                counts = touched.range(key + 1..end).map(|key| (*key, 0)).collect();
                counts.extend(self.read(partition).split_off(&(key + 1)));
            }
        }
        self.lineages[partition] = vec![Link { node, since, upto: None }];
        self.restated += 1;
        self.hold_all();
        self.nodes[&node].log.uncut(since);
        self.empty_logs();
    }

    /// Empties the logs of lost nodes that no lineage names.
    fn empty_logs(&mut self) {
        let is_named = |node: u64| self.lineages.iter().flatten().any(|link| link.node == node);
        let lost: Vec<u64> = (0..self.next).filter(|node| !self.nodes.contains_key(node) && !is_named(*node)).collect();
        for node in lost {
            let place = || node_place(&self.bucket, node, &directory());
            for step in 0..self.dice.below(4) {
                let log = ObjectLog::close(place(), SMALL, Arc::new(Counting)).unwrap();
                self.bucket.fail_at_change(self.bucket.changes() + step, Failure::Before);
                let _ = log.empty();
                self.bucket.calm();
            }
            ObjectLog::close(place(), SMALL, Arc::new(Counting)).unwrap().empty().unwrap();
            self.check_closed(node, &directory());
        }
    }

    /// Nobody opens the log of a lost node, from a directory that knows it or another one.
    fn check_closed(&self, node: u64, directory: &SimulatedGround) {
        let opened = self.opened(node, directory);
        assert!(matches!(opened, Err(LogError::Closed { .. })), "{opened:?}");
    }

    fn step(&mut self) -> &'static str {
        match self.below(16) {
            0..6 => {
                let node = self.some_node();
                (0..=self.below(6)).for_each(|_| drop(self.commit(node)));
                "some commits"
            }
            6..9 => {
                let node = self.some_node();
                if self.may_tidy(node) {
                    let log = &self.nodes[&node].log;
                    let upto = Position(log.end().0.saturating_sub(self.dice.below(6) * ALIGNMENT_BYTES));
                    log.trim(upto).unwrap();
                }
                "a trim"
            }
            9 => {
                let node = self.some_node();
                if self.may_tidy(node) {
                    while self.nodes[&node].log.tidy().unwrap() {}
                }
                "a merge of runs"
            }
            10 | 15 => {
                self.move_one();
                "a move"
            }
            11 if self.below(3) == 0 => {
                self.lose();
                "a loss"
            }
            12 | 13 if self.below(2) == 0 => {
                self.restate();
                "a restating"
            }
            13 if self.nodes.len() < 3 => {
                self.join();
                "a new node"
            }
            14 => {
                let node = self.some_node();
                let directory = if self.below(2) == 0 { directory() } else { self.nodes[&node].directory.clone() };
                let log = self.opened(node, &directory).unwrap();
                self.nodes.insert(node, Node { log, directory });
                self.hold(node);
                "a restart"
            }
            _ => {
                let what = self.below(3);
                for log in &self.zombies {
                    match what {
                        0 => assert!(log.commit(&[count(0, true, 1)]).is_err()),
                        1 => drop(log.trim(log.end())),
                        _ => drop(log.tidy()),
                    }
                }
                "what lost nodes do"
            }
        }
    }
}

#[test]
fn partitions_that_move_between_logs_are_read_as_they_were_written() {
    let (mut taken_over, mut restated, mut came_back) = (0, 0, 0);
    for seed in 0..40 {
        let mut world = World::new(seed);
        for step in 0..120 {
            let what = world.step();
            if step % 7 == 0 {
                world.bucket.hide_from_lists(world.dice.below(4) as usize);
            }
            if step % 3 == 0 {
                let partition = world.below(PARTITIONS.into());
                world.check(partition, &format!("{what} (seed {seed}, step {step})"));
            }
        }
        world.bucket.calm();
        (0..PARTITIONS).for_each(|partition| world.check(partition.into(), &format!("all of seed {seed}")));
        taken_over += world.taken_over;
        restated += world.restated;
        came_back += world.came_back;
    }
    assert!(taken_over > 60 && restated > 100 && came_back > 5, "{taken_over} {restated} {came_back}");
}

#[test]
fn a_closed_log_never_changes_and_keeps_what_stops_its_owner_when_it_is_emptied() {
    let (bucket, here) = (made(), directory());
    let mut log = take(&bucket, &here).unwrap();
    let expected = fill(&log, 1);
    log.trim(log.end()).unwrap();
    for key in 0..40 {
        log.commit(&[set(key, 1)]).unwrap();
        if key == 20 {
            log = take(&bucket, &here).unwrap();
        }
    }
    let close = || ObjectLog::close(place(Arc::new(bucket.clone()), &directory()), SMALL, Arc::new(Settings)).unwrap();
    let closed = close();
    let names = bucket.names();
    assert!(matches!(closed.commit(&[set(1, 2)]), Err(LogError::ReadOnly)));
    assert!(matches!(take(&bucket, &directory()), Err(LogError::Closed { .. })));
    assert!(matches!(take_elsewhere(&bucket, &here, 0).1, Err(LogError::Closed { .. })));
    // A second master finds it closed.
    assert_eq!(close().end(), closed.end());
    // What it wrote down before it found out stays as waste. Nothing is gone.
    log.trim(log.end()).unwrap_err();
    log.tidy().unwrap_err();
    log.commit(&[set(1, 2)]).unwrap_err();
    assert!(names.iter().all(|name| bucket.content(name).is_some()));
    assert_eq!((elsewhere(&bucket), values(&close())), (expected.clone(), expected));
    // Another master has looked before it is emptied, and empties it too.
    let second = close();
    closed.empty().unwrap();
    let names = bucket.names();
    assert_eq!(names.iter().filter(|name| name.starts_with("history/")).count(), 1, "{names:?}");
    assert_eq!(names.iter().filter(|name| name.starts_with("log/")).count(), 3, "{names:?}");
    second.empty().unwrap();
    assert_eq!(bucket.names(), names);
    assert!(matches!(take(&bucket, &directory()), Err(LogError::Closed { .. })));
    log.commit(&[set(1, 2)]).unwrap_err();
    assert_eq!(elsewhere(&bucket), Values::new());
}

#[test]
fn a_fence_where_a_batch_was_deleted_closes_no_log() {
    for second_closes in [true, false] {
        let (bucket, here) = (made(), directory());
        let log = take(&bucket, &here).unwrap();
        log.commit(&[set(50, 1)]).unwrap();
        let slow = Meanwhile::new(&bucket);
        // The first master has looked. The batch behind is put, trimmed and deleted, then its fence is put there.
        let (expected, log) = (Arc::new(Mutex::new(Values::new())), Arc::new(log));
        let (of_bucket, of_log) = (expected.clone(), log.clone());
        slow.before("put", "log/", move || {
            *of_bucket.lock() = fill(&of_log, 1);
            of_log.trim(of_log.end()).unwrap();
        });
        let first = LogPlace { keeps_copies: false, ..place(slow, &directory()) };
        let mut looked = ObjectLog::look_for_taking(first, SMALL, Arc::new(Settings)).unwrap();
        // Another one has looked as well.
        let mut second = look_for_taking(&bucket, &directory()).unwrap();
        looked.go_on_reading().unwrap();
        second.go_on_reading().unwrap();
        let nonce = looked.new_nonce().unwrap();
        assert!(!looked.put_fence(Role::Closed, 0, nonce, &[]).unwrap());
        // It dies.
        drop(looked);
        log.commit(&[set(51, 7)]).unwrap();
        let mut expected = expected.lock().clone();
        expected.extend([(50, 1), (51, 7)]);
        if second_closes {
            let closed = second.closed().unwrap();
            assert_eq!((values(&closed), closed.end()), (expected.clone(), look(&bucket, &directory()).unwrap().end()));
            assert!(matches!(log.commit(&[set(52, 7)]), Err(LogError::Fenced { .. })));
        } else {
            second.fence(1, &[], &mut never_wait).unwrap();
            assert_eq!(values(&second), expected);
        }
        assert_eq!(elsewhere(&bucket), expected);
    }
}
