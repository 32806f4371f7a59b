//! The servers that are compared: how each is set up, started and called, and with which settings.
//!
//! Each step is a line for the shell. Variables, beside those of `bench/src/shell.rs`: `$STORE` (directory of the
//! repository), `$PLACE/tree` (what is backed up), `$TARGET` (empty directory to restore into), `$NAME` (name of the
//! step), `$PORT` (where the server listens), `$ADDRESS` and `$VIA` (address and port of the proxy, which clients use),
//! `$SERVER` (home directory of the server). `$HOME` is that of the client.

/// A program, or two, that keep backups on a server.
pub struct Contender {
    /// What the row is called.
    pub name: &'static str,
    /// Compression, encryption and transport as they are set, for the report.
    pub settings: &'static str,
    /// The programs that it takes, for people who lack them.
    pub programs: &'static str,
    /// Fails if one of them is not installed; the first line that it prints is the version.
    pub version: &'static str,
    /// Before the server starts: makes the repository, keys, certificates.
    pub prepare: &'static str,
    /// Becomes the server, in the foreground; None: the client opens the repository itself.
    pub serve: Option<&'static str>,
    /// With the server, through the proxy: makes the client ready, and the repository if `prepare` does not.
    pub connect: &'static str,
    pub backup: &'static str,
    /// Brings the newest backup of `backup` into `$TARGET`.
    pub restore: &'static str,
    /// Where the tree is in `$TARGET`: itself, or its whole path below.
    pub restores_path: bool,
    /// The first backup of the same data by an account that has none; None: not measured.
    pub another: Option<&'static str>,
}

/// A certificate for loopback, which no authority has signed.
macro_rules! certificate {
    () => {
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
         -addext subjectAltName=IP:127.0.0.1 -keyout $PLACE/server.key -out $PLACE/server.pem 2>/dev/null"
    };
}

/// How a client of ours finds the server: the fingerprint is in the first line that the server writes. `127.1` is
/// 127.0.0.1, but not to the client: it takes the server for one on another machine, and has restored data compressed.
macro_rules! ours {
    ($account:literal) => {
        concat!(
            "--store onefold://",
            $account,
            "@127.1:$VIA --secret-file $PLACE/",
            $account,
            ".secret --server-fingerprint $(sed -n 's/.*\"backup_fingerprint\":\"\\([0-9a-f:]*\\)\".*/\\1/p' $PLACE/server.log)"
        )
    };
}

/// A client of borg, with the keys of this run and no settings of the user.
macro_rules! borg {
    ($rest:literal) => {
        concat!(
            "export BORG_RSH=\"ssh -F none -p $VIA -i $PLACE/key -o IdentitiesOnly=yes -o BatchMode=yes -o LogLevel=ERROR ",
            "-o StrictHostKeyChecking=no -o UserKnownHostsFile=$PLACE/known\"; ",
            $rest
        )
    };
}

/// All of them, in the order of the report.
pub const CONTENDERS: [Contender; 5] = [
    Contender {
        name: "onefold, no server",
        settings: "zstd:1, not encrypted",
        programs: "onefold",
        version: "$ONEFOLD --version",
        prepare: "$ONEFOLD init $STORE --compression zstd:1",
        serve: None,
        connect: "true",
        backup: "$ONEFOLD backup --quiet --store $STORE --name one $PLACE/tree",
        restore: "$ONEFOLD restore --quiet --store $STORE latest:one --target $TARGET",
        restores_path: true,
        another: None,
    },
    Contender {
        name: "onefold",
        settings: "zstd:1, TLS",
        programs: "onefold",
        version: "$ONEFOLD --version",
        prepare: "$ONEFOLD init $STORE --compression zstd:1 && for name in one two; do \
            $ONEFOLD account create --store $STORE $name --secret-file $PLACE/$name.secret; done",
        serve: Some("exec $ONEFOLD serve --json --store $STORE --nbd none --iscsi none --backup 127.0.0.1:$PORT"),
        connect: "true",
        backup: concat!("$ONEFOLD backup --quiet ", ours!("one"), " --name one $PLACE/tree"),
        restore: concat!("$ONEFOLD restore --quiet ", ours!("one"), " latest:one --target $TARGET"),
        restores_path: true,
        // Another machine has none of the first one's caches.
        another: Some(concat!("HOME=$PLACE/home-two $ONEFOLD backup --quiet ", ours!("two"), " --name two $PLACE/tree")),
    },
    Contender {
        name: "borg",
        settings: "zstd 1, not encrypted, over SSH",
        programs: "borg with sshd (openssh-server), ssh and ssh-keygen",
        version: "test -x /usr/sbin/sshd && command -v ssh >/dev/null && command -v ssh-keygen >/dev/null && borg --version",
        // sshd that runs as root wants this directory, which usually the system makes when it starts.
        prepare: "if [ $(id -u) = 0 ]; then mkdir -p -m 755 /run/sshd; fi && \
            ssh-keygen -q -t ed25519 -N '' -f $PLACE/host && ssh-keygen -q -t ed25519 -N '' -f $PLACE/key && \
            echo \"restrict,command=\\\"env HOME=$SERVER PATH=$PATH borg serve --restrict-to-path $STORE\\\" $(cat $PLACE/key.pub)\" \
            >$PLACE/authorized && printf '%s\\n' 'ListenAddress 127.0.0.1' \"Port $PORT\" \"HostKey $PLACE/host\" \
            \"AuthorizedKeysFile $PLACE/authorized\" 'StrictModes no' 'UsePAM no' 'PidFile none' 'PasswordAuthentication no' \
            'PermitRootLogin prohibit-password' >$PLACE/sshd.conf",
        serve: Some("exec /usr/sbin/sshd -D -e -f $PLACE/sshd.conf"),
        connect: borg!("borg init -e none ssh://127.0.0.1$STORE"),
        backup: borg!("borg create -C zstd,1 ssh://127.0.0.1$STORE::$NAME $PLACE/tree"),
        restore: borg!("cd $TARGET && borg extract ssh://127.0.0.1$STORE::changed"),
        restores_path: true,
        another: None,
    },
    Contender {
        name: "restic",
        settings: "zstd (auto), AES-256: always encrypts, rest-server with TLS",
        programs: "restic with rest-server and openssl",
        version: "command -v rest-server >/dev/null && command -v openssl >/dev/null && restic version",
        prepare: concat!("mkdir $STORE && ", certificate!()),
        serve: Some(
            "exec rest-server --path $STORE --no-auth --listen 127.0.0.1:$PORT --tls --tls-cert $PLACE/server.pem --tls-key $PLACE/server.key",
        ),
        connect: "restic -q -r rest:https://$ADDRESS/ --cacert $PLACE/server.pem init",
        backup: "restic -q -r rest:https://$ADDRESS/ --cacert $PLACE/server.pem backup $PLACE/tree",
        restore: "restic -q -r rest:https://$ADDRESS/ --cacert $PLACE/server.pem restore latest --target $TARGET",
        restores_path: true,
        another: None,
    },
    Contender {
        name: "kopia",
        settings: "zstd-fastest, AES-256: always encrypts, kopia server with TLS",
        programs: "kopia with openssl",
        version: "command -v openssl >/dev/null && kopia --version",
        prepare: concat!(
            "export HOME=$SERVER && kopia repository create filesystem --path=$STORE && ",
            "kopia policy set --global --compression=zstd-fastest && kopia server user add bench@bench --user-password=bench && ",
            certificate!()
        ),
        serve: Some(
            "export HOME=$SERVER; exec kopia server start --address=https://127.0.0.1:$PORT --tls-cert-file=$PLACE/server.pem \
             --tls-key-file=$PLACE/server.key --server-control-username=control --server-control-password=bench",
        ),
        connect: "kopia repository connect server --url=https://$ADDRESS --override-username=bench --override-hostname=bench \
            --server-cert-fingerprint=$(openssl x509 -in $PLACE/server.pem -noout -fingerprint -sha256 | \
            sed 's/.*=//; s/://g' | tr A-F a-f)",
        backup: "kopia snapshot create $PLACE/tree",
        restore: "id=$(kopia snapshot list --show-identical --json $PLACE/tree | \
            tr '{,' '\\n\\n' | sed -n 's/^ *\"id\": *\"\\([0-9a-f]*\\)\"$/\\1/p' | tail -n 1); kopia snapshot restore $id $TARGET",
        restores_path: false,
        another: None,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_one_that_the_shell_can_read() {
        for contender in &CONTENDERS {
            let lines = [contender.version, contender.prepare, contender.connect, contender.backup, contender.restore];
            for line in lines.into_iter().chain(contender.serve).chain(contender.another) {
                let read = std::process::Command::new("bash").args(["-n", "-c", line]).output().unwrap();
                assert!(read.status.success(), "{}: {line}: {}", contender.name, String::from_utf8_lossy(&read.stderr));
            }
        }
    }

    #[test]
    fn servers_listen_on_loopback_and_become_the_process_that_is_started() {
        for contender in &CONTENDERS {
            let Some(serve) = contender.serve else { continue };
            assert!(serve.contains("exec "), "{serve}");
            assert!(format!("{} {serve}", contender.prepare).contains("127.0.0.1"), "{serve}");
        }
    }
}
