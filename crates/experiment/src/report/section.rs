//! One experiment: its purpose, pictures beside the paper's, shares, course, tables, and why our results differ.

use super::figures::{bounded, generations, is_reconstructed, measured, over, size, title};
use super::plot::bars::{self, Bar};
use super::plot::course::{self, Line};
use super::plot::shares::{self, Share};
use super::plot::{component_class, generation_class};
use super::{levels, tables};
use crate::results::{GROUPS, Quantity, Results, Variant, group};
use maud::{Markup, PreEscaped, html};

/// Returns the section with this anchor.
pub fn section(run: &Results, anchor: &str) -> Markup {
    let about = &run.about;
    html! {
        section id=(anchor) {
            h2 { (about.id) ": " (about.title) }
            p.pale {
                "After " (about.paper) ". " (size(run.size_bytes as f64)) " in each generation, all clients together"
                @if run.size_bytes != run.full_size_bytes { "; in full " (size(run.full_size_bytes as f64)) }
                ". Begun " (moment(run.began_unix_s)) "."
                @if run.variants.iter().any(|variant| !variant.modelled.is_empty()) { " Devices are modelled (see the variants below)." }
                @if run.variants.iter().any(|variant| variant.discards_data) { " Bytes of chunks were thrown away." }
            }
            (paragraphs(&about.text))
            @for variant in &run.variants {
                @if let Some(failure) = &variant.failure {
                    p { span.bad { (variant.name) " ended early: " } (failure) }
                }
            }
            @for quantity in quantities(run) { (pair(run, quantity)) }
            (time_shares(run))
            (courses(run))
            (tables::expectations(run))
            @if !about.differs.trim().is_empty() {
                h3 { "Where and why ours differs from the paper's" }
                (paragraphs(&about.differs))
            }
            (tables::measurements(run))
            (levels::levels(run))
            (tables::steps(run))
            (tables::beside_the_paper(run))
            (tables::variants(run))
        }
    }
}

/// Returns plain text as paragraphs, which are separated by empty lines.
fn paragraphs(text: &str) -> Markup {
    let all = text.split("\n\n").map(str::trim).filter(|paragraph| !paragraph.is_empty());
    html! { @for paragraph in all { p { (paragraph) } } }
}

/// Formats a moment in UTC, or the number if it is out of range.
fn moment(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok().and_then(|unix_s| jiff::Timestamp::from_second(unix_s).ok());
    time.map_or_else(|| unix_s.to_string(), |time| time.strftime("%Y-%m-%d %H:%M UTC").to_string())
}

/// Returns the quantities to draw: throughput always, and all others of which the paper has figures. Shares have a
/// picture of their own.
fn quantities(run: &Results) -> Vec<Quantity> {
    let mut all = vec![Quantity::Throughput];
    for figure in &run.about.figures {
        if figure.quantity != Quantity::Share && !all.contains(&figure.quantity) {
            all.push(figure.quantity);
        }
    }
    all
}

/// Returns all generations of a run, and of its paper's figures.
fn all_generations(run: &Results) -> Vec<u32> {
    let ours = run.variants.iter().flat_map(generations);
    let mut all: Vec<u32> = ours.chain(run.about.figures.iter().map(|figure| figure.generation)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn legend(run: &Results) -> Markup {
    let is_reconstructed = run.variants.iter().any(is_reconstructed);
    html! {
        ul.legend {
            @for generation in all_generations(run) {
                li { i class=(generation_class(generation)) {} "generation " (generation) @if generation == 1 && is_reconstructed { " (ours: reconstructed)" } }
            }
        }
    }
}

/// Returns the paper's figures of a quantity beside ours.
fn pair(run: &Results, quantity: Quantity) -> Markup {
    let (papers, ours) = (rows_of_paper(run, quantity), rows_of_ours(run, quantity));
    let draw = |rows: &[bars::Row], whose: &str| {
        let told: Vec<String> = rows.iter().map(|row| format!("{}: {}", row.name, told(row))).collect();
        PreEscaped(bars::bars(rows, title(quantity), &format!("{whose}, {}. {}", title(quantity), told.join("; "))))
    };
    html! {
        h3 { (capitalised(title(quantity))) }
        (legend(run))
        div.pair {
            @if !papers.is_empty() { figure { figcaption { "The paper" } (draw(&papers, "The paper")) } }
            @if !ours.is_empty() { figure { figcaption { "Ours" } (draw(&ours, "Ours")) } }
        }
    }
}

fn told(row: &bars::Row) -> String {
    let bar = |bar: &Bar| format!("generation {} {}", bar.generation, super::figures::figure(bar.value, bar.plus_minus));
    row.bars.iter().map(bar).collect::<Vec<_>>().join(", ")
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Returns the paper's figures: first those of our variants, in our order, then other systems.
fn rows_of_paper(run: &Results, quantity: Quantity) -> Vec<bars::Row> {
    let figures: Vec<_> = run.about.figures.iter().filter(|figure| figure.quantity == quantity).collect();
    let mut names: Vec<&str> = Vec::new();
    let ours = run.variants.iter().map(|variant| variant.name.as_str());
    for name in
        ours.filter(|name| figures.iter().any(|figure| figure.variant == *name)).chain(figures.iter().map(|one| one.variant.as_str()))
    {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let row = |name: &str| {
        let own = figures.iter().filter(|figure| figure.variant == name);
        let mut bars: Vec<_> = own.map(|one| Bar { generation: one.generation, value: one.value, plus_minus: one.plus_minus }).collect();
        bars.sort_by_key(|bar| bar.generation);
        bars::Row { name: name.to_owned(), bars }
    };
    names.into_iter().map(row).collect()
}

fn rows_of_ours(run: &Results, quantity: Quantity) -> Vec<bars::Row> {
    let row = |variant: &Variant| {
        let bar = |generation| {
            let mean = over(variant, generation, |measured| measured.figure(quantity, None))?;
            Some(Bar { generation, value: mean.value, plus_minus: mean.plus_minus })
        };
        bars::Row { name: variant.name.clone(), bars: generations(variant).into_iter().filter_map(bar).collect() }
    };
    run.variants.iter().map(row).filter(|row| !row.bars.is_empty()).collect()
}

/// Returns where the time of the data path went.
fn time_shares(run: &Results) -> Markup {
    let row = |variant: &Variant| {
        let shares = generations(variant).into_iter().filter_map(|generation| share(variant, generation)).collect();
        shares::Row { name: variant.name.clone(), shares }
    };
    let rows: Vec<_> = run.variants.iter().map(row).filter(|row| !row.shares.is_empty()).collect();
    if rows.is_empty() {
        return html! {};
    }
    let is_there = |group: usize| rows.iter().flat_map(|row| &row.shares).any(|share| share.percent[group] >= 0.05);
    let told = |share: &Share| {
        let parts = GROUPS.iter().zip(share.percent).filter(|(_, percent)| *percent >= 0.5);
        let parts: Vec<_> = parts.map(|(group, percent)| format!("{group} {percent:.0} %")).collect();
        format!("generation {}: {}", share.generation, parts.join(", "))
    };
    let said: Vec<_> = rows.iter().flat_map(|row| row.shares.iter().map(|share| format!("{}, {}", row.name, told(share)))).collect();
    html! {
        h3 { "Time of the data path by component" }
        p.pale { "Wall time of all threads, so waiting counts. Of each pair the upper bar is generation 1." }
        ul.legend { @for (at, group) in GROUPS.iter().enumerate() { @if is_there(at) { li { i class=(component_class(at)) {} (group) } } } }
        figure { (PreEscaped(shares::shares(&rows, &format!("Shares of time. {}", said.join("; "))))) }
    }
}

/// Returns the shares over all repetitions.
fn share(variant: &Variant, generation: u32) -> Option<Share> {
    let mut percent = [0.0; GROUPS.len()];
    for (component, seconds) in measured(variant, generation).flat_map(|measured| &measured.components_s) {
        let at = GROUPS.iter().position(|name| *name == group(component)).expect("every component has a group");
        percent[at] += bounded(*seconds).unwrap_or(0.0);
    }
    let sum: f64 = percent.iter().sum();
    (sum > 0.0).then(|| Share { generation, percent: percent.map(|seconds| 100.0 * seconds / sum) })
}

/// Returns the course of throughput, a picture for each variant.
fn courses(run: &Results) -> Markup {
    let lines = |variant: &Variant| -> Vec<Line> {
        let all = variant.repetitions.iter().flatten().filter(|measured| !measured.course_mb_s.is_empty());
        all.map(|one| Line { generation: one.generation, mb_s: one.course_mb_s.clone(), span_s: one.span_s }).collect()
    };
    let variants: Vec<_> = run.variants.iter().map(|variant| (variant, lines(variant))).filter(|(_, lines)| !lines.is_empty()).collect();
    if variants.is_empty() {
        return html! {};
    }
    html! {
        h3 { "Course of throughput, all clients" }
        p.pale { "A line for each repetition. Each picture has axes of its own: what takes long beside what is quick would leave nothing to see of either." }
        (legend(run))
        div.pair {
            @for (variant, lines) in &variants {
                figure {
                    figcaption { (variant.name) }
                    (PreEscaped(course::course(lines, &format!("Course of throughput, {}", variant.name))))
                }
            }
        }
    }
}
