//! The programs that are compared: how each is called, and with which settings.
//!
//! Each step is a line for the shell, with what differs from run to run in variables: `$STORE` (directory of the
//! repository), `$PLACE/tree` (what is backed up), `$TARGET` (empty directory to restore into), `$NAME` (`first`,
//! `unchanged` or `changed`), `$ONEFOLD` (ours). `$HOME` is a directory of the run, so that caches and keys are deleted
//! with the rest. Passwords are in the environment ([`crate::shell::ENVIRONMENT`]).

/// What stands beside what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// zstd at a quick level, and what compresses like it.
    Strong,
    /// lz4, and what is made for speed like it.
    Quick,
    /// No compression.
    None,
}

impl Codec {
    /// All of them, in the order of the report.
    pub const ALL: [Codec; 3] = [Codec::Strong, Codec::Quick, Codec::None];

    pub fn title(self) -> &'static str {
        match self {
            Codec::Strong => "zstd and its like",
            Codec::Quick => "lz4 and its like",
            Codec::None => "no compression",
        }
    }
}

/// A program with its settings.
pub struct Program {
    /// Its name; the first word is what it is called by.
    pub name: &'static str,
    pub codec: Codec,
    /// Compression and encryption as they are set, for the report.
    pub settings: &'static str,
    /// Fails if the program is not installed; the first line that it prints is the version.
    pub version: &'static str,
    pub init: &'static str,
    pub backup: &'static str,
    /// Brings the backup `changed`, the newest one, back into `$TARGET`.
    pub restore: &'static str,
    /// Where the tree is in `$TARGET`.
    pub restored: Restored,
    /// Reads and verifies all data; None: it has no such command.
    pub verify: Option<&'static str>,
    /// Deletes all backups but the newest, and gives back all space that can be.
    pub reclaim: &'static str,
}

/// Where a program puts the tree below the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restored {
    /// The target is the tree.
    Itself,
    /// `tree`
    Name,
    /// The whole path of the tree.
    Path,
}

const RESTIC: Program = Program {
    name: "restic",
    codec: Codec::Strong,
    settings: "zstd (auto), AES-256: always encrypts",
    version: "restic version",
    init: "restic -q -r $STORE init",
    backup: "restic -q -r $STORE backup $PLACE/tree",
    restore: "restic -q -r $STORE restore latest --target $TARGET",
    restored: Restored::Path,
    verify: Some("restic -q -r $STORE check --read-data"),
    reclaim: "restic -q -r $STORE forget --keep-last 1 --prune --max-unused 0",
};

const BORG: Program = Program {
    name: "borg",
    codec: Codec::Strong,
    settings: "zstd 1, not encrypted",
    version: "borg --version",
    init: "borg init -e none $STORE",
    backup: "borg create -C zstd,1 $STORE::$NAME $PLACE/tree",
    restore: "cd $TARGET && borg extract $STORE::changed",
    restored: Restored::Path,
    verify: Some("borg check --verify-data $STORE"),
    reclaim: "borg delete $STORE::first && borg delete $STORE::unchanged && borg compact --threshold 0 $STORE",
};

/// Its list of backups, the oldest first, gives the ids by which it restores and deletes.
const KOPIA: Program = Program {
    name: "kopia",
    codec: Codec::Strong,
    settings: "zstd-fastest, AES-256: always encrypts",
    version: "kopia --version",
    init: "kopia repository create filesystem --path=$STORE && kopia policy set --global --compression=zstd-fastest",
    backup: "kopia snapshot create $PLACE/tree",
    restore: "id=$(kopia snapshot list --show-identical --json $PLACE/tree | \
        tr '{,' '\\n\\n' | sed -n 's/^ *\"id\": *\"\\([0-9a-f]*\\)\"$/\\1/p' | tail -n 1); kopia snapshot restore $id $TARGET",
    restored: Restored::Itself,
    verify: Some("kopia snapshot verify --verify-files-percent=100"),
    reclaim: "ids=$(kopia snapshot list --show-identical --json $PLACE/tree | \
        tr '{,' '\\n\\n' | sed -n 's/^ *\"id\": *\"\\([0-9a-f]*\\)\"$/\\1/p' | head -n -1); \
        kopia snapshot delete --delete $ids && kopia maintenance run --full --safety=none",
};

const ONEFOLD: Program = Program {
    name: "onefold",
    codec: Codec::Strong,
    settings: "zstd:1, not encrypted",
    version: "$ONEFOLD --version",
    init: "$ONEFOLD init $STORE --compression zstd:1",
    backup: "$ONEFOLD backup --quiet --store $STORE --name bench $PLACE/tree",
    restore: "$ONEFOLD restore --quiet --store $STORE latest:bench --target $TARGET",
    restored: Restored::Path,
    verify: Some("$ONEFOLD check --store $STORE --read-data"),
    reclaim: "$ONEFOLD forget --store $STORE --name bench --keep-last 1 && $ONEFOLD prune --store $STORE --max-unused 0",
};

const ZBACKUP: Program = Program {
    name: "zbackup",
    codec: Codec::Quick,
    settings: "lzo, not encrypted, of a tar stream (time of tar counts)",
    version: "command -v zbackup >/dev/null && { zbackup --help 2>&1 || true; } | sed -n 's/^\\(ZBackup\\),.*, version/\\1/p'",
    init: "zbackup --non-encrypted --silent -o bundle.compression_method=lzo init $STORE",
    backup: "tar --format=posix -C $PLACE -cf - tree | zbackup --non-encrypted --silent backup $STORE/backups/$NAME",
    restore: "zbackup --non-encrypted --silent restore $STORE/backups/changed | tar -xpf - -C $TARGET",
    restored: Restored::Name,
    // It verifies by the hash of the whole that is restored.
    verify: Some("zbackup --non-encrypted --silent restore $STORE/backups/changed >/dev/null"),
    reclaim: "rm $STORE/backups/first $STORE/backups/unchanged && zbackup --non-encrypted --silent gc deep $STORE",
};

const BUP: Program = Program {
    name: "bup",
    codec: Codec::Strong,
    settings: "zlib 1, not encrypted",
    version: "bup --version",
    init: "bup -d $STORE init",
    backup: "bup -d $STORE index $PLACE/tree && bup -d $STORE save -q -n $NAME $PLACE/tree",
    restore: "bup -d $STORE restore -q -C $TARGET /changed/latest$PLACE/tree",
    restored: Restored::Name,
    verify: Some("bup -d $STORE fsck"),
    reclaim: "bup -d $STORE rm --unsafe /first /unchanged && bup -d $STORE gc --unsafe --threshold 0",
};

const CASYNC: Program = Program {
    name: "casync",
    codec: Codec::Strong,
    settings: "zstd, not encrypted",
    version: "casync --version",
    init: "mkdir $STORE",
    backup: "casync make --store=$STORE/chunks.castr $STORE/$NAME.caidx $PLACE/tree",
    restore: "casync extract --store=$STORE/chunks.castr $STORE/changed.caidx $TARGET",
    restored: Restored::Itself,
    verify: None,
    reclaim: "rm $STORE/first.caidx $STORE/unchanged.caidx && casync gc --store=$STORE/chunks.castr $STORE/changed.caidx",
};

const DESYNC: Program = Program {
    name: "desync",
    codec: Codec::Strong,
    settings: "zstd, not encrypted",
    version: "desync --version",
    init: "mkdir -p $STORE/chunks",
    backup: "desync tar -i -s $STORE/chunks $STORE/$NAME.caidx $PLACE/tree",
    restore: "desync untar -i -s $STORE/chunks $STORE/changed.caidx $TARGET",
    restored: Restored::Itself,
    verify: Some("desync verify -s $STORE/chunks"),
    reclaim: "rm $STORE/first.caidx $STORE/unchanged.caidx && desync prune --yes -s $STORE/chunks $STORE/changed.caidx",
};

/// A line for the shell that finds the image of a file system mounted; however it ends, nothing stays mounted.
macro_rules! mounted {
    ($line:literal) => {
        concat!("mount -o loop $STORE/image $PLACE/mounted && trap 'umount $PLACE/mounted' EXIT && ", $line)
    };
}

/// A file system that shares extents, and a program that finds equal ones in it afterwards: what is here called the
/// repository is the image of that file system.
const DUPEREMOVE: Program = Program {
    name: "duperemove",
    codec: Codec::None,
    settings: "none, not encrypted, cp to xfs with reflinks in an image, blocks of 128 KiB after each copy",
    version: "test $(id -u) = 0 && command -v mkfs.xfs >/dev/null && duperemove --version",
    init: "mkdir $STORE $PLACE/mounted && truncate -s 64G $STORE/image && mkfs.xfs -q -m reflink=1 $STORE/image",
    backup: mounted!(
        "cp -a $PLACE/tree $PLACE/mounted/$NAME && \
        duperemove -q -d -r --hashfile=$STORE/hashes $PLACE/mounted >/dev/null && fstrim $PLACE/mounted"
    ),
    restore: mounted!("cp -a $PLACE/mounted/changed $TARGET/tree"),
    restored: Restored::Name,
    verify: None,
    reclaim: mounted!("rm -rf $PLACE/mounted/first $PLACE/mounted/unchanged && fstrim $PLACE/mounted"),
};

/// All of them; the first of each codec is ours, as the aims of the report want it.
pub const PROGRAMS: [Program; 16] = [
    ONEFOLD,
    RESTIC,
    BORG,
    KOPIA,
    BUP,
    CASYNC,
    DESYNC,
    Program {
        settings: "lzma 6, not encrypted, of a tar stream (time of tar counts)",
        codec: Codec::Strong,
        init: "zbackup --non-encrypted --silent init $STORE",
        ..ZBACKUP
    },
    Program { codec: Codec::Quick, settings: "lz4, not encrypted", init: "$ONEFOLD init $STORE --compression lz4", ..ONEFOLD },
    Program { codec: Codec::Quick, settings: "lz4, not encrypted", backup: "borg create -C lz4 $STORE::$NAME $PLACE/tree", ..BORG },
    Program {
        codec: Codec::Quick,
        settings: "s2-default, AES-256: always encrypts",
        init: "kopia repository create filesystem --path=$STORE && kopia policy set --global --compression=s2-default",
        ..KOPIA
    },
    ZBACKUP,
    Program { codec: Codec::None, settings: "none, not encrypted", init: "$ONEFOLD init $STORE --compression none", ..ONEFOLD },
    Program { codec: Codec::None, settings: "none, not encrypted", backup: "borg create -C none $STORE::$NAME $PLACE/tree", ..BORG },
    Program {
        codec: Codec::None,
        settings: "none, AES-256: always encrypts",
        backup: "restic -q -r $STORE backup --compression off $PLACE/tree",
        ..RESTIC
    },
    DUPEREMOVE,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_beside_others_for_each_codec_and_no_settings_are_there_twice() {
        for codec in Codec::ALL {
            let beside: Vec<_> = PROGRAMS.iter().filter(|program| program.codec == codec).collect();
            assert_eq!(beside[0].name, "onefold", "{codec:?}");
            assert!(beside.len() >= 3, "{codec:?}");
            assert!(beside.iter().filter(|program| program.name == "onefold").count() == 1, "{codec:?}");
        }
        let mut seen: Vec<_> = PROGRAMS.iter().map(|program| (program.name, program.settings)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), PROGRAMS.len());
    }

    #[test]
    fn every_line_is_one_that_the_shell_can_read() {
        for program in &PROGRAMS {
            let lines = [program.version, program.init, program.backup, program.restore, program.reclaim];
            for line in lines.into_iter().chain(program.verify) {
                let read = std::process::Command::new("bash").args(["-n", "-c", line]).output().unwrap();
                assert!(read.status.success(), "{}: {line}: {}", program.name, String::from_utf8_lossy(&read.stderr));
            }
        }
    }
}
