//! The wire codec: any sequence of reads of any bytes. Nothing is read twice, past the end, or otherwise than it is
//! written.

use onefold_ground::wire::{Reader, WireError, put_bytes, put_signed, put_varint};

/// The first byte says how many of the next ones choose reads; what follows is read.
pub fn run(data: &[u8]) {
    let Some((count, rest)) = data.split_first() else { return };
    let (reads, bytes) = rest.split_at(usize::from(*count).min(rest.len()));
    let mut reader = Reader::new(bytes);
    for read in reads {
        let before = reader.position();
        let result = one_read(&mut reader, *read);
        assert_eq!(reader.position() + reader.left(), bytes.len());
        assert!(reader.position() >= before);
        if result.is_err() {
            return;
        }
    }
    assert_eq!(reader.end().is_ok(), reader.left() == 0);
}

/// One read; what has only one encoding is encoded again.
fn one_read(reader: &mut Reader<'_>, read: u8) -> Result<(), WireError> {
    let start = reader.clone();
    let mut again = Vec::new();
    match read % 8 {
        0 => again.push(reader.u8()?),
        1 => again.extend(reader.u16()?.to_le_bytes()),
        2 => again.extend(reader.u32()?.to_le_bytes()),
        3 => again.extend(reader.u64()?.to_le_bytes()),
        4 => {
            let value = reader.varint()?;
            put_varint(&mut again, value);
            return reads_as(&again, |reader| reader.varint(), value);
        }
        5 => {
            let value = reader.signed()?;
            put_signed(&mut again, value);
            return reads_as(&again, |reader| reader.signed(), value);
        }
        6 => {
            let value = reader.bytes()?;
            put_bytes(&mut again, value);
            return reads_as(&again, |reader| reader.bytes().map(<[u8]>::to_vec), value.to_vec());
        }
        _ => {
            let item_bytes = usize::from(read / 8);
            let count = reader.count("items", item_bytes)?;
            assert!(count.saturating_mul(item_bytes) <= reader.left(), "{count} items of {item_bytes} bytes in {}", reader.left());
            return Ok(());
        }
    }
    assert_eq!(start.clone().take(again.len()), Ok(&again[..]));
    Ok(())
}

/// The shortest encoding spells the same value, whatever encoding it came from.
fn reads_as<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    read: impl Fn(&mut Reader<'_>) -> Result<T, WireError>,
    value: T,
) -> Result<(), WireError> {
    let mut reader = Reader::new(bytes);
    assert_eq!(read(&mut reader), Ok(value));
    reader.end()
}
