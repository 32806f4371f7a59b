//! A target with one disk in memory, to try suites on the protocol alone: `cargo run --example memory --
//! 127.0.0.1:3260`.

use onefold_iscsi::login::{Doors, Refused, Terms, Visitor};
use onefold_iscsi::scsi::reservation::Reservations;
use onefold_iscsi::scsi::{Disk, DiskError, Extent, Identity, LogicalUnit, UnitOptions};
use onefold_iscsi::{Limits, PortalConfig, Server, Target, Targets};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

const BLOCK: usize = 256 << 10;
const SIZE: u64 = 1 << 30;
/// To make zeros of so many bytes takes as long as on a disk.
const SLOW_BYTES: u64 = 64 << 20;
const NAME: &str = "iqn.2026-01.onefold:memory";

#[derive(Default)]
struct Memory(Mutex<BTreeMap<u64, Vec<u8>>>, bool);

impl Memory {
    fn read_only() -> Memory {
        Memory(Mutex::default(), true)
    }

    fn each(offset: u64, length: usize, visit: &mut dyn FnMut(u64, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < length {
            let at = offset + done as u64;
            let within = (at % BLOCK as u64) as usize;
            let count = (BLOCK - within).min(length - done);
            visit(at / BLOCK as u64, within, done..done + count);
            done += count;
        }
    }
}

impl Disk for Memory {
    fn size(&self) -> u64 {
        SIZE
    }
    fn read_only(&self) -> bool {
        self.1
    }
    fn block_bytes(&self) -> u32 {
        BLOCK as u32
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DiskError> {
        let blocks = self.0.lock();
        let length = out.len();
        Memory::each(offset, length, &mut |block, within, range| match blocks.get(&block) {
            Some(bytes) => out[range.clone()].copy_from_slice(&bytes[within..within + range.len()]),
            None => out[range].fill(0),
        });
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8], _fua: bool) -> Result<(), DiskError> {
        let mut blocks = self.0.lock();
        Memory::each(offset, data.len(), &mut |block, within, range| {
            let bytes = blocks.entry(block).or_insert_with(|| vec![0; BLOCK]);
            bytes[within..within + range.len()].copy_from_slice(&data[range]);
        });
        Ok(())
    }
    fn update(&self, offset: u64, length: usize, fua: bool, change: &mut dyn FnMut(&mut [u8]) -> bool) -> Result<bool, DiskError> {
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock();
        let mut bytes = vec![0; length];
        self.read(offset, &mut bytes)?;
        let wanted = change(&mut bytes);
        if wanted {
            self.write(offset, &bytes, fua)?;
        }
        Ok(wanted)
    }
    fn flush(&self) -> Result<(), DiskError> {
        Ok(())
    }
    fn zero(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        if length >= SLOW_BYTES {
            // Suites want to see a SANITIZE under way, which erases so much at a time.
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
        let mut blocks = self.0.lock();
        let (first, end) = (offset, offset + length);
        let own: Vec<u64> = blocks.range(first / BLOCK as u64..end.div_ceil(BLOCK as u64)).map(|(block, _)| *block).collect();
        for block in own {
            let (start, stop) = (block * BLOCK as u64, (block + 1) * BLOCK as u64);
            if start >= first && stop <= end {
                blocks.remove(&block);
            } else if let Some(bytes) = blocks.get_mut(&block) {
                bytes[(first.max(start) - start) as usize..(end.min(stop) - start) as usize].fill(0);
            }
        }
        Ok(())
    }
    fn prefetch(&self, _offset: u64, _length: u64) -> Result<(), DiskError> {
        Ok(())
    }
    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DiskError> {
        let blocks = self.0.lock();
        let mut out: Vec<Extent> = Vec::new();
        let mut at = offset;
        while at < offset + length {
            let end = ((at / BLOCK as u64 + 1) * BLOCK as u64).min(offset + length);
            let mapped = blocks.contains_key(&(at / BLOCK as u64));
            let count = out.len();
            match out.last_mut() {
                Some(last) if last.mapped == mapped => last.length += end - at,
                _ if count == limit => break,
                _ => out.push(Extent { length: end - at, mapped }),
            }
            at = end;
        }
        Ok(out)
    }
}

struct One(Arc<Target>);

impl Doors for One {
    fn admit(&self, target: Option<&str>, _visitor: &Visitor) -> Result<Terms, Refused> {
        if target.is_none_or(|target| target == NAME) { Ok(Terms::default()) } else { Err(Refused::NotFound) }
    }
    fn random(&self, out: &mut [u8]) -> Result<(), Refused> {
        out.fill(4);
        Ok(())
    }
}

impl Targets for One {
    fn names(&self, _visitor: &Visitor) -> Vec<String> {
        vec![NAME.to_owned()]
    }
    fn target(&self, name: &str) -> Option<Arc<Target>> {
        (name == NAME).then(|| self.0.clone())
    }
}

#[tokio::main]
async fn main() {
    let portals: Vec<PortalConfig> =
        std::env::args().skip(1).map(|address| PortalConfig { listen: address.parse().expect("an address"), advertised: None }).collect();
    // Suites sleep for a minute without looking at what comes.
    let limits = Limits { idle: std::time::Duration::from_secs(120), ..Limits::default() };
    let target = Arc::new(Target::new(NAME));
    let server = Server::bind(&portals, Arc::new(One(target.clone())), limits).await.expect("to listen");
    let identity = Identity { serial: "0000000000000001".into(), number: 1, product: "memory".into() };
    let options = UnitOptions {
        identity,
        logical_block_bytes: 512,
        is_removable: false,
        ports: server.ports(),
        reservations: Reservations::default(),
    };
    let unit = LogicalUnit::new(Arc::new(Memory::default()), options.clone(), Box::new(|_| Ok(())));
    target.units.write().insert(0, Arc::new(unit));
    // Commands that are for disks that never change; and long blocks.
    let identity = |number: u64| Identity { serial: format!("{number:016}"), number, product: "memory".into() };
    let options = |number| UnitOptions { identity: identity(number), ..options.clone() };
    let unit = LogicalUnit::new(Arc::new(Memory::read_only()), options(2), Box::new(|_| Ok(())));
    target.units.write().insert(1, Arc::new(unit));
    let long = UnitOptions { logical_block_bytes: 4096, ..options(3) };
    let unit = LogicalUnit::new(Arc::new(Memory::default()), long, Box::new(|_| Ok(())));
    target.units.write().insert(2, Arc::new(unit));
    for address in server.local_addresses() {
        println!("iscsi://{address}/{NAME}/0, /1, which is read-only, and /2, which has blocks of 4096 bytes");
    }
    server.run(std::future::pending()).await;
}
