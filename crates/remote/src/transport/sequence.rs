//! Which frames the other end has: the state that makes a session survive its links.
//!
//! Numbers are implicit: both ends count the numbered frames of each direction. Invariants:
//! * `acknowledged <= written <= acknowledged + kept.len()`: frames before `acknowledged` are forgotten, frames before
//!   `written` are on the present link or were before it, the rest waits.
//! * A frame is forgotten only when the peer says that it has it.
//! * `told <= received`: what the peer was told never exceeds what arrived.
//! * A new link begins with what each end says it has; each writes the rest again, in the same order. So each frame is
//!   taken once and in order, if each end counts a frame exactly when it takes it.

use std::collections::VecDeque;

/// The peer names a count that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other end names frame {named}, but frames {least} to {most} are possible")]
pub struct ImpossibleCount {
    /// What it names.
    pub named: u64,
    /// The least count that is possible.
    pub least: u64,
    /// The largest count that is possible.
    pub most: u64,
}

/// Both directions of a session, as one end sees them.
#[derive(Debug)]
pub struct Sequence<F> {
    /// Frames that have a number and are not acknowledged.
    kept: VecDeque<F>,
    /// Frames that the peer has.
    acknowledged: u64,
    /// Frames that the peer has, or that were written to the present link.
    written: u64,
    /// Frames of the peer that this end has.
    received: u64,
    /// Frames that the peer knows this end has.
    told: u64,
}

impl<F> Default for Sequence<F> {
    fn default() -> Sequence<F> {
        Sequence { kept: VecDeque::new(), acknowledged: 0, written: 0, received: 0, told: 0 }
    }
}

impl<F> Sequence<F> {
    /// Gives a frame its number. It waits to be written.
    pub fn number(&mut self, frame: F) {
        self.kept.push_back(frame);
    }

    /// Returns the next frame to write to the present link.
    pub fn write(&mut self) -> Option<&F> {
        let frame = self.kept.get((self.written - self.acknowledged) as usize)?;
        self.written += 1;
        Some(frame)
    }

    /// Returns whether frames wait to be written.
    pub fn is_waiting(&self) -> bool {
        self.written - self.acknowledged < self.kept.len() as u64
    }

    /// Returns how many frames are kept.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Counts a frame that arrived.
    pub fn receive(&mut self) {
        self.received += 1;
    }

    /// Returns how many frames arrived.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns whether frames arrived of which the peer was not told.
    pub fn is_owing(&self) -> bool {
        self.told < self.received
    }

    /// Returns the count for an acknowledgement that is written now.
    pub fn tell(&mut self) -> u64 {
        self.told = self.received;
        self.received
    }

    /// Forgets what the peer has, and gives it to `release`.
    ///
    /// Errors: the peer cannot have so many. Then nothing changes.
    pub fn acknowledge(&mut self, count: u64, release: impl FnMut(F)) -> Result<(), ImpossibleCount> {
        if count > self.written || count < self.acknowledged {
            return Err(ImpossibleCount { named: count, least: self.acknowledged, most: self.written });
        }
        self.forget(count, release);
        Ok(())
    }

    /// Begins a new link. The peer has `count` frames; the rest waits to be written again.
    ///
    /// Errors: the peer cannot have so many, or had more before. Then nothing changes.
    pub fn link(&mut self, count: u64, release: impl FnMut(F)) -> Result<(), ImpossibleCount> {
        let most = self.acknowledged + self.kept.len() as u64;
        if count > most || count < self.acknowledged {
            return Err(ImpossibleCount { named: count, least: self.acknowledged, most });
        }
        self.forget(count, release);
        self.written = count;
        // The greeting tells the peer.
        self.told = self.received;
        Ok(())
    }

    /// Drops everything that is kept. Call only when the session ended.
    pub fn clear(&mut self) {
        self.kept = VecDeque::new();
        self.acknowledged = self.written;
    }

    fn forget(&mut self, count: u64, release: impl FnMut(F)) {
        let forgotten = (count - self.acknowledged) as usize;
        self.kept.drain(..forgotten).for_each(release);
        self.acknowledged = count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What happens next between two ends.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        /// An end has a new frame.
        Send(bool),
        /// An end writes a frame to the link.
        Write(bool),
        /// The oldest thing on the link to an end arrives.
        Arrive(bool),
        /// An end writes an acknowledgement.
        Tell(bool),
        /// The link breaks with everything on it, and another one begins.
        Break,
        /// The same, but the greeting of the new link is lost on its way back.
        BreakTwice,
    }

    enum OnLink {
        Frame(u32),
        Ack(u64),
    }

    #[derive(Default)]
    struct End {
        sequence: Sequence<u32>,
        sent: Vec<u32>,
        arrived: Vec<u32>,
        link: VecDeque<OnLink>,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => any::<bool>().prop_map(Step::Send),
            8 => any::<bool>().prop_map(Step::Write),
            8 => any::<bool>().prop_map(Step::Arrive),
            2 => any::<bool>().prop_map(Step::Tell),
            1 => Just(Step::Break),
            1 => Just(Step::BreakTwice),
        ];
        prop::collection::vec(step, 0..300)
    }

    fn relink(ends: &mut [End; 2], reaches_the_second_only: bool) {
        let counts = [ends[0].sequence.received(), ends[1].sequence.received()];
        for end in &mut *ends {
            end.link.clear();
        }
        ends[1].sequence.link(counts[0], drop).unwrap();
        if !reaches_the_second_only {
            ends[0].sequence.link(counts[1], drop).unwrap();
        }
    }

    fn arrive(ends: &mut [End; 2], to: usize) {
        match ends[to].link.pop_front() {
            None => {}
            Some(OnLink::Frame(frame)) => {
                ends[to].sequence.receive();
                ends[to].arrived.push(frame);
            }
            Some(OnLink::Ack(count)) => ends[to].sequence.acknowledge(count, drop).unwrap(),
        }
    }

    fn write(ends: &mut [End; 2], from: usize) -> bool {
        let Some(frame) = ends[from].sequence.write().copied() else { return false };
        ends[1 - from].link.push_back(OnLink::Frame(frame));
        true
    }

    proptest! {
        #[test]
        fn every_frame_arrives_once_and_in_order_whatever_links_lose(steps in steps()) {
            let mut ends = <[End; 2]>::default();
            let mut next = 0;
            for step in steps {
                match step {
                    Step::Send(end) => {
                        let end = &mut ends[usize::from(end)];
                        end.sequence.number(next);
                        end.sent.push(next);
                        next += 1;
                    }
                    Step::Write(end) => { write(&mut ends, usize::from(end)); }
                    Step::Arrive(end) => arrive(&mut ends, usize::from(end)),
                    Step::Tell(end) => {
                        let count = ends[usize::from(end)].sequence.tell();
                        ends[1 - usize::from(end)].link.push_back(OnLink::Ack(count));
                    }
                    Step::Break => relink(&mut ends, false),
                    Step::BreakTwice => { relink(&mut ends, true); relink(&mut ends, false); }
                }
                for end in 0..2 {
                    prop_assert!(ends[1 - end].sent.starts_with(&ends[end].arrived));
                }
            }
            for end in 0..2 {
                while write(&mut ends, end) {}
            }
            for end in 0..2 {
                while !ends[end].link.is_empty() {
                    arrive(&mut ends, end);
                }
            }
            for end in 0..2 {
                let count = ends[end].sequence.tell();
                ends[1 - end].sequence.acknowledge(count, drop).unwrap();
                prop_assert_eq!(&ends[end].arrived, &ends[1 - end].sent);
            }
            prop_assert_eq!(ends[0].sequence.kept() + ends[1].sequence.kept(), 0);
        }

        #[test]
        fn a_count_that_cannot_be_changes_nothing(sent in 0u64..20, acknowledged in 0u64..20, named: u64) {
            let mut sequence = Sequence::default();
            (0..sent).for_each(|frame| sequence.number(frame));
            while sequence.write().is_some() {}
            let acknowledged = acknowledged.min(sent);
            sequence.acknowledge(acknowledged, drop).unwrap();
            let possible = (acknowledged..=sent).contains(&named);
            prop_assert_eq!(sequence.acknowledge(named, drop).is_ok(), possible);
            if !possible {
                prop_assert!(sequence.link(named, drop).is_err());
                prop_assert_eq!(sequence.kept() as u64, sent - acknowledged);
            }
        }
    }
}
