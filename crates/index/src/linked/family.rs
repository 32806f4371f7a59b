//! Families: the records of one home, in a list (M1.4).
//!
//! # Invariants
//! * A slot is free, or has a record of its own family, or a *stranger*: a record of another family.
//! * The family's list begins at the home if its record is the family's own. Otherwise it begins where the home's
//!   `family` says, and without `family` the family is empty.
//! * So a slot with a record of its own has no `family`. Any other slot may have one, also a free one.
//! * The paper makes a new record the list's head (erratum B.001 (5)). Its lookup begins at the home, and would miss
//!   that head if the home has a record of the family. So a new record goes behind the home's own record, or the home's
//!   `family` names it.

use super::changes::Entry;
use super::header::Table;
use super::page::{AreaRecord, Named, Occupant, Slot};
use super::pages::Pages;
use crate::Result;
use onefold_fingerprint::Fingerprint;

/// What leads to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// It lies at its home.
    Home,
    /// `family` of its home.
    Family,
    /// `next` of this slot.
    After(u64),
}

/// A record and its place in the family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub table: Table,
    pub number: u64,
    pub link: Link,
    pub slot: Slot,
}

/// A chunk's record and entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub member: Member,
    pub entry: Entry,
}

/// Walks a family until `visit` returns something.
pub(super) fn walk<P: Pages, T>(
    pages: &mut P,
    table: Table,
    home: u64,
    mut visit: impl FnMut(&mut P, &Member) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let first = pages.slot(table, home)?;
    let (mut at, mut link) = match first.occupant {
        Occupant::Own => (Some(home), Link::Home),
        Occupant::Free | Occupant::Stranger => (first.family, Link::Family),
    };
    let mut left = pages.header().entries;
    while let Some(number) = at {
        let slot = if number == home { first } else { pages.slot(table, number)? };
        let (id, _) = pages.layout().slot_place(table.generation, number);
        let is_member = match link {
            Link::Home => slot.occupant == Occupant::Own,
            Link::Family | Link::After(_) => slot.occupant == Occupant::Stranger && number != home,
        };
        if !is_member {
            return Err(pages.damaged(id, format!("the family of slot {home} leads to slot {number}, which is not its member")));
        }
        if left == 0 {
            return Err(pages.damaged(id, format!("the family of slot {home} has more records than the table")));
        }
        left -= 1;
        if let Some(found) = visit(pages, &Member { table, number, link, slot })? {
            return Ok(Some(found));
        }
        (at, link) = (slot.next, Link::After(number));
    }
    Ok(None)
}

/// Looks a chunk up. Reads the area only for records whose tag matches (M1.7).
pub(super) fn find<P: Pages>(pages: &mut P, fingerprint: &Fingerprint) -> Result<Option<Found>> {
    let table = pages.header().table_of(fingerprint);
    let tag = pages.layout().tag_of(fingerprint);
    walk(pages, table, table.home(fingerprint), |pages, member| {
        if member.slot.tag != tag {
            return Ok(None);
        }
        let named = named(pages, member)?;
        Ok((named.fingerprint == *fingerprint).then(|| found(member, &named)))
    })
}

/// Finds the record of a chunk's block. It goes by the block's number, and needs no area: tags of different chunks may
/// be equal (M1.8).
pub(super) fn find_block<P: Pages>(pages: &mut P, table: Table, home: u64, block: u64) -> Result<Member> {
    let found = walk(pages, table, home, |_, member| Ok((member.slot.block == block).then_some(*member)))?;
    let (id, _) = pages.layout().slot_place(table.generation, home);
    found.ok_or_else(|| pages.damaged(id, format!("the family of slot {home} does not have block {block}")))
}

/// Combines a record and its name.
pub(super) fn found(member: &Member, named: &Named) -> Found {
    let Slot { block, is_lost, .. } = member.slot;
    Found { member: *member, entry: Entry { block, is_lost, note: named.note, count: named.count } }
}

/// Returns the full fingerprint of a record, its count and its note.
pub(super) fn named<P: Pages>(pages: &mut P, member: &Member) -> Result<Named> {
    if pages.layout().dia == super::Dia::Slim {
        return Ok(member.slot.inside);
    }
    let block = member.slot.block;
    match pages.area(block)? {
        Some(AreaRecord::Named(named)) => Ok(named),
        _ => {
            let (id, _) = pages.layout().area_place(block);
            Err(pages.damaged(id, format!("block {block} is free, but slot {} has it", member.number)))
        }
    }
}

/// Returns the chunk that a block belongs to, with its record if the area is slim. `None`: the block is free.
pub(super) fn chunk_of<P: Pages>(pages: &mut P, block: u64) -> Result<Option<(Named, Option<Slot>)>> {
    let (id, _) = pages.layout().area_place(block);
    match pages.area(block)? {
        None => Ok(None),
        Some(AreaRecord::Named(named)) => Ok(Some((named, None))),
        Some(AreaRecord::Backlink(link)) => {
            let header = *pages.header();
            let table = [header.table(), header.next_table()].into_iter().find(|table| table.generation == link.generation);
            let slot = table.map(|table| pages.slot(table, link.slot)).transpose()?;
            match slot.filter(|slot| slot.occupant != Occupant::Free && slot.block == block) {
                Some(slot) => Ok(Some((slot.inside, Some(slot)))),
                None => Err(pages.damaged(id, format!("block {block} names slot {}, which does not have it", link.slot))),
            }
        }
    }
}
