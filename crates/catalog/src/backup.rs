//! The record of a backup (`docs/format.md` section 8.4).

use onefold_engine::Recipe;
use onefold_ground::wire::{Reader, WireError, put_bytes, put_signed, put_varint};
use std::fmt;
use std::str::FromStr;

/// The version at the start of values in the object index.
const VERSION: u8 = 1;

/// The id of a backup: 16 random bytes, written as 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackupId([u8; 16]);

impl BackupId {
    /// Makes an id from its bytes, which the caller has drawn at random.
    pub fn from_bytes(bytes: [u8; 16]) -> BackupId {
        BackupId(bytes)
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns the first 8 hex digits, which lists show.
    pub fn short(&self) -> String {
        self.to_string()[..8].to_owned()
    }
}

impl fmt::Display for BackupId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for BackupId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for BackupId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<BackupId, NotAnId> {
        let is_id = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let bits = if is_id { u128::from_str_radix(text, 16).ok() } else { None };
        bits.map(|bits| BackupId(bits.to_be_bytes())).ok_or(NotAnId)
    }
}

/// The text is not the 32 hex digits of a [`BackupId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a backup id must have 32 hex digits")]
pub struct NotAnId;

/// What a backup counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Regular files, including further names of hard links.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symlinks, devices, fifos, sockets.
    pub others: u64,
    /// Files that the previous backup did not have.
    pub new_files: u64,
    /// Files that changed since the previous backup.
    pub changed_files: u64,
    /// Files taken over from the previous backup without reading them.
    pub unmodified_files: u64,
    /// Bytes of all files as applications see them, including holes.
    pub logical_bytes: u64,
    /// Bytes read from files.
    pub read_bytes: u64,
    /// Bytes of chunks that were new to the store.
    pub added_bytes: u64,
    /// Growth of the store's frames meanwhile: the added bytes compressed, unless others wrote at the same time.
    pub stored_bytes: u64,
    /// Files and directories that could not be read and are missing. If there are any, the backup is partial.
    pub errors: u64,
}

impl Statistics {
    /// Appends the encoding.
    pub fn encode(mut self, out: &mut Vec<u8>) {
        self.fields().into_iter().for_each(|field| put_varint(out, *field));
    }

    /// Reads statistics.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Statistics, WireError> {
        let mut statistics = Statistics::default();
        for field in statistics.fields() {
            *field = reader.varint()?;
        }
        Ok(statistics)
    }

    fn fields(&mut self) -> [&mut u64; 11] {
        [
            &mut self.files,
            &mut self.directories,
            &mut self.others,
            &mut self.new_files,
            &mut self.changed_files,
            &mut self.unmodified_files,
            &mut self.logical_bytes,
            &mut self.read_bytes,
            &mut self.added_bytes,
            &mut self.stored_bytes,
            &mut self.errors,
        ]
    }
}

/// The record of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// Its id.
    pub id: BackupId,
    /// Its place in the order of the store's backups, from 1. 0: not committed yet. Dates of backups may be wrong, but
    /// this order is not.
    pub sequence: u64,
    /// The store's clock when the backup was committed ([`onefold_engine::Engine::seen_ns`]).
    pub seen_ns: u64,
    /// The backup group that it belongs to.
    pub name: String,
    /// The machine that was backed up.
    pub host: String,
    /// The user who made it.
    pub user: String,
    /// When it began, nanoseconds since 1970.
    pub started_ns: i64,
    /// When it was complete, nanoseconds since 1970.
    pub finished_ns: i64,
    /// Words that the user gave it, sorted, without repetition ([`is_valid_tag`]).
    pub tags: Vec<String>,
    /// The absolute paths that were backed up.
    pub paths: Vec<Vec<u8>>,
    /// The options it was made with, as JSON.
    pub options: String,
    /// A directory whose entries are the first components of the paths.
    pub root: Recipe,
    /// What it counted.
    pub statistics: Statistics,
}

/// Returns whether a text can be a tag: 1 to 64 bytes without white space, control characters, `,` and `#`.
pub fn is_valid_tag(text: &str) -> bool {
    let is_wrong = |letter: char| letter.is_control() || letter.is_whitespace() || matches!(letter, ',' | '#');
    (1..=64).contains(&text.len()) && !text.contains(is_wrong)
}

impl Backup {
    /// Returns whether files or directories are missing because they could not be read.
    pub fn is_partial(&self) -> bool {
        self.statistics.errors > 0
    }

    /// Returns the sort key of backups: the sequence. Date and id break ties between records that came into the store
    /// in other ways.
    pub fn order(&self) -> impl Ord + use<> {
        (self.sequence, self.started_ns, self.finished_ns, self.id)
    }

    /// Encodes the record. Fingerprints have `digest_bytes`.
    pub fn encode(&self, digest_bytes: usize) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.id.0);
        put_varint(&mut out, self.sequence);
        put_varint(&mut out, self.seen_ns);
        put_bytes(&mut out, self.name.as_bytes());
        put_bytes(&mut out, self.host.as_bytes());
        put_bytes(&mut out, self.user.as_bytes());
        put_signed(&mut out, self.started_ns);
        put_signed(&mut out, self.finished_ns);
        put_varint(&mut out, self.tags.len() as u64);
        for tag in &self.tags {
            put_bytes(&mut out, tag.as_bytes());
        }
        put_varint(&mut out, self.paths.len() as u64);
        for path in &self.paths {
            put_bytes(&mut out, path);
        }
        put_bytes(&mut out, self.options.as_bytes());
        self.root.encode(digest_bytes, &mut out);
        self.statistics.encode(&mut out);
        out
    }

    /// Reads a record from the object index. Errors: the id in the record differs from the id in its key.
    pub fn decode_object(key: &[u8], value: &[u8], digest_bytes: usize) -> Result<Backup, WireError> {
        let backup = Backup::decode(value, digest_bytes)?;
        if key.get(1..) == Some(backup.id.as_bytes()) {
            return Ok(backup);
        }
        Err(WireError::OutOfRange { what: "id of a backup", value: u64::from(backup.id.0[0]), offset_bytes: 1 })
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8], digest_bytes: usize) -> Result<Backup, WireError> {
        let mut reader = Reader::new(bytes);
        let version = reader.u8()?;
        if version != VERSION {
            return Err(WireError::OutOfRange { what: "version of a backup", value: u64::from(version), offset_bytes: 0 });
        }
        let mut id = [0; 16];
        id.copy_from_slice(reader.take(16)?);
        let (sequence, seen_ns) = (reader.varint()?, reader.varint()?);
        let name = text(&mut reader, "backup name")?;
        let host = text(&mut reader, "host")?;
        let user = text(&mut reader, "user")?;
        let started_ns = reader.signed()?;
        let finished_ns = reader.signed()?;
        let tags = reader.count("tags", 1)?;
        let tags = (0..tags).map(|_| text(&mut reader, "tag")).collect::<Result<_, _>>()?;
        let paths = reader.count("paths", 1)?;
        let paths = (0..paths).map(|_| reader.bytes().map(<[u8]>::to_vec)).collect::<Result<_, _>>()?;
        let options = text(&mut reader, "options")?;
        let root = Recipe::decode(&mut reader, digest_bytes)?;
        let statistics = Statistics::decode(&mut reader)?;
        reader.end()?;
        Ok(Backup {
            id: BackupId(id),
            sequence,
            seen_ns,
            name,
            host,
            user,
            started_ns,
            finished_ns,
            tags,
            paths,
            options,
            root,
            statistics,
        })
    }
}

fn text(reader: &mut Reader<'_>, what: &'static str) -> Result<String, WireError> {
    let offset_bytes = reader.position();
    let bytes = reader.bytes()?;
    let valid = std::str::from_utf8(bytes);
    valid.map(str::to_owned).map_err(|error| WireError::OutOfRange { what, value: error.valid_up_to() as u64, offset_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::recipe;
    use proptest::prelude::*;

    fn backup() -> impl Strategy<Value = Backup> {
        let texts = any::<(String, String, String, String, Vec<String>)>();
        (any::<[u8; 16]>(), texts, any::<(i64, i64, u64, u64)>(), any::<Vec<Vec<u8>>>(), recipe(), any::<[u64; 11]>()).prop_map(
            |(id, (name, host, user, options, tags), (started_ns, finished_ns, sequence, seen_ns), paths, root, counts)| {
                let mut statistics = Statistics::default();
                for (field, count) in statistics.fields().into_iter().zip(counts) {
                    *field = count;
                }
                let id = BackupId(id);
                Backup { id, sequence, seen_ns, name, host, user, started_ns, finished_ns, tags, paths, options, root, statistics }
            },
        )
    }

    proptest! {
        #[test]
        fn a_backup_record_is_read_as_written(backup in backup()) {
            prop_assert_eq!(Backup::decode(&backup.encode(32), 32).unwrap(), backup);
        }

        #[test]
        fn garbage_is_refused_without_panic(mut bytes: Vec<u8>) {
            let _ = Backup::decode(&bytes, 32);
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            let _ = Backup::decode(&bytes, 32);
        }
    }

    #[test]
    fn a_tag_is_one_word() {
        assert!(["a", "before-upgrade", "v1.2", "ä"].into_iter().all(is_valid_tag));
        assert!(!["", "a b", "a,b", "a#b", "a\n", &"x".repeat(65)].into_iter().any(is_valid_tag));
    }

    #[test]
    fn an_id_is_32_hex_digits() {
        let id = BackupId::from_bytes([0x0f, 0xa0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        assert_eq!(id.to_string(), "0fa00102030405060708090a0b0c0d0e");
        assert_eq!(id.short(), "0fa00102");
        assert_eq!(id.to_string().parse::<BackupId>(), Ok(id));
    }
}
