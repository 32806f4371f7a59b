//! Means with their confidence intervals, and whether results are in the expected order.

use crate::results::{Expectation, Results, Side};

/// The mean of some measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// The mean.
    pub value: f64,
    /// Half of the 95 % confidence interval (Student's t). `None`: a single measurement.
    pub plus_minus: Option<f64>,
    /// Number of measurements.
    pub count: usize,
}

/// Two-sided 95 % quantiles of Student's t, for 1 to 30 degrees of freedom.
const T95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
    2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// Returns the mean. `None`: there are no values.
pub fn mean(values: &[f64]) -> Option<Mean> {
    let count = values.len();
    let value = values.iter().sum::<f64>() / count as f64;
    let plus_minus = (count > 1).then(|| {
        let variance = values.iter().map(|one| (one - value).powi(2)).sum::<f64>() / (count - 1) as f64;
        T95.get(count - 2).copied().unwrap_or(1.96) * (variance / count as f64).sqrt()
    });
    (count > 0).then_some(Mean { value, plus_minus, count })
}

/// The outcome of an expectation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// The order is as expected, with this ratio. Where a bound is expected: with this result.
    Holds(f64),
    /// The order is not as expected, with this ratio or result.
    Fails(f64),
    /// One of the two was not measured, or not completely.
    Missing,
}

/// Compares the means of results with an expectation.
pub fn judge(results: &Results, expectation: &Expectation) -> Outcome {
    let of = |side: &Side, generation: u32, component: Option<&String>| {
        let name = match side {
            Side::Variant(name) => name,
            Side::Figure(figure) => return Some(*figure),
        };
        let variant = results.variant(name).filter(|variant| variant.failure.is_none())?;
        Some(mean(&variant.figures(generation, expectation.quantity, component.map(String::as_str)))?.value)
    };
    let component = expectation.component.as_ref();
    let more = of(&expectation.more, expectation.generation, component);
    let less_generation = expectation.less_generation.unwrap_or(expectation.generation);
    let less = of(&expectation.less, less_generation, expectation.less_component.as_ref().or(component));
    let (Some(more), Some(less)) = (more, less) else { return Outcome::Missing };
    let shown = match (&expectation.more, &expectation.less) {
        (Side::Figure(_), _) => less,
        (_, Side::Figure(_)) => more,
        _ => more / less.max(1e-12),
    };
    let holds = more >= expectation.factor.unwrap_or(1.0) * less;
    if holds { Outcome::Holds(shown) } else { Outcome::Fails(shown) }
}

/// Returns the expected orders that should show at this size and do not. Variants that failed are left out.
pub fn unmet(results: &Results) -> Vec<&Expectation> {
    let is_whole = results.size_bytes >= results.full_size_bytes;
    let fails = |expectation: &&Expectation| matches!(judge(results, expectation), Outcome::Fails(_));
    results.about.expectations.iter().filter(|expectation| is_whole || expectation.quick).filter(fails).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{About, Machine, Measured, Quantity, VERSION, Variant};
    use std::collections::BTreeMap;

    #[test]
    fn the_interval_is_that_of_student() {
        assert_eq!(mean(&[]), None);
        assert_eq!(mean(&[3.0]), Some(Mean { value: 3.0, plus_minus: None, count: 1 }));
        let five = mean(&[1.0, 2.0, 3.0, 4.0, 5.0]).expect("five");
        assert_eq!(five.value, 3.0);
        // Standard error sqrt(2.5 / 5), four degrees of freedom.
        assert!((five.plus_minus.expect("more than one") - 2.776 * 0.5f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn an_order_is_one_of_variants_or_of_components() {
        let measured = |log: f64| Measured {
            generation: 1,
            written_bytes: 1_000_000,
            wall_s: log,
            components_s: [("log".into(), log), ("chunking".into(), 1.0)].into(),
            ..Measured::default()
        };
        let variant = |name: &str, log| Variant {
            name: name.into(),
            face: "in-process".into(),
            clients: 1,
            modelled: BTreeMap::new(),
            discards_data: false,
            settings: String::new(),
            repetitions: vec![vec![measured(log)]],
            fills: Vec::new(),
            failure: None,
        };
        let about = About { id: "E".into(), ..About::default() };
        let machine =
            Machine { processor: String::new(), processors: 1, memory_bytes: 0, system: String::new(), file_system: String::new() };
        let results = Results {
            version: VERSION,
            about,
            machine,
            onefold: String::new(),
            began_unix_s: 0,
            took_s: 0.0,
            size_bytes: 0,
            full_size_bytes: 0,
            variants: vec![variant("quick", 2.0), variant("slow", 4.0)],
        };
        let order = Expectation {
            quantity: Quantity::Throughput,
            component: None,
            generation: 1,
            more: Side::Variant("quick".into()),
            less: Side::Variant("slow".into()),
            less_component: None,
            less_generation: None,
            factor: Some(2.5),
            of_paper: true,
            quick: false,
        };
        assert_eq!(judge(&results, &order), Outcome::Fails(2.0));
        assert_eq!(judge(&results, &Expectation { less: Side::Variant("gone".into()), ..order.clone() }), Outcome::Missing);
        for (least, most, outcome) in [(0.4, 9.0, Outcome::Holds(0.5)), (0.6, 0.4, Outcome::Fails(0.5))] {
            let bound = Expectation { factor: None, ..order.clone() };
            assert_eq!(judge(&results, &Expectation { less: Side::Figure(least), ..bound.clone() }), outcome);
            let at_most = Expectation { less: bound.more.clone(), more: Side::Figure(most), ..bound };
            assert_eq!(judge(&results, &at_most), outcome);
        }
        // The same variant in another generation, which is not there.
        let course = Expectation { less: order.more.clone(), less_generation: Some(2), ..order.clone() };
        assert_eq!(judge(&results, &course), Outcome::Missing);
        assert_eq!(judge(&results, &Expectation { less_generation: Some(1), factor: None, ..course }), Outcome::Holds(1.0));
        let share = Expectation {
            quantity: Quantity::Share,
            component: Some("log".into()),
            more: Side::Variant("slow".into()),
            less_component: Some("chunking".into()),
            ..order
        };
        assert_eq!(judge(&results, &share), Outcome::Holds(4.0));
    }
}
