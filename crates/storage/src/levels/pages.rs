//! Pages of keys that searches read.

use crate::Result;
use crate::levels::table::{Entry, PAGE_BYTES, Table};
use onefold_ground::Readers;
use std::sync::Arc;

/// Pages that are read ahead for one search at most. It seldom needs more than one.
const MOST: usize = 4;

/// Where a search gets pages.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// Those that were read already.
    ahead: Vec<(Arc<Table>, usize, Vec<u8>)>,
    /// Pages that were read.
    pub(crate) reads: u64,
}

impl Pages {
    /// Reads the first pages of searches, all at once. Of each search it gets the tables that it asks, and the pages.
    pub(crate) fn read_ahead<'a, T>(readers: &Readers, searches: impl Iterator<Item = T>) -> Vec<Pages>
    where
        T: Iterator<Item = (&'a Arc<Table>, usize)>,
    {
        let mut pages: Vec<Pages> = Vec::new();
        let mut wanted: Vec<(usize, &Arc<Table>, usize)> = Vec::new();
        for (search, tables) in searches.enumerate() {
            pages.push(Pages::default());
            wanted.extend(tables.take(MOST).map(|(table, page)| (search, table, page)));
        }
        // A search that has nobody beside it may find what it wants on its first page.
        if pages.len() > 1 {
            let mut requests = wanted.iter().map(|(_, table, page)| table.request(table.page_at(*page), PAGE_BYTES));
            readers.read_each(&mut requests, &mut |number, bytes, read| {
                let (search, table, page) = wanted[number];
                pages[search].reads += 1;
                // What cannot be read is read again by the search, which reports it.
                if read.is_ok() {
                    pages[search].ahead.push((table.clone(), page, bytes.to_vec()));
                }
            });
        }
        pages
    }

    /// Returns the keys of a page.
    pub(crate) fn get(&mut self, table: &Table, page: usize) -> Result<Vec<Entry>> {
        let ahead = self.ahead.iter().find(|(of, number, _)| std::ptr::eq(&**of, table) && *number == page);
        if let Some((_, _, bytes)) = ahead {
            return table.decode_page(page, bytes);
        }
        self.reads += 1;
        table.page(page)
    }
}
