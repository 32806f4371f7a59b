//! Backups over a connection beside backups into a store that is open in this process (M3.1): seconds, bytes on the
//! wire, what a second client adds.
//!
//! `cargo bench -p onefold-client --bench remote [MEGABYTES] [FILES] [ROUNDS]`. Client and server are threads of one
//! process, so both share the machine's cores as a local backup does. Stores and files lie in `$TMPDIR`. Delays are
//! those of a proxy. Each row is the median of its rounds; the rows of a round are measured one after the other.

#[path = "../../remote/tests/common/proxy.rs"]
#[allow(dead_code, reason = "a part is used")]
mod proxy;

use onefold_catalog::Catalog;
use onefold_client::repository::{Remote, Repository};
use onefold_client::{BackupOptions, RestoreOptions, Tally};
use onefold_engine::{Descriptor, Engine, Mode, Settings};
use onefold_ground::{Ground, LocalGround};
use onefold_remote::accounts::{Accounts, Namespace, Permissions, Quotas, Rate};
use onefold_remote::services::server::{Guest, Unobserved, serve};
use onefold_remote::transport::{
    Channel, ClientSession, ConnectOptions, Credentials, Door, Listener, Login, Peer, Refusal, Server, ServerOptions, ServerTls, Services,
    Target, Trust, Visitor,
};
use std::any::Any;
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Lets everybody in under the name that they give.
struct Anybody {
    accounts: Accounts,
    quotas: Quotas,
}

impl Door for Anybody {
    fn admit(&self, login: &Login, _: &Peer) -> Result<Arc<dyn Any + Send + Sync>, Refusal> {
        let rate = Arc::new(Rate::new(None));
        let guest = match login.account.as_str() {
            "owner" => Ok(Guest::owner(Box::new(Unobserved))),
            name => self
                .accounts
                .get(name)
                .and_then(|account| Guest::account(account, &self.accounts, &self.quotas, rate, Box::new(Unobserved))),
        };
        guest.map(|guest| Arc::new(guest) as Arc<dyn Any + Send + Sync>).map_err(|error| Refusal::new(3, error.to_string()))
    }
}

struct Backups(Catalog);

impl Services for Backups {
    fn serve(&self, visitor: &Visitor, service: u8, opening: Vec<u8>, channel: Channel) {
        let guest = visitor.account.downcast_ref::<Guest>().expect("the door made it");
        serve(&self.0, guest, service, &opening, &channel);
    }
}

/// A store with a server.
struct Served {
    directory: PathBuf,
    catalog: Catalog,
    address: SocketAddr,
    trust: Trust,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn new(directory: &Path) -> Served {
        fs::create_dir(directory).expect("a directory");
        let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory).expect("a directory"));
        Engine::create(&ground, &Descriptor::new().expect("random numbers")).expect("a store");
        let engine = Engine::open(ground, Settings::default(), Mode::ReadWrite, "bench").expect("a store");
        let catalog = Catalog::new(engine.clone());
        let accounts = Accounts::new(engine.clone()).expect("accounts");
        for name in ["one", "two"] {
            let own = Permissions::own(Namespace::new(name).expect("a namespace"));
            let settings = onefold_remote::accounts::Settings { permissions: Some(own), ..Default::default() };
            accounts.create(name, settings).expect("an account");
        }
        let door = Anybody { accounts, quotas: Quotas::new(engine) };
        let options = ServerOptions { limits: onefold_remote::services::limits(catalog.engine()), ..ServerOptions::default() };
        let server = Server::new(options, Arc::new(door), Arc::new(Backups(catalog.clone())));
        let tls = ServerTls::self_signed(&["localhost".to_owned()], None).expect("a certificate");
        let trust = Trust::Pinned(tls.fingerprint());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
            let stopped = async {
                let _ = stopped.await;
            };
            runtime.block_on(server.run(vec![Listener::Tls(listener, tls)], stopped)).expect("a server");
        });
        Served { directory: directory.to_owned(), catalog, address, trust, stop: Some(stop), thread: Some(thread) }
    }

    fn remote(&self, account: &str, at: SocketAddr, has_cache: bool) -> Remote {
        let target = Target::Tls { host: at.ip().to_string(), port: at.port(), trust: self.trust.clone(), identity: None };
        let credentials = Credentials { account: account.to_owned(), secret: Vec::new() };
        let session = ClientSession::connect(ConnectOptions::new(target, credentials)).expect("a session");
        Remote::new(Arc::new(session), has_cache.then(|| self.directory.join("cache")), false)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
        self.thread.take().map(|thread| thread.join());
        self.catalog.engine().close().expect("a clean stop");
        fs::remove_dir_all(&self.directory).expect("it is ours");
    }
}

/// Half of each block compresses well, as in the middle of programs and documents.
fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 16);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
        bytes.extend_from_slice(&[b'a' + (state % 16) as u8; 8]);
    }
    bytes.truncate(length);
    bytes
}

fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// What rounds measured: seconds, seconds of the processor, kilobytes on the wire, megabytes that the store grew.
type Rows = BTreeMap<String, Vec<[f64; 4]>>;

fn note(rows: &mut Rows, name: &str, catalog: &Catalog, wire: impl Fn() -> u64, work: impl FnOnce()) {
    let stored = || {
        catalog.engine().flush().expect("it works");
        catalog.engine().stored_bytes()
    };
    let (stored_before, wire_before, processor, begun) = (stored(), wire(), processor_seconds(), Instant::now());
    work();
    let seconds = begun.elapsed().as_secs_f64();
    let (processor, wire) = (processor_seconds() - processor, wire() - wire_before);
    let added = stored() - stored_before;
    rows.entry(name.to_owned()).or_default().push([seconds, processor, wire as f64 / 1e3, added as f64 / 1e6]);
}

fn backup(repository: &dyn Repository, name: &str, source: &Path) {
    let options = BackupOptions { name: name.into(), host: "bench".into(), paths: vec![source.to_path_buf()], ..BackupOptions::default() };
    onefold_client::backup(repository, &options, &Tally::default()).expect("a backup");
}

fn median(values: &[[f64; 4]], at: usize) -> f64 {
    let mut sorted: Vec<f64> = values.iter().map(|value| value[at]).collect();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn round(rows: &mut Rows, directory: &Path, data: &Path, tree: &Path) {
    let wire = |remote: &Remote| remote.session().sent_bytes() + remote.session().received_bytes();
    for (kind, source) in [("unique data", data), ("tree of small files", tree)] {
        let local = Served::new(&directory.join("local"));
        note(rows, &format!("{kind}: first, local"), &local.catalog, || 0, || backup(&local.catalog, "one", source));
        note(rows, &format!("{kind}: unchanged, local"), &local.catalog, || 0, || backup(&local.catalog, "one", source));
        drop(local);
        for delay in [0, 50] {
            let served = Served::new(&directory.join("served"));
            let fate = |_| proxy::Fate::default();
            let proxy = proxy::Proxy::start(served.address, Duration::from_millis(delay / 2), fate);
            let at = if delay == 0 { served.address } else { proxy.address };
            let one = served.remote("one", at, true);
            let named = |what: &str| format!("{kind}: {what}, round trip {delay} ms");
            note(rows, &named("first"), &served.catalog, || wire(&one), || backup(&one, "one", source));
            note(rows, &named("unchanged"), &served.catalog, || wire(&one), || backup(&one, "one", source));
            let bare = served.remote("one", at, false);
            note(rows, &named("unchanged, no cache"), &served.catalog, || wire(&bare), || backup(&bare, "one", source));
            if delay == 0 {
                let two = served.remote("two", at, true);
                note(rows, &named("another account's first"), &served.catalog, || wire(&two), || backup(&two, "two", source));
            }
            let reading = one.find("latest:one").expect("it was made");
            let target = directory.join("target");
            let options = RestoreOptions { target: target.clone(), ..RestoreOptions::default() };
            note(
                rows,
                &named("restore"),
                &served.catalog,
                || wire(&one),
                || {
                    onefold_client::restore(&one, reading.backup(), &options, &Tally::default()).expect("a restore");
                },
            );
            fs::remove_dir_all(&target).expect("it is ours");
        }
    }
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<usize>().ok());
    let (megabytes, files, rounds) = (numbers.next().unwrap_or(512), numbers.next().unwrap_or(50_000), numbers.next().unwrap_or(3));
    let directory = tempfile::tempdir().expect("a directory");
    let (data, tree) = (directory.path().join("data"), directory.path().join("tree"));
    fs::create_dir_all(&data).expect("a directory");
    for number in 0..megabytes.div_ceil(64) {
        fs::write(data.join(number.to_string()), content(number as u64, 64 << 20)).expect("a file");
    }
    for number in 0..files {
        let path = tree.join(format!("{:03}/{number:06}", number / 100));
        fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
        fs::write(path, content(1000 + number as u64, 500 + number % 3000)).expect("a file");
    }
    let mut rows = Rows::new();
    for _ in 0..rounds {
        round(&mut rows, directory.path(), &data, &tree);
    }
    println!("{megabytes} MB in files of 64 MiB; {files} files of 0.5 to 3.5 KB; {rounds} rounds");
    println!("{:<58} {:>8} {:>8} {:>10} {:>9}", "", "seconds", "CPU s", "wire KB", "added MB");
    for (name, values) in rows {
        println!(
            "{name:<58} {:>8.2} {:>8.2} {:>10.1} {:>9.2}",
            median(&values, 0),
            median(&values, 1),
            median(&values, 2),
            median(&values, 3)
        );
    }
}
