//! What an attacker can tell from the time between a supply and the answer to the offer behind it: was the chunk new to
//! the store, or had somebody else stored it (`docs/security.md`)?
//!
//! `cargo run --release -p onefold-remote --example timing [TRIALS]`. Client and server are in one process, on
//! loopback: an attacker has no better clock anywhere else. Each trial supplies a chunk that a victim stored and one
//! that is new, in varying order, after a pause.

#[path = "../tests/attackers/mod.rs"]
mod attackers;

use attackers::*;
use onefold_engine::StoreProfile;
use onefold_remote::transport::{Channel, ClientSession};
use std::time::{Duration, Instant};

const CHUNK_BYTES: usize = 8 << 10;
/// Chunks of a supply: 64 KiB.
const CHUNKS: usize = 8;
/// Trials of 8 MiB.
const PARTS: usize = 20;

/// Supplies chunks, and waits for the answer to an offer behind them.
fn supplies(data: &Channel, chunks: &[Vec<u8>]) -> Duration {
    offer(data, file_of(0, "", chunks)).unwrap();
    let begun = Instant::now();
    put(data, &supply_of(chunks));
    offer(data, Vec::new()).unwrap();
    begun.elapsed()
}

/// Returns percentiles, and how often the best limit between both kinds tells them apart.
fn report(name: &str, theirs: &mut [f64], new: &mut [f64]) {
    theirs.sort_by(f64::total_cmp);
    new.sort_by(f64::total_cmp);
    let at = |sorted: &[f64], percent: usize| sorted[(sorted.len() - 1) * percent / 100];
    let right = |limit: f64| {
        let below = theirs.partition_point(|time| *time < limit) + new.len() - new.partition_point(|time| *time < limit);
        below.max(theirs.len() + new.len() - below)
    };
    let best = theirs.iter().chain(new.iter()).map(|limit| right(*limit)).max().unwrap_or(0);
    let share = 100.0 * best as f64 / (theirs.len() + new.len()) as f64;
    for (kind, times) in [("theirs", &*theirs), ("new", &*new)] {
        println!("{name:<26} {kind:<7} {:>8.2} {:>8.2} {:>8.2}", at(times, 10), at(times, 50), at(times, 90));
    }
    println!("{name:<26} told apart: {share:.0} % (50 %: not at all)");
}

fn ticketless(session: &ClientSession) -> (Channel, Channel) {
    let (channel, began) = start(session, "attacker");
    let data = contents(session, began.number);
    (channel, data)
}

fn main() {
    let trials = std::env::args().nth(1).and_then(|argument| argument.parse().ok()).unwrap_or(300usize);
    let place = Place::new(StoreProfile::Exact);
    let victims = random(1, trials * CHUNKS + PARTS * 1024, CHUNK_BYTES);
    let files: Vec<Vec<Vec<u8>>> = victims.chunks(1024).map(<[Vec<u8>]>::to_vec).collect();
    let theirs = place.session("victim");
    for (number, chunks) in files.into_iter().enumerate() {
        back_up(&theirs, &format!("victim/{number}"), &[("file", chunks)]);
    }
    place.catalog.engine().flush().unwrap();
    println!("{:<26} {:<7} {:>8} {:>8} {:>8}", "milliseconds", "", "10 %", "median", "90 %");
    let session = place.session("attacker");
    for chunks in [1, CHUNKS] {
        let new = random(2 + chunks as u64, trials * CHUNKS, CHUNK_BYTES);
        let (mut known, mut unknown) = (Vec::new(), Vec::new());
        // A file is over when it ends, so tickets run out: a backup for every trial.
        for trial in 0..trials {
            let (channel, data) = ticketless(&session);
            std::thread::sleep(Duration::from_micros(trial as u64 * 7919 % 20_000));
            let at = trial * CHUNKS;
            let at = if chunks == 1 { at..at + 1 } else { at + 1..at + CHUNKS };
            let is_first = trial * 2_654_435_761 % 7 < 3;
            for is_new in [is_first, !is_first] {
                let (_channel, data) = if is_new == is_first { (channel.clone(), data.clone()) } else { ticketless(&session) };
                let (times, chunks) = if is_new { (&mut unknown, &new) } else { (&mut known, &victims) };
                times.push(supplies(&data, &chunks[at.clone()]).as_secs_f64() * 1e3);
            }
        }
        report(&format!("a supply of {} KiB", at_least(chunks) * CHUNK_BYTES / 1024), &mut known, &mut unknown);
    }
    // Many supplies one after the other.
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    let long = &victims[trials * CHUNKS..];
    for part in 0..PARTS {
        let new = random(100 + part as u64, 1024, CHUNK_BYTES);
        let mut both = [(&mut known, &long[part * 1024..][..1024]), (&mut unknown, &new[..])];
        both.rotate_left(part % 2);
        for (times, chunks) in both {
            let (_channel, data) = ticketless(&session);
            let begun = Instant::now();
            let mut items = file_of(0, "", chunks);
            let last = items.split_off(1000);
            offer(&data, items).unwrap();
            offer(&data, last).unwrap();
            chunks.chunks(8).for_each(|chunks| put(&data, &supply_of(chunks)));
            offer(&data, Vec::new()).unwrap();
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
    }
    report("128 supplies, 8 MiB", &mut known, &mut unknown);
}

/// Of the chunks of a trial, the first is supplied alone, and the others together.
fn at_least(chunks: usize) -> usize {
    if chunks == 1 { 1 } else { CHUNKS - 1 }
}
