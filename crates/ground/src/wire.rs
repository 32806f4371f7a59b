//! The bytes that all formats are made of: little-endian integers, LEB128 varints, byte strings with a length prefix.
//!
//! Writers append to a `Vec<u8>`. Parsers use [`Reader`], which never reads past its slice. It checks that the bytes
//! are there before it allocates.

/// The bytes end early, or a value is out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Fewer bytes are left than the structure needs.
    #[error("{wanted_bytes} bytes needed at offset {offset_bytes}, but only {left_bytes} are left")]
    Truncated {
        /// Offset in the slice.
        offset_bytes: usize,
        /// Bytes that the structure needs.
        wanted_bytes: u64,
        /// Bytes that are left.
        left_bytes: usize,
    },
    /// A value that this structure cannot have.
    #[error("{what} is {value} at offset {offset_bytes}: out of range")]
    OutOfRange {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Offset in the slice.
        offset_bytes: usize,
    },
    /// Bytes are left after the end of the structure.
    #[error("{left_bytes} bytes left after the end")]
    Trailing {
        /// How many.
        left_bytes: usize,
    },
}

/// Appends an unsigned LEB128 varint (1 to 10 bytes).
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed integer as a zigzag-coded varint.
pub fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Appends a byte string: its length as a varint, then the bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads a slice from front to back.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the beginning of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// Returns how many bytes were read.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Returns how many bytes are left.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Reads the next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        if count > self.left() {
            return Err(WireError::Truncated { offset_bytes: self.at, wanted_bytes: count as u64, left_bytes: self.left() });
        }
        let taken = &self.bytes[self.at..self.at + count];
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        Ok(self.take(N)?.try_into().expect("take returns as many bytes as asked"))
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads two bytes, little-endian.
    pub fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Reads four bytes, little-endian.
    pub fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Reads eight bytes, little-endian.
    pub fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a varint.
    pub fn varint(&mut self) -> Result<u64, WireError> {
        let start = self.at;
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.u8()?;
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(WireError::OutOfRange { what: "varint", value: u64::MAX, offset_bytes: start })
    }

    /// Reads a varint of at most `limit`. `what` names the field in the error.
    pub fn varint_to(&mut self, what: &'static str, limit: u64) -> Result<u64, WireError> {
        let offset_bytes = self.at;
        let value = self.varint()?;
        if value > limit {
            return Err(WireError::OutOfRange { what, value, offset_bytes });
        }
        Ok(value)
    }

    /// Reads a zigzag-coded signed integer.
    pub fn signed(&mut self) -> Result<i64, WireError> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Reads a byte string with a length prefix.
    pub fn bytes(&mut self) -> Result<&'a [u8], WireError> {
        let offset_bytes = self.at;
        let length = self.varint()?;
        if length > self.left() as u64 {
            return Err(WireError::Truncated { offset_bytes, wanted_bytes: length, left_bytes: self.left() });
        }
        self.take(length as usize)
    }

    /// Reads the number of items that follow, each at least `item_bytes` long. Errors: the items cannot fit in the
    /// bytes left. So the caller may allocate for them.
    pub fn count(&mut self, what: &'static str, item_bytes: usize) -> Result<usize, WireError> {
        let offset_bytes = self.at;
        let value = self.varint()?;
        if value > (self.left() / item_bytes.max(1)) as u64 {
            return Err(WireError::OutOfRange { what, value, offset_bytes });
        }
        Ok(value as usize)
    }

    /// Checks that nothing is left.
    pub fn end(&self) -> Result<(), WireError> {
        if self.left() > 0 {
            return Err(WireError::Trailing { left_bytes: self.left() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(values: Vec<u64>, signed: Vec<i64>, bytes: Vec<u8>) {
            let mut out = Vec::new();
            for value in &values { put_varint(&mut out, *value); }
            for value in &signed { put_signed(&mut out, *value); }
            put_bytes(&mut out, &bytes);
            let mut reader = Reader::new(&out);
            for value in &values { prop_assert_eq!(reader.varint().unwrap(), *value); }
            for value in &signed { prop_assert_eq!(reader.signed().unwrap(), *value); }
            prop_assert_eq!(reader.bytes().unwrap(), &bytes[..]);
            reader.end().unwrap();
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes);
            while reader.left() > 0 {
                let _ = reader.clone().bytes();
                let _ = reader.clone().count("things", 3);
                if reader.varint().is_err() { break; }
            }
        }
    }

    #[test]
    fn a_varint_of_more_than_64_bits_is_refused() {
        assert!(Reader::new(&[0xff; 10]).varint().is_err());
        assert_eq!(Reader::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).varint(), Ok(u64::MAX));
    }
}
