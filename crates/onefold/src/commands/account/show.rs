//! `onefold account list` and `show`.

use super::accounts;
use crate::cli::{AccountList, AccountShow};
use crate::failure::{Exit, Result};
use crate::output::{Output, Table};
use crate::session::{Session, StoreCommand, store_command};
use crate::units::{counted, local_time, size, utc_time};
use onefold_remote::accounts::{Account, CertificateRule, PermissionSet, Use};
use serde_json::{Value, json};

impl StoreCommand for AccountList {
    store_command!("account list", far, reads, asks);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let listed = accounts(session)?.list()?;
        listed.damaged.iter().for_each(|problem| session.note(format_args!("left out: {problem}")));
        let mut output = session.output();
        if self.format.json {
            output.json(&listed.accounts.iter().map(to_json).collect::<Value>())?;
        } else if !listed.accounts.is_empty() {
            let mut table = Table::new(&["account", "state", "secret since", ">quota", ">a day", ">rate", ">connections", "permissions"]);
            for account in &listed.accounts {
                let limits = account.limits;
                table.row(vec![
                    account.name.clone(),
                    if account.is_locked { "locked" } else { "open" }.to_owned(),
                    local_time(account.rotated_ns),
                    bound(limits.logical_bytes),
                    bound(limits.new_bytes_a_day),
                    limits.bytes_per_second.map_or_else(|| "-".to_owned(), |rate| format!("{}/s", size(rate))),
                    limits.connections.to_string(),
                    grants(account).join(" "),
                ]);
            }
            table.print(&mut output)?;
        }
        output.finish()?;
        Ok(Exit::Done)
    }
}

impl StoreCommand for AccountShow {
    store_command!("account show", far, reads, asks);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let accounts = accounts(session)?;
        let account = accounts.get(&self.name)?;
        let used = accounts.used(&account)?;
        let mut output = session.output();
        if self.format.json {
            let mut value = to_json(&account);
            value["backups"] = used.backups.into();
            value["logical_bytes"] = used.logical_bytes.into();
            value["new_bytes_today"] = used.new_bytes_today.into();
            output.json(&value)?;
        } else {
            print(&mut output, &account, &used)?;
        }
        output.finish()?;
        Ok(Exit::Done)
    }
}

fn bound(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), size)
}

fn grants(account: &Account) -> Vec<String> {
    account.permissions.grants().map(|(namespace, permissions)| format!("{namespace}={permissions}")).collect()
}

pub(super) fn to_json(account: &Account) -> Value {
    let words = |set: PermissionSet| set.iter().map(|permission| permission.name()).collect::<Vec<_>>();
    let grants = account.permissions.grants();
    let limits = account.limits;
    json!({
        "name": account.name,
        "locked": account.is_locked,
        "created": utc_time(account.created_ns),
        "rotated": utc_time(account.rotated_ns),
        "generation": account.generation,
        "former_secret_until": account.former_until_ns().map(utc_time),
        "grants": grants.map(|(namespace, set)| json!({"namespace": namespace.to_string(), "permissions": words(set)})).collect::<Vec<_>>(),
        "quota_bytes": limits.logical_bytes,
        "quota_bytes_a_day": limits.new_bytes_a_day,
        "bytes_per_second": limits.bytes_per_second,
        "connections": limits.connections,
        "certificates": account.certificates.accepted.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "certificate_required": account.certificates.rule == CertificateRule::Must,
    })
}

fn print(output: &mut Output<'_>, account: &Account, used: &Use) -> Result<()> {
    let limits = account.limits;
    let of = |bytes: Option<u64>| bytes.map_or_else(String::new, |bytes| format!(" of {}", size(bytes)));
    output.line(format_args!("{}{}", account.name, if account.is_locked { "  (locked)" } else { "" }))?;
    output.line(format_args!("  created       {}", local_time(account.created_ns)))?;
    output.line(format_args!("  secret        {}, since {}", account.generation, local_time(account.rotated_ns)))?;
    if let Some(until_ns) = account.former_until_ns() {
        output.line(format_args!("  former secret until {}", local_time(until_ns)))?;
    }
    grants(account).iter().try_for_each(|grant| output.line(format_args!("  may           {grant}")))?;
    let backups = counted(used.backups, "backup", "backups");
    output.line(format_args!("  has           {backups}, {}{}", size(used.logical_bytes), of(limits.logical_bytes)))?;
    output.line(format_args!("  new today     {}{}", size(used.new_bytes_today), of(limits.new_bytes_a_day)))?;
    if let Some(rate) = limits.bytes_per_second {
        output.line(format_args!("  rate          {}/s", size(rate)))?;
    }
    output.line(format_args!("  connections   {}", limits.connections))?;
    let rule = if account.certificates.rule == CertificateRule::Must { "required" } else { "optional" };
    if account.certificates.accepted.is_empty() && rule == "required" {
        output.line("  certificate   required, and none is accepted")?;
    }
    account.certificates.accepted.iter().try_for_each(|certificate| output.line(format_args!("  certificate   {certificate} ({rule})")))
}
