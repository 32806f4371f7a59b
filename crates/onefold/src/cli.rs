//! The command line: commands, options, their help. Completions and the manual page come from the same parser.

mod account;
mod backup;
mod bench;
mod cluster;
mod copy;
mod files;
mod fs;
mod mount;
mod node;
mod partition;
mod place;
mod retention;
mod scrub;
mod target;
mod traffic;
mod volume;

pub use account::{
    Account, AccountCreate, AccountDelete, AccountList, AccountLock, AccountRotate, AccountSet, AccountSettings, AccountShow,
    AccountUnlock, Bound, Grant, NewSecret,
};
use backup::plain_name;
pub use backup::{Backup, BackupFs, Backups};
pub use bench::{Bench, BenchReport, BenchRun, ScaleName};
pub use cluster::{Cluster, ClusterStatus};
pub use copy::Copy;
pub use files::{ArchiveFormat, DamagedBytes, DamagedFile, Diff, Dump, FileType, Find, Ls, OverwriteWhen, Restore};
pub use fs::{Fs, FsClone, FsCreate, FsDelete, FsList, FsRename, FsResize, FsRollback, FsSnapshot, Quota};
pub use mount::{Mount, MountFs, UnmountFs};
pub use node::Node;
pub use partition::{Partition, PartitionList, PartitionMove};
pub use place::{Connection, Place, PlaceToOneself, with_store};
pub use retention::{AppendOnly, AppendOnlyOff, AppendOnlyOn, AppendOnlyStatus, Dedup, Forget, Keep, Protect, Prune, Until};
pub use scrub::{Rate, Scrub, Span, Wait};
pub use target::{
    DigestChoice, Rules, SessionCommand, SessionDrop, SessionList, Target, TargetAllow, TargetAttach, TargetChap, TargetCreate,
    TargetDelete, TargetDeny, TargetDetach, TargetList, TargetSet, TargetSettings,
};
pub use traffic::{PlacementName, SetName, TraceName, Traffic, TrafficDescribe, TrafficGenerate, TrafficStream, VariantName};
pub use volume::{
    Volume, VolumeClone, VolumeCreate, VolumeDelete, VolumeDiff, VolumeExport, VolumeFacts, VolumeImport, VolumeList, VolumeRename,
    VolumeResize, VolumeRollback, VolumeSnapshot,
};

use crate::settings::FileMount;
use crate::units::{MIB, TIB, parse_size};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use onefold_chunking::Kind;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One deduplicating store for backups and network block devices.
#[derive(Debug, Parser)]
#[command(name = "onefold", version, propagate_version = true, arg_required_else_help = true, max_term_width = 110, after_long_help = AFTER_HELP)]
pub struct Cli {
    /// Prints errors and results only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Logs to standard error what it does; give it twice for more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  onefold init /srv/store                                    create a store
  export ONEFOLD_STORE=/srv/store                            from now on, instead of --store
  onefold backup --name home /home                           back up a tree
  onefold backups                                            list backups
  onefold restore latest:home --target /tmp/home             restore the newest
  onefold forget --keep-daily 7 --keep-monthly 12            thin out old backups
  onefold volume create disk --size 1TiB && onefold serve --nbd    a disk over NBD

Sizes: 8KiB, 4MiB, 1.5TiB. 8K is 8KiB; 8kB is 8000 bytes.
Exit codes: 0 done; 1 failed, or damage found; 2 wrong usage, or could not start; 3 done, except for some files; 130 interrupted.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Creates a new, empty store
    Init(Init),
    /// Backs up files and directories
    Backup(Backup),
    /// Lists the backups
    Backups(Backups),
    /// Forgets backups: those named, or those that a policy does not keep
    Forget(Forget),
    /// Frees the space of data that nothing refers to
    Prune(Prune),
    /// Joins chunks that are stored twice, in a store that does not find every duplicate at once
    Dedup(Dedup),
    /// Protects backups from being forgotten before a date
    Protect(Protect),
    /// Lists the files of a backup
    Ls(Ls),
    /// Finds files in all backups and lists the backups that have them
    Find(Find),
    /// Shows the differences between two backups
    Diff(Diff),
    /// Restores files from a backup
    Restore(Restore),
    /// Writes one file of a backup, or a directory as an archive, to standard output
    Dump(Dump),
    /// Shows all backups as a directory, until it is unmounted
    Mount(Mount),
    /// Copies backups and volumes into another store
    Copy(Copy),
    /// Creates, lists, snapshots, clones, resizes, renames, deletes, imports and exports volumes (disks)
    #[command(subcommand)]
    Volume(Volume),
    /// Makes, lists, snapshots and deletes filesystems; `mount --fs` mounts them
    #[command(subcommand, name = "fs")]
    Fs(Fs),
    /// Serves volumes over NBD and iSCSI, backups of other machines, and mounted filesystems, until SIGINT or SIGTERM
    Serve(Serve),
    /// Takes part in a cluster: several machines have one store in a bucket open, and find every duplicate
    Node(Node),
    /// Shows the nodes of a cluster
    #[command(subcommand)]
    Cluster(Cluster),
    /// Creates and changes iSCSI targets: the volumes that initiators see, and who may use them
    #[command(subcommand)]
    Target(Target),
    /// Creates and changes accounts: who may use the store over the network, and for what
    #[command(subcommand)]
    Account(Account),
    /// Lists and closes iSCSI sessions
    #[command(subcommand)]
    Session(SessionCommand),
    /// Shows what is in the store and how much space and memory it takes
    Stats(Stats),
    /// Verifies the store; exit code 0: clean, 1: damage found, 2: could not run
    Check(Check),
    /// Reads all stored data from disk at a set rate, and reports the date of the last full pass
    Scrub(Scrub),
    /// Lists the partitions of a store of profile `leveled`, and moves them to other disks
    #[command(subcommand)]
    Partition(Partition),
    /// Prevents all deletion until the secret is given
    #[command(subcommand)]
    AppendOnly(AppendOnly),
    /// Estimates how much a store would save with each chunker and size; needs no store, changes nothing
    Analyze(Analyze),
    /// Generates test data and describes it; needs no store
    #[command(subcommand)]
    Traffic(Traffic),
    /// Runs experiments on temporary stores and shows the results beside the papers' figures
    #[command(subcommand)]
    Bench(Bench),
    /// Prints a completion script for a shell
    #[command(after_help = "Example:\n  onefold completions bash > /etc/bash_completion.d/onefold")]
    Completions(Completions),
    /// Prints the manual page
    #[command(hide = true)]
    Manpage,
}

/// Returns what reads the name of a store.
pub(crate) fn place_parser() -> impl clap::builder::TypedValueParser<Value = PathBuf> {
    clap::builder::TypedValueParser::try_map(clap::builder::OsStringValueParser::new(), crate::bucket::place)
}

/// Which store.
#[derive(Args, Clone, Debug, Default)]
pub struct Store {
    /// Directory of the store, s3://BUCKET/PREFIX in object storage (also gs://, az://, file://), or
    /// onefold://ACCOUNT@HOST[:PORT] behind a server; may also come before the command
    #[arg(long = "store", visible_alias = "repository", value_name = "STORE", env = "ONEFOLD_STORE", value_parser = place_parser())]
    pub directory: PathBuf,
}

/// Which store, for a command that finds it in use while another one writes.
#[derive(Args, Clone, Debug, Default)]
pub struct StoreToOneself {
    /// Which store.
    #[command(flatten)]
    pub store: Store,
    /// Waits while another process has the store open: without limit, or at most TIME (90s, 30m, 2h)
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "forever")]
    pub wait: Option<Wait>,
}

impl std::ops::Deref for StoreToOneself {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// A path as its bytes, for it may be no UTF-8.
pub(crate) mod any_path {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().as_bytes().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        Ok(OsString::from_vec(Vec::deserialize(deserializer)?).into())
    }

    pub(super) mod optional {
        use super::*;

        pub(in super::super) fn serialize<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
            path.as_ref().map(|path| path.as_os_str().as_bytes()).serialize(serializer)
        }

        pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
            Ok(Option::<Vec<u8>>::deserialize(deserializer)?.map(|bytes| OsString::from_vec(bytes).into()))
        }
    }
}

/// How facts are printed.
#[derive(Args, Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Format {
    /// Prints JSON: one value, or one line for each item (see docs/cli.md)
    #[arg(long)]
    pub json: bool,
}

/// `onefold init`.
#[derive(Args, Debug)]
#[command(after_help = "\
These choices are permanent. STORE/onefold.toml has the settings that can change later.

Examples:
  onefold init /srv/store
  onefold init /srv/store --compression zstd:6 --chunk-size 16KiB
  onefold init /srv/store --group backup
  onefold init /srv/store --profile sampled --capacity 500TiB --sampled-index 2GiB
  onefold init /srv/small --profile cacheless
  onefold init /srv/large --profile leveled --partitions 8
  onefold init /srv/disks --chunker fixed --chunk-size 4KiB --compression lz4")]
pub struct Init {
    /// Directory of the new store: created if absent; must be empty if it exists. Or s3://BUCKET/PREFIX in object
    /// storage (also gs://, az://, file://), where nothing may be
    #[arg(value_name = "STORE", env = "ONEFOLD_STORE", value_parser = place_parser())]
    pub directory: PathBuf,
    /// How the store finds duplicates
    #[arg(long, value_enum, default_value_t = ProfileName::Exact)]
    pub profile: ProfileName,
    /// How much the store will store, with `--profile sampled`: says how many chunks have a hook when it is full, and
    /// warns when it stores more
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub capacity: Option<u64>,
    /// Memory of the hooks, with `--profile sampled`: written into the settings as `[memory] sampled_index` [default:
    /// 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub sampled_index: Option<u64>,
    /// Shares the store with this group (name or number): its members may read, write and delete everything [default:
    /// only you]
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
    /// How data is cut into chunks [default: galois; `cacheless`: fixed]
    #[arg(long, value_enum)]
    pub chunker: Option<ChunkerName>,
    /// Average size of a chunk (its exact size with `fixed`): a power of two [default: 8KiB; `cacheless`: 4KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub chunk_size: Option<u64>,
    /// Smallest chunk [default: a quarter of the average]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub chunk_min: Option<u64>,
    /// Largest chunk [default: four times the average]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub chunk_max: Option<u64>,
    /// Hash that names a chunk [default: blake3; `cacheless`: blake3-160]
    #[arg(long, value_enum)]
    pub fingerprint: Option<FingerprintName>,
    /// none, lz4, zstd[:1-19], zlib[:1-9] or bzip2[:1-9] [default: zstd:2 for backups, zstd:1 for volumes]
    #[arg(long, value_name = "CODEC[:LEVEL]")]
    pub compression: Option<String>,
    /// The codec of volumes alone [default: --compression, else zstd:1]
    #[arg(long, value_name = "CODEC[:LEVEL]")]
    pub volume_compression: Option<String>,
    /// Size of a container file, or of a memtable with `--profile leveled` [default: 4MiB; 16MiB in object storage]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub container_size: Option<u64>,
    /// Partitions with levels of their own, with `--profile leveled`: 1 to 1024 [default: 4]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub partitions: Option<u16>,
    /// Bytes that are compressed, and read, as one piece [default: 512KiB for backups, 64KiB for volumes; at most half
    /// a container]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub frame_size: Option<u64>,
    /// The same for volumes alone: a random read reads and decompresses this much [default: --frame-size, else 64KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub volume_frame_size: Option<u64>,
    /// Bits of a fingerprint in a record of the hash table, with `--profile cacheless`: 4, or with `big` 36. That reads
    /// fewer wrong records, and makes the table larger [default: status]
    #[arg(long, value_enum)]
    pub index_tag: Option<TagName>,
    /// Where fingerprints and counts are, with `--profile cacheless`: in the order of the blocks, or with `slim` in the
    /// hash table [default: large]
    #[arg(long, value_enum)]
    pub index_area: Option<AreaName>,
    /// Keeps the blocks on this block device instead of in a file, with `--profile cacheless`. Its first MiB must be
    /// empty, and nobody else may use it: no other machine either
    #[arg(long, value_name = "DEVICE")]
    pub block_device: Option<PathBuf>,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// Tags of the index of a store of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TagName {
    /// 52 bytes for each block
    Status,
    /// 56 bytes for each block
    Big,
}

/// Areas of the index of a store of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AreaName {
    /// Reading needs no hash table
    Large,
    /// A duplicate needs no area
    Slim,
}

/// Profiles that a store can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProfileName {
    /// Finds every duplicate; the chunk index is on disk and counts references
    Exact,
    /// Finds every duplicate; the chunk index does not change with duplicates, and `prune` marks what is needed
    Marked,
    /// Finds nearly every duplicate with an index whose memory is a setting; `prune` marks what is needed
    Sampled,
    /// Finds every duplicate of blocks of a fixed size with hardly any memory; does not compress
    Cacheless,
    /// Finds every duplicate as `exact` does; chunks are in levels of sorted tables, which compact themselves
    Leveled,
}

/// Chunkers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ChunkerName {
    /// By content, at the speed of memory
    Galois,
    /// By content, at the same places as other FastCDC programs
    Fastcdc,
    /// By content, with Rabin's polynomials
    Rabin,
    /// Every N bytes: for disks with aligned writes
    Fixed,
}

/// Fingerprints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FingerprintName {
    /// BLAKE3, 32 bytes
    Blake3,
    /// The first 20 bytes of BLAKE3
    #[value(name = "blake3-160")]
    Blake3Short,
    /// SHA-256, 32 bytes
    Sha256,
    /// SHA-1, 20 bytes; an attacker can make collisions
    Sha1,
}

/// Reads NAME=DIR.
fn file_mount(text: &str) -> Result<FileMount, String> {
    match text.split_once('=') {
        Some((name, place)) if !name.is_empty() && !place.is_empty() => {
            Ok(FileMount { name: name.to_owned(), place: PathBuf::from(place), ..FileMount::default() })
        }
        _ => Err("write the name of a filesystem and a directory, as in files=/srv/files".to_owned()),
    }
}

/// What is served, and where.
#[derive(Args, Clone, Debug, Default)]
pub struct Faces {
    /// Reads the settings from this file instead of STORE/onefold.toml
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Serves NBD over TCP, at 127.0.0.1:10809 if no address is given; `none` turns it off, whatever the settings say
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:10809")]
    pub nbd: Option<String>,
    /// Serves NBD over a Unix socket at this path
    #[arg(long, value_name = "PATH")]
    pub nbd_socket: Option<PathBuf>,
    /// Serves iSCSI at this address, on port 3260 if none is given; repeatable; `none` turns it off, whatever the
    /// settings say
    #[arg(long, value_name = "ADDRESS[:PORT][=ADVERTISED]")]
    pub iscsi: Vec<String>,
    /// Serves backups of other machines at this address, on port 8210 if none is given, always with TLS; repeatable;
    /// `none` turns it off, whatever the settings say
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    pub backup: Vec<String>,
    /// Mounts this filesystem at this directory, in addition to those of the settings; repeatable
    #[arg(long, value_name = "NAME=DIR", value_parser = file_mount)]
    pub fs: Vec<FileMount>,
    /// Server certificate chain, PEM
    #[arg(long, value_name = "FILE")]
    pub tls_certificate: Option<PathBuf>,
    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Authorities for client certificates, PEM; every client must then use TLS with a certificate from one of them
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Refuses TCP clients that do not use TLS
    #[arg(long)]
    pub tls_required: bool,
    /// Serves without TLS on addresses that other machines can reach
    #[arg(long)]
    pub allow_plain_off_loopback: bool,
    /// Exports all volumes read-only; opens the store for reading, so other readers can use it too
    #[arg(long)]
    pub read_only: bool,
}

/// `onefold serve`.
#[derive(Args, Debug, Default)]
#[command(after_help = "\
Every volume is an NBD export of the same name, and a disk of an iSCSI target (docs/iscsi.md). A protocol is served if an option here or
a setting in STORE/onefold.toml asks for it. Options override settings.
Only you can connect over a Unix socket (in a setgid directory, its group too). Over TCP on a loopback address, every user of this machine
can connect, and can read and write all volumes.

Examples:
  onefold serve --nbd-socket /run/onefold.sock
  onefold serve --store /srv/store --nbd
  onefold serve --iscsi 127.0.0.1
  onefold serve --backup 0.0.0.0
  onefold serve --nbd 0.0.0.0:10809 --tls-certificate server.pem --tls-key server.key --tls-required")]
pub struct Serve {
    /// Which store.
    #[command(flatten)]
    pub store: StoreToOneself,
    /// What is served.
    #[command(flatten)]
    pub faces: Faces,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold stats`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct Stats {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Place,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold check`.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "\
Without options it verifies the checksums and structure of everything but the data, and that every reference leads to something.
It changes nothing.

--repair needs the store to itself. It reads everything and repairs what it can. Chunks that cannot be read go into quarantine: nothing is
destroyed, and the output lists everything that needs them. They return when the same data is backed up or written again.

Examples:
  onefold check --store /srv/store --read-data
  onefold check --store /srv/store --repair --dry-run")]
pub struct Check {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: PlaceToOneself,
    /// Also reads all data and compares it with its fingerprints
    #[arg(long)]
    pub read_data: bool,
    /// First rebuilds the chunk index from the containers and all references; without it, check only reads
    // Nobody else may have the store open then: a daemon never does this, so it is not even asked.
    #[arg(long)]
    #[serde(skip)]
    pub rebuild_index: bool,
    /// Repairs what it can, quarantines chunks that cannot be read, and lists what needs them; reads all data
    #[arg(long, conflicts_with = "rebuild_index")]
    #[serde(skip)]
    pub repair: bool,
    /// With --repair: shows what it would do, and changes nothing
    #[arg(long, requires = "repair")]
    #[serde(skip)]
    pub dry_run: bool,
    /// With --repair: repairs even if that loses something for good; keeps the old version of what it changes
    #[arg(long, requires = "repair", conflicts_with = "dry_run")]
    #[serde(skip)]
    pub force: bool,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold analyze`.
#[derive(Args, Debug)]
#[command(after_help = "\
Reads all regular files under the paths once. For each chunker and size it prints the unique data, its compressed size, the lengths of the
chunks and the speed. A file with several names counts once; holes and chunks of zeros cost nothing.

It compares 64 bits of each fingerprint: with 10^8 chunks, one run in 3,700 confuses two of them. If --memory is too small for all
fingerprints, it keeps a random sample; the figures are then estimates, and the output shows their error.
It needs about 80MiB beside --memory, more with chunks of a megabyte.

Examples:
  onefold analyze /home /srv/backup/home
  onefold analyze --chunkers galois,fixed --sizes 4KiB,8KiB,16KiB /var/lib/libvirt/images")]
pub struct Analyze {
    /// Chunkers to compare, separated by commas [default: all]
    #[arg(long, value_name = "CHUNKER,...", value_delimiter = ',', value_parser = chunker_kinds())]
    pub chunkers: Vec<Kind>,
    /// Average chunk sizes to compare
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = parse_size, default_value = "4KiB,8KiB,16KiB,64KiB")]
    pub sizes: Vec<u64>,
    /// Hash that names a chunk
    #[arg(long, value_enum, default_value_t = FingerprintName::Blake3)]
    pub fingerprint: FingerprintName,
    /// Memory for the fingerprints: 8 bytes for each unique chunk (12 with several paths), for each chunker and size
    #[arg(long, value_name = "SIZE", value_parser = analysis_memory, default_value = "1GiB")]
    pub memory: u64,
    /// Leaves out names that match this pattern; repeatable
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Stays on the file systems of the given paths
    #[arg(long)]
    pub one_file_system: bool,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
    /// Files and directories to read
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
}

fn chunker_kinds() -> impl TypedValueParser<Value = Kind> {
    PossibleValuesParser::new(Kind::ALL.map(Kind::name)).try_map(|name| name.parse::<Kind>())
}

fn analysis_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    if !(MIB..=TIB).contains(&bytes) {
        return Err("it must be from 1MiB to 1TiB".to_owned());
    }
    Ok(bytes)
}

/// `onefold completions`.
#[derive(Args, Debug)]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_parser_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_option_has_help() {
        fn look(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path}");
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{path} {}", argument.get_id());
            }
            command.get_subcommands().for_each(|command| look(command, &path));
        }
        look(&Cli::command(), "");
    }

    #[test]
    fn every_command_and_option_is_documented() {
        fn look(command: &clap::Command, document: &str) {
            for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                if let Some(long) = argument.get_long() {
                    assert!(document.contains(&format!("--{long}")), "{} --{long}", command.get_name());
                }
            }
            for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
                assert!(document.contains(command.get_name()), "{}", command.get_name());
                look(command, document);
            }
        }
        look(&Cli::command(), include_str!("../../../docs/cli.md"));
    }

    #[test]
    fn a_filter_chain_is_checked_when_it_is_typed() {
        let parse = |chain: &str| {
            Cli::try_parse_from(["onefold", "volume", "create", "--store", "s", "v", "--size", "1GiB", "--filter-chain", chain])
        };
        assert!(parse("block-index,chunk-index").is_ok());
        assert!(parse("block-index").unwrap_err().to_string().contains("chunk-index"));
        assert!(parse("blom,chunk-index").unwrap_err().to_string().contains("`bloom`"));
    }
}
