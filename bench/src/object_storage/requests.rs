//! Requests to object storage as a proxy sees them: their kinds, their counts, and a list that people can read.

use hyper::{Method, Uri};
use std::fmt::Write;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

/// What a request does. Services bill by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads an object, a part of it, or a setting of the bucket.
    Get,
    /// Writes an object or a part of an upload.
    Put,
    /// Asks for the length of an object, or whether the bucket exists.
    Head,
    /// Lists names.
    List,
    /// Deletes one object, or a batch of them.
    Delete,
    /// Begins or ends an upload of parts.
    Post,
    /// None of these.
    Other,
}

impl Kind {
    /// All of them, in the order of the report.
    pub const ALL: [Kind; 7] = [Kind::Get, Kind::Put, Kind::Head, Kind::List, Kind::Delete, Kind::Post, Kind::Other];

    /// Returns what the report calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Get => "GET",
            Kind::Put => "PUT",
            Kind::Head => "HEAD",
            Kind::List => "LIST",
            Kind::Delete => "DELETE",
            Kind::Post => "POST",
            Kind::Other => "OTHER",
        }
    }

    /// Returns the kind of a request whose path begins with the bucket.
    pub fn of(method: &Method, uri: &Uri) -> Kind {
        let has = |names: &[&str]| parameters(uri).any(|name| names.contains(&name));
        match *method {
            // Without a key the bucket is listed, unless a setting of it is asked for.
            Method::GET if has(&["list-type", "uploads", "versions"]) => Kind::List,
            Method::GET if !has_key(uri) && parameters(uri).all(|name| OF_LISTS.contains(&name)) => Kind::List,
            Method::GET => Kind::Get,
            Method::PUT => Kind::Put,
            Method::HEAD => Kind::Head,
            Method::DELETE => Kind::Delete,
            Method::POST if has(&["delete"]) => Kind::Delete,
            Method::POST => Kind::Post,
            _ => Kind::Other,
        }
    }
}

/// Parameters of a list of the first version.
const OF_LISTS: [&str; 5] = ["prefix", "delimiter", "marker", "max-keys", "encoding-type"];

/// Returns the names in the query.
fn parameters(uri: &Uri) -> impl Iterator<Item = &str> {
    let pairs = uri.query().unwrap_or_default().split('&');
    pairs.map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name)).filter(|name| !name.is_empty())
}

/// Returns whether the path names an object, as in `/BUCKET/KEY`.
fn has_key(uri: &Uri) -> bool {
    uri.path().trim_start_matches('/').split_once('/').is_some_and(|(_, key)| !key.is_empty())
}

/// One request, perhaps on its way.
#[derive(Debug)]
pub struct Request {
    pub kind: Kind,
    /// Path and query, as sent.
    target: String,
    /// The header `Range`.
    range: String,
    began: Instant,
    /// 0: nothing was answered yet.
    pub status: AtomicU16,
    pub sent_bytes: AtomicU64,
    pub received_bytes: AtomicU64,
    /// From its beginning to the last byte of the answer; 0: not there yet.
    took_us: AtomicU64,
}

impl Request {
    /// Notes a request that begins now.
    pub fn new(method: &Method, uri: &Uri, range: &str) -> Request {
        Request {
            kind: Kind::of(method, uri),
            target: uri.path_and_query().map_or_else(|| uri.to_string(), ToString::to_string),
            range: range.to_owned(),
            began: Instant::now(),
            status: AtomicU16::new(0),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            took_us: AtomicU64::new(0),
        }
    }

    /// Notes that the answer is passed on whole, or given up.
    pub fn end(&self) {
        self.took_us.store(self.began.elapsed().as_micros().max(1).try_into().unwrap_or(u64::MAX), SeqCst);
    }
}

/// Requests of a step, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// In the order of [`Kind::ALL`].
    pub by_kind: [u64; Kind::ALL.len()],
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

impl Counts {
    /// Counts requests and the bytes of their bodies.
    pub fn of<'a>(requests: impl IntoIterator<Item = &'a Request>) -> Counts {
        let mut counts = Counts::default();
        for request in requests {
            let at = Kind::ALL.iter().position(|kind| *kind == request.kind).expect("ALL has every kind");
            counts.by_kind[at] += 1;
            counts.sent_bytes += request.sent_bytes.load(SeqCst);
            counts.received_bytes += request.received_bytes.load(SeqCst);
        }
        counts
    }

    /// Returns the number of all requests.
    pub fn requests(&self) -> u64 {
        self.by_kind.iter().sum()
    }
}

/// Lists requests in the order in which they began, a line for each, below a title. Times count from `began`.
pub fn list<'a>(title: &str, began: Instant, requests: impl IntoIterator<Item = &'a Request>) -> String {
    let mut text = format!("\n== {title}\n");
    text += "    #  start, ms   took, ms  kind    status       sent   received  object, range\n";
    for (nth, request) in requests.into_iter().enumerate() {
        let start_ms = request.began.saturating_duration_since(began).as_secs_f64() * 1e3;
        let took_ms = match request.took_us.load(SeqCst) {
            0 => "-".to_owned(),
            took_us => format!("{:.1}", took_us as f64 / 1e3),
        };
        let status = match request.status.load(SeqCst) {
            0 => "-".to_owned(),
            status => status.to_string(),
        };
        let (sent, received) = (request.sent_bytes.load(SeqCst), request.received_bytes.load(SeqCst));
        let (kind, target, range) = (request.kind.name(), &request.target, &request.range);
        let line =
            format!("{:>5} {start_ms:>10.1} {took_ms:>10}  {kind:<6} {status:>7} {sent:>10} {received:>10}  {target} {range}", nth + 1);
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(method: &str, target: &str) -> Kind {
        Kind::of(&method.parse().unwrap(), &target.parse().unwrap())
    }

    #[test]
    fn lists_are_told_from_reads() {
        for target in ["/b?list-type=2&prefix=a%2F", "/b/?delimiter=%2F&list-type=2", "/b/", "/b?prefix=p&max-keys=1", "/b?uploads", "/"] {
            assert_eq!(kind("GET", target), Kind::List, "{target}");
        }
        for target in ["/b/key", "/b/a/list-type=2", "/b?location=", "/b/?versioning", "/b/key?x-id=GetObject", "/b/key?prefix=list-type"] {
            assert_eq!(kind("GET", target), Kind::Get, "{target}");
        }
    }

    #[test]
    fn a_post_may_delete() {
        assert_eq!(kind("POST", "/b?delete"), Kind::Delete);
        assert_eq!(kind("POST", "/b/?delete="), Kind::Delete);
        assert_eq!(kind("POST", "/b/delete?uploads"), Kind::Post);
        assert_eq!(kind("POST", "/b/key?uploadId=delete"), Kind::Post);
        assert_eq!(kind("DELETE", "/b/key"), Kind::Delete);
        assert_eq!(kind("PUT", "/b/key?partNumber=1&uploadId=x"), Kind::Put);
        assert_eq!(kind("HEAD", "/b"), Kind::Head);
        assert_eq!(kind("OPTIONS", "/b"), Kind::Other);
    }

    #[test]
    fn requests_are_counted_and_listed_in_order() {
        let began = Instant::now();
        let new = |method: Method, target: &str, range: &str| Request::new(&method, &target.parse().unwrap(), range);
        let requests = [new(Method::GET, "/b/k", "bytes=0-9"), new(Method::PUT, "/b/l", ""), new(Method::GET, "/b/m", "")];
        requests[0].received_bytes.store(10, SeqCst);
        requests[0].status.store(206, SeqCst);
        requests[0].end();
        requests[1].sent_bytes.store(7, SeqCst);
        let counts = Counts::of(&requests);
        assert_eq!((counts.by_kind, counts.requests()), ([2, 1, 0, 0, 0, 0, 0], 3));
        assert_eq!((counts.sent_bytes, counts.received_bytes), (7, 10));
        let text = list("a step", began, &requests);
        let lines: Vec<Vec<&str>> = text.lines().skip(3).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][3..], ["GET", "206", "0", "10", "/b/k", "bytes=0-9"]);
        assert_eq!(lines[1][2..], ["-", "PUT", "-", "7", "0", "/b/l"]);
        assert_eq!(lines.len(), 3);
    }
}
