//! The login of a session (RFC 7143 section 6.3): who it is, to what it wants to, what both agree on. No I/O: requests in, answers out.

use crate::chap::{Chap, Credentials};
use crate::negotiation::{Parameters, RECEIVE_SEGMENT_BYTES};
use crate::pdu::Header;
use crate::text::put;

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

/// Whom a login concerns.
pub trait Doors {
    /// Whether this initiator may go to this target.
    fn admit(&self, target: &str, initiator: &str) -> Result<(), Refused>;

    /// Who must prove what for a target, or for discovery.
    fn credentials(&self, target: Option<&str>) -> Credentials;

    /// Random bytes.
    fn random(&self, out: &mut [u8]);
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
    /// Whether the login is over.
    pub is_done: bool,
}

/// A login under way.
#[derive(Debug)]
pub struct Login {
    stage: Option<Stage>,
    /// Text of requests that are continued.
    text: Vec<u8>,
    /// The initiator's iSCSI name.
    pub initiator: String,
    /// The target's; none in a discovery session.
    pub target: Option<String>,
    /// Whether it is a discovery session.
    pub is_discovery: bool,
    /// What was agreed on.
    pub parameters: Parameters,
    chap: Option<Chap>,
    is_named: bool,
    has_declared: bool,
    answered: Vec<String>,
    portal_group: u16,
}

/// Names have at most this many bytes (RFC 7143 section 4.2.7.2).
const MAX_NAME_BYTES: usize = 223;

impl Login {
    /// A login by the portal of this group.
    pub fn new(portal_group: u16) -> Login {
        Login {
            stage: None,
            text: Vec::new(),
            initiator: String::new(),
            target: None,
            is_discovery: false,
            parameters: Parameters::default(),
            chap: None,
            is_named: false,
            has_declared: false,
            answered: Vec::new(),
            portal_group,
        }
    }

    /// Takes a login request.
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
        let credentials = doors.credentials(self.target.as_deref());
        let must_prove = !credentials.initiators.is_empty();
        let may_go = match current {
            Stage::Security => self.security(&pairs, &credentials, doors, &mut out)?,
            _ => {
                if must_prove && self.chap != Some(Chap::Done) {
                    return Err(Refused::AuthenticationFailure);
                }
                self.operational(&pairs, &mut out)?;
                true
            }
        };
        let Some(next) = next.filter(|_| may_go) else { return Ok(Answer { flags: stay, text: out, is_done: false }) };
        if current == Stage::Security && must_prove && self.chap != Some(Chap::Done) {
            return Err(Refused::AuthenticationFailure);
        }
        self.stage = Some(next);
        self.parameters.settle();
        Ok(Answer { flags: 0x80 | stay | next as u8, text: out, is_done: next == Stage::FullFeature })
    }

    /// The leading request says who comes and to whom.
    fn take_names(&mut self, pairs: &[(String, String)], doors: &dyn Doors, out: &mut Vec<u8>) -> Result<(), Refused> {
        let value = |key: &str| pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone());
        self.initiator = value("InitiatorName").filter(|name| is_name(name)).ok_or(Refused::MissingParameter)?;
        self.is_discovery = match value("SessionType").as_deref() {
            None | Some("Normal") => false,
            Some("Discovery") => true,
            Some(_) => return Err(Refused::SessionTypeNotSupported),
        };
        if !self.is_discovery {
            let target = value("TargetName").ok_or(Refused::MissingParameter)?;
            doors.admit(&target, &self.initiator)?;
            self.target = Some(target);
            put(out, "TargetPortalGroupTag", &self.portal_group.to_string());
        }
        self.is_named = true;
        Ok(())
    }

    /// The security stage. Returns whether it may end.
    fn security(
        &mut self,
        pairs: &[(String, String)],
        credentials: &Credentials,
        doors: &dyn Doors,
        out: &mut Vec<u8>,
    ) -> Result<bool, Refused> {
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
        let Some(chap) = self.chap.take() else {
            // Nothing was said of methods: nobody proves anything.
            return if must_prove { Err(Refused::AuthenticationFailure) } else { Ok(true) };
        };
        let chap = chap.step(pairs, credentials, &mut |bytes| doors.random(bytes), out).map_err(|_| Refused::AuthenticationFailure)?;
        let is_done = chap == Chap::Done;
        self.chap = Some(chap);
        Ok(is_done)
    }

    fn operational(&mut self, pairs: &[(String, String)], out: &mut Vec<u8>) -> Result<(), Refused> {
        const NAMES: [&str; 5] = ["InitiatorName", "InitiatorAlias", "TargetName", "SessionType", "AuthMethod"];
        for (key, value) in pairs.iter().filter(|(key, _)| !NAMES.contains(&key.as_str())) {
            // A key is negotiated once (RFC 7143 section 6.2).
            if self.answered.contains(key) {
                return Err(Refused::InitiatorError);
            }
            self.answered.push(key.clone());
            self.parameters.answer(key, value, self.is_discovery, out).map_err(|_| Refused::InitiatorError)?;
        }
        if !self.has_declared {
            self.has_declared = true;
            put(out, "MaxRecvDataSegmentLength", &RECEIVE_SEGMENT_BYTES.to_string());
        }
        Ok(())
    }
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
        credentials: Credentials,
    }

    impl Doors for Door {
        fn admit(&self, target: &str, _initiator: &str) -> Result<(), Refused> {
            if target == "iqn.t" { Ok(()) } else { Err(Refused::NotFound) }
        }

        fn credentials(&self, _target: Option<&str>) -> Credentials {
            self.credentials.clone()
        }

        fn random(&self, out: &mut [u8]) {
            out.fill(1);
        }
    }

    const OPEN: Door = Door { credentials: Credentials { initiators: Vec::new(), target: None } };

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
        let mut login = Login::new(3);
        let answer = login.step(&header(0x87), &text(&NAMES), &OPEN).unwrap();
        assert!(answer.is_done && answer.flags == 0x87);
        let sent = crate::text::parse(&answer.text).unwrap();
        assert_eq!(sent[0], ("TargetPortalGroupTag".into(), "3".into()));
        let mut login = Login::new(1);
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
        let refused = |flags: u8, pairs: &[(&str, &str)]| Login::new(1).step(&header(flags), &text(pairs), &OPEN).unwrap_err();
        assert_eq!(refused(0x87, &[]), Refused::MissingParameter);
        assert_eq!(refused(0x87, &NAMES[..1]), Refused::MissingParameter);
        assert_eq!(refused(0x87, &[NAMES[0], ("TargetName", "iqn.other")]), Refused::NotFound);
        assert_eq!(refused(0x87, &[NAMES[0], ("SessionType", "Strange")]), Refused::SessionTypeNotSupported);
        assert_eq!(refused(0x84, &NAMES), Refused::InitiatorError);
        assert_eq!(refused(0x8f, &NAMES), Refused::InitiatorError);
        assert_eq!(refused(0x87, &[NAMES[0], NAMES[1], ("MaxBurstLength", "1")]), Refused::InitiatorError);
        let mut version = header(0x87);
        version.0[3] = 1;
        assert_eq!(Login::new(1).step(&version, &text(&NAMES), &OPEN).unwrap_err(), Refused::UnsupportedVersion);
    }

    #[test]
    fn nobody_gets_around_the_proof() {
        let secret = Account { name: "host".into(), secret: b"correct horse battery".to_vec() };
        let door = Door { credentials: Credentials { initiators: vec![secret], target: None } };
        let first = [&NAMES[..], &[("AuthMethod", "CHAP")]].concat();
        assert_eq!(Login::new(1).step(&header(0x87), &text(&NAMES), &door).unwrap_err(), Refused::AuthenticationFailure);
        assert_eq!(Login::new(1).step(&header(0x81), &text(&NAMES), &door).unwrap_err(), Refused::AuthenticationFailure);
        let none = [&NAMES[..], &[("AuthMethod", "None")]].concat();
        assert_eq!(Login::new(1).step(&header(0x81), &text(&none), &door).unwrap_err(), Refused::AuthenticationFailure);
        let mut login = Login::new(1);
        let answer = login.step(&header(0x81), &text(&first), &door).unwrap();
        assert_eq!(answer.flags, 0x00);
        assert_eq!(login.step(&header(0x87), &text(&[]), &door).unwrap_err(), Refused::InitiatorError, "the stage was not left");
    }

    #[test]
    fn text_may_come_in_parts() {
        let mut login = Login::new(1);
        let all = text(&NAMES);
        let answer = login.step(&header(0x44), &all[..10], &OPEN).unwrap();
        assert_eq!((answer.flags, answer.text.len()), (0x04, 0));
        assert!(login.step(&header(0x87), &all[10..], &OPEN).unwrap().is_done);
        let mut login = Login::new(1);
        let long = vec![b'a'; 9000];
        login.step(&header(0x44), &long, &OPEN).unwrap();
        assert_eq!(login.step(&header(0x44), &long, &OPEN).unwrap_err(), Refused::OutOfResources);
    }
}
