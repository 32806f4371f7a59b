use super::*;
use crate::Statistics;
use jiff::civil::DateTime;
use onefold_engine::Recipe;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Zones with summer time, without, with a change of half an hour, and one that sets its clocks back from 0:01 to the day before.
fn zones() -> Vec<TimeZone> {
    ["UTC0", "CET-1CEST,M3.5.0,M10.5.0/3", "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0", "NST3:30NDT,M3.2.0/0:01,M11.1.0/0:01"]
        .iter()
        .map(|zone| TimeZone::posix(zone).unwrap())
        .collect()
}

fn utc(text: &str) -> i64 {
    text.parse::<DateTime>().unwrap().to_zoned(TimeZone::UTC).unwrap().timestamp().as_nanosecond() as i64
}

/// The times that are kept.
fn kept<'a>(policy: &Policy, times: &[&'a str]) -> Vec<&'a str> {
    let ns: Vec<i64> = times.iter().map(|time| utc(time)).collect();
    let reasons = policy.reasons(&ns, i64::MAX, &TimeZone::UTC);
    times.iter().zip(reasons).filter(|(_, reasons)| !reasons.is_empty()).map(|(time, _)| *time).collect()
}

#[test]
fn days_without_a_backup_do_not_count_and_the_newest_of_a_day_is_kept() {
    let policy = Policy { daily: Limit::AtMost(3), ..Policy::default() };
    let times = ["2026-01-01T09", "2026-01-05T08", "2026-01-05T20", "2026-02-01T01", "2026-02-01T02", "2026-03-01T00"];
    assert_eq!(kept(&policy, &times), ["2026-01-05T20", "2026-02-01T02", "2026-03-01T00"]);
}

#[test]
fn weeks_begin_on_monday_and_may_lie_in_two_years() {
    let policy = Policy { weekly: Limit::AtMost(2), ..Policy::default() };
    // The week from Monday 2025-12-29 to Sunday 2026-01-04, and the next.
    let times = ["2025-12-28T12", "2025-12-29T12", "2026-01-04T12", "2026-01-05T12"];
    assert_eq!(kept(&policy, &times), ["2026-01-04T12", "2026-01-05T12"]);
}

#[test]
fn a_rule_that_is_not_exhausted_keeps_the_oldest() {
    let policy = Policy { monthly: Limit::AtMost(12), ..Policy::default() };
    let times = ["2026-01-01T12", "2026-01-15T12", "2026-01-31T12", "2026-02-15T12"];
    assert_eq!(kept(&policy, &times), ["2026-01-01T12", "2026-01-31T12", "2026-02-15T12"]);
    let ns: Vec<i64> = times.iter().map(|time| utc(time)).collect();
    assert_eq!(policy.reasons(&ns, i64::MAX, &TimeZone::UTC)[0], [Reason::Oldest(Rule::Monthly)]);
    let unlimited = Policy { yearly: Limit::Unlimited, ..Policy::default() };
    assert_eq!(kept(&unlimited, &times), ["2026-01-01T12", "2026-02-15T12"]);
}

#[test]
fn within_is_reckoned_from_the_newest_that_is_not_in_the_future() {
    let policy = Policy { within: Some("2d".parse().unwrap()), ..Policy::default() };
    let times = ["2026-01-01T12", "2026-01-03T12", "2026-01-05T11", "2026-01-05T12"];
    assert_eq!(kept(&policy, &times), ["2026-01-05T11", "2026-01-05T12"], "one that is exactly two days older goes");
    let ns: Vec<i64> = times.iter().map(|time| utc(time)).collect();
    let kept = |now: &str| policy.reasons(&ns, utc(now), &TimeZone::UTC).iter().map(|reasons| !reasons.is_empty()).collect::<Vec<_>>();
    assert_eq!(kept("2026-01-04T00"), [false, true, true, true]);
    assert_eq!(kept("2025-01-01T00"), [true; 4], "a clock that went wrong takes nothing away");
}

#[test]
fn an_hour_that_the_clocks_show_twice_is_one() {
    let zone = &zones()[1];
    // 02:30 in summer time, 02:10 in winter time, 03:10 in winter time.
    let times = [utc("2026-10-25T00:30"), utc("2026-10-25T01:10"), utc("2026-10-25T02:10")];
    let policy = Policy { hourly: Limit::AtMost(2), ..Policy::default() };
    let reasons = policy.reasons(&times, i64::MAX, zone);
    assert_eq!(reasons.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 1]);
}

#[test]
fn a_day_that_is_entered_twice_is_kept_once() {
    let zone = &zones()[3];
    // At 0:01 on 2026-11-01 clocks went back to 23:01 of the day before: 23:30, 0:00:30, 23:40, 0:10.
    let times = [utc("2026-11-01T02:00"), utc("2026-11-01T02:30:30"), utc("2026-11-01T03:10"), utc("2026-11-01T03:40")];
    let days: Vec<i8> = times.iter().map(|time| zoned(*time, zone).day()).collect();
    assert_eq!(days, [31, 1, 31, 1]);
    let policy = Policy { daily: Limit::AtMost(3), ..Policy::default() };
    let reasons = policy.reasons(&times, i64::MAX, zone);
    assert_eq!(reasons[1], []);
    assert_eq!(reasons[2], [Reason::Rule(Rule::Daily)]);
    assert_eq!(reasons[0], [Reason::Oldest(Rule::Daily)]);
}

#[test]
fn limits_and_policies_are_read_and_written() {
    for (text, limit) in [("0", Limit::AtMost(0)), ("31", Limit::AtMost(31)), ("unlimited", Limit::Unlimited)] {
        assert_eq!(text.parse::<Limit>(), Ok(limit));
        assert_eq!(limit.to_string(), text);
    }
    for text in ["", "-1", "+1", "1.5", "all", "4294967296", "Unlimited", " 1"] {
        assert!(text.parse::<Limit>().unwrap_err().to_string().contains(&format!("`{text}`")));
    }
    let policy = Policy { last: Limit::AtMost(3), yearly: Limit::Unlimited, within: Some("30d".parse().unwrap()), ..Policy::default() };
    assert_eq!(policy.to_string(), "last 3, yearly unlimited, within 30d");
    assert_eq!(Policy::default().to_string(), "nothing");
}

#[test]
fn groups_are_names_and_protected_backups_stay() {
    let backup = |number: u8, name: &str| Backup {
        id: BackupId::from_bytes([number; 16]),
        name: name.into(),
        host: format!("host {number}"),
        user: String::new(),
        started_ns: i64::from(number),
        finished_ns: 0,
        paths: Vec::new(),
        options: String::new(),
        root: Recipe::flat(Vec::new()),
        statistics: Statistics::default(),
    };
    let (a, b): (Vec<_>, Vec<_>) = ((1..5).map(|number| backup(number, "a")).collect(), vec![backup(9, "b")]);
    let policy = Policy { last: Limit::AtMost(1), ..Policy::default() };
    let protected = [(a[1].id, 77)].into();
    let plan = plan([a.clone(), b.clone()].concat(), &protected, &policy, 100, &TimeZone::UTC);
    assert_eq!(plan.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(plan["a"].remove, [a[0].clone(), a[2].clone()]);
    let last = vec![Reason::Rule(Rule::Last)];
    assert_eq!(plan["a"].keep, [(a[1].clone(), vec![Reason::Protected(77)]), (a[3].clone(), last.clone())]);
    assert_eq!(plan["b"].keep, [(b[0].clone(), last)]);
}

fn limit() -> impl Strategy<Value = Limit> {
    prop_oneof![3 => Just(Limit::AtMost(0)), 6 => (1..8u32).prop_map(Limit::AtMost), 1 => Just(Limit::Unlimited)]
}

fn period() -> impl Strategy<Value = Period> {
    (0..2u32, 0..3u32, 0..10u32, 1..48u32)
        .prop_map(|(years, months, days, hours)| format!("{years}y{months}m{days}d{hours}h").parse().unwrap())
}

fn policy() -> impl Strategy<Value = Policy> {
    let limits = (limit(), limit(), limit(), limit(), limit(), limit());
    (limits, proptest::option::weighted(0.3, period())).prop_map(|((last, hourly, daily, weekly, monthly, yearly), within)| Policy {
        last,
        hourly,
        daily,
        weekly,
        monthly,
        yearly,
        within,
    })
}

/// Sorted times: minutes, hours or days apart, some equal, some around the changes of clocks, which all lie between March and November.
fn times() -> impl Strategy<Value = Vec<i64>> {
    let start = prop_oneof![Just("2026-10-24T20"), Just("2026-10-31T20"), Just("2025-12-27T00"), Just("2026-03-28T22")];
    let step = prop_oneof![Just(0), 1..100i64, 100..3000i64, 3000..200_000i64];
    (start, proptest::collection::vec(step, 0..60)).prop_map(|(start, steps)| {
        let minute_ns = 60_000_000_000;
        let add = |time: &mut i64, step: i64| {
            *time += step * minute_ns;
            Some(*time)
        };
        steps.into_iter().scan(utc(start), add).collect()
    })
}

/// The rules as the documentation says them: the newest of each of the newest so many hours, days, ...
fn model(policy: &Policy, times: &[i64], now_ns: i64, zone: &TimeZone) -> BTreeSet<usize> {
    let mut kept = BTreeSet::new();
    for (rule, limit) in policy.rules() {
        let limit = match limit {
            Limit::AtMost(limit) => limit as usize,
            Limit::Unlimited => usize::MAX,
        };
        let label = |index: usize| {
            let format = match rule {
                Rule::Last => return format!("{index:09}"),
                Rule::Hourly => "%Y-%m-%d %H",
                Rule::Daily => "%Y-%m-%d",
                Rule::Weekly => "%G-W%V",
                Rule::Monthly => "%Y-%m",
                Rule::Yearly => "%Y",
            };
            zoned(times[index], zone).strftime(format).to_string()
        };
        let newest_of: BTreeMap<String, usize> = (0..times.len()).map(|index| (label(index), index)).collect();
        kept.extend(newest_of.values().rev().take(limit));
        if newest_of.len() < limit && !times.is_empty() {
            kept.insert(0);
        }
    }
    if let Some(period) = policy.within {
        let newest = times.iter().rfind(|time| **time <= now_ns);
        let cutoff = newest.map(|newest| period.before(&zoned(*newest, zone)).unwrap());
        kept.extend((0..times.len()).filter(|index| cutoff.is_none_or(|cutoff| times[*index] > cutoff)));
    }
    kept
}

fn kept_of(policy: &Policy, times: &[i64], now_ns: i64, zone: &TimeZone) -> BTreeSet<usize> {
    let reasons = policy.reasons(times, now_ns, zone);
    (0..times.len()).filter(|index| !reasons[*index].is_empty()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_policy_keeps_what_its_words_say(policy in policy(), times in times(), zone in 0..4usize, now in any::<prop::sample::Index>()) {
        let zone = &zones()[zone];
        let now_ns = if times.is_empty() { 0 } else { times[now.index(times.len())] };
        prop_assert_eq!(kept_of(&policy, &times, now_ns, zone), model(&policy, &times, now_ns, zone));
    }

    #[test]
    fn the_newest_is_kept_and_a_second_time_removes_nothing_more(policy in policy(), times in times(), zone in 0..4usize, now in any::<prop::sample::Index>()) {
        let zone = &zones()[zone];
        let now_ns = if times.is_empty() { 0 } else { times[now.index(times.len())] };
        let kept = kept_of(&policy, &times, now_ns, zone);
        if policy.keeps_nothing() {
            prop_assert!(kept.is_empty());
        } else {
            prop_assert_eq!(kept.last().copied(), times.len().checked_sub(1));
        }
        let left: Vec<i64> = kept.iter().map(|index| times[*index]).collect();
        prop_assert_eq!(kept_of(&policy, &left, now_ns, zone).len(), left.len());
    }

    #[test]
    fn the_order_of_the_times_does_not_matter(policy in policy(), mut times in times(), zone in 0..4usize) {
        times.dedup();
        let zone = &zones()[zone];
        let forward = policy.reasons(&times, i64::MAX, zone);
        times.reverse();
        let mut backward = policy.reasons(&times, i64::MAX, zone);
        backward.reverse();
        prop_assert_eq!(forward, backward);
    }

    #[test]
    fn any_times_are_taken(policy in policy(), times: Vec<i64>, now_ns: i64) {
        prop_assert_eq!(policy.reasons(&times, now_ns, &zones()[1]).len(), times.len());
    }
}
