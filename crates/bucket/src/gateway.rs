//! A real S3 service on loopback, for tests: the Versity gateway over a temporary directory.
//!
//! The program is the one that `ONEFOLD_VERSITYGW` names, or one on the path or in `~/go/bin`, or one that Go builds
//! once below `target/gateway`. Without all of these, [`Gateway::start`] says so and returns nothing. Then skip the
//! test.

use crate::location::BucketOptions;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PACKAGE: &str = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";
const PROGRAM: &str = "versitygw";
const BUILT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/gateway");
/// Where Go is if it is not on the path.
const GO: &str = "/usr/local/go/bin/go";
const BUCKET: &str = "onefold-test";
const KEY: &str = "onefold";
const SECRET: &str = "onefold-secret";
const REGION: &str = "us-east-1";
/// How long the gateway may take to answer for the first time.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// A free port may be taken before the gateway takes it.
const START_TRIES: u32 = 5;

/// A running gateway with one empty bucket. It stops when it is dropped.
#[derive(Debug)]
pub struct Gateway {
    process: Child,
    port: u16,
    directory: PathBuf,
    /// Its certificate, if it speaks TLS.
    certificate: Option<PathBuf>,
}

impl Gateway {
    /// Starts a gateway. `None`: there is none here; the reason is on standard error.
    pub fn start() -> Option<Gateway> {
        Gateway::started(false)
    }

    /// Starts a gateway that speaks TLS, with a certificate of its own. It also needs the program `openssl`.
    pub fn start_with_tls() -> Option<Gateway> {
        Gateway::started(true)
    }

    fn started(has_tls: bool) -> Option<Gateway> {
        let start =
            |program: PathBuf| Gateway::start_program(&program, has_tls).map_err(|error| format!("cannot start the gateway: {error}"));
        match program().and_then(start) {
            Ok(gateway) => Some(gateway),
            Err(why) => {
                eprintln!("skipped: {why}");
                None
            }
        }
    }

    fn start_program(program: &Path, has_tls: bool) -> io::Result<Gateway> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("onefold-gateway-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let directory = std::env::temp_dir().join(name);
        let mut last = io::Error::other("it never answered");
        for _ in 0..START_TRIES {
            fs::create_dir_all(directory.join("data").join(BUCKET))?;
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let mut command = Command::new(program);
            command.arg("--port").arg(format!("127.0.0.1:{port}"));
            let certificate = if has_tls { Some(make_certificate(&directory)?) } else { None };
            if let Some(certificate) = &certificate {
                command.arg("--cert").arg(certificate).arg("--key").arg(directory.join("key.pem"));
            }
            command.arg("posix").arg(directory.join("data"));
            command.env("ROOT_ACCESS_KEY", KEY).env("ROOT_SECRET_KEY", SECRET);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut gateway = Gateway { process: command.spawn()?, port, directory: directory.clone(), certificate };
            match gateway.wait_until_ready() {
                Ok(()) => return Ok(gateway),
                Err(error) => last = error,
            }
            if gateway.process.try_wait()?.is_none() {
                break;
            }
        }
        Err(last)
    }

    fn wait_until_ready(&mut self) -> io::Result<()> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Err(io::Error::other(format!("it ended at once: {status}")));
            }
            match self.answers() {
                Ok(()) => return Ok(()),
                Err(error) if began.elapsed() > START_TIMEOUT => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Asks for anything: an answer is enough, also a refusal.
    fn answers(&self) -> io::Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
        match stream.read_exact(&mut [0; 5]) {
            // It was no TLS, so nobody answers.
            Err(error) if self.certificate.is_some() && error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            result => result,
        }
    }

    fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Returns the URL of its bucket, `s3://...`. A prefix may be appended.
    pub fn url(&self) -> String {
        format!("s3://{BUCKET}")
    }

    /// Returns the URL of the service.
    pub fn endpoint(&self) -> String {
        let scheme = if self.certificate.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// Returns the options that open its bucket.
    pub fn options(&self) -> BucketOptions {
        BucketOptions {
            endpoint: Some(self.endpoint()),
            region: Some(REGION.to_owned()),
            key: Some((KEY.to_owned(), SECRET.to_owned(), None)),
            ca_file: self.certificate.clone(),
            ..BucketOptions::default()
        }
    }

    /// Returns the environment in which other programs reach it.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_ENDPOINT_URL", self.endpoint()),
        ];
        variables.extend(self.certificate.iter().map(|path| ("AWS_CA_BUNDLE", path.display().to_string())));
        variables
    }

    /// Returns the directory that has the objects of its bucket as files.
    pub fn objects(&self) -> PathBuf {
        self.directory.join("data").join(BUCKET)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Makes a key and a certificate for it in a directory. Returns the path of the certificate.
fn make_certificate(directory: &Path) -> io::Result<PathBuf> {
    let certificate = directory.join("certificate.pem");
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=127.0.0.1"]);
    // It vouches for itself, as no authority.
    command.args(["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]);
    command.arg("-keyout").arg(directory.join("key.pem")).arg("-out").arg(&certificate);
    let made = command.stdin(Stdio::null()).output()?;
    if !made.status.success() {
        return Err(io::Error::other(format!("openssl: {}", String::from_utf8_lossy(&made.stderr).trim())));
    }
    Ok(certificate)
}

/// Returns the gateway's program, and builds it if need be. Errors: why there is none.
fn program() -> Result<PathBuf, String> {
    /// Tests of one process build it once.
    static BUILDING: Mutex<()> = Mutex::new(());
    if let Some(program) = std::env::var_os("ONEFOLD_VERSITYGW").map(PathBuf::from) {
        let is_there = program.is_file();
        return if is_there { Ok(program) } else { Err(format!("ONEFOLD_VERSITYGW names {}, which is no file", program.display())) };
    }
    let _alone = BUILDING.lock();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join("go/bin"));
    let places = std::env::split_paths(&path).chain(home).chain([PathBuf::from(BUILT)]);
    if let Some(found) = places.map(|place| place.join(PROGRAM)).find(|program| program.is_file()) {
        return Ok(found);
    }
    let go = std::env::split_paths(&path).map(|place| place.join("go")).chain([PathBuf::from(GO)]).find(|go| go.is_file());
    let go = go.ok_or("there is no versitygw and no Go to build it; set ONEFOLD_VERSITYGW")?;
    build(&go).map_err(|error| format!("cannot build versitygw with {}: {error}", go.display()))
}

/// Builds the program beside its place and renames it, so that nobody starts a half-written one.
fn build(go: &Path) -> io::Result<PathBuf> {
    let beside = Path::new(BUILT).join(format!("new-{}", std::process::id()));
    fs::create_dir_all(&beside)?;
    let beside = beside.canonicalize()?;
    let built = Command::new(go).args(["install", PACKAGE]).env("GOBIN", &beside).stdin(Stdio::null()).output()?;
    if !built.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&built.stderr).trim().to_owned()));
    }
    let program = Path::new(BUILT).join(PROGRAM);
    fs::rename(beside.join(PROGRAM), &program)?;
    fs::remove_dir(&beside)?;
    Ok(program)
}
