//! What the comparisons with other programs have alike: options, corpus, several runs as one, the files of the report.

mod compare;

use crate::report::median;
use crate::shell::{Shell, reason};
use crate::{corpus, processor};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// What is compared, where, and how often: what all comparisons have alike.
#[derive(clap::Args)]
pub struct Common {
    /// Bytes of the corpus
    #[arg(long, default_value_t = crate::DEFAULT_SIZE)]
    pub size: u64,
    /// What the random choices follow from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Runs of each; medians are reported
    #[arg(long, alias = "repetitions", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Our program [default: `onefold` beside this program]
    #[arg(long)]
    pub binary: Option<PathBuf>,
    /// A directory in memory, with room for five times the corpus
    #[arg(long, default_value = "/dev/shm")]
    pub memory: PathBuf,
    /// A directory with programs that are not in the search path
    #[arg(long)]
    pub programs: Option<PathBuf>,
    /// Only these, beside ours
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Seconds that a step may take before it counts as failed
    #[arg(long, default_value_t = 3600)]
    pub limit: u64,
}

impl Common {
    /// Where lines of the shell find programs.
    pub fn shell(&self) -> Result<Shell> {
        Shell::new(self.binary.as_deref(), self.programs.as_deref(), self.limit)
    }

    /// A new directory in memory.
    pub fn place(&self) -> Result<TempDir> {
        tempfile::tempdir_in(&self.memory).context("no temporary directory in memory")
    }

    /// Whether `--only` lets something of this name take part. Ours always does.
    pub fn lets_in(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    /// Refuses names in `--only` that none of these has.
    pub fn check_only<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<()> {
        let mut names: Vec<&str> = names.collect();
        names.sort_unstable();
        names.dedup();
        match self.only.iter().find(|only| !names.contains(&only.as_str())) {
            Some(unknown) => bail!("{unknown} is not known; give some of {}", names.join(", ")),
            None => Ok(()),
        }
    }
}

/// The first generation of the data, which each run copies.
pub struct Corpus {
    pub pristine: PathBuf,
    pub bytes: u64,
    files: u64,
    seed: u64,
    runs: u32,
}

impl Corpus {
    /// Makes it in a place.
    pub fn create(options: &Common, place: &Path) -> Result<Corpus> {
        let pristine = place.join("pristine");
        corpus::create(&pristine, options.size, options.seed)?;
        oddities(&pristine.join("kinds"))?;
        let (bytes, files) = corpus::measure(&pristine);
        Ok(Corpus { pristine, bytes, files, seed: options.seed, runs: options.runs })
    }

    /// Machine and data, for a report that programs read.
    pub fn about(&self) -> Value {
        json!({
            "processor": processor(), "processors": processors(), "corpus_bytes": self.bytes, "files": self.files,
            "seed": self.seed, "runs": self.runs,
        })
    }

    /// The same for people, with what else they must know, and the versions of the programs.
    pub fn lines(&self, more: &str, versions: impl Iterator<Item = String>) -> String {
        let mut versions: Vec<String> = versions.collect();
        versions.sort();
        versions.dedup();
        format!(
            "{} x {}; {:.3} GB in {} files, seed {}; repositories in memory; {}. GB and MB are decimal. {more}\n\nVersions: {}.",
            processors(),
            processor(),
            self.bytes as f64 / 1e9,
            self.files,
            self.seed,
            if self.runs == 1 { "one run".into() } else { format!("medians of {} runs", self.runs) },
            versions.join("; "),
        )
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
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

/// What one run of one program gave, or several as one.
#[derive(Default)]
pub struct Run {
    /// By step and figure, as in `first: wall_s`.
    pub figures: BTreeMap<String, f64>,
    /// Steps that failed, and what was said.
    pub failures: Vec<(String, String)>,
    /// How the restored tree compares, and the one restored after space was reclaimed.
    pub restored: [Option<String>; 2],
}

impl Run {
    /// Several runs as one: medians, all failures once, and the worst that was said of a restored tree.
    pub fn together(runs: Vec<Run>) -> Run {
        let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        let mut whole = Run::default();
        for run in runs {
            for (key, value) in run.figures {
                values.entry(key).or_default().push(value);
            }
            whole.failures.extend(run.failures);
            for (kept, new) in whole.restored.iter_mut().zip(run.restored) {
                if kept.as_deref().is_none_or(|kept| kept == "identical") {
                    *kept = new.or(kept.take());
                }
            }
        }
        whole.failures.sort();
        whole.failures.dedup();
        whole.figures = values.into_iter().map(|(key, values)| (key, median(values))).collect();
        whole
    }
}

/// The first line of what a program says its version is.
pub fn first_line(output: &[u8]) -> String {
    String::from_utf8_lossy(output).lines().next().unwrap_or_default().to_owned()
}

/// What is said of a restored tree beside the original. Then the place of the restored one is emptied.
pub fn compared(tree: &Path, restored: &Path, target: &Path, place: &Path) -> Result<String> {
    let said =
        compare::trees(tree, restored).map_or_else(|error| format!("cannot be compared: {}", reason(&error, place)), |found| found.text());
    clear(target)?;
    Ok(said)
}

/// Where a program restores the tree that has its whole path.
pub fn with_path(target: &Path, tree: &Path) -> Result<PathBuf> {
    Ok(target.join(tree.strip_prefix("/").context("the temporary directory is not an absolute path")?))
}

/// Empties a directory.
pub fn clear(directory: &Path) -> Result<()> {
    fs::remove_dir_all(directory)?;
    Ok(fs::create_dir(directory)?)
}

/// Prints the text of a report, and writes the report: the text, figures as JSON, and other files by their extension.
pub fn write(out: &Path, text: &str, figures: &Value, others: &[(&str, String)]) -> Result<()> {
    println!("{text}");
    let usual = [(".md", text.to_owned()), (".json", serde_json::to_string_pretty(figures)? + "\n")];
    for (extension, content) in usual.iter().chain(others) {
        let mut name = out.to_path_buf().into_os_string();
        name.push(extension);
        fs::write(&name, content).with_context(|| format!("cannot write {}", name.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_runs_become_one() {
        let run = |value: f64, said: &str| Run {
            figures: [("first: cpu_s".to_owned(), value)].into(),
            failures: vec![("verify".into(), "no".into())],
            restored: [Some(said.into()), None],
        };
        let whole = Run::together(vec![run(1.0, "identical"), run(5.0, "differs: mode of 1 (a)"), run(3.0, "identical")]);
        assert_eq!(whole.figures["first: cpu_s"], 3.0);
        assert_eq!(whole.failures.len(), 1);
        assert_eq!(whole.restored, [Some("differs: mode of 1 (a)".to_owned()), None]);
    }
}
