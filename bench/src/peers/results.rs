//! What was measured of the programs: as tables, as JSON, as a picture.

use super::programs::Codec;
use crate::report::figure;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What one program with its settings needed.
#[derive(Debug, Default)]
pub struct Outcome {
    pub name: String,
    pub version: String,
    pub settings: String,
    /// By step and figure, as in `first: cpu_s`; medians of the runs.
    pub figures: BTreeMap<String, f64>,
    /// Steps that failed, and what was said.
    pub failures: Vec<(String, String)>,
    /// Steps that the program does not have.
    pub lacking: Vec<&'static str>,
    /// How the restored tree compares, and the one restored after space was reclaimed.
    pub restored: Option<String>,
    pub restored_again: Option<String>,
}

/// A column of the tables: what heads it, the step, the figure of the step, and what the figure is divided by.
struct Column(&'static str, &'static str, &'static str, Scale);

#[derive(Clone, Copy)]
enum Scale {
    One,
    Gigabytes,
    Megabyte,
}

const COST: [Column; 6] = [
    Column("first", "first", "cpu_s", Scale::Gigabytes),
    Column("unchanged", "unchanged", "cpu_s", Scale::Gigabytes),
    Column("changed", "changed", "cpu_s", Scale::Gigabytes),
    Column("restore", "restore", "cpu_s", Scale::Gigabytes),
    Column("verify", "verify", "cpu_s", Scale::Gigabytes),
    Column("delete and reclaim, s", "reclaim", "cpu_s", Scale::One),
];
const WALL: [Column; 6] = [
    Column("first", "first", "wall_s", Scale::One),
    Column("unchanged", "unchanged", "wall_s", Scale::One),
    Column("changed", "changed", "wall_s", Scale::One),
    Column("restore", "restore", "wall_s", Scale::One),
    Column("verify", "verify", "wall_s", Scale::One),
    Column("delete and reclaim", "reclaim", "wall_s", Scale::One),
];
const SPACE: [Column; 7] = [
    Column("repository", "first", "grows_bytes", Scale::Megabyte),
    Column("unchanged adds", "unchanged", "grows_bytes", Scale::Megabyte),
    Column("changed adds", "changed", "grows_bytes", Scale::Megabyte),
    Column("reclaimed", "reclaim", "freed_bytes", Scale::Megabyte),
    Column("peak of first", "first", "peak_bytes", Scale::Megabyte),
    Column("of restore", "restore", "peak_bytes", Scale::Megabyte),
    Column("of reclaim", "reclaim", "peak_bytes", Scale::Megabyte),
];
/// How many times better than the best of the others the first program is to be: what, figure, times.
const AIMS: [(&str, &str, f64); 7] = [
    ("first backup, CPU", "first: cpu_s", 3.0),
    ("unchanged backup, CPU", "unchanged: cpu_s", 2.0),
    ("changed backup, CPU", "changed: cpu_s", 3.0),
    ("restore, CPU", "restore: cpu_s", 2.0),
    ("delete and reclaim, CPU", "reclaim: cpu_s", 5.0),
    ("size of the repository with two generations", "changed: repository_bytes", 1.0),
    ("peak memory of the first backup", "first: peak_bytes", 1.0),
];

impl Outcome {
    fn cell(&self, column: &Column, gigabytes: f64) -> String {
        let Column(_, step, kind, scale) = column;
        let by = match scale {
            Scale::One => 1.0,
            Scale::Gigabytes => gigabytes,
            Scale::Megabyte => 1e6,
        };
        match self.figures.get(&format!("{step}: {kind}")) {
            _ if self.failures.iter().any(|(failed, _)| failed == step) => "**failed**".into(),
            Some(value) => figure(value / by),
            None if self.lacking.contains(step) => "none".into(),
            None => "-".into(),
        }
    }

    fn label(&self) -> String {
        format!("{} ({})", self.name, self.settings)
    }
}

/// The report in Markdown: for each codec tables of processor time, wall time and space, then how the first program of
/// each stands to the best of the others. `gigabytes`: size of the corpus.
pub fn markdown(groups: &[(Codec, Vec<Outcome>)], about: &str, missing: &[String], gigabytes: f64) -> String {
    let mut text = format!("# Backup programs on the same corpus\n\n{about}\n");
    if !missing.is_empty() {
        let _ = writeln!(text, "\nNot measured, because not installed: {}.", missing.join(", "));
    }
    for (codec, outcomes) in groups.iter().filter(|(_, outcomes)| !outcomes.is_empty()) {
        let _ = writeln!(text, "\n## {}", codec.title());
        table(&mut text, "CPU, s/GB of the corpus", &COST, outcomes, gigabytes);
        table(&mut text, "Wall time, s", &WALL, outcomes, gigabytes);
        table(&mut text, "Space and memory, MB", &SPACE, outcomes, gigabytes);
        text += "\n| what was restored | the newest backup | the same after reclaiming |\n|---|---|---|\n";
        for outcome in outcomes {
            let [first, again] = [&outcome.restored, &outcome.restored_again].map(|said| said.as_deref().unwrap_or("-"));
            let _ = writeln!(text, "| {} | {first} | {again} |", outcome.label());
        }
        aims(&mut text, outcomes);
        for outcome in outcomes {
            for (step, said) in &outcome.failures {
                let _ = writeln!(text, "\n{}: {step} **failed**: `{}`", outcome.label(), said.replace('`', "'"));
            }
        }
    }
    text
}

fn table(text: &mut String, title: &str, columns: &[Column], outcomes: &[Outcome], gigabytes: f64) {
    let heads: Vec<_> = columns.iter().map(|column| column.0).collect();
    let _ = writeln!(text, "\n| {title} | {} |\n|---|{}", heads.join(" | "), "---|".repeat(columns.len()));
    for outcome in outcomes {
        let cells: Vec<_> = columns.iter().map(|column| outcome.cell(column, gigabytes)).collect();
        let _ = writeln!(text, "| {} | {} |", outcome.label(), cells.join(" | "));
    }
}

/// The first of the outcomes beside the best of the others that did not fail at it.
fn aims(text: &mut String, outcomes: &[Outcome]) {
    let Some((ours, others)) = outcomes.split_first().filter(|(_, others)| !others.is_empty()) else { return };
    let _ = writeln!(text, "\n| {} beside the best of the others | times better | aim |\n|---|---|---|", ours.name);
    for (what, key, aim) in AIMS {
        let best = others.iter().filter_map(|other| Some((*other.figures.get(key)?, &other.name))).min_by(|a, b| a.0.total_cmp(&b.0));
        if let (Some(own), Some((best, name))) = (ours.figures.get(key), best) {
            let times = best / own;
            let missed = if times >= aim { "" } else { " **missed**" };
            let _ = writeln!(text, "| {what} | {} ({name}) | >= {}{missed} |", figure(times), figure(aim));
        }
    }
}

/// The same for programs.
pub fn json(groups: &[(Codec, Vec<Outcome>)], about: Value, missing: &[String]) -> Value {
    let all = groups.iter().flat_map(|(codec, outcomes)| outcomes.iter().map(move |outcome| (codec, outcome)));
    let programs = all.map(|(codec, outcome)| {
        json!({
            "name": outcome.name, "version": outcome.version, "settings": outcome.settings, "group": codec.title(),
            "figures": outcome.figures, "lacking": outcome.lacking,
            "failures": outcome.failures.iter().map(|(step, said)| json!({"step": step, "error": said})).collect::<Vec<_>>(),
            "restored": outcome.restored, "restored_after_reclaiming": outcome.restored_again,
        })
    });
    json!({"about": about, "missing": missing, "programs": programs.collect::<Vec<_>>()})
}

/// Bars: for each codec and column of processor time, and for the size of the repository, one for each program.
pub fn svg(groups: &[(Codec, Vec<Outcome>)], gigabytes: f64) -> String {
    const LABEL: f64 = 460.0;
    const LONGEST: f64 = 380.0;
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let (mut body, mut y) = (String::new(), 10.0);
    for (codec, outcomes) in groups.iter().filter(|(_, outcomes)| !outcomes.is_empty()) {
        let columns = COST.iter().map(|column| (column, "CPU, s/GB")).chain(SPACE[..1].iter().map(|column| (column, "MB")));
        for (column, unit) in columns {
            let unit = if matches!(column.3, Scale::One) { "CPU, s" } else { unit };
            y += 26.0;
            let _ = writeln!(body, r#"<text x="10" y="{y}" font-weight="bold">{}: {} ({unit})</text>"#, codec.title(), column.0);
            let values: Vec<_> = outcomes.iter().map(|outcome| (outcome, outcome.cell(column, gigabytes))).collect();
            let number = |cell: &str| cell.parse::<f64>().ok().map(|value| value.max(0.0));
            let most = values.iter().filter_map(|(_, cell)| number(cell)).fold(f64::MIN_POSITIVE, f64::max);
            for (outcome, cell) in &values {
                y += 18.0;
                let width = number(cell).map_or(0.0, |value| value / most * LONGEST);
                let colour = if outcome.name == "onefold" { "#c2410c" } else { "#64748b" };
                let _ = writeln!(body, r#"<text x="{}" y="{y}" text-anchor="end">{}</text>"#, LABEL - 8.0, escape(&outcome.label()));
                let _ = writeln!(body, r#"<rect x="{LABEL}" y="{}" width="{width:.1}" height="13" fill="{colour}"/>"#, y - 11.0);
                let _ = writeln!(body, r#"<text x="{:.1}" y="{y}">{}</text>"#, LABEL + width + 6.0, escape(&cell.replace('*', "")));
            }
        }
    }
    let (width, height) = (LABEL + LONGEST + 80.0, y + 20.0);
    let style = r#"font-family="sans-serif" font-size="12""#;
    let background = r#"<rect width="100%" height="100%" fill="white"/>"#;
    format!("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" {style}>\n{background}\n{body}</svg>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &str, figures: &[(&str, f64)]) -> Outcome {
        let figures = figures.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
        Outcome { name: name.into(), settings: "none".into(), figures, ..Outcome::default() }
    }

    fn groups() -> Vec<(Codec, Vec<Outcome>)> {
        let mut broken = outcome("broken", &[("first: cpu_s", 1.0)]);
        broken.failures.push(("unchanged".into(), "no `luck` < here".into()));
        let mut other = outcome("other", &[("first: cpu_s", 8.0), ("unchanged: cpu_s", 1.0)]);
        other.lacking = vec!["verify"];
        other.restored = Some("identical".into());
        vec![
            (Codec::None, vec![outcome("onefold", &[("first: cpu_s", 2.0), ("unchanged: cpu_s", 1.0)]), other, broken]),
            (Codec::Quick, vec![]),
        ]
    }

    #[test]
    fn a_failure_a_lack_and_what_was_not_reached_differ() {
        let text = markdown(&groups(), "about", &["gone".into()], 2.0);
        assert!(text.contains("| other (none) | 4.00 | 0.500 | - | - | none | - |"), "{text}");
        assert!(text.contains("| broken (none) | 0.500 | **failed** | - | - | - | - |"), "{text}");
        assert!(text.contains("broken (none): unchanged **failed**: `no 'luck' < here`"), "{text}");
        assert!(text.contains("not installed: gone."), "{text}");
        assert!(text.contains("| other (none) | identical | - |"), "{text}");
        assert!(!text.contains(Codec::Quick.title()), "{text}");
    }

    #[test]
    fn the_aim_is_held_to_the_best_of_the_others() {
        let text = markdown(&groups(), "about", &[], 2.0);
        assert!(text.contains("| first backup, CPU | 0.500 (broken) | >= 3.00 **missed** |"), "{text}");
        assert!(text.contains("| unchanged backup, CPU | 1.00 (other) | >= 2.00 **missed** |"), "{text}");
        assert!(!text.contains("| restore, CPU |"), "{text}");
    }

    #[test]
    fn what_programs_read_has_the_figures_and_the_failures() {
        let all = json(&groups(), json!({"seed": 1}), &["gone".into()]);
        assert_eq!(all["programs"][1]["figures"]["first: cpu_s"], 8.0);
        assert_eq!(all["programs"][2]["failures"][0]["error"], "no `luck` < here");
        assert_eq!(all["missing"][0], "gone");
    }

    #[test]
    fn the_longest_bar_is_that_of_the_greatest_figure() {
        let picture = svg(&groups(), 2.0);
        // One at the first backup, both that did it at the unchanged one.
        assert_eq!(picture.matches("width=\"380.0\"").count(), 3, "{picture}");
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
        assert!(!picture.contains("**"), "{picture}");
    }
}
