//! The header of a member of a tar archive, and the records in front of it for what it cannot hold.

use onefold_catalog::Attributes;

const BLOCK_BYTES: usize = 512;
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The content of a header.
pub(super) struct Header<'a> {
    pub(super) name: &'a [u8],
    pub(super) attributes: Attributes,
    pub(super) kind: u8,
    /// Target of a symbolic or hard link.
    pub(super) target: Vec<u8>,
    pub(super) device: (u32, u32),
    /// Bytes that follow.
    pub(super) size_bytes: u64,
}

impl<'a> Header<'a> {
    /// Returns the header of an empty file.
    pub(super) fn new(name: &'a [u8], attributes: &Attributes) -> Header<'a> {
        Header { name, attributes: attributes.clone(), kind: b'0', target: Vec::new(), device: (0, 0), size_bytes: 0 }
    }

    /// Returns the header with the records that it needs in front of it, and those in `more`.
    pub(super) fn encode(&self, more: &[u8]) -> Vec<u8> {
        let mut name = self.name.to_vec();
        if self.kind == b'5' {
            name.push(b'/');
        }
        let attributes = &self.attributes;
        let mut block = Block([0; BLOCK_BYTES]);
        let mut extended: Vec<(&[u8], Vec<u8>)> = Vec::new();
        // Readers that know the records of sparse files take the name from those.
        if !block.text(0, 100, &name) {
            extended.push((b"path", name));
        }
        if !block.text(157, 100, &self.target) {
            extended.push((b"linkpath", self.target.clone()));
        }
        block.octal(100, 8, u64::from(attributes.mode));
        for (offset, key, id) in [(108, &b"uid"[..], attributes.uid), (116, b"gid", attributes.gid)] {
            if !block.octal(offset, 8, u64::from(id)) {
                extended.push((key, id.to_string().into_bytes()));
            }
        }
        if !block.octal(124, 12, self.size_bytes) {
            extended.push((b"size", self.size_bytes.to_string().into_bytes()));
        }
        let (seconds, nanoseconds) = (attributes.mtime_ns.div_euclid(1_000_000_000), attributes.mtime_ns.rem_euclid(1_000_000_000));
        if !block.octal(136, 12, u64::try_from(seconds).unwrap_or(u64::MAX)) || nanoseconds != 0 {
            extended.push((b"mtime", decimal_time(attributes.mtime_ns).into_bytes()));
        }
        // Linux has 12 bits for a major number and 20 for a minor one; 21 fit.
        block.octal(329, 8, u64::from(self.device.0));
        block.octal(337, 8, u64::from(self.device.1));
        let named: Vec<(Vec<u8>, Vec<u8>)> = attributes.xattrs.iter().filter_map(|(name, value)| xattr_record(name, value)).collect();
        extended.extend(named.iter().map(|(key, value)| (&key[..], value.clone())));
        if self.kind == b'1' {
            // A further name shares the file's attributes.
            extended.retain(|(key, _)| !key.starts_with(b"SCHILY."));
        }
        let records = [records(&extended), more.to_vec()].concat();
        let header = block.finish(self.kind);
        if records.is_empty() {
            return header.to_vec();
        }
        let mut front = Block([0; BLOCK_BYTES]);
        front.text(0, 100, b"././@PaxHeader");
        front.text(157, 100, b"");
        for (offset, length, value) in [(100, 8, 0o644), (108, 8, 0), (116, 8, 0), (124, 12, records.len() as u64), (136, 12, 0)] {
            front.octal(offset, length, value);
        }
        let mut out = front.finish(b'x').to_vec();
        out.extend_from_slice(&records);
        out.resize(out.len().next_multiple_of(BLOCK_BYTES), 0);
        out.extend_from_slice(&header);
        out
    }
}

/// A header under construction.
struct Block([u8; BLOCK_BYTES]);

impl Block {
    /// Writes a text. Returns false if it does not fit and is cut.
    fn text(&mut self, offset: usize, length: usize, text: &[u8]) -> bool {
        let fits = text.len() <= length;
        let text = &text[..text.len().min(length)];
        self.0[offset..offset + text.len()].copy_from_slice(text);
        fits
    }

    /// Writes a number. Returns false if it does not fit; then the field is 0.
    fn octal(&mut self, offset: usize, length: usize, value: u64) -> bool {
        let digits = length - 1;
        let fits = value < 1 << (3 * digits);
        let text = format!("{:0digits$o}", if fits { value } else { 0 });
        self.0[offset..offset + digits].copy_from_slice(text.as_bytes());
        fits
    }

    fn finish(mut self, kind: u8) -> [u8; BLOCK_BYTES] {
        self.0[156] = kind;
        self.0[257..265].copy_from_slice(b"ustar\x0000");
        // The checksum counts spaces in its own place.
        self.0[148..156].fill(b' ');
        let sum: u64 = self.0.iter().map(|byte| u64::from(*byte)).sum();
        self.octal(148, 7, sum);
        self.0[154] = 0;
        self.0
    }
}

/// Encodes records: `LENGTH KEY=VALUE\n`, where the length counts itself.
pub(super) fn records(pairs: &[(&[u8], Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (key, value) in pairs {
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while rest + length.to_string().len() > length {
            length = rest + length.to_string().len();
        }
        out.extend_from_slice(length.to_string().as_bytes());
        out.push(b' ');
        out.extend_from_slice(key);
        out.push(b'=');
        out.extend_from_slice(value);
        out.push(b'\n');
    }
    out
}

/// Returns seconds with nanoseconds, as in records: `-1.5` is one and a half seconds before 1970.
fn decimal_time(time_ns: i64) -> String {
    let sign = if time_ns < 0 { "-" } else { "" };
    let magnitude = time_ns.unsigned_abs();
    format!("{sign}{}.{:09}", magnitude / 1_000_000_000, magnitude % 1_000_000_000)
}

/// Returns the record of an extended attribute. ACLs have a form of their own.
fn xattr_record(name: &[u8], value: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    if name == ACCESS_ACL || name == DEFAULT_ACL {
        let key = if name == ACCESS_ACL { b"SCHILY.acl.access".to_vec() } else { b"SCHILY.acl.default".to_vec() };
        if let Some(text) = acl_text(value) {
            return Some((key, text.into_bytes()));
        }
    }
    let mut key = b"SCHILY.xattr.".to_vec();
    for byte in name {
        match byte {
            b'=' => key.extend_from_slice(b"%3D"),
            b'%' => key.extend_from_slice(b"%25"),
            byte => key.push(*byte),
        }
    }
    Some((key, value.to_vec()))
}

/// Returns an ACL as text, from Linux's binary form: version 2, then tag, permissions and id of each entry.
fn acl_text(value: &[u8]) -> Option<String> {
    let entries = value.strip_prefix(&2u32.to_le_bytes())?;
    let (entries, []) = entries.as_chunks::<8>() else { return None };
    let mut out = Vec::new();
    for [t0, t1, p0, p1, i0, i1, i2, i3] in entries {
        let id = u32::from_le_bytes([*i0, *i1, *i2, *i3]);
        let who = match u16::from_le_bytes([*t0, *t1]) {
            0x01 => "user:".to_owned(),
            0x02 => format!("user:{id}"),
            0x04 => "group:".to_owned(),
            0x08 => format!("group:{id}"),
            0x10 => "mask:".to_owned(),
            0x20 => "other:".to_owned(),
            _ => return None,
        };
        let permissions = u16::from_le_bytes([*p0, *p1]);
        let letter = |bit, letter| if permissions & bit != 0 { letter } else { '-' };
        out.push(format!("{who}:{}{}{}", letter(4, 'r'), letter(2, 'w'), letter(1, 'x')));
    }
    Some(out.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_record_counts_itself() {
        for length in 0..2000 {
            let record = records(&[(b"key", vec![b'x'; length])]);
            let text = String::from_utf8(record.clone()).unwrap();
            let (said, _) = text.split_once(' ').unwrap();
            assert_eq!(said.parse::<usize>().unwrap(), record.len());
        }
    }

    #[test]
    fn times_before_1970_are_negative() {
        assert_eq!([decimal_time(-1_500_000_000), decimal_time(7), decimal_time(0)], ["-1.500000000", "0.000000007", "0.000000000"]);
    }

    #[test]
    fn acls_are_written_as_people_do() {
        let entry = |tag: u16, permissions: u16, id: u32| [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat();
        let acl = [2u32.to_le_bytes().to_vec(), entry(1, 6, u32::MAX), entry(2, 5, 77), entry(0x20, 0, u32::MAX)].concat();
        assert_eq!(acl_text(&acl).unwrap(), "user::rw-,user:77:r-x,other::---");
        assert_eq!(acl_text(b"\x02\0\0\0x"), None);
    }

    #[test]
    fn a_header_has_its_sum() {
        let block = Header::new(b"name", &Attributes { mode: 0o644, ..Attributes::default() }).encode(&[]);
        assert_eq!(block.len(), BLOCK_BYTES);
        let sum: u64 = block.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u64::from(*byte) }).sum();
        assert_eq!(&block[148..156], format!("{sum:06o}\0 ").as_bytes());
    }
}
