use super::*;
use crate::faults::{Fault, FaultyBucket};
use crate::location::{self, BucketOptions, Location};
use object_store::memory::InMemory;
use onefold_ground::{GroundError, list_after};
use proptest::prelude::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::time::Instant;

/// For tests: it fails soon.
const SHORT: Patience =
    Patience { total: Duration::from_secs(2), request_timeout: Duration::from_millis(500), first_pause: Duration::from_millis(1) };

fn faulty() -> (FaultyBucket, RequestBucket) {
    let faulty = FaultyBucket::new();
    let bucket = faulty.bucket(SHORT).unwrap();
    (faulty, bucket)
}

fn names(bucket: &dyn Bucket, prefix: &str) -> Vec<String> {
    let mut names = Vec::new();
    let each = &mut |name: &str, _| {
        names.push(name.to_owned());
        true
    };
    list_after(bucket, prefix, String::new(), each).unwrap();
    names
}

#[test]
fn a_put_survives_each_fault_and_is_never_taken_by_itself() {
    use Fault::*;
    for (fault, retries) in [(LostRequest, 1), (LostAnswer, 1), (LatePut, 1), (Busy, 1), (Throttled, 1), (TruncatedBody, 0)] {
        let (faulty, bucket) = faulty();
        faulty.plan(0, fault);
        assert_eq!(bucket.put_new("log/1", b"batch").unwrap(), Put::Done, "{fault:?}");
        assert_eq!(bucket.requests().retries, retries, "{fault:?}");
        assert_eq!(faulty.release_late(), usize::from(fault == LatePut));
        assert_eq!(faulty.content("store/log/1").unwrap(), b"batch");
        assert_eq!(bucket.put_new("log/1", b"other").unwrap(), Put::Taken);
    }
}

#[test]
fn a_late_put_that_arrives_before_its_retry_is_recognized() {
    let (faulty, bucket) = faulty();
    faulty.set_late_after(Some(0));
    faulty.plan(0, Fault::LatePut);
    assert_eq!(bucket.put_new("log/1", b"batch").unwrap(), Put::Done);
    assert_eq!(bucket.requests(), Requests { puts: 2, gets: 1, sent_bytes: 10, received_bytes: 5, retries: 1, ..Requests::default() });
}

#[test]
fn a_long_content_is_looked_up_before_it_is_sent_again() {
    let (faulty, bucket) = faulty();
    let (own, other) = (vec![1; 100_000], vec![2; 100_000]);
    faulty.plan(0, Fault::LostAnswer);
    assert_eq!(bucket.put_new("a", &own).unwrap(), Put::Done);
    assert_eq!((bucket.requests().puts, bucket.requests().gets), (1, 1));
    faulty.plan(0, Fault::LostRequest);
    assert_eq!(bucket.put_new("a", &other).unwrap(), Put::Taken);
    assert_eq!((bucket.requests().puts, bucket.requests().gets), (2, 2));
    faulty.plan(0, Fault::LostRequest);
    assert_eq!(bucket.put_new("b", &own).unwrap(), Put::Done);
    assert_eq!((bucket.requests().puts, bucket.requests().gets), (4, 3));
}

#[test]
fn a_late_put_does_not_replace_what_another_one_put() {
    let (faulty, bucket) = faulty();
    faulty.storm(0, 1000, Fault::LatePut);
    let error = bucket.put_new("log/1", b"mine").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let text = error.to_string();
    assert!(text.contains("faulty://bucket/store/log/1") && text.contains("gave up after") && text.contains("no answer"), "{text}");
    faulty.calm();
    assert_eq!(bucket.put_new("log/1", b"theirs").unwrap(), Put::Done);
    assert!(faulty.release_late() > 1);
    assert_eq!(bucket.put_new("log/1", b"mine").unwrap(), Put::Taken);
    assert_eq!(bucket.get("log/1", 10).unwrap(), b"theirs");
}

#[test]
fn a_storm_is_waited_out_unless_it_lasts_longer_than_patience() {
    for fault in [Fault::Busy, Fault::Throttled, Fault::LostRequest] {
        let (faulty, bucket) = faulty();
        faulty.storm(0, 6, fault);
        bucket.put_over("a", b"x").unwrap();
        assert_eq!((bucket.requests().retries, bucket.requests().puts), (6, 7));
        faulty.storm(0, 1000, fault);
        let began = Instant::now();
        let error = bucket.get("a", 1).unwrap_err();
        assert!(began.elapsed() < SHORT.total + SHORT.request_timeout);
        assert!(error.kind() == ErrorKind::TimedOut && !error.is_lasting());
    }
}

#[test]
fn a_body_that_ends_early_is_read_again() {
    let (faulty, bucket) = faulty();
    bucket.put_over("a", b"abcdefgh").unwrap();
    faulty.plan(0, Fault::TruncatedBody);
    assert_eq!(bucket.get("a", 8).unwrap(), b"abcdefgh");
    faulty.plan(0, Fault::TruncatedBody);
    assert_eq!(bucket.get_range("a", 2, 4).unwrap(), b"cdef");
    faulty.plan(0, Fault::TruncatedBody);
    assert_eq!(bucket.get_end("a", 3).unwrap(), (b"fgh".to_vec(), 8));
    assert_eq!((bucket.requests().retries, bucket.requests().gets), (3, 6));
    // Also where a put looks what is there.
    faulty.plan(1, Fault::TruncatedBody);
    assert_eq!(bucket.put_new("a", b"abcdefgh").unwrap(), Put::Done);
}

#[test]
fn an_object_that_is_read_as_it_comes_goes_on_after_each_fault_where_it_was() {
    let (faulty, bucket) = faulty();
    let content: Vec<u8> = (0..300_000_u32).map(|at| (at * 7 + at / 251) as u8).collect();
    bucket.put_over("a", &content).unwrap();
    bucket.put_over("empty", b"").unwrap();
    let read = |name: &str| {
        let mut read = Vec::new();
        let mut take = |length: u64, bytes: &[u8]| {
            assert_eq!(length, 300_000);
            read.extend_from_slice(bytes);
            true
        };
        bucket.get_as_it_comes(name, &mut take).map(|()| read)
    };
    // What has come does not come again.
    faulty.plan(0, Fault::TruncatedBody);
    faulty.plan(1, Fault::TruncatedBody);
    assert!(read("a").unwrap() == content);
    assert_eq!((bucket.requests().gets, bucket.requests().received_bytes), (3, 300_000));
    faulty.randomize(5, 30);
    assert!((0..50).all(|_| read("a").unwrap() == content));
    faulty.calm();
    assert_eq!(read("empty").unwrap(), b"");
    assert!(read("b").unwrap_err().is_not_found());
    // Nobody waits for what is not wanted.
    let before = bucket.requests().gets;
    bucket.get_as_it_comes("a", &mut |_, _| false).unwrap();
    assert_eq!(bucket.requests().gets - before, 1);
    faulty.storm(0, 1_000_000, Fault::TruncatedBody);
    assert!(read("empty").is_ok());
}

#[test]
fn an_object_that_is_replaced_while_it_comes_is_an_error_and_no_mixture() {
    let faulty = FaultyBucket::new();
    let patience = Patience { total: Duration::from_secs(10), first_pause: Duration::from_millis(50), ..SHORT };
    let bucket = faulty.bucket(patience).unwrap();
    bucket.put_over("a", &[1; 1000]).unwrap();
    faulty.plan(0, Fault::TruncatedBody);
    faulty.storm(1, 4, Fault::LostRequest);
    let mut read = Vec::new();
    let error = bucket.get_as_it_comes("a", &mut |_, bytes| {
        read.extend_from_slice(bytes);
        faulty.set_content("store/a", &[2; 1000]);
        true
    });
    assert!(error.is_err() && read.len() < 1000 && read.iter().all(|byte| *byte == 1), "{error:?}");
}

#[test]
fn of_two_writers_one_gets_the_name() {
    let (faulty, bucket) = faulty();
    let other = faulty.bucket(SHORT).unwrap();
    faulty.randomize(7, 20);
    for number in 0..50 {
        let name = format!("log/{number}");
        let put = |bucket: &RequestBucket, content: &[u8]| bucket.put_new(&name, content).unwrap();
        let (first, second) = std::thread::scope(|scope| {
            let first = scope.spawn(|| put(&bucket, b"first"));
            let second = scope.spawn(|| put(&other, b"second"));
            (first.join().unwrap(), second.join().unwrap())
        });
        assert_ne!(first, second);
        let winner: &[u8] = if first == Put::Done { b"first" } else { b"second" };
        assert_eq!(faulty.content(&format!("store/{name}")).unwrap(), winner);
    }
}

#[test]
fn reads_end_with_the_object() {
    for has_faults in [false, true] {
        let (faulty, bucket) = faulty();
        bucket.put_over("a", b"abcdef").unwrap();
        bucket.put_over("empty", b"").unwrap();
        if has_faults {
            faulty.randomize(3, 20);
        }
        assert_eq!(bucket.get_range("a", 2, 4).unwrap(), b"cdef");
        assert_eq!(bucket.get_range("a", 2, 0).unwrap(), b"");
        for (offset, length) in [(2, 5), (6, 1), (100, 1), (u64::MAX, 1), (0, 100)] {
            assert_eq!(bucket.get_range("a", offset, length).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        }
        for (length, end) in [(0, ""), (2, "ef"), (6, "abcdef"), (7, "abcdef")] {
            assert_eq!(bucket.get_end("a", length).unwrap(), (end.as_bytes().to_vec(), 6));
        }
        assert_eq!(bucket.get_end("empty", 7).unwrap(), (Vec::new(), 0));
        assert_eq!(bucket.get("empty", 0).unwrap(), b"");
        for error in [bucket.get("b", 1).unwrap_err(), bucket.get_range("b", 0, 1).unwrap_err(), bucket.get_end("b", 1).unwrap_err()] {
            assert!(error.is_not_found() && error.to_string().contains("faulty://bucket/store/b"), "{error}");
        }
        assert!(bucket.get_end("b", 0).unwrap_err().is_not_found());
        assert_eq!((bucket.length("a").unwrap(), bucket.length("b").unwrap()), (Some(6), None));
    }
}

#[test]
fn an_object_that_is_too_long_is_not_read() {
    let (_, bucket) = faulty();
    bucket.put_over("a", b"abcdef").unwrap();
    assert!(matches!(bucket.get("a", 5).unwrap_err(), GroundError::TooLong { length_bytes: 6, limit_bytes: 5, .. }));
    assert_eq!(bucket.put_new("a", b"abc").unwrap(), Put::Taken);
    assert_eq!(bucket.requests().received_bytes, 0);
}

#[test]
fn a_replacement_needs_the_old_content() {
    let (faulty, bucket) = faulty();
    bucket.put_over("a", b"one").unwrap();
    assert_eq!(bucket.replace("a", b"two", b"three").unwrap(), Put::Taken);
    assert_eq!(bucket.replace("b", b"", b"x").unwrap(), Put::Taken);
    assert_eq!(bucket.replace("a", b"a much longer one", b"x").unwrap(), Put::Taken);
    for (fault, old, new) in [(Fault::LostRequest, "one", "2"), (Fault::LostAnswer, "2", "three"), (Fault::LatePut, "three", "four")] {
        faulty.plan(1, fault);
        assert_eq!(bucket.replace("a", old.as_bytes(), new.as_bytes()).unwrap(), Put::Done, "{fault:?}");
        assert_eq!(bucket.replace("a", new.as_bytes(), b"five").unwrap(), Put::Done);
        // The late one names a version that is gone.
        faulty.release_late();
        assert_eq!(bucket.replace("a", b"five", new.as_bytes()).unwrap(), Put::Done);
    }
    assert_eq!(faulty.content("store/a").unwrap(), b"four");
}

#[test]
fn of_many_replacements_one_succeeds() {
    let (faulty, bucket) = faulty();
    bucket.put_over("a", b"0").unwrap();
    faulty.randomize(1, 10);
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=8_u8)
            .map(|number| {
                scope.spawn({
                    let bucket = &bucket;
                    move || bucket.replace("a", b"0", &[number]).unwrap()
                })
            })
            .collect();
        threads.into_iter().filter(|_| true).map(|thread| thread.join().unwrap()).filter(|put| *put == Put::Done).count()
    });
    assert_eq!(done, 1);
}

#[test]
fn lists_have_the_names_of_this_store_page_by_page() {
    let (faulty, bucket) = faulty();
    let other = RequestBucket::new(Arc::new(faulty.clone()), "faulty://bucket/storex", "storex", SHORT).unwrap();
    let expected: Vec<String> = (0..25).map(|number| format!("log/{number:03}")).collect();
    for name in &expected {
        bucket.put_over(name, name.as_bytes()).unwrap();
        other.put_over(name, b"").unwrap();
    }
    bucket.put_over("log0", b"").unwrap();
    bucket.put_over("logs/1", b"").unwrap();
    faulty.set_page(10);
    faulty.randomize(5, 20);
    assert_eq!(names(&bucket, "log/"), expected);
    assert_eq!(names(&bucket, "log").len(), 27);
    assert_eq!(names(&bucket, "").len(), 27);
    assert_eq!(names(&bucket, "log/01"), expected[10..20]);
    assert_eq!(names(&bucket, "none/"), [""; 0]);
    let page = bucket.list("log/", "log/003").unwrap();
    assert_eq!((page.objects[0].clone(), page.objects.len(), page.has_more), (("log/004".to_owned(), 7), 10, true));
    assert_eq!(bucket.list("log/", &format!("log/{}", char::MAX)).unwrap(), Listing::default());
    assert_eq!(bucket.list("log/", "a").unwrap().objects[0].0, "log/000");
}

#[test]
fn a_store_without_pages_is_listed_too() {
    let bucket = RequestBucket::new(Arc::new(InMemory::new()), "memory://x", "", SHORT).unwrap();
    for number in 0..1005 {
        bucket.put_over(&format!("a/{number:04}"), b"").unwrap();
    }
    bucket.put_over("b", b"x").unwrap();
    let page = bucket.list("a/", "").unwrap();
    assert_eq!((page.objects.len(), page.has_more), (1000, true));
    assert_eq!(names(&bucket, "a/").len(), 1005);
    assert_eq!(names(&bucket, "").len(), 1006);
    assert_eq!(bucket.list("", "a/1004").unwrap(), Listing { objects: vec![("b".to_owned(), 1)], has_more: false });
}

#[test]
fn many_objects_are_deleted_with_few_requests() {
    let (faulty, bucket) = faulty();
    let all: Vec<String> = (0..1200).map(|number| format!("a/{number}")).collect();
    for name in &all[..20] {
        bucket.put_over(name, b"").unwrap();
    }
    bucket.put_over("b", b"").unwrap();
    faulty.plan(0, Fault::LostAnswer);
    faulty.plan(2, Fault::Busy);
    bucket.delete(&all).unwrap();
    bucket.delete(&[]).unwrap();
    assert_eq!((bucket.requests().deletes, bucket.requests().retries), (4, 2));
    assert_eq!(names(&bucket, ""), ["b"]);
}

#[test]
fn long_contents_are_put_in_parts() {
    let (faulty, bucket) = faulty();
    let content: Vec<u8> = (0..20 << 20).map(|at: u32| (at ^ (at >> 9)) as u8).collect();
    faulty.plan(0, Fault::LostRequest);
    bucket.put_over("a", &content).unwrap();
    assert_eq!((bucket.requests().puts, bucket.requests().sent_bytes), (6, 20 << 20));
    assert!(bucket.get("a", u64::MAX).unwrap() == content);
    // Part by part nobody could say that the name must be free.
    assert_eq!(bucket.put_new("b", &content).unwrap(), Put::Done);
    assert_eq!(bucket.put_new("a", &content).unwrap(), Put::Done);
}

#[test]
fn what_is_no_name_is_refused() {
    let (faulty, bucket) = faulty();
    for name in ["", "a//b", "a/../b", "/a", "a/", "a\n"] {
        assert_eq!(bucket.put_new(name, b"").unwrap_err().kind(), ErrorKind::InvalidInput, "{name:?}");
    }
    assert_eq!(faulty.requests(), 0);
}

#[test]
fn a_caller_may_be_a_thread_of_another_runtime() {
    for runtime in [tokio::runtime::Builder::new_current_thread().build(), tokio::runtime::Builder::new_multi_thread().build()] {
        let (_, bucket) = faulty();
        runtime.unwrap().block_on(async move {
            bucket.put_over("a", b"x").unwrap();
            assert_eq!(bucket.get("a", 1).unwrap(), b"x");
            tokio::spawn(async move { assert_eq!(bucket.length("a").unwrap(), Some(1)) }).await.unwrap();
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// What is put, replaced and deleted is there or not there, whatever gets lost. Late puts may arrive at any time.
    #[test]
    fn a_bucket_with_faults_is_like_a_map(
        seed in any::<u64>(),
        late_after in prop_oneof![Just(None), (0..6_u64).prop_map(Some)],
        steps in proptest::collection::vec((0..5_u8, 0..6_u8), 1..40),
    ) {
        let faulty = FaultyBucket::new();
        let bucket = faulty.bucket(Patience { first_pause: Duration::from_micros(20), ..SHORT }).unwrap();
        faulty.randomize(seed, 25);
        faulty.set_late_after(late_after);
        let mut expected: std::collections::BTreeMap<String, Vec<u8>> = Default::default();
        // A name is not used again after its deletion: that is the rule for late puts.
        let mut gone = std::collections::BTreeSet::new();
        for (number, (kind, which)) in steps.into_iter().enumerate() {
            let name = format!("n/{which}");
            let content = vec![number as u8; number + 1];
            let present = expected.get(&name).cloned();
            match kind {
                0 | 1 if gone.contains(&name) => {}
                0 | 1 => {
                    let put = bucket.put_new(&name, &content).unwrap();
                    prop_assert_eq!(put, if present.is_none() { Put::Done } else { Put::Taken });
                    expected.entry(name).or_insert(content);
                }
                2 => {
                    let old = present.clone().unwrap_or_default();
                    let put = bucket.replace(&name, &old, &content).unwrap();
                    prop_assert_eq!(put, if present.is_some() { Put::Done } else { Put::Taken });
                    if present.is_some() {
                        expected.insert(name, content);
                    }
                }
                3 if late_after.is_none() => {
                    bucket.delete(std::slice::from_ref(&name)).unwrap();
                    expected.remove(&name);
                    gone.insert(name);
                }
                _ => match present {
                    Some(present) => prop_assert_eq!(bucket.get(&name, u64::MAX).unwrap(), present),
                    None => prop_assert!(bucket.get(&name, u64::MAX).unwrap_err().is_not_found()),
                },
            }
        }
        prop_assert_eq!(names(&bucket, "n/"), expected.into_keys().collect::<Vec<_>>());
    }
}

/// A server on loopback that gives one answer after the other, each on a connection of its own.
struct Server {
    endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(answers: Vec<&'static str>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = requests.clone();
        std::thread::spawn(move || {
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(&stream);
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap() > 0 {}
                let length = head.to_ascii_lowercase().split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
                let mut body = vec![0; length.unwrap_or(0)];
                reader.read_exact(&mut body).unwrap();
                heard.lock().push(head);
                let (status, rest) = answer.split_once('|').unwrap_or((answer, "\r\nContent-Length: 0\r\n\r\n"));
                let _ = (&stream).write_all(format!("HTTP/1.1 {status}\r\nConnection: close{rest}").as_bytes());
            }
        });
        Server { endpoint, requests }
    }

    fn bucket(&self) -> Arc<dyn Bucket> {
        let options = BucketOptions {
            endpoint: Some(self.endpoint.clone()),
            region: Some("us-east-1".to_owned()),
            key: Some(("id".to_owned(), "secret".to_owned(), None)),
            patience: SHORT,
            ..BucketOptions::default()
        };
        location::open(&Location::parse("s3://bucket/store").unwrap(), &options).unwrap()
    }
}

#[test]
fn answers_that_pass_are_retried_and_refusals_are_not() {
    for passing in ["500 Internal Server Error", "502 Bad Gateway", "503 Slow Down", "429 Too Many Requests", "408 Request Timeout"] {
        let server = Server::start(vec![passing, passing, "200 OK|\r\nETag: \"x\"\r\nContent-Length: 0\r\n\r\n"]);
        let bucket = server.bucket();
        assert_eq!(bucket.put_new("log/1", b"batch").unwrap(), Put::Done);
        assert_eq!(bucket.requests(), Requests { puts: 3, sent_bytes: 15, retries: 2, ..Requests::default() });
        let requests = server.requests.lock();
        assert!(requests.len() == 3 && requests[2].starts_with("PUT /bucket/store/log/1 HTTP/1.1\r\n"), "{requests:?}");
        assert!(requests[2].contains("if-none-match: *") && requests[2].contains("user-agent: onefold/"), "{requests:?}");
    }
    for (refusal, kind, why) in [
        ("403 Forbidden", ErrorKind::PermissionDenied, "check the credentials"),
        ("401 Unauthorized", ErrorKind::PermissionDenied, "check the credentials"),
        ("400 Bad Request", ErrorKind::Other, "400"),
        ("501 Not Implemented", ErrorKind::Unsupported, "501"),
        ("301 Moved Permanently", ErrorKind::Other, "another region"),
        (
            "404 Not Found|\r\nContent-Length: 50\r\n\r\n<Error><Code>NoSuchBucket</Code><Key>abc</Key></Er",
            ErrorKind::Other,
            "the bucket does not exist",
        ),
    ] {
        let server = Server::start(vec![refusal]);
        let error = server.bucket().put_new("log/1", b"batch").unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(why), "{error}");
        assert!(error.to_string().contains("s3://bucket/store/log/1"), "{error}");
    }
    let passing = "400 Bad Request|\r\nContent-Length: 43\r\n\r\n<Error><Code>RequestTimeout</Code></Error>\r\n";
    let server = Server::start(vec![passing, "200 OK|\r\nETag: \"x\"\r\nContent-Length: 0\r\n\r\n"]);
    assert_eq!(server.bucket().put_new("a", b"").unwrap(), Put::Done);
}

#[test]
fn a_connection_that_breaks_or_hangs_is_tried_again() {
    const HEAD: &str = "\r\nETag: \"x\"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nContent-Length: 4\r\n\r\n";
    let whole: &'static str = Box::leak(format!("200 OK|{HEAD}abcd").into_boxed_str());
    let cut: &'static str = Box::leak(format!("200 OK|{HEAD}ab").into_boxed_str());
    let server = Server::start(vec![cut, "200 OK|", whole]);
    let bucket = server.bucket();
    assert_eq!(bucket.get("a", 4).unwrap(), b"abcd");
    assert_eq!((bucket.requests().gets, bucket.requests().retries), (3, 2));
    // Nobody answers any more.
    let began = Instant::now();
    let error = bucket.length("a").unwrap_err();
    assert!(error.kind() == ErrorKind::TimedOut && error.to_string().contains("Connection refused"), "{error}");
    assert!(began.elapsed() < SHORT.total * 2);
    // Somebody listens and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server { endpoint: format!("http://{}", silent.local_addr().unwrap()), requests: Arc::default() };
    let error = server.bucket().length("a").unwrap_err();
    assert!(error.kind() == ErrorKind::TimedOut && error.to_string().contains("no answer within 500ms"), "{error}");
}

#[test]
fn a_directory_is_a_bucket_too() {
    let directory = tempfile::tempdir().unwrap();
    let place = Location::parse(&format!("file://{}/new/store 1", directory.path().display())).unwrap();
    let bucket = location::open(&place, &BucketOptions::default()).unwrap();
    let bucket = &*bucket;
    assert_eq!(bucket.list("", "").unwrap(), Listing::default());
    assert_eq!(bucket.length("a/b").unwrap(), None);
    assert_eq!(bucket.put_new("a/b", b"one").unwrap(), Put::Done);
    assert_eq!(bucket.put_new("a/b", b"one").unwrap(), Put::Done);
    assert_eq!(bucket.put_new("a/b", b"two").unwrap(), Put::Taken);
    assert_eq!(bucket.replace("a/b", b"two", b"three").unwrap(), Put::Taken);
    assert_eq!(bucket.replace("a/b", b"one", b"three").unwrap(), Put::Done);
    assert_eq!(std::fs::read(directory.path().join("new/store 1/a/b")).unwrap(), b"three");
    assert_eq!(bucket.get_end("a/b", 2).unwrap(), (b"ee".to_vec(), 5));
    assert_eq!(bucket.get_range("a/b", 1, 2).unwrap(), b"hr");
    assert_eq!(bucket.get_range("a/b", 1, 5).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert!(matches!(bucket.get("a/b", 4).unwrap_err(), GroundError::TooLong { .. }));
    bucket.put_over("a/c", b"").unwrap();
    assert_eq!(bucket.get_end("a/c", 2).unwrap(), (Vec::new(), 0));
    bucket.put_over("d", &[7; 17 << 20]).unwrap();
    assert_eq!(bucket.length("d").unwrap(), Some(17 << 20));
    assert_eq!(names(bucket, ""), ["a/b", "a/c", "d"]);
    assert_eq!(names(bucket, "a/c"), ["a/c"]);
    bucket.delete(&["a/b".to_owned(), "none".to_owned(), "d".to_owned()]).unwrap();
    assert_eq!(names(bucket, ""), ["a/c"]);
    assert!(bucket.describe("a/c").starts_with("file:///") && bucket.describe("a/c").ends_with("/new/store 1/a/c"));
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8_u8).map(|number| scope.spawn(move || bucket.put_new("e", &[number]).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).filter(|put| *put == Put::Done).count()
    });
    assert_eq!(done, 1);
}
