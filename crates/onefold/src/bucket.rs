//! Stores in buckets, as the command line names them: `s3://BUCKET/PREFIX` instead of a directory.
//!
//! A store in a bucket has a *state* on each machine that uses it: a directory with its indexes and copies of its log
//! (decision 0068). It is made when it is needed, and may be removed at any time while nobody uses the store. For all
//! commands it is the directory of the store. The file `location` in it says where the store itself is.

use crate::failure::{Failure, Result};
use crate::remote::{is_url, user_directory};
use crate::settings;
use crate::store::{SETTINGS_FILE, cannot_open, read_settings};
use onefold_bucket::{BucketGround, BucketOptions, CACHE_DIRECTORY, CacheOptions, Location, is_location, open};
use onefold_engine::{DESCRIPTOR, Engine, EngineError, STATE_DAMAGED};
use onefold_ground::{Bucket, Ground, GroundError, LocalGround, Permissions, checksum, replace_file};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file that says where the store is.
const LOCATION: &str = "location";
/// The directory of all states; by default, one in the user's cache.
const STATES: &str = "ONEFOLD_CACHE";
/// The same for a system service, which has no home.
const SYSTEM_STATES: &str = "/var/cache/onefold";

/// The locations that the command line named, by the directories of their states.
static NAMED: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());

/// The directories of states that this process used.
static USED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// The directories of states that this process made.
static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Reads the name of a store: a directory, a server, or a location in object storage. For the last it returns the
/// directory of the state, which need not exist yet. The error is for people.
pub fn place(text: OsString) -> std::result::Result<PathBuf, String> {
    let Some(name) = text.to_str().filter(|text| text.contains("://") && !is_url(Path::new(text))) else { return Ok(text.into()) };
    if !is_location(name) {
        return Err("no such place is known: give a directory, s3://, gs://, az:// or file://, or onefold:// for a server".to_owned());
    }
    let (location, options) = parse(name)?;
    let directory = state_directory(&location, &options);
    NAMED.lock().insert(directory.clone(), name.to_owned());
    Ok(directory)
}

/// Returns the bucket that a store is in.
pub fn open_store(name: &str) -> Result<Arc<dyn Bucket>> {
    let (location, options) = location(name).map_err(Failure::cannot_run)?;
    open(&location, &options).map_err(|error| cannot_open(error.into()))
}

/// Reads the place of a store in object storage. Errors: it is none, for people.
fn location(name: &str) -> std::result::Result<(Location, BucketOptions), String> {
    match is_location(name) {
        true => parse(name),
        false => Err(format!("`{name}` is no place in object storage: write s3://, gs://, az:// or file://")),
    }
}

/// Returns the bucket of a store that several nodes share, and the directory of this node's state: `state`, or the one
/// that other commands use, too.
pub fn of_cluster(name: &str, state: Option<&Path>) -> Result<(PathBuf, Arc<dyn Bucket>)> {
    let (location, options) = location(name).map_err(|why| Failure::cannot_run(format!("--cluster: {why}")))?;
    let directory = state.map_or_else(|| state_directory(&location, &options), Path::to_owned);
    NAMED.lock().insert(directory.clone(), name.to_owned());
    let bucket = open(&location, &options).map_err(|error| cannot_open(error.into()))?;
    match Engine::descriptor_in(&*bucket) {
        Ok(_) if directory.join(LOCATION).exists() => note_location(&directory, name)?,
        Ok(_) => make_directory(&directory, name)?,
        Err(error) => return Err(cannot_open(error)),
    }
    Ok((directory, bucket))
}

/// Returns the ground of an engine of a node. It is in a directory below that of the node's state.
pub fn ground_of_node(directory: &Path, bucket: Arc<dyn Bucket>, settings: &settings::Cache) -> onefold_ground::Result<Arc<dyn Ground>> {
    let cannot = |source| GroundError::Io { operation: "make", path: directory.display().to_string(), source };
    DirBuilder::new().recursive(true).mode(Permissions::PRIVATE.directory).create(directory).map_err(cannot)?;
    let cache = CacheOptions { directory: directory.join(CACHE_DIRECTORY), bytes: settings.bytes, stamp: DESCRIPTOR.to_owned() };
    Ok(Arc::new(BucketGround::with_cache(Arc::new(LocalGround::open(directory)?), bucket, cache)))
}

/// Size of containers in a bucket, unless `init` is told another one: each is a request, and a service is faster with
/// larger objects.
pub const CONTAINER_BYTES: u32 = 32 << 20;

/// Returns whether a directory is that of the state of a store that the command line named.
pub fn is_named(directory: &Path) -> bool {
    NAMED.lock().contains_key(directory)
}

/// Returns the name of a store for people. `directory` is that of the store, or of its state.
pub fn shown(directory: &Path) -> String {
    match NAMED.lock().get(directory) {
        Some(name) => name.split('?').next().unwrap_or_default().to_owned(),
        None => directory.display().to_string(),
    }
}

/// Returns what to do about a damaged state that this process used. Call it when the store is closed.
pub fn advice_on_state() -> Option<String> {
    let used = USED.lock();
    let damaged = used.iter().find(|directory| directory.join(STATE_DAMAGED).exists())?;
    Some(format!(
        "the indexes of the store on this machine are damaged ({}). Run the command again: it makes them again first, from the bucket",
        damaged.display()
    ))
}

/// Removes the directories that this process made for stores that turned out not to be there: a mistake in a name
/// leaves nothing behind. Call it at the end.
pub fn remove_unused() {
    for directory in std::mem::take(&mut *MADE.lock()) {
        let has_only_location = std::fs::read_dir(&directory)
            .is_ok_and(|entries| entries.into_iter().all(|entry| entry.is_ok_and(|entry| entry.file_name() == LOCATION)));
        if has_only_location {
            let _ = std::fs::remove_file(directory.join(LOCATION)).and_then(|()| std::fs::remove_dir(&directory));
        }
    }
}

/// Makes the directory of a state for a location that the command line named.
fn make_directory(directory: &Path, name: &str) -> Result<()> {
    let cannot = |error: std::io::Error| {
        Failure::cannot_run(format!("cannot make {} for the state of the store: {error}", directory.display()))
            .advise(format!("{STATES} names another place"))
    };
    let mut builder = DirBuilder::new();
    builder.mode(Permissions::PRIVATE.directory);
    if let Some(above) = directory.parent() {
        builder.recursive(true).create(above).map_err(cannot)?;
    }
    match builder.recursive(false).create(directory) {
        Ok(()) => drop(MADE.lock().insert(directory.to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(cannot(error)),
    }
    note_location(directory, name)
}

/// Makes the directory of the state of a store that was just created again, if another command has removed it: that one
/// found no store.
pub fn keep_directory(directory: &Path) -> Result<()> {
    match find(directory)? {
        Some(Place { name, has_directory: false, .. }) => make_directory(directory, &name),
        _ => Ok(()),
    }
}

/// Writes down where the store is.
fn note_location(directory: &Path, name: &str) -> Result<()> {
    let local = LocalGround::open(directory).map_err(Failure::cannot_run)?;
    replace_file(&local, LOCATION, format!("{name}\n").as_bytes()).map_err(Failure::cannot_run)
}

/// Reads `SCHEME://BUCKET/PREFIX[?endpoint=URL&region=REGION&path-style=yes|no]`.
fn parse(text: &str) -> std::result::Result<(Location, BucketOptions), String> {
    let (location, query) = text.split_once('?').unwrap_or((text, ""));
    let location = Location::parse(location).map_err(|error| error.to_string())?;
    let mut options = BucketOptions::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("endpoint", url) => options.endpoint = Some(url.to_owned()),
            ("region", region) => options.region = Some(region.to_owned()),
            ("path-style", "yes") => options.path_style = Some(true),
            ("path-style", "no") => options.path_style = Some(false),
            ("path-style", other) => return Err(format!("`{text}`: path-style is `{other}`; it must be yes or no")),
            (other, _) => {
                return Err(format!("`{text}`: there is no option `{other}`; allowed are endpoint, region and path-style"));
            }
        }
    }
    Ok((location, options))
}

/// Returns the directory of a store's state on this machine, for this user.
fn state_directory(location: &Location, options: &BucketOptions) -> PathBuf {
    let states = std::env::var_os(STATES).map(PathBuf::from).or_else(|| user_directory("XDG_CACHE_HOME", ".cache"));
    let endpoint =
        options.endpoint.clone().or_else(|| ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"].iter().find_map(|name| std::env::var(name).ok()));
    // One name may be two buckets, at two services.
    let whole = format!("{location} {}", endpoint.unwrap_or_default());
    let readable: String =
        location.to_string().chars().map(|char| if char.is_ascii_alphanumeric() { char } else { '-' }).take(60).collect();
    let states = states.unwrap_or_else(|| PathBuf::from(SYSTEM_STATES));
    states.join("stores").join(format!("{readable}-{:016x}", checksum(whole.as_bytes())))
}

/// A store in a bucket.
struct Place {
    /// What the user calls it.
    name: String,
    bucket: Arc<dyn Bucket>,
    /// Whether its state has a directory.
    has_directory: bool,
}

/// Finds the bucket of a store whose state is in this directory. `None`: it is the directory of another store.
fn find(directory: &Path) -> Result<Option<Place>> {
    let named = NAMED.lock().get(directory).cloned();
    let file = std::fs::read_to_string(directory.join(LOCATION));
    let (name, has_directory) = match (file, named) {
        // What the command line says counts. A power failure may have left anything in the file.
        (Ok(text), Some(name)) => {
            if text.trim() != name {
                note_location(directory, &name)?;
            }
            (name, true)
        }
        (Ok(text), None) => (text.trim().to_owned(), true),
        (Err(_), Some(name)) => (name, false),
        (Err(error), None) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        (Err(error), None) => return Err(Failure::cannot_run(format!("cannot read {}: {error}", directory.join(LOCATION).display()))),
    };
    let wrong = |why: String| Failure::cannot_run(format!("cannot use {}: {why}", directory.join(LOCATION).display()));
    let (location, options) = parse(&name).map_err(wrong)?;
    let bucket = open(&location, &options).map_err(|error| cannot_open(error.into()))?;
    Ok(Some(Place { name, bucket, has_directory }))
}

/// Returns whether there is a store in the bucket that belongs to this directory. `None`: no bucket does.
pub fn has_store(directory: &Path) -> Result<Option<bool>> {
    let Some(place) = find(directory)? else { return Ok(None) };
    match Engine::descriptor_in(&*place.bucket) {
        Ok(_) => Ok(Some(true)),
        Err(EngineError::NoStoreInBucket { .. }) => Ok(Some(false)),
        Err(error) => Err(cannot_open(error)),
    }
}

/// Returns the ground of a store in a bucket whose state is in this directory. `None`: it is the directory of another
/// store. A directory that does not exist is made, and goes again at the end if the store does not exist.
pub fn ground(directory: &Path) -> Result<Option<Arc<dyn Ground>>> {
    let Some(Place { name, bucket, has_directory }) = find(directory)? else { return Ok(None) };
    if !has_directory {
        make_directory(directory, &name)?;
    }
    USED.lock().insert(directory.to_owned());
    let settings = read_settings(&directory.join(SETTINGS_FILE), true)?;
    let local = LocalGround::open(directory).map_err(Failure::cannot_run)?;
    Ok(Some(Arc::new(BucketGround::with_cache(Arc::new(local), bucket, cache(directory, &settings.cache)?))))
}

/// Returns where a store keeps containers on this machine.
fn cache(state: &Path, settings: &settings::Cache) -> Result<CacheOptions> {
    let directory = match (&settings.directory, state.file_name()) {
        (Some(all), Some(store)) => {
            let cannot = |error: std::io::Error| {
                Failure::cannot_run(format!("cannot make {} for the cache: {error}", all.display()))
                    .advise(format!("cache.directory in {} names another place", state.join(SETTINGS_FILE).display()))
            };
            DirBuilder::new().recursive(true).mode(Permissions::PRIVATE.directory).create(all).map_err(cannot)?;
            all.join(store)
        }
        _ => state.join(CACHE_DIRECTORY),
    };
    // With the descriptor, the whole state was made again.
    Ok(CacheOptions { directory, bytes: settings.bytes, stamp: DESCRIPTOR.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_read_with_their_options() {
        let (location, options) = parse("s3://b/p/q?endpoint=http://127.0.0.1:7070&region=eu&path-style=yes").unwrap();
        assert_eq!(location.to_string(), "s3://b/p/q");
        assert_eq!((options.endpoint.as_deref(), options.region.as_deref()), (Some("http://127.0.0.1:7070"), Some("eu")));
        assert_eq!(options.path_style, Some(true));
        for (wrong, why) in [("s3://b?x=1", "no option `x`"), ("s3://b?path-style=1", "must be yes or no"), ("s3:///p", "no bucket")] {
            assert!(parse(wrong).unwrap_err().contains(why), "{wrong}");
        }
    }

    #[test]
    fn each_store_has_a_cache_of_its_own() {
        let place = tempfile::tempdir().unwrap();
        let of = |settings: &settings::Cache| cache(Path::new("/states/one"), settings).unwrap().directory;
        assert_eq!(of(&settings::Cache { bytes: 1, directory: None }), Path::new("/states/one/cache"));
        let all = place.path().join("for/all");
        assert_eq!(of(&settings::Cache { bytes: 1, directory: Some(all.clone()) }), all.join("one"));
        assert!(all.is_dir());
    }

    #[test]
    fn the_same_name_at_another_service_has_another_state() {
        let of = |text: &str| {
            let (location, options) = parse(text).unwrap();
            state_directory(&location, &options)
        };
        assert_ne!(of("s3://b/p?endpoint=http://a"), of("s3://b/p?endpoint=http://b"));
        assert_ne!(of("s3://b/p"), of("s3://b-p"));
        assert_eq!(of("s3://b/p/"), of("s3://b/p"));
    }
}
