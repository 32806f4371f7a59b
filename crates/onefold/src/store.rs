//! Opening a store: its place and its settings.

use crate::bucket;
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::settings::{MAX_SETTINGS_BYTES, Settings, parse_settings};
use crate::waiting::Waiting;
use onefold_engine::{Engine, EngineError, Mode};
use onefold_fs::FsOptions;
use onefold_ground::{Ground, LocalGround};
use onefold_remote::services::server::forget_all;
use onefold_upkeep::ObjectMeaning;
use onefold_volume::VolumesOptions;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The name of the daemon's command.
pub const SERVE: &str = "serve";
/// The settings file in a store.
pub const SETTINGS_FILE: &str = "onefold.toml";

/// Advice about damage that keeps a store from opening.
pub const OPENING_ADVICE: &str = "the store opens only after a repair: run `onefold check --repair` (with --dry-run it only says what it would do), or \
    `onefold check --rebuild-index` if only index/ is damaged; restore anything else from a copy of the store";

/// An open store with the settings it was opened with.
#[derive(Clone, Debug)]
pub struct Store {
    /// The engine.
    pub engine: Arc<Engine>,
    /// Its settings.
    pub settings: Settings,
}

impl Store {
    /// Opens the store in `directory` with its own settings. `command` is shown to others that find the store locked.
    pub fn open(directory: &Path, mode: Mode, command: &str) -> Result<Store> {
        Store::open_when_free(directory, mode, command, &mut Waiting::until(None, &Interrupt::default(), true))
    }

    /// Opens the store in `directory` with its own settings, and waits while another process has it.
    pub fn open_when_free(directory: &Path, mode: Mode, command: &str, waiting: &mut Waiting<'_>) -> Result<Store> {
        let ground = ground(directory)?;
        let settings = read_settings(&directory.join(SETTINGS_FILE), true)?;
        Store::open_with(ground, settings, mode, command, waiting)
    }

    /// Opens a store as of a moment. If damage keeps it from opening, its sound parts are read, and `note` is told. So
    /// whatever can still be restored is.
    pub fn open_as_of_now(
        ground: Arc<dyn Ground>,
        settings: Settings,
        command: &str,
        note: &dyn Fn(&str),
    ) -> std::result::Result<Store, EngineError> {
        let opened = Engine::open(ground.clone(), settings.engine.clone(), Mode::Snapshot, command).and_then(|engine| {
            // Every reading command looks at these. Other damage is found and reported where it is.
            engine.for_each_object(b'b', &mut |_, _| {})?;
            Ok(engine)
        });
        match opened {
            Ok(engine) => Ok(Store { engine, settings }),
            Err(error) if error.is_damage() => match Engine::open_sound(ground, settings.engine.clone(), &ObjectMeaning, command) {
                Ok((engine, found)) => {
                    note(&format!("the store is damaged: {error}"));
                    found.losses.iter().for_each(|loss| note(&format!("  {loss}")));
                    note(&format!("reading only the sound part; {OPENING_ADVICE}"));
                    Ok(Store { engine, settings })
                }
                // A daemon may have it, or nothing is sound.
                Err(locked @ EngineError::Lock(_)) => Err(locked),
                Err(_) => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Opens a store with given settings, and waits while another process has it.
    pub fn open_with(ground: Arc<dyn Ground>, settings: Settings, mode: Mode, command: &str, waiting: &mut Waiting<'_>) -> Result<Store> {
        let engine = waiting.open(|| Engine::open(ground.clone(), settings.engine.clone(), mode, command));
        let engine = engine.map_err(|error| waiting.interruption(&error).unwrap_or_else(|| cannot_open(error)))?;
        let store = Store { engine, settings };
        // A daemon has guards for them, and decides itself.
        if command != SERVE {
            store.keep_no_unfinished(mode)?;
        }
        Ok(store)
    }

    /// Forgets what clients of a server supplied for backups that are not finished, if this process may remove chunks:
    /// it has no guards for them.
    pub fn keep_no_unfinished(&self, mode: Mode) -> Result<()> {
        if mode == Mode::ReadWrite { self.forget_unfinished() } else { Ok(()) }
    }

    /// Does the same in any mode.
    pub fn forget_unfinished(&self) -> Result<()> {
        Ok(forget_all(self.engine.ground().as_ref())?)
    }

    /// Returns the options for opening the volumes of this store.
    pub fn volumes_options(&self) -> VolumesOptions {
        VolumesOptions {
            dirty_bytes: self.settings.volume_dirty_bytes,
            mapping_cache_bytes: self.settings.volume_mapping_cache_bytes,
            ..VolumesOptions::default()
        }
    }

    /// Returns the options for opening the filesystems of this store.
    pub fn filesystem_options(&self) -> FsOptions {
        FsOptions {
            commit_interval: Duration::from_millis(self.settings.commit_interval_ms),
            inode_cache_bytes: self.settings.filesystem_inodes_bytes,
        }
    }

    /// Closes the store: everything written is durable on return, and the next opening is quick.
    pub fn close(self) -> Result<()> {
        Ok(self.engine.close()?)
    }
}

/// Opens the directory of a store.
pub fn ground(directory: &Path) -> Result<Arc<dyn Ground>> {
    if crate::remote::is_url(directory) {
        return Err(
            Failure::cannot_run("this command needs the store itself, not a server").advise("run it on the machine that has the store")
        );
    }
    if let Some(ground) = bucket::ground(directory)? {
        return Ok(ground);
    }
    match LocalGround::open(directory) {
        Ok(ground) => Ok(Arc::new(ground)),
        Err(error) if error.is_not_found() => {
            Err(Failure::cannot_run(format!("there is no store at {}: no such directory", directory.display()))
                .advise(format!("check the spelling, or create a store with `onefold init {}`", directory.display())))
        }
        Err(error) => Err(Failure::cannot_run(error).advise("the store is a directory that you may read and write")),
    }
}

/// Reads a settings file. With `optional`, a missing file means the defaults.
pub fn read_settings(path: &Path, optional: bool) -> Result<Settings> {
    let wrong = |why: String| Failure::cannot_run(format!("cannot use the settings in {}: {why}", path.display()));
    let mut text = String::new();
    // A file named on the command line may be a pipe. The store's own must be a file: reading anything else might wait.
    if optional && std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(wrong("it is not a file".to_owned()));
    }
    let read = File::open(path).and_then(|file| file.take(MAX_SETTINGS_BYTES + 1).read_to_string(&mut text));
    match read {
        Ok(length) if length as u64 > MAX_SETTINGS_BYTES => Err(wrong(format!("the file is longer than {MAX_SETTINGS_BYTES} bytes"))),
        Ok(_) => parse_settings(&text).map_err(|error| {
            wrong(error.to_string())
                .advise("docs/configuration.md lists every key with its range; `onefold init` writes them all, commented")
        }),
        Err(error) if optional && error.kind() == std::io::ErrorKind::NotFound => Ok(Settings::default()),
        Err(error) => Err(wrong(error.to_string())),
    }
}

/// Turns a failure to open into one of a command that could not run.
pub fn cannot_open(error: EngineError) -> Failure {
    let is_damage = error.is_damage();
    let failure = Failure { exit: Exit::CannotRun, ..Failure::from(error) };
    // No other command would get further.
    if is_damage && !failure.message.contains("://") { failure.advise(OPENING_ADVICE) } else { failure }
}
