//! The descriptor: the choices made when the store was created, which never change (`docs/format.md` section 2).

use crate::lifecycle::profile::{ChunkStoreKind, StoreProfile};
use crate::{EngineError, Result, Settings};
use onefold_chunking::{Kind as ChunkerKind, Sizes};
use onefold_fingerprint::Algorithm;
use onefold_ground::{Ground, GroundError, checksum, fill_random, read_file, replace_file};
use onefold_index::{Dia, Tag};
use onefold_storage::Compression;
use std::fmt::Write as _;

/// The file.
pub const DESCRIPTOR: &str = "descriptor";
/// The beginning of the file.
pub const DESCRIPTOR_BEGINNING: &str = "# Written by onefold at init.";
/// Its second copy.
pub const DESCRIPTOR_COPY: &str = "descriptor.copy";
/// The format of a store in a directory. This version would misread one in an earlier format: in format 1, batches of
/// the log were aligned to 512 bytes; in format 2, the object index had other names.
pub const FORMAT: u64 = 3;
/// The format of a store whose notes have a [partition of their own](Descriptor::has_own_partition).
pub const FORMAT_WITH_OWN_PARTITION: u64 = 4;
/// The longest descriptor.
const LIMIT_BYTES: u64 = 64 << 10;
/// The line that ends a descriptor.
const CHECKSUM_KEY: &str = "checksum = ";
/// The value of `data` in a store that keeps none.
const DISCARDED: &str = "discarded";

/// The choices made at `init`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Random name of the store.
    pub store: [u8; 16],
    /// What the store is composed of.
    pub profile: StoreProfile,
    /// How much the store was planned to store, in profile `sampled`: beyond it, fewer duplicates are found than
    /// planned.
    pub capacity_bytes: Option<u64>,
    /// Hash that names the chunks.
    pub fingerprint: Algorithm,
    /// Algorithm that cuts the chunks.
    pub chunker: ChunkerKind,
    /// Smallest, target and largest chunk.
    pub chunk_sizes: Sizes,
    /// Stored bytes of a full container.
    pub container_bytes: u32,
    /// Raw bytes that are compressed together.
    pub frame_bytes: u32,
    /// Codec of the frames.
    pub compression: Compression,
    /// Raw bytes that are compressed together in a [sequential](crate::WriteStream::sequential) stream.
    pub sequential_frame_bytes: u32,
    /// Codec of the frames of sequential streams.
    pub sequential_compression: Compression,
    /// Chunk-index partitions, a power of two.
    pub index_partitions: u32,
    /// Object-index partitions.
    pub object_partitions: u16,
    /// Container partitions.
    pub container_partitions: u16,
    /// Whether what an opening notes of itself lies in an object partition of its own, behind the others. A store in a
    /// bucket has one: it never moves when several nodes share the store. Elsewhere the notes are in partition 0.
    pub has_own_partition: bool,
    /// The tags of the linked index, in a store whose chunks are blocks.
    pub index_tag: Tag,
    /// The area of the linked index, in such a store.
    pub index_area: Dia,
    /// Whether the store discards the bytes of user data once they are chunked, named, looked up and given a place: for
    /// experiments with more data than space. It keeps everything else. Such a store opens only if the
    /// [settings](Settings::discards_data) say so too.
    pub discards_data: bool,
}

impl Descriptor {
    /// Returns the defaults with a new random name.
    pub fn new() -> Result<Descriptor> {
        Ok(Descriptor {
            store: random_name()?,
            profile: StoreProfile::default(),
            capacity_bytes: None,
            fingerprint: Algorithm::Blake3,
            chunker: ChunkerKind::default(),
            chunk_sizes: Sizes::default(),
            container_bytes: 4 << 20,
            frame_bytes: 64 << 10,
            compression: Compression::Zstd(1),
            sequential_frame_bytes: 512 << 10,
            sequential_compression: Compression::Zstd(2),
            index_partitions: 16,
            object_partitions: 1,
            container_partitions: 1,
            has_own_partition: false,
            index_tag: Tag::default(),
            index_area: Dia::default(),
            discards_data: false,
        })
    }

    /// Returns the number of object partitions with that of the notes.
    pub fn all_object_partitions(&self) -> u16 {
        self.object_partitions + u16::from(self.has_own_partition)
    }

    /// Returns the object partition of the notes.
    pub(crate) fn own_partition(&self) -> u16 {
        if self.has_own_partition { self.object_partitions } else { 0 }
    }

    fn format(&self) -> u64 {
        if self.has_own_partition { FORMAT_WITH_OWN_PARTITION } else { FORMAT }
    }

    /// Returns the size of a block, in a store whose chunks are blocks.
    pub fn block_bytes(&self) -> Option<u32> {
        self.profile.has_blocks().then_some(self.chunk_sizes.target as u32)
    }

    /// Changes the choices to those that a store whose chunks are blocks of this size needs.
    pub fn of_blocks(self, block_bytes: u32) -> Descriptor {
        let bytes = block_bytes as usize;
        Descriptor {
            profile: StoreProfile::Cacheless,
            fingerprint: Algorithm::Blake3Short,
            chunker: ChunkerKind::Fixed,
            chunk_sizes: Sizes { min: bytes, target: bytes, max: bytes },
            compression: Compression::None,
            sequential_compression: Compression::None,
            index_partitions: 1,
            container_partitions: 1,
            ..self
        }
    }

    /// Checks that all choices are in range and fit together.
    pub fn validate(&self) -> Result<()> {
        let invalid = |what: &str, why: String| Err(EngineError::Invalid { what: what.into(), why });
        // Not the chosen maximum: a fixed chunker does not use it.
        let longest_chunk_bytes = match onefold_chunking::chunker(self.chunker, self.chunk_sizes) {
            Ok(chunker) => chunker.limits().max,
            Err(error) => return invalid("chunk sizes", error.to_string()),
        };
        if !(64 << 10..=256 << 20).contains(&self.container_bytes) {
            return invalid("container size", format!("{} bytes; it must be from 64KiB to 256MiB", self.container_bytes));
        }
        if self.profile.chunk_store() == ChunkStoreKind::Levels && self.container_bytes > 64 << 20 {
            let why = format!(
                "{} bytes; in a store of profile `{}` it is the size of a memtable, at most 64MiB",
                self.container_bytes, self.profile
            );
            return invalid("container size", why);
        }
        for bytes in [self.frame_bytes, self.sequential_frame_bytes] {
            if !(4 << 10..=4 << 20).contains(&bytes) || bytes > self.container_bytes / 2 {
                return invalid("frame size", format!("{bytes} bytes; it must be from 4KiB to 4MiB and at most half a container"));
            }
        }
        if longest_chunk_bytes > self.container_bytes as usize / 2 {
            return invalid(
                "chunk sizes",
                format!("two chunks of the greatest length, {longest_chunk_bytes} bytes, must fit in a container"),
            );
        }
        if let Some(bytes) = self.capacity_bytes {
            if self.profile.is_exact() {
                return invalid(
                    "capacity",
                    format!("only a store of profile `sampled` has one, and this one has profile `{}`", self.profile),
                );
            }
            if !(u64::from(self.container_bytes)..=1 << 60).contains(&bytes) {
                return invalid("capacity", format!("{bytes} bytes; it must be at least one container and at most 1EiB"));
            }
        }
        if self.profile.has_blocks() {
            let block_bytes = self.chunk_sizes.target;
            if self.chunker != ChunkerKind::Fixed || !(4 << 10..=64 << 10).contains(&block_bytes) || !block_bytes.is_power_of_two() {
                let why = format!("a store of profile `{}` has chunks of a fixed size, a power of two from 4KiB to 64KiB", self.profile);
                return invalid("chunk sizes", why);
            }
            if [self.compression, self.sequential_compression].iter().any(|codec| *codec != Compression::None) {
                return invalid("compression", format!("a store of profile `{}` does not compress", self.profile));
            }
            if self.index_partitions != 1 || self.container_partitions != 1 {
                return invalid("partitions", format!("a store of profile `{}` has one of each kind", self.profile));
            }
        }
        if self.discards_data && !self.profile.has_containers() {
            return invalid("discarding data", format!("a store of profile `{}` keeps its data", self.profile));
        }
        if !self.profile.has_blocks() && (self.index_tag, self.index_area) != (Tag::default(), Dia::default()) {
            return invalid("index tag and area", format!("only a store of profile `cacheless` has them, this one has `{}`", self.profile));
        }
        if !self.index_partitions.is_power_of_two() || self.index_partitions > 1 << 12 {
            return invalid("index partitions", format!("{}; it must be a power of two up to 4096", self.index_partitions));
        }
        if !(1..=1 << 10).contains(&self.object_partitions) || !(1..=1 << 10).contains(&self.container_partitions) {
            return invalid("partitions", "there must be 1 to 1024 of each kind".into());
        }
        Ok(())
    }

    /// Checks that the store on `ground`, which has this descriptor, may be opened with these settings.
    pub(crate) fn check_settings(&self, settings: &Settings, ground: &dyn Ground) -> Result<()> {
        let invalid = |what: &str, why: String| Err(EngineError::Invalid { what: what.into(), why });
        if settings.parity_group > 0 && !self.profile.has_containers() {
            return invalid("parity", format!("a store of profile `{}` has no containers, and so no parity: it must be off", self.profile));
        }
        if self.profile.chunk_store() == ChunkStoreKind::Levels && settings.chain.iter().any(|name| name == "byte-compare") {
            let why = format!(
                "`byte-compare` finds two chunks of one name, and a store of profile `{}` has no place for both; leave it out",
                self.profile
            );
            return invalid("filter chain", why);
        }
        match (self.discards_data, settings.discards_data) {
            (false, false) => Ok(()),
            (true, false) => Err(EngineError::KeepsNoData { place: ground.describe("") }),
            (false, true) => invalid("discarding data", format!("{} keeps its data", ground.describe(""))),
            (true, true) if settings.parity_group > 0 => invalid("parity", "parity must be off in a store that keeps no data".into()),
            (true, true) if settings.chain.iter().any(|name| name == "byte-compare") => {
                invalid("filter chain", "`byte-compare` needs stored data, and this store keeps none".into())
            }
            (true, true) => Ok(()),
        }
    }

    /// Returns the text of the file.
    pub fn to_text(&self) -> String {
        let store = self.store.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        let mut text = format!(
            "{DESCRIPTOR_BEGINNING} What is chosen here holds for the life of the store.\n\
             format = {}\nstore = \"{store}\"\nprofile = \"{}\"\nfingerprint = \"{}\"\nchunker = \"{}\"\n\
             chunk_min_bytes = {}\nchunk_target_bytes = {}\nchunk_max_bytes = {}\ncontainer_bytes = {}\nframe_bytes = {}\n\
             compression = \"{}\"\nsequential_frame_bytes = {}\nsequential_compression = \"{}\"\nindex_partitions = {}\nobject_partitions = {}\ncontainer_partitions = {}\nencryption = \"none\"\n",
            self.format(),
            self.profile,
            self.fingerprint,
            self.chunker,
            self.chunk_sizes.min,
            self.chunk_sizes.target,
            self.chunk_sizes.max,
            self.container_bytes,
            self.frame_bytes,
            self.compression,
            self.sequential_frame_bytes,
            self.sequential_compression,
            self.index_partitions,
            self.object_partitions,
            self.container_partitions
        );
        if let Some(bytes) = self.capacity_bytes {
            let _ = writeln!(text, "capacity_bytes = {bytes}");
        }
        if self.profile.has_blocks() {
            let _ = writeln!(text, "index_tag = \"{}\"\nindex_area = \"{}\"", self.index_tag, self.index_area);
        }
        if self.discards_data {
            let _ = writeln!(text, "data = \"{DISCARDED}\"");
        }
        let sum = checksum(text.as_bytes());
        let _ = writeln!(text, "{CHECKSUM_KEY}\"{sum:016x}\"");
        text
    }

    /// Reads the text of the file; `path` names it in errors.
    pub fn from_text(text: &str, path: &str) -> Result<Descriptor> {
        let damaged = |why: String| EngineError::Descriptor { path: path.into(), why };
        let (body, last) = text
            .rfind(CHECKSUM_KEY)
            .filter(|at| *at == 0 || text.as_bytes()[at - 1] == b'\n')
            .map(|at| text.split_at(at))
            .ok_or_else(|| damaged("the line `checksum` at its end is missing".into()))?;
        // In every format the checksum is checked first: one flipped bit can turn this format into a greater one.
        if last != format!("{CHECKSUM_KEY}\"{:016x}\"\n", checksum(body.as_bytes())) {
            return Err(damaged("its checksum is wrong; the file was changed after it was written".into()));
        }
        let table: toml::Table = body.parse().map_err(|error: toml::de::Error| damaged(error.message().to_string()))?;
        let found = table.get("format").and_then(toml::Value::as_integer).ok_or_else(|| damaged("`format` is missing".into()))?;
        let has_own_partition = match u64::try_from(found) {
            Ok(FORMAT) => false,
            Ok(FORMAT_WITH_OWN_PARTITION) => true,
            Ok(found) if found > FORMAT => return Err(EngineError::Newer { found, known: FORMAT_WITH_OWN_PARTITION }),
            Ok(found) if found > 0 => return Err(EngineError::Older { found, known: FORMAT }),
            _ => return Err(damaged(format!("`format` is {found}"))),
        };
        let word = |key: &str| {
            table.get(key).and_then(toml::Value::as_str).map(str::to_string).ok_or_else(|| damaged(format!("`{key}` is missing")))
        };
        let number = |key: &str, limit: i64| {
            let value = table.get(key).and_then(toml::Value::as_integer).ok_or_else(|| damaged(format!("`{key}` is missing")))?;
            if (0..=limit).contains(&value) { Ok(value) } else { Err(damaged(format!("`{key}` is {value}"))) }
        };
        let codec = |key: &str| word(key)?.parse().map_err(|error| damaged(format!("`{key}`: {error}")));
        if word("encryption")? != "none" {
            return Err(damaged(format!("`encryption` is {:?}; this version knows \"none\"", word("encryption")?)));
        }
        // Only stores of blocks have these lines.
        let of_index = |key: &str| if table.contains_key(key) { word(key).map(Some) } else { Ok(None) };
        let discards_data = match table.get("data") {
            None => false,
            Some(toml::Value::String(data)) if data == DISCARDED => true,
            Some(other) => return Err(damaged(format!("`data` is {other}; this version knows {DISCARDED:?}"))),
        };
        let descriptor = Descriptor {
            store: parse_name(&word("store")?).ok_or_else(|| damaged("`store` is not 32 hex digits".into()))?,
            profile: word("profile")?.parse().map_err(|why| damaged(format!("`profile`: {why}")))?,
            capacity_bytes: match table.get("capacity_bytes") {
                None => None,
                Some(_) => Some(number("capacity_bytes", 1 << 60)? as u64),
            },
            fingerprint: word("fingerprint")?.parse().map_err(|error| damaged(format!("`fingerprint`: {error}")))?,
            chunker: word("chunker")?.parse().map_err(|error| damaged(format!("`chunker`: {error}")))?,
            chunk_sizes: Sizes {
                min: number("chunk_min_bytes", 1 << 30)? as usize,
                target: number("chunk_target_bytes", 1 << 30)? as usize,
                max: number("chunk_max_bytes", 1 << 30)? as usize,
            },
            container_bytes: number("container_bytes", 1 << 30)? as u32,
            frame_bytes: number("frame_bytes", 1 << 30)? as u32,
            compression: codec("compression")?,
            sequential_frame_bytes: number("sequential_frame_bytes", 1 << 30)? as u32,
            sequential_compression: codec("sequential_compression")?,
            index_partitions: number("index_partitions", 1 << 20)? as u32,
            object_partitions: number("object_partitions", 1 << 15)? as u16,
            container_partitions: number("container_partitions", 1 << 15)? as u16,
            has_own_partition,
            index_tag: match of_index("index_tag")? {
                None => Tag::default(),
                Some(tag) => tag.parse().map_err(|why| damaged(format!("`index_tag`: {why}")))?,
            },
            index_area: match of_index("index_area")? {
                None => Dia::default(),
                Some(area) => area.parse().map_err(|why| damaged(format!("`index_area`: {why}")))?,
            },
            discards_data,
        };
        descriptor.validate()?;
        Ok(descriptor)
    }

    /// Reads the descriptor of the store on `ground`.
    pub fn read(ground: &dyn Ground) -> Result<Descriptor> {
        match Descriptor::read_file(ground, DESCRIPTOR)? {
            Some(descriptor) => Ok(descriptor),
            None if ground.exists(DESCRIPTOR_COPY)? => {
                Err(EngineError::Descriptor { path: ground.describe(DESCRIPTOR), why: "the file is missing".into() })
            }
            None => Err(EngineError::NoStore { place: ground.describe("") }),
        }
    }

    /// Reads the descriptor, or its second copy if it is damaged. Only for callers that change nothing.
    pub fn read_any(ground: &dyn Ground) -> Result<Descriptor> {
        match Descriptor::read(ground) {
            Err(error @ EngineError::Descriptor { .. }) => match Descriptor::read_copy(ground) {
                Ok(Some(copy)) => {
                    tracing::warn!(%error, "the second copy of the descriptor is used");
                    Ok(copy)
                }
                _ => Err(error),
            },
            read => read,
        }
    }

    /// Reads the second copy. `None`: there is none.
    pub fn read_copy(ground: &dyn Ground) -> Result<Option<Descriptor>> {
        Descriptor::read_file(ground, DESCRIPTOR_COPY)
    }

    fn read_file(ground: &dyn Ground, name: &str) -> Result<Option<Descriptor>> {
        let path = ground.describe(name);
        let damaged = |why: String| EngineError::Descriptor { path: path.clone(), why };
        let bytes = match read_file(ground, name, LIMIT_BYTES) {
            Err(error) if error.is_not_found() => return Ok(None),
            Err(GroundError::TooLong { length_bytes, .. }) => return Err(damaged(format!("it has {length_bytes} bytes"))),
            bytes => bytes?,
        };
        let text = String::from_utf8(bytes).map_err(|_| damaged("it is not text".into()))?;
        Descriptor::from_text(&text, &path).map(Some)
    }

    /// Writes the descriptor: the moment at which the store exists.
    pub fn write(&self, ground: &dyn Ground) -> Result<()> {
        Ok(replace_file(ground, DESCRIPTOR, self.to_text().as_bytes())?)
    }

    /// Writes the second copy.
    pub fn write_copy(&self, ground: &dyn Ground) -> Result<()> {
        Ok(replace_file(ground, DESCRIPTOR_COPY, self.to_text().as_bytes())?)
    }
}

fn parse_name(text: &str) -> Option<[u8; 16]> {
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    let mut name = [0; 16];
    for (place, byte) in name.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(name)
}

/// Returns 16 bytes from the system's random numbers.
pub fn random_name() -> Result<[u8; 16]> {
    let mut name = [0; 16];
    fill_random(&mut name).map_err(|error| EngineError::Invalid { what: "random numbers".into(), why: error.to_string() })?;
    Ok(name)
}

/// Returns 32 random hex digits.
pub(crate) fn random_digits() -> Result<String> {
    Ok(random_name()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_chunking::Kind;

    #[test]
    fn a_descriptor_is_read_as_written() {
        let descriptor = Descriptor::new().unwrap();
        assert_eq!(Descriptor::from_text(&descriptor.to_text(), "d").unwrap(), descriptor);
        let in_bucket = Descriptor { has_own_partition: true, ..descriptor.clone() };
        assert_eq!(Descriptor::from_text(&in_bucket.to_text(), "d").unwrap(), in_bucket);
        assert_eq!((descriptor.own_partition(), descriptor.all_object_partitions()), (0, 1));
        assert_eq!((in_bucket.own_partition(), in_bucket.all_object_partitions()), (1, 2));
        let keeps_none = Descriptor { discards_data: true, ..descriptor };
        assert_eq!(Descriptor::from_text(&keeps_none.to_text(), "d").unwrap(), keeps_none);
        let planned = Descriptor { profile: StoreProfile::Sampled, capacity_bytes: Some(500 << 40), ..keeps_none };
        assert_eq!(Descriptor::from_text(&planned.to_text(), "d").unwrap(), planned);
        for wrong in [
            Descriptor { profile: StoreProfile::Exact, ..planned.clone() },
            Descriptor { profile: StoreProfile::Marked, ..planned.clone() },
            Descriptor { capacity_bytes: Some(1), ..planned.clone() },
            Descriptor { capacity_bytes: Some(2 << 60), ..planned.clone() },
        ] {
            assert!(wrong.validate().is_err() && Descriptor::from_text(&wrong.to_text(), "d").is_err());
        }
    }

    #[test]
    fn what_becomes_of_the_data_is_either_known_or_refused() {
        let text = Descriptor { discards_data: true, ..Descriptor::new().unwrap() }.to_text();
        let body = text.split(CHECKSUM_KEY).next().unwrap().replace("discarded", "mirrored");
        let text = format!("{body}{CHECKSUM_KEY}\"{:016x}\"\n", checksum(body.as_bytes()));
        let error = Descriptor::from_text(&text, "d").unwrap_err().to_string();
        assert!(error.contains("`data` is \"mirrored\"; this version knows \"discarded\""), "{error}");
    }

    #[test]
    fn any_changed_byte_is_found() {
        let text = Descriptor::new().unwrap().to_text();
        for place in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[place] ^= 1;
            if let Ok(changed) = String::from_utf8(bytes) {
                assert!(Descriptor::from_text(&changed, "d").is_err(), "byte {place}: {changed}");
            }
        }
    }

    #[test]
    fn m0_2_the_longest_chunk_fits_twice_into_a_container() {
        let validate = |chunker, target: usize, max| {
            let chunk_sizes = Sizes { min: 1024, target, max };
            Descriptor { chunker, chunk_sizes, container_bytes: 1 << 20, ..Descriptor::new().unwrap() }
                .validate()
                .map_err(|error| error.to_string())
        };
        assert_eq!(validate(Kind::Galois, 64 << 10, 512 << 10), Ok(()));
        assert!(validate(Kind::Galois, 64 << 10, (512 << 10) + 2).unwrap_err().contains("524290 bytes, must fit in a container"));
        // All chunks of a fixed chunker have the target size.
        assert_eq!(validate(Kind::Fixed, 512 << 10, 16 << 20), Ok(()));
        assert!(validate(Kind::Fixed, 1 << 20, 64 << 10).unwrap_err().contains("1048576 bytes, must fit in a container"));
    }

    #[test]
    fn a_newer_and_an_older_format_are_named() {
        let of_format = |format: i64| {
            let text = Descriptor::new().unwrap().to_text().replace(&format!("format = {FORMAT}"), &format!("format = {format}"));
            // Without the right checksum, one flipped bit may have made it.
            assert!(matches!(Descriptor::from_text(&text, "d"), Err(EngineError::Descriptor { .. })));
            let body = text.split(CHECKSUM_KEY).next().unwrap();
            Descriptor::from_text(&format!("{body}{CHECKSUM_KEY}\"{:016x}\"\n", checksum(body.as_bytes())), "d")
        };
        assert!(matches!(of_format(9), Err(EngineError::Newer { found: 9, known: FORMAT_WITH_OWN_PARTITION })));
        assert!(matches!(of_format(1), Err(EngineError::Older { found: 1, known: FORMAT })));
        for none in [0, -1, i64::MIN] {
            assert!(matches!(of_format(none), Err(EngineError::Descriptor { .. })));
        }
    }
}
