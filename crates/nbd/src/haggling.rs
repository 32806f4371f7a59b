//! The negotiation as a state machine: an option goes in; the bytes to send and the next action come out. No I/O.

use crate::options::{self, OptionRequest, Wants, put_fault, put_reply};
use crate::style::Style;
use crate::wire::{
    INIT_MAGIC, MAX_PAYLOAD_BYTES, MAX_STRING_BYTES, OPTION_MAGIC, handshake_flag, info, option, option_reply, transmission_flag,
};
use crate::{Export, Exports};
use std::sync::Arc;

/// The only metadata context, and its id.
const ALLOCATION: &str = "base:allocation";
pub(crate) const ALLOCATION_ID: u32 = 1;

/// Returns the first message of the server.
pub fn greeting() -> [u8; 18] {
    let mut bytes = [0; 18];
    bytes[..8].copy_from_slice(&INIT_MAGIC.to_be_bytes());
    bytes[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    bytes[16..].copy_from_slice(&(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).to_be_bytes());
    bytes
}

/// The TLS state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsState {
    /// TLS is not available.
    Unavailable,
    /// TLS is available.
    Offered,
    /// TLS is required.
    Required,
    /// TLS is in use.
    Active,
}

/// A negotiation.
#[derive(Clone, Debug)]
pub struct Haggling {
    fixed_newstyle: bool,
    no_zeroes: bool,
    tls: TlsState,
    style: Style,
    /// The export for which the metadata context was chosen.
    context_of: Option<String>,
    stopping: bool,
}

/// The action after sending an answer.
pub enum Next {
    /// Read the next option.
    Continue,
    /// Do the TLS handshake, then read the next option.
    StartTls,
    /// Serve requests.
    Transmit(Session),
    /// Close the connection.
    Close,
}

/// The outcome of a negotiation.
#[derive(Clone)]
pub struct Session {
    /// The export.
    pub export: Arc<dyn Export>,
    /// The name that the client asked for.
    pub name: String,
    /// The form of requests and replies.
    pub style: Style,
    /// Whether the client may ask for block status.
    pub contexts: bool,
}

/// The answer to an option.
pub struct Answer {
    /// The bytes to send.
    pub bytes: Vec<u8>,
    /// The action after that.
    pub next: Next,
}

impl Haggling {
    /// Begins with the flags that the client sent after the greeting. Returns `None` if the flags are invalid, so that
    /// the connection must be closed.
    pub fn new(client_flags: u32, tls: TlsState) -> Option<Haggling> {
        let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        (client_flags & !known == 0).then_some(())?;
        let fixed_newstyle = client_flags & u32::from(handshake_flag::FIXED_NEWSTYLE) != 0;
        let no_zeroes = client_flags & u32::from(handshake_flag::NO_ZEROES) != 0;
        Some(Haggling { fixed_newstyle, no_zeroes, tls, style: Style::Simple, context_of: None, stopping: false })
    }

    /// Refuses options from now on, because the server stops.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Call after the TLS handshake. Nothing that was said in plain text counts any more.
    pub fn tls_started(&mut self) {
        self.tls = TlsState::Active;
        self.style = Style::Simple;
        self.context_of = None;
    }

    /// Answers an option.
    pub fn answer(&mut self, option: u32, data: &[u8], exports: &dyn Exports) -> Answer {
        let mut bytes = Vec::new();
        let next = self.decide(&mut bytes, option, data, exports);
        Answer { bytes, next }
    }

    /// Answers an option whose data is longer than [`options::MAX_DATA_BYTES`] and was skipped.
    pub fn answer_too_big(&mut self, option: u32) -> Answer {
        let next = if self.fixed_newstyle && option != option::EXPORT_NAME { Next::Continue } else { Next::Close };
        let mut bytes = Vec::new();
        put_fault(&mut bytes, option, options::OptionFault::TooBig("the option is too long"));
        Answer { bytes, next }
    }

    fn decide(&mut self, out: &mut Vec<u8>, option: u32, data: &[u8], exports: &dyn Exports) -> Next {
        // The old form has no error answers, and neither has an old-style client.
        if option == option::EXPORT_NAME {
            return self.begin_old_style(out, data, exports);
        }
        if !self.fixed_newstyle {
            return Next::Close;
        }
        if option == option::ABORT {
            put_reply(out, option, option_reply::ACK, &[]);
            return Next::Close;
        }
        if self.stopping {
            return refuse(out, option, option_reply::ERR_SHUTDOWN, "the server is stopping");
        }
        if self.tls == TlsState::Required && option != option::STARTTLS {
            return refuse(out, option, option_reply::ERR_TLS_REQD, "this server requires TLS");
        }
        let request = match options::parse(option, data) {
            Ok(request) => request,
            Err(fault) => {
                if option == option::SET_META_CONTEXT {
                    self.context_of = None;
                }
                put_fault(out, option, fault);
                return Next::Continue;
            }
        };
        match request {
            OptionRequest::List => list(out, exports),
            OptionRequest::StartTls => return self.start_tls(out),
            OptionRequest::Info { go, name, wants } => return self.inform(out, option, go, name, wants, exports),
            OptionRequest::StructuredReply if self.style == Style::Extended => {
                return refuse(out, option, option_reply::ERR_EXT_HEADER_REQD, "extended headers are already in use");
            }
            OptionRequest::StructuredReply => self.set_style(out, option, Style::Structured),
            OptionRequest::ExtendedHeaders => self.set_style(out, option, Style::Extended),
            OptionRequest::MetaContext { set, name, queries } => return self.meta_context(out, option, set, name, &queries, exports),
            // The first two were answered above.
            OptionRequest::ExportName(_) | OptionRequest::Abort | OptionRequest::Unknown => {
                return refuse(out, option, option_reply::ERR_UNSUP, "unknown option");
            }
        }
        Next::Continue
    }

    fn begin_old_style(&mut self, out: &mut Vec<u8>, data: &[u8], exports: &dyn Exports) -> Next {
        if self.stopping || self.tls == TlsState::Required || self.style == Style::Extended {
            return Next::Close;
        }
        let Ok(OptionRequest::ExportName(name)) = options::parse(option::EXPORT_NAME, data) else {
            return Next::Close;
        };
        let Some(session) = self.session(name, exports) else {
            return Next::Close;
        };
        out.extend(session.export.size().to_be_bytes());
        out.extend(session.transmission_flags().to_be_bytes());
        if !self.no_zeroes {
            out.extend([0; 124]);
        }
        Next::Transmit(session)
    }

    fn start_tls(&mut self, out: &mut Vec<u8>) -> Next {
        match self.tls {
            TlsState::Unavailable => refuse(out, option::STARTTLS, option_reply::ERR_POLICY, "this server has no TLS"),
            TlsState::Active => refuse(out, option::STARTTLS, option_reply::ERR_INVALID, "TLS is already in use"),
            TlsState::Offered | TlsState::Required => {
                put_reply(out, option::STARTTLS, option_reply::ACK, &[]);
                Next::StartTls
            }
        }
    }

    fn set_style(&mut self, out: &mut Vec<u8>, option: u32, style: Style) {
        self.style = style;
        put_reply(out, option, option_reply::ACK, &[]);
    }

    fn inform(&mut self, out: &mut Vec<u8>, option: u32, go: bool, name: String, wants: Wants, exports: &dyn Exports) -> Next {
        let Some(session) = self.session(name, exports) else {
            return refuse(out, option, option_reply::ERR_UNKNOWN, "no such export");
        };
        let mut put_info = |kind: u16, data: &[&[u8]]| {
            let kind = kind.to_be_bytes();
            let parts = [&[&kind[..]], data].concat();
            put_reply(out, option, option_reply::INFO, &parts);
        };
        put_info(info::EXPORT, &[&session.export.size().to_be_bytes(), &session.transmission_flags().to_be_bytes()]);
        if wants.name && !session.name.is_empty() {
            put_info(info::NAME, &[session.name.as_bytes()]);
        }
        if wants.description {
            let found = exports.list().into_iter().find(|export| export.name == session.name);
            if let Some(description) = found.map(|export| export.description).filter(|text| !text.is_empty()) {
                put_info(info::DESCRIPTION, &[bounded(&description).as_bytes()]);
            }
        }
        if wants.block_sizes {
            let preferred = preferred_block_bytes(&*session.export);
            put_info(info::BLOCK_SIZE, &[&1u32.to_be_bytes(), &preferred.to_be_bytes(), &MAX_PAYLOAD_BYTES.to_be_bytes()]);
        }
        put_reply(out, option, option_reply::ACK, &[]);
        if go { Next::Transmit(session) } else { Next::Continue }
    }

    fn meta_context(&mut self, out: &mut Vec<u8>, option: u32, set: bool, name: String, queries: &[String], exports: &dyn Exports) -> Next {
        if set {
            self.context_of = None;
        }
        if self.style == Style::Simple {
            return refuse(out, option, option_reply::ERR_INVALID, "request structured replies first");
        }
        if exports.open(&name).is_none() {
            return refuse(out, option, option_reply::ERR_UNKNOWN, "no such export");
        }
        let found = queries.iter().any(|query| query == ALLOCATION || (!set && query == "base:")) || (!set && queries.is_empty());
        if found {
            let id = if set { ALLOCATION_ID } else { 0 };
            put_reply(out, option, option_reply::META_CONTEXT, &[&id.to_be_bytes(), ALLOCATION.as_bytes()]);
            if set {
                self.context_of = Some(name);
            }
        }
        put_reply(out, option, option_reply::ACK, &[]);
        Next::Continue
    }

    fn session(&self, name: String, exports: &dyn Exports) -> Option<Session> {
        let export = exports.open(&name)?;
        let contexts = self.context_of.as_ref() == Some(&name);
        Some(Session { export, name, style: self.style, contexts })
    }
}

impl Session {
    /// Returns what the client may do with the export.
    pub fn transmission_flags(&self) -> u16 {
        use transmission_flag::*;
        // All connections work on the same export object, so a flush covers the writes of all: CAN_MULTI_CONN.
        let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN | SEND_CACHE;
        flags |= if self.export.read_only() { READ_ONLY } else { SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO };
        if self.style != Style::Simple {
            flags |= SEND_DF;
        }
        if self.style == Style::Extended && self.contexts {
            flags |= BLOCK_STATUS_PAYLOAD;
        }
        flags
    }
}

fn list(out: &mut Vec<u8>, exports: &dyn Exports) {
    for export in exports.list().iter().filter(|export| export.name.len() <= MAX_STRING_BYTES) {
        let length = export.name.len() as u32;
        let parts = [&length.to_be_bytes()[..], export.name.as_bytes(), bounded(&export.description).as_bytes()];
        put_reply(out, option::LIST, option_reply::SERVER, &parts);
    }
    put_reply(out, option::LIST, option_reply::ACK, &[]);
}

fn refuse(out: &mut Vec<u8>, option: u32, kind: u32, text: &str) -> Next {
    put_reply(out, option, kind, &[text.as_bytes()]);
    Next::Continue
}

/// Returns as much of a text as a protocol string may have.
fn bounded(text: &str) -> &str {
    let mut end = text.len().min(MAX_STRING_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn preferred_block_bytes(export: &dyn Export) -> u32 {
    export.preferred_block_bytes().clamp(512, MAX_PAYLOAD_BYTES).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExportError, ExportInfo, Extent};
    use proptest::prelude::*;

    struct Disk;

    impl Export for Disk {
        fn size(&self) -> u64 {
            1 << 20
        }
        fn read_only(&self) -> bool {
            false
        }
        fn preferred_block_bytes(&self) -> u32 {
            5000
        }
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), ExportError> {
            Ok(())
        }
        fn write(&self, _: u64, _: &[u8], _: bool) -> Result<(), ExportError> {
            Ok(())
        }
        fn flush(&self) -> Result<(), ExportError> {
            Ok(())
        }
        fn trim(&self, _: u64, _: u64, _: bool) -> Result<(), ExportError> {
            Ok(())
        }
        fn write_zeroes(&self, _: u64, _: u64, _: bool, _: bool) -> Result<(), ExportError> {
            Ok(())
        }
        fn cache(&self, _: u64, _: u64) -> Result<(), ExportError> {
            Ok(())
        }
        fn status(&self, _: u64, _: u64, _: usize) -> Result<Vec<Extent>, ExportError> {
            Ok(Vec::new())
        }
    }

    impl Exports for Disk {
        fn list(&self) -> Vec<ExportInfo> {
            vec![ExportInfo { name: "disk".into(), description: "a disk".into() }]
        }
        fn open(&self, name: &str) -> Option<Arc<dyn Export>> {
            ["", "disk"].contains(&name).then(|| Arc::new(Disk) as Arc<dyn Export>)
        }
    }

    fn haggling(tls: TlsState) -> Haggling {
        Haggling::new(3, tls).unwrap()
    }

    /// The kinds of the replies in an answer.
    fn kinds(answer: &Answer) -> Vec<u32> {
        let mut rest = &answer.bytes[..];
        let mut kinds = Vec::new();
        while !rest.is_empty() {
            let number = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().unwrap());
            kinds.push(number(12));
            rest = &rest[20 + number(16) as usize..];
        }
        kinds
    }

    fn go(name: &str) -> Vec<u8> {
        [&(name.len() as u32).to_be_bytes(), name.as_bytes(), &[0, 1, 0, 3]].concat()
    }

    fn contexts(name: &str, query: &str) -> Vec<u8> {
        let [name_length, query_length] = [name, query].map(|text| (text.len() as u32).to_be_bytes());
        [&name_length, name.as_bytes(), &[0, 0, 0, 1], &query_length, query.as_bytes()].concat()
    }

    #[test]
    fn unknown_client_flags_end_the_session() {
        assert!(Haggling::new(4, TlsState::Unavailable).is_none());
        assert!(Haggling::new(0, TlsState::Unavailable).is_some());
    }

    #[test]
    fn a_server_that_wants_tls_answers_nothing_else_before() {
        let mut haggling = haggling(TlsState::Required);
        for option in [option::LIST, option::INFO, option::GO, option::STRUCTURED_REPLY, 77] {
            assert_eq!(kinds(&haggling.answer(option, &[], &Disk)), [option_reply::ERR_TLS_REQD]);
        }
        assert!(matches!(haggling.answer(option::EXPORT_NAME, b"disk", &Disk).next, Next::Close));
        assert!(matches!(haggling.answer(option::STARTTLS, &[], &Disk).next, Next::StartTls));
        haggling.tls_started();
        assert_eq!(kinds(&haggling.answer(option::STARTTLS, &[], &Disk)), [option_reply::ERR_INVALID]);
        assert!(matches!(haggling.answer(option::GO, &go("disk"), &Disk).next, Next::Transmit(_)));
    }

    #[test]
    fn what_was_agreed_in_plain_text_does_not_count_after_tls() {
        let mut haggling = haggling(TlsState::Offered);
        haggling.answer(option::STRUCTURED_REPLY, &[], &Disk);
        haggling.answer(option::SET_META_CONTEXT, &contexts("disk", ALLOCATION), &Disk);
        haggling.answer(option::STARTTLS, &[], &Disk);
        haggling.tls_started();
        let Next::Transmit(session) = haggling.answer(option::GO, &go("disk"), &Disk).next else { panic!() };
        assert_eq!((session.style, session.contexts), (Style::Simple, false));
    }

    #[test]
    fn metadata_contexts_belong_to_the_export_they_were_chosen_for() {
        let mut haggling = haggling(TlsState::Unavailable);
        let set = contexts("disk", ALLOCATION);
        assert_eq!(
            kinds(&haggling.answer(option::SET_META_CONTEXT, &set, &Disk)),
            [option_reply::ERR_INVALID],
            "no structured replies yet"
        );
        haggling.answer(option::STRUCTURED_REPLY, &[], &Disk);
        let chosen = haggling.answer(option::SET_META_CONTEXT, &set, &Disk);
        assert_eq!(kinds(&chosen), [option_reply::META_CONTEXT, option_reply::ACK]);
        let mut other = haggling.clone();
        let Next::Transmit(session) = other.answer(option::GO, &go(""), &Disk).next else { panic!() };
        assert!(!session.contexts);
        let Next::Transmit(session) = haggling.clone().answer(option::GO, &go("disk"), &Disk).next else { panic!() };
        assert!(session.contexts);
        haggling.answer(option::SET_META_CONTEXT, b"broken", &Disk);
        let Next::Transmit(session) = haggling.answer(option::GO, &go("disk"), &Disk).next else { panic!() };
        assert!(!session.contexts, "a failed choice ends the one before");
    }

    #[test]
    fn a_namespace_lists_its_contexts_but_chooses_none() {
        let mut haggling = haggling(TlsState::Unavailable);
        haggling.answer(option::STRUCTURED_REPLY, &[], &Disk);
        let both = [option_reply::META_CONTEXT, option_reply::ACK];
        assert_eq!(kinds(&haggling.answer(option::LIST_META_CONTEXT, &contexts("disk", "base:"), &Disk)), both);
        assert_eq!(kinds(&haggling.answer(option::LIST_META_CONTEXT, b"\0\0\0\x04disk\0\0\0\0", &Disk)), both);
        assert_eq!(kinds(&haggling.answer(option::SET_META_CONTEXT, &contexts("disk", "base:"), &Disk)), [option_reply::ACK]);
        assert_eq!(kinds(&haggling.answer(option::SET_META_CONTEXT, &contexts("disk", "qemu:x"), &Disk)), [option_reply::ACK]);
        assert_eq!(kinds(&haggling.answer(option::SET_META_CONTEXT, &contexts("none", "base:"), &Disk)), [option_reply::ERR_UNKNOWN]);
    }

    #[test]
    fn extended_headers_exclude_structured_replies_and_the_old_form() {
        let mut haggling = haggling(TlsState::Unavailable);
        assert_eq!(kinds(&haggling.answer(option::EXTENDED_HEADERS, &[], &Disk)), [option_reply::ACK]);
        assert_eq!(kinds(&haggling.answer(option::STRUCTURED_REPLY, &[], &Disk)), [option_reply::ERR_EXT_HEADER_REQD]);
        assert!(matches!(haggling.answer(option::EXPORT_NAME, b"disk", &Disk).next, Next::Close));
        haggling.answer(option::SET_META_CONTEXT, &contexts("disk", ALLOCATION), &Disk);
        let Next::Transmit(session) = haggling.answer(option::GO, &go("disk"), &Disk).next else { panic!() };
        assert_eq!(session.style, Style::Extended);
        assert_ne!(session.transmission_flags() & transmission_flag::BLOCK_STATUS_PAYLOAD, 0);
    }

    #[test]
    fn the_old_form_gets_zeros_unless_declined() {
        let length = |flags| Haggling::new(flags, TlsState::Unavailable).unwrap().answer(option::EXPORT_NAME, b"disk", &Disk).bytes.len();
        assert_eq!((length(0), length(1), length(3)), (134, 134, 10));
        assert!(matches!(haggling(TlsState::Unavailable).answer(option::EXPORT_NAME, b"none", &Disk).next, Next::Close));
    }

    #[test]
    fn info_tells_what_was_asked_and_block_sizes_are_powers_of_two() {
        let data = b"\0\0\0\x04disk\0\x03\0\x01\0\x02\0\x03";
        let answer = haggling(TlsState::Unavailable).answer(option::INFO, data, &Disk);
        assert_eq!(kinds(&answer), [3, 3, 3, 3, option_reply::ACK]);
        let sizes = [&[0, 3, 0, 0, 0, 1][..], &8192u32.to_be_bytes(), &MAX_PAYLOAD_BYTES.to_be_bytes()].concat();
        assert!(answer.bytes.windows(sizes.len()).any(|window| window == sizes));
        assert!(answer.bytes.windows(6).any(|window| window == b"a disk"));
    }

    #[test]
    fn a_stopping_server_refuses_all_but_the_end() {
        let mut haggling = haggling(TlsState::Unavailable);
        haggling.stop();
        assert_eq!(kinds(&haggling.answer(option::GO, &go("disk"), &Disk)), [option_reply::ERR_SHUTDOWN]);
        let end = haggling.answer(option::ABORT, &[], &Disk);
        assert!(matches!(end.next, Next::Close));
        assert_eq!(kinds(&end), [option_reply::ACK]);
    }

    proptest! {
        #[test]
        fn any_sequence_of_options_is_answered(
            flags in 0u32..4,
            sequence in proptest::collection::vec((0u32..13, proptest::collection::vec(0u8..8, 0..40)), 0..20),
        ) {
            let mut haggling = Haggling::new(flags, TlsState::Offered).unwrap();
            for (option, data) in sequence {
                match haggling.answer(option, &data, &Disk).next {
                    Next::Continue => {}
                    Next::StartTls => haggling.tls_started(),
                    Next::Transmit(_) | Next::Close => break,
                }
            }
        }
    }
}
