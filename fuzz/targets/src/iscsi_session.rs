//! A whole session: after a login come any PDUs, mixed with reads and writes of a well-behaved initiator. Whatever the
//! others are, the session goes on or ends, numbers of its answers are in order, what was acknowledged is read again,
//! and nothing else is written where only the well-behaved one writes.

use crate::memory_disk::Memory;
use onefold_iscsi::login::{Doors, Refused, Terms, Visitor};
use onefold_iscsi::scsi::{Identity, LogicalUnit, UnitOptions};
use onefold_iscsi::{Limits, Server, Target, Targets};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

const BLOCK: usize = 512;
/// Bytes of both disks: so few that no number of commands fills the memory of a session.
const DISK_BYTES: usize = 64 << 10;
/// The LUN that only the well-behaved initiator uses, and a bit that all tags of its commands have, and no others.
const OWN_LUN: u8 = 1;
const OWN_TAG: u32 = 0x4000_0000;
const NO_TAG: u32 = u32::MAX;
const QUEUE_DEPTH: u32 = 64;
/// After so long something hangs.
const PATIENCE: Duration = Duration::from_secs(60);

type Header = [u8; 48];
type Pdu = (Header, Vec<u8>);

/// The targets of all that run at the time.
#[derive(Default)]
struct Open(Mutex<HashMap<String, Arc<Target>>>);

impl Doors for &'static Open {
    fn admit(&self, _target: Option<&str>, _visitor: &Visitor) -> Result<Terms, Refused> {
        Ok(Terms::default())
    }
    fn random(&self, out: &mut [u8]) -> Result<(), Refused> {
        out.fill(7);
        Ok(())
    }
}

impl Targets for &'static Open {
    fn names(&self, _visitor: &Visitor) -> Vec<String> {
        self.0.lock().keys().cloned().collect()
    }
    fn target(&self, name: &str) -> Option<Arc<Target>> {
        self.0.lock().get(name).cloned()
    }
}

fn word(header: &Header, at: usize) -> u32 {
    u32::from_be_bytes(header[at..at + 4].try_into().expect("4 bytes"))
}

fn put(header: &mut Header, at: usize, value: u32) {
    header[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// The next bytes of the input.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn bytes(&mut self, count: usize) -> &[u8] {
        let (bytes, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// Receives all PDUs, so that the target is never kept from sending, and checks their numbers.
async fn listen(mut input: ReadHalf<DuplexStream>, first_status: u32, pdus: tokio::sync::mpsc::UnboundedSender<Pdu>) {
    let (mut status, mut last_command) = (first_status, None);
    while let Some((header, data)) = receive(&mut input).await {
        // Data-In without status has none; R2T and the target's own questions show the next one.
        let shows_none = header[0] == 0x25 && header[1] & 1 == 0;
        let takes_none = header[0] == 0x31 || (header[0] == 0x20 && word(&header, 16) == NO_TAG);
        if !shows_none {
            assert_eq!(word(&header, 24), status, "StatSN of a PDU of type {:02x}", header[0]);
            status = status.wrapping_add(u32::from(!takes_none));
        }
        let (expected, most) = (word(&header, 28), word(&header, 32));
        assert!(most.wrapping_sub(expected).wrapping_add(1) <= QUEUE_DEPTH, "the window is too wide");
        let before = last_command.replace(most).unwrap_or(most);
        assert!(most.wrapping_sub(before) < 1 << 31, "MaxCmdSN goes back");
        if pdus.send((header, data)).is_err() {
            return;
        }
    }
}

async fn receive(input: &mut ReadHalf<DuplexStream>) -> Option<Pdu> {
    let mut header = [0; 48];
    input.read_exact(&mut header).await.ok()?;
    assert_eq!(header[4], 0, "a target sends no additional headers");
    let length = (word(&header, 4) & 0x00ff_ffff) as usize;
    assert!(length <= 256 << 10);
    let mut data = vec![0; length.next_multiple_of(4)];
    input.read_exact(&mut data).await.ok()?;
    data.truncate(length);
    Some((header, data))
}

/// Both initiators in one.
struct Initiator {
    output: WriteHalf<DuplexStream>,
    pdus: UnboundedReceiver<Pdu>,
    /// ExpCmdSN as last told.
    command: u32,
    next_tag: u32,
    /// The latest request for data of the one that is not well-behaved.
    request: Option<Header>,
    disk: Vec<u8>,
}

/// The session has ended.
struct Over;

impl Initiator {
    async fn send(&mut self, mut header: Header, data: &[u8]) -> Result<(), Over> {
        header[4] = 0;
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        let mut pdu = [&header[..], data].concat();
        pdu.resize(pdu.len().next_multiple_of(4), 0);
        timeout(PATIENCE, self.output.write_all(&pdu)).await.expect("the target takes no PDU").map_err(|_| Over)
    }

    /// The next PDU of a task.
    async fn next_of(&mut self, tag: u32) -> Result<Pdu, Over> {
        loop {
            let pdu = timeout(PATIENCE, self.pdus.recv()).await.expect("a command is not answered").ok_or(Over)?;
            self.command = word(&pdu.0, 28);
            // A Reject has the header of what is rejected.
            let of =
                if pdu.0[0] == 0x3f { pdu.1.get(16..20).map(|tag| u32::from_be_bytes(tag.try_into().expect("4 bytes"))) } else { None };
            if of.unwrap_or(word(&pdu.0, 16)) == tag {
                return Ok(pdu);
            }
            if pdu.0[0] == 0x31 {
                self.request = Some(pdu.0);
            }
        }
    }

    /// A command of the well-behaved initiator. Returns its data, if it was done.
    async fn command(&mut self, cdb: [u8; 10], expected: usize, data: &[u8], immediate: usize) -> Result<Option<Vec<u8>>, Over> {
        self.next_tag += 1;
        let tag = OWN_TAG | self.next_tag;
        let mut header = [0; 48];
        // Delivered at once, so that nobody else's numbers matter.
        (header[0], header[1], header[9]) = (0x41, 0x81 | if data.is_empty() { 0x40 } else { 0x20 }, OWN_LUN);
        put(&mut header, 16, tag);
        put(&mut header, 20, expected as u32);
        put(&mut header, 24, self.command);
        header[32..42].copy_from_slice(&cdb);
        self.send(header, &data[..immediate]).await?;
        let mut back = Vec::new();
        loop {
            let (answer, part) = self.next_of(tag).await?;
            match answer[0] {
                0x25 => {
                    assert_eq!(word(&answer, 40) as usize, back.len(), "data are in order");
                    back.extend_from_slice(&part);
                    if answer[1] & 1 != 0 {
                        assert_eq!(answer[3], 0);
                        return Ok(Some(back));
                    }
                }
                0x31 => self.send_asked_for(&answer, data).await?,
                0x21 => return Ok((answer[3] == 0).then_some(back)),
                0x3f => return Ok(None),
                other => panic!("a command is answered by a PDU of type {other:02x}"),
            }
        }
    }

    async fn send_asked_for(&mut self, request: &Header, data: &[u8]) -> Result<(), Over> {
        let (from, length) = (word(request, 40) as usize, word(request, 44) as usize);
        let mut header = [0; 48];
        (header[0], header[1]) = (0x05, 0x80);
        header[8..24].copy_from_slice(&request[8..24]);
        put(&mut header, 40, from as u32);
        self.send(header, &data[from..from + length]).await
    }

    async fn write(&mut self, input: &mut Input<'_>) -> Result<(), Over> {
        let (Some(at), Some(count), Some(byte), Some(way)) = (input.byte(), input.byte(), input.byte(), input.byte()) else {
            return Err(Over);
        };
        let (at, count) = (at % 96, count % 32 + 1);
        let data: Vec<u8> = (0..usize::from(count) * BLOCK).map(|place| byte.wrapping_add(place as u8)).collect();
        let immediate = [0, BLOCK, data.len(), data.len() / 2][usize::from(way % 4)];
        let done = self.command([0x2a, 0, 0, 0, 0, at, 0, 0, count, 0], data.len(), &data, immediate).await?;
        if done.is_some() {
            self.disk[usize::from(at) * BLOCK..][..data.len()].copy_from_slice(&data);
        }
        Ok(())
    }

    async fn read(&mut self, input: &mut Input<'_>) -> Result<(), Over> {
        let (Some(at), Some(count)) = (input.byte(), input.byte()) else { return Err(Over) };
        let (at, count) = (at % 96, count % 32 + 1);
        let length = usize::from(count) * BLOCK;
        if let Some(found) = self.command([0x28, 0, 0, 0, 0, at, 0, 0, count, 0], length, &[], 0).await? {
            assert!(found == self.disk[usize::from(at) * BLOCK..][..length], "block {at}: what was acknowledged is not what is read");
        }
        Ok(())
    }

    /// Sends a PDU as the input has it, but for what would be about the well-behaved initiator's commands or its disk.
    async fn anything(&mut self, input: &mut Input<'_>) -> Result<(), Over> {
        let (Some(length), Some(ahead)) = (input.byte(), input.byte()) else { return Err(Over) };
        let mut header = [0; 48];
        let bytes = input.bytes(48);
        header[..bytes.len()].copy_from_slice(bytes);
        let data = input.bytes(usize::from(length) * 4).to_vec();
        if header[9] == OWN_LUN || header[8] & 0x40 != 0 {
            header[8..16].fill(0);
        }
        for at in [16, 20] {
            if word(&header, at) != NO_TAG {
                header[at] &= !(OWN_TAG >> 24) as u8;
            }
        }
        put(&mut header, 24, self.command.wrapping_add(u32::from(ahead % 4)));
        match header[0] & 0x3f {
            // Copies write where they are told to.
            0x01 if header[32] == 0x83 => header[32] = 0,
            // Resets of the target are about all commands.
            0x02 => header[1] = 0x80 | ((header[1] & 0x7f) % 6),
            _ => {}
        }
        self.send(header, &data).await
    }

    /// Sends some of the data that the one who is not well-behaved was asked for last.
    async fn answer(&mut self, input: &mut Input<'_>) -> Result<(), Over> {
        let (Some(flags), Some(number)) = (input.byte(), input.byte()) else { return Err(Over) };
        let Some(request) = self.request else { return Ok(()) };
        let mut header = [0; 48];
        (header[0], header[1]) = (0x05, flags & 0x80);
        header[8..24].copy_from_slice(&request[8..24]);
        put(&mut header, 36, u32::from(number & 3));
        put(&mut header, 40, word(&request, 40) + u32::from(number >> 2) * 4);
        let length = if flags & 1 == 0 { word(&request, 44).min(64 << 10) } else { u32::from(flags) };
        self.send(header, &vec![number; length as usize]).await
    }

    async fn act(&mut self, input: &mut Input<'_>) -> Result<(), Over> {
        while let Some(what) = input.byte() {
            match what % 5 {
                0 => self.write(input).await?,
                1 => self.read(input).await?,
                2 => self.answer(input).await?,
                _ => self.anything(input).await?,
            }
        }
        Ok(())
    }
}

fn unit(number: u64) -> (Arc<Memory>, Arc<LogicalUnit>) {
    let disk = Arc::new(Memory::new(vec![0; DISK_BYTES], 4096, false));
    let identity = Identity { serial: number.to_string(), number, product: "fuzz".into() };
    let options = UnitOptions {
        identity,
        logical_block_bytes: BLOCK as u32,
        is_removable: number == 1,
        ports: vec![1],
        reservations: Default::default(),
    };
    (disk.clone(), Arc::new(LogicalUnit::new(disk, options, Box::new(|_| Ok(())))))
}

/// What is there for all runs: threads that would come and go with each take time, and one that is just ending looks to
/// libFuzzer as if it lost its memory.
struct Place {
    runtime: Runtime,
    targets: &'static Open,
    server: Server,
    runs: AtomicU64,
}

fn place() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    static TARGETS: OnceLock<Open> = OnceLock::new();
    PLACE.get_or_init(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).thread_keep_alive(Duration::MAX).enable_all().build().expect("threads");
        let targets = TARGETS.get_or_init(Open::default);
        let limits = Limits { queue_depth: QUEUE_DEPTH, ..Limits::default() };
        let server = runtime.block_on(Server::bind(&[], Arc::new(targets), limits)).expect("there is nothing to listen on");
        Place { runtime, targets, server, runs: AtomicU64::new(0) }
    })
}

/// The first byte says what is agreed on at the login. Then come steps: a byte that chooses, and what the step takes.
pub fn run(data: &[u8]) {
    let Some((choices, rest)) = data.split_first() else { return };
    place().runtime.block_on(session(place(), *choices, Input(rest)));
}

async fn session(place: &'static Place, choices: u8, mut input: Input<'_>) {
    let name = format!("iqn.2026-01.example:{}", place.runs.fetch_add(1, Ordering::Relaxed));
    let target = Arc::new(Target::new(name.as_str()));
    let ((_, others), (disk, own)) = (unit(1), unit(2));
    target.units.write().extend([(0, others.clone()), (OWN_LUN.into(), own)]);
    place.targets.0.lock().insert(name.clone(), target);
    let (ours, theirs) = duplex(64 << 10);
    let serving = tokio::spawn(async move {
        // How it ends is as the input says.
        let _ = place.server.serve_connection(theirs).await;
    });
    let (mut replies, output) = split(ours);
    let yes = |bit: u8| if choices & bit == 0 { "Yes" } else { "No" };
    let text = format!(
        "InitiatorName=iqn.i\0TargetName={name}\0InitialR2T={}\0ImmediateData=Yes\0MaxBurstLength={}\0MaxOutstandingR2T={}\0MaxRecvDataSegmentLength={}\0",
        yes(1),
        if choices & 2 == 0 { 65_536 } else { 4096 },
        1 + (choices >> 2 & 3),
        if choices & 16 == 0 { 65_536 } else { 1024 },
    );
    let (pdus, received) = unbounded_channel();
    let mut initiator = Initiator { output, pdus: received, command: 1, next_tag: 0, request: None, disk: vec![0; DISK_BYTES] };
    let mut login = [0; 48];
    (login[0], login[1]) = (0x43, 0x87);
    put(&mut login, 24, 1);
    assert!(initiator.send(login, text.as_bytes()).await.is_ok());
    let (answer, _) = receive(&mut replies).await.expect("the login is answered");
    assert_eq!((answer[0], answer[36], answer[37]), (0x23, 0, 0));
    let listening = tokio::spawn(listen(replies, word(&answer, 24).wrapping_add(1), pdus));
    let _ = initiator.act(&mut input).await;
    let Initiator { mut output, disk: expected, pdus, .. } = initiator;
    let _ = output.shutdown().await;
    drop(pdus);
    timeout(PATIENCE, serving).await.expect("the session does not end").expect("the session does not panic");
    drop(output);
    if let Err(error) = listening.await
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
    place.targets.0.lock().remove(&name);
    others.stop();
    assert!(*disk.bytes.lock() == expected, "what is on the disk is not what was acknowledged");
}
