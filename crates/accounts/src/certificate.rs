//! Certificates of clients: which an account accepts beside its secret.

use super::error::{AccountError, Result};
use onefold_ground::wire::{Reader, WireError, put_varint};
use std::fmt;
use std::str::FromStr;

/// Most certificates of an account.
const MAX_CERTIFICATES: usize = 16;

/// The SHA-256 of a certificate as it is sent (DER).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CertificateFingerprint(pub [u8; 32]);

impl FromStr for CertificateFingerprint {
    type Err = AccountError;

    /// Reads 64 hexadecimal digits, perhaps with a colon after each two.
    fn from_str(text: &str) -> Result<CertificateFingerprint> {
        let wrong = || AccountError::Certificate { text: text.chars().take(128).collect() };
        let digits: String = if text.contains(':') {
            let pairs: Vec<&str> = text.split(':').collect();
            if pairs.iter().any(|pair| pair.len() != 2) { return Err(wrong()) } else { pairs.concat() }
        } else {
            text.to_owned()
        };
        if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| wrong())?;
        }
        Ok(CertificateFingerprint(bytes))
    }
}

impl fmt::Display for CertificateFingerprint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

/// Whether a client must present a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CertificateRule {
    /// A client may come without. If it presents a certificate, this must be one of the account's.
    #[default]
    May,
    /// A client must present one of the account's certificates.
    Must,
}

/// The certificates that an account accepts. Without any, none is looked at, unless one must be presented: then nobody
/// comes in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certificates {
    /// The accepted ones.
    pub accepted: Vec<CertificateFingerprint>,
    /// Whether one must be presented.
    pub rule: CertificateRule,
}

impl Certificates {
    /// Returns whether a client with this certificate, or without one, may come in.
    pub fn accepts(&self, presented: Option<&CertificateFingerprint>) -> bool {
        match (presented, self.rule) {
            (None, rule) => rule == CertificateRule::May,
            (Some(_), CertificateRule::May) if self.accepted.is_empty() => true,
            (Some(presented), _) => self.accepted.contains(presented),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.accepted.len() > MAX_CERTIFICATES {
            return Err(AccountError::TooMany { what: "certificates of an account", limit: MAX_CERTIFICATES });
        }
        Ok(())
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.rule == CertificateRule::Must));
        put_varint(out, self.accepted.len() as u64);
        self.accepted.iter().for_each(|certificate| out.extend_from_slice(&certificate.0));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> std::result::Result<Certificates, WireError> {
        let offset_bytes = reader.position();
        let rule = match reader.u8()? {
            0 => CertificateRule::May,
            1 => CertificateRule::Must,
            value => return Err(WireError::OutOfRange { what: "rule of certificates", value: value.into(), offset_bytes }),
        };
        let offset_bytes = reader.position();
        let count = reader.count("certificates", 32)?;
        if count > MAX_CERTIFICATES {
            return Err(WireError::OutOfRange { what: "certificates", value: count as u64, offset_bytes });
        }
        let mut accepted = Vec::with_capacity(count);
        for _ in 0..count {
            accepted.push(CertificateFingerprint(reader.take(32)?.try_into().expect("take returns as many bytes as asked")));
        }
        Ok(Certificates { accepted, rule })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_as_tools_print_it() {
        let text = "ab".repeat(32);
        let colons = vec!["AB"; 32].join(":");
        assert_eq!(text.parse::<CertificateFingerprint>().unwrap(), colons.parse().unwrap());
        assert_eq!(colons.parse::<CertificateFingerprint>().unwrap().to_string(), text);
        for wrong in ["", "ab", &"ab".repeat(33), &"ag".repeat(32), &"ä".repeat(32), &format!("a:b{}", "ab".repeat(31)), &":".repeat(64)] {
            assert!(wrong.parse::<CertificateFingerprint>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_certificate_may_or_must_be_presented_and_a_wrong_one_is_refused() {
        let [own, other] = [CertificateFingerprint([1; 32]), CertificateFingerprint([2; 32])];
        let of = |accepted: &[CertificateFingerprint], rule| Certificates { accepted: accepted.to_vec(), rule };
        let answers = |certificates: Certificates| [None, Some(&own), Some(&other)].map(|presented| certificates.accepts(presented));
        assert_eq!(answers(of(&[], CertificateRule::May)), [true, true, true]);
        assert_eq!(answers(of(&[own], CertificateRule::May)), [true, true, false]);
        assert_eq!(answers(of(&[own], CertificateRule::Must)), [false, true, false]);
        assert_eq!(answers(of(&[], CertificateRule::Must)), [false, false, false]);
    }
}
