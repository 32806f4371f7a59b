//! Invented results, to test the report with. Nobody measured them.

use crate::results::{
    About, Expectation, Filled, Latency, Machine, Measured, PaperFigure, PartTraffic, Quantity, Results, Side, Taken, VERSION, Variant,
};

/// Returns an experiment like E0.1, with three repetitions.
pub fn results() -> Results {
    let paper = |variant: &str, generation, value, half| PaperFigure {
        variant: variant.into(),
        generation,
        quantity: Quantity::Throughput,
        value,
        plus_minus: half,
    };
    let expectation = |more: &str, less: &str, generation, quick| Expectation {
        quantity: Quantity::Throughput,
        component: None,
        generation,
        more: Side::Variant(more.into()),
        less: Side::Variant(less.into()),
        less_component: None,
        less_generation: None,
        factor: Some(1.5),
        of_paper: true,
        quick,
    };
    let about = About {
        id: "E0.1".into(),
        title: "Chunk index on four, two and one SSD".into(),
        text: "Made up.\n\nA second paragraph.".into(),
        paper: "dedupv1 (2010), section 4.2".into(),
        figures: vec![
            paper("4 SSDs", 1, 167.2, Some(3.4)),
            paper("4 SSDs", 2, 160.3, Some(4.3)),
            paper("2 SSDs", 1, 88.4, Some(1.2)),
            paper("2 SSDs", 2, 83.3, Some(1.5)),
            PaperFigure { quantity: Quantity::IndexReads, ..paper("4 SSDs", 2, 2848.0, Some(64.0)) },
            paper("a system that the paper compares itself with", 2, 218.0, None),
        ],
        expectations: vec![
            expectation("4 SSDs", "2 SSDs", 2, true),
            expectation("2 SSDs", "4 SSDs", 2, false),
            expectation("4 SSDs", "never run", 1, false),
            Expectation {
                quantity: Quantity::LatencyP999,
                more: Side::Figure(50.0),
                factor: None,
                of_paper: false,
                ..expectation("", "4 SSDs", 1, false)
            },
        ],
        differs: "Because it is made up.".into(),
    };
    let machine = Machine {
        processor: "Imaginary 9000".into(),
        processors: 2,
        memory_bytes: 24 << 30,
        system: "Linux 6.1".into(),
        file_system: "tmpfs".into(),
    };
    Results {
        version: VERSION,
        about,
        machine,
        onefold: "0.1.0".into(),
        began_unix_s: 1_795_284_000,
        took_s: 372.0,
        size_bytes: 1 << 30,
        full_size_bytes: 128 << 30,
        variants: vec![variant("4 SSDs", 4, 150.0), variant("2 SSDs", 2, 80.0)],
    }
}

fn variant(name: &str, devices: u32, mb_s: f64) -> Variant {
    let repetition = |number: u32| {
        let wobble = 1.0 + 0.02 * (f64::from(number) - 1.0);
        vec![measured(1, devices, mb_s * 2.0 * wobble), measured(2, devices, mb_s * wobble)]
    };
    Variant {
        name: name.into(),
        face: "nbd".into(),
        clients: 4,
        modelled: [("chunk-index".into(), format!("{devices} devices of a make that is not")), ("log".into(), "one of them".into())].into(),
        discards_data: true,
        settings: "[workload]\nset = \"generations\"\nsize = \"128GiB\"\n".into(),
        repetitions: (0..3).map(repetition).collect(),
        fills: vec![Filled {
            chunks: 1_000_000,
            logical_bytes: 4096 * 1_000_000,
            directories: [("containers".into(), Taken { files: 1000, bytes: 60_000_000 })].into(),
            steps: vec![("fill".into(), 1.5), ("open".into(), 0.25)],
            ..Filled::default()
        }],
        failure: None,
    }
}

fn measured(generation: u32, devices: u32, mb_s: f64) -> Measured {
    let written_bytes = 1 << 30;
    let wall_s = written_bytes as f64 / 1e6 / mb_s;
    let index = PartTraffic { reads: (f64::from(devices) * 2500.0 * wall_s) as u64, writes: 300, devices, ..PartTraffic::default() };
    let weights = [
        ("source", 1.0),
        ("chunking", 2.0),
        ("fingerprint", 1.5),
        ("filter_chunk_index", 12.0),
        ("object_index", 0.7),
        ("storage_write", 2.0),
    ];
    Measured {
        generation,
        written_bytes,
        wall_s,
        steady_bytes: written_bytes,
        steady_s: wall_s,
        settle_s: 3.0 / f64::from(generation),
        cpu_s: 4.0,
        source_cpu_s: 0.4,
        peak_memory_bytes: 312 << 20,
        present_new_bytes: written_bytes / 50,
        stored_new_bytes: written_bytes / 40,
        disk_bytes: 40 << 20,
        components_s: weights.iter().map(|(name, weight)| ((*name).into(), weight * f64::from(generation))).collect(),
        parts: [("chunk-index".into(), index)].into(),
        steady_parts: [("chunk-index".into(), index)].into(),
        latency_ms: Latency { p50: 2.1, p90: 4.0, p99: 11.0, p999: 31.0, greatest: 70.0 },
        course_mb_s: (0..40).map(|at| mb_s * (1.0 + 0.1 * f64::from(at % 5 - 2))).collect(),
        span_s: wall_s / 40.0,
        open_s: 0.25,
        ..Measured::default()
    }
}
