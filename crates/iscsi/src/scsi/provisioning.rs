//! Thin provisioning: the free space of the store below, and the warning when little is left (SBC-3 sections 4.7.3,
//! 6.4.4, 6.5.9 and 6.6.7).
//!
//! There is one soft threshold. The store sets it; initiators cannot. When the free space falls below it, all
//! initiators of a unit that is being written get a unit attention, once. If there is more space again, the next fall
//! warns them again. Space is counted in *threshold sets* of 1 MiB. It is the space of all disks of the store together.

use super::sense::Sense;
use super::{Disk, Geometry, Space};
use std::time::{Duration, Instant};

/// Bytes of a threshold set.
const SET_BYTES: u64 = 1 << 20;
/// How often to ask the disk.
const INTERVAL: Duration = Duration::from_secs(1);

/// What a unit knows about its space.
#[derive(Debug, Default)]
pub(super) struct Watched {
    asked: Option<Instant>,
    is_low: bool,
}

impl Watched {
    /// Returns whether to ask the disk again, and notes that it is asked now.
    pub(super) fn is_due(&mut self) -> bool {
        let is_due = self.asked.is_none_or(|asked| asked.elapsed() >= INTERVAL);
        if is_due {
            self.asked = Some(Instant::now());
        }
        is_due
    }

    /// Notes the free space. Returns whether initiators must be told.
    pub(super) fn note(&mut self, space: Space) -> bool {
        let was_low = std::mem::replace(&mut self.is_low, space.available_bytes < space.low_bytes);
        self.is_low && !was_low
    }
}

fn sets(bytes: u64) -> u32 {
    u32::try_from(bytes / SET_BYTES).unwrap_or(u32::MAX)
}

/// The logical block provisioning page: thin. UNMAP, WRITE SAME 16 and 10 unmap, and unmapped blocks read as zeros.
pub(super) fn page(geometry: &Geometry, has_threshold: bool) -> Vec<u8> {
    let exponent = (SET_BYTES / u64::from(geometry.logical)).ilog2() as u8;
    vec![if has_threshold { exponent } else { 0 }, 0xe4, 2, 0]
}

/// Body of the logical block provisioning mode page, with the threshold.
pub(super) fn mode_page(low_bytes: u64) -> Vec<u8> {
    let mut out = vec![0; 12];
    // Enabled, a soft threshold, armed for decreasing, of the available space.
    out.extend_from_slice(&[0x81, 0x01, 0, 0]);
    out.extend_from_slice(&sets(low_bytes).to_be_bytes());
    out
}

/// LOG SENSE: the list of pages, and the logical block provisioning page.
pub(super) fn log_sense(cdb: &[u8], disk: &dyn Disk) -> Result<Vec<u8>, Sense> {
    if cdb[1] & 1 != 0 {
        // Nothing can be saved.
        return Err(Sense::invalid_field(1, Some(0)));
    }
    let space = disk.space();
    let pages: &[u8] = if space.is_some() { &[0x00, 0x0c] } else { &[0x00] };
    match (cdb[2] & 0x3f, cdb[3], space) {
        (0x00, 0x00, _) => Ok([&[0x00, 0, 0, pages.len() as u8], pages].concat()),
        (0x00, 0xff, _) => {
            let all: Vec<u8> = pages.iter().flat_map(|page| [*page, 0x00]).chain([0x00, 0xff]).collect();
            Ok([&[0x40, 0xff, 0, all.len() as u8][..], &all].concat())
        }
        (0x0c, 0x00, Some(space)) => {
            let mut out = vec![0x0c, 0, 0, 24];
            for (code, bytes) in [(1, space.available_bytes), (2, space.used_bytes)] {
                // A list of binary values; not for this unit alone.
                out.extend_from_slice(&[0, code, 0x03, 8]);
                out.extend_from_slice(&sets(bytes).to_be_bytes());
                out.extend_from_slice(&[0x02, 0, 0, 0]);
            }
            Ok(out)
        }
        (0x00, ..) | (0x0c, _, Some(_)) => Err(Sense::invalid_field(3, None)),
        _ => Err(Sense::invalid_field(2, Some(5))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{MAPPED_BYTES, MemoryDisk, nexus, send_as, sense_of, unit};
    use super::super::{Status, u32_at};
    use super::*;

    #[test]
    fn little_room_is_told_to_all_once_each_time() {
        let disk = MemoryDisk::new(4 * MAPPED_BYTES);
        let unit = unit(&disk);
        ["a", "b"].iter().for_each(|name| unit.join(&nexus(name)));
        let ready = |name: &str| sense_of(&send_as(&unit, name, &[0; 6], &[]));
        assert_eq!((ready("a"), ready("b")), ((6, 0x29, 0), (6, 0x29, 0)));
        let room = |available_bytes| {
            *disk.space.lock() = Some(Space { used_bytes: 7 << 20, available_bytes, low_bytes: 100 << 20 });
            unit.look_at_space();
        };
        room(100 << 20);
        assert_eq!(ready("a"), (0, 0, 0));
        for _ in 0..2 {
            room(99 << 20);
            room(98 << 20);
            assert_eq!([ready("a"), ready("b"), ready("a")], [(6, 0x38, 0x07), (6, 0x38, 0x07), (0, 0, 0)]);
            room(100 << 20);
        }
    }

    #[test]
    fn the_room_and_the_threshold_are_said() {
        let disk = MemoryDisk::new(4 * MAPPED_BYTES);
        let unit = unit(&disk);
        let send = |cdb: &[u8]| send_as(&unit, "a", cdb, &[]);
        let log = |page: u8, subpage: u8| send(&[0x4d, 0, page, subpage, 0, 0, 0, 1, 0, 0]);
        assert_eq!(log(0, 0).data, [0, 0, 0, 1, 0]);
        assert_eq!(sense_of(&log(0x0c, 0)), (5, 0x24, 0));
        assert_eq!(send(&[0x12, 1, 0xb2, 0, 255, 0]).data[4], 0);
        assert_eq!(sense_of(&send(&[0x1a, 8, 0x1c, 2, 255, 0])), (5, 0x24, 0));
        *disk.space.lock() = Some(Space { used_bytes: 7 << 20, available_bytes: 33 << 20, low_bytes: 100 << 20 });
        assert_eq!(log(0, 0).data, [0, 0, 0, 2, 0, 0x0c]);
        assert_eq!(log(0, 0xff).data, [0x40, 0xff, 0, 6, 0, 0, 0x0c, 0, 0, 0xff]);
        let page = log(0x0c, 0).data;
        assert_eq!((u32_at(&page, 8), u32_at(&page, 20), page.len()), (33, 7, 28));
        assert_eq!(send(&[0x12, 1, 0xb2, 0, 255, 0]).data[4], 11);
        let page = send(&[0x1a, 8, 0x1c, 2, 255, 0]).data;
        assert_eq!(page[4..8], [0x5c, 2, 0, 20]);
        assert_eq!((page[20], u32_at(&page, 24)), (0x81, 100));
        assert_eq!(send(&[0x1a, 8, 0x3f, 0xff, 255, 0]).status, Status::Good);
    }
}
