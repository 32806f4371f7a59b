//! What was measured on object storage: as tables and as JSON.

use super::requests::Kind;
use crate::report::figure;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What one contender needed, with one latency.
#[derive(Debug, Default)]
pub struct Outcome {
    pub name: String,
    pub settings: String,
    pub version: String,
    pub latency_ms: u64,
    /// By step and figure, as in `first: wall_s`; medians of the runs.
    pub figures: BTreeMap<String, f64>,
    /// Steps that failed, and what was said.
    pub failures: Vec<(String, String)>,
    /// How the trees compare that were restored with the state of this machine, and without.
    pub restored: [Option<String>; 2],
}

/// Steps that are measured: what figures are called by, and what heads the column.
pub const STEPS: [(&str, &str); 7] = [
    ("first", "first backup"),
    ("unchanged", "unchanged"),
    ("changed", "changed"),
    ("restore", "restore"),
    ("without_state", "restore without state"),
    ("prune", "forget and prune"),
    ("killed", "changed, again after a kill"),
];
/// A table for each of these figures of a step: title, figure, what it is divided by.
const TABLES: [(&str, &str, f64); 5] = [
    ("Seconds", "wall_s", 1.0),
    ("Sent, MB", "sent_bytes", 1e6),
    ("Received, MB", "received_bytes", 1e6),
    ("Peak memory, MB", "peak_bytes", 1e6),
    ("CPU, s", "cpu_s", 1.0),
];
/// Kinds of requests that have a place in the table.
const KINDS: [Kind; 6] = [Kind::Get, Kind::Put, Kind::Head, Kind::List, Kind::Delete, Kind::Post];

impl Outcome {
    fn label(&self) -> String {
        format!("{} ({})", self.name, self.settings)
    }

    /// The cell of a step: that it failed, or what `text` makes of its figures.
    fn cell(&self, step: &str, text: impl FnOnce(&dyn Fn(&str) -> Option<f64>) -> Option<String>) -> String {
        if self.failures.iter().any(|(failed, _)| failed == step) {
            return "**failed**".into();
        }
        text(&|kind| self.figures.get(&format!("{step}: {kind}")).copied()).unwrap_or_else(|| "-".into())
    }
}

/// The report in Markdown, a section for each latency.
pub fn markdown(outcomes: &[Outcome], about: &str, missing: &[String]) -> String {
    let mut text = format!("# Backups in object storage, on the same corpus\n\n{about}\n");
    if !missing.is_empty() {
        let _ = writeln!(text, "\nNot measured, because not installed: {}.", missing.join(", "));
    }
    for group in outcomes.chunk_by(|one, other| one.latency_ms == other.latency_ms) {
        let _ = writeln!(text, "\n## {} ms more for each request", group[0].latency_ms);
        for (title, kind, by) in TABLES {
            steps(&mut text, title, group, |outcome, step| outcome.cell(step, |of| of(kind).map(|value| figure(value / by))));
        }
        let names = KINDS.map(Kind::name).join("/");
        steps(&mut text, &format!("Requests: all ({names})"), group, |outcome, step| outcome.cell(step, requests));
        repositories(&mut text, group);
        for outcome in group {
            for (step, said) in &outcome.failures {
                let _ = writeln!(text, "\n{}: {step} **failed**: `{}`", outcome.label(), said.replace('`', "'"));
            }
        }
    }
    text
}

/// Requests of a step, all and by kind.
fn requests(of: &dyn Fn(&str) -> Option<f64>) -> Option<String> {
    let by_kind: Vec<String> = KINDS.iter().map(|kind| of(kind.name()).unwrap_or_default().to_string()).collect();
    Some(format!("{} ({})", of("requests")?, by_kind.join("/")))
}

/// A table with a column for each step.
fn steps(text: &mut String, title: &str, outcomes: &[Outcome], cell: impl Fn(&Outcome, &str) -> String) {
    let heads: Vec<_> = STEPS.iter().map(|(_, head)| *head).collect();
    let _ = writeln!(text, "\n| {title} | {} |\n|---|{}", heads.join(" | "), "---|".repeat(STEPS.len()));
    for outcome in outcomes {
        let _ = writeln!(text, "| {} | {} |", outcome.label(), STEPS.map(|(step, _)| cell(outcome, step)).join(" | "));
    }
}

/// Sizes of repositories, restored trees, and restores beside the floor.
fn repositories(text: &mut String, outcomes: &[Outcome]) {
    let heads = [
        "repository after the first backup, MB",
        "after the changed one, MB",
        "after pruning, MB",
        "all objects downloaded, s",
        "restore, times that",
        "without state, times that",
        "restored",
        "restored without state",
    ];
    let _ = writeln!(text, "\n| | {} |\n|---|{}", heads.join(" | "), "---|".repeat(heads.len()));
    for outcome in outcomes {
        let megabytes = |step| outcome.cell(step, |of| of("repository_bytes").map(|bytes| figure(bytes / 1e6)));
        let floor_s = outcome.figures.get("floor: wall_s");
        let times = |step| outcome.cell(step, |of| of("wall_s").zip(floor_s).map(|(value, floor_s)| figure(value / floor_s)));
        let [restored, without_state] = &outcome.restored;
        let said = |restored: &Option<String>| restored.clone().unwrap_or_else(|| "-".into());
        let floor = floor_s.map_or_else(|| "-".into(), |seconds| figure(*seconds));
        let cells = [megabytes("first"), megabytes("changed"), megabytes("prune"), floor, times("restore"), times("without_state")];
        let _ = writeln!(text, "| {} | {} | {} | {} |", outcome.label(), cells.join(" | "), said(restored), said(without_state));
    }
}

/// The same for programs.
pub fn json(outcomes: &[Outcome], about: Value, missing: &[String]) -> Value {
    let contenders = outcomes.iter().map(|outcome| {
        json!({
            "name": outcome.name, "version": outcome.version, "settings": outcome.settings, "latency_ms": outcome.latency_ms,
            "figures": outcome.figures, "restored": outcome.restored,
            "failures": outcome.failures.iter().map(|(step, said)| json!({"step": step, "error": said})).collect::<Vec<_>>(),
        })
    });
    json!({"about": about, "missing": missing, "contenders": contenders.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_latency_has_its_tables() {
        let outcome = |latency_ms, first_s| Outcome {
            name: "ours".into(),
            settings: "plain".into(),
            latency_ms,
            figures: [
                ("first: wall_s", first_s),
                ("first: requests", 5.0),
                ("first: PUT", 4.0),
                ("first: LIST", 1.0),
                ("first: sent_bytes", 2e6),
                ("first: repository_bytes", 3e6),
                ("floor: wall_s", 0.5),
                ("restore: wall_s", 1.0),
            ]
            .map(|(key, value)| (key.to_owned(), value))
            .into(),
            failures: vec![("prune".into(), "no `room`".into())],
            restored: [Some("identical".into()), None],
            ..Outcome::default()
        };
        let outcomes = [outcome(0, 2.0), outcome(30, 4.0)];
        let text = markdown(&outcomes, "about", &["kopia".into()]);
        assert!(text.contains("not installed: kopia."), "{text}");
        assert!(text.contains("## 0 ms more") && text.contains("## 30 ms more"), "{text}");
        assert!(text.contains("| ours (plain) | 4.00 | - | - | 1.00 | - | **failed** | - |"), "{text}");
        assert!(text.contains("| ours (plain) | 5 (0/4/0/1/0/0) | - | - | - | - | **failed** | - |"), "{text}");
        assert!(text.contains("| ours (plain) | 3.00 | - | **failed** | 0.500 | 2.00 | - | identical | - |"), "{text}");
        assert!(text.contains("ours (plain): prune **failed**: `no 'room'`"), "{text}");
        assert_eq!(json(&outcomes, Value::Null, &[])["contenders"][1]["latency_ms"], 30);
    }
}
