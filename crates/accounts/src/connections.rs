//! Connections of accounts: how many there are, and how fast they are together.

use super::error::{AccountError, Result};
use super::rate::Rate;
use super::record::Account;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The connections of all accounts. A server has one of these.
#[derive(Clone, Debug, Default)]
pub struct Connections(Arc<Mutex<HashMap<String, Live>>>);

#[derive(Debug)]
struct Live {
    count: u32,
    rate: Arc<Rate>,
}

/// A connection of an account. Dropping it ends it.
#[derive(Debug)]
pub struct Connection {
    all: Connections,
    name: String,
    rate: Arc<Rate>,
}

impl Connections {
    /// Counts a connection. The account's limits apply to its other connections too, as they are now. Errors: it has as
    /// many as it may have.
    pub fn open(&self, account: &Account) -> Result<Connection> {
        let mut accounts = self.0.lock();
        let new = || Live { count: 0, rate: Arc::new(Rate::new(None)) };
        let count = accounts.get(&account.name).map_or(0, |live| live.count);
        if count >= account.limits.connections {
            return Err(AccountError::Connections { name: account.name.clone(), limit: account.limits.connections });
        }
        let live = accounts.entry(account.name.clone()).or_insert_with(new);
        live.count += 1;
        live.rate.set(account.limits.bytes_per_second);
        Ok(Connection { all: self.clone(), name: account.name.clone(), rate: live.rate.clone() })
    }

    /// Applies a new rate to the open connections of an account.
    pub fn set_rate(&self, name: &str, bytes_per_second: Option<u64>) {
        if let Some(live) = self.0.lock().get(name) {
            live.rate.set(bytes_per_second);
        }
    }
}

impl Connection {
    /// Returns the limit that all connections of the account share.
    pub fn rate(&self) -> &Arc<Rate> {
        &self.rate
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut accounts = self.all.0.lock();
        if let Some(live) = accounts.get_mut(&self.name) {
            live.count -= 1;
            if live.count == 0 {
                accounts.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::account;
    use std::time::{Duration, Instant};

    #[test]
    fn an_account_has_no_more_connections_than_it_may_have_and_others_do_not_count() {
        let connections = Connections::default();
        let mut ann = account("ann");
        ann.limits.connections = 2;
        let (one, _two) = (connections.open(&ann).unwrap(), connections.open(&ann).unwrap());
        assert!(matches!(connections.open(&ann), Err(AccountError::Connections { limit: 2, .. })));
        let bob = connections.open(&account("bob")).unwrap();
        drop(one);
        let _three = connections.open(&ann).unwrap();
        assert!(connections.open(&ann).is_err());
        drop(bob);
        assert_eq!(connections.0.lock().keys().collect::<Vec<_>>(), ["ann"]);
    }

    #[test]
    fn connections_of_an_account_share_its_rate() {
        let connections = Connections::default();
        let mut ann = account("ann");
        let one = connections.open(&ann).unwrap();
        let now = Instant::now() + Duration::from_secs(10);
        assert_eq!(one.rate().delay(1 << 30, now), Duration::ZERO);
        ann.limits.bytes_per_second = Some(1000);
        let two = connections.open(&ann).unwrap();
        two.rate().delay(10_250, now);
        assert_eq!(one.rate().delay(0, now), Duration::from_secs(10), "the new limit counts for the old connection too");
        connections.set_rate("ann", None);
        assert_eq!(one.rate().delay(1 << 30, now), Duration::ZERO);
    }
}
