//! Where the secret of an account comes from: a file, the environment, the user's file of secrets, the keyring of the
//! system, a person. Never from the command line.

use super::{Address, settings_directory};
use crate::failure::{Failure, Result};
use crate::secret::{Asking, Secret, VARIABLE};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Longest file of secrets, bytes.
const LIMIT_BYTES: u64 = 1 << 20;

/// Finds the secret.
pub(super) fn find(address: &Address, file: Option<&Path>) -> Result<Secret> {
    if file.is_some() || std::env::var_os(VARIABLE).is_some() {
        return Secret::read(file, Asking::Once);
    }
    if let Some(directory) = settings_directory()
        && let Some(secret) = in_file(&directory.join("secrets"), address)?
    {
        return Ok(secret);
    }
    if let Some(secret) = in_keyring(address) {
        return Ok(secret);
    }
    if !crate::console::can_ask() {
        return Err(Failure::cannot_run(format!("there is no secret for {address}, and there is no terminal to ask for it")).advise(
            format!(
                "give it with --secret-file FILE, in {VARIABLE}, in ~/.config/onefold/secrets (a line `{}@{} SECRET`), or in the keyring",
                address.account,
                address.server()
            ),
        ));
    }
    Secret::read(None, Asking::Once)
}

/// Looks in the user's file of secrets: a line `ACCOUNT@HOST:PORT SECRET` for each.
fn in_file(path: &Path, address: &Address) -> Result<Option<Secret>> {
    let shown = path.display();
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::cannot_run(format!("cannot read {shown}: {error}"))),
    };
    if found.permissions().mode() & 0o077 != 0 || !found.is_file() || found.len() > LIMIT_BYTES {
        return Err(Failure::cannot_run(format!("{shown} is not safe: it must be a file that only you can read"))
            .advise(format!("run chmod 600 {shown}, and rotate the secrets if others may have read them")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| Failure::cannot_run(format!("cannot read {shown}: {error}")))?;
    let name = format!("{}@{}", address.account, address.server());
    let line = text.lines().filter_map(|line| line.trim().split_once(char::is_whitespace)).find(|(known, _)| *known == name);
    Ok(line.map(|(_, secret)| Secret::of(secret.trim().as_bytes().to_vec())))
}

/// Asks the keyring of the system, if its program is there.
fn in_keyring(address: &Address) -> Option<Secret> {
    let mut command = Command::new("secret-tool");
    command.args(["lookup", "service", "onefold", "account", &address.account, "host", &address.host]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let secret = output.stdout.trim_ascii();
    (output.status.success() && !secret.is_empty()).then(|| Secret::of(secret.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_secrets_has_one_for_each_account_of_each_server() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("secrets");
        let address = |text: &str| Address::parse(Path::new(text)).unwrap();
        let find = |text: &str| in_file(&path, &address(text)).map(|found| found.map(|secret| secret.as_bytes().to_vec()));
        assert_eq!(find("onefold://ann@h").unwrap(), None);
        std::fs::write(&path, "# mine\nann@h:8210 1fs-one\nbob@h:8210\t1fs-two \n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(find("onefold://ann@h").unwrap().unwrap(), b"1fs-one");
        assert_eq!(find("onefold://bob@h").unwrap().unwrap(), b"1fs-two");
        assert_eq!(find("onefold://bob@h:1").unwrap(), None);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(find("onefold://ann@h").unwrap_err().advice.unwrap().contains("chmod 600"));
    }
}
