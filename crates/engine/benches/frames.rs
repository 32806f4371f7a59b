//! What a backup server saves when clients compress: `cargo bench -p onefold-engine --bench frames [-- MIB ROUNDS]`.
//!
//! One stream writes new data, cut already, into a store in memory, until it is durable:
//! * `write_chunks`: the store compresses it.
//! * `write_frame`: it came in compressed frames. These are decompressed, named again and stored as they came.
//! * `write_frame, one chunk known`: in each frame the first chunk is stored already. None is stored as it came.
//!
//! For comparison: decompressing and naming alone. Every figure is the best of the rounds, in MB of raw data a second.

use onefold_engine::{CompressedFrame, Descriptor, Engine, Mode, Settings};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Ground, LocalGround};
use onefold_storage::{Codec, Compressor};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const CHUNK_BYTES: usize = 8 << 10;

/// Returns text that shrinks to about half.
fn text(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words: Vec<Vec<u8>> =
        (0..4096_u64).map(|word| format!("{:x} ", word.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40).into_bytes()).collect();
    let mut text = Vec::with_capacity(length + 16);
    while text.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.extend_from_slice(&words[(state >> 52) as usize]);
    }
    text.truncate(length);
    text
}

/// A frame as a client sends it.
struct Supplied {
    codec: Codec,
    stored: Vec<u8>,
    raw_bytes: usize,
    names: Vec<Fingerprint>,
}

impl Supplied {
    fn decompress(&self) -> CompressedFrame<'_> {
        CompressedFrame::decompress(self.codec, &self.stored, self.raw_bytes).expect("it is sound")
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let argument = |at: usize, default: usize| arguments.get(at).map_or(default, |argument| argument.parse().expect("a number"));
    let (bytes, rounds) = (argument(0, 256) << 20, argument(1, 3));
    let descriptor = Descriptor::new().expect("random numbers");
    let frame_bytes = descriptor.sequential_frame_bytes as usize;
    let data = text(bytes);
    let mut compressor = Compressor::new(descriptor.sequential_compression);
    let chunks_of = |raw: &[u8]| raw.chunks(CHUNK_BYTES).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let begun = Instant::now();
    let mut frames: Vec<Supplied> = Vec::new();
    for raw in data.chunks(frame_bytes) {
        let (codec, stored) = compressor.compress(raw);
        frames.push(Supplied { codec, stored: stored.to_vec(), raw_bytes: raw.len(), names: Vec::new() });
    }
    let compressed = begun.elapsed().as_secs_f64();
    for (frame, raw) in frames.iter_mut().zip(data.chunks(frame_bytes)) {
        frame.names = chunks_of(raw).iter().map(|chunk| descriptor.fingerprint.fingerprint(chunk)).collect();
    }
    let stored_bytes: usize = frames.iter().map(|frame| frame.stored.len()).sum();
    let mb = |seconds: f64| bytes as f64 / 1e6 / seconds;
    println!(
        "{bytes} bytes, {} frames, {:.3} of them stored; a client compresses {:.0} MB/s",
        frames.len(),
        stored_bytes as f64 / bytes as f64,
        mb(compressed)
    );

    let mut best = [f64::MAX; 5];
    let mut note = |at: usize, seconds: f64| best[at] = best[at].min(seconds);
    for _ in 0..rounds {
        let begun = Instant::now();
        frames.iter().for_each(|frame| drop(black_box(frame.decompress())));
        note(0, begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        let mut names = Vec::new();
        for raw in data.chunks(frame_bytes) {
            descriptor.fingerprint.fingerprint_many(&raw.chunks(CHUNK_BYTES).collect::<Vec<_>>(), &mut names);
        }
        note(1, begun.elapsed().as_secs_f64());
        note(
            2,
            in_new_store(&descriptor, |engine| {
                let mut stream = engine.stream().sequential();
                for raw in data.chunks(frame_bytes) {
                    stream.write_chunks(&raw.chunks(CHUNK_BYTES).collect::<Vec<_>>()).expect("the store takes data");
                }
            }),
        );
        let supply = |engine: &Arc<Engine>| {
            let mut stream = engine.stream().sequential();
            for supplied in &frames {
                let frame = supplied.decompress();
                let chunks: Vec<_> = frame.raw().chunks(CHUNK_BYTES).collect();
                stream.write_frame(&chunks, &supplied.names, Some(&frame)).expect("the store takes data");
            }
        };
        note(3, in_new_store(&descriptor, supply));
        let known: Vec<_> = data.chunks(frame_bytes).map(|raw| &raw[..CHUNK_BYTES.min(raw.len())]).collect();
        note(4, in_new_store_with(&descriptor, &known, supply));
    }
    for (name, seconds) in ["decompress", "name", "write_chunks", "write_frame", "write_frame, one chunk known"].iter().zip(best) {
        println!("{name:<30} {:>6.0} MB/s", mb(seconds));
    }
}

fn in_new_store(descriptor: &Descriptor, work: impl FnOnce(&Arc<Engine>)) -> f64 {
    in_new_store_with(descriptor, &[], work)
}

/// Returns the seconds that the work takes in a store that has these chunks.
fn in_new_store_with(descriptor: &Descriptor, known: &[&[u8]], work: impl FnOnce(&Arc<Engine>)) -> f64 {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).expect("a directory"));
    Engine::create(&ground, descriptor).expect("a store");
    let engine = Engine::open(ground.clone(), Settings::default(), Mode::ReadWrite, "bench").expect("the store opens");
    engine.stream().write_chunks(known).expect("the store takes data");
    engine.flush().expect("it is durable");
    let begun = Instant::now();
    work(&engine);
    engine.flush().expect("it is durable");
    let seconds = begun.elapsed().as_secs_f64();
    engine.close().expect("the store closes");
    seconds
}
