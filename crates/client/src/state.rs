//! How a file compares with the entry of its name in the previous backup.

use crate::monitor::Watch;
use onefold_catalog::{Attributes, Content, Entry};
use onefold_engine::Piece;

/// The ctime of an entry that lacks its extended attributes. No file has it, so the next backup does not reuse the
/// entry.
const LACKS_XATTRS: i64 = i64::MIN;

/// How a name compares with the previous backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    New,
    Changed,
    /// The entry equals the earlier one exactly.
    Same,
}

impl State {
    /// Compares a file that was read with the earlier entry of this name. Internal times and inodes are no change that
    /// a person would see.
    pub(crate) fn between(earlier: Option<&Entry>, entry: &Entry) -> State {
        let Some(earlier) = earlier else { return State::New };
        let (a, b) = (&earlier.attributes, &entry.attributes);
        let same_content = match (&earlier.content, &entry.content) {
            // The same bytes may be stored elsewhere.
            (Content::File { size_bytes: a, recipe: x }, Content::File { size_bytes: b, recipe: y }) => {
                a == b && x.level == y.level && x.pieces.iter().map(spelled).eq(y.pieces.iter().map(spelled))
            }
            (a, b) => a == b,
        };
        let same_attributes =
            (a.mode, a.uid, a.gid, a.mtime_ns, a.flags, &a.xattrs) == (b.mode, b.uid, b.gid, b.mtime_ns, b.flags, &b.xattrs);
        if same_content && same_attributes { State::Same } else { State::Changed }
    }
}

/// Returns what a piece spells, wherever it is stored.
fn spelled(piece: &Piece) -> impl PartialEq + use<> {
    let (offset, length) = match piece {
        Piece::Chunk { offset, length, .. } => (*offset, u64::from(*length)),
        Piece::Zeros { length } => (0, *length),
    };
    (piece.fingerprint(), offset, length)
}

/// Returns whether a file is unchanged: every change of content or attributes moves the ctime.
pub(crate) fn looks_same(earlier: &Attributes, found: &Attributes) -> bool {
    (earlier.mtime_ns, earlier.ctime_ns, earlier.inode, earlier.device, earlier.links, earlier.mode, earlier.uid, earlier.gid)
        == (found.mtime_ns, found.ctime_ns, found.inode, found.device, found.links, found.mode, found.uid, found.gid)
}

/// Gives a file at this absolute path the extended attributes that were read, or reports why it lacks them.
pub(crate) fn set_xattrs(attributes: &mut Attributes, read: rustix::io::Result<Vec<(Vec<u8>, Vec<u8>)>>, watch: &Watch<'_>, path: &[u8]) {
    match read {
        Ok(xattrs) => attributes.xattrs = xattrs,
        Err(error) => {
            watch.error(path, format_args!("cannot read its extended attributes: {error}"));
            drop_xattrs(attributes);
        }
    }
}

/// Leaves the extended attributes out, so that every later backup retries to store them.
pub(crate) fn drop_xattrs(attributes: &mut Attributes) {
    attributes.xattrs.clear();
    attributes.ctime_ns = LACKS_XATTRS;
}
