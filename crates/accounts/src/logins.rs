//! Logins: the check of a secret behind the throttle, and what the log says of it.

use super::audit::{AccessLog, Entry, Event};
use super::certificate::CertificateFingerprint;
use super::error::Result;
use super::record::Account;
use super::registry::{Accounts, Verdict};
use super::throttle::{LoginThrottle, Peer};
use parking_lot::Mutex;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The answer to a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    /// The client is this account.
    Accepted(Box<Account>),
    /// It is not. There is nothing else that a client may know.
    Refused,
    /// Too many logins failed: the secret was not looked at. The client may try again after this time.
    TooOften(Duration),
}

/// Time from one entry of a login that came too often to the next one.
const TOO_OFTEN_EVERY: Duration = Duration::from_secs(1);

/// Logins that came too often. They cost nothing, so anybody can make many. If the log had all of them, it would soon
/// have nothing else.
#[derive(Debug, Default)]
struct TooOften {
    /// When the last one was written.
    last: Option<Instant>,
    /// How many were not, since then.
    left_out: u64,
}

/// The door of a server. A server has one of these.
#[derive(Debug)]
pub struct Logins {
    accounts: Accounts,
    log: Option<Arc<AccessLog>>,
    began: Instant,
    throttle: Mutex<LoginThrottle>,
    too_often: Mutex<TooOften>,
    /// Held from the look at the throttle until the failure is noted. So concurrent attempts do not share one.
    trying: Mutex<()>,
}

impl Logins {
    /// Returns the door to these accounts. Logins and refusals go into the log.
    pub fn new(accounts: Accounts, log: Option<Arc<AccessLog>>) -> Logins {
        Logins { accounts, log, began: Instant::now(), throttle: Mutex::default(), too_often: Mutex::default(), trying: Mutex::new(()) }
    }

    /// Checks a login, and writes it into the log. Blocks the thread for some tens of milliseconds, and while other
    /// logins are checked. Errors: the store cannot be read.
    pub fn login(
        &self,
        peer: Peer,
        name: &str,
        secret: &str,
        certificate: Option<&CertificateFingerprint>,
        session: &str,
    ) -> Result<Login> {
        // Names that no account can have are no names. All of them count as one.
        let counted = if super::record::is_valid_name(name) { name } else { "" };
        let entry = |event, details| Entry { account: Some(name), peer: Some(peer), session: Some(session), details, ..Entry::of(event) };
        // Without the lock at first: whoever has to wait delays nobody.
        if let Some(wait) = self.wait(peer, counted) {
            self.write_too_often(|left_out| entry(Event::Refused, json!({"reason": "too-often", "left_out": left_out})));
            return Ok(Login::TooOften(wait));
        }
        let _alone = self.trying.lock();
        if let Some(wait) = self.wait(peer, counted) {
            self.write_too_often(|left_out| entry(Event::Refused, json!({"reason": "too-often", "left_out": left_out})));
            return Ok(Login::TooOften(wait));
        }
        match self.accounts.verify(name, secret, certificate)? {
            Verdict::Accepted(account) => {
                self.throttle.lock().succeeded(peer, counted);
                self.write(entry(Event::Login, json!({"generation": account.generation})));
                Ok(Login::Accepted(account))
            }
            Verdict::Refused(refusal) => {
                self.throttle.lock().failed(peer, counted, self.began.elapsed());
                self.write(entry(Event::Refused, json!({"reason": refusal.name()})));
                Ok(Login::Refused)
            }
        }
    }

    /// Returns the accounts.
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    fn wait(&self, peer: Peer, name: &str) -> Option<Duration> {
        self.throttle.lock().wait(peer, name, self.began.elapsed())
    }

    /// Writes such an entry, or counts it as left out.
    fn write_too_often<'a>(&self, entry: impl FnOnce(u64) -> Entry<'a>) {
        let left_out = {
            let mut written = self.too_often.lock();
            if written.last.is_some_and(|last| last.elapsed() < TOO_OFTEN_EVERY) {
                written.left_out += 1;
                return;
            }
            written.last = Some(Instant::now());
            std::mem::take(&mut written.left_out)
        };
        self.write(entry(left_out));
    }

    fn write(&self, entry: Entry<'_>) {
        if let Some(log) = &self.log {
            log.write(&entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::store;
    use crate::{Secret, Settings};

    #[test]
    fn a_login_is_accepted_or_refused_without_a_reason_and_the_log_has_the_reason_and_no_secret() {
        let (_directory, engine) = store();
        let accounts = Accounts::new(engine.clone()).unwrap();
        let (_, secret) = accounts.create("ann", Settings::default()).unwrap();
        let (_, other) = accounts.create("bob", Settings::default()).unwrap();
        accounts.lock("bob").unwrap();
        let place = tempfile::tempdir().unwrap();
        let log = Arc::new(AccessLog::open(place.path()).unwrap());
        let logins = Logins::new(accounts, Some(log));
        let peer = |last| Peer::Address(std::net::IpAddr::from([10, 0, 0, last]));
        let login = |last, name: &str, secret: &Secret| logins.login(peer(last), name, &secret.text(), None, "s").unwrap();
        assert!(matches!(login(1, "ann", &secret), Login::Accepted(account) if account.name == "ann"));
        assert_eq!(
            [login(1, "ann", &other), login(1, "bob", &other), login(1, "nobody\n", &other)],
            [Login::Refused, Login::Refused, Login::Refused]
        );
        assert_eq!([login(1, "ann", &other), login(1, "ann", &other)], [Login::Refused, Login::Refused]);
        assert!(matches!(login(1, "ann", &secret), Login::TooOften(wait) if wait > Duration::from_secs(1)));
        assert!(matches!(login(1, "ann", &secret), Login::TooOften(_)), "this one is only counted");
        assert!(matches!(login(2, "ann", &secret), Login::Accepted(_)));
        let text = std::fs::read_to_string(place.path().join("access.log")).unwrap();
        for word in ["wrong-secret", "locked", "unknown-name", "too-often", r#""nobody\n""#, r#""peer":"10.0.0.1""#] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(!text.contains(&secret.text()) && !text.contains(&other.text()) && text.lines().count() == 8, "{text}");
        engine.close().unwrap();
    }

    #[test]
    fn concurrent_attempts_do_not_share_the_last_one() {
        let (_directory, engine) = store();
        let logins = Logins::new(Accounts::new(engine.clone()).unwrap(), None);
        let peer = Peer::User(7);
        let answers: Vec<Login> = std::thread::scope(|scope| {
            let tries: Vec<_> = (0..16).map(|_| scope.spawn(|| logins.login(peer, "ann", "1fs-x", None, "s").unwrap())).collect();
            tries.into_iter().map(|login| login.join().unwrap()).collect()
        });
        assert_eq!(answers.iter().filter(|login| **login == Login::Refused).count(), 5);
        engine.close().unwrap();
    }
}
