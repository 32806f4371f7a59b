//! The chain of tables in the bucket: `tables/K`, 16 hex digits, from 0 on.
//!
//! # Why there is one chain
//! 1. *A number is taken once.* A table is put only if its name is free, and no object is ever replaced or deleted.
//!    Whoever the masters are, one of them gets the number; the other one reads what it says (unsafe orders 5 and 6).
//! 2. *There are no holes.* A master puts number K + 1 only when it has read number K, or knows that its put of K is
//!    done. So a number that is free is behind the end, and the newest table is found by asking for numbers.
//!    Lists are not asked at all.
//! 3. *A put that arrives late* finds its number taken, or is the next table. Then it says what is still true: sessions
//!    that had ended have ended, logs that were closed are closed, and nothing else of the table before was changed.
//!
//! # Why no table is deleted
//! If a number were free again, a master that slept could put it, and a node with an old hint would take it for the
//! newest. Manifests and fences of logs stay for the same reason. A table has 3 to 12 KB for 384 partitions and 64
//! nodes. One is written when a node comes, goes or opens its log again, for partitions that move, and for lineages
//! that became short, many at a time. Fifty a day are 200 MB in a year at most.

use crate::table::LIMIT_BYTES;
use crate::{ClusterError, Result, Table};
use onefold_ground::{Bucket, Put};
use std::sync::Arc;

/// The chain of tables of a store.
#[derive(Clone, Debug)]
pub struct Tables {
    bucket: Arc<dyn Bucket>,
    store: [u8; 16],
}

/// What became of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutTable {
    /// The table is in the bucket.
    Done,
    /// Another one has its number: this one.
    Taken(Table),
}

impl Tables {
    /// Uses the chain in a bucket.
    pub fn new(bucket: Arc<dyn Bucket>, store: [u8; 16]) -> Tables {
        Tables { bucket, store }
    }

    /// Returns the name of a table.
    pub fn name(number: u64) -> String {
        format!("tables/{number:016x}")
    }

    /// Puts a table behind the one before it, which the caller has read. After an error other than
    /// [`ClusterError::Wrong`] nobody knows whether it arrived or will: put it again.
    pub fn put(&self, table: &Table) -> Result<PutTable> {
        table.check().map_err(|why| ClusterError::Wrong { number: table.number, why })?;
        let name = Tables::name(table.number);
        match self.bucket.put_new(&name, &table.encode(&self.store))? {
            Put::Done => Ok(PutTable::Done),
            Put::Taken => match self.get(table.number)? {
                Some(winner) => Ok(PutTable::Taken(winner)),
                None => Err(ClusterError::Damaged { path: self.bucket.describe(&name), why: "the table is gone".to_owned() }),
            },
        }
    }

    /// Returns a table.
    pub fn get(&self, number: u64) -> Result<Option<Table>> {
        let name = Tables::name(number);
        match self.bucket.get(&name, LIMIT_BYTES) {
            Err(error) if error.is_not_found() => Ok(None),
            bytes => match Table::decode(&bytes?, &self.store, number) {
                Ok(table) => Ok(Some(table)),
                Err(why) => Err(ClusterError::Damaged { path: self.bucket.describe(&name), why }),
            },
        }
    }

    /// Returns the newest table. `hint` is the number of a table, from anywhere; a good one saves requests. `None`: the
    /// store has no table.
    pub fn newest(&self, hint: u64) -> Result<Option<Table>> {
        let mut search = Search::new(hint);
        while let Some(number) = search.next() {
            search.answer(self.get(number)?);
        }
        Ok(search.found())
    }
}

/// The search for the newest table: which number to ask for next.
#[derive(Clone, Debug)]
pub struct Search {
    hint: u64,
    /// The one with the highest number so far.
    found: Option<Table>,
    /// The lowest number that was missing.
    missing: Option<u64>,
    step: u64,
}

impl Search {
    /// Begins at a number.
    pub fn new(hint: u64) -> Search {
        Search { hint, found: None, missing: None, step: 1 }
    }

    /// Returns the number to ask for. `None`: the search has ended.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&self) -> Option<u64> {
        match (self.found.as_ref().map(|table| table.number), self.missing) {
            (None, None) => Some(self.hint),
            (None, Some(missing)) => missing.checked_sub(1).map(|last| last / 2),
            (Some(found), None) => (found < u64::MAX).then(|| found.saturating_add(self.step)),
            (Some(found), Some(missing)) => (missing - found > 1).then(|| found + (missing - found) / 2),
        }
    }

    /// Takes the answer for that number.
    pub fn answer(&mut self, table: Option<Table>) {
        let Some(asked) = self.next() else { return };
        match table {
            Some(table) => {
                if self.found.replace(table).is_some() {
                    self.step = self.step.saturating_mul(2);
                }
            }
            None => self.missing = Some(asked),
        }
    }

    /// Returns the newest table, when the search has ended.
    pub fn found(self) -> Option<Table> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counts, NodeNumber};
    use onefold_bucket::{Failure, MemoryBucket};

    fn table(number: u64, epoch: u64) -> Table {
        let counts = Counts { chunk_index: 2, objects: 1, containers: 1 };
        Table { number, ..Table::first(counts, NodeNumber(0), epoch) }
    }

    fn chain(bucket: &MemoryBucket, length: u64) -> Tables {
        let tables = Tables::new(Arc::new(bucket.clone()), [3; 16]);
        (0..length).for_each(|number| assert_eq!(tables.put(&table(number, 1)).unwrap(), PutTable::Done));
        tables
    }

    #[test]
    fn m4_3_the_newest_table_is_found_from_any_hint_without_lists() {
        for length in [1u64, 2, 3, 7, 8, 9, 100] {
            let bucket = MemoryBucket::new();
            let tables = chain(&bucket, length);
            bucket.hide_from_lists(1000);
            for hint in (0..length + 9).chain([1 << 20, u64::MAX - 1, u64::MAX]) {
                assert_eq!(tables.newest(hint).unwrap().unwrap().number, length - 1, "{hint} of {length}");
            }
            assert_eq!(bucket.requests().lists, 0);
            let before = bucket.requests().gets;
            tables.newest(length - 1).unwrap();
            assert_eq!(bucket.requests().gets - before, 2, "a good hint takes two requests");
            let before = bucket.requests().gets;
            tables.newest(u64::MAX).unwrap();
            assert!(bucket.requests().gets - before < 80);
        }
        assert_eq!(chain(&MemoryBucket::new(), 0).newest(5).unwrap(), None);
    }

    /// Unsafe orders 5 and 6.
    #[test]
    fn of_two_tables_with_one_number_one_counts_and_both_masters_learn_which() {
        let bucket = MemoryBucket::new();
        let tables = chain(&bucket, 3);
        let (one, other) = (table(3, 2), table(3, 7));
        assert_eq!(tables.put(&one).unwrap(), PutTable::Done);
        assert_eq!(tables.put(&other).unwrap(), PutTable::Taken(one.clone()));
        assert_eq!(tables.newest(0).unwrap(), Some(one.clone()));
        // A master that slept puts a number that was taken long ago.
        assert_eq!(tables.put(&table(4, 2)).unwrap(), PutTable::Done);
        assert_eq!(tables.put(&other).unwrap(), PutTable::Taken(one));
    }

    #[test]
    fn a_put_whose_answer_was_lost_is_done_when_it_is_repeated() {
        let bucket = MemoryBucket::new();
        let tables = chain(&bucket, 1);
        for (number, failure) in [(1, Failure::After), (2, Failure::Before)] {
            bucket.fail_at_change(bucket.changes(), failure);
            assert!(matches!(tables.put(&table(number, 1)), Err(ClusterError::Ground(_))));
            assert_eq!(tables.put(&table(number, 1)).unwrap(), PutTable::Done);
        }
        assert_eq!(bucket.names().len(), 3);
    }

    #[test]
    fn wrong_tables_are_not_put_and_damaged_ones_are_named() {
        let bucket = MemoryBucket::new();
        let tables = chain(&bucket, 2);
        let mut wrong = table(2, 1);
        wrong.partitions[0].epoch = 0;
        assert!(matches!(tables.put(&wrong), Err(ClusterError::Wrong { number: 2, .. })));
        bucket.corrupt(&Tables::name(1), |bytes| bytes[40] ^= 1);
        let error = tables.newest(0).unwrap_err().to_string();
        assert!(error.contains("tables/0000000000000001") && error.contains("checksum"), "{error}");
        assert!(Tables::new(Arc::new(bucket), [4; 16]).newest(0).unwrap_err().to_string().contains("another store"));
    }
}
