//! The served targets follow the store, whatever happens at the same time.

use super::*;
use crate::erasure::check_not_being_erased;
use crate::export::VolumeExports;
use onefold_engine::{Descriptor, Mode, Settings};
use onefold_ground::{Ground, LocalGround};
use onefold_iscsi::login::{Doors, Refused, Terms, Visitor};
use onefold_iscsi::{Limits, PortalConfig, Server, Targets};
use onefold_nbd::Exports;
use onefold_targets::{KeptSanitize, keep_sanitize};
use onefold_tests::iscsi::{connect, login_request, receive, send};
use onefold_volume::VolumesOptions;
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A store in its own directory.
pub(super) struct Store {
    _directory: tempfile::TempDir,
    pub(super) engine: Arc<Engine>,
    pub(super) volumes: Arc<Volumes>,
}

impl Store {
    pub(super) fn new() -> Store {
        let directory = tempfile::tempdir().unwrap();
        let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).unwrap());
        Engine::create(&ground, &Descriptor::new().unwrap()).unwrap();
        let engine = Engine::open(ground, Settings::default(), Mode::ReadWrite, "test").unwrap();
        let volumes = Arc::new(Volumes::open(engine.clone(), VolumesOptions::default()).unwrap());
        Store { _directory: directory, engine, volumes }
    }

    pub(super) fn served(&self, options: Options) -> Iscsi {
        Iscsi::new(self.engine.clone(), self.volumes.clone(), options).unwrap()
    }

    /// Creates a volume. Returns its number.
    fn volume(&self, name: &str, size: u64) -> u32 {
        self.volumes.create(name, size, 256 << 10, None).unwrap();
        self.volumes.list().into_iter().find(|info| info.name == name).unwrap().number
    }

    /// Creates a target with these units.
    fn target(&self, name: &str, units: &[(u16, Unit)]) {
        let target = onefold_targets::Target { name: name.into(), units: units.iter().copied().collect(), ..Default::default() };
        self.change(|known| known.add(target).unwrap());
    }

    fn change(&self, work: impl FnOnce(&mut Known)) {
        let done: std::result::Result<(), TargetError> = change(&self.engine, |known| {
            work(known);
            Ok(())
        });
        done.unwrap();
    }

    pub(super) fn close(self) {
        drop(self.volumes);
        self.engine.close().unwrap();
    }
}

const ONE: &str = "iqn.2026-01.com.example:one";

fn unit_of(volume: u32, block_bytes: u32) -> Unit {
    Unit { volume, block_bytes, is_read_only: false, is_removable: false }
}

#[track_caller]
fn wait_until(what: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !what() {
        assert!(Instant::now() < until, "it does not happen");
        std::thread::yield_now();
    }
}

/// Returns the number of erasures that run in this process.
fn erasing() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    threads.filter(|thread| std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "sanitize")).count()
}

#[test]
fn a_volume_is_erased_by_one_unit_at_a_time() {
    let store = Store::new();
    // It takes hours.
    let disk = store.volume("disk", 1 << 40);
    keep_sanitize(&store.engine, disk, Some(&KeptSanitize { pattern: vec![7; 512], ..KeptSanitize::default() })).unwrap();
    store.target(ONE, &[(0, unit_of(disk, 512))]);
    let iscsi = store.served(Options::default());
    wait_until(|| erasing() == 1);
    // A session that is logged in keeps the units a while longer.
    let unit = |iscsi: &Iscsi| iscsi.state.lock().units[&disk].unit.clone();
    let old = unit(&iscsi);
    store.change(|known| {
        known.find_mut(ONE).unwrap().units.insert(0, unit_of(disk, 4096));
    });
    iscsi.refresh().unwrap();
    let new = unit(&iscsi);
    assert!(!Arc::ptr_eq(&old, &new));
    wait_until(|| erasing() == 1);
    store.change(|known| {
        known.find_mut(ONE).unwrap().units.remove(&0);
    });
    iscsi.refresh().unwrap();
    wait_until(|| erasing() == 0);
    let former = |iscsi: &Iscsi| iscsi.state.lock().former.get(&disk).map_or(0, Vec::len);
    assert_eq!(former(&iscsi), 2, "what these have under way comes before the commands of the next one");
    drop((old, new));
    iscsi.refresh().unwrap();
    assert_eq!(former(&iscsi), 0);
    iscsi.stop();
    drop(iscsi);
    store.close();
}

#[test]
fn a_volume_that_is_being_erased_is_not_changed_or_opened_over_nbd() {
    let store = Store::new();
    let disk = store.volume("disk", 1 << 20);
    store.volume("other", 1 << 20);
    let exports = VolumeExports::new(store.engine.clone(), store.volumes.clone(), false);
    let check = |name: &str| check_not_being_erased(&store.engine, &store.volumes, name).map_err(|failure| failure.message);
    for (has_failed, why) in [(false, "volume disk is being erased (SANITIZE)"), (true, "an erasure (SANITIZE) of volume disk has failed")]
    {
        keep_sanitize(&store.engine, disk, Some(&KeptSanitize { has_failed, ..KeptSanitize::default() })).unwrap();
        assert_eq!(check("disk"), Err(why.to_owned()));
        assert!(exports.open("disk").is_none());
        assert!(check("other").is_ok() && exports.open("other").is_some());
    }
    keep_sanitize(&store.engine, disk, None).unwrap();
    assert!(check("disk").is_ok() && exports.open("disk").is_some());
    drop(exports);
    store.close();
}

#[test]
fn luns_of_volumes_that_are_gone_are_free_again() {
    let store = Store::new();
    let disk = store.volume("disk", 1 << 20);
    store.target(ONE, &[(0, unit_of(disk, 512)), (1, unit_of(999, 512))]);
    let luns = || known(&store.engine).unwrap().find(ONE).unwrap().units.keys().copied().collect::<Vec<_>>();
    let shown = |iscsi: &Iscsi| iscsi.shown()[0].1.iter().map(|unit| unit.lun).collect::<Vec<_>>();
    let iscsi = store.served(Options { is_read_only: true, ..Options::default() });
    assert_eq!((shown(&iscsi), luns()), (vec![0], vec![0, 1]), "nothing is changed by who only reads");
    drop(iscsi);
    let iscsi = store.served(Options::default());
    assert_eq!((shown(&iscsi), luns()), (vec![0], vec![0]));
    drop(iscsi);
    store.close();
}

#[test]
fn initiators_see_the_size_that_they_were_told_of() {
    let store = Store::new();
    let disk = store.volume("disk", 1 << 20);
    let iscsi = store.served(Options::default());
    let unit = iscsi.state.lock().units[&disk].unit.clone();
    store.volumes.get("disk").unwrap().resize(2 << 20).unwrap();
    assert_eq!(unit.geometry().size, 1 << 20, "the volume, which may be busy, is not asked");
    iscsi.refresh().unwrap();
    assert_eq!(unit.geometry().size, 2 << 20);
    drop((unit, iscsi));
    store.close();
}

/// Answers logins as the store says, but returns the found target only when a test says so.
struct Halting {
    iscsi: Arc<Iscsi>,
    found: mpsc::Sender<()>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl Doors for Halting {
    fn admit(&self, target: Option<&str>, visitor: &Visitor) -> std::result::Result<Terms, Refused> {
        self.iscsi.admit(target, visitor)
    }
    fn random(&self, out: &mut [u8]) -> std::result::Result<(), Refused> {
        self.iscsi.random(out)
    }
}

impl Targets for Halting {
    fn names(&self, visitor: &Visitor) -> Vec<String> {
        self.iscsi.names(visitor)
    }
    fn target(&self, name: &str) -> Option<Arc<Target>> {
        let found = self.iscsi.target(name);
        self.found.send(()).unwrap();
        self.go_on.lock().recv().unwrap();
        found
    }
    fn is_served(&self, target: &Arc<Target>) -> bool {
        self.iscsi.is_served(target)
    }
}

/// Logs in to a target. When the target is found, but before the session is in it, calls `meanwhile`. That calls its
/// argument when the login may continue. Returns the status of the login, and the connection.
fn log_in_beside(iscsi: &Arc<Iscsi>, target: &str, meanwhile: impl FnOnce(&dyn Fn())) -> (u16, TcpStream, tokio::runtime::Runtime) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (found, was_found) = mpsc::channel();
    let (go_on, told) = mpsc::channel();
    let halting = Arc::new(Halting { iscsi: iscsi.clone(), found, go_on: Mutex::new(told) });
    let portals = [PortalConfig { listen: "127.0.0.1:0".parse().unwrap(), advertised: None }];
    let server = runtime.block_on(Server::bind(&portals, halting, Limits::default())).unwrap();
    iscsi.attach(server.handle());
    let portal = server.local_addresses().next().unwrap().to_string();
    runtime.spawn(server.run(std::future::pending()));
    let mut stream = connect(&portal).unwrap();
    let (header, text) = login_request(1, &[("InitiatorName", "iqn.x"), ("TargetName", target)]);
    send(&mut stream, header, &text).unwrap();
    was_found.recv().unwrap();
    meanwhile(&|| go_on.send(()).unwrap());
    let (answer, _) = receive(&mut stream).unwrap();
    (u16::from_be_bytes([answer[36], answer[37]]), stream, runtime)
}

/// READ (10) of the first block of a LUN. Returns the data, or the sense data.
fn read_first(stream: &mut TcpStream, lun: u8, number: u32) -> Vec<u8> {
    let mut header = [0; 48];
    (header[0], header[1], header[9]) = (0x01, 0xc1, lun);
    header[16..20].copy_from_slice(&number.to_be_bytes());
    header[20..24].copy_from_slice(&512u32.to_be_bytes());
    header[24..28].copy_from_slice(&number.to_be_bytes());
    (header[32], header[40]) = (0x28, 1);
    send(stream, header, &[]).unwrap();
    receive(stream).unwrap().1
}

#[test]
fn m0_1_a_login_beside_the_deletion_of_a_volume_finds_it_gone() {
    let store = Store::new();
    store.volume("disk", 1 << 20);
    store.volume("other", 1 << 20);
    let iscsi = Arc::new(store.served(Options { ports: vec![1], ..Options::default() }));
    let target = Iscsi::default_name(&store.engine);
    let (status, mut stream, runtime) = log_in_beside(&iscsi, &target, |go_on| {
        let delete = || {
            go_on();
            // The session is as far into the target as it can be.
            wait_until(|| iscsi.server().unwrap().count_of(&target) > 0);
            Ok(store.volumes.delete("disk")?)
        };
        iscsi.on_unused("disk", delete).unwrap();
    });
    assert_eq!(status, 0);
    assert_eq!(read_first(&mut stream, 0, 1)[14..16], [0x25, 0], "logical unit not supported");
    let attention = read_first(&mut stream, 1, 2);
    assert_eq!(attention[4] & 15, 6, "the other one has something to say first");
    assert_eq!(read_first(&mut stream, 1, 3), [0; 512]);
    // A session that is logged in keeps the volume from being deleted.
    let used = iscsi.on_unused("other", || Ok(())).unwrap_err();
    assert!(used.message.contains("in use: 1 session"), "{used}");
    drop((stream, runtime, iscsi));
    store.close();
}

#[test]
fn m0_1_a_login_beside_a_rollback_sees_what_was_rolled_back_only() {
    let store = Store::new();
    store.volume("disk", 1 << 20);
    let volume = store.volumes.get("disk").unwrap();
    volume.write(0, &[1; 512]).unwrap();
    store.volumes.snapshot("disk", "before").unwrap();
    volume.write(0, &[2; 512]).unwrap();
    let iscsi = Arc::new(store.served(Options { ports: vec![1], ..Options::default() }));
    let target = Iscsi::default_name(&store.engine);
    let (status, mut stream, runtime) = log_in_beside(&iscsi, &target, |go_on| {
        let roll_back = || {
            go_on();
            wait_until(|| iscsi.server().unwrap().count_of(&target) > 0);
            Ok(store.volumes.rollback("disk", "before")?)
        };
        iscsi.on_unused("disk", roll_back).unwrap();
    });
    assert_eq!(status, 0);
    read_first(&mut stream, 0, 1);
    assert_eq!(read_first(&mut stream, 0, 2), [1; 512]);
    drop((stream, runtime, iscsi, volume));
    store.close();
}

#[test]
fn m0_1_a_login_to_a_target_that_goes_meanwhile_is_refused() {
    let store = Store::new();
    let disk = store.volume("disk", 1 << 20);
    store.target(ONE, &[(0, unit_of(disk, 512))]);
    let iscsi = Arc::new(store.served(Options { ports: vec![1], ..Options::default() }));
    let (status, stream, runtime) = log_in_beside(&iscsi, ONE, |go_on| {
        // A new target of the same name is not the one that the login found.
        store.change(|known| drop(known.remove(ONE).unwrap()));
        iscsi.refresh().unwrap();
        store.target(ONE, &[(0, unit_of(disk, 4096))]);
        iscsi.refresh().unwrap();
        go_on();
    });
    assert_eq!(status, 0x0203, "not found");
    drop((stream, runtime, iscsi));
    store.close();
}
