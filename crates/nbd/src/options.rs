//! Options of the negotiation as bytes: parses what clients send, builds the answers. No I/O.

use crate::wire::{Fields, MAX_STRING_BYTES, OPTION_MAGIC, OPTION_REPLY_MAGIC, info, option, option_reply};

/// Bytes of the header of an option.
pub const HEADER_BYTES: usize = 16;

/// The longest option data that is read, in bytes. Longer data is skipped up to [`MAX_SKIPPED_BYTES`]. Anything beyond
/// counts as an attack.
pub const MAX_DATA_BYTES: u32 = 64 << 10;

/// The longest option data that is skipped, in bytes.
pub const MAX_SKIPPED_BYTES: u32 = 1 << 20;

/// The most queries in one request for metadata contexts.
const MAX_QUERIES: u32 = 256;

/// The header of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// The option.
    pub option: u32,
    /// Bytes of data after the header.
    pub length: u32,
}

/// Reads the header of an option. Returns `None` if its magic is wrong.
pub fn parse_header(bytes: &[u8; HEADER_BYTES]) -> Option<OptionHeader> {
    let mut fields = Fields(bytes);
    (fields.u64()? == OPTION_MAGIC).then_some(())?;
    Some(OptionHeader { option: fields.u32()?, length: fields.u32()? })
}

/// A parsed option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionRequest {
    /// Begin with this export. This is an old form, without error answers.
    ExportName(String),
    /// End the session.
    Abort,
    /// List the exports.
    List,
    /// Start TLS.
    StartTls,
    /// Describe an export and, with `go`, begin with it.
    Info {
        /// Whether to begin with it.
        go: bool,
        /// The export.
        name: String,
        /// What the client wants besides size and flags.
        wants: Wants,
    },
    /// Use structured replies.
    StructuredReply,
    /// Use extended headers.
    ExtendedHeaders,
    /// List or choose metadata contexts.
    MetaContext {
        /// Whether to choose, not only list.
        set: bool,
        /// The export.
        name: String,
        /// Names of contexts, or a namespace to list: `namespace:`.
        queries: Vec<String>,
    },
    /// An option that this server does not have.
    Unknown,
}

/// What a client wants to know about an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Its name.
    pub name: bool,
    /// Its description.
    pub description: bool,
    /// Its block sizes.
    pub block_sizes: bool,
}

/// What is wrong with an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionFault {
    /// Its data breaks the protocol.
    Invalid(&'static str),
    /// It asks for too much data.
    TooBig(&'static str),
}

/// Reads the data of an option.
pub fn parse(option: u32, data: &[u8]) -> Result<OptionRequest, OptionFault> {
    let without_data = |request| if data.is_empty() { Ok(request) } else { Err(OptionFault::Invalid("this option must not have data")) };
    match option {
        option::EXPORT_NAME => Ok(OptionRequest::ExportName(string(data)?)),
        // The protocol recommends ignoring data here.
        option::ABORT => Ok(OptionRequest::Abort),
        option::LIST => without_data(OptionRequest::List),
        option::STARTTLS => without_data(OptionRequest::StartTls),
        option::STRUCTURED_REPLY => without_data(OptionRequest::StructuredReply),
        option::EXTENDED_HEADERS => without_data(OptionRequest::ExtendedHeaders),
        option::INFO | option::GO => parse_info(option == option::GO, data),
        option::LIST_META_CONTEXT | option::SET_META_CONTEXT => parse_meta_context(option == option::SET_META_CONTEXT, data),
        _ => Ok(OptionRequest::Unknown),
    }
}

const SHORT: OptionFault = OptionFault::Invalid("the data is shorter than its length field says");
const LONG: OptionFault = OptionFault::Invalid("the data is longer than its length field says");

fn parse_info(go: bool, data: &[u8]) -> Result<OptionRequest, OptionFault> {
    let mut fields = Fields(data);
    let name = counted_string(&mut fields)?;
    let requests = fields.u16().ok_or(SHORT)?;
    let mut wants = Wants::default();
    for _ in 0..requests {
        match fields.u16().ok_or(SHORT)? {
            info::NAME => wants.name = true,
            info::DESCRIPTION => wants.description = true,
            info::BLOCK_SIZE => wants.block_sizes = true,
            _ => {}
        }
    }
    if fields.0.is_empty() { Ok(OptionRequest::Info { go, name, wants }) } else { Err(LONG) }
}

fn parse_meta_context(set: bool, data: &[u8]) -> Result<OptionRequest, OptionFault> {
    let mut fields = Fields(data);
    let name = counted_string(&mut fields)?;
    let count = fields.u32().ok_or(SHORT)?;
    if count > MAX_QUERIES {
        return Err(OptionFault::TooBig("too many queries"));
    }
    let queries = (0..count).map(|_| counted_string(&mut fields)).collect::<Result<Vec<_>, _>>()?;
    if !fields.0.is_empty() {
        return Err(LONG);
    }
    if queries.iter().any(|query| !query.contains(':')) {
        return Err(OptionFault::Invalid("a query must begin with a namespace and a colon"));
    }
    Ok(OptionRequest::MetaContext { set, name, queries })
}

fn counted_string(fields: &mut Fields<'_>) -> Result<String, OptionFault> {
    let length = fields.u32().ok_or(SHORT)?;
    string(fields.bytes(length as usize).ok_or(SHORT)?)
}

fn string(bytes: &[u8]) -> Result<String, OptionFault> {
    if bytes.len() > MAX_STRING_BYTES {
        return Err(OptionFault::Invalid("a string must have at most 4096 bytes"));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| OptionFault::Invalid("a string must be UTF-8"))?;
    if text.contains('\0') { Err(OptionFault::Invalid("a string must not have a NUL byte")) } else { Ok(text.to_owned()) }
}

/// Appends a reply to an option.
pub(crate) fn put_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let length: usize = data.iter().map(|part| part.len()).sum();
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    // Replies hold at most a name, a description and some numbers.
    out.extend((length as u32).to_be_bytes());
    data.iter().for_each(|part| out.extend_from_slice(part));
}

/// Appends the reply to a faulty option.
pub(crate) fn put_fault(out: &mut Vec<u8>, option: u32, fault: OptionFault) {
    let (kind, text) = match fault {
        OptionFault::Invalid(text) => (option_reply::ERR_INVALID, text),
        OptionFault::TooBig(text) => (option_reply::ERR_TOO_BIG, text),
    };
    put_reply(out, option, kind, &[text.as_bytes()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counted(text: &str) -> Vec<u8> {
        [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
    }

    #[test]
    fn a_header_needs_the_magic() {
        let mut bytes = *b"IHAVEOPT\0\0\0\x07\0\0\x01\0";
        assert_eq!(parse_header(&bytes), Some(OptionHeader { option: option::GO, length: 256 }));
        bytes[0] = b'i';
        assert_eq!(parse_header(&bytes), None);
    }

    #[test]
    fn info_is_read_with_its_requests_and_unknown_ones_are_ignored() {
        let data = [counted("disk"), vec![0, 3, 0, 3, 0, 1, 0, 99]].concat();
        let wants = Wants { name: true, description: false, block_sizes: true };
        assert_eq!(parse(option::GO, &data), Ok(OptionRequest::Info { go: true, name: "disk".into(), wants }));
    }

    #[test]
    fn data_that_is_too_short_or_too_long_is_invalid() {
        let whole = [counted("disk"), vec![0, 1, 0, 3]].concat();
        for length in 0..whole.len() {
            assert_eq!(parse(option::INFO, &whole[..length]), Err(SHORT), "{length}");
        }
        assert_eq!(parse(option::INFO, &[whole, vec![0]].concat()), Err(LONG));
        assert!(parse(option::LIST, &[0]).is_err());
        assert!(parse(option::STARTTLS, &[0]).is_err());
        assert_eq!(parse(option::ABORT, &[0]), Ok(OptionRequest::Abort));
    }

    #[test]
    fn names_are_bounded_utf8_without_nul() {
        assert!(parse(option::EXPORT_NAME, &[b'a'; 4096]).is_ok());
        for wrong in [&[b'a'; 4097][..], b"a\xff", b"a\0b"] {
            assert!(matches!(parse(option::EXPORT_NAME, wrong), Err(OptionFault::Invalid(_))));
        }
    }

    #[test]
    fn queries_need_a_namespace_and_have_a_bound() {
        let ask = |count: u32, queries: &[&str]| {
            let queries = queries.iter().flat_map(|query| counted(query)).collect::<Vec<_>>();
            parse(option::SET_META_CONTEXT, &[counted("disk"), count.to_be_bytes().to_vec(), queries].concat())
        };
        assert!(matches!(ask(1, &["base:allocation"]), Ok(OptionRequest::MetaContext { set: true, queries, .. }) if queries.len() == 1));
        assert!(matches!(ask(1, &["base"]), Err(OptionFault::Invalid(_))));
        assert!(matches!(ask(u32::MAX, &["base:"]), Err(OptionFault::TooBig(_))));
        assert_eq!(ask(2, &["base:"]), Err(SHORT));
        assert_eq!(ask(1, &["base:", "x-a:"]), Err(LONG));
    }

    proptest! {
        #[test]
        fn arbitrary_option_data_is_parsed_or_refused(option in 0u32..13, data in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(option, &data);
        }

        #[test]
        fn arbitrary_names_and_counts_are_parsed_or_refused(
            option in 6u32..11, length in 0u32..20, rest in proptest::collection::vec(0u8..4, 0..60),
        ) {
            let _ = parse(option, &[&length.to_be_bytes()[..], &rest].concat());
        }
    }
}
