//! Parses the text of a declaration.

use super::table::{Result, SpecError, Table, lay_over, line_of, lines, meant};
use super::{
    Face, FillSpec, GRAIN_BYTES, MAX_SIZE_BYTES, PARTS, RunSpec, Setting, SettingsReader, Spec, StoreSpec, VariantSpec, Work, WorkloadSpec,
    figures,
};
use crate::results::About;
use onefold_chunking::Sizes;
use onefold_engine::StoreProfile;
use onefold_fingerprint::Algorithm;
use onefold_ground::DeviceModel;
use onefold_ground::size::{GIB, KIB, MIB, TIB, size};
use onefold_ground::words::nearest;
use onefold_storage::Compression;
use onefold_traffic::{Model, Placement, Set, Trace, Variant};
use std::collections::BTreeMap;
use toml::de::{DeTable, DeValue};

/// The sections that variants can override.
const CHANGEABLE: [&str; 8] = ["workload", "fill", "store", "settings", "scaled", "run", "devices", "parts"];

/// A part with this device is on a real device.
const NO_DEVICE: &str = "none";

pub(super) fn parse(text: &str, settings: &dyn SettingsReader) -> Result<Spec> {
    let document = DeTable::parse(text).map_err(|error| SpecError::Syntax {
        line: error.span().map_or(1, |span| line_of(text, span.start)),
        why: error.message().to_owned(),
    })?;
    let of_all = ["id", "title", "paper", "text", "differs", "figure", "expect", "variant"];
    let top = Table::top(text, document.get_ref()).only(&[&of_all[..], &CHANGEABLE[..]].concat())?;
    let mut base = document.get_ref().clone();
    of_all.iter().for_each(|key| drop(base.remove(*key)));
    let full_size_bytes = workload(&Table::top(text, &base).table("workload")?)?.size_bytes;

    let mut variants: Vec<VariantSpec> = Vec::new();
    for own in top.tables("variant")? {
        let own = own.only(&[&["name"][..], &CHANGEABLE[..]].concat())?;
        let name = own.words("name", "what people call the variant")?;
        if variants.iter().any(|variant| variant.name == name) {
            let line = own.get("name").map_or(1, |(line, _)| line);
            return Err(own.wrong("name", line, format!("is {name:?} twice")));
        }
        let mut merged = base.clone();
        let mut changes = own.content();
        changes.remove("name");
        lay_over(&mut merged, &changes);
        variants.push(variant(text, name, &merged, settings)?);
    }
    let Some(generations) = variants.iter().map(|variant| variant.workload.generations).max() else {
        return Err(top.missing("variant", "an experiment has at least one [[variant]] with a name"));
    };
    let names: Vec<String> = variants.iter().map(|variant| variant.name.clone()).collect();
    let of_figures = |table| figures::figure(table, generations);
    let of_expectations = |table| figures::expectation(table, generations, &names);
    Ok(Spec {
        about: About {
            id: top.words("id", "the experiment's id, as \"E0.1\"")?,
            title: top.words("title", "a line that says what it is")?,
            paper: top.words("paper", "the paper and its section")?,
            text: top.text("text")?.unwrap_or_default().trim().to_owned(),
            differs: top.text("differs")?.unwrap_or_default().trim().to_owned(),
            figures: top.tables("figure")?.into_iter().map(of_figures).collect::<Result<_>>()?,
            expectations: top.tables("expect")?.into_iter().map(of_expectations).collect::<Result<_>>()?,
        },
        full_size_bytes,
        variants,
    })
}

fn variant(text: &str, name: String, merged: &DeTable<'_>, reader: &dyn SettingsReader) -> Result<VariantSpec> {
    let top = Table::top(text, merged);
    let settings = settings(&top.table("settings")?, reader)?;
    let scaled = scaled(&top.table("scaled")?, &settings, reader)?;
    let devices = devices(&top.table("devices")?)?;
    let mut said = Vec::new();
    lines("", merged, &mut said);
    let workload = workload(&top.table("workload")?)?;
    let run = run(&top.table("run")?)?;
    let least_bytes = run.request_bytes as u64 * u64::from(workload.clients);
    if workload.size_bytes < least_bytes {
        let (given, clients, request) = (size(workload.size_bytes), workload.clients, size(run.request_bytes as u64));
        let why = format!("workload.size is {given}: {clients} clients with requests of {request} need at least {}", size(least_bytes));
        return Err(SpecError::Contradiction { why });
    }
    let is_by_call = run.face == Face::InProcess || run.face.has_files();
    if is_by_call && run.depth > 1 {
        let (depth, face) = (run.depth, run.face.name());
        let why = format!("run.depth is {depth}: a client of {face} has one request at a time; leave it out, or choose another run.face");
        return Err(SpecError::Contradiction { why });
    }
    if run.rate_bytes_per_s > 0 && run.depth > 1 {
        let why = "run.rate is for clients with one request at a time: leave out run.rate or run.depth".to_owned();
        return Err(SpecError::Contradiction { why });
    }
    let reads = workload.work.iter().any(|work| matches!(work, Work::Rewrite | Work::Read));
    if reads && run.face != Face::InProcess && !run.face.has_files() {
        let why =
            format!("workload.work reads, which clients of {} do not: choose in-process, or a run.face that has files", run.face.name());
        return Err(SpecError::Contradiction { why });
    }
    let (fill, store) = (fill(&top.table("fill")?)?, store(&top.table("store")?)?);
    let needs_no_data = fill.is_some() || workload.work.iter().any(|work| !work.is_of_volumes());
    if needs_no_data && !store.discard_data {
        let why = "[fill] and workload.work name chunks that have no data: set store.discard_data = true, or leave them out".to_owned();
        return Err(SpecError::Contradiction { why });
    }
    Ok(VariantSpec { name, workload, fill, store, settings, scaled, run, devices: parts(&top.table("parts")?, &devices)?, lines: said })
}

fn workload(table: &Table<'_>) -> Result<WorkloadSpec> {
    let keys = ["set", "size", "clients", "generations", "work", "seed", "repeat", "placement", "trace", "variant", "deleted_runs"];
    let table = table.clone().only(&keys)?;
    let set = set(&table)?;
    let size_bytes = table.size("size", GRAIN_BYTES..=MAX_SIZE_BYTES)?;
    let generations = table.count("generations", 1..=u64::from(set.generations()))?;
    let work = work(&table, generations)?;
    let (written, last) = (work.iter().filter(|work| **work == Work::Write).count(), set.generations());
    if written > last as usize {
        let line = table.get("work").map_or(1, |(line, _)| line);
        return Err(table.wrong("work", line, format!("writes {written} times, and this set has {last} generations")));
    }
    Ok(WorkloadSpec {
        set,
        size_bytes: size_bytes.ok_or_else(|| table.missing("size", "bytes of a generation, all clients together, as \"128GiB\""))?,
        clients: table.count("clients", 1..=256)?.unwrap_or(1) as u32,
        generations: work.len() as u32,
        seed: table.count("seed", 0..=u64::MAX)?.unwrap_or(0),
        repeat: table.flag("repeat", false)?,
        work,
    })
}

/// Parses what is done in each generation. Only what was added can be referred to and deleted.
fn work(table: &Table<'_>, generations: Option<u64>) -> Result<Vec<Work>> {
    let named = table.texts("work")?;
    if named.is_empty() {
        return Ok(vec![Work::Write; generations.unwrap_or(1) as usize]);
    }
    let (mut work, mut has_files, mut has_data, mut has_references) = (Vec::new(), false, false, false);
    for (line, name) in named {
        let Some((_, one)) = Work::ALL.iter().find(|(known, _)| *known == name) else {
            let names = Work::ALL.map(|(known, _)| known);
            let hint = meant(nearest(name, names.iter().copied()));
            return Err(table.wrong("work", line, format!("names {name:?}, it must be one of {}{hint}", names.join(", "))));
        };
        let is_possible = match one {
            Work::Write => {
                has_files = true;
                true
            }
            Work::Rewrite | Work::Read => has_files,
            Work::AddData => !std::mem::replace(&mut has_data, true),
            Work::AddReferences => has_data && !std::mem::replace(&mut has_references, true),
            Work::DeleteReferences => std::mem::take(&mut has_references),
            Work::DeleteData => std::mem::take(&mut has_data),
        };
        if !is_possible {
            let why = "which does not follow: data is added first, then references to it; only what is there is read or deleted, and nothing is added twice";
            return Err(table.wrong("work", line, format!("names {name:?}, {why}")));
        }
        work.push(*one);
    }
    if generations.is_some_and(|generations| generations != work.len() as u64) {
        let line = table.get("generations").map_or(1, |(line, _)| line);
        return Err(table.wrong("generations", line, format!("differs from workload.work, which has {}: leave it out", work.len())));
    }
    Ok(work)
}

/// Parses `[fill]`. `None`: there is none.
fn fill(table: &Table<'_>) -> Result<Option<FillSpec>> {
    let table = table.clone().only(&["chunks", "groups", "chunks_each_file"])?;
    if table.entries().next().is_none() {
        return Ok(None);
    }
    let chunks = table.count("chunks", 1..=1 << 40)?;
    Ok(Some(FillSpec {
        chunks: chunks.ok_or_else(|| table.missing("chunks", "how many chunks the store is filled with, as 1_000_000_000"))?,
        groups: table.count("groups", 1..=100_000)?.unwrap_or(100),
        chunks_each_file: table.count("chunks_each_file", 1..=1 << 40)?.unwrap_or(1 << 16),
    }))
}

fn set(table: &Table<'_>) -> Result<Set> {
    // Without `fingerprints`: that set has no data to cut.
    let others = [
        ("unique-files", Set::UniqueFiles),
        ("disjoint-blocks", Set::DisjointBlocks),
        ("duplicate-blocks", Set::DuplicateBlocks),
        ("vm-images", Set::VmImages),
        ("versions", Set::Versions),
    ];
    let model = model(table)?;
    let set = table.choice("set", &[&[("generations", Set::Generations(model))], &others[..]].concat())?;
    let set = set.unwrap_or(Set::Generations(model));
    for key in ["placement", "trace", "variant", "deleted_runs"] {
        if let (false, Some((line, _))) = (matches!(set, Set::Generations(_)), table.get(key)) {
            return Err(table.wrong(key, line, "means nothing for this set: only `generations` knows it"));
        }
    }
    Ok(set)
}

fn model(table: &Table<'_>) -> Result<Model> {
    let placement = table.choice("placement", &[("block", Placement::Block), ("floating", Placement::Floating)])?.unwrap_or_default();
    let trace = table.choice("trace", &[("upb-6", Trace::Upb6), ("upb-21-s", Trace::Upb21S)])?;
    let variants = [
        ("documented", Variant::Documented),
        ("extrapolated", Variant::Extrapolated),
        ("overwritten-switches", Variant::OverwrittenSwitches),
        ("halved-runs", Variant::HalvedRuns),
        ("python-2009", Variant::Python2009),
        ("online-2011", Variant::Online2011),
    ];
    Ok(Model {
        placement,
        trace: trace.unwrap_or(placement.trace()),
        variant: table.choice("variant", &variants)?.unwrap_or_default(),
        deleted_runs: table.flag("deleted_runs", false)?,
    })
}

fn store(table: &Table<'_>) -> Result<StoreSpec> {
    let keys = [
        "profile",
        "chunker",
        "chunk_size",
        "chunk_min",
        "chunk_max",
        "fingerprint",
        "container",
        "partitions",
        "frame",
        "compression",
        "block",
        "index_tag",
        "index_area",
        "discard_data",
    ];
    let table = table.clone().only(&keys)?;
    let bytes = |key: &str| Ok(table.size(key, 64..=16 * MIB)?.map(|bytes| bytes as usize));
    let target = bytes("chunk_size")?.unwrap_or(Sizes::default().target);
    let store = StoreSpec {
        profile: table.choice("profile", &StoreProfile::ALL.map(|profile| (profile.name(), profile)))?.unwrap_or_default(),
        chunker: table.parsed("chunker")?.unwrap_or_default(),
        chunk_sizes: Sizes { min: bytes("chunk_min")?.unwrap_or(target / 4), target, max: bytes("chunk_max")?.unwrap_or(4 * target) },
        fingerprint: table.parsed("fingerprint")?.unwrap_or(Algorithm::Blake3),
        compression: table.parsed("compression")?.unwrap_or(Compression::Zstd(1)),
        container_bytes: table.size("container", 64 * KIB..=256 * MIB)?.unwrap_or(4 * MIB) as u32,
        partitions: table.count("partitions", 1..=1024)?.unwrap_or(1) as u16,
        frame_bytes: table.size("frame", 4 * KIB..=4 * MIB)?.unwrap_or(64 * KIB) as u32,
        block_bytes: table.size("block", 64 * KIB..=MIB)?.unwrap_or(256 * KIB) as u32,
        index_tag: table.parsed("index_tag")?.unwrap_or_default(),
        index_area: table.parsed("index_area")?.unwrap_or_default(),
        discard_data: table.flag("discard_data", false)?,
    };
    if !store.block_bytes.is_power_of_two() {
        let line = table.get("block").map_or(1, |(line, _)| line);
        return Err(table.wrong("block", line, format!("is {}, it must be a power of two", size(u64::from(store.block_bytes)))));
    }
    let checked = store.descriptor().and_then(|descriptor| descriptor.validate());
    checked.map_err(|error| SpecError::Contradiction { why: format!("store: {error}") })?;
    Ok(store)
}

/// Parses sections with keys, such as `memory.auxiliary_index = "1GiB"`.
fn settings(table: &Table<'_>, reader: &dyn SettingsReader) -> Result<Vec<Setting>> {
    let mut found = Vec::new();
    for (section, (line, value)) in table.entries() {
        if !matches!(value, DeValue::Table(_)) {
            return Err(table.wrong(section, line, "is no section: write section and key, as in memory.auxiliary_index = \"1GiB\""));
        }
        for (key, (line, value)) in table.table(section)?.entries() {
            let (key, value) = (format!("{section}.{key}"), super::table::as_toml(value));
            reader.check(&key, &value).map_err(|why| SpecError::Value { line, key: "settings:".to_owned(), why })?;
            found.push(Setting { key, value });
        }
    }
    Ok(found)
}

fn scaled(table: &Table<'_>, settings: &[Setting], reader: &dyn SettingsReader) -> Result<Vec<String>> {
    let table = table.clone().only(&["settings"])?;
    let mut names = Vec::new();
    for (line, name) in table.texts("settings")? {
        if !settings.iter().any(|setting| setting.key == name) {
            let hint = meant(nearest(name, settings.iter().map(|setting| setting.key.as_str())));
            return Err(table.wrong("settings", line, format!("names `{name}`, which is not in [settings]{hint}")));
        }
        if reader.least_bytes(name).is_none() {
            return Err(table.wrong(
                "settings",
                line,
                format!("names `{name}`, which is not a size: it cannot follow the size of the data"),
            ));
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

fn run(table: &Table<'_>) -> Result<RunSpec> {
    let keys = ["face", "request", "file", "depth", "rate", "repetitions", "restart", "cold_caches", "clone", "prune"];
    let table = table.clone().only(&keys)?;
    let request_bytes = table.size("request", GRAIN_BYTES..=32 * MIB)?.unwrap_or(128 * KIB);
    if !request_bytes.is_multiple_of(GRAIN_BYTES) {
        let line = table.get("request").map_or(1, |(line, _)| line);
        return Err(table.wrong("request", line, format!("is {}, it must be a multiple of {}", size(request_bytes), size(GRAIN_BYTES))));
    }
    Ok(RunSpec {
        face: table.choice("face", &Face::ALL)?.unwrap_or(Face::InProcess),
        request_bytes: request_bytes as usize,
        file_bytes: table.size("file", GRAIN_BYTES..=TIB)?.unwrap_or(4 * MIB),
        depth: table.count("depth", 1..=256)?.unwrap_or(1) as usize,
        rate_bytes_per_s: table.size("rate", 0..=TIB)?.unwrap_or(0),
        repetitions: table.count("repetitions", 1..=1000)?.unwrap_or(1) as u32,
        restart: table.flag("restart", true)?,
        cold_caches: table.flag("cold_caches", true)?,
        clone: table.flag("clone", false)?,
        prune: table.flag("prune", false)?,
    })
}

fn devices(table: &Table<'_>) -> Result<BTreeMap<String, DeviceModel>> {
    let mut devices = BTreeMap::new();
    for (name, (line, _)) in table.entries() {
        if name == NO_DEVICE || name.is_empty() || name.contains('*') || name.chars().any(|letter| letter.is_control()) {
            return Err(table.wrong(name, line, format!("is not a valid device name: it must not be `{NO_DEVICE}` and has no `*`")));
        }
        let device = device(name, table.table(name)?)?;
        device.check().map_err(|why| table.wrong(name, line, format!("cannot be: {why}")))?;
        devices.insert(name.to_owned(), device);
    }
    Ok(devices)
}

fn device(name: &str, table: Table<'_>) -> Result<DeviceModel> {
    let keys = [
        "read_us",
        "write_us",
        "sync_us",
        "seek_us",
        "read_bytes_per_s",
        "write_bytes_per_s",
        "operations_per_s",
        "queue",
        "devices",
        "stripe_bytes",
    ];
    let table = table.only(&keys)?;
    let default = DeviceModel::default();
    let time = |key: &str, default: u64| Ok(table.count(key, 0..=60_000_000)?.unwrap_or(default));
    let bytes = |key: &str, default: u64| Ok(table.size(key, 0..=TIB)?.unwrap_or(default));
    Ok(DeviceModel {
        name: name.to_owned(),
        read_us: time("read_us", default.read_us)?,
        write_us: time("write_us", default.write_us)?,
        sync_us: time("sync_us", default.sync_us)?,
        seek_us: time("seek_us", default.seek_us)?,
        read_bytes_per_s: bytes("read_bytes_per_s", default.read_bytes_per_s)?,
        write_bytes_per_s: bytes("write_bytes_per_s", default.write_bytes_per_s)?,
        operations_per_s: table.count("operations_per_s", 0..=1_000_000_000)?.unwrap_or(default.operations_per_s),
        queue: table.count("queue", 1..=1024)?.unwrap_or(default.queue as u64) as usize,
        devices: table.count("devices", 1..=1024)?.unwrap_or(default.devices as u64) as usize,
        stripe_bytes: table.size("stripe_bytes", 0..=GIB)?.unwrap_or(default.stripe_bytes),
    })
}

/// Parses the device and count of each part, such as `"ssd*4"`.
fn parts(table: &Table<'_>, devices: &BTreeMap<String, DeviceModel>) -> Result<[Option<DeviceModel>; PARTS.len()]> {
    let table = table.clone().only(&PARTS.map(|(name, _)| name))?;
    let mut found = [const { None }; PARTS.len()];
    for ((part, _), found) in PARTS.iter().zip(&mut found) {
        let Some(text) = table.text(part)? else { continue };
        if text == NO_DEVICE {
            continue;
        }
        let line = table.get(part).map_or(1, |(line, _)| line);
        let (name, count) = text.split_once('*').map_or((text, None), |(name, count)| (name.trim(), Some(count.trim())));
        let Some(model) = devices.get(name) else {
            let hint = meant(nearest(name, devices.keys().map(String::as_str)));
            let why =
                format!("is {text:?}, but no device `{name}` is declared{hint}; declare it as [devices.{name}], or write \"{NO_DEVICE}\"");
            return Err(table.wrong(part, line, why));
        };
        let mut model = model.clone();
        if let Some(count) = count {
            let count = count.parse().ok().filter(|count| (1..=1024).contains(count));
            model.devices =
                count.ok_or_else(|| table.wrong(part, line, format!("is {text:?}: after the * comes a number from 1 to 1024")))?;
        }
        *found = Some(model);
    }
    Ok(found)
}
