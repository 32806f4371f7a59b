//! Peers that break the protocol, written by hand, byte for byte.

mod common;

use common::*;
use onefold_remote::transport::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A client without any logic.
struct Raw(UnixStream);

impl Raw {
    fn connect(server: &TestServer) -> Raw {
        let stream = UnixStream::connect(&server.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Raw(stream)
    }

    fn log_in(server: &TestServer) -> (Raw, Welcome) {
        let mut raw = Raw::connect(server);
        raw.send(kinds::HELLO, 0, &hello().encode());
        let (kind, payload) = raw.next().unwrap();
        assert_eq!(kind, kinds::WELCOME);
        (raw, Welcome::decode(&payload).unwrap())
    }

    fn resume(server: &TestServer, welcome: &Welcome, received: u64) -> (Raw, u8, Vec<u8>) {
        let mut raw = Raw::connect(server);
        let resume = Resume { version: 1, session: welcome.session, token: welcome.token.clone(), received };
        raw.send(kinds::RESUME, 0, &resume.encode());
        let (kind, payload) = raw.next().unwrap();
        (raw, kind, payload)
    }

    fn send(&mut self, kind: u8, channel: u32, payload: &[u8]) {
        let mut bytes = encode_header(Header { length: payload.len() as u32, kind, channel }).to_vec();
        bytes.extend_from_slice(payload);
        // The server may have closed the connection.
        let _ = self.0.write_all(&bytes);
    }

    /// Returns the next frame with its channel. `None`: the connection is closed.
    fn frame(&mut self) -> Option<(u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).ok()?;
        let mut payload = vec![0; u32::from_le_bytes(head[..4].try_into().unwrap()) as usize];
        self.0.read_exact(&mut payload).ok()?;
        Some((head[4], u32::from_le_bytes(head[5..].try_into().unwrap()), payload))
    }

    fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        self.frame().map(|(kind, _, payload)| (kind, payload))
    }

    /// Returns the next frame of a kind.
    fn until(&mut self, kind: u8) -> Option<Vec<u8>> {
        while let Some((found, payload)) = self.next() {
            if found == kind {
                return Some(payload);
            }
        }
        None
    }

    /// Expects that the server ends the session with a code.
    fn ends_with(mut self, code: u16) {
        let payload = self.until(kinds::END).expect("the session ends");
        assert_eq!(decode_reason(&payload).unwrap().0, code, "{:?}", decode_reason(&payload));
    }
}

fn hello() -> Hello {
    Hello { version: 1, extensions: vec![], account: String::new(), secret: vec![] }
}

fn refused(server: &TestServer, kind: u8, payload: &[u8], code: u16) {
    let mut raw = Raw::connect(server);
    raw.send(kind, 0, payload);
    let (kind, payload) = raw.next().unwrap();
    assert_eq!(kind, kinds::REFUSAL);
    assert_eq!(Refusal::decode(&payload).unwrap().code, code);
    assert_eq!(raw.next(), None);
}

#[test]
fn greetings_that_make_no_sense_are_refused() {
    let server = TestServer::start(quick());
    refused(&server, kinds::HELLO, b"GET / HTTP/1.1", codes::GREETING);
    refused(&server, kinds::PING, b"", codes::GREETING);
    refused(&server, kinds::HELLO, &Hello { version: 0, ..hello() }.encode(), codes::VERSION);
    let mut raw = Raw::connect(&server);
    raw.0.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(raw.next().unwrap().0, kinds::REFUSAL, "a length beyond the limit");
    // A newer client gets the version of the server.
    let mut raw = Raw::connect(&server);
    raw.send(kinds::HELLO, 0, &Hello { version: 9, ..hello() }.encode());
    assert_eq!(Welcome::decode(&raw.next().unwrap().1).unwrap().version, 1);
}

#[test]
fn a_session_that_breaks_the_protocol_ends_with_a_code() {
    let server = TestServer::start(quick());
    let violate = |code: u16, act: &dyn Fn(&mut Raw)| {
        let (mut raw, _) = Raw::log_in(&server);
        raw.send(kinds::OPEN, 3, &[ECHO]);
        act(&mut raw);
        raw.ends_with(code);
    };
    violate(codes::KIND, &|raw| raw.send(0x55, 3, b"x"));
    violate(codes::KIND, &|raw| raw.send(kinds::HELLO, 0, &hello().encode()));
    violate(codes::CHANNEL, &|raw| raw.send(0x80, 4, b"x"));
    violate(codes::CHANNEL, &|raw| raw.send(0x80, 0, b"x"));
    violate(codes::CHANNEL, &|raw| raw.send(kinds::OPEN, 2, &[ECHO]));
    violate(codes::CHANNEL, &|raw| raw.send(kinds::OPEN, 3, &[ECHO]));
    violate(codes::FRAME, &|raw| raw.send(kinds::OPEN, 5, &[]));
    violate(codes::FRAME, &|raw| raw.send(kinds::CREDIT, 3, &[0; 3]));
    violate(codes::FRAME, &|raw| raw.send(kinds::CANCEL, 3, &[0, 0, 0xff]));
    violate(codes::NUMBERS, &|raw| raw.send(kinds::ACK, 0, &9u64.to_le_bytes()));
    violate(codes::WINDOW, &|raw| raw.send(kinds::CREDIT, 3, &[0xff; 4]));
    violate(codes::CHANNEL, &|raw| {
        raw.send(kinds::FINISH, 3, &[]);
        raw.send(0x80, 3, &[]);
    });
    violate(codes::CHANNEL, &|raw| {
        raw.send(kinds::PART, 3, b"part");
        raw.send(kinds::FINISH, 3, &[]);
    });
    // A head is enough: nobody waits for the payload.
    violate(codes::FRAME, &|raw| raw.0.write_all(&encode_header(Header { length: u32::MAX, kind: 0x80, channel: 3 })).unwrap());
    violate(codes::WINDOW, &|raw| raw.0.write_all(&encode_header(Header { length: 500_000, kind: 0x80, channel: 3 })).unwrap());
    assert!(server.server.sessions().is_empty() || wait_for(|| server.server.sessions().is_empty()));
    assert!(wait_for(|| server.server.budget().used_bytes() == 0), "all services ended");
}

fn wait_for(condition: impl Fn() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

#[test]
fn a_window_that_is_exceeded_by_small_messages_ends_the_session() {
    let server = TestServer::start(quick());
    let (mut raw, welcome) = Raw::log_in(&server);
    // This service never receives.
    raw.send(kinds::OPEN, 1, &[IGNORE]);
    for _ in 0..=welcome.window_bytes / 64 {
        raw.send(0x80, 1, &[]);
    }
    raw.ends_with(codes::WINDOW);
}

#[test]
fn late_frames_of_a_closed_channel_are_tolerated_up_to_a_bound() {
    let server = TestServer::start(quick());
    let (mut raw, _) = Raw::log_in(&server);
    raw.send(kinds::OPEN, 1, &[99]);
    raw.until(kinds::CANCEL).unwrap();
    raw.send(kinds::ACK, 0, &1u64.to_le_bytes());
    raw.send(0x80, 1, &[0; 60_000]);
    raw.send(kinds::FINISH, 1, &[]);
    // The session goes on.
    raw.send(kinds::OPEN, 2, &[ECHO]);
    raw.send(0x81, 2, b"hello");
    assert_eq!(raw.until(0x81).unwrap(), b"hello");
    for _ in 0..10 {
        raw.send(0x80, 1, &[0; 60_000]);
    }
    raw.ends_with(codes::WINDOW);
}

#[test]
fn too_many_channels_are_refused_but_the_session_goes_on() {
    let server = TestServer::start(quick());
    let (mut raw, _) = Raw::log_in(&server);
    for id in 1..=17 {
        raw.send(kinds::OPEN, id, &[ECHO]);
    }
    let (kind, channel, payload) = raw.frame().unwrap();
    assert_eq!((kind, channel), (kinds::CANCEL, 17));
    assert_eq!(decode_reason(&payload).unwrap().0, codes::CHANNELS);
    raw.send(0x85, 16, b"still there");
    assert_eq!(raw.until(0x85).unwrap(), b"still there");
}

#[test]
fn a_cancelled_channel_counts_until_its_thread_ends() {
    let server = TestServer::start(quick());
    let (mut raw, _) = Raw::log_in(&server);
    for id in 1..=17 {
        raw.send(kinds::OPEN, id, &[SLOW]);
        raw.send(kinds::CANCEL, id, &codes::CANCELLED.to_le_bytes());
    }
    assert_eq!(decode_reason(&raw.until(kinds::CANCEL).unwrap()).unwrap().0, codes::CHANNELS);
    let mut next = 18..;
    let has_room = std::iter::from_fn(|| {
        std::thread::sleep(Duration::from_millis(50));
        let id = next.next()?;
        raw.send(kinds::OPEN, id, &[ECHO]);
        raw.send(0x85, id, b"room again");
        raw.frame()
    });
    assert!(has_room.take(200).any(|(kind, _, _)| kind == 0x85));
}

#[test]
fn a_peer_that_never_acknowledges_cannot_make_the_server_keep_frames() {
    let server = TestServer::start(quick());
    let (mut raw, _) = Raw::log_in(&server);
    let mut reader = Raw(raw.0.try_clone().unwrap());
    let reading = std::thread::spawn(move || reader.until(kinds::END));
    for id in 1..6000 {
        raw.send(kinds::OPEN, id, &[99]);
    }
    let payload = reading.join().unwrap().expect("the session ends");
    assert_eq!(decode_reason(&payload).unwrap().0, codes::UNACKNOWLEDGED);
}

#[test]
fn a_server_sends_no_more_than_its_own_allowance_whatever_is_granted() {
    let server = TestServer::start(quick());
    let (mut raw, _) = Raw::log_in(&server);
    raw.send(kinds::OPEN, 1, &[&[POUR][..], &(200usize << 20).to_le_bytes()].concat());
    raw.send(kinds::CREDIT, 1, &(1u32 << 30).to_le_bytes());
    let mut got = 0;
    while let Some((kind, payload)) = raw.next() {
        if kind == kinds::PING {
            break;
        }
        got += payload.len();
    }
    assert!(got <= 16 << 20, "{got} bytes without an acknowledgement");
    assert!(server.server.budget().high_water_bytes() <= server.server.budget().total_bytes());
}

#[test]
fn a_newer_resume_wins_and_a_replayed_one_harms_nothing() {
    let server = TestServer::start(quick());
    let (mut first, welcome) = Raw::log_in(&server);
    first.send(kinds::OPEN, 1, &[ECHO]);
    first.send(0x81, 1, b"one");
    assert_eq!(first.until(0x81).unwrap(), b"one");
    first.send(kinds::ACK, 0, &1u64.to_le_bytes());
    first.send(0x81, 1, b"two");
    assert_eq!(first.until(0x81).unwrap(), b"two");
    // The server was told of one frame, so it cannot be told of none.
    let (_, kind, payload) = Raw::resume(&server, &welcome, 0);
    assert_eq!((kind, Refusal::decode(&payload).unwrap().code), (kinds::REFUSAL, codes::NUMBERS));
    first.send(0x81, 1, b"three");
    assert_eq!(first.until(0x81).unwrap(), b"three", "the link lives");
    // A new link: the server repeats what it lacks, and the old link is dropped.
    let (mut second, kind, payload) = Raw::resume(&server, &welcome, 1);
    assert_eq!((kind, Welcome::decode(&payload).unwrap().received), (kinds::WELCOME, 4));
    assert_eq!(second.next().unwrap(), (0x81, b"two".to_vec()));
    assert_eq!(second.next().unwrap(), (0x81, b"three".to_vec()));
    assert_eq!(first.until(0x81), None, "closed");
    second.send(0x81, 1, b"four");
    assert_eq!(second.until(0x81).unwrap(), b"four");
    // Another token, another session, another version.
    for wrong in [Welcome { token: Token([1; 32]), ..welcome.clone() }, Welcome { session: SessionId([1; 16]), ..welcome.clone() }] {
        let (_, kind, payload) = Raw::resume(&server, &wrong, 1);
        assert_eq!((kind, Refusal::decode(&payload).unwrap().code), (kinds::REFUSAL, codes::SESSION_UNKNOWN));
    }
    second.send(kinds::END, 0, &[0, 0]);
    assert!(wait_for(|| server.server.sessions().is_empty()));
    let (_, kind, payload) = Raw::resume(&server, &welcome, 1);
    assert_eq!((kind, Refusal::decode(&payload).unwrap().code), (kinds::REFUSAL, codes::SESSION_UNKNOWN));
}

#[test]
fn greetings_that_never_end_are_given_up_and_do_not_keep_others_out() {
    let server = TestServer::start(ServerOptions { greeting: Duration::from_millis(300), strangers: 3, ..quick() });
    let greeting = [&encode_header(Header { length: 100, kind: kinds::HELLO, channel: 0 })[..], &hello().encode()].concat();
    let mut slow: Vec<Raw> = (0..3).map(|_| Raw::connect(&server)).collect();
    for byte in &greeting[..20] {
        for raw in &mut slow {
            raw.0.write_all(&[*byte]).unwrap();
        }
    }
    for raw in &mut slow {
        assert_eq!(raw.next(), None, "closed");
    }
    assert!(wait_for(|| ClientSession::connect(server.unix()).is_ok()));
}

#[test]
fn more_strangers_than_allowed_are_turned_away() {
    let server = TestServer::start(ServerOptions { strangers: 2, ..quick() });
    let waiting: Vec<Raw> = (0..2).map(|_| Raw::connect(&server)).collect();
    assert!(wait_for(|| Raw::connect(&server).next().is_none()));
    drop(waiting);
    assert!(wait_for(|| ClientSession::connect(server.unix()).is_ok()));
}

#[test]
fn a_peer_that_never_reads_loses_its_link() {
    let options = ServerOptions { keep_alive: Duration::from_millis(50), linger: Duration::from_millis(50), ..quick() };
    let server = TestServer::start(options);
    let (mut raw, _) = Raw::log_in(&server);
    raw.send(kinds::OPEN, 1, &[&[POUR][..], &(200usize << 20).to_le_bytes()].concat());
    raw.send(kinds::CREDIT, 1, &(1u32 << 30).to_le_bytes());
    // It sends, so only its reading can be what is missed.
    let mut pings = Raw(raw.0.try_clone().unwrap());
    std::thread::spawn(move || {
        while pings.0.write_all(&encode_header(Header { length: 0, kind: kinds::PING, channel: 0 })).is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    assert!(wait_for(|| server.server.sessions().is_empty()));
    assert!(wait_for(|| server.server.budget().used_bytes() == 0));
}

#[test]
fn few_logins_are_decided_at_once() {
    use parking_lot::Mutex;
    #[derive(Default)]
    struct Slow {
        now: Mutex<(usize, usize)>,
    }
    impl Door for Slow {
        fn admit(&self, _: &Login, _: &Peer) -> Result<Arc<dyn std::any::Any + Send + Sync>, Refusal> {
            {
                let mut now = self.now.lock();
                now.0 += 1;
                now.1 = now.1.max(now.0);
            }
            std::thread::sleep(Duration::from_millis(10));
            self.now.lock().0 -= 1;
            Err(Refusal::new(codes::DENIED, "no"))
        }
    }
    let door = Arc::new(Slow::default());
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let server = Server::new(quick(), Arc::clone(&door) as Arc<dyn Door>, Arc::new(TestServices));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.spawn(async move { server.run(vec![Listener::Unix(listener)], std::future::pending()).await });
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                let options = ConnectOptions::new(Target::Unix(socket.clone()), Credentials::default());
                assert!(matches!(ClientSession::connect(options), Err(TransportError::Refused { code: codes::DENIED, .. })));
            });
        }
    });
    let most = door.now.lock().1;
    assert!((1..=2).contains(&most), "{most}");
}

#[test]
fn a_login_that_is_decided_while_the_server_stops_gets_no_session() {
    use std::sync::mpsc::{Receiver, Sender, channel};
    struct Waits(parking_lot::Mutex<(Sender<()>, Receiver<()>)>);
    impl Door for Waits {
        fn admit(&self, _: &Login, _: &Peer) -> Result<Arc<dyn std::any::Any + Send + Sync>, Refusal> {
            let (asked, answer) = &*self.0.lock();
            asked.send(()).unwrap();
            answer.recv().unwrap();
            Ok(Arc::new("the account".to_owned()))
        }
    }
    let ((asking, asked), (answer, answered)) = (channel(), channel());
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let server = Server::new(quick(), Arc::new(Waits(parking_lot::Mutex::new((asking, answered)))), Arc::new(TestServices));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = runtime.spawn({
        let server = server.clone();
        async move { server.run(vec![Listener::Unix(listener)], async { stopped.await.unwrap_or(()) }).await }
    });
    let connecting = std::thread::spawn(move || ClientSession::connect(ConnectOptions::new(Target::Unix(socket), Credentials::default())));
    asked.recv().unwrap();
    stop.send(()).unwrap();
    // Nobody can connect any more once all sessions have ended.
    let path = place.path().join("socket");
    assert!(wait_for(|| UnixStream::connect(&path).is_err()));
    answer.send(()).unwrap();
    let refused = connecting.join().unwrap();
    assert!(matches!(refused, Err(TransportError::Refused { code: codes::SHUTDOWN, .. })), "{refused:?}");
    runtime.block_on(running).unwrap().unwrap();
    assert!(server.sessions().is_empty());
}

#[test]
fn a_welcome_with_numbers_that_cannot_be_is_no_welcome() {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let welcome = Welcome {
        version: 1,
        extensions: vec![],
        session: SessionId([1; 16]),
        token: Token([2; 32]),
        payload_bytes: 1 << 20,
        window_bytes: 128 << 10,
        keep_alive_ms: 1000,
        received: 0,
    };
    let changed = |payload_bytes, window_bytes| Welcome { payload_bytes, window_bytes, ..welcome.clone() };
    let right = [welcome.clone(), changed(64 << 10, 32 << 10), changed(17 << 20, 16 << 20)];
    let wrong = [changed((64 << 10) - 1, 128 << 10), changed(0, 128 << 10), changed((17 << 20) + 1, 128 << 10), changed(1 << 20, 1000)];
    for (welcome, is_right) in right.iter().map(|right| (right, true)).chain(wrong.iter().map(|wrong| (wrong, false))) {
        let connected = std::thread::scope(|scope| {
            let options = ConnectOptions::new(Target::Unix(socket.clone()), Credentials::default());
            let connecting = scope.spawn(|| ClientSession::connect(options));
            let mut raw = Raw(listener.accept().unwrap().0);
            raw.next().unwrap();
            raw.send(kinds::WELCOME, 0, &welcome.encode());
            connecting.join().unwrap()
        });
        assert_eq!(connected.is_ok(), is_right, "{welcome:?}");
    }
}

#[test]
fn strangers_who_do_not_speak_tls_are_given_up() {
    let server = TestServer::start(ServerOptions { greeting: Duration::from_millis(200), ..quick() });
    for bytes in [&b""[..], b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 3000]] {
        let mut stream = std::net::TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(bytes).unwrap();
        // An alert, or nothing, and then the end: the kind of the end does not matter, but that it comes does.
        let end = std::io::copy(&mut stream, &mut std::io::sink());
        let still_open = end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!still_open);
    }
    ClientSession::connect(server.options()).unwrap().close().unwrap();
}
