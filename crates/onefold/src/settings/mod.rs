//! The settings of a store: `STORE/onefold.toml`, with every key described once.
//!
//! [`keys::KEYS`] is the one list of keys. Three things come from it: reading, the commented file that `init` writes,
//! and the test that `docs/configuration.md` names each key. An unknown key is refused with the nearest known one, an
//! out-of-range value with the range; both with the line.
//!
//! Settings change how a store is used, never its content: every settings file opens every store.

mod filesystems;
mod items;
mod keys;
mod portals;
mod targets;

pub use filesystems::{FILESYSTEM_KEYS, FileMount};
pub use items::ItemKey;
pub use keys::{KEYS, Key, Kind};
pub use portals::{parse_listen, parse_portal};
pub use targets::{FileTarget, FileUnit, TARGET_KEYS};

use crate::cli::Rate;
use crate::units::{KIB, parse_size, size};
use keys::Value;
use onefold_ground::words::nearest;
use std::path::PathBuf;
use toml::de::{DeTable, DeValue};

/// Longest settings file that is read, bytes.
pub const MAX_SETTINGS_BYTES: u64 = 256 * KIB;

/// Filters that a chain can name.
pub const FILTERS: [&str; 6] = ["zero-chunk", "block-index", "bloom", "container-cache", "chunk-index", "byte-compare"];

/// All settings. `Settings::default()` is the meaning of an empty file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Sections `memory`, `log`, `filter` and `workers`: the settings of the engine.
    pub engine: onefold_engine::Settings,
    /// Limit of the write-back buffers of all volumes together.
    pub volume_dirty_bytes: usize,
    /// Limit of the cached block mappings of all volumes together.
    pub volume_mapping_cache_bytes: usize,
    /// Limit of the cached inodes of each mounted filesystem.
    pub filesystem_inodes_bytes: usize,
    /// What a store in a bucket keeps of it on this machine.
    pub cache: Cache,
    /// Background reclamation in the daemon.
    pub reclamation: Reclamation,
    /// Background scrubbing in the daemon.
    pub scrub: Scrub,
    /// The NBD server.
    pub nbd: Nbd,
    /// The iSCSI server.
    pub iscsi: Iscsi,
    /// What is not synced to a mounted filesystem is stored after this time.
    pub commit_interval_ms: u64,
    /// Filesystems that the daemon mounts.
    pub filesystems: Vec<FileMount>,
    /// iSCSI targets in addition to those in the store.
    pub targets: Vec<FileTarget>,
    /// The backup server.
    pub backup: Backup,
}

/// The cache of a store in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Most bytes on disk; 0: none.
    pub bytes: u64,
    /// The directory for all stores. `None`: each has it in its state.
    pub directory: Option<PathBuf>,
}

/// How the daemon frees unneeded space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reclamation {
    /// Seconds between two looks; 0: only `onefold prune` reclaims.
    pub interval_seconds: u64,
    /// Percent of all bytes that may be unused before containers are merged.
    pub max_unused_percent: u64,
    /// Containers with a larger percentage of needed data are left alone.
    pub max_fill_percent: u64,
    /// Percent of all bytes that may probably be stored twice before copies are joined; 100: only `onefold dedup` does
    /// it.
    pub max_missed_percent: u64,
    /// Memory of the search for them.
    pub dedup_memory_bytes: usize,
}

/// How the daemon scrubs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scrub {
    /// Days between the starts of two passes; 0: only `onefold scrub` scrubs.
    pub interval_days: u64,
    /// The highest read rate. `None`: a quarter of the time.
    pub bytes_per_second: Option<u64>,
}

/// The NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nbd {
    /// TCP address and port; `None`: no TCP.
    pub listen: Option<String>,
    /// Path of a Unix socket; `None`: no socket.
    pub socket: Option<PathBuf>,
    /// Most connections at a time.
    pub max_connections: usize,
    /// Most requests in flight per connection.
    pub max_requests: usize,
    /// Limit of the payloads of all requests in memory.
    pub payload_bytes: usize,
    /// Server certificate chain, PEM.
    pub tls_certificate: Option<PathBuf>,
    /// Private key of the certificate, PEM.
    pub tls_key: Option<PathBuf>,
    /// Certificate authorities for client certificates, PEM. If given, every client over TCP must have a certificate.
    pub tls_client_ca: Option<PathBuf>,
    /// Whether TCP clients without TLS are refused.
    pub tls_required: bool,
    /// Whether unencrypted traffic may leave this machine.
    pub allow_plain_off_loopback: bool,
    /// Whether all volumes are exported read-only.
    pub read_only: bool,
}

/// The iSCSI server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Iscsi {
    /// Portals, each in the format of [`parse_portal`]. Empty: no iSCSI.
    pub listen: Vec<String>,
    /// Most sessions at a time.
    pub max_sessions: usize,
    /// Most commands of one session at a time.
    pub max_commands: usize,
    /// Initiators are warned when less than this part of the store's device is free, percent. 0: never.
    pub low_space_percent: u64,
    /// Limit of the data of commands of all sessions in memory.
    pub payload_bytes: u64,
    /// Limit of the data of commands of one session in memory.
    pub session_bytes: usize,
    /// Whether targets without rules are served on addresses that other machines can reach.
    pub allow_open_off_loopback: bool,
}

/// The backup server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// Addresses, each in the format of [`parse_listen`]. Empty: no backup server.
    pub listen: Vec<String>,
    /// Certificate chain, PEM. `None`: the store's own.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// Authorities of client certificates.
    pub client_ca: Option<PathBuf>,
    /// Whether clients without a certificate are refused.
    pub client_certificate_required: bool,
    /// Whether there is an access log.
    pub access_log: bool,
    /// Its directory. `None`: `logs` in the store's.
    pub logs: Option<PathBuf>,
    /// How long a session without a connection is kept.
    pub linger_seconds: u64,
    /// How often silent ends say that they are there.
    pub keep_alive_seconds: u64,
    /// Memory for data on its way.
    pub budget_bytes: u64,
    /// Most sessions at a time.
    pub max_sessions: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            engine: onefold_engine::Settings { reserve_bytes: 64 << 20, hooks_each_container: true, ..onefold_engine::Settings::default() },
            volume_dirty_bytes: 64 << 20,
            volume_mapping_cache_bytes: 16 << 20,
            filesystem_inodes_bytes: 16 << 20,
            cache: Cache { bytes: 1 << 30, directory: None },
            reclamation: Reclamation {
                interval_seconds: 600,
                max_unused_percent: 20,
                max_fill_percent: 50,
                max_missed_percent: 1,
                dedup_memory_bytes: 256 << 20,
            },
            scrub: Scrub { interval_days: 30, bytes_per_second: None },
            nbd: Nbd {
                listen: None,
                socket: None,
                max_connections: 256,
                max_requests: 32,
                payload_bytes: 128 << 20,
                tls_certificate: None,
                tls_key: None,
                tls_client_ca: None,
                tls_required: false,
                allow_plain_off_loopback: false,
                read_only: false,
            },
            iscsi: Iscsi {
                listen: Vec::new(),
                max_sessions: 256,
                max_commands: 64,
                low_space_percent: 5,
                payload_bytes: 128 << 20,
                session_bytes: 32 << 20,
                allow_open_off_loopback: false,
            },
            backup: Backup {
                listen: Vec::new(),
                certificate: None,
                key: None,
                client_ca: None,
                client_certificate_required: false,
                access_log: true,
                logs: None,
                linger_seconds: 120,
                keep_alive_seconds: 15,
                budget_bytes: 128 << 20,
                max_sessions: 64,
            },
            commit_interval_ms: 5000,
            filesystems: Vec::new(),
            targets: Vec::new(),
        }
    }
}

/// Why a text is not valid settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// It is not TOML.
    #[error("line {line}: {why}")]
    Syntax {
        /// The line, from 1.
        line: usize,
        /// The parser's message.
        why: String,
    },
    /// An unknown section.
    #[error("line {line}: unknown section `[{section}]`{}", meant(.nearest.as_deref().map(|name| format!("[{name}]"))))]
    UnknownSection {
        /// The line, from 1.
        line: usize,
        /// Its name.
        section: String,
        /// The nearest known section.
        nearest: Option<String>,
    },
    /// An unknown key.
    #[error("line {line}: unknown key `{key}` in [{section}]{}", meant(.nearest.clone()))]
    UnknownKey {
        /// The line, from 1.
        line: usize,
        /// The section.
        section: String,
        /// The key.
        key: String,
        /// The nearest known key.
        nearest: Option<String>,
    },
    /// A value that the key does not allow.
    #[error("line {line}: {section}.{key} {why}")]
    Value {
        /// The line, from 1.
        line: usize,
        /// The section.
        section: String,
        /// The key.
        key: String,
        /// What is wrong with it, and what is allowed.
        why: String,
    },
    /// Two settings that contradict each other.
    #[error("{why}")]
    Contradiction {
        /// Which, and why.
        why: String,
    },
}

impl SettingsError {
    /// Returns what is wrong, without the line: for callers whose text has other lines.
    pub fn without_line(&self) -> String {
        let text = self.to_string();
        match text.strip_prefix("line ").and_then(|rest| rest.split_once(": ")) {
            Some((_, what)) => what.to_owned(),
            None => text,
        }
    }
}

fn meant(nearest: Option<String>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

/// Parses settings. Missing keys keep their defaults.
pub fn parse_settings(text: &str) -> Result<Settings, SettingsError> {
    let document = DeTable::parse(text).map_err(|error| SettingsError::Syntax {
        line: error.span().map_or(1, |span| line_of(text, span.start)),
        why: error.message().to_owned(),
    })?;
    let mut settings = Settings::default();
    for (section, content) in document.get_ref() {
        let line = line_of(text, section.span().start);
        let section: &str = section.get_ref();
        if section == "target" {
            settings.targets = targets::parse_targets(text, line, content.get_ref())?;
            continue;
        }
        if section == "filesystem" {
            settings.filesystems = filesystems::parse_filesystems(text, line, content.get_ref())?;
            continue;
        }
        let known = KEYS.iter().any(|key| key.section == section);
        let (true, DeValue::Table(entries)) = (known, content.get_ref()) else {
            let nearest =
                if known { Some(section) } else { nearest(section, KEYS.iter().map(|key| key.section).chain(["target", "filesystem"])) };
            return Err(SettingsError::UnknownSection { line, section: section.to_owned(), nearest: nearest.map(str::to_owned) });
        };
        for (name, value) in entries {
            let line = line_of(text, name.span().start);
            let name: &str = name.get_ref();
            let Some(key) = KEYS.iter().find(|key| key.section == section && key.name == name) else {
                let nearest = nearest(name, KEYS.iter().filter(|key| key.section == section).map(|key| key.name));
                let nearest = nearest.map(str::to_owned);
                return Err(SettingsError::UnknownKey { line, section: section.to_owned(), key: name.to_owned(), nearest });
            };
            let value = check_value(key.kind, value.get_ref()).map_err(|why| SettingsError::Value {
                line,
                section: section.to_owned(),
                key: name.to_owned(),
                why,
            })?;
            (key.set)(&mut settings, value);
        }
    }
    settings.check()?;
    Ok(settings)
}

impl Settings {
    /// Checks that settings do not contradict each other, which single values cannot show. Check again after
    /// command-line options were laid over them.
    pub fn check(&self) -> Result<(), SettingsError> {
        let wrong = |why: String| Err(SettingsError::Contradiction { why });
        let (segment, limit) = (self.engine.log_segment_bytes, self.engine.log_limit_bytes);
        if limit < 2 * segment {
            return wrong(format!("log.limit is {}; it must be at least twice log.segment ({})", size(limit), size(segment)));
        }
        if self.engine.parity_group == 1 {
            return wrong("parity.group is 1; it must be 0 (no parity) or from 2 to 16".to_owned());
        }
        let nbd = &self.nbd;
        if nbd.tls_certificate.is_some() != nbd.tls_key.is_some() {
            return wrong("nbd.tls_certificate and nbd.tls_key go together: give both or none".to_owned());
        }
        if nbd.tls_certificate.is_none() && (nbd.tls_required || nbd.tls_client_ca.is_some()) {
            return wrong("nbd.tls_required and nbd.tls_client_ca need nbd.tls_certificate and nbd.tls_key".to_owned());
        }
        let backup = &self.backup;
        if backup.certificate.is_some() != backup.key.is_some() {
            return wrong("backup.certificate and backup.key go together: give both or none".to_owned());
        }
        if backup.client_certificate_required && backup.client_ca.is_none() {
            return wrong("backup.client_certificate_required needs backup.client_ca".to_owned());
        }
        Ok(())
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

/// Reads a value of a kind. The error says what is wrong and what is allowed. It completes a sentence that begins with
/// the key.
fn check_value(kind: Kind, value: &DeValue<'_>) -> Result<Value, String> {
    let expected = |what: String| format!("is {}; it must be {what}", describe(value));
    match kind {
        Kind::Size { least, most } => {
            let wanted = || format!("a size from {} to {}, as in \"64MiB\"", size(least), size(most));
            let bytes = match value {
                DeValue::String(text) => parse_size(text).map_err(|error| format!("is not a size: {error}"))?,
                DeValue::Integer(_) => integer(value).ok_or_else(|| expected(wanted()))?,
                _ => return Err(expected(wanted())),
            };
            if (least..=most).contains(&bytes) { Ok(Value::Number(bytes)) } else { Err(expected(wanted())) }
        }
        Kind::Count { least, most } => match integer(value) {
            Some(number) if (least..=most).contains(&number) => Ok(Value::Number(number)),
            _ => Err(expected(format!("a whole number from {least} to {most}"))),
        },
        Kind::Rate => match value {
            DeValue::String(text) if text == "auto" => Ok(Value::Number(0)),
            DeValue::String(text) => text.parse().map(|Rate(bytes)| Value::Number(bytes)).map_err(|why| format!("is not a rate: {why}")),
            _ => Err(expected("a rate, as in \"50MiB/s\", or \"auto\"".to_owned())),
        },
        Kind::Flag => match value {
            DeValue::Boolean(flag) => Ok(Value::Flag(*flag)),
            _ => Err(expected("true or false".to_owned())),
        },
        Kind::Text => match value {
            DeValue::String(text) if text.is_empty() => Ok(Value::Text(None)),
            DeValue::String(text) if text.chars().any(char::is_control) => Err("has a control character in it".to_owned()),
            DeValue::String(text) => Ok(Value::Text(Some(text.to_string()))),
            _ => Err(expected("a text".to_owned())),
        },
        Kind::Choice(names) => match value {
            DeValue::String(text) if names.contains(&text.as_ref()) => Ok(Value::Text(Some(text.to_string()))),
            _ => Err(expected(format!("one of {}", kind.describe()))),
        },
        Kind::Portals => {
            let portals = texts(value, "addresses, as in [\"127.0.0.1:3260\"]")?;
            portals.iter().try_for_each(|portal| parse_portal(portal).map(drop))?;
            Ok(Value::Names(portals))
        }
        Kind::Addresses => {
            let addresses = texts(value, "addresses, as in [\"192.168.1.5:8210\"]")?;
            addresses.iter().try_for_each(|address| parse_listen(address, crate::network::DEFAULT_PORT).map(drop))?;
            Ok(Value::Names(addresses))
        }
        Kind::Chain => {
            let names = texts(value, "filters")?;
            check_chain(&names)?;
            Ok(Value::Names(names))
        }
    }
}

/// A list of texts.
fn texts(value: &DeValue<'_>, of: &str) -> Result<Vec<String>, String> {
    let DeValue::Array(items) = value else { return Err(format!("is {}; it must be a list of {of}", describe(value))) };
    let mut found = Vec::new();
    for item in items.iter() {
        let DeValue::String(text) = item.get_ref() else {
            return Err(format!("has the value {}; it must be a list of {of}", describe(item.get_ref())));
        };
        found.push(text.to_string());
    }
    Ok(found)
}

/// Checks that these names make a filter chain. The error completes a sentence that begins with the chain's key or
/// option.
pub fn check_chain(names: &[String]) -> Result<(), String> {
    for (place, name) in names.iter().enumerate() {
        if !FILTERS.contains(&name.as_str()) {
            let hint = meant(nearest(name, FILTERS).map(str::to_owned));
            return Err(format!("names `{name}`, which is not a filter{hint} (filters: {})", FILTERS.join(", ")));
        }
        if names[..place].contains(name) {
            return Err(format!("names `{name}` twice"));
        }
    }
    // Only the chunk index knows every chunk. Without it, duplicates would be stored again and counts would be wrong.
    if !names.iter().any(|name| name == "chunk-index") {
        return Err("lacks the filter `chunk-index`, which finds every duplicate".to_owned());
    }
    Ok(())
}

fn integer(value: &DeValue<'_>) -> Option<u64> {
    match value {
        DeValue::Integer(integer) => u64::from_str_radix(&integer.as_str().replace('_', ""), integer.radix()).ok(),
        _ => None,
    }
}

fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("\"{}\"", crate::units::printable(text.as_bytes())),
        DeValue::Integer(integer) => integer.as_str().to_owned(),
        DeValue::Float(float) => float.as_str().to_owned(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a section".to_owned(),
    }
}

/// Values of keys that the file of a new store sets, by name.
pub type Chosen = Vec<(&'static str, String)>;

/// Returns the choice of the memory of hooks.
pub fn sampled_index(bytes: u64) -> (&'static str, String) {
    let text = Some(size(bytes)).filter(|text| parse_size(text) == Ok(bytes));
    ("sampled_index", text.map_or_else(|| bytes.to_string(), |text| format!("\"{text}\"")))
}

/// Returns the choices for a store that has hardly any memory: 16 MiB in all, for one face and one client.
pub fn little_memory() -> Chosen {
    let sizes = [
        ("auxiliary_index", "2MiB"),
        ("in_flight", "1MiB"),
        ("object_index_cache", "2MiB"),
        ("object_index_pending", "2MiB"),
        ("volume_dirty", "4MiB"),
        ("volume_mapping_cache", "1MiB"),
        ("filesystem_inodes", "4MiB"),
        ("limit", "64MiB"),
        ("commit", "4MiB"),
    ];
    let sizes = sizes.map(|(key, value)| (key, format!("\"{value}\"")));
    sizes.into_iter().chain([("reads_in_flight", "8".to_owned())]).collect()
}

/// Returns the commented file that `init` writes: every key with its default, unit and range. All are commented out but
/// those that are chosen.
pub fn template(chosen: &[(&str, String)]) -> String {
    let mut out = String::from(
        "# Settings of this onefold store. Every key shows its default; remove the `#` before a key to change it.\n\
         # Settings change how the store is worked with, never what is in it. Sizes: 8KiB, 64MiB, 1TiB (8K is 8KiB, 8kB is 8000 bytes).\n\
         # They take effect when a command opens the store; `onefold serve` must be started again.\n",
    );
    let mut section = "";
    for key in KEYS {
        if key.section != section {
            section = key.section;
            out.push_str(&format!("\n[{section}]\n"));
        }
        out.push_str(&format!("# {}\n# Value: {}.\n# {} = {}\n", key.about, key.kind.describe(), key.name, key.default));
        for (_, value) in chosen.iter().filter(|(name, _)| *name == key.name) {
            out.push_str(&format!("{} = {value}\n", key.name));
        }
    }
    out.push_str("\n# An iSCSI target; there may be several. docs/configuration.md has all keys.\n# [[target]]\n# name = \"disks\"\n# luns = { 0 = \"disk\" }\n");
    out.push_str("\n# A filesystem that `onefold serve` mounts; there may be several.\n# [[filesystem]]\n# name = \"files\"\n# mount = \"/srv/files\"\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn uncommented() -> String {
        let keys: Vec<String> = KEYS.iter().map(|key| format!("# {} = ", key.name)).collect();
        let template = template(&[]);
        let lines = template.lines().map(|line| if keys.iter().any(|key| line.starts_with(key)) { &line[2..] } else { line });
        lines.map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn the_defaults_written_down_are_the_defaults() {
        assert_eq!(parse_settings(""), Ok(Settings::default()));
        assert_eq!(parse_settings(&template(&[])), Ok(Settings::default()));
        for bytes in [3 << 30, 1_234_567_891] {
            let mut chosen = Settings::default();
            assert!(chosen.engine.hooks_each_container);
            chosen.engine.sampled_index_bytes = bytes;
            assert_eq!(parse_settings(&template(&[sampled_index(bytes as u64)])), Ok(chosen));
        }
        let text = uncommented();
        assert_eq!(text.lines().filter(|line| line.contains(" = ") && !line.starts_with('#')).count(), KEYS.len());
        assert_eq!(parse_settings(&text), Ok(Settings::default()));
    }

    #[test]
    fn every_key_is_documented_with_its_default() {
        let document = include_str!("../../../../docs/configuration.md");
        for key in KEYS {
            let row = format!("| `{}` | `{}` | {} | {} |", key.name, key.default, key.kind.describe(), key.about);
            assert!(document.contains(&row), "docs/configuration.md lacks, in section [{}]:\n{row}", key.section);
            assert!(document.contains(&format!("## [{}]", key.section)));
        }
    }

    #[test]
    fn every_key_sets_its_own_setting() {
        for key in KEYS {
            let value = match key.kind {
                Kind::Size { most, .. } => format!("{most}"),
                Kind::Count { most, .. } => format!("{most}"),
                Kind::Rate => "\"5MiB/s\"".to_owned(),
                Kind::Flag => (key.default == "false").to_string(),
                Kind::Text => "\"/some/thing\"".to_owned(),
                Kind::Choice(names) => format!("\"{}\"", names[names.len() - 1]),
                Kind::Chain => "[\"chunk-index\"]".to_owned(),
                Kind::Portals => "[\"127.0.0.1:3260\"]".to_owned(),
                Kind::Addresses => "[\"127.0.0.1\"]".to_owned(),
            };
            let value = DeValue::parse(&value).unwrap();
            let mut settings = Settings::default();
            (key.set)(&mut settings, check_value(key.kind, value.get_ref()).unwrap());
            assert_ne!(settings, Settings::default(), "{}.{}", key.section, key.name);
        }
    }

    #[test]
    fn an_unknown_key_is_refused_with_line_and_nearest() {
        let error = parse_settings("[memory]\n\nframe_cach = \"1MiB\"\n").unwrap_err();
        assert_eq!(error.to_string(), "line 3: unknown key `frame_cach` in [memory]; did you mean `frame_cache`?");
        let error = parse_settings("\n[memry]\n").unwrap_err();
        assert_eq!(error.to_string(), "line 2: unknown section `[memry]`; did you mean `[memory]`?");
        assert!(parse_settings("memory = 3").is_err());
        assert!(parse_settings("frame_cache = \"1MiB\"").is_err());
    }

    #[test]
    fn a_value_out_of_range_is_refused_with_line_and_range() {
        for (text, expected) in [
            ("[memory]\nframe_cache = \"1B\"", "line 2: memory.frame_cache is \"1B\"; it must be a size from "),
            ("[memory]\nframe_cache = true", "line 2: memory.frame_cache is true; it must be a size from "),
            ("[memory]\nframe_cache = \"fast\"", "line 2: memory.frame_cache is not a size: `fast` is not a size"),
            ("[memory]\nframe_cache = -1", "line 2: memory.frame_cache is -1; it must be a size"),
            ("[nbd]\nmax_connections = 0", "line 2: nbd.max_connections is 0; it must be a whole number from 1 to "),
            ("[scrub]\nrate = \"50MiB\"", "line 2: scrub.rate is not a rate: `50MiB` is not a rate: write it as in 50MiB/s"),
            ("[scrub]\nrate = 5", "line 2: scrub.rate is 5; it must be a rate, as in \"50MiB/s\", or \"auto\""),
            ("[nbd]\nread_only = 1", "line 2: nbd.read_only is 1; it must be true or false"),
            ("[nbd]\nlisten = 1", "line 2: nbd.listen is 1; it must be a text"),
            (
                "[filter]\nchain = [\"blom\", \"chunk-index\"]",
                "line 2: filter.chain names `blom`, which is not a filter; did you mean `bloom`?",
            ),
            ("[iscsi]\nlisten = \"127.0.0.1\"", "line 2: iscsi.listen is \"127.0.0.1\"; it must be a list of addresses"),
            ("[iscsi]\nlisten = [\"127.0.0.1:x\"]", "line 2: iscsi.listen has `127.0.0.1:x`: it is not an address"),
            (
                "[memory]\ncatalog_cache_policy = \"fifo\"",
                "line 2: memory.catalog_cache_policy is \"fifo\"; it must be one of \"lru\", \"2q\"",
            ),
            ("[filter]\nchain = [\"bloom\"]", "line 2: filter.chain lacks the filter `chunk-index`"),
            ("[filter]\nchain = [\"bloom\", \"bloom\", \"chunk-index\"]", "line 2: filter.chain names `bloom` twice"),
            ("[log]\nsegment = \"64MiB\"\nlimit = \"64MiB\"", "log.limit is 64MiB; it must be at least twice log.segment (64MiB)"),
            ("[nbd]\ntls_key = \"k\"", "nbd.tls_certificate and nbd.tls_key go together"),
            ("[nbd]\ntls_required = true", "nbd.tls_required and nbd.tls_client_ca need"),
            ("[parity]\ngroup = 1", "parity.group is 1; it must be 0 (no parity) or from 2 to 16"),
            ("[nbd\n", "line 1: "),
            ("[nbd]\nlisten = \"a\"\nlisten = \"b\"", "line 3: duplicate key"),
        ] {
            let error = parse_settings(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn an_empty_text_means_none() {
        assert_eq!(parse_settings("[nbd]\nlisten = \"\"").unwrap().nbd.listen, None);
    }

    proptest! {
        #[test]
        fn any_text_is_settings_or_an_error(text: String) {
            let _ = parse_settings(&text);
        }

        #[test]
        fn any_value_is_taken_or_refused(key in 0..KEYS.len(), value in "[-0-9a-zA-Z\"\\[\\]., _{}=\n]{0,30}") {
            let _ = parse_settings(&format!("[{}]\n{} = {value}", KEYS[key].section, KEYS[key].name));
        }
    }
}
