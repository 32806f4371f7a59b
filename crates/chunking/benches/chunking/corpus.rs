//! Data as backups see it: the files of a machine, one after the other as in a tar file, and an edited copy.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A longer file is cut off here, so that a few large files do not dominate.
const FILE_BYTES: u64 = 8 << 20;
/// The size to which tar aligns files and their headers.
const BLOCK: usize = 512;

/// Reads up to `length` bytes, with the same share from each of `folders`. The same files give the same bytes.
pub fn read(folders: &[PathBuf], length: usize) -> Vec<u8> {
    let mut data = Vec::with_capacity(length);
    for (number, folder) in folders.iter().enumerate() {
        append_folder(folder, &mut data, length / folders.len() * (number + 1));
    }
    data
}

/// Returns the folders of the Rust toolchain in use and of a Linux userland.
pub fn usual_folders() -> Vec<PathBuf> {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().expect("rustc is there: it built this program");
    let sysroot = PathBuf::from(String::from_utf8_lossy(&sysroot.stdout).trim());
    vec![sysroot.join("lib"), "/usr/bin".into(), "/usr/lib".into(), "/usr/share".into()]
}

fn append_folder(folder: &Path, data: &mut Vec<u8>, until: usize) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut entries: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        if data.len() >= until {
            return;
        }
        let Ok(metadata) = path.symlink_metadata() else { continue };
        if metadata.is_dir() {
            append_folder(&path, data, until);
        } else if metadata.is_file() {
            append_file(&path, data, until);
        }
    }
}

/// Appends a header with name and length, then the contents, each padded to whole blocks.
fn append_file(path: &Path, data: &mut Vec<u8>, until: usize) {
    let Ok(file) = fs::File::open(path) else { return };
    let header = data.len();
    data.extend(path.as_os_str().as_encoded_bytes().iter().take(100));
    data.resize(header + BLOCK, 0);
    let start = data.len();
    if file.take(FILE_BYTES).read_to_end(data).is_err() {
        data.truncate(header);
        return;
    }
    let length_text = format!("{:011o}", data.len() - start);
    data[header + 124..header + 135].copy_from_slice(length_text.as_bytes());
    data.resize(data.len().next_multiple_of(BLOCK), 0);
    data.truncate(until);
}

/// Returns a copy with one edit for each `every` bytes, at a random place. An edit overwrites, inserts or removes 1 to
/// 64 bytes. The same seed gives the same edits.
pub fn edited(data: &[u8], every: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut copy = Vec::with_capacity(data.len() + data.len() / every * 64);
    for stretch in data.chunks(every) {
        let at = random.below(stretch.len());
        let length = 1 + random.below(64);
        let (before, after) = stretch.split_at(at);
        copy.extend_from_slice(before);
        let (inserted, removed) = match random.below(3) {
            0 => (length, length),
            1 => (length, 0),
            _ => (0, length),
        };
        copy.extend((0..inserted).map(|_| random.next() as u8));
        copy.extend_from_slice(&after[removed.min(after.len())..]);
    }
    copy
}

/// SplitMix64 (Steele et al., 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 11) as usize % bound
    }
}
