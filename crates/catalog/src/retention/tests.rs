use super::*;
use crate::Statistics;
use jiff::civil::DateTime;
use onefold_engine::Recipe;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Zones with summer time, without it, with a change of half an hour, and one that sets its clocks back from 0:01 to
/// the day before.
fn zones() -> Vec<TimeZone> {
    ["UTC0", "CET-1CEST,M3.5.0,M10.5.0/3", "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0", "NST3:30NDT,M3.2.0/0:01,M11.1.0/0:01"]
        .iter()
        .map(|zone| TimeZone::posix(zone).unwrap())
        .collect()
}

fn utc(text: &str) -> i64 {
    text.parse::<DateTime>().unwrap().to_zoned(TimeZone::UTC).unwrap().timestamp().as_nanosecond() as i64
}

/// Returns backups of these times, made while the store saw all time pass.
fn made(times_ns: &[i64]) -> Vec<Made> {
    let since = |time: i64| time.abs_diff(times_ns[0]);
    times_ns.iter().map(|time| Made { date_ns: *time, seen_ns: since(*time), is_partial: false }).collect()
}

/// Returns the moment of the newest backup.
fn then(made: &[Made]) -> Now {
    made.last().map_or(Now { date_ns: 0, seen_ns: 0 }, |made| Now { date_ns: made.date_ns, seen_ns: made.seen_ns })
}

fn reasons_of(policy: &Policy, times_ns: &[i64], zone: &TimeZone) -> Vec<Vec<Reason>> {
    let made = made(times_ns);
    policy.reasons(&made, then(&made), zone)
}

/// Returns the times that are kept.
fn kept<'a>(policy: &Policy, times: &[&'a str]) -> Vec<&'a str> {
    let ns: Vec<i64> = times.iter().map(|time| utc(time)).collect();
    let reasons = reasons_of(policy, &ns, &TimeZone::UTC);
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
    assert_eq!(reasons_of(&policy, &ns, &TimeZone::UTC)[0], [Reason::Oldest(Rule::Monthly)]);
    let unlimited = Policy { yearly: Limit::Unlimited, ..Policy::default() };
    assert_eq!(kept(&unlimited, &times), ["2026-01-01T12", "2026-02-15T12"]);
}

#[test]
fn within_is_reckoned_from_the_newest() {
    let policy = Policy { within: Some("2d".parse().unwrap()), ..Policy::default() };
    let times = ["2026-01-01T12", "2026-01-03T12", "2026-01-05T11", "2026-01-05T12"];
    assert_eq!(kept(&policy, &times), ["2026-01-05T11", "2026-01-05T12"], "one that is exactly two days older goes");
}

#[test]
fn an_hour_that_the_clocks_show_twice_is_one() {
    let zone = &zones()[1];
    // 02:30 in summer time, 02:10 in winter time, 03:10 in winter time.
    let times = [utc("2026-10-25T00:30"), utc("2026-10-25T01:10"), utc("2026-10-25T02:10")];
    let policy = Policy { hourly: Limit::AtMost(2), ..Policy::default() };
    let reasons = reasons_of(&policy, &times, zone);
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
    let reasons = reasons_of(&policy, &times, zone);
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
        sequence: u64::from(number),
        seen_ns: 0,
        name: name.into(),
        host: format!("host {number}"),
        user: String::new(),
        started_ns: i64::from(number),
        finished_ns: 0,
        tags: Vec::new(),
        paths: Vec::new(),
        options: String::new(),
        root: Recipe::flat(Vec::new()),
        statistics: Statistics::default(),
    };
    let (a, b): (Vec<_>, Vec<_>) = ((1..5).map(|number| backup(number, "a")).collect(), vec![backup(9, "b")]);
    let policy = Policy { last: Limit::AtMost(1), ..Policy::default() };
    let protected = [(a[1].id, 77)].into();
    let plan = plan([a.clone(), b.clone()].concat(), &protected, &policy, Now { date_ns: 100, seen_ns: 0 }, &TimeZone::UTC);
    assert_eq!(plan.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(plan["a"].remove, [a[0].clone(), a[2].clone()]);
    let last = vec![Reason::Rule(Rule::Last)];
    assert_eq!(plan["a"].keep, [(a[1].clone(), vec![Reason::Protected(77)]), (a[3].clone(), last.clone())]);
    assert_eq!(plan["b"].keep, [(b[0].clone(), last)]);
}

const YEAR_NS: i64 = 365 * 24 * 3_600_000_000_000;

/// Makes the backups partial whose bit is set. The bits repeat after 64.
fn with_partial(mut made: Vec<Made>, partial: u64) -> Vec<Made> {
    made.iter_mut().enumerate().for_each(|(index, made)| made.is_partial = partial >> (index % 64) & 1 == 1);
    made
}

/// Returns the kept days of a group with one backup a day: `p` is a partial and `c` a complete one.
fn kept_days(policy: &Policy, group: &str) -> Vec<usize> {
    let day_ns = 24 * 3_600_000_000_000;
    let mut made = made(&(0..group.len() as i64).map(|day| utc("2026-03-02T12") + day * day_ns).collect::<Vec<_>>());
    made.iter_mut().zip(group.chars()).for_each(|(made, kind)| made.is_partial = kind == 'p');
    kept_of(policy, &made, then(&made), &TimeZone::UTC).into_iter().collect()
}

#[test]
fn a_4_a_partial_backup_takes_the_place_of_no_complete_one() {
    let last = |number| Policy { last: Limit::AtMost(number), ..Policy::default() };
    assert_eq!(kept_days(&last(1), "ccp"), [1, 2], "the newest partial one, and the newest complete one");
    assert_eq!(kept_days(&last(1), "cpc"), [2]);
    assert_eq!(kept_days(&last(2), "ccppp"), [0, 1, 3, 4]);
    let daily = Policy { daily: Limit::AtMost(2), ..Policy::default() };
    assert_eq!(kept_days(&daily, "cccppp"), [1, 2, 4, 5], "partial ones are counted apart");
    let weekly = Policy { weekly: Limit::AtMost(1), ..Policy::default() };
    assert_eq!(kept_days(&weekly, "cpcpp"), [2, 4], "a week that has a complete one keeps no partial one, but for the newest of all");
    assert_eq!(kept_days(&weekly, "ppppc"), [4]);
    assert_eq!(kept_days(&last(2), "pppp"), [2, 3], "where there is no complete one, partial ones count");
    let within = Policy { within: Some("2d".parse().unwrap()), ..Policy::default() };
    assert_eq!(kept_days(&within, "cccppp"), [1, 2, 3, 4, 5], "reckoned from the newest complete one");
}

/// Applies a policy on this day to four backups of January 2026, one of which has another date.
fn with_dates(dates: [&str; 4], today: &str) -> Vec<Option<String>> {
    let right = made(&["2026-01-01T12", "2026-01-02T12", "2026-01-03T12", "2026-01-04T12"].map(utc));
    let made: Vec<Made> = right.iter().zip(dates).map(|(made, date)| Made { date_ns: utc(date), ..*made }).collect();
    let settled = times::settled(&made, Now { date_ns: utc(today), seen_ns: right[3].seen_ns });
    settled.into_iter().map(|date| date.map(|date| zoned(date, &TimeZone::UTC).strftime("%F").to_string())).collect()
}

#[test]
fn a_6_a_date_that_does_not_fit_is_replaced_by_what_the_store_saw_pass() {
    let right = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"].map(|date| Some(date.to_owned()));
    let (one, two, three, four) = ("2026-01-01T12", "2026-01-02T12", "2026-01-03T12", "2026-01-04T12");
    assert_eq!(with_dates([one, two, three, four], four), right);
    assert_eq!(with_dates([one, "2040-05-05T12", three, four], four), right, "the clock was in 2040");
    assert_eq!(with_dates([one, "1970-01-01T00", three, four], four), right, "the clock was at its beginning");
    assert_eq!(with_dates(["2040-05-05T12", two, three, four], four), right);
    assert_eq!(with_dates([one, two, three, "2040-05-05T12"], four), right, "the newest; the clock is right again");
    assert_eq!(with_dates([one, two, three, "1970-01-01T00"], four), right);
    let in_doubt = [right[0].clone(), right[1].clone(), right[2].clone(), None];
    assert_eq!(with_dates([one, two, three, "2040-05-05T12"], "2040-05-05T13"), in_doubt, "the newest; the clock is still wrong");
    assert_eq!(with_dates([one, two, three, four], "1970-01-01T00"), right, "all of them seem to be in the future: now the clock is wrong");
    assert_eq!(with_dates([one, two, three, "1970-01-01T00"], "1970-01-01T00"), right);
}

#[test]
fn a_6_a_long_time_without_a_backup_is_believed_after_a_week() {
    let hours_ns = |hours: u64| hours * 3_600_000_000_000;
    let made = |date, seen_hours| Made { date_ns: utc(date), seen_ns: hours_ns(seen_hours), is_partial: false };
    let group = [made("2026-01-01T12", 0), made("2026-06-01T12", 24 * 7), made("2026-06-02T12", 24 * 8)];
    let settled = |date, seen_hours| times::settled(&group, Now { date_ns: utc(date), seen_ns: hours_ns(seen_hours) });
    assert_eq!(settled("2026-06-02T12", 24 * 8), [Some(group[0].date_ns), None, None]);
    assert_eq!(settled("2026-06-08T12", 24 * 14), group.map(|made| Some(made.date_ns)));
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

/// Returns sorted times: minutes, hours or days apart, some equal, some around clock changes, which are all between
/// March and November.
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

/// The rules as documented: the newest backup of each of the newest so many hours, days, ...
fn model(policy: &Policy, times: &[i64], zone: &TimeZone) -> BTreeSet<usize> {
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
        let cutoff = times.last().map(|newest| period.before(&zoned(*newest, zone)).unwrap());
        kept.extend((0..times.len()).filter(|index| cutoff.is_none_or(|cutoff| times[*index] > cutoff)));
    }
    kept
}

fn kept_of(policy: &Policy, made: &[Made], now: Now, zone: &TimeZone) -> BTreeSet<usize> {
    let reasons = policy.reasons(made, now, zone);
    (0..made.len()).filter(|index| !reasons[*index].is_empty()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_policy_keeps_what_its_words_say(policy in policy(), times in times(), zone in 0..4usize) {
        let (zone, made) = (&zones()[zone], made(&times));
        prop_assert_eq!(kept_of(&policy, &made, then(&made), zone), model(&policy, &times, zone));
    }

    #[test]
    fn the_newest_is_kept_and_a_second_time_removes_nothing_more(policy in policy(), times in times(), partial: u64, zone in 0..4usize) {
        let zone = &zones()[zone];
        let made = with_partial(made(&times), partial);
        let kept = kept_of(&policy, &made, then(&made), zone);
        if policy.keeps_nothing() {
            prop_assert!(kept.is_empty());
        } else {
            prop_assert_eq!(kept.last().copied(), times.len().checked_sub(1));
            let complete = |index: &usize| !made[*index].is_partial;
            prop_assert_eq!(kept.iter().rfind(|index| complete(index)).copied(), (0..made.len()).rfind(complete));
        }
        let left: Vec<Made> = kept.iter().map(|index| made[*index]).collect();
        prop_assert_eq!(kept_of(&policy, &left, then(&made), zone).len(), left.len());
    }

    #[test]
    fn a_4_partial_backups_change_nothing_about_which_complete_ones_are_kept(policy in policy(), times in times(), partial: u64, zone in 0..4usize) {
        let zone = &zones()[zone];
        let made = with_partial(made(&times), partial);
        let complete: Vec<Made> = made.iter().filter(|made| !made.is_partial).copied().collect();
        let kept = kept_of(&policy, &made, then(&made), zone);
        let kept: Vec<Made> = kept.into_iter().map(|index| made[index]).filter(|made| !made.is_partial).collect();
        let alone: Vec<Made> = kept_of(&policy, &complete, then(&made), zone).into_iter().map(|index| complete[index]).collect();
        prop_assert_eq!(kept, alone);
    }

    #[test]
    fn a_6_one_wrong_date_removes_no_other_backup(
        policy in policy(), times in times(), wrong in any::<prop::sample::Index>(), years in prop_oneof![-40..-10i64, 10..40i64],
        clock_is_wrong: bool, zone in 0..4usize,
    ) {
        prop_assume!(!times.is_empty());
        let (zone, right) = (&zones()[zone], made(&times));
        let wrong = wrong.index(times.len());
        let mut made = right.clone();
        made[wrong].date_ns += years * YEAR_NS;
        // The policy is applied right after the newest backup was made. If that one has the wrong date, `now` may be
        // wrong too.
        let now = if clock_is_wrong && wrong + 1 == made.len() { then(&made) } else { then(&right) };
        let mut before = kept_of(&policy, &right, then(&right), zone);
        before.remove(&wrong);
        let kept = kept_of(&policy, &made, now, zone);
        prop_assert!(before.is_subset(&kept), "{before:?} are kept with right dates, {kept:?} with a wrong one at {wrong}");
    }

    #[test]
    fn any_times_are_taken(policy in policy(), made: Vec<(i64, u64, bool)>, now: (i64, u64)) {
        let made: Vec<Made> = made.into_iter().map(|(date_ns, seen_ns, is_partial)| Made { date_ns, seen_ns, is_partial }).collect();
        let reasons = policy.reasons(&made, Now { date_ns: now.0, seen_ns: now.1 }, &zones()[1]);
        prop_assert_eq!(reasons.len(), made.len());
    }
}
