//! A variant at another size.

use super::{MAX_SIZE_BYTES, SettingsReader, SpecError, StoreSettings, VariantSpec};
use onefold_ground::size::{parse_size, size};

/// A variant at a size.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaled {
    /// Bytes of one generation, over all clients.
    pub size_bytes: u64,
    /// Chunks that the store is filled with.
    pub fill_chunks: u64,
    /// The settings to open the store with.
    pub settings: StoreSettings,
    /// The same settings as text, one per line, for readers of `onefold.toml`.
    pub settings_text: String,
    /// The complete declaration, as lines of TOML.
    pub text: String,
}

impl VariantSpec {
    /// Returns the least size of the experiment at which each client of this variant has a request to write.
    /// `full_size_bytes` is the experiment's full size.
    pub fn least_size_bytes(&self, full_size_bytes: u64) -> u64 {
        let (needed, whole) = (u64::from(self.workload.clients) * self.run.request_bytes as u64, self.workload.size_bytes.max(1));
        (u128::from(needed) * u128::from(full_size_bytes)).div_ceil(u128::from(whole)) as u64
    }

    /// Returns the variant scaled to an experiment of `size_bytes` instead of `full_size_bytes`. A variant with another
    /// size than the experiment keeps its share. Errors: too small for the clients and their requests, or settings
    /// contradict each other at this size.
    pub fn scaled(&self, size_bytes: u64, full_size_bytes: u64, reader: &dyn SettingsReader) -> Result<Scaled, SpecError> {
        // TOML numbers are signed.
        let of =
            |bytes: u64| (u128::from(bytes) * u128::from(size_bytes) / u128::from(full_size_bytes.max(1))).min(i64::MAX as u128) as u64;
        let scaled_bytes = of(self.workload.size_bytes);
        let (clients, request_bytes) = (u64::from(self.workload.clients), self.run.request_bytes as u64);
        let least = self.least_size_bytes(full_size_bytes);
        if size_bytes < least {
            let why = format!(
                "a size of {} is too small for variant {:?}, {clients} clients with requests of {}: it must be at least {}",
                size(size_bytes),
                self.name,
                size(request_bytes),
                size(least)
            );
            return Err(SpecError::Contradiction { why });
        }
        if scaled_bytes > MAX_SIZE_BYTES {
            let why = format!("a size of {} is too large: it must be at most {}", size(size_bytes), size(MAX_SIZE_BYTES));
            return Err(SpecError::Contradiction { why });
        }
        let mut lines = self.lines.clone();
        let mut replace = |key: &str, value: String| {
            if let Some((_, old)) = lines.iter_mut().find(|(name, _)| name == key) {
                *old = value;
            }
        };
        replace("workload.size", scaled_bytes.to_string());
        // Each group has a chunk.
        let fill_chunks = self.fill.map_or(0, |fill| of(fill.chunks).max(fill.groups));
        replace("fill.chunks", fill_chunks.to_string());
        let mut settings_text = String::new();
        for setting in &self.settings {
            let mut value = setting.value.clone();
            if self.scaled.contains(&setting.key) {
                let bytes = parse_size(value.trim_matches('"')).unwrap_or(u64::MAX);
                value = of(bytes).max(reader.least_bytes(&setting.key).unwrap_or(0)).to_string();
                replace(&format!("settings.{}", setting.key), value.clone());
            }
            settings_text.push_str(&format!("{} = {value}\n", setting.key));
        }
        let at_size = |why: String| {
            let why = format!("the settings of variant {:?} do not go together at a size of {}: {why}", self.name, size(size_bytes));
            SpecError::Contradiction { why }
        };
        let settings = reader.read(&settings_text).map_err(at_size)?;
        let needs_data = settings.engine.parity_group > 0 || settings.engine.chain.iter().any(|name| name == "byte-compare");
        if self.store.discard_data && needs_data {
            let why = format!(
                "variant {:?} discards its data, which the filter byte-compare and parity need: leave one of the two out",
                self.name
            );
            return Err(SpecError::Contradiction { why });
        }
        let text = lines.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        Ok(Scaled { size_bytes: scaled_bytes, fill_chunks, settings, settings_text, text })
    }
}
