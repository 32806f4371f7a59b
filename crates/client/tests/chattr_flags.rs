//! The flags of `chattr` in a backup and back.

mod common;

use common::place;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use std::fs::File;
use std::path::Path;

fn flags(path: &Path) -> Option<IFlags> {
    ioctl_getflags(File::open(path).unwrap())
        .ok()
        .map(|flags| flags & (IFlags::IMMUTABLE | IFlags::APPEND | IFlags::NODUMP | IFlags::NOATIME))
}

/// Removes all flags after the test: otherwise the directory could not be removed.
struct Freed<'a>(Vec<&'a Path>);

impl Drop for Freed<'_> {
    fn drop(&mut self) {
        for root in &self.0 {
            let _ = std::process::Command::new("chattr").args(["-R", "-ia"]).arg(root).stderr(std::process::Stdio::null()).status();
        }
    }
}

#[test]
fn c_15_flags_of_chattr_come_back_when_nothing_else_is_to_be_done() {
    let place = place();
    let (source, target) = (place.source(), place.target());
    let wanted = [
        ("nodump", IFlags::NODUMP),
        ("immutable", IFlags::IMMUTABLE | IFlags::NOATIME),
        ("append", IFlags::APPEND),
        ("closed/file", IFlags::IMMUTABLE),
        ("closed", IFlags::IMMUTABLE | IFlags::NODUMP),
        ("plain", IFlags::empty()),
    ];
    for (name, _) in wanted.iter().filter(|(name, _)| *name != "closed") {
        place.write(name, name);
    }
    // Linked to from a closed directory: the links must be made first.
    std::fs::hard_link(source.join("immutable"), source.join("closed/second name")).unwrap();
    let _freed = Freed(vec![&source, &target]);
    for (name, flags) in wanted {
        let file = File::open(source.join(name)).unwrap();
        let Ok(before) = ioctl_getflags(&file) else {
            eprintln!("SKIPPED: this file system has no flags");
            return;
        };
        if let Err(error) = ioctl_setflags(&file, before | flags) {
            eprintln!("SKIPPED: flags cannot be set here: {error}");
            return;
        }
    }
    let (outcome, _) = place.backup();
    let (restored, tally) = place.restore(&outcome.backup);
    assert_eq!((restored.errors, tally.problems()), (0, vec![]));
    for (name, expected) in wanted {
        assert_eq!(flags(&target.join(name)), Some(expected), "{name}");
    }
    assert_eq!(std::fs::read(target.join("closed/second name")).unwrap(), b"immutable");
}
