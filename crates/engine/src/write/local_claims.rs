//! Claims of one process: its reservations in front of its index. `claims.rs` says why caches may answer first.
//!
//! A chunk whose index partition another node has is reserved here first, so that one stream of this node asks its
//! owner. Here it stays reserved, and then placed, until it is delivered there (`cluster.rs`).

use crate::cluster::{Cluster, Guests, HURRIES, LOOKED_AT_EVERY, MOVES_WITHIN};
use crate::lookup::Lookup;
use crate::write::chain::BloomFilter;
#[cfg(test)]
use crate::write::claims::Anything;
use crate::write::claims::{Claim, Claims, Search, Wanted};
use crate::write::reservation::{Reservation, Reservations};
use crate::{EngineError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_storage::Address;
use std::sync::Arc;
use std::time::Instant;

/// Claims of one process: its reservations in front of its index.
#[derive(Debug)]
pub(crate) struct LocalClaims {
    reservations: Reservations,
    lookup: Lookup,
    bloom: Option<Arc<BloomFilter>>,
    /// What this node has, if it is one of several.
    cluster: Option<Arc<Cluster>>,
    /// Claims of other nodes.
    guests: Arc<Guests>,
}

impl LocalClaims {
    /// Returns claims that look chunks up in `lookup`. `bloom` is asked again if a filter denied a chunk.
    pub(crate) fn new(lookup: Lookup, bloom: Option<Arc<BloomFilter>>, cluster: Option<Arc<Cluster>>, guests: Arc<Guests>) -> LocalClaims {
        LocalClaims { reservations: Reservations::default(), lookup, bloom, cluster, guests }
    }

    /// Returns whether another node has the chunk's partition of the index.
    fn is_foreign(&self, name: &Fingerprint) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.foreign_partition(name).is_some())
    }

    /// Takes the answers of other nodes for those of `out` that are ours here.
    fn claim_elsewhere(&self, foreign: &[(usize, Wanted)], out: &mut [Claim]) -> Result<()> {
        let Some(cluster) = self.cluster.as_ref().filter(|_| !foreign.is_empty()) else { return Ok(()) };
        let wanted: Vec<Wanted> = foreign.iter().map(|(_, wanted)| *wanted).collect();
        let mut answers = Vec::with_capacity(wanted.len());
        if let Err(error) = cluster.others.claim(&wanted, &mut answers) {
            // Some owners may have given theirs.
            cluster.others.release(&wanted.iter().map(|wanted| wanted.fingerprint).collect::<Vec<_>>());
            return Err(error);
        }
        if answers.len() != foreign.len() || answers.iter().any(|answer| matches!(answer, Claim::Placed(_))) {
            return Err(EngineError::OtherNode { why: "its answer does not fit the claims".to_owned() });
        }
        for ((at, wanted), answer) in foreign.iter().zip(answers) {
            out[*at] = answer;
            if answer != Claim::Mine {
                self.reservations.release(&wanted.fingerprint);
            }
        }
        Ok(())
    }

    fn claim_once(&self, wanted: &[Wanted], out: &mut Vec<Claim>) -> Result<usize> {
        let begin = out.len();
        let (mut asked, mut names) = (Vec::with_capacity(wanted.len()), Vec::with_capacity(wanted.len()));
        let mut foreign = Vec::new();
        for (at, chunk) in wanted.iter().enumerate() {
            out.push(match self.reservations.reserve(&chunk.fingerprint) {
                Reservation::Owned => {
                    // Not before the claim is ours: until then another stream may store the chunk, and no filter would
                    // have known.
                    if self.is_foreign(&chunk.fingerprint) {
                        foreign.push((at, *chunk));
                    } else if self.is_asked_for(chunk) {
                        asked.push(at);
                        names.push(chunk.fingerprint);
                    }
                    Claim::Mine
                }
                Reservation::Placed(address) => Claim::Placed(address),
                Reservation::Taken => Claim::Theirs,
            });
        }
        let mut places = Vec::with_capacity(names.len());
        let found = self.lookup.find(&names, &mut places);
        let waited = match found.and_then(|waited| self.claim_elsewhere(&foreign, &mut out[begin..]).map(|()| waited)) {
            Ok(waited) => waited,
            Err(error) => {
                let ours = out.drain(begin..).zip(wanted).filter(|(claim, _)| *claim == Claim::Mine);
                for (_, chunk) in ours {
                    self.reservations.release(&chunk.fingerprint);
                }
                return Err(error);
            }
        };
        for (at, stored) in asked.into_iter().zip(places) {
            if let Some(address) = stored
                && wanted[at].search != Search::Not(address)
            {
                out[begin + at] = Claim::Known(address);
                self.reservations.release(&wanted[at].fingerprint);
            }
        }
        Ok(waited)
    }

    /// Returns whether the index must be asked for a chunk whose claim is held.
    fn is_asked_for(&self, wanted: &Wanted) -> bool {
        match wanted.search {
            Search::Unasked => false,
            Search::Denied => self.bloom.as_ref().is_none_or(|bloom| bloom.is_doubted(&wanted.fingerprint)),
            Search::Stored | Search::Not(_) => true,
        }
    }
}

impl Claims for LocalClaims {
    fn expect(&self, names: &[Fingerprint]) -> usize {
        match &self.cluster {
            None => self.lookup.expect(names),
            Some(_) => self.lookup.expect(&names.iter().filter(|name| !self.is_foreign(name)).copied().collect::<Vec<_>>()),
        }
    }

    fn claim(&self, wanted: &[Wanted], out: &mut Vec<Claim>) -> Result<usize> {
        let Some(cluster) = &self.cluster else { return self.claim_once(wanted, out) };
        let (begin, until) = (out.len(), Instant::now() + MOVES_WITHIN);
        loop {
            let moves = cluster.moves();
            // Whoever gets a partition asks for claims that others hold. Before that, nobody gets one here.
            let coming = wanted.iter().find_map(|wanted| cluster.coming_partition(&wanted.fingerprint));
            let result = match coming {
                Some(partition) => Err(EngineError::NotOwned { partition }),
                None => self.claim_once(wanted, out),
            };
            let has_moved = cluster.moves() != moves;
            match &result {
                Ok(_) if !has_moved => return result,
                Err(error) if Instant::now() > until || !has_moved && !matches!(error, EngineError::NotOwned { .. }) => return result,
                _ => {}
            }
            // Somebody who had a partition may have answered, and another one may keep what this node was asking for.
            let ours = out.drain(begin..).zip(wanted).filter(|(claim, _)| *claim == Claim::Mine);
            self.release(&ours.map(|(_, wanted)| wanted.fingerprint).collect::<Vec<_>>());
            let foreign = wanted.iter().map(|wanted| wanted.fingerprint).filter(|name| self.is_foreign(name)).collect::<Vec<_>>();
            if has_moved && !foreign.is_empty() {
                cluster.others.release(&foreign);
            }
            std::thread::sleep(LOOKED_AT_EVERY);
        }
    }

    fn announce(&self, name: &Fingerprint, references: &[Fingerprint]) {
        self.reservations.announce(name, references);
    }

    fn placed(&self, at: &[(Fingerprint, Address)]) {
        at.iter().for_each(|(name, address)| self.reservations.place(name, *address));
    }

    fn release(&self, names: &[Fingerprint]) {
        if let Some(cluster) = &self.cluster {
            // What was placed stays. The owner first: from then on another stream of this node may claim it there.
            let is_released = |name: &&Fingerprint| self.is_foreign(name) && self.reservations.is_reserved(name);
            let foreign: Vec<Fingerprint> = names.iter().filter(is_released).copied().collect();
            if !foreign.is_empty() {
                cluster.others.release(&foreign);
            }
        }
        for name in names {
            self.reservations.release(name);
        }
    }

    fn wait(&self, names: &[Fingerprint], until: Instant, out: &mut Vec<Option<Address>>) {
        out.extend(names.iter().map(|name| {
            let Some(cluster) = &self.cluster else { return self.reservations.wait(name, until) };
            while let Some(node) = self.guests.holder(name).filter(|_| Instant::now() < until) {
                cluster.others.hurry(node);
                self.reservations.wait(name, until.min(Instant::now() + HURRIES));
            }
            let found = self.reservations.wait(name, until);
            if found.is_none() && self.is_foreign(name) {
                cluster.others.wait(name, until);
            }
            found
        }));
    }

    fn take_in(&self, names: &[Fingerprint]) -> Result<Vec<Fingerprint>> {
        let wanted: Vec<Wanted> = names.iter().map(|name| Wanted { fingerprint: *name, search: Search::Stored }).collect();
        let mut claims = Vec::with_capacity(names.len());
        self.claim_once(&wanted, &mut claims)?;
        let mine = claims.into_iter().zip(names).filter(|(claim, _)| *claim == Claim::Mine);
        Ok(mine.map(|(_, name)| *name).collect())
    }

    fn held(&self, is_wanted: &dyn Fn(&Fingerprint) -> bool) -> Vec<Fingerprint> {
        self.reservations.names(is_wanted)
    }

    fn durable(&self, names: &[Fingerprint]) {
        names.iter().for_each(|name| self.reservations.committed(name));
    }

    fn address(&self, name: &Fingerprint) -> Option<Address> {
        self.reservations.address(name)
    }

    fn references(&self, name: &Fingerprint, out: &mut Vec<Fingerprint>) {
        self.reservations.references(name, out);
    }

    #[cfg(test)]
    fn hold<'a>(&'a self, name: &Fingerprint) -> Box<dyn Anything + 'a> {
        Box::new(self.reservations.hold(name))
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.reservations.count()
    }
}
