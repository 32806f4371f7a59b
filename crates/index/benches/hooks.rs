//! Hooks of the sampled index (M3.4, M3.5): additions while the memory fills and after T has doubled, look-ups, and the
//! snapshot.
//!
//! `cargo bench -p onefold-index --bench hooks [-- MEBIBYTES]`. Figures are thousands per second of one thread. The
//! floor is memory: a read of one random cache line at a time, and of many at once.

use onefold_fingerprint::Fingerprint;
use onefold_ground::{Access, Ground, LocalGround};
use onefold_index::sampled::Hooks;
use std::time::Instant;

const CHUNKS_IN_CONTAINER: u64 = 512;
const LOOKED_UP: u64 = 2_000_000;
const BATCH: usize = 128;

fn mix(number: u64) -> u64 {
    let word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

fn name(number: u64) -> Fingerprint {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&mix(2 * number + 1).to_be_bytes());
    digest[8..16].copy_from_slice(&mix(2 * number + 2).to_be_bytes());
    Fingerprint::from_digest(&digest)
}

fn say(what: &str, count: u64, start: Instant) {
    println!("{what:<44} {:>8.0} k/s", count as f64 / start.elapsed().as_secs_f64() / 1e3);
}

/// Adds containers until `until` says so. Returns the time without making names, and how many were added.
fn fill(hooks: &Hooks, container: &mut u32, until: impl Fn(&Hooks) -> bool) -> (f64, u64) {
    let (mut seconds, begin) = (0.0, *container);
    while !until(hooks) {
        let from = u64::from(*container) * CHUNKS_IN_CONTAINER;
        let names: Vec<Fingerprint> = (from..from + CHUNKS_IN_CONTAINER).map(name).collect();
        *container += 1;
        let start = Instant::now();
        assert!(hooks.add(*container, &names));
        seconds += start.elapsed().as_secs_f64();
    }
    (seconds, u64::from(*container - begin) * CHUNKS_IN_CONTAINER)
}

fn look_up(hooks: &Hooks, what: &str, names: &[Fingerprint]) {
    let mut found = Vec::new();
    let start = Instant::now();
    for batch in names.chunks(BATCH) {
        found.clear();
        hooks.find(batch, &mut found);
        std::hint::black_box(&found);
    }
    say(what, names.len() as u64, start);
}

fn floors(lines: usize) {
    let memory = vec![1u64; lines * 8];
    let place = |number: u64| (mix(number) % lines as u64) as usize * 8;
    let start = Instant::now();
    let mut last = 0;
    (0..LOOKED_UP).for_each(|number| last = memory[place(number + last)]);
    say("floor: one random cache line after the other", LOOKED_UP + std::hint::black_box(last) - 1, start);
    let start = Instant::now();
    let sum = (0..LOOKED_UP).fold(0, |sum, number| sum ^ memory[place(number)]);
    say("floor: many random cache lines at once", LOOKED_UP + std::hint::black_box(sum), start);
}

fn main() {
    let mebibytes: usize = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(256);
    let hooks = Hooks::new(mebibytes << 20);
    floors(mebibytes << 14);
    let mut container = 0;
    let (seconds, count) = fill(&hooks, &mut container, |hooks| hooks.statistics().rate_log2 > Some(0));
    println!("{:<44} {:>8.0} k/s", "adding until T is 2, all chunks have hooks", count as f64 / seconds / 1e3);
    let full = hooks.statistics();
    println!("{:<44} {:>8.2} bytes", "memory for each hook then", full.memory_bytes as f64 / full.hooks as f64);
    let (seconds, count) = fill(&hooks, &mut container, |hooks| hooks.statistics().rate_log2 > Some(2));
    println!("{:<44} {:>8.0} k/s", "adding until T is 8", count as f64 / seconds / 1e3);
    let all = u64::from(container) * CHUNKS_IN_CONTAINER;
    let known: Vec<Fingerprint> = (0..LOOKED_UP).map(|number| name(mix(number) % all)).collect();
    look_up(&hooks, "look-ups of stored chunks", &known);
    let strange: Vec<Fingerprint> = (0..LOOKED_UP).map(|number| name(all + number)).collect();
    look_up(&hooks, "look-ups of others", &strange);
    let mut found = Vec::new();
    hooks.find(&strange, &mut found);
    println!("{:<44} {:>8.3} %", "of these, hooks lead astray", found.len() as f64 * 100.0 / strange.len() as f64);

    let directory = tempfile::tempdir().expect("a temporary directory");
    let ground = LocalGround::open(directory.path()).expect("it exists");
    let file = ground.create("hooks").expect("a new file");
    let longest = std::cell::Cell::new((Instant::now(), 0.0f64));
    let start = Instant::now();
    let go_on = || {
        let (last, most) = longest.get();
        longest.set((Instant::now(), most.max(last.elapsed().as_secs_f64())));
        true
    };
    hooks.save(&*file, 1, &[container + 1], &go_on).expect("written");
    println!("{:<44} {:>8.2} s", "snapshot: written and synced", start.elapsed().as_secs_f64());
    println!("{:<44} {:>8.2} ms", "snapshot: longest block, lock and write", longest.get().1 * 1e3);
    let again = Hooks::new(mebibytes << 20);
    let start = Instant::now();
    let mut read = again.read_snapshot(ground.open("hooks", Access::Read).expect("it is there"), 1).expect("it is whole");
    while read.step().expect("it is whole") {}
    println!("{:<44} {:>8.2} s", "snapshot: read from the page cache", start.elapsed().as_secs_f64());
    assert_eq!(again.statistics(), hooks.statistics());
}
