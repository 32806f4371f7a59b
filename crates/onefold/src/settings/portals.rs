//! Addresses to listen on, as people write them.

use onefold_iscsi::PortalConfig;
use std::net::{SocketAddr, ToSocketAddrs};

/// The port of iSCSI (RFC 7143 section 14).
const DEFAULT_PORT: u16 = 3260;

/// Parses `ADDRESS[:PORT]`, optionally followed by `=ADVERTISED[:PORT]`: the address that initiators are told, if it
/// differs. A name may have several addresses.
pub fn parse_portal(text: &str) -> Result<Vec<PortalConfig>, String> {
    let (listen, advertised) = match text.split_once('=') {
        Some((listen, advertised)) => (listen, Some(advertised)),
        None => (text, None),
    };
    let wrong = |why: String| {
        format!(
            "has `{text}`: {why}; write an address and a port, as in 127.0.0.1:3260 or [::]:3260, perhaps with the one that initiators are told, as in 10.0.0.2:3260=san.example.com:3260"
        )
    };
    let advertised = advertised
        .map(|advertised| with_port(advertised).ok_or_else(|| wrong("the advertised address is invalid".to_owned())))
        .transpose()?;
    let listen = with_port(listen).ok_or_else(|| wrong("it is not an address".to_owned()))?;
    let addresses: Vec<_> = listen.to_socket_addrs().map_err(|error| wrong(error.to_string()))?.collect();
    if addresses.is_empty() {
        return Err(wrong("the name has no address".to_owned()));
    }
    Ok(addresses.into_iter().map(|listen| PortalConfig { listen, advertised: advertised.clone() }).collect())
}

/// Parses `ADDRESS[:PORT]`. A name may have several addresses.
pub fn parse_listen(text: &str, default_port: u16) -> Result<Vec<SocketAddr>, String> {
    let wrong = |why: String| format!("has `{text}`: {why}; write an address, perhaps with a port, as in 192.168.1.5:8210 or [::]");
    let listen = with_this_port(text, default_port).ok_or_else(|| wrong("it is not an address".to_owned()))?;
    let addresses: Vec<_> = listen.to_socket_addrs().map_err(|error| wrong(error.to_string()))?.collect();
    if addresses.is_empty() { Err(wrong("the name has no address".to_owned())) } else { Ok(addresses) }
}

/// The same with the port of iSCSI.
fn with_port(address: &str) -> Option<String> {
    with_this_port(address, DEFAULT_PORT)
}

/// The same with a port.
fn with_this_port(address: &str, default_port: u16) -> Option<String> {
    let has_port = match address.rsplit_once(':') {
        // An IPv6 address has its colons in brackets.
        Some((before, port)) => !before.contains(':') || before.ends_with(']') || port.is_empty(),
        None => false,
    };
    let is_bare_6 = address.parse::<std::net::Ipv6Addr>().is_ok();
    let whole = match (has_port, is_bare_6) {
        (_, true) => format!("[{address}]:{default_port}"),
        (true, _) => address.to_owned(),
        (false, _) => format!("{address}:{default_port}"),
    };
    let (host, port) = whole.rsplit_once(':')?;
    let is_sound = !host.is_empty() && !host.contains(char::is_whitespace) && !host.contains(',') && port.parse::<u16>().is_ok();
    is_sound.then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portals_are_read_with_and_without_ports() {
        let one = |text: &str| parse_portal(text).map(|portals| (portals[0].listen.to_string(), portals[0].advertised.clone()));
        assert_eq!(one("127.0.0.1"), Ok(("127.0.0.1:3260".to_owned(), None)));
        assert_eq!(one("127.0.0.1:0"), Ok(("127.0.0.1:0".to_owned(), None)));
        assert_eq!(one("::1"), Ok(("[::1]:3260".to_owned(), None)));
        assert_eq!(one("[::]:860"), Ok(("[::]:860".to_owned(), None)));
        assert_eq!(one("0.0.0.0=san.example.com"), Ok(("0.0.0.0:3260".to_owned(), Some("san.example.com:3260".to_owned()))));
        for text in ["", ":3260", "127.0.0.1:x", "127.0.0.1:99999", "127.0.0.1=", "127.0.0.1=a b", "127.0.0.1:1,1"] {
            assert!(parse_portal(text).is_err(), "{text}");
        }
    }
}
