//! Pages of a journal that readers take from memory, because they are not in place, or not all of them.

use super::{Journal, JournalHead, PageNumber};
use std::collections::HashMap;

/// Pages in memory, by number.
#[derive(Debug)]
pub(crate) struct Overlay<N> {
    pages: HashMap<N, Box<[u8]>>,
}

impl<N> Default for Overlay<N> {
    fn default() -> Overlay<N> {
        Overlay { pages: HashMap::new() }
    }
}

impl<N: PageNumber> Overlay<N> {
    /// Returns whether all pages are in place.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Returns a page that is not in place.
    pub fn get(&self, number: N) -> Option<&[u8]> {
        self.pages.get(&number).map(|bytes| &**bytes)
    }

    /// Returns the number of one of the pages.
    pub fn any(&self) -> Option<N> {
        self.pages.keys().next().copied()
    }

    /// Takes the pages of a journal, in place of older copies.
    pub fn cover<H: JournalHead<Number = N>>(&mut self, journal: &Journal<H>) {
        self.pages.extend(journal.pages().map(|(number, bytes)| (number, bytes.into())));
    }

    /// Drops the pages of a journal, which are in place.
    pub fn uncover<H: JournalHead<Number = N>>(&mut self, journal: &Journal<H>) {
        journal.pages().for_each(|(number, _)| drop(self.pages.remove(&number)));
    }
}
