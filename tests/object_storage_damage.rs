//! Objects of a store, and files of its state on a machine, are lost or rot while nobody uses them. What is lost in the
//! bucket is named, and nothing is ever given out wrong. What is lost of a state is rebuilt.

use onefold_tests::{Machine, ObjectStorage, Random, Run, Running, client, differences, plant};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const STORE: &str = "store";
/// Everything small, so that a little data has many containers and batches, and the log is trimmed.
const SETTINGS: &str = "[log]\nsegment = \"1MiB\"\nlimit = \"2MiB\"\ncommit = \"1MiB\"\ncommit_interval_ms = 20\n\
                        [memory]\nauxiliary_index = \"1MiB\"\n";

/// What happens to a file.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Delete,
    /// Half of it is lost.
    Truncate,
    /// All of its bytes are zeros, as after a power cut.
    Zero,
    /// A bit is another one, at this place of a thousand.
    Flip(u64),
}

impl Harm {
    fn is_done_to(self, file: &Path) {
        let open = || File::options().read(true).write(true).open(file).unwrap();
        let length = fs::metadata(file).unwrap().len();
        match self {
            Harm::Delete => fs::remove_file(file).unwrap(),
            Harm::Truncate => open().set_len(length / 2).unwrap(),
            Harm::Zero => {
                open().set_len(0).unwrap();
                open().set_len(length).unwrap();
            }
            Harm::Flip(_) if length == 0 => {}
            Harm::Flip(place) => {
                let (file, at, mut byte) = (open(), length * place / 1000, [0]);
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
            }
        }
    }
}

/// All files below a directory, in order.
fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let below = |path: PathBuf| if path.is_dir() && !path.is_symlink() { files(&path) } else { vec![path] };
    paths.into_iter().flat_map(below).collect()
}

/// The same as text, without the directory.
fn names(directory: &Path) -> Vec<String> {
    files(directory).iter().map(|file| file.strip_prefix(directory).unwrap().to_str().unwrap().to_owned()).collect()
}

/// Makes `to` a copy of `from`.
fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    // The gateway keeps what it knows of an object in extended attributes.
    client("cp", [Path::new("--archive"), from, to]).succeeds();
}

/// A store with some backups, whose log was trimmed, and the machine that made it; copies of both.
struct Scene {
    storage: ObjectStorage,
    home: Machine,
    state: PathBuf,
    /// The ids of all backups.
    backups: Vec<String>,
    /// Some of them with what they are of.
    sources: Vec<(String, PathBuf)>,
    /// What no backup has.
    new: PathBuf,
}

impl Scene {
    fn new() -> Option<Scene> {
        let storage = ObjectStorage::on_gateway()?;
        let home = storage.machine(STORE);
        home.init(&["--container-size", "256KiB"], SETTINGS);
        let [new, small, large] = ["new", "small", "large"].map(|name| storage.path(name));
        plant(&new, 1, MIB);
        plant(&small, 2, MIB);
        plant(&large, 3, 5 * MIB);
        let id = |source: &Path| home.back_up(source)["id"].as_str().unwrap().to_owned();
        let mut backups = vec![id(&large)];
        while !storage.objects(STORE).join("history").is_dir() {
            assert!(backups.len() < 40, "the log is never trimmed");
            backups.push(id(&large.join("d1")));
        }
        // Something that only the log has.
        backups.push(id(&small));
        let sources = vec![(backups[0].clone(), large), (backups[backups.len() - 1].clone(), small)];
        let state = home.state();
        copy(&storage.objects(STORE), &storage.path("objects"));
        copy(&state, &storage.path("state"));
        Some(Scene { storage, home, state, backups, sources, new })
    }

    /// Brings back the store and the state as they were.
    fn reset(&self) {
        copy(&self.storage.path("objects"), &self.storage.objects(STORE));
        copy(&self.storage.path("state"), &self.state);
    }

    fn fresh(&self) -> Machine {
        self.storage.machine(STORE)
    }
}

/// Runs a command to its end, which it must come to by itself.
#[track_caller]
fn ends(run: Run, case: &str) -> Run {
    let text = run.text();
    assert!((0..=3).contains(&run.code) && !text.contains("panicked"), "{case}: {} ended with {}:\n{text}", run.name, run.code);
    run
}

/// Restores a backup. What is there under its name must be right, and what is not there must be named, unless nothing
/// is. Returns how it ended.
#[track_caller]
fn restored(machine: &Machine, backup: &str, source: &Path, case: &str) -> Run {
    let (run, _target, found) = machine.restore(backup, source);
    let run = ends(run, case);
    let text = run.text();
    if run.code == 0 {
        let differences = differences(source, &found);
        assert!(differences.is_empty(), "{case}: {} is wrong:\n{}\n{text}", run.name, differences.join("\n"));
        return run;
    }
    let there = names(&found);
    for name in there.iter().filter(|name| !name.ends_with(".onefold-damaged")) {
        let [found, source] = [&found, source].map(|tree| tree.join(name));
        assert!(found.is_symlink() || fs::read(found).unwrap() == fs::read(source).unwrap(), "{case}: {name:?} is wrong:\n{text}");
    }
    let is_lost = |name: &String| !there.contains(name) && !text.contains(name.as_str());
    let lost = names(source).into_iter().find(|name| !there.is_empty() && is_lost(name));
    assert!(lost.is_none(), "{case}: {lost:?} is missing and not named:\n{text}");
    run
}

/// One object, and what was done to it.
struct Case<'a> {
    scene: &'a Scene,
    title: String,
    /// Each of these names it well enough.
    named: Vec<&'a str>,
    /// The store may look as it was before the object was put.
    may_be_older: bool,
}

impl Case<'_> {
    fn new<'a>(scene: &'a Scene, object: &'a str, harm: Harm) -> Case<'a> {
        let kind = object.split('/').next().unwrap();
        // Whoever misses a part of a chain may name what comes before or after.
        let named = match kind {
            "log" | "manifests" | "history" => vec!["log/", "manifests/", "history", "the log has lost its end"],
            "store" => vec!["/store", "no onefold store", "`store`"],
            _ => vec![object],
        };
        // A chain without its last part is a chain.
        let all = names(&scene.storage.path("objects"));
        let is_last = all.iter().rfind(|name| name.split('/').next() == Some(kind)).is_some_and(|last| last == object);
        let may_be_older = matches!(harm, Harm::Delete) && is_last && ["log", "manifests"].contains(&kind);
        Case { scene, title: format!("{harm:?} of {object}"), named, may_be_older }
    }

    /// What fails must name the object.
    #[track_caller]
    fn names(&self, run: Run) -> Run {
        let run = ends(run, &self.title);
        let text = run.text();
        assert!(run.code == 0 || self.named.iter().any(|name| text.contains(name)), "{}: not named: {}\n{text}", self.title, run.name);
        run
    }

    /// What a machine reads is right, or the object is named. Returns how its check ended.
    #[track_caller]
    fn reads(&self, machine: &Machine) -> Run {
        let Case { scene, title, may_be_older, .. } = self;
        let list = self.names(machine.run(["backups", "--json"]));
        let mut list = if list.code == 0 { list.json() } else { serde_json::json!([]) };
        let list: Vec<String> = list.as_array_mut().unwrap().iter().map(|backup| backup["id"].as_str().unwrap().to_owned()).collect();
        let is_right = list.is_empty() || list == scene.backups || (*may_be_older && scene.backups.starts_with(&list));
        assert!(is_right, "{title}: {list:?} of {:?}", scene.backups);
        for (backup, source) in &scene.sources {
            let run = restored(machine, backup, source, title);
            if list.contains(backup) {
                self.names(run);
            } else {
                assert_ne!(run.code, 0, "{title}: {backup} is not listed");
            }
        }
        self.names(machine.run(["check", "--read-data"]))
    }

    /// A backup either fails and names the object, or can be restored. A machine with a state goes on, although others
    /// may have to wait until the object is back.
    #[track_caller]
    fn writes(&self, machine: &Machine, has_state: bool) {
        let backup = self.names(machine.run(["backup", "--name", "new", "--json", "new"]));
        if backup.code == 0 {
            let backup = backup.json()["id"].as_str().unwrap().to_owned();
            let run = self.names(restored(&self.scene.fresh(), &backup, &self.scene.new, &self.title));
            assert!(run.code == 0 || has_state, "{}: a new backup of new data is damaged:\n{}", self.title, run.text());
        }
    }
}

/// Does all harm to one object after the other, and asks a machine that has never seen the store, and that which made
/// it.
fn harm_objects(scene: &Scene, objects: &[String]) {
    let mut random = Random::new(1);
    for (number, object) in objects.iter().enumerate() {
        let rot = if number % 2 == 0 { Harm::Flip(random.below(1000)) } else { Harm::Truncate };
        for harm in [Harm::Delete, rot] {
            let case = Case::new(scene, object, harm);
            for (machine, has_state) in [(&scene.fresh(), false), (&scene.home, true)] {
                scene.reset();
                harm.is_done_to(&scene.storage.objects(STORE).join(object));
                let check = case.reads(machine);
                assert!(check.code != 0 || case.may_be_older, "{}: check finds nothing", case.title);
                case.writes(machine, has_state);
            }
        }
    }
}

/// The objects of a kind at some places of a hundred.
fn some(scene: &Scene, kind: &str, places: &[usize]) -> Vec<String> {
    let all = names(&scene.storage.objects(STORE));
    let mut all: Vec<String> = all.into_iter().filter(|name| name.split('/').next() == Some(kind)).collect();
    assert!(!all.is_empty(), "there is no {kind}");
    if kind == "log" {
        // The log has no gaps. Fences before it stay, but nobody reads them.
        let number = |name: &str| u64::from_str_radix(&name["log/".len()..], 16).unwrap();
        let gap = all.windows(2).rposition(|pair| number(&pair[1]) != number(&pair[0]) + 1);
        all.drain(..gap.map_or(0, |at| at + 1));
    }
    let mut chosen: Vec<String> = places.iter().map(|place| all[(all.len() - 1) * place / 100].clone()).collect();
    chosen.dedup();
    chosen
}

#[test]
fn a_harmed_container_loses_what_it_had_and_nothing_else() {
    let Some(scene) = Scene::new() else { return };
    harm_objects(&scene, &some(&scene, "containers", &[20, 100]));
}

#[test]
fn a_harmed_log_is_named_and_nothing_is_given_out_wrong() {
    let Some(scene) = Scene::new() else { return };
    let objects = [some(&scene, "log", &[50, 100]), some(&scene, "manifests", &[0, 100])].concat();
    harm_objects(&scene, &objects);
}

#[test]
fn a_harmed_descriptor_or_history_is_named_and_nothing_is_given_out_wrong() {
    let Some(scene) = Scene::new() else { return };
    harm_objects(&scene, &[some(&scene, "store", &[0]), some(&scene, "history", &[0])].concat());
}

/// Files of a state that are harmed together: all those that differ in digits only.
fn kinds(state: &Path) -> BTreeMap<String, Vec<String>> {
    let mut kinds: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in names(state).into_iter().filter(|name| name != "onefold.toml") {
        let is_number = |part: &&str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let kind: Vec<&str> = name.split(['/', '-', '.']).filter(|part| !is_number(part)).collect();
        kinds.entry(kind.join(" ")).or_default().push(name);
    }
    kinds
}

/// The machine does everything as if its state had never been harmed. The command that finds the harm may fail, once:
/// then it says that it will succeed.
#[track_caller]
fn all_is_right(scene: &Scene, number: usize, case: &str) {
    let (home, has_failed) = (&scene.home, Cell::new(false));
    let succeeds = |command: &dyn Fn() -> Run| {
        let mut run = ends(command(), case);
        if run.code != 0 && run.text().contains("Run the command again") && !has_failed.replace(true) {
            run = ends(command(), case);
        }
        assert_eq!(run.code, 0, "{case}: {} failed:\n{}", run.name, run.text());
        run
    };
    let (backup, source) = &scene.sources[number % 2];
    let restores = || succeeds(&|| restored(home, backup, source, case));
    let lists = || {
        let list = succeeds(&|| home.run(["backups", "--json"])).json();
        let list: Vec<&str> = list.as_array().unwrap().iter().map(|backup| backup["id"].as_str().unwrap()).collect();
        assert!(scene.backups == list, "{case}: {list:?}");
    };
    // Whatever comes first finds the harm.
    match number / 2 % 4 {
        0 => lists(),
        1 => drop(restores()),
        2 => drop(succeeds(&|| home.run(["check", "--read-data"]))),
        _ => {}
    }
    let made = succeeds(&|| home.run(["backup", "--name", "new", "--json", "new"])).json();
    drop(restores());
    assert_eq!(home.backups().last().map(String::as_str), made["id"].as_str(), "{case}");
    succeeds(&|| home.run(["check", "--read-data"]));
    if number.is_multiple_of(4) {
        succeeds(&|| restored(&scene.fresh(), made["id"].as_str().unwrap(), &scene.new, case));
    }
}

#[test]
fn a_harmed_state_of_a_machine_is_rebuilt() {
    let Some(scene) = Scene::new() else { return };
    let (mut kinds, mut random) = (kinds(&scene.state), Random::new(1));
    assert!(kinds.len() >= 8, "{kinds:?}");
    // What a process that is killed while it copies leaves.
    let copies = names(&scene.state.join("log"));
    let last = copies.iter().rfind(|name| name.as_str() != "manifest").expect("batches are copied");
    kinds.insert("the last copy of the log".to_owned(), vec![format!("log/{last}")]);
    let mut number = 0;
    for (kind, names) in &kinds {
        let lost = if number % 2 == 0 { Harm::Delete } else { Harm::Truncate };
        for harm in [lost, Harm::Zero, Harm::Flip(random.below(1000))] {
            scene.reset();
            names.iter().for_each(|name| harm.is_done_to(&scene.state.join(name)));
            all_is_right(&scene, number, &format!("{harm:?} of {} files of {kind}", names.len()));
            number += 1;
        }
    }
}

#[test]
fn a_state_without_a_directory_is_rebuilt() {
    let Some(scene) = Scene::new() else { return };
    let directories = fs::read_dir(&scene.state).unwrap().map(|entry| entry.unwrap().path());
    let mut directories: Vec<PathBuf> = directories.filter(|path| path.is_dir()).collect();
    directories.push(scene.state.clone());
    for (number, directory) in directories.iter().enumerate() {
        scene.reset();
        fs::remove_dir_all(directory).unwrap();
        all_is_right(&scene, number, &format!("no {}", directory.display()));
    }
}

/// Removes the state of a machine, if it does not fit the store any more and says so.
#[track_caller]
fn removes_state_if_told(machine: &Machine, case: &str) {
    let run = ends(machine.run(["backups"]), case);
    let (text, state) = (run.text(), machine.state());
    if run.code != 0 {
        assert!(text.contains(state.to_str().unwrap()), "{case}: it does not say what to remove:\n{text}");
        assert!(!text.contains("remove s3://"), "{case}: it tells to remove the store:\n{text}");
        machine.lose_state();
    }
}

#[test]
fn a_state_of_another_store_is_rebuilt_or_told() {
    let Some(scene) = Scene::new() else { return };
    // The bucket was emptied, and another store was made under the same name.
    fs::remove_dir_all(scene.storage.objects(STORE)).unwrap();
    let other = scene.fresh();
    other.init(&[], "");
    let made = other.back_up(&scene.new)["id"].as_str().unwrap().to_owned();
    removes_state_if_told(&scene.home, "another store");
    scene.home.restores(&made, &scene.new, &scene.new);
    assert_eq!(scene.home.backups(), [made]);
    scene.home.run(["check", "--read-data"]).succeeds();
    scene.home.back_up(&scene.sources[0].1);
    assert_eq!(scene.fresh().backups().len(), 2);
}

#[test]
fn a_store_that_was_restored_from_older_versions_is_taken_as_it_is_or_told() {
    let Some(scene) = Scene::new() else { return };
    for is_forked in [false, true] {
        // This machine has seen batches that are gone, and another one may have put others in their place.
        scene.reset();
        scene.home.back_up(&scene.new);
        scene.home.back_up(&scene.new.join("d1"));
        copy(&scene.storage.path("objects"), &scene.storage.objects(STORE));
        let mut backups = scene.backups.clone();
        if is_forked {
            for source in ["d2", "d3", "d4"].map(|name| scene.new.join(name)) {
                backups.push(scene.fresh().back_up(&source)["id"].as_str().unwrap().to_owned());
            }
        }
        removes_state_if_told(&scene.home, "older versions");
        assert_eq!(scene.home.backups(), backups);
        scene.sources.iter().for_each(|(backup, source)| scene.home.restores(backup, source, source));
        scene.home.run(["check", "--read-data"]).succeeds();
        backups.push(scene.home.back_up(&scene.new)["id"].as_str().unwrap().to_owned());
        let fresh = scene.fresh();
        assert_eq!(fresh.backups(), backups);
        fresh.restores(backups.last().unwrap(), &scene.new, &scene.new);
    }
}

/// A process that is killed while it reads the log into its state leaves parts of it.
#[test]
fn a_state_that_was_half_made_is_rebuilt() {
    let Some(scene) = Scene::new() else { return };
    let mut random = Random::new(4);
    for round in 0..12 {
        let machine = scene.fresh();
        // Half of them have a state that is behind.
        if round % 2 == 0 {
            machine.run(["backups"]).succeeds();
            ["d1", "d2", "d3"].iter().for_each(|name| drop(scene.home.back_up(&scene.new.join(name))));
        }
        let mut killed = Running::start(&mut machine.command([["check", "prune", "backups"][round % 3]]));
        std::thread::sleep(Duration::from_millis(1 + random.below(80)));
        killed.kill();
        // So that nobody waits until it is taken for gone.
        machine.run(["prune"]).succeeds();
        assert_eq!(machine.backups(), scene.home.backups());
        let (backup, source) = &scene.sources[round % 2];
        machine.restores(backup, source, source);
        machine.run(["check"]).succeeds();
    }
}
