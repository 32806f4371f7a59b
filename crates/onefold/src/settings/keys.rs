//! The list of all keys of `onefold.toml`.

use super::Settings;
use crate::units::{GIB, KIB, MIB, TIB, size};
use onefold_engine::CachePolicy;

/// One key.
#[derive(Debug)]
pub struct Key {
    /// Its section.
    pub section: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The default in TOML notation.
    pub default: &'static str,
    /// The allowed values.
    pub kind: Kind,
    /// What it does, in one sentence.
    pub about: &'static str,
    pub(super) set: fn(&mut Settings, Value),
}

/// The allowed values of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A size, bytes.
    Size {
        /// Smallest.
        least: u64,
        /// Largest.
        most: u64,
    },
    /// A whole number.
    Count {
        /// Smallest.
        least: u64,
        /// Largest.
        most: u64,
    },
    /// Bytes per second, or "auto".
    Rate,
    /// True or false.
    Flag,
    /// A text; empty means none.
    Text,
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// A list of filters.
    Chain,
    /// A list of portals to listen on.
    Portals,
    /// A list of addresses to listen on.
    Addresses,
}

impl Kind {
    /// Returns the range for people.
    pub fn describe(self) -> String {
        match self {
            Kind::Size { least, most } => format!("a size from {} to {}", size(least), size(most)),
            Kind::Count { least, most } => format!("a number from {least} to {most}"),
            Kind::Rate => "a rate as in \"50MiB/s\", or \"auto\"".to_owned(),
            Kind::Flag => "true or false".to_owned(),
            Kind::Text => "a text; \"\" for none".to_owned(),
            Kind::Choice(names) => names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", "),
            Kind::Portals => "a list of addresses with ports".to_owned(),
            Kind::Addresses => "a list of addresses, perhaps with ports".to_owned(),
            Kind::Chain => format!("a list of filters in their order: {}; `chunk-index` must be among them", super::FILTERS.join(", ")),
        }
    }
}

/// A checked value. Its variant matches the key's kind, so the setters below unpack it without another error.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Number(u64),
    Flag(bool),
    Text(Option<String>),
    Names(Vec<String>),
}

impl Value {
    fn number(self) -> u64 {
        if let Value::Number(number) = self { number } else { 0 }
    }

    /// Converts a bound of memory or a count. A machine of 32 bits takes the largest number that it can address.
    fn units(self) -> usize {
        usize::try_from(self.number()).unwrap_or(usize::MAX)
    }

    fn flag(self) -> bool {
        matches!(self, Value::Flag(true))
    }

    fn text(self) -> Option<String> {
        if let Value::Text(text) = self { text } else { None }
    }

    fn names(self) -> Vec<String> {
        if let Value::Names(names) = self { names } else { Vec::new() }
    }
}

/// The values of `memory.catalog_cache_policy`.
const CATALOG_CACHE_POLICIES: [&str; 3] = {
    let [first, second, third] = CachePolicy::ALL;
    [first.name(), second.name(), third.name()]
};

const MEMORY: Kind = Kind::Size { least: MIB, most: TIB };

/// All keys, by section, in the order of the file that `init` writes.
pub const KEYS: &[Key] = &[
    Key {
        section: "memory",
        name: "auxiliary_index",
        default: "\"64MiB\"",
        kind: MEMORY,
        about: "Changes of the chunk index that are not yet in its pages; more makes the sweeps over the pages rarer.",
        set: |settings, value| settings.engine.auxiliary_index_bytes = value.units(),
    },
    Key {
        section: "memory",
        name: "chunk_index_cache",
        default: "\"16MiB\"",
        kind: Kind::Size { least: 64 * KIB, most: TIB },
        about: "Pages of the chunk index for look-ups, beside what the system keeps of them in memory; a look-up that finds its page here costs a fifth of the processor time.",
        set: |settings, value| settings.engine.chunk_index_cache_bytes = value.units(),
    },
    Key {
        section: "memory",
        name: "chunk_index_filter",
        default: "\"256MiB\"",
        kind: Kind::Size { least: 64 * KIB, most: TIB },
        about: "Filter before the chunk index: about 1.3 bytes for each stored chunk while there is room, which lets one of 200 new chunks pass to a read. Beyond the bound it is coarser: a bit less for each chunk doubles what passes, and nothing is ever missed.",
        set: |settings, value| settings.engine.chunk_index_filter_bytes = value.units(),
    },
    Key {
        section: "memory",
        name: "sampled_index",
        default: "\"256MiB\"",
        kind: Kind::Size { least: 4 * KIB, most: TIB },
        about: "Hooks of profile `sampled`: 6.9 bytes for each chunk of the sample, and at least one hook for each container. When it is full, the sample halves. The system gives it as it is filled. After a change the next opening makes new hooks from catalogs. With less than one hook for each container the store does not open for writing.",
        set: |settings, value| settings.engine.sampled_index_bytes = value.units(),
    },
    Key {
        section: "memory",
        name: "levels_filter",
        default: "\"64MiB\"",
        kind: Kind::Size { least: 64 * KIB, most: TIB },
        about: "Filters of the tables of profile `leveled`: 1.25 bytes for each stored chunk. A table whose filter finds no room is asked by reading a page.",
        set: |settings, value| settings.engine.levels_filter_bytes = value.units(),
    },
    Key {
        section: "memory",
        name: "frame_cache",
        default: "\"64MiB\"",
        kind: MEMORY,
        about: "Decompressed frames of containers, for reading.",
        set: |settings, value| settings.engine.frame_cache_bytes = value.units(),
    },
    Key {
        section: "memory",
        name: "marks",
        default: "\"64MiB\"",
        kind: MEMORY,
        about: "Profiles `marked` and `sampled`: marks of data while `prune` looks at what a series of backups or a map of a volume needs, a bit for each chunk. More of them go through a file. Marks of metadata chunks come on top.",
        set: |settings, value| settings.engine.marks_bytes = value.units(),
    },
    Key {
        section: "memory",
        name: "catalog_cache",
        default: "\"32MiB\"",
        kind: MEMORY,
        about: "Catalogs of containers: where in a container each chunk is, for reading, and for finding chunks that come back together (filter `container-cache`). About 60 bytes for each chunk: the default has the chunks of 4GiB.",
        set: |settings, value| settings.engine.catalog_cache_bytes = value.units(),
    },
    Key {
        section: "memory",
        name: "catalog_cache_policy",
        default: "\"lru\"",
        kind: Kind::Choice(&CATALOG_CACHE_POLICIES),
        about: "Which catalogs go when their memory is full. \"lru\": the least recently used one. \"2q\": one that was loaded once goes before those that came back, so data that is read once does not displace them. \"hits\": the one with the fewest hits among the eight least recently used; old hits count less and less.",
        set: |settings, value| settings.engine.catalog_cache_policy = value.text().and_then(|name| name.parse().ok()).unwrap_or_default(),
    },
    Key {
        section: "memory",
        name: "in_flight",
        default: "\"16MiB\"",
        kind: MEMORY,
        about: "New data on its way through compression to disk; writers wait when it is used up.",
        set: |settings, value| settings.engine.in_flight_bytes = value.units(),
    },
    Key {
        section: "memory",
        name: "object_index_cache",
        default: "\"16MiB\"",
        kind: MEMORY,
        about: "Pages of the object index (mappings of volumes, records of backups).",
        set: |settings, value| settings.engine.object_index_cache_bytes = value.units(),
    },
    Key {
        section: "memory",
        name: "object_index_pending",
        default: "\"32MiB\"",
        kind: MEMORY,
        about: "Changes of the object index that are in the log but not yet in its file.",
        set: |settings, value| settings.engine.object_index_pending_bytes = value.units(),
    },
    Key {
        section: "memory",
        name: "volume_dirty",
        default: "\"64MiB\"",
        kind: MEMORY,
        about: "Write-back buffers of all volumes together; writers wait when they are full.",
        set: |settings, value| settings.volume_dirty_bytes = value.units(),
    },
    Key {
        section: "memory",
        name: "volume_mapping_cache",
        default: "\"16MiB\"",
        kind: MEMORY,
        about: "Block mappings of volumes, for reading and overwriting.",
        set: |settings, value| settings.volume_mapping_cache_bytes = value.units(),
    },
    Key {
        section: "memory",
        name: "filesystem_inodes",
        default: "\"16MiB\"",
        kind: MEMORY,
        about: "Inodes of a mounted filesystem that are kept in memory, for each of them; a quarter more for its snapshots. A file takes some 500 bytes, with its extended attributes on top.",
        set: |settings, value| settings.filesystem_inodes_bytes = value.units(),
    },
    Key {
        section: "memory",
        name: "nbd_payload",
        default: "\"128MiB\"",
        kind: Kind::Size { least: 32 * MIB, most: TIB },
        about: "Data of NBD requests that are worked on, all connections together; 256KiB for each connection come on top.",
        set: |settings, value| settings.nbd.payload_bytes = value.units(),
    },
    Key {
        section: "memory",
        name: "iscsi_payload",
        default: "\"128MiB\"",
        kind: Kind::Size { least: 32 * MIB, most: TIB },
        about: "Data of iSCSI commands that are worked on, all sessions together; those of commands that compare or combine (COMPARE AND WRITE, ORWRITE) are there twice. On top come 8MiB for each session (with 256KiB for data that no other session can take), 1MiB for each command that verifies, fills or copies (64 at a time), 4MiB for each volume that is erased, 16MiB of buffers that are kept for the next commands, and up to 64MiB for tokens of copies.",
        set: |settings, value| settings.iscsi.payload_bytes = value.number(),
    },
    Key {
        section: "memory",
        name: "iscsi_session",
        default: "\"32MiB\"",
        kind: Kind::Size { least: 32 * MIB, most: GIB },
        about: "The most of `iscsi_payload` that one session has at a time.",
        set: |settings, value| settings.iscsi.session_bytes = value.units(),
    },
    Key {
        section: "log",
        name: "segment",
        default: "\"8MiB\"",
        kind: Kind::Size { least: MIB, most: GIB },
        about: "Size of one file of the operations log, allocated before use. In a bucket: the length of the log from which the end of a command shortens it.",
        set: |settings, value| settings.engine.log_segment_bytes = value.number(),
    },
    Key {
        section: "log",
        name: "limit",
        default: "\"256MiB\"",
        kind: Kind::Size { least: 2 * MIB, most: 64 * GIB },
        about: "Size of the operations log above which background work shortens it; at least twice the segment. A longer log makes opening after a crash slower. At twice the limit writers wait until it is shorter.",
        set: |settings, value| settings.engine.log_limit_bytes = value.number(),
    },
    Key {
        section: "log",
        name: "commit",
        default: "\"64MiB\"",
        kind: Kind::Size { least: MIB, most: 16 * GIB },
        about: "Written data that may wait for its sync when no client asks for one; four times as much in a bucket.",
        set: |settings, value| settings.engine.commit_bytes = value.number(),
    },
    Key {
        section: "log",
        name: "commit_interval_ms",
        default: "5000",
        kind: Kind::Count { least: 10, most: 600_000 },
        about: "The longest time, in milliseconds, that written data waits for its sync when no client asks for one.",
        set: |settings, value| settings.engine.commit_interval_ms = value.number(),
    },
    Key {
        section: "filter",
        name: "chain",
        default: "[\"zero-chunk\", \"block-index\", \"container-cache\", \"chunk-index\"]",
        kind: Kind::Chain,
        about: "The tests, in this order, that decide whether a chunk is already stored. Volumes can have their own chain.",
        set: |settings, value| settings.engine.chain = value.names(),
    },
    Key {
        section: "filter",
        name: "bloom",
        default: "\"16MiB\"",
        kind: Kind::Size { least: 64 * KIB, most: 64 * GIB },
        about: "Memory of the Bloom filter, used only when `bloom` is in `chain`, rounded up to a power of two: about 1.2 bytes for each stored chunk give 1 % false positives.",
        set: |settings, value| settings.engine.bloom_bytes = value.units(),
    },
    Key {
        section: "index",
        name: "reads_in_flight",
        default: "64",
        kind: Kind::Count { least: 1, most: 1024 },
        about: "Pages of the chunk index that are read from the disk at a time, all look-ups together, each by a thread; 1: each look-up reads one page after the other. A good number is four times what the devices below work on at a time. A stream that waits for them has its next pages read ahead: up to 32 for each of this number, 8 MiB of memory with 64.",
        set: |settings, value| settings.engine.chunk_index_reads = value.units(),
    },
    Key {
        section: "levels",
        name: "ratio",
        default: "10",
        kind: Kind::Count { least: 2, most: 100 },
        about: "Profile `leveled`: by how much each level is larger than the one before. A smaller one writes each byte less often, and a chunk is searched in more levels.",
        set: |settings, value| settings.engine.levels_ratio = value.number() as u32,
    },
    Key {
        section: "levels",
        name: "tables",
        default: "10",
        kind: Kind::Count { least: 2, most: 1000 },
        about: "Profile `leveled`: tables of the first level from which it is compacted.",
        set: |settings, value| settings.engine.levels_tables = value.number() as u32,
    },
    Key {
        section: "levels",
        name: "compaction_percent",
        default: "25",
        kind: Kind::Count { least: 1, most: 100 },
        about: "Profile `leveled`: the share of a processor's time that compaction takes while the store is in use. It has a thread for each processor, but no more than partitions. When it has fallen far behind, they work all the time, and writers wait.",
        set: |settings, value| settings.engine.compaction_percent = value.number() as u32,
    },
    Key {
        section: "nbd",
        name: "listen",
        default: "\"\"",
        kind: Kind::Text,
        about: "TCP address and port of the NBD server, as in \"127.0.0.1:10809\"; \"\" for no TCP. Every user of this machine can connect to a loopback address.",
        set: |settings, value| settings.nbd.listen = value.text(),
    },
    Key {
        section: "nbd",
        name: "socket",
        default: "\"\"",
        kind: Kind::Text,
        about: "Path of a Unix socket of the NBD server, for the user who serves alone (0600); in a setgid directory for its group too.",
        set: |settings, value| settings.nbd.socket = value.text().map(Into::into),
    },
    Key {
        section: "nbd",
        name: "max_connections",
        default: "256",
        kind: Kind::Count { least: 1, most: 65_536 },
        about: "Connections at a time; further ones are refused.",
        set: |settings, value| settings.nbd.max_connections = value.units(),
    },
    Key {
        section: "nbd",
        name: "max_requests",
        default: "32",
        kind: Kind::Count { least: 1, most: 1024 },
        about: "Requests of one connection that are worked on at a time; the client waits with further ones.",
        set: |settings, value| settings.nbd.max_requests = value.units(),
    },
    Key {
        section: "nbd",
        name: "tls_certificate",
        default: "\"\"",
        kind: Kind::Text,
        about: "File with the server's certificate chain, PEM; with it clients may use TLS.",
        set: |settings, value| settings.nbd.tls_certificate = value.text().map(Into::into),
    },
    Key {
        section: "nbd",
        name: "tls_key",
        default: "\"\"",
        kind: Kind::Text,
        about: "File with the private key of the certificate, PEM.",
        set: |settings, value| settings.nbd.tls_key = value.text().map(Into::into),
    },
    Key {
        section: "nbd",
        name: "tls_client_ca",
        default: "\"\"",
        kind: Kind::Text,
        about: "File with the authorities of client certificates, PEM; with it every client over TCP must use TLS and show a certificate of theirs.",
        set: |settings, value| settings.nbd.tls_client_ca = value.text().map(Into::into),
    },
    Key {
        section: "nbd",
        name: "tls_required",
        default: "false",
        kind: Kind::Flag,
        about: "Refuse clients over TCP that do not use TLS. A Unix socket is for whoever may open it, with or without.",
        set: |settings, value| settings.nbd.tls_required = value.flag(),
    },
    Key {
        section: "nbd",
        name: "allow_plain_off_loopback",
        default: "false",
        kind: Kind::Flag,
        about: "Serve without TLS on addresses that other machines can reach.",
        set: |settings, value| settings.nbd.allow_plain_off_loopback = value.flag(),
    },
    Key {
        section: "nbd",
        name: "read_only",
        default: "false",
        kind: Kind::Flag,
        about: "Export all volumes read-only; the store is opened for reading, beside others who read.",
        set: |settings, value| settings.nbd.read_only = value.flag(),
    },
    Key {
        section: "iscsi",
        name: "listen",
        default: "[]",
        kind: Kind::Portals,
        about: "Portals of the iSCSI server; none: no iSCSI. Behind an address there may be the one that initiators are told, as in \"0.0.0.0:3260=san.example.com:3260\".",
        set: |settings, value| settings.iscsi.listen = value.names(),
    },
    Key {
        section: "iscsi",
        name: "max_sessions",
        default: "256",
        kind: Kind::Count { least: 1, most: 65_535 },
        about: "Sessions at a time, of all targets; further logins are refused.",
        set: |settings, value| settings.iscsi.max_sessions = value.units(),
    },
    Key {
        section: "iscsi",
        name: "max_commands",
        default: "64",
        kind: Kind::Count { least: 1, most: 1024 },
        about: "Commands of one session at a time: the command window that initiators are told.",
        set: |settings, value| settings.iscsi.max_commands = value.units(),
    },
    Key {
        section: "iscsi",
        name: "low_space_percent",
        default: "5",
        kind: Kind::Count { least: 0, most: 100 },
        about: "Initiators are warned (SCSI: thin provisioning soft threshold reached) when less than this percentage of the store's device is free; 0: never.",
        set: |settings, value| settings.iscsi.low_space_percent = value.number(),
    },
    Key {
        section: "iscsi",
        name: "allow_open_off_loopback",
        default: "false",
        kind: Kind::Flag,
        about: "Serve targets without any rule of access on addresses that other machines can reach.",
        set: |settings, value| settings.iscsi.allow_open_off_loopback = value.flag(),
    },
    Key {
        section: "mount",
        name: "commit_interval_ms",
        default: "5000",
        kind: Kind::Count { least: 10, most: 600_000 },
        about: "What programs wrote to a mounted filesystem and did not sync is stored after this many milliseconds; a crash may lose what is younger.",
        set: |settings, value| settings.commit_interval_ms = value.number(),
    },
    Key {
        section: "backup",
        name: "listen",
        default: "[]",
        kind: Kind::Addresses,
        about: "Where the backup server listens, on port 8210 if none is given; none: no backup server. It always uses TLS.",
        set: |settings, value| settings.backup.listen = value.names(),
    },
    Key {
        section: "backup",
        name: "certificate",
        default: "\"\"",
        kind: Kind::Text,
        about: "File with the server's certificate chain, PEM; \"\": backup.pem in the store, which is made on first use.",
        set: |settings, value| settings.backup.certificate = value.text().map(Into::into),
    },
    Key {
        section: "backup",
        name: "key",
        default: "\"\"",
        kind: Kind::Text,
        about: "File with the private key of the certificate, PEM.",
        set: |settings, value| settings.backup.key = value.text().map(Into::into),
    },
    Key {
        section: "backup",
        name: "client_ca",
        default: "\"\"",
        kind: Kind::Text,
        about: "File with the authorities of client certificates, PEM; clients may then show a certificate of theirs.",
        set: |settings, value| settings.backup.client_ca = value.text().map(Into::into),
    },
    Key {
        section: "backup",
        name: "client_certificate_required",
        default: "false",
        kind: Kind::Flag,
        about: "Refuse clients that show no certificate of these authorities.",
        set: |settings, value| settings.backup.client_certificate_required = value.flag(),
    },
    Key {
        section: "backup",
        name: "access_log",
        default: "true",
        kind: Kind::Flag,
        about: "Write what clients do into access.log, one JSON object a line: logins, backups, reads, deletions, changes of accounts.",
        set: |settings, value| settings.backup.access_log = value.flag(),
    },
    Key {
        section: "backup",
        name: "logs",
        default: "\"\"",
        kind: Kind::Text,
        about: "Directory of the access log; \"\": logs in the store.",
        set: |settings, value| settings.backup.logs = value.text().map(Into::into),
    },
    Key {
        section: "backup",
        name: "linger_seconds",
        default: "120",
        kind: Kind::Count { least: 1, most: 86_400 },
        about: "How long, in seconds, a session whose connection broke waits for its client to come back.",
        set: |settings, value| settings.backup.linger_seconds = value.number(),
    },
    Key {
        section: "backup",
        name: "keep_alive_seconds",
        default: "15",
        kind: Kind::Count { least: 1, most: 3600 },
        about: "A connection that is silent for three times this, in seconds, counts as broken.",
        set: |settings, value| settings.backup.keep_alive_seconds = value.number(),
    },
    Key {
        section: "backup",
        name: "budget",
        default: "\"128MiB\"",
        kind: Kind::Size { least: 4 * MIB, most: TIB },
        about: "Memory for data on its way between the server and all its clients. Each session has 1MiB of it for sure.",
        set: |settings, value| settings.backup.budget_bytes = value.number(),
    },
    Key {
        section: "backup",
        name: "max_sessions",
        default: "64",
        kind: Kind::Count { least: 1, most: 65_536 },
        about: "Sessions of all clients at a time; further ones are refused. Three quarters of `budget` must have 1MiB for each.",
        set: |settings, value| settings.backup.max_sessions = value.units(),
    },
    Key {
        section: "reclamation",
        name: "interval_seconds",
        default: "600",
        kind: Kind::Count { least: 0, most: 86_400 },
        about: "Seconds from one look for space to give back to the next; 0: only `onefold prune` does it.",
        set: |settings, value| settings.reclamation.interval_seconds = value.number(),
    },
    Key {
        section: "reclamation",
        name: "max_unused_percent",
        default: "20",
        kind: Kind::Count { least: 0, most: 100 },
        about: "The percentage of all stored bytes that may be unused before containers are merged.",
        set: |settings, value| settings.reclamation.max_unused_percent = value.number(),
    },
    Key {
        section: "reclamation",
        name: "max_fill_percent",
        default: "50",
        kind: Kind::Count { least: 0, most: 100 },
        about: "Containers of which more than this percentage is needed are not merged, though more may then stay unused than `max_unused_percent` says.",
        set: |settings, value| settings.reclamation.max_fill_percent = value.number(),
    },
    Key {
        section: "reclamation",
        name: "max_missed_percent",
        default: "1",
        kind: Kind::Count { least: 0, most: 100 },
        about: "Profile `sampled`: the percentage of all bytes that may be stored twice, as `stats` estimates, before the daemon joins copies as `onefold dedup` does; 100: never.",
        set: |settings, value| settings.reclamation.max_missed_percent = value.number(),
    },
    Key {
        section: "reclamation",
        name: "dedup_memory",
        default: "\"256MiB\"",
        kind: Kind::Size { least: MIB, most: TIB },
        about: "Memory of `onefold dedup` and of the daemon when it does the same.",
        set: |settings, value| settings.reclamation.dedup_memory_bytes = value.units(),
    },
    Key {
        section: "reserve",
        name: "size",
        default: "\"64MiB\"",
        kind: Kind::Size { least: 0, most: TIB },
        about: "The most room that is kept for deleting, discarding and pruning on a full disk; never more than a fiftieth of the disk. 0: none is kept.",
        set: |settings, value| settings.engine.reserve_bytes = value.number(),
    },
    Key {
        section: "cache",
        name: "size",
        default: "\"1GiB\"",
        kind: Kind::Size { least: 0, most: TIB },
        about: "Stores in buckets: the most disk space for containers that this machine has fetched or put. The least recently used ones go first. 0: none are kept on disk.",
        set: |settings, value| settings.cache.bytes = value.number(),
    },
    Key {
        section: "cache",
        name: "directory",
        default: "\"\"",
        kind: Kind::Text,
        about: "Stores in buckets: the directory for them, as in \"/var/cache/onefold\"; each store has its own below it. \"\": `cache` in the store's state on this machine.",
        set: |settings, value| settings.cache.directory = value.text().map(Into::into),
    },
    Key {
        section: "parity",
        name: "group",
        default: "0",
        kind: Kind::Count { least: 0, most: 16 },
        about: "Containers that share one parity file, which rebuilds a lost or damaged container, 2 to 16; 0: no parity.",
        set: |settings, value| settings.engine.parity_group = value.units(),
    },
    Key {
        section: "scrub",
        name: "interval_days",
        default: "30",
        kind: Kind::Count { least: 0, most: 3650 },
        about: "Days from the beginning of one pass over everything to that of the next; 0: only `onefold scrub` does it.",
        set: |settings, value| settings.scrub.interval_days = value.number(),
    },
    Key {
        section: "scrub",
        name: "rate",
        default: "\"auto\"",
        kind: Kind::Rate,
        about: "The most that is read for it; \"auto\": a quarter of the time.",
        set: |settings, value| settings.scrub.bytes_per_second = Some(value.number()).filter(|bytes| *bytes > 0),
    },
    Key {
        section: "workers",
        name: "compression",
        default: "0",
        kind: Kind::Count { least: 0, most: 1024 },
        about: "Threads that compress; 0 for one for each processor.",
        set: |settings, value| {
            let processors = onefold_engine::Settings::default().workers;
            settings.engine.workers = Some(value.units()).filter(|threads| *threads > 0).unwrap_or(processors);
        },
    },
];
