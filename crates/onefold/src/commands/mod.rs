//! What the commands do, a file each. A command opens what it needs, lets the parts work, prints what they say; it knows no more.

mod analyze;
mod backup;
mod backups;
mod check;
mod diff;
mod dump;
mod init;
mod ls;
mod restore;
mod serve;
mod stats;
mod volume;

use crate::cli::{Cli, Command};
use crate::failure::{Exit, Result};
use crate::output::Output;
use clap::CommandFactory;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

/// Does what the command line says.
pub fn run(cli: &Cli) -> Result<Exit> {
    let talk = Talk { quiet: cli.quiet, verbose: cli.verbose > 0 };
    match &cli.command {
        Command::Init(options) => init::run(options, talk),
        Command::Backup(options) => backup::run(options, talk),
        Command::Backups(options) => backups::run(options),
        Command::Ls(options) => ls::run(options),
        Command::Diff(options) => diff::run(options),
        Command::Restore(options) => restore::run(options, talk),
        Command::Dump(options) => dump::run(options),
        Command::Volume(command) => volume::run(command, talk),
        Command::Serve(options) => serve::run(options, talk),
        Command::Stats(options) => stats::run(options),
        Command::Check(options) => check::run(options, talk),
        Command::Analyze(options) => analyze::run(options, talk),
        Command::Completions(options) => {
            let mut script = Vec::new();
            clap_complete::generate(options.shell, &mut Cli::command(), "onefold", &mut script);
            print(&script)
        }
        Command::Manpage => {
            let mut page = Vec::new();
            // Writing into memory does not fail.
            clap_mangen::Man::new(Cli::command()).render(&mut page).map_err(|error| crate::failure::Failure::output(&error))?;
            print(&page)
        }
    }
}

/// How much is said beside results.
#[derive(Clone, Copy, Debug)]
pub struct Talk {
    /// Nothing.
    pub quiet: bool,
    /// The log takes standard error, so no progress bar.
    pub verbose: bool,
}

fn print(bytes: &[u8]) -> Result<Exit> {
    let mut output = Output::new();
    output.bytes(bytes)?;
    output.finish()?;
    Ok(Exit::Done)
}

/// A path as the catalog knows it: its components, from the root of the backup.
fn catalog_path(path: &Path) -> Vec<u8> {
    let mut out: Vec<&[u8]> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => out.push(name.as_bytes()),
            Component::ParentDir => {
                out.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    out.join(&b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_meant_from_the_root_of_the_backup() {
        for (path, expected) in [("/", ""), ("/a/b/", "a/b"), ("a//./b", "a/b"), ("/a/../b", "b"), ("..", "")] {
            assert_eq!(catalog_path(Path::new(path)), expected.as_bytes(), "{path}");
        }
    }
}
