//! The commands, one file each. A command opens what it needs, lets the parts work, and prints their results. It does
//! nothing else.

mod account;
mod analyze;
mod append_only;
mod backup;
mod backups;
mod bench;
mod check;
mod chosen;
mod clocks;
mod cluster;
mod copy;
mod dedup;
mod diff;
mod dump;
mod find;
mod forget;
mod fs;
mod init;
mod ls;
mod mount;
mod node;
mod partition;
mod place;
mod protect;
mod prune;
mod restore;
mod scrub;
mod serve;
mod session;
mod stats;
mod target;
mod traffic;
mod volume;

use crate::cli::{self, Cli, Command};
use crate::console::{Console, Terminal};
use crate::control::{self, Ran};
use crate::failure::{Exit, Failure, Result};
use crate::output::Output;
use crate::remote::{Server, is_url};
use crate::secret::{Asking, Secret};
use crate::session::{Session, StoreCommand};
use crate::settings::Settings;
use crate::store::{SETTINGS_FILE, Store, cannot_open, ground, read_settings};
use crate::talk::Talk;
use crate::waiting::{InUse, Waiting};
use clap::CommandFactory;
use onefold_engine::{Engine, EngineError, Mode};
use onefold_ground::Ground;
use onefold_oplog::LogError;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::Arc;

/// Runs the command line.
pub fn run(cli: Cli) -> Result<Exit> {
    let talk = Talk { quiet: cli.quiet, verbose: cli.verbose > 0 };
    match cli.command {
        Command::Init(options) => init::run(&options, talk),
        Command::Backup(options) => match &options.fs {
            Some(name) => on_store(Request::BackupFs(backup::of_filesystem(&options, name)), talk),
            None => backup::run(&options, talk),
        },
        Command::Backups(options) => on_store(Request::Backups(options), talk),
        Command::Forget(options) => on_store(Request::Forget(options), talk),
        Command::Prune(options) => on_store(Request::Prune(options), talk),
        Command::Dedup(options) => on_store(Request::Dedup(options), talk),
        Command::Protect(options) => on_store(Request::Protect(options), talk),
        Command::Ls(options) => on_store(Request::Ls(options), talk),
        Command::Find(options) => on_store(Request::Find(options), talk),
        Command::Diff(options) => on_store(Request::Diff(options), talk),
        Command::Restore(options) => restore::run(&options, talk),
        Command::Dump(options) => on_store(Request::Dump(options), talk),
        Command::Mount(options) => mount::run(&options, talk),
        Command::Copy(options) => copy::run(&options, talk),
        Command::Volume(command) => match command {
            cli::Volume::Create(options) => on_store(Request::VolumeCreate(options), talk),
            cli::Volume::List(options) => on_store(Request::VolumeList(options), talk),
            cli::Volume::Snapshot(options) => on_store(Request::VolumeSnapshot(options), talk),
            cli::Volume::Clone(options) => on_store(Request::VolumeClone(options), talk),
            cli::Volume::Rollback(options) => on_store(Request::VolumeRollback(options), talk),
            cli::Volume::Diff(options) => on_store(Request::VolumeDiff(options), talk),
            cli::Volume::Info(options) => on_store(Request::VolumeInfo(options), talk),
            cli::Volume::Rename(options) => on_store(Request::VolumeRename(options), talk),
            cli::Volume::Resize(options) => on_store(Request::VolumeResize(options), talk),
            cli::Volume::Delete(options) => on_store(Request::VolumeDelete(options), talk),
            cli::Volume::Import(options) => volume::copy::import(&options, talk),
            cli::Volume::Export(options) => volume::copy::export(&options, talk),
        },
        Command::Fs(command) => match command {
            cli::Fs::Create(mut options) => {
                options.owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
                on_store(Request::FsCreate(options), talk)
            }
            cli::Fs::List(options) => on_store(Request::FsList(options), talk),
            cli::Fs::Resize(options) => on_store(Request::FsResize(options), talk),
            cli::Fs::Rename(options) => on_store(Request::FsRename(options), talk),
            cli::Fs::Snapshot(options) => on_store(Request::FsSnapshot(options), talk),
            cli::Fs::Clone(options) => on_store(Request::FsClone(options), talk),
            cli::Fs::Rollback(options) => on_store(Request::FsRollback(options), talk),
            cli::Fs::Delete(options) => on_store(Request::FsDelete(options), talk),
        },
        Command::Serve(options) => serve::run(&options, talk),
        Command::Node(options) => node::run(&options, talk),
        Command::Cluster(cli::Cluster::Status(options)) => cluster::status(&options),
        Command::Target(command) => match command {
            cli::Target::Create(options) => on_store(Request::TargetCreate(options), talk),
            cli::Target::List(options) => on_store(Request::TargetList(options), talk),
            cli::Target::Delete(options) => on_store(Request::TargetDelete(options), talk),
            cli::Target::Set(options) => on_store(Request::TargetSet(options), talk),
            cli::Target::Attach(options) => on_store(Request::TargetAttach(options), talk),
            cli::Target::Detach(options) => on_store(Request::TargetDetach(options), talk),
            cli::Target::Allow(options) => on_store(Request::TargetAllow(options), talk),
            cli::Target::Deny(options) => on_store(Request::TargetDeny(options), talk),
            cli::Target::Chap(mut options) => {
                target::check_secret_file(&mut options)?;
                on_store(Request::TargetChap(options), talk)
            }
        },
        Command::Account(command) => match command {
            cli::Account::Create(mut options) => {
                let file = account::with_new_secret(&mut options.new)?;
                file.settle(on_store(Request::AccountCreate(options), talk))
            }
            cli::Account::List(options) => on_store(Request::AccountList(options), talk),
            cli::Account::Show(options) => on_store(Request::AccountShow(options), talk),
            cli::Account::Set(options) => on_store(Request::AccountSet(options), talk),
            cli::Account::Rotate(mut options) => {
                let file = account::with_new_secret(&mut options.new)?;
                file.settle(on_store(Request::AccountRotate(options), talk))
            }
            cli::Account::Lock(options) => on_store(Request::AccountLock(options), talk),
            cli::Account::Unlock(options) => on_store(Request::AccountUnlock(options), talk),
            cli::Account::Delete(options) => on_store(Request::AccountDelete(options), talk),
        },
        Command::Session(command) => match command {
            cli::SessionCommand::List(options) => on_store(Request::SessionList(options), talk),
            cli::SessionCommand::Drop(options) => on_store(Request::SessionDrop(options), talk),
        },
        Command::Stats(options) => on_store(Request::Stats(options), talk),
        Command::Check(options) => on_store(Request::Check(options), talk),
        Command::Scrub(options) => on_store(Request::Scrub(options), talk),
        Command::Partition(command) => match command {
            cli::Partition::List(options) => on_store(Request::PartitionList(options), talk),
            cli::Partition::Move(mut options) => {
                partition::with_absolute_directory(&mut options)?;
                on_store(Request::PartitionMove(options), talk)
            }
        },
        Command::AppendOnly(command) => match command {
            cli::AppendOnly::On(mut options) => {
                options.secret = Secret::read(options.secret_file.as_deref(), Asking::Twice)?;
                on_store(Request::AppendOnlyOn(options), talk)
            }
            cli::AppendOnly::Off(mut options) => {
                options.secret = Secret::read(options.secret_file.as_deref(), Asking::Once)?;
                on_store(Request::AppendOnlyOff(options), talk)
            }
            cli::AppendOnly::Status(options) => on_store(Request::AppendOnlyStatus(options), talk),
        },
        Command::Analyze(options) => analyze::run(&options, talk),
        Command::Traffic(command) => match command {
            cli::Traffic::Generate(options) => traffic::generate::run(&options, talk),
            cli::Traffic::Describe(options) => traffic::describe::run(&options),
        },
        Command::Bench(command) => match command {
            cli::Bench::Run(options) => bench::run::run(&options, talk),
            cli::Bench::Report(options) => bench::report::run(&options, talk),
        },
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

/// Creates the enum from the table.
macro_rules! requests {
    ($(#[$about:meta])* $($name:ident($options:ty): $command:literal,)*) => {
        $(#[$about])*
        #[derive(Debug, Deserialize, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Request {
            $(#[doc = concat!("`onefold ", $command, "`.")] $name($options),)*
        }

        impl Request {
            /// Returns the command.
            pub fn command(&self) -> &dyn StoreCommand {
                match self {
                    $(Request::$name(options) => options,)*
                }
            }
        }
    };
}

requests! {
    /// The commands that need only an open store.
    ///
    /// To make a command one of them: derive `Deserialize, Serialize` for its options in `cli.rs`, with
    /// `#[serde(skip)]` on `store` (a path may not be UTF-8: `#[serde(with = "any_path")]`). Implement [`StoreCommand`]
    /// for them in the command's file, and add them to the table and to [`run`] above.
    ///
    /// The work prints only through [`Session::output`] and [`Session::note`], and takes volumes from
    /// [`Session::volumes`]. It passes the session as monitor to long work, and says so by `ends_early`. It must not
    /// read files or the environment: work that does so with the daemon's rights [is for its
    /// owner](StoreCommand::is_for_owner). It must not assume that nobody else uses the store: in a daemon, clients of
    /// its volumes continue.
    Backups(cli::Backups): "backups",
    BackupFs(cli::BackupFs): "backup",
    Clocks(clocks::Clocks): "backup",
    Forget(cli::Forget): "forget",
    Prune(cli::Prune): "prune",
    Dedup(cli::Dedup): "dedup",
    Protect(cli::Protect): "protect",
    Ls(cli::Ls): "ls",
    Find(cli::Find): "find",
    Diff(cli::Diff): "diff",
    Dump(cli::Dump): "dump",
    VolumeCreate(cli::VolumeCreate): "volume create",
    VolumeList(cli::VolumeList): "volume list",
    VolumeSnapshot(cli::VolumeSnapshot): "volume snapshot",
    VolumeClone(cli::VolumeClone): "volume clone",
    VolumeRollback(cli::VolumeRollback): "volume rollback",
    VolumeDiff(cli::VolumeDiff): "volume diff",
    VolumeInfo(cli::VolumeFacts): "volume info",
    VolumeRename(cli::VolumeRename): "volume rename",
    VolumeResize(cli::VolumeResize): "volume resize",
    VolumeDelete(cli::VolumeDelete): "volume delete",
    FsCreate(cli::FsCreate): "fs create",
    FsList(cli::FsList): "fs list",
    FsResize(cli::FsResize): "fs resize",
    FsRename(cli::FsRename): "fs rename",
    FsSnapshot(cli::FsSnapshot): "fs snapshot",
    FsClone(cli::FsClone): "fs clone",
    FsRollback(cli::FsRollback): "fs rollback",
    FsDelete(cli::FsDelete): "fs delete",
    MountFs(cli::MountFs): "mount",
    UnmountFs(cli::UnmountFs): "mount",
    TargetCreate(cli::TargetCreate): "target create",
    TargetList(cli::TargetList): "target list",
    TargetDelete(cli::TargetDelete): "target delete",
    TargetSet(cli::TargetSet): "target set",
    TargetAttach(cli::TargetAttach): "target attach",
    TargetDetach(cli::TargetDetach): "target detach",
    TargetAllow(cli::TargetAllow): "target allow",
    TargetDeny(cli::TargetDeny): "target deny",
    TargetChap(cli::TargetChap): "target chap",
    AccountCreate(cli::AccountCreate): "account create",
    AccountList(cli::AccountList): "account list",
    AccountShow(cli::AccountShow): "account show",
    AccountSet(cli::AccountSet): "account set",
    AccountRotate(cli::AccountRotate): "account rotate",
    AccountLock(cli::AccountLock): "account lock",
    AccountUnlock(cli::AccountUnlock): "account unlock",
    AccountDelete(cli::AccountDelete): "account delete",
    SessionList(cli::SessionList): "session list",
    SessionDrop(cli::SessionDrop): "session drop",
    Stats(cli::Stats): "stats",
    Check(cli::Check): "check",
    Scrub(cli::Scrub): "scrub",
    PartitionList(cli::PartitionList): "partition list",
    PartitionMove(cli::PartitionMove): "partition move",
    CopyVolumes(copy::CopyVolumes): "copy",
    AppendOnlyOn(cli::AppendOnlyOn): "append-only on",
    AppendOnlyOff(cli::AppendOnlyOff): "append-only off",
    AppendOnlyStatus(cli::AppendOnlyStatus): "append-only status",
}

/// Opens the store, runs the command, closes the store; or has the daemon run it, if one has the store open. An error
/// of the work takes priority over one of closing.
fn on_store(request: Request, talk: Talk) -> Result<Exit> {
    let terminal = Terminal::new(talk);
    let mut request = request;
    if request.command().ends_early() {
        terminal.watch_signals()?;
    }
    let command = request.command();
    if is_url(command.directory()) {
        return on_server(request, talk, &terminal);
    }
    if let Request::Check(options) = &request {
        if options.repair {
            return check::repair(options, &terminal, talk.quiet);
        }
        if options.rebuild_index {
            check::rebuild(options, &terminal, talk.quiet)?;
        }
    }
    let directory = command.directory();
    let ground = ground(directory)?;
    let asks = command.mode() == Mode::Snapshot && command.asks_the_daemon();
    // A user may have the right to read the store but not to use the socket, which stays when a daemon is killed.
    let asked = if asks { control::connect(directory) } else { Ok(None) };
    let settings = read_settings(&directory.join(SETTINGS_FILE), true);
    let asked = match asked {
        Ok(Some(daemon)) => match daemon.run(request, talk, &terminal)? {
            Ran::Done(exit) => return Ok(exit),
            Ran::NotBegun(again) => {
                request = *again;
                None
            }
        },
        asked => asked.err(),
    };
    let settings = settings.map_err(|unread| asked.unwrap_or(unread))?;
    let mut waiting = Waiting::new(request.command().wait(), &terminal, talk.quiet);
    loop {
        let command = request.command();
        match find_doer(command, &ground, &settings, &terminal)? {
            Ok(doer) => match doer.run(request, talk, &terminal)? {
                Ran::Done(exit) => return Ok(exit),
                Ran::NotBegun(again) => {
                    request = *again;
                    waiting.pause()?;
                }
            },
            Err(error) if waiting.outlasts(&error) => {}
            Err(error) if error.holder().is_some() => {
                return Err(waiting.interruption(&error).unwrap_or_else(|| in_use(error, command)));
            }
            Err(error) => {
                let done = command.without_store(&error, &terminal, talk.quiet);
                return done.unwrap_or_else(|| Err(cannot_open(error)));
            }
        }
    }
}

/// Has a server run the command.
fn on_server(request: Request, talk: Talk, terminal: &Terminal) -> Result<Exit> {
    let command = request.command();
    let needs_the_store = matches!(&request, Request::Check(options) if options.repair || options.rebuild_index);
    let connection = command.connection().filter(|_| !needs_the_store).ok_or_else(|| only_with_the_store(command.name()))?;
    let client = Server::new(command.directory(), &connection)?.connect(terminal)?;
    match client.run(request, talk, terminal)? {
        Ran::Done(exit) => Ok(exit),
        Ran::NotBegun(_) => Err(Failure::failed("the server is stopping").advise("run the command again when it runs again")),
    }
}

/// Returns the failure of a command that does not work over the network.
fn only_with_the_store(command: &str) -> Failure {
    Failure::cannot_run(format!("`{command}` needs the store itself, not a server")).advise("run it on the machine that has the store")
}

/// Who runs a command.
enum Doer {
    /// This process: it has opened the store.
    Here(Box<Store>),
    /// The daemon that has the store open.
    Daemon(control::Client),
}

/// Opens the store for a command, or finds the daemon that has it open. The inner error: why the store does not open.
fn find_doer(
    command: &dyn StoreCommand,
    ground: &Arc<dyn Ground>,
    settings: &Settings,
    console: &dyn Console,
) -> Result<std::result::Result<Doer, EngineError>> {
    let opened = match command.mode() {
        Mode::Snapshot => Store::open_as_of_now(ground.clone(), settings.clone(), command.name(), &|text| console.note(text)),
        mode => Engine::open(ground.clone(), settings.engine.clone(), mode, command.name())
            .map(|engine| Store { engine, settings: settings.clone() }),
    };
    match opened {
        Ok(store) => {
            store.keep_no_unfinished(command.mode())?;
            Ok(Ok(Doer::Here(Box::new(store))))
        }
        Err(error) if error.holder().is_some() => match control::connect(command.directory())? {
            Some(daemon) => Ok(Ok(Doer::Daemon(daemon))),
            None => Ok(Err(error)),
        },
        Err(error) => Ok(Err(error)),
    }
}

impl Doer {
    /// Runs the command.
    fn run(self, request: Request, talk: Talk, console: &dyn Console) -> Result<Ran> {
        let store = match self {
            Doer::Here(store) => store,
            Doer::Daemon(daemon) => return daemon.run(request, talk, console),
        };
        let session = Session::new(&store, console, talk.quiet);
        let done = request.command().run(&session);
        let said = session.take_said();
        drop(session);
        console.end_progress();
        let closed = store.close();
        let shown = said.into_iter().try_for_each(|said| said.show(console)).and_then(|()| console.out().flush());
        let exit = done?;
        closed?;
        shown.map_err(|error| Failure::output(&error))?;
        Ok(Ran::Done(exit))
    }
}

fn in_use(error: EngineError, command: &dyn StoreCommand) -> Failure {
    in_use_by_another(error, command.mode())
}

fn in_use_by_another(error: EngineError, mode: Mode) -> Failure {
    // No process of this machine need have it.
    if matches!(error, EngineError::Log(LogError::Shared { .. })) {
        return cannot_open(error);
    }
    let how = if mode == Mode::Snapshot { "" } else { "; `--wait` waits for it" };
    cannot_open(error).advise(format!(
        "wait until that process has ended, or stop it{how}. A daemon that is starting or stopping takes commands soon or no more, and its log says if it cannot \
         listen for them"
    ))
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
