//! Lines of the shell that call a backup program, apart from the settings of the session that measures.

use crate::process::{Cost, run};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What all lines find in their environment, beside the variables of the run.
pub const ENVIRONMENT: [&str; 5] = [
    "RESTIC_PASSWORD=bench",
    "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes",
    "KOPIA_PASSWORD=bench",
    "KOPIA_CHECK_FOR_UPDATES=false",
    "GIT_CONFIG_NOSYSTEM=1",
];
/// A session's own settings of the programs, which must not count.
const UNSET: [&str; 14] = [
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "BUP_DIR",
    "BORG_BASE_DIR",
    "ONEFOLD_STORE",
    "ONEFOLD_CACHE",
    "RESTIC_CACHE_DIR",
    "RUSTIC_CACHE_DIR",
    "RUSTIC_USE_PROFILE",
    "KOPIA_CONFIG_PATH",
    "KOPIA_CACHE_DIRECTORY",
    "AWS_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL",
];
/// Where Go and Cargo install programs, in the home of the user who measures. The last places that are searched.
const INSTALLED: [&str; 2] = ["go/bin", ".cargo/bin"];

/// Where lines find programs, and how long they may take. `$ONEFOLD` is ours.
#[derive(Debug)]
pub struct Shell {
    onefold: PathBuf,
    path: String,
    limit_s: u64,
}

impl Shell {
    /// `binary`: our program, or None for the one beside this program; `programs`: a directory that is searched first.
    pub fn new(binary: Option<&Path>, programs: Option<&Path>, limit_s: u64) -> Result<Shell> {
        let onefold = match binary {
            Some(binary) => binary.canonicalize().with_context(|| format!("no program at {}", binary.display()))?,
            None => std::env::current_exe()?.with_file_name("onefold"),
        };
        let mut path = std::env::var("PATH").unwrap_or_default();
        if let Some(programs) = programs {
            path = format!("{}:{path}", std::path::absolute(programs)?.display());
        }
        if let Some(home) = std::env::home_dir() {
            path.extend(INSTALLED.map(|place| format!(":{}", home.join(place).display())));
        }
        Ok(Shell { onefold, path, limit_s })
    }

    /// Runs a line to its end; a failure, or too long a time, is an error.
    pub fn call(&self, line: &str, variables: &[(&str, String)]) -> Result<Cost> {
        let mut arguments = self.environment(variables);
        let limit = self.limit_s.to_string();
        arguments.extend(["timeout", "-k", "10", &limit, "bash", "-o", "pipefail", "-c", line].map(String::from));
        run(Path::new("env"), &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// A command that becomes the line: one that begins with `exec` runs as the process that is started.
    pub fn command(&self, line: &str, variables: &[(&str, String)]) -> Command {
        let mut command = Command::new("env");
        command.args(self.environment(variables)).args(["bash", "-c", line]);
        command
    }

    /// Arguments of `env`.
    fn environment(&self, variables: &[(&str, String)]) -> Vec<String> {
        let unset = UNSET.iter().flat_map(|name| ["-u".to_owned(), (*name).to_owned()]);
        let fixed = ENVIRONMENT.iter().map(|setting| (*setting).to_owned());
        let given = variables.iter().map(|(name, value)| format!("{name}={value}"));
        let own = [format!("ONEFOLD={}", self.onefold.display()), format!("PATH={}", self.path)];
        unset.chain(fixed).chain(given).chain(own).collect()
    }
}

/// What a program said at its end, on one line, without the measured cost and without directories of this run.
pub fn reason(error: &anyhow::Error, place: &Path) -> String {
    let text = format!("{error:#}").replace(&place.display().to_string(), "");
    let text = text.rsplit_once(" failed: ").map_or(text.as_str(), |(_, said)| said);
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("{\"")).collect();
    let said = lines[lines.len().saturating_sub(3)..].join("; ");
    match said.char_indices().nth(300) {
        _ if said.is_empty() => "nothing was said, or the time limit was reached".into(),
        Some((end, _)) => format!("{}...", &said[..end]),
        None => said,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn the_reason_is_what_was_said_last() {
        let place = Path::new("/dev/shm/.tmpX");
        let error = anyhow!("env A=1 bash -c x failed: one\ntwo\nthree: /dev/shm/.tmpX/store\n\nfour\n{{\"wall_s\": 1}}\n");
        assert_eq!(reason(&error, place), "two; three: /store; four");
        assert!(reason(&anyhow!("x failed: {{\"wall_s\": 1}}\n"), place).starts_with("nothing was said"));
        let long = reason(&anyhow!("x failed: {}", "ü".repeat(400)), place);
        assert_eq!(long, "ü".repeat(300) + "...");
    }

    #[test]
    fn a_line_sees_its_variables_and_none_of_the_session() {
        let shell = Shell { onefold: "/opt/onefold".into(), path: "/usr/bin:/bin".into(), limit_s: 10 };
        let mut command = shell.command("echo $PLACE $ONEFOLD $KOPIA_PASSWORD ${BUP_DIR-none}", &[("PLACE", "here".into())]);
        let output = command.env("BUP_DIR", "/elsewhere").output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "here /opt/onefold bench none\n");
    }
}
