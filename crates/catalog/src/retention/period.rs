//! Calendar periods as users write them: `1y5m7d2h`.

use jiff::{Span, Timestamp, Zoned};
use std::fmt;
use std::str::FromStr;

/// Years, months, days and hours, not all zero. A month is as long as in the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Deserialize, serde::Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Period {
    years: u32,
    months: u32,
    days: u32,
    hours: u32,
}

/// The text is not a [`Period`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPeriod {
    /// A number, a unit or both are missing.
    #[error("`{text}` is not a period: write numbers with y (years), m (months), d (days) or h (hours), as in 30d or 1y6m")]
    Form {
        /// The text as written.
        text: String,
    },
    /// The unit is unknown.
    #[error("`{unit}` in `{text}` is not a unit of a period: use y (years), m (months), d (days) or h (hours)")]
    Unit {
        /// The text as written.
        text: String,
        /// The character in place of the unit.
        unit: char,
    },
    /// A unit appears twice.
    #[error("`{text}` has the unit `{unit}` twice")]
    Twice {
        /// The text as written.
        text: String,
        /// The unit.
        unit: char,
    },
    /// The period is zero.
    #[error("`{text}` is too short: write at least one hour, as in 1h")]
    Nothing {
        /// The text as written.
        text: String,
    },
    /// The period is longer than any calendar.
    #[error("`{text}` is too long: the limit is 10,000 years")]
    TooLong {
        /// The text as written.
        text: String,
    },
}

impl Period {
    /// Returns the moment this long before another, nanoseconds since 1970. Returns `None` if it is before the year
    /// 1678.
    pub fn before(self, time: &Zoned) -> Option<i64> {
        nanoseconds(time.checked_sub(self.span()?).ok()?.timestamp())
    }

    /// Returns the moment this long after another, nanoseconds since 1970. Returns `None` if it is after the year 2261.
    pub fn after(self, time: &Zoned) -> Option<i64> {
        nanoseconds(time.checked_add(self.span()?).ok()?.timestamp())
    }

    fn span(self) -> Option<Span> {
        let span = Span::new().try_years(self.years).ok()?.try_months(self.months).ok()?;
        span.try_days(self.days).ok()?.try_hours(self.hours).ok()
    }

    fn parts(self) -> [(u32, char); 4] {
        [(self.years, 'y'), (self.months, 'm'), (self.days, 'd'), (self.hours, 'h')]
    }
}

fn nanoseconds(time: Timestamp) -> Option<i64> {
    i64::try_from(time.as_nanosecond()).ok()
}

impl TryFrom<String> for Period {
    type Error = BadPeriod;

    fn try_from(text: String) -> Result<Period, BadPeriod> {
        text.parse()
    }
}

impl From<Period> for String {
    fn from(period: Period) -> String {
        period.to_string()
    }
}

impl fmt::Display for Period {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts().iter().filter(|(number, _)| *number > 0).try_for_each(|(number, unit)| write!(formatter, "{number}{unit}"))
    }
}

impl FromStr for Period {
    type Err = BadPeriod;

    fn from_str(written: &str) -> Result<Period, BadPeriod> {
        let text = || written.to_owned();
        let mut parts: [Option<u32>; 4] = [None; 4];
        let mut rest = written;
        while !rest.is_empty() {
            let end = rest.find(|letter: char| !letter.is_ascii_digit()).ok_or_else(|| BadPeriod::Form { text: text() })?;
            let (digits, behind) = rest.split_at(end);
            let unit = behind.chars().next().expect("there is something behind the digits");
            if digits.is_empty() {
                return Err(BadPeriod::Form { text: text() });
            }
            let place = "ymdh".find(unit).ok_or_else(|| BadPeriod::Unit { text: text(), unit })?;
            let number = digits.parse().map_err(|_| BadPeriod::TooLong { text: text() })?;
            if parts[place].replace(number).is_some() {
                return Err(BadPeriod::Twice { text: text(), unit });
            }
            rest = &behind[unit.len_utf8()..];
        }
        if written.is_empty() {
            return Err(BadPeriod::Form { text: text() });
        }
        let [years, months, days, hours] = parts.map(Option::unwrap_or_default);
        let period = Period { years, months, days, hours };
        if period.parts().iter().all(|(number, _)| *number == 0) {
            return Err(BadPeriod::Nothing { text: text() });
        }
        // A period longer than any calendar is a typing error. A moment before or after all times is not.
        let hours_in_all = u64::from(years) * 8766 + u64::from(months) * 730 + u64::from(days) * 24 + u64::from(hours);
        if hours_in_all > 10_000 * 8766 || period.span().is_none() {
            return Err(BadPeriod::TooLong { text: text() });
        }
        Ok(period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::tz::TimeZone;
    use proptest::prelude::*;

    #[test]
    fn periods_are_read_in_any_order_and_written_in_one() {
        for (written, expected) in [("30d", "30d"), ("1y5m7d2h", "1y5m7d2h"), ("2h7d5m1y", "1y5m7d2h"), ("0y48h", "48h"), ("007d", "7d")] {
            assert_eq!(written.parse::<Period>().unwrap().to_string(), expected);
        }
    }

    #[test]
    fn what_is_no_period_is_refused_with_a_reason() {
        let bad = |text: &str| text.parse::<Period>().unwrap_err();
        let text = |text: &str| text.to_owned();
        for form in ["", "30", "d", "d30", "1d d", " 30d", "-1d", "1.5d", "1d2"] {
            let error = bad(form);
            assert!(matches!(error, BadPeriod::Form { .. } | BadPeriod::Unit { .. }) && error.to_string().contains(form), "{error}");
        }
        assert_eq!(bad("5w"), BadPeriod::Unit { text: text("5w"), unit: 'w' });
        assert_eq!(bad("5D"), BadPeriod::Unit { text: text("5D"), unit: 'D' });
        assert_eq!(bad("1d2d"), BadPeriod::Twice { text: text("1d2d"), unit: 'd' });
        assert_eq!(bad("0d0h"), BadPeriod::Nothing { text: text("0d0h") });
        for long in ["99999999999d", "4000000000y", "10001y", "4000000000h"] {
            assert_eq!(bad(long), BadPeriod::TooLong { text: text(long) });
        }
    }

    #[test]
    fn months_are_those_of_the_calendar_and_days_those_of_the_clock() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let time: Zoned = jiff::civil::datetime(2026, 3, 31, 12, 0, 0, 0).to_zoned(zone).unwrap();
        let before = |period: &str| {
            let ns = period.parse::<Period>().unwrap().before(&time).unwrap();
            Timestamp::from_nanosecond(i128::from(ns)).unwrap().to_zoned(time.time_zone().clone()).strftime("%F %H:%M").to_string()
        };
        assert_eq!(before("1m"), "2026-02-28 12:00");
        // Summer time began on the 29th, so a day of 23 hours lies between.
        assert_eq!(before("3d"), "2026-03-28 12:00");
        assert_eq!(before("72h"), "2026-03-28 11:00");
        assert_eq!("10000y".parse::<Period>().unwrap().before(&time), None);
        assert_eq!("500y".parse::<Period>().unwrap().after(&time), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text: String) {
            let _ = text.parse::<Period>();
        }

        #[test]
        fn a_period_is_read_as_written(years in 0..100u32, months in 0..100u32, days in 0..10_000u32, hours in 1..10_000u32) {
            let period = Period { years, months, days, hours };
            prop_assert_eq!(period.to_string().parse::<Period>().unwrap(), period);
        }
    }
}
