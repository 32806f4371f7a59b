//! CHAP (RFC 1994, RFC 7143 section 12.1): the initiator proves that it knows the secret. If asked, the target proves
//! it too.

use crate::text::{binary, hexadecimal, number, put};
use md5::Md5;
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// Length of our challenges, and the longest challenge that we answer.
const CHALLENGE_BYTES: usize = 16;
const MAX_CHALLENGE_BYTES: usize = 1024;

/// A name and its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Account {
    /// CHAP_N.
    pub name: String,
    /// The secret: at least 12 bytes unless the connection is protected otherwise.
    pub secret: Vec<u8>,
}

impl std::fmt::Debug for Account {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Account").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The credentials of a target: accounts of initiators, and our own account for mutual authentication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The accounts of which the initiator must prove one. Empty: no proof is asked for.
    pub initiators: Vec<Account>,
    /// The account with which the target proves itself.
    pub target: Option<Account>,
}

/// Hash algorithms, by their IANA numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Md5 = 5,
    Sha1 = 6,
    Sha256 = 7,
}

impl Algorithm {
    /// Returns the first algorithm of a list that is known here.
    fn choose(list: &str) -> Option<Algorithm> {
        list.split(',').find_map(|item| match number(item.trim())? {
            5 => Some(Algorithm::Md5),
            6 => Some(Algorithm::Sha1),
            7 => Some(Algorithm::Sha256),
            _ => None,
        })
    }

    fn response(self, identifier: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
        let parts = [&[identifier][..], secret, challenge].concat();
        match self {
            Algorithm::Md5 => Md5::digest(parts).to_vec(),
            Algorithm::Sha1 => Sha1::digest(parts).to_vec(),
            Algorithm::Sha256 => Sha256::digest(parts).to_vec(),
        }
    }
}

/// An authentication under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chap {
    /// The initiator has chosen CHAP. Its list of algorithms comes next.
    Begun,
    /// Identifier and challenge have been sent.
    Challenged(Challenge),
    /// The initiator has proved itself with this account.
    Done(Account),
}

/// A challenge that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    algorithm: Algorithm,
    identifier: u8,
    bytes: Vec<u8>,
}

/// The login is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied;

impl Chap {
    /// Takes a step with the keys of a request, and writes answers to `out`. `random` fills challenges, or denies.
    pub fn step(
        self,
        pairs: &[(String, String)],
        credentials: &Credentials,
        random: &mut dyn FnMut(&mut [u8]) -> Result<(), Denied>,
        out: &mut Vec<u8>,
    ) -> Result<Chap, Denied> {
        let value = |key: &str| pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
        match self {
            Chap::Begun => {
                let Some(list) = value("CHAP_A") else { return Ok(Chap::Begun) };
                let Some(algorithm) = Algorithm::choose(list) else { return Err(Denied) };
                let mut bytes = [0; CHALLENGE_BYTES + 1];
                random(&mut bytes)?;
                let challenge = Challenge { algorithm, identifier: bytes[0], bytes: bytes[1..].to_vec() };
                put(out, "CHAP_A", &(algorithm as u8).to_string());
                put(out, "CHAP_I", &challenge.identifier.to_string());
                put(out, "CHAP_C", &hexadecimal(&challenge.bytes));
                Ok(Chap::Challenged(challenge))
            }
            Chap::Challenged(challenge) => {
                let (Some(name), Some(response)) = (value("CHAP_N"), value("CHAP_R")) else { return Err(Denied) };
                let response = binary(response).ok_or(Denied)?;
                let is_right = |account: &&Account| {
                    let expected = challenge.algorithm.response(challenge.identifier, &account.secret, &challenge.bytes);
                    account.name == name && is_equal(&expected, &response)
                };
                let account = credentials.initiators.iter().find(is_right).ok_or(Denied)?;
                if let (Some(identifier), Some(theirs)) = (value("CHAP_I"), value("CHAP_C")) {
                    let own = credentials.target.as_ref().ok_or(Denied)?;
                    let identifier = number(identifier).and_then(|number| u8::try_from(number).ok()).ok_or(Denied)?;
                    let theirs = binary(theirs).filter(|theirs| (1..=MAX_CHALLENGE_BYTES).contains(&theirs.len())).ok_or(Denied)?;
                    // If our own challenge comes back, answering it would help the initiator answer ours.
                    if theirs == challenge.bytes {
                        return Err(Denied);
                    }
                    put(out, "CHAP_N", &own.name);
                    put(out, "CHAP_R", &hexadecimal(&challenge.algorithm.response(identifier, &own.secret, &theirs)));
                }
                Ok(Chap::Done(account.clone()))
            }
            Chap::Done(account) => Ok(Chap::Done(account)),
        }
    }
}

/// Compares in a time that does not depend on the content.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |sum, (one, other)| sum | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn credentials() -> Credentials {
        let account = |name: &str, secret: &str| Account { name: name.into(), secret: secret.into() };
        Credentials { initiators: vec![account("host", "correct horse battery")], target: Some(account("disk", "staple of the target")) }
    }

    fn begin(list: &str) -> Result<(Chap, Vec<(String, String)>), Denied> {
        let mut out = Vec::new();
        let chap = Chap::Begun.step(
            &pairs(&[("CHAP_A", list)]),
            &credentials(),
            &mut |bytes| {
                bytes.fill(7);
                Ok(())
            },
            &mut out,
        )?;
        Ok((chap, crate::text::parse(&out).unwrap()))
    }

    #[test]
    fn who_knows_the_secret_is_let_in_and_can_ask_back() {
        for (list, algorithm) in [("5", Algorithm::Md5), ("9,6,5", Algorithm::Sha1), ("0x7", Algorithm::Sha256)] {
            let (chap, sent) = begin(list).unwrap();
            assert_eq!(sent[0].1, (algorithm as u8).to_string());
            let right = algorithm.response(7, b"correct horse battery", &[7; 16]);
            let mut wrong = right.clone();
            wrong[3] ^= 1;
            let step = |response: &[u8], more: &[(&str, &str)]| {
                let mut all = pairs(&[("CHAP_N", "host"), ("CHAP_R", &hexadecimal(response))]);
                all.extend(pairs(more));
                let mut out = Vec::new();
                chap.clone().step(&all, &credentials(), &mut |_| Ok(()), &mut out).map(|chap| (chap, out))
            };
            assert_eq!(step(&right, &[]).unwrap(), (Chap::Done(credentials().initiators[0].clone()), vec![]));
            assert_eq!(step(&wrong, &[]), Err(Denied));
            let (_, out) = step(&right, &[("CHAP_I", "9"), ("CHAP_C", "0x0102")]).unwrap();
            let answer = crate::text::parse(&out).unwrap();
            assert_eq!(answer[1].1, hexadecimal(&algorithm.response(9, b"staple of the target", &[1, 2])));
            assert_eq!(step(&right, &[("CHAP_I", "9"), ("CHAP_C", &hexadecimal(&[7; 16]))]), Err(Denied), "our own challenge");
        }
        assert_eq!(begin("8,9"), Err(Denied));
    }
}
