//! Checks objects that refer to no chunk: those that prevent deletion (protections of backups, append-only mode),
//! those shown to initiators (iSCSI targets, reservations), and accounts. Damage to them blocks only deletions and
//! logins.

use super::{Check, ProblemKind};
use onefold_catalog::Catalog;

impl Check<'_> {
    /// Runs a part of step 3.
    pub(crate) fn keeping(&mut self) {
        let protections = Catalog::new(self.engine.clone()).damaged_protections();
        let mut wrong = protections.unwrap_or_else(|error| vec![format!("protections of backups cannot be read: {error}")]);
        wrong.extend(self.engine.append_only_since().err().map(|error| error.to_string()));
        wrong.extend(onefold_targets::damaged(self.engine).unwrap_or_else(|error| vec![format!("iSCSI targets cannot be read: {error}")]));
        let accounts = onefold_accounts::damaged(self.engine);
        wrong.extend(accounts.unwrap_or_else(|error| vec![format!("accounts cannot be read: {error}")]));
        wrong.into_iter().for_each(|what| self.report.add(ProblemKind::Object, what));
    }
}
