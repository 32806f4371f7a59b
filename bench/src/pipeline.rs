//! Cutting and fingerprinting, the two steps that every byte of a client takes, on one core and on real files: as most
//! programs do it (the crate `fastcdc`, then the crate `blake3` for each chunk), and as the write path of the engine
//! does it.

use crate::report::{Aim, Report, median};
use crate::{corpus, floors};
use anyhow::Result;
use onefold_chunking::{Chunker, Kind, Sizes, chunker};
use onefold_fingerprint::Algorithm;
use std::hint::black_box;

/// Bytes of files, read into memory.
const DATA_BYTES: usize = 256 << 20;
/// What is cut before it is fingerprinted, as in the engine: it stays in the cache between the two.
const STEP_BYTES: usize = 256 << 10;
/// Rounds; all ways take turns.
const ROUNDS: usize = 7;

/// One way to cut and fingerprint, by name.
type Way<'a> = (&'static str, Box<dyn Fn(&[u8]) + 'a>);

/// GB/s of each way.
pub fn measure(report: &mut Report) -> Result<()> {
    let data = corpus::files_of_machine(DATA_BYTES)?;
    let sizes = Sizes::default();
    let (galois, fast) = (chunker(Kind::Galois, sizes)?, chunker(Kind::FastCdc, sizes)?);
    let mut cuts = Vec::new();
    galois.cut(&data, true, &mut cuts);
    let ways: [Way<'_>; 4] = [
        ("crate fastcdc, then crate blake3 for each chunk", Box::new(|data| naive(data, sizes))),
        ("fastcdc, many chunks at once", Box::new(|data| in_steps(data, &*fast))),
        ("galois, many chunks at once", Box::new(|data| in_steps(data, &*galois))),
        ("galois, all chunks predicted", Box::new(|data| predicted(data, &cuts, &*galois))),
    ];
    let mut rates = vec![Vec::new(); ways.len()];
    for _ in 0..ROUNDS {
        for ((_, way), rates) in ways.iter().zip(&mut rates) {
            rates.push(floors::rate(data.len() as u64, || {
                way(&data);
                Ok(())
            })?);
        }
    }
    report.group(format!("Cutting and fingerprinting on one core, files of this machine ({:.2} GB)", data.len() as f64 / 1e9));
    let rates: Vec<f64> = rates.into_iter().map(median).collect();
    for ((name, _), rate) in ways.iter().zip(&rates) {
        let aim = name.starts_with("galois, many").then_some(Aim::Above((2.0 * rates[0]).max(4.0)));
        report.add_beside(*name, *rate, "GB/s", aim, Some((ways[0].0, rates[0])));
    }
    Ok(())
}

fn naive(data: &[u8], sizes: Sizes) {
    let level = fastcdc::v2020::Normalization::Level2;
    for chunk in fastcdc::v2020::FastCDC::with_level(data, sizes.min, sizes.target, sizes.max, level) {
        black_box(blake3::hash(&data[chunk.offset..chunk.offset + chunk.length]));
    }
}

fn in_steps(data: &[u8], chunker: &dyn Chunker) {
    let (mut cuts, mut names, mut start) = (Vec::new(), Vec::new(), 0);
    while start < data.len() {
        let step = &data[start..data.len().min(start + STEP_BYTES)];
        cuts.clear();
        start += chunker.cut(step, start + step.len() == data.len(), &mut cuts);
        fingerprint(step, &cuts, &mut names);
    }
}

/// Every boundary is known and only confirmed.
fn predicted(data: &[u8], cuts: &[usize], chunker: &dyn Chunker) {
    let (mut names, mut start) = (Vec::new(), 0);
    for cuts in cuts.chunks(32) {
        let from = start;
        for cut in cuts {
            black_box(chunker.confirms(&data[start..], cut - start));
            start = *cut;
        }
        let within: Vec<usize> = cuts.iter().map(|cut| cut - from).collect();
        fingerprint(&data[from..], &within, &mut names);
    }
}

fn fingerprint(data: &[u8], cuts: &[usize], names: &mut Vec<onefold_fingerprint::Fingerprint>) {
    let mut start = 0;
    let chunks: Vec<&[u8]> = cuts.iter().map(|cut| &data[std::mem::replace(&mut start, *cut)..*cut]).collect();
    names.clear();
    Algorithm::Blake3.fingerprint_many(&chunks, names);
    black_box(names);
}
