//! Pages of keys that searches read.

use crate::Result;
use crate::levels::table::{Entry, PAGE_BYTES, Table};
use onefold_ground::Readers;
use std::sync::Arc;

/// Where a search gets pages.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// The page that it needs first, if it was read already.
    ahead: Option<(Arc<Table>, usize, Vec<u8>)>,
    /// Pages that were read.
    pub(crate) reads: u64,
}

impl Pages {
    /// Reads the first page of many searches at once. Returns one for each.
    pub(crate) fn read_ahead(readers: &Readers, first: Vec<Option<(Arc<Table>, usize)>>) -> Vec<Pages> {
        let mut pages: Vec<Pages> = first.iter().map(|_| Pages::default()).collect();
        let wanted: Vec<usize> = (0..first.len()).filter(|search| first[*search].is_some()).collect();
        // A search that has nobody beside it reads its page itself.
        if wanted.len() > 1 {
            let mut requests = first.iter().flatten().map(|(table, page)| table.request(table.page_at(*page), PAGE_BYTES));
            readers.read_each(&mut requests, &mut |number, bytes, read| {
                let search = wanted[number];
                pages[search].reads += 1;
                // What cannot be read is read again by the search, which reports it.
                let page = first[search].as_ref().filter(|_| read.is_ok());
                pages[search].ahead = page.map(|(table, page)| (table.clone(), *page, bytes.to_vec()));
            });
        }
        pages
    }

    /// Returns the keys of a page.
    pub(crate) fn get(&mut self, table: &Table, page: usize) -> Result<Vec<Entry>> {
        let ahead = self.ahead.take().filter(|(of, number, _)| std::ptr::eq(&**of, table) && *number == page);
        if let Some((_, _, bytes)) = ahead {
            return table.decode_page(page, &bytes);
        }
        self.reads += 1;
        table.page(page)
    }
}
