//! MODE SENSE and MODE SELECT: parameters of a unit (SPC-4 sections 6.11 to 6.14 and 7.5, SBC-3 section 6.5).

use super::sense::{Code, Key, Sense};
use super::{Geometry, provisioning};

/// The parameters that initiators can set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// Whether sense data is in descriptor format (D_SENSE).
    pub descriptor_sense: bool,
    /// Whether the unit is write-protected (SWP).
    pub write_protect: bool,
}

/// The kind of values requested (SPC-4 table 173).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Values {
    Current,
    Changeable,
    Default,
}

const D_SENSE: u8 = 0x04;
const SWP: u8 = 0x08;

/// The pages, by page and subpage.
const PAGES: [(u8, u8); 7] = [(0x01, 0), (0x02, 0), (0x08, 0), (0x0a, 0), (0x0a, 1), (0x1c, 0), PROVISIONING];
/// The page that exists only if there is a threshold.
const PROVISIONING: (u8, u8) = (0x1c, 2);
/// Length of the header of mode parameters in MODE SENSE(6) and (10).
const HEAD_6: usize = 4;
const HEAD_10: usize = 8;

impl Parameters {
    fn page(&self, page: (u8, u8), values: Values, low_bytes: Option<u64>) -> Vec<u8> {
        let is_fixed = values != Values::Changeable;
        let fixed = |bytes: &[u8]| if is_fixed { bytes.to_vec() } else { vec![0; bytes.len()] };
        let body = match page {
            // Read-write error recovery: blocks are reassigned on write if necessary.
            (0x01, _) => fixed(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            (0x02, _) => fixed(&[0; 14]),
            // Caching: there is a write cache. FUA and SYNCHRONIZE CACHE make writes durable.
            (0x08, _) => fixed(&[0x04, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            (0x0a, 0) => {
                let set = match values {
                    Values::Current => *self,
                    Values::Changeable => Parameters { descriptor_sense: true, write_protect: true },
                    Values::Default => Parameters::default(),
                };
                // Simple tasks may run in any order. No status is sent for tasks that others abort.
                let order = if is_fixed { 0x10 } else { 0 };
                vec![
                    u8::from(set.descriptor_sense) * D_SENSE,
                    order,
                    u8::from(set.write_protect) * SWP,
                    0,
                    0,
                    0,
                    0xff * u8::from(is_fixed),
                    0xff * u8::from(is_fixed),
                    0,
                    0,
                ]
            }
            (0x0a, _) => fixed(&[0; 28]),
            PROVISIONING => fixed(&provisioning::mode_page(low_bytes.unwrap_or_default())),
            (_, _) => fixed(&[0; 10]),
        };
        let mut out = if page.1 == 0 { vec![page.0, body.len() as u8] } else { vec![0x40 | page.0, page.1, 0, body.len() as u8] };
        out.extend_from_slice(&body);
        out
    }

    /// Answers MODE SENSE. Initiators are warned when fewer than `low_bytes` are free.
    pub fn sense(&self, cdb: &[u8], geometry: &Geometry, read_only: bool, low_bytes: Option<u64>) -> Result<Vec<u8>, Sense> {
        let is_long = cdb[0] == 0x5a;
        let values = match cdb[2] >> 6 {
            0 => Values::Current,
            1 => Values::Changeable,
            2 => Values::Default,
            _ => return Err(Sense::new(Key::IllegalRequest, Code(0x39, 0x00))),
        };
        let (page, subpage) = (cdb[2] & 0x3f, cdb[3]);
        let wanted: Vec<(u8, u8)> =
            pages(low_bytes).filter(|known| (page == 0x3f || page == known.0) && (subpage == 0xff || subpage == known.1)).collect();
        if wanted.is_empty() {
            return Err(if pages(low_bytes).any(|known| known.0 == page) {
                Sense::invalid_field(3, None)
            } else {
                Sense::invalid_field(2, Some(5))
            });
        }
        let no_descriptor = cdb[1] & 0x08 != 0;
        let is_long_descriptor = is_long && cdb[1] & 0x10 != 0;
        let descriptor = if no_descriptor { Vec::new() } else { block_descriptor(geometry, is_long_descriptor) };
        let pages: Vec<u8> = wanted.into_iter().flat_map(|page| self.page(page, values, low_bytes)).collect();
        // Write-protected. DPO and FUA are supported.
        let specific = u8::from(read_only || self.write_protect) << 7 | 0x10;
        let mut out = vec![0; if is_long { HEAD_10 } else { HEAD_6 }];
        if is_long {
            out[2] = specific;
            out[3] = u8::from(is_long_descriptor);
            out[6..8].copy_from_slice(&(descriptor.len() as u16).to_be_bytes());
        } else {
            (out[2], out[3]) = (specific, descriptor.len() as u8);
        }
        out.extend_from_slice(&descriptor);
        out.extend_from_slice(&pages);
        if is_long {
            let length = (out.len() - 2) as u16;
            out[..2].copy_from_slice(&length.to_be_bytes());
        } else {
            out[0] = (out.len() - 1) as u8;
        }
        Ok(out)
    }

    /// Returns the parameters after a MODE SELECT with this list.
    pub fn select(&self, cdb: &[u8], list: &[u8], geometry: &Geometry, low_bytes: Option<u64>) -> Result<Parameters, Sense> {
        let is_long = cdb[0] == 0x55;
        if cdb[1] & 0x01 != 0 {
            // Nothing can be saved.
            return Err(Sense::invalid_field(1, Some(0)));
        }
        if list.is_empty() {
            return Ok(*self);
        }
        let short = Sense::new(Key::IllegalRequest, Code::PARAMETER_LIST_LENGTH_ERROR);
        let head = if is_long { HEAD_10 } else { HEAD_6 };
        if list.len() < head {
            return Err(short);
        }
        let descriptor_bytes = if is_long { usize::from(u16::from_be_bytes([list[6], list[7]])) } else { usize::from(list[3]) };
        let is_long_descriptor = is_long && list[3] & 1 != 0;
        let descriptor = list.get(head..head + descriptor_bytes).ok_or(short)?;
        if !descriptor.is_empty() {
            let own = block_descriptor(geometry, is_long_descriptor);
            // Zeros or ones leave the number of blocks open. The length of a block cannot be changed.
            let (blocks, rest) = if is_long_descriptor { (8, 8) } else { (4, 4) };
            if descriptor.len() != own.len() {
                return Err(Sense::invalid_parameter(if is_long { 6 } else { 3 }));
            }
            let is_open = descriptor[..blocks].iter().all(|byte| *byte == 0) || descriptor[..blocks].iter().all(|byte| *byte == 0xff);
            if descriptor[rest..] != own[rest..] || !(is_open || descriptor[..blocks] == own[..blocks]) {
                return Err(Sense::invalid_parameter(head as u16));
            }
        }
        let mut next = *self;
        let mut at = head + descriptor_bytes;
        while at < list.len() {
            let rest = &list[at..];
            let has_subpage = rest[0] & 0x40 != 0;
            let page_head = if has_subpage { 4 } else { 2 };
            if rest.len() < page_head {
                return Err(short);
            }
            let page = (rest[0] & 0x3f, if has_subpage { rest[1] } else { 0 });
            let length = if has_subpage { usize::from(u16::from_be_bytes([rest[2], rest[3]])) } else { usize::from(rest[1]) };
            if !pages(low_bytes).any(|known| known == page) {
                return Err(Sense::invalid_parameter(at as u16));
            }
            let (current, changeable) = (self.page(page, Values::Current, low_bytes), self.page(page, Values::Changeable, low_bytes));
            if length + page_head != current.len() {
                return Err(Sense::invalid_parameter(at as u16 + 1));
            }
            let given = rest.get(..current.len()).ok_or(short)?;
            for byte in page_head..current.len() {
                if (given[byte] ^ current[byte]) & !changeable[byte] != 0 {
                    return Err(Sense::invalid_parameter((at + byte) as u16));
                }
            }
            if page == (0x0a, 0) {
                next = Parameters { descriptor_sense: given[2] & D_SENSE != 0, write_protect: given[4] & SWP != 0 };
            }
            at += current.len();
        }
        Ok(next)
    }
}

/// Returns the existing pages.
fn pages(low_bytes: Option<u64>) -> impl Iterator<Item = (u8, u8)> {
    PAGES.into_iter().filter(move |page| *page != PROVISIONING || low_bytes.is_some())
}

/// Number and length of blocks (SBC-3 tables 161 and 162).
fn block_descriptor(geometry: &Geometry, is_long: bool) -> Vec<u8> {
    if is_long {
        return [&geometry.blocks().to_be_bytes()[..], &[0; 4], &geometry.logical.to_be_bytes()].concat();
    }
    let blocks = u32::try_from(geometry.blocks()).unwrap_or(u32::MAX);
    [&blocks.to_be_bytes()[..], &geometry.logical.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry { size: 1 << 40, logical: 512, mapped: 256 << 10 };

    fn sense6(parameters: Parameters, page: u8) -> Vec<u8> {
        parameters.sense(&[0x1a, 0, page, 0, 255, 0], &GEOMETRY, false, None).unwrap()
    }

    #[test]
    fn what_is_selected_is_sensed() {
        let before = Parameters::default();
        let mut list = sense6(before, 0x0a);
        assert_eq!(usize::from(list[0]), list.len() - 1);
        list[0] = 0;
        list[12 + 2] |= D_SENSE;
        list[12 + 4] |= SWP;
        let cdb = [0x15, 0x10, 0, 0, list.len() as u8, 0];
        let after = before.select(&cdb, &list, &GEOMETRY, None).unwrap();
        assert_eq!(after, Parameters { descriptor_sense: true, write_protect: true });
        assert_eq!(sense6(after, 0x0a)[2] & 0x80, 0x80);
        list[12 + 3] ^= 1;
        assert_eq!(before.select(&cdb, &list, &GEOMETRY, None), Err(Sense::invalid_parameter(15)));
        for length in 1..list.len() {
            assert!(before.select(&cdb, &list[..length], &GEOMETRY, None).is_err() || length == 12, "{length}");
        }
    }

    #[test]
    fn all_pages_come_in_order() {
        let all = sense6(Parameters::default(), 0x3f);
        let pages = &all[12..];
        let (mut at, mut seen) = (0, Vec::new());
        while at < pages.len() {
            seen.push(pages[at] & 0x3f);
            at += 2 + usize::from(pages[at + 1]);
        }
        assert_eq!(seen, [0x01, 0x02, 0x08, 0x0a, 0x1c]);
        let long = Parameters::default().sense(&[0x5a, 0x10, 0x3f, 0xff, 0, 0, 0, 1, 0, 0], &GEOMETRY, true, None).unwrap();
        assert_eq!(usize::from(u16::from_be_bytes([long[0], long[1]])), long.len() - 2);
        assert_eq!(long[8..16], (1u64 << 31).to_be_bytes());
    }

    #[test]
    fn pages_that_are_not_there_are_refused() {
        let sense = |page: u8, subpage: u8| Parameters::default().sense(&[0x1a, 0, page, subpage, 255, 0], &GEOMETRY, false, None);
        assert_eq!(sense(0x05, 0), Err(Sense::invalid_field(2, Some(5))));
        assert_eq!(sense(0x08, 7), Err(Sense::invalid_field(3, None)));
        assert_eq!(sense(0xc8, 0).unwrap_err().code, Code(0x39, 0));
    }
}
