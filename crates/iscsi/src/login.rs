//! The login of a session (RFC 7143 section 6.3): the initiator, the target it wants, and the agreed parameters. No
//! I/O: requests in, answers out.

use crate::chap::{Account, Chap, Credentials, Denied};
use crate::negotiation::{Parameters, RECEIVE_SEGMENT_BYTES};
use crate::pdu::Header;
use crate::text::put;
use std::net::{IpAddr, SocketAddr};

/// Status of a login: class and detail (RFC 7143 section 11.13.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Refused {
    InitiatorError = 0x0200,
    AuthenticationFailure = 0x0201,
    AuthorizationFailure = 0x0202,
    NotFound = 0x0203,
    UnsupportedVersion = 0x0205,
    MissingParameter = 0x0207,
    CannotInclude = 0x0208,
    SessionTypeNotSupported = 0x0209,
    NoSuchSession = 0x020a,
    TargetError = 0x0300,
    ServiceUnavailable = 0x0301,
    OutOfResources = 0x0302,
}

/// The initiator that connects, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visitor {
    /// The iSCSI name that the initiator gave.
    pub initiator: String,
    /// The initiator's address.
    pub address: IpAddr,
    /// The address that it connected to.
    pub portal: SocketAddr,
    /// The portal group of that address.
    pub group: u16,
}

/// The rule for a digest of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DigestRule {
    /// The initiator's preference.
    #[default]
    Optional,
    /// CRC32C; otherwise the login is refused.
    Required,
    /// None; otherwise the login is refused.
    Off,
}

/// The terms of a login.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Who must prove what.
    pub credentials: Credentials,
    /// The digest of headers.
    pub header_digest: DigestRule,
    /// The digest of data.
    pub data_digest: DigestRule,
}

/// The owner of the targets, who decides about logins.
pub trait Doors {
    /// Returns the terms on which a visitor may log in to this target, or (`None`) list the targets. Errors: the
    /// visitor is refused.
    fn admit(&self, target: Option<&str>, visitor: &Visitor) -> Result<Terms, Refused>;

    /// Fills `out` with random bytes. Errors: there are none, so the login is refused, because nobody can prove
    /// anything.
    fn random(&self, out: &mut [u8]) -> Result<(), Refused>;
}

/// Stages of a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Security = 0,
    Operational = 1,
    FullFeature = 3,
}

impl Stage {
    fn from_bits(bits: u8) -> Option<Stage> {
        match bits & 3 {
            0 => Some(Stage::Security),
            1 => Some(Stage::Operational),
            3 => Some(Stage::FullFeature),
            _ => None,
        }
    }
}

/// An answer to a login request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The second byte of the response: T, CSG and NSG.
    pub flags: u8,
    /// Key=value pairs.
    pub text: Vec<u8>,
    /// Whether the login is complete.
    pub is_done: bool,
}

/// A login under way.
#[derive(Debug)]
pub struct Login {
    stage: Option<Stage>,
    /// Text of continued requests.
    text: Vec<u8>,
    /// The visitor. Its name is empty until it has been sent.
    pub visitor: Visitor,
    /// The target's name. `None` in a discovery session.
    pub target: Option<String>,
    /// Whether it is a discovery session.
    pub is_discovery: bool,
    /// The agreed parameters.
    pub parameters: Parameters,
    chap: Option<Chap>,
    /// The name that the initiator gave for its proof. It is untrusted, so it is truncated.
    claimed: Option<String>,
    is_named: bool,
    has_declared: bool,
    answered: Vec<String>,
    terms: Terms,
}

/// The most keys of one login: all existing ones, and some of vendors.
const MAX_KEYS: usize = 100;

/// The longest name, in bytes (RFC 7143 section 4.2.7.2).
const MAX_NAME_BYTES: usize = 223;

impl Login {
    /// Returns a login before the first request.
    pub fn new(address: IpAddr, portal: SocketAddr, group: u16) -> Login {
        Login {
            stage: None,
            text: Vec::new(),
            visitor: Visitor { initiator: String::new(), address, portal, group },
            target: None,
            is_discovery: false,
            parameters: Parameters::default(),
            chap: None,
            claimed: None,
            is_named: false,
            has_declared: false,
            answered: Vec::new(),
            terms: Terms::default(),
        }
    }

    /// Handles a login request.
    pub fn step(&mut self, header: &Header, data: &[u8], doors: &dyn Doors) -> Result<Answer, Refused> {
        let flags = header.0[1];
        let (transit, is_continued) = (flags & 0x80 != 0, flags & 0x40 != 0);
        let current = Stage::from_bits(flags >> 2).ok_or(Refused::InitiatorError)?;
        let next = Stage::from_bits(flags).filter(|_| transit);
        // Version 0 is the only one.
        if header.0[3] != 0 {
            return Err(Refused::UnsupportedVersion);
        }
        if current == Stage::FullFeature || self.stage.is_some_and(|stage| stage != current) || (transit && is_continued) {
            return Err(Refused::InitiatorError);
        }
        if transit && next.is_none_or(|next| next as u8 <= current as u8) {
            return Err(Refused::InitiatorError);
        }
        if self.text.len() + data.len() > crate::text::MAX_TEXT_BYTES {
            return Err(Refused::OutOfResources);
        }
        self.text.extend_from_slice(data);
        self.stage = Some(current);
        let stay = current as u8 * 5;
        let stay = stay & 0x0c;
        if is_continued {
            return Ok(Answer { flags: stay, text: Vec::new(), is_done: false });
        }
        let text = std::mem::take(&mut self.text);
        let pairs = crate::text::parse(&text).map_err(|_| Refused::InitiatorError)?;
        let mut out = Vec::new();
        if !self.is_named {
            self.take_names(&pairs, doors, &mut out)?;
        }
        let must_prove = !self.terms.credentials.initiators.is_empty();
        let may_go = match current {
            Stage::Security => self.security(&pairs, doors, &mut out)?,
            _ => {
                if must_prove && self.proved().is_none() {
                    return Err(Refused::AuthenticationFailure);
                }
                self.operational(&pairs, &mut out)?;
                true
            }
        };
        let Some(next) = next.filter(|_| may_go) else { return Ok(Answer { flags: stay, text: out, is_done: false }) };
        if current == Stage::Security && must_prove && self.proved().is_none() {
            return Err(Refused::AuthenticationFailure);
        }
        if next == Stage::FullFeature && !self.is_discovery {
            let lacks = |rule: DigestRule, is_used: bool| rule == DigestRule::Required && !is_used;
            if lacks(self.terms.header_digest, self.parameters.header_digest) || lacks(self.terms.data_digest, self.parameters.data_digest)
            {
                return Err(Refused::MissingParameter);
            }
        }
        self.stage = Some(next);
        self.parameters.settle();
        Ok(Answer { flags: 0x80 | stay | next as u8, text: out, is_done: next == Stage::FullFeature })
    }

    /// Reads the initiator's and the target's name from the leading request.
    fn take_names(&mut self, pairs: &[(String, String)], doors: &dyn Doors, out: &mut Vec<u8>) -> Result<(), Refused> {
        let value = |key: &str| pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone());
        self.visitor.initiator = value("InitiatorName").filter(|name| is_name(name)).ok_or(Refused::MissingParameter)?;
        self.is_discovery = match value("SessionType").as_deref() {
            None | Some("Normal") => false,
            Some("Discovery") => true,
            Some(_) => return Err(Refused::SessionTypeNotSupported),
        };
        if !self.is_discovery {
            let target = value("TargetName").ok_or(Refused::MissingParameter)?;
            // No target has an invalid name, so such a name is neither kept nor logged.
            self.target = Some(Some(target).filter(|target| is_name(target)).ok_or(Refused::NotFound)?);
            put(out, "TargetPortalGroupTag", &self.visitor.group.to_string());
        }
        self.terms = doors.admit(self.target.as_deref(), &self.visitor)?;
        self.is_named = true;
        Ok(())
    }

    /// Returns the name with which the initiator tried to prove itself.
    pub fn claimed(&self) -> Option<&str> {
        self.claimed.as_deref()
    }

    /// Returns the account with which the initiator proved itself.
    pub fn proved(&self) -> Option<&Account> {
        match &self.chap {
            Some(Chap::Done(account)) => Some(account),
            _ => None,
        }
    }

    /// Handles the security stage. Returns whether it may end.
    fn security(&mut self, pairs: &[(String, String)], doors: &dyn Doors, out: &mut Vec<u8>) -> Result<bool, Refused> {
        let credentials = &self.terms.credentials;
        let must_prove = !credentials.initiators.is_empty();
        if let Some((_, methods)) = pairs.iter().find(|(key, _)| key == "AuthMethod") {
            let wanted = if must_prove { "CHAP" } else { "None" };
            if !methods.split(',').any(|method| method == wanted) {
                put(out, "AuthMethod", "Reject");
                return Err(Refused::AuthenticationFailure);
            }
            put(out, "AuthMethod", wanted);
            if must_prove {
                self.chap = Some(Chap::Begun);
                return Ok(false);
            }
            return Ok(true);
        }
        if let Some((_, name)) = pairs.iter().find(|(key, _)| key == "CHAP_N") {
            self.claimed = Some(name.chars().take(MAX_NAME_BYTES).collect());
        }
        let Some(chap) = self.chap.take() else {
            // The initiator offered no method, so it proves nothing.
            return if must_prove { Err(Refused::AuthenticationFailure) } else { Ok(true) };
        };
        let mut why = Refused::AuthenticationFailure;
        let mut random = |bytes: &mut [u8]| {
            doors.random(bytes).map_err(|refused| {
                why = refused;
                Denied
            })
        };
        let stepped = chap.step(pairs, credentials, &mut random, out);
        let chap = stepped.map_err(|Denied| why)?;
        let is_done = matches!(chap, Chap::Done(_));
        self.chap = Some(chap);
        Ok(is_done)
    }

    fn operational(&mut self, pairs: &[(String, String)], out: &mut Vec<u8>) -> Result<(), Refused> {
        const NAMES: [&str; 5] = ["InitiatorName", "InitiatorAlias", "TargetName", "SessionType", "AuthMethod"];
        for (key, value) in pairs.iter().filter(|(key, _)| !NAMES.contains(&key.as_str())) {
            // A key is negotiated once (RFC 7143 section 6.2).
            if self.answered.contains(key) || self.answered.len() >= MAX_KEYS {
                return Err(Refused::InitiatorError);
            }
            self.answered.push(key.clone());
            let rule = match key.as_str() {
                "HeaderDigest" => self.terms.header_digest,
                "DataDigest" => self.terms.data_digest,
                _ => DigestRule::Optional,
            };
            let wanted = match rule {
                DigestRule::Optional => value.as_str(),
                DigestRule::Required => narrowed(value, "CRC32C")?,
                DigestRule::Off => narrowed(value, "None")?,
            };
            self.parameters.answer(key, wanted, self.is_discovery, out).map_err(|_| Refused::InitiatorError)?;
        }
        if !self.has_declared {
            self.has_declared = true;
            put(out, "MaxRecvDataSegmentLength", &RECEIVE_SEGMENT_BYTES.to_string());
        }
        Ok(())
    }
}

/// Returns the only allowed value, if the list has it.
fn narrowed(list: &str, allowed: &'static str) -> Result<&'static str, Refused> {
    if list.split(',').any(|item| item == allowed) { Ok(allowed) } else { Err(Refused::InitiatorError) }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.chars().any(|char| char.is_control() || char.is_whitespace() || char == ',')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chap::Account;
    use crate::pdu::HEADER_BYTES;

    struct Door {
        terms: Terms,
        has_random: bool,
    }

    impl Doors for Door {
        fn admit(&self, target: Option<&str>, _visitor: &Visitor) -> Result<Terms, Refused> {
            if target.is_some_and(|target| target != "iqn.t") { Err(Refused::NotFound) } else { Ok(self.terms.clone()) }
        }

        fn random(&self, out: &mut [u8]) -> Result<(), Refused> {
            out.fill(1);
            if self.has_random { Ok(()) } else { Err(Refused::TargetError) }
        }
    }

    const OPEN: Door = Door {
        has_random: true,
        terms: Terms {
            credentials: Credentials { initiators: Vec::new(), target: None },
            header_digest: DigestRule::Optional,
            data_digest: DigestRule::Optional,
        },
    };

    fn new_login(group: u16) -> Login {
        Login::new(IpAddr::from([127, 0, 0, 1]), SocketAddr::from(([127, 0, 0, 1], 3260)), group)
    }

    fn header(flags: u8) -> Header {
        let mut bytes = [0; HEADER_BYTES];
        (bytes[0], bytes[1]) = (0x43, flags);
        Header(bytes)
    }

    fn text(list: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        list.iter().for_each(|(key, value)| put(&mut out, key, value));
        out
    }

    const NAMES: [(&str, &str); 2] = [("InitiatorName", "iqn.i"), ("TargetName", "iqn.t")];

    #[test]
    fn an_open_target_lets_in_at_once_or_by_stages() {
        let mut login = new_login(3);
        let answer = login.step(&header(0x87), &text(&NAMES), &OPEN).unwrap();
        assert!(answer.is_done && answer.flags == 0x87);
        let sent = crate::text::parse(&answer.text).unwrap();
        assert_eq!(sent[0], ("TargetPortalGroupTag".into(), "3".into()));
        let mut login = new_login(1);
        let first = [&NAMES[..], &[("AuthMethod", "CHAP,None")]].concat();
        let answer = login.step(&header(0x81), &text(&first), &OPEN).unwrap();
        assert_eq!((answer.flags, answer.is_done), (0x81, false));
        let answer = login.step(&header(0x87), &text(&[("MaxBurstLength", "65536")]), &OPEN).unwrap();
        assert!(answer.is_done);
        assert_eq!(login.parameters.burst_bytes, 65_536);
        assert_eq!(login.parameters.first_burst_bytes, 65_536);
    }

    #[test]
    fn wrong_logins_are_refused_with_a_reason() {
        let refused = |flags: u8, pairs: &[(&str, &str)]| new_login(1).step(&header(flags), &text(pairs), &OPEN).unwrap_err();
        assert_eq!(refused(0x87, &[]), Refused::MissingParameter);
        assert_eq!(refused(0x87, &NAMES[..1]), Refused::MissingParameter);
        assert_eq!(refused(0x87, &[NAMES[0], ("TargetName", "iqn.other")]), Refused::NotFound);
        let mut long = new_login(1);
        let long_name = "x".repeat(224);
        assert_eq!(long.step(&header(0x87), &text(&[NAMES[0], ("TargetName", &long_name)]), &OPEN).unwrap_err(), Refused::NotFound);
        assert_eq!(long.target, None, "what is no name gets no further");
        assert_eq!(refused(0x87, &[NAMES[0], ("SessionType", "Strange")]), Refused::SessionTypeNotSupported);
        assert_eq!(refused(0x84, &NAMES), Refused::InitiatorError);
        assert_eq!(refused(0x8f, &NAMES), Refused::InitiatorError);
        assert_eq!(refused(0x87, &[NAMES[0], NAMES[1], ("MaxBurstLength", "1")]), Refused::InitiatorError);
        let mut version = header(0x87);
        version.0[3] = 1;
        assert_eq!(new_login(1).step(&version, &text(&NAMES), &OPEN).unwrap_err(), Refused::UnsupportedVersion);
    }

    #[test]
    fn nobody_gets_around_the_proof() {
        let secret = Account { name: "host".into(), secret: b"correct horse battery".to_vec() };
        let credentials = Credentials { initiators: vec![secret], target: None };
        let mut door = Door { terms: Terms { credentials, ..Terms::default() }, has_random: true };
        let first = [&NAMES[..], &[("AuthMethod", "CHAP")]].concat();
        assert_eq!(new_login(1).step(&header(0x87), &text(&NAMES), &door).unwrap_err(), Refused::AuthenticationFailure);
        assert_eq!(new_login(1).step(&header(0x81), &text(&NAMES), &door).unwrap_err(), Refused::AuthenticationFailure);
        let none = [&NAMES[..], &[("AuthMethod", "None")]].concat();
        assert_eq!(new_login(1).step(&header(0x81), &text(&none), &door).unwrap_err(), Refused::AuthenticationFailure);
        let mut login = new_login(1);
        let answer = login.step(&header(0x81), &text(&first), &door).unwrap();
        assert_eq!(answer.flags, 0x00);
        assert_eq!(login.step(&header(0x87), &text(&[]), &door).unwrap_err(), Refused::InitiatorError, "the stage was not left");
        door.has_random = false;
        let mut login = new_login(1);
        login.step(&header(0x81), &text(&first), &door).unwrap();
        assert_eq!(
            login.step(&header(0x81), &text(&[("CHAP_A", "5")]), &door).unwrap_err(),
            Refused::TargetError,
            "a challenge could be guessed"
        );
    }

    #[test]
    fn a_rule_for_digests_is_kept() {
        let ask = |rule: DigestRule, offer: Option<&str>| {
            let door = Door { terms: Terms { header_digest: rule, ..Terms::default() }, has_random: true };
            let mut login = new_login(1);
            let pairs = [&NAMES[..], &offer.map(|offer| ("HeaderDigest", offer)).into_iter().collect::<Vec<_>>()].concat();
            login.step(&header(0x87), &text(&pairs), &door).map(|_| login.parameters.header_digest)
        };
        assert_eq!(ask(DigestRule::Optional, Some("None,CRC32C")), Ok(false));
        assert_eq!(ask(DigestRule::Required, Some("None,CRC32C")), Ok(true));
        assert_eq!(ask(DigestRule::Required, Some("None")), Err(Refused::InitiatorError));
        assert_eq!(ask(DigestRule::Required, None), Err(Refused::MissingParameter));
        assert_eq!(ask(DigestRule::Off, Some("CRC32C,None")), Ok(false));
        assert_eq!(ask(DigestRule::Off, Some("CRC32C")), Err(Refused::InitiatorError));
    }

    #[test]
    fn there_are_not_so_many_keys() {
        let keys: Vec<String> = (0..200).map(|number| format!("X-{number}")).collect();
        let pairs: Vec<(&str, &str)> = NAMES.into_iter().chain(keys.iter().map(|key| (key.as_str(), "1"))).collect();
        assert_eq!(new_login(1).step(&header(0x87), &text(&pairs), &OPEN).unwrap_err(), Refused::InitiatorError);
        let answer = new_login(1).step(&header(0x87), &text(&pairs[..90]), &OPEN).unwrap();
        assert!(answer.is_done && answer.text.len() < 8192);
    }

    #[test]
    fn text_may_come_in_parts() {
        let mut login = new_login(1);
        let all = text(&NAMES);
        let answer = login.step(&header(0x44), &all[..10], &OPEN).unwrap();
        assert_eq!((answer.flags, answer.text.len()), (0x04, 0));
        assert!(login.step(&header(0x87), &all[10..], &OPEN).unwrap().is_done);
        let mut login = new_login(1);
        let long = vec![b'a'; 9000];
        login.step(&header(0x44), &long, &OPEN).unwrap();
        assert_eq!(login.step(&header(0x44), &long, &OPEN).unwrap_err(), Refused::OutOfResources);
    }
}
