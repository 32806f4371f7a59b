//! Logs failed authentications, so that guessing is visible but does not fill the log.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// What was logged in this interval.
#[derive(Debug, Default)]
pub(crate) struct Denials {
    began: Option<Instant>,
    told: HashSet<IpAddr>,
    unsaid: u64,
}

impl Denials {
    /// Each address is logged once per interval.
    const INTERVAL: Duration = Duration::from_secs(60);
    /// The most addresses logged per interval.
    const ADDRESSES: usize = 32;

    /// Counts a failure. `tell` logs it, with the number of earlier failures that were not logged.
    pub(crate) fn denied(&mut self, address: IpAddr, now: Instant, tell: &mut dyn FnMut(u64)) {
        if self.began.is_none_or(|began| now.saturating_duration_since(began) >= Denials::INTERVAL) {
            self.began = Some(now);
            self.told.clear();
        }
        if self.told.len() >= Denials::ADDRESSES || !self.told.insert(address) {
            self.unsaid += 1;
            return;
        }
        tell(std::mem::take(&mut self.unsaid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_named_once_in_a_minute_and_what_was_not_said_is_counted() {
        let (mut denials, start, mut said) = (Denials::default(), Instant::now(), Vec::new());
        let mut deny = |address: u32, seconds: u64| {
            let address = IpAddr::from(address.to_be_bytes());
            let before = said.len();
            denials.denied(address, start + Duration::from_secs(seconds), &mut |unsaid| said.push(unsaid));
            said.get(before).copied()
        };
        assert_eq!(deny(1, 0), Some(0));
        assert_eq!(deny(1, 1), None);
        assert_eq!(deny(1, 59), None);
        assert_eq!(deny(2, 59), Some(2), "another address is not hidden by the first");
        assert_eq!(deny(1, 60), Some(0));
        for address in 0..1_000 {
            deny(10 + address, 61);
        }
        assert_eq!(deny(5_000, 62), None, "the log has a bound");
        assert_eq!(deny(5_000, 120), Some(1_000 - 31 + 1));
    }
}
