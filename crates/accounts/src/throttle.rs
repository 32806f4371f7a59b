//! Failed logins: how soon the next attempt may come.
//!
//! A peer, and an account, may fail five times at once. Then there is one more attempt after 2 seconds. Each further
//! failure doubles that, to at most 60 seconds. Each time that passes without a failure earns one of the five back.
//!
//! A peer that logged in to an account before does not wait for failures of others with that account. Otherwise anyone
//! who knows a name could keep its owner out.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Failures at once.
const BURST: u32 = 5;
/// The first wait.
const FIRST: Duration = Duration::from_secs(2);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(60);
/// Entries of each table.
const ENTRIES: usize = 4096;

/// Where a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A machine, by its address.
    Address(IpAddr),
    /// A process of this machine that came over a Unix socket, by its user.
    User(u32),
}

impl Peer {
    /// Returns what counts as the same peer. Somebody with one IPv6 address usually has the 2^64 of its network.
    fn of_throttle(self) -> Peer {
        match self {
            Peer::Address(address) => Peer::Address(match address.to_canonical() {
                IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
                address => address,
            }),
            user => user,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Address(address) => write!(out, "{}", address.to_canonical()),
            Peer::User(user) => write!(out, "user {user}"),
        }
    }
}

/// The failed logins of late. Time is what the caller says: the time since any fixed moment.
#[derive(Debug, Default)]
pub struct LoginThrottle {
    peers: Bounded<Peer, Failures>,
    accounts: Bounded<String, Failures>,
    /// Peers that logged in to an account.
    known: Bounded<(Peer, String), ()>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    /// Attempts that are left.
    left: u32,
    wait: Duration,
    /// When the last attempt was earned, or the last failure was.
    since: Duration,
}

impl Failures {
    const NONE: Failures = Failures { left: BURST, wait: FIRST, since: Duration::ZERO };

    /// Returns what is left at a time. `None`: nothing failed of late.
    fn at(mut self, now: Duration) -> Option<Failures> {
        let earned = now.saturating_sub(self.since).as_nanos() / self.wait.as_nanos().max(1);
        self.left = self.left.saturating_add(u32::try_from(earned).unwrap_or(u32::MAX));
        if self.left >= BURST {
            return None;
        }
        self.since += self.wait * earned as u32;
        Some(self)
    }

    fn wait(self, now: Duration) -> Option<Duration> {
        let left = self.at(now)?;
        (left.left == 0).then(|| left.since.saturating_add(left.wait).saturating_sub(now))
    }

    fn failed(before: Option<Failures>, now: Duration) -> Failures {
        match before.and_then(|before| before.at(now)) {
            None => Failures { left: BURST - 1, since: now, ..Failures::NONE },
            // It used up what it had just earned.
            Some(Failures { left: 0 | 1, wait, .. }) if before.is_some_and(|before| before.left == 0) => {
                Failures { left: 0, wait: (wait * 2).min(LONGEST), since: now }
            }
            Some(before) => Failures { left: before.left.saturating_sub(1), since: now, ..before },
        }
    }
}

impl LoginThrottle {
    /// Returns how long an attempt has to wait. `None`: it may come now.
    pub fn wait(&self, peer: Peer, account: &str, now: Duration) -> Option<Duration> {
        let peer = peer.of_throttle();
        let of_peer = self.peers.get(&peer).and_then(|failures| failures.wait(now));
        let is_known = self.known.get(&(peer, account.to_owned())).is_some();
        let of_account = if is_known { None } else { self.accounts.get(account).and_then(|failures| failures.wait(now)) };
        of_peer.max(of_account)
    }

    /// Notes a failed login.
    pub fn failed(&mut self, peer: Peer, account: &str, now: Duration) {
        let peer = peer.of_throttle();
        let (of_peer, of_account) = (self.peers.get(&peer).copied(), self.accounts.get(account).copied());
        self.peers.put(peer, Failures::failed(of_peer, now));
        self.accounts.put(account.to_owned(), Failures::failed(of_account, now));
    }

    /// Notes a login. It takes back no failure: who knows one secret must not get attempts at others by it.
    pub fn succeeded(&mut self, peer: Peer, account: &str) {
        self.known.put((peer.of_throttle(), account.to_owned()), ());
    }
}

/// A table of the newest entries.
#[derive(Debug)]
struct Bounded<K, V> {
    entries: HashMap<K, (u64, V)>,
    /// Keys by when they were put last.
    order: BTreeMap<u64, K>,
    next: u64,
}

impl<K, V> Default for Bounded<K, V> {
    fn default() -> Bounded<K, V> {
        Bounded { entries: HashMap::new(), order: BTreeMap::new(), next: 0 }
    }
}

impl<K: Clone + Eq + Hash, V> Bounded<K, V> {
    fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.entries.get(key).map(|(_, value)| value)
    }

    fn put(&mut self, key: K, value: V) {
        if let Some((order, _)) = self.entries.insert(key.clone(), (self.next, value)) {
            self.order.remove(&order);
        }
        self.order.insert(self.next, key);
        self.next += 1;
        if self.entries.len() > ENTRIES
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn address(last: u32) -> Peer {
        Peer::Address(IpAddr::from((0x0a00_0000 + last).to_be_bytes()))
    }

    #[test]
    fn five_failures_come_at_once_then_the_wait_doubles_to_a_minute() {
        let mut throttle = LoginThrottle::default();
        let (peer, mut now) = (address(1), SECOND);
        for _ in 0..5 {
            assert_eq!(throttle.wait(peer, "ann", now), None);
            throttle.failed(peer, "ann", now);
        }
        for expected in [2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(throttle.wait(peer, "ann", now), Some(SECOND * expected));
            now += SECOND * expected - Duration::from_nanos(1);
            assert!(throttle.wait(peer, "ann", now).is_some());
            now += Duration::from_nanos(1);
            assert_eq!(throttle.wait(peer, "ann", now), None);
            throttle.failed(peer, "ann", now);
        }
        now += SECOND * 60 * 5;
        assert_eq!(throttle.wait(peer, "ann", now), None);
        throttle.failed(peer, "ann", now);
        assert_eq!(throttle.wait(peer, "ann", now), None, "after a long pause all is forgotten");
    }

    #[test]
    fn failures_count_for_the_peer_with_all_accounts_and_for_the_account_with_all_peers() {
        let mut throttle = LoginThrottle::default();
        (0..5).for_each(|number| throttle.failed(address(1), &format!("name{number}"), SECOND));
        assert!(throttle.wait(address(1), "other", SECOND).is_some() && throttle.wait(address(2), "name0", SECOND).is_none());
        (0..5).for_each(|number| throttle.failed(address(10 + number), "ann", SECOND));
        assert!(throttle.wait(address(2), "ann", SECOND).is_some());
    }

    #[test]
    fn a_peer_that_logged_in_before_is_not_kept_out_by_others() {
        let mut throttle = LoginThrottle::default();
        throttle.succeeded(address(1), "ann");
        (0..9).for_each(|number| throttle.failed(address(10 + number), "ann", SECOND));
        assert!(throttle.wait(address(2), "ann", SECOND).is_some());
        assert_eq!(throttle.wait(address(1), "ann", SECOND), None);
        (0..5).for_each(|_| throttle.failed(address(1), "ann", SECOND));
        assert!(throttle.wait(address(1), "ann", SECOND).is_some(), "its own failures count");
    }

    #[test]
    fn an_ipv6_network_is_one_peer_and_a_mapped_address_is_its_ipv4_one() {
        let mut throttle = LoginThrottle::default();
        let of = |text: &str| Peer::Address(text.parse().unwrap());
        (0..5).for_each(|number| throttle.failed(of(&format!("2001:db8::{number}")), &number.to_string(), SECOND));
        assert!(throttle.wait(of("2001:db8::ffff"), "x", SECOND).is_some() && throttle.wait(of("2001:db8:0:1::1"), "x", SECOND).is_none());
        (0..5).for_each(|number| throttle.failed(of("::ffff:10.0.0.1"), &number.to_string(), SECOND));
        assert!(throttle.wait(of("10.0.0.1"), "x", SECOND).is_some());
        assert_eq!(of("::ffff:10.0.0.1").to_string(), "10.0.0.1");
    }

    #[test]
    fn the_tables_are_bounded_and_forget_the_oldest() {
        let mut throttle = LoginThrottle::default();
        (0..5).for_each(|_| throttle.failed(address(0), "ann", SECOND));
        (0..ENTRIES as u32 - 1).for_each(|number| throttle.failed(address(1 + number), &number.to_string(), SECOND));
        assert!(throttle.wait(address(0), "x", SECOND).is_some());
        throttle.failed(address(99_999), "y", SECOND);
        assert!(throttle.wait(address(0), "x", SECOND).is_none());
        assert_eq!((throttle.peers.entries.len(), throttle.accounts.order.len()), (ENTRIES, ENTRIES));
    }

    proptest! {
        #[test]
        fn no_more_attempts_fail_than_the_first_five_and_one_each_two_seconds(steps in proptest::collection::vec(0u64..5000, 1..200)) {
            let mut throttle = LoginThrottle::default();
            let (mut now, mut failed) = (SECOND, 0);
            for step in steps {
                now += Duration::from_millis(step);
                if throttle.wait(address(1), "ann", now).is_none() {
                    throttle.failed(address(1), "ann", now);
                    failed += 1;
                }
                prop_assert!(failed <= 5 + (now - SECOND).as_millis() / 2000);
            }
        }

        #[test]
        fn any_times_are_taken(times in proptest::collection::vec(0u64.., 1..50)) {
            let mut throttle = LoginThrottle::default();
            for time in times {
                let now = Duration::from_secs(time);
                if throttle.wait(address(1), "ann", now).is_none() {
                    throttle.failed(address(1), "ann", now);
                }
            }
        }
    }
}
