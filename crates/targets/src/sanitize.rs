//! Erasures of whole volumes that were begun and must be finished (SANITIZE; `docs/format.md` section 7.11).

use crate::durable::make_durable;
use crate::error::{Result, TargetError};
use crate::keys::{PARTITION, SANITIZE, key};
use crate::record::{VERSION, check_version, choice};
use onefold_engine::Engine;
use onefold_ground::wire::{Reader, WireError, put_bytes};

/// An erasure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptSanitize {
    /// The content of each logical block afterwards: as many bytes as a logical block has, 512 or 4096. Empty: zeros.
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

    pub(crate) fn decode(volume: u32, value: &[u8]) -> Result<KeptSanitize> {
        let object = || format!("the record of the erasure of volume {volume}");
        KeptSanitize::read(value).map_err(|error| TargetError::Damaged { object: object(), reason: error.to_string() })
    }

    fn read(value: &[u8]) -> std::result::Result<KeptSanitize, WireError> {
        let mut reader = Reader::new(value);
        check_version(&mut reader)?;
        let offset_bytes = reader.position();
        let pattern = reader.bytes()?.to_vec();
        if !matches!(pattern.len(), 0 | 512 | 4096) {
            return Err(WireError::OutOfRange { what: "pattern length", value: pattern.len() as u64, offset_bytes });
        }
        let allows_exit = choice(&mut reader, "exit", 1)? == 1;
        let has_failed = choice(&mut reader, "failed", 1)? == 1;
        reader.end()?;
        Ok(KeptSanitize { pattern, allows_exit, has_failed })
    }
}

/// Returns the erasure of a volume that must be finished.
pub fn kept_sanitize(engine: &Engine, volume: u32) -> Result<Option<KeptSanitize>> {
    let value = engine.get(PARTITION, &key(SANITIZE, volume))?;
    value.map(|value| KeptSanitize::decode(volume, &value)).transpose()
}

/// Stores an erasure of a volume, or with `None` removes it. Durable on return. After an error the state is as before,
/// except after [`TargetError::NotDurable`].
pub fn keep_sanitize(engine: &Engine, volume: u32, kept: Option<&KeptSanitize>) -> Result<()> {
    make_durable(engine, vec![(PARTITION, key(SANITIZE, volume), kept.map(KeptSanitize::encode))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_erasure_is_read_as_written_and_has_a_pattern_of_a_logical_block(pattern: Vec<u8>, allows_exit: bool, has_failed: bool) {
            for length in [0, 512, 4096, pattern.len().max(1)] {
                let pattern: Vec<u8> = pattern.iter().chain(&[7]).copied().cycle().take(length).collect();
                let kept = KeptSanitize { pattern, allows_exit, has_failed };
                match KeptSanitize::read(&kept.encode()) {
                    Ok(read) => prop_assert_eq!(read, kept),
                    Err(_) => prop_assert!(![0, 512, 4096].contains(&length)),
                }
            }
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = KeptSanitize::read(&bytes);
        }
    }
}
