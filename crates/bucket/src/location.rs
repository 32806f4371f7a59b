//! Where a bucket is, and how it is opened.

use crate::connection::Connector;
use crate::credentials::{self, Shared as SharedFiles};
use crate::error::failed_because;
use crate::requests::{Patience, RequestBucket};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::{BackoffConfig, RetryConfig};
use onefold_ground::{Bucket, Result};
use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A kind of object storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `s3`: Amazon S3, and what speaks like it.
    S3,
    /// `gs`: Google Cloud Storage.
    Google,
    /// `az`: Azure Blob Storage.
    Azure,
    /// `file`: a directory, on one machine only.
    File,
}

impl Scheme {
    const ALL: [Scheme; 4] = [Scheme::S3, Scheme::Google, Scheme::Azure, Scheme::File];

    /// Returns its name in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::S3 => "s3",
            Scheme::Google => "gs",
            Scheme::Azure => "az",
            Scheme::File => "file",
        }
    }
}

/// A place in object storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The kind of storage.
    pub scheme: Scheme,
    /// The bucket; for Azure, the container. Empty for a directory.
    pub bucket: String,
    /// Before all names, without a slash at either end. It may be empty. For a directory, its path.
    pub prefix: String,
}

/// A text that is no location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no location in object storage: {why}. \
     Allowed are s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX and file:///ABSOLUTE/DIRECTORY"
)]
pub struct LocationError {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub why: String,
}

/// Returns whether a text names a location in object storage, well or badly, rather than a path.
pub fn is_location(text: &str) -> bool {
    scheme(text).is_some()
}

fn scheme(text: &str) -> Option<(Scheme, &str)> {
    let (name, rest) = text.split_once("://")?;
    Scheme::ALL.into_iter().find(|scheme| scheme.name() == name).map(|scheme| (scheme, rest))
}

impl Location {
    /// Reads a URL.
    pub fn parse(text: &str) -> std::result::Result<Location, LocationError> {
        let error = |why: &str| LocationError { text: text.to_owned(), why: why.to_owned() };
        let (scheme, rest) = scheme(text).ok_or_else(|| error("it has none of the schemes"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_end_matches('/');
        match scheme {
            Scheme::File if !bucket.is_empty() => return Err(error("the directory must be absolute, with three slashes before it")),
            Scheme::File if prefix.is_empty() => return Err(error("it names no directory")),
            Scheme::File => {}
            _ if bucket.is_empty() => return Err(error("it names no bucket")),
            _ if !bucket.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) => {
                return Err(error("the name of a bucket has letters, digits, dots, hyphens and underscores only"));
            }
            _ => {}
        }
        if !prefix.is_empty() && prefix.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(error("no part of the path may be empty, `.` or `..`"));
        }
        if prefix.chars().any(|char| char.is_control() || "?#".contains(char)) {
            return Err(error("the path must not have `?`, `#` or control characters"));
        }
        Ok(Location { scheme, bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}://{}", self.scheme.name(), self.bucket)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(formatter, "/{}", self.prefix) }
    }
}

/// How a bucket is opened. What is not given comes from the environment.
#[derive(Clone, Default)]
pub struct BucketOptions {
    /// S3: the URL of the service, such as `http://127.0.0.1:9000`. `None`: from the environment, or Amazon's.
    pub endpoint: Option<String>,
    /// S3: the region.
    pub region: Option<String>,
    /// S3: whether the bucket is in the path of a URL instead of its host name. `None`: it is if there is an endpoint.
    pub path_style: Option<bool>,
    /// Whether HTTP without TLS is allowed. An endpoint that begins with `http://` allows it too.
    pub allow_http: bool,
    /// A PEM file with certificates to trust besides the system's. `None`: that in `AWS_CA_BUNDLE`, if any.
    pub ca_file: Option<PathBuf>,
    /// S3: the key's id, its secret, and the session's token, if it has one.
    pub key: Option<(String, String, Option<String>)>,
    /// How long calls try.
    pub patience: Patience,
}

impl fmt::Debug for BucketOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the secret.
        formatter
            .debug_struct("BucketOptions")
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("path_style", &self.path_style)
            .field("allow_http", &self.allow_http)
            .field("ca_file", &self.ca_file)
            .field("key", &self.key.as_ref().map(|(id, ..)| id))
            .field("patience", &self.patience)
            .finish()
    }
}

/// Opens a bucket. Sends no request yet, so a wrong name or key shows with the first call.
pub fn open(location: &Location, options: &BucketOptions) -> Result<Arc<dyn Bucket>> {
    let fail = |error: object_store::Error| failed_because("open", &location.to_string(), ErrorKind::InvalidInput, error.to_string());
    if location.scheme != Scheme::S3 && (options.endpoint.is_some() || options.region.is_some() || options.path_style.is_some()) {
        let why = "an endpoint, a region and the path style can be set for s3:// only";
        return Err(failed_because("open", &location.to_string(), ErrorKind::InvalidInput, why));
    }
    let url = location.to_string();
    let ca_file = options.ca_file.clone().or_else(|| credentials::variable("AWS_CA_BUNDLE").map(PathBuf::from));
    let connector = Connector { ca_file };
    let bucket = |store: Arc<dyn object_store::ObjectStore>| RequestBucket::new(store, &url, &location.prefix, options.patience);
    Ok(match location.scheme {
        Scheme::S3 => {
            let store = Arc::new(s3(location, options, connector)?.build().map_err(fail)?);
            Arc::new(bucket(store.clone())?.with_lister(store))
        }
        Scheme::Google => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(&location.bucket);
            let store = Arc::new(builder.with_retry(no_retries()).with_http_connector(connector).build().map_err(fail)?);
            Arc::new(bucket(store.clone())?.with_lister(store))
        }
        Scheme::Azure => {
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(&location.bucket);
            let builder = if options.allow_http { builder.with_allow_http(true) } else { builder };
            let store = Arc::new(builder.with_retry(no_retries()).with_http_connector(connector).build().map_err(fail)?);
            Arc::new(bucket(store.clone())?.with_lister(store))
        }
        Scheme::File => Arc::new(bucket(Arc::new(LocalFileSystem::new().with_fsync(true)))?.without_updates()),
    })
}

/// Every try is counted and looked up here, so the client makes only one.
fn no_retries() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: 0, retry_timeout: Duration::ZERO }
}

fn s3(location: &Location, options: &BucketOptions, connector: Connector) -> Result<AmazonS3Builder> {
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(&location.bucket);
    builder = builder.with_retry(no_retries()).with_http_connector(connector);
    // Which key names its URL depends on where it came from.
    let from_environment = [Key::S3Endpoint, Key::Endpoint].iter().find_map(|key| builder.get_config_value(key));
    let endpoint = options.endpoint.clone().or(from_environment).map(|endpoint| endpoint.trim_end_matches('/').to_owned());
    // Amazon's certificates do not cover a host name with more dots.
    let is_path_style = options.path_style.unwrap_or(endpoint.is_some() || location.bucket.contains('.'));
    if let Some(endpoint) = endpoint {
        let Some((scheme, host)) = endpoint.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https")) else {
            let why = format!("the endpoint `{endpoint}` must begin with http:// or https://");
            return Err(failed_because("open", &location.to_string(), ErrorKind::InvalidInput, why));
        };
        if scheme == "http" {
            builder = builder.with_allow_http(true);
        }
        let endpoint = if is_path_style { endpoint.clone() } else { format!("{scheme}://{}.{host}", location.bucket) };
        builder = builder.with_config(Key::S3Endpoint, endpoint);
    }
    builder = builder.with_virtual_hosted_style_request(!is_path_style);
    if options.allow_http {
        builder = builder.with_allow_http(true);
    }
    let files = SharedFiles::from_environment();
    let region = options.region.clone().or_else(|| builder.get_config_value(&Key::Region));
    if let Some(region) =
        region.or_else(|| builder.get_config_value(&Key::DefaultRegion)).map_or_else(|| files.region(), |region| Ok(Some(region)))?
    {
        builder = builder.with_region(region);
    }
    let from_elsewhere = [
        Key::AccessKeyId,
        Key::WebIdentityTokenFile,
        Key::ContainerCredentialsRelativeUri,
        Key::ContainerCredentialsFullUri,
        Key::SkipSignature,
    ];
    let is_given = |key: &Key| builder.get_config_value(key).is_some_and(|value| !value.is_empty() && value != "false");
    let key = match &options.key {
        Some(key) => Some(key.clone()),
        None if from_elsewhere.iter().any(is_given) => None,
        None => files.key()?,
    };
    if let Some((id, secret, token)) = key {
        builder = builder.with_access_key_id(id).with_secret_access_key(secret);
        if let Some(token) = token {
            builder = builder.with_token(token);
        }
    }
    let has = |key| builder.get_config_value(key).is_some_and(|value| !value.is_empty());
    if has(&Key::AccessKeyId) != has(&Key::SecretAccessKey) {
        let why = "there are no whole credentials: set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
        return Err(failed_because("open", &location.to_string(), ErrorKind::PermissionDenied, why));
    }
    Ok(builder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_read_and_shown() {
        for (text, scheme, bucket, prefix) in [
            ("s3://backups", Scheme::S3, "backups", ""),
            ("s3://my.backups-1/a/b_c", Scheme::S3, "my.backups-1", "a/b_c"),
            ("gs://b/x", Scheme::Google, "b", "x"),
            ("az://b/x y", Scheme::Azure, "b", "x y"),
            ("file:///srv/store", Scheme::File, "", "srv/store"),
        ] {
            let expected = Location { scheme, bucket: bucket.to_owned(), prefix: prefix.to_owned() };
            assert_eq!(Location::parse(text), Ok(expected.clone()));
            assert_eq!(Location::parse(&format!("{text}/")), Ok(expected.clone()));
            assert_eq!(expected.to_string(), text);
            assert!(is_location(text));
        }
    }

    #[test]
    fn what_is_no_location_is_refused_with_what_is_allowed() {
        for (text, why) in [
            ("/srv/store", "none of the schemes"),
            ("http://host/x", "none of the schemes"),
            ("s3://", "no bucket"),
            ("s3:///prefix", "no bucket"),
            ("s3://b c/x", "letters, digits"),
            ("s3://user@b/x", "letters, digits"),
            ("gs://b/x//y", "empty"),
            ("gs://b//x", "empty"),
            ("az://b/../x", "`..`"),
            ("s3://b/x?y", "`?`"),
            ("s3://b/x#1", "`#`"),
            ("s3://b/x\ny", "control"),
            ("file://srv/store", "three slashes"),
            ("file:///", "no directory"),
        ] {
            let error = Location::parse(text).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("file:///ABSOLUTE/DIRECTORY"), "{error}");
        }
        assert!(is_location("s3://") && !is_location("s3:x") && !is_location("http://a") && !is_location("/a/s3://b"));
    }

    #[test]
    fn options_that_do_not_fit_are_refused() {
        let options = BucketOptions { endpoint: Some("127.0.0.1:9000".to_owned()), ..BucketOptions::default() };
        for (text, why) in [("s3://b", "must begin with http://"), ("gs://b", "for s3:// only"), ("file:///b", "for s3:// only")] {
            let error = open(&Location::parse(text).unwrap(), &options).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let key = Some(("id".to_owned(), "very secret".to_owned(), Some("secret token".to_owned())));
        let shown = format!("{:?}", BucketOptions { key, ..BucketOptions::default() });
        assert!(shown.contains("id") && !shown.contains("secret"), "{shown}");
    }

    #[test]
    fn the_bucket_is_in_the_path_or_in_the_host_name() {
        let endpoint = |text: &str, endpoint: Option<&str>, path_style: Option<bool>| {
            let endpoint = endpoint.map(str::to_owned);
            let options = BucketOptions { endpoint, path_style, region: Some("eu-west-3".to_owned()), ..BucketOptions::default() };
            let builder = s3(&Location::parse(text).unwrap(), &options, Connector::default()).unwrap();
            assert_eq!(builder.get_config_value(&Key::Region).unwrap(), "eu-west-3");
            let is_virtual = builder.get_config_value(&Key::VirtualHostedStyleRequest).unwrap() == "true";
            (builder.get_config_value(&Key::S3Endpoint), is_virtual)
        };
        let http = Some("http://host:9000/");
        assert_eq!(endpoint("s3://b/p", http, None), (Some("http://host:9000".to_owned()), false));
        assert_eq!(endpoint("s3://b/p", http, Some(false)), (Some("http://b.host:9000".to_owned()), true));
        if credentials::variable("AWS_ENDPOINT_URL").is_none() {
            assert_eq!(endpoint("s3://b/p", None, None), (None, true));
            assert_eq!(endpoint("s3://b.c/p", None, None), (None, false));
        }
    }
}
