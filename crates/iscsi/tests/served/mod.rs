//! A server whose disk a test can make wait, and PDUs for it.

// Each file of tests uses some of it.
#![allow(dead_code, missing_docs)]

use onefold_iscsi::login::{Doors, Refused, Terms, Visitor};
use onefold_iscsi::scsi::reservation::Reservations;
use onefold_iscsi::scsi::{Disk, DiskError, Extent, Identity, LogicalUnit, UnitOptions};
use onefold_iscsi::{Limits, PortalConfig, Server, Target, Targets};
use onefold_tests::iscsi::{HEADER_BYTES, Initiator, receive, send, word};
use std::io::Read;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const NAME: &str = "iqn.2026-01.com.example:disk";
pub const SIZE: usize = 16 << 20;

/// A disk in memory, which a test can make wait.
pub struct Slow {
    pub bytes: Mutex<Vec<u8>>,
    pub gate: Mutex<()>,
    /// How many have come to the gate.
    pub arrived: AtomicUsize,
}

impl Slow {
    /// Waits until so many have come to the gate.
    pub fn wait_for(&self, arrived: usize) {
        let have_come = self.come_within(Duration::from_secs(60), arrived);
        assert!(have_come, "{} of {arrived} have come", self.arrived.load(Ordering::Relaxed));
    }

    /// Returns whether so many come to the gate within a time.
    pub fn come_within(&self, time: Duration, arrived: usize) -> bool {
        let until = Instant::now() + time;
        while self.arrived.load(Ordering::Relaxed) < arrived {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    fn wait(&self) {
        self.arrived.fetch_add(1, Ordering::Relaxed);
        drop(self.gate.lock());
    }
}

impl Disk for Slow {
    fn size(&self) -> u64 {
        SIZE as u64
    }
    fn read_only(&self) -> bool {
        false
    }
    fn block_bytes(&self) -> u32 {
        256 << 10
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DiskError> {
        self.wait();
        out.copy_from_slice(&self.bytes.lock().unwrap()[offset as usize..][..out.len()]);
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8], _fua: bool) -> Result<(), DiskError> {
        self.wait();
        self.bytes.lock().unwrap()[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }
    fn update(&self, offset: u64, length: usize, _fua: bool, change: &mut dyn FnMut(&mut [u8]) -> bool) -> Result<bool, DiskError> {
        Ok(change(&mut self.bytes.lock().unwrap()[offset as usize..][..length]))
    }
    fn flush(&self) -> Result<(), DiskError> {
        Ok(())
    }
    fn zero(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        self.bytes.lock().unwrap()[offset as usize..][..length as usize].fill(0);
        Ok(())
    }
    fn prefetch(&self, _offset: u64, _length: u64) -> Result<(), DiskError> {
        Ok(())
    }
    fn extents(&self, _offset: u64, length: u64, _limit: usize) -> Result<Vec<Extent>, DiskError> {
        Ok(vec![Extent { length, mapped: true }])
    }
}

pub struct Open(Arc<Target>);

impl Doors for Open {
    fn admit(&self, target: Option<&str>, _visitor: &Visitor) -> Result<Terms, Refused> {
        if target.is_none_or(|target| target == NAME) { Ok(Terms::default()) } else { Err(Refused::NotFound) }
    }
    fn random(&self, out: &mut [u8]) -> Result<(), Refused> {
        out.fill(1);
        Ok(())
    }
}

impl Targets for Open {
    fn names(&self, _visitor: &Visitor) -> Vec<String> {
        (0..1000).map(|number| format!("{NAME}-{number}")).collect()
    }
    fn target(&self, name: &str) -> Option<Arc<Target>> {
        (name == NAME).then(|| self.0.clone())
    }
}

/// A server on a thread of its own, until the test ends.
pub struct Served {
    pub portal: String,
    pub disk: Arc<Slow>,
    pub stop: Option<tokio::sync::oneshot::Sender<()>>,
    pub thread: Option<std::thread::JoinHandle<()>>,
}

impl Served {
    pub fn with(limits: Limits) -> Served {
        let disk = Arc::new(Slow { bytes: Mutex::new(vec![7; SIZE]), gate: Mutex::new(()), arrived: AtomicUsize::new(0) });
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (said, told) = std::sync::mpsc::channel();
        let of_server = disk.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async {
                let target = Arc::new(Target::new(NAME));
                let portals = [PortalConfig { listen: "127.0.0.1:0".parse().unwrap(), advertised: None }];
                let server = Server::bind(&portals, Arc::new(Open(target.clone())), limits).await.unwrap();
                let identity = Identity { serial: "1".into(), number: 1, product: "slow".into() };
                let options = UnitOptions {
                    identity,
                    logical_block_bytes: 512,
                    is_removable: false,
                    ports: server.ports(),
                    reservations: Reservations::default(),
                };
                target.units.write().insert(0, Arc::new(LogicalUnit::new(of_server, options, Box::new(|_| Ok(())))));
                said.send(server.local_addresses().next().unwrap().to_string()).unwrap();
                server.run(async { drop(stopped.await) }).await;
            });
        });
        Served { portal: told.recv().unwrap(), disk, stop: Some(stop), thread: Some(thread) }
    }

    pub fn log_in(&self, number: u32) -> Initiator {
        Initiator::log_in(&self.portal, NAME, "iqn.2026-01.com.example:test", number, 0).unwrap()
    }

    /// Somebody else is served as ever.
    #[track_caller]
    pub fn works(&self) {
        let mut good = self.log_in(0xffff);
        assert_eq!(good.read(4096, 4096).unwrap(), [7; 4096]);
        good.log_out().unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

pub fn limits() -> Limits {
    Limits { farewell: Duration::from_millis(100), ..Limits::default() }
}

/// The CDB of READ (10).
pub fn read_10(block: u32, blocks: u16) -> [u8; 10] {
    let (block, blocks) = (block.to_be_bytes(), blocks.to_be_bytes());
    [0x28, 0, block[0], block[1], block[2], block[3], 0, blocks[0], blocks[1], 0]
}

/// Waits until the other side has closed the connection.
#[track_caller]
pub fn is_closed(stream: &mut TcpStream) {
    let mut rest = [0; 4096];
    let until = Instant::now() + Duration::from_secs(60);
    while matches!(stream.read(&mut rest), Ok(count) if count > 0) {
        assert!(Instant::now() < until, "the connection stays open");
    }
}

/// How many commands an answer allows.
pub fn window(answer: &[u8]) -> u32 {
    word(answer, 32).wrapping_sub(word(answer, 28)).wrapping_add(1)
}

/// The header of a task management function, immediate or not, about the command with this tag.
pub fn management(initiator: &mut Initiator, function: u8, referenced: [u8; 4], is_immediate: bool) -> [u8; HEADER_BYTES] {
    let mut header = initiator.header(&[], 0x80 | function, 0);
    header[0] = 0x02 | u8::from(is_immediate) << 6;
    header[20..24].copy_from_slice(&referenced);
    header
}

pub fn tag(header: &[u8; HEADER_BYTES]) -> [u8; 4] {
    header[16..20].try_into().unwrap()
}

/// Sends a command that the window counts. Returns its header.
pub fn begin(initiator: &mut Initiator, cdb: &[u8], flags: u8, expected: usize, data: &[u8]) -> [u8; HEADER_BYTES] {
    let header = initiator.header(cdb, flags, expected);
    initiator.command_number += 1;
    send(&mut initiator.stream, header, data).unwrap();
    header
}

/// The CDB of WRITE (10).
pub fn write_10(block: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = read_10(block, blocks);
    cdb[0] = 0x2a;
    cdb
}

/// A question whether the target is there. Returns the answer, which must be the next PDU.
#[track_caller]
pub fn ping(initiator: &mut Initiator) -> Vec<u8> {
    let mut header = initiator.header(&[], 0x80, 0);
    header[0] = 0x40;
    header[20..24].fill(0xff);
    send(&mut initiator.stream, header, &[]).unwrap();
    let (answer, _) = receive(&mut initiator.stream).unwrap();
    assert_eq!((answer[0], &answer[16..20]), (0x20, &header[16..20]));
    answer.to_vec()
}

/// Sends data that were asked for.
pub fn send_asked_for(initiator: &mut Initiator, request: &[u8], byte: u8) {
    let (mut at, end) = (word(request, 40), word(request, 40) + word(request, 44));
    let mut number = 0u32;
    while at < end {
        let length = (end - at).min(64 << 10);
        let mut header = [0; HEADER_BYTES];
        (header[0], header[1]) = (0x05, u8::from(at + length == end) << 7);
        header[8..24].copy_from_slice(&request[8..24]);
        header[36..40].copy_from_slice(&number.to_be_bytes());
        header[40..44].copy_from_slice(&at.to_be_bytes());
        send(&mut initiator.stream, header, &vec![byte; length as usize]).unwrap();
        (at, number) = (at + length, number + 1);
    }
}

/// Blocks of half the disk: a quarter of what a session may have in memory.
pub const HALF: u16 = (SIZE / 2 / 512) as u16;

/// Begins writes that take all the memory of a session, and sends no data. Returns their headers; what they were asked
/// for is received.
pub fn take_all_memory(initiator: &mut Initiator) -> Vec<[u8; HEADER_BYTES]> {
    (0..4)
        .map(|_| {
            let header = begin(initiator, &write_10(0, HALF), 0xa1, SIZE / 2, &[]);
            assert_eq!(receive(&mut initiator.stream).unwrap().0[0], 0x31, "there is room");
            header
        })
        .collect()
}
