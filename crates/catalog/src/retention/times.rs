//! The times that a policy reckons with. A date may be wrong; the sequence of the backups and the time that the store saw pass are not. So:
//!
//! * Dates that rise with the sequence are believed: the longest run of such dates, without those beyond today.
//! * A date outside of this run is replaced: the store's clock says how long after the believed one before it (or before the one behind it) it was made.
//! * A date that lies more than [`LEAP_NS`] further ahead of the one before it than the store saw pass is in doubt, and so is all behind it, until the store
//!   has seen [`BELIEVED_AFTER_NS`] pass since. What is in doubt is neither removed nor counted.

use super::Now;

/// An hour: clocks are adjusted, and daylight is saved.
const TOLERANCE_NS: i64 = HOUR_NS as i64;
/// How much longer than seen a machine may have been off without a doubt: a month.
const LEAP_NS: u64 = 31 * 24 * HOUR_NS;
/// How long a wrong date takes to be noticed: a week.
const BELIEVED_AFTER_NS: u64 = 7 * 24 * HOUR_NS;
const HOUR_NS: u64 = 3_600_000_000_000;

/// When a backup was made, by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// The date that it has, nanoseconds since 1970.
    pub date_ns: i64,
    /// What the store's clock showed.
    pub seen_ns: u64,
    /// Whether something is missing from it.
    pub is_partial: bool,
}

/// The date to reckon with for each of these, which are in the order of their sequence; they never fall. `None`: in doubt.
pub(super) fn settled(made: &[Made], now: Now) -> Vec<Option<i64>> {
    let today_ns = now.date_ns.saturating_add(TOLERANCE_NS);
    let mut believed = believed(made, today_ns);
    let leap = believed.windows(2).find_map(|pair| {
        let (before, behind) = (&made[pair[0]], &made[pair[1]]);
        let moved_ns = u64::try_from(i128::from(behind.date_ns) - i128::from(before.date_ns)).unwrap_or(u64::MAX);
        let is_leap = moved_ns.saturating_sub(behind.seen_ns.saturating_sub(before.seen_ns)) > LEAP_NS;
        (is_leap && now.seen_ns.saturating_sub(behind.seen_ns) < BELIEVED_AFTER_NS).then_some(pair[1])
    });
    // Behind the leap nothing is settled, whatever its date: not even which of the dates are wrong.
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

/// The date of a backup whose own is wrong, from those around it.
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

/// The places of the dates that are believed: the longest run that does not fall. Dates beyond today are left out, unless this leaves no more than half of
/// all: then today is as doubtful as they are.
fn believed(made: &[Made], today_ns: i64) -> Vec<usize> {
    let run = longest_rising(made, |made| made.date_ns <= today_ns);
    if run.len() * 2 > made.len() { run } else { longest_rising(made, |_| true) }
}

/// The places of the longest run of dates that do not fall; of several the one that spans the least time.
fn longest_rising(made: &[Made], is_allowed: impl Fn(&Made) -> bool) -> Vec<usize> {
    /// The best run that ends at a place: its length, then how late it begins.
    type Best = Option<(usize, i64, usize)>;
    let mut dates: Vec<i64> = made.iter().map(|made| made.date_ns).collect();
    dates.sort_unstable();
    dates.dedup();
    // A Fenwick tree: by rank of the date, the best of all runs that end at a date up to it.
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
