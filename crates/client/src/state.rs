//! How a file compares with the entry of its name in the previous backup.

use crate::monitor::Watch;
use onefold_catalog::{Attributes, Entry};

/// The ctime of an entry that lacks its extended attributes. No file has it, so the next backup does not reuse the
/// entry.
const LACKS_XATTRS: i64 = i64::MIN;

/// How a name compares with the previous backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The earlier backup does not have the name.
    New,
    /// The earlier entry differs.
    Changed,
    /// The entry equals the earlier one exactly.
    Same,
}

impl State {
    /// Compares a file that was read with the earlier entry of this name. Internal times and inodes are no change that
    /// a person would see.
    pub(crate) fn between(earlier: Option<&Entry>, entry: &Entry) -> State {
        let Some(earlier) = earlier else { return State::New };
        if earlier.shows_the_same(entry) { State::Same } else { State::Changed }
    }
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
