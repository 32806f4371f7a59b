//! What a check finds.

use onefold_engine::EngineError;

/// Further problems are counted but not listed.
pub(super) const LISTED: usize = 10_000;

/// Kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProblemKind {
    /// A part that every opening needs is damaged, so nothing else could be checked.
    Opening,
    /// Something is damaged that this opening did not need, because there is another copy or because the store was only
    /// read.
    Spare,
    /// A page of the chunk index is damaged.
    IndexPage,
    /// A file of the object index is damaged.
    ObjectIndex,
    /// A container or a chunk in it is damaged.
    Container,
    /// A chunk with references is not stored.
    MissingChunk,
    /// A chunk with references is known to be lost: it is in quarantine.
    Quarantined,
    /// The index names a place that does not have the chunk.
    WrongAddress,
    /// A usage count differs from the number of references.
    WrongCount,
    /// Marks of what a group needs lack something, or cannot be read.
    Marks,
    /// An object (mapping, backup, volume) cannot be read.
    Object,
    /// A path of a backup, or a range of a volume, needs a damaged or missing chunk.
    Affected,
}

impl ProblemKind {
    /// Returns the word used in JSON output.
    pub fn name(self) -> &'static str {
        match self {
            ProblemKind::Opening => "opening",
            ProblemKind::Spare => "spare",
            ProblemKind::IndexPage => "index_page",
            ProblemKind::ObjectIndex => "object_index",
            ProblemKind::Container => "container",
            ProblemKind::MissingChunk => "missing_chunk",
            ProblemKind::Quarantined => "quarantined",
            ProblemKind::WrongAddress => "wrong_address",
            ProblemKind::WrongCount => "wrong_count",
            ProblemKind::Marks => "marks",
            ProblemKind::Object => "object",
            ProblemKind::Affected => "affected",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its kind.
    pub kind: ProblemKind,
    /// What is wrong and where.
    pub what: String,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Containers looked at.
    pub containers: u64,
    /// Chunks in them.
    pub chunks: u64,
    /// Entries of the chunk index.
    pub index_entries: u64,
    /// References counted.
    pub references: u64,
    /// Bytes read and fingerprinted again.
    pub read_bytes: u64,
    /// Damaged or lost containers that were rebuilt from parity.
    pub repaired: u64,
    /// Passes over the references.
    pub passes: u64,
    /// Chunks that are needed and in quarantine.
    pub quarantined_chunks: u64,
    /// Findings; at most 10,000 are listed.
    pub problems: Vec<Problem>,
    /// All findings, listed or not.
    pub problem_count: u64,
}

impl CheckReport {
    /// Returns whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.problem_count == 0
    }

    /// Returns the report for a store that cannot be opened because of damage.
    pub fn of_opening(damage: &EngineError) -> CheckReport {
        let mut report = CheckReport::default();
        report.add(ProblemKind::Opening, damage.to_string());
        report
    }

    pub(crate) fn add(&mut self, kind: ProblemKind, what: String) {
        self.problem_count += 1;
        if self.problems.len() < LISTED {
            self.problems.push(Problem { kind, what });
        }
    }
}
