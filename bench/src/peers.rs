//! Backup programs beside ours, on the same corpus in the same run: `make bench-peers`.
//!
//! Each program gets the same two generations in the same place and an empty repository in memory, and is measured
//! through the same steps: a first backup, an unchanged one, one of the second generation; a restore, whose tree is
//! compared with the original; verification of all data; deletion of all backups but the newest with all space given
//! back; once more a restore that is compared. A step that fails is reported as failed with what the program said, and
//! the next program goes on.

mod programs;
mod results;

use crate::backups::disk_bytes;
use crate::corpus;
use crate::process::{Cost, run};
use crate::runs::{self, Corpus, Run};
use crate::shell::{Shell, reason};
use anyhow::{Context, Result};
use programs::{Codec, PROGRAMS, Program, Restored};
use results::Outcome;
use std::fs;
use std::path::{Path, PathBuf};

/// What is compared, where, and how often.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    common: runs::Common,
    /// Where the report goes: this with `.md`, `.json` and `.svg` behind it
    #[arg(long, default_value = "peers")]
    out: PathBuf,
}

/// Everything of a run that the programs share.
struct Runner<'a> {
    options: &'a runs::Common,
    corpus: Corpus,
    shell: Shell,
}

/// Measures all programs that are installed and writes the report.
pub fn measure(options: &Options) -> Result<()> {
    let Options { common: options, out } = options;
    options.check_only(PROGRAMS.iter().map(|program| program.name))?;
    let place = options.place()?;
    let corpus = Corpus::create(options, place.path())?;
    let gigabytes = corpus.bytes as f64 / 1e9;
    let runner = Runner { options, corpus, shell: options.shell()? };

    let mut missing: Vec<String> = Vec::new();
    let mut groups: Vec<_> = Codec::ALL.map(|codec| (codec, Vec::new())).into();
    for program in &PROGRAMS {
        if program.name != "onefold" && !options.lets_in(program.name) {
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

    let more = "Repositories are as `du` counts them. CPU and wall time are of whole commands, memory is that of their greatest process.";
    let outcomes = groups.iter().flat_map(|(_, outcomes)| outcomes);
    let lines = runner.corpus.lines(more, outcomes.map(|outcome| format!("{}: {}", outcome.name, outcome.version)));
    let text = results::markdown(&groups, &lines, &missing, gigabytes);
    let figures = results::json(&groups, runner.corpus.about(), &missing);
    runs::write(out, &text, &figures, &[(".svg", results::svg(&groups, gigabytes))])
}

impl Runner<'_> {
    /// Runs a line of the shell; `place` has the tree, the repository and what is restored.
    fn call(&self, line: &str, place: &Path, name: &str) -> Result<Cost> {
        let text = |path: PathBuf| path.display().to_string();
        let variables = [
            ("HOME", text(place.join("home"))),
            ("PLACE", text(place.to_owned())),
            ("STORE", text(place.join("store"))),
            ("TARGET", text(place.join("restored"))),
            ("NAME", name.to_owned()),
        ];
        self.shell.call(line, &variables)
    }

    /// The first line of what a program says its version is; None if it is not there.
    fn version(&self, program: &Program, place: &Path) -> Result<Option<String>> {
        match self.call(program.version, place, "") {
            Ok(cost) => Ok(Some(runs::first_line(&cost.output))),
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
        run(Path::new("cp"), &["-a", crate::backups::text(&self.corpus.pristine), crate::backups::text(&tree)])?;
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
        result.restored[0] = self.restore(&mut result, program, "restore", place)?;
        if let Some(line) = program.verify {
            self.step(&mut result, "verify", line, place);
        }
        let before = disk_bytes(&store)?;
        if self.step(&mut result, "reclaim", program.reclaim, place).is_some() {
            let after = disk_bytes(&store)?;
            result.figures.insert("reclaim: freed_bytes".into(), before as f64 - after as f64);
            result.restored[1] = self.restore(&mut result, program, "restore after reclaiming", place)?;
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
            return runs::clear(&target).map(|()| None);
        }
        let restored = match program.restored {
            Restored::Itself => target.clone(),
            Restored::Name => target.join("tree"),
            Restored::Path => runs::with_path(&target, &tree)?,
        };
        let said = runs::compared(&tree, &restored, &target, place)?;
        eprintln!("{:<26}{said}", "");
        Ok(Some(said))
    }
}

/// One outcome of several runs.
fn together(program: &Program, version: String, runs: Vec<Run>) -> Outcome {
    let Run { figures, failures, restored: [restored, restored_again] } = Run::together(runs);
    Outcome {
        name: program.name.into(),
        version,
        settings: program.settings.into(),
        figures,
        failures,
        lacking: if program.verify.is_none() { vec!["verify"] } else { Vec::new() },
        restored,
        restored_again,
    }
}
