//! Encryption: who a node is, and how it knows another one.
//!
//! Each node makes its own key and a certificate for the name [`node_name`]. The bucket has the fingerprint of the
//! certificate (`nodes/N/node`), so no authority is needed. A peer must prove that it has the key of a certificate with
//! the fingerprint *and* the name of the node that it claims to be. TLS 1.3 only.

use crate::Result;
use onefold_remote::transport::{CertificateFingerprint, TransportError, new_certificate};
use std::sync::Arc;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{Resumption, verify_server_name};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error as RustlsError, ServerConfig, SignatureScheme,
};

/// Returns the name in the certificate of a node: `node-7.store-` and the store's id in hexadecimal digits. (A last
/// label of digits alone would be no name of a host.)
pub fn node_name(node: u32, store: &[u8; 16]) -> String {
    format!("node-{node}.store-{:032x}", u128::from_be_bytes(*store))
}

/// The certificate of a node and its key.
#[derive(Debug)]
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    fingerprint: CertificateFingerprint,
}

impl Identity {
    /// Makes a key and a certificate for it, both PEM. A node keeps them as long as it has its number.
    pub fn make(node: u32, store: &[u8; 16]) -> Result<(String, String)> {
        Ok(new_certificate(&[node_name(node, store)])?)
    }

    /// Reads a certificate and its key (PEM).
    pub fn from_pem(certificate: &str, key: &str) -> Result<Identity> {
        let failed = |error: tokio_rustls::rustls::pki_types::pem::Error| TransportError::Tls { reason: error.to_string() };
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(failed)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(failed)?;
        Ok(Identity { fingerprint: CertificateFingerprint::of(&certificate), chain: vec![certificate], key })
    }

    /// Returns what `nodes/N/node` has of it.
    pub fn fingerprint(&self) -> CertificateFingerprint {
        self.fingerprint
    }

    /// Returns what a connection to a node needs.
    pub(crate) fn client(
        &self,
        node: u32,
        store: &[u8; 16],
        expected: CertificateFingerprint,
    ) -> Result<(Arc<ClientConfig>, ServerName<'static>)> {
        let name = ServerName::try_from(node_name(node, store)).map_err(failed)?;
        let verifier = Arc::new(OneNode { expected, provider: provider() });
        let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]).map_err(failed)?;
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        let mut config = builder.with_client_auth_cert(self.chain.clone(), self.key.clone_key()).map_err(failed)?;
        config.resumption = Resumption::disabled();
        Ok((Arc::new(config), name))
    }

    /// Returns what accepts connections. Any node may finish the handshake; [`is_of`] says later who it is.
    pub(crate) fn server(&self) -> Result<Arc<ServerConfig>> {
        let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]).map_err(failed)?;
        let builder = builder.with_client_cert_verifier(Arc::new(AnyNode { provider: provider() }));
        let mut config = builder.with_single_cert(self.chain.clone(), self.key.clone_key()).map_err(failed)?;
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

/// Returns whether a certificate is that of a node: fingerprint and name.
pub(crate) fn is_of(certificate: &CertificateDer<'_>, expected: CertificateFingerprint, name: &ServerName<'_>) -> bool {
    let has_name = || ParsedCertificate::try_from(certificate).is_ok_and(|parsed| verify_server_name(&parsed, name).is_ok());
    CertificateFingerprint::of(certificate) == expected && has_name()
}

/// Accepts the certificate of one node. The peer must still prove that it has the key.
#[derive(Debug)]
struct OneNode {
    expected: CertificateFingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for OneNode {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, RustlsError> {
        if !is_of(end_entity, self.expected, name) {
            return Err(RustlsError::InvalidCertificate(CertificateError::ApplicationVerificationFailure));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Accepts every certificate whose key the peer has.
#[derive(Debug)]
struct AnyNode {
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for AnyNode {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(&self, _: &CertificateDer<'_>, _: &[CertificateDer<'_>], _: UnixTime) -> Result<ClientCertVerified, RustlsError> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn only_tls13() -> RustlsError {
    RustlsError::General("only TLS 1.3 is spoken".to_owned())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn failed(reason: impl ToString) -> TransportError {
    TransportError::Tls { reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_of_a_node_by_its_fingerprint_and_its_name() {
        let store = [7; 16];
        let identity = |node, store| {
            let (certificate, key) = Identity::make(node, store).unwrap();
            Identity::from_pem(&certificate, &key).unwrap()
        };
        let (third, other) = (identity(3, &store), identity(3, &store));
        let name = |node, store| ServerName::try_from(node_name(node, store)).unwrap();
        assert!(is_of(&third.chain[0], third.fingerprint(), &name(3, &store)));
        assert!(!is_of(&third.chain[0], other.fingerprint(), &name(3, &store)));
        assert!(!is_of(&third.chain[0], third.fingerprint(), &name(30, &store)));
        assert!(!is_of(&third.chain[0], third.fingerprint(), &name(3, &[8; 16])));
        assert_eq!(node_name(3, &store), "node-3.store-07070707070707070707070707070707");
    }
}
