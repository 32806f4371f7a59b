//! Levels of sorted tables beside the formulae of LevelStore (M2.9).

use super::figures::{NOTHING, number, round_number, size};
use crate::results::{Levels, Measured, Quantity, Results, Variant};
use maud::{Markup, html};

/// What the formulae say of levels of which the last one is reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Formulae {
    /// `(S^L - 1) / (S - 1) N M` for each partition: what fits into these levels, bytes.
    pub capacity_bytes: f64,
    /// Bytes written for each new one, at most: its table, and `S` for each level below.
    pub written: f64,
    /// Bytes written and read for each new one, at most: its table, and `2S + 1` for each level below.
    pub moved: f64,
}

impl Formulae {
    /// Returns what the formulae say. `None`: there are no chunks in levels.
    pub fn of(levels: &Levels) -> Option<Formulae> {
        let last = levels.levels.iter().rposition(|level| level.tables > 0)?;
        let (ratio, below) = (f64::from(levels.ratio), last as f64);
        Some(Formulae {
            capacity_bytes: levels.levels[..=last].iter().map(|level| level.capacity_bytes as f64).sum(),
            written: 1.0 + ratio * below,
            moved: 1.0 + (2.0 * ratio + 1.0) * below,
        })
    }
}

/// Returns how the levels of each variant stood at the end of its first repetition.
pub fn levels(run: &Results) -> Markup {
    let last = |variant: &Variant| -> Option<(String, Measured)> {
        let measured = variant.repetitions.first()?.last().filter(|measured| measured.levels.is_some())?;
        Some((variant.name.clone(), measured.clone()))
    };
    let rows: Vec<(String, Measured)> = run.variants.iter().filter_map(last).collect();
    html! {
        @for (name, measured) in &rows {
            @if let Some(levels) = &measured.levels {
                h3 { "Levels of " (name) }
                (table(levels))
                (beside(measured, levels))
            }
        }
    }
}

fn table(levels: &Levels) -> Markup {
    html! {
        div.wide {
            table {
                thead { tr { th { "level" } th { "tables" } th { "chunks" } th { "tombstones" } th { "data" } th { "on disk" } th { "compacted from" } } }
                tbody {
                    @for (at, level) in levels.levels.iter().enumerate() {
                        tr {
                            td { (at) } td { (round_number(level.tables as f64)) } td { (round_number(level.chunks as f64)) }
                            td { (round_number(level.tombstones as f64)) } td { (size(level.raw_bytes as f64)) }
                            td { (size(level.stored_bytes as f64)) } td { (size(level.capacity_bytes as f64)) }
                        }
                    }
                }
            }
        }
    }
}

/// Returns what was measured, beside the formulae.
fn beside(measured: &Measured, levels: &Levels) -> Markup {
    let Some(formulae) = Formulae::of(levels) else { return html! {} };
    let total = &measured.total;
    let by_new =
        |bytes: u64| if total.stored_new_bytes > 0 { number(bytes as f64 / total.stored_new_bytes as f64) } else { NOTHING.to_owned() };
    let space = measured.figure(Quantity::SpaceAmplification, None).map_or_else(|| NOTHING.to_owned(), number);
    html! {
        table.about {
            tr { th { "Capacity of these levels" } td { (size(formulae.capacity_bytes)) " (with S = " (levels.ratio) ", L = " (levels.levels.len()) ")" } }
            tr { th { "Written for each new byte" } td { (by_new(total.chunks_written_bytes)) ", by the formula at most " (number(formulae.written)) } }
            tr {
                th { "Written and read for each new byte" }
                td { (by_new(total.chunks_written_bytes + total.chunks_read_bytes)) ", by the formula at most " (number(formulae.moved)) "; reads of clients are in it" }
            }
            tr { th { "On disk for each byte of chunks" } td { (space) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Level, Total};

    fn three_levels() -> Levels {
        let level = |capacity_bytes| Level { tables: 5, capacity_bytes, ..Level::default() };
        Levels { ratio: 10, levels: vec![level(40), level(400), level(4000), Level::default()] }
    }

    #[test]
    fn m2_9_formulae_count_the_levels_that_are_reached() {
        assert_eq!(Formulae::of(&three_levels()), Some(Formulae { capacity_bytes: 4440.0, written: 21.0, moved: 43.0 }));
        assert_eq!(Formulae::of(&Levels { ratio: 10, levels: vec![Level::default()] }), None);
    }

    #[test]
    fn what_was_measured_stands_beside_the_formulae() {
        let total = Total { stored_new_bytes: 100, chunks_written_bytes: 750, chunks_read_bytes: 500, ..Total::default() };
        let page = beside(&Measured { total, ..Measured::default() }, &three_levels()).into_string();
        for said in ["7.50, by the formula at most 21", "12.5, by the formula at most 43", "S = 10"] {
            assert!(page.contains(said), "{said}: {page}");
        }
    }
}
