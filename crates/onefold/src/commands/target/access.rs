//! Who may use a target: `allow`, `deny`, `chap`.

use super::{change_target, note_sessions};
use crate::cli::{Rules, TargetAllow, TargetChap, TargetDeny};
use crate::failure::{Exit, Failure, Result};
use crate::secret::chap_secret;
use crate::session::{Session, StoreCommand, store_command};
use onefold_targets::{Account, Network};

/// Checks the secret file as the user's own process, and makes its path absolute, so that the daemon can use it.
pub(in crate::commands) fn check_secret_file(options: &mut TargetChap) -> Result<()> {
    if let Some(path) = &mut options.secret_file {
        chap_secret(path)?;
        *path = std::path::absolute(&*path).map_err(Failure::cannot_run)?;
    }
    Ok(())
}

fn networks(rules: &Rules) -> Result<Vec<Network>> {
    rules.network.iter().map(|text| text.parse().map_err(Failure::cannot_run)).collect()
}

impl StoreCommand for TargetAllow {
    store_command!("target allow", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let networks = networks(&self.rules)?;
        change_target(session, &self.name, |target| {
            for pattern in &self.rules.initiator {
                if !target.initiators.contains(pattern) {
                    target.initiators.push(pattern.clone());
                }
            }
            for network in networks {
                if !target.networks.contains(&network) {
                    target.networks.push(network);
                }
            }
            Ok(())
        })?;
        note_sessions(session, &self.name, true);
        Ok(Exit::Done)
    }
}

impl StoreCommand for TargetDeny {
    store_command!("target deny", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let networks = networks(&self.rules)?;
        let is_open = change_target(session, &self.name, |target| {
            let absent = |what: &str| {
                Failure::failed(format!("{what} is not on the list of target {}; nothing was changed", target.name))
                    .advise("`onefold target list` shows who is")
            };
            if let Some(pattern) = self.rules.initiator.iter().find(|pattern| !target.initiators.contains(pattern)) {
                return Err(absent(pattern));
            }
            if let Some(network) = networks.iter().find(|network| !target.networks.contains(network)) {
                return Err(absent(&network.to_string()));
            }
            target.initiators.retain(|pattern| !self.rules.initiator.contains(pattern));
            target.networks.retain(|network| !networks.contains(network));
            Ok(target.is_open())
        })?;
        warn_if_open(session, &self.name, is_open);
        note_sessions(session, &self.name, true);
        Ok(Exit::Done)
    }
}

fn warn_if_open(session: &Session<'_>, name: &str, is_open: bool) {
    if is_open && !session.quiet {
        session.note(format_args!("target {name} has no rule any more: everybody who can reach it may use it"));
    }
}

impl StoreCommand for TargetChap {
    store_command!("target chap", waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let is_open = change_target(session, &self.name, |target| {
            let account = self.user.clone().zip(self.secret_file.clone()).map(|(name, secret_file)| Account { name, secret_file });
            match (account, self.mutual) {
                (Some(account), true) => target.own_account = Some(account),
                (Some(account), false) => {
                    target.accounts.retain(|other| other.name != account.name);
                    target.accounts.push(account);
                }
                (None, true) => target.own_account = None,
                (None, false) => {
                    let is_meant = |account: &Account| self.user.as_ref().is_none_or(|user| account.name == *user);
                    if !target.accounts.iter().any(is_meant) {
                        return Err(Failure::failed(format!("target {} has no such name; nothing was changed", target.name))
                            .advise("`onefold target list` shows which it has"));
                    }
                    target.accounts.retain(|account| !is_meant(account));
                }
            }
            if target.own_account.is_some() && target.accounts.is_empty() && !session.quiet {
                session.note("the target proves itself only to initiators that log in with CHAP: add a name for them");
            }
            Ok(target.is_open())
        })?;
        warn_if_open(session, &self.name, is_open);
        note_sessions(session, &self.name, true);
        Ok(Exit::Done)
    }
}
