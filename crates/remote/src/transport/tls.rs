//! Encryption: certificates, and how a client knows the server.
//!
//! Only TLS 1.3, only the algorithms of ring.

use super::{Result, TransportError};
use parking_lot::Mutex;
use rcgen::{CertificateParams, DnType, KeyPair};
use sha2::{Digest, Sha256};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as RustlsError, RootCertStore, ServerConfig, SignatureScheme,
};

/// The SHA-256 of a certificate in DER. People see it in lower case with colons.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CertificateFingerprint([u8; 32]);

impl CertificateFingerprint {
    /// Returns the fingerprint of a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> CertificateFingerprint {
        CertificateFingerprint(Sha256::digest(certificate).into())
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Compares in constant time.
    fn matches(&self, other: &CertificateFingerprint) -> bool {
        blake3::Hash::from_bytes(self.0) == blake3::Hash::from_bytes(other.0)
    }
}

impl From<[u8; 32]> for CertificateFingerprint {
    fn from(bytes: [u8; 32]) -> CertificateFingerprint {
        CertificateFingerprint(bytes)
    }
}

impl fmt::Display for CertificateFingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            write!(formatter, "{}{byte:02x}", if at == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for CertificateFingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for CertificateFingerprint {
    type Err = TransportError;

    /// Reads 64 hexadecimal digits, with a colon after each pair or without colons.
    fn from_str(text: &str) -> Result<CertificateFingerprint> {
        let wrong = || TransportError::Fingerprint { text: text.chars().take(128).collect() };
        let text = text.trim().as_bytes();
        let step = match text.len() {
            64 => 2,
            95 if text.iter().skip(2).step_by(3).all(|byte| *byte == b':') => 3,
            _ => return Err(wrong()),
        };
        let digit = |byte: u8| (byte as char).to_digit(16);
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks(step)) {
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else { return Err(wrong()) };
            *byte = (high * 16 + low) as u8;
        }
        Ok(CertificateFingerprint(bytes))
    }
}

/// Clients that have certificates.
#[derive(Debug, Clone)]
pub struct ClientCertificates {
    /// The authorities that sign them (PEM).
    pub authorities: PathBuf,
    /// Clients without a certificate fail the handshake.
    pub is_required: bool,
}

/// The identity of a server.
#[derive(Clone)]
pub struct ServerTls {
    pub(super) config: Arc<ServerConfig>,
    fingerprint: CertificateFingerprint,
}

impl ServerTls {
    /// Reads the certificate chain and its key (PEM).
    pub fn from_files(certificate: &Path, key: &Path, clients: Option<&ClientCertificates>) -> Result<ServerTls> {
        let chain = certificates(certificate)?;
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, error))?;
        ServerTls::new(chain, private, clients, certificate)
    }

    /// Returns an identity with these names that lasts as long as the process.
    pub fn self_signed(names: &[String], clients: Option<&ClientCertificates>) -> Result<ServerTls> {
        let (certificate, key) = new_certificate(names)?;
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(failed)?];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(failed)?;
        ServerTls::new(chain, key, clients, Path::new("a new certificate"))
    }

    fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        clients: Option<&ClientCertificates>,
        place: &Path,
    ) -> Result<ServerTls> {
        let fingerprint = CertificateFingerprint::of(&chain[0]);
        let provider = provider();
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&[&TLS13]).map_err(failed)?;
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let roots = Arc::new(roots(&clients.authorities)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = if clients.is_required { verifier } else { verifier.allow_unauthenticated() };
                builder.with_client_cert_verifier(verifier.build().map_err(|error| unusable(&clients.authorities, error))?)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| unusable(place, error))?;
        // Sessions are resumed by the protocol, and tickets would let a client skip its certificate.
        config.send_tls13_tickets = 0;
        Ok(ServerTls { config: Arc::new(config), fingerprint })
    }

    /// Returns what clients pin.
    pub fn fingerprint(&self) -> CertificateFingerprint {
        self.fingerprint
    }
}

/// Makes a certificate with these names that is signed by itself, and its key: both PEM.
pub fn new_certificate(names: &[String]) -> Result<(String, String)> {
    let make = || {
        let key = KeyPair::generate()?;
        let mut parameters = CertificateParams::new(names)?;
        parameters.distinguished_name.push(DnType::CommonName, "onefold");
        Ok::<_, rcgen::Error>((parameters.self_signed(&key)?.pem(), key.serialize_pem()))
    };
    make().map_err(failed)
}

/// How a client knows that it talks to the right server.
#[derive(Debug, Clone)]
pub enum Trust {
    /// By the fingerprint of its certificate. A pin is exact, so neither names nor expiry are checked.
    Pinned(CertificateFingerprint),
    /// By the authorities that the system trusts, and the name of the host.
    System,
    /// Not yet: connecting fails with [`TransportError::UnknownCertificate`], and nothing is sent to the server.
    Unknown,
}

/// The certificate of a client.
#[derive(Debug, Clone)]
pub struct ClientIdentity {
    /// The certificate chain (PEM).
    pub certificate: PathBuf,
    /// The key (PEM).
    pub key: PathBuf,
}

/// The configuration of a client, with what its handshake found.
pub(super) struct ClientTls {
    pub(super) config: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
    /// The certificate of the latest handshake.
    seen: Arc<Mutex<Option<CertificateFingerprint>>>,
    trust: Trust,
}

impl ClientTls {
    pub(super) fn new(host: &str, trust: &Trust, identity: Option<&ClientIdentity>) -> Result<ClientTls> {
        let seen = Arc::new(Mutex::new(None));
        let provider = provider();
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&[&TLS13]).map_err(failed)?;
        let name = ServerName::try_from(host.to_owned());
        let (builder, name) = match trust {
            Trust::System => {
                let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(system_roots()?), provider);
                (builder.with_webpki_verifier(verifier.build().map_err(failed)?), name.map_err(failed)?)
            }
            Trust::Pinned(_) | Trust::Unknown => {
                let pinned = if let Trust::Pinned(pinned) = trust { Some(*pinned) } else { None };
                let verifier = Arc::new(PinVerifier { pinned, seen: Arc::clone(&seen), provider });
                // A pin does not need the name, so a host without a proper one can be pinned.
                let name = name.or_else(|_| ServerName::try_from("onefold.invalid")).map_err(failed)?;
                (builder.dangerous().with_custom_certificate_verifier(verifier), name)
            }
        };
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(ClientIdentity { certificate, key }) => {
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, error))?;
                builder.with_client_auth_cert(certificates(certificate)?, key).map_err(|error| unusable(certificate, error))?
            }
        };
        config.resumption = tokio_rustls::rustls::client::Resumption::disabled();
        Ok(ClientTls { config: Arc::new(config), name, seen, trust: trust.clone() })
    }

    /// Returns the error of a handshake, in the words of the trust.
    pub(super) fn error(&self, error: std::io::Error) -> TransportError {
        match (&self.trust, *self.seen.lock()) {
            (Trust::Pinned(expected), Some(found)) if !expected.matches(&found) => {
                TransportError::WrongCertificate { expected: *expected, found }
            }
            _ if error.get_ref().is_some_and(|inner| inner.is::<RustlsError>()) => TransportError::Tls { reason: error.to_string() },
            _ => TransportError::Io { action: "cannot encrypt the connection".to_owned(), source: error },
        }
    }

    /// Returns the error after a handshake that succeeded only to learn the certificate.
    pub(super) fn unknown(&self) -> Option<TransportError> {
        match (&self.trust, *self.seen.lock()) {
            (Trust::Unknown, Some(fingerprint)) => Some(TransportError::UnknownCertificate { fingerprint }),
            _ => None,
        }
    }
}

/// Accepts one certificate, or notes which one the server has. The server must still prove that it has the key.
#[derive(Debug)]
struct PinVerifier {
    pinned: Option<CertificateFingerprint>,
    seen: Arc<Mutex<Option<CertificateFingerprint>>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinVerifier {
    /// Compares the fingerprint. A pin is exact, so names and expiry are not checked.
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, RustlsError> {
        let found = CertificateFingerprint::of(end_entity);
        *self.seen.lock() = Some(found);
        match &self.pinned {
            Some(pinned) if !pinned.matches(&found) => {
                Err(RustlsError::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
            }
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, RustlsError> {
        Err(RustlsError::General("only TLS 1.3 is spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, RustlsError> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn system_roots() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let reason = found.errors.first().map_or_else(|| "the system has no certificate authorities".to_owned(), ToString::to_string);
        return Err(TransportError::Tls { reason });
    }
    Ok(roots)
}

fn roots(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| unusable(path, error))?;
    }
    Ok(roots)
}

/// Reads at least one certificate.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    let found = found.map_err(|error| unusable(path, error))?;
    if found.is_empty() { Err(unusable(path, "it has no certificate")) } else { Ok(found) }
}

fn unusable(path: &Path, reason: impl ToString) -> TransportError {
    TransportError::TlsFile { path: path.to_owned(), reason: reason.to_string() }
}

fn failed(reason: impl ToString) -> TransportError {
    TransportError::Tls { reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_with_colons_and_without() {
        let fingerprint = CertificateFingerprint(std::array::from_fn(|at| (at * 7) as u8));
        let text = fingerprint.to_string();
        assert!(text.starts_with("00:07:0e:15"));
        assert_eq!(text.parse::<CertificateFingerprint>().unwrap(), fingerprint);
        assert_eq!(text.replace(':', "").to_uppercase().parse::<CertificateFingerprint>().unwrap(), fingerprint);
        for wrong in ["", "00", &text[1..], &text.replace(':', "-"), &text.replace('e', "g"), &"é".repeat(32), &format!("{text}:00")] {
            assert!(wrong.parse::<CertificateFingerprint>().is_err(), "{wrong}");
        }
    }
}
