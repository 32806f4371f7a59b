//! A store behind a server: `--store onefold://ACCOUNT@HOST[:PORT]`.
//!
//! ```text
//! address   the URL
//! secret    where the account's secret comes from
//! trust     how the server's certificate is known
//! ```

mod address;
mod secret;
mod trust;

pub use address::{Address, is_url};

use crate::cli::Connection;
use crate::console::Console;
use crate::control::{Client, WHEN_BUSY};
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use onefold_remote::transport::{ClientIdentity, ClientSession, ConnectOptions, Credentials, Target, TransportError, Trust, codes};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trust::KnownServers;

/// The first pause between attempts to connect, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// A server, and everything needed to connect to it again.
#[derive(Debug)]
pub struct Server {
    address: Address,
    options: ConnectOptions,
    retry: Duration,
    /// Whether `--server-fingerprint` says which certificate is the server's.
    is_pinned_by_option: bool,
}

/// Returns a directory of the user: `$VARIABLE`, else a place in the home directory.
pub(crate) fn user_directory(variable: &str, otherwise: &str) -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let directory = absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(otherwise)))?;
    Some(directory.join("onefold"))
}

/// Returns the directory of the user's settings.
fn settings_directory() -> Option<PathBuf> {
    user_directory("XDG_CONFIG_HOME", ".config")
}

impl Server {
    /// Finds out how to log in to the server that the text names. Asks for the secret if nothing else has it.
    pub fn new(url: &Path, connection: &Connection) -> Result<Server> {
        let address = Address::parse(url)?;
        let secret = secret::find(&address, connection.secret_file.as_deref())?;
        // They are read again for each connection, and the process may have moved meanwhile.
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let identity = connection.client_certificate.as_ref().map(absolute).zip(connection.client_key.as_ref().map(absolute));
        let target = Target::Tls {
            host: address.host.clone(),
            port: address.port,
            trust: Trust::Unknown,
            identity: identity.map(|(certificate, key)| ClientIdentity { certificate, key }),
        };
        let credentials = Credentials { account: address.account.clone(), secret: secret.as_bytes().to_vec() };
        let options = ConnectOptions { retry: connection.retry(), ..ConnectOptions::new(target, credentials) };
        let is_pinned_by_option = connection.server_fingerprint.is_some();
        let mut server = Server { address, options, retry: connection.retry(), is_pinned_by_option };
        let trust = server.trust(connection.server_fingerprint.as_deref())?;
        server.set_trust(trust);
        Ok(server)
    }

    /// Returns how long to retry.
    pub fn retry(&self) -> Duration {
        self.retry
    }

    fn set_trust(&mut self, wanted: Trust) {
        if let Target::Tls { trust, .. } = &mut self.options.target {
            *trust = wanted;
        }
    }

    /// Returns how the server is known.
    fn trust(&self, pinned: Option<&str>) -> Result<Trust> {
        if let Some(text) = pinned {
            let fingerprint =
                text.parse().map_err(|error: TransportError| Failure::cannot_run(format!("--server-fingerprint: {error}")))?;
            return Ok(Trust::Pinned(fingerprint));
        }
        let known = KnownServers::of_user();
        Ok(known.find(&self.address)?.map_or(Trust::System, Trust::Pinned))
    }

    /// Connects and logs in. The console asks about a certificate that is not known.
    pub fn connect(&mut self, console: &dyn Console) -> Result<Client> {
        let error = match ClientSession::connect(self.options.clone()) {
            Ok(session) => return Ok(self.client(session)),
            Err(error) => error,
        };
        // The authorities of the system do not know it.
        let is_unknown =
            matches!(&self.options.target, Target::Tls { trust: Trust::System, .. }) && matches!(error, TransportError::Tls { .. });
        if !is_unknown {
            return Err(self.failure(error));
        }
        self.set_trust(Trust::Unknown);
        match ClientSession::connect(self.options.clone()) {
            Err(TransportError::UnknownCertificate { fingerprint }) => {
                self.ask_about(&fingerprint.to_string(), console)?;
                KnownServers::of_user().remember(&self.address, &fingerprint)?;
                self.set_trust(Trust::Pinned(fingerprint));
                ClientSession::connect(self.options.clone()).map(|session| self.client(session)).map_err(|error| self.failure(error))
            }
            // It is not the certificate.
            _ => Err(self.failure(error)),
        }
    }

    /// Connects, and retries for as long as the server cannot be reached and `until` is not over.
    pub fn connect_again(&mut self, until: Instant, interrupt: &Interrupt) -> Result<Client> {
        let (mut pause, longest) = PAUSES;
        loop {
            let failure = match ClientSession::connect(self.options.clone()) {
                Ok(session) => return Ok(self.client(session)),
                Err(error) => {
                    let is_transient = match &error {
                        TransportError::Io { .. } | TransportError::Timeout { .. } | TransportError::Protocol { .. } => true,
                        TransportError::Refused { code, .. } => matches!(*code, codes::BUSY | codes::SHUTDOWN),
                        _ => false,
                    };
                    let failure = self.failure(error);
                    if !is_transient || Instant::now() + pause > until {
                        return Err(failure);
                    }
                    failure
                }
            };
            tracing::debug!("cannot connect; will retry: {}", failure.message);
            if interrupt.sleep(pause) {
                return Err(Failure::interrupted("stopped by a signal"));
            }
            pause = (pause * 2).min(longest);
        }
    }

    fn client(&self, session: ClientSession) -> Client {
        let is_far = !self.address.is_loopback();
        Client::of_server(Arc::new(session), self.cache(), is_far)
    }

    /// Returns where trees of backups of this server and account are cached.
    fn cache(&self) -> Option<PathBuf> {
        let directory = user_directory("XDG_CACHE_HOME", ".cache")?;
        let hash = onefold_ground::checksum(self.address.to_string().as_bytes());
        Some(directory.join(format!("{hash:016x}")))
    }

    fn ask_about(&self, fingerprint: &str, console: &dyn Console) -> Result<()> {
        let (server, why) = (self.address.server(), "no authority of this system vouches for its certificate");
        let question = format!(
            "The server {server} is not known: {why}.\nIts fingerprint is {fingerprint}\n`onefold serve` printed it there when it began. \
             Is it the same?"
        );
        match console.ask(&question)? {
            Some(true) => Ok(()),
            Some(false) => Err(Failure::cannot_run("the server is not trusted; nothing was done")),
            None => {
                let failure = format!("the server {server} is not known: {why}, whose fingerprint is {fingerprint}");
                let known = KnownServers::of_user();
                Err(Failure::cannot_run(failure).advise(format!(
                    "compare it with what `onefold serve` printed there. If it is the same, give it with --server-fingerprint, or add the line \
                     `{server} {fingerprint}` to {known}"
                )))
            }
        }
    }

    fn failure(&self, error: TransportError) -> Failure {
        let server = self.address.server();
        match error {
            TransportError::Refused { code: codes::DENIED, text } => {
                Failure::cannot_run(format!("the server {server} refused the login: {text}"))
                    .advise("after several wrong logins, the server takes none for a while")
            }
            TransportError::Refused { code: codes::BUSY, text } => {
                Failure::failed(format!("the server {server} takes no more clients: {text}")).advise(WHEN_BUSY)
            }
            TransportError::Refused { code: codes::SHUTDOWN, .. } => {
                Failure::failed(format!("the server {server} is stopping")).advise("run the command again when it runs again")
            }
            TransportError::Refused { code: codes::VERSION, text } => {
                Failure::cannot_run(format!("the server {server} is of another version: {text}")).advise("use the same onefold on both")
            }
            TransportError::WrongCertificate { expected, found } => {
                let failure = format!(
                    "THE CERTIFICATE OF THE SERVER {server} HAS CHANGED: it was {expected}, and now it is {found}. Somebody else may answer in \
                     place of the server; nothing was sent"
                );
                let line = KnownServers::of_user().place(&self.address).filter(|_| !self.is_pinned_by_option);
                let what = match line {
                    Some((path, line)) => format!("remove line {line} of {}", path.display()),
                    None => "give its fingerprint with --server-fingerprint".to_owned(),
                };
                Failure::cannot_run(failure).advise(format!("only if the server really has a new certificate, {what}"))
            }
            TransportError::TlsFile { .. } | TransportError::Tls { .. } => {
                Failure::cannot_run(format!("cannot log in to {server}: {error}"))
            }
            error => Failure { exit: Exit::Failed, ..Failure::cannot_run(format!("cannot reach the server {server}: {error}")) },
        }
    }
}
