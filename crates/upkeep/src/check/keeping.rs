//! What refers to no chunk: what keeps things from being deleted (protections of backups, append-only mode), and what initiators are shown (iSCSI targets,
//! reservations). Damaged, it stands in the way of who wants to delete, or to log in, and of nothing else.

use super::{Check, ProblemKind};
use onefold_catalog::Catalog;

impl Check<'_> {
    /// A part of step 3.
    pub(crate) fn keeping(&mut self) {
        let protections = Catalog::new(self.engine.clone()).damaged_protections();
        let mut wrong = protections.unwrap_or_else(|error| vec![format!("protections of backups cannot be read: {error}")]);
        wrong.extend(self.engine.append_only_since().err().map(|error| error.to_string()));
        wrong.extend(onefold_targets::damaged(self.engine).unwrap_or_else(|error| vec![format!("iSCSI targets cannot be read: {error}")]));
        wrong.into_iter().for_each(|what| self.report.add(ProblemKind::Object, what));
    }
}
