//! Claims of one process: its reservations in front of its index. `claims.rs` says why caches may answer first.

use crate::Result;
use crate::lookup::Lookup;
use crate::write::chain::BloomFilter;
#[cfg(test)]
use crate::write::claims::Anything;
use crate::write::claims::{Claim, Claims, Search, Wanted};
use crate::write::reservation::{Reservation, Reservations};
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
}

impl LocalClaims {
    /// Returns claims that look chunks up in `lookup`. `bloom` is asked again if a filter denied a chunk.
    pub(crate) fn new(lookup: Lookup, bloom: Option<Arc<BloomFilter>>) -> LocalClaims {
        LocalClaims { reservations: Reservations::default(), lookup, bloom }
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
        self.lookup.expect(names)
    }

    fn claim(&self, wanted: &[Wanted], out: &mut Vec<Claim>) -> Result<usize> {
        let begin = out.len();
        let (mut asked, mut names) = (Vec::with_capacity(wanted.len()), Vec::with_capacity(wanted.len()));
        for (at, chunk) in wanted.iter().enumerate() {
            out.push(match self.reservations.reserve(&chunk.fingerprint) {
                Reservation::Owned => {
                    // Not before the claim is ours: until then another stream may store the chunk, and no filter would
                    // have known.
                    if self.is_asked_for(chunk) {
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
        let waited = match self.lookup.find(&names, &mut places) {
            Ok(waited) => waited,
            Err(error) => {
                let ours = out.drain(begin..).zip(wanted).filter(|(claim, _)| *claim == Claim::Mine);
                ours.for_each(|(_, chunk)| self.reservations.release(&chunk.fingerprint));
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

    fn announce(&self, name: &Fingerprint, references: &[Fingerprint]) {
        self.reservations.announce(name, references);
    }

    fn placed(&self, at: &[(Fingerprint, Address)]) {
        at.iter().for_each(|(name, address)| self.reservations.place(name, *address));
    }

    fn release(&self, names: &[Fingerprint]) {
        names.iter().for_each(|name| self.reservations.release(name));
    }

    fn wait(&self, names: &[Fingerprint], until: Instant, out: &mut Vec<Option<Address>>) {
        out.extend(names.iter().map(|name| self.reservations.wait(name, until)));
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
