//! The same calls against a real S3 service.

use onefold_bucket::gateway::Gateway;
use onefold_bucket::{BucketGround, BucketOptions, Location, check, open};
use onefold_ground::{Access, Bucket, Ground, GroundError, Put, SimulatedGround, list_after, read_file, replace_file};
use std::io::ErrorKind;
use std::sync::Arc;

fn bucket(gateway: &Gateway, prefix: &str) -> Arc<dyn Bucket> {
    open(&Location::parse(&format!("{}/{prefix}", gateway.url())).unwrap(), &gateway.options()).unwrap()
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
fn of_many_writers_one_gets_the_name() {
    let Some(gateway) = Gateway::start() else { return };
    let bucket = bucket(&gateway, "race");
    for round in 0..10 {
        let name = format!("log/{round}");
        let results: Vec<Put> = std::thread::scope(|scope| {
            let (bucket, name) = (&bucket, &name);
            let put = move |number: u8| bucket.put_new(name, &[number; 10_000]).unwrap();
            let threads: Vec<_> = (0..32).map(|number| scope.spawn(move || put(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let winners: Vec<usize> = (0..32).filter(|number| results[*number] == Put::Done).collect();
        assert_eq!(winners.len(), 1, "{winners:?}");
        assert_eq!(bucket.get(&name, 10_000).unwrap(), [winners[0] as u8; 10_000]);
    }
    // Of replacements, too.
    bucket.put_over("owner", b"old").unwrap();
    let done = std::thread::scope(|scope| {
        let bucket = &bucket;
        let threads: Vec<_> = (0..16_u8).map(|number| scope.spawn(move || bucket.replace("owner", b"old", &[number]).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).filter(|put| *put == Put::Done).count()
    });
    assert_eq!(done, 1);
}

#[test]
fn objects_are_put_read_listed_and_deleted() {
    let Some(gateway) = Gateway::start() else { return };
    let bucket = bucket(&gateway, "a/store");
    let bucket = &*bucket;
    check(bucket, "check").unwrap();
    assert_eq!((bucket.length("a").unwrap(), names(bucket, "").len()), (None, 0));
    for error in [bucket.get("a", 1).unwrap_err(), bucket.get_range("a", 0, 1).unwrap_err(), bucket.get_end("a", 1).unwrap_err()] {
        assert!(error.is_not_found(), "{error}");
    }
    let content: Vec<u8> = (0..300_000_u32).map(|at| (at ^ (at >> 8)) as u8).collect();
    assert_eq!(bucket.put_new("a", &content).unwrap(), Put::Done);
    assert_eq!(bucket.put_new("a", &content).unwrap(), Put::Done);
    assert_eq!(bucket.put_new("a", b"other").unwrap(), Put::Taken);
    assert_eq!(bucket.get("a", 300_000).unwrap(), content);
    assert!(matches!(bucket.get("a", 299_999).unwrap_err(), GroundError::TooLong { .. }));
    assert_eq!(bucket.get_range("a", 70_000, 5).unwrap(), content[70_000..70_005]);
    assert_eq!(bucket.get_range("a", 299_999, 1).unwrap(), content[299_999..]);
    for (offset, length) in [(299_999, 2), (300_000, 1), (1 << 40, 1), (0, 300_001)] {
        assert_eq!(bucket.get_range("a", offset, length).unwrap_err().kind(), ErrorKind::UnexpectedEof, "{offset}");
    }
    assert_eq!(bucket.get_end("a", 65_536).unwrap(), (content[300_000 - 65_536..].to_vec(), 300_000));
    assert_eq!(bucket.get_end("a", 300_001).unwrap(), (content.clone(), 300_000));
    bucket.put_over("empty", b"").unwrap();
    assert_eq!((bucket.get("empty", 0).unwrap(), bucket.get_end("empty", 9).unwrap()), (Vec::new(), (Vec::new(), 0)));
    assert_eq!(bucket.get_range("empty", 0, 1).unwrap_err().kind(), ErrorKind::UnexpectedEof);

    bucket.put_over("a", b"one").unwrap();
    assert_eq!(bucket.replace("a", b"two", b"three").unwrap(), Put::Taken);
    assert_eq!(bucket.replace("a", b"one", b"two").unwrap(), Put::Done);
    assert_eq!(bucket.replace("none", b"", b"two").unwrap(), Put::Taken);
    assert_eq!(bucket.get("a", 9).unwrap(), b"two");

    let long = vec![7; 17 << 20];
    bucket.put_over("long", &long).unwrap();
    assert!(bucket.get("long", u64::MAX).unwrap() == long);
    assert_eq!(bucket.requests().retries, 0);
    // The gateway refuses these before it has read them, and closes the connection.
    for number in 0..10 {
        let (own, other) = (vec![7; 17 << 20], vec![number; 17 << 20]);
        assert_eq!(bucket.put_new("long", &own).unwrap(), Put::Done);
        assert_eq!(bucket.put_new("long", &other).unwrap(), if number == 7 { Put::Done } else { Put::Taken });
    }
    assert!(bucket.requests().retries <= 20);
    assert_eq!(names(bucket, ""), ["a", "empty", "long"]);
    bucket.delete(&["a".to_owned(), "never".to_owned(), "long".to_owned()]).unwrap();
    assert_eq!(names(bucket, ""), ["empty"]);
}

#[test]
fn lists_come_in_pages_and_many_are_deleted_at_once() {
    let Some(gateway) = Gateway::start() else { return };
    let bucket = bucket(&gateway, "store");
    let bucket = &*bucket;
    let all: Vec<String> = (0..1_100).map(|number| format!("log/{:02x}/{number:05}", number % 4)).collect();
    std::thread::scope(|scope| {
        for part in all.chunks(140) {
            scope.spawn(move || part.iter().for_each(|name| assert_eq!(bucket.put_new(name, name.as_bytes()).unwrap(), Put::Done)));
        }
    });
    bucket.put_over("logs", b"").unwrap();
    let mut expected = all.clone();
    expected.sort();
    assert_eq!(names(bucket, "log/"), expected);
    assert_eq!(names(bucket, "log").len(), 1_101);
    assert_eq!(
        names(bucket, "log/01/000"),
        ["log/01/00001", "log/01/00005", "log/01/00009"]
            .iter()
            .map(|name| (*name).to_owned())
            .chain((13..100).step_by(4).map(|number| format!("log/01/{number:05}")))
            .collect::<Vec<_>>()
    );
    let first = bucket.list("log/", "").unwrap();
    assert_eq!((first.objects.len(), first.has_more), (1000, true));
    let behind = bucket.list("log/", &format!("log/02/{}", char::MAX)).unwrap();
    assert_eq!((behind.objects[0].0.as_str(), behind.objects.len(), behind.has_more), ("log/03/00003", 275, false));
    bucket.delete(&all).unwrap();
    assert_eq!((names(bucket, ""), bucket.requests().deletes), (vec!["logs".to_owned()], 2));
}

#[test]
fn a_ground_keeps_its_files_there() {
    let Some(gateway) = Gateway::start() else { return };
    let bucket = bucket(&gateway, "store");
    let local = Arc::new(SimulatedGround::new(1));
    let ground = BucketGround::with_kept_bytes(local, bucket.clone(), 0);
    let ground: &dyn Ground = &ground;
    for number in 0..5 {
        let file = ground.create(&format!("containers/0000/0000{number}/1")).unwrap();
        file.write_at(0, &vec![number; 100_000]).unwrap();
        file.sync().unwrap();
    }
    replace_file(ground, "containers/0000/owner", b"one").unwrap();
    replace_file(ground, "containers/0000/owner", b"two").unwrap();
    assert_eq!(read_file(ground, "containers/0000/owner", 9).unwrap(), b"two");
    let listed: Vec<String> = ground.list("containers/0000").unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(listed, ["00000", "00001", "00002", "00003", "00004", "owner"]);
    let file = ground.open("containers/0000/00003/1", Access::Read).unwrap();
    let mut buffer = vec![0; 100_000];
    file.read_at(0, &mut buffer).unwrap();
    assert!(buffer == vec![3; 100_000]);
    assert!(ground.exists("containers/0000/00003").unwrap() && !ground.exists("containers/0000/00005").unwrap());
    ground.remove("containers/0000/00003/1").unwrap();
    assert!(ground.remove("containers/0000/00003/1").unwrap_err().is_not_found());
    assert!(ground.open("containers/0000/00003/1", Access::Read).unwrap_err().is_not_found());
}

#[test]
fn a_wrong_key_and_a_missing_bucket_are_told_apart() {
    let Some(gateway) = Gateway::start() else { return };
    let with = |url: &str, options: &BucketOptions| open(&Location::parse(url).unwrap(), options).unwrap();
    let mut options = gateway.options();
    let missing = with("s3://no-such-bucket/x", &options);
    for error in [missing.put_new("a", b"").unwrap_err(), missing.get("a", 1).unwrap_err(), missing.list("", "").unwrap_err()] {
        assert!(!error.is_not_found() && error.to_string().contains("the bucket does not exist"), "{error}");
    }
    options.key = Some(("onefold".to_owned(), "wrong".to_owned(), None));
    let error = with(&gateway.url(), &options).put_new("a", b"").unwrap_err();
    assert!(error.kind() == ErrorKind::PermissionDenied && error.to_string().contains("check the credentials"), "{error}");
}

#[test]
fn a_connection_is_encrypted_and_the_server_must_be_known() {
    let Some(gateway) = Gateway::start_with_tls() else { return };
    assert!(gateway.endpoint().starts_with("https://"));
    let known = bucket(&gateway, "store");
    assert_eq!(known.put_new("a", b"x").unwrap(), Put::Done);
    assert_eq!(known.get("a", 1).unwrap(), b"x");
    let options = BucketOptions { ca_file: None, ..gateway.options() };
    let unknown = open(&Location::parse(&gateway.url()).unwrap(), &options).unwrap();
    let error = unknown.get("store/a", 1).unwrap_err();
    // It is told at once: no patience makes a certificate valid.
    assert!(error.kind() == ErrorKind::Other && error.to_string().contains("invalid peer certificate"), "{error}");
    assert_eq!(unknown.requests().retries, 0);
    let options = BucketOptions { ca_file: Some(gateway.objects().join("store/a")), ..gateway.options() };
    let error = open(&Location::parse(&gateway.url()).unwrap(), &options).map(drop);
    // A file without certificates adds none.
    assert!(error.is_ok());
    let options = BucketOptions { ca_file: Some(gateway.objects().join("none")), ..gateway.options() };
    let error = open(&Location::parse(&gateway.url()).unwrap(), &options).unwrap_err().to_string();
    assert!(error.contains("cannot read the certificates in"), "{error}");
}
