//! `onefold.toml`: any text is refused with a line and a reason, or is settings that hold together.

use onefold::settings::{SettingsError, check_chain, parse_settings};
use onefold::units::{parse_size, size};

/// The bytes are the file; and, by themselves, a size.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match parse_settings(text) {
        Ok(settings) => {
            assert_eq!(settings.check(), Ok(()));
            assert_eq!(check_chain(&settings.engine.chain), Ok(()));
            assert!(settings.engine.log_limit_bytes >= 2 * settings.engine.log_segment_bytes);
        }
        Err(error) => {
            let lines = text.split('\n').count();
            match &error {
                SettingsError::Syntax { line, .. }
                | SettingsError::UnknownSection { line, .. }
                | SettingsError::UnknownKey { line, .. }
                | SettingsError::Value { line, .. } => assert!((1..=lines).contains(line), "line {line} of {lines}"),
                SettingsError::Contradiction { .. } => {}
            }
            assert!(!error.to_string().is_empty());
        }
    }
    if let Ok(bytes) = parse_size(text) {
        // Printed with a unit, or rounded: never empty.
        assert!(!size(bytes).is_empty());
    }
}
