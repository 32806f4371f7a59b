//! An SVG plot of chunk lengths.

use onefold_chunking::Sizes;
use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 280.0;
/// Room around the plot for labels.
const LEFT: f64 = 48.0;
const TOP: f64 = 14.0;
const BELOW: f64 = 40.0;
const RIGHT: f64 = 14.0;
/// Lengths are counted in steps of this fraction of the maximum.
const STEPS: usize = 64;
const COLOURS: [&str; 3] = ["#1f6fb4", "#d9730d", "#6a6a6a"];

/// Draws one line per name, from the lengths of its chunks.
pub fn lengths(lines: &[(&str, Vec<usize>)], sizes: Sizes) -> String {
    let shares: Vec<Vec<f64>> = lines.iter().map(|(_, lengths)| histogram(lengths, sizes.max)).collect();
    let most = shares.iter().flatten().copied().fold(1.0, f64::max).ceil();
    let x = |step: f64| LEFT + step / STEPS as f64 * (WIDTH - LEFT - RIGHT);
    let y = |percent: f64| HEIGHT - BELOW - percent / most * (HEIGHT - BELOW - TOP);

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    // With few ticks there is room for 12-pixel labels.
    for tick in (0..=most as usize).step_by(if most > 8.0 { 4 } else { 1 }) {
        let at = y(tick as f64);
        let _ = writeln!(svg, "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#ddd\"/>", WIDTH - RIGHT);
        let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick} %</text>", LEFT - 6.0, at + 4.0);
    }
    for eighth in 0..=8 {
        let at = x((STEPS / 8 * eighth) as f64);
        let label = sizes.max / 8 * eighth / 1024;
        let _ = writeln!(svg, "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>", HEIGHT - BELOW + 16.0);
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">length of a chunk, KiB (chunks in each step of {} bytes)</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 6.0,
        sizes.max / STEPS
    );
    for (index, (name, _)) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let points: Vec<String> =
            shares[index].iter().enumerate().map(|(step, share)| format!("{:.1},{:.1}", x(step as f64 + 0.5), y(*share))).collect();
        let _ = writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"/>", points.join(" "));
        let at = TOP + 14.0 + 18.0 * index as f64;
        let _ = writeln!(svg, "<path d=\"M{:.1} {at:.1}h24\" stroke=\"{colour}\" stroke-width=\"1.8\"/>", WIDTH - 150.0);
        let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">{name}</text>", WIDTH - 120.0, at + 4.0);
    }
    svg + "</svg>\n"
}

/// Returns the percentage of chunks in each step. Chunks of the maximum length count in the last step.
fn histogram(lengths: &[usize], max: usize) -> Vec<f64> {
    let mut counts = vec![0usize; STEPS];
    for length in lengths {
        counts[(length * STEPS / max).min(STEPS - 1)] += 1;
    }
    counts.into_iter().map(|count| 100.0 * count as f64 / lengths.len() as f64).collect()
}
