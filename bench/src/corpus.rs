//! The corpus: a tree of the kind of files that people back up, made from what the machine has, the same for the same
//! seed.
//!
//! Four parts: the Rust toolchain's files, the system's libraries and shared files, a disk image (files of both, each
//! behind a block of its own and aligned to 4 KiB, with holes of zeros between them), random data. Its first generation
//! is made by [`create`]; [`change`] makes the second one in place, so that what is not changed keeps its inode and
//! times. [`scatter`] overwrites blocks of an image.

use crate::random::Random;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Parts of the corpus in hundredths.
const TOOLCHAIN_PERCENT: u64 = 40;
const SYSTEM_PERCENT: u64 = 30;
const IMAGE_PERCENT: u64 = 22;
const RANDOM_PERCENT: u64 = 8;
/// Block size of images.
const BLOCK_BYTES: u64 = 4096;
/// No single file is larger than this part of its share: one library must not decide the result.
const LARGEST_PART: u64 = 8;
/// One file in so many is touched by [`change`].
const CHANGED_ONE_IN: u64 = 20;
/// An edited file has one edit for so many bytes.
const EDIT_EVERY_BYTES: u64 = 400_000;

/// A file of the machine that may become part of the corpus.
struct Candidate {
    path: PathBuf,
    bytes: u64,
}

/// Makes the first generation of about `size_bytes` in `directory`, which must not exist.
pub fn create(directory: &Path, size_bytes: u64, seed: u64) -> Result<()> {
    fs::create_dir(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let share = |percent: u64| size_bytes / 100 * percent;
    let mut random = Random::new(seed);
    let toolchain = candidates(&toolchain_directories());
    let system = candidates(&["/usr/lib", "/usr/share", "/usr/bin"].map(PathBuf::from));
    if toolchain.is_empty() && system.is_empty() {
        bail!("this machine has neither a Rust toolchain nor files in /usr to make a corpus of");
    }
    let mut taken = Vec::new();
    for (name, candidates, percent) in [("toolchain", &toolchain, TOOLCHAIN_PERCENT), ("system", &system, SYSTEM_PERCENT)] {
        for candidate in choose(candidates, share(percent), &mut random) {
            let target = directory.join(name).join(candidate.path.strip_prefix("/").unwrap_or(&candidate.path));
            fs::create_dir_all(target.parent().unwrap_or(directory))?;
            // What cannot be read by this user is left out.
            if fs::copy(&candidate.path, &target).is_ok() {
                taken.push((target, candidate.bytes));
            }
        }
    }
    image(&directory.join("disk.img"), &taken, share(IMAGE_PERCENT), &mut random)?;
    let noise = directory.join("random");
    fs::create_dir(&noise)?;
    for number in 0..8 {
        write_random(&noise.join(format!("{number}.bin")), share(RANDOM_PERCENT) / 8, &mut random)?;
    }
    Ok(())
}

fn toolchain_directories() -> Vec<PathBuf> {
    let output = std::process::Command::new("rustc").args(["--print", "sysroot"]).output();
    output.ok().and_then(|output| String::from_utf8(output.stdout).ok()).map(|path| PathBuf::from(path.trim())).into_iter().collect()
}

/// Up to so many bytes of the machine's files, one behind the other, by path.
pub fn files_of_machine(bytes: usize) -> Result<Vec<u8>> {
    let mut data = Vec::with_capacity(bytes);
    let mut directories = toolchain_directories();
    directories.extend(["/usr/lib", "/usr/share"].map(PathBuf::from));
    for candidate in candidates(&directories).into_iter().filter(|candidate| candidate.bytes <= bytes as u64 / LARGEST_PART) {
        // What cannot be read by this user is left out.
        data.extend(fs::read(&candidate.path).unwrap_or_default());
        if data.len() >= bytes {
            break;
        }
    }
    data.truncate(bytes);
    if data.is_empty() {
        bail!("this machine has neither a Rust toolchain nor files in /usr to read");
    }
    Ok(data)
}

/// All plain files below some directories, sorted by path.
fn candidates(directories: &[PathBuf]) -> Vec<Candidate> {
    let mut found = Vec::new();
    let mut waiting = directories.to_vec();
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                waiting.push(entry.path());
            } else if metadata.is_file() && metadata.len() > 0 {
                found.push(Candidate { path: entry.path(), bytes: metadata.len() });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Draws files until they have `wanted_bytes`, or none are left; in the order of their paths, so that neighbours stay
/// neighbours.
fn choose<'a>(candidates: &'a [Candidate], wanted_bytes: u64, random: &mut Random) -> Vec<&'a Candidate> {
    let mut drawn: Vec<_> =
        candidates.iter().filter(|file| file.bytes <= wanted_bytes / LARGEST_PART).map(|file| (random.next(), file)).collect();
    drawn.sort_by_key(|(lot, _)| *lot);
    let mut left = wanted_bytes;
    let mut chosen: Vec<_> = drawn
        .into_iter()
        .filter(|(_, file)| {
            let fits = file.bytes <= left;
            left -= if fits { file.bytes } else { 0 };
            fits
        })
        .map(|(_, file)| file)
        .collect();
    chosen.sort_by(|a, b| a.path.cmp(&b.path));
    chosen
}

/// A disk image: for each of some files a block with its name, its bytes, zeros up to the next block; now and then a
/// run of zero blocks.
fn image(target: &Path, files: &[(PathBuf, u64)], wanted_bytes: u64, random: &mut Random) -> Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(target)?);
    let mut written = 0;
    let zeros = [0; BLOCK_BYTES as usize];
    while written < wanted_bytes && !files.is_empty() {
        let start = random.below(files.len() as u64) as usize;
        for (path, bytes) in &files[start..files.len().min(start + 64)] {
            if written + bytes > wanted_bytes {
                break;
            }
            let mut block = path.to_string_lossy().into_owned().into_bytes();
            block.resize(BLOCK_BYTES as usize, 0);
            out.write_all(&block)?;
            let copied = std::io::copy(&mut File::open(path)?, &mut out)?;
            let padding = copied.next_multiple_of(BLOCK_BYTES) - copied;
            out.write_all(&zeros[..padding as usize])?;
            written += BLOCK_BYTES + copied + padding;
        }
        for _ in 0..=random.below(16) {
            out.write_all(&zeros)?;
            written += BLOCK_BYTES;
        }
    }
    out.flush()?;
    Ok(())
}

/// A file of random bytes.
pub fn write_random(target: &Path, bytes: u64, random: &mut Random) -> Result<()> {
    let mut out = File::create(target)?;
    let mut buffer = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(buffer.len() as u64) as usize;
        random.fill(&mut buffer[..length]);
        out.write_all(&buffer[..length])?;
        left -= length as u64;
    }
    Ok(())
}

/// Makes the second generation in place: one file in twenty is edited, gets bytes inserted, is moved or grows.
pub fn change(directory: &Path, seed: u64) -> Result<()> {
    let mut random = Random::new(seed ^ 0x5eed);
    let moved = directory.join("moved");
    fs::create_dir_all(&moved)?;
    for (number, file) in candidates(&[directory.to_path_buf()]).into_iter().enumerate() {
        // The image and the random data always change: they stand for disks and archives in use.
        let always = file.path.extension().is_some_and(|extension| extension == "img") || file.path.starts_with(directory.join("random"));
        if !always && random.below(CHANGED_ONE_IN) != 0 {
            continue;
        }
        match random.below(10) {
            0..=4 => edit(&file, &mut random)?,
            5..=7 if !always => insert(&file, &mut random)?,
            8 if !always => {
                // An earlier change may have moved a file to that name.
                let free =
                    [number.to_string(), format!("{number}-{seed}")].map(|name| moved.join(name)).into_iter().find(|path| !path.exists());
                fs::rename(&file.path, free.context("a change was made twice")?)?;
            }
            _ => {
                let mut tail = vec![0; 1 + random.below(4096) as usize];
                random.fill(&mut tail);
                fs::OpenOptions::new().append(true).open(&file.path)?.write_all(&tail)?;
            }
        }
    }
    Ok(())
}

/// Overwrites 1 to 64 bytes at random places.
fn edit(file: &Candidate, random: &mut Random) -> Result<()> {
    let target = writable(&file.path)?;
    for _ in 0..=file.bytes / EDIT_EVERY_BYTES {
        let mut bytes = vec![0; 1 + random.below(64.min(file.bytes)) as usize];
        random.fill(&mut bytes);
        target.write_all_at(&bytes, random.below(file.bytes - bytes.len() as u64 + 1))?;
    }
    Ok(())
}

/// Inserts 1 to 64 bytes at random places, which moves all that is behind them.
fn insert(file: &Candidate, random: &mut Random) -> Result<()> {
    let mut content = Vec::new();
    File::open(&file.path)?.read_to_end(&mut content)?;
    let mut places: Vec<_> = (0..=file.bytes / EDIT_EVERY_BYTES).map(|_| random.below(file.bytes + 1) as usize).collect();
    places.sort_unstable();
    let mut changed = Vec::with_capacity(content.len() + places.len() * 64);
    let mut start = 0;
    for place in places {
        changed.extend_from_slice(&content[start..place]);
        let mut bytes = vec![0; 1 + random.below(64) as usize];
        random.fill(&mut bytes);
        changed.extend_from_slice(&bytes);
        start = place;
    }
    changed.extend_from_slice(&content[start..]);
    writable(&file.path)?.write_all_at(&changed, 0)?;
    Ok(())
}

/// Opens for writing, also what its owner may only read.
fn writable(path: &Path) -> Result<File> {
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(path)?.permissions().mode();
    fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o200))?;
    fs::OpenOptions::new().write(true).open(path).with_context(|| format!("cannot change {}", path.display()))
}

/// Overwrites one block of a hundred of an image with random bytes.
pub fn scatter(image: &Path, seed: u64) -> Result<()> {
    let mut random = Random::new(seed ^ 0x5ca7);
    let file = fs::OpenOptions::new().write(true).open(image)?;
    let blocks = file.metadata()?.len() / BLOCK_BYTES;
    let mut block = [0; BLOCK_BYTES as usize];
    for _ in 0..blocks / 100 {
        random.fill(&mut block);
        file.write_all_at(&block, random.below(blocks) * BLOCK_BYTES)?;
    }
    Ok(())
}

/// A tree of `count` small files, a hundred in a directory.
pub fn many_files(directory: &Path, count: u64, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let mut content = [0; 2048];
    for number in 0..count {
        let parent = directory.join(format!("{:04}", number / 100));
        if number % 100 == 0 {
            fs::create_dir_all(&parent)?;
        }
        let length = 200 + random.below(1800) as usize;
        random.fill(&mut content[..length]);
        fs::write(parent.join(format!("file-{number:06}.txt")), &content[..length])?;
    }
    Ok(())
}

/// Bytes and number of the plain files of a tree.
pub fn measure(directory: &Path) -> (u64, u64) {
    let files = candidates(&[directory.to_path_buf()]);
    (files.iter().map(|file| file.bytes).sum(), files.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let name = |path: &Path| path.strip_prefix(directory).unwrap().to_path_buf();
        candidates(&[directory.to_path_buf()]).iter().map(|file| (name(&file.path), fs::read(&file.path).unwrap())).collect()
    }

    #[test]
    fn the_same_seed_changes_the_same_bytes() {
        let place = tempfile::tempdir().unwrap();
        let trees = ["a", "b"].map(|name| place.path().join(name));
        for tree in &trees {
            many_files(tree, 300, 1).unwrap();
        }
        let before = contents(&trees[0]);
        assert_eq!(before, contents(&trees[1]));
        for tree in &trees {
            change(tree, 2).unwrap();
        }
        let after = contents(&trees[0]);
        assert_eq!(after, contents(&trees[1]));
        let kept = after.iter().filter(|file| before.contains(file)).count();
        assert!((200..300).contains(&kept), "{kept} of 300 files are as before");
    }

    #[test]
    fn one_block_of_a_hundred_is_overwritten() {
        let place = tempfile::tempdir().unwrap();
        let image = place.path().join("image");
        fs::write(&image, vec![0; 1000 * BLOCK_BYTES as usize]).unwrap();
        scatter(&image, 3).unwrap();
        let changed = fs::read(&image).unwrap().chunks(BLOCK_BYTES as usize).filter(|block| block.iter().any(|byte| *byte != 0)).count();
        assert!((8..=10).contains(&changed), "{changed} blocks");
    }
}
