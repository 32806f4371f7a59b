//! Which commands an account may have the server run, and on which backups.

use crate::commands::Request;
use crate::failure::Failure;
use onefold_catalog::Scope;
use onefold_remote::accounts::{Account, Permission};
use std::sync::Arc;

/// The one answer to every command that an account may not run.
pub fn refused() -> Failure {
    Failure::cannot_run("the server does not do this for the account").advise(
        "`onefold backups`, `ls`, `find`, `diff`, `dump`, `forget` and `protect` work over the network with a permission for the backups; \
         `prune`, `dedup`, `check`, `scrub` and `stats` with `prune` for all backups; `account` with `admin` for all backups",
    )
}

/// Returns the backups that a command may know of. `None`: all.
///
/// Errors: the account may not run it.
pub fn permitted(request: &Request, account: &Account) -> Result<Option<Scope>, Failure> {
    let permissions = &account.permissions;
    let on = |wanted: &'static [Permission]| -> Result<Option<Scope>, Failure> {
        if !wanted.iter().any(|permission| permissions.allows_anywhere(*permission)) {
            return Err(refused());
        }
        let permissions = permissions.clone();
        Ok(Some(Arc::new(move |backup| wanted.iter().any(|permission| permissions.allows(*permission, &backup.name)))))
    };
    let if_true = |may: bool| if may { Ok(None) } else { Err(refused()) };
    match request {
        Request::Backups(_) | Request::Ls(_) | Request::Find(_) | Request::Diff(_) | Request::Dump(_) => on(&[Permission::Read]),
        Request::Clocks(_) => on(&[Permission::Read, Permission::Backup]),
        Request::Forget(_) => on(&[Permission::Forget]),
        Request::Protect(_) => on(&[Permission::Forget, Permission::Backup]),
        Request::Prune(_) | Request::Dedup(_) | Request::Check(_) | Request::Scrub(_) | Request::Stats(_) => {
            if_true(permissions.allows_everywhere(Permission::Prune))
        }
        Request::AccountCreate(_)
        | Request::AccountList(_)
        | Request::AccountShow(_)
        | Request::AccountSet(_)
        | Request::AccountRotate(_)
        | Request::AccountLock(_)
        | Request::AccountUnlock(_)
        | Request::AccountDelete(_) => if_true(permissions.allows_account_changes()),
        _ => Err(refused()),
    }
}
