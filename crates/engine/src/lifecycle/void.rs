//! Void numbers of containers of a store in a bucket, as objects (`docs/format.md` section 7).

use crate::{Change, Engine, EngineError, Result, Transaction};
use onefold_ground::wire::{Reader, WireError};
use onefold_storage::{ContainerId, VoidNumbers};

pub(crate) const PREFIX: u8 = b'V';
const VERSION: u8 = 1;
/// Objects read at a time.
const READ_AT_ONCE: usize = 1000;

fn key(first: ContainerId) -> Vec<u8> {
    let mut key = vec![PREFIX];
    key.extend_from_slice(&first.bits().to_be_bytes());
    key
}

fn change(partition: u16, void: VoidNumbers) -> Change {
    let mut value = vec![VERSION];
    value.extend_from_slice(&void.last.number().to_le_bytes());
    (partition, key(void.first), Some(value))
}

fn decode(key: &[u8], value: &[u8]) -> Result<VoidNumbers> {
    let decode = || {
        let mut reader = Reader::new(value);
        let version = reader.u8()?;
        let last = reader.u32()?;
        reader.end()?;
        let bits = key.get(1..9).and_then(|bits| bits.try_into().ok()).map_or(0, u64::from_be_bytes);
        let first = ContainerId::from_bits(bits);
        match version == VERSION && key.len() == 9 && last >= first.number() {
            true => Ok(VoidNumbers { first, last: ContainerId::new(first.partition(), last) }),
            false => Err(WireError::OutOfRange { what: "void numbers", value: u64::from(last), offset_bytes: 0 }),
        }
    };
    decode().map_err(|source| EngineError::Wire { what: "void numbers of containers".into(), source })
}

impl Engine {
    /// Tells the containers which numbers are void.
    pub(crate) fn read_void(&self) -> Result<()> {
        let Some(containers) = &self.containers else { return Ok(()) };
        let mut from = vec![PREFIX];
        loop {
            let some = self.objects.range(self.objects.own_partition(), &from, &[PREFIX + 1], READ_AT_ONCE)?;
            let void = some.iter().map(|(key, value)| decode(key, value)).collect::<Result<Vec<_>>>()?;
            containers.set_void(void);
            match some.last() {
                Some((last, _)) if some.len() == READ_AT_ONCE => from = [&last[..], &[0]].concat(),
                _ => return Ok(()),
            }
        }
    }

    /// Returns the changes that note the void numbers of a partition that is taken over.
    pub(crate) fn void_changes(&self, found: Vec<VoidNumbers>) -> Vec<Change> {
        let partition = self.objects.own_partition();
        found.into_iter().map(|void| change(partition, void)).collect()
    }

    /// Returns the void numbers of a partition, as they are noted.
    pub(crate) fn noted_void(&self, number: u16) -> Result<Vec<VoidNumbers>> {
        let (mut from, mut noted) = (key(ContainerId::new(number, 0)), Vec::new());
        loop {
            let some = self.objects.range(self.objects.own_partition(), &from, &[PREFIX + 1], READ_AT_ONCE)?;
            for (key, value) in &some {
                let void = decode(key, value)?;
                if void.first.partition() != number {
                    return Ok(noted);
                }
                noted.push(void);
            }
            match some.last() {
                Some((last, _)) if some.len() == READ_AT_ONCE => from = [&last[..], &[0]].concat(),
                _ => return Ok(noted),
            }
        }
    }

    /// Notes which numbers of containers an opening for writing found void. Call it before anything else is logged: a
    /// batch may say up to which number everything is settled, and from then on nobody looks for them.
    pub(crate) fn note_void(&self) -> Result<()> {
        let found = self.containers.as_ref().map(|containers| containers.found_void()).unwrap_or_default();
        if found.is_empty() {
            return Ok(());
        }
        let partition = self.objects.own_partition();
        let changes = found.into_iter().map(|void| change(partition, void)).collect();
        self.submit(Transaction { changes, references: Vec::new() })?;
        self.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn void_numbers_are_read_as_written() {
        let void = VoidNumbers { first: ContainerId::new(3, 70_000), last: ContainerId::new(3, 71_024) };
        let (_, key, value) = change(0, void);
        assert_eq!(decode(&key, &value.clone().unwrap()).unwrap(), void);
        assert!(decode(&key, &value.clone().unwrap()[1..]).is_err() && decode(&key[..5], &value.unwrap()).is_err());
        let (_, _, wrong) = change(0, VoidNumbers { last: ContainerId::new(3, 5), ..void });
        assert!(decode(&key, &wrong.unwrap()).is_err());
    }
}
