//! Replays `fuzz/corpus` without a fuzzer, and mutations of it: what was found once is not lost again.

use onefold_fuzz_targets::TARGETS;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Mutations of each committed input.
const MUTATIONS: usize = 300;

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The files of a folder, sorted by name.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn the_corpus_and_its_mutations_are_handled() {
    for (name, run) in TARGETS {
        let inputs = files(&fuzz_folder().join("corpus").join(name));
        for (number, path) in inputs.iter().enumerate() {
            let input = fs::read(path).unwrap();
            println!("{}", path.display());
            run(&input);
            for mutation in 0..MUTATIONS {
                let mutant = mutate(&input, (number * MUTATIONS + mutation) as u64);
                // The input is printed so that it can be committed: the test's output is shown only when it fails.
                println!("mutation {mutation}: {mutant:02x?}");
                run(&mutant);
            }
        }
    }
}

#[test]
fn each_target_has_a_fuzzer_and_a_corpus() {
    let manifest = fs::read_to_string(fuzz_folder().join("Cargo.toml")).unwrap();
    for (name, _) in TARGETS {
        assert!(!files(&fuzz_folder().join("corpus").join(name)).is_empty(), "fuzz/corpus/{name} has no input");
        assert!(fuzz_folder().join(format!("fuzz_targets/{name}.rs")).exists(), "fuzz/fuzz_targets/{name}.rs is missing");
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "fuzz/Cargo.toml has no [[bin]] {name}");
    }
    let known: BTreeSet<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    for folder in files(&fuzz_folder().join("corpus")) {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(known.contains(&*name), "fuzz/corpus/{name} belongs to no target");
    }
}

/// Changes, inserts, removes or repeats a few bytes. The same seed gives the same bytes.
fn mutate(input: &[u8], seed: u64) -> Vec<u8> {
    const INTERESTING: [u8; 8] = [0, 1, 2, 0x7f, 0x80, 0xfe, 0xff, 0x20];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below.max(1)
    };
    let mut bytes = input.to_vec();
    for _ in 0..=random(4) {
        let at = random(bytes.len() + 1);
        match random(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random(8),
            1 if at < bytes.len() => bytes[at] = INTERESTING[random(8)],
            2 => bytes.insert(at, INTERESTING[random(8)]),
            3 if at < bytes.len() => drop(bytes.remove(at)),
            4 => bytes.truncate(at),
            _ => {
                let from = random(at + 1);
                bytes.extend_from_within(from..at.min(from + 64));
            }
        }
    }
    bytes
}
