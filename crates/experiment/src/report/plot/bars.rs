//! Bars from zero: a row for each variant, one bar for each generation, with the 95 % interval and the figure after it.

use super::super::figures::{bounded, figure, round_number};
use super::*;

/// One bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Its generation.
    pub generation: u32,
    /// Its length.
    pub value: f64,
    /// Half of its interval.
    pub plus_minus: Option<f64>,
}

/// The bars of one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The variant, or another system.
    pub name: String,
    /// The bars, in the order of generations.
    pub bars: Vec<Bar>,
}

/// Width for a figure after the longest bar.
const FIGURES: u32 = 80;

/// Draws rows. `axis` is the quantity with its unit; `said` describes the picture for screen readers.
pub fn bars(rows: &[Row], axis: &str, said: &str) -> String {
    let places = Rows::new(rows.iter().map(|row| (row.bars.len(), lines_of(&row.name).len())));
    let ends = rows.iter().flat_map(|row| &row.bars).filter_map(|bar| bounded(bar.value + bar.plus_minus.unwrap_or(0.0)));
    let longest = ends.fold(0.0, f64::max);
    let width = WIDTH - NAMES - BEHIND;
    // The scale extends beyond the longest bar, to leave space for its figure.
    let end = if longest > LEAST { longest * f64::from(width) / f64::from(width - FIGURES) } else { 1.0 };
    picture(places.height as u32 + AXIS, said, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_right(BEHIND)
            .set_label_area_size(LabelAreaPosition::Left, NAMES)
            .set_label_area_size(LabelAreaPosition::Bottom, AXIS)
            .build_cartesian_2d(0.0..end, places.height..0)?;
        let small = letters(PALE.day, HPos::Center, VPos::Top);
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .x_labels(5)
            .x_label_formatter(&|value| round_number(*value))
            .x_label_style(small.clone())
            .x_desc(axis)
            .axis_desc_style(small)
            .axis_style(PALE.day)
            .bold_line_style(GRID.day)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (row, top) in rows.iter().zip(&places.tops) {
            name_in_front(area, &row.name, top + (BAR * row.bars.len().max(1) as i32 - 2) / 2)?;
            for (at, bar) in row.bars.iter().enumerate() {
                let top = top + BAR * at as i32;
                draw_bar(&mut chart, bar, top)?;
            }
        }
        Ok(())
    })
}

type Chart<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordi32>>;

fn draw_bar(chart: &mut Chart<'_, '_>, bar: &Bar, top: i32) -> Drawn {
    let (bottom, middle) = (top + BAR - 2, top + (BAR - 2) / 2);
    let Some(value) = bounded(bar.value) else { return Ok(()) };
    let colour = generation_shade(bar.generation).day;
    chart.draw_series([Rectangle::new([(0.0, top), (value, bottom)], colour.filled())])?;
    let mut end = value;
    if let Some(half) = bar.plus_minus.and_then(bounded) {
        let low = (value - half).max(0.0);
        end = value + half;
        let ink = ShapeStyle::from(INK.day).stroke_width(1);
        let lines = [[(low, middle), (end, middle)], [(low, middle - 3), (low, middle + 3)], [(end, middle - 3), (end, middle + 3)]];
        chart.draw_series(lines.map(|line| PathElement::new(line, ink)))?;
    }
    let text =
        EmptyElement::at((end, middle)) + Text::new(figure(bar.value, bar.plus_minus), (5, 0), letters(INK.day, HPos::Left, VPos::Center));
    chart.draw_series([text])?;
    Ok(())
}
