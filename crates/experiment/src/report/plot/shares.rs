//! Stacked bars: the share of each group of components in the time of the data path.

use super::super::figures::round_number;
use super::*;

/// One bar: its generation, and the percent of each of [`GROUPS`].
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// The generation.
    pub generation: u32,
    /// Percent, together 100.
    pub percent: [f64; GROUPS.len()],
}

/// The bars of one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The bars, in the order of generations.
    pub name: String,
    /// In the order of generations.
    pub shares: Vec<Share>,
}

/// Width before bars for the number of the generation.
const NUMBER: u32 = 14;
/// The smallest share that has space for its figure.
const READABLE_PERCENT: f64 = 9.0;

/// Draws rows. `said` describes the picture for screen readers.
pub fn shares(rows: &[Row], said: &str) -> String {
    let places = Rows::new(rows.iter().map(|row| (row.shares.len(), lines_of(&row.name).len())));
    picture(places.height as u32 + AXIS, said, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_right(BEHIND)
            .set_label_area_size(LabelAreaPosition::Left, NAMES + NUMBER)
            .set_label_area_size(LabelAreaPosition::Bottom, AXIS)
            .build_cartesian_2d(0.0..100.0, places.height..0)?;
        let small = letters(PALE.day, HPos::Center, VPos::Top);
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .x_labels(6)
            .x_label_formatter(&|value| round_number(*value))
            .x_label_style(small.clone())
            .x_desc("time of the data path, %")
            .axis_desc_style(small)
            .axis_style(PALE.day)
            .bold_line_style(GRID.day)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (row, top) in rows.iter().zip(&places.tops) {
            name_in_front(area, &row.name, top + (BAR * row.shares.len().max(1) as i32 - 2) / 2)?;
            for (at, share) in row.shares.iter().enumerate() {
                let (top, bottom) = (top + BAR * at as i32, top + BAR * at as i32 + BAR - 2);
                let middle = (top + bottom) / 2;
                let number = Text::new(share.generation.to_string(), (-6, 0), letters(PALE.day, HPos::Right, VPos::Center));
                chart.draw_series([EmptyElement::at((0.0, middle)) + number])?;
                let mut from = 0.0;
                for (percent, (shade, is_dark)) in share.percent.iter().zip(&COMPONENTS) {
                    let to = from + percent;
                    chart.draw_series([Rectangle::new([(from, top), (to, bottom)], shade.day.filled())])?;
                    if *percent >= READABLE_PERCENT {
                        let ink = if *is_dark { WHITE } else { BLACK };
                        let text = Text::new(format!("{percent:.0}"), (0, 0), letters(ink, HPos::Center, VPos::Center));
                        chart.draw_series([EmptyElement::at(((from + to) / 2.0, middle)) + text])?;
                    }
                    from = to;
                }
            }
        }
        Ok(())
    })
}
