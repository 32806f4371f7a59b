use super::*;
use crate::results::{Quantity, Side};
use crate::testing::TestSettings;
use onefold_traffic::{Model, Placement, Trace};
use proptest::prelude::*;

/// A declaration with one of everything.
const WHOLE: &str = r#"
id = "E0.1"
title = "Index on SSDs"
paper = "A paper (2010), section 4.2"
text = """
Line one.
Line two.
"""
[workload]
set = "generations"
size = "128GiB"
clients = 4
generations = 2
[store]
chunker = "rabin"
chunk_size = "8KiB"
fingerprint = "sha1"
compression = "none"
block = "128KiB"
discard_data = true
[settings]
memory.auxiliary_index = "4GiB"
filter.chain = ["chunk-index"]
[scaled]
settings = ["memory.auxiliary_index"]
[run]
request = "128KiB"
repetitions = 5
[devices.ssd]
read_us = 245
operations_per_s = 5_400
queue = 12
[parts]
chunk-index = "ssd*4"
[[figure]]
variant = "4 SSDs"
generation = 1
quantity = "throughput"
value = 167.2
plus_minus = 3.4
[[figure]]
variant = "Venti"
generation = 1
quantity = "throughput"
value = 6
[[expect]]
quantity = "throughput"
generation = 1
more = "4 SSDs"
less = "2 SSDs"
factor = 1.5
of_paper = true
[[variant]]
name = "4 SSDs"
[[variant]]
name = "2 SSDs"
parts.chunk-index = "ssd*2"
workload.size = "64GiB"
[[variant]]
name = "memory"
parts = { chunk-index = "none", block-index = "ssd" }
run.restart = false
"#;

fn read(text: &str) -> Result<Spec, String> {
    Spec::parse(text, &TestSettings).map_err(|error| error.to_string())
}

#[test]
fn variants_change_some_of_what_the_experiment_says() {
    let spec = read(WHOLE).unwrap();
    assert_eq!((spec.about.id.as_str(), spec.about.text.as_str(), spec.full_size_bytes), ("E0.1", "Line one.\nLine two.", 128 << 30));
    assert_eq!((spec.about.figures.len(), spec.about.figures[0].plus_minus, spec.about.figures[1].value), (2, Some(3.4), 6.0));
    assert_eq!((spec.about.expectations[0].quantity, spec.about.expectations[0].quick), (Quantity::Throughput, false));
    let [four, two, memory] = &spec.variants[..] else { panic!("{:?}", spec.variants) };
    let devices =
        |variant: &VariantSpec| variant.devices.clone().map(|device| device.map(|device| (device.name, device.devices, device.read_us)));
    assert_eq!(devices(four), [Some(("ssd".into(), 4, 245)), None, None, None, None]);
    assert_eq!(devices(two), [Some(("ssd".into(), 2, 245)), None, None, None, None]);
    assert_eq!(devices(memory), [None, Some(("ssd".into(), 1, 245)), None, None, None]);
    assert_eq!(four.workload.set, Set::Generations(Model::default()));
    assert_eq!((four.workload.size_bytes, two.workload.size_bytes, two.workload.clients), (128 << 30, 64 << 30, 4));
    assert_eq!((four.run.restart, memory.run.restart, memory.run.repetitions), (true, false, 5));
    assert_eq!(four.store.chunk_sizes, Sizes { min: 2048, target: 8192, max: 32768 });
    assert_eq!((four.store.container_bytes, four.store.block_bytes, four.store.discard_data), (4 << 20, 128 << 10, true));
    assert_eq!(
        four.stream_of(3, 2, 100 << 10),
        Workload { client: 3, generation: 2, size_bytes: 24 << 10, seed: 0, set: four.workload.set }
    );
    assert_eq!(four.modelled_parts()[0].prefix, "index/");
}

#[test]
fn settings_follow_the_size_down_to_their_least() {
    let spec = read(WHOLE).unwrap();
    let of = |variant: usize, size: u64| {
        spec.variants[variant].scaled(size, spec.full_size_bytes, &TestSettings).map_err(|error| error.to_string())
    };
    let half = of(0, 64 << 30).unwrap();
    assert_eq!((half.size_bytes, half.settings.engine.auxiliary_index_bytes), (64 << 30, 2 << 30));
    assert_eq!(half.settings.engine.chain, ["chunk-index"]);
    for line in ["workload.size = 68719476736\n", "settings.memory.auxiliary_index = 2147483648\n", "parts.chunk-index = \"ssd*4\"\n"] {
        assert!(half.text.contains(line), "{}", half.text);
    }
    assert_eq!(of(0, 1 << 20).unwrap().settings.engine.auxiliary_index_bytes, 1 << 20, "the least of the setting");
    // A variant with half the size of the experiment keeps that share.
    assert_eq!(of(1, 1 << 30).unwrap().size_bytes, 512 << 20);
    let expected = "a size of 768KiB is too small for variant \"2 SSDs\", 4 clients with requests of 128KiB: it must be at least 1MiB";
    assert_eq!(of(1, 768 << 10).unwrap_err(), expected);
    assert!(of(1, 1 << 20).is_ok());
}

#[test]
fn what_needs_the_data_is_refused_where_it_is_discarded() {
    let spec = read(&WHOLE.replace("[\"chunk-index\"]", "[\"chunk-index\", \"byte-compare\"]")).unwrap();
    let error = spec.variants[0].scaled(1 << 30, 1 << 30, &TestSettings).unwrap_err().to_string();
    assert!(error.starts_with("variant \"4 SSDs\" discards its data, which the filter byte-compare and parity need"), "{error}");
}

#[test]
fn what_is_wrong_is_refused_with_its_line_and_what_would_be_right() {
    for (from, to, expected) in [
        ("clients = 4", "cleints = 4", "line 12: unknown key `cleints` in [workload]; did you mean `clients`?"),
        ("[run]", "[rum]", "line 26: unknown key `rum`; did you mean `run`?"),
        ("read_us = 245", "raed_us = 245", "line 30: unknown key `raed_us` in [devices.ssd]; did you mean `read_us`?"),
        ("run.restart = false", "run.restrat = false", "line 62: unknown key `restrat` in [run]; did you mean `restart`?"),
        ("factor = 1.5", "faktor = 1.5", "line 51: unknown key `faktor` in [expect]; did you mean `factor`?"),
        (
            "parts.chunk-index = \"ssd*2\"",
            "parts.chunk_index = \"ssd*2\"",
            "line 57: unknown key `chunk_index` in [parts]; did you mean `chunk-index`?",
        ),
        ("size = \"128GiB\"", "size = \"much\"", "line 11: workload.size is no size: `much` is not a size"),
        ("size = \"128GiB\"", "", "workload.size is missing: "),
        ("size = \"128GiB\"", "size = \"256KiB\"", "workload.size is 256KiB: 4 clients with requests of 128KiB need at least 512KiB"),
        ("clients = 4", "clients = 0", "line 12: workload.clients is 0, it must be a whole number from 1 to 256"),
        (
            "set = \"generations\"",
            "set = \"generation\"",
            "line 10: workload.set is \"generation\", it must be one of generations, unique-files",
        ),
        ("set = \"generations\"", "set = \"vm-images\"\ntrace = \"upb-6\"", "line 11: workload.trace means nothing for this set"),
        ("chunker = \"rabin\"", "chunker = \"robin\"", "line 15: store.chunker is wrong: unknown chunker \"robin\""),
        ("chunk_size = \"8KiB\"", "chunk_size = \"9KiB\"", "store: "),
        ("block = \"128KiB\"", "block = \"96KiB\"", "line 19: store.block is 96KiB, it must be a power of two"),
        ("discard_data = true", "discard_data = 1", "line 20: store.discard_data is 1, it must be true or false"),
        ("memory.auxiliary_index = \"4GiB\"", "memory = 3", "line 22: settings.memory is no section: write section and key"),
        ("memory.auxiliary_index = \"4GiB\"", "memory.auxiliary = \"4GiB\"", "line 22: settings: unknown key `memory.auxiliary`"),
        (
            "settings = [\"memory",
            "settings = [\"memry",
            "line 25: scaled.settings names `memry.auxiliary_index`, which is not in [settings]; did you mean `memory.",
        ),
        (
            "settings = [\"memory.auxiliary_index\"]",
            "settings = [\"filter.chain\"]",
            "line 25: scaled.settings names `filter.chain`, which is not a size",
        ),
        ("request = \"128KiB\"", "request = \"10KiB\"", "line 27: run.request is 10KiB, it must be a multiple of 4KiB"),
        ("request = \"128KiB\"", "face = \"nbd\"\ndepth = 8\nrate = \"1MiB\"", "run.rate is for clients with one request at a time"),
        ("request = \"128KiB\"", "depth = 8", "run.depth is 8: a client of in-process has one request at a time"),
        (
            "request = \"128KiB\"",
            "face = \"ndb\"",
            "line 27: run.face is \"ndb\", it must be one of in-process, nbd, iscsi, filesystem, disk, passthrough; did you mean `nbd`?",
        ),
        ("queue = 12", "queue = 0", "line 32: devices.ssd.queue is 0, it must be a whole number from 1 to 1024"),
        ("queue = 12", "stripe_bytes = 7", "line 29: devices.ssd cannot be: `stripe_bytes` is 7"),
        ("[devices.ssd]", "[devices.none]", "line 29: devices.none is not a valid device name"),
        ("ssd*2", "sdd*2", "line 57: parts.chunk-index is \"sdd*2\", but no device `sdd` is declared; did you mean `ssd`?"),
        ("ssd*2", "ssd*0", "line 57: parts.chunk-index is \"ssd*0\": after the * comes a number from 1 to 1024"),
        ("value = 167.2", "value = -1", "line 39: figure.value is -1, it must be a number that is not negative"),
        ("value = 167.2", "", "figure.value is missing: the figure"),
        (
            "less = \"2 SSDs\"",
            "less = \"3 SSDs\"",
            "line 50: expect.less is \"3 SSDs\", which is not a variant of this experiment; did you mean `",
        ),
        (
            "quantity = \"throughput\"\ngeneration = 1\nmore",
            "quantity = \"share\"\ngeneration = 1\nmore",
            "expect: `component` goes with quantity \"share\"",
        ),
        ("generation = 1\nmore", "generation = 3\nmore", "line 48: expect.generation is 3, it must be a whole number from 1 to 2"),
        ("name = \"2 SSDs\"", "name = \"4 SSDs\"", "line 56: variant.name is \"4 SSDs\" twice"),
        ("name = \"2 SSDs\"", "", "variant.name is missing: "),
        ("title = \"Index on SSDs\"", "title = \"\"", "line 3: title is empty: "),
        ("[run]", "[run", "line 26: "),
    ] {
        assert!(WHOLE.contains(from), "{from}");
        let error = read(&WHOLE.replacen(from, to, 1)).expect_err(to);
        assert!(error.starts_with(expected), "{to:?}:\n{error}\n{expected}");
    }
    let without = WHOLE.split("[[variant]]").next().unwrap().split("[[expect]]").next().unwrap();
    assert_eq!(read(without).unwrap_err(), "variant is missing: an experiment has at least one [[variant]] with a name");
}

/// A declaration whose second variant is filled first, and which adds and deletes references.
fn filled() -> String {
    let work = "work = [\"write\", \"add-data\", \"add-references\", \"delete-references\", \"delete-data\"]";
    let text = WHOLE.replace("generations = 2", work);
    text.replace("workload.size = \"64GiB\"", "fill = { chunks = 1_000_000, groups = 10 }")
}

#[test]
fn e3_2_a_fill_scales_with_the_size_and_has_a_chunk_for_each_group() {
    let spec = read(&filled()).unwrap();
    let [empty, full, _] = &spec.variants[..] else { panic!("{:?}", spec.variants) };
    assert_eq!((empty.fill, full.fill), (None, Some(FillSpec { chunks: 1_000_000, groups: 10, chunks_each_file: 1 << 16 })));
    let named = Work::ALL.into_iter().filter(|(_, work)| !matches!(work, Work::Rewrite | Work::Read)).map(|(_, work)| work);
    assert!(full.workload.work.iter().copied().eq(named));
    assert_eq!((full.workload.generations, read(WHOLE).unwrap().variants[0].workload.work.len()), (5, 2));
    let scaled = |size| full.scaled(size, spec.full_size_bytes, &TestSettings).unwrap();
    assert_eq!([128 << 30, 32 << 30, 1 << 20].map(|size| scaled(size).fill_chunks), [1_000_000, 250_000, 10]);
    assert!(scaled(32 << 30).text.contains("fill.chunks = 250000\n"), "{}", scaled(32 << 30).text);
    assert_eq!(empty.scaled(1 << 30, spec.full_size_bytes, &TestSettings).unwrap().fill_chunks, 0);
}

#[test]
fn e3_2_what_is_wrong_with_fills_work_and_bounds_is_refused() {
    for (from, to, expected) in [
        ("chunks = 1_000_000, ", "", "fill.chunks is missing: how many chunks"),
        ("groups = 10", "groups = 0", "line 58: fill.groups is 0, it must be a whole number from 1 to 100000"),
        ("groups = 10", "gruops = 10", "line 58: unknown key `gruops` in [fill]; did you mean `groups`?"),
        ("discard_data = true", "discard_data = false", "[fill] and workload.work name chunks that have no data"),
        ("\"add-data\", ", "", "line 13: workload.work names \"add-references\", which does not follow"),
        ("\"add-references\"", "\"add-data\"", "line 13: workload.work names \"add-data\", which does not follow"),
        ("\"write\"", "\"read\"", "line 13: workload.work names \"read\", which does not follow"),
        ("\"write\"", "\"wriet\"", "line 13: workload.work names \"wriet\", it must be one of write, rewrite, read, add-data"),
        ("work = [", "generations = 2\nwork = [", "line 13: workload.generations differs from workload.work, which has 5"),
    ] {
        assert!(filled().contains(from), "{from}");
        let error = read(&filled().replacen(from, to, 1)).expect_err(to);
        assert!(error.starts_with(expected), "{to:?}:\n{error}\n{expected}");
    }
    let bound = |lines: &str| {
        read(&WHOLE.replace("more = \"4 SSDs\"\nless = \"2 SSDs\"\nfactor = 1.5", lines)).map(|spec| spec.about.expectations[0].clone())
    };
    let of = || Side::Variant("2 SSDs".to_owned());
    let most = bound("of = \"2 SSDs\"\nat_most = 50").unwrap();
    assert_eq!((most.more, most.less), (Side::Figure(50.0), of()));
    let least = bound("of = \"2 SSDs\"\nat_least = 0.5").unwrap();
    assert_eq!((least.more, least.less), (of(), Side::Figure(0.5)));
    for (lines, expected) in [
        ("of = \"2 SSDs\"", "expect: a bound is that of a variant, `of`, and has one of `at_least` and `at_most`"),
        ("at_most = 50", "expect: a bound is that of a variant"),
        ("of = \"2 SSDs\"\nat_most = 50\nat_least = 5", "expect: a bound is that of a variant"),
        ("of = \"2 SSDs\"\nat_most = 50\nfactor = 5", "expect: `factor` is for an order of two variants"),
        ("of = \"3 SSDs\"\nat_most = 50", "line 49: expect.of is \"3 SSDs\", which is not a variant of this experiment"),
    ] {
        let error = bound(lines).expect_err(lines);
        assert!(error.starts_with(expected), "{error}\n{expected}");
    }
}

/// A store of levels on two disks, which is written and read by version.
fn leveled() -> String {
    let work = "work = [\"write\", \"read\", \"write\", \"read\"]";
    let text = WHOLE.replace("generations = 2", work).replace("set = \"generations\"", "set = \"versions\"");
    let text = text.replace("discard_data = true", "profile = \"leveled\"\npartitions = 2");
    text.replace("chunk-index = \"ssd*4\"", "levels = \"ssd*3\"").replace("factor = 1.5", "less_generation = 3")
}

#[test]
fn e2_5_each_partition_has_devices_of_its_own() {
    let spec = read(&leveled()).unwrap();
    let variant = &spec.variants[0];
    assert_eq!((variant.store.partitions, variant.store.descriptor().unwrap().container_partitions), (2, 2));
    let parts = variant.modelled_parts();
    let modelled = parts.iter().filter_map(|part| Some((part.name.as_str(), part.prefix.as_str(), part.model.as_ref()?.devices)));
    assert_eq!(modelled.collect::<Vec<_>>(), [("levels", "levels/0000/", 3), ("levels", "levels/0001/", 3)]);
    assert!(read(WHOLE).unwrap().variants[0].modelled_parts().iter().any(|part| part.prefix == "levels/"));
}

#[test]
fn e2_3_reading_does_not_count_as_a_version() {
    let spec = read(&leveled()).unwrap();
    let variant = &spec.variants[0];
    assert_eq!([1, 2, 3, 4].map(|generation| variant.workload.version(generation)), [1, 1, 2, 2]);
    assert_eq!(variant.stream_of(0, 3, 1 << 20).generation, 2);
    assert_eq!((variant.workload.set, spec.about.expectations[0].less_generation), (Set::Versions, Some(3)));
}

#[test]
fn e2_3_what_a_store_of_levels_cannot_do_is_refused() {
    for (from, to, expected) in [
        ("partitions = 2", "partitions = 0", "line 21: store.partitions is 0, it must be a whole number from 1 to 1024"),
        ("partitions = 2", "discard_data = true", "store: discarding data: a store of profile `leveled` keeps its data"),
        ("[run]", "[run]\nface = \"nbd\"", "workload.work reads, which clients of nbd do not: choose in-process"),
        (
            "\"write\", \"read\", \"write\"",
            &format!("{}\"write\"", "\"write\", ".repeat(10)),
            "line 13: workload.work writes 11 times, and this set has 10",
        ),
        ("less_generation = 3", "less_generation = 5", "line 52: expect.less_generation is 5, it must be a whole number from 1 to 4"),
    ] {
        assert!(leveled().contains(from), "{from}");
        match read(&leveled().replacen(from, to, 1)) {
            Ok(_) => panic!("{to}"),
            Err(error) => assert!(error.starts_with(expected), "{to:?}:\n{error}\n{expected}"),
        }
    }
}

#[test]
fn a_trace_goes_with_its_placement() {
    let floating = WHOLE.replace("set = \"generations\"", "placement = \"floating\"");
    let set = read(&floating).unwrap().variants[0].workload.set;
    assert_eq!(set, Set::Generations(Model { placement: Placement::Floating, trace: Trace::Upb21S, ..Model::default() }));
}

proptest! {
    #[test]
    fn any_text_is_a_declaration_or_an_error(text: String) {
        let _ = read(&text);
    }

    #[test]
    fn any_value_is_taken_or_refused(line in 0usize..70, value in "[-0-9a-zA-Z\"\\[\\]., _{}=*\n]{0,30}") {
        let lines = WHOLE.lines().enumerate().map(|(number, text)| match text.split_once(" = ") {
            Some((key, _)) if number == line => format!("{key} = {value}\n"),
            _ => format!("{text}\n"),
        });
        let _ = read(&lines.collect::<String>());
    }
}
