//! What experiments need from this program: the settings of a store, and ways to volumes over protocols.

use super::services::{IscsiService, NbdService};
use super::trees::{FilesystemService, PassthroughService};
use crate::settings::{KEYS, Kind, Settings, SettingsError, parse_settings};
use onefold_experiment::run::{self, Served, Service};
use onefold_experiment::spec::{Face, SettingsReader, StoreSettings};
use onefold_volume::VolumesOptions;

/// This program.
pub struct Program;

/// The sections that apply to a store without a daemon.
const SECTIONS: [&str; 8] = ["memory", "log", "filter", "index", "levels", "workers", "parity", "mount"];

impl SettingsReader for Program {
    fn check(&self, key: &str, value: &str) -> Result<(), String> {
        let section = key.split_once('.').map_or(key, |(section, _)| section);
        if KEYS.iter().any(|known| known.section == section) && !SECTIONS.contains(&section) {
            return Err(format!("[{section}] means nothing for an experiment; these do: {}", SECTIONS.join(", ")));
        }
        match parse_settings(&format!("{key} = {value}")) {
            // It may be right together with other keys.
            Ok(_) | Err(SettingsError::Contradiction { .. }) => Ok(()),
            // The reader of the declaration knows the line.
            Err(error) => Err(error.without_line()),
        }
    }

    fn least_bytes(&self, key: &str) -> Option<u64> {
        let (section, name) = key.split_once('.')?;
        let known = KEYS.iter().find(|known| known.section == section && known.name == name)?;
        match known.kind {
            Kind::Size { least, .. } => Some(least),
            _ => None,
        }
    }

    fn read(&self, text: &str) -> Result<StoreSettings, String> {
        let settings = parse_settings(text).map_err(|error| error.without_line())?;
        Ok(store_settings(&settings))
    }
}

fn store_settings(settings: &Settings) -> StoreSettings {
    let volumes = VolumesOptions {
        dirty_bytes: settings.volume_dirty_bytes,
        mapping_cache_bytes: settings.volume_mapping_cache_bytes,
        ..VolumesOptions::default()
    };
    StoreSettings { engine: settings.engine.clone(), volumes }
}

impl run::Program for Program {
    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").to_owned()
    }

    fn serve(&self, face: Face, store: &Served<'_>) -> Result<Box<dyn Service>, String> {
        let settings = parse_settings(store.settings).map_err(|error| error.without_line())?;
        match face {
            Face::Nbd => Ok(Box::new(NbdService::start(store, &settings)?)),
            Face::Iscsi => Ok(Box::new(IscsiService::start(store, &settings)?)),
            Face::Filesystem => Ok(Box::new(FilesystemService::start(store, &settings)?)),
            Face::Passthrough => Ok(Box::new(PassthroughService::start(store)?)),
            Face::InProcess | Face::Disk => Err("calls need no server".to_owned()),
        }
    }
}
