//! Which initiators may log in, and how.

use super::{Iscsi, ServedTarget};
use crate::secret::chap_secret;
use onefold_ground::fill_random;
use onefold_iscsi::chap::{Account, Credentials};
use onefold_iscsi::login::{DigestRule, Doors, Refused, Terms, Visitor};
use onefold_iscsi::{Target, Targets};
use onefold_targets::{Digest, matches_pattern};
use std::sync::Arc;

impl Iscsi {
    fn served(&self, name: &str) -> Option<ServedTarget> {
        self.state.lock().targets.get(&name.to_ascii_lowercase()).cloned()
    }

    /// Returns whether the rules of a target let an initiator in, apart from what it must prove.
    fn lets_in(&self, record: &onefold_targets::Target, visitor: &Visitor) -> bool {
        let is_listed =
            record.initiators.is_empty() || record.initiators.iter().any(|pattern| matches_pattern(pattern, &visitor.initiator));
        let is_near = record.networks.is_empty() || record.networks.iter().any(|network| network.contains(visitor.address));
        is_listed && is_near && !self.is_too_open(record, visitor)
    }

    /// Returns whether a target without rules is reachable from other machines although the settings do not allow that.
    fn is_too_open(&self, record: &onefold_targets::Target, visitor: &Visitor) -> bool {
        record.is_open() && !visitor.portal.ip().to_canonical().is_loopback() && !self.options.allows_open_off_loopback
    }
}

impl Doors for Iscsi {
    fn admit(&self, target: Option<&str>, visitor: &Visitor) -> Result<Terms, Refused> {
        let Some(name) = target else { return Ok(Terms::default()) };
        let record = self.served(name).ok_or(Refused::NotFound)?.record;
        if !self.lets_in(&record, visitor) {
            if self.is_too_open(&record, visitor) {
                tracing::warn!(
                    "{} was refused at {name}: a target for everybody is served on loopback addresses only; give it rules (`onefold target \
                     allow`, `onefold target chap`), or set iscsi.allow_open_off_loopback",
                    visitor.address
                );
            }
            return Err(Refused::AuthorizationFailure);
        }
        let account = |account: &onefold_targets::Account| {
            let secret = chap_secret(&account.secret_file).map_err(|failure| {
                // Letting in an initiator without proof would be worse.
                tracing::error!("nobody can log in to {name}: {}", failure.message);
                Refused::TargetError
            })?;
            Ok(Account { name: account.name.clone(), secret: secret.as_bytes().to_vec() })
        };
        let initiators = record.accounts.iter().map(account).collect::<Result<Vec<_>, Refused>>()?;
        let own = record.own_account.as_ref().map(account).transpose()?;
        if own.as_ref().is_some_and(|own| initiators.iter().any(|initiator| initiator.secret == own.secret)) {
            // Whoever knows this secret could answer for both sides (RFC 7143 section 9.2.1).
            tracing::error!("nobody can log in to {name}: it has the same secret as an initiator; give the target another secret");
            return Err(Refused::TargetError);
        }
        let rule = |digest: Digest| match digest {
            Digest::Optional => DigestRule::Optional,
            Digest::Required => DigestRule::Required,
            Digest::Off => DigestRule::Off,
        };
        Ok(Terms {
            credentials: Credentials { initiators, target: own },
            header_digest: rule(record.header_digest),
            data_digest: rule(record.data_digest),
        })
    }

    fn random(&self, out: &mut [u8]) -> Result<(), Refused> {
        fill_random(out).map_err(|error| {
            tracing::error!("nobody can log in by CHAP: the system has no random numbers: {error}");
            Refused::TargetError
        })
    }
}

impl Targets for Iscsi {
    fn names(&self, visitor: &Visitor) -> Vec<String> {
        let state = self.state.lock();
        state.targets.iter().filter(|(_, served)| self.lets_in(&served.record, visitor)).map(|(name, _)| name.clone()).collect()
    }

    fn target(&self, name: &str) -> Option<Arc<Target>> {
        self.served(name).map(|served| served.target)
    }

    // This takes `state`. `on_unused` holds it from its look at the sessions to the end of its work.
    fn is_served(&self, target: &Arc<Target>) -> bool {
        self.served(&target.name).is_some_and(|served| Arc::ptr_eq(&served.target, target))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iscsi::Options;
    use crate::iscsi::tests::Store;
    use onefold_targets::TargetError;

    fn visitor(portal: &str) -> Visitor {
        Visitor { initiator: "iqn.x".into(), address: [192, 168, 7, 9].into(), portal: portal.parse().unwrap(), group: 1 }
    }

    #[test]
    fn a_target_without_rules_is_for_this_machine_unless_the_settings_say_otherwise() {
        let store = Store::new();
        let served = |allows_open_off_loopback| store.served(Options { allows_open_off_loopback, ..Options::default() });
        let name = Iscsi::default_name(&store.engine);
        let (shut, open) = (served(false), served(true));
        for (portal, is_local) in
            [("127.0.0.1:3260", true), ("[::1]:3260", true), ("[::ffff:127.0.0.1]:3260", true), ("192.168.7.1:3260", false)]
        {
            assert_eq!(shut.admit(Some(&name), &visitor(portal)).is_ok(), is_local, "{portal}");
            assert_eq!(shut.names(&visitor(portal)).is_empty(), !is_local, "{portal}");
            assert!(open.admit(Some(&name), &visitor(portal)).is_ok() && open.names(&visitor(portal)) == [name.clone()], "{portal}");
        }
        onefold_targets::change(&store.engine, |known| -> Result<(), TargetError> {
            let networks = vec!["192.168.7.0/24".parse().unwrap()];
            known.add(onefold_targets::Target { name: "iqn.ruled".into(), networks, ..Default::default() })
        })
        .unwrap();
        shut.refresh().unwrap();
        assert!(shut.admit(Some("IQN.ruled"), &visitor("192.168.7.1:3260")).is_ok(), "names have no sizes of letters");
        assert_eq!(shut.admit(Some(&name), &visitor("127.0.0.1:3260")).unwrap_err(), Refused::NotFound);
        assert!(shut.admit(None, &visitor("192.168.7.1:3260")).is_ok());
        drop((shut, open));
        store.close();
    }
}
