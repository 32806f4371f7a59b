//! A master, and what waits until its node hears the coordinator.
//!
//! A view says who is master as of its own moment, and comes before the news that the node hears. A node that was cut
//! off has an old one, and another master may be at work. So a master is told nothing while its node does not hear.
//! What it was not told waits: the end of a put must not be lost. Of views, reports and answers the newest ones count.

use onefold_cluster::{Master, MasterEffect, MasterEvent, Table};
use std::collections::VecDeque;

/// The master of a session.
#[derive(Debug)]
pub(crate) struct Mastering {
    master: Master,
    view: Option<MasterEvent>,
    waiting: VecDeque<MasterEvent>,
}

impl Mastering {
    /// Begins with a session. Sessions end after `session_ms`.
    pub(crate) fn new(session_ms: u64) -> Mastering {
        Mastering { master: Master::new(session_ms), view: None, waiting: VecDeque::new() }
    }

    /// Takes an event, for later.
    pub(crate) fn tell(&mut self, event: MasterEvent) {
        match &event {
            MasterEvent::View(_) => {
                self.view = Some(event);
                return;
            }
            MasterEvent::Report(report) => {
                self.waiting.retain(|other| !matches!(other, MasterEvent::Report(other) if other.node == report.node));
            }
            MasterEvent::Prepared(prepared) => {
                self.waiting.retain(|other| !matches!(other, MasterEvent::Prepared(other) if other.node == prepared.node));
            }
            MasterEvent::Tick => self.waiting.retain(|other| *other != MasterEvent::Tick),
            // Each ends something that the master began, so there are few.
            MasterEvent::Table(_) | MasterEvent::Closed { .. } | MasterEvent::NotClosed { .. } | MasterEvent::Put { .. } => {}
        }
        self.waiting.push_back(event);
    }

    /// Handles the next event. Call only while the member hears. `None`: there is none.
    pub(crate) fn next(&mut self, now_ms: u64) -> Option<Vec<MasterEffect>> {
        let event = self.view.take().or_else(|| self.waiting.pop_front())?;
        Some(self.master.handle(now_ms, event))
    }

    /// Returns the newest table that the master knows.
    pub(crate) fn table(&self) -> Option<&Table> {
        self.master.table()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_cluster::{NodeNumber, Opening, Outcome, Report, View};

    fn report(node: u32, table: u64) -> MasterEvent {
        let (node, opening) = (NodeNumber(node), Opening(1));
        MasterEvent::Report(Report { node, opening, table: Some(table), is_leaving: false, released: Vec::new(), restated: Vec::new() })
    }

    #[test]
    fn a_deaf_master_keeps_ends_of_what_it_began_and_the_newest_of_the_rest() {
        let mut mastering = Mastering::new(1000);
        let view = |table| MasterEvent::View(View { table: Some(table), ..View::default() });
        let put = MasterEvent::Put { number: 3, outcome: Outcome::Done };
        for event in [report(1, 1), view(1), put.clone(), report(2, 1), MasterEvent::Tick, report(1, 2), view(2), MasterEvent::Tick] {
            mastering.tell(event);
        }
        assert_eq!(mastering.view, Some(view(2)));
        assert_eq!(mastering.waiting, [put, report(2, 1), report(1, 2), MasterEvent::Tick]);
        for _ in 0..5 {
            assert!(mastering.next(1).is_some());
        }
        assert!(mastering.next(1).is_none());
    }
}
