//! Decides which backups a retention policy keeps. It is a pure function of times, so users can try it without a store.
//!
//! The rules are the same as in restic. Each rule works on the backups of one group, from the newest to the oldest. The
//! sequence decides which backup is newer, not the date. A date that does not fit the sequence is replaced
//! (`times.rs`).
//! * *last* keeps the newest ones;
//! * *hourly*, *daily*, *weekly*, *monthly*, *yearly* keep the newest backup of each hour, day, ISO week, month or year
//!   of local time, until the limit is reached. Hours, days, ... without a backup do not count. A rule that has not
//!   reached its limit at the end also keeps the oldest backup, so that history grows to its full length;
//! * *within* keeps all backups younger than a period, by their date or by the time that the store saw pass. The period
//!   counts back from the newest backup, not from today, so a machine that was off for a year keeps what it has.
//!
//! A backup is kept if any rule keeps it. Each rule counts on its own.
//!
//! A *partial* backup never replaces a complete one. The rules first look at the complete backups alone. Then a partial
//! backup is kept
//! * by *hourly* to *yearly*, if no complete backup of its hour, day, ... is kept; these count separately, up to the
//!   same limit;
//! * by *last*, if it is newer than all complete ones; these also count separately;
//! * by *within*, if it is young enough, counted back from the newest complete one;
//! * if it is the newest partial one, and newer than all complete ones.
//!
//! If a group has no complete backup, partial ones are treated as complete.
//!
//! # Invariants (property tests below)
//! * Rules that keep anything keep the newest complete backup, and the newest partial one if that is newer.
//! * Partial backups change nothing about which complete ones are kept.
//! * Applying a policy again to the backups it kept removes no more.

use crate::{Backup, BackupId, Now};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::str::FromStr;

mod period;
mod times;

pub use period::{BadPeriod, Period};
pub use times::Made;

/// The number of backups that a rule keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub enum Limit {
    /// At most this many. 0: the rule is not used.
    AtMost(u32),
    /// All that the rule matches.
    Unlimited,
}

/// The text is not a [`Limit`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a number of backups: write a whole number up to 4,294,967,295, or `unlimited`")]
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

/// The backups of a group to keep.
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
    /// All backups that are older than the newest one by less than this.
    pub within: Option<Period>,
}

/// A rule with a limit.
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

/// The reason why a backup is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A rule selected it.
    Rule(Rule),
    /// It is the oldest of its group, and the rule had not reached its limit.
    Oldest(Rule),
    /// It is younger than the period.
    Within(Period),
    /// It is partial, and newer than all complete ones.
    NewestPartial,
    /// Its date is in doubt, so it is neither removed nor counted.
    Doubtful,
    /// It is protected until this moment, nanoseconds since 1970.
    Protected(i64),
}

/// Writes what the policy keeps, such as `last 3, daily 7, within 30d`, or `nothing`.
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
    /// Returns a number that falls from a backup to the next older one exactly where the rule sees another hour, day,
    /// ... `place` is the backup's place in the sequence.
    fn bucket(self, time: &Zoned, place: usize) -> i64 {
        let (year, month, day) = (i64::from(time.year()), i64::from(time.month()), i64::from(time.day()));
        let date = year * 10_000 + month * 100 + day;
        match self {
            Rule::Last => place as i64,
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

/// The progress of one rule through the backups.
struct Course {
    rule: Rule,
    left: Limit,
    bucket: Option<i64>,
}

impl Course {
    fn meets(&mut self, bucket: i64, is_oldest: bool) -> Option<Reason> {
        if self.left == Limit::AtMost(0) {
            return None;
        }
        // A different bucket is not enough: where clocks are set back past midnight, a day is left and entered again.
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

/// A backup with a settled date.
struct Known {
    /// Its place in the given slice, which is sorted by sequence.
    index: usize,
    date_ns: i64,
    seen_ns: u64,
    date: Zoned,
}

impl Policy {
    /// Returns the rules with a limit, and their limits.
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

    /// Returns whether no rule keeps anything.
    pub fn keeps_nothing(&self) -> bool {
        self.within.is_none() && self.rules().iter().all(|(_, limit)| *limit == Limit::AtMost(0))
    }

    /// Returns the reasons why each backup is kept. A backup without a reason is not kept. `made` is in sequence order.
    /// `zone` defines where days begin.
    pub fn reasons(&self, made: &[Made], now: Now, zone: &TimeZone) -> Vec<Vec<Reason>> {
        let mut reasons = vec![Vec::new(); made.len()];
        if self.keeps_nothing() {
            return reasons;
        }
        let all_partial = made.iter().all(|made| made.is_partial);
        let (mut complete, mut partial) = (Vec::new(), Vec::new());
        // From the newest to the oldest, from here on.
        for (index, date_ns) in times::settled(made, now).into_iter().enumerate().rev() {
            match date_ns {
                Some(date_ns) => {
                    let known = Known { index, date_ns, seen_ns: made[index].seen_ns, date: zoned(date_ns, zone) };
                    if made[index].is_partial && !all_partial { partial.push(known) } else { complete.push(known) }
                }
                None => reasons[index].push(Reason::Doubtful),
            }
        }
        for (rule, limit) in self.rules() {
            let mut course = Course { rule, left: limit, bucket: None };
            for (place, known) in complete.iter().enumerate() {
                reasons[known.index].extend(course.meets(rule.bucket(&known.date, known.index), place + 1 == complete.len()));
            }
        }
        if let (Some(period), Some(newest)) = (self.within, complete.first().or(partial.first())) {
            // If the period reaches back before all times, every backup is young enough.
            let cutoff_ns = period.before(&newest.date).unwrap_or(i64::MIN);
            let length_ns = newest.date_ns.abs_diff(cutoff_ns);
            let is_young = |known: &&Known| known.date_ns > cutoff_ns || newest.seen_ns.saturating_sub(known.seen_ns) < length_ns;
            complete.iter().chain(&partial).filter(is_young).for_each(|known| reasons[known.index].push(Reason::Within(period)));
        }
        // Only the complete backups that stay count, so that a second run gives the same result.
        complete.retain(|known| !reasons[known.index].is_empty());
        for (rule, limit) in self.rules() {
            let taken: HashSet<i64> = complete.iter().map(|known| rule.bucket(&known.date, known.index)).collect();
            let newest_complete = complete.first().map(|known| known.index);
            let is_alone = |known: &&Known| match rule {
                Rule::Last => newest_complete.is_none_or(|newest| newest < known.index),
                _ => !taken.contains(&rule.bucket(&known.date, known.index)),
            };
            let mut course = Course { rule, left: limit, bucket: None };
            for known in partial.iter().filter(is_alone) {
                reasons[known.index].extend(course.meets(rule.bucket(&known.date, known.index), false));
            }
        }
        if let Some(newest) = partial.first()
            && complete.first().is_none_or(|complete| complete.index < newest.index)
        {
            reasons[newest.index].push(Reason::NewestPartial);
        }
        reasons
    }
}

fn zoned(time_ns: i64, zone: &TimeZone) -> Zoned {
    let time = Timestamp::from_nanosecond(i128::from(time_ns)).expect("an i64 of nanoseconds is within 300 years of 1970");
    time.to_zoned(zone.clone())
}

/// The plan for one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupPlan {
    /// The backups to keep with the reasons, the oldest first.
    pub keep: Vec<(Backup, Vec<Reason>)>,
    /// The backups to remove, the oldest first.
    pub remove: Vec<Backup>,
}

/// Applies a policy to each group (all backups of one name). `backups` is in sequence order. `protected` names the
/// backups that must stay whatever the policy says, with the end of their protection (nanoseconds since 1970).
pub fn plan(
    backups: Vec<Backup>,
    protected: &HashMap<BackupId, i64>,
    policy: &Policy,
    now: Now,
    zone: &TimeZone,
) -> BTreeMap<String, GroupPlan> {
    let mut groups: BTreeMap<String, Vec<Backup>> = BTreeMap::new();
    for backup in backups {
        groups.entry(backup.name.clone()).or_default().push(backup);
    }
    let plan_of = |backups: Vec<Backup>| {
        let made = |backup: &Backup| Made { date_ns: backup.started_ns, seen_ns: backup.seen_ns, is_partial: backup.is_partial() };
        let made: Vec<Made> = backups.iter().map(made).collect();
        let mut plan = GroupPlan::default();
        for (backup, mut reasons) in backups.into_iter().zip(policy.reasons(&made, now, zone)) {
            reasons.extend(protected.get(&backup.id).map(|until_ns| Reason::Protected(*until_ns)));
            if reasons.is_empty() { plan.remove.push(backup) } else { plan.keep.push((backup, reasons)) }
        }
        plan
    };
    groups.into_iter().map(|(name, backups)| (name, plan_of(backups))).collect()
}

#[cfg(test)]
mod tests;
