//! What znodes contain: lines of a word and its value, the first of which says what it is and in which version.
//! Operators can read them. Whatever does not read as it is written is damaged.

use crate::{CoordinatorError, Result};
use onefold_cluster::{NodeNumber, Opening};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Longest content.
const LIMIT_BYTES: usize = 1536;
/// Longest address.
const ADDRESS_LIMIT_BYTES: usize = 255;
const NODE: &str = "onefold-node 1";
const TABLE: &str = "onefold-table 1";
const STORE: &str = "onefold-store 1";

/// A node, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The opening of its log.
    pub opening: Opening,
    /// Where other nodes reach it.
    pub address: String,
    /// Where clients reach it: by the name of the protocol.
    pub faces: Faces,
    /// The newest table that it knew when it wrote this.
    pub table: Option<u64>,
}

impl Listed {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = format!("{NODE}\nopening {}\naddress {}\n", self.opening.0, self.address);
        for (protocol, address) in &self.faces {
            writeln!(text, "face {protocol} {address}").expect("a string takes everything");
        }
        if let Some(table) = self.table {
            writeln!(text, "table {table}").expect("a string takes everything");
        }
        text.into_bytes()
    }

    pub(crate) fn decode(path: &str, content: &[u8]) -> Result<Listed> {
        let mut lines = Lines::begin(path, content, NODE)?;
        let opening = Opening(lines.number("opening")?);
        let address = lines.value("address")?.to_owned();
        let mut faces = Faces::new();
        while lines.rest.starts_with("face ") {
            let (protocol, address) = lines.value("face")?.split_once(' ').ok_or_else(|| damaged(path, "a face has no address"))?;
            let is_next = faces.last_key_value().is_none_or(|(last, _)| **last < *protocol);
            if !is_next || faces.insert(protocol.to_owned(), address.to_owned()).is_some() {
                return Err(damaged(path, "its faces do not ascend"));
            }
        }
        check_faces(&faces).map_err(|why| damaged(path, why))?;
        let table = if lines.is_at_end() { None } else { Some(lines.number("table")?) };
        check_address(&address).map_err(|why| damaged(path, why))?;
        if opening.0 == 0 {
            return Err(damaged(path, "opening 0"));
        }
        lines.end(Listed { opening, address, faces, table })
    }
}

/// Where clients reach a node: by the name of a protocol, `HOST:PORT`.
pub type Faces = BTreeMap<String, String>;

/// Most faces of a node.
const FACES_LIMIT: usize = 3;

/// Returns what is wrong with faces.
pub(crate) fn check_faces(faces: &Faces) -> std::result::Result<(), &'static str> {
    let is_name = |name: &String| !name.is_empty() && name.len() <= 16 && name.chars().all(|character| character.is_ascii_lowercase());
    match faces {
        _ if faces.len() > FACES_LIMIT => Err("it has too many faces"),
        _ if !faces.keys().all(is_name) => Err("the name of a face has a strange character, or is too long"),
        _ => faces.values().try_for_each(|address| check_address(address)),
    }
}

/// Returns what is wrong with an address.
pub(crate) fn check_address(address: &str) -> std::result::Result<(), &'static str> {
    match address {
        "" => Err("the address is empty"),
        _ if address.len() > ADDRESS_LIMIT_BYTES => Err("the address is too long"),
        _ if address.chars().any(|character| !character.is_ascii_graphic()) => Err("the address has a strange character"),
        _ => Ok(()),
    }
}

/// Errors: an address cannot be written down.
pub(crate) fn check_joining(address: &str, faces: &Faces) -> Result<()> {
    let setting = |what| move |why: &str| CoordinatorError::Setting { what, why: why.to_owned() };
    check_address(address).map_err(setting("the address"))?;
    check_faces(faces).map_err(setting("an address for clients"))
}

/// Returns the content of the number of the table.
pub(crate) fn encode_table(number: u64) -> Vec<u8> {
    format!("{TABLE}\nnumber {number}\n").into_bytes()
}

pub(crate) fn decode_table(path: &str, content: &[u8]) -> Result<u64> {
    let mut lines = Lines::begin(path, content, TABLE)?;
    let number = lines.number("number")?;
    lines.end(number)
}

/// Returns the content of a store: how long sessions are.
pub(crate) fn encode_store(session_ms: u64) -> Vec<u8> {
    format!("{STORE}\nsession-ms {session_ms}\n").into_bytes()
}

pub(crate) fn decode_store(path: &str, content: &[u8]) -> Result<u64> {
    let mut lines = Lines::begin(path, content, STORE)?;
    let session_ms = lines.number("session-ms")?;
    lines.end(session_ms)
}

/// Returns the number that a name of a znode says. `None`: no node writes this name.
pub(crate) fn node_of_name(name: &str) -> Option<NodeNumber> {
    let number = name.parse::<u32>().ok()?;
    (number.to_string() == name).then_some(NodeNumber(number))
}

fn damaged(path: &str, why: impl Into<String>) -> CoordinatorError {
    CoordinatorError::Damaged { path: path.to_owned(), why: why.into() }
}

struct Lines<'a> {
    path: &'a str,
    rest: &'a str,
}

impl<'a> Lines<'a> {
    fn begin(path: &'a str, content: &'a [u8], kind: &str) -> Result<Lines<'a>> {
        if content.len() > LIMIT_BYTES {
            return Err(damaged(path, format!("{} bytes", content.len())));
        }
        let text = std::str::from_utf8(content).map_err(|_| damaged(path, "it is no text"))?;
        let mut lines = Lines { path, rest: text };
        match lines.line()? {
            first if first == kind => Ok(lines),
            _ => Err(damaged(path, format!("it does not begin with {kind:?}"))),
        }
    }

    fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    fn line(&mut self) -> Result<&'a str> {
        let (line, rest) = self.rest.split_once('\n').ok_or_else(|| damaged(self.path, "it ends too early"))?;
        self.rest = rest;
        Ok(line)
    }

    fn value(&mut self, word: &str) -> Result<&'a str> {
        let line = self.line()?;
        let value = line.strip_prefix(word).and_then(|rest| rest.strip_prefix(' '));
        value.ok_or_else(|| damaged(self.path, format!("{word:?} is missing")))
    }

    /// Only as it is written: without a sign, and without zeros before it.
    fn number(&mut self, word: &str) -> Result<u64> {
        let value = self.value(word)?;
        let number = value.parse::<u64>().ok().filter(|number| number.to_string() == value);
        number.ok_or_else(|| damaged(self.path, format!("{word:?} is no number")))
    }

    fn end<T>(self, value: T) -> Result<T> {
        if self.is_at_end() { Ok(value) } else { Err(damaged(self.path, "it goes on behind its end")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn m4_3_contents_are_lines_that_an_operator_can_read() {
        let mut listed = Listed { opening: Opening(7), address: "one.example:7420".to_owned(), faces: Faces::new(), table: Some(12) };
        assert_eq!(listed.encode(), b"onefold-node 1\nopening 7\naddress one.example:7420\ntable 12\n");
        listed.faces.insert("nbd".to_owned(), "one.example:10809".to_owned());
        assert_eq!(listed.encode(), b"onefold-node 1\nopening 7\naddress one.example:7420\nface nbd one.example:10809\ntable 12\n");
        assert_eq!(encode_table(12), b"onefold-table 1\nnumber 12\n");
        assert_eq!(encode_store(6000), b"onefold-store 1\nsession-ms 6000\n");
    }

    #[test]
    fn m4_3_every_change_of_a_content_is_an_error_or_another_value() {
        let listed = Listed { opening: Opening(70), address: "[::1]:7420".to_owned(), faces: Faces::new(), table: None };
        let content = listed.encode();
        for length in 0..content.len() {
            assert!(Listed::decode("n", &content[..length]).is_err(), "{length}");
        }
        for at in 0..content.len() {
            for bit in 0..8 {
                let mut changed = content.clone();
                changed[at] ^= 1 << bit;
                assert_ne!(Listed::decode("n", &changed).ok(), Some(listed.clone()));
            }
        }
        for wrong in [
            "onefold-node 2\nopening 1\naddress a:1\n",
            "onefold-node 1\nopening 0\naddress a:1\n",
            "onefold-node 1\nopening 01\naddress a:1\n",
            "onefold-node 1\nopening +1\naddress a:1\n",
            "onefold-node 1\nopening 18446744073709551616\naddress a:1\n",
            "onefold-node 1\nopening 1\naddress \n",
            "onefold-node 1\nopening 1\naddress a b\n",
            "onefold-node 1\nopening 1\naddress \u{e4}:1\n",
            "onefold-node 1\nopening 1\naddress a:1\ntable\n",
            "onefold-node 1\nopening 1\naddress a:1\nface nbd\n",
            "onefold-node 1\nopening 1\naddress a:1\nface NBD a:1\n",
            "onefold-node 1\nopening 1\naddress a:1\nface nbd a:1\nface nbd a:1\n",
            "onefold-node 1\nopening 1\naddress a:1\nface nbd a:1\nface iscsi a:1\n",
            "onefold-node 1\nopening 1\naddress a:1\nface nbd a b\n",
            "onefold-node 1\nopening 1\naddress a:1\ntable 1\nmore 1\n",
        ] {
            let error = Listed::decode("/n/1", wrong.as_bytes()).unwrap_err();
            assert!(matches!(error, CoordinatorError::Damaged { ref path, .. } if path == "/n/1"), "{wrong:?}: {error}");
        }
        assert!(Listed::decode("n", &[b'a'; LIMIT_BYTES + 1]).is_err());
        assert!(decode_table("t", b"onefold-table 1\nnumber -1\n").is_err());
        assert!(decode_store("s", b"").is_err());
    }

    #[test]
    fn m4_3_only_canonical_names_are_nodes() {
        for (name, node) in [("0", Some(0)), ("17", Some(17)), ("4294967295", Some(u32::MAX))] {
            assert_eq!(node_of_name(name), node.map(NodeNumber));
        }
        for name in ["", "01", "+1", "-1", "1 ", "4294967296", "one", "\u{663}"] {
            assert_eq!(node_of_name(name), None, "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn m4_3_a_content_reads_as_it_was_written(
            opening in 1u64..,
            address in "[!-~]{1,255}",
            faces in proptest::collection::btree_map("[a-z]{1,16}", "[!-~]{1,255}", 0..=FACES_LIMIT),
            table in proptest::option::of(any::<u64>()),
        ) {
            let listed = Listed { opening: Opening(opening), address, faces, table };
            prop_assert_eq!(Listed::decode("n", &listed.encode()).unwrap(), listed);
        }

        #[test]
        fn m4_3_any_bytes_are_read_without_a_panic(content in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Listed::decode("n", &content);
            let _ = (decode_table("t", &content), decode_store("s", &content));
        }
    }
}
