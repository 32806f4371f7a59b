//! `onefold traffic`: data for measurements, and its description. It needs no store.

pub mod describe;
pub mod generate;

use crate::cli::{PlacementName, SetName, TraceName, TrafficStream, VariantName};
use crate::failure::{Failure, Result};
use onefold_traffic::{Model, Placement, Set, Trace, TrafficError, Variant, Workload};

/// Returns the stream that the options name.
fn workload(options: &TrafficStream) -> Result<Workload> {
    let set = set(options)?;
    let size_bytes = options.size.unwrap_or(set.default_size_bytes());
    Ok(Workload { set, seed: options.seed, client: options.client, generation: options.generation, size_bytes })
}

fn set(options: &TrafficStream) -> Result<Set> {
    let set = match options.set {
        SetName::Generations => return Ok(Set::Generations(model(options))),
        SetName::UniqueFiles => Set::UniqueFiles,
        SetName::Fingerprints => Set::Fingerprints,
        SetName::Versions => Set::Versions,
        SetName::DisjointBlocks => Set::DisjointBlocks,
        SetName::DuplicateBlocks => Set::DuplicateBlocks,
        SetName::VmImages => Set::VmImages,
    };
    let given = [
        (options.placement.is_some(), "--placement"),
        (options.trace.is_some(), "--trace"),
        (options.variant.is_some(), "--variant"),
        (options.deleted_runs, "--deleted-runs"),
    ];
    match given.into_iter().find(|(is_given, _)| *is_given) {
        Some((_, option)) => Err(Failure::cannot_run(format!("{option} means nothing for this set"))
            .advise("only the set `generations` knows it: leave out one of the two")),
        None => Ok(set),
    }
}

fn model(options: &TrafficStream) -> Model {
    let placement = match options.placement {
        None | Some(PlacementName::Block) => Placement::Block,
        Some(PlacementName::Floating) => Placement::Floating,
    };
    let trace = match options.trace {
        Some(TraceName::Upb6) => Trace::Upb6,
        Some(TraceName::Upb21S) => Trace::Upb21S,
        None => placement.trace(),
    };
    let variant = match options.variant.unwrap_or(VariantName::Documented) {
        VariantName::Documented => Variant::Documented,
        VariantName::Extrapolated => Variant::Extrapolated,
        VariantName::OverwrittenSwitches => Variant::OverwrittenSwitches,
        VariantName::HalvedRuns => Variant::HalvedRuns,
        VariantName::Python2009 => Variant::Python2009,
        VariantName::Online2011 => Variant::Online2011,
    };
    Model { placement, trace, variant, deleted_runs: options.deleted_runs }
}

impl From<TrafficError> for Failure {
    fn from(error: TrafficError) -> Failure {
        let failure = Failure::cannot_run(error);
        match error {
            TrafficError::Generation { .. } => failure.advise("give another --generation"),
            TrafficError::Small { .. } | TrafficError::Large { .. } | TrafficError::Fingerprints { .. } => {
                failure.advise("give another --size")
            }
        }
    }
}
