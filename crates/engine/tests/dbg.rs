mod common;
use common::*;
use onefold_engine::Settings;
#[test]
fn dbg() {
    let ground = store(&descriptor());
    let s = Settings { log_segment_bytes: 64 << 10, log_limit_bytes: 256 << 10, commit_bytes: 128<<10, auxiliary_index_bytes: 64<<10, block_index_pending_bytes: 16<<10, in_flight_bytes: 64<<10, ..settings(DEFAULT_CHAIN) };
    let engine = open(&ground, s);
    let mut stream = engine.stream();
    for round in 0..60u64 {
        write(&mut stream, &bytes(round, 20_000), 16<<10);
        let f = engine.flush();
        let m = engine.maintain(false);
        println!("{round}: log {} index {:?} needed {:?} {f:?} {m:?} {:?}", engine.statistics().unwrap().log_bytes, engine.index().position(), engine.storage().oldest_needed(), engine.storage().statistics());
        if f.is_err() { break }
    }
}
