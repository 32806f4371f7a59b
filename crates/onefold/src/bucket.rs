//! Stores in buckets, as the command line names them: `s3://BUCKET/PREFIX` instead of a directory.
//!
//! A store in a bucket has a *state* on each machine that uses it: a directory with its indexes and copies of its log
//! (decision 0068). It is made when it is needed, and may be removed at any time while nobody uses the store. For all
//! commands it is the directory of the store. The file `location` in it says where the store itself is.

use crate::failure::{Failure, Result};
use crate::remote::user_directory;
use onefold_bucket::{BucketGround, BucketOptions, Location, is_location, open};
use onefold_ground::{Ground, Permissions, checksum, read_file};
use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file that says where the store is.
const LOCATION: &str = "location";
/// Bytes of it are fewer.
const LOCATION_LIMIT_BYTES: u64 = 16 << 10;
/// The directory of all states; by default, one in the user's cache.
const STATES: &str = "ONEFOLD_CACHE";
/// The same for a system service, which has no home.
const SYSTEM_STATES: &str = "/var/cache/onefold";

/// Reads the name of a store: a directory, a server, or a location in object storage. Of the last it makes and returns
/// the directory of the state. The error is for people.
pub fn place(text: OsString) -> std::result::Result<PathBuf, String> {
    let Some(name) = text.to_str().filter(|text| is_location(text)).map(str::to_owned) else { return Ok(text.into()) };
    let (location, options) = parse(&name)?;
    let directory = state_directory(&location, &options);
    let cannot = |error: std::io::Error| format!("cannot make {} for the state of the store: {error}", directory.display());
    DirBuilder::new().recursive(true).mode(Permissions::PRIVATE.directory).create(&directory).map_err(cannot)?;
    let mut file = OpenOptions::new();
    match file.write(true).create_new(true).mode(Permissions::PRIVATE.file).open(directory.join(LOCATION)) {
        Ok(mut file) => file.write_all(format!("{name}\n").as_bytes()).map_err(cannot)?,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(cannot(error)),
    }
    Ok(directory)
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

/// Returns the ground of a store: `local`, or a bucket if it is the directory of a state.
pub fn ground(local: Arc<dyn Ground>) -> Result<Arc<dyn Ground>> {
    let text = match read_file(&*local, LOCATION, LOCATION_LIMIT_BYTES) {
        Err(error) if error.is_not_found() => return Ok(local),
        text => text.map_err(Failure::cannot_run)?,
    };
    let wrong = |why: String| Failure::cannot_run(format!("cannot use {}: {why}", local.describe(LOCATION)));
    let text = String::from_utf8(text).map_err(|_| wrong("it is not text".to_owned()))?;
    let (location, options) = parse(text.trim()).map_err(wrong)?;
    let bucket = open(&location, &options).map_err(|error| {
        Failure::cannot_run(error).advise("docs/object-storage.md says which environment variables and files have the credentials")
    })?;
    Ok(Arc::new(BucketGround::new(local, bucket)))
}

/// Returns whether this is the directory of the state of a store in a bucket.
pub fn is_state(directory: &Path) -> bool {
    directory.join(LOCATION).is_file()
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
