//! What a store has been doing, over all openings: time and bytes by component (M0.22), verdicts of the filters.
//!
//! The sums are an object of the object index (key `p`). They are written about once a minute while the store is
//! written to, and when it is closed after writes. A crash loses a minute of figures, nothing else.

use crate::write::chain::{FilterStatistics, Verdict};
use crate::{Engine, EngineError, Result, Transaction};
use onefold_ground::Requests;
use onefold_ground::profile::Usage;
use onefold_ground::wire::{Reader, WireError, put_bytes, put_varint};
use onefold_oplog::Position;
use onefold_storage::components::REPAIR;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The key and partition of the sums.
const KEY: &[u8] = b"p";
/// How often the sums are written while the store is open.
const INTERVAL: Duration = Duration::from_secs(60);
/// The most names in an object of ours. More is damage.
const MAX_NAMES: u64 = 1000;

/// Sums by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Activity {
    /// Time and bytes by component.
    pub profile: BTreeMap<String, Usage>,
    /// Verdicts by filter, from NON-EXISTING to EXISTING.
    pub filters: BTreeMap<String, [u64; 4]>,
}

impl Activity {
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![1];
        put_varint(&mut out, self.profile.len() as u64);
        for (name, usage) in &self.profile {
            put_bytes(&mut out, name.as_bytes());
            [usage.calls, usage.time_ns, usage.bytes].iter().for_each(|value| put_varint(&mut out, *value));
        }
        put_varint(&mut out, self.filters.len() as u64);
        for (name, verdicts) in &self.filters {
            put_bytes(&mut out, name.as_bytes());
            verdicts.iter().for_each(|value| put_varint(&mut out, *value));
        }
        out
    }

    fn decode(value: &[u8]) -> std::result::Result<Activity, WireError> {
        let mut reader = Reader::new(value);
        let _version = reader.u8()?;
        let mut activity = Activity::default();
        let name = |reader: &mut Reader<'_>| reader.bytes().map(|name| String::from_utf8_lossy(name).into_owned());
        for _ in 0..reader.varint_to("components", MAX_NAMES)? {
            let name = name(&mut reader)?;
            let usage = Usage { calls: reader.varint()?, time_ns: reader.varint()?, bytes: reader.varint()? };
            activity.profile.insert(name, usage);
        }
        for _ in 0..reader.varint_to("filters", MAX_NAMES)? {
            let name = name(&mut reader)?;
            let verdicts = [reader.varint()?, reader.varint()?, reader.varint()?, reader.varint()?];
            activity.filters.insert(name, verdicts);
        }
        reader.end()?;
        Ok(activity)
    }

    fn add(&mut self, profile: impl IntoIterator<Item = (&'static str, Usage)>, filters: &[FilterStatistics]) {
        for (name, usage) in profile {
            let sum = self.profile.entry(name.to_owned()).or_default();
            sum.calls = sum.calls.saturating_add(usage.calls);
            sum.time_ns = sum.time_ns.saturating_add(usage.time_ns);
            sum.bytes = sum.bytes.saturating_add(usage.bytes);
        }
        for filter in filters {
            let sums = self.filters.entry(filter.filter.to_owned()).or_default();
            for (verdict, count) in [
                (Verdict::NonExisting, filter.non_existing),
                (Verdict::WeakMaybe, filter.weak_maybe),
                (Verdict::StrongMaybe, filter.strong_maybe),
                (Verdict::Existing, filter.existing),
            ] {
                sums[verdict as usize] = sums[verdict as usize].saturating_add(count);
            }
        }
        self.filters.retain(|_, verdicts| verdicts.iter().any(|count| *count > 0));
    }
}

/// The sums of earlier openings, and when all sums were written last.
#[derive(Debug)]
pub(crate) struct Earlier {
    activity: Activity,
    pub(crate) written: Instant,
    /// End of the log after the last write of the sums, or at the opening. A log that ends there has nothing new.
    written_upto: Position,
    /// Repairs that the last written sums include. Repairs write nothing to the log.
    written_repairs: u64,
}

impl Earlier {
    /// Reads the sums from their object.
    pub(crate) fn read(value: Option<Vec<u8>>, opened_at: Position) -> Result<Earlier> {
        let activity = value
            .map_or(Ok(Activity::default()), |value| Activity::decode(&value))
            .map_err(|source| EngineError::Wire { what: "activity in the object index".into(), source })?;
        Ok(Earlier { activity, written: Instant::now(), written_upto: opened_at, written_repairs: 0 })
    }

    /// The key of the object.
    pub(crate) const KEY: &[u8] = KEY;
}

/// Returns the requests to a bucket, by kind.
fn requests(requests: &Requests) -> impl Iterator<Item = (&'static str, Usage)> {
    let Requests { puts, gets, heads, lists, deletes, sent_bytes, received_bytes, retries } = *requests;
    let kinds = [
        ("request put", puts, sent_bytes),
        ("request get", gets, received_bytes),
        ("request head", heads, 0),
        ("request list", lists, 0),
        ("request delete", deletes, 0),
        ("request retry", retries, 0),
    ];
    kinds.into_iter().filter(|(_, calls, _)| *calls > 0).map(|(name, calls, bytes)| (name, Usage { calls, time_ns: 0, bytes }))
}

impl Engine {
    /// Returns the sums of all openings, including this one.
    pub fn activity(&self) -> Activity {
        let mut activity = self.earlier.lock().activity.clone();
        activity.add(self.profile.report(), &self.filters.statistics());
        if let Some(bucket) = self.ground.bucket() {
            activity.add(requests(&bucket.requests()), &[]);
        }
        activity
    }

    /// Submits the sums and the clock, if they are old enough and something else was written since. With `now`, at a
    /// close, submits them if anything was written since the opening. Returns whether it did.
    pub(crate) fn note_activity(&self, now: bool) -> Result<bool> {
        let repairs = self.profile.usage(&REPAIR).calls;
        {
            let mut earlier = self.earlier.lock();
            let (upto, known_repairs) = if now { (self.opened_at, 0) } else { (earlier.written_upto, earlier.written_repairs) };
            let has_news = self.log.end() != upto || self.has_queued() || repairs != known_repairs;
            if !has_news || !now && earlier.written.elapsed() < INTERVAL {
                return Ok(false);
            }
            earlier.written = Instant::now();
            earlier.written_repairs = repairs;
        }
        let activity = (self.objects.own_partition(), KEY.to_vec(), Some(self.activity().encode()));
        let hooks = self.lookup.sampled().map(|sampled| sampled.figures().change(&self.objects));
        let changes = [activity, self.note_of_clock()].into_iter().chain(hooks).collect();
        self.submit(Transaction { changes, references: Vec::new() })?;
        Ok(true)
    }

    /// Notes that the log ends with the sums or the clock. They alone are no reason to write them again.
    pub(crate) fn has_noted(&self) {
        self.earlier.lock().written_upto = self.log.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m0_22_activity_is_summed_over_openings() {
        let filter = |existing| FilterStatistics { filter: "zero-chunk", non_existing: 0, weak_maybe: 1, strong_maybe: 0, existing };
        let usage = Usage { calls: 1, time_ns: 20, bytes: 300 };
        let mut activity = Activity::default();
        activity.add([("chunking", usage)], &[filter(5)]);
        let mut again = Activity::decode(&activity.encode()).unwrap();
        assert_eq!(again, activity);
        again.add([("chunking", usage)], &[filter(6)]);
        assert_eq!(again.profile["chunking"], Usage { calls: 2, time_ns: 40, bytes: 600 });
        assert_eq!(again.filters["zero-chunk"], [0, 2, 0, 11]);
        for length in 0..activity.encode().len() {
            assert!(Activity::decode(&activity.encode()[..length]).is_err());
        }
    }
}
