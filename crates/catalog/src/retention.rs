//! Which backups a retention policy keeps: a pure function of times, so that it can be tried without a store.
//!
//! The rules are those that users of restic know. Each works on the backups of one group, from the newest to the oldest:
//! * *last* keeps the newest ones;
//! * *hourly*, *daily*, *weekly*, *monthly*, *yearly* keep the newest one of each hour, day, ISO week, month, year of local time that has any, until
//!   as many are kept as they say; hours, days, ... without a backup do not count. A rule that is not exhausted at the end keeps the oldest backup too,
//!   so that history grows to its full length;
//! * *within* keeps all that are younger than a period, reckoned from the newest backup, not from today: a machine that was off for a year keeps what it has.
//!
//! A backup that any rule keeps is kept; each rule counts for itself.
//!
//! # Invariants (property tests below)
//! * Rules that keep anything keep the newest backup.
//! * Who applies a policy to what it has kept loses nothing more.

use crate::{Backup, BackupId};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;

mod period;

pub use period::{BadPeriod, Period};

/// How many backups a rule keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub enum Limit {
    /// So many; 0: the rule is not used.
    AtMost(u32),
    /// All that it meets.
    Unlimited,
}

/// A text that is no [`Limit`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a number of backups: give a whole number up to 4,294,967,295, or `unlimited`")]
pub struct BadLimit {
    text: String,
}

impl FromStr for Limit {
    type Err = BadLimit;

    fn from_str(text: &str) -> Result<Limit, BadLimit> {
        let is_number = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
        match text.parse() {
            Ok(number) if is_number => Ok(Limit::AtMost(number)),
            _ if text == "unlimited" => Ok(Limit::Unlimited),
            _ => Err(BadLimit { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::AtMost(number) => write!(formatter, "{number}"),
            Limit::Unlimited => formatter.write_str("unlimited"),
        }
    }
}

impl Default for Limit {
    fn default() -> Limit {
        Limit::AtMost(0)
    }
}

/// What to keep of a group of backups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The newest ones.
    pub last: Limit,
    /// The newest of each hour.
    pub hourly: Limit,
    /// The newest of each day.
    pub daily: Limit,
    /// The newest of each ISO week (Monday to Sunday).
    pub weekly: Limit,
    /// The newest of each month.
    pub monthly: Limit,
    /// The newest of each year.
    pub yearly: Limit,
    /// All that are not older than the newest one by more than this.
    pub within: Option<Period>,
}

/// A rule that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// [`Policy::last`].
    Last,
    /// [`Policy::hourly`].
    Hourly,
    /// [`Policy::daily`].
    Daily,
    /// [`Policy::weekly`].
    Weekly,
    /// [`Policy::monthly`].
    Monthly,
    /// [`Policy::yearly`].
    Yearly,
}

/// Why a backup is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A rule has come to it in its course.
    Rule(Rule),
    /// It is the oldest of its group, and the rule was not exhausted.
    Oldest(Rule),
    /// It is young enough.
    Within(Period),
    /// It is protected until then, nanoseconds since 1970.
    Protected(i64),
}

/// What it keeps, as `last 3, daily 7, within 30d`; `nothing`.
impl fmt::Display for Policy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.keeps_nothing() {
            return formatter.write_str("nothing");
        }
        let rules = self.rules().into_iter().filter(|(_, limit)| *limit != Limit::AtMost(0));
        let rules = rules.map(|(rule, limit)| format!("{rule} {limit}")).chain(self.within.map(|period| format!("within {period}")));
        formatter.write_str(&rules.collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Rule::Last => "last",
            Rule::Hourly => "hourly",
            Rule::Daily => "daily",
            Rule::Weekly => "weekly",
            Rule::Monthly => "monthly",
            Rule::Yearly => "yearly",
        })
    }
}

impl Rule {
    /// A number that falls from a backup to the next older one exactly where the rule sees another hour, day, ...
    fn bucket(self, time: &Zoned, place: usize) -> i64 {
        let (year, month, day) = (i64::from(time.year()), i64::from(time.month()), i64::from(time.day()));
        let date = year * 10_000 + month * 100 + day;
        match self {
            Rule::Last => -(place as i64),
            Rule::Hourly => date * 100 + i64::from(time.hour()),
            Rule::Daily => date,
            Rule::Weekly => {
                let week = time.date().iso_week_date();
                i64::from(week.year()) * 100 + i64::from(week.week())
            }
            Rule::Monthly => year * 100 + month,
            Rule::Yearly => year,
        }
    }
}

/// The course of one rule over the backups.
struct Course {
    rule: Rule,
    left: Limit,
    bucket: Option<i64>,
}

impl Course {
    fn meets(&mut self, time: &Zoned, place: usize, is_oldest: bool) -> Option<Reason> {
        if self.left == Limit::AtMost(0) {
            return None;
        }
        let bucket = self.rule.bucket(time, place);
        // Not merely another bucket: where clocks are set back over midnight, a day is left and entered again.
        let is_older = self.bucket.is_none_or(|before| bucket < before);
        if !is_older && !is_oldest {
            return None;
        }
        self.bucket = Some(bucket);
        if let Limit::AtMost(left) = &mut self.left {
            *left -= 1;
        }
        Some(if is_older { Reason::Rule(self.rule) } else { Reason::Oldest(self.rule) })
    }
}

impl Policy {
    /// The rules that count, and their limits.
    pub fn rules(&self) -> [(Rule, Limit); 6] {
        [
            (Rule::Last, self.last),
            (Rule::Hourly, self.hourly),
            (Rule::Daily, self.daily),
            (Rule::Weekly, self.weekly),
            (Rule::Monthly, self.monthly),
            (Rule::Yearly, self.yearly),
        ]
    }

    /// Whether no rule keeps anything.
    pub fn keeps_nothing(&self) -> bool {
        self.within.is_none() && self.rules().iter().all(|(_, limit)| *limit == Limit::AtMost(0))
    }

    /// Why each of these times (nanoseconds since 1970, in any order) is kept; without a reason it is not. Of equal times the later in the slice is the
    /// newer one. `zone` says where days begin; times behind `now_ns` are of clocks that went wrong, and no period is reckoned from them.
    pub fn reasons(&self, times_ns: &[i64], now_ns: i64, zone: &TimeZone) -> Vec<Vec<Reason>> {
        let mut reasons = vec![Vec::new(); times_ns.len()];
        let mut order: Vec<usize> = (0..times_ns.len()).collect();
        order.sort_by_key(|index| std::cmp::Reverse((times_ns[*index], *index)));
        let cutoff = self.within.map(|period| {
            let newest = order.iter().map(|index| times_ns[*index]).find(|time| *time <= now_ns);
            // None in the past, or a period that reaches back before all times: everything is young enough.
            newest.and_then(|newest| period.before(&zoned(newest, zone))).unwrap_or(i64::MIN)
        });
        let mut courses = self.rules().map(|(rule, left)| Course { rule, left, bucket: None });
        for (place, index) in order.iter().enumerate() {
            let time_ns = times_ns[*index];
            let time = zoned(time_ns, zone);
            let is_oldest = place + 1 == order.len();
            reasons[*index].extend(courses.iter_mut().filter_map(|course| course.meets(&time, place, is_oldest)));
            if let (Some(period), Some(cutoff)) = (self.within, cutoff)
                && time_ns > cutoff
            {
                reasons[*index].push(Reason::Within(period));
            }
        }
        reasons
    }
}

fn zoned(time_ns: i64, zone: &TimeZone) -> Zoned {
    let time = Timestamp::from_nanosecond(i128::from(time_ns)).expect("an i64 of nanoseconds is within 300 years of 1970");
    time.to_zoned(zone.clone())
}

/// What becomes of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupPlan {
    /// Those that stay, the oldest first, and why.
    pub keep: Vec<(Backup, Vec<Reason>)>,
    /// Those that go, the oldest first.
    pub remove: Vec<Backup>,
}

/// Applies a policy to each group (all backups of one name) of these backups, which are sorted with the oldest first. `protected` names those that
/// must stay whatever the policy says, and until when (nanoseconds since 1970).
pub fn plan(
    backups: Vec<Backup>,
    protected: &HashMap<BackupId, i64>,
    policy: &Policy,
    now_ns: i64,
    zone: &TimeZone,
) -> BTreeMap<String, GroupPlan> {
    let mut groups: BTreeMap<String, Vec<Backup>> = BTreeMap::new();
    for backup in backups {
        groups.entry(backup.name.clone()).or_default().push(backup);
    }
    let plan_of = |backups: Vec<Backup>| {
        let times: Vec<i64> = backups.iter().map(|backup| backup.started_ns).collect();
        let mut plan = GroupPlan::default();
        for (backup, mut reasons) in backups.into_iter().zip(policy.reasons(&times, now_ns, zone)) {
            reasons.extend(protected.get(&backup.id).map(|until_ns| Reason::Protected(*until_ns)));
            if reasons.is_empty() { plan.remove.push(backup) } else { plan.keep.push((backup, reasons)) }
        }
        plan
    };
    groups.into_iter().map(|(name, backups)| (name, plan_of(backups))).collect()
}

#[cfg(test)]
mod tests;
