//! The client for measuring: many requests in flight, errors as the server has them.

mod common;

use common::{Memory, one, start};
use onefold_nbd::client::Client;
use onefold_nbd::{Config, ExportError, Listen};
use std::sync::atomic::Ordering;

const LENGTH: usize = 100 << 10;

#[test]
fn many_writes_are_in_flight_and_errors_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nbd");
    let disk = Memory::new(4 << 20);
    let _serving = start(Config::new(Listen::Unix(socket.clone())), one(&disk));
    let mut client = Client::connect(&socket, "disk").unwrap();
    assert_eq!(client.size(), 4 << 20);
    let block = |number: u64| vec![number as u8 + 1; LENGTH];
    for number in 0..32 {
        client.send_write(number, number * LENGTH as u64, &block(number)).unwrap();
    }
    let mut answered: Vec<(u64, u32)> = (0..32).map(|_| client.receive().unwrap()).collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..32).map(|number| (number, 0)).collect::<Vec<_>>());
    client.send_flush(u64::MAX).unwrap();
    assert_eq!((client.receive().unwrap(), disk.flushes.load(Ordering::SeqCst)), ((u64::MAX, 0), 1));
    let content = disk.content();
    (0..32).for_each(|number| assert!(content[number as usize * LENGTH..][..LENGTH] == block(number)));
    let mut read = vec![0; LENGTH];
    assert_eq!(client.read(3 * LENGTH as u64, &mut read).unwrap(), 0);
    assert!(read == block(3));
    *disk.failure.write().unwrap() = Some(ExportError::NoSpace);
    client.send_write(7, 0, &block(0)).unwrap();
    assert_eq!(client.receive().unwrap(), (7, 28));
}

#[test]
fn an_export_that_is_not_there_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nbd");
    let _serving = start(Config::new(Listen::Unix(socket.clone())), one(&Memory::new(1 << 20)));
    let refused = Client::connect(&socket, "other").unwrap_err().to_string();
    assert!(refused.starts_with("the server refused export \"other\""), "{refused}");
}
