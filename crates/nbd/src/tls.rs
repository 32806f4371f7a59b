//! Encryption: certificates from files, and streams that may be encrypted.

use crate::{NbdError, Result, TlsFiles};
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// A stream of a connection: TCP, Unix, or TLS over one of them.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Unpin + Send + Sync {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + Sync> Wire for T {}

/// Reads the certificates. If client authorities are given, clients without a certificate signed by them fail the TLS
/// handshake.
pub(crate) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor> {
    let certificates = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unusable(&files.key, error))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions().map_err(failed)?;
    let builder = match &files.client_authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut authorities = RootCertStore::empty();
            for certificate in self::certificates(path)? {
                authorities.add(certificate).map_err(|error| unusable(path, error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| unusable(path, error))?)
        }
    };
    Ok(TlsAcceptor::from(Arc::new(builder.with_single_cert(certificates, key).map_err(failed)?)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    let found = found.map_err(|error| unusable(path, error))?;
    if found.is_empty() { Err(unusable(path, "it has no certificate")) } else { Ok(found) }
}

fn unusable(path: &Path, reason: impl ToString) -> NbdError {
    NbdError::TlsFile { path: path.to_owned(), reason: reason.to_string() }
}

fn failed(reason: impl ToString) -> NbdError {
    NbdError::Tls { reason: reason.to_string() }
}
