//! Backups in object storage, of other programs beside ours, on the same corpus in the same run:
//! `make bench-object-storage`.
//!
//! The service is the Versity gateway on loopback ([`gateway`]). A proxy in front of it counts requests and adds a
//! latency to each ([`proxy`]). Each contender gets the same two generations in the same place and an empty bucket.
//! All go through the same steps:
//!
//! 1. a first backup, an unchanged one, one of the second generation;
//! 2. a restore, which is compared with the original;
//! 3. the same after losing all that the program keeps on the machine beside the repository;
//! 4. all backups but the newest are forgotten, and their space is freed;
//! 5. a backup of the third generation is killed after half the time that the second one took, and is made again.
//!
//! A plain download of the whole repository is the floor of restores ([`floor`]). Runs go in turns.

mod contenders;
mod floor;
pub mod gateway;
mod proxy;
mod requests;
mod results;

use crate::backups::text;
use crate::corpus;
use crate::process::run;
use crate::runs::{self, Corpus, Run};
use crate::shell::{Shell, reason};
use anyhow::{Context, Result};
use contenders::{CONTENDERS, Contender};
use gateway::Service;
use proxy::Proxy;
use requests::{Counts, Kind};
use results::{Outcome, STEPS};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// What is compared, where, and how often.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    common: runs::Common,
    /// Milliseconds that each request takes longer; several for one section each
    #[arg(long, value_delimiter = ',', default_value = "0,30")]
    latency: Vec<u64>,
    /// MB (decimal) of bodies that pass in a second in each direction; without it, as many as there can be
    #[arg(long)]
    rate: Option<u64>,
    /// Lists all requests in this file, with status, bytes and times
    #[arg(long)]
    log: Option<PathBuf>,
    /// Where the report goes: this with `.md` and `.json` behind it
    #[arg(long, default_value = "object-storage")]
    out: PathBuf,
}

/// Everything of a run that the contenders share.
struct Runner<'a> {
    options: &'a runs::Common,
    rate: Option<u64>,
    corpus: Corpus,
    shell: Shell,
    log: Option<File>,
}

/// The repository and the machine of one run.
struct Stage<'a> {
    runner: &'a Runner<'a>,
    contender: &'a Contender,
    place: PathBuf,
    latency: Duration,
    service: Service,
    proxy: Proxy,
    result: Run,
}

/// Measures all contenders that are installed and writes the report.
pub fn measure(options: &Options) -> Result<()> {
    let common = &options.common;
    common.check_only(CONTENDERS.iter().map(|contender| contender.name))?;
    let (shell, place) = (common.shell()?, common.place()?);
    let create = |path: &PathBuf| File::create(path).with_context(|| format!("cannot write {}", path.display()));
    let log = options.log.as_ref().map(create).transpose()?;
    let runner = Runner { options: common, rate: options.rate, corpus: Corpus::create(common, place.path())?, shell, log };

    let (mut missing, mut present) = (Vec::new(), Vec::new());
    for contender in &CONTENDERS {
        let is_ours = contender.name == "onefold";
        if !is_ours && !common.lets_in(contender.name) {
            continue;
        }
        match runner.shell.call(contender.version, &[]) {
            Ok(cost) => present.push((contender, runs::first_line(&cost.output))),
            Err(error) if is_ours => return Err(error.context("build it first: cargo build --release --bin onefold")),
            Err(_) => {
                eprintln!("not installed, and left out: {}", contender.name);
                missing.push(contender.name.to_owned());
            }
        }
    }
    let mut outcomes = Vec::new();
    for latency_ms in &options.latency {
        let mut runs: Vec<Vec<Run>> = present.iter().map(|_| Vec::new()).collect();
        for _ in 0..common.runs {
            for ((contender, _), runs) in present.iter().zip(&mut runs) {
                eprintln!("== {} ({}), {latency_ms} ms more for each request", contender.name, contender.settings);
                runs.push(runner.once(contender, Duration::from_millis(*latency_ms))?);
            }
        }
        outcomes.extend(present.iter().zip(runs).map(|((contender, version), runs)| together(contender, version, *latency_ms, runs)));
    }

    let versions = outcomes.iter().map(|outcome| format!("{}: {}", outcome.name, outcome.version));
    let rate = options.rate.map_or_else(String::new, |rate| format!(" At most {rate} MB/s pass in each direction."));
    let more = format!(
        "Repositories are the bytes of their objects. Service, proxy and program share the processors. The download of all objects has \
         {} requests in flight.{rate}",
        floor::PARALLEL
    );
    let text = results::markdown(&outcomes, &runner.corpus.lines(&more, versions), &missing);
    runs::write(&options.out, &text, &results::json(&outcomes, runner.corpus.about(), &missing), &[])
}

impl Runner<'_> {
    /// All steps of one contender. What it does wrong is in the result; errors are those of this program.
    fn once(&self, contender: &Contender, latency: Duration) -> Result<Run> {
        let temporary = tempfile::tempdir_in(&self.options.memory)?;
        let place = temporary.path().to_owned();
        for name in ["home", "restored", "service"] {
            fs::create_dir(place.join(name))?;
        }
        run(Path::new("cp"), &["-a", text(&self.corpus.pristine), text(&place.join("tree"))])?;
        let service = Service::start(&place.join("service"))?;
        let proxy = Proxy::start(service.address, latency, self.rate.map(|rate| rate * 1_000_000))?;
        let mut stage = Stage { runner: self, contender, place, latency, service, proxy, result: Run::default() };
        stage.run()?;
        Ok(stage.result)
    }
}

impl Stage<'_> {
    /// Runs the steps in their order, up to one that fails. A restore that fails stops nothing.
    fn run(&mut self) -> Result<()> {
        let contender = self.contender;
        if !self.step("init", contender.init)? {
            return Ok(());
        }
        for (step, _) in STEPS {
            match step {
                "restore" => self.restore(0, step, contender.restore)?,
                "without_state" => {
                    self.floor()?;
                    self.runner.shell.call(contender.lose_state, &self.variables())?;
                    self.restore(1, step, contender.restore_without_state)?;
                }
                "prune" => {
                    self.step(step, contender.prune)?;
                }
                _ => {
                    let seed = self.runner.options.seed;
                    if step == "changed" {
                        corpus::change(&self.place.join("tree"), seed)?;
                    }
                    if step == "killed" {
                        corpus::change(&self.place.join("tree"), seed + 1)?;
                        let changed_s = self.result.figures.get("changed: wall_s").copied().unwrap_or_default();
                        self.begin_and_kill(contender.backup, Duration::from_secs_f64(changed_s / 2.0))?;
                    }
                    if !self.step(step, contender.backup)? {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    fn variables(&self) -> [(&'static str, String); 9] {
        let path = |name: &str| self.place.join(name).display().to_string();
        [
            ("HOME", path("home")),
            ("PLACE", self.place.display().to_string()),
            ("TARGET", path("restored")),
            ("ADDRESS", self.proxy.address().to_string()),
            ("BUCKET", self.service.bucket.clone()),
            ("AWS_ACCESS_KEY_ID", self.service.key.clone()),
            ("AWS_SECRET_ACCESS_KEY", self.service.secret.clone()),
            ("AWS_REGION", self.service.region.clone()),
            ("AWS_EC2_METADATA_DISABLED", "true".into()),
        ]
    }

    /// Starts a line, and kills all its processes after a while.
    fn begin_and_kill(&self, line: &str, after: Duration) -> Result<()> {
        let mut command = self.runner.shell.command(line, &self.variables());
        let mut running = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        std::thread::sleep(after);
        run(Path::new("kill"), &["-KILL", "--", &format!("-{}", running.id())])?;
        running.wait()?;
        Ok(())
    }

    /// One step. False: it failed, and the result has what was said.
    fn step(&mut self, step: &str, line: &str) -> Result<bool> {
        drop(self.proxy.take());
        let began = Instant::now();
        let called = self.runner.shell.call(line, &self.variables());
        let counts = self.counted(step, began)?;
        let cost = match called {
            Ok(cost) => cost,
            Err(error) => {
                let said = reason(&error, &self.place);
                eprintln!("{step:<14}failed: {said}");
                self.result.failures.push((step.into(), said));
                return Ok(false);
            }
        };
        eprintln!(
            "{step:<14}{:>9.2} s wall{:>9.2} s CPU{:>7} requests{:>9.1} MB sent{:>9.1} MB received{:>9.1} MB of memory",
            cost.wall_s,
            cost.cpu_s,
            counts.requests(),
            counts.sent_bytes as f64 / 1e6,
            counts.received_bytes as f64 / 1e6,
            cost.peak_bytes as f64 / 1e6
        );
        let (repository_bytes, _) = corpus::measure(&self.service.objects);
        let figures = [
            ("wall_s", cost.wall_s),
            ("cpu_s", cost.cpu_s),
            ("peak_bytes", cost.peak_bytes as f64),
            ("repository_bytes", repository_bytes as f64),
        ];
        self.note(step, &figures);
        Ok(true)
    }

    /// Counts the requests since `began`, and lists them in the log.
    fn counted(&mut self, step: &str, began: Instant) -> Result<Counts> {
        let requests = self.proxy.take();
        let requests = || requests.iter().map(|request| &**request);
        if let Some(mut log) = self.runner.log.as_ref() {
            let title = format!("{}, {} ms more for each request: {step}", self.contender.name, self.latency.as_millis());
            log.write_all(requests::list(&title, began, requests()).as_bytes())?;
        }
        let counts = Counts::of(requests());
        let mut figures: Vec<_> = Kind::ALL.iter().zip(counts.by_kind).map(|(kind, count)| (kind.name(), count as f64)).collect();
        figures.extend([
            ("requests", counts.requests() as f64),
            ("sent_bytes", counts.sent_bytes as f64),
            ("received_bytes", counts.received_bytes as f64),
        ]);
        self.note(step, &figures);
        Ok(counts)
    }

    fn note(&mut self, step: &str, figures: &[(&str, f64)]) {
        self.result.figures.extend(figures.iter().map(|(kind, value)| (format!("{step}: {kind}"), *value)));
    }

    /// Restores, and compares what was restored with the tree.
    fn restore(&mut self, nth: usize, step: &str, line: &str) -> Result<()> {
        let (target, tree) = (self.place.join("restored"), self.place.join("tree"));
        if !self.step(step, line)? {
            return runs::clear(&target);
        }
        let restored = if self.contender.restores_path { runs::with_path(&target, &tree)? } else { target.clone() };
        let said = runs::compared(&tree, &restored, &target, &self.place)?;
        eprintln!("{:<14}{said}", "");
        self.result.restored[nth] = Some(said);
        Ok(())
    }

    /// Downloads the whole repository.
    fn floor(&mut self) -> Result<()> {
        drop(self.proxy.take());
        let began = Instant::now();
        let (wall_s, bytes) = floor::download(&self.service, self.proxy.address())?;
        eprintln!("{:<14}{wall_s:>9.2} s wall to download {:.1} MB", "floor", bytes as f64 / 1e6);
        self.counted("floor", began)?;
        self.note("floor", &[("wall_s", wall_s)]);
        Ok(())
    }
}

/// One outcome of several runs.
fn together(contender: &Contender, version: &str, latency_ms: u64, runs: Vec<Run>) -> Outcome {
    let Run { figures, failures, restored } = Run::together(runs);
    Outcome {
        name: contender.name.into(),
        settings: contender.settings.into(),
        version: version.into(),
        latency_ms,
        figures,
        failures,
        restored,
    }
}
