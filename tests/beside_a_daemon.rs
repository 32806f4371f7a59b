//! Commands beside a running daemon do and say what they do and say without one; nothing that connects to the daemon's
//! socket harms it.

use onefold_remote::transport::{Channel, ChannelError, ClientSession, ConnectOptions, Credentials, Target, codes};
use onefold_tests::{Client, Daemon, Random, Run, Running, Scene, is_root, noise};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest that a test waits for something that the daemon does by itself.
const LIMIT: Duration = Duration::from_secs(60);

/// The service of commands, and the kinds of its messages.
const COMMAND: u8 = 1;
const REQUEST: u8 = 1;
const CANCEL: u8 = 2;
const ANSWER: u8 = 3;
const QUESTION: u8 = 21;

/// A session with the daemon, from this process.
fn session(scene: &Scene) -> ClientSession {
    let mut options = ConnectOptions::new(Target::Unix(socket(scene)), Credentials::default());
    options.retry = Duration::ZERO;
    ClientSession::connect(options).unwrap()
}

fn call(command: &str, can_ask: bool) -> Vec<u8> {
    format!(r#"{{"command":{command},"quiet":false,"progress":false,"can_ask":{can_ask},"zone":null}}"#).into_bytes()
}

/// Begins a command.
fn request(session: &ClientSession, command: &str, can_ask: bool) -> Channel {
    let channel = session.open(COMMAND, Vec::new()).unwrap();
    channel.send(REQUEST, call(command, can_ask)).unwrap();
    channel
}

/// Everything that comes until the end.
fn rest(channel: &Channel) -> String {
    let mut said = String::new();
    while let Ok(Some(message)) = channel.receive() {
        said.push_str(&String::from_utf8_lossy(&message.payload));
    }
    said
}

fn socket(scene: &Scene) -> PathBuf {
    scene.store().join("control")
}

/// A tree with a name that is no UTF-8, and two backups of it that differ.
fn backups(scene: &Scene, files: usize) {
    let tree = scene.path("tree");
    fs::create_dir_all(tree.join("directory")).unwrap();
    for number in 0..files {
        fs::write(tree.join(format!("directory/file with a long name, number {number}")), noise(number as u64, 100)).unwrap();
    }
    fs::write(tree.join("large"), noise(7, 3 << 20)).unwrap();
    let odd: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"odd\xff");
    fs::write(tree.join(odd), "odd").unwrap();
    scene.run(["backup", "--name", "t", "tree"]).succeeds();
    fs::write(tree.join("large"), noise(8, 2 << 20)).unwrap();
    scene.run(["backup", "--name", "t", "tree"]).succeeds();
}

fn ids(scene: &Scene) -> Vec<String> {
    let list = scene.run(["backups", "--json"]).succeeds().json();
    list.as_array().unwrap().iter().map(|backup| backup["id"].as_str().unwrap().to_owned()).collect()
}

/// Runs each command; `large` is the path of the large file in the backups.
fn each(scene: &Scene, commands: &[Vec<String>]) -> Vec<(Vec<String>, Run)> {
    commands.iter().map(|command| (command.clone(), scene.run(command))).collect()
}

#[test]
fn what_a_command_says_is_the_same_beside_a_daemon() {
    let scene = Scene::new(&[], "");
    backups(&scene, 30);
    scene.volume("disk", "1GiB");
    let [first, second] = &ids(&scene)[..] else { panic!("two backups") };
    let large = scene.text("tree/large");
    let odd = scene.path("tree").join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"odd\xff"));
    let commands: Vec<Vec<String>> = [
        &["backups"][..],
        &["backups", "--json", "--name", "t"],
        &["backups", "--name", "other"],
        &["ls", "latest"],
        &["ls", "latest:t", &large, "--json"],
        &["ls", "no-such-id"],
        &["ls", "latest", "/no/such/path"],
        &["diff", first, second],
        &["diff", first, second, "--json"],
        &["ls", "latest", "-lR"],
        &["find", "large", "--json"],
        &["find", "*", "--type", "file"],
        &["dump", first, &large],
        &["dump", first, "/"],
        &["volume", "list"],
        &["volume", "list", "--json"],
        &["volume", "resize", "absent", "--size", "1GiB"],
        &["volume", "create", "disk", "--size", "1GiB"],
        &["volume", "create", "odd", "--size", "1GiB", "--block-size", "100KiB"],
        &["volume", "delete", "absent", "--yes"],
        &["check"],
        &["check", "--json", "--read-data"],
    ]
    .iter()
    .map(|words| words.iter().map(|word| (*word).to_owned()).collect())
    .collect();
    let dump = |scene: &Scene| Running::start(scene.command(["dump", first]).arg(&odd)).finish();
    let tokyo = |scene: &Scene| Running::start(scene.command(["backups"]).env("TZ", "Asia/Tokyo")).finish();
    let (alone, odd_alone, tokyo_alone) = (each(&scene, &commands), dump(&scene), tokyo(&scene));
    let daemon = scene.serve();
    for ((command, alone), (_, beside)) in alone.iter().zip(each(&scene, &commands)) {
        assert_eq!(beside.text(), alone.text(), "{command:?}");
        assert_eq!((beside.code, beside.out), (alone.code, alone.out.clone()), "{command:?}");
    }
    assert_eq!(dump(&scene).succeeds().out, b"odd");
    assert_eq!(odd_alone.out, b"odd");
    assert_eq!(tokyo(&scene).out, tokyo_alone.out);
    assert_ne!(tokyo_alone.out, alone[0].1.out, "the zone is that of the command, not that of the daemon");
    let keys = |run: Run| run.succeeds().json().as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let beside = keys(scene.run(["stats", "--json"]));
    daemon.stop();
    assert_eq!(beside, keys(scene.run(["stats", "--json"])));
}

#[test]
fn clients_of_the_daemon_see_at_once_what_commands_do_to_volumes() {
    let scene = Scene::new(&[], "");
    let daemon = scene.serve();
    scene.run(["volume", "create", "disk", "--size", "64MiB"]).succeeds();
    let mut client = daemon.connect("disk");
    client.write(0, &noise(1, 4096)).unwrap();

    let refused = scene.run(["volume", "delete", "disk", "--yes"]).ends_with(1);
    assert!(refused.text().contains("volume disk is in use: 1 client has it open"), "{}", refused.text());
    let refused = scene.run(["volume", "resize", "disk", "--size", "32MiB"]).ends_with(1);
    assert!(refused.text().contains("in use"), "{}", refused.text());
    scene.run(["volume", "resize", "disk", "--size", "128MiB"]).succeeds();
    assert_eq!(client.read(0, 4096).unwrap(), noise(1, 4096));
    assert_eq!(daemon.connect("disk").size, 128 << 20);

    drop(client);
    // The daemon notices in its own time that a client is gone.
    let until = Instant::now() + LIMIT;
    while scene.run(["volume", "delete", "disk", "--yes"]).code != 0 {
        assert!(Instant::now() < until, "the volume stays in use");
    }
    assert!(Client::connect(daemon.socket(), "disk").is_err());
    daemon.stop();
    assert_eq!(scene.run(["volume", "list"]).succeeds().text(), "");
}

#[test]
fn what_needs_files_of_the_caller_is_refused_and_says_why() {
    let scene = Scene::new(&[], "");
    let _daemon = scene.serve();
    fs::write(scene.path("file"), "text").unwrap();
    for command in [&["volume", "import", "v", "file"][..], &["check", "--rebuild-index"]] {
        let text = scene.run(command).ends_with(2).text();
        assert!(text.contains("in use: ") && text.contains("`serve`") && text.contains("stop the daemon"), "{text}");
    }
}

#[test]
fn the_socket_belongs_to_its_daemon() {
    let scene = Scene::new(&[], "");
    let daemon = scene.serve();
    assert_eq!(fs::symlink_metadata(socket(&scene)).unwrap().permissions().mode() & 0o777, 0o600);
    daemon.kill();
    assert!(fs::symlink_metadata(socket(&scene)).is_ok(), "a killed daemon leaves its socket");
    scene.run(["backups"]).succeeds();
    let daemon = scene.serve();
    scene.run(["backups"]).succeeds();
    daemon.stop();
    assert!(fs::symlink_metadata(socket(&scene)).is_err(), "a daemon that stops takes its socket away");
    // A daemon that only reads stands in the way of nobody who reads, and takes no commands.
    let daemon = scene.serve_with(&["--nbd", "none", "--nbd-socket", "nbd.sock", "--read-only"]);
    scene.run(["backups"]).succeeds();
    scene.run(["volume", "create", "v", "--size", "1MiB"]).ends_with(2);
    daemon.stop();
}

#[test]
fn whatever_way_leads_to_the_store_leads_to_its_daemon() {
    let place = tempfile::tempdir().unwrap();
    let deep = place.path().join("d".repeat(120)).join("e".repeat(120));
    fs::create_dir_all(&deep).unwrap();
    let scene = Scene::with_store_in(&deep, &[], "");
    let _daemon = scene.serve();
    scene.run(["volume", "list"]).succeeds();
    std::os::unix::fs::symlink(scene.store(), place.path().join("link")).unwrap();
    let through = |directory: &Path, store: &str| {
        Running::start(scene.command(["volume", "list", "--store", store]).current_dir(directory)).finish().succeeds();
    };
    through(place.path(), "link");
    through(scene.store(), ".");
    through(&deep, "./store/../store");
}

#[test]
fn garbage_on_the_socket_harms_nobody() {
    let scene = Scene::new(&[], "");
    let daemon = scene.serve();
    let mut random = Random::new(1);
    for round in 0..60 {
        if round % 3 == 0 {
            let mut stream = UnixStream::connect(socket(&scene)).unwrap();
            // The daemon may have closed already.
            let _ = stream.write_all(&noise(round, 300));
            let _ = stream.shutdown(std::net::Shutdown::Write);
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let mut said = Vec::new();
            let _ = stream.take(1 << 20).read_to_end(&mut said);
            assert!(said.len() < 4200, "at most a refusal");
            continue;
        }
        let session = session(&scene);
        let channel = session.open(COMMAND, if round % 4 == 1 { noise(round, 20) } else { Vec::new() }).unwrap();
        let mut bytes = call(r#"{"volume-list":{"format":{"json":true}}}"#, false);
        match round % 3 {
            1 => {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
                let _ = channel.send(REQUEST, bytes);
            }
            // Whole, and then nonsense while the command is done.
            _ => {
                let _ = channel.send(REQUEST, bytes);
                let _ = channel.send(random.below(128) as u8, noise(round, 100));
            }
        }
        rest(&channel);
    }
    scene.run(["volume", "list"]).succeeds();
    daemon.stop();
}

#[test]
fn another_version_of_the_protocol_is_told_apart() {
    let scene = Scene::new(&[], "");
    let daemon = scene.serve();
    // As a command of the protocol before this one began.
    let mut stream = UnixStream::connect(socket(&scene)).unwrap();
    stream.write_all(b"1FLDCTL1\x02\0\0\0").unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    assert!(said.len() >= 12, "it reads that many bytes, and sees that they are of another version: {said:?}");
    let session = session(&scene);
    let said = rest(&request(&session, r#"{"volume-list":{"format":{"json":false},"colour":true}}"#, false));
    assert!(said.contains("different versions"), "an option that is not known is not left out: {said}");
    drop(session);
    daemon.stop();
    // A daemon of that protocol closes the connection of a command that begins otherwise.
    let listener = std::os::unix::net::UnixListener::bind(socket(&scene)).unwrap();
    let lock = fs::File::options().write(true).open(scene.store().join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().read_exact(&mut [0; 12]);
        }
    });
    let text = scene.run(["volume", "create", "v", "--size", "1MiB"]).ends_with(2).text();
    assert!(text.contains("of another version"), "{text}");
}

#[test]
fn a_cancelled_command_ends_as_one_that_met_a_signal() {
    let scene = Scene::new(&[], "");
    backups(&scene, 10);
    let daemon = scene.serve();
    let session = session(&scene);
    let channel = request(&session, r#"{"check":{"read_data":true,"format":{"json":false}}}"#, false);
    channel.send(CANCEL, Vec::new()).unwrap();
    let said = rest(&channel);
    assert!(said.contains(r#""exit":130"#) && said.contains("stopped before its end"), "{said}");
    daemon.stop();
}

#[test]
fn an_answer_counts_for_the_volume_that_was_asked_about() {
    let scene = Scene::new(&[], "");
    let daemon = scene.serve();
    for name in ["disk", "other"] {
        scene.run(["volume", "create", name, "--size", "64MiB"]).succeeds();
        daemon.connect(name).write_durable(0, &noise(1, 4096)).unwrap();
    }
    let session = session(&scene);
    let ask = |command: &str| {
        // The daemon notices in its own time that the client that wrote is gone.
        let until = Instant::now() + LIMIT;
        loop {
            let channel = request(&session, command, true);
            let message = channel.receive().unwrap().unwrap();
            let text = String::from_utf8(message.payload).unwrap();
            match message.kind {
                QUESTION => return (channel, text),
                _ => assert!(Instant::now() < until && text.contains("in use"), "{text}"),
            }
        }
    };
    let delete = ask(r#"{"volume-delete":{"name":"disk","yes":false}}"#);
    let resize = ask(r#"{"volume-resize":{"name":"disk","size":2048,"no_snapshot":true,"yes":false}}"#);
    for (from, to) in [("disk", "kept"), ("other", "disk")] {
        scene.run(["volume", "rename", from, to]).succeeds();
    }
    for (channel, question) in [delete, resize] {
        assert!(question.contains("disk"), "{question}");
        channel.send(ANSWER, vec![1]).unwrap();
        let said = rest(&channel);
        assert!(said.contains("changed or renamed meanwhile; nothing was done"), "{said}");
    }
    for name in ["kept", "disk"] {
        let client = &mut daemon.connect(name);
        assert_eq!((client.size, client.read(0, 4096).unwrap()), (64 << 20, noise(1, 4096)), "{name}");
    }
    daemon.stop();
}

#[test]
fn a_client_that_stops_reading_holds_up_nobody() {
    let scene = Scene::new(&[], "");
    backups(&scene, 5000);
    scene.volume("disk", "1GiB");
    let daemon = scene.serve();
    let session = session(&scene);
    let ls = r#"{"ls":{"backup":"latest","path":null,"long":false,"recursive":true,"format":{"json":true}}}"#;
    let lazy = request(&session, ls, false);
    // One that dies in the middle of its output.
    let mut dying = Running::start(scene.command(["ls", "-R", "latest"]).stdin(Stdio::null()));
    dying.kill();
    let mut client = daemon.connect("disk");
    client.write_durable(0, &noise(1, 4096)).unwrap();
    let all = scene.run(["ls", "-R", "--json", "latest"]).succeeds().out;
    assert!(all.len() > 500_000, "more than a socket holds");
    drop(client);
    // Its end does not wait for the client.
    daemon.stop();
    assert!(rest(&lazy).len() < all.len(), "it was cut off");
}

#[test]
fn many_commands_at_once_are_done_and_too_many_are_refused() {
    let scene = Scene::new(&[], "");
    let daemon = scene.serve();
    let several = (0..8).map(|number| {
        let name = format!("v{number}");
        Running::start(&mut scene.command(["volume", "create", &name, "--size", "1GiB"]))
    });
    let several: Vec<Running> = several.collect();
    several.into_iter().for_each(|running| drop(running.finish().succeeds()));
    assert_eq!(scene.run(["volume", "list", "--json"]).succeeds().json().as_array().unwrap().len(), 8);

    // Commands that wait for an answer.
    scene.run(["account", "create", "ann"]).succeeds();
    let sessions: Vec<ClientSession> = (0..4).map(|_| session(&scene)).collect();
    let mut idle = Vec::new();
    let full = loop {
        assert!(idle.len() < 60, "there is no limit");
        let channel = request(
            &sessions[idle.len() % 4],
            r#"{"account-delete":{"name":"ann","keep_backups":false,"yes":false,"format":{"json":false}}}"#,
            true,
        );
        match channel.receive() {
            Ok(first) => assert_eq!(first.unwrap().kind, QUESTION),
            Err(ChannelError::Cancelled { code, text }) => {
                assert!(code == codes::BUSY && text.contains("already runs 32 commands"), "{code}: {text}");
                assert_eq!(idle.len(), 32);
                break scene.run(["volume", "list"]).ends_with(1);
            }
            Err(error) => panic!("{error}"),
        }
        idle.push(channel);
    };
    assert!(full.text().contains("already runs 32 commands"), "{}", full.text());
    drop((idle, sessions));
    let until = Instant::now() + LIMIT;
    while scene.run(["volume", "list"]).code != 0 {
        assert!(Instant::now() < until, "places are not given back");
    }
    daemon.stop();
}

#[test]
fn a_daemon_that_dies_under_a_command_is_named_as_the_reason() {
    let scene = Scene::new(&[], "");
    let daemon = scene.serve();
    let pause = |signal| rustix::process::kill_process(rustix::process::Pid::from_raw(daemon.pid() as i32).unwrap(), signal).unwrap();
    // It takes connections without answering.
    pause(rustix::process::Signal::STOP);
    let waiting = Running::start(&mut scene.command(["volume", "list"]));
    let stopped = Running::start(&mut scene.command(["volume", "list"]));
    stopped.terminate();
    assert_eq!(stopped.finish().code, -1, "a signal ends the command");
    daemon.kill();
    // It may have found the store locked no more.
    let run = waiting.finish();
    assert!(run.code == 0 || (run.code == 1 && run.text().contains("the daemon ended before the command did")), "{}", run.text());
}

#[test]
fn a_reader_that_goes_away_ends_the_command() {
    let scene = Scene::new(&[], "");
    backups(&scene, 3000);
    let _daemon = scene.serve();
    for command in [&["ls", "latest"][..], &["dump", "latest", &scene.text("tree/large")], &["stats"]] {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        let output = scene.command(command).stdout(write).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr), (Some(141), vec![]), "{command:?}");
    }
}

/// Everything small, so that in a short time the log is trimmed, the indexes are written and containers fill up.
const SMALL: &str = "[log]\nsegment = \"1MiB\"\nlimit = \"2MiB\"\ncommit = \"1MiB\"\ncommit_interval_ms = 20\n\
                     [memory]\nvolume_dirty = \"1MiB\"\nauxiliary_index = \"1MiB\"\nobject_index_pending = \"1MiB\"\n";

#[test]
fn a_check_beside_writing_clients_is_clean_and_finds_what_is_not() {
    let scene = Scene::new(&["--container-size", "256KiB"], SMALL);
    backups(&scene, 50);
    scene.volume("disk", "64MiB");
    let daemon = scene.serve();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut client = daemon.connect("disk");
        let is_over = &is_over;
        scope.spawn(move || {
            let mut random = Random::new(3);
            while !is_over.load(Ordering::Relaxed) {
                client.write(random.below(1000) << 16, &noise(random.below(500), 50_000)).unwrap();
                client.flush().unwrap();
            }
        });
        for _ in 0..10 {
            let found = scene.run(["check", "--json"]).succeeds().json();
            assert_eq!(found["clean"], true, "{found}");
        }
        // One with data and one without: the daemon does one at a time, the other is told so, or comes when the first
        // has ended.
        let both = [&["check", "--read-data"][..], &["check"]].map(|words| Running::start(&mut scene.command(words)));
        for run in both.map(Running::finish) {
            assert!(run.code == 0 || (run.code == 2 && run.text().contains("one such command at a time")), "{}", run.text());
        }
        // A byte of the first backup rots.
        let container = scene.store().join("containers/0000/00000/00000001");
        let mut bytes = fs::read(&container).unwrap();
        bytes[100] ^= 1;
        fs::write(&container, bytes).unwrap();
        let found = scene.run(["check", "--json", "--read-data"]).ends_with(1).json();
        let kinds: Vec<_> = found["problems"].as_array().unwrap().iter().map(|problem| problem["kind"].as_str().unwrap()).collect();
        assert!(kinds.contains(&"container") && kinds.contains(&"affected"), "{found}");
        assert!(kinds.iter().all(|kind| ["container", "affected"].contains(kind)), "{found}");
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Only root can be somebody else.
#[test]
fn other_users_are_refused() {
    if !is_root() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let scene = Scene::with_store_in(place.path(), &[], "");
    fs::set_permissions(scene.store(), fs::Permissions::from_mode(0o755)).unwrap();
    let daemon: Daemon = scene.serve();
    // The program where everybody can reach it.
    let program = place.path().join("onefold");
    fs::copy(onefold_tests::binary(), &program).unwrap();
    let as_nobody = || {
        let mut command = std::process::Command::new(&program);
        command.args(["volume", "list", "--store"]).arg(scene.store()).uid(65534).gid(65534).current_dir("/").stdin(Stdio::null());
        Running::start(&mut command).finish()
    };
    let text = as_nobody().ends_with(2).text();
    assert!(text.contains("as the user"), "{text}");
    fs::set_permissions(socket(&scene), fs::Permissions::from_mode(0o666)).unwrap();
    let text = as_nobody().ends_with(2).text();
    assert!(text.contains("only the user with number 0"), "{text}");
    daemon.stop();
}
