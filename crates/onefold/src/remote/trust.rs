//! Certificates of servers that a person has accepted: `known-servers`, a line `HOST:PORT FINGERPRINT` for each.

use super::{Address, settings_directory};
use crate::failure::{Failure, Result};
use onefold_ground::{LocalGround, replace_file};
use onefold_remote::transport::CertificateFingerprint;
use std::fmt;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The name of the file.
const NAME: &str = "known-servers";

/// The file, if the user has a home.
pub(super) struct KnownServers(Option<PathBuf>);

impl KnownServers {
    /// Returns the file of the user.
    pub(super) fn of_user() -> KnownServers {
        KnownServers(settings_directory().map(|directory| directory.join(NAME)))
    }

    fn text(&self) -> Result<String> {
        let Some(path) = &self.0 else { return Ok(String::new()) };
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(Failure::cannot_run(format!("cannot read {}: {error}", path.display()))),
        }
    }

    /// Returns the certificate of a server.
    pub(super) fn find(&self, address: &Address) -> Result<Option<CertificateFingerprint>> {
        let text = self.text()?;
        let Some((line, fingerprint)) = find(&text, address) else { return Ok(None) };
        fingerprint.parse().map(Some).map_err(|error| {
            let path = self.0.as_deref().unwrap_or(Path::new(""));
            Failure::cannot_run(format!("line {line} of {} cannot be used: {error}", path.display())).advise("correct or remove that line")
        })
    }

    /// Returns the file and the number of the line of a server.
    pub(super) fn place(&self, address: &Address) -> Option<(PathBuf, usize)> {
        let text = self.text().ok()?;
        Some((self.0.clone()?, find(&text, address)?.0))
    }

    /// Remembers the certificate of a server.
    pub(super) fn remember(&self, address: &Address, fingerprint: &CertificateFingerprint) -> Result<()> {
        let Some(path) = &self.0 else { return Ok(()) };
        let mut text = self.text()?;
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format!("{} {fingerprint}\n", address.server()));
        write(path, &text)
    }
}

impl fmt::Display for KnownServers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_deref().unwrap_or(Path::new("~/.config/onefold/known-servers")).display().fmt(formatter)
    }
}

/// Finds the line of a server, with its number.
fn find<'a>(text: &'a str, address: &Address) -> Option<(usize, &'a str)> {
    let server = address.server();
    let lines = text.lines().enumerate().filter_map(|(at, line)| Some((at + 1, line.trim().split_once(char::is_whitespace)?)));
    lines.filter(|(_, (known, _))| *known == server).map(|(at, (_, fingerprint))| (at, fingerprint)).next()
}

/// Writes a file that has all of its content or the former one.
fn write(path: &Path, text: &str) -> Result<()> {
    let cannot = |error: &dyn fmt::Display| Failure::cannot_run(format!("cannot remember the server in {}: {error}", path.display()));
    let directory = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|error| cannot(&error))?;
    let ground = LocalGround::open(directory).map_err(|error| cannot(&error))?;
    replace_file(&ground, NAME, text.as_bytes()).map_err(|error| cannot(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_server_is_remembered_and_found_with_its_line() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("onefold/known-servers");
        let known = KnownServers(Some(path.clone()));
        let address = |text: &str| Address::parse(Path::new(text)).unwrap();
        let (one, two) = (address("onefold://ann@one"), address("onefold://ann@[::1]:9"));
        assert_eq!(known.find(&one).unwrap(), None);
        for (number, server) in [&one, &two].into_iter().enumerate() {
            known.remember(server, &CertificateFingerprint::from([number as u8; 32])).unwrap();
        }
        assert_eq!(known.find(&two).unwrap(), Some(CertificateFingerprint::from([1; 32])));
        assert_eq!(known.place(&two), Some((path.clone(), 2)));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "one:8210 nonsense\n").unwrap();
        assert!(known.find(&one).unwrap_err().message.contains("line 1"));
    }
}
