//! The URL of a server.

use crate::failure::{Failure, Result};
use crate::network::DEFAULT_PORT;
use crate::units::printable;
use std::fmt;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const SCHEME: &str = "onefold://";

/// Returns whether a store is behind a server.
pub fn is_url(store: &Path) -> bool {
    store.as_os_str().as_bytes().starts_with(SCHEME.as_bytes())
}

/// An account on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The account.
    pub account: String,
    /// The host: a name or an address, of version 6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Address {
    /// Reads `onefold://ACCOUNT@HOST[:PORT]`.
    pub fn parse(url: &Path) -> Result<Address> {
        let text = printable(url.as_os_str().as_bytes());
        let read = || {
            let rest = url.to_str()?.strip_prefix(SCHEME)?;
            let rest = rest.strip_suffix('/').unwrap_or(rest);
            let (account, server) = rest.split_once('@')?;
            let (host, port) = match server.strip_prefix('[') {
                Some(rest) => {
                    let (host, port) = rest.split_once(']')?;
                    host.parse::<std::net::Ipv6Addr>().ok()?;
                    (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
                }
                None => match server.split_once(':') {
                    Some((host, port)) => (host, Some(port)),
                    None => (server, None),
                },
            };
            let port = match port {
                Some(port) => port.parse::<u16>().ok().filter(|port| *port > 0)?,
                None => DEFAULT_PORT,
            };
            let is_name = |text: &str, extra: &[u8]| {
                !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || extra.contains(&byte))
            };
            let is_valid = is_name(account, b"._-") && account.len() <= 64 && is_name(host, b"._-:");
            is_valid.then(|| Address { account: account.to_owned(), host: host.to_ascii_lowercase(), port })
        };
        read().ok_or_else(|| {
            Failure::cannot_run(format!("`{text}` is not the address of a server")).advise(
                "write onefold://ACCOUNT@HOST or onefold://ACCOUNT@HOST:PORT; an IPv6 address in brackets, as in onefold://ann@[::1]",
            )
        })
    }

    /// Returns the server as people write it.
    pub fn server(&self) -> String {
        if self.host.contains(':') { format!("[{}]:{}", self.host, self.port) } else { format!("{}:{}", self.host, self.port) }
    }

    /// Returns whether the server is on this machine.
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{SCHEME}{}@{}", self.account, self.server())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_an_account_a_host_and_perhaps_a_port() {
        for (text, expected) in [
            ("onefold://ann@backup.example.com", "onefold://ann@backup.example.com:8210"),
            ("onefold://ann@Backup:1/", "onefold://ann@backup:1"),
            ("onefold://a.b-c_9@[::1]", "onefold://a.b-c_9@[::1]:8210"),
            ("onefold://ann@[fe80::1]:99", "onefold://ann@[fe80::1]:99"),
            ("onefold://ann@10.0.0.1:8210", "onefold://ann@10.0.0.1:8210"),
        ] {
            assert_eq!(Address::parse(Path::new(text)).unwrap().to_string(), expected);
        }
        for wrong in ["onefold://host", "onefold://@host", "onefold://ann@", "onefold://ann@h:0", "onefold://ann@h:x", "onefold://a@b@c"] {
            assert!(Address::parse(Path::new(wrong)).unwrap_err().advice.unwrap().contains("ACCOUNT@HOST"), "{wrong}");
        }
        for wrong in ["onefold://ann@[::1", "onefold://ann@[::1]9", "onefold://ann@h/path", "onefold://ann:secret@h", "onefold://ann@::1"] {
            assert!(Address::parse(Path::new(wrong)).is_err(), "{wrong}");
        }
        assert!(!is_url(Path::new("/onefold://x")) && is_url(Path::new("onefold://x")));
    }
}
