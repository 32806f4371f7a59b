//! HTTP for the object store's client: hyper, with rustls and ring.
//!
//! The client that comes with the object store brings aws-lc and a list of certificates under another licence. This one
//! does what a bucket needs: connections that are kept, the system's certificates, and a proxy from the environment.

use async_trait::async_trait;
use http::{StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::error::Error;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tower_service::Service;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Servers close idle connections after a while. It is cheaper to be faster than to find out.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of the body of a failure that are read.
const SAID_BYTES: usize = 64 << 10;
const USER_AGENT: &str = concat!("onefold/", env!("CARGO_PKG_VERSION"));

type Fault = Box<dyn Error + Send + Sync>;

/// Makes clients for the object store.
#[derive(Debug, Default)]
pub(crate) struct Connector {
    /// A file with certificates to trust besides the system's.
    pub(crate) ca_file: Option<PathBuf>,
}

impl Connector {
    fn tls(&self) -> Result<ClientConfig, Fault> {
        let mut roots = RootCertStore::empty();
        // None may be there: plain HTTP needs none.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if let Some(path) = &self.ca_file {
            let fail = |error: &dyn Error| format!("cannot read the certificates in {}: {error}", path.display());
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| fail(&error))? {
                roots.add(certificate.map_err(|error| fail(&error))?).map_err(|error| fail(&error))?;
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        Ok(config.with_root_certificates(roots).with_no_client_auth())
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let tls = self.tls().map_err(|source| object_store::Error::Generic { store: "HTTP", source })?;
        let allows_http = options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|value| value == "true");
        let builder = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls);
        let builder = if allows_http { builder.https_or_http() } else { builder.https_only() };
        let mut tcp = TcpConnector::new();
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        let connector = builder.enable_http1().wrap_connector(Proxied { tcp, proxies: Arc::new(Matcher::from_env()) });
        let mut client = Client::builder(TokioExecutor::new());
        client.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_TIMEOUT);
        // The caller decides what is repeated, and counts it.
        client.retry_canceled_requests(false);
        Ok(HttpClient::new(Http { client: client.build(connector) }))
    }
}

/// Connects directly, or through the proxy that the environment names for an address.
#[derive(Clone, Debug)]
struct Proxied {
    tcp: TcpConnector,
    proxies: Arc<Matcher>,
}

impl Service<Uri> for Proxied {
    type Response = TokioIo<TcpStream>;
    type Error = Fault;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<TcpStream>, Fault>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        self.tcp.poll_ready(context).map_err(Fault::from)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let mut tcp = self.tcp.clone();
        match self.proxies.intercept(&to) {
            None => Box::pin(async move { Ok(tcp.call(to).await?) }),
            Some(proxy) => {
                let mut tunnel = Tunnel::new(proxy.uri().clone(), tcp);
                if let Some(login) = proxy.basic_auth() {
                    tunnel = tunnel.with_auth(login.clone());
                }
                Box::pin(async move { Ok(tunnel.call(to).await?) })
            }
        }
    }
}

#[derive(Debug)]
struct Http {
    client: Client<HttpsConnector<Proxied>, HttpRequestBody>,
}

#[async_trait]
impl HttpService for Http {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        request.headers_mut().entry(http::header::USER_AGENT).or_insert(http::HeaderValue::from_static(USER_AGENT));
        let is_head = request.method() == http::Method::HEAD;
        let response = self.client.request(request).await.map_err(failed)?;
        let (parts, body) = response.into_parts();
        if asks_to_come_back(parts.status) {
            // As an error, because the object store's client tells nobody the status. What the server says is for
            // people.
            let said = Limited::new(body, SAID_BYTES).collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            let why = format!("the server answered {}: {}", parts.status, String::from_utf8_lossy(&said));
            return Err(HttpError::new_boxed(HttpErrorKind::Interrupted, why.into()));
        }
        if parts.status == StatusCode::NOT_FOUND && !is_head {
            let said = Limited::new(body, SAID_BYTES).collect().await.map(http_body_util::Collected::to_bytes);
            let said = said.map_err(|error| HttpError::new_boxed(HttpErrorKind::Interrupted, error))?;
            let mut parts = parts;
            if !says_what_is_missing(&String::from_utf8_lossy(&said)) {
                parts.status = StatusCode::FORBIDDEN;
            }
            let said = Full::new(said).map_err(|never| match never {});
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(said)));
        }
        let body = body.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error));
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }
}

/// Returns whether a server that answers "not found" means an object or a bucket. Some say it of the user, too. Taken
/// for a missing object, that would end the log.
fn says_what_is_missing(said: &str) -> bool {
    ["NoSuchKey", "NoSuchBucket", "NoSuchUpload", "NoSuchVersion", "BlobNotFound", "ContainerNotFound", "ResourceNotFound"]
        .iter()
        .any(|code| said.contains(code))
}

/// Returns whether the same request may succeed later.
fn asks_to_come_back(status: StatusCode) -> bool {
    // A server that does not know the request will not learn it.
    let is_failure = status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED;
    is_failure || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
}

/// Says in one line what the chain of errors says: the innermost one is what people look for.
fn failed(error: ClientError) -> HttpError {
    let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Interrupted };
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    HttpError::new_boxed(kind, text.into())
}
