//! Rates, times and names as people write and read them. Sizes are in [`onefold_ground::size`].

pub use onefold_ground::size::{GIB, KIB, MIB, SizeError, TIB, parse_size, size};

use jiff::tz::TimeZone;
use std::cell::RefCell;
use std::fmt::Write;
use std::time::Duration;

/// Formats a rate: bytes per second.
pub fn rate(bytes: u64, time: Duration) -> String {
    format!("{}/s", size((bytes as f64 / time.as_secs_f64().max(1e-6)) as u64))
}

/// Formats a duration: `340ms`, `4.2s`, `3m 05s`, `2h 10m`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{}ms", time.as_millis()),
        1..60 => format!("{:.1}s", time.as_secs_f64()),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

/// Formats a number with separated thousands: `1,234,567`.
pub fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number and its noun: `1 file`, `2 files`.
pub fn counted(value: u64, one: &str, many: &str) -> String {
    format!("{} {}", number(value), if value == 1 { one } else { many })
}

/// Returns how much less `part` is than `whole`: `3.4 times less`. `None`: that says nothing, because there is no part,
/// or it is about as much.
pub fn times_less(whole: u64, part: u64) -> Option<String> {
    if part == 0 {
        return None;
    }
    match whole as f64 / part as f64 {
        ..1.05 => None,
        ratio @ ..9.95 => Some(format!("{ratio:.1} times less")),
        ratio @ ..1000.0 => Some(format!("{ratio:.0} times less")),
        _ => Some("more than 1,000 times less".to_owned()),
    }
}

thread_local! {
    /// The zone of whoever reads what this thread writes; `None`: that of this process.
    static READERS_ZONE: RefCell<Option<TimeZone>> = const { RefCell::new(None) };
}

/// Sets the zone of [`local_time`] on this thread: in a daemon, the zone of the client for whom the thread works.
pub fn set_local_zone(zone: TimeZone) {
    READERS_ZONE.set(Some(zone));
}

/// Returns the zone of the reader for whom this thread writes: it says where days begin.
pub fn local_zone() -> TimeZone {
    READERS_ZONE.with_borrow(Clone::clone).unwrap_or_else(TimeZone::system)
}

/// Parses a moment as people write it, to nanoseconds since 1970: a day (its beginning), a day and a time in the local
/// zone, or RFC 3339 with its own zone.
pub fn parse_moment(text: &str) -> Result<i64, String> {
    let zoned = |text: &str| text.parse::<jiff::Timestamp>().ok();
    let local = |text: &str| text.parse::<jiff::civil::DateTime>().ok()?.to_zoned(local_zone()).ok().map(|time| time.timestamp());
    let moment = zoned(text).or_else(|| local(text));
    let moment =
        moment.ok_or_else(|| format!("`{text}` is not a date: write it as 2027-01-31, 2027-01-31T14:05 or 2027-01-31T14:05:00Z"))?;
    i64::try_from(moment.as_nanosecond()).map_err(|_| format!("`{text}` is out of range: dates must be from 1678 to 2261"))
}

/// Formats a time in the local zone: `2026-01-31 14:05:00`. `time_ns` counts from 1970, UTC.
pub fn local_time(time_ns: i64) -> String {
    match jiff::Timestamp::from_nanosecond(i128::from(time_ns)) {
        Ok(time) => time.to_zoned(local_zone()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => format!("{time_ns}ns"),
    }
}

/// Formats a time in UTC as in RFC 3339: `2026-01-31T13:05:00.123456789Z`. For JSON.
pub fn utc_time(time_ns: i64) -> String {
    match jiff::Timestamp::from_nanosecond(i128::from(time_ns)) {
        Ok(time) => time.to_string(),
        Err(_) => format!("{time_ns}ns"),
    }
}

/// Returns whether a character changes the direction of the text around it. Such a name would look like another one.
pub fn is_bidirectional(letter: char) -> bool {
    matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Formats a name of any bytes as one harmless line for a terminal that names exactly these bytes. Control characters,
/// letters that change the direction of text, and bytes that are not UTF-8 become `\n`, `\t`, `\x1b`; a backslash
/// becomes `\\`.
pub fn printable(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for part in name.utf8_chunks() {
        for letter in part.valid().chars() {
            match letter {
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                letter if letter.is_control() || is_bidirectional(letter) => {
                    let mut bytes = [0; 4];
                    for byte in letter.encode_utf8(&mut bytes).bytes() {
                        let _ = write!(out, "\\x{byte:02x}");
                    }
                }
                letter => out.push(letter),
            }
        }
        for byte in part.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_and_times_are_printed_for_people() {
        assert_eq!([number(0), number(999), number(1000), number(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(counted(1, "file", "files"), "1 file");
        assert_eq!(duration(Duration::from_millis(340)), "340ms");
        assert_eq!(duration(Duration::from_secs(185)), "3m 05s");
        assert_eq!(duration(Duration::from_secs(7800)), "2h 10m");
        assert_eq!(utc_time(0), "1970-01-01T00:00:00Z");
        assert_eq!(rate(1 << 20, Duration::from_secs(2)), "512KiB/s");
    }

    #[test]
    fn ratios_say_something_or_are_left_out() {
        let ratio = |whole, part| times_less(whole, part).unwrap_or_default();
        assert_eq!([ratio(34, 10), ratio(500, 10), ratio(102, 100)], ["3.4 times less", "50 times less", ""]);
        assert_eq!([ratio(1, 1 << 20), ratio(0, 0), ratio(5, 0)], ["", "", ""]);
        assert_eq!(ratio(u64::MAX, 1), "more than 1,000 times less");
    }

    #[test]
    fn a_name_cannot_turn_the_text_around_it() {
        assert_eq!(printable("a\u{202e}txt.exe".as_bytes()), "a\\xe2\\x80\\xaetxt.exe");
        for letter in "\u{61c}\u{200e}\u{200f}\u{202a}\u{202c}\u{2066}\u{2069}".chars() {
            assert!(printable(letter.to_string().as_bytes()).is_ascii(), "{letter:?}");
        }
        assert_eq!(printable("שלום".as_bytes()), "שלום");
    }

    #[test]
    fn moments_are_read_in_the_local_zone_or_their_own() {
        set_local_zone(TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap());
        for (text, expected) in [
            ("2027-01-31", "2027-01-30T23:00:00Z"),
            ("2027-07-01 14:05", "2027-07-01T12:05:00Z"),
            ("2027-07-01T14:05:30", "2027-07-01T12:05:30Z"),
            ("2027-07-01T14:05:30Z", "2027-07-01T14:05:30Z"),
            ("2027-07-01T14:05:30+05:30", "2027-07-01T08:35:30Z"),
        ] {
            assert_eq!(parse_moment(text).map(utc_time), Ok(expected.to_owned()), "{text}");
        }
        for text in ["", "tomorrow", "31.01.2027", "2027-02-30", "2027-13-01", "14:05", "30d", "2027"] {
            assert!(parse_moment(text).unwrap_err().contains(&format!("`{text}` is not a date")), "{text}");
        }
        assert!(parse_moment("2500-01-01").unwrap_err().contains("dates must be from 1678 to 2261"));
    }

    #[test]
    fn names_stay_on_one_line_and_keep_their_bytes() {
        assert_eq!(printable("ä b".as_bytes()), "ä b");
        assert_eq!(printable(b"a\nb\tc\\d\x1b[31m\xff"), "a\\nb\\tc\\\\d\\x1b[31m\\xff");
    }

    proptest! {
        #[test]
        fn printed_names_are_one_line_without_control_characters(name: Vec<u8>) {
            prop_assert!(!printable(&name).chars().any(char::is_control));
        }
    }
}
