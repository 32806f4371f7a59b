//! A proxy on loopback in front of a service of object storage. It counts requests, and delays their answers.
//!
//! The proxy of the backup servers delays bytes. This one knows HTTP and delays requests: it holds each answer back
//! before the first byte, whatever happens to other requests meanwhile. Bodies pass as they come, in both directions,
//! unless they share a line with a rate.
//!
//! Invariants:
//! * The service sees the target and the headers as the client sent them, the host among them: clients sign them. Only
//!   headers for the next hop are removed.
//! * Every request that a client sent is noted before the service sees it.
//!
//! The proxy keeps its own connections to the service. A client's connection is made without a delay.

use super::requests::Request as Noted;
use anyhow::Result;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, HeaderMap, HeaderName, RANGE};
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::time::{Instant, Sleep};

/// Threads that pass bytes on.
const THREADS: usize = 2;
/// Idle connections to the service are closed before the service does it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Headers for the next hop only.
const OF_HOP: [HeaderName; 3] = [CONNECTION, HeaderName::from_static("keep-alive"), HeaderName::from_static("proxy-connection")];

/// A proxy that runs until it is dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// `None`: dropped.
    runtime: Option<Runtime>,
}

struct Shared {
    service: Authority,
    latency: Duration,
    /// The lines to the service and back. `None`: they are as fast as they can.
    lines: Option<[Arc<Line>; 2]>,
    client: Client<HttpConnector, Passing>,
    requests: Mutex<Vec<Arc<Noted>>>,
}

impl Proxy {
    /// Starts a proxy that passes requests to `service`, and holds each answer back for `latency`. With a rate, so many
    /// bytes of bodies pass in a second, in each direction.
    pub fn start(service: SocketAddr, latency: Duration, rate: Option<u64>) -> Result<Proxy> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let mut client = Client::builder(TokioExecutor::new());
        client.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_TIMEOUT);
        let shared = Arc::new(Shared {
            service: service.to_string().parse()?,
            latency,
            lines: rate.map(|rate| [Line::new(rate), Line::new(rate)]),
            client: client.build(connector),
            requests: Mutex::default(),
        });
        runtime.spawn(accept(listener, Arc::clone(&shared)));
        Ok(Proxy { address, shared, runtime: Some(runtime) })
    }

    /// Returns the address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes the requests that began since the last call, in their order.
    pub fn take(&self) -> Vec<Arc<Noted>> {
        std::mem::take(&mut self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Serves each connection in a task of its own.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            // A connection that has just broken ends below.
            let _ = stream.set_nodelay(true);
            let service = service_fn(|request| pass(&shared, request));
            // Clients close connections as they like.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Passes a request to the service and its answer back.
async fn pass(shared: &Shared, request: Request<Incoming>) -> Result<Response<Passing>, Infallible> {
    let (mut head, body) = request.into_parts();
    let range = head.headers.get(RANGE).and_then(|range| range.to_str().ok()).unwrap_or_default();
    let noted = Arc::new(Noted::new(&head.method, &head.uri, range));
    shared.requests.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&noted));
    remove_headers_of_hop(&mut head.headers);
    head.uri = at_service(&head.uri, &shared.service);
    let line = |at: usize| shared.lines.as_ref().map(|lines| Arc::clone(&lines[at]));
    let body = Passing { body: Some(body), noted: Arc::clone(&noted), is_answer: false, line: line(0), held: None };
    let answer = shared.client.request(Request::from_parts(head, body)).await;
    if !shared.latency.is_zero() {
        tokio::time::sleep(shared.latency).await;
    }
    let (mut head, body) = match answer {
        Ok(answer) => {
            let (head, body) = answer.into_parts();
            (head, Some(body))
        }
        Err(error) => {
            eprintln!("the proxy cannot pass a request on: {error}");
            let mut answer = Response::new(());
            *answer.status_mut() = StatusCode::BAD_GATEWAY;
            (answer.into_parts().0, None)
        }
    };
    remove_headers_of_hop(&mut head.headers);
    noted.status.store(head.status.as_u16(), SeqCst);
    Ok(Response::from_parts(head, Passing { body, noted, is_answer: true, line: line(1), held: None }))
}

fn remove_headers_of_hop(headers: &mut HeaderMap) {
    for name in OF_HOP {
        headers.remove(name);
    }
}

/// Returns the same target as a URL of the service.
fn at_service(uri: &Uri, service: &Authority) -> Uri {
    let mut parts = uri.clone().into_parts();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(service.clone());
    parts.path_and_query.get_or_insert_with(|| PathAndQuery::from_static("/"));
    Uri::from_parts(parts).expect("scheme, authority and path are there")
}

/// A line that all bodies of one direction share.
struct Line {
    bytes_per_s: u64,
    /// When it has passed on what it has.
    is_free_at: Mutex<Instant>,
}

impl Line {
    fn new(bytes_per_s: u64) -> Arc<Line> {
        Arc::new(Line { bytes_per_s, is_free_at: Mutex::new(Instant::now()) })
    }

    /// Takes bytes, and returns when they arrive.
    fn takes(&self, bytes: usize) -> Instant {
        let mut is_free_at = self.is_free_at.lock().unwrap_or_else(PoisonError::into_inner);
        *is_free_at = (*is_free_at).max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        *is_free_at
    }
}

/// A body on its way. It counts its bytes.
struct Passing {
    /// `None`: there is none.
    body: Option<Incoming>,
    noted: Arc<Noted>,
    is_answer: bool,
    line: Option<Arc<Line>>,
    /// A frame that the line has, until it arrives.
    held: Option<(Frame<Bytes>, Pin<Box<Sleep>>)>,
}

impl Body for Passing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.held.is_none() {
            let Some(body) = &mut self.body else { return Poll::Ready(None) };
            let frame = match ready!(Pin::new(body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                ended => return Poll::Ready(ended),
            };
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            let counter = if self.is_answer { &self.noted.received_bytes } else { &self.noted.sent_bytes };
            counter.fetch_add(bytes as u64, SeqCst);
            let Some(line) = &self.line else { return Poll::Ready(Some(Ok(frame))) };
            let arrival = line.takes(bytes);
            self.held = Some((frame, Box::pin(tokio::time::sleep_until(arrival))));
        }
        if let Some((_, arrival)) = &mut self.held {
            ready!(arrival.as_mut().poll(context));
        }
        Poll::Ready(self.held.take().map(|(frame, _)| Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_none() && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    /// Asked once, before the first frame.
    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if self.is_answer {
            self.noted.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_storage::requests::{Counts, Kind};
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener as Listener, TcpStream};
    use std::thread;
    use std::time::Instant;

    /// A service that answers each request with what its head was, on as many connections as are made. It sends `100
    /// Continue` where that is expected, and takes bodies of a length or in chunks. It answers `HEAD` with a length and
    /// no body, `DELETE` with 204, `/b/not-modified` with 304, `/b/large` with a large body, `/b/chunks` in chunks.
    fn service() -> SocketAddr {
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                thread::spawn(move || {
                    let stream = stream.unwrap();
                    let mut reader = BufReader::new(&stream);
                    while answer(&mut reader) {}
                });
            }
        });
        address
    }

    const LARGE_BYTES: usize = 20_000_000;

    /// Answers one request. False: there is none.
    fn answer(stream: &mut BufReader<&TcpStream>) -> bool {
        let Some((head, body)) = read_message(stream, true) else { return false };
        let target = head.split(' ').nth(1).unwrap();
        let mut out = *stream.get_ref();
        let said = format!("{head}{} bytes", body.len());
        let whole = |said: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{said}", said.len());
        let text = match target {
            _ if head.starts_with("HEAD") => "HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n".to_owned(),
            _ if head.starts_with("DELETE") => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
            "/b/not-modified" => "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n".to_owned(),
            "/b/chunks" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n".to_owned(),
            "/b/large" => format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE_BYTES}\r\n\r\n"),
            _ => whole(&said),
        };
        out.write_all(text.as_bytes()).unwrap();
        if target == "/b/large" {
            out.write_all(&vec![7; LARGE_BYTES]).unwrap();
        }
        true
    }

    /// Reads a request or an answer: head and body. `None`: the connection has ended.
    fn read_message(stream: &mut BufReader<&TcpStream>, is_request: bool) -> Option<(String, Vec<u8>)> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let lower = head.to_lowercase();
        if is_request && lower.contains("expect: 100-continue") {
            let mut out = *stream.get_ref();
            out.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        }
        let mut body = Vec::new();
        if lower.contains("transfer-encoding: chunked") {
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                let length = u64::from_str_radix(line.trim(), 16).unwrap();
                stream.by_ref().take(length).read_to_end(&mut body).unwrap();
                stream.read_line(&mut line).unwrap();
                if length == 0 {
                    break;
                }
            }
        } else if let Some(length) = lower.split("content-length: ").nth(1).and_then(|rest| rest.split('\r').next()) {
            stream.by_ref().take(length.parse().unwrap()).read_to_end(&mut body).unwrap();
        }
        Some((head, body))
    }

    /// Sends a text and reads the answer to it.
    fn ask(proxy: &Proxy, text: &str) -> (String, Vec<u8>) {
        let stream = TcpStream::connect(proxy.address()).unwrap();
        (&stream).write_all(text.as_bytes()).unwrap();
        read_message(&mut BufReader::new(&stream), false).unwrap()
    }

    fn start(latency_ms: u64) -> Proxy {
        Proxy::start(service(), Duration::from_millis(latency_ms), None).unwrap()
    }

    #[test]
    fn the_service_sees_the_target_and_the_host_as_they_were_sent() {
        let proxy = start(0);
        let (_, body) = ask(&proxy, "GET /b/a%2Fb%20c?x=%7e&y HTTP/1.1\r\nHost: signed.example:99\r\nX-Amz-Date: now\r\n\r\n");
        let seen = String::from_utf8(body).unwrap();
        assert!(seen.starts_with("GET /b/a%2Fb%20c?x=%7e&y HTTP/1.1\r\n"), "{seen}");
        assert!(seen.to_lowercase().contains("\r\nhost: signed.example:99\r\n"), "{seen}");
        assert_eq!(seen.to_lowercase().matches("host:").count(), 1, "{seen}");
        assert!(seen.to_lowercase().contains("\r\nx-amz-date: now\r\n"), "{seen}");
    }

    #[test]
    fn bodies_of_a_length_and_in_chunks_are_counted() {
        let proxy = start(0);
        let (_, body) = ask(&proxy, "PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello");
        assert!(body.ends_with(b"5 bytes"));
        let (_, body) = ask(&proxy, "PUT /b/k HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhell\r\n2\r\no!\r\n0\r\n\r\n");
        assert!(body.ends_with(b"6 bytes"));
        let (head, body) = ask(&proxy, "GET /b/chunks HTTP/1.1\r\nHost: h\r\n\r\n");
        assert!(head.to_lowercase().contains("transfer-encoding: chunked"), "{head}");
        assert_eq!(body, b"hello!");
        let requests = proxy.take();
        let counts: Vec<Counts> = requests.iter().map(|request| Counts::of([&**request])).collect();
        assert_eq!(counts.iter().map(|counts| counts.sent_bytes).collect::<Vec<_>>(), [5, 6, 0]);
        assert_eq!(counts[2].received_bytes, 6);
        assert!(proxy.take().is_empty());
    }

    #[test]
    fn a_client_that_expects_to_be_told_to_go_on_is_told() {
        let proxy = start(0);
        let stream = TcpStream::connect(proxy.address()).unwrap();
        (&stream).write_all(b"PUT /b/k HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n").unwrap();
        let mut reader = BufReader::new(&stream);
        let (head, _) = read_message(&mut reader, false).unwrap();
        assert!(head.starts_with("HTTP/1.1 100 "), "{head}");
        (&stream).write_all(b"hello").unwrap();
        let (head, body) = read_message(&mut reader, false).unwrap();
        assert!(head.starts_with("HTTP/1.1 200 ") && body.ends_with(b"5 bytes"), "{head}");
    }

    #[test]
    fn answers_without_a_body_leave_the_connection_in_use() {
        let proxy = start(0);
        let stream = TcpStream::connect(proxy.address()).unwrap();
        let mut reader = BufReader::new(&stream);
        let mut read_head = || {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
            }
            head.to_lowercase()
        };
        // All are sent at once: answers come in the same order.
        let asked = [("HEAD", "/b/k"), ("DELETE", "/b/k"), ("GET", "/b/not-modified"), ("HEAD", "/b/l")];
        let text: String = asked.map(|(method, target)| format!("{method} {target} HTTP/1.1\r\nHost: h\r\n\r\n")).concat();
        (&stream).write_all(text.as_bytes()).unwrap();
        for (starts, has) in [("200", "content-length: 12345"), ("204", "http"), ("304", "etag: \"1\""), ("200", "content-length: 12345")] {
            let head = read_head();
            assert!(head.starts_with(&format!("http/1.1 {starts} ")) && head.contains(has), "{head}");
        }
        let requests = proxy.take();
        let kinds: Vec<Kind> = requests.iter().map(|request| request.kind).collect();
        assert_eq!(kinds, [Kind::Head, Kind::Delete, Kind::Get, Kind::Head]);
        assert_eq!(requests.iter().map(|request| request.status.load(SeqCst)).collect::<Vec<_>>(), [200, 204, 304, 200]);
    }

    #[test]
    fn a_large_body_passes_whole() {
        let proxy = start(0);
        let (_, body) = ask(&proxy, "GET /b/large HTTP/1.1\r\nHost: h\r\n\r\n");
        assert!(body.len() == LARGE_BYTES && body.iter().all(|byte| *byte == 7));
        assert_eq!(Counts::of([&*proxy.take()[0]]).received_bytes, LARGE_BYTES as u64);
    }

    #[test]
    fn bodies_of_one_direction_share_a_line() {
        let proxy = Proxy::start(service(), Duration::ZERO, Some(4 * LARGE_BYTES as u64)).unwrap();
        let begun = Instant::now();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| assert_eq!(ask(&proxy, "GET /b/large HTTP/1.1\r\nHost: h\r\n\r\n").1.len(), LARGE_BYTES));
            }
        });
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(450), "{took:?}");
    }

    #[test]
    fn each_request_waits_beside_the_others() {
        let proxy = start(100);
        let begun = Instant::now();
        thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| ask(&proxy, "GET /b/k HTTP/1.1\r\nHost: h\r\n\r\n"));
            }
        });
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(100) && took < Duration::from_millis(1000), "{took:?}");
        assert_eq!(proxy.take().len(), 20);
    }

    #[test]
    fn a_client_of_no_service_is_told() {
        let free = Listener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let proxy = Proxy::start(free, Duration::ZERO, None).unwrap();
        let (head, _) = ask(&proxy, "GET /b/k HTTP/1.1\r\nHost: h\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    }
}
