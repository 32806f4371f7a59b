//! Amazon's files of credentials, `~/.aws/credentials` and `~/.aws/config`. The object store's client reads only the
//! environment.

use crate::error::failed;
use onefold_ground::Result;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Id, secret, and the session's token, if there is one.
type AccessKey = (String, String, Option<String>);

/// The files, and which part of them counts.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    /// `None`: there is no home directory.
    credentials: Option<PathBuf>,
    config: Option<PathBuf>,
    profile: String,
    /// Whether somebody asked for this profile.
    is_chosen: bool,
}

/// Returns a variable of the environment that is not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Shared {
    pub(crate) fn from_environment() -> Shared {
        Shared::from_variables(&variable)
    }

    fn from_variables(variable: &dyn Fn(&str) -> Option<String>) -> Shared {
        let home = |name: &str| variable("HOME").map(|home| Path::new(&home).join(".aws").join(name));
        let place = |name: &str, file: &str| variable(name).map(PathBuf::from).or_else(|| home(file));
        let chosen = variable("AWS_PROFILE");
        Shared {
            credentials: place("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
            config: place("AWS_CONFIG_FILE", "config"),
            is_chosen: chosen.is_some(),
            profile: chosen.unwrap_or_else(|| "default".to_owned()),
        }
    }

    /// Returns the key of the profile. `None`: the files have none.
    pub(crate) fn key(&self) -> Result<Option<AccessKey>> {
        for (path, is_config) in [(&self.credentials, false), (&self.config, true)] {
            let Some(section) = self.section(path.as_deref(), is_config)? else { continue };
            let value = |name: &str| section.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
            if let (Some(id), Some(secret)) = (value("aws_access_key_id"), value("aws_secret_access_key")) {
                return Ok(Some((id, secret, value("aws_session_token"))));
            }
        }
        if self.is_chosen {
            let path = self.credentials.as_deref().unwrap_or(Path::new("~/.aws/credentials")).display().to_string();
            let why = format!("profile `{}` of AWS_PROFILE has no aws_access_key_id and aws_secret_access_key in it", self.profile);
            return Err(failed("use", &path, io::Error::new(ErrorKind::InvalidInput, why)));
        }
        Ok(None)
    }

    /// Returns the region of the profile. `None`: the files have none.
    pub(crate) fn region(&self) -> Result<Option<String>> {
        for (path, is_config) in [(&self.config, true), (&self.credentials, false)] {
            let section = self.section(path.as_deref(), is_config)?.unwrap_or_default();
            if let Some((_, region)) = section.into_iter().find(|(key, _)| key == "region") {
                return Ok(Some(region));
            }
        }
        Ok(None)
    }

    /// Returns the settings of the profile in a file. `None`: there is no such file or profile.
    fn section(&self, path: Option<&Path>, is_config: bool) -> Result<Option<Vec<(String, String)>>> {
        let Some(path) = path else { return Ok(None) };
        match fs::read_to_string(path) {
            Ok(text) => Ok(section(&text, &self.profile, is_config)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(failed("read", &path.display().to_string(), error)),
        }
    }
}

/// Reads the settings of a profile. In the config file, headings begin with `profile`, except that of the default one.
fn section(text: &str, profile: &str, is_config: bool) -> Option<Vec<(String, String)>> {
    let mut found: Option<Vec<(String, String)>> = None;
    let mut is_inside = false;
    for line in text.lines() {
        // An indented line belongs to the setting before it: it is none that counts here.
        let is_nested = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(heading) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(heading, _)| heading.trim()) {
            let name = if is_config { heading.strip_prefix("profile ").map_or(heading, str::trim) } else { heading };
            is_inside = name.trim_matches(['"', '\'']) == profile;
            if is_inside {
                found.get_or_insert_default();
            }
            continue;
        }
        if let (true, false, Some((key, value)), Some(found)) = (is_inside, is_nested, line.split_once('='), &mut found) {
            let value = value.split(" #").next().unwrap_or_default().trim();
            if !value.is_empty() {
                found.push((key.trim().to_ascii_lowercase(), value.to_owned()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const CREDENTIALS: &str = "\
# comment
[default]
aws_access_key_id = AKIDEFAULT
aws_secret_access_key=abc/def+gh=
s3 =
  region = nested

[ work ]
AWS_ACCESS_KEY_ID = AKIWORK
aws_secret_access_key = secret # of work
; comment
aws_session_token = token==
";
    const CONFIG: &str = "\
[default]
region = eu-west-1
[profile work]
region=us-west-2
[profile sso]
sso_start_url = https://example.com
";

    fn shared(directory: &Path, more: &[(&str, &str)]) -> Shared {
        let mut variables: HashMap<String, String> = HashMap::new();
        variables.insert("HOME".to_owned(), directory.display().to_string());
        variables.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        Shared::from_variables(&|name| variables.get(name).cloned())
    }

    fn key(id: &str, secret: &str, token: Option<&str>) -> Option<AccessKey> {
        Some((id.to_owned(), secret.to_owned(), token.map(str::to_owned)))
    }

    #[test]
    fn the_key_and_the_region_are_those_of_the_profile() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join(".aws")).unwrap();
        fs::write(directory.path().join(".aws/credentials"), CREDENTIALS).unwrap();
        fs::write(directory.path().join(".aws/config"), CONFIG).unwrap();
        let files = shared(directory.path(), &[]);
        assert_eq!(files.key().unwrap(), key("AKIDEFAULT", "abc/def+gh=", None));
        assert_eq!(files.region().unwrap().as_deref(), Some("eu-west-1"));
        let files = shared(directory.path(), &[("AWS_PROFILE", "work")]);
        assert_eq!(files.key().unwrap(), key("AKIWORK", "secret", Some("token==")));
        assert_eq!(files.region().unwrap().as_deref(), Some("us-west-2"));
        for profile in ["sso", "none"] {
            let files = shared(directory.path(), &[("AWS_PROFILE", profile)]);
            let error = files.key().unwrap_err().to_string();
            assert!(error.contains(profile) && error.contains("AWS_PROFILE"), "{error}");
            assert_eq!(files.region().unwrap(), None);
        }
    }

    #[test]
    fn files_may_be_elsewhere_or_missing() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!((shared(directory.path(), &[]).key().unwrap(), shared(directory.path(), &[]).region().unwrap()), (None, None));
        let place = directory.path().join("keys");
        fs::write(&place, CREDENTIALS).unwrap();
        let files = shared(directory.path(), &[("AWS_SHARED_CREDENTIALS_FILE", place.to_str().unwrap())]);
        assert_eq!(files.key().unwrap(), key("AKIDEFAULT", "abc/def+gh=", None));
        let homeless = Shared::from_variables(&|_| None);
        assert_eq!((homeless.key().unwrap(), homeless.region().unwrap()), (None, None));
        let unreadable = shared(directory.path(), &[("AWS_SHARED_CREDENTIALS_FILE", directory.path().to_str().unwrap())]);
        assert!(unreadable.key().is_err());
    }
}
