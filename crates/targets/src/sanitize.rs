//! Erasures of whole volumes that were begun and must be brought to their end (SANITIZE; `docs/format.md` section 7.11).

use crate::durable::make_durable;
use crate::error::{Result, TargetError};
use crate::record::{VERSION, check_version, choice};
use crate::registry::PARTITION;
use onefold_engine::Engine;
use onefold_ground::wire::{Reader, WireError, put_bytes};

/// First byte of the keys.
pub(crate) const PREFIX: u8 = b'e';

/// An erasure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptSanitize {
    /// What each logical block has afterwards, repeated; empty: zeros.
    pub pattern: Vec<u8>,
    /// Whether the volume may be used after a failure without another erasure.
    pub allows_exit: bool,
    /// Whether it failed.
    pub has_failed: bool,
}

impl KeptSanitize {
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_bytes(&mut out, &self.pattern);
        out.extend_from_slice(&[u8::from(self.allows_exit), u8::from(self.has_failed)]);
        out
    }

    fn read(value: &[u8]) -> std::result::Result<KeptSanitize, WireError> {
        let mut reader = Reader::new(value);
        check_version(&mut reader)?;
        let pattern = reader.bytes()?.to_vec();
        let allows_exit = choice(&mut reader, "exit", 1)? == 1;
        let has_failed = choice(&mut reader, "failed", 1)? == 1;
        reader.end()?;
        Ok(KeptSanitize { pattern, allows_exit, has_failed })
    }
}

fn key(volume: u32) -> Vec<u8> {
    [&[PREFIX], volume.to_be_bytes().as_slice()].concat()
}

/// The erasure of a volume that is to be brought to its end.
pub fn kept_sanitize(engine: &Engine, volume: u32) -> Result<Option<KeptSanitize>> {
    let damaged = |error: WireError| TargetError::Damaged {
        object: format!("the record of the erasure of volume {volume}"),
        reason: error.to_string(),
    };
    let value = engine.get(PARTITION, &key(volume))?;
    value.map(|value| KeptSanitize::read(&value).map_err(damaged)).transpose()
}

/// Keeps an erasure of a volume, or with `None` that there is none any more; durable on return. After an error it is as before, but for
/// [`TargetError::NotDurable`].
pub fn keep_sanitize(engine: &Engine, volume: u32, kept: Option<&KeptSanitize>) -> Result<()> {
    make_durable(engine, vec![(PARTITION, key(volume), kept.map(KeptSanitize::encode))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_erasure_is_read_as_written(pattern: Vec<u8>, allows_exit: bool, has_failed: bool) {
            let kept = KeptSanitize { pattern, allows_exit, has_failed };
            prop_assert_eq!(KeptSanitize::read(&kept.encode()).unwrap(), kept);
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = KeptSanitize::read(&bytes);
        }
    }
}
