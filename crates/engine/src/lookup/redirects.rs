//! Redirects: copies of chunks that are elsewhere now (`docs/format.md` section 7.14). Only where each copy counts for
//! itself: elsewhere the chunk index says where a chunk is.
//!
//! Recipes keep their addresses for ever. When a copy is lost or found damaged and its chunk is stored again, or when
//! it is joined with another copy, its address gets a redirect to the other copy. Readers of the address go there, and
//! marks of the address mark the other copy too, so that it stays. The redirect goes when nobody has the address any
//! more ([`Engine::settle_quarantine`]).
//!
//! A redirect leads to a copy that is alive. When that one is lost in turn, it gets a redirect of its own: redirects
//! are *chains*. They never lead back, because a redirect is only made to a copy that has none. Settling shortens them.

use crate::liveness::marked::Origins;
use crate::{Change, EngineError, Result};
use onefold_ground::wire::{Reader, WireError};
use onefold_index::ObjectIndex;
use onefold_storage::{Address, Origin};
use parking_lot::RwLock;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// First byte of the keys, and their partition.
pub(crate) const PREFIX: u8 = b'o';
const VERSION: u8 = 1;
/// Length of an entry of an object: slot u16, address u64.
const ENTRY_BYTES: usize = 2 + 8;
/// A chain is shortened by each settling. More steps than this are no chain.
const MOST_STEPS: usize = 256;
/// Objects read at a time.
const PAGE: usize = 256;

/// The redirects of one origin: slot, and where its chunk is.
pub(crate) type OfOrigin = BTreeMap<u16, Address>;

/// Some origins and their redirects.
pub(crate) type Page = Vec<(Origin, Result<OfOrigin>)>;

/// Where copies are that were somewhere else.
#[derive(Debug)]
pub(crate) struct Redirects {
    objects: Arc<ObjectIndex>,
    /// The origins that have redirects, and some that had.
    origins: RwLock<Origins>,
    /// All redirects, for a reader beside a writer: once it holds what it reads, it must not ask the object index any
    /// more.
    held: Option<HashMap<Address, Address>>,
    /// Whether a settling was skipped: in this opening, or maybe in an earlier one.
    is_unsettled: AtomicBool,
}

impl Redirects {
    /// `holds`: all redirects are read at once, and the object index is not asked later.
    pub(crate) fn open(objects: Arc<ObjectIndex>, holds: bool) -> Result<Redirects> {
        let mut redirects = Redirects { objects, origins: RwLock::default(), held: None, is_unsettled: AtomicBool::new(true) };
        let (mut from, mut held) = (None, HashMap::new());
        while let Some(page) = redirects.page(from)? {
            from = page.last().map(|(origin, _)| *origin);
            for (origin, of_origin) in page {
                redirects.origins.write().insert(origin);
                // What cannot be read is not found: the reader says then which chunk that is.
                let of_origin = of_origin.unwrap_or_default().into_iter().filter(|_| holds);
                held.extend(of_origin.map(|(slot, is_at)| (origin.address(slot), is_at)));
            }
        }
        redirects.held = holds.then_some(held);
        Ok(redirects)
    }

    /// Returns the origins behind `after` and their redirects, some at a time. `None`: there are no more. Redirects
    /// that cannot be read are errors inside.
    pub(crate) fn page(&self, after: Option<Origin>) -> Result<Option<Page>> {
        let from = after.map_or_else(|| vec![PREFIX], |origin| [&key(origin)[..], &[0]].concat());
        let page = self.objects.range(self.objects.own_partition(), &from, &[PREFIX + 1], PAGE)?;
        let read = page.iter().filter_map(|(key, value)| Some((origin_of(key)?, decode(value))));
        let read: Vec<_> = read.collect();
        Ok((!read.is_empty()).then_some(read))
    }

    /// Notes that a settling was skipped, or kept some because nobody could tell: the next one looks at all redirects.
    pub(crate) fn leave_unsettled(&self) {
        self.is_unsettled.store(true, Ordering::SeqCst);
    }

    /// Returns whether a settling has to look at all redirects.
    pub(crate) fn begin_settling(&self) -> bool {
        self.is_unsettled.swap(false, Ordering::SeqCst)
    }

    /// Returns whether there may be any.
    pub(crate) fn is_used(&self) -> bool {
        self.origins.read().iter().next().is_some()
    }

    /// Returns where the copy at an address is now, if it has a redirect.
    pub(crate) fn of(&self, address: Address) -> Result<Option<Address>> {
        if let Some(held) = &self.held {
            return Ok(held.get(&address).copied());
        }
        if !self.origins.read().contains(address.origin()) {
            return Ok(None);
        }
        let value = self.objects.get(self.objects.own_partition(), &key(address.origin()))?;
        value.map_or(Ok(None), |value| find(&value, address.slot()))
    }

    fn of_origin(&self, origin: Origin) -> Result<OfOrigin> {
        self.objects.get(self.objects.own_partition(), &key(origin))?.map_or_else(|| Ok(OfOrigin::new()), |value| decode(&value))
    }

    /// Passes where the copy at an address is now, step by step, to `visit`. Returns the last place.
    pub(crate) fn follow(&self, address: Address, visit: &mut dyn FnMut(Address)) -> Result<Address> {
        let mut at = address;
        for _ in 0..MOST_STEPS {
            let Some(next) = self.of(at)? else { return Ok(at) };
            visit(next);
            at = next;
        }
        Err(EngineError::Inconsistent { why: format!("redirects of copies lead to each other, from {address} on") })
    }

    /// Forgets those of these origins that have none any more. The caller holds the commit lock.
    pub(crate) fn forget_unused(&self, origins: &[Origin]) -> Result<()> {
        for origin in origins {
            if self.objects.get(self.objects.own_partition(), &key(*origin))?.is_none() {
                self.origins.write().remove(*origin);
            }
        }
        if !self.is_used() {
            *self.origins.write() = Origins::default();
        }
        Ok(())
    }
}

/// Redirects that a batch makes or removes. The others of the same origin are read when the batch is committed, so that
/// they stay.
#[derive(Clone, Debug, Default)]
pub(crate) struct RedirectChanges(BTreeMap<Origin, BTreeMap<u16, Option<Address>>>);

impl RedirectChanges {
    /// Has a copy be somewhere else. `None`: it is where its address says.
    pub(crate) fn set(&mut self, copy: Address, is_at: Option<Address>) {
        self.0.entry(copy.origin()).or_default().insert(copy.slot(), is_at);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes over the changes of another. The later ones win.
    pub(crate) fn append(&mut self, later: RedirectChanges) {
        for (origin, slots) in later.0 {
            self.0.entry(origin).or_default().extend(slots);
        }
    }

    /// Returns the changes of the objects. The caller holds the commit lock.
    pub(crate) fn changes(&self, redirects: &Redirects) -> Result<Vec<Change>> {
        let mut changes = Vec::with_capacity(self.0.len());
        for (origin, slots) in &self.0 {
            let before = redirects.of_origin(*origin)?;
            let mut now = before.clone();
            for (slot, is_at) in slots {
                match is_at {
                    Some(address) => drop(now.insert(*slot, *address)),
                    None => drop(now.remove(slot)),
                }
            }
            if now != before {
                // Before the object exists: an extra origin only costs a look-up.
                redirects.origins.write().insert(*origin);
                changes.push((redirects.objects.own_partition(), key(*origin), (!now.is_empty()).then(|| encode(&now))));
            }
        }
        Ok(changes)
    }
}

fn key(origin: Origin) -> Vec<u8> {
    let mut key = vec![PREFIX];
    key.extend_from_slice(&origin.bits().to_be_bytes());
    key
}

fn origin_of(key: &[u8]) -> Option<Origin> {
    let bits = key.strip_prefix(&[PREFIX])?.try_into().ok()?;
    Some(Origin::from_bits(u64::from_be_bytes(bits)))
}

fn encode(redirects: &OfOrigin) -> Vec<u8> {
    let mut out = vec![VERSION];
    for (slot, address) in redirects {
        out.extend_from_slice(&slot.to_le_bytes());
        out.extend_from_slice(&address.bits().to_le_bytes());
    }
    out
}

/// Returns the entries of an object, which all have one length.
fn entries(value: &[u8]) -> Result<&[[u8; ENTRY_BYTES]]> {
    let wrong = |source| EngineError::Wire { what: "redirects of a container".into(), source };
    let mut reader = Reader::new(value);
    let version = reader.u8().map_err(wrong)?;
    if version != VERSION {
        let what = "version of redirects";
        return Err(wrong(WireError::OutOfRange { what, value: u64::from(version), offset_bytes: 0 }));
    }
    match value[1..].as_chunks() {
        (entries, []) => Ok(entries),
        (_, rest) => {
            let what = "length of redirects";
            Err(wrong(WireError::OutOfRange { what, value: value.len() as u64, offset_bytes: value.len() - rest.len() }))
        }
    }
}

fn entry(bytes: &[u8; ENTRY_BYTES]) -> (u16, Address) {
    let (slot, address) = bytes.split_at(2);
    let of = |bytes: &[u8]| bytes.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte));
    (of(slot) as u16, Address::from_bits(of(address)))
}

/// Reads the redirects of an origin. Errors: slots are not in order.
pub(crate) fn decode(value: &[u8]) -> Result<OfOrigin> {
    let entries = entries(value)?;
    if let Some(at) = entries.windows(2).position(|pair| entry(&pair[0]).0 >= entry(&pair[1]).0) {
        let (slot, offset_bytes) = (entry(&entries[at + 1]).0, 1 + (at + 1) * ENTRY_BYTES);
        let source = WireError::OutOfRange { what: "slot of a redirect", value: slot.into(), offset_bytes };
        return Err(EngineError::Wire { what: "redirects of a container".into(), source });
    }
    Ok(entries.iter().map(entry).collect())
}

/// Returns the redirect of a slot.
fn find(value: &[u8], slot: u16) -> Result<Option<Address>> {
    let entries = entries(value)?;
    let found = entries.binary_search_by_key(&slot, |bytes| entry(bytes).0);
    Ok(found.ok().map(|at| entry(&entries[at]).1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_storage::ContainerId;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn redirects_are_read_as_written_and_garbage_is_refused(slots: BTreeMap<u16, u64>, noise: Vec<u8>) {
            let redirects: OfOrigin = slots.into_iter().map(|(slot, bits)| (slot, Address::from_bits(bits))).collect();
            let encoded = encode(&redirects);
            prop_assert_eq!(&decode(&encoded).unwrap(), &redirects);
            for slot in redirects.keys().flat_map(|slot| slot.saturating_sub(1)..=slot.saturating_add(1)) {
                prop_assert_eq!(find(&encoded, slot).unwrap(), redirects.get(&slot).copied());
            }
            for length in 0..encoded.len() {
                prop_assert_eq!(decode(&encoded[..length]).is_ok(), length % ENTRY_BYTES == 1);
            }
            if let Ok(read) = decode(&noise) {
                prop_assert_eq!(&encode(&read), &noise);
            }
        }
    }

    #[test]
    fn the_last_slot_has_its_place() {
        let origin = Origin::from(ContainerId::new(3, 77));
        assert_eq!(origin_of(&key(origin)), Some(origin));
        let redirects: OfOrigin = [(u16::MAX - 1, Address::from_bits(9)), (u16::MAX, Address::from_bits(7))].into();
        assert_eq!(decode(&encode(&redirects)).unwrap(), redirects);
    }
}
