//! Helpers of this crate's tests.

use crate::spec::{SettingsReader, StoreSettings};
use onefold_ground::size::{MIB, parse_size};
use onefold_volume::VolumesOptions;

/// Knows a few settings.
pub(crate) struct TestSettings;

impl SettingsReader for TestSettings {
    fn check(&self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "memory.auxiliary_index" | "log.limit" => {
                parse_size(value.trim_matches('"')).map(drop).map_err(|error| format!("{key} is no size: {error}"))
            }
            "filter.chain" => Ok(()),
            _ => Err(format!("unknown key `{key}`")),
        }
    }

    fn least_bytes(&self, key: &str) -> Option<u64> {
        (key != "filter.chain").then_some(MIB)
    }

    fn read(&self, text: &str) -> Result<StoreSettings, String> {
        let mut engine = onefold_engine::Settings::default();
        for line in text.lines() {
            let (key, value) = line.split_once(" = ").ok_or("no value")?;
            let bytes = || parse_size(value.trim_matches('"')).map_err(|error| error.to_string());
            match key {
                "memory.auxiliary_index" => engine.auxiliary_index_bytes = bytes()? as usize,
                "log.limit" => engine.log_limit_bytes = bytes()?,
                _ => engine.chain = value.split(['[', '"', ',', ' ', ']']).filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            }
        }
        Ok(StoreSettings { engine, volumes: VolumesOptions::default() })
    }
}
