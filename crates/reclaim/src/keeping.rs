//! What keeps things from being deleted: protections of backups, append-only mode. They refer to no chunk; damaged, they stand in the way of who
//! wants to delete, and nothing else.

use crate::check::{Check, ProblemKind};
use onefold_catalog::Catalog;

impl Check<'_> {
    /// A part of step 3.
    pub(crate) fn keeping(&mut self) {
        let protections = Catalog::new(self.engine.clone()).damaged_protections();
        let mut wrong = protections.unwrap_or_else(|error| vec![format!("protections of backups cannot be read: {error}")]);
        wrong.extend(self.engine.append_only_since().err().map(|error| error.to_string()));
        wrong.into_iter().for_each(|what| self.report.add(ProblemKind::Object, what));
    }
}
