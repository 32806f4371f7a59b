//! Compaction (M2.8): tables of a level are merged with those of the next one that share keys with them.
//!
//! | younger | older | is the younger one a tombstone? | younger | older |
//! |---|---|---|---|---|
//! | alone | - | no | copied | - |
//! | alone | - | yes | dropped, if no level below may have the key | - |
//! | - | alone | - | - | copied |
//! | equal keys | | no | copied | dropped |
//! | equal keys | | yes | dropped, if no level below may have the key | dropped |
//!
//! That is the paper's Table 1, except that a tombstone stays as long as a level below may have its key. The paper
//! drops it with the first older one, and a second one would come back.
//!
//! Only keys are merged. Chunks are copied in the order in which each of the merged tables has them, the oldest table
//! first, so that what arrived together stays together as far as the ranges of keys allow.

mod cutting;
mod shrinking;
mod writing;

pub(crate) use shrinking::{WORTH, shadowed};

use crate::Result;
use crate::levels::filter::Room;
use crate::levels::options::LevelsOptions;
use crate::levels::table::{Entry, PAGE_BYTES, Table};
use crate::levels::version::Version;
use crate::levels::work::Counters;
use cutting::{Cutter, overlap_limit};
use onefold_fingerprint::Fingerprint;
use onefold_ground::Ground;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use writing::write;

/// A level with so many tombstones is compacted: one for this many keys in it and below.
const KEYS_OF_TOMBSTONE: u64 = 20;
/// With so many times the tables from which level 0 is compacted, the others wait for the next merge.
const MOST_YOUNG: usize = 4;

/// Tables to merge.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) level: usize,
    /// Young to old.
    upper: Vec<Arc<Table>>,
    /// Of the next level, in the order of their keys.
    lower: Vec<Arc<Table>>,
}

impl Task {
    /// Chooses what is due, of the level that has most for its size. `cursors` has for each level the last key that was
    /// compacted: the next table follows.
    pub(crate) fn choose(
        version: &Version,
        unlogged: &BTreeSet<u64>,
        damaged: &BTreeSet<u64>,
        options: &LevelsOptions,
        cursors: &[Fingerprint],
    ) -> Option<Task> {
        let levels = &version.levels;
        if !version.lost.is_empty() {
            return None;
        }
        let mut young = logged(levels.first()?, unlogged);
        // What is older than a damaged table may go down, and nothing else.
        if let Some(oldest) = young.iter().rposition(|table| damaged.contains(&table.id)) {
            young.drain(..=oldest);
        }
        // Nor more at once than a merge should take.
        let most = MOST_YOUNG * options.tables as usize;
        young.drain(..young.len().saturating_sub(most));
        let mut due: Vec<(f64, usize)> = Vec::new();
        for level in 0..levels.len() {
            let tables = if level == 0 { &young } else { &levels[level] };
            let score = match level {
                0 => young.len() as f64 / f64::from(options.tables),
                _ => raw_bytes(tables) as f64 / options.level_bytes(level) as f64,
            };
            if score >= 1.0 || has_many_tombstones(tables, &levels[level + 1..]) {
                due.push((score.max(1.0), level));
            }
        }
        // The younger one of equal levels.
        due.sort_by(|one, other| other.0.total_cmp(&one.0));
        let is_whole = |task: &Task| task.inputs().all(|table| !damaged.contains(&table.id));
        due.into_iter().find_map(|(_, level)| match level {
            0 => Some(Task::of(version, 0, young.clone())).filter(is_whole),
            _ => Task::of_one(version, level, options, cursors).find(is_whole),
        })
    }

    /// Chooses a task with a damaged table. One of level 0 goes down with all others there, to keep their order; one of
    /// another level is written again where it is.
    pub(crate) fn of_damaged(version: &Version, unlogged: &BTreeSet<u64>, damaged: &BTreeSet<u64>) -> Option<Task> {
        let (young, others) = version.levels.split_first().filter(|_| version.lost.is_empty())?;
        let young = logged(young, unlogged);
        let is_damaged = |table: &&Arc<Table>| damaged.contains(&table.id);
        if young.iter().any(|table| is_damaged(&table)) {
            return Some(Task::of(version, 0, young));
        }
        let mut tables = others.iter().enumerate().flat_map(|(level, tables)| tables.iter().map(move |table| (level, table)));
        let (level, table) = tables.find(|(_, table)| is_damaged(table))?;
        Some(Task { level, upper: Vec::new(), lower: vec![table.clone()] })
    }

    /// Returns the tasks of a level with one table each, the best first.
    fn of_one<'a>(
        version: &'a Version,
        level: usize,
        options: &LevelsOptions,
        cursors: &[Fingerprint],
    ) -> impl Iterator<Item = Task> + use<'a> {
        let mut tables: Vec<&Arc<Table>> = version.levels[level].iter().collect();
        if raw_bytes(&version.levels[level]) >= options.level_bytes(level) {
            let next = cursors.get(level).map_or(0, |cursor| tables.partition_point(|table| table.first <= *cursor));
            tables.rotate_left(next);
        } else {
            tables.sort_by_key(|table| std::cmp::Reverse(table.tombstones));
        }
        tables.into_iter().map(move |table| Task::of(version, level, vec![table.clone()]))
    }

    fn of(version: &Version, level: usize, upper: Vec<Arc<Table>>) -> Task {
        let below = version.levels.get(level + 1).map_or(&[][..], |tables| tables);
        // One range for all: what is written covers the gaps between them.
        let range = upper.iter().map(|table| table.first).min().zip(upper.iter().map(|table| table.last).max());
        let lower = below.iter().filter(|table| range.is_some_and(|(first, last)| table.overlaps(&first, &last)));
        Task { level, lower: lower.cloned().collect(), upper }
    }

    pub(crate) fn inputs(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.upper.iter().chain(&self.lower)
    }

    /// Returns the table that can go down as it is, if that is all there is to do.
    pub(crate) fn moved(&self, version: &Version, options: &LevelsOptions) -> Option<Arc<Table>> {
        let [table] = &self.upper[..] else { return None };
        let beyond = version.levels.get(self.level + 2).map_or(&[][..], |tables| tables);
        let beyond = beyond.iter().filter(|beyond| beyond.overlaps(&table.first, &table.last)).map(|table| table.raw_bytes).sum::<u64>();
        let is_fit = self.lower.is_empty() && self.level > 0 && table.tombstones == 0 && beyond <= overlap_limit(options);
        is_fit.then(|| table.clone())
    }

    /// Moves the cursor of the level on.
    pub(crate) fn move_on(&self, cursors: &mut Vec<Fingerprint>) {
        if let [table] = &self.upper[..] {
            cursors.resize(cursors.len().max(self.level + 1), Fingerprint::from_digest(&[0; 32]));
            cursors[self.level] = table.last;
        }
    }

    /// Puts the new tables in the place of the merged ones.
    pub(crate) fn replace(&self, version: &mut Version, tables: &[Arc<Table>]) {
        let gone: BTreeSet<u64> = self.inputs().map(|table| table.id).collect();
        while version.levels.len() < self.level + 2 {
            version.levels.push(Vec::new());
        }
        for level in [self.level, self.level + 1] {
            version.levels[level].retain(|table| !gone.contains(&table.id));
        }
        let below = &mut version.levels[self.level + 1];
        below.extend(tables.iter().cloned());
        below.sort_unstable_by_key(|table| table.first);
    }
}

fn logged(young: &[Arc<Table>], unlogged: &BTreeSet<u64>) -> Vec<Arc<Table>> {
    young.iter().filter(|table| !unlogged.contains(&table.id)).cloned().collect()
}

fn raw_bytes(tables: &[Arc<Table>]) -> u64 {
    tables.iter().map(|table| table.raw_bytes).sum()
}

fn has_many_tombstones(tables: &[Arc<Table>], below: &[Vec<Arc<Table>>]) -> bool {
    let tombstones: u64 = tables.iter().map(|table| table.tombstones).sum();
    let keys: u64 = tables.iter().chain(below.iter().flatten()).map(|table| table.entries).sum();
    tombstones > 0 && tombstones * KEYS_OF_TOMBSTONE >= keys
}

/// The keys of tables that share none, in order.
struct Keys<'a> {
    tables: &'a [Arc<Table>],
    /// The number of the first table among all.
    number: usize,
    at: usize,
    page: usize,
    /// Tombstones of tables with smaller numbers do not count.
    unordered: u64,
    output: &'a Output<'a>,
    entries: std::vec::IntoIter<Entry>,
}

impl<'a> Keys<'a> {
    fn new(output: &'a Output<'a>, tables: &'a [Arc<Table>], number: usize, unordered: u64) -> Keys<'a> {
        Keys { tables, number, at: 0, page: 0, unordered, output, entries: Vec::new().into_iter() }
    }

    /// Begins at the page of a key instead of the first one. There may be smaller keys in it.
    fn starting_at(mut self, name: &Fingerprint) -> Keys<'a> {
        self.page = self.tables.first().map_or(0, |table| table.page_of(name));
        self
    }

    /// Returns the next key, and the number of its table.
    fn next(&mut self) -> Result<Option<(usize, Entry)>> {
        loop {
            if let Some(entry) = self.entries.next() {
                if entry.1.is_none() && self.tables[self.at].id < self.unordered {
                    continue;
                }
                return Ok(Some((self.number + self.at, entry)));
            }
            let Some(table) = self.tables.get(self.at) else { return Ok(None) };
            if self.page < table.pages() {
                Counters::add(&self.output.counters.merge_read_bytes, PAGE_BYTES as u64);
                let entries = if self.output.drops_damage() { again(|| table.page(self.page)) } else { table.page(self.page) };
                self.entries = self.output.unless_damaged(table, entries)?.unwrap_or_default().into_iter();
                self.page += 1;
            } else {
                (self.at, self.page) = (self.at + 1, 0);
            }
        }
    }
}

/// Where a merge puts its tables.
pub(crate) struct Output<'a> {
    pub(crate) ground: &'a dyn Ground,
    pub(crate) options: &'a LevelsOptions,
    pub(crate) room: &'a Room,
    pub(crate) counters: &'a Counters,
    /// Returns a new number.
    pub(crate) new_id: &'a dyn Fn() -> u64,
    /// Returns where the table of a number goes.
    pub(crate) path_of: &'a dyn Fn(u64) -> String,
    /// Is told the number of a table with damage.
    pub(crate) damaged: &'a dyn Fn(u64),
    /// Tables of which is left out what cannot be read.
    pub(crate) known_damage: &'a BTreeSet<u64>,
}

/// How often something is read before it is given up, and the pause between. An error of a device may pass.
const ATTEMPTS: usize = 3;
const PAUSE: Duration = Duration::from_millis(5);

/// Reads something whose loss is final.
fn again<T>(mut read: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..ATTEMPTS {
        match read() {
            Err(error) if error.is_damage() => std::thread::sleep(PAUSE),
            read => return read,
        }
    }
    read()
}

impl Output<'_> {
    /// Returns whether what cannot be read is left out.
    fn drops_damage(&self) -> bool {
        !self.known_damage.is_empty()
    }

    /// Returns what was read. `None`: it is damaged, and left out.
    fn unless_damaged<T>(&self, table: &Table, read: Result<T>) -> Result<Option<T>> {
        match read {
            Err(error) if error.is_damage() => {
                let was_known = self.known_damage.contains(&table.id);
                (self.damaged)(table.id);
                if was_known { Ok(None) } else { Err(error) }
            }
            read => read.map(Some),
        }
    }

    fn give_up(&self, path: &str) {
        if let Err(error) = self.ground.remove(path) {
            tracing::debug!(%error, "a table of a compaction that was given up stays until the next opening");
        }
    }
}

/// Merges tables. `None`: `go_on` ended it. Nothing of it stays then, nor after an error.
pub(crate) fn merge(output: &Output<'_>, task: &Task, version: &Version, go_on: &dyn Fn() -> bool) -> Result<Option<Vec<Table>>> {
    let mut made: Vec<Table> = Vec::new();
    let merged = merge_into(output, task, version, go_on, &mut made);
    if !matches!(merged, Ok(true)) {
        made.iter().for_each(|table| output.give_up(&table.path));
    }
    Ok(merged?.then_some(made))
}

fn merge_into(output: &Output<'_>, task: &Task, version: &Version, go_on: &dyn Fn() -> bool, made: &mut Vec<Table>) -> Result<bool> {
    // Young to old, as `inputs` has them.
    let tables: Vec<&Table> = task.inputs().map(|table| &**table).collect();
    let keys = |tables, number, unordered| Keys::new(output, tables, number, unordered);
    let unordered = if task.level == 0 { version.unordered } else { 0 };
    let mut sources: Vec<Keys<'_>> = (0..task.upper.len()).map(|number| keys(&task.upper[number..=number], number, unordered)).collect();
    sources.push(keys(&task.lower[..], task.upper.len(), 0));
    let mut heads = sources.iter_mut().map(Keys::next).collect::<Result<Vec<_>>>()?;
    let below: Vec<&Arc<Table>> = version.levels.iter().skip(task.level + 2).flatten().collect();
    let beyond = version.levels.get(task.level + 2).map_or(&[][..], |tables| tables);
    let mut cutter = Cutter::new(output.options, &task.lower, beyond);
    for keys in 1u64.. {
        if keys.is_multiple_of(1024) && !go_on() {
            return Ok(false);
        }
        // Of equal keys the first, as sources are young to old.
        let youngest = heads.iter().flatten().map(|(_, (name, _))| *name).min();
        let Some(name) = youngest else { break };
        let mut winner = None;
        for (source, head) in sources.iter_mut().zip(&mut heads) {
            if head.as_ref().is_some_and(|(_, (key, _))| *key == name) {
                let taken = std::mem::replace(head, source.next()?);
                winner = winner.or(taken);
            }
        }
        let Some((number, (name, place))) = winner else { break };
        if place.is_none() && !below.iter().any(|table| table.may_have(&name)) {
            continue;
        }
        cutter.cut_before(&name);
        if cutter.has_many() && !write(output, &tables, cutter.take(), go_on, made)? {
            return Ok(false);
        }
        cutter.push(number, (name, place));
    }
    cutter.cut();
    write(output, &tables, cutter.take(), go_on, made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levels::pages::Pages;
    use crate::levels::table::TableWriter;
    use crate::{ChunkKind, Compression};
    use onefold_ground::SimulatedGround;
    use std::cell::Cell;

    fn options() -> LevelsOptions {
        LevelsOptions { memtable_bytes: 4 << 10, table_bytes: 4 << 10, compression: Compression::None, ..LevelsOptions::default() }
    }

    fn name(number: u64) -> Fingerprint {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&(number << 40).to_be_bytes());
        Fingerprint::from_digest(&digest)
    }

    /// A table of chunks of this length, or of tombstones.
    fn table(ground: &SimulatedGround, id: u64, keys: &[u64], length: Option<usize>) -> Arc<Table> {
        let (options, room) = (options(), Room::new(0));
        let mut writer = TableWriter::new(ground, &id.to_string(), id, keys.len() as u64, &options).unwrap();
        for key in keys {
            match length {
                Some(length) => writer.push(name(*key), ChunkKind::Data, false, &vec![*key as u8; length]).unwrap(),
                None => writer.push_tombstone(name(*key)),
            }
        }
        Arc::new(writer.finish(&room).unwrap())
    }

    fn merged(ground: &SimulatedGround, version: &Version, task: &Task) -> Vec<Table> {
        merged_as(ground, version, task, 1000, &Counters::default())
    }

    fn merged_as(ground: &SimulatedGround, version: &Version, task: &Task, id: u64, counters: &Counters) -> Vec<Table> {
        let next = Cell::new(id);
        let output = Output {
            ground,
            options: &options(),
            room: &Room::new(0),
            counters,
            new_id: &|| next.replace(next.get() + 1),
            path_of: &|id| id.to_string(),
            damaged: &|_| {},
            known_damage: &BTreeSet::new(),
        };
        merge(&output, task, version, &|| true).unwrap().unwrap()
    }

    #[test]
    fn no_table_overlaps_more_of_the_level_after_the_next_than_ten_tables() {
        let ground = SimulatedGround::new(1);
        let beyond = (0..40).map(|number| table(&ground, number, &[10 * number, 10 * number + 9], Some(2048))).collect();
        let upper = table(&ground, 100, &(0..40).map(|number| 10 * number + 5).collect::<Vec<_>>(), Some(1));
        let version = Version { levels: vec![vec![upper], Vec::new(), beyond], ..Version::default() };
        let task = Task::of(&version, 0, version.levels[0].clone());
        let made = merged(&ground, &version, &task);
        assert_eq!(made.iter().map(|table| table.entries).sum::<u64>(), 40);
        for table in &made {
            let overlaps = version.levels[2].iter().filter(|beyond| beyond.overlaps(&table.first, &table.last)).count();
            assert!(overlaps <= 12, "{overlaps}");
        }
        // Nor does one go down as it is.
        let wide =
            Version { levels: vec![Vec::new(), version.levels[0].clone(), Vec::new(), version.levels[2].clone()], ..Version::default() };
        let task = Task::of(&wide, 1, wide.levels[1].clone());
        assert!(task.moved(&wide, &options()).is_none());
        let narrow = Version { levels: wide.levels[..3].to_vec(), ..wide };
        assert!(task.moved(&narrow, &options()).is_some());
    }

    #[test]
    fn a_merge_that_writes_several_tables_reads_each_frame_once() {
        let ground = SimulatedGround::new(1);
        // Chunks for all of the new tables are in each frame.
        let keys: Vec<u64> = (0..60).map(|number| number * 77 % 60).collect();
        let young = table(&ground, 2, &keys, Some(500));
        let older: Vec<Arc<Table>> = (0..4).map(|at| table(&ground, 10 + at, &[at * 15, at * 15 + 14], Some(10))).collect();
        let input_bytes: u64 = older.iter().chain([&young]).map(|table| table.length_bytes).sum();
        let version = Version { levels: vec![vec![young], older], ..Version::default() };
        let counters = Counters::default();
        let made = merged_as(&ground, &version, &Task::of(&version, 0, version.levels[0].clone()), 1000, &counters);
        assert!((8..=writing::tables_at_once(&options())).contains(&made.len()), "{}", made.len());
        assert!(made.windows(2).all(|pair| pair[0].last < pair[1].first));
        let work = counters.work();
        assert!(work.merge_read_bytes <= input_bytes, "{work:?} {input_bytes}");
        assert_eq!(work.merge_written_bytes, made.iter().map(|table| table.length_bytes).sum::<u64>());
        for table in &made {
            let mut found = 0;
            for page in 0..table.pages() {
                for (name, place) in table.page(page).unwrap() {
                    let place = place.unwrap();
                    let bytes = table.slice(&table.frame(&place).unwrap(), &place).unwrap();
                    assert!(bytes.iter().all(|byte| *byte == (name.prefix() >> 40) as u8));
                    found += 1;
                }
            }
            assert_eq!(found, table.entries);
        }
    }

    #[test]
    fn a_stream_stays_in_one_piece_in_each_table() {
        let ground = SimulatedGround::new(1);
        // 1009 is prime: the order of the keys has nothing to do with that of the chunks.
        let key_of = |number: u64| number * 500 % 1009;
        let number_of = (0..1009).map(|number| (name(key_of(number)), number)).collect::<std::collections::HashMap<_, _>>();
        let mut version = Version::default();
        for round in 0..50 {
            let keys: Vec<u64> = (20 * round..20 * round + 20).map(key_of).collect();
            version.add(table(&ground, round, &keys, Some(200)));
            // Half of the time each table overlaps more of the level after the next than it should.
            let beyond = 1_000_000 + 1000 * round;
            let beyond =
                (0..if round % 2 == 0 { 0 } else { 100 }).map(|at| table(&ground, beyond + at, &[at * 10, at * 10 + 9], Some(2048)));
            version.levels.truncate(2);
            version.levels.resize(2, Vec::new());
            version.levels.push(beyond.collect());
            let task = Task::of(&version, 0, version.levels[0].clone());
            let made = merged_as(&ground, &version, &task, 1000 * (round + 1), &Counters::default());
            let made: Vec<Arc<Table>> = made.into_iter().map(Arc::new).collect();
            for table in &made {
                assert!(table.raw_bytes + table.entries * 51 <= options().table_bytes, "{round}: {table:?}");
                let mut chunks: Vec<(u64, u32, u64)> = Vec::new();
                for page in 0..table.pages() {
                    let entries = table.page(page).unwrap();
                    chunks.extend(entries.iter().map(|(name, place)| (place.unwrap().frame, place.unwrap().offset_bytes, number_of[name])));
                }
                chunks.sort_unstable();
                assert!(chunks.windows(2).all(|pair| pair[0].2 < pair[1].2), "{round}: {chunks:?}");
            }
            task.replace(&mut version, &made);
        }
        let tables = &version.levels[1];
        let bytes: u64 = tables.iter().map(|table| table.raw_bytes + table.entries * 51).sum();
        assert!(bytes / tables.len() as u64 > options().table_bytes / 4, "{} tables", tables.len());
    }

    #[test]
    fn a_compaction_takes_all_tables_within_its_range() {
        let ground = SimulatedGround::new(1);
        let upper = vec![table(&ground, 2, &[10, 20], Some(1)), table(&ground, 1, &[50, 60], Some(1))];
        let lower = [[1, 5], [6, 11], [30, 40], [60, 70], [71, 80]];
        let lower: Vec<Arc<Table>> = (10..).zip(&lower).map(|(id, keys)| table(&ground, id, keys, Some(1))).collect();
        let mut version = Version { levels: vec![upper.clone(), lower], ..Version::default() };
        let task = Task::of(&version, 0, upper);
        // Also the one in the gap: the new table covers it.
        assert_eq!(task.lower.iter().map(|table| table.id).collect::<Vec<_>>(), [11, 12, 13]);
        let made: Vec<Arc<Table>> = merged(&ground, &version, &task).into_iter().map(Arc::new).collect();
        task.replace(&mut version, &made);
        assert!(version.levels[1].windows(2).all(|pair| pair[0].last < pair[1].first));
        for key in [1, 5, 6, 10, 11, 20, 30, 40, 50, 60, 70, 71, 80] {
            assert!(version.find(&name(key), &mut Pages::default()).unwrap().is_some(), "{key}");
        }
    }

    #[test]
    fn only_tables_older_than_a_damaged_one_leave_level_0() {
        let ground = SimulatedGround::new(1);
        let options = LevelsOptions { tables: 2, ..options() };
        let young = (1..=6).rev().map(|id| table(&ground, id, &[id, 100 + id], Some(1))).collect();
        let version = Version { levels: vec![young], ..Version::default() };
        let chosen = |damaged: &[u64]| {
            let task = Task::choose(&version, &[6].into(), &damaged.iter().copied().collect(), &options, &[]);
            task.map(|task| task.upper.iter().map(|table| table.id).collect::<Vec<_>>())
        };
        assert_eq!(chosen(&[]), Some(vec![5, 4, 3, 2, 1]));
        assert_eq!(chosen(&[5]), Some(vec![4, 3, 2, 1]));
        assert_eq!(chosen(&[3, 5]), Some(vec![2, 1]));
        assert_eq!(chosen(&[2]), None);
    }

    #[test]
    fn a_tombstone_of_unknown_age_hides_nothing() {
        let ground = SimulatedGround::new(1);
        let young = vec![table(&ground, 3, &[9], None), table(&ground, 2, &[5, 7], None), table(&ground, 1, &[5, 9], Some(1))];
        let mut version = Version { levels: vec![young], unordered: 3, ..Version::default() };
        let has = |version: &Version, key| version.find(&name(key), &mut Pages::default()).unwrap().is_some();
        assert_eq!([5, 7, 9].map(|key| has(&version, key)), [true, false, false]);
        let task = Task::of(&version, 0, version.levels[0].clone());
        let made: Vec<Arc<Table>> = merged(&ground, &version, &task).into_iter().map(Arc::new).collect();
        task.replace(&mut version, &made);
        assert_eq!([5, 7, 9].map(|key| has(&version, key)), [true, false, false]);
    }

    #[test]
    fn a_table_of_tombstones_is_cut_too() {
        let ground = SimulatedGround::new(1);
        let keys: Vec<u64> = (0..1000).collect();
        let version = Version {
            levels: vec![vec![table(&ground, 2, &keys, None)], Vec::new(), vec![table(&ground, 1, &keys, Some(1))]],
            ..Version::default()
        };
        let made = merged(&ground, &version, &Task::of(&version, 0, version.levels[0].clone()));
        assert_eq!(made.iter().map(|table| table.tombstones).sum::<u64>(), 1000);
        assert!(made.iter().all(|table| table.entries * 51 <= (4 << 10) + 51), "{}", made.len());
    }

    #[test]
    fn the_level_with_most_for_its_size_goes_first() {
        let ground = SimulatedGround::new(1);
        let options = options();
        let level_0: Vec<Arc<Table>> = (0..10).map(|id| table(&ground, 100 - id, &[id, 500], Some(1))).collect();
        let next = Cell::new(1000);
        let level_1 = |count| {
            let table = |at: u64| table(&ground, next.replace(next.get() + 1), &[at * 10, at * 10 + 5], Some(2048));
            (0..count).map(table).collect::<Vec<_>>()
        };
        let chosen = |levels: Vec<Vec<Arc<Table>>>| {
            let version = Version { levels, ..Version::default() };
            Task::choose(&version, &BTreeSet::new(), &BTreeSet::new(), &options, &[]).map(|task| task.level)
        };
        // It has room for 100 tables of 4 KiB.
        assert_eq!(chosen(vec![level_0[..9].to_vec(), level_1(10)]), None);
        assert_eq!(chosen(vec![level_0.clone(), level_1(10)]), Some(0));
        assert_eq!(chosen(vec![level_0.clone(), level_1(100)]), Some(0));
        assert_eq!(chosen(vec![level_0.clone(), level_1(120)]), Some(1));
        assert_eq!(chosen(vec![level_0[..1].to_vec(), level_1(100)]), Some(1));
        let unlogged: BTreeSet<u64> = [100].into();
        let version = Version { levels: vec![level_0], ..Version::default() };
        assert!(Task::choose(&version, &unlogged, &BTreeSet::new(), &options, &[]).is_none());
    }
}
