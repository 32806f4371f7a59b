//! The times that a policy uses. The date of a backup may be wrong. The sequence of the backups is never wrong, nor is
//! the time that the store saw pass. So:
//!
//! * Dates that rise with the sequence are believed: the longest such run, without dates beyond today.
//! * A date outside this run is replaced. The store's clock says how long after the previous believed one (or before
//!   the next one) the backup was made.
//! * A date may lie ahead of the previous one by more than the store saw pass. If the difference exceeds [`LEAP_NS`],
//!   it and all later dates are in doubt, until the store has seen [`BELIEVED_AFTER_NS`] pass since. Backups in doubt
//!   are neither removed nor counted.

use super::Now;

/// An hour: clocks are adjusted, and summer time begins and ends.
const TOLERANCE_NS: i64 = HOUR_NS as i64;
/// How much longer than the time seen a machine may have been off without doubt: a month.
const LEAP_NS: u64 = 31 * 24 * HOUR_NS;
/// How long it takes to notice a wrong date: a week.
const BELIEVED_AFTER_NS: u64 = 7 * 24 * HOUR_NS;
const HOUR_NS: u64 = 3_600_000_000_000;

/// The time at which a backup was made, by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// The date in its record, nanoseconds since 1970.
    pub date_ns: i64,
    /// The time of the store's clock.
    pub seen_ns: u64,
    /// Whether something is missing from it.
    pub is_partial: bool,
}

/// Returns the date to use for each backup. `made` is in sequence order, and the dates never fall. `None`: in doubt.
pub(super) fn settled(made: &[Made], now: Now) -> Vec<Option<i64>> {
    let today_ns = now.date_ns.saturating_add(TOLERANCE_NS);
    let mut believed = believed(made, today_ns);
    let leap = believed.windows(2).find_map(|pair| {
        let (before, behind) = (&made[pair[0]], &made[pair[1]]);
        let moved_ns = u64::try_from(i128::from(behind.date_ns) - i128::from(before.date_ns)).unwrap_or(u64::MAX);
        let is_leap = moved_ns.saturating_sub(behind.seen_ns.saturating_sub(before.seen_ns)) > LEAP_NS;
        (is_leap && now.seen_ns.saturating_sub(behind.seen_ns) < BELIEVED_AFTER_NS).then_some(pair[1])
    });
    // After the leap nothing is settled, whatever the dates: it is not even known which of them are wrong.
    let end = leap.unwrap_or(made.len());
    believed.retain(|index| *index < end);
    let mut next = 0;
    let mut least = i64::MIN;
    let dates = (0..made.len()).map(|index| {
        if index >= end {
            return None;
        }
        let date_ns = if believed.get(next) == Some(&index) {
            next += 1;
            made[index].date_ns
        } else {
            let before = next.checked_sub(1).map(|before| &made[believed[before]]);
            let behind = believed.get(next).map(|behind| &made[*behind]);
            reckoned(&made[index], before, behind)?
        };
        least = least.max(date_ns);
        Some(least)
    });
    dates.collect()
}

/// Computes the date of a backup with a wrong date from the backups around it.
fn reckoned(made: &Made, before: Option<&Made>, behind: Option<&Made>) -> Option<i64> {
    let passed = |from: u64, to: u64| i64::try_from(to.saturating_sub(from)).unwrap_or(i64::MAX);
    match (before, behind) {
        (Some(before), behind) => {
            let date_ns = before.date_ns.saturating_add(passed(before.seen_ns, made.seen_ns));
            Some(behind.map_or(date_ns, |behind| date_ns.min(behind.date_ns)))
        }
        (None, Some(behind)) => Some(behind.date_ns.saturating_sub(passed(made.seen_ns, behind.seen_ns))),
        (None, None) => None,
    }
}

/// Returns the indices of the believed dates: the longest run that does not fall. Dates beyond today are left out,
/// unless this leaves no more than half of all dates. Then today is as doubtful as they are.
fn believed(made: &[Made], today_ns: i64) -> Vec<usize> {
    let run = longest_rising(made, |made| made.date_ns <= today_ns);
    if run.len() * 2 > made.len() { run } else { longest_rising(made, |_| true) }
}

/// Returns the indices of the longest run of dates that do not fall. If there are several, returns the one that spans
/// the least time.
fn longest_rising(made: &[Made], is_allowed: impl Fn(&Made) -> bool) -> Vec<usize> {
    /// The best run that ends at a backup: its length, then its start (later is better), then the backup's index.
    type Best = Option<(usize, i64, usize)>;
    let mut dates: Vec<i64> = made.iter().map(|made| made.date_ns).collect();
    dates.sort_unstable();
    dates.dedup();
    // A Fenwick tree. By rank of the date: the best of all runs that end at a date up to it.
    let mut best: Vec<Best> = vec![None; dates.len() + 1];
    let mut before: Vec<Option<usize>> = vec![None; made.len()];
    let mut longest: Option<(usize, i64, usize)> = None;
    for (index, one) in made.iter().enumerate().filter(|(_, one)| is_allowed(one)) {
        let rank = dates.partition_point(|date| *date < one.date_ns) + 1;
        let ranks_below = std::iter::successors(Some(rank), |rank| Some(rank & (rank - 1)).filter(|rank| *rank > 0));
        let run = ranks_below.filter_map(|rank| best[rank]).max();
        before[index] = run.map(|(.., end)| end);
        let (length, start_ns) = run.map_or((1, one.date_ns), |(length, start_ns, _)| (length + 1, start_ns));
        let ranks_above = std::iter::successors(Some(rank), |rank| Some(rank + (rank & rank.wrapping_neg())));
        for rank in ranks_above.take_while(|rank| *rank <= dates.len()) {
            best[rank] = best[rank].max(Some((length, start_ns, index)));
        }
        let span_ns = one.date_ns.saturating_sub(start_ns);
        longest = longest.max(Some((length, span_ns.saturating_neg(), index)));
    }
    let mut run: Vec<usize> = std::iter::successors(longest.map(|(.., index)| index), |index| before[*index]).collect();
    run.reverse();
    run
}
