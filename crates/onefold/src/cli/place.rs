//! Where the command line may name the store: `--store` before or after the command, and the second environment
//! variable for it; and how to reach a store that is behind a server.

use super::{Cli, Span, Store, Wait};
use clap::{Args, CommandFactory};
use std::ffi::{OsStr, OsString};
use std::ops::Deref;
use std::path::PathBuf;
use std::time::Duration;

/// How to reach a store behind a server (`--store onefold://ACCOUNT@HOST[:PORT]`).
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "With a server (--store onefold://ACCOUNT@HOST[:PORT])")]
pub struct Connection {
    /// File with the secret of the account; `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// SHA-256 fingerprint of the server's certificate [default: the one remembered, else the authorities of the
    /// system]
    #[arg(long, value_name = "SHA256")]
    pub server_fingerprint: Option<String>,
    /// Certificate of this machine, PEM
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub client_certificate: Option<PathBuf>,
    /// Private key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "client_certificate")]
    pub client_key: Option<PathBuf>,
    /// How long to try to connect again when the connection breaks (90s, 30m, 2h; 0: not at all) [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = retry)]
    pub retry: Option<Duration>,
}

impl Connection {
    /// How long it retries unless something else is said.
    const RETRY: Duration = Duration::from_secs(300);

    /// Returns how long to retry.
    pub fn retry(&self) -> Duration {
        self.retry.unwrap_or(Connection::RETRY)
    }
}

fn retry(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { text.parse::<Span>().map(|span| Duration::from_secs(span.0)) }
}

/// Which store, for a command that also works with a server.
#[derive(Args, Clone, Debug, Default)]
pub struct Place {
    /// Which store.
    #[command(flatten)]
    pub store: Store,
    /// How to reach it.
    #[command(flatten)]
    pub connection: Connection,
}

/// The same for a command that finds the store in use while another one writes.
#[derive(Args, Clone, Debug, Default)]
pub struct PlaceToOneself {
    /// Which store.
    #[command(flatten)]
    pub place: Place,
    /// Waits while another process has the store open: without limit, or at most TIME (90s, 30m, 2h)
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "forever")]
    pub wait: Option<Wait>,
}

impl Deref for Place {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Deref for PlaceToOneself {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

/// Options that name the store.
const NAMES: [&str; 2] = ["--store", "--repository"];

/// Moves options that name the store behind the command and its subcommand, where the parser accepts them. `repository`
/// is the value of `ONEFOLD_REPOSITORY`: it counts if nothing else names the store.
pub fn with_store(arguments: Vec<OsString>, has_store: bool, repository: Option<OsString>) -> Vec<OsString> {
    let parser = Cli::command();
    let mut command = &parser;
    let (mut front, mut moved, mut rest) = (Vec::new(), Vec::new(), arguments.into_iter());
    front.extend(rest.next());
    while command.has_subcommands() {
        let Some(argument) = rest.next() else { break };
        if NAMES.iter().any(|name| argument == *name) {
            moved.push(argument);
            moved.extend(rest.next());
        } else if NAMES.iter().any(|name| argument.to_str().is_some_and(|text| text.starts_with(&format!("{name}=")))) {
            moved.push(argument);
        } else {
            let next = command.find_subcommand(&argument);
            let is_option = argument.to_str().is_some_and(|text| text.starts_with('-'));
            front.push(argument);
            match next {
                Some(next) => command = next,
                None if is_option => {}
                // The parser says what is wrong with it.
                None => break,
            }
        }
    }
    let rest: Vec<OsString> = rest.collect();
    let takes_store = command.get_arguments().any(|argument| argument.get_long() == Some("store"));
    if takes_store
        && moved.is_empty()
        && !has_store
        && !names_store(&rest)
        && let Some(repository) = repository
    {
        moved.extend(["--store".into(), repository]);
    }
    front.extend(moved);
    front.extend(rest);
    front
}

fn names_store(arguments: &[OsString]) -> bool {
    let is_end = |argument: &&OsString| argument.as_os_str() != OsStr::new("--");
    arguments.iter().take_while(is_end).filter_map(|argument| argument.to_str()).any(|argument| {
        let name = argument.split_once('=').map_or(argument, |(name, _)| name);
        NAMES.contains(&name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn moved(line: &str, has_store: bool, repository: Option<&str>) -> String {
        let words = line.split(' ').map(OsString::from).collect();
        let moved = with_store(words, has_store, repository.map(OsString::from));
        moved.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_store_may_stand_before_or_after_the_command() {
        for line in [
            "onefold --store s ls latest",
            "onefold ls --store s latest",
            "onefold ls latest --store s",
            "onefold -q --repository s ls latest",
            "onefold --repository=s ls latest",
            "onefold ls --repository=s latest",
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let cli = Cli::try_parse_from(with_store(words, false, None)).unwrap_or_else(|error| panic!("{line}: {error}"));
            let crate::cli::Command::Ls(options) = cli.command else { panic!("{line}") };
            assert_eq!(options.store.directory.to_str(), Some("s"), "{line}");
        }
        for line in ["onefold --store s volume list", "onefold volume --store s list", "onefold volume list --store=s"] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert!(Cli::try_parse_from(with_store(words, false, None)).is_ok(), "{line}");
        }
    }

    #[test]
    fn the_second_variable_counts_only_where_nothing_else_names_the_store() {
        assert_eq!(moved("onefold backups", false, Some("r")), "onefold backups --store r");
        assert_eq!(moved("onefold backups", true, Some("r")), "onefold backups");
        assert_eq!(moved("onefold backups --store s", false, Some("r")), "onefold backups --store s");
        assert_eq!(moved("onefold backup --name n -- --store", false, Some("r")), "onefold backup --store r --name n -- --store");
        assert_eq!(moved("onefold analyze x", false, Some("r")), "onefold analyze x", "it takes no store");
        assert_eq!(moved("onefold nonsense", false, Some("r")), "onefold nonsense");
    }
}
