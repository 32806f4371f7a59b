//! Facts about references, stated by those who add or drop them. What follows from the facts is the business of
//! [`Liveness`](crate::Liveness).
//!
//! There are two kinds of references, and each reference is stated once:
//! * *Objects* refer to chunks. A transaction states what its objects add and drop, and in which group.
//! * *Metadata chunks* refer to chunks too. They belong to no group: many groups may need one stored metadata chunk. So
//!   its references are stated when the chunk becomes known, and again when it is removed, and not by those who refer
//!   to it.
//!
//! Counts treat both kinds alike: every reference is one. Marks start at the references of a group and go down through
//! the metadata chunks. So what a metadata chunk refers to belongs to every group that refers to the metadata chunk.

use crate::Piece;
use onefold_fingerprint::Fingerprint;
use onefold_oplog::Position;
use onefold_storage::{Address, Origin};

/// Objects whose references are tracked together: those of one map of block mappings, or the backups of one name. Its
/// number never means other objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group(u64);

impl Group {
    /// Returns the group of a kind of objects (the first byte of their keys) with a number. Only the lowest 56 bits of
    /// the number count. Two groups with the same number become one, which is harmless: it is only larger.
    pub const fn new(kind: u8, number: u64) -> Group {
        Group((kind as u64) << 56 | number & (u64::MAX >> 8))
    }

    /// Converts the 64 bits that formats store.
    pub(crate) const fn from_bits(bits: u64) -> Group {
        Group(bits)
    }

    /// Returns the 64 bits.
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the kind of its objects: the first byte of their keys.
    pub const fn kind(self) -> u8 {
        (self.0 >> 56) as u8
    }

    /// Returns its number, 56 bits.
    pub const fn number(self) -> u64 {
        self.0 & (u64::MAX >> 8)
    }
}

/// A change in how often the objects of a group refer to a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The group whose objects refer to it.
    pub group: Group,
    /// The chunk's name.
    pub fingerprint: Fingerprint,
    /// The address in the recipe.
    pub address: Address,
    /// How many references are added; below 0: dropped.
    pub change: i64,
}

impl Reference {
    /// Returns the references of pieces: `change` for each piece that names a chunk.
    pub fn of(pieces: &[Piece], group: Group, change: i64) -> impl Iterator<Item = Reference> + '_ {
        pieces.iter().filter_map(move |piece| match *piece {
            Piece::Chunk { fingerprint, address, .. } => Some(Reference { group, fingerprint, address, change }),
            Piece::Zeros { .. } => None,
        })
    }

    /// Adds up the changes of each chunk in each group, and drops sums of 0.
    pub fn merge(references: &mut Vec<Reference>) {
        let place = |reference: &Reference| (reference.fingerprint, reference.group, reference.address);
        // Nearly always the first eight bytes decide.
        references.sort_unstable_by(|one, other| {
            let by_prefix = one.fingerprint.prefix().cmp(&other.fingerprint.prefix());
            by_prefix.then_with(|| place(one).cmp(&place(other)))
        });
        references.dedup_by(|next, sum| {
            let is_same = place(next) == place(sum);
            sum.change += if is_same { next.change } else { 0 };
            is_same
        });
        references.retain(|reference| reference.change != 0);
    }
}

/// A chunk that becomes known or is removed, and the chunks that it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its name.
    pub fingerprint: Fingerprint,
    /// The chunks that it refers to, once for each reference. Empty for a data chunk.
    pub references: Vec<Fingerprint>,
}

/// All that one batch states about references.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    /// What objects add and drop, by transaction. Several entries may concern the same chunk in the same group.
    pub references: &'a [&'a [Reference]],
    /// Metadata chunks that become known, except those whose references are still known because only a copy was lost.
    pub stored: &'a [Stored],
    /// Removed chunks.
    pub removed: &'a [Stored],
    /// Whether chunks that were known may get other places with this batch.
    pub has_moved: bool,
    /// Why a survey that was made before must not be judged by any more, if so: what it calls unneeded may be needed
    /// with this batch.
    pub outdates: Option<&'static str>,
    /// Origins of which no chunk is left with this batch.
    pub emptied: &'a [Origin],
    /// Where the log ends before this batch.
    pub end: Position,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_one_chunk_in_one_group_become_one() {
        let reference = |group: u64, name: u8, address: u64, change: i64| Reference {
            group: Group::new(b'm', group),
            fingerprint: Fingerprint::from_digest(&[name; 20]),
            address: Address::from_bits(address),
            change,
        };
        let mut list = vec![
            reference(2, 1, 7, 1),
            reference(1, 1, 7, 1),
            reference(1, 2, 7, -1),
            reference(1, 1, 7, 3),
            reference(1, 1, 8, 1),
            reference(1, 2, 7, 1),
        ];
        Reference::merge(&mut list);
        assert_eq!(list, [reference(1, 1, 7, 4), reference(1, 1, 8, 1), reference(2, 1, 7, 1)]);
        Reference::merge(&mut list);
        assert_eq!(list.len(), 3);
    }

    #[test]
    fn groups_of_different_kinds_are_different() {
        assert_ne!(Group::new(b'm', 5), Group::new(b'b', 5));
        assert_ne!(Group::new(b'b', 5), Group::new(b'b', 6));
        assert_eq!(Group::new(b'b', u64::MAX), Group::new(b'b', u64::MAX >> 8));
    }
}
