//! Lengths of runs: distributions given as quantiles, drawn by inverting them. The numbers are data files of this
//! crate. Its README names the source.

use crate::state::{State, Trace};
use std::sync::OnceLock;

/// Runs from this quantile on are dropped, as in the papers' generator. The longest are tens of GB.
pub(crate) const CUT: f64 = 0.999;

const SECOND: &str = include_str!("../data/run-length-quantiles.csv");
const FIRST: &str = include_str!("../data/gen1-reconstructed-quantiles.csv");

/// A distribution of lengths in bytes.
#[derive(Debug)]
pub(crate) struct Lengths {
    /// Pairs of a probability and the length that this share of runs does not exceed. Both rise.
    points: Vec<(f64, f64)>,
    /// Number of lengths in the list behind the quantiles, after the cut. `None`: the list is reconstructed.
    list_length: Option<u32>,
}

/// A length, and the difference at this point between two adjacent items of the list.
pub(crate) struct Drawn {
    pub(crate) length: f64,
    pub(crate) step: f64,
}

impl Lengths {
    fn read(table: &str, column: &str, list_length: Option<u32>) -> Lengths {
        const WHOLE: &str = "the crate's own data files are whole";
        let mut lines = table.lines();
        let heads = lines.next().expect(WHOLE).split(',');
        let column = heads.into_iter().position(|head| head == column).expect(WHOLE);
        let point = |line: &str| {
            let mut cells = line.split(',');
            let probability = cells.next().expect(WHOLE).parse().expect(WHOLE);
            (probability, cells.nth(column - 1).expect(WHOLE).parse().expect(WHOLE))
        };
        Lengths { points: lines.map(point).collect(), list_length }
    }

    /// Returns the length that a share of `probability` of all runs, before the cut, does not exceed.
    #[cfg(test)]
    pub(crate) fn quantile(&self, probability: f64) -> f64 {
        self.at(probability).0
    }

    /// Returns the quantile and its slope.
    fn at(&self, probability: f64) -> (f64, f64) {
        let above = self.points.partition_point(|point| point.0 <= probability);
        let Some(high) = self.points.get(above) else {
            return (self.points.last().map_or(0.0, |point| point.1), 0.0);
        };
        // Below the first point, nothing else is known.
        let Some(low) = above.checked_sub(1).map(|below| self.points[below]) else {
            return (high.1, 0.0);
        };
        let slope = (high.1 - low.1) / (high.0 - low.0);
        (low.1 + slope * (probability - low.0), slope)
    }

    /// Returns the length for `share`, from 0 to 1, of the distribution after the cut.
    pub(crate) fn draw(&self, share: f64) -> Drawn {
        let (length, slope) = self.at(share * CUT);
        Drawn { length, step: self.list_length.map_or(0.0, |items| slope * CUT / f64::from(items)) }
    }

    /// Returns the mean after the cut, in bytes.
    #[cfg(test)]
    pub(crate) fn mean(&self) -> f64 {
        let first = self.points[0];
        let mut sum = first.0 * first.1;
        for pair in self.points.windows(2) {
            let end = pair[1].0.min(CUT);
            if end > pair[0].0 {
                sum += (end - pair[0].0) * (pair[0].1 + self.quantile(end)) / 2.0;
            }
        }
        sum / CUT
    }
}

/// The distributions that a generation draws from.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) unique: Lengths,
    pub(crate) internal: Lengths,
    pub(crate) temporal: Lengths,
    pub(crate) deleted: Lengths,
    pub(crate) kept: Lengths,
}

impl Tables {
    pub(crate) fn of(&self, state: State) -> &Lengths {
        match state {
            State::Unique => &self.unique,
            State::Internal => &self.internal,
            State::Temporal => &self.temporal,
        }
    }
}

/// Returns the run lengths of second and later generations.
pub(crate) fn second(trace: Trace) -> &'static Tables {
    static UPB_6: OnceLock<Tables> = OnceLock::new();
    static UPB_21_S: OnceLock<Tables> = OnceLock::new();
    let (table, name, items) = match trace {
        // n_after_cut of run-length-summary.csv: unique, internal, temporal, deleted, kept.
        Trace::Upb6 => (&UPB_6, "upb-6-rabin8", [27006, 6860, 24360, 23778, 23778]),
        Trace::Upb21S => (&UPB_21_S, "upb-21-s-rabin8", [31787, 5344, 28374, 24474, 24474]),
    };
    table.get_or_init(|| {
        let read = |kind: &str, items| Lengths::read(SECOND, &format!("{name}-{kind}"), Some(items));
        Tables {
            unique: read("temporal-unique", items[0]),
            internal: read("internal-redundant", items[1]),
            temporal: read("temporal-redundant", items[2]),
            deleted: read("temporal-deleted", items[3]),
            kept: read("temporal-nondeleted", items[4]),
        }
    })
}

/// Returns the run lengths of a first generation: unique runs and internally redundant ones. They are reconstructed.
pub(crate) fn first() -> &'static [Lengths; 2] {
    static FIRST_GENERATION: OnceLock<[Lengths; 2]> = OnceLock::new();
    FIRST_GENERATION.get_or_init(|| [Lengths::read(FIRST, "unique_bytes", None), Lengths::read(FIRST, "redundant_bytes", None)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> impl Iterator<Item = Vec<&'static str>> {
        include_str!("../data/run-length-summary.csv").lines().skip(1).map(|line| line.split(',').collect())
    }

    fn named(name: &str) -> &'static Lengths {
        let tables = second(if name.starts_with("upb-6") { Trace::Upb6 } else { Trace::Upb21S });
        match name.rsplit_once("rabin8-").unwrap().1 {
            "temporal-unique" => &tables.unique,
            "internal-redundant" => &tables.internal,
            "temporal-redundant" => &tables.temporal,
            "temporal-deleted" => &tables.deleted,
            "temporal-nondeleted" => &tables.kept,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn all_lists_are_read_and_agree_with_their_summaries() {
        assert_eq!(summary().count(), 10);
        for line in summary() {
            let lengths = named(line[0]);
            let number = |column: usize| line[column].parse::<f64>().unwrap();
            assert_eq!(lengths.list_length.map(f64::from), Some(number(12)), "{}", line[0]);
            for (column, probability) in [(4, 0.0), (5, 0.25), (6, 0.5), (7, 0.75), (8, 0.9), (9, 0.99), (10, 0.999), (14, 0.999)] {
                let (quantile, expected) = (lengths.quantile(probability), number(column));
                // The list ends before the quantile at which it is cut, and there are several definitions of a list's
                // quantiles.
                let allowed = if column == 14 { 0.13 } else { 0.01 };
                assert!((quantile / expected - 1.0).abs() < allowed, "{} {probability}: {quantile}, {expected}", line[0]);
            }
            // A thousand points stand for tens of thousands.
            assert!((lengths.mean() / number(13) - 1.0).abs() < 0.01, "{}: {}", line[0], lengths.mean());
        }
    }

    #[test]
    fn lengths_rise_and_end_at_the_cut() {
        for trace in [Trace::Upb6, Trace::Upb21S] {
            let tables = second(trace);
            for lengths in [&tables.unique, &tables.internal, &tables.temporal, &tables.deleted, &tables.kept].into_iter().chain(first()) {
                let drawn: Vec<f64> = (0..100_000).map(|at| lengths.draw(f64::from(at) / 1e5).length).collect();
                assert!(drawn.is_sorted());
                assert!(drawn[0] >= 1.0 && drawn[99_999] < lengths.quantile(CUT));
            }
        }
    }
}
