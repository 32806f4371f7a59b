//! Sizes as people write and read them: a number and a unit.
//!
//! `B`, `K`/`Ki`/`KiB`, `M`.. up to `P` are powers of 1024; `kB`, `MB`, .. `PB` are powers of 1000. The case of the
//! letters does not matter (`8kib` is `8KiB`), `8K` is binary, `8kB` decimal. A fraction is allowed if it gives whole
//! bytes: `1.5MiB`.

/// 1024 bytes.
pub const KIB: u64 = 1 << 10;
/// 1024 KiB.
pub const MIB: u64 = 1 << 20;
/// 1024 MiB.
pub const GIB: u64 = 1 << 30;
/// 1024 GiB.
pub const TIB: u64 = 1 << 40;

/// A text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// It does not start with a number, or writes it in an unknown way.
    #[error("`{text}` is not a size: write a number and a unit, as in 8KiB, 4MiB or 1TiB")]
    NotANumber {
        /// The text.
        text: String,
    },
    /// An unknown unit.
    #[error("`{unit}` in `{text}` is not a unit of size: use B, KiB, MiB, GiB, TiB, PiB or kB, MB, GB, TB, PB")]
    UnknownUnit {
        /// The text.
        text: String,
        /// The text in place of the unit.
        unit: String,
    },
    /// A fraction that does not give whole bytes.
    #[error("`{text}` is not a whole number of bytes")]
    NotWhole {
        /// The text.
        text: String,
    },
    /// More than 2^64 - 1 bytes.
    #[error("`{text}` is more than 16EiB, the largest size there is")]
    TooLarge {
        /// The text.
        text: String,
    },
}

/// Parses a size in bytes.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let trimmed = text.trim();
    let not_a_number = || SizeError::NotANumber { text: text.to_owned() };
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // 18 digits after the point are more than any size needs, and keep the arithmetic within 128 bits.
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

/// Formats a size with a binary unit. A whole number of units is exact (`8KiB`); others get three significant digits
/// (`1.23GiB`).
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

    proptest! {
        #[test]
        fn any_text_is_a_size_or_an_error(text: String) {
            let _ = parse_size(&text);
        }

        #[test]
        fn whole_sizes_are_read_as_printed(units in 0u64..1024, power in 0u32..5) {
            let bytes = units << (10 * power);
            prop_assert_eq!(parse_size(&size(bytes)), Ok(bytes));
        }
    }
}
