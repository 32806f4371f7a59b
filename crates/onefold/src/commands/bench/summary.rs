//! The measurements for people: a table for each experiment, and which expected orders show.

use crate::failure::Result;
use crate::output::{Output, Table};
use crate::units::{duration, printable, size};
use onefold_experiment::results::{Expectation, Measured, PaperFigure, Quantity, Results, Side, Variant};
use onefold_experiment::statistics::{Mean, Outcome, judge, mean};
use std::time::Duration;

/// Prints the table of an experiment.
pub fn print(results: &Results, output: &mut Output<'_>) -> Result<()> {
    let about = &results.about;
    output.line(format_args!(
        "{} {}: {} a generation of {}, {}",
        plain(&about.id),
        plain(&about.title),
        size(results.size_bytes),
        size(results.full_size_bytes),
        duration(Duration::from_secs_f64(results.took_s.max(0.0)))
    ))?;
    let mut table = Table::new(&[
        "variant",
        ">gen",
        ">MB/s",
        ">paper",
        ">new",
        ">present",
        ">CPU s/GB",
        ">memory",
        ">index reads/s",
        ">p99",
        ">settles",
    ]);
    for variant in &results.variants {
        let generations = variant.repetitions.iter().map(Vec::len).max().unwrap_or(0) as u32;
        for generation in 1..=generations {
            table.row(row(results, variant, generation));
        }
    }
    table.print(output)?;
    for expectation in &about.expectations {
        output.line(told(results, expectation))?;
    }
    for variant in results.variants.iter().filter(|variant| variant.failure.is_some()) {
        output.line(format_args!("{} failed: {}", plain(&variant.name), plain(variant.failure.as_deref().unwrap_or_default())))?;
    }
    output.line("")
}

/// Returns a text of a declaration on one line, without control characters for the terminal.
fn plain(text: &str) -> String {
    printable(text.as_bytes())
}

fn row(results: &Results, variant: &Variant, generation: u32) -> Vec<String> {
    let of = |figure: &dyn Fn(&Measured) -> f64| {
        let figures: Vec<f64> =
            variant.repetitions.iter().flatten().filter(|measured| measured.generation == generation).map(figure).collect();
        mean(&figures)
    };
    let paper = |figure: &&PaperFigure| {
        figure.variant == variant.name && figure.generation == generation && figure.quantity == Quantity::Throughput
    };
    let paper = results.about.figures.iter().find(paper);
    let quantity = |quantity: Quantity| mean(&variant.figures(generation, quantity, None));
    let percent = |part: fn(&Measured) -> u64| {
        of(&|measured| 100.0 * part(measured) as f64 / measured.written_bytes.max(1) as f64)
            .map_or_else(String::new, |mean| format!("{:.1} %", mean.value))
    };
    let cpu = of(&|measured| (measured.cpu_s - measured.source_cpu_s) / (measured.written_bytes.max(1) as f64 / 1e9));
    vec![
        plain(&variant.name),
        generation.to_string(),
        quantity(Quantity::Throughput).map_or_else(String::new, |mean| interval(mean.value, mean.plus_minus)),
        paper.map_or_else(String::new, |figure| interval(figure.value, figure.plus_minus)),
        percent(|measured| measured.stored_new_bytes),
        percent(|measured| measured.present_new_bytes),
        cpu.map_or_else(String::new, |mean| format!("{:.2}", mean.value)),
        of(&|measured| measured.peak_memory_bytes as f64).map_or_else(String::new, |mean| size(mean.value as u64)),
        quantity(Quantity::IndexReads).map_or_else(String::new, |mean| format!("{:.0}", mean.value)),
        of(&|measured| measured.latency_ms.p99).map_or_else(String::new, |mean| format!("{:.2}ms", mean.value)),
        of(&|measured| measured.settle_s).map_or_else(String::new, |Mean { value, .. }| duration(Duration::from_secs_f64(value.max(0.0)))),
    ]
}

fn interval(value: f64, plus_minus: Option<f64>) -> String {
    match plus_minus {
        Some(plus_minus) => format!("{value:.1} +-{plus_minus:.1}"),
        None => format!("{value:.1}"),
    }
}

fn told(results: &Results, expectation: &Expectation) -> String {
    let is_order = matches!((&expectation.more, &expectation.less), (Side::Variant(_), Side::Variant(_)));
    let times = if is_order { " times" } else { "" };
    let (ratio, outcome) = match judge(results, expectation) {
        Outcome::Holds(ratio) => (format!("{ratio:.2}{times}"), "holds"),
        Outcome::Fails(ratio) => (format!("{ratio:.2}{times}"), "does NOT hold"),
        Outcome::Missing => ("not measured".to_owned(), "is open"),
    };
    let what = match (&expectation.component, expectation.quantity) {
        (Some(component), _) => format!("share of {component}"),
        (None, Quantity::Throughput) => "throughput".to_owned(),
        (None, Quantity::NewPercent) => "new data".to_owned(),
        (None, Quantity::FoundPercent) => "duplicates found".to_owned(),
        (None, Quantity::SettleTime) => "time to settle".to_owned(),
        (None, Quantity::IndexReads) => "reads of the chunk index".to_owned(),
        (None, Quantity::Share) => "share".to_owned(),
        (None, Quantity::LatencyP99) => "latency p99, ms".to_owned(),
        (None, Quantity::LatencyP999) => "latency p99.9, ms".to_owned(),
        (None, Quantity::OpenTime) => "opening, s".to_owned(),
        (None, Quantity::Sustained) => "throughput with background work".to_owned(),
        (None, Quantity::Ratio) => "written : on disk".to_owned(),
        (None, Quantity::VersionRatio) => "written : stored as new".to_owned(),
        (None, Quantity::WriteAmplification) => "write amplification".to_owned(),
        (None, Quantity::SpaceAmplification) => "space amplification".to_owned(),
        (None, Quantity::ReadsPerGet) => "reads for each chunk asked for".to_owned(),
    };
    let factor = expectation.factor.map_or_else(String::new, |factor| format!(" x {factor}"));
    let side = |side: &Side| match side {
        Side::Variant(name) => name.clone(),
        Side::Figure(figure) => figure.to_string(),
    };
    let less = match (&expectation.less_component, expectation.less_generation) {
        (Some(component), _) => format!("{} ({component})", side(&expectation.less)),
        (None, Some(generation)) => format!("{} in generation {generation}", side(&expectation.less)),
        (None, None) => side(&expectation.less),
    };
    format!(
        "{outcome}: {what}, generation {}: {} >= {}{factor} ({ratio}{})",
        expectation.generation,
        plain(&side(&expectation.more)),
        plain(&less),
        if expectation.of_paper { ", an order of the paper" } else { "" }
    )
}
