//! The course of throughput: a line for each repetition and generation of a variant.

use super::super::figures::{bounded, round_number};
use super::*;

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The generation.
    pub generation: u32,
    /// MB/s per time span, from the first write on.
    pub mb_s: Vec<f64>,
    /// Length of a span, seconds.
    pub span_s: f64,
}

const HEIGHT: u32 = 170;
/// Most points that can be told apart. With more, neighbours are merged.
const MOST_POINTS: usize = 160;

impl Line {
    /// Returns the points of the line: the middle of each span, in seconds, and MB/s.
    fn points(&self) -> Vec<(f64, f64)> {
        let together = self.mb_s.len().div_ceil(MOST_POINTS).max(1);
        let span = bounded(self.span_s).unwrap_or(0.0);
        let spans = self.mb_s.chunks(together).enumerate();
        let point = |(at, values): (usize, &[f64])| {
            let sum: f64 = values.iter().filter_map(|value| bounded(*value)).sum();
            (span * ((at * together) as f64 + values.len() as f64 / 2.0), sum / values.len() as f64)
        };
        spans.map(point).collect()
    }
}

/// Returns the ends of both axes.
fn ends(lines: &[Line]) -> (f64, f64) {
    let greatest = |one: (f64, f64), other: (f64, f64)| (one.0.max(other.0), one.1.max(other.1));
    let (seconds, mb_s) = lines.iter().flat_map(Line::points).fold((0.0, 0.0), greatest);
    (if seconds > LEAST { seconds * 1.02 } else { 1.0 }, if mb_s > LEAST { mb_s * 1.05 } else { 1.0 })
}

/// Draws lines. `said` describes the picture for screen readers.
pub fn course(lines: &[Line], said: &str) -> String {
    let (seconds, mb_s) = ends(lines);
    picture(HEIGHT, said, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_top(8)
            .margin_right(BEHIND)
            .set_label_area_size(LabelAreaPosition::Left, 58)
            .set_label_area_size(LabelAreaPosition::Bottom, AXIS)
            .build_cartesian_2d(0.0..seconds, 0.0..mb_s)?;
        let small = letters(PALE.day, HPos::Center, VPos::Top);
        chart
            .configure_mesh()
            .x_labels(6)
            .y_labels(5)
            .x_label_formatter(&|value| round_number(*value))
            .y_label_formatter(&|value| round_number(*value))
            .x_label_style(small.clone())
            .y_label_style(letters(PALE.day, HPos::Right, VPos::Center))
            .x_desc("time since the first write, s")
            .y_desc("MB/s")
            .axis_desc_style(small)
            .axis_style(PALE.day)
            .bold_line_style(GRID.day)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for line in lines {
            let style = ShapeStyle::from(generation_shade(line.generation).day).stroke_width(2);
            let mut points = line.points();
            // A run that ends within one span still gets a line.
            if let [(_, only)] = points[..] {
                points = vec![(0.0, only), (bounded(line.span_s).unwrap_or(0.0), only)];
            }
            chart.draw_series(LineSeries::new(points, style))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_courses_keep_their_mean_and_their_end() {
        let line = Line { generation: 1, mb_s: (0..10_000).map(f64::from).collect(), span_s: 0.5 };
        let points = line.points();
        assert!(points.len() <= MOST_POINTS);
        let (seconds, mb_s) = ends(&[line]);
        assert!((4_900.0..5_200.0).contains(&seconds) && mb_s > 9_900.0);
    }

    #[test]
    fn courses_that_are_none_are_drawn_as_nothing() {
        for mb_s in [vec![], vec![f64::NAN, f64::INFINITY, -1.0], vec![0.0]] {
            let lines = [Line { generation: 7, mb_s, span_s: f64::INFINITY }];
            let axes = ends(&lines);
            assert!(axes.0.is_finite() && axes.1 > 0.0);
            assert!(course(&lines, "none").starts_with("<svg "));
        }
    }
}
