//! The seeds of a randomized trial: how many there are, and what to type when one fails.
//!
//! * `ONEFOLD_CRASH_SEEDS=10` tries ten times as many seeds as usual.
//! * `ONEFOLD_CRASH_SEED=17` tries this one seed.

use std::ops::Range;
use std::path::Path;

const FACTOR: &str = "ONEFOLD_CRASH_SEEDS";
const ONE: &str = "ONEFOLD_CRASH_SEED";
/// Seeds are below this: trials derive other numbers from them.
const END: u64 = 1 << 32;

/// The seeds of one trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds {
    numbers: Range<u64>,
    is_one: bool,
}

impl Seeds {
    /// Returns the first `usual` seeds, or what the environment asks for instead.
    ///
    /// Panics when `ONEFOLD_CRASH_SEEDS` is no whole number from 1 on, or `ONEFOLD_CRASH_SEED` no whole number
    /// below 2^32.
    pub fn of(usual: u64) -> Seeds {
        let value = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Seeds::chosen(usual, value(ONE).as_deref(), value(FACTOR).as_deref()).unwrap_or_else(|why| panic!("{why}"))
    }

    fn chosen(usual: u64, one: Option<&str>, factor: Option<&str>) -> Result<Seeds, String> {
        let factor = match factor.map(|text| (text, text.parse::<u64>())) {
            None => 1,
            Some((_, Ok(factor))) if factor > 0 => factor,
            Some((text, _)) => return Err(format!("{FACTOR} is {text:?}; it must be a whole number from 1 on")),
        };
        let end = usual
            .checked_mul(factor)
            .filter(|end| *end <= END)
            .ok_or_else(|| format!("{FACTOR} is {factor}; so many seeds cannot be tried"))?;
        match one.map(|text| (text, text.parse::<u64>())) {
            None => Ok(Seeds { numbers: 0..end, is_one: false }),
            Some((_, Ok(seed))) if seed < END => Ok(Seeds { numbers: seed..seed + 1, is_one: true }),
            Some((text, _)) => Err(format!("{ONE} is {text:?}; it must be a whole number below 2^32")),
        }
    }

    /// Returns the seeds.
    fn numbers(&self) -> Range<u64> {
        self.numbers.clone()
    }

    /// Returns how many seeds there are.
    pub fn count(&self) -> u64 {
        self.numbers.end - self.numbers.start
    }

    /// Returns the `count` seeds after these, for what these did not meet.
    pub fn further(&self, count: u64) -> Seeds {
        Seeds { numbers: self.numbers.end..self.numbers.end + count, is_one: false }
    }

    /// Returns whether these are at least the usual seeds, so that the trial meets what it is there for.
    pub fn are_enough(&self) -> bool {
        !self.is_one
    }

    /// Runs a trial with each seed. If one panics, standard error says how to repeat it.
    pub fn each(&self, mut trial: impl FnMut(u64)) {
        for seed in self.numbers() {
            let _at = At(seed);
            trial(seed);
        }
    }
}

/// Says which seed failed.
struct At(u64);

impl Drop for At {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {} failed; repeat it with: {ONE}={} {}", self.0, self.0, command());
        }
    }
}

/// The command that runs this test alone.
fn command() -> String {
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let program = std::env::args_os().next().unwrap_or_default();
    // Cargo builds `tests/crash.rs` as `crash-0123456789abcdef`.
    let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = program.rsplit_once('-').map_or(program.as_str(), |(file, _)| file);
    let what = if file.replace('_', "-") == package { "--lib".to_owned() } else { format!("--test {file}") };
    // The test runner names each thread after its test.
    let thread = std::thread::current();
    format!("cargo test -p {package} {what} {} -- --exact", thread.name().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_multiplies_the_usual_seeds_and_one_seed_replaces_them() {
        let all = |end| Seeds { numbers: 0..end, is_one: false };
        assert_eq!(Seeds::chosen(60, None, None), Ok(all(60)));
        assert_eq!(Seeds::chosen(60, None, Some("10")), Ok(all(600)));
        let one = Seeds::chosen(60, Some("17"), Some("10")).unwrap();
        assert!(one.numbers() == (17..18) && one.count() == 1 && !one.are_enough());
        let mut tried = Vec::new();
        all(3).each(|seed| tried.push(seed));
        assert_eq!(tried, [0, 1, 2]);
        assert_eq!(all(3).further(2).numbers(), 3..5);
    }

    #[test]
    fn a_value_that_is_no_number_of_seeds_is_refused_by_name() {
        for bad in ["", "0", "-1", "2.5", "ten", "99999999999999999999", "18446744073709551615", "71582789"] {
            let why = Seeds::chosen(60, None, Some(bad)).unwrap_err();
            assert!(why.starts_with("ONEFOLD_CRASH_SEEDS is "), "{why}");
        }
        for bad in ["", "x", "18446744073709551615", "4294967296"] {
            let why = Seeds::chosen(60, Some(bad), None).unwrap_err();
            assert!(why.starts_with("ONEFOLD_CRASH_SEED is "), "{why}");
        }
    }

    #[test]
    fn the_command_that_repeats_a_seed_names_package_and_test() {
        assert!(command().starts_with("cargo test -p onefold-ground --lib "), "{}", command());
        assert!(command().ends_with("names_package_and_test -- --exact"), "{}", command());
    }
}
