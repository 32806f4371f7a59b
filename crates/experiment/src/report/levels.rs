//! Levels of sorted tables beside the formulae of LevelStore (M2.9).

use super::figures::{NOTHING, number, round_number, size};
use crate::results::{Levels, Measured, Quantity, Results};
use maud::{Markup, html};

/// What the formulae say of levels of which the last one is reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Formulae {
    /// `(S^L - 1) / (S - 1) N M` for each partition: what fits into these levels, bytes.
    pub capacity_bytes: f64,
    /// Bytes written for each new one when all data is on the last level: its table, and `S / 2` for each level below.
    /// A level is between empty and full when a table comes from above, so a byte is written again half as often as
    /// the paper says.
    pub expected: f64,
    /// Bytes written for each new one, at most: its table, and `S` for each level below.
    pub written: f64,
    /// Bytes that compaction reads for each new one, at most: `S + 1` for each level below.
    pub read: f64,
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
            expected: 1.0 + ratio / 2.0 * below,
            written: 1.0 + ratio * below,
            read: (ratio + 1.0) * below,
            moved: 1.0 + (2.0 * ratio + 1.0) * below,
        })
    }
}

/// Returns how the levels of each variant stood at the end of its first repetition, and what was done to them.
pub fn levels(run: &Results) -> Markup {
    html! {
        @for variant in &run.variants {
            @if let Some(repetition) = variant.repetitions.first() {
                @if let Some((last, levels)) = repetition.last().and_then(|last| Some((last, last.levels.as_ref()?))) {
                    h3 { "Levels of " (variant.name) }
                    (table(levels))
                    (beside(last, levels))
                    (by_generation(repetition))
                }
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
    let by = |bytes: u64, of: u64| if of > 0 { number(bytes as f64 / of as f64) } else { NOTHING.to_owned() };
    let by_new = |bytes: u64| by(bytes, total.stored_new_bytes);
    let work = &levels.total_work;
    html! {
        table.about {
            tr { th { "Capacity of these levels" } td { (size(formulae.capacity_bytes)) " (with S = " (levels.ratio) ", L = " (levels.levels.len()) ")" } }
            @if let Some(amplification) = levels.write_amplification() {
                tr {
                    th { "Write amplification" }
                    td {
                        (number(amplification)) ": bytes flushed and written by compaction, by those flushed. By the formula about "
                        (number(formulae.expected)) " (S / 2 for each level below), at most " (number(formulae.written)) " (S)"
                    }
                }
                tr {
                    th { "Read by compaction for each byte flushed" }
                    td { (by(work.merge_read_bytes, work.flushed_bytes)) ", by the formula at most " (number(formulae.read)) }
                }
            } @else {
                tr { th { "Written for each new byte" } td { (by_new(total.chunks_written_bytes)) ", by the formula at most " (number(formulae.written)) } }
            }
            tr {
                th { "Written and read for each new byte" }
                td { (by_new(total.chunks_written_bytes + total.chunks_read_bytes)) ", by the formula at most " (number(formulae.moved)) "; reads of clients are in it" }
            }
            @if let Some(amplification) = levels.space_amplification() {
                tr { th { "Space amplification" } td { (number(amplification)) ": bytes of tables, by those of live chunks when they were flushed" } }
            }
            tr { th { "On disk for each byte of chunks" } td { (or_nothing(measured.figure(Quantity::SpaceAmplification, None))) } }
            @if let Some(reads) = work.reads_per_get() {
                tr { th { "Reads for each chunk asked for" } td { (number(reads)) ": pages of keys and frames, all generations together" } }
            }
        }
    }
}

/// Returns what was done to levels, a row for each generation. Amplifications are those up to its end.
fn by_generation(repetition: &[Measured]) -> Markup {
    let known = |measured: &'_ Measured| measured.levels.as_ref().is_some_and(|levels| levels.total_work.flushed_bytes > 0);
    if !repetition.iter().any(known) {
        return html! {};
    }
    html! {
        div.wide {
            table {
                thead {
                    tr {
                        th { "gen." } th { "flushed" } th { "compaction" small { "read" } } th { "compaction" small { "wrote" } }
                        th { "write amplification" small { "so far" } } th { "the formula" small { "about" } } th { "the formula" small { "at most" } }
                        th { "space amplification" small { "tables : live chunks" } } th { "chunks" small { "asked for" } } th { "reads" small { "for each of them" } }
                    }
                }
                tbody {
                    @for measured in repetition {
                        @if let Some(levels) = &measured.levels {
                            @let formulae = Formulae::of(levels);
                            tr {
                                td { (measured.generation) }
                                td { (size(levels.work.flushed_bytes as f64)) }
                                td { (size(levels.work.merge_read_bytes as f64)) }
                                td { (size(levels.work.merge_written_bytes as f64)) }
                                td { (or_nothing(levels.write_amplification())) }
                                td { (or_nothing(formulae.map(|formulae| formulae.expected))) }
                                td { (or_nothing(formulae.map(|formulae| formulae.written))) }
                                td { (or_nothing(levels.space_amplification())) }
                                td { (round_number(levels.work.gets as f64)) }
                                td { (or_nothing(levels.work.reads_per_get())) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn or_nothing(figure: Option<f64>) -> String {
    figure.map_or_else(|| NOTHING.to_owned(), number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Level, LevelsWork, Total};

    fn three_levels() -> Levels {
        let level = |capacity_bytes| Level { tables: 5, capacity_bytes, ..Level::default() };
        Levels { ratio: 10, levels: vec![level(40), level(400), level(4000), Level::default()], ..Levels::default() }
    }

    #[test]
    fn m2_9_formulae_count_the_levels_that_are_reached() {
        let formulae = Formulae { capacity_bytes: 4440.0, expected: 11.0, written: 21.0, read: 22.0, moved: 43.0 };
        assert_eq!(Formulae::of(&three_levels()), Some(formulae));
        assert_eq!(Formulae::of(&Levels { ratio: 10, levels: vec![Level::default()], ..Levels::default() }), None);
    }

    #[test]
    fn m2_9_write_amplification_stands_beside_what_the_formula_says() {
        let work =
            |gets| LevelsWork { flushed_bytes: 100, merge_read_bytes: 800, merge_written_bytes: 745, gets, page_reads: 3, frame_reads: 4 };
        let mut levels = Levels { live_bytes: 64, work: work(14), total_work: work(28), ..three_levels() };
        levels.levels[0].stored_bytes = 80;
        let measured = Measured { generation: 7, levels: Some(levels.clone()), ..Measured::default() };
        let page = beside(&measured, &levels).into_string();
        for said in [
            "8.45: bytes flushed and written by compaction",
            "about 11.0 (S / 2 for each level below), at most 21.0 (S)",
            "8.00, by the formula at most 22.0",
            "1.25: bytes of tables",
            "0.250: pages of keys and frames",
        ] {
            assert!(page.contains(said), "{said}: {page}");
        }
        let page = by_generation(&[measured]).into_string();
        let row = "<td>7</td><td>100B</td><td>800B</td><td>745B</td><td>8.45</td><td>11.0</td><td>21.0</td><td>1.25</td><td>14</td><td>0.500</td>";
        assert!(page.contains(row), "{page}");
    }

    #[test]
    fn files_without_the_work_of_levels_have_what_was_written_to_them() {
        let total = Total { stored_new_bytes: 100, chunks_written_bytes: 750, chunks_read_bytes: 500, ..Total::default() };
        let page = beside(&Measured { total, ..Measured::default() }, &three_levels()).into_string();
        for said in ["7.50, by the formula at most 21", "12.5, by the formula at most 43", "S = 10"] {
            assert!(page.contains(said), "{said}: {page}");
        }
        assert!(!page.contains("amplification"), "{page}");
        let old = Measured { levels: Some(three_levels()), ..Measured::default() };
        assert_eq!(by_generation(&[old]).into_string(), "");
    }
}
