//! The one table: what was measured, beside its aim and the floor of the same run; as text and as JSON.

use serde_json::{Value, json};

/// What a figure should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aim {
    /// At most this.
    Below(f64),
    /// At least this.
    Above(f64),
}

impl Aim {
    fn is_met(self, value: f64) -> bool {
        match self {
            Aim::Below(limit) => value <= limit,
            Aim::Above(limit) => value >= limit,
        }
    }

    fn text(self) -> String {
        match self {
            Aim::Below(limit) => format!("<= {}", figure(limit)),
            Aim::Above(limit) => format!(">= {}", figure(limit)),
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug)]
struct Row {
    group: String,
    name: String,
    value: f64,
    unit: &'static str,
    aim: Option<Aim>,
    floor: Option<(String, f64)>,
}

/// All figures of a run.
#[derive(Debug, Default)]
pub struct Report {
    group: String,
    rows: Vec<Row>,
}

impl Report {
    /// The rows that follow belong to a new group.
    pub fn group(&mut self, name: impl Into<String>) {
        self.group = name.into();
        eprintln!("== {}", self.group);
    }

    /// A figure without aim or floor.
    pub fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        self.add_beside(name, value, unit, None, None);
    }

    /// A figure with an aim, a floor (its name and figure, same unit), or both. It is also printed at once, for people
    /// who wait.
    pub fn add_beside(&mut self, name: impl Into<String>, value: f64, unit: &'static str, aim: Option<Aim>, floor: Option<(&str, f64)>) {
        let row =
            Row { group: self.group.clone(), name: name.into(), value, unit, aim, floor: floor.map(|(name, value)| (name.into(), value)) };
        eprintln!("{:<46}{:>12} {}", row.name, figure(value), unit);
        self.rows.push(row);
    }

    /// The table in Markdown.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut group = "";
        for row in &self.rows {
            if row.group != group {
                group = &row.group;
                text += &format!("\n### {group}\n| figure | measured | unit | aim | floor of the same run |\n|---|---|---|---|---|\n");
            }
            let aim = row.aim.map_or_else(String::new, |aim| aim.text() + if aim.is_met(row.value) { "" } else { " **missed**" });
            let floor = row.floor.as_ref().map_or_else(String::new, |(name, value)| format!("{} ({name})", figure(*value)));
            text += &format!("| {} | {} | {} | {aim} | {floor} |\n", row.name, figure(row.value), row.unit);
        }
        text
    }

    /// The same for programs; `about` says on what and how it was measured.
    pub fn json(&self, about: Value) -> Value {
        let rows = self.rows.iter().map(|row| {
            let aim = row.aim.map(|aim| match aim {
                Aim::Below(limit) => json!({"at_most": limit, "met": aim.is_met(row.value)}),
                Aim::Above(limit) => json!({"at_least": limit, "met": aim.is_met(row.value)}),
            });
            let floor = row.floor.as_ref().map(|(name, value)| json!({"name": name, "value": value}));
            json!({"group": row.group, "name": row.name, "value": row.value, "unit": row.unit, "aim": aim, "floor": floor})
        });
        json!({"about": about, "figures": rows.collect::<Vec<_>>()})
    }
}

/// Three significant digits, no exponent.
pub fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The middle one of some figures; of an even number, the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn a_missed_aim_is_said() {
        let mut report = Report::default();
        report.group("g");
        report.add_beside("slow", 2.0, "s", Some(Aim::Below(1.0)), Some(("disk", 0.5)));
        report.add_beside("fast", 2.0, "GB/s", Some(Aim::Above(1.0)), None);
        let text = report.text();
        assert!(text.contains("| slow | 2.00 | s | <= 1.00 **missed** | 0.500 (disk) |"), "{text}");
        assert!(text.contains("| fast | 2.00 | GB/s | >= 1.00 |  |"), "{text}");
        assert_eq!(report.json(Value::Null)["figures"][0]["aim"]["met"], false);
    }
}
