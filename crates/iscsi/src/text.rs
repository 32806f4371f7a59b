//! Key=value pairs of login and text PDUs (RFC 7143 section 6.1).

/// The most bytes of all pairs of one negotiation.
pub const MAX_TEXT_BYTES: usize = 16 << 10;
/// The most bytes of a key and of a value (RFC 7143 sections 6.1 and 6.2.2).
const MAX_KEY_BYTES: usize = 63;
const MAX_VALUE_BYTES: usize = 8192;

/// Reads pairs, each ended by a zero byte. The last one may lack it.
pub fn parse(bytes: &[u8]) -> Result<Vec<(String, String)>, &'static str> {
    let mut pairs = Vec::new();
    for pair in bytes.split(|byte| *byte == 0).filter(|pair| !pair.is_empty()) {
        let text = std::str::from_utf8(pair).map_err(|_| "a key or value is not UTF-8")?;
        let (key, value) = text.split_once('=').ok_or("a key has no value")?;
        if key.is_empty() || key.len() > MAX_KEY_BYTES || value.len() > MAX_VALUE_BYTES {
            return Err("a key or value is too long");
        }
        pairs.push((key.to_owned(), value.to_owned()));
    }
    Ok(pairs)
}

/// Appends a pair.
pub fn put(out: &mut Vec<u8>, key: &str, value: &str) {
    out.extend_from_slice(key.as_bytes());
    out.push(b'=');
    out.extend_from_slice(value.as_bytes());
    out.push(0);
}

/// Reads a number in decimal or hexadecimal.
pub fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Reads bytes in hexadecimal (`0x...`) or base64 (`0b...`).
pub fn binary(text: &str) -> Option<Vec<u8>> {
    let (head, digits) = text.split_at_checked(2)?;
    match head {
        "0x" | "0X" => {
            let digits = if digits.len() % 2 == 1 { format!("0{digits}") } else { digits.to_owned() };
            let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
            (0..digits.len()).step_by(2).map(byte).collect()
        }
        "0b" | "0B" => base64(digits),
        _ => None,
    }
}

fn base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let (mut out, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(out)
}

/// Writes bytes in hexadecimal, with a leading `0x`.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_as_written() {
        let mut bytes = Vec::new();
        put(&mut bytes, "InitiatorName", "iqn.a");
        put(&mut bytes, "Empty", "");
        assert_eq!(parse(&bytes).unwrap(), [("InitiatorName".into(), "iqn.a".into()), ("Empty".into(), String::new())]);
        assert!(parse(b"NoValue\0").is_err() && parse(&[b'a', b'=', 0xff, 0]).is_err());
        assert!(parse(format!("{}=1", "k".repeat(64)).as_bytes()).is_err());
    }

    #[test]
    fn numbers_and_bytes_in_all_notations() {
        assert_eq!((number("0x1F"), number("31"), number("3g")), (Some(31), Some(31), None));
        assert_eq!(binary("0x0aff"), Some(vec![10, 255]));
        assert_eq!(binary("0xfff"), Some(vec![15, 255]));
        assert_eq!(binary("0bAQID"), Some(vec![1, 2, 3]));
        assert_eq!(binary("0bAQI="), Some(vec![1, 2]));
        assert_eq!((binary("12"), binary("0bA*")), (None, None));
        assert_eq!(hexadecimal(&[1, 0xab]), "0x01ab");
    }
}
