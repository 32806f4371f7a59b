//! Pictures: SVG drawn with plotters, small enough to read on a phone. The page's style sheet replaces their colours in
//! dark mode.
//!
//! A thing has the same colour in every picture: each generation, and each group of components. Colour-blind readers
//! can tell both sets apart: the colours of Okabe and Ito, and the muted scheme of Paul Tol.

pub mod bars;
pub mod course;
pub mod shares;

use crate::results::GROUPS;
use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fmt::Write;

/// Width of every picture, in its own pixels: what a phone shows without shrinking the text too far.
pub const WIDTH: u32 = 440;

/// Width before bars, for names.
const NAMES: u32 = 132;
/// Height of an axis with its labels and title.
const AXIS: u32 = 40;
/// Font size.
const LETTERS: f64 = 12.0;
/// Letters of a name that fit into a line.
const NAME_LETTERS: usize = 17;
/// Most lines of a name. A longer name is cut.
const NAME_LINES: usize = 3;

/// A colour, in light and in dark mode.
struct Shade {
    day: RGBColor,
    night: &'static str,
}

const INK: Shade = Shade { day: RGBColor(0x22, 0x26, 0x2A), night: "#e6e8ea" };
const GRID: Shade = Shade { day: RGBColor(0xD5, 0xD9, 0xDD), night: "#3a4046" };
const PALE: Shade = Shade { day: RGBColor(0x5B, 0x63, 0x6B), night: "#a4acb4" };

/// Colours of the generations from the first on. A sixth generation repeats the first colour.
const GENERATIONS: [Shade; 5] = [
    Shade { day: RGBColor(0x00, 0x72, 0xB2), night: "#3d9be0" },
    Shade { day: RGBColor(0xE6, 0x9F, 0x00), night: "#f0b429" },
    Shade { day: RGBColor(0x00, 0x9E, 0x73), night: "#1fbf92" },
    Shade { day: RGBColor(0xCC, 0x79, 0xA7), night: "#e08fbd" },
    Shade { day: RGBColor(0xD5, 0x5E, 0x00), night: "#f07f2e" },
];

/// Colours of the component groups, in the order of [`GROUPS`], and whether letters on them are white.
const COMPONENTS: [(Shade, bool); GROUPS.len()] = [
    (Shade { day: RGBColor(0xBB, 0xBB, 0xBB), night: "#bbbbbb" }, false),
    (Shade { day: RGBColor(0x88, 0xCC, 0xEE), night: "#88ccee" }, false),
    (Shade { day: RGBColor(0x44, 0xAA, 0x99), night: "#44aa99" }, false),
    (Shade { day: RGBColor(0x88, 0x22, 0x55), night: "#a8306b" }, true),
    (Shade { day: RGBColor(0xCC, 0x66, 0x77), night: "#cc6677" }, false),
    (Shade { day: RGBColor(0xDD, 0xCC, 0x77), night: "#ddcc77" }, false),
    (Shade { day: RGBColor(0x11, 0x77, 0x33), night: "#1c9148" }, true),
    (Shade { day: RGBColor(0x33, 0x22, 0x88), night: "#6a5acd" }, true),
    (Shade { day: RGBColor(0x99, 0x99, 0x33), night: "#999933" }, false),
];

/// The smallest value that is not zero: no axis can be divided more finely.
const LEAST: f64 = 1e-9;

/// The result of drawing into a text.
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

fn all_shades() -> impl Iterator<Item = &'static Shade> {
    [&INK, &GRID, &PALE].into_iter().chain(&GENERATIONS).chain(COMPONENTS.iter().map(|(shade, _)| shade))
}

fn generation_shade(generation: u32) -> &'static Shade {
    &GENERATIONS[(generation.max(1) as usize - 1) % GENERATIONS.len()]
}

fn hex(colour: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
}

/// Returns the colour of a generation, as a class of the style sheet.
pub fn generation_class(generation: u32) -> String {
    format!("g{}", (generation.max(1) as usize - 1) % GENERATIONS.len() + 1)
}

/// Returns the colour of a group of components, as a class of the style sheet.
pub fn component_class(group: usize) -> String {
    format!("c{group}")
}

/// Returns the style sheets for the colours: the classes of legends, and (`night`) the replacement of each picture
/// colour in dark mode.
pub fn style_sheets() -> (String, String) {
    let (mut day, mut night) = (String::new(), String::new());
    for (at, shade) in GENERATIONS.iter().enumerate() {
        let _ = write!(day, ".g{}{{background:{}}}", at + 1, hex(shade.day));
        let _ = write!(night, ".g{}{{background:{}}}", at + 1, shade.night);
    }
    for (at, (shade, _)) in COMPONENTS.iter().enumerate() {
        let _ = write!(day, ".{}{{background:{}}}", component_class(at), hex(shade.day));
        let _ = write!(night, ".{}{{background:{}}}", component_class(at), shade.night);
    }
    for shade in all_shades() {
        let (from, to) = (hex(shade.day), shade.night);
        let _ = write!(night, "svg [fill=\"{from}\"]{{fill:{to}}}svg [stroke=\"{from}\"]{{stroke:{to}}}");
    }
    (day, night)
}

/// Returns a picture that `draw` fills. `said` describes it for screen readers.
fn picture(height: u32, said: &str, draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Drawn) -> String {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        draw(&area).and_then(|()| area.present()).expect("a text takes everything, and every area is larger than its margins");
    }
    // The text of an attribute; plotters cannot set it.
    let said = maud::html! { (said) }.into_string();
    svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{said}\" "), 1)
}

/// Returns a text style of a colour, anchored at a point.
fn letters(colour: RGBColor, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    // The backend divides by 1.24.
    ("sans-serif", LETTERS * 1.24).into_font().color(&colour).pos(Pos::new(horizontal, vertical))
}

/// Splits a name into lines that fit before bars.
fn lines_of(name: &str) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in name.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        while !word.is_empty() {
            let line = lines.last_mut().expect("it began with one");
            let used = line.chars().count();
            let room = NAME_LETTERS.saturating_sub(if used > 0 { used + 1 } else { 0 });
            if word.len() <= room || used == 0 {
                let rest = word.split_off(word.len().min(room));
                if used > 0 {
                    line.push(' ');
                }
                line.extend(word);
                word = rest;
            } else {
                lines.push(String::new());
            }
            if lines.len() > NAME_LINES {
                lines.truncate(NAME_LINES);
                lines[NAME_LINES - 1].push('…');
                return lines;
            }
        }
    }
    lines.retain(|line| !line.is_empty());
    lines
}

/// Writes a name before a row of bars whose middle is at `middle`.
fn name_in_front(area: &DrawingArea<SVGBackend<'_>, Shift>, name: &str, middle: i32) -> Drawn {
    let lines = lines_of(name);
    let height = LETTERS as i32 + 2;
    let first = middle - height * (lines.len() as i32 - 1) / 2;
    for (at, line) in lines.iter().enumerate() {
        let place = (NAMES as i32 - 8, first + height * at as i32);
        area.draw(&Text::new(line.clone(), place, letters(INK.day, HPos::Right, VPos::Center)))?;
    }
    Ok(())
}

/// Vertical places of rows of bars, in pixels from the top.
struct Rows {
    /// Top of each row's first bar.
    tops: Vec<i32>,
    /// Height of all rows.
    height: i32,
}

impl Rows {
    /// Places rows with these numbers of bars and of name lines.
    fn new(rows: impl Iterator<Item = (usize, usize)>) -> Rows {
        let (mut tops, mut at) = (Vec::new(), 6);
        for (bars, lines) in rows {
            let bars = BAR * bars.max(1) as i32;
            // A name of several lines may be taller than its bars.
            let room = bars.max((LETTERS as i32 + 2) * lines as i32);
            tops.push(at + (room - bars) / 2);
            at += room + 10;
        }
        Rows { tops, height: at }
    }
}

/// Height of a bar with the gap after it.
const BAR: i32 = 17;

/// Width after the end of an axis: half of its last label.
const BEHIND: u32 = 18;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_broken_between_words_or_cut() {
        assert_eq!(lines_of("4 SSDs"), ["4 SSDs"]);
        assert_eq!(lines_of("chunk index in RAM, block index on disks"), ["chunk index in", "RAM, block index", "on disks"]);
        assert_eq!(lines_of(""), [""; 0]);
        let long = lines_of(&"x".repeat(200));
        assert_eq!(long.len(), NAME_LINES);
        assert!(long[2].ends_with('…'));
        assert!(long.iter().all(|line| line.chars().count() <= NAME_LETTERS + 1));
    }

    #[test]
    fn no_colour_stands_for_two_things() {
        let mut all: Vec<_> = all_shades().map(|shade| hex(shade.day)).collect();
        all.sort();
        let before = all.len();
        all.dedup();
        assert_eq!(all.len(), before);
    }
}
