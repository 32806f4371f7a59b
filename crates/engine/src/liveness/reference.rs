//! What is said of references: facts, stated by those who add or drop them. What follows from them is the business of
//! [`Liveness`](crate::Liveness).
//!
//! There are two kinds of them, and each reference is stated once:
//! * *Objects* refer to chunks. A transaction states what its objects add and drop, and in which group.
//! * *Metadata chunks* refer to chunks too. They belong to no group: one that is stored once may be needed by many groups. So
//!   its references are stated when the chunk becomes known, and again when it is removed, not by those who refer to it.
//!
//! Counts take both kinds alike: every reference is one. Marks start at the references of a group and go down through the
//! metadata chunks, so that what a metadata chunk refers to belongs to the group of whoever refers to the metadata chunk.

use crate::Piece;
use onefold_fingerprint::Fingerprint;
use onefold_storage::Address;

/// Objects whose references are tracked together, by a number that never means other objects: those of one map of block mappings,
/// or the backups of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group(u64);

impl Group {
    /// The group of a kind of objects (the first byte of their keys) with a number, of which the lowest 56 bits count. Two
    /// groups that have the same number are one, which is harmless: it is only larger.
    pub const fn new(kind: u8, number: u64) -> Group {
        Group((kind as u64) << 56 | number & (u64::MAX >> 8))
    }
}

/// A change in how often the objects of a group refer to a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Whose objects refer to it.
    pub group: Group,
    /// The chunk's name.
    pub fingerprint: Fingerprint,
    /// Where the recipe says that it is.
    pub address: Address,
    /// How many more references there are.
    pub change: i64,
}

impl Reference {
    /// The references of pieces: `change` for each that names a chunk.
    pub fn of(pieces: &[Piece], group: Group, change: i64) -> impl Iterator<Item = Reference> + '_ {
        pieces.iter().filter_map(move |piece| match *piece {
            Piece::Chunk { fingerprint, address, .. } => Some(Reference { group, fingerprint, address, change }),
            Piece::Zeros { .. } => None,
        })
    }

    /// Adds up what is said of one chunk in one group, and drops what comes to nothing.
    pub fn merge(references: &mut Vec<Reference>) {
        let place = |reference: &Reference| (reference.fingerprint, reference.group, reference.address);
        // Nearly always the first eight bytes decide: that takes a third of the time of comparing all, and half of that of a hash map.
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

/// A chunk that becomes known, or is removed, with what it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its name.
    pub fingerprint: Fingerprint,
    /// What it refers to, one for each time that it does: nothing if it is a data chunk.
    pub references: Vec<Fingerprint>,
}

/// What one batch says of references.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    /// What objects add and drop, by transaction. Several may be about the same chunk in the same group.
    pub references: &'a [&'a [Reference]],
    /// Metadata chunks that become known, but for those whose references are known still: a copy of them was lost.
    pub stored: &'a [Stored],
    /// Chunks that are removed.
    pub removed: &'a [Stored],
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
