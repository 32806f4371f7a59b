//! Turns the errors of the parts into messages for people: the exit code, and what to do next.

use crate::failure::{Exit, Failure};
use crate::units::local_time;
use onefold_blocks::SpaceError;
use onefold_catalog::CatalogError;
use onefold_client::ClientError;
use onefold_engine::EngineError;
use onefold_fs::FsError;
use onefold_fs_backup::FsBackupError;
use onefold_ground::{GroundError, LockError};
use onefold_nbd::NbdError;
use onefold_oplog::LogError;
use onefold_remote::accounts::AccountError;
use onefold_remote::services::messages::codes;
use onefold_remote::transport::{self, ChannelError};
use onefold_storage::StorageError;
use onefold_targets::TargetError;
use onefold_upkeep::UpkeepError;
use onefold_volume::VolumeError;

/// Advice about damage of objects in a bucket.
const IN_BUCKET: &str = "docs/object-storage.md says what to do when an object is damaged";

/// What to do on a full disk.
pub const FULL: &str = "the disk of the store is full; acknowledged data is safe. Run `onefold forget` or `onefold volume delete`, then `onefold prune` \
    (they work on a full disk), discard data in volumes, or free other space on the disk; then retry";
/// What to do where chunks stay because lost ones may need them.
pub const KEPT_FOR_LOST: &str =
    "write the lost data again (a new backup), or forget and delete what `onefold check` lists; then run `onefold check --repair`";
/// What to do where a merged container cannot be read, but all files that it was made of are there.
const MERGED_MAY_BE_MOVED: &str = "try again; if the device keeps failing, move this file out of the store and run `onefold check --repair`, \
    which continues with the files from before the merge";
/// The same where some of those files are gone.
const MERGED_MAY_NOT_BE_MOVED: &str = "try again; do not move the file, because some files from before the merge are gone. \
    Repair the device, or restore the file from a copy of the store";
const BESIDE_A_DAEMON: &str = "stop the daemon for this command: it uses your files or devices, or needs the store to itself; \
    docs/cli.md lists the commands that work beside a daemon";
const NOT_DURABLE: &str = "do not repeat the command: it took effect and becomes durable with the next write. Find the cause (a full or \
    failing disk); if the machine crashes before that, check `onefold volume list`";
const ACCOUNT_NOT_DURABLE: &str = "it took effect and becomes durable with the next write. Find the cause (a full or failing disk); then \
    `onefold account rotate` gives the account a new secret if this one is lost";
/// What to do after a change of an account was refused, so that nothing changed.
pub const ACCOUNTS: &str = "`onefold account list` lists the accounts";
const DAMAGE: &str = "`onefold check --read-data` lists all damage; other data is still readable";

/// What to do where nodes of a cluster share the store.
const SHARED: &str = "run the command on the machine of the node that serves clients, and name the directory of that node (`onefold node --state`) \
    with --store; docs/three-nodes.md";

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        if let EngineError::Lock(lock) = &error {
            return match lock {
                LockError::Held { holder, .. } => {
                    let failure = Failure::cannot_run(format!("the store is in use: {error}"));
                    match holder {
                        Some(holder) if holder.command.starts_with("serve") => failure.advise(BESIDE_A_DAEMON),
                        _ => failure.advise(
                            "wait until that process ends (`--wait` does, in commands that write), or stop it; a crashed \
                            process leaves no lock behind",
                        ),
                    }
                }
                LockError::Ground(ground) => Failure::failed(&error).advise_about(ground),
            };
        }
        let failure = Failure::failed(&error);
        match &error {
            EngineError::NoStore { .. } => failure.advise("check the spelling, or create a store with `onefold init`"),
            EngineError::KeepsNoData { .. } => {
                Failure { exit: Exit::CannotRun, ..failure }.advise("remove the directory if no experiment runs there")
            }
            EngineError::Newer { .. } => failure.advise("use the newer onefold that wrote it, or a later version"),
            EngineError::Older { .. } => {
                failure.advise("restore its content with the earlier onefold that wrote it, and store that in a new store (`onefold init`)")
            }
            EngineError::Copied { .. } => Failure { exit: Exit::CannotRun, ..failure }.advise(
                "copy it again while no process has the store open. To use it as it is, run `onefold check --repair` on it once; a store \
                    moved after a crash is complete",
            ),
            EngineError::NoStoreInBucket { .. } => {
                Failure { exit: Exit::CannotRun, ..failure }.advise("check the spelling, or create a store with `onefold init`")
            }
            EngineError::OtherNode { .. } => failure.advise(
                "nothing is lost; run the command again. If it fails for long, look whether ZooKeeper and the other nodes run: the log of this node says who does \
                not answer",
            ),
            EngineError::Log(LogError::Shared { .. }) => Failure { exit: Exit::CannotRun, ..failure }.advise(SHARED),
            EngineError::PrefixNotFree { .. } => Failure { exit: Exit::CannotRun, ..failure }.advise("choose another prefix"),
            error if error.is_fenced() => {
                failure.advise("what was acknowledged is not lost. Run the command again when the other process has ended")
            }
            EngineError::NotEmpty { .. } => failure.advise("give the name of a directory that does not exist yet"),
            EngineError::Invalid { .. } => Failure { exit: Exit::CannotRun, ..failure },
            EngineError::AppendOnly { .. } => failure.advise("`onefold append-only off` switches the mode off; it needs the secret"),
            EngineError::Stopped { .. } => {
                failure.advise("fix the cause of the earlier error (full or failing disk, a removed lock file), then run the command again")
            }
            EngineError::Storage(StorageError::MergedUnreadable { may_be_moved, .. }) => {
                failure.advise(if *may_be_moved { MERGED_MAY_BE_MOVED } else { MERGED_MAY_NOT_BE_MOVED })
            }
            EngineError::Storage(StorageError::ArenaMissing { .. }) => Failure { exit: Exit::CannotRun, ..failure }.advise(
                "mount its disk, connect its device if the name leads to one, or bring it back from a copy of the store. If it is gone \
                    for good, make an empty file of that name (no link) and run `onefold check --repair`: then each chunk counts as \
                    lost until it is written again",
            ),
            error if error.is_full() => failure.advise(FULL),
            error if error.is_damage() && failure.message.contains("://") => failure.advise(IN_BUCKET),
            error if error.is_damage() => failure.advise(DAMAGE),
            EngineError::Storage(StorageError::Ground(error)) | EngineError::Ground(error) => failure.advise_about(error),
            _ => failure,
        }
    }
}

impl Failure {
    fn advise_about(self, error: &GroundError) -> Failure {
        match error.kind() {
            std::io::ErrorKind::PermissionDenied if error.to_string().contains("://") => {
                self.advise("docs/object-storage.md says where credentials come from, and which rights they need")
            }
            std::io::ErrorKind::PermissionDenied => self.advise("run as the user who owns the store"),
            std::io::ErrorKind::ReadOnlyFilesystem => {
                self.advise("on a read-only file system a store can only be read: `backups`, `ls`, `restore`, `dump`, `stats`, `check`, `volume export`")
            }
            _ => self,
        }
    }
}

impl From<GroundError> for Failure {
    fn from(error: GroundError) -> Failure {
        Failure::from(EngineError::Ground(error))
    }
}

impl From<CatalogError> for Failure {
    fn from(error: CatalogError) -> Failure {
        match error {
            CatalogError::Engine(error) => Failure::from(error),
            CatalogError::UnknownBackup { .. } | CatalogError::AmbiguousBackup { .. } => {
                Failure::failed(error).advise("`onefold backups` lists the backups; any unique prefix of an id will do")
            }
            CatalogError::Protected { until_ns, .. } => {
                Failure::failed(&error).advise(format!("it is protected until {}", local_time(until_ns)))
            }
            CatalogError::PathNotFound { .. } | CatalogError::NotADirectory { .. } => {
                Failure::failed(error).advise("`onefold ls ID` lists what is in a backup")
            }
            CatalogError::Damaged { .. } | CatalogError::Rest { .. } | CatalogError::TooLong { .. } | CatalogError::DoesNotSpell { .. } => {
                Failure::failed(error).advise(DAMAGE)
            }
            CatalogError::Disordered { .. } | CatalogError::Remote { .. } | CatalogError::Unreachable { .. } => Failure::failed(error),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        match error {
            ClientError::Catalog(error) => Failure::from(error),
            ClientError::Engine(error) => Failure::from(error),
            ClientError::BadPattern { .. } => Failure::cannot_run(error).advise("`onefold backup --help` describes patterns"),
            ClientError::Lost { .. } => Failure::failed(error).advise("--damaged zero writes zeros in place of bytes that cannot be read"),
            ClientError::Refused { .. } => Failure::cannot_run(error),
            ClientError::NothingToBackUp { .. } => Failure::cannot_run(error),
            ClientError::Cancelled => Failure::interrupted("stopped by a signal"),
            ClientError::Connection(error) => Failure::from(error),
            error => Failure::failed(error),
        }
    }
}

impl From<ChannelError> for Failure {
    fn from(error: ChannelError) -> Failure {
        match error {
            ChannelError::Cancelled { code: codes::UNKNOWN, text } => {
                Failure::failed(text).advise("`onefold backups` lists the backups; any unique prefix of an id will do")
            }
            ChannelError::Cancelled { code, text } if code >= transport::codes::SERVICES => Failure::failed(text),
            ChannelError::Ended { code: transport::codes::SHUTDOWN, .. }
            | ChannelError::Cancelled { code: transport::codes::SHUTDOWN, .. } => {
                Failure::failed("the server stopped before the command was done").advise("run it again when the server runs again")
            }
            ChannelError::Ended { code: transport::codes::CLOSED, text } => Failure::failed(text),
            error => Failure::failed(error).advise("run it again: what is done already makes it faster"),
        }
    }
}

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Failure {
        match error {
            VolumeError::Engine(error) => Failure::from(error),
            VolumeError::NotFound { .. } | VolumeError::Exists { .. } => {
                Failure::failed(error).advise("`onefold volume list` lists the volumes")
            }
            VolumeError::ReadOnly { ref name } => {
                let advice = format!("snapshots never change; `onefold volume clone {name} NEW-NAME` makes a copy that can");
                Failure::failed(error).advise(advice)
            }
            VolumeError::NoSnapshot { .. } => {
                Failure::failed(error).advise("name a snapshot or a read-only clone; `onefold volume list` shows what is one")
            }
            VolumeError::Unrelated { ref snapshot, .. } => {
                let advice = format!("`onefold volume clone {snapshot} NEW-NAME` makes a new volume with its content");
                Failure::failed(error).advise(advice)
            }
            VolumeError::Name { .. } | VolumeError::BlockSize { .. } | VolumeError::Size { .. } => Failure::cannot_run(error),
            VolumeError::Damaged { .. } => Failure::failed(error).advise(DAMAGE),
            VolumeError::NotDurable { .. } => Failure::failed(error).advise(NOT_DURABLE),
            error => Failure::failed(error),
        }
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Failure {
        let FsError::Space(error) = error else {
            return match error {
                FsError::Damaged { .. } => Failure::failed(error).advise(DAMAGE),
                error => Failure::failed(error),
            };
        };
        let text = |text: String| Failure::failed(text);
        match error {
            SpaceError::Engine(error) => Failure::from(error),
            SpaceError::NotFound { name } => {
                text(format!("there is no filesystem {name:?}")).advise("`onefold fs list` lists the filesystems")
            }
            SpaceError::Exists { name } => {
                text(format!("a filesystem {name:?} already exists")).advise("`onefold fs list` lists the filesystems")
            }
            SpaceError::ReadOnly { name } => text(format!("filesystem {name:?} is read-only"))
                .advise(format!("snapshots never change; `onefold fs clone {name} NEW-NAME` makes a copy that can")),
            SpaceError::NoSnapshot { name } => text(format!("filesystem {name:?} is not a snapshot"))
                .advise("name a snapshot or a read-only clone; `onefold fs list` shows what is one"),
            SpaceError::Unrelated { name, snapshot } => text(format!("{snapshot:?} is not a snapshot of filesystem {name:?}"))
                .advise(format!("`onefold fs clone {snapshot} NEW-NAME` makes a new filesystem with its content")),
            SpaceError::Name { name, reason } => Failure::cannot_run(format!("{name:?} cannot be the name of a filesystem: {reason}")),
            SpaceError::Damaged { .. } => Failure::failed(error).advise(DAMAGE),
            SpaceError::NotDurable { .. } => Failure::failed(error).advise(NOT_DURABLE),
            error => Failure::failed(error),
        }
    }
}

impl From<FsBackupError> for Failure {
    fn from(error: FsBackupError) -> Failure {
        match error {
            FsBackupError::Filesystem(error) => error.into(),
            FsBackupError::Catalog(error) => error.into(),
            FsBackupError::Name { .. } => Failure::cannot_run(error).advise("rename it: `onefold fs rename`"),
            FsBackupError::Deleted { .. } => Failure::failed(error),
            FsBackupError::Cancelled => Failure::interrupted("stopped by a signal: no backup was made"),
        }
    }
}

impl From<TargetError> for Failure {
    fn from(error: TargetError) -> Failure {
        match error {
            TargetError::Engine(error) => Failure::from(error),
            TargetError::Name { .. } => Failure::cannot_run(error),
            TargetError::Damaged { .. } => Failure::failed(error).advise(DAMAGE),
            error => Failure::failed(error).advise("`onefold target list` lists the targets with what they show"),
        }
    }
}

impl From<AccountError> for Failure {
    fn from(error: AccountError) -> Failure {
        match error {
            AccountError::Engine(error) => Failure::from(error),
            AccountError::Catalog(error) => Failure::from(error),
            AccountError::Exists { .. } | AccountError::NotFound { .. } => Failure::failed(error).advise(ACCOUNTS),
            AccountError::HasBackups { .. } => {
                Failure::failed(error).advise("--keep-backups deletes the account and leaves them; `onefold forget` removes them")
            }
            AccountError::NotDurable { .. } => Failure::failed(error).advise(ACCOUNT_NOT_DURABLE),
            AccountError::Damaged { ref name, .. } => {
                let advice = format!("nobody can log in with it; `onefold account delete {name}` removes it, and you can create it again");
                Failure::failed(error).advise(advice)
            }
            AccountError::Quota { .. } | AccountError::DayQuota { .. } | AccountError::Connections { .. } => Failure::failed(error),
            error => Failure::cannot_run(error),
        }
    }
}

impl From<NbdError> for Failure {
    fn from(error: NbdError) -> Failure {
        match error {
            NbdError::PlainOffLoopback { .. } => Failure::cannot_run(error).advise(
                "give --tls-certificate, --tls-key and --tls-required; or, where everyone on the network may read and write \
                 the volumes, --allow-plain-off-loopback",
            ),
            NbdError::NoAddress => Failure::cannot_run("nothing to serve: neither options nor settings ask for NBD, iSCSI or backups").advise(
                "give --nbd-socket PATH (for you alone), --nbd (127.0.0.1:10809, for every user of this machine), --iscsi ADDRESS or \
                 --backup ADDRESS",
            ),
            NbdError::Flush { .. } => {
                Failure::failed(error).advise("what clients flushed before is safe; what they wrote after may be lost")
            }
            NbdError::Listen { ref source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => Failure::cannot_run(error)
                .advise("another process listens there, or a file is in the way: stop or remove it, or give another address with --nbd or --nbd-socket"),
            error => Failure::cannot_run(error),
        }
    }
}

impl From<UpkeepError> for Failure {
    fn from(error: UpkeepError) -> Failure {
        match error {
            UpkeepError::Engine(error) => Failure::from(error),
            UpkeepError::Index(error) => Failure::from(EngineError::Index(error)),
            UpkeepError::Storage(error) => Failure::from(EngineError::Storage(error)),
            UpkeepError::Catalog(error) => Failure::from(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_storage::ContainerId;

    #[test]
    fn an_unreadable_merged_container_may_be_moved_away_only_while_its_parts_are_there() {
        let advice = |may_be_moved| {
            let source = GroundError::TooLong { path: "f".into(), length_bytes: 2, limit_bytes: 1 };
            let error = StorageError::MergedUnreadable { path: "f".into(), container: ContainerId::new(0, 1), may_be_moved, source };
            Failure::from(EngineError::Storage(error)).advice.unwrap()
        };
        assert!(advice(true).contains("move this file out of the store and run `onefold check --repair`"));
        assert!(advice(false).contains("do not move the file"));
    }
}
