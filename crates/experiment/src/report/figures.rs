//! Means of repetitions, and figures in the notation of papers.

use crate::results::{Measured, Quantity, Variant};
use crate::statistics::{Mean, mean};

/// The greatest figure that is drawn or written. Beyond it the file is wrong, and plots would show nothing else.
const GREATEST: f64 = 1e15;

/// What a page shows in place of a figure that was not measured.
pub const NOTHING: &str = "–";

/// Clamps a figure to the range that can be drawn. `None`: it is not a number.
pub fn bounded(value: f64) -> Option<f64> {
    value.is_finite().then(|| value.clamp(0.0, GREATEST))
}

/// Returns the mean of a measurement over the repetitions of a variant, in one generation.
pub fn over(variant: &Variant, generation: u32, of: impl Fn(&Measured) -> Option<f64>) -> Option<Mean> {
    let values: Vec<f64> = measured(variant, generation).filter_map(|one| of(one).and_then(bounded)).collect();
    mean(&values)
}

/// Returns the measurements of a generation, from each repetition that has it.
pub fn measured(variant: &Variant, generation: u32) -> impl Iterator<Item = &Measured> {
    variant.repetitions.iter().filter_map(move |one| one.iter().find(|measured| measured.generation == generation))
}

/// Returns the generations of a variant.
pub fn generations(variant: &Variant) -> Vec<u32> {
    let mut all: Vec<u32> = variant.repetitions.iter().flatten().map(|measured| measured.generation).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns whether a variant wrote data whose first generation is reconstructed.
pub fn is_reconstructed(variant: &Variant) -> bool {
    let Ok(settings) = variant.settings.parse::<toml::Table>() else { return true };
    let set = settings.get("workload").and_then(|workload| workload.get("set")).and_then(toml::Value::as_str);
    set.is_none_or(|set| set == "generations")
}

/// Returns a quantity with its unit, as a title of axes and columns.
pub fn title(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::Throughput => "throughput, MB/s",
        Quantity::NewPercent => "stored as new, % of what was written",
        Quantity::FoundPercent => "duplicates found, % of those there",
        Quantity::SettleTime => "background work after the last write, s",
        Quantity::IndexReads => "reads of the chunk index, 1/s for each device",
        Quantity::Share => "share of the time of the data path, %",
        Quantity::LatencyP99 => "latency of requests (p99), ms",
        Quantity::LatencyP999 => "latency of writes (p99.9), ms",
        Quantity::OpenTime => "opening the store, s",
        Quantity::Sustained => "throughput with background work, MB/s",
        Quantity::Ratio => "written so far : on disk without the log",
        Quantity::VersionRatio => "written : stored as new",
        Quantity::WriteAmplification => "write amplification, bytes written : stored as new",
        Quantity::SpaceAmplification => "space amplification, bytes on disk : of chunks",
        Quantity::ReadsPerGet => "reads of levels for each chunk asked for",
    }
}

/// Returns how many decimal places of a number are worth reading.
fn digits(value: f64) -> usize {
    match value {
        0.0 => 0,
        ..0.0995 => 4,
        ..0.995 => 3,
        ..9.995 => 2,
        ..999.95 => 1,
        _ => 0,
    }
}

/// Formats a number with as many digits as are worth reading: `0.0123`, `1.23`, `88.4`, `167.2`, `2,848`.
pub fn number(value: f64) -> String {
    match bounded(value) {
        None => NOTHING.to_owned(),
        Some(value) => with_digits(value, digits(value)),
    }
}

/// Formats a number with this many decimal places.
fn with_digits(value: f64, digits: usize) -> String {
    if value >= 999.95 { thousands(value.round() as u64) } else { format!("{value:.digits$}") }
}

/// Formats a round number, without trailing zeros.
pub fn round_number(value: f64) -> String {
    let text = number(value);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Formats a number with separated thousands.
fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a figure with half of its confidence interval: `167.2 ± 3.4`.
pub fn figure(value: f64, plus_minus: Option<f64>) -> String {
    match (bounded(value), plus_minus.and_then(bounded)) {
        (Some(value), Some(half)) => format!("{} ± {}", number(value), with_digits(half, digits(value))),
        _ => number(value),
    }
}

/// Formats a mean with its interval.
pub fn of_mean(mean: Option<Mean>) -> String {
    mean.map_or_else(|| NOTHING.to_owned(), |mean| figure(mean.value, mean.plus_minus))
}

/// Formats a mean without its interval.
pub fn value_of(mean: Option<Mean>) -> String {
    mean.map_or_else(|| NOTHING.to_owned(), |mean| number(mean.value))
}

/// Formats bytes with a binary unit: `1.50GiB`.
pub fn size(bytes: f64) -> String {
    bounded(bytes).map_or_else(|| NOTHING.to_owned(), |bytes| onefold_ground::size::size(bytes as u64))
}

/// Formats a time for people: `0.41 s`, `85 s`, `12 min`, `3.2 h`.
pub fn duration(seconds: f64) -> String {
    match bounded(seconds) {
        None => NOTHING.to_owned(),
        Some(seconds @ ..100.0) => format!("{} s", number(seconds)),
        Some(seconds @ ..6000.0) => format!("{:.0} min", seconds / 60.0),
        Some(seconds) => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_of_the_papers() {
        for (value, text) in
            [(0.0, "0"), (0.0123, "0.0123"), (0.5, "0.500"), (1.234, "1.23"), (88.4, "88.4"), (167.2, "167.2"), (2848.4, "2,848")]
        {
            assert_eq!(number(value), text);
        }
        assert_eq!(figure(167.2, Some(3.4)), "167.2 ± 3.4");
        assert_eq!(figure(2848.0, Some(64.3)), "2,848 ± 64");
        assert_eq!(round_number(1.5), "1.5");
        assert_eq!(number(f64::NAN), NOTHING);
        assert_eq!(number(f64::INFINITY), NOTHING);
        assert_eq!(number(-1.0), "0");
    }

    #[test]
    fn sizes_and_times_are_short() {
        assert_eq!(size(137_438_953_472.0), "128GiB");
        assert_eq!(size(f64::NAN), NOTHING);
        for (seconds, text) in [(0.41, "0.410 s"), (85.0, "85.0 s"), (720.0, "12 min"), (11520.0, "3.2 h")] {
            assert_eq!(duration(seconds), text);
        }
    }
}
