//! Sizes, rates, times and names as people write and read them.
//!
//! Sizes: a number and a unit. `B`, `K`/`Ki`/`KiB`, `M`.. up to `P` are powers of 1024; `kB`, `MB`, .. `PB` are powers of 1000.
//! The case of the letters does not matter (`8kib` is `8KiB`), `8K` is binary, `8kB` decimal. A fraction is allowed where
//! it spells whole bytes: `1.5MiB`.

use jiff::tz::TimeZone;
use std::cell::RefCell;
use std::fmt::Write;
use std::time::Duration;

/// 1024 bytes.
pub const KIB: u64 = 1 << 10;
/// 1024 KiB.
pub const MIB: u64 = 1 << 20;
/// 1024 MiB.
pub const GIB: u64 = 1 << 30;
/// 1024 GiB.
pub const TIB: u64 = 1 << 40;

/// A text that is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// No number at its beginning, or one that is written in a way that we do not know.
    #[error("`{text}` is not a size: write a number and a unit, as in 8KiB, 4MiB or 1TiB")]
    NotANumber {
        /// What was written.
        text: String,
    },
    /// An unknown unit.
    #[error("`{unit}` in `{text}` is not a unit of size: use B, KiB, MiB, GiB, TiB, PiB or kB, MB, GB, TB, PB")]
    UnknownUnit {
        /// What was written.
        text: String,
        /// What stands where the unit should.
        unit: String,
    },
    /// A fraction that does not spell whole bytes.
    #[error("`{text}` is not a whole number of bytes")]
    NotWhole {
        /// What was written.
        text: String,
    },
    /// More than 2^64 - 1 bytes.
    #[error("`{text}` is more than 16EiB, the largest size there is")]
    TooLarge {
        /// What was written.
        text: String,
    },
}

/// Reads a size in bytes.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let trimmed = text.trim();
    let not_a_number = || SizeError::NotANumber { text: text.to_owned() };
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // 18 digits after the point are more than any size can use, and keep the arithmetic within 128 bits.
    if whole.is_empty() || (number.contains('.') && fraction.is_empty()) || fraction.contains('.') || fraction.len() > 18 {
        return Err(not_a_number());
    }
    let multiple = unit_bytes(unit.trim()).ok_or_else(|| SizeError::UnknownUnit { text: text.to_owned(), unit: unit.trim().to_owned() })?;
    let too_large = || SizeError::TooLarge { text: text.to_owned() };
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let mut bytes = u128::from(whole) * u128::from(multiple);
    if !fraction.is_empty() {
        let part: u64 = fraction.parse().map_err(|_| not_a_number())?;
        let scaled = u128::from(part) * u128::from(multiple);
        let divisor = 10u128.pow(fraction.len() as u32);
        if scaled % divisor != 0 {
            return Err(SizeError::NotWhole { text: text.to_owned() });
        }
        bytes += scaled / divisor;
    }
    u64::try_from(bytes).map_err(|_| too_large())
}

fn unit_bytes(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    if unit.is_empty() || unit == "b" {
        return Some(1);
    }
    let mut letters = unit.chars();
    let power = match letters.next()? {
        'k' => 1,
        'm' => 2,
        'g' => 3,
        't' => 4,
        'p' => 5,
        _ => return None,
    };
    match letters.as_str() {
        "" | "i" | "ib" => Some(1024u64.pow(power)),
        "b" => Some(1000u64.pow(power)),
        _ => None,
    }
}

/// Writes a size with a binary unit: exact (`8KiB`) where it is a whole number of units, else with three significant digits (`1.23GiB`).
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut power = 0;
    while power + 1 < UNITS.len() && bytes >> (10 * (power + 1)) > 0 {
        power += 1;
    }
    let unit = 1u64 << (10 * power);
    if bytes.is_multiple_of(unit) {
        return format!("{}{}", bytes / unit, UNITS[power]);
    }
    let value = bytes as f64 / unit as f64;
    let digits = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.digits$}{}", UNITS[power])
}

/// A rate: bytes per second.
pub fn rate(bytes: u64, time: Duration) -> String {
    format!("{}/s", size((bytes as f64 / time.as_secs_f64().max(1e-6)) as u64))
}

/// A span of time: `340ms`, `4.2s`, `3m 05s`, `2h 10m`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{}ms", time.as_millis()),
        1..60 => format!("{:.1}s", time.as_secs_f64()),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

/// A number with its thousands apart: `1,234,567`.
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

/// A number and its noun: `1 file`, `2 files`.
pub fn counted(value: u64, one: &str, many: &str) -> String {
    format!("{} {}", number(value), if value == 1 { one } else { many })
}

thread_local! {
    /// The zone of whoever reads what this thread writes; `None`: that of this process.
    static READERS_ZONE: RefCell<Option<TimeZone>> = const { RefCell::new(None) };
}

/// From here on [`local_time`] on this thread means this zone: in a daemon, that of the client for whom the thread works.
pub fn set_local_zone(zone: TimeZone) {
    READERS_ZONE.set(Some(zone));
}

/// The zone of whoever reads what this thread writes: where days begin for them.
pub fn local_zone() -> TimeZone {
    READERS_ZONE.with_borrow(Clone::clone).unwrap_or_else(TimeZone::system)
}

/// A moment as people write it, in nanoseconds since 1970: a day (its beginning), a day and a time in the local zone, or RFC 3339 with its own zone.
pub fn parse_moment(text: &str) -> Result<i64, String> {
    let zoned = |text: &str| text.parse::<jiff::Timestamp>().ok();
    let local = |text: &str| text.parse::<jiff::civil::DateTime>().ok()?.to_zoned(local_zone()).ok().map(|time| time.timestamp());
    let moment = zoned(text).or_else(|| local(text));
    let moment =
        moment.ok_or_else(|| format!("`{text}` is not a date: write it as 2027-01-31, 2027-01-31T14:05 or 2027-01-31T14:05:00Z"))?;
    i64::try_from(moment.as_nanosecond()).map_err(|_| format!("`{text}` is too far off: dates must be from 1678 to 2261"))
}

/// A time in the local zone, as `2026-01-31 14:05:00`. `time_ns` counts from 1970, UTC.
pub fn local_time(time_ns: i64) -> String {
    match jiff::Timestamp::from_nanosecond(i128::from(time_ns)) {
        Ok(time) => time.to_zoned(local_zone()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => format!("{time_ns}ns"),
    }
}

/// A time in UTC, as RFC 3339 has it: `2026-01-31T13:05:00.123456789Z`. For JSON.
pub fn utc_time(time_ns: i64) -> String {
    match jiff::Timestamp::from_nanosecond(i128::from(time_ns)) {
        Ok(time) => time.to_string(),
        Err(_) => format!("{time_ns}ns"),
    }
}

/// A name of any bytes as one line that a terminal shows harmlessly and that names exactly these bytes: control characters
/// and bytes that are not UTF-8 as `\n`, `\t`, `\x1b`; a backslash as `\\`.
pub fn printable(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for part in name.utf8_chunks() {
        for letter in part.valid().chars() {
            match letter {
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                letter if letter.is_control() => {
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
    fn sizes_are_read_as_documented() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("8K", 8192),
            ("8k", 8192),
            ("8Ki", 8192),
            ("8KiB", 8192),
            ("8 KiB", 8192),
            ("8kB", 8000),
            ("8KB", 8000),
            ("4MiB", 4 * MIB),
            ("1.5MiB", 3 * MIB / 2),
            ("10GiB", 10 * GIB),
            ("1TiB", TIB),
            ("1TB", 1_000_000_000_000),
            ("2PiB", 2048 * TIB),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_a_reason() {
        for text in ["", "KiB", "-1", "1..5M", "1.M", ".5M", "0x10", "8XiB", "8KiBB", "1,5M", "8 K i B", "1e3", "NaN", "٣K"] {
            let error = parse_size(text).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
        assert_eq!(parse_size("1.0001KiB"), Err(SizeError::NotWhole { text: "1.0001KiB".into() }));
        assert_eq!(parse_size("16384PiB"), Err(SizeError::TooLarge { text: "16384PiB".into() }));
        assert_eq!(parse_size("99999999999999999999"), Err(SizeError::TooLarge { text: "99999999999999999999".into() }));
    }

    #[test]
    fn sizes_are_printed_short() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (8192, "8KiB"),
            (TIB, "1TiB"),
            (1_500_000, "1.43MiB"),
            (123_456_789, "118MiB"),
            (u64::MAX, "16.0EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

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
        assert!(parse_moment("2500-01-01").unwrap_err().contains("too far off"));
    }

    #[test]
    fn names_stay_on_one_line_and_keep_their_bytes() {
        assert_eq!(printable("ä b".as_bytes()), "ä b");
        assert_eq!(printable(b"a\nb\tc\\d\x1b[31m\xff"), "a\\nb\\tc\\\\d\\x1b[31m\\xff");
    }

    proptest! {
        #[test]
        fn any_text_is_a_size_or_an_error(text: String) {
            let _ = parse_size(&text);
        }

        #[test]
        fn printed_names_are_one_line_without_control_characters(name: Vec<u8>) {
            prop_assert!(!printable(&name).chars().any(char::is_control));
        }

        #[test]
        fn whole_sizes_are_read_as_printed(units in 0u64..1024, power in 0u32..5) {
            let bytes = units << (10 * power);
            prop_assert_eq!(parse_size(&size(bytes)), Ok(bytes));
        }
    }
}
