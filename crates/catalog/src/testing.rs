//! Generators shared by the tests of this crate.

use crate::{Attributes, Content, Entry};
use onefold_engine::{Address, Piece, Recipe};
use onefold_fingerprint::Fingerprint;
use proptest::collection::vec;
use proptest::prelude::*;

fn piece() -> impl Strategy<Value = Piece> {
    prop_oneof![
        (any::<[u8; 32]>(), any::<u64>(), 0..16u32 << 20, 1..100_000u32).prop_map(|(digest, address, offset, length)| Piece::Chunk {
            fingerprint: Fingerprint::from_digest(&digest),
            address: Address::from_bits(address),
            offset,
            length
        }),
        (1..1u64 << 40).prop_map(|length| Piece::Zeros { length }),
    ]
}

pub fn recipe() -> impl Strategy<Value = Recipe> {
    vec(piece(), 0..4).prop_map(Recipe::flat)
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        recipe().prop_map(|recipe| Content::File { size_bytes: recipe.length, recipe }),
        recipe().prop_map(|recipe| Content::Directory { recipe }),
        any::<Vec<u8>>().prop_map(|target| Content::Symlink { target }),
        any::<(u32, u32)>().prop_map(|(major, minor)| Content::CharacterDevice { major, minor }),
        any::<(u32, u32)>().prop_map(|(major, minor)| Content::BlockDevice { major, minor }),
        Just(Content::Fifo),
        Just(Content::Socket),
        any::<Vec<u8>>().prop_map(|path| Content::HardLink { path }),
    ]
}

fn attributes() -> impl Strategy<Value = Attributes> {
    let numbers = (0..0o10000u16, any::<u32>(), any::<u32>(), any::<i64>(), any::<i64>(), any::<u64>(), any::<u64>(), any::<u64>());
    (numbers, any::<u32>(), vec(any::<(Vec<u8>, Vec<u8>)>(), 0..3)).prop_map(
        |((mode, uid, gid, mtime_ns, ctime_ns, inode, device, links), flags, xattrs)| Attributes {
            mode,
            uid,
            gid,
            mtime_ns,
            ctime_ns,
            inode,
            device,
            links,
            flags,
            xattrs,
        },
    )
}

pub fn entry() -> impl Strategy<Value = Entry> {
    (vec(any::<u8>(), 1..20), attributes(), content()).prop_map(|(name, attributes, content)| Entry { name, attributes, content })
}
