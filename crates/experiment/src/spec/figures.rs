//! The part of a declaration about the paper: its figures, and the expected orders.

use super::table::{Result, SpecError, Table, meant};
use crate::results::{Expectation, GROUPS, PaperFigure, Quantity, Side};
use onefold_ground::words::nearest;

const QUANTITIES: [(&str, Quantity); 15] = [
    ("throughput", Quantity::Throughput),
    ("new-percent", Quantity::NewPercent),
    ("found-percent", Quantity::FoundPercent),
    ("settle-time", Quantity::SettleTime),
    ("index-reads", Quantity::IndexReads),
    ("share", Quantity::Share),
    ("latency-p99", Quantity::LatencyP99),
    ("latency-p99.9", Quantity::LatencyP999),
    ("open-time", Quantity::OpenTime),
    ("sustained", Quantity::Sustained),
    ("ratio", Quantity::Ratio),
    ("version-ratio", Quantity::VersionRatio),
    ("write-amplification", Quantity::WriteAmplification),
    ("space-amplification", Quantity::SpaceAmplification),
    ("reads-per-get", Quantity::ReadsPerGet),
];

fn quantity(table: &Table<'_>) -> Result<Quantity> {
    table.choice("quantity", &QUANTITIES)?.ok_or_else(|| table.missing("quantity", "what is compared, as \"throughput\""))
}

fn generation(table: &Table<'_>, last: u32) -> Result<u32> {
    let generation = table.count("generation", 1..=u64::from(last))?;
    Ok(generation.ok_or_else(|| table.missing("generation", "which one, from 1"))? as u32)
}

/// Parses `[[figure]]`. Its variant may be none of ours: then it stands alone.
pub(super) fn figure(table: Table<'_>, generations: u32) -> Result<PaperFigure> {
    let table = table.only(&["variant", "generation", "quantity", "value", "plus_minus"])?;
    Ok(PaperFigure {
        variant: table.words("variant", "the variant that it stands beside")?,
        generation: generation(&table, generations)?,
        quantity: quantity(&table)?,
        value: table.number("value")?.ok_or_else(|| table.missing("value", "the figure"))?,
        plus_minus: table.number("plus_minus")?,
    })
}

/// Parses `[[expect]]`. Its variants are among `variants`.
pub(super) fn expectation(table: Table<'_>, generations: u32, variants: &[String]) -> Result<Expectation> {
    let keys = [
        "quantity",
        "component",
        "generation",
        "more",
        "less",
        "less_component",
        "less_generation",
        "factor",
        "of",
        "at_least",
        "at_most",
        "of_paper",
        "quick",
    ];
    let table = table.only(&keys)?;
    let variant = |key: &str| {
        let name = table.words(key, "the name of a variant")?;
        if variants.contains(&name) {
            return Ok(Side::Variant(name));
        }
        let hint = meant(nearest(&name, variants.iter().map(String::as_str)));
        let line = table.get(key).map_or(1, |(line, _)| line);
        Err(table.wrong(key, line, format!("is {name:?}, which is not a variant of this experiment{hint}")))
    };
    let component = |key: &str| -> Result<Option<String>> { Ok(table.text(key)?.map(str::to_owned)) };
    let bound = (table.get("of").is_some(), table.number("at_least")?, table.number("at_most")?);
    let order = ["more", "less", "less_component", "less_generation", "factor"].into_iter().find(|key| table.get(key).is_some());
    let (more, less) = match (bound, order) {
        ((true, Some(least), None), None) => (variant("of")?, Side::Figure(least)),
        ((true, None, Some(most)), None) => (Side::Figure(most), variant("of")?),
        ((false, None, None), _) => (variant("more")?, variant("less")?),
        (_, order) => {
            let why = match order {
                Some(key) => format!("`{key}` is for an order of two variants (`more`, `less`), not for a bound of one (`of`)"),
                None => "a bound is that of a variant, `of`, and has one of `at_least` and `at_most`".to_owned(),
            };
            return Err(SpecError::Contradiction { why: format!("expect: {why}") });
        }
    };
    let expectation = Expectation {
        quantity: quantity(&table)?,
        component: component("component")?,
        generation: generation(&table, generations)?,
        more,
        less,
        less_component: component("less_component")?,
        less_generation: table.count("less_generation", 1..=u64::from(generations))?.map(|generation| generation as u32),
        factor: table.number("factor")?,
        of_paper: table.flag("of_paper", false)?,
        quick: table.flag("quick", false)?,
    };
    let is_share = expectation.quantity == Quantity::Share;
    if is_share != expectation.component.is_some() || (expectation.less_component.is_some() && !is_share) {
        let why = format!("expect: `component` goes with quantity \"share\", and with no other: it names one of {}", GROUPS.join(", "));
        return Err(SpecError::Contradiction { why });
    }
    Ok(expectation)
}
