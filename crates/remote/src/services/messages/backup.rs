//! A backup: what it is compared with, the steps of its tree, its record.

use super::{MAX_LONG_BYTES, MAX_STEPS, MAX_TAGS, MAX_TEXT_BYTES, Result, bounded, flag, id, text, unknown, whole};
use onefold_catalog::{Attributes, Backup, BackupId, Content, Entry, Statistics};
use onefold_engine::Recipe;
use onefold_ground::wire::{Reader, WireError, put_bytes, put_signed, put_varint};

/// Which backup a new one is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// The newest of the same group, host and paths.
    Newest,
    /// This one.
    This(BackupId),
    /// None.
    Nothing,
}

/// Opens a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The backup group.
    pub name: String,
    /// The machine.
    pub host: String,
    /// The absolute paths, sorted.
    pub paths: Vec<Vec<u8>>,
    /// What to compare with.
    pub against: Against,
}

impl Begin {
    /// Encodes the opening.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_bytes(&mut out, self.name.as_bytes());
        put_bytes(&mut out, self.host.as_bytes());
        put_varint(&mut out, self.paths.len() as u64);
        self.paths.iter().for_each(|path| put_bytes(&mut out, path));
        match self.against {
            Against::Newest => out.push(0),
            Against::This(id) => {
                out.push(1);
                out.extend_from_slice(id.as_bytes());
            }
            Against::Nothing => out.push(2),
        }
        out
    }

    /// Decodes the opening.
    pub fn decode(bytes: &[u8]) -> Result<Begin> {
        whole(bytes, |reader| {
            let name = text(reader, "backup name", MAX_TEXT_BYTES)?;
            let host = text(reader, "host", MAX_TEXT_BYTES)?;
            let count = reader.count("paths", 1)?;
            let paths = (0..count).map(|_| bounded(reader, "path", MAX_LONG_BYTES).map(<[u8]>::to_vec)).collect::<Result<_>>()?;
            let offset_bytes = reader.position();
            let against = match reader.u8()? {
                0 => Against::Newest,
                1 => Against::This(id(reader)?),
                2 => Against::Nothing,
                value => return Err(WireError::OutOfRange { what: "comparison", value: u64::from(value), offset_bytes }),
            };
            Ok(Begin { name, host, paths, against })
        })
    }
}

/// How chunks are cut, named and compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Method {
    /// The chunker ([`onefold_chunking::Kind`]).
    pub chunker: String,
    /// Smallest, target and largest chunk, bytes.
    pub chunk_sizes: [u32; 3],
    /// The key of the chunker. Empty: it has none.
    pub chunker_key: Vec<u8>,
    /// The hash that names chunks ([`onefold_fingerprint::Algorithm`]).
    pub fingerprint: String,
    /// The key of the hash. Empty: it has none.
    pub fingerprint_key: Vec<u8>,
    /// The compression of supplies ([`onefold_storage::Compression`]).
    pub compression: String,
    /// Raw bytes of a supply.
    pub frame_bytes: u32,
}

/// The answer to [`Begin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Began {
    /// The number of the backup in this session, for its contents.
    pub number: u64,
    /// When it began, nanoseconds since 1970.
    pub started_ns: i64,
    /// What the client has to use.
    pub method: Method,
    /// Every chunk of the earlier backup can be read, as far as is known.
    pub is_sound: bool,
    /// The record of the earlier backup, with a root of no pieces. Empty: there is none.
    pub earlier: Option<Backup>,
    /// Why an earlier backup could not be read. Empty: no such.
    pub damage: String,
}

impl Began {
    /// Encodes the answer.
    pub fn encode(&self, digest_bytes: usize) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, self.number);
        put_signed(&mut out, self.started_ns);
        put_bytes(&mut out, self.method.chunker.as_bytes());
        self.method.chunk_sizes.iter().for_each(|size| put_varint(&mut out, u64::from(*size)));
        put_bytes(&mut out, &self.method.chunker_key);
        put_bytes(&mut out, self.method.fingerprint.as_bytes());
        put_bytes(&mut out, &self.method.fingerprint_key);
        put_bytes(&mut out, self.method.compression.as_bytes());
        put_varint(&mut out, u64::from(self.method.frame_bytes));
        out.push(u8::from(self.is_sound));
        put_bytes(&mut out, &self.earlier.as_ref().map_or_else(Vec::new, |backup| backup.encode(digest_bytes)));
        put_bytes(&mut out, self.damage.as_bytes());
        out
    }

    /// Decodes the answer.
    pub fn decode(bytes: &[u8]) -> Result<Began> {
        whole(bytes, |reader| {
            let (number, started_ns) = (reader.varint()?, reader.signed()?);
            let chunker = text(reader, "chunker", MAX_TEXT_BYTES)?;
            let mut chunk_sizes = [0; 3];
            for size in &mut chunk_sizes {
                *size = reader.varint_to("chunk size", u64::from(u32::MAX))? as u32;
            }
            let chunker_key = bounded(reader, "key of the chunker", MAX_TEXT_BYTES)?.to_vec();
            let fingerprint = text(reader, "hash", MAX_TEXT_BYTES)?;
            let fingerprint_key = bounded(reader, "key of the hash", MAX_TEXT_BYTES)?.to_vec();
            let compression = text(reader, "compression", MAX_TEXT_BYTES)?;
            let frame_bytes = reader.varint_to("frame size", u64::from(u32::MAX))? as u32;
            let is_sound = flag(reader, "soundness")?;
            let record = reader.bytes()?;
            // The root is empty, so the length of digests does not matter.
            let earlier = if record.is_empty() { None } else { Some(Backup::decode(record, 32)?) };
            let damage = text(reader, "damage", MAX_LONG_BYTES)?;
            let method = Method { chunker, chunk_sizes, chunker_key, fingerprint, fingerprint_key, compression, frame_bytes };
            Ok(Began { number, started_ns, method, is_sound, earlier, damage })
        })
    }
}

/// A step of building the tree of a backup. Directories and their entries come in the order of the tree. Indexes are
/// places in the earlier version of the current directory, and only grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Begins a directory. `earlier`: the index of its entry.
    Enter {
        /// Its name.
        name: Vec<u8>,
        /// Its attributes.
        attributes: Attributes,
        /// The index of its entry in the earlier directory.
        earlier: Option<u64>,
    },
    /// Takes entries of the earlier directory as they are.
    Keep {
        /// The index of the first.
        from: u64,
        /// How many.
        count: u64,
        /// The [sum](KeptNames) of their names: the server must mean the same entries.
        names: u64,
    },
    /// Appends an entry. The recipe of a file is empty.
    Put {
        /// The entry.
        entry: Entry,
        /// The ticket of its content.
        ticket: Option<u64>,
        /// The index of the entry with its name.
        earlier: Option<u64>,
    },
    /// Ends the current directory.
    Leave {
        /// Nothing of the earlier directory is missing.
        has_all: bool,
    },
}

/// Sums the names of entries that are kept: the first eight bytes, as a little-endian number, of the BLAKE3 hash of the
/// names, each with a zero byte behind it.
#[derive(Clone, Debug, Default)]
pub struct KeptNames(blake3::Hasher);

impl KeptNames {
    /// Adds a name.
    pub fn add(&mut self, name: &[u8]) {
        self.0.update(name).update(&[0]);
    }

    /// Returns the sum.
    pub fn sum(&self) -> u64 {
        let hash = self.0.finalize();
        hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

fn put_index(out: &mut Vec<u8>, index: Option<u64>) {
    put_varint(out, index.map_or(0, |index| index.saturating_add(1)));
}

fn index(reader: &mut Reader<'_>) -> Result<Option<u64>> {
    Ok(reader.varint()?.checked_sub(1))
}

/// The attributes of a directory as an entry without content.
fn as_entry(name: &[u8], attributes: &Attributes) -> Entry {
    Entry { name: name.to_vec(), attributes: attributes.clone(), content: Content::Directory { recipe: Recipe::default() } }
}

impl Step {
    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Step::Enter { name, attributes, earlier } => {
                out.push(0);
                as_entry(name, attributes).encode(0, out);
                put_index(out, *earlier);
            }
            Step::Keep { from, count, names } => {
                out.push(1);
                put_varint(out, *from);
                put_varint(out, *count);
                out.extend_from_slice(&names.to_le_bytes());
            }
            Step::Put { entry, ticket, earlier } => {
                out.push(2);
                entry.encode(0, out);
                put_index(out, *ticket);
                put_index(out, *earlier);
            }
            Step::Leave { has_all } => out.extend_from_slice(&[3, u8::from(*has_all)]),
        }
    }

    /// Decodes the steps of a message.
    pub fn decode_all(bytes: &[u8]) -> Result<Vec<Step>> {
        let mut reader = Reader::new(bytes);
        let mut steps = Vec::new();
        while reader.left() > 0 {
            // A step has many times the memory of its encoding.
            if steps.len() == MAX_STEPS {
                return Err(WireError::OutOfRange { what: "steps", value: MAX_STEPS as u64 + 1, offset_bytes: reader.position() });
            }
            steps.push(Step::decode(&mut reader)?);
        }
        Ok(steps)
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Step> {
        let offset_bytes = reader.position();
        let wrong = |what, value| WireError::OutOfRange { what, value, offset_bytes };
        match reader.u8()? {
            0 => match Entry::decode(reader, 0)? {
                Entry { name, attributes, content: Content::Directory { recipe } } if recipe.pieces.is_empty() => {
                    Ok(Step::Enter { name, attributes, earlier: index(reader)? })
                }
                _ => Err(wrong("content of a directory", 0)),
            },
            1 => Ok(Step::Keep { from: reader.varint()?, count: reader.varint()?, names: reader.u64()? }),
            2 => {
                let entry = Entry::decode(reader, 0)?;
                let ticket = index(reader)?;
                let is_right = match &entry.content {
                    // It has a size that the recipe decides.
                    Content::File { recipe, .. } => recipe.pieces.is_empty() && recipe.level == 0 && ticket.is_some(),
                    Content::Directory { .. } => false,
                    _ => ticket.is_none(),
                };
                if !is_right {
                    return Err(wrong("content of an entry", 2));
                }
                Ok(Step::Put { entry, ticket, earlier: index(reader)? })
            }
            3 => Ok(Step::Leave { has_all: flag(reader, "completeness")? }),
            tag => Err(wrong("step", u64::from(tag))),
        }
    }
}

/// Makes a backup visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The user's name.
    pub user: String,
    /// Tags, sorted, each once.
    pub tags: Vec<String>,
    /// The options it was made with, as JSON.
    pub options: String,
    /// What the client counted.
    pub statistics: Statistics,
}

/// What a client says on a backup channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupRequest {
    /// Begins: the client does not only compare.
    Start,
    /// Steps of the tree.
    Steps(Vec<Step>),
    /// The tree is complete.
    Finish,
    /// Makes the backup visible.
    Commit(Commit),
}

impl BackupRequest {
    /// Returns kind and payload.
    pub fn encode(&self) -> (u8, Vec<u8>) {
        match self {
            BackupRequest::Start => (1, Vec::new()),
            BackupRequest::Steps(steps) => {
                let mut out = Vec::new();
                steps.iter().for_each(|step| step.encode(&mut out));
                (2, out)
            }
            BackupRequest::Finish => (3, Vec::new()),
            BackupRequest::Commit(commit) => {
                let mut out = Vec::new();
                put_bytes(&mut out, commit.user.as_bytes());
                put_varint(&mut out, commit.tags.len() as u64);
                commit.tags.iter().for_each(|tag| put_bytes(&mut out, tag.as_bytes()));
                put_bytes(&mut out, commit.options.as_bytes());
                commit.statistics.encode(&mut out);
                (4, out)
            }
        }
    }

    /// Decodes a message.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<BackupRequest> {
        match kind {
            1 => whole(payload, |_| Ok(BackupRequest::Start)),
            2 => Ok(BackupRequest::Steps(Step::decode_all(payload)?)),
            3 => whole(payload, |_| Ok(BackupRequest::Finish)),
            4 => whole(payload, |reader| {
                let user = text(reader, "user", MAX_TEXT_BYTES)?;
                let tags = reader.varint_to("tags", MAX_TAGS as u64)?;
                let tags = (0..tags).map(|_| text(reader, "tag", MAX_TEXT_BYTES)).collect::<Result<_>>()?;
                let options = text(reader, "options", MAX_LONG_BYTES)?;
                Ok(BackupRequest::Commit(Commit { user, tags, options, statistics: Statistics::decode(reader)? }))
            }),
            kind => Err(unknown("kind of a message", kind)),
        }
    }
}

/// What the server says on a backup channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupAnswer {
    /// The answer to the opening.
    Began(Box<Began>),
    /// The tree is complete: how the entries that were put compare with the earlier ones.
    Finished {
        /// Files that differ.
        changed: u64,
        /// Files that are equal.
        same: u64,
    },
    /// The backup is durable. Its record has a root of no pieces.
    Committed(Box<Backup>),
}

impl BackupAnswer {
    /// Returns kind and payload.
    pub fn encode(&self) -> (u8, Vec<u8>) {
        match self {
            BackupAnswer::Began(began) => (1, began.encode(32)),
            BackupAnswer::Finished { changed, same } => {
                let mut out = Vec::new();
                put_varint(&mut out, *changed);
                put_varint(&mut out, *same);
                (2, out)
            }
            BackupAnswer::Committed(backup) => (3, backup.encode(32)),
        }
    }

    /// Decodes a message.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<BackupAnswer> {
        match kind {
            1 => Ok(BackupAnswer::Began(Box::new(Began::decode(payload)?))),
            2 => whole(payload, |reader| Ok(BackupAnswer::Finished { changed: reader.varint()?, same: reader.varint()? })),
            3 => Ok(BackupAnswer::Committed(Box::new(Backup::decode(payload, 32)?))),
            kind => Err(unknown("kind of a message", kind)),
        }
    }
}

/// Returns a record without its root, which is for the server alone.
pub fn without_root(backup: &Backup) -> Backup {
    Backup { root: Recipe::default(), ..backup.clone() }
}
