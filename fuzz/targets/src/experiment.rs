//! Declarations of experiments: any text is refused with a line and a reason, or is an experiment whose variants can be
//! had at any size or are refused.

use onefold_experiment::spec::{SettingsReader, Spec, SpecError, StoreSettings};
use onefold_ground::size::{MIB, parse_size};

/// Takes every setting; those of memory are sizes.
struct AnySettings;

impl SettingsReader for AnySettings {
    fn check(&self, key: &str, value: &str) -> Result<(), String> {
        let is_size = || parse_size(value.trim_matches('"')).is_ok();
        if !key.starts_with("memory.") || is_size() { Ok(()) } else { Err(format!("{key} is no size")) }
    }

    fn least_bytes(&self, key: &str) -> Option<u64> {
        key.starts_with("memory.").then_some(MIB)
    }

    fn read(&self, _text: &str) -> Result<StoreSettings, String> {
        Ok(StoreSettings { engine: Default::default(), volumes: Default::default() })
    }
}

/// The bytes are the file.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Spec::parse(text, &AnySettings) {
        Ok(spec) => {
            assert!(!spec.variants.is_empty() && !spec.about.id.is_empty());
            for variant in &spec.variants {
                assert_eq!(spec.variant(&variant.name), Some(variant));
                assert_eq!(variant.store.descriptor().map(|descriptor| descriptor.validate().is_ok()).ok(), Some(true));
                assert!(variant.devices.iter().flatten().all(|device| device.check().is_ok()));
                for size_bytes in [0, 1, spec.full_size_bytes / 256, spec.full_size_bytes, u64::MAX] {
                    let least = variant.least_size_bytes(spec.full_size_bytes);
                    match variant.scaled(size_bytes, spec.full_size_bytes, &AnySettings) {
                        Ok(scaled) => {
                            assert!(size_bytes >= least);
                            assert!(scaled.text.parse::<toml::Table>().is_ok(), "{}", scaled.text);
                        }
                        Err(error) => assert!(size_bytes < least || size_bytes == u64::MAX, "{error}"),
                    }
                }
            }
        }
        Err(error) => {
            let lines = text.split('\n').count();
            match &error {
                SpecError::Syntax { line, .. } | SpecError::UnknownKey { line, .. } | SpecError::Value { line, .. } => {
                    assert!((1..=lines).contains(line), "line {line} of {lines}");
                }
                SpecError::Missing { .. } | SpecError::Contradiction { .. } => {}
            }
            assert!(!error.to_string().is_empty());
        }
    }
}
