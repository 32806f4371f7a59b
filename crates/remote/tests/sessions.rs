//! Sessions from end to end: channels, broken links, refusals.

mod common;

use common::proxy::{Fate, Proxy};
use common::*;
use onefold_remote::transport::*;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Returns a number that looks random.
fn mix(number: usize) -> u64 {
    (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

#[test]
fn messages_come_back_over_tls_and_over_a_unix_socket() {
    let server = TestServer::start(ServerOptions::default());
    for options in [server.options(), server.unix()] {
        let session = ClientSession::connect(options).unwrap();
        echoes(&session, 6_000_000, 3);
        assert!(session.sent_bytes() > 6_000_000 && session.received_bytes() > 6_000_000);
        assert_eq!(server.server.sessions().len(), 1);
        session.close().unwrap();
    }
}

#[test]
fn many_channels_share_a_session() {
    let server = TestServer::start(ServerOptions::default());
    let session = ClientSession::connect(server.options()).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..16 {
            let session = &session;
            scope.spawn(move || echoes(session, 1_000_000, seed * 1000));
        }
    });
    let budget = server.server.budget();
    assert!(budget.high_water_bytes() <= budget.total_bytes());
}

#[test]
fn everything_arrives_once_and_in_order_however_often_the_link_breaks() {
    let server = TestServer::start(quick());
    let fate = |number: usize| {
        if number >= 5 {
            return Fate::default();
        }
        let after = 3_000 + mix(number) % 1_500_000;
        match number % 2 {
            0 => Fate { cut_up: Some(after), ..Fate::default() },
            _ => Fate { cut_down: Some(after), ..Fate::default() },
        }
    };
    let proxy = Proxy::start(server.address, Duration::ZERO, fate);
    let session = ClientSession::connect(server.options_at(proxy.address)).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let session = &session;
            scope.spawn(move || echoes(session, 2_000_000, seed * 777));
        }
    });
    assert!(proxy.connections.load(Ordering::SeqCst) >= 4, "the link broke");
    session.close().unwrap();
}

#[test]
fn a_link_that_stalls_is_given_up_and_the_session_resumes() {
    let server = TestServer::start(ServerOptions { keep_alive: Duration::from_millis(60), ..quick() });
    let fate = |number| if number == 0 { Fate { stall_down: Some(200_000), ..Fate::default() } } else { Fate::default() };
    let proxy = Proxy::start(server.address, Duration::from_millis(2), fate);
    let session = ClientSession::connect(server.options_at(proxy.address)).unwrap();
    echoes(&session, 2_000_000, 9);
    assert!(proxy.connections.load(Ordering::SeqCst) >= 2);
}

#[test]
fn a_session_survives_silence() {
    let server = TestServer::start(ServerOptions { keep_alive: Duration::from_millis(300), ..quick() });
    let proxy = Proxy::start(server.address, Duration::ZERO, |_| Fate::default());
    let session = ClientSession::connect(server.options_at(proxy.address)).unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    echoes(&session, 1000, 0);
    assert_eq!(proxy.connections.load(Ordering::SeqCst), 1, "pings keep the link");
}

#[test]
fn a_window_fills_a_long_link() {
    let server = TestServer::start(ServerOptions::default());
    let proxy = Proxy::start(server.address, Duration::from_millis(10), |_| Fate::default());
    let session = ClientSession::connect(server.options_at(proxy.address)).unwrap();
    let total = 12_000_000usize;
    let channel = session.open(POUR, total.to_le_bytes().to_vec()).unwrap();
    let mut at = 0;
    while let Some(message) = channel.receive().unwrap() {
        assert!(message.payload == pattern(at, message.payload.len()));
        at += message.payload.len();
    }
    assert_eq!(at, total);
}

#[test]
fn a_client_that_stays_away_loses_its_session() {
    let server = TestServer::start(ServerOptions { linger: Duration::from_millis(20), ..quick() });
    let proxy = Proxy::start(server.address, Duration::ZERO, |_| Fate::default());
    let session = ClientSession::connect(server.options_at(proxy.address)).unwrap();
    let channel = session.open(ECHO, Vec::new()).unwrap();
    channel.send(1, vec![1]).unwrap();
    channel.receive().unwrap().unwrap();
    proxy.cut();
    assert_eq!(channel.receive(), Err(ChannelError::SessionLost));
    assert_eq!(session.open(ECHO, Vec::new()).unwrap_err(), ChannelError::SessionLost);
    assert_eq!(session.close(), Err(ChannelError::SessionLost));
}

#[test]
fn without_retries_a_broken_link_ends_the_session() {
    let server = TestServer::start(quick());
    let proxy = Proxy::start(server.address, Duration::ZERO, |_| Fate::default());
    let options = ConnectOptions { retry: Duration::ZERO, ..server.options_at(proxy.address) };
    let session = ClientSession::connect(options).unwrap();
    let channel = session.open(ECHO, Vec::new()).unwrap();
    channel.send(1, vec![1]).unwrap();
    channel.receive().unwrap().unwrap();
    proxy.cut();
    assert!(matches!(channel.receive(), Err(ChannelError::LinkLost { .. })));
}

#[test]
fn a_channel_that_nobody_reads_delays_no_other() {
    let server = TestServer::start(quick());
    let session = ClientSession::connect(server.options()).unwrap();
    let ignored = session.open(IGNORE, Vec::new()).unwrap();
    echoes(&session, 3_000_000, 1);
    // This end does not read, and the other one does not either.
    drop(ignored);
    echoes(&session, 10_000, 1);
}

#[test]
fn cancelling_is_seen_at_the_other_end() {
    let server = TestServer::start(quick());
    let session = ClientSession::connect(server.options()).unwrap();
    let channel = session.open(77, b"opening".to_vec()).unwrap();
    match channel.receive() {
        Err(ChannelError::Cancelled { code, text }) => assert_eq!((code, text.as_str()), (codes::SERVICES, "no such service")),
        other => panic!("{other:?}"),
    }
    assert!(matches!(channel.send(0, vec![1]), Err(ChannelError::Cancelled { .. })));
    let panicking = session.open(PANIC, Vec::new()).unwrap();
    assert!(matches!(panicking.receive(), Err(ChannelError::Cancelled { code: codes::CANCELLED, .. })));
    // Channels that are given up at once make room for others.
    for _ in 0..100 {
        drop(session.open(IGNORE, Vec::new()).unwrap());
        echoes(&session, 100, 5);
    }
}

#[test]
fn what_was_finished_arrives_after_its_sender_is_gone() {
    let server = TestServer::start(quick());
    let session = ClientSession::connect(server.options()).unwrap();
    let channel = session.open(COUNT, Vec::new()).unwrap();
    for _ in 0..10 {
        channel.send(0, vec![0; 300_000]).unwrap();
    }
    channel.finish();
    assert_eq!(channel.send(0, vec![]), Err(ChannelError::Finished));
    assert_eq!(channel.receive().unwrap().unwrap().payload, 3_000_000u64.to_le_bytes());
    assert_eq!(channel.receive().unwrap(), None);
    assert_eq!(channel.try_receive().unwrap(), Received::Finished);
}

#[test]
fn a_receiver_waits_until_a_moment_only() {
    let server = TestServer::start(quick());
    let session = ClientSession::connect(server.options()).unwrap();
    let channel = session.open(ECHO, Vec::new()).unwrap();
    assert_eq!(channel.try_receive().unwrap(), Received::Timeout);
    assert_eq!(channel.receive_until(Instant::now() + Duration::from_millis(10)).unwrap(), Received::Timeout);
    channel.send(5, b"five".to_vec()).unwrap();
    let later = Instant::now() + Duration::from_secs(60);
    assert_eq!(channel.receive_until(later).unwrap(), Received::Message(Message { kind: 5, payload: b"five".to_vec() }));
}

#[test]
fn limits_of_messages_and_channels_are_errors() {
    let server = TestServer::start(quick());
    let session = ClientSession::connect(server.options()).unwrap();
    let limit = session.payload_limit();
    let channel = session.open(ECHO, Vec::new()).unwrap();
    assert_eq!(channel.send(128, vec![]), Err(ChannelError::Kind { kind: 128 }));
    assert!(matches!(channel.send(0, vec![0; limit + 1]), Err(ChannelError::TooLarge { .. })));
    channel.send(0, vec![7; limit]).unwrap();
    assert_eq!(channel.receive().unwrap().unwrap().payload.len(), limit);
    let more: Vec<Channel> = (1..16).map(|_| session.open(ECHO, Vec::new()).unwrap()).collect();
    assert!(matches!(session.open(ECHO, Vec::new()), Err(ChannelError::Cancelled { code: codes::CHANNELS, .. })));
    drop(more);
    assert!(matches!(session.open(ECHO, vec![0; 65_536]), Err(ChannelError::TooLarge { .. })));
}

#[test]
fn a_server_that_has_no_threads_refuses_channels() {
    let server = TestServer::start(ServerOptions { threads: 1, ..quick() });
    let session = ClientSession::connect(server.options()).unwrap();
    let first = session.open(ECHO, Vec::new()).unwrap();
    first.send(0, vec![]).unwrap();
    first.receive().unwrap().unwrap();
    let second = session.open(ECHO, Vec::new()).unwrap();
    assert!(matches!(second.receive(), Err(ChannelError::Cancelled { code: codes::BUSY, .. })));
}

#[test]
fn a_server_closes_sessions_and_says_why() {
    let mut server = TestServer::start(quick());
    let session = ClientSession::connect(server.options()).unwrap();
    let channel = session.open(ECHO, Vec::new()).unwrap();
    let info = server.server.sessions();
    assert_eq!((info[0].id, info[0].name.as_str()), (session.id(), "client"));
    assert!(server.server.close(session.id()));
    assert!(!server.server.close(session.id()));
    assert!(matches!(channel.receive(), Err(ChannelError::Ended { code: codes::CLOSED, .. })));
    let session = ClientSession::connect(server.options()).unwrap();
    let channel = session.open(ECHO, Vec::new()).unwrap();
    server.stop();
    assert!(matches!(channel.receive(), Err(ChannelError::Ended { code: codes::SHUTDOWN, .. })));
    assert!(matches!(session.close(), Err(ChannelError::Ended { code: codes::SHUTDOWN, .. })));
    assert!(server.server.sessions().is_empty());
}

#[test]
fn a_server_without_sessions_can_refuse_new_ones_and_one_with_a_session_goes_on() {
    let server = TestServer::start(quick());
    let session = ClientSession::connect(server.options()).unwrap();
    assert!(!server.server.stop_if_idle());
    echoes(&session, 1000, 1);
    session.close().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while !server.server.stop_if_idle() {
        assert!(Instant::now() < until, "the session stays");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(matches!(ClientSession::connect(server.options()), Err(TransportError::Refused { code: codes::SHUTDOWN, .. })));
}

#[test]
fn sixty_four_sessions_stay_within_the_budget() {
    let server = TestServer::start(ServerOptions::default());
    let sessions: Vec<ClientSession> = (0..64).map(|_| ClientSession::connect(server.unix()).unwrap()).collect();
    assert!(matches!(ClientSession::connect(server.unix()), Err(TransportError::Refused { code: codes::BUSY, .. })));
    std::thread::scope(|scope| {
        for (seed, session) in sessions.iter().enumerate() {
            scope.spawn(move || {
                let ignored: Vec<Channel> = (0..3).map(|_| session.open(IGNORE, Vec::new()).unwrap()).collect();
                echoes(session, 300_000, seed);
                drop(ignored);
            });
        }
    });
    let budget = server.server.budget();
    assert!(budget.high_water_bytes() >= 64 << 20);
    assert!(budget.high_water_bytes() <= budget.total_bytes(), "{} bytes", budget.high_water_bytes());
}

#[test]
fn a_wrong_secret_is_refused() {
    let server = TestServer::start(quick());
    let mut options = server.options();
    options.credentials.secret = b"wrong".to_vec();
    assert!(matches!(ClientSession::connect(options), Err(TransportError::Refused { code: codes::DENIED, .. })));
    assert!(server.server.sessions().is_empty());
}

#[test]
fn extensions_are_those_that_both_know() {
    let server = TestServer::start(ServerOptions { extensions: vec!["b".into(), "c".into()], ..quick() });
    let options = ConnectOptions { extensions: vec!["a".into(), "b".into()], ..server.options() };
    assert_eq!(ClientSession::connect(options).unwrap().extensions(), ["b"]);
}

#[test]
fn an_unknown_certificate_is_told_and_a_wrong_one_refused() {
    let server = TestServer::start(quick());
    let with = |trust: Trust| {
        let mut options = server.options();
        let Target::Tls { trust: place, .. } = &mut options.target else { unreachable!() };
        *place = trust;
        ClientSession::connect(options)
    };
    let fingerprint = match with(Trust::Unknown) {
        Err(TransportError::UnknownCertificate { fingerprint }) => fingerprint,
        other => panic!("{other:?}"),
    };
    assert_eq!(fingerprint, server.tls.fingerprint());
    with(Trust::Pinned(fingerprint)).unwrap().close().unwrap();
    let other = CertificateFingerprint::from([7; 32]);
    match with(Trust::Pinned(other)) {
        Err(TransportError::WrongCertificate { expected, found }) => assert_eq!((expected, found), (other, fingerprint)),
        other => panic!("{other:?}"),
    }
    assert!(matches!(with(Trust::System), Err(TransportError::Tls { .. })));
}

#[test]
fn a_certificate_that_changes_while_the_link_is_broken_ends_the_session() {
    let server = TestServer::start(quick());
    let other = TestServer::start(quick());
    let (first, second) = (server.address, other.address);
    // The proxy leads to one server, and later its port leads to the other one.
    let proxy = Proxy::start(first, Duration::ZERO, |_| Fate::default());
    let address = proxy.address;
    let session = ClientSession::connect(server.options_at(address)).unwrap();
    let channel = session.open(ECHO, Vec::new()).unwrap();
    drop(proxy);
    let listener = loop {
        match std::net::TcpListener::bind(address) {
            Ok(listener) => break listener,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = std::net::TcpStream::connect(second).unwrap();
            let (mut a, mut b) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut a, &mut b));
            std::thread::spawn(move || std::io::copy(&mut { server }, &mut { client }));
        }
    });
    match channel.receive() {
        Err(ChannelError::LinkLost { reason }) => assert!(reason.contains("replaced"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

/// Makes an authority, and a client's certificate that it signs. Returns their files.
fn authority(place: &std::path::Path) -> (std::path::PathBuf, ClientIdentity) {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    let mut parameters = CertificateParams::new(vec![]).unwrap();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["client".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let files = ["authority", "certificate", "key"].map(|name| place.join(name));
    for (file, content) in files.iter().zip([issuer.pem(), certificate.pem(), key.serialize_pem()]) {
        std::fs::write(file, content).unwrap();
    }
    let [authorities, certificate, key] = files;
    (authorities, ClientIdentity { certificate, key })
}

#[test]
fn certificates_of_clients_are_checked_and_shown_to_the_server() {
    let place = tempfile::tempdir().unwrap();
    let (authorities, identity) = authority(place.path());
    for is_required in [false, true] {
        let server = TestServer::start_with(quick(), Some(&ClientCertificates { authorities: authorities.clone(), is_required }));
        let mut options = server.options();
        assert_eq!(ClientSession::connect(options.clone()).is_err(), is_required);
        let Target::Tls { identity: place, .. } = &mut options.target else { unreachable!() };
        *place = Some(identity.clone());
        let session = ClientSession::connect(options).unwrap();
        let info = server.server.sessions().into_iter().find(|info| info.id == session.id()).unwrap();
        assert!(info.peer.certificate.is_some());
        assert_ne!(info.peer.certificate, Some(server.tls.fingerprint()));
    }
}
