//! `onefold init`.

use crate::bucket;
use crate::cli::{AreaName, ChunkerName, FingerprintName, Init, ProfileName, TagName};
use crate::failure::{Exit, Failure, Result};
use crate::output::Output;
use crate::remote::is_url;
use crate::settings;
use crate::store::{SETTINGS_FILE, ground};
use crate::talk::Talk;
use crate::units::{counted, number, printable, size};
use onefold_chunking::{Kind, Sizes};
use onefold_engine::{Coverage, Descriptor, Dia, Engine, EngineError, StoreProfile, Tag};
use onefold_fingerprint::Algorithm;
use onefold_ground::permissions::set_mode_of;
use onefold_ground::{Ground, Permissions, replace_file};
use serde_json::json;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// Size of a chunk.
const CHUNK_BYTES: u64 = 8 << 10;
/// Size of a block, in profile `cacheless`.
const BLOCK_BYTES: u64 = 4 << 10;
/// Partitions of a levelled store.
const PARTITIONS: u16 = 4;

/// Creates a store.
pub fn run(options: &Init, talk: Talk) -> Result<Exit> {
    if is_url(&options.directory) {
        return Err(Failure::cannot_run("a store is created on the machine that will have it").advise("give the name of a directory"));
    }
    let descriptor = descriptor(options)?;
    descriptor.validate()?;
    let group = options.group.as_deref().map(group_number).transpose()?;
    let (template, coverage) = hooks(options, &descriptor)?;
    let ground = create(&options.directory, &descriptor, &template, group, options.block_device.as_deref())?;

    let id: String = descriptor.store.iter().map(|byte| format!("{byte:02x}")).collect();
    let sizes = descriptor.chunk_sizes;
    let mut output = Output::new();
    if options.format.json {
        output.json(&json!({
            "store": ground.describe(""),
            "id": id,
            "profile": descriptor.profile.name(),
            "chunker": descriptor.chunker.to_string(),
            "chunk_min_bytes": sizes.min,
            "chunk_target_bytes": sizes.target,
            "chunk_max_bytes": sizes.max,
            "fingerprint": descriptor.fingerprint.to_string(),
            "compression": descriptor.sequential_compression.to_string(),
            "volume_compression": descriptor.compression.to_string(),
            "container_bytes": descriptor.container_bytes,
            "partitions": descriptor.container_partitions,
            "frame_bytes": descriptor.sequential_frame_bytes,
            "volume_frame_bytes": descriptor.frame_bytes,
            "capacity_bytes": descriptor.capacity_bytes,
            "chunks_for_hook": coverage.map(|coverage| coverage.chunks_for_hook()),
        }))?;
    } else if let (false, Some(block_bytes)) = (talk.quiet, descriptor.block_bytes()) {
        output.line(format_args!(
            "made store {} in {}\n  profile {}, blocks of {}, fingerprint {}\n  settings: {}",
            &id[..8],
            ground.describe(""),
            descriptor.profile,
            size(u64::from(block_bytes)),
            descriptor.fingerprint,
            ground.describe(SETTINGS_FILE),
        ))?;
    } else if !talk.quiet {
        output.line(format_args!(
            "made store {} in {}\n  profile {}, chunks {} {}, fingerprint {}, {} of {}\n  \
             compression of backups {} in frames of {}, of volumes {} in frames of {}\n  settings: {}",
            &id[..8],
            ground.describe(""),
            descriptor.profile,
            descriptor.chunker,
            size(sizes.target as u64),
            descriptor.fingerprint,
            match descriptor.profile {
                StoreProfile::Leveled =>
                    format!("{} with memtables", counted(descriptor.container_partitions.into(), "partition", "partitions")),
                _ => "containers".to_owned(),
            },
            size(u64::from(descriptor.container_bytes)),
            descriptor.sequential_compression,
            size(u64::from(descriptor.sequential_frame_bytes)),
            descriptor.compression,
            size(u64::from(descriptor.frame_bytes)),
            ground.describe(SETTINGS_FILE),
        ))?;
        if let (Some(coverage), Some(capacity_bytes)) = (coverage, descriptor.capacity_bytes) {
            output.line(format_args!("  {}", in_words(coverage, capacity_bytes)))?;
        }
    }
    output.finish()?;
    Ok(Exit::Done)
}

/// Returns the settings file of the new store, and what its hooks do when it is full.
fn hooks(options: &Init, descriptor: &Descriptor) -> Result<(String, Option<Coverage>)> {
    if options.sampled_index.is_some() && descriptor.profile.is_exact() {
        return Err(Failure::cannot_run(format!("--sampled-index: a store of profile `{}` has no hooks", descriptor.profile))
            .advise("only --profile sampled has them"));
    }
    let chosen = match descriptor.profile {
        StoreProfile::Cacheless => settings::little_memory(),
        _ => options.sampled_index.map(settings::sampled_index).into_iter().collect(),
    };
    let template = settings::template(&chosen);
    let settings =
        settings::parse_settings(&template).map_err(|error| Failure::cannot_run(format!("--sampled-index: {}", error.without_line())))?;
    let memory_bytes = settings.engine.sampled_index_bytes as u64;
    let coverage = descriptor.capacity_bytes.map(|capacity_bytes| Coverage::of(descriptor, capacity_bytes, memory_bytes));
    if let (Some(coverage), Some(capacity_bytes)) = (coverage, descriptor.capacity_bytes)
        && coverage.lacks_memory(memory_bytes)
    {
        let needed = size(coverage.needed_bytes());
        let (capacity, containers) = (size(capacity_bytes), counted(coverage.containers, "container", "containers"));
        let why = format!(
            "{} of hooks is too little for {capacity}: one hook for each of {containers} needs at least {needed}",
            size(memory_bytes)
        );
        return Err(Failure::cannot_run(why).advise(format!("--sampled-index {needed} sets `[memory] sampled_index` of the new store")));
    }
    Ok((template, coverage))
}

/// Says what the hooks of a full store find.
fn in_words(coverage: Coverage, capacity_bytes: u64) -> String {
    let capacity = size(capacity_bytes);
    match coverage.chunks_for_hook() {
        1 => format!("at {capacity} every chunk has a hook, unless it compresses; so the store finds every duplicate"),
        chunks => format!(
            "at {capacity} one chunk of {} has a hook, one of {} if data compresses to half; a hook finds all {} chunks of its container",
            number(chunks),
            number(chunks * 2),
            number(coverage.chunks / coverage.containers.max(1))
        ),
    }
}

/// Creates an empty store with this settings file.
pub(super) fn create(
    directory: &Path,
    descriptor: &Descriptor,
    template: &str,
    group: Option<u32>,
    device: Option<&Path>,
) -> Result<Arc<dyn Ground>> {
    let ground = match bucket::ground(directory)? {
        Some(_) if group.is_some() => {
            return Err(Failure::cannot_run("--group: who may use a store in a bucket is said there").advise("leave it out"));
        }
        Some(in_bucket) => in_bucket,
        None => {
            make_directory(directory).map_err(|error| {
                Failure::cannot_run(format!("cannot make the directory {}: {error}", directory.display()))
                    .advise("give a place where you can write")
            })?;
            // Fails if it is not empty, before anything changes.
            check_empty(directory)?;
            close_to_others(directory, group)?;
            ground(directory)?
        }
    };
    let made = match device {
        Some(device) => Engine::create_on_device(&ground, descriptor, device),
        None => Engine::create(&ground, descriptor),
    };
    made.map_err(|error| Failure { exit: Exit::CannotRun, ..Failure::from(error) })?;
    bucket::keep_directory(directory)?;
    replace_file(&*ground, SETTINGS_FILE, template.as_bytes())?;
    Ok(ground)
}

/// Creates a directory that only its owner may use, and those above it. Their names are durable on return: a crash must
/// not take the whole store away.
fn make_directory(directory: &Path) -> std::io::Result<()> {
    let directory = std::path::absolute(directory)?;
    let missing: Vec<&Path> = directory.ancestors().take_while(|place| !place.exists()).collect();
    if let Some(above) = directory.parent() {
        std::fs::create_dir_all(above)?;
    }
    match std::fs::DirBuilder::new().mode(Permissions::PRIVATE.directory).create(&directory) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && directory.is_dir() => {}
        made => made?,
    }
    for made in missing.iter().rev() {
        match made.parent().map(std::fs::File::open) {
            Some(Ok(above)) => above.sync_all()?,
            // A directory that may be written but not read cannot be synced.
            Some(Err(error)) if error.kind() != std::io::ErrorKind::PermissionDenied => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Gives the store's directory the mode that all its content follows. An existing setgid bit means nothing: directories
/// inherit it.
fn close_to_others(directory: &Path, group: Option<u32>) -> Result<()> {
    let cannot = |what: &str, error: std::io::Error| Failure::cannot_run(format!("cannot {what} {}: {error}", directory.display()));
    let mode = match group {
        Some(group) => {
            std::os::unix::fs::chown(directory, None, Some(group))
                .map_err(|error| cannot("give the group to", error).advise("you have to be a member of the group, or root"))?;
            Permissions::SHARED.directory
        }
        None => Permissions::PRIVATE.directory,
    };
    set_mode_of(directory, mode).map_err(|error| cannot("set the mode of", error))?;
    let now = std::fs::metadata(directory).map_err(|error| cannot("look at", error))?.mode() & 0o7777;
    if group.is_some() && now != mode {
        return Err(Failure::cannot_run(format!("{} cannot be shared: its mode is {now:o}, not {mode:o}", directory.display()))
            .advise("you have to be a member of the group, or root, and the file system has to keep modes"));
    }
    Ok(())
}

fn check_empty(directory: &Path) -> Result<()> {
    let ground = ground(directory)?;
    let is_empty = ground.list("")?.is_empty();
    if is_empty { Ok(()) } else { Err(Failure { exit: Exit::CannotRun, ..EngineError::NotEmpty { place: ground.describe("") }.into() }) }
}

/// Returns the number of a group, from its digits or from `/etc/group`.
fn group_number(name: &str) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let groups = std::fs::read_to_string("/etc/group").map_err(|error| Failure::cannot_run(format!("cannot read /etc/group: {error}")))?;
    let number = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    number.ok_or_else(|| {
        Failure::cannot_run(format!("there is no group {} in /etc/group", printable(name.as_bytes())))
            .advise("`getent group` lists groups; give the number of a group that is not in that file")
    })
}

/// Returns the choices for a store whose chunks are blocks.
fn of_blocks(options: &Init) -> Result<Descriptor> {
    let refused = |option: &str, why: &str| Err(Failure::cannot_run(format!("{option}: {why}")).advise("leave it out"));
    let unfit = [
        (
            "--chunker",
            options.chunker.is_some_and(|chunker| chunker != ChunkerName::Fixed),
            "chunks of profile `cacheless` have a fixed size",
        ),
        ("--chunk-min", options.chunk_min.is_some(), "chunks of profile `cacheless` have one size: --chunk-size"),
        ("--chunk-max", options.chunk_max.is_some(), "chunks of profile `cacheless` have one size: --chunk-size"),
        ("--compression", options.compression.as_ref().is_some_and(|codec| codec != "none"), "profile `cacheless` does not compress"),
        (
            "--volume-compression",
            options.volume_compression.as_ref().is_some_and(|codec| codec != "none"),
            "profile `cacheless` does not compress",
        ),
        ("--container-size", options.container_size.is_some(), "profile `cacheless` has no containers"),
        ("--partitions", options.partitions.is_some(), "only profile `leveled` has it"),
        ("--frame-size", options.frame_size.is_some(), "profile `cacheless` has no frames"),
        ("--volume-frame-size", options.volume_frame_size.is_some(), "profile `cacheless` has no frames"),
    ];
    if let Some((option, _, why)) = unfit.into_iter().find(|(_, is_unfit, _)| *is_unfit) {
        return refused(option, why);
    }
    let block_bytes = options.chunk_size.unwrap_or(BLOCK_BYTES);
    let block_bytes =
        u32::try_from(block_bytes).map_err(|_| Failure::cannot_run(format!("--chunk-size: {} is too large", size(block_bytes))))?;
    let of_blocks = Descriptor { capacity_bytes: options.capacity, ..Descriptor::new()? }.of_blocks(block_bytes);
    Ok(Descriptor {
        fingerprint: options.fingerprint.map_or(of_blocks.fingerprint, algorithm),
        index_tag: match options.index_tag {
            None | Some(TagName::Status) => Tag::Status,
            Some(TagName::Big) => Tag::Big,
        },
        index_area: match options.index_area {
            None | Some(AreaName::Large) => Dia::Large,
            Some(AreaName::Slim) => Dia::Slim,
        },
        ..of_blocks
    })
}

fn descriptor(options: &Init) -> Result<Descriptor> {
    if options.profile == ProfileName::Cacheless {
        return of_blocks(options);
    }
    let of_linked = [
        ("--index-tag", options.index_tag.is_some()),
        ("--index-area", options.index_area.is_some()),
        ("--block-device", options.block_device.is_some()),
    ];
    if let Some((option, _)) = of_linked.into_iter().find(|(_, is_chosen)| *is_chosen) {
        return Err(Failure::cannot_run(format!("{option}: only profile `cacheless` has it")).advise("leave it out"));
    }
    let has_levels = options.profile == ProfileName::Leveled;
    if options.partitions.is_some() && !has_levels {
        return Err(Failure::cannot_run("--partitions: only profile `leveled` has it").advise("leave it out"));
    }
    let wrong = |option: &str, why: &dyn std::fmt::Display| Failure::cannot_run(format!("{option}: {why}"));
    let in_memory = |option: &str, bytes: u64| usize::try_from(bytes).map_err(|_| wrong(option, &format!("{} is too large", size(bytes))));
    let in_file = |option: &str, bytes: u64| u32::try_from(bytes).map_err(|_| wrong(option, &format!("{} is too large", size(bytes))));
    let target = in_memory("--chunk-size", options.chunk_size.unwrap_or(CHUNK_BYTES))?;
    let chunk_sizes = Sizes {
        min: options.chunk_min.map_or(Ok(target / 4), |bytes| in_memory("--chunk-min", bytes))?,
        target,
        max: options.chunk_max.map_or(Ok(target.saturating_mul(4)), |bytes| in_memory("--chunk-max", bytes))?,
    };
    let defaults = Descriptor::new()?;
    let default = if bucket::is_named(&options.directory) { bucket::CONTAINER_BYTES } else { defaults.container_bytes };
    let container_bytes = options.container_size.map_or(Ok(default), |bytes| in_file("--container-size", bytes))?;
    // A size given for all frames holds for volumes too, unless one is given for theirs.
    let frame_bytes = |sizes: [(&str, Option<u64>); 2], default: u32| {
        let chosen = sizes.into_iter().find_map(|(option, bytes)| Some((option, bytes?)));
        chosen.map_or(Ok(default.min(container_bytes / 2)), |(option, bytes)| in_file(option, bytes))
    };
    let codec = |codecs: [(&str, &Option<String>); 2], default| {
        let chosen = codecs.into_iter().find_map(|(option, codec)| Some((option, codec.as_ref()?)));
        chosen.map_or(Ok(default), |(option, codec)| codec.parse().map_err(|error| wrong(option, &error)))
    };
    let (size_of_all, codec_of_all) = (("--frame-size", options.frame_size), ("--compression", &options.compression));
    Ok(Descriptor {
        profile: match options.profile {
            ProfileName::Exact => StoreProfile::Exact,
            ProfileName::Marked => StoreProfile::Marked,
            ProfileName::Sampled => StoreProfile::Sampled,
            ProfileName::Cacheless => StoreProfile::Cacheless,
            ProfileName::Leveled => StoreProfile::Leveled,
        },
        capacity_bytes: options.capacity,
        fingerprint: options.fingerprint.map_or(defaults.fingerprint, algorithm),
        chunker: match options.chunker.unwrap_or(ChunkerName::Galois) {
            ChunkerName::Galois => Kind::Galois,
            ChunkerName::Fastcdc => Kind::FastCdc,
            ChunkerName::Rabin => Kind::Rabin,
            ChunkerName::Fixed => Kind::Fixed,
        },
        chunk_sizes,
        container_bytes,
        container_partitions: if has_levels { options.partitions.unwrap_or(PARTITIONS) } else { defaults.container_partitions },
        frame_bytes: frame_bytes([("--volume-frame-size", options.volume_frame_size), size_of_all], defaults.frame_bytes)?,
        compression: codec([("--volume-compression", &options.volume_compression), codec_of_all], defaults.compression)?,
        sequential_frame_bytes: frame_bytes([size_of_all; 2], defaults.sequential_frame_bytes)?,
        sequential_compression: codec([codec_of_all; 2], defaults.sequential_compression)?,
        ..defaults
    })
}

/// Returns the fingerprint of this name.
pub(super) fn algorithm(name: FingerprintName) -> Algorithm {
    match name {
        FingerprintName::Blake3 => Algorithm::Blake3,
        FingerprintName::Blake3Short => Algorithm::Blake3Short,
        FingerprintName::Sha256 => Algorithm::Sha256,
        FingerprintName::Sha1 => Algorithm::Sha1,
    }
}
