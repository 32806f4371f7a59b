//! A whole session of an attacker with a server of backups: any messages on any channels, mixed with those of an honest
//! client so that they reach far. Nothing panics, and the backup of somebody else stays as it was.

use onefold_catalog::{Attributes, Catalog, Content, Entry, Statistics};
use onefold_engine::{Descriptor, Engine, Mode, Piece, Recipe, Settings};
use onefold_fingerprint::{Algorithm, Fingerprint};
use onefold_ground::{Ground, SimulatedGround};
use onefold_remote::accounts::{Accounts, Quotas, Rate};
use onefold_remote::services::messages::*;
use onefold_remote::services::server::{Guest, Unfinished, Unobserved, serve};
use onefold_remote::transport::{
    Channel, ClientSession, ConnectOptions, Credentials, Door, Listener, Login, Peer, Received, Refusal, Server, ServerOptions, Services,
    Target, Visitor,
};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long a service may go on when its session is over.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an answer is waited for: it may come or not.
const ANSWER: Duration = Duration::from_millis(3);
/// Services of earlier runs that may still be ending.
const BACKLOG: usize = 64;
/// Channels of the attacker at a time.
const CHANNELS: usize = 6;

static PANICKED: AtomicBool = AtomicBool::new(false);
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// The store, its server, and the backup that must stay.
struct Place {
    catalog: Catalog,
    socket: std::path::PathBuf,
    victim: Vec<Piece>,
    runs: AtomicU64,
}

struct Anybody {
    accounts: Accounts,
    quotas: Quotas,
    unfinished: Arc<Unfinished>,
}

impl Door for Anybody {
    fn admit(&self, login: &Login, _: &Peer) -> Result<Arc<dyn Any + Send + Sync>, Refusal> {
        let account = self.accounts.get(&login.account).map_err(|error| Refusal::new(3, error.to_string()))?;
        let guest = Guest::account(account, &self.accounts, &self.quotas, Arc::new(Rate::new(None)), Box::new(Unobserved));
        Ok(Arc::new(guest.map_err(|error| Refusal::new(3, error.to_string()))?.with_unfinished(&self.unfinished)))
    }
}

struct Backups(Catalog);

impl Services for Backups {
    fn serve(&self, visitor: &Visitor, service: u8, opening: Vec<u8>, channel: Channel) {
        RUNNING.fetch_add(1, Ordering::SeqCst);
        let guest = visitor.account.downcast_ref::<Guest>().expect("the door made it");
        let served = catch_unwind(AssertUnwindSafe(|| serve(&self.0, guest, service, &opening, &channel)));
        if served.is_err() {
            PANICKED.store(true, Ordering::SeqCst);
        }
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}

const VICTIM: &[u8] = b"what the victim has, and what an attacker would like to have or to harm";

fn place() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    PLACE.get_or_init(|| {
        let ground: Arc<dyn Ground> = Arc::new(SimulatedGround::new(1));
        Engine::create(&ground, &Descriptor::new().expect("random numbers")).expect("a store");
        let settings = Settings { background: false, ..Settings::default() };
        let engine = Engine::open(ground, settings, Mode::ReadWrite, "fuzz").expect("a store");
        let victim = engine.stream().write_chunks(&[VICTIM]).expect("it is stored");
        engine.flush().expect("it is stored");
        let catalog = Catalog::new(engine.clone());
        let accounts = Accounts::new(engine.clone()).expect("accounts");
        accounts.create("attacker", Default::default()).expect("an account");
        let unfinished = Arc::new(Unfinished::open(engine.clone()).unwrap());
        let door = Anybody { accounts, quotas: Quotas::new(engine), unfinished };
        let server = Server::new(ServerOptions::default(), Arc::new(door), Arc::new(Backups(catalog.clone())));
        let socket = std::env::temp_dir().join(format!("onefold-fuzz-{}", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
            runtime.block_on(server.run(vec![Listener::Unix(listener)], std::future::pending::<()>())).expect("a server");
        });
        Place { catalog, socket, victim, runs: AtomicU64::new(0) }
    })
}

/// The next bytes of the input.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn bytes(&mut self) -> Vec<u8> {
        let count = usize::from(self.byte().unwrap_or(0)).min(self.0.len());
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes.to_vec()
    }
}

struct Attacker {
    session: ClientSession,
    channels: Vec<Channel>,
    /// The latest number that the server gave.
    number: u8,
    chunks: Vec<Vec<u8>>,
}

fn name_of(chunk: &[u8]) -> Fingerprint {
    let mut names = Vec::new();
    Algorithm::Blake3.fingerprint_many(&[chunk], &mut names);
    names[0]
}

impl Attacker {
    fn open(&mut self, service: u8, opening: Vec<u8>) {
        if let Ok(channel) = self.session.open(service, opening) {
            self.channels.push(channel);
        }
        if self.channels.len() > CHANNELS {
            self.channels.remove(0).cancel();
        }
    }

    fn channel(&self, at: u8) -> Option<&Channel> {
        self.channels.get(usize::from(at) % self.channels.len().max(1))
    }

    fn send(&self, at: u8, (kind, payload): (u8, Vec<u8>)) {
        if let Some(channel) = self.channel(at) {
            // It may be over.
            let _ = channel.send(kind & 0x7f, payload);
        }
    }

    fn receives(&mut self, at: u8) {
        let Some(channel) = self.channel(at) else { return };
        if let Ok(Received::Message(message)) = channel.receive_until(Instant::now() + ANSWER)
            && let Ok(BackupAnswer::Began(began)) = BackupAnswer::decode(message.kind, &message.payload)
        {
            self.number = began.number as u8;
        }
    }

    fn act(&mut self, what: u8, input: &mut Input<'_>) -> Option<()> {
        match what % 12 {
            0 => {
                let service = input.byte()?;
                self.open(service % 6, input.bytes());
            }
            1 => {
                let (at, kind) = (input.byte()?, input.byte()?);
                self.send(at, (kind, input.bytes()));
            }
            2 => {
                let name = if input.byte()? % 4 == 0 { "attacker/other" } else { "attacker" };
                let begin = Begin { name: name.into(), host: String::new(), paths: Vec::new(), against: Against::Newest };
                self.open(services::BACKUP, begin.encode());
                let at = self.channels.len() as u8 - 1;
                self.receives(at);
                self.send(at, BackupRequest::Start.encode());
            }
            3 => {
                let number = self.number;
                self.open(services::CONTENTS, vec![number & 0x7f]);
            }
            4 => {
                let (at, ticket) = (input.byte()?, input.byte()?);
                let mut items = vec![Offered::Begin { ticket: ticket.into(), earlier: b"file".to_vec() }];
                for _ in 0..input.byte()? % 4 {
                    let chunk = match input.byte()? % 5 {
                        0 => VICTIM.to_vec(),
                        1 => vec![0; 40],
                        _ => input.bytes(),
                    };
                    items.push(Offered::Chunk { fingerprint: name_of(&chunk), length: (chunk.len() as u32).max(1) });
                    self.chunks.push(chunk);
                }
                items.push(Offered::End);
                self.send(at, ContentsRequest::Offer(items).encode(32));
            }
            5 => {
                let (at, count) = (input.byte()?, usize::from(input.byte()?));
                let count = count.min(self.chunks.len());
                let bytes: Vec<u8> = self.chunks.drain(..count).flatten().collect();
                let supply = ContentsRequest::Supply { chunks: count as u64, codec: 0, raw_bytes: bytes.len() as u64, bytes };
                self.send(at, supply.encode(32));
            }
            6 => {
                let (at, ticket) = (input.byte()?, input.byte()?);
                let content = Content::File { size_bytes: 0, recipe: Recipe::default() };
                let entry = Entry { name: input.bytes(), attributes: Attributes::default(), content };
                self.send(at, BackupRequest::Steps(vec![Step::Put { entry, ticket: Some(ticket.into()), earlier: None }]).encode());
            }
            7 => {
                let at = input.byte()?;
                self.send(at, BackupRequest::Finish.encode());
                let (user, options, statistics) = (String::new(), String::new(), Statistics::default());
                self.send(at, BackupRequest::Commit(Commit { user, tags: Vec::new(), options, statistics }).encode());
            }
            8 => {
                let opens = if input.byte()? % 2 == 0 { Open::Meant("latest".into()) } else { Open::Earlier(self.number.into()) };
                self.open(services::READ, opens.encode());
            }
            9 => {
                let at = input.byte()?;
                let pieces = self.pieces(input);
                self.send(at, ReadRequest::Data { compresses: at % 2 == 0, pieces }.encode(32));
            }
            10 => {
                let at = input.byte()?;
                self.receives(at);
            }
            _ => {
                let (at, how) = (input.byte()?, input.byte()?);
                let channel = self.channel(at)?;
                if how % 2 == 0 { channel.finish() } else { channel.cancel() }
            }
        }
        Some(())
    }

    /// The victim's real pieces, with a change.
    fn pieces(&self, input: &mut Input<'_>) -> Vec<Piece> {
        let mut pieces = place().victim.clone();
        for piece in &mut pieces {
            if let Piece::Chunk { offset, length, .. } = piece {
                *offset = u32::from(input.byte().unwrap_or(0));
                *length = u32::from(input.byte().unwrap_or(9)).max(1);
            }
        }
        pieces
    }
}

/// Each byte says what the attacker does; what it says comes behind.
pub fn run(data: &[u8]) {
    let place = place();
    let credentials = Credentials { account: "attacker".to_owned(), secret: Vec::new() };
    let session = loop {
        match ClientSession::connect(ConnectOptions::new(Target::Unix(place.socket.clone()), credentials.clone())) {
            Ok(session) => break session,
            // Sessions of earlier runs are about to end.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let mut attacker = Attacker { session, channels: Vec::new(), number: 1, chunks: Vec::new() };
    let mut input = Input(data);
    while let Some(what) = input.byte() {
        if attacker.act(what, &mut input).is_none() && input.0.is_empty() {
            break;
        }
    }
    drop(attacker);
    let until = Instant::now() + PATIENCE;
    // The last ones end within moments. Waiting for them would take longer than everything else.
    while RUNNING.load(Ordering::SeqCst) > BACKLOG {
        assert!(Instant::now() < until, "a service goes on without its session");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!PANICKED.load(Ordering::SeqCst), "a service panicked");
    let mut bytes = vec![0; VICTIM.len()];
    place.catalog.engine().read(&place.victim, 0, &mut bytes, true).expect("the victim's data can be read");
    assert_eq!(bytes, VICTIM);
    if place.runs.fetch_add(1, Ordering::Relaxed).is_multiple_of(64) {
        place.catalog.list().expect("all records can be read");
    }
}
