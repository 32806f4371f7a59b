//! Who may connect: patterns for names of initiators, and networks.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A network: an address and the number of its first bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Returns the network of all addresses with the same first bits as `address`. `None`: the address does not have
    /// that many bits, or has other bits set.
    pub fn new(address: IpAddr, bits: u8) -> Option<Network> {
        let (number, all) = number(address);
        (bits <= all && number & !mask(bits, all) == 0).then_some(Network { address, bits })
    }

    /// Returns its address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns how many bits count.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Returns whether an address is in it. An IPv4 address mapped to IPv6 counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (own, all) = number(self.address);
        let (other, others) = number(address.to_canonical());
        all == others && (own ^ other) & mask(self.bits, all) == 0
    }
}

fn number(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

/// Returns a mask with the first `bits` of `all` bits set.
fn mask(bits: u8, all: u8) -> u128 {
    let ones = |count: u8| if count == 0 { 0 } else { u128::MAX >> (128 - u32::from(count)) };
    ones(all) & !ones(all - bits)
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let wrong = || format!("`{text}` is not a network: write an address and a prefix length, as in 192.168.7.0/24 or fd00::/8");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits = bits.unwrap_or(if address.is_ipv4() { 32 } else { 128 });
        Network::new(address, bits)
            .ok_or_else(|| format!("`{text}` is not a network: bits after the first {bits} are set, or the address has fewer"))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.address, self.bits)
    }
}

/// Returns whether a name matches a pattern. `*` stands for any number of characters and `?` for one. Case does not
/// matter.
pub fn matches_pattern(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut at, mut of) = (0, 0);
    // The last `*`, and where the name was when it was met. From there the match retries with one more character.
    let mut star: Option<(usize, usize)> = None;
    while of < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, of));
                at += 1;
            }
            Some(b'?') => (at, of) = (at + 1, of + 1),
            Some(byte) if byte.eq_ignore_ascii_case(&name[of]) => (at, of) = (at + 1, of + 1),
            _ => match &mut star {
                Some((behind, taken)) => {
                    *taken += 1;
                    (at, of) = (*behind + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_their_addresses_and_no_others() {
        let network: Network = "10.1.0.0/16".parse().unwrap();
        for (address, inside) in [("10.1.2.3", true), ("10.2.0.0", false), ("::ffff:10.1.2.3", true), ("fd00::1", false)] {
            assert_eq!(network.contains(address.parse().unwrap()), inside, "{address}");
        }
        assert_eq!(network.to_string(), "10.1.0.0/16");
        assert!("fd00::/8".parse::<Network>().unwrap().contains("fdff::1".parse().unwrap()));
        assert!("0.0.0.0/0".parse::<Network>().unwrap().contains("1.2.3.4".parse().unwrap()));
        assert_eq!("1.2.3.4".parse::<Network>().unwrap().bits(), 32);
        for text in ["10.1.0.0/8", "10.0.0.0/33", "10.0.0/8", "host", "10.0.0.0/-1", ""] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }

    #[test]
    fn patterns_match_what_they_say() {
        for (pattern, name, expected) in [
            ("iqn.1993-08.org.debian:01:abc", "iqn.1993-08.org.debian:01:ABC", true),
            ("iqn.1993-08.org.debian:*", "iqn.1993-08.org.debian:01:abc", true),
            ("iqn.*:host-?", "iqn.2026-01.com.example:a:host-7", true),
            ("iqn.*:host-?", "iqn.2026-01.com.example:a:host-", false),
            ("*", "", true),
            ("*a*b*c", "xxaxxbxxbxxc", true),
            ("*a*b*c", "xxaxxbxxbxx", false),
            ("iqn", "iqn.x", false),
            ("", "", true),
        ] {
            assert_eq!(matches_pattern(pattern, name), expected, "{pattern} {name}");
        }
    }
}
