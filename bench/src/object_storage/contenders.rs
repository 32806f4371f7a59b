//! The programs that are compared on object storage: how each is called, and with which settings.
//!
//! Each step is a line for the shell. Variables, beside those of `bench/src/shell.rs`: `$ADDRESS` (where the proxy
//! listens), `$BUCKET` (an empty bucket), `$AWS_ACCESS_KEY_ID`, `$AWS_SECRET_ACCESS_KEY`, `$AWS_REGION`, `$PLACE/tree`
//! (what is backed up), `$TARGET` (empty directory to restore into). `$HOME` is a directory of the run, with everything
//! that a program keeps beside its repository.

/// A program that keeps backups in a bucket.
pub struct Contender {
    pub name: &'static str,
    /// Compression and encryption as they are set, for the report.
    pub settings: &'static str,
    /// Fails if the program is not installed; the first line that it prints is the version.
    pub version: &'static str,
    pub init: &'static str,
    pub backup: &'static str,
    /// Brings the newest backup into `$TARGET`.
    pub restore: &'static str,
    /// Where the tree is in `$TARGET`: itself, or its whole path below.
    pub restores_path: bool,
    /// Removes all that the program keeps on this machine.
    pub lose_state: &'static str,
    /// Restores as `restore` does after `lose_state`.
    pub restore_without_state: &'static str,
    /// Forgets all backups but the newest, and frees the space that they alone need.
    pub prune: &'static str,
}

macro_rules! onefold {
    ($command:literal, $rest:literal) => {
        concat!("$ONEFOLD ", $command, " --quiet --store \"s3://$BUCKET/store?endpoint=http://$ADDRESS\" ", $rest)
    };
}

macro_rules! restic {
    ($rest:literal) => {
        concat!("restic -q -r s3:http://$ADDRESS/$BUCKET/store ", $rest)
    };
}

/// Options of its storage are in the environment.
macro_rules! rustic {
    ($rest:literal) => {
        concat!(
            "export RUSTIC_REPOSITORY=opendal:s3 RUSTIC_PASSWORD=bench OPENDAL_BUCKET=$BUCKET OPENDAL_ROOT=/store \
             OPENDAL_ENDPOINT=http://$ADDRESS OPENDAL_REGION=$AWS_REGION OPENDAL_ACCESS_KEY_ID=$AWS_ACCESS_KEY_ID \
             OPENDAL_SECRET_ACCESS_KEY=$AWS_SECRET_ACCESS_KEY; rustic --log-level warn --no-progress ",
            $rest
        )
    };
}

/// Where the bucket is, for `kopia repository`. It takes the keys from the environment.
macro_rules! kopia_repository {
    ($command:literal) => {
        concat!(
            "kopia repository ",
            $command,
            " s3 --bucket=$BUCKET --prefix=store/ --endpoint=$ADDRESS --region=$AWS_REGION --disable-tls"
        )
    };
}

/// All of them, in the order of the report.
pub const CONTENDERS: [Contender; 4] = [
    Contender {
        name: "onefold",
        settings: "zstd:2, not encrypted",
        version: "$ONEFOLD --version",
        init: "$ONEFOLD init --quiet \"s3://$BUCKET/store?endpoint=http://$ADDRESS\"",
        backup: onefold!("backup", "--name tree $PLACE/tree"),
        restore: onefold!("restore", "latest:tree --target $TARGET"),
        restores_path: true,
        lose_state: "rm -rf $HOME/.cache/onefold",
        restore_without_state: onefold!("restore", "latest:tree --target $TARGET"),
        prune: concat!(onefold!("forget", "--name tree --keep-last 1 && "), onefold!("prune", "")),
    },
    Contender {
        name: "restic",
        settings: "zstd (auto), AES-256: always encrypts",
        version: "restic version",
        init: restic!("init"),
        backup: restic!("backup $PLACE/tree"),
        restore: restic!("restore latest --target $TARGET"),
        restores_path: true,
        lose_state: "rm -rf $HOME/.cache/restic",
        restore_without_state: restic!("restore latest --target $TARGET"),
        prune: restic!("forget --keep-last 1 --prune"),
    },
    Contender {
        name: "rustic",
        settings: "zstd (default level), AES-256: always encrypts, prune deletes at once",
        version: "rustic --version",
        init: rustic!("init"),
        backup: rustic!("backup $PLACE/tree"),
        restore: rustic!("restore latest $TARGET"),
        restores_path: true,
        lose_state: "rm -rf $HOME/.cache/rustic",
        restore_without_state: rustic!("restore latest $TARGET"),
        prune: rustic!("forget --keep-last 1 --prune --instant-delete"),
    },
    Contender {
        name: "kopia",
        settings: "zstd-fastest, AES-256: always encrypts, maintenance deletes at once",
        version: "kopia --version",
        init: concat!(kopia_repository!("create"), " && kopia policy set --global --compression=zstd-fastest"),
        backup: "kopia snapshot create $PLACE/tree",
        restore: "kopia snapshot restore $PLACE/tree $TARGET",
        restores_path: false,
        lose_state: "rm -rf $HOME/.cache/kopia $HOME/.config/kopia",
        restore_without_state: concat!(kopia_repository!("connect"), " && kopia snapshot restore $PLACE/tree $TARGET"),
        // Its list of backups, the oldest first, gives the ids by which it deletes.
        prune: "ids=$(kopia snapshot list --show-identical --json $PLACE/tree | \
            tr '{,' '\\n\\n' | sed -n 's/^ *\"id\": *\"\\([0-9a-f]*\\)\"$/\\1/p' | head -n -1); \
            kopia snapshot delete --delete $ids && kopia maintenance run --full --safety=none",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_one_that_the_shell_can_read() {
        for contender in &CONTENDERS {
            let Contender { version, init, backup, restore, lose_state, restore_without_state, prune, .. } = contender;
            for line in [version, init, backup, restore, lose_state, restore_without_state, prune] {
                let read = std::process::Command::new("bash").args(["-n", "-c", line]).output().unwrap();
                assert!(read.status.success(), "{}: {line}: {}", contender.name, String::from_utf8_lossy(&read.stderr));
            }
        }
    }

    #[test]
    fn everything_goes_through_the_proxy_and_state_is_of_the_run() {
        for contender in &CONTENDERS {
            assert!(contender.init.contains("$ADDRESS"), "{}", contender.name);
            assert!(contender.lose_state.split(' ').skip(2).all(|path| path.starts_with("$HOME/")), "{}", contender.lose_state);
        }
    }
}
