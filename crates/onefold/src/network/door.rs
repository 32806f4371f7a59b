//! Who comes in.

use super::presence::Presence;
use crate::control::{Caller, Identity};
use onefold_remote::accounts::{AccessLog, AccountError, CertificateFingerprint, Connections, Login, Logins, Peer, Quotas};
use onefold_remote::services::server::{Guest, Unfinished};
use onefold_remote::transport::{self, Door, PeerAddress, Refusal, codes};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The one answer to every login that fails.
const DENIED: &str = "the account, its secret or its certificate is wrong, or it may not log in now";

/// Lets in accounts.
pub struct NetworkDoor {
    pub(super) logins: Logins,
    pub(super) quotas: Arc<Quotas>,
    pub(super) connections: Connections,
    pub(super) log: Option<Arc<AccessLog>>,
    pub(super) unfinished: Arc<Unfinished>,
    pub(super) sessions: AtomicU64,
}

fn denied() -> Refusal {
    Refusal::new(codes::DENIED, DENIED)
}

impl Door for NetworkDoor {
    fn admit(&self, greeting: &transport::Login, peer: &transport::Peer) -> Result<Arc<dyn Any + Send + Sync>, Refusal> {
        let PeerAddress::Tcp(address) = peer.address else { return Err(denied()) };
        let from = Peer::Address(address.ip());
        let certificate = peer.certificate.as_ref().map(|certificate| CertificateFingerprint(*certificate.as_bytes()));
        // Whatever is no text is no secret.
        let secret = std::str::from_utf8(&greeting.secret).unwrap_or_default();
        let session = format!("{}-{}", std::process::id(), self.sessions.fetch_add(1, Ordering::Relaxed));
        let failed = |error: AccountError| {
            tracing::warn!("a login could not be decided: {error}");
            denied()
        };
        let account = match self.logins.login(from, &greeting.account, secret, certificate.as_ref(), &session).map_err(failed)? {
            Login::Accepted(account) => account,
            Login::Refused | Login::TooOften(_) => return Err(denied()),
        };
        // Whoever knows the secret may know this.
        let connection = self.connections.open(&account).map_err(|error| Refusal::new(codes::BUSY, error.to_string()))?;
        let rate = Arc::clone(connection.rate());
        let presence = Presence::new(&account, from, session, self.log.clone(), connection);
        let observer = Box::new(presence.observer());
        let guest = Guest::account(*account, self.logins.accounts(), &self.quotas, rate, observer).map_err(failed)?;
        let guest = guest.with_unfinished(&self.unfinished);
        Ok(Arc::new(Caller { guest, identity: Identity::Account(presence) }))
    }
}
