//! The tables of one experiment.

use super::figures::{NOTHING, duration, figure, generations, number, of_mean, over, round_number, size, title, value_of};
use crate::results::{Expectation, Filled, Measured, PaperFigure, Quantity, Results, Side, Step, Variant};
use crate::statistics::{Mean, Outcome, judge};
use maud::{Markup, html};

/// Returns the expectations, and whether they held.
pub fn expectations(run: &Results) -> Markup {
    if run.about.expectations.is_empty() {
        return html! {};
    }
    html! {
        h3 { "Expected orders" }
        div.wide {
            table {
                thead { tr { th.text { "" } th { "ratio" small { "of the means, or the mean" } } th.text.long { "expected" } th.text { "whose" } } }
                tbody {
                    @for expectation in &run.about.expectations {
                        tr {
                            @match judge(run, expectation) {
                                Outcome::Holds(ratio) => { td.text { span.good { "✓ holds" } } td { (number(ratio)) } }
                                Outcome::Fails(ratio) => { td.text { span.bad { "✗ not" } } td { (number(ratio)) } }
                                Outcome::Missing => { td.text { span.pale { "not measured" } } td { (NOTHING) } }
                            }
                            td.text.long { (expected(expectation)) }
                            td.text { @if expectation.of_paper { "as in the paper" } @else { "ours alone" } }
                        }
                    }
                }
            }
        }
    }
}

/// Returns an expectation in words.
fn expected(expectation: &Expectation) -> String {
    let Expectation { more, less, component, less_component, generation, less_generation, quantity, factor, .. } = expectation;
    let what = title(*quantity).split(',').next().unwrap_or_default();
    let (more, less) = match (more, less) {
        (Side::Variant(more), Side::Variant(less)) => (more, less),
        (Side::Figure(most), Side::Variant(of)) => {
            return format!("{what}, generation {generation}: “{of}” at most {}", round_number(*most));
        }
        (Side::Variant(of), Side::Figure(least)) => {
            return format!("{what}, generation {generation}: “{of}” at least {}", round_number(*least));
        }
        (Side::Figure(_), Side::Figure(_)) => return "nothing of a variant".to_owned(),
    };
    let times =
        factor.filter(|factor| *factor != 1.0).map_or_else(|| "as much as".to_owned(), |factor| format!("{} times", round_number(factor)));
    match (quantity, component, less_component) {
        (Quantity::Share, Some(component), Some(other)) if more == less => {
            format!("time, generation {generation}, “{more}”: {component} at least {times} {other}")
        }
        (Quantity::Share, Some(component), other) => {
            let other = other.as_ref().unwrap_or(component);
            format!("share of time, generation {generation}: {component} of “{more}” at least {times} {other} of “{less}”")
        }
        _ => {
            let other =
                less_generation.filter(|other| other != generation).map_or_else(String::new, |other| format!(" in generation {other}"));
            format!("{what}, generation {generation}: “{more}” at least {times} “{less}”{other}")
        }
    }
}

/// A column: its title, its unit, and its content for a variant and generation.
type Column = (&'static str, &'static str, fn(&Variant, u32) -> String);

const COLUMNS: [Column; 17] = [
    ("throughput", "MB/s, steady", |variant, generation| of_mean(over(variant, generation, |one| one.figure(Quantity::Throughput, None)))),
    ("processor", "s/GB, without the source", |variant, generation| {
        of_mean(over(variant, generation, |one| per_gigabyte(one, (one.cpu_s - one.source_cpu_s).max(0.0))))
    }),
    ("memory", "greatest", |variant, generation| sized(over(variant, generation, |one| Some(one.peak_memory_bytes as f64)))),
    ("stored as new", "% of written", |variant, generation| {
        value_of(over(variant, generation, |one| one.figure(Quantity::NewPercent, None)))
    }),
    ("new in truth", "% of written", |variant, generation| {
        value_of(over(variant, generation, |one| percent(one.present_new_bytes, one.written_bytes)))
    }),
    ("duplicates found", "% of those there", |variant, generation| {
        value_of(over(variant, generation, |one| one.figure(Quantity::FoundPercent, None)))
    }),
    ("index reads", "1/s, each device", |variant, generation| {
        value_of(over(variant, generation, |one| one.figure(Quantity::IndexReads, None)))
    }),
    ("index writes", "1/s, each device", |variant, generation| value_of(over(variant, generation, index_writes))),
    ("p50 / p99 / p99.9", "ms", |variant, generation| {
        let of = |pick: fn(&Measured) -> f64| value_of(over(variant, generation, |one| Some(pick(one))));
        format!("{} / {} / {}", of(|one| one.latency_ms.p50), of(|one| one.latency_ms.p99), of(|one| one.latency_ms.p999))
    }),
    ("opening", "s before", |variant, generation| value_of(over(variant, generation, |one| one.figure(Quantity::OpenTime, None)))),
    ("background", "s after the last write", |variant, generation| {
        of_mean(over(variant, generation, |one| one.figure(Quantity::SettleTime, None)))
    }),
    ("disk", "grew by", |variant, generation| sized(over(variant, generation, |one| Some(one.disk_bytes as f64)))),
    ("sustained", "MB/s, background work included", |variant, generation| {
        value_of(over(variant, generation, |one| one.figure(Quantity::Sustained, None)))
    }),
    ("ratio", "written so far : on disk", |variant, generation| {
        value_of(over(variant, generation, |one| one.figure(Quantity::Ratio, None)))
    }),
    ("write amplification", "chunks, so far", |variant, generation| {
        value_of(over(variant, generation, |one| one.figure(Quantity::WriteAmplification, None)))
    }),
    ("space amplification", "at the end", |variant, generation| {
        value_of(over(variant, generation, |one| one.figure(Quantity::SpaceAmplification, None)))
    }),
    ("took", "writing", |variant, generation| {
        over(variant, generation, |one| Some(one.wall_s)).map_or_else(|| NOTHING.to_owned(), |mean| duration(mean.value))
    }),
];

fn sized(mean: Option<Mean>) -> String {
    mean.map_or_else(|| NOTHING.to_owned(), |mean| size(mean.value))
}

fn per_gigabyte(one: &Measured, seconds: f64) -> Option<f64> {
    (one.written_bytes > 0).then(|| seconds / (one.written_bytes as f64 / 1e9))
}

fn percent(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| 100.0 * part as f64 / of as f64)
}

fn index_writes(one: &Measured) -> Option<f64> {
    let part = one.steady_parts.get("chunk-index")?;
    (one.steady_s > 0.0).then(|| part.writes as f64 / one.steady_s / f64::from(part.devices.max(1)))
}

/// Returns all measurements, a row for each variant and generation.
pub fn measurements(run: &Results) -> Markup {
    html! {
        h3 { "Measured" }
        div.wide {
            table {
                thead {
                    tr {
                        th.text { "variant" } th { "gen." }
                        @for (head, unit, _) in COLUMNS { th { (head) small { (unit) } } }
                    }
                }
                tbody {
                    @for variant in &run.variants {
                        @for (at, generation) in generations(variant).into_iter().enumerate() {
                            tr.first[at == 0] {
                                td.text.long { @if at == 0 { (variant.name) } }
                                td { (generation) }
                                @for (_, _, cell) in COLUMNS { td { (cell(variant, generation)) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns how stores were filled, and the steps of references added and deleted: those of the first repetition.
pub fn steps(run: &Results) -> Markup {
    let of_generations = |variant: &Variant| {
        let measured = variant.repetitions.first().into_iter().flatten().filter(|measured| !measured.steps.is_empty());
        measured.map(|measured| (format!("{}, generation {}", variant.name, measured.generation), measured.steps.clone())).collect()
    };
    let rows: Vec<(String, Vec<Step>)> = run.variants.iter().flat_map(|variant| -> Vec<_> { of_generations(variant) }).collect();
    html! {
        @for variant in &run.variants {
            @if let Some(filled) = variant.fills.first() {
                h3 { "How the store of " (variant.name) " was filled" }
                (fill(filled))
            }
        }
        @if !rows.is_empty() {
            h3 { "Steps" }
            table.about { @for (name, steps) in &rows { tr { th { (name) } td { (told(steps)) } } } }
        }
    }
}

fn fill(filled: &Filled) -> Markup {
    html! {
        table.about {
            tr { th { "Chunks" } td { (round_number(filled.chunks as f64)) " by name, as if of " (size(filled.logical_bytes as f64)) } }
            tr { th { "Hooks" } td { (round_number(filled.hooks as f64)) ", one of " (filled.sampled_rate) " fingerprints in the sample" } }
            tr { th { "Recipes and directories" } td { (size(filled.metadata_bytes as f64)) } }
            @for (name, taken) in filled.directories.iter().filter(|(_, taken)| taken.files > 0) {
                tr {
                    th { (name) }
                    td { (size(taken.bytes as f64)) " in " (round_number(taken.files as f64)) " files, " (number(taken.bytes as f64 / filled.chunks.max(1) as f64)) " bytes a chunk" }
                }
            }
            tr { th { "Memory, greatest" } td { (size(filled.peak_memory_bytes as f64)) } }
            tr { th { "Steps" } td { (told(&filled.steps)) } }
        }
    }
}

fn told(steps: &[Step]) -> String {
    steps.iter().map(|(what, seconds)| format!("{what} {}", duration(*seconds))).collect::<Vec<_>>().join(", ")
}

/// Returns the paper's figures and ours in numbers, each also as a multiple of the first variant's: the shape.
pub fn beside_the_paper(run: &Results) -> Markup {
    if run.about.figures.is_empty() {
        return html! {};
    }
    let ours = |of: &PaperFigure| {
        let variant = run.variant(&of.variant)?;
        over(variant, of.generation, |one| one.figure(of.quantity, None))
    };
    // Shapes are relative to the first figure of the same quantity and generation that both have.
    let base = |of: &PaperFigure| {
        let like = |other: &&PaperFigure| other.quantity == of.quantity && other.generation == of.generation;
        run.about.figures.iter().filter(like).find_map(|other| ours(other).map(|mean| (other.value, mean.value)))
    };
    let times = |value: f64, base: Option<f64>| {
        base.filter(|base| *base > 0.0).map_or_else(|| NOTHING.to_owned(), |base| format!("{:.2}", value / base))
    };
    html! {
        h3 { "Beside the paper, in numbers" }
        p.pale { "Shape: as a multiple of the first line with the same generation and quantity." }
        div.wide {
            table {
                thead {
                    tr {
                        th.text { "variant" } th { "gen." } th.text { "quantity" } th { "paper" } th { "ours" } th { "ours : paper" } th { "shape" small { "paper" } } th { "shape" small { "ours" } }
                    }
                }
                tbody {
                    @for of in &run.about.figures {
                        @let mean = ours(of);
                        tr {
                            td.text.long { (of.variant) }
                            td { (of.generation) }
                            td.text.long { (title(of.quantity)) }
                            td { (figure(of.value, of.plus_minus)) }
                            td { (of_mean(mean)) }
                            td { (mean.map_or_else(|| NOTHING.to_owned(), |mean| times(mean.value, Some(of.value)))) }
                            td { (times(of.value, base(of).map(|base| base.0))) }
                            td { (mean.map_or_else(|| NOTHING.to_owned(), |mean| times(mean.value, base(of).map(|base| base.1)))) }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the settings of each variant.
pub fn variants(run: &Results) -> Markup {
    html! {
        h3 { "Variants" }
        @for variant in &run.variants {
            details {
                summary {
                    strong { (variant.name) }
                    ": " (variant.face) ", " (variant.clients) @if variant.clients == 1 { " client" } @else { " clients" }
                    @if variant.discards_data { ", bytes of chunks thrown away" }
                    @if variant.modelled.is_empty() { ", no device modelled" } @else { ", modelled: " (variant.modelled.keys().cloned().collect::<Vec<_>>().join(", ")) }
                }
                @if !variant.modelled.is_empty() {
                    table.about { @for (part, model) in &variant.modelled { tr { th { (part) } td { (model) } } } }
                }
                pre { (variant.settings) }
            }
        }
    }
}
