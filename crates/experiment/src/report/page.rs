//! The frame of the page: head, warnings for the reader, machines, the list of experiments.

use super::figures::{self, duration};
use super::{plot, section};
use crate::results::{Machine, Results, Variant};
use crate::statistics::{Outcome, judge};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::collections::BTreeSet;

const STYLE: &str = include_str!("style.css");
/// Dark colours of the page itself. Those of pictures come from `plot`.
const NIGHT: &str = ":root{--ground:#15181b;--ink:#e6e8ea;--pale:#a4acb4;--line:#3a4046;--panel:#1f2428;--link:#7cb8ee;--good:#5fd39a;--bad:#ff9077;--note:#2b2618}";
const PRINT: &str = "@media print{@page{margin:12mm}html{font-size:11px}body{max-width:none;padding:0;font-size:1rem}h2,h3,.legend,figcaption{break-after:avoid}figure,tr,.note{break-inside:avoid}.pair{grid-template-columns:1fr 1fr}.wide{overflow:visible}table{font-size:.8rem}th,td{padding:.2rem .3rem}}";

/// Returns the whole page.
pub fn page(runs: &[Results]) -> Markup {
    let (day, night) = plot::style_sheets();
    // Print in light colours, whatever the screen shows.
    let style = format!("{STYLE}{day}@media screen and (prefers-color-scheme:dark){{{NIGHT}{night}}}{PRINT}");
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width,initial-scale=1";
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                title { "onefold: experiments" }
                style { (PreEscaped(style)) }
            }
            body {
                header {
                    h1 { "Experiments on onefold" }
                    p.pale { "Made by " code { "onefold bench report" } " from what " code { "onefold bench run" } " measured. All figures are means of the repetitions; ± is half of the interval of 95 % confidence (Student's t)." }
                    (reservations(runs))
                    (machines(runs))
                    (contents(runs))
                }
                main { @for (at, run) in runs.iter().enumerate() { (section::section(run, &anchor(at))) } }
            }
        }
    }
}

/// Returns the place of an experiment on the page. Ids come from files and may be anything, even duplicates.
fn anchor(at: usize) -> String {
    format!("experiment-{}", at + 1)
}

fn variants(runs: &[Results]) -> impl Iterator<Item = &Variant> {
    runs.iter().flat_map(|run| &run.variants)
}

/// Returns the limits of comparing these figures with those of a paper.
fn reservations(runs: &[Results]) -> Markup {
    let is_modelled = variants(runs).any(|variant| !variant.modelled.is_empty());
    let discards = variants(runs).any(|variant| variant.discards_data);
    let is_small = runs.iter().any(|run| run.size_bytes < run.full_size_bytes);
    let is_alone = variants(runs).any(|variant| variant.repetitions.len() == 1);
    html! {
        div.note {
            strong { "Before comparing" }
            ul {
                @if is_modelled {
                    li { strong { "Devices are modelled." } " Where an experiment says so, each operation on a part of the store waited as long as the device of the paper would have taken, on top of the time that this machine took. No such device was there." }
                }
                @if discards {
                    li { strong { "Bytes of chunks were thrown away" } " where an experiment says so: everything was done with them but writing them, so that the store needs no room for them. Where containers are on modelled devices, the time of writing was taken all the same." }
                }
                @if variants(runs).any(figures::is_reconstructed) {
                    li { strong { "Generation 1 is reconstructed." } " The lengths of its runs were never published, and the papers wrote real files that nobody else has; what stands for them is an estimate with the published mean, median and maximum. Generation 2 has measured lengths of its own and copies the data of generation 1." }
                }
                @if is_small {
                    li { strong { "Less data than in the paper." } " The list below says how much was written; variants with fewer clients write less. Memory that the declarations say to scale was made smaller by as much, but never below the least that a setting takes." }
                }
                @if is_alone {
                    li { strong { "Some were run once." } " Those have no interval of confidence." }
                }
                li { "Shapes, orders and ratios are what can be compared, not MB/s: the paper's machine is of 2009. So the two pictures of each pair have scales of their own, both from zero." }
            }
        }
    }
}

fn machines(runs: &[Results]) -> Markup {
    let mut all: Vec<(&Machine, BTreeSet<&str>, Vec<&str>)> = Vec::new();
    for run in runs {
        let known = all.iter_mut().find(|(machine, ..)| *machine == &run.machine);
        let id = run.about.id.as_str();
        match known {
            Some((_, versions, ids)) => {
                versions.insert(&run.onefold);
                ids.push(id);
            }
            None => all.push((&run.machine, [run.onefold.as_str()].into(), vec![id])),
        }
    }
    html! {
        @for (machine, versions, ids) in &all {
            table.about {
                @if all.len() > 1 { tr { th { "Experiments" } td { (ids.join(", ")) } } }
                tr { th { "Machine" } td { (machine.processors) " × " (machine.processor) ", " (figures::size(machine.memory_bytes as f64)) " of memory" } }
                tr { th { "System" } td { (machine.system) ", store on " (machine.file_system) } }
                tr { th { "Program" } td { "onefold " (versions.iter().copied().collect::<Vec<_>>().join(", ")) } }
            }
        }
    }
}

fn contents(runs: &[Results]) -> Markup {
    html! {
        h3 { "Experiments" }
        div.wide {
            table {
                thead {
                    tr {
                        th.text { "" } th.text.long { "what" } th { "written" small { "each generation" } } th { "in the paper" } th { "repetitions" } th { "took" } th.text { "expected orders" }
                    }
                }
                tbody {
                    @for (at, run) in runs.iter().enumerate() {
                        tr {
                            td.text { a href={ "#" (anchor(at)) } { (run.about.id) } }
                            td.text.long { (run.about.title) }
                            td { (figures::size(run.size_bytes as f64)) }
                            td { (figures::size(run.full_size_bytes as f64)) }
                            td { (run.variants.iter().map(|variant| variant.repetitions.len()).max().unwrap_or(0)) }
                            td { (duration(run.took_s)) }
                            td.text { (verdict(run)) }
                        }
                    }
                }
            }
        }
    }
}

/// Returns how many of the expectations held.
fn verdict(run: &Results) -> Markup {
    let outcomes: Vec<Outcome> = run.about.expectations.iter().map(|one| judge(run, one)).collect();
    let held = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Holds(_))).count();
    let failed = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Fails(_))).count();
    let missing = outcomes.len() - held - failed;
    html! {
        @if outcomes.is_empty() { span.pale { "none" } }
        @if held > 0 { span.good { "✓ " (held) " held" } " " }
        @if failed > 0 { span.bad { "✗ " (failed) " not" } " " }
        @if missing > 0 { span.pale { (missing) " not measured" } }
    }
}
