//! What was measured of the servers: as tables and as JSON.

use crate::report::figure;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What one contender needed, with one delay.
#[derive(Debug, Default)]
pub struct Outcome {
    pub name: String,
    pub settings: String,
    pub version: String,
    pub delay_ms: u64,
    /// By step and figure, as in `first: wall_s`; medians of the runs.
    pub figures: BTreeMap<String, f64>,
    /// Steps that failed, and what was said.
    pub failures: Vec<(String, String)>,
    /// How the restored tree compares.
    pub restored: Option<String>,
}

/// Steps that are measured: what figures are called by, and what heads the column.
pub const STEPS: [(&str, &str); 5] = [
    ("first", "first"),
    ("unchanged", "unchanged"),
    ("changed", "changed"),
    ("restore", "restore"),
    ("another", "another account's first of the same data"),
];
/// A table for each of these figures of a step: title, figure, what it is divided by.
const TABLES: [(&str, &str, f64); 4] = [
    ("Seconds", "wall_s", 1.0),
    ("CPU of the client, s", "client_cpu_s", 1.0),
    ("CPU of the server, s", "server_cpu_s", 1.0),
    ("On the wire, MB", "wire_bytes", 1e6),
];
/// One more: head of the column and figure, in megabytes.
const SPACE: [(&str, &str); 6] = [
    ("first", "first: grows_bytes"),
    ("unchanged", "unchanged: grows_bytes"),
    ("changed", "changed: grows_bytes"),
    ("another account's", "another: grows_bytes"),
    ("at the end, server stopped", "end: repository_bytes"),
    ("peak memory of the server", "server: peak_bytes"),
];

impl Outcome {
    fn label(&self) -> String {
        format!("{} ({})", self.name, self.settings)
    }

    fn cell(&self, key: &str, by: f64) -> String {
        let step = key.split(':').next().unwrap_or_default();
        match self.figures.get(key) {
            _ if self.failures.iter().any(|(failed, _)| failed == step) => "**failed**".into(),
            Some(value) => figure(value / by),
            None => "-".into(),
        }
    }
}

/// The report in Markdown, a section for each delay. `local`: the name of ours without a server.
pub fn markdown(outcomes: &[Outcome], about: &str, missing: &[String], local: &str) -> String {
    let mut text = format!("# Backup servers on the same corpus\n\n{about}\n");
    if !missing.is_empty() {
        let _ = writeln!(text, "\nNot measured, because not installed: {}.", missing.join(", "));
    }
    for group in outcomes.chunk_by(|one, other| one.delay_ms == other.delay_ms) {
        let _ = writeln!(text, "\n## Round trip of {} ms", 2 * group[0].delay_ms);
        for (title, kind, by) in TABLES {
            let columns: Vec<_> = STEPS.iter().map(|(step, head)| (*head, format!("{step}: {kind}"))).collect();
            table(&mut text, title, &columns, group, by);
        }
        table(&mut text, "Repository grows by, MB", &SPACE.map(|(head, key)| (head, key.to_owned())), group, 1e6);
        text += "\n| | what was restored |\n|---|---|\n";
        for outcome in group {
            let _ = writeln!(text, "| {} | {} |", outcome.label(), outcome.restored.as_deref().unwrap_or("-"));
        }
        ratios(&mut text, group, local);
        for outcome in group {
            for (step, said) in &outcome.failures {
                let _ = writeln!(text, "\n{}: {step} **failed**: `{}`", outcome.label(), said.replace('`', "'"));
            }
        }
    }
    text
}

fn table(text: &mut String, title: &str, columns: &[(&str, String)], outcomes: &[Outcome], by: f64) {
    let heads: Vec<_> = columns.iter().map(|(head, _)| *head).collect();
    let _ = writeln!(text, "\n| {title} | {} |\n|---|{}", heads.join(" | "), "---|".repeat(columns.len()));
    for outcome in outcomes {
        let cells: Vec<_> = columns.iter().map(|(_, key)| outcome.cell(key, by)).collect();
        let _ = writeln!(text, "| {} | {} |", outcome.label(), cells.join(" | "));
    }
}

/// How many times as long as without a server each step takes.
fn ratios(text: &mut String, outcomes: &[Outcome], local: &str) {
    let Some(local) = outcomes.iter().find(|outcome| outcome.name == local) else { return };
    let heads: Vec<_> = STEPS.iter().map(|(_, head)| *head).collect();
    let _ = writeln!(text, "\n| Times as long as {} | {} |\n|---|{}", local.name, heads.join(" | "), "---|".repeat(heads.len()));
    for outcome in outcomes.iter().filter(|outcome| outcome.name != local.name) {
        let cells = STEPS.map(|(step, _)| {
            let key = format!("{step}: wall_s");
            let times = outcome.figures.get(&key).zip(local.figures.get(&key)).map(|(value, beside)| value / beside);
            times.map_or_else(|| "-".into(), figure)
        });
        let _ = writeln!(text, "| {} | {} |", outcome.label(), cells.join(" | "));
    }
}

/// The same for programs.
pub fn json(outcomes: &[Outcome], about: Value, missing: &[String]) -> Value {
    let contenders = outcomes.iter().map(|outcome| {
        json!({
            "name": outcome.name, "version": outcome.version, "settings": outcome.settings, "one_way_delay_ms": outcome.delay_ms,
            "figures": outcome.figures, "restored": outcome.restored,
            "failures": outcome.failures.iter().map(|(step, said)| json!({"step": step, "error": said})).collect::<Vec<_>>(),
        })
    });
    json!({"about": about, "missing": missing, "contenders": contenders.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &str, delay_ms: u64, first_s: f64) -> Outcome {
        let figures = [("first: wall_s", first_s), ("first: wire_bytes", 2e6), ("server: peak_bytes", 5e6)];
        Outcome {
            name: name.into(),
            settings: "plain".into(),
            delay_ms,
            figures: figures.map(|(key, value)| (key.to_owned(), value)).into(),
            failures: vec![("restore".into(), "no `room`".into())],
            ..Outcome::default()
        }
    }

    #[test]
    fn each_delay_has_its_tables_and_ratios() {
        let outcomes = [outcome("local", 0, 2.0), outcome("far", 0, 3.0), outcome("local", 25, 2.0), outcome("far", 25, 5.0)];
        let text = markdown(&outcomes, "about", &["kopia".into()], "local");
        assert_eq!(text.matches("\n## Round trip of ").count(), 2, "{text}");
        assert!(text.contains("## Round trip of 50 ms"), "{text}");
        assert!(text.contains("not installed: kopia."), "{text}");
        assert!(text.contains("| far (plain) | 1.50 | - | - | - | - |"), "{text}");
        assert!(text.contains("| far (plain) | 2.50 | - | - | - | - |"), "{text}");
        assert!(text.contains("| far (plain) | 3.00 | - | - | **failed** | - |"), "{text}");
        assert!(text.contains("| far (plain) | - | - | - | - | - | 5.00 |"), "{text}");
        assert!(text.contains("far (plain): restore **failed**: `no 'room'`"), "{text}");
        assert_eq!(json(&outcomes, Value::Null, &[])["contenders"][3]["figures"]["first: wall_s"], 5.0);
    }
}
