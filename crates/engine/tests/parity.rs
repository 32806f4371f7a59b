//! Reads of what cannot be read are answered from parity.

mod common;

use common::{DEFAULT_CHAIN, bytes, descriptor, open, read, settings, store, write};
use onefold_engine::{Piece, Settings};

#[test]
fn a_read_that_the_device_refuses_is_answered_from_parity() {
    let ground = store(&descriptor());
    let settings = Settings { parity_group: 4, ..settings(DEFAULT_CHAIN) };
    let engine = open(&ground, settings.clone());
    let data = bytes(1, 1 << 20);
    let mut stream = engine.stream();
    let pieces = write(&mut stream, &data, 1 << 16);
    drop(stream);
    engine.flush().unwrap();
    assert!(engine.make_parity(true, &|| true).unwrap() > 0);
    engine.close().unwrap();
    drop(engine);
    let engine = open(&ground, settings);
    let Piece::Chunk { address, .. } = pieces[0] else { panic!("these are no zeros") };
    let container = address.container();
    let path = format!("containers/{:04x}/{:05x}/{:08x}", container.partition(), container.number() >> 12, container.number());
    ground.make_unreadable(&path).unwrap();
    assert!(read(&engine, &pieces).unwrap() == data);
    assert_eq!(engine.repaired_containers(), 1);
}
