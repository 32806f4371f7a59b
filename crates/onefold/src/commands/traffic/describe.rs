//! `onefold traffic describe`.

use super::workload;
use crate::cli::{TrafficDescribe, TrafficStream};
use crate::failure::{Exit, Result};
use crate::output::{Output, Table};
use crate::units::{number, size};
use clap::ValueEnum;
use onefold_traffic::{Description, FINGERPRINT_BYTES, Model, Placement, Set, State, Trace, Workload};
use serde_json::{Value, json};

/// Describes the content of a stream.
pub fn run(options: &TrafficDescribe) -> Result<Exit> {
    let workload = workload(&options.stream)?;
    let description = workload.describe()?;
    let mut output = Output::new();
    if options.format.json {
        output.json(&to_json(&options.stream, &workload, &description))?;
    } else {
        print(&mut output, &options.stream, &workload, &description)?;
    }
    output.finish()?;
    Ok(Exit::Done)
}

/// Returns the word for a value on the command line.
fn word(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn placement(model: Model) -> &'static str {
    match model.placement {
        Placement::Block => "block",
        Placement::Floating => "floating",
    }
}

fn trace(model: Model) -> &'static str {
    match model.trace {
        Trace::Upb6 => "upb-6",
        Trace::Upb21S => "upb-21-s",
    }
}

fn variant(options: &TrafficStream) -> String {
    options.variant.as_ref().map_or_else(|| "documented".to_owned(), word)
}

fn model(workload: &Workload) -> Option<Model> {
    match workload.set {
        Set::Generations(model) => Some(model),
        _ => None,
    }
}

/// Returns the source of this generation's run lengths. Those of the other sets were not measured.
fn run_lengths(workload: &Workload) -> Option<&'static str> {
    model(workload)?;
    Some(if workload.is_reconstructed() { "reconstructed" } else { "measured" })
}

fn name(state: State) -> &'static str {
    match state {
        State::Unique => "U unique",
        State::Internal => "I internally redundant",
        State::Temporal => "T temporally redundant",
    }
}

fn percent(bytes: u64, of: u64) -> String {
    format!("{:.2} %", 100.0 * bytes as f64 / of as f64)
}

fn print(output: &mut Output<'_>, options: &TrafficStream, workload: &Workload, description: &Description) -> Result<()> {
    let length = description.length_bytes;
    let Workload { seed, client, generation, .. } = workload;
    output.line(format_args!("{}: generation {generation} of client {client}, seed {seed}: {}", word(&options.set), size(length)))?;
    if let Some(model) = model(workload) {
        let deleted = if model.deleted_runs { ", with deleted runs" } else { "" };
        output.line(format_args!("  model    {}, {}, {}{deleted}", placement(model), trace(model), variant(options)))?;
    }
    if workload.set == Set::Fingerprints {
        output.line(format_args!("  holds    {} fingerprints", number(length / FINGERPRINT_BYTES)))?;
    }
    let parts = [
        ("new", description.new_bytes, "in no generation before, nor before in this one: what an ideal deduplication adds"),
        ("within", description.within_bytes, "repeated in this generation"),
        ("earlier", description.earlier_bytes, "from the generation before"),
    ];
    for (part, bytes, meaning) in parts {
        output.line(format_args!("  {part:<8} {:>8} {:>9}  {meaning}", size(bytes), percent(bytes, length)))?;
    }
    if description.left_out_bytes > 0 {
        output.line(format_args!("  left out {:>8}            of the generation before", size(description.left_out_bytes)))?;
    }
    output.line("")?;
    let mut table = Table::new(&[
        "runs of",
        ">number",
        ">bytes",
        ">share",
        ">shortest",
        ">25 %",
        ">median",
        ">75 %",
        ">90 %",
        ">99 %",
        ">longest",
        ">mean",
    ]);
    for state in &description.states {
        let lengths = state.lengths;
        let quantiles =
            [lengths.minimum, lengths.p25, lengths.median, lengths.p75, lengths.p90, lengths.p99, lengths.maximum, lengths.mean as u64];
        let mut row = vec![name(state.state).to_owned(), number(state.runs), size(state.bytes), percent(state.bytes, length)];
        row.extend(quantiles.map(size));
        table.row(row);
    }
    table.print(output)?;
    match run_lengths(workload) {
        Some("reconstructed") => output.line(
            "\nThese run lengths are reconstructed: the lists of the first generation were not published, and the estimate has their mean, median and maximum.",
        ),
        Some(_) => output.line(
            "\nRun lengths are those of the trace. The data goes back to generation 1, whose run lengths are reconstructed (an estimate for lists that were not published).",
        ),
        None => Ok(()),
    }
}

fn to_json(options: &TrafficStream, workload: &Workload, description: &Description) -> Value {
    let model = model(workload);
    let states = description.states.iter().map(|state| {
        let lengths = state.lengths;
        json!({
            "state": state.state.letter().to_string(),
            "runs": state.runs,
            "bytes": state.bytes,
            "share": description.share(state.state),
            "length_min_bytes": lengths.minimum,
            "length_p25_bytes": lengths.p25,
            "length_p50_bytes": lengths.median,
            "length_p75_bytes": lengths.p75,
            "length_p90_bytes": lengths.p90,
            "length_p99_bytes": lengths.p99,
            "length_max_bytes": lengths.maximum,
            "length_mean_bytes": lengths.mean,
        })
    });
    json!({
        "set": word(&options.set),
        "placement": model.map(placement),
        "trace": model.map(trace),
        "variant": model.map(|_| variant(options)),
        "deleted_runs": model.map(|model| model.deleted_runs),
        "seed": workload.seed,
        "client": workload.client,
        "generation": workload.generation,
        "run_lengths": run_lengths(workload),
        "length_bytes": description.length_bytes,
        "new_bytes": description.new_bytes,
        "within_bytes": description.within_bytes,
        "earlier_bytes": description.earlier_bytes,
        "left_out_bytes": description.left_out_bytes,
        "states": states.collect::<Vec<Value>>(),
    })
}
