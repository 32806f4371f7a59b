//! SCSI commands: whatever CDBs and parameter lists come, a unit answers, only what may change the disk does, and the
//! disk keeps its size.

use crate::memory_disk::Memory;
use onefold_iscsi::scsi::opcodes::{Access, Definition};
use onefold_iscsi::scsi::{
    Buffers, Caller, Disk, Identity, LogicalUnit, MAX_TRANSFER_BYTES, Nexus, Patience, Peers, Port, Status, Tokens, UnitOptions,
};
use std::sync::Arc;

const DISK_BYTES: usize = 128 << 10;

/// Nobody else is there, and nobody has patience.
#[derive(Debug)]
struct Alone;

impl Patience for Alone {
    fn begin_to_wait(&self) {}
    fn is_over(&self) -> bool {
        true
    }
}

impl Peers for Alone {
    fn unit(&self, _number: u64) -> Option<Arc<LogicalUnit>> {
        None
    }
    fn abort(&self, _number: u64, _nexuses: &[Nexus], _is_over: &dyn Fn() -> bool) {}
}

/// The first byte says how long blocks are, whether the disk may change and whether it can be taken out. Then come
/// commands: a byte that says who sends it, the length of its CDB, the length of its data (two bytes, little-endian),
/// the CDB, the data.
pub fn run(data: &[u8]) {
    let Some((choices, mut rest)) = data.split_first() else { return };
    let disk = Arc::new(Memory::new(vec![1; DISK_BYTES], 64 << 10, choices & 2 != 0));
    let identity = Identity { serial: "1".into(), number: 1, product: "fuzz".into() };
    let logical_block_bytes = if choices & 1 == 0 { 512 } else { 4096 };
    let options =
        UnitOptions { identity, logical_block_bytes, is_removable: choices & 4 != 0, ports: vec![1], reservations: Default::default() };
    let unit = LogicalUnit::new(disk.clone(), options, Box::new(|_| Ok(())));
    let (tokens, buffers) = (Tokens::default(), Buffers::default());
    let port = Port { target: "iqn.2026-01.example:t".into(), group: 1 };
    while let Some((&[who, cdb_bytes, low, high], behind)) = rest.split_first_chunk::<4>() {
        let (cdb, behind) = behind.split_at(usize::from(cdb_bytes % 33).min(behind.len()));
        let (list, behind) = behind.split_at(usize::from(u16::from_le_bytes([low, high])).min(behind.len()));
        rest = behind;
        let nexus = Nexus { initiator: format!("iqn.2026-01.example:{},i,0x000000000001", who % 3), target_port: 1 };
        let wanted = unit.data_out_bytes(cdb);
        assert!(wanted <= 2 * MAX_TRANSFER_BYTES as usize);
        let before = disk.bytes.lock().clone();
        let caller = Caller { nexus: &nexus, port: &port, luns: &[0], patience: &Alone, peers: &Alone, tokens: &tokens, buffers: &buffers };
        let list = &list[..list.len().min(wanted)];
        let reply = unit.execute(caller, cdb, list, list.len() as u32);
        assert_eq!(reply.status == Status::CheckCondition, !reply.sense.is_empty());
        assert!(reply.status == Status::Good || reply.data.is_empty());
        let may_change = Definition::of(cdb).is_ok_and(|definition| definition.access == Access::Write);
        // An erasure goes on behind its command.
        let is_erased = Definition::of(cdb).is_ok_and(|definition| definition.opcode == 0x48);
        if is_erased && reply.sense.is_empty() {
            return;
        }
        assert!((may_change && !disk.read_only()) || *disk.bytes.lock() == before, "{cdb:02x?} changed the disk");
    }
}
