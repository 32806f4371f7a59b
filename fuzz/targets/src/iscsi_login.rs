//! iSCSI logins: whatever requests come in whatever order, answers are bounded, what is agreed on is within its limits,
//! and nobody is let in who was not admitted or has proved nothing.

use onefold_iscsi::chap::{Account, Credentials};
use onefold_iscsi::login::{DigestRule, Doors, Login, Refused, Terms, Visitor};
use onefold_iscsi::pdu::{HEADER_BYTES, Header};
use std::net::{IpAddr, SocketAddr};

const TARGET: &str = "iqn.t";

struct Door(Terms);

impl Doors for Door {
    fn admit(&self, target: Option<&str>, visitor: &Visitor) -> Result<Terms, Refused> {
        assert!(!visitor.initiator.is_empty() && visitor.initiator.len() <= 223);
        if target.is_none_or(|target| target == TARGET) { Ok(self.0.clone()) } else { Err(Refused::NotFound) }
    }

    fn random(&self, out: &mut [u8]) -> Result<(), Refused> {
        out.fill(7);
        Ok(())
    }
}

/// The first byte chooses the terms; what follows is requests: a byte of flags, a length of two bytes, text.
pub fn run(data: &[u8]) {
    let Some((choice, mut bytes)) = data.split_first() else { return };
    let must_prove = choice & 1 != 0;
    // No input can have the response to this: it would have to invert a hash.
    let account = |name: &str| Account { name: name.into(), secret: b"not to be guessed: 3141592653".to_vec() };
    let initiators = if must_prove { vec![account("host")] } else { Vec::new() };
    let rule = |bits: u8| [DigestRule::Optional, DigestRule::Required, DigestRule::Off][usize::from(bits & 3).min(2)];
    let credentials = Credentials { initiators, target: Some(account("target")) };
    let door = Door(Terms { credentials, header_digest: rule(choice >> 1), data_digest: rule(choice >> 3) });
    let mut login = Login::new(IpAddr::from([127, 0, 0, 1]), SocketAddr::from(([127, 0, 0, 1], 3260)), 1);
    while let Some(([flags, high, low], rest)) = bytes.split_first_chunk::<3>() {
        let (text, rest) = rest.split_at(usize::from(u16::from_be_bytes([*high, *low])).min(rest.len()));
        bytes = rest;
        let mut header = [0; HEADER_BYTES];
        (header[0], header[1]) = (0x43, *flags);
        let Ok(answer) = login.step(&Header(header), text, &door) else { return };
        // Each key has a short answer, and there are not so many.
        assert!(answer.text.len() <= 16 << 10, "an answer of {} bytes", answer.text.len());
        assert!(onefold_iscsi::text::parse(&answer.text).is_ok());
        let parameters = login.parameters;
        assert!((512..=256 << 10).contains(&parameters.send_segment_bytes));
        assert!((512..=1 << 20).contains(&parameters.burst_bytes) && (512..=64 << 10).contains(&parameters.first_burst_bytes));
        assert!((1..=16).contains(&parameters.outstanding_r2t));
        if answer.is_done {
            assert!(!must_prove, "let in without a proof");
            assert!(login.is_discovery || login.target.as_deref() == Some(TARGET));
            assert!(parameters.first_burst_bytes <= parameters.burst_bytes);
            for (rule, is_used) in [(door.0.header_digest, parameters.header_digest), (door.0.data_digest, parameters.data_digest)] {
                assert!(login.is_discovery || rule == DigestRule::Optional || is_used == (rule == DigestRule::Required));
            }
            return;
        }
    }
}
