//! Backup programs beside ours, on the same corpus in the same run: `make bench-peers`.
//!
//! Each program gets the same two generations in the same place and an empty repository in memory, and is measured
//! through the same steps: a first backup, an unchanged one, one of the second generation; a restore, whose tree is
//! compared with the original; verification of all data; deletion of all backups but the newest with all space given
//! back; once more a restore that is compared. A step that fails is reported as failed with what the program said, and
//! the next program goes on.

mod compare;
mod programs;
mod results;

use crate::backups::disk_bytes;
use crate::process::{Cost, run};
use crate::report::median;
use crate::{corpus, processor};
use anyhow::{Context, Result, bail};
use programs::{Codec, ENVIRONMENT, PROGRAMS, Program, Restored};
use results::Outcome;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// What is compared, where, and how often.
#[derive(clap::Args)]
pub struct Options {
    /// Bytes of the corpus
    #[arg(long, default_value_t = crate::DEFAULT_SIZE)]
    size: u64,
    /// What the random choices follow from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs of each program; medians are reported
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Our program [default: `onefold` beside this program]
    #[arg(long)]
    binary: Option<PathBuf>,
    /// A directory in memory, with room for five times the corpus
    #[arg(long, default_value = "/dev/shm")]
    memory: PathBuf,
    /// A directory with programs that are not in the search path
    #[arg(long)]
    programs: Option<PathBuf>,
    /// Only these programs, beside ours
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Seconds that a step may take before it counts as failed
    #[arg(long, default_value_t = 3600)]
    limit: u64,
    /// Where the report goes: this with `.md`, `.json` and `.svg` behind it
    #[arg(long, default_value = "peers")]
    out: PathBuf,
}

/// Everything of a run that the programs share.
struct Runner<'a> {
    options: &'a Options,
    /// The first generation, which each run copies.
    pristine: PathBuf,
    onefold: PathBuf,
    path: String,
}

/// What one run of one program gave.
#[derive(Default)]
struct Run {
    figures: BTreeMap<String, f64>,
    failures: Vec<(String, String)>,
    restored: Option<String>,
    restored_again: Option<String>,
}

/// Measures all programs that are installed and writes the report.
pub fn measure(options: &Options) -> Result<()> {
    if let Some(unknown) = options.only.iter().find(|name| PROGRAMS.iter().all(|program| program.name != name.as_str())) {
        let mut names: Vec<_> = PROGRAMS.iter().map(|program| program.name).collect();
        names.sort_unstable();
        names.dedup();
        bail!("no program {unknown} is known; give one of {}", names.join(", "));
    }
    let place = tempfile::tempdir_in(&options.memory).context("no temporary directory in memory")?;
    let pristine = place.path().join("pristine");
    corpus::create(&pristine, options.size, options.seed)?;
    oddities(&pristine.join("kinds"))?;
    let (bytes, files) = corpus::measure(&pristine);
    let gigabytes = bytes as f64 / 1e9;
    let onefold = match &options.binary {
        Some(binary) => binary.canonicalize().with_context(|| format!("no program at {}", binary.display()))?,
        None => std::env::current_exe()?.with_file_name("onefold"),
    };
    let path = std::env::var("PATH").unwrap_or_default();
    let path = match &options.programs {
        Some(programs) => format!("{}:{path}", std::path::absolute(programs)?.display()),
        None => path,
    };
    let runner = Runner { options, pristine, onefold, path };

    let mut missing: Vec<String> = Vec::new();
    let mut groups: Vec<_> = Codec::ALL.map(|codec| (codec, Vec::new())).into();
    for program in &PROGRAMS {
        if program.name != "onefold" && !options.only.is_empty() && !options.only.iter().any(|name| name == program.name) {
            continue;
        }
        let Some(version) = runner.version(program, place.path())? else {
            if !missing.iter().any(|name| name == program.name) {
                eprintln!("{} is not installed: left out", program.name);
                missing.push(program.name.into());
            }
            continue;
        };
        eprintln!("== {} ({}), {version}", program.name, program.settings);
        let runs = (0..options.runs).map(|_| runner.once(program)).collect::<Result<Vec<_>>>()?;
        let (_, outcomes) = groups.iter_mut().find(|(codec, _)| *codec == program.codec).context("a codec without a group")?;
        outcomes.push(together(program, version, runs));
    }

    let about = json!({
        "processor": processor(), "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "corpus_bytes": bytes, "files": files, "seed": options.seed, "runs": options.runs,
    });
    let mut lines = format!(
        "{} x {}; {gigabytes:.3} GB in {files} files, seed {}; repositories in memory; {}. GB and MB are decimal. Repositories are \
         as `du` counts them. CPU and wall time are of whole commands, memory is that of their greatest process.\n",
        about["processors"],
        processor(),
        options.seed,
        if options.runs == 1 { "one run".into() } else { format!("medians of {} runs", options.runs) },
    );
    let mut versions: Vec<_> =
        groups.iter().flat_map(|(_, outcomes)| outcomes).map(|outcome| format!("{}: {}", outcome.name, outcome.version)).collect();
    versions.sort();
    versions.dedup();
    lines += &format!("\nVersions: {}.", versions.join("; "));
    let write = |extension: &str, text: String| {
        let mut name = options.out.clone().into_os_string();
        name.push(extension);
        fs::write(&name, text).with_context(|| format!("cannot write {}", name.display()))
    };
    let text = results::markdown(&groups, &lines, &missing, gigabytes);
    println!("{text}");
    write(".md", text)?;
    write(".json", serde_json::to_string_pretty(&results::json(&groups, about, &missing))? + "\n")?;
    write(".svg", results::svg(&groups, gigabytes))
}

/// What the corpus has no files of: links, an empty file, an empty directory, modes that are not common, an old time.
fn oddities(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory.join("empty"))?;
    fs::write(directory.join("nothing"), "")?;
    fs::write(directory.join("linked"), "one file with two names\n")?;
    fs::hard_link(directory.join("linked"), directory.join("second name"))?;
    symlink("linked", directory.join("link"))?;
    symlink("/nowhere", directory.join("dangling"))?;
    for mode in [0o400, 0o600, 0o751, 0o4755] {
        let path = directory.join(format!("mode {mode:o}"));
        fs::write(&path, format!("{mode:o}"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    let old = fs::File::create(directory.join("old"))?;
    Ok(old.set_modified(SystemTime::UNIX_EPOCH + Duration::new(86_400, 987_654_321))?)
}

impl Runner<'_> {
    /// Runs a line of the shell; `place` has the tree, the repository and what is restored.
    fn call(&self, line: &str, place: &Path, name: &str) -> Result<Cost> {
        let mut arguments: Vec<String> = ENVIRONMENT.map(String::from).into();
        let variable = |name: &str, value: &Path| format!("{name}={}", value.display());
        arguments.extend([
            variable("HOME", &place.join("home")),
            variable("PLACE", place),
            variable("STORE", &place.join("store")),
            variable("TARGET", &place.join("restored")),
            variable("ONEFOLD", &self.onefold),
            format!("NAME={name}"),
            format!("PATH={}", self.path),
        ]);
        let limit = self.options.limit.to_string();
        // A session's own settings of the programs must not count.
        let prefix = ["-u", "XDG_CACHE_HOME", "-u", "XDG_CONFIG_HOME", "-u", "BUP_DIR", "-u", "BORG_BASE_DIR", "-u", "ONEFOLD_STORE"];
        let shell = ["timeout", "-k", "10", &limit, "bash", "-o", "pipefail", "-c", line];
        let all: Vec<&str> = prefix.into_iter().chain(arguments.iter().map(String::as_str)).chain(shell).collect();
        run(Path::new("env"), &all)
    }

    /// The first line of what a program says its version is; None if it is not there.
    fn version(&self, program: &Program, place: &Path) -> Result<Option<String>> {
        match self.call(program.version, place, "") {
            Ok(cost) => Ok(Some(String::from_utf8_lossy(&cost.output).lines().next().unwrap_or_default().to_owned())),
            Err(error) if program.name == "onefold" => Err(error.context("build it first: cargo build --release --bin onefold")),
            Err(_) => Ok(None),
        }
    }

    /// All steps of one program. What it does wrong is in the result; errors are those of this program.
    fn once(&self, program: &Program) -> Result<Run> {
        let place = tempfile::tempdir_in(&self.options.memory)?;
        let place = place.path();
        for name in ["home", "restored"] {
            fs::create_dir(place.join(name))?;
        }
        let (tree, store) = (place.join("tree"), place.join("store"));
        run(Path::new("cp"), &["-a", crate::backups::text(&self.pristine), crate::backups::text(&tree)])?;
        let mut result = Run::default();
        if self.step(&mut result, "init", program.init, place).is_none() {
            return Ok(result);
        }
        let mut size = disk_bytes(&store)?;
        for (nth, name) in ["first", "unchanged", "changed"].into_iter().enumerate() {
            if name == "changed" {
                corpus::change(&tree, self.options.seed)?;
            }
            if self.step(&mut result, name, program.backup, place).is_none() {
                return Ok(result);
            }
            let now = disk_bytes(&store)?;
            // Of the first one it is all that the repository has.
            let before = if nth == 0 { 0 } else { size };
            result.figures.insert(format!("{name}: grows_bytes"), now as f64 - before as f64);
            result.figures.insert(format!("{name}: repository_bytes"), now as f64);
            size = now;
        }
        result.restored = self.restore(&mut result, program, "restore", place)?;
        if let Some(line) = program.verify {
            self.step(&mut result, "verify", line, place);
        }
        let before = disk_bytes(&store)?;
        if self.step(&mut result, "reclaim", program.reclaim, place).is_some() {
            let after = disk_bytes(&store)?;
            result.figures.insert("reclaim: freed_bytes".into(), before as f64 - after as f64);
            result.restored_again = self.restore(&mut result, program, "restore after reclaiming", place)?;
        }
        Ok(result)
    }

    /// One step: its cost and that figures are known, or what it said.
    fn step(&self, result: &mut Run, step: &str, line: &str, place: &Path) -> Option<()> {
        let name = if ["first", "unchanged", "changed"].contains(&step) { step } else { "changed" };
        match self.call(line, place, name) {
            Ok(cost) => {
                eprintln!("{step:<26}{:>9.2} s wall{:>9.2} s CPU{:>8.0} MB", cost.wall_s, cost.cpu_s, cost.peak_bytes as f64 / 1e6);
                let figures = [("wall_s", cost.wall_s), ("cpu_s", cost.cpu_s), ("peak_bytes", cost.peak_bytes as f64)];
                result.figures.extend(figures.map(|(kind, value)| (format!("{step}: {kind}"), value)));
                Some(())
            }
            Err(error) => {
                let said = reason(&error, place);
                eprintln!("{step:<26}failed: {said}");
                result.failures.push((step.into(), said));
                None
            }
        }
    }

    /// Restores the newest backup and compares it with the tree.
    fn restore(&self, result: &mut Run, program: &Program, step: &str, place: &Path) -> Result<Option<String>> {
        let (target, tree) = (place.join("restored"), place.join("tree"));
        if self.step(result, step, program.restore, place).is_none() {
            return clear(&target).map(|()| None);
        }
        let restored = match program.restored {
            Restored::Itself => target.clone(),
            Restored::Name => target.join("tree"),
            Restored::Path => target.join(tree.strip_prefix("/").context("the temporary directory is not an absolute path")?),
        };
        let said = compare::trees(&tree, &restored)
            .map_or_else(|error| format!("cannot be compared: {}", reason(&error, place)), |found| found.text());
        eprintln!("{:<26}{said}", "");
        clear(&target)?;
        Ok(Some(said))
    }
}

/// Empties a directory.
fn clear(directory: &Path) -> Result<()> {
    fs::remove_dir_all(directory)?;
    Ok(fs::create_dir(directory)?)
}

/// What a program said at its end, on one line, without the measured cost and without directories of this run.
fn reason(error: &anyhow::Error, place: &Path) -> String {
    let text = format!("{error:#}").replace(&place.display().to_string(), "");
    let text = text.rsplit_once(" failed: ").map_or(text.as_str(), |(_, said)| said);
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("{\"")).collect();
    let said = lines[lines.len().saturating_sub(3)..].join("; ");
    match said.char_indices().nth(300) {
        _ if said.is_empty() => "nothing was said, or the time limit was reached".into(),
        Some((end, _)) => format!("{}...", &said[..end]),
        None => said,
    }
}

/// One outcome of several runs: medians, all failures once, and the worst that was said of a restored tree.
fn together(program: &Program, version: String, runs: Vec<Run>) -> Outcome {
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut failures = Vec::new();
    let mut said: [Option<String>; 2] = [None, None];
    for run in runs {
        for (key, value) in run.figures {
            values.entry(key).or_default().push(value);
        }
        failures.extend(run.failures);
        for (kept, new) in said.iter_mut().zip([run.restored, run.restored_again]) {
            if kept.as_deref().is_none_or(|kept| kept == "identical") {
                *kept = new.or(kept.take());
            }
        }
    }
    failures.sort();
    failures.dedup();
    let [restored, restored_again] = said;
    Outcome {
        name: program.name.into(),
        version,
        settings: program.settings.into(),
        figures: values.into_iter().map(|(key, values)| (key, median(values))).collect(),
        failures,
        lacking: if program.verify.is_none() { vec!["verify"] } else { Vec::new() },
        restored,
        restored_again,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn the_reason_is_what_was_said_last() {
        let place = Path::new("/dev/shm/.tmpX");
        let error = anyhow!("env A=1 bash -c x failed: one\ntwo\nthree: /dev/shm/.tmpX/store\n\nfour\n{{\"wall_s\": 1}}\n");
        assert_eq!(reason(&error, place), "two; three: /store; four");
        assert!(reason(&anyhow!("x failed: {{\"wall_s\": 1}}\n"), place).starts_with("nothing was said"));
        let long = reason(&anyhow!("x failed: {}", "ü".repeat(400)), place);
        assert_eq!(long, "ü".repeat(300) + "...");
    }

    #[test]
    fn several_runs_become_one() {
        let run = |value: f64, said: &str| Run {
            figures: [("first: cpu_s".to_owned(), value)].into(),
            failures: vec![("verify".into(), "no".into())],
            restored: Some(said.into()),
            restored_again: None,
        };
        let runs = vec![run(1.0, "identical"), run(5.0, "differs: mode of 1 (a)"), run(3.0, "identical")];
        let outcome = together(&PROGRAMS[0], "1".into(), runs);
        assert_eq!(outcome.figures["first: cpu_s"], 3.0);
        assert_eq!(outcome.failures.len(), 1);
        assert_eq!(outcome.restored.as_deref(), Some("differs: mode of 1 (a)"));
        assert_eq!(outcome.restored_again, None);
    }
}
