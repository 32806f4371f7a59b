//! Filesystems of the store under suites that others wrote for kernels, and under what those leave out: what the kernel
//! keeps of a file is what the store has.
//!
//! `tools/test-packages` installs the suites, `pjdfstest` and `fsx`. `ONEFOLD_FSX_SECONDS` says how long `fsx` runs.

use onefold_tests::{Running, Scene, Served, client, has_fuse, installed, noise, setting, suite};
use rustix::fs::{AtFlags, FallocateFlags, RenameFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What `fsx` does with each seed: steps, and bytes of the file.
const STEPS: u64 = 5000;
const FSX_BYTES: u64 = 2 << 20;
/// Seeds of `fsx` between two prunes: the store does not outgrow a disk in an hour.
const SEEDS_OF_PRUNE: u64 = 20;
/// Seconds that `fsx` runs, if nobody says otherwise: on a store of containers, and on one of blocks.
const FSX_SECONDS: u64 = 60;
const CACHELESS_FSX_SECONDS: u64 = 12;
/// A store of blocks, as options of `init`.
const CACHELESS: [&str; 2] = ["--profile", "cacheless"];
/// Other users than root, with a group.
const USERS: [&[(&str, &str)]; 2] = [&[("nobody", "nogroup"), ("nobody", "nobody")], &[("daemon", "daemon")]];

/// A filesystem that everybody may enter, and where it is mounted.
fn mounted_filesystem(scene: &Scene) -> (Served, PathBuf) {
    fs::set_permissions(scene.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    let place = scene.path("mounted");
    let served = Served::start(&mut scene.command(["mount", "--foreground", "--fs", "home", "mounted"]), &place);
    (served.unwrap_or_else(|run| panic!("{}", run.text())), place)
}

fn new_scene() -> Scene {
    new_scene_of(&[])
}

/// The same in a store made with these options.
fn new_scene_of(store: &[&str]) -> Scene {
    let scene = Scene::new(store, "");
    scene.run(["fs", "create", "home"]).succeeds();
    scene
}

fn set_time(path: &Path, ns: i128) {
    let seconds = ns.div_euclid(1_000_000_000);
    let time = Timespec { tv_sec: seconds as i64, tv_nsec: ns.rem_euclid(1_000_000_000) as _ };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, AtFlags::empty()).unwrap();
}

/// Unmounts it, and waits until its process has ended.
fn unmount(mut served: Served, place: &Path) {
    client("umount", [place]).succeeds();
    served.ends();
}

/// The first of these users that this machine has.
fn user(of: &[(&str, &str)]) -> Option<String> {
    let has = |file: &str, name: &str| {
        let lines = fs::read_to_string(file).unwrap_or_default();
        lines.lines().any(|line| line.split(':').next() == Some(name))
    };
    let (user, group) = of.iter().find(|(user, group)| has("/etc/passwd", user) && has("/etc/group", group))?;
    Some(format!("[\"{user}\", \"{group}\"]"))
}

#[test]
fn pjdfstest_finds_nothing_that_posix_forbids() {
    pjdfstest(&[]);
}

#[test]
fn pjdfstest_finds_nothing_that_posix_forbids_in_a_store_of_blocks() {
    pjdfstest(&CACHELESS);
}

fn pjdfstest(store: &[&str]) {
    let Some(program) = has_fuse().then(|| suite("pjdfstest")).flatten() else { return };
    let users: Vec<String> = USERS.iter().filter_map(|of| user(of)).collect();
    if users.len() < USERS.len() {
        println!("skipped: pjdfstest needs the users nobody and daemon");
        return;
    }
    let scene = new_scene_of(store);
    let (served, place) = mounted_filesystem(&scene);
    let config = format!(
        "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nutime_now = {{}}\nutimensat = {{}}\n\
         [settings]\nnaptime = 0.01\nallow_remount = false\n[dummy_auth]\nentries = [{}]\n",
        users.join(", ")
    );
    fs::write(scene.path("suite.toml"), config).unwrap();
    let mut command = Command::new(program);
    command.arg("-c").arg(scene.path("suite.toml")).arg("-p").arg(&place);
    let run = Running::start(&mut command).finish();
    let text = run.text();
    let summary = text.lines().find(|line| line.starts_with("Summary")).unwrap_or_default();
    println!("{summary}");
    let number = |what: &str| {
        let before = summary.split(what).next()?.trim_end();
        before.rsplit([' ', ',']).next()?.parse::<u32>().ok()
    };
    assert_eq!(number("failed"), Some(0), "{text}");
    // What it skips needs another filesystem, one that is mounted again, or a limit that the C library knows.
    assert!(number("passed") >= Some(380), "{text}");
    unmount(served, &place);
    scene.check();
}

#[test]
fn fsx_reads_what_it_wrote() {
    fsx(&[], FSX_SECONDS);
}

#[test]
fn m1_1_fsx_reads_what_it_wrote_to_a_store_of_blocks() {
    fsx(&CACHELESS, CACHELESS_FSX_SECONDS);
}

fn fsx(store: &[&str], default_seconds: u64) {
    let Some(program) = has_fuse().then(|| suite("fsx")).flatten() else { return };
    let scene = new_scene_of(store);
    let (served, place) = mounted_filesystem(&scene);
    let config = format!(
        "flen = {FSX_BYTES}\n[opsize]\nmax = 200000\n[weights]\nclose_open = 1\ninvalidate = 1\nmapread = 10\nmapwrite = 10\n\
         read = 10\nwrite = 10\ntruncate = 5\nfsync = 1\nfdatasync = 1\nposix_fallocate = 3\npunch_hole = 5\nsendfile = 3\n\
         posix_fadvise = 1\ncopy_file_range = 5\n"
    );
    fs::write(scene.path("suite.toml"), config).unwrap();
    let until = Instant::now() + Duration::from_secs(setting("ONEFOLD_FSX_SECONDS", default_seconds));
    let mut seed = 0;
    while seed == 0 || Instant::now() < until {
        seed += 1;
        let file = place.join(format!("file{seed}"));
        let mut command = Command::new(&program);
        command.arg("-f").arg(scene.path("suite.toml")).arg("-P").arg(scene.path("."));
        command.args(["-N", &STEPS.to_string(), "-S", &seed.to_string()]).arg(&file);
        Running::start(&mut command).finish().succeeds();
        fs::remove_file(file).unwrap();
        if seed % SEEDS_OF_PRUNE == 0 {
            scene.run(["prune", "--max-unused", "0"]).succeeds();
        }
    }
    println!("{seed} seeds of {STEPS} steps");
    unmount(served, &place);
    scene.check();
}

/// What programs see of a file: length, names, mode, times of changes, owner. Not how much is stored: what is still in
/// memory counts as whole blocks.
type Seen = (u64, u64, u32, (i64, i64), (i64, i64), u32);

fn seen(place: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut left = vec![place.to_owned()];
    let mut all = BTreeMap::new();
    while let Some(path) = left.pop() {
        let found = path.symlink_metadata().unwrap();
        if found.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let (changed, any) = ((found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec()));
        all.insert(path, (found.size(), found.nlink(), found.mode(), changed, any, found.uid()));
    }
    all
}

/// Does something, and checks which of these files have new times.
#[track_caller]
fn changes(at: &Path, changed: &[&str], same: &[&str], act: impl FnOnce(&dyn Fn(&str) -> PathBuf)) {
    let times = |name: &&str| {
        let found = at.join(name).symlink_metadata().unwrap();
        (found.ctime(), found.ctime_nsec())
    };
    let before: Vec<_> = changed.iter().chain(same).map(times).collect();
    std::thread::sleep(Duration::from_millis(2));
    act(&|name: &str| at.join(name));
    for (place, name) in changed.iter().chain(same).enumerate() {
        assert_eq!(times(name) != before[place], place < changed.len(), "{name}");
    }
}

#[test]
fn what_the_kernel_keeps_of_a_file_is_what_the_store_has() {
    if !has_fuse() {
        return;
    }
    let scene = new_scene();
    let (served, place) = mounted_filesystem(&scene);
    let open = |name: &str| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(place.join(name)).unwrap();
    fs::create_dir(place.join("a")).unwrap();
    fs::create_dir(place.join("b")).unwrap();
    let (one, two) = (open("a/one"), open("a/two"));
    let range = |from: &File, to: &File| {
        let copied = rustix::fs::copy_file_range(from, Some(&mut 100), to, Some(&mut 300_000), 70_000).unwrap();
        assert_eq!(copied, 70_000);
    };
    changes(&place, &["a/one"], &["a", "a/two"], |_| one.write_all_at(&noise(1, 400_000), 7).unwrap());
    changes(&place, &["a/two"], &["a", "a/one"], |_| range(&one, &two));
    changes(&place, &["a/two"], &["a"], |_| rustix::fs::fallocate(&two, FallocateFlags::empty(), 0, 900_000).unwrap());
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    changes(&place, &["a/one"], &["a"], |_| rustix::fs::fallocate(&one, punch, 0, 300_000).unwrap());
    changes(&place, &["a/one"], &["a"], |_| rustix::fs::fallocate(&one, FallocateFlags::ZERO_RANGE, 390_000, 90_000).unwrap());
    changes(&place, &["a/one"], &["a"], |_| rustix::fs::fallocate(&one, FallocateFlags::KEEP_SIZE, 0, 4 << 20).unwrap());
    changes(&place, &["a/one"], &["a"], |_| one.set_len(450_000).unwrap());
    changes(&place, &["a/one", "b"], &["a"], |at| fs::hard_link(at("a/one"), at("b/link")).unwrap());
    changes(&place, &["a", "b"], &["b/link"], |at| fs::rename(at("a/two"), at("b/two")).unwrap());
    // Another name of the file that loses this one.
    changes(&place, &["a/one", "b"], &["a"], |at| fs::rename(at("b/two"), at("b/link")).unwrap());
    changes(&place, &["a", "b"], &[], |at| {
        rustix::fs::renameat_with(rustix::fs::CWD, at("a/one"), rustix::fs::CWD, at("b/link"), RenameFlags::EXCHANGE).unwrap();
    });
    changes(&place, &["a/one"], &["a"], |at| fs::set_permissions(at("a/one"), fs::Permissions::from_mode(0o4711)).unwrap());
    changes(&place, &["a/one"], &["a"], |at| rustix::fs::setxattr(at("a/one"), "user.colour", b"green", XattrFlags::empty()).unwrap());
    changes(&place, &["a"], &["b"], |at| fs::create_dir(at("a/below")).unwrap());
    changes(&place, &["a", "b"], &[], |at| fs::rename(at("a/below"), at("b/below")).unwrap());
    changes(&place, &["b"], &["a"], |at| fs::remove_dir(at("b/below")).unwrap());
    changes(&place, &["b"], &["a", "a/one"], |at| fs::remove_file(at("b/link")).unwrap());
    drop((one, two));
    let before = seen(&place);
    unmount(served, &place);
    let (served, place) = mounted_filesystem(&scene);
    assert_eq!(seen(&place), before);
    unmount(served, &place);
    scene.check();
}

#[test]
fn programs_find_what_they_know_of_ext4() {
    if !has_fuse() || !installed(&["chattr", "setfacl", "su"]) {
        return;
    }
    let scene = new_scene();
    let (served, place) = mounted_filesystem(&scene);
    let at = |name: &str| place.join(name);
    let errno = |done: std::io::Result<()>| done.unwrap_err().raw_os_error().map(Errno::from_raw_os_error);

    // A directory or a file without a name stays for programs that have it open.
    fs::create_dir(at("gone")).unwrap();
    let (gone, mut file) = (File::open(at("gone")).unwrap(), File::create_new(at("file")).unwrap());
    fs::remove_dir(at("gone")).unwrap();
    fs::remove_file(at("file")).unwrap();
    file.write_all(b"still there").unwrap();
    assert_eq!((gone.metadata().unwrap().nlink(), file.metadata().unwrap().nlink(), file.metadata().unwrap().size()), (0, 0, 11));
    drop((gone, file));

    // Times before 1970, and after 2106.
    fs::write(at("old"), "").unwrap();
    for ns in [-1, -5_000_000_001, -(1 << 60), 0, 999_999_999, 1 << 62] {
        set_time(&at("old"), ns);
        let found = at("old").metadata().unwrap();
        assert_eq!(i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec()), ns);
    }

    // Reading is noted once after each change, unless the reader does not want that.
    fs::write(at("read"), noise(3, 200_000)).unwrap();
    set_time(&at("read"), 0);
    let accessed = || at("read").metadata().unwrap().atime();
    let reads = |options: &mut OpenOptions| {
        let file = options.read(true).open(at("read")).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        file.read_exact_at(&mut [0; 100], 0).unwrap();
    };
    reads(OpenOptions::new().custom_flags(rustix::fs::OFlags::NOATIME.bits() as i32));
    assert_eq!(accessed(), 0);
    reads(&mut OpenOptions::new());
    assert!(accessed() > 0);

    // The flags of chattr.
    for (name, flag) in [("fixed", "+i"), ("log", "+a"), ("directory", "+i")] {
        if name == "directory" {
            fs::create_dir(at(name)).unwrap()
        } else {
            fs::write(at(name), "begun").unwrap()
        }
        client("chattr", [flag, at(name).to_str().unwrap()]).succeeds();
        for done in [
            fs::write(at(name).join("new"), ""),
            fs::remove_file(at(name)),
            fs::remove_dir(at(name)),
            fs::rename(at(name), at("other")),
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o777)),
            OpenOptions::new().write(true).open(at(name)).map(drop),
            rustix::fs::setxattr(at(name), "user.x", b"", XattrFlags::empty()).map_err(Into::into),
        ] {
            assert!(done.is_err(), "{name}");
        }
    }
    assert_eq!(errno(OpenOptions::new().append(true).open(at("fixed")).map(drop)), Some(Errno::PERM));
    let times = |name: &str| File::open(at(name))?.set_modified(std::time::UNIX_EPOCH);
    assert_eq!((errno(times("fixed")), errno(times("log"))), (Some(Errno::PERM), Some(Errno::PERM)));
    OpenOptions::new().append(true).open(at("log")).unwrap().write_all(b", and more").unwrap();
    assert_eq!(fs::read(at("log")).unwrap(), b"begun, and more");
    for name in ["fixed", "log", "directory"] {
        client("chattr", ["-ia", at(name).to_str().unwrap()]).succeeds();
    }
    fs::remove_file(at("log")).unwrap();

    // Names of attributes, and ACLs.
    let set = |name: &str| rustix::fs::setxattr(at("fixed"), name, b"value", XattrFlags::empty()).map_err(std::io::Error::from);
    assert_eq!(errno(set("colour.is")), Some(Errno::OPNOTSUPP));
    for name in ["user.a", "trusted.b", "security.c"] {
        set(name).unwrap();
    }
    client("setfacl", ["-m", "u:daemon:rw", at("fixed").to_str().unwrap()]).succeeds();
    let append = format!("echo more >> {}", at("fixed").display());
    client("su", ["-s", "/bin/sh", "daemon", "-c", &append]).succeeds();
    client("setfacl", ["-b", at("fixed").to_str().unwrap()]).succeeds();
    assert_ne!(client("su", ["-s", "/bin/sh", "daemon", "-c", &append]).code, 0);
    unmount(served, &place);
    scene.check();
}
