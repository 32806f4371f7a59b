//! INQUIRY: what the unit is and what it supports (SPC-4 sections 6.4 and 7.8, SBC-3 section 6.6).

use super::sense::Sense;
use super::{Geometry, provisioning, third_party};

/// The identity of a unit. It never changes, so that initiators recognise the unit over all paths and after restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Serial number: printable ASCII, at most 36 bytes.
    pub serial: String,
    /// A 60-bit number that no other unit has: the NAA designator, locally assigned.
    pub number: u64,
    /// The product name: printable ASCII, of which 16 bytes are shown.
    pub product: String,
}

impl Identity {
    /// The NAA designator.
    pub fn naa(&self) -> [u8; 8] {
        (3 << 60 | (self.number & (u64::MAX >> 4))).to_be_bytes()
    }
}

/// The target port at which a command arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The target's iSCSI name.
    pub target: String,
    /// The portal group, which is also the relative port identifier (1 to 65,535).
    pub group: u16,
}

const VENDOR: &[u8; 8] = b"ONEFOLD ";
const REVISION: &[u8; 4] = b"0001";
/// SAM-5, SPC-4, SBC-3, iSCSI, without version (SPC-4 table 151).
const STANDARDS: [u16; 4] = [0x00a0, 0x0460, 0x04c0, 0x0960];
/// The most unmap descriptors in one command.
pub const MAX_UNMAP_DESCRIPTORS: u32 = 256;
/// The most blocks of one COMPARE AND WRITE.
pub const MAX_COMPARE_BLOCKS: u8 = 255;

/// Peripheral qualifier and type of a unit that does not exist.
pub const NO_UNIT: u8 = 0x7f;

/// Standard INQUIRY data (SPC-4 table 142).
pub fn standard(identity: &Identity, is_removable: bool) -> Vec<u8> {
    let mut data = vec![0; 96];
    data[1] = u8::from(is_removable) << 7;
    // SPC-4; hierarchical LUNs, response format 2.
    (data[2], data[3], data[4]) = (0x06, 0x12, 96 - 5);
    // Implicit ALUA, third-party copy; several ports; command queueing.
    (data[5], data[6], data[7]) = (0x18, 0x10, 0x02);
    data[8..16].copy_from_slice(VENDOR);
    data[16..32].copy_from_slice(&padded::<16>(&identity.product));
    data[32..36].copy_from_slice(REVISION);
    for (place, standard) in data[58..].chunks_exact_mut(2).zip(STANDARDS) {
        place.copy_from_slice(&standard.to_be_bytes());
    }
    data
}

/// A page of vital product data.
pub fn page(number: u8, identity: &Identity, port: &Port, geometry: &Geometry, has_threshold: bool) -> Result<Vec<u8>, Sense> {
    let body = match number {
        0x00 => PAGES.to_vec(),
        0x80 => padded_serial(identity),
        0x83 => identification(identity, port),
        0x86 => extended(),
        0x87 => vec![0x3f, 0xff, 0, 0],
        0x8f => third_party::page(geometry),
        0xb0 => block_limits(geometry),
        // Does not rotate. Blocks erased by SANITIZE can be read.
        0xb1 => [&[0, 1, 0, 0x40][..], &[0; 56]].concat(),
        0xb2 => provisioning::page(geometry, has_threshold),
        _ => return Err(Sense::invalid_field(2, None)),
    };
    let mut page = vec![0, number];
    page.extend_from_slice(&(body.len() as u16).to_be_bytes());
    page.extend_from_slice(&body);
    Ok(page)
}

const PAGES: [u8; 9] = [0x00, 0x80, 0x83, 0x86, 0x87, 0x8f, 0xb0, 0xb1, 0xb2];

fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut out = [b' '; N];
    for (place, byte) in out.iter_mut().zip(text.bytes()) {
        *place = if byte.is_ascii_graphic() { byte } else { b' ' };
    }
    out
}

fn padded_serial(identity: &Identity) -> Vec<u8> {
    let length = identity.serial.len().min(36);
    padded::<36>(&identity.serial)[..length].to_vec()
}

/// Device identification (SPC-4 section 7.8.6): the unit by NAA and by T10 vendor; the port by number, group and name.
fn identification(identity: &Identity, port: &Port) -> Vec<u8> {
    let mut out = Vec::new();
    let mut add = |head: [u8; 2], body: &[u8]| {
        out.extend_from_slice(&[head[0], head[1], 0, body.len() as u8]);
        out.extend_from_slice(body);
    };
    add([0x01, 0x03], &identity.naa());
    add([0x02, 0x01], &[VENDOR.as_slice(), &padded_serial(identity)].concat());
    let group = port.group.to_be_bytes();
    // Protocol 5 (iSCSI), of the target port.
    add([0x51, 0x94], &[0, 0, group[0], group[1]]);
    add([0x51, 0x95], &[0, 0, group[0], group[1]]);
    add([0x53, 0x98], &name_string(&format!("{},t,0x{:04x}", port.target, port.group)));
    // Of the target device.
    add([0x53, 0xa8], &name_string(&port.target));
    out
}

/// Returns a name in UTF-8 with at least one zero after it, in whole words.
fn name_string(name: &str) -> Vec<u8> {
    let mut out = name.as_bytes()[..name.len().min(247)].to_vec();
    out.resize(out.len() / 4 * 4 + 4, 0);
    out
}

/// Extended INQUIRY data (SPC-4 section 7.8.7).
fn extended() -> Vec<u8> {
    let mut out = vec![0; 60];
    // Head-of-queue, ordered and simple tasks. A volatile cache that NV does not describe. Resets clear unit attentions
    // of one unit only.
    (out[1], out[2], out[3]) = (0x07, 0x01, 0x01);
    out
}

/// Block limits (SBC-3 section 6.6.4).
fn block_limits(geometry: &Geometry) -> Vec<u8> {
    let mut out = vec![0; 60];
    let granularity = geometry.mapped_block_blocks();
    // A WRITE SAME must give the number of blocks.
    out[0] = 1;
    out[1] = MAX_COMPARE_BLOCKS;
    out[2..4].copy_from_slice(&(granularity.min(u32::from(u16::MAX)) as u16).to_be_bytes());
    out[4..8].copy_from_slice(&geometry.max_transfer_blocks().to_be_bytes());
    out[8..12].copy_from_slice(&geometry.max_transfer_blocks().min(granularity.max(1) * 4).to_be_bytes());
    out[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
    out[20..24].copy_from_slice(&MAX_UNMAP_DESCRIPTORS.to_be_bytes());
    out[24..28].copy_from_slice(&granularity.to_be_bytes());
    // Granules start at block 0.
    out[28..32].copy_from_slice(&(1u32 << 31).to_be_bytes());
    out[32..40].copy_from_slice(&geometry.max_write_same_blocks().to_be_bytes());
    // An atomic write lies within one mapped block, so it is a single change of its mapping.
    out[40..44].copy_from_slice(&granularity.to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> (Identity, Port, Geometry) {
        let identity = Identity { serial: "0123456789ab".into(), number: 0xfff_1234_5678_9abc, product: "disk one\u{7}".into() };
        (identity, Port { target: "iqn.2026-01.example:t".into(), group: 1 }, Geometry { size: 1 << 40, logical: 512, mapped: 256 << 10 })
    }

    #[test]
    fn pages_are_listed_in_order_and_say_their_length() {
        let (identity, port, geometry) = all();
        let list = page(0, &identity, &port, &geometry, false).unwrap();
        assert!(list[4..].is_sorted_by(|one, next| one < next));
        for number in &list[4..] {
            let page = page(*number, &identity, &port, &geometry, false).unwrap();
            assert_eq!(page[1], *number);
            assert_eq!(usize::from(u16::from_be_bytes([page[2], page[3]])), page.len() - 4);
        }
        assert!(page(0x99, &identity, &port, &geometry, false).is_err());
    }

    #[test]
    fn a_unit_says_who_it_is() {
        let (identity, port, geometry) = all();
        let standard = standard(&identity, false);
        assert_eq!(&standard[8..36], b"ONEFOLD disk one        0001");
        let page = page(0x83, &identity, &port, &geometry, false).unwrap();
        assert_eq!(page[4..16], [0x01, 0x03, 0, 8, 0x3f, 0xff, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc]);
        let name = b"iqn.2026-01.example:t,t,0x0001\0\0";
        assert!(page.windows(name.len()).any(|window| window == name));
    }

    #[test]
    fn limits_are_in_blocks() {
        let (_, _, geometry) = all();
        let limits = block_limits(&geometry);
        assert_eq!(limits[24..28], 512u32.to_be_bytes());
        let of_4096 = block_limits(&Geometry { logical: 4096, ..geometry });
        assert_eq!(of_4096[24..28], 64u32.to_be_bytes());
    }
}
